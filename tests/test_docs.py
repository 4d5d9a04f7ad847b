"""The docs have every setting, command, argument, field, fate and word of the code, and their links lead somewhere."""

from __future__ import annotations

import argparse
import re
import sys
from datetime import UTC, datetime
from decimal import Decimal
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from hindcast import gaps, read, settings
from hindcast.contracts import Contract, Expectation, Join, Topic, View, Window
from hindcast.settings import Settings

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROOT = Path(__file__).resolve().parent.parent
DOCS = ROOT / "docs"
PAGES = [ROOT / "README.md", ROOT / "CHANGELOG.md", *sorted(DOCS.rglob("*.md"))]
sys.path.insert(0, str(ROOT / "scripts"))
docs = import_module("docs")


def text(page: str) -> str:
    return (ROOT / page).read_text(encoding="utf-8")


def cells(page: str) -> list[list[str]]:
    """The rows of a page's tables, without the rules under their headers."""
    rows = [line for line in page.splitlines() if line.startswith("|") and not set(line) <= set("|- ")]
    return [[cell.strip() for cell in re.split(r"(?<!\\)\|", row.strip("|"))] for row in rows]


@pytest.mark.parametrize("page", docs.pages(), ids=lambda path: path.name)
def test_a_page_made_from_code_is_up_to_date(page: Path) -> None:
    assert page.read_text(encoding="utf-8") == docs.pages()[page], "run .venv/bin/python scripts/docs.py"


def test_every_command_and_argument_is_explained() -> None:
    for name, sub in docs.commands():
        assert sub.description, name
        assert f"## hindcast {name}\n" in text("docs/cli.md")
        for argument in sub._actions:
            if argument.option_strings and not isinstance(argument, argparse._HelpAction) and argument.dest != "out":
                assert argument.help, f"hindcast {name} {argument.option_strings[0]} has no help"


def test_every_field_of_a_contract_is_explained() -> None:
    told = {row[0] for row in cells(text("docs/contract.md"))}
    for model in (Contract, Topic, View, Join, Window):
        assert {f"`{field.alias or name}`" for name, field in model.model_fields.items()} <= told
    assert Expectation.model_fields.keys() == {"type", "kwargs", "on_failure"}, "docs/contract.md, Gate, is by hand"


def test_the_readme_has_the_settings_of_the_code() -> None:
    own = [[re.sub(r"<(\w+)>", r"$\1", cell) for cell in row] for row in cells(settings.__doc__ or "")]
    assert [row for row in cells(text("README.md")) if row[0].startswith(("HINDCAST_", "variable"))] == own
    now = settings.settings({})
    assert [row[0] for row in own[1:]] == list(now.environment)
    assert [row[0].removeprefix("HINDCAST_").lower() for row in own[1:]] == list(Settings.__dataclass_fields__)


@pytest.mark.parametrize("page", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)\s]+)\)", page.read_text(encoding="utf-8")):
        if "://" in target:
            continue
        path, _, anchor = target.partition("#")
        led = (page.parent / path).resolve() if path else page
        assert led.exists(), target
        assert not anchor or anchor in headings(led), target


def headings(page: Path) -> set[str]:
    """The anchors of a page's headings, as GitHub makes them."""
    found = re.findall(r"^#+ (.+)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading).lower().replace(" ", "-") for heading in found}


def test_the_glossarys_words_are_those_of_the_code() -> None:
    source = "\n".join(path.read_text(encoding="utf-8") for path in (ROOT / "jobs").rglob("*.py"))
    rows = [row for row in cells(text("docs/glossary.md")) if len(row) == 3 and row[0] != "word"]
    assert len(rows) > 20
    for _, _, code in rows:
        for name in re.findall(r"`([^`]+)`", code):
            assert is_in_code(name, source), name


def is_in_code(name: str, source: str) -> bool:
    """Whether `module.thing`, `Class.field`, a module or a bare name is there."""
    first, _, thing = name.partition(".")
    if (ROOT / "jobs" / "hindcast" / first).with_suffix(".py").exists() or (
        ROOT / "jobs" / "hindcast" / first
    ).is_dir():
        return not thing or hasattr(import_module(f"hindcast.{first}"), thing)
    return re.search(rf"\b{first}\b", source) is not None and (
        not thing or re.search(rf"\b{thing}\b", source) is not None
    )


def test_the_glossary_has_the_fates_of_the_code() -> None:
    told = [row[0].strip("`") for row in cells(text("docs/glossary.md")) if len(row) == 4 and row[0] != "fate"]
    source = text("jobs/hindcast/order.py") + text("jobs/hindcast/decode.py") + text("jobs/hindcast/gaps.py")
    assert sorted(told) == sorted(
        ["accepted", "expired", "malformed", "no_timestamp", "null_key", "time_skew", *gaps.FATES]
    )
    assert all(f'"{fate}"' in source for fate in told)


def test_the_conditions_for_other_readers_are_those_of_ours() -> None:
    told = {row[0]: row[1].strip("`") for row in cells(text("docs/how-it-works.md")) if len(row) == 2}
    assert told["as known at S"] == read.known_at("S")
    assert told["versions true at T"] == read.as_of("versions", "T")
    assert told["events up to T"] == read.as_of("events", "T")


def test_the_example_for_duckdb_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    _menu(tmp_path)
    monkeypatch.chdir(tmp_path)
    exec(_block("python"), {})  # noqa: S102  # a page of ours
    shown = capsys.readouterr().out
    assert "2.50" in shown
    assert "3.00" not in shown


def test_the_example_for_spark_runs(tmp_path: Path, spark: SparkSession) -> None:
    _menu(tmp_path)
    rows = spark.sql(_block("sql").replace("var/", f"{tmp_path}/var/")).collect()
    assert [(row["item"], row["price"], row["validTo"]) for row in rows] == [("naan", Decimal("2.50"), None)]


def _block(language: str) -> str:
    found = re.search(rf"```{language}\n(.*?)```", text("docs/how-it-works.md"), re.DOTALL)
    assert found
    return found[1]


def _menu(folder: Path) -> None:
    """The demo's naan, as the page draws it: 3.00 from t=0; learnt later, 2.50 from t=1."""

    def at(minute: int) -> datetime:
        return datetime(2026, 1, 1, 0, minute, tzinfo=UTC)

    rows = [
        ("naan", Decimal("3.00"), at(0), None, at(10), at(11)),
        ("naan", Decimal("3.00"), at(0), at(1), at(11), None),
        ("naan", Decimal("2.50"), at(1), None, at(11), None),
    ]
    names = ["item", "price", "validFrom", "validTo", "systemFrom", "systemTo"]
    types = [pa.string(), pa.decimal128(8, 2), *[pa.timestamp("us", "UTC")] * 4]
    data = [pa.array(column, kind) for column, kind in zip(zip(*rows, strict=True), types, strict=True)]
    write_deltalake(folder / "var/demo/warehouse/restaurant/menu", pa.table(data, names=names))
