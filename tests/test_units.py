"""Which rows of a change are not published while some of its units are held."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from hindcast.contract import Contract
from hindcast.quality import held_units
from hindcast.store import tables
from pipelines import T0

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

CONTRACT = Contract.model_validate(
    yaml.safe_load("""
pipeline: shop
start: 2026-01-01
topics:
  orders: {read: stream, key: {customer: string}, value: {n: int}}
  payments: {read: stream, key: {customer: string}, value: {paid: int}}
views:
  sittings: {stream: orders, window: {session: 5 seconds}, aggregate: {n: count(*)}, hold: row}
  sums: {stream: orders, window: {hopping: 10 seconds, advance: 5 seconds}, aggregate: {n: sum(n)}, hold: row}
  whole: {stream: orders, window: {tumbling: 10 seconds}, aggregate: {n: sum(n)}}
  settled:
    stream: orders
    join: {stream: payments, before: 0 seconds, after: 3 seconds, how: outer}
    hold: row
  moving: {stream: orders, key: {customer: upper(customer)}}
  matched:
    stream: orders
    join: {stream: payments, before: 0 seconds, after: 3 seconds, how: outer}
    key: {customer: "coalesce(payments.customer, orders.customer)"}
    select: {n: n, paid: paid}
""")
)


def held_back(spark: SparkSession, name: str, rows: list[dict[str, Any]], schema: str) -> set[str]:
    """The names of the rows that stay behind where those that are said to fail are held."""
    table = tables.locate_table("", CONTRACT, name)
    change = held_units.add_units(spark.createDataFrame([tuple(row.values()) for row in rows], schema), CONTRACT, table)
    failing = change.where("fails").select("_unit")
    return {row["name"] for row in held_units.select_held_rows(change, failing, table).collect()}


WINDOWS = "customer string, name string, _change string, windowStart timestamp, windowEnd timestamp, fails boolean"


def window(
    name: str, change: str, start: int, end: int, *, fails: bool = False, customer: str = "anna"
) -> dict[str, Any]:
    times = {"windowStart": T0 + timedelta(seconds=start), "windowEnd": T0 + timedelta(seconds=end)}
    return {"customer": customer, "name": name, "_change": change, **times, "fails": fails}


@pytest.mark.parametrize(
    ("view", "rows", "behind"),
    [
        # A session that fails leaves those behind that it takes the place of, of its own key.
        (
            "sittings",
            [
                window("joined", "open", 1, 9, fails=True),
                window("first", "close", 1, 2),
                window("second", "close", 8, 9),
                window("later", "open", 20, 21),
                window("bob", "close", 1, 2, customer="bob"),
            ],
            {"joined", "first", "second"},
        ),
        # Other windows overlap by their nature.
        (
            "sums",
            [window("was", "close", 0, 10), window("is", "open", 0, 10, fails=True), window("next", "open", 5, 15)],
            {"was", "is"},
        ),
        # Without `hold: row` the whole key does.
        (
            "whole",
            [
                window("one", "open", 0, 10, fails=True),
                window("other", "open", 10, 20),
                window("bob", "open", 0, 10, customer="bob"),
            ],
            {"one", "other"},
        ),
    ],
)
def test_of_windows_a_failing_one_stays_behind(
    spark: SparkSession, view: str, rows: list[dict[str, Any]], behind: set[str]
) -> None:
    assert held_back(spark, view, rows, WINDOWS) == behind


EVENTS = "customer string, name string, _change string, _partition int, _offset long, fails boolean"


def event(
    name: str, change: str, customer: str, offset: int, *, partition: int = 0, fails: bool = False
) -> dict[str, Any]:
    return {"c": customer, "name": name, "change": change, "p": partition, "o": offset, "fails": fails}


def test_both_rows_of_an_event_that_moves_from_or_to_a_held_key_stay_behind(spark: SparkSession) -> None:
    rows = [
        event("fails", "open", "A", 9, fails=True),
        event("away: old", "close", "A", 1),
        event("away: new", "open", "B", 1),
        event("to: old", "close", "C", 2),
        event("to: new", "open", "A", 2),
        event("changed: old", "close", "A", 3),
        event("changed: new", "open", "A", 3),
        event("of B", "open", "B", 4),
        event("B to C: old", "close", "B", 5),
        event("B to C: new", "open", "C", 5),
        event("elsewhere", "open", "B", 1, partition=1),
    ]
    behind = {row["name"] for row in rows if row["name"].startswith(("fails", "away", "to:", "changed"))}
    assert held_back(spark, "moving", rows, EVENTS) == behind


def test_a_pair_of_another_key_stays_behind_with_an_event_alone_and_it_with_a_held_pair(spark: SparkSession) -> None:
    rows = [
        pair("fails", "open", 9, None, fails=True, customer="A"),
        # Alone under the held key: the pair is of another.
        pair("order 1 alone", "close", 1, None, customer="A"),
        pair("1 and 1", "open", 1, 1, customer="B"),
        pair("payment 1 alone", "close", None, 1, customer="B"),
        # The pair is of the held key.
        pair("order 2 alone", "close", 2, None, customer="C"),
        pair("2 and 2", "open", 2, 2, customer="A"),
        # It ends.
        pair("3 and 3", "close", 3, 3, customer="A"),
        pair("order 3 alone", "open", 3, None, customer="C"),
        pair("4 and 4", "close", 4, 4, customer="C"),
        pair("order 4 alone", "open", 4, None, customer="A"),
        # Nothing of these is of the held key.
        pair("order 5 alone", "close", 5, None, customer="B"),
        pair("5 and 5", "open", 5, 5, customer="C"),
    ]
    behind = {row["name"] for row in rows} - {"order 5 alone", "5 and 5"}
    assert held_back(spark, "matched", rows, PAIRS) == behind


PAIRS = (
    "customer string, name string, _change string, _partition int, _offset long, _rightPartition int, "
    "_rightOffset long, fails boolean"
)


def pair(
    name: str, change: str, left: int | None, right: int | None, *, fails: bool = False, customer: str = "anna"
) -> dict[str, Any]:
    places = {"lp": None if left is None else 0, "l": left, "rp": None if right is None else 0, "r": right}
    return {"customer": customer, "name": name, "_change": change, **places, "fails": fails}


def test_of_events_whose_every_pair_is_held_it_stays_believed_that_they_have_none(spark: SparkSession) -> None:
    rows = [
        # Order 1 meets payments 1, which fails, and 2; order 2 and payment 3 have but a failing pair.
        pair("order 1 alone", "close", 1, None),
        pair("1 and 1", "open", 1, 1, fails=True),
        pair("1 and 2", "open", 1, 2),
        pair("payment 1 alone", "close", None, 1),
        pair("payment 2 alone", "close", None, 2),
        pair("order 2 alone", "close", 2, None),
        pair("payment 3 alone", "close", None, 3),
        pair("2 and 3", "open", 2, 3, fails=True),
    ]
    behind = {"1 and 1", "payment 1 alone", "order 2 alone", "payment 3 alone", "2 and 3"}
    assert held_back(spark, "settled", rows, PAIRS) == behind
