"""Kafka views through real runs: what is emitted, in order; the table that it amounts to; and runs cut anywhere."""

from __future__ import annotations

from typing import Any

import pytest
from pyspark.sql import SparkSession

from pipelines import Pipeline, _plain, pipeline, tell

CONTRACT = """
pipeline: live
start: 2026-01-01
topics:
  menu: {read: table, key: {item: string}, value: {price: int, dish: string}, history_retention: 10 seconds}
  dishes: {read: table, key: {dish: string}, value: {name: string}, versioned: false}
  stock: {read: table, key: {item: string}, value: {n: int}, versioned: false}
  orders: {read: stream, key: {customer: string}, value: {item: string, quantity: int}}
  payments: {read: stream, key: {customer: string}, value: {paid: int}}
views:
  bills:
    semantics: kafka
    stream: orders
    join: {table: menu, on: item, how: left}
    select: {item: orders.item, due: quantity * price}
  both:
    semantics: kafka
    table: menu
    join: {table: stock, how: outer}
    select: {price: price, n: n}
  named:
    semantics: kafka
    table: menu
    join: {table: dishes, on: dish, how: left}
    select: {price: price, name: name}
  by_dish:
    semantics: kafka
    table: menu
    group_by: {dish: dish}
    aggregate: {items: count(*), total: sum(price), mean: avg(price)}
  ordered:
    semantics: kafka
    stream: orders
    group_by: {item: item}
    aggregate: {n: count(*), most: max(quantity), total: sum(quantity)}
  visits:
    semantics: kafka
    stream: orders
    aggregate: {n: count(*)}
    window: {session: 2 seconds, grace: 1 second}
  minutes:
    semantics: kafka
    stream: orders
    aggregate: {n: count(*), total: sum(quantity)}
    window: {tumbling: 4 seconds, emit: suppress_until_window_closes}
  paid:
    semantics: kafka
    stream: orders
    join: {stream: payments, before: 1 second, after: 3 seconds, how: left}
    select: {item: item, paid: paid}
  dear:
    semantics: kafka
    table: menu
    where: price > 5
    select: {price: price}
  big:
    semantics: kafka
    stream: bills
    where: due > 10
    select: {due: due}
"""
RECORDS: dict[str, list[Any]] = {
    "menu": [
        ("curry", {"price": 8, "dish": "hot"}, 0),
        ("naan", {"price": 3, "dish": "bread"}, 1),
        ("curry", {"price": 10, "dish": "hot"}, 4),
        ("curry", {"price": 9, "dish": "cold"}, 2),
        ("naan", None, 6),
        ("curry", {"price": 11, "dish": "cold"}, 20),
        ("soup", {"price": 4, "dish": "hot"}, 3),
        ("curry", {"price": 12, "dish": None}, 21),
    ],
    "dishes": [("hot", {"name": "Hot"}, 1), ("bread", {"name": "Bread"}, 5), ("hot", {"name": "HOT"}, 7)],
    "stock": [("curry", {"n": 5}, 2), ("curry", None, 8), ("cake", {"n": 1}, 9)],
    "orders": [
        ("anna", {"item": "curry", "quantity": 2}, 1),
        ("bob", {"item": "curry", "quantity": 1}, 5),
        ("carl", {"item": "curry", "quantity": 3}, 3),
        ("anna", {"item": "cake", "quantity": 1}, 4),
        ("anna", {"item": "naan", "quantity": 1}, 2),
        ("bob", {"item": "curry", "quantity": 1}, 15),
        ("bob", {"item": "curry", "quantity": 5}, 4),
    ],
    "payments": [
        ("anna", {"paid": 16}, 3),
        ("bob", {"paid": 10}, 4),
        ("carl", {"paid": 1}, 9),
        ("bob", {"paid": 2}, 19),
    ],
}


def emitted(p: Pipeline, view: str) -> list[tuple[Any, ...]]:
    """What a view has emitted, in order: the columns of its table, and whether it is a tombstone."""
    rows = p.raw(f"emitted/{view}")
    last = max((row["_epoch"] for row in rows), default=0)
    rows = sorted((row for row in rows if row["_epoch"] == last), key=lambda row: (row["_partition"], row["_offset"]))
    shown = [c for c in rows[0] if not c.startswith("_") and c != "systemFrom"] if rows else []
    return [(*(_plain(row[c]) for c in shown), row["_tombstone"]) for row in rows]


@pytest.fixture(scope="module")
def live(spark: SparkSession, broker: str, tmp_path_factory: pytest.TempPathFactory) -> Pipeline:
    """All records in one run."""
    with pipeline(spark, broker, tmp_path_factory.mktemp("live"), CONTRACT) as made:
        tell(made, RECORDS)
        made.run("first")
    return made


def test_show(live: Pipeline) -> None:
    for view in live.contract.views:
        print(view)
        for row in emitted(live, view):
            print("   ", row)
        print("  =", live.believed(view))
