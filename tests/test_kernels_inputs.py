"""Kernels and their inputs: columns that have changed, rows that are marked, tables of other pipelines."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from deltalake import DeltaTable

from hindcast.common.settings import read_settings
from hindcast.runs import run_steps
from hindcast.store import tables
from kernel_runs import begin, build, live, stored, twin
from pipelines import pipeline, wrong

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

EVOLVING = """
pipeline: inn
start: 2026-01-01
topics:
  menu:
    read: table
    widen: spark_only
    key: {item: string}
    value: {price: int, share: smallint, d: "decimal(8,2)", gone: string, kind: string}
  orders:
    read: stream
    widen: spark_only
    key: {customer: string}
    value: {item: string, n: int}
views:
  empty:
    stream: orders
    widen: spark_only
    join: {table: menu, on: customer}
    select: {price: price, d: d}
"""

EVOLVED = (
    EVOLVING.replace("price: int, share: smallint", "price: bigint, share: int")
    .replace("decimal(8,2)", "decimal(12,2)")
    .replace("gone: string", "more: string")
    .replace("n: int", "n: bigint, code: string")
)

ANEW = """\
  priced:
    stream: orders
    join: {table: menu, on: item, how: left}
    key: {code: code, n: n}
    select: {item: orders.item, price: price, d: d, more: more}
  per_more:
    table: menu
    group_by: {more: more, kind: kind}
    aggregate: {many: count(*), prices: sum(price), shares: avg(share), d: sum(d)}
  per_dish:
    table: menu
    aggregate: {prices: sum(price)}
"""

READER = """
pipeline: reader
start: 2026-01-01
topics:
  tips:
    read: stream
    key: {customer: string}
    value: {item: string, percent: int}
inputs:
  dishes: {table: inn.menu, key: {item: string}, value: {price: bigint, kind: string}}
  eaten: {table: inn.orders, read: stream, key: {customer: string}, value: {item: string, n: bigint}}
views:
  tipped:
    stream: tips
    join: {table: dishes, on: item}
    select: {price: price, percent: percent}
  eaten_for:
    stream: eaten
    join: {table: dishes, on: item, how: left}
    select: {price: price, n: n}
  per_kind:
    table: dishes
    group_by: {kind: kind}
    aggregate: {prices: sum(price), many: count(*)}
"""


@pytest.mark.long
def test_inputs_that_have_changed_and_those_of_another_pipeline(
    spark: SparkSession, broker: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Columns added, widened and dropped, rows that deletion vectors mark, superseded rows; inputs at a known-at."""
    monkeypatch.setattr(tables, "LARGE_ROWS", 0)
    begun = tmp_path / "begun"
    with pipeline(spark, broker, begun, EVOLVING) as p, pipeline(spark, broker, begun, READER) as reader:
        dishes = ("curry", "soup", "tea", "cake")
        values = {"price": 8, "share": 3, "d": 1.5, "gone": "old", "kind": "warm"}
        p.send("menu", *((dish, values | {"price": n}, n) for n, dish in enumerate(dishes)))
        p.send("orders", *((f"c{n}", {"item": dish, "n": n}, n) for n, dish in enumerate((*dishes, "rice"))))
        with p.here():
            p.run("first")
        assert not live(p, "empty")
        p.write(EVOLVED)
        values = {"price": 2**40, "share": 70_000, "d": 12345678.25, "more": "new", "kind": "cold"}
        p.send("menu", ("curry", values, 1), ("soup", None, 7), ("cake", values | {"more": None}, 9))
        p.send("orders", *((f"d{n}", {"item": dish, "n": 2**40, "code": "x"}, 8) for n, dish in enumerate(dishes)))
        with p.here():
            p.run("second")
        found = DeltaTable(p.table("menu").path)
        assert {"deletionVectors", "typeWidening"} <= {*found.protocol().reader_features}
        assert any(row["systemTo"] is not None for row in p.raw("menu"))
        reader.send("tips", ("ann", {"item": "curry", "percent": 10}, 5), ("bob", {"item": "soup", "percent": 5}, 8))
        begin(reader, "first")
        p.write(EVOLVED + ANEW)
        p.send("menu", ("curry", values | {"price": 77, "kind": None}, 3))  # the reader is not to see it
        p.send("orders", ("curry", {"item": "tea", "n": 2**41, "code": "y"}, 6))  # fills what was empty and has grown
        begin(p, "third")
        one, other = twin(p, tmp_path / "one"), twin(p, tmp_path / "other")
        built, without = build(one, run=3), build(other, run=3, on=False)
        assert {view: it.get("kernel") for view, it in built.items()} == {
            "empty": None,
            "priced": "stream_table",  # delta-rs writes no table that has type widening
            **dict.fromkeys(("per_more", "per_dish"), "of_table"),
        }
        for view in one.contract.ordered_views:
            assert {k: v for k, v in built[view].items() if k != "kernel"} == without[view], view
            assert stored(one, view) == stored(other, view) != [], view
        with one.here():
            run_steps.finish_run(read_settings(), one.name, 3)
            assert wrong(one) == []
        pinned, apart = copy.copy(reader), copy.copy(reader)
        pinned.folder, apart.folder = one.folder, other.folder
        built, without = build(pinned), build(apart, on=False)
        assert [it.get("kernel") for it in built.values()] == ["stream_table", "stream_table", "of_table"]
        for view in reader.contract.ordered_views:
            assert {k: v for k, v in built[view].items() if k != "kernel"} == without[view], view
            assert stored(pinned, view) == stored(apart, view) != [], view
        assert "'price': 77," in str(stored(one, "menu"))
        assert "'price': 77," not in str(stored(pinned, "tipped"))
