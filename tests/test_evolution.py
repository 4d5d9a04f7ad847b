"""Contracts whose columns change over time, on the real broker: added, widened, dropped, renamed, there again."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any

import pytest
import yaml

import reports
from hindcast.bitemporal.predicates import Question
from hindcast.cli import main
from hindcast.common.errors import RecordError, TableError
from hindcast.common.yaml_loader import ContractLoader
from hindcast.plan import journal
from hindcast.query import key_history, read
from hindcast.runs import incremental_state
from hindcast.store import table_columns, tables
from pipelines import Pipeline, pipeline

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.long

FIRST = """
pipeline: restaurant
start: 2026-01-01
topics:
  menu:
    read: table
    key: {item: string}
    widen: spark_only
    value: {price: int}
  orders:
    read: stream
    key: {customer: string}
    widen: spark_only
    value: {item: string, quantity: int, place: "struct<x: int>"}
views:
  bills:
    stream: orders
    join: {table: menu, on: item}
    widen: spark_only
    select: {item: orders.item, amount: quantity * price}
  served:
    stream: orders
    join: {table: menu, on: item}
    widen: spark_only
    semantics: kafka
    select: {amount: quantity * price}
"""
WIDE = "decimal(12,2)"
CHANGES: dict[str, dict[str, Any]] = {
    "added": {
        "menu": {"price": "int", "note": "string"},
        "orders": {"seat": "int", "place": "struct<x: int, y: string>"},
        "views": {"note": "note"},
    },
    "widened": {
        "menu": {"price": WIDE, "note": "string"},
        "orders": {"quantity": "bigint", "place": "struct<x: bigint, y: string>"},
    },
    "dropped": {"menu": {"price": WIDE}, "views": {"note": None}},
    "renamed": {"menu": {"cost": WIDE}, "views": {"amount": "quantity * cost"}},
    "there again": {"menu": {"cost": WIDE, "note": "string"}},
}
"""What each contract changes of the one before: the columns of menu, some of orders, what both views select.

It is run 1 under the first one, 2 under the one with more columns, .. 6 under the last; then 7 brings a late record.
"""


@dataclass(frozen=True)
class Story:
    """The pipeline after its runs; what previews told before run 2 and, of widened columns, before run 3; the columns
    of menu after run 4, as known then and as known at run 3.
    """

    p: Pipeline
    previewed: dict[str, tuple[int, int]]
    widened: dict[str, Any]
    shown: tuple[list[str], list[str]]

    def columns(self, run: int) -> list[str]:
        return columns(self.p, run)


def columns(p: Pipeline, run: int | None = None) -> list[str]:
    """The user's columns of menu in an answer."""
    known = None if run is None else read.moment_of(p.warehouse, p.name, f"run:{run}")
    names: list[str] = read.query(p.warehouse, p.contract, "menu", Question(known_at=known)).column_names
    return names[:-4]


def changed(contract: dict[str, Any], change: dict[str, Any]) -> dict[str, Any]:
    new = copy.deepcopy(contract)
    new["topics"]["menu"]["value"] = change["menu"]
    new["topics"]["orders"]["value"] |= change.get("orders", {})
    for view in new["views"].values():
        view["select"] = {c: text for c, text in {**view["select"], **change.get("views", {})}.items() if text}
    return new


def priced(price: float, **more: Any) -> dict[str, Any]:
    """A value with the price under both of its names."""
    return {"price": price, "cost": price, **more}


@pytest.fixture(scope="module")
def story(spark: SparkSession, broker: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Story]:
    with pipeline(spark, broker, tmp_path_factory.mktemp("evolution"), FIRST) as p:
        contract = yaml.load(FIRST, Loader=ContractLoader)  # noqa: S506  # a safe loader
        p.send("menu", ("curry", priced(8), 0), ("soup", priced(5, note="hot"), 0))
        p.send("orders", ("anna", {"item": "curry", "quantity": 1, "seat": 7, "place": {"x": 1, "y": "bar"}}, 1))
        p.send("orders", ("bob", {"item": "soup", "quantity": 2, "place": {"x": 2}}, 2))
        p.run()
        for name, change in CHANGES.items():
            contract = changed(contract, change)
            p.write(yaml.safe_dump(contract))
            if name == "added":
                told = reports.preview_run(spark, p.name)["tables"]
                p.send("orders", ("carl", {"item": "curry", "quantity": 2**20}, 3))
            elif name == "widened":
                p.send("menu", ("curry", priced(9.5), 4))
                widened = {n: it.get("widened") for n, it in reports.preview_run(spark, p.name)["tables"].items()}
            elif name == "dropped":
                p.send("menu", ("rice", priced(3, note="cold"), 5))
            p.run()
            if name == "dropped":
                shown = columns(p), columns(p, run=3)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(incremental_state, "MAX_WHOLE_ROWS", -1)
            p.send("menu", ("curry", priced(8.5, note="mild"), 2))
            p.run()
        yield Story(p, {table: (it["opened"], it["closed"]) for table, it in told.items()}, widened, shown)


def same(found: list[tuple[Any, ...]], expected: list[tuple[Any, ...]]) -> bool:
    return sorted(found, key=str) == sorted(expected, key=str)


def test_rows_that_are_the_same_stay_and_others_are_corrected(story: Story) -> None:
    """Of a row: item, price, note, cost; from, to; the runs that opened and closed it."""
    assert same(
        story.p.history("menu"),
        [
            ("curry", 8.0, None, None, 0, None, 1, 3),  # neither another column nor a wider type closes it
            ("curry", 8.0, None, None, 0, 4, 3, 5),
            ("curry", 9.5, None, None, 4, None, 3, 5),
            ("curry", None, None, 8.0, 0, 4, 5, 7),
            ("curry", None, None, 9.5, 4, None, 5, None),
            ("curry", None, None, 8.0, 0, 2, 7, None),  # a late record, by increments
            ("curry", None, "mild", 8.5, 2, 4, 7, None),
            ("rice", 3.0, None, None, 5, None, 4, 5),
            ("rice", None, None, 3.0, 5, None, 5, 6),
            ("rice", None, "cold", 3.0, 5, None, 6, None),
            ("soup", 5.0, None, None, 0, None, 1, 2),
            ("soup", 5.0, "hot", None, 0, None, 2, 5),  # still so when note is dropped
            ("soup", None, None, 5.0, 0, None, 5, 6),
            ("soup", None, "hot", 5.0, 0, None, 6, None),
        ],
    )


def test_events_that_came_before_are_read_again(story: Story) -> None:
    """Of a row: customer, item, quantity, place, seat; timestamp; the runs."""
    assert same(
        story.p.history("orders"),
        [
            ("anna", "curry", 1, {"x": 1, "y": None}, None, 1, 1, 2),
            ("anna", "curry", 1, {"x": 1, "y": "bar"}, 7, 1, 2, None),
            ("bob", "soup", 2, {"x": 2, "y": None}, None, 2, 1, None),
            ("carl", "curry", 2**20, None, None, 3, 2, None),
        ],
    )


def test_views_follow(story: Story) -> None:
    """Of a row: customer, item (bills), amount, note; timestamp; the runs."""
    assert same(
        story.p.history("bills"),
        [
            ("anna", "curry", 8.0, None, 1, 1, None),
            ("bob", "soup", 10.0, None, 2, 1, 2),
            ("bob", "soup", 10.0, "hot", 2, 2, None),
            ("carl", "curry", 8.0 * 2**20, None, 3, 2, 7),
            ("carl", "curry", 8.5 * 2**20, None, 3, 7, None),
        ],
    )
    assert same(
        story.p.history("served"),
        [
            ("anna", 8.0, None, 1, 1, None),
            ("bob", 10.0, None, 2, 1, 2),
            ("bob", 10.0, "hot", 2, 2, None),
            ("carl", 8.0 * 2**20, None, 3, 2, None),
        ],
    )
    emitted = {(row["_epoch"], row["note"]) for row in story.p.raw("emitted/served") if row["customer"] == "bob"}
    assert emitted == {(1, None), (2, "hot"), (3, "hot"), (4, None), (5, None), (6, None)}


def test_a_preview_tells_what_a_new_column_corrects(story: Story) -> None:
    assert story.previewed == {"menu": (1, 1), "orders": (1, 1), "bills": (1, 1), "served": (1, 1)}


def test_a_preview_and_the_report_tell_what_is_widened_also_by_an_expression(story: Story) -> None:
    amount = {"amount": ("int", "decimal(33,2)")}
    columns = {"quantity": ("int", "bigint"), "place.x": ("int", "bigint")}
    assert story.widened == {"menu": {"price": ("int", WIDE)}, "orders": columns, "bills": amount, "served": amount}
    for run in (2, 3, 4):
        report = next(it.detail for it in journal.read_runs(story.p.warehouse, story.p.name) if it.number == run)
        told = {name: it.get("widened") for name, it in report["tables"].items()}
        wanted = {n: {c: [*types] for c, types in it.items()} for n, it in story.widened.items()}
        assert told == (wanted if run == 3 else dict.fromkeys(told))


def test_columns_are_changed_by_commits_of_metadata_without_files(story: Story) -> None:
    found = tables.open_table(story.p.table("menu"))
    assert found is not None
    told = [
        (commit["operation"], (commit.get("operationMetrics") or {}).get("numFiles"))
        for commit in reversed(found.history())
        if "run" not in json.loads(commit.get("userMetadata") or "{}")
    ]
    marked, grown = ("SET TBLPROPERTIES", None), ("WRITE", "0")
    assert told == [("CREATE TABLE", None), marked, grown, marked, grown, marked, marked, grown, marked]
    notes = [json.loads(commit.get("userMetadata") or "{}").get("columns") for commit in reversed(found.history())]
    assert [note for note in notes if note] == [
        "added note string",
        "widened price from int to decimal(12,2)",
        "added cost decimal(12,2); dropped price; dropped note",
    ]


def test_answers_have_the_columns_of_their_time(story: Story, capsys: pytest.CaptureFixture[str]) -> None:
    p = story.p
    assert story.shown == (["item", "price"], ["item", "price", "note"])
    assert [columns(p, run) for run in (1, 4, 5, 7)] == [
        ["item", "price", "note", "cost"],
        ["item", "price", "note", "cost"],
        ["item", "note", "cost"],
        ["item", "note", "cost"],
    ]
    assert p.spark is not None
    assert read.frame(p.spark, p.warehouse, p.contract, "menu").columns[:3] == ["item", "note", "cost"]
    assert "price" not in key_history.read_history(p.table("menu"), ["curry"]).rows.column_names
    with p.here():
        assert main.main(["query", "restaurant.menu", "--key", "soup", "--known-at", "run:3"]) == 0
        assert main.main(["history", "restaurant.menu", "--key", "soup"]) == 0
    query, history = capsys.readouterr().out.split("(1 row)")
    assert query.splitlines()[2].split()[:3] == ["soup", "5.00", "hot"]
    assert history.count(" 5.00 ") == 4


REFUSED = {
    "narrowed": ({"cost": "decimal(8,2)", "note": "string"}, "cost changed from decimal(12,2) to decimal(8,2)"),
    "another type": ({"cost": "double", "note": "string"}, "cost changed from decimal(12,2) to double"),
    "dropped, now another type": ({"cost": WIDE, "price": "string"}, "price changed from decimal(12,2) to string"),
}


def test_other_types_and_keys_are_refused_with_both_schemas(story: Story, spark: SparkSession) -> None:
    p = story.p
    before, text, wanted = p.versions(), p.path.read_text(), yaml.safe_load(p.path.read_text())
    with p.here():
        for value, told in REFUSED.values():
            p.write(yaml.safe_dump(changed(wanted, {"menu": value})))
            with pytest.raises(TableError, match="cannot take its new columns") as caught:
                reports.preview_run(spark, p.name)
            assert told in caught.value.found
            assert "\n  the table: item string, price decimal(12,2), " in caught.value.found
            assert f"\n  the contract: item string, cost {value['cost']}" in caught.value.found
            assert "another name" in caught.value.fix
    p.path.write_text(text)
    assert p.versions() == before


def test_too_many_malformed_records_are_told_with_both_schemas(story: Story) -> None:
    p, before = story.p, story.p.versions()
    p.send("menu", ("soup", {"cost": "five", "tags": ["hot"]}, 9))
    with pytest.raises(RecordError, match="1 of the run's records do not decode, and the limit is 0") as caught:
        p.run()
    assert "\n  the contract: cost decimal(12,2), note string\n    the record: cost string, tags array<string>" in str(
        caught.value
    )
    assert caught.value.where == f"topic {p.kafka('menu')}, partition 0, offset 5, key soup"
    assert p.versions() == before


def test_the_moment_of_a_drop_is_that_of_its_run(story: Story) -> None:
    found = tables.open_table(story.p.table("menu"))
    assert found is not None
    at = read.moment_of(story.p.warehouse, story.p.name, "run:5")
    assert table_columns.read_dropped_columns(found) == {"price": at}
    assert isinstance(at, datetime)
