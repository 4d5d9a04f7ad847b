"""Held keys of views that are derived by increments, of which a late record leaves nothing: they are held no more."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import reports
from hindcast.quality import held_changes
from hindcast.runs import incremental_state
from pipelines import pipeline, wrong

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TOPICS = """
pipeline: shop
start: 2026-01-01
topics:
  menu: {read: table, key: {item: string}, value: {price: int, kind: string}}
  stock: {read: table, key: {item: string}, value: {n: int}}
  orders: {read: stream, key: {customer: string}, value: {item: string}}
  visits: {read: stream, key: {customer: string}, value: {shop: string}}
views:
  bills: {stream: orders, join: {table: menu, on: item}, select: {price: price, item: orders.item}}
"""
VIEWS = {
    "an event": "{stream: orders, join: {table: menu, on: item}, select: {price: price}",
    "an event with a new key": "{stream: orders, join: {table: menu, on: item}, key: {item: menu.item}, "
    "select: {price: price}",
    "a version": "{table: stock, join: {table: menu}, select: {price: price}",
    "a version with a new key": "{table: stock, join: {table: menu}, key: {at: n, what: stock.item}, "
    "select: {price: price}",
    "a group": "{table: menu, aggregate: {price: sum(price)}, group_by: {kind: kind}",
    "a window": "{stream: bills, aggregate: {price: sum(price)}, window: {tumbling: 10 seconds, grace: 1 day}",
    "a pair": "{stream: bills, join: {stream: visits, before: 5 seconds, after: 5 seconds}, select: {price: price}",
}
GATE = ", expect: [{expect_column_values_to_be_between: {column: price, max_value: 50}, on_failure: quarantine}]}"


@pytest.mark.parametrize(
    "names",
    [
        pytest.param(["a version"], marks=[pytest.mark.long, pytest.mark.ci]),
        pytest.param(list(VIEWS), marks=pytest.mark.long),
    ],
    ids=["one view", "all views"],
)
def test_a_held_key_of_which_nothing_is_left_is_held_no_more(
    spark: SparkSession, broker: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, names: list[str]
) -> None:
    monkeypatch.setattr(incremental_state, "MAX_WHOLE_ROWS", -1)
    views = {name.replace(" ", "_"): VIEWS[name] for name in names}
    own = "".join(f"  {name}: {view}{GATE}\n" for name, view in views.items())
    unread = [f"  {name}:" for name in ("orders", "visits", "bills") if name not in own]
    text = "".join(line for line in TOPICS.splitlines(True) if not line.startswith(tuple(unread))) + own
    with pipeline(spark, broker, tmp_path, text) as p:
        p.send("menu", ("curry", {"price": 8, "kind": "hot"}, 0), ("truffle", {"price": 90, "kind": "rare"}, 0))
        p.send("stock", ("curry", {"n": 1}, 0), ("truffle", {"n": 1}, 0))
        if not unread:
            p.send("orders", ("ann", {"item": "truffle"}, 1), ("bob", {"item": "curry"}, 2))
            p.send("visits", ("ann", {"shop": "a"}, 1), ("bob", {"shop": "b"}, 2))
        told = p.run()["tables"]
        assert {name: told[name]["held"]["keys"] for name in views} == dict.fromkeys(views, 1)
        # Of another key: it stays held as it is.
        p.send("menu", ("curry", {"price": 9, "kind": "hot"}, 0))
        told = p.run()["tables"]
        assert {name: (told[name]["held"]["keys"], told[name]["closed"]) for name in views} == dict.fromkeys(
            views, (1, 1)
        )
        assert not any("noLongerHeld" in told[name] for name in views)
        # There never was a truffle: this comes later, with the same time.
        p.send("menu", ("truffle", None, 0))
        told = p.run()
        assert [told["tables"][name].get("noLongerHeld") for name in views] == [{"mended": 1}] * len(views)
        assert "no longer held: 1 mended" in reports.format_report(told)
        assert not held_changes.read_held_rows(p.warehouse, p.name).num_rows
        assert {len(p.believed(name)) for name in views} == {1}
        assert len(views) == 1 or not wrong(p)
