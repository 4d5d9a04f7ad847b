"""The docs have every setting, command, argument, field, fate and word of the code, and their links lead somewhere."""

from __future__ import annotations

import argparse
import ast
import itertools
import json
import os
import re
import subprocess
import sys
from decimal import Decimal
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING
from xml.etree import ElementTree as ET

import pytest
from deltalake import DeltaTable

from hindcast.bitemporal import predicates
from hindcast.common import settings
from hindcast.common.settings import Settings
from hindcast.contract import Contract, Expectation, Input, Join, Shape, Topic, View, Window, list_shapes
from hindcast.contract.shapes import PERIODS
from hindcast.ingest import schemas, trim_ledger
from hindcast.kafka import gaps
from hindcast.plan import journal
from hindcast.quality import failing_rows, gate_results
from hindcast.query import spark_functions
from hindcast.store import table_columns, tables
from pipelines import Pipeline

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROOT = Path(__file__).resolve().parent.parent
DOCS = ROOT / "docs"
KAFKA_VECTORS = [path for path in (ROOT / "tests" / "conformance").glob("*.json") if "corrected" not in path.name]
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
    for model in (Contract, Topic, Input, View, Join, Window):
        assert {f"`{field.alias or name}`" for name, field in model.model_fields.items()} <= told
    assert Expectation.model_fields.keys() == {"type", "kwargs", "on_failure", "rows"}, (
        "docs/contract.md, Gate, is by hand"
    )


def test_the_readme_has_the_settings_of_the_code() -> None:
    own = [[re.sub(r"<(\w+)>", r"$\1", cell) for cell in row] for row in cells(settings.__doc__ or "")]
    assert [row for row in cells(text("README.md")) if row[0].startswith(("HINDCAST_", "variable"))] == own
    now = settings.read_settings({})
    assert [row[0] for row in own[1:]] == list(now.environment)
    fields = [name for name in Settings.__dataclass_fields__ if name != "variables"]  # of no environment
    assert [row[0].removeprefix("HINDCAST_").lower() for row in own[1:]] == fields


@pytest.mark.parametrize("page", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)\s]+)\)", page.read_text(encoding="utf-8")):
        if "://" in target:
            continue
        path, _, anchor = target.partition("#")
        led = (page.parent / path).resolve() if path else page
        assert led.exists(), target
        assert not anchor or anchor in headings(led), target


def test_the_parity_page_names_every_family_of_vectors_and_modules_and_tests_that_there_are() -> None:
    page = text("docs/kafka-parity.md")
    families = {path.stem: len(json.loads(path.read_text(encoding="utf-8"))) for path in KAFKA_VECTORS}
    assert {name: int(count) for name, count in re.findall(r"`(\w+)` \((\d+)\)", page)} == families
    assert f"{sum(families.values()):,} pass" in page
    modules = re.findall(r"`(\w+)`", " ".join(re.findall(r"^(`.*?)\. Vectors", page, re.MULTILINE)))
    assert len(modules) > 15
    for module in modules:
        assert (ROOT / "jobs" / "hindcast" / "streams" / f"{module}.py").exists(), module
    for file, test in re.findall(r"`(test_\w+\.py)::(test_\w+)`", page):
        assert f"\ndef {test}(" in text(f"tests/{file}"), test


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
    house = ROOT / "jobs" / "hindcast"
    found = [*house.rglob(f"{first}.py"), *house.rglob(f"{first}/__init__.py")]
    if found:
        rooms = (".".join(it.relative_to(house.parent).with_suffix("").parts).removesuffix(".__init__") for it in found)
        return not thing or any(hasattr(import_module(room), thing) for room in rooms)
    return all(re.search(rf"\b{it}\b", source) for it in (first, thing) if it)


def test_the_glossary_has_the_fates_of_the_code() -> None:
    told = [row[0].strip("`") for row in cells(text("docs/glossary.md")) if len(row) == 4 and row[0] != "fate"]
    rooms = ("bitemporal/fates", "formats/decoder", "formats/spark_decoding", "kafka/gaps")
    source = "".join(text(f"jobs/hindcast/{room}.py") for room in rooms)
    assert sorted(told) == sorted(
        ["accepted", "expired", "malformed", "no_change", "no_timestamp", "null_key", "time_skew", *gaps.GAP_FATES]
    )
    assert all(f'"{fate}"' in source for fate in told)


def test_the_tables_page_has_the_columns_of_real_tables(restaurant: Pipeline) -> None:
    kinds = set()
    for log in Path(restaurant.warehouse).rglob("_delta_log"):
        found = DeltaTable(log.parent)
        kind, key = (tables.read_marks(found) or {})["kind"], (tables.read_marks(found) or {})["key"]
        given = {*key, *(list_shapes(restaurant.contract).get(log.parent.name, NOTHING).value)}
        told = columns_told(HEADINGS[kind])
        for field in table_columns.spark_schema(found).fields:
            if field.name not in given:
                assert told[field.name] in ("", field.dataType.simpleString().partition("<")[0]), (kind, field.name)
        kinds.add(kind)
    assert kinds >= {"log", "versions", "events", "runs"}


def test_the_tables_page_has_the_columns_of_the_codes_schemas() -> None:
    for kind, schema in (("runs", journal), ("gates", gate_results), ("failing", failing_rows), ("schemas", schemas)):
        types = {field.name: field.dataType.simpleString() for field in schema.SCHEMA.fields}
        assert columns_told(HEADINGS[kind]) == types, kind
    assert {*trim_ledger.COUNTS_SCHEMA.names} <= columns_told(HEADINGS["trimmed"]).keys()
    for kind, periods in PERIODS.items():
        assert {*periods, "systemFrom", "systemTo", "_belief"} <= columns_told(HEADINGS[kind]).keys()


HEADINGS = {
    "versions": "Versions",
    "events": "Events",
    "windows": "Windows",
    "pairs": "Pairs",
    "log": "`<pipeline>/logs/<topic>`",
    "runs": "`<pipeline>/runs`",
    "gates": "`<pipeline>/gates`",
    "failing": "`<pipeline>/failing`",
    "schemas": "`<pipeline>/schemas/<topic>`",
    "trimmed": "`<pipeline>/trimmed/<topic>`",
}
"""Where docs/tables.md has the tables of a kind."""
NOTHING = Shape("events", {}, {})


def columns_told(heading: str) -> dict[str, str]:
    """The columns under a heading of docs/tables.md with their types; one type is that of all in its row."""
    section = text("docs/tables.md").split(f"### {heading}\n")[1].split("\n### ")[0]
    found = {}
    for row in cells(section)[1:]:
        names, types = re.split(r", ", row[0].replace("`", "")), re.split(r", ", row[1])
        found |= dict(zip(names, types * len(names) if len(types) == 1 else types, strict=True))
    return found


def test_the_picture_of_the_plane_has_the_rows_that_its_page_tells_of() -> None:
    rows = docs.picture.rectangles(docs.picture.NAAN.records)
    assert [(*row, row.region) for row in rows] == [
        ("3.00", 0, None, 1, 2, 3),
        ("3.00", 0, 1, 2, 3, 4),
        ("2.50", 1, None, 2, None, 1),
        ("3.00", 0, 0.5, 3, None, 2),
        ("2.75", 0.5, 1, 3, None, 2),
    ]
    for row in rows:
        assert f">{row.price} · {row.region}: {row.belief}</text>" in text("docs/pictures/plane.svg")
    for run in (1, 2, 3):
        assert f"known at run {run}: " in text("docs/pictures/plane.svg")


@pytest.mark.parametrize("name", ["plane", "hindsight", "house"])
def test_pictures_have_the_colours_of_the_pages_and_are_well_formed(name: str) -> None:
    picture = text(f"docs/pictures/{name}.svg")
    style = ET.fromstring(picture).findtext("{*}style") or ""  # noqa: S314  # our own
    light, dark = re.findall(r"--paper: (#\w+)", style)
    assert f"--paper: light-dark({light}, {dark})" in text("jobs/hindcast/report/page.css")
    assert "prefers-color-scheme: dark" in style
    assert not re.search(r'(fill|stroke)="(#|white)', picture)


def test_pictures_are_small() -> None:
    assert max(path.stat().st_size for path in (DOCS / "pictures").iterdir()) < 200_000


def test_every_error_is_explained() -> None:
    page = text("docs/errors.md")
    for kind in docs.reference.kinds():
        assert f"## {kind.__name__}\n" in page
    assert len(docs.reference.messages()) > 250


def test_the_conditions_for_other_readers_are_those_of_ours() -> None:
    told = {row[0]: row[1].strip("`") for row in cells(text("docs/reading.md")) if len(row) == 2}
    assert told["as known at S"] == predicates.known_at_condition("S")
    for kind, at, between in (
        ("versions", "versions true at T", "versions true at some moment from T1 to T2"),
        ("events", "events up to T", "events from T1 to T2"),
        ("windows", "windows begun by T", "windows from T1 to T2"),
    ):
        assert told[at] == predicates.as_of_condition(kind, "T")
        assert told[between] == predicates.during_condition(kind, "T1", "T2").replace("(validFrom", "validFrom")


@pytest.fixture
def demo(restaurant: Pipeline, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder in which the tables of a real pipeline lie where the pages have the demo's."""
    (tmp_path / "var/demo").mkdir(parents=True)
    (tmp_path / "var/demo/warehouse").symlink_to(restaurant.warehouse)
    for name, value in restaurant.environ.items():
        monkeypatch.setenv(name, value)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.usefixtures("demo")
def test_the_examples_for_python_and_duckdb_run(capsys: pytest.CaptureFixture[str]) -> None:
    ours, plain, stream = _blocks("python")
    exec(ours, {})  # noqa: S102  # a page of ours
    assert "[10.00]" in re.sub(r"\s", "", capsys.readouterr().out)
    exec(plain, {})  # noqa: S102
    shown = capsys.readouterr().out
    assert [shown.count(price) for price in ("5.00", "8.00", "9.00", "10.00")] == [1, 2, 1, 1], shown
    exec(stream, {})  # noqa: S102
    shown = capsys.readouterr().out
    assert [shown.count(price) for price in ("5.00", "8.00", "9.00", "10.00")] == [1, 1, 1, 1], shown


@pytest.mark.long
@pytest.mark.ci
def test_the_examples_for_spark_run(demo: Path, restaurant: Pipeline, spark: SparkSession) -> None:
    spark_functions.register(spark, restaurant.warehouse, restaurant.contract)
    asked, lateral, plain = _blocks("sql")
    assert [tuple(row) for row in spark.sql(asked).collect()] == [("curry", Decimal(8))]
    assert sorted(tuple(row) for row in spark.sql(lateral).collect()) == [
        ("anna", "curry", Decimal(8)),
        ("bob", "curry", Decimal(10)),
        ("candace", "curry", Decimal(8)),
    ]
    rows = spark.sql(plain.replace("var/", f"{demo}/var/")).collect()
    assert [(row["item"], row["price"]) for row in rows] == [("curry", Decimal(9)), ("soup", Decimal(5))]


def _blocks(language: str) -> list[str]:
    """The page's examples, asked in the story's third second instead of the demo's second minute."""
    page = text("docs/reading.md").replace("00:02:00", "00:00:03")
    return re.findall(rf"```{language}\n(.*?)```", page, re.DOTALL)


def test_every_promise_names_tests_that_are_there() -> None:
    promises = [row for row in cells(text("docs/guarantees.md")) if row[0] != "promise"]
    assert len(promises) > 20
    for promise, held in promises:
        named = re.findall(r"`(test_\w+\.py)::(test_\w+)`", held)
        assert named, promise
        lengths = set()
        for file, test in named:
            source = text(f"tests/{file}")
            found = re.search(rf"((?:^@.*\n(?:^[ )\]].*\n)*)*)^def {test}\(", source, re.MULTILINE)
            assert found, f"{file}::{test}"
            lengths.add("@pytest.mark.long" in found[1])
        assert (lengths == {True}) == ("†" in promise), f"all are long, or not all: {held}"


def rooms() -> list[list[str]]:
    """The rooms of docs/architecture.md, row by row."""
    found = [re.findall(r"`([a-z_]+)/?`", row[0]) for row in cells(text("docs/architecture.md"))]
    return [row for row in found if row]


FORMER_NAMES = {"contracts", "functions", "questions", "session", "settings"}
"""Modules that only forward to where their names are now."""


def test_every_room_has_its_place_in_the_architecture() -> None:
    house = ROOT / "jobs" / "hindcast"
    there = {path.stem for path in house.glob("*.py")} | {path.parent.name for path in house.glob("*/__init__.py")}
    assert sorted(itertools.chain(*rooms())) == sorted(there - {"__init__"} - FORMER_NAMES), "each once"


def test_the_library_does_without_the_packages_of_tools() -> None:
    """But for the commands that start them."""
    house = ROOT / "jobs" / "hindcast"
    used = re.compile(r"^ *(?:from|import) hindcast_\w+", re.MULTILINE)
    assert {
        path.relative_to(house).parts[0] for path in house.rglob("*.py") if used.search(path.read_text("utf-8"))
    } == {"cli"}


def test_former_names_of_modules_work_with_a_warning() -> None:
    for name in FORMER_NAMES:
        with pytest.warns(DeprecationWarning, match=f"hindcast.{name} is deprecated: import from hindcast."):
            import_module(f"hindcast.{name}")


def test_the_picture_of_the_house_has_rooms_that_there_are() -> None:
    drawn = [box for box in docs.house.BOXES if box.fill in (docs.house.ROOM, docs.house.MEANING)]
    assert {name for box in drawn for name in box.name.split(", ")} <= {*itertools.chain(*rooms())}


def test_a_room_uses_only_rooms_that_stand_below_it() -> None:
    house = ROOT / "jobs" / "hindcast"
    floor = {room: number for number, row in enumerate(rooms()) for room in row}
    climbing = []
    for path in house.rglob("*.py"):
        own = path.relative_to(house).with_suffix("").parts[0]
        if own in FORMER_NAMES:
            continue
        for line in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(line, ast.ImportFrom) and (line.module or "").split(".")[0] == "hindcast":
                used = (line.module or "").split(".")[1:2] or [name.name for name in line.names]
            elif isinstance(line, ast.Import):
                used = [parts[1] for parts in (name.name.split(".") for name in line.names) if parts[0] == "hindcast"]
            else:
                continue
            above = [it for it in used if it != own and floor.get(it, len(floor)) < floor.get(own, len(floor))]
            climbing += [f"{path.relative_to(house)}: {it}" for it in above]
    assert not climbing


READERS_OF_SETTINGS = {
    "cli/completion": "a shell that asks for completions",
    "cli/main": "each command, and each step under spark-submit",
    "airflow/__init__": "each file that creates DAGs",
    "airflow/tasks": "each task",
    "airflow/approval_tasks": "each task",
    "airflow/connections": "each task of a connection, whose variables the settings then have",
    "airflow/lineage": "what a task has read and written, when Airflow asks for it",
    "airflow/pages/routes": "each request",
    "common/session": "the session of a process",
    "ops/doctor": "the settings are what is examined",
}
"""The modules of the library that read the settings, and of what; all others get them as an argument."""


def test_settings_are_read_where_something_begins_and_passed_on() -> None:
    house = ROOT / "jobs" / "hindcast"
    reading = set()
    for path in house.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            called = node.func if isinstance(node, ast.Call) else None
            name = called.attr if isinstance(called, ast.Attribute) else getattr(called, "id", None)
            if name == "read_settings":
                reading.add(path.relative_to(house).with_suffix("").as_posix())
    assert reading == READERS_OF_SETTINGS.keys()


@pytest.mark.long
def test_the_site_builds_without_a_warning(tmp_path: Path) -> None:
    pytest.importorskip("mkdocs", reason="`make docs` installs it")
    recipe = re.search(r"mkdocs (build.*?) &&", text("Makefile"))
    assert recipe
    command = [sys.executable, "-m", "mkdocs", *recipe[1].split(), "--site-dir", str(tmp_path / "site")]
    calm = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(command, cwd=ROOT, env=calm, capture_output=True, text=True, check=False)
    assert (done.returncode, "WARNING" in done.stderr) == (0, False), done.stderr
    assert "Documentation built" in done.stderr, "with --quiet MkDocs counts no warnings"


def test_the_site_has_every_page() -> None:
    named = set(re.findall(r"[a-z/-]+\.md", text("mkdocs.yml"))) - {"index.md"}
    assert named == {str(page.relative_to(DOCS)) for page in DOCS.rglob("*.md") if page.parent.name != "adr"}
