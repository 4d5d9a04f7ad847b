"""Every example of the docs is one that the code takes: commands, contracts, records, code. Nothing is run here.

The README, the tutorial and the how-to pages are followed besides (test_readme.py, test_guides.py).
"""

from __future__ import annotations

import argparse
import re
import shlex
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import sqlglot
import yaml
from _pytest.mark.structures import ParameterSet

from hindcast.cli.arguments import build_parser
from hindcast.common.targets import read_target
from hindcast.common.yaml_loader import ContractLoader
from hindcast.contract import Contract, Topic, load
from hindcast.kafka import json_lines
from walkthrough import ROOT, Block, blocks

sys.path.insert(0, str(ROOT / "scripts"))
java_compiler, java_for_tests = (import_module(name) for name in ("java_compiler", "java_for_tests"))

PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
GIVEN = """
pipeline: example
start: 2026-01-01
topics:
  menu: {read: table, key: {item: string}, value: {price: "decimal(8,2)"}}
  orders: {read: stream, key: {customer: string}, value: {item: string, quantity: int}}
"""
"""What a contract that a page shows in part is a part of."""


def of(language: str) -> list[ParameterSet]:
    """All blocks of a language, each with its page and number."""
    return [
        pytest.param(block, id=f"{page.relative_to(ROOT)}-{number}")
        for page in PAGES
        for number, block in enumerate(blocks(page))
        if block.language == language
    ]


def typed() -> Iterator[tuple[str, str]]:
    """(page, line) of every command of ours that a page shows as code of its own."""
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        shown = [line for block in blocks(page) if block.language in ("console", "sh", "text") for line in block.lines]
        shown += re.findall(
            r"^    (hindcast .*)$", re.sub(r"^```.*?^```$", "", text, flags=re.DOTALL | re.MULTILINE), re.MULTILINE
        )
        for line in shown:
            if page.name != "cli.md" and re.match(r"(\$ )?hindcast [a-z]", line):
                yield str(page.relative_to(ROOT)), re.split(r"  +| [|>&]|;", line.removeprefix("$ "))[0]


def named() -> Iterator[tuple[str, str]]:
    """(page, text) of every command of ours that a page names within a sentence."""
    for page in PAGES:
        plain = re.sub(r"^```.*?^```$", "", page.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)
        for text in re.findall(r"`(hindcast [a-z][^`]*)`", plain):
            yield str(page.relative_to(ROOT)), " ".join(text.split())


def commands() -> dict[str, argparse.ArgumentParser]:
    subs = next(a for a in build_parser()._actions if isinstance(a, argparse._SubParsersAction))
    return dict(subs.choices)


@pytest.mark.parametrize(("page", "line"), sorted(set(typed())))
def test_a_command_that_is_shown_is_understood(page: str, line: str, capsys: pytest.CaptureFixture[str]) -> None:
    try:
        build_parser().parse_args(shlex.split(line)[1:])
    except SystemExit:
        pytest.fail(f"{page}: {line}\n{capsys.readouterr().err}")


@pytest.mark.parametrize(("page", "text"), sorted(set(named())))
def test_a_command_that_is_named_is_there_with_its_options(page: str, text: str) -> None:
    name, *words = text.split()[1:]
    assert name in commands(), page
    options = {option for action in commands()[name]._actions for option in action.option_strings}
    assert {word.partition("=")[0] for word in words if word.startswith("--")} <= options, page


TARGETS = [it for it in of("yaml") if it.values[0].lines[0] == "# targets.yaml"]


@pytest.mark.parametrize("block", TARGETS)
def test_targets_that_are_shown_are_targets(block: Block, tmp_path: Path) -> None:
    (tmp_path / "targets.yaml").write_text("\n".join(block.lines), encoding="utf-8")
    assert [read_target(tmp_path, name).warehouse for name in told(block)] == ["var/dev", "s3a://prices/warehouse"]


@pytest.mark.parametrize(
    "block", [it for it in of("yaml") if "contract-tests.md" not in str(it.id) and it not in TARGETS]
)
def test_a_contract_that_is_shown_is_one(block: Block, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    page = ROOT / request.node.callspec.id.rpartition("-")[0]
    whole = completed(told(block), next(told(it) for it in blocks(page) if it.language == "yaml"))
    (tmp_path / "example.yaml").write_text(yaml.safe_dump(whole, sort_keys=False), encoding="utf-8")
    load(tmp_path / "example.yaml")


def told(block: Block) -> dict[str, Any]:
    return dict(yaml.load("\n".join(block.lines), Loader=ContractLoader))  # noqa: S506  # a safe loader


def completed(part: dict[str, Any], first: dict[str, Any]) -> dict[str, Any]:
    """What a page shows as the contract that it is of: a whole one, parts of one, fields of a topic, or views of the
    page's first contract.
    """
    whole: dict[str, Any] = yaml.load(GIVEN, Loader=ContractLoader)  # noqa: S506
    if part.keys() <= {*Contract.model_fields, "variables"}:
        for name in part.get("inputs", {}):
            whole["topics"].pop(name, None)
        return {**whole, **part}
    if part.keys() <= Topic.model_fields.keys():
        whole["topics"]["menu"] |= part
        return whole
    return {**whole, **first, "views": part}


@pytest.mark.parametrize("block", of("json"))
def test_records_that_are_shown_can_be_sent(block: Block, tmp_path: Path) -> None:
    (tmp_path / "records.jsonl").write_text("\n".join(block.lines) + "\n", encoding="utf-8")
    assert len(list(json_lines.read_records(tmp_path / "records.jsonl"))) == len(block.lines)


@pytest.mark.parametrize("block", of("python"))
def test_python_that_is_shown_compiles(block: Block) -> None:
    compile("\n".join(block.lines), "example", "exec")


@pytest.mark.parametrize("block", of("sql"))
def test_sql_that_is_shown_parses(block: Block) -> None:
    assert sqlglot.parse_one("\n".join(block.lines), dialect="databricks")


@pytest.mark.long
@pytest.mark.parametrize("block", of("java"))
def test_a_topology_that_is_shown_compiles(block: Block, tmp_path: Path) -> None:
    java_for_tests.streams()  # its jars
    (tmp_path / "Example.java").write_text(JAVA.replace("// shown", "\n".join(block.lines)), encoding="utf-8")
    place = java_for_tests._place()
    jars = java_for_tests._jars(place, "streams").glob("*.jar")
    java_compiler.compiled(place, [tmp_path / "Example.java"], jars, tmp_path / "made")
    assert (tmp_path / "made" / "Example.class").exists()


JAVA = """
import java.math.BigDecimal;
import java.time.Duration;
import org.apache.kafka.streams.StreamsBuilder;
import org.apache.kafka.streams.kstream.*;
import org.apache.kafka.streams.state.Stores;

class Example {
    record Price(BigDecimal price) {}
    record Bill(BigDecimal amount) {}
    record Order(int quantity) {
        Bill times(Price it) { return new Bill(it.price().multiply(new BigDecimal(quantity))); }
    }
    void build(StreamsBuilder builder) {
        // shown
    }
}
"""
"""What a part of an application that a page shows is a part of."""


def test_targets_of_make_that_are_named_are_there() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    told = {
        name
        for page in PAGES
        for name in re.findall(r"`make ([a-z-]+)`|^\$ make ([a-z-]+)", page.read_text("utf-8"), re.MULTILINE)
    }
    assert {one or other for one, other in told} <= targets


def test_code_is_of_a_kind_that_is_checked() -> None:
    kinds = {block.language for page in PAGES for block in blocks(page)}
    assert kinds <= {"console", "sh", "text", "yaml", "json", "python", "sql", "java", "csv"}
