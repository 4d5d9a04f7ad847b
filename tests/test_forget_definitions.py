"""Forgetting where views were defined otherwise before: what earlier contracts derived from a record goes too."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest.mock import Mock

import pyarrow.parquet as pq
import pytest

from hindcast.common.errors import RequestError
from hindcast.contract import load
from hindcast.contract.definition import list_fields, parse_fields
from hindcast.ops import close_periods, retention
from hindcast.ops.erase import forget, records, row_removal
from hindcast.ops.erase import proof as proof_search
from hindcast.ops.erase.erased_rows import ErasedRows
from hindcast.ops.erase.proof import Evidence, Proof
from hindcast.ops.erase.records import ErasureRequest
from hindcast.plan import definitions, journal, planner
from hindcast.runs import run_steps
from hindcast.store import commits
from pipelines import T0, Pipeline, pipeline, wrong

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TOPICS = """
pipeline: restaurant
start: 2026-01-01
topics:
  menu: {read: table, key: {item: string}, value: {price: int, cook: string}}
  orders: {read: stream, key: {customer: string}, value: {item: string, tip: int}}
"""
CONTRACT = f"""{TOPICS}
views:
  bills:
    stream: orders
    join: {{table: menu, on: item, how: left}}
    select: {{item: orders.item, price: price, cook: cook}}
  same: {{stream: orders, join: {{table: menu, on: item}}, select: {{item: orders.item}}}}
  other: {{stream: orders, join: {{table: menu, on: item}}, select: {{price: price}}}}
  dishes: {{table: menu, where: price > 1, select: {{price: price}}}}
  served: {{stream: orders, join: {{table: dishes, on: item}}, select: {{item: orders.item, price: price}}}}
  tips: {{stream: orders, aggregate: {{n: count(*), best: max(tip)}}}}
  large: {{stream: orders, where: tip > 50, aggregate: {{best: max(tip)}}}}
  items: {{stream: orders, group_by: {{item: item}}, aggregate: {{best: max(tip), n: count(*)}}}}
  sums: {{stream: orders, aggregate: {{n: count(*), total: sum(tip)}}}}
"""
CHANGED = f"""{TOPICS.replace(", cook: string", "")}
views:
  bills: {{stream: orders, select: {{item: item}}}}
  same: {{stream: orders, select: {{item: item}}}}
  other: {{stream: orders, join: {{table: menu, on: upper(item)}}, select: {{price: price}}}}
  served: {{stream: orders, select: {{item: item}}}}
  tips: {{stream: orders, aggregate: {{n: count(*)}}}}
  large: {{stream: orders, where: tip < 50, aggregate: {{best: max(tip)}}}}
  items: {{stream: orders, group_by: {{item: upper(item)}}, aggregate: {{best: max(tip), n: count(*)}}}}
  sums: {{stream: orders, aggregate: {{n: count(*)}}}}
"""
"""CONTRACT without `dishes`; all other views are defined otherwise, and a column of `menu` is dropped."""
COOK = "fine"
"""A value that is also a part of words in every report page and proof (`undefined`)."""
ORDERS = [("ann", "soup", 1), ("ann", "soup", 99), ("bob", "curry", 3)]


def forgotten(p: Pipeline, request: ErasureRequest) -> Proof:
    assert p.spark is not None
    return forget.forget_records(p.spark, p.contract, request)


def holders(p: Pipeline, column: str, value: Any) -> set[str]:
    """The tables with a Parquet file, of whichever version, that has a value in a column."""
    folder = Path(p.warehouse) / p.name
    files = [path for path in folder.rglob("*.parquet") if "_delta_log" not in path.parts]
    found = [path for path in files if column in (names := pq.read_schema(path).names) and names]
    return {
        str(path.relative_to(folder).parent).partition("/_belief")[0]
        for path in found
        if value in pq.ParquetFile(path).read(columns=[column])[column].to_pylist()
    }


def redefined(p: Pipeline, topic: str) -> list[str]:
    assert p.spark is not None
    past, request = journal.read_runs(p.warehouse, p.name), records.parse_request(p.contract, topic, None, ["0/0"])
    condition = records.erased_condition(p.contract, request)
    found = records.read_records(p.spark, p.contract, request, set())
    return ErasedRows(p.spark, p.contract, topic, condition, found, past[-1].plan, past).find_redefined()


FEW = """
views:
  bills: {stream: orders, join: {table: menu, on: item}, select: {price: price}}
  dishes: {table: menu, where: price > 1, select: {price: price}}
  cooks: {table: menu, group_by: {place: "1"}, aggregate: {best: max(price), n: count(*)}}
"""
FEW_CHANGED = """
views:
  bills: {stream: orders, select: {item: item}}
  cooks: {table: menu, group_by: {place: "1"}, aggregate: {n: count(*)}}
"""
"""A join, a view that is dropped and an aggregate, all of the menu in FEW."""


@pytest.mark.long
@pytest.mark.ci
@pytest.mark.connect
def test_rows_go_that_an_earlier_contract_derived_by_join_selection_and_aggregate(
    spark: SparkSession, broker: str, tmp_path: Path
) -> None:
    with pipeline(spark, broker, tmp_path, TOPICS + FEW) as p:
        p.send("menu", ("curry", {"price": 4711, "cook": COOK}, 0), ("soup", {"price": 5, "cook": "Bob"}, 0))
        p.send("orders", ("ann", {"item": "curry", "tip": 1}, 1), ("bob", {"item": "soup", "tip": 2}, 2))
        p.run()
        p.write(TOPICS + FEW_CHANGED)
        p.run()
        assert {"bills", "dishes"} <= holders(p, "price", 4711)
        assert "cooks" in holders(p, "best", 4711)
        assert redefined(p, "menu") == []
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(definitions, "find_fields", lambda *_: None)
            assert redefined(p, "menu") == ["bills", "cooks", "dishes"], "an earlier contract that was not stored"
        others = [row for row in p.raw("bills") if row["price"] == 5]
        proof = forgotten(p, records.parse_request(p.contract, "menu", "curry"))
        assert (proof.is_proven, proof.redefined) == (True, ())
        assert (holders(p, "price", 4711), holders(p, "best", 4711)) == (set(), set())
        assert [row for row in p.raw("bills") if row["price"] == 5] == others != []
        assert sorted(row[0] for row in p.believed("bills")) == ["ann", "bob"], "what goes is derived again"
        assert [row["price"] for row in p.raw("dishes")] == [5]
        assert wrong(p) == []


CHAIN = """
views:
  dishes: {table: menu, key: {item: item, cook: cook}, select: {price: price}}
  cheap: {table: dishes, where: price < 9, select: {price: price}}
  echo: {table: menu, select: {price: price}, semantics: kafka}
"""


@pytest.mark.long
def test_what_a_removed_folder_had_is_not_proven_to_be_gone(spark: SparkSession, broker: str, tmp_path: Path) -> None:
    """Neither before nor after the table is there again; what a kafka view emitted goes without its table."""
    with pipeline(spark, broker, tmp_path, TOPICS + CHAIN) as p:
        p.send("menu", ("curry", {"price": 7, "cook": "al"}, 0), ("soup", {"price": 5, "cook": "bo"}, 0))
        p.run()
        p.send("menu", ("curry", {"price": 8, "cook": "al"}, 0))  # a tie: 7 is believed no more
        p.run()
        folder = Path(p.warehouse, p.name)
        shutil.rmtree(folder / "dishes")
        assert redefined(p, "menu") == ["cheap"]
        p.send("orders", ("ann", {"item": "soup", "tip": 1}, 1))
        p.run()
        assert redefined(p, "menu") == ["cheap"]
        shutil.rmtree(folder / "echo")
        proof = forgotten(p, records.parse_request(p.contract, "menu", "curry"))
        assert (proof.is_proven, proof.redefined) == (False, ("cheap",))
        assert holders(p, "price", 7) == {"cheap"}
        assert wrong(p) == []
        shutil.rmtree(folder / "cheap")
        p.run()
        assert forgotten(p, records.parse_request(p.contract, "menu", "curry")).is_proven
        assert holders(p, "price", 7) == set()


DIRECT = """
views:
  tips: {stream: orders, aggregate: {n: count(*)}}
"""
BY_BILLS = """
views:
  bills: {stream: orders, select: {tip: tip}}
  tips: {stream: bills, aggregate: {n: count(*)}}
"""


@pytest.mark.long
@pytest.mark.ci
def test_what_an_abandoned_run_has_not_derived_is_not_looked_for(
    spark: SparkSession, broker: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The view has rows of before the abandoned run, not of its input, and rows of when the input was created."""
    with pipeline(spark, broker, tmp_path, TOPICS + DIRECT) as p:
        p.send("orders", ("ann", {"item": "soup", "tip": 1}, 1), ("bob", {"item": "soup", "tip": 1}, 1))
        p.run()
        p.write(TOPICS + BY_BILLS)
        p.send("orders", ("ann", {"item": "soup", "tip": 1}, 2))
        with monkeypatch.context() as killed:
            killed.setattr(run_steps, "build_view", Mock(side_effect=KeyboardInterrupt))
            with pytest.raises(KeyboardInterrupt):
                p.run()
        planner.abandon_run(p.warehouse, journal.read_active_run(p.warehouse, p.name, 2), "by a test")
        p.run()
        assert {row[-2] for row in p.history("tips")} == {1, 3}
        proof = forgotten(p, records.parse_request(p.contract, "orders", "ann"))
        assert (proof.is_proven, proof.redefined) == (True, ())
        assert holders(p, "customer", "ann") == set()


TRIMMED = """
pipeline: restaurant
start: 2026-01-01
topics:
  menu: {read: table, key: {item: string}, value: {price: int}}
  orders:
    read: stream
    key: {customer: int}
    value: {item: string}
    keep: {table: 10 seconds, log: 1 week}
views:
  bills: {stream: orders, join: {table: menu, on: item}, select: {price: price}}
  visits: {stream: orders, aggregate: {n: count(*)}, window: {tumbling: 5 seconds}}
"""


@pytest.mark.long
def test_what_views_have_of_trimmed_events_is_found_by_the_log_or_not_proven_to_be_gone(
    spark: SparkSession, broker: str, tmp_path: Path
) -> None:
    with pipeline(spark, broker, tmp_path, TRIMMED) as p:
        p.send("menu", ("curry", {"price": 8}, 0))
        p.send("orders", *((customer, {"item": "curry"}, second) for customer, second in ((7, 1), (8, 2), (7, 30))))
        p.run()
        assert retention.trim_pipeline(spark, p.contract).tables["orders"].removed == 2
        proof = forgotten(p, records.parse_request(p.contract, "orders", "7"))
        assert (proof.is_proven, proof.redefined) == (False, ("visits",))
        assert [row[0] for row in p.believed("bills")] == [8]
        assert holders(p, "customer", 7) == set()
        assert wrong(p) == []
        with pytest.raises(RequestError, match="there is no such key: 9") as refused:
            forgotten(p, records.parse_request(p.contract, "orders", "9"))
        assert "visits can still have rows" in refused.value.fix


CLOSED = """
pipeline: restaurant
start: 2026-01-01
topics:
  orders:
    read: stream
    key: {customer: string}
    value: {item: string, tip: int}
    keep: 12 seconds
views:
  best:
    stream: orders
    group_by: {item: item}
    aggregate: {best: max(tip)}
    window: {tumbling: 10 seconds}
    keep: 12 seconds
"""


def test_what_a_close_keeps_of_trimmed_events_is_not_proven_to_be_gone(
    spark: SparkSession, broker: str, tmp_path: Path
) -> None:
    """The window of the close has an event from before the close, which is trimmed."""
    with pipeline(spark, broker, tmp_path, CLOSED) as p:
        p.send("orders", ("ann", {"item": "tea", "tip": 991}, 1), ("bob", {"item": "tea", "tip": 2}, 9))
        p.run()
        close_periods.close_period(p.contract, "q", T0 + timedelta(seconds=8), T0 + timedelta(seconds=20), None, "eva")
        p.send("orders", ("bob", {"item": "tea", "tip": 2}, 60), ("ann", {"item": "rice", "tip": 3}, 60))
        p.run()
        assert retention.trim_pipeline(spark, p.contract).tables["orders"].removed == 1
        proof = forgotten(p, records.parse_request(p.contract, "orders", "ann"))
        assert (proof.is_proven, proof.redefined) == (False, ("best",))
        assert holders(p, "best", 991) == {"best"}


@pytest.mark.long
def test_rows_go_that_earlier_definitions_derived(spark: SparkSession, broker: str, tmp_path: Path) -> None:
    with pipeline(spark, broker, tmp_path, CONTRACT) as p:
        p.send("menu", ("curry", {"price": 4711, "cook": COOK}, 0), ("soup", {"price": 5, "cook": "Bob"}, 0))
        p.send("orders", *((who, {"item": item, "tip": tip}, tip) for who, item, tip in ORDERS))
        p.run()
        p.write(CHANGED)
        p.run()
        before = {name: p.raw(name) for name in ("bills", "tips", "sums")}
        assert {"bills", "other", "dishes", "served"} <= holders(p, "price", 4711)
        assert {"tips", "large", "items"} <= holders(p, "best", 99)
        assert_lost_definitions_are_named(p)

        request = records.parse_request(p.contract, "menu", "curry")
        counts, proof = forget.preview_erasure(spark, p.contract, request), forgotten(p, request)
        assert (proof.is_proven, proof.redefined) == (True, ())
        assert proof.rows == {name: n for name, n in counts.items() if n}
        assert [holders(p, *of) for of in (("price", 4711), ("cook", COOK))] == [set(), set()]
        assert {row["price"] for name in ("served", "dishes", "bills") for row in p.raw(name)} == {5, None}
        assert [row for row in p.raw("bills") if row["price"] == 5] == [r for r in before["bills"] if r["price"] == 5]
        assert [row[0] for row in p.believed("same")] == ["ann", "ann", "bob"], "what goes is derived again"
        assert p.raw("tips") == before["tips"], "not made of menu"

        proof = forgotten(p, records.parse_request(p.contract, "orders", None, ["0/1"]))
        assert (proof.is_proven, proof.redefined) == (True, ())
        assert holders(p, "best", 99) == set()
        assert holders(p, "tip", 99) == set()
        assert [row["n"] for row in p.raw("sums") if row["systemTo"] is None and row["customer"] == "ann"] == [1]
        assert max(row["total"] or 0 for row in p.raw("sums")) == 100, "sums stay what they were"
        assert wrong(p) == []


def assert_lost_definitions_are_named(p: Pipeline) -> None:
    """A contract that was not stored, or is no contract any more, leaves a proof unproven."""
    first = journal.read_runs(p.warehouse, p.name)[0].plan
    stored, below = dict(first.definition), ["bills", "dishes", "other", "same", "served"]
    moved = {place.replace(".menu.", ".food."): text.replace("menu", "food") for place, text in stored.items()}
    moved["topics.food.topic"] = p.kafka("menu")
    assert redefined(p, "menu") == []
    for fields, names in (
        (None, sorted([*below, "items", "large", "sums", "tips"])),
        ({**stored, "views.tips.new": "x"}, below),
        (moved, below),
    ):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(definitions, "find_fields", lambda *_, fields=fields: fields)
            assert redefined(p, "menu") == names


@pytest.mark.long
def test_a_repeat_finishes_what_was_begun_also_in_views_of_the_kafka_reading(
    spark: SparkSession, broker: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    views = """
views:
  echo: {table: menu, select: {price: price}, semantics: kafka}
  costs: {table: menu, select: {price: price}, semantics: kafka}
  bills: {stream: orders, join: {table: menu, on: item}, select: {price: price}}
  last: {stream: orders, join: {table: menu, on: item}, select: {price: price}, semantics: kafka}
"""
    changed = """
views:
  costs: {table: menu, where: price < 10, select: {price: price}}
  bills: {stream: orders, select: {item: item}}
  last: {stream: orders, select: {item: item}, semantics: kafka}
"""
    with pipeline(spark, broker, tmp_path, TOPICS + views) as p:
        p.send("menu", ("curry", {"price": 4711, "cook": COOK}, 0), ("soup", {"price": 5, "cook": "Bob"}, 0))
        p.send("orders", *((who, {"item": item, "tip": tip}, tip) for who, item, tip in ORDERS))
        p.run()
        p.write(TOPICS + changed)
        shutil.rmtree(f"{p.warehouse}/{p.name}/costs")  # a table cannot change its reading
        p.run()
        emitted = {f"emitted/{name}" for name in ("echo", "costs", "last")}
        assert {"echo", "bills", "last"} | emitted <= holders(p, "price", 4711)
        request = records.parse_request(p.contract, "menu", "curry")
        removed, calls = row_removal.remove_rows, iter(range(100))

        def die(*rows: Any) -> int:
            return removed(*rows) if next(calls) < 2 else 1 // 0

        with monkeypatch.context() as patch:
            patch.setattr(row_removal, "remove_rows", die)
            with pytest.raises(ZeroDivisionError):
                forgotten(p, request)
        proof = forgotten(p, request)
        assert (proof.is_proven, proof.redefined, holders(p, "price", 4711)) == (True, (), set())
        assert sorted(row["item"] for row in p.raw("last")) == ["curry", "soup", "soup"], "it starts from scratch"
        assert wrong(p) == []
        assert forgotten(p, request) == proof, "a repeat returns the proof"


EMPTIED_STATE = 1
EARLIER_DEATHS = ("appending to emitted/paid", "replacing kept/paid/2", "building paid")


@pytest.mark.long
@pytest.mark.parametrize("died", ["the search", *EARLIER_DEATHS])
def test_a_repeat_leaves_alone_what_a_killed_forgetting_has_processed_again(
    spark: SparkSession, broker: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, died: str
) -> None:
    """A kafka view is emptied and processed from scratch; a repeat must not empty it a second time."""
    views = "views:\n  paid: {stream: orders, where: tip > 0, select: {tip: tip}, semantics: kafka}\n"
    with pipeline(spark, broker, tmp_path, f"{TOPICS}{views}") as p, p.here():
        p.send("orders", *((who, {"item": item, "tip": tip}, tip) for who, item, tip in ORDERS))
        p.run()
        request = records.parse_request(p.contract, "orders", "bob")
        counts = forget.preview_erasure(spark, p.contract, request)
        with monkeypatch.context() as patch:

            def die_after(owner: Any, name: str, place: Callable[..., str]) -> None:
                real = getattr(owner, name)

                def done(*args: Any, **kwargs: Any) -> Any:
                    result = real(*args, **kwargs)
                    return 1 // 0 if place(*args) == died else result

                patch.setattr(owner, name, done)

            die_after(commits, "append_rows", lambda _, table, *__: f"appending to {table.name}")
            die_after(commits, "replace_rows", lambda _, table, *__: f"replacing {table.name}")
            die_after(run_steps, "build_view", lambda *args: f"building {args[-1]}")
            die_after(proof_search, "search_files", lambda *_: "the search")
            with pytest.raises(ZeroDivisionError):
                forgotten(p, request)
        proof = forgotten(p, request)
        assert proof.is_proven
        assert proof.rows == {**counts, "paid": 3 + 3 + EMPTIED_STATE}, "by both attempts"
        assert p.states()[-1] == (2, "completed")
        assert [row[0] for row in p.believed("paid")] == ["ann", "ann"]
        assert [row["_run"] for row in p.raw("emitted/paid")] == [2, 2]
        assert wrong(p) == []
        assert forgotten(p, request) == proof, "the view's other rows are nothing to forget"
        never = records.parse_request(p.contract, "orders", "zoe")
        for ask in (forgotten, lambda of, asked: forget.preview_erasure(spark, of.contract, asked)):
            with pytest.raises(RequestError, match="there is no such key: zoe"):
                ask(p, never)
        assert len(p.states()) == 2


FIELDS = """
pipeline: kitchen
description: "[all] that is cooked"
start: 2026-01-01T06:00:00Z
catchup: true
topics:
  menu:
    read: table
    key: {item: string, place: string}
    value: {price: "decimal(8,2)", tags: array<string>}
    json: lenient
    renamed: {price: [cost, amount]}
    ttl: 26 hours
    max_malformed: 10
    max_record_bytes: 1000
    max_time_skew: {before: 30 days, after: 90 seconds}
    sensitive: [price]
    hold: row
    expect: [{expect_column_values_to_be_between: {column: price, min_value: 0}, on_failure: quarantine}]
  orders:
    {read: stream, key: {customer: string}, value: {item: string, place: string}, from: 2026-01-02, max_malformed: 1%}
inputs:
  cooks: {table: staff.cooks, key: {id: string}, value: {name: string}, sensitive: true}
views:
  bills: {stream: orders, join: {table: menu, on: [item, place], how: left}, select: {one: "1", flag: "true"}}
  often: {stream: bills, aggregate: {n: count(*)}, window: {session: 500 ms, grace: 1 day}}
"""


def test_stored_fields_make_the_contract_again_without_its_gates(tmp_path: Path) -> None:
    for name, text in {"kitchen": FIELDS, "restaurant": CONTRACT}.items():
        path = tmp_path / f"{name}.yaml"
        path.write_text(text, encoding="utf-8")
        contract, own = load(path), {"topics": {"__all__": {"expect", "hold"}}}
        again = parse_fields(list_fields(contract))
        assert again.model_dump(exclude=own) == contract.model_dump(exclude=own)
    fields = list_fields(contract)
    for place, changed in {"views.tips.new": "x", "views.tips.where": "forgotten", "views.tips": "x"}.items():
        with pytest.raises(ValueError, match=r"not a contract|forgotten"):
            parse_fields({**fields, place: changed})


def test_a_proof_is_none_if_an_earlier_definition_was_not_followed() -> None:
    nothing = Evidence(0, 1, 1, 1, 1, 0, (), ())
    proof = Proof("p", 2, T0, "p.orders", "0", {}, (), nothing, ("bills",))
    assert proof.as_json()["proven"] is False
    assert Proof.from_json(proof.as_json()) == proof
    assert "found: nothing" not in proof_search.format_proof(proof)
    assert "Not proven: bills can have rows" in proof_search.format_proof(proof)
    assert replace(proof, redefined=()).is_proven
