"""Thousands of random histories, each of one key, rehearsed by date beside a reference in plain Python.

They have ties, tombstones, late records, arrivals that are missing or go back, several partitions, and gates: one that
holds bad records back, and one that would stop a table.
"""

from __future__ import annotations

import json
import random
from collections import defaultdict
from datetime import datetime, timedelta
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from hindcast import read
from hindcast.plan import journal
from pipelines import Pipeline, at, pipeline, wrong
from test_rehearsal import list_arrivals, rehearse, sent

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.connect

CONTRACT = """
pipeline: histories
start: 2026-01-01
topics:
  menu:
    read: table
    key: {item: string}
    value: {price: int}
    arrival: header sent
    hold: row
    expect:
      - expect_column_values_to_be_between: {column: price, min_value: 0}
        on_failure: quarantine
  orders:
    read: stream
    key: {customer: string}
    value: {item: string, quantity: int}
    arrival: header sent
    expect:
      - expect_column_values_to_not_be_null: {column: item}
views:
  bills:
    stream: orders
    join: {table: menu, on: item}
    select: {item: orders.item, amount: quantity * price}
  spent:
    stream: bills
    aggregate: {bills: count(*), total: sum(amount)}
  large:
    stream: orders
    where: quantity > 1
    select: {double: 2 * quantity}
  sold:
    stream: orders
    aggregate: {n: sum(quantity)}
    group_by: {item: item}
    window: {tumbling: 10 seconds, grace: 20 seconds}
"""
Version = tuple[int, datetime, datetime | None]


@pytest.mark.parametrize("histories", [2_000, pytest.param(20_000, marks=pytest.mark.long)])
@pytest.mark.parametrize("bad", [-1, None], ids=["held", "in passes"])
def test_what_was_known_of_each_key_at_each_date_is_the_reference(
    spark: SparkSession, broker: str, tmp_path: Path, histories: int, bad: int | None
) -> None:
    """Where records are held, each date is a run by itself; else all but the first are made in one pass."""
    chance, every = random.Random(histories), 30 if bad else 10  # noqa: S311  # any will do
    with pipeline(spark, broker, tmp_path, CONTRACT, partitions=3) as p:
        send_histories(p, chance, histories, bad)
        rehearse(p, -30, 60, f"{every} seconds", with_earlier=True)
        passes = {run.plan.pass_numbers for run in journal.read_runs(p.warehouse, p.name)}
        assert passes == ({None} if bad else {None, (2, 9)})
        records, orders = list_arrivals(p, "menu"), list_arrivals(p, "orders")
        for second in range(every - 30, 61, every):
            versions = define_versions([row for row in records if row["known"] < at(second)])
            bills = define_bills([row for row in orders if row["known"] < at(second)], versions)
            assert read_menu(p, second) == versions, second
            found = ask(p, "bills", known_at=at(second))
            assert {row["customer"]: row["amount"] for row in found} == {who: sum(each) for who, each in bills.items()}
            totals = {row["customer"]: (row["bills"], row["total"]) for row in ask(p, "spent", known_at=at(second))}
            assert totals == {who: (len(each), sum(each)) for who, each in bills.items()}, second
            known = [row for row in orders if row["known"] < at(second)]
            large = {row["customer"]: row["double"] for row in ask(p, "large", known_at=at(second))}
            assert large == {who: 2 * n for who, _, n in map(parse_order, known) if n > 1}, second
            sold = ask(p, "sold", known_at=at(second), from_time=at(-1))
            assert {(row["item"], row["windowStart"]): row["n"] for row in sold} == define_sold(known), second
        assert wrong(p) == []


def send_histories(p: Pipeline, chance: random.Random, histories: int, bad: int | None) -> None:
    menu: list[tuple[Any, ...]] = []
    orders: list[tuple[Any, ...]] = []
    for n in range(histories):
        for _ in range(chance.choice([1, 2, 3, 5])):
            price = chance.choice([None, bad, *range(10)])
            menu.append((f"dish{n}", None if price is None else {"price": price}, chance.randrange(40)))
        order = {"item": f"dish{chance.randrange(histories)}", "quantity": chance.randrange(1, 4)}
        orders.append((f"guest{n}", order, chance.randrange(40)))
    for topic, records in (("menu", menu), ("orders", orders)):
        chance.shuffle(records)
        moving = (60 * n / len(records) for n in range(len(records)))
        p.send(topic, *((*record, *arrive(chance, now)) for record, now in zip(records, moving, strict=True)))


def arrive(chance: random.Random, now: float) -> list[tuple[str, bytes]]:
    """When a record arrived: mostly about now, sometimes long ago, sometimes nobody says."""
    return chance.choice([[sent(now)], [sent(now)], [sent(now - chance.randrange(50))], []])


def define_versions(records: list[dict[str, Any]]) -> dict[str, list[Version]]:
    """The versions of each key: of equal timestamps the last record counts; one that is held counts as unknown."""
    prices: dict[str, dict[datetime, int | None]] = defaultdict(dict)
    for row in records:
        price = None if row["value"] is None else json.loads(row["value"])["price"]
        if price is None or price >= 0:
            prices[row["key"].decode()][row["timestamp"]] = price
    found = {}
    for item, own in prices.items():
        steps = [(own[start], start, end) for start, end in pairwise([*sorted(own), None])]  # type: ignore[type-var]
        if versions := [(price, start, end) for price, start, end in steps if price is not None]:
            found[item] = versions
    return found


def define_bills(orders: list[dict[str, Any]], versions: dict[str, list[Version]]) -> dict[str, list[int]]:
    found = defaultdict(list)
    for row in orders:
        order, moment = json.loads(row["value"]), row["timestamp"]
        for price, start, end in versions.get(order["item"], ()):
            if start <= moment and (end is None or moment < end):
                found[row["key"].decode()].append(order["quantity"] * price)
    return found


def parse_order(row: dict[str, Any]) -> tuple[str, str, int]:
    order = json.loads(row["value"])
    return row["key"].decode(), order["item"], order["quantity"]


def define_sold(orders: list[dict[str, Any]]) -> dict[tuple[str, datetime], int]:
    """What was sold in 10 seconds: without orders that came 20 seconds after their end or later, by their partition."""
    found: dict[tuple[str, datetime], int] = defaultdict(int)
    reached: dict[int, datetime] = {}
    for row in sorted(orders, key=lambda row: (row["partition"], row["offset"])):
        moment, (_, item, quantity) = row["timestamp"], parse_order(row)
        latest = reached[row["partition"]] = max(moment, reached.get(row["partition"], moment))
        start = moment - timedelta(seconds=moment.second % 10)
        if latest < start + timedelta(seconds=30):
            found[item, start] += quantity
    return dict(found)


def read_menu(p: Pipeline, second: int) -> dict[str, list[Version]]:
    found = defaultdict(list)
    for row in ask(p, "menu", known_at=at(second), from_time=at(-1), order=("time",)):
        found[row["item"]].append((row["price"], row["validFrom"], row["validTo"]))
    return found


def ask(p: Pipeline, table: str, **question: Any) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = read.query(p.warehouse, p.contract, table, read.Question(**question)).to_pylist()
    return rows
