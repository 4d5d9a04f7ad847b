"""Filters with stores of their own: what the vectors do not show, as seen in Kafka Streams 4.3.1."""

from __future__ import annotations

from typing import Any

from hindcast_conformance.topology import compute_vector
from hindcast_conformance.vectors import Vector

EVEN = {"op": "filter", "predicate": {"type": "even"}}


def told(table: dict[str, Any], *records: tuple[str, Any, int], history: str) -> tuple[list[Any], Any]:
    """What a table tells of records (key, value, timestamp), as (key, value, cause), and what a store of it holds."""
    fields = ("topic", "key", "value", "timestamp")
    lines = tuple(dict(zip(fields, ("table", *record), strict=True)) for record in records)
    done = compute_vector(Vector("any", "any/one", {"type": "table_transform", "table": table}, lines, {}))
    versions = {
        key: [(row["value"], row["validFrom"], row["validTo"]) for row in its]
        for key, its in done["history"][history].items()
    }
    return [(row["key"], row["value"], row["cause"]) for row in done["emitted"]], versions


def test_a_filter_with_a_versioned_store_compares_with_the_latest_there_not_with_what_was_valid_then() -> None:
    stored = {**EVEN, "materialized": {"versioned": True, "historyRetentionMs": 20}}
    emitted, versions = told(
        {"versioned": False, "transforms": [stored]}, ("a", 6, 19), ("a", 1, 39), ("a", 9, 19), history="table-1"
    )
    assert emitted == [("a", 6, 0), ("a", None, 1)]
    assert versions == {"a": [(6, 19, 39)]}


def test_a_filter_that_asks_makes_the_stored_one_above_it_leave_out_tombstones_of_a_source_without_a_store() -> None:
    above, below = ({**EVEN, "materialized": {"versioned": True, "historyRetentionMs": n}} for n in (50, 5))
    records = [("b", 0, 93), ("a", None, 96), ("a", 2, 97), ("b", 3, 91), ("b", 4, 92), ("a", 5, 108)]
    table = {"versioned": False, "materialized": False, "transforms": [above, below]}
    emitted, versions = told(table, *records, history="table-1")
    assert emitted == [("b", 0, 0), ("a", 2, 2), ("b", 4, 4), ("a", None, 5)]
    assert versions == {"a": [(2, 97, 108)], "b": [(4, 92, 93), (0, 93, None)]}
