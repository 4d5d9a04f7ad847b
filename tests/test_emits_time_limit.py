"""Suppression until a time limit, in the `kafka` reading."""

from __future__ import annotations

import time
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from hindcast.streams.records import Records
from hindcast.streams.suppress import SuppressState, empty_suppress_state, suppress_updates
from hindcast_conformance.topology import compute_vector
from hindcast_conformance.vectors import Vector as Named
from kafka_adapter_streams import Vector, coded, named, same, vectors

VECTORS = vectors("table_suppress")


def replay(records: list[dict[str, Any]], limit: int, *cuts: int) -> tuple[list[dict[str, Any]], SuppressState]:
    """What comes out of the buffer and what is kept, the records cut into runs."""
    keys, values, *columns = coded(records)
    emitted, kept = list[dict[str, Any]](), empty_suppress_state()
    for start, stop in pairwise([0, *cuts, len(records)]):
        out, kept = suppress_updates(Records(*(column[start:stop] for column in columns)), limit, kept)
        for cause, update, key, value, timestamp in zip(*(column.tolist() for column in out), strict=True):
            assert records[update]["timestamp"] == timestamp
            emitted.append(
                {"key": named(keys, key), "value": named(values, value), "timestamp": timestamp, "cause": cause}
            )
    return emitted, kept


def limit_of(vector: Vector) -> int:
    return vector["operation"]["table"]["transforms"][0]["timeLimitMs"]  # type: ignore[no-any-return]


@pytest.mark.parametrize("vector", VECTORS, ids=lambda vector: vector["name"])
def test_a_cut_anywhere_changes_nothing(vector: Vector) -> None:
    records, limit = vector["records"], limit_of(vector)
    whole = replay(records, limit)
    for cut in range(len(records) + 1):
        assert same(replay(records, limit, cut), whole)
    assert same(replay(records, limit, *range(len(records))), whole)


def out_of(*updates: tuple[str | None, Any, int], limit: int = 10) -> list[tuple[str, Any, int, int]]:
    records = [{"key": key, "value": value, "timestamp": timestamp} for key, value, timestamp in updates]
    return [tuple(row.values()) for row in replay(records, limit)[0]]  # type: ignore[misc]


def test_a_later_update_replaces_value_and_timestamp_but_not_the_place() -> None:
    assert out_of(("a", 1, 0), ("a", 2, 9), ("a", 3, 4), ("b", 4, 10)) == [("a", 3, 4, 3)]


def test_an_update_that_is_that_old_itself_comes_out_at_once() -> None:
    assert out_of(("a", 1, 20), ("b", 2, 10)) == [("b", 2, 10, 1)]


def test_the_update_that_reaches_the_limit_is_the_one_that_comes_out() -> None:
    assert out_of(("a", 1, 0), ("a", 2, 10), ("a", 3, 12)) == [("a", 2, 10, 1)]


def test_keys_come_out_by_place_then_key_whatever_they_were_replaced_by() -> None:
    updates = [("c", 1, 3), ("b", 2, 3), ("a", 3, 4), ("c", 4, 1), ("d", 5, 14)]
    assert out_of(*updates) == [("b", 2, 3, 4), ("c", 4, 1, 4), ("a", 3, 4, 4)]


def test_a_tombstone_comes_out_as_well() -> None:
    assert out_of(("a", 1, 0), ("a", None, 5), ("b", 2, 10)) == [("a", None, 5, 2)]


def test_a_null_key_is_dropped_and_moves_no_time() -> None:
    assert out_of(("a", 1, 0), (None, 2, 50), ("a", 3, 9)) == []


def test_what_is_kept_is_one_row_for_each_key_in_the_buffer() -> None:
    records = [{"key": "ab"[i % 2], "value": i, "timestamp": 100 + i % 7} for i in range(1000)]
    assert replay(records, 10)[1].place.tolist() == [100, 101]


@pytest.mark.parametrize("keys", [1, 1000])
@pytest.mark.parametrize("step", [1, 0, -1])
def test_cost_grows_with_the_updates_whatever_their_keys_and_times(keys: int, step: int) -> None:
    order = np.arange(1_000_000)
    started = time.process_time()
    out, kept = suppress_updates(
        Records(order, order % keys, order, 2_000_000 + step * order), 5, empty_suppress_state()
    )
    assert time.process_time() - started < 5
    assert out.cause.size + kept.place.size > 0


def chained(source: dict[str, Any], *transforms: dict[str, Any], updates: list[tuple[str, Any, int]]) -> list[Any]:
    """What comes out below a suppression that is one of several transforms: key, value, cause."""
    table = {"versioned": False, **source, "transforms": list(transforms)}
    records = [dict(zip(("topic", "key", "value", "timestamp"), ("table", *update), strict=True)) for update in updates]
    vector = Named("chain", "chain/one", {"type": "table_transform", "table": table}, tuple(records), {})
    return [(row["key"], row["value"], row["cause"]) for row in compute_vector(vector)["emitted"]]


SUPPRESS = {"op": "suppressUntilTimeLimit", "timeLimitMs": 10}
EVEN = {"op": "filter", "predicate": {"type": "even"}}


def test_a_view_of_it_takes_for_the_row_before_what_has_come_out_before() -> None:
    """Kafka Streams takes what was before in the table, whether or not it has come out: it emits ("a", None, 2)."""
    updates = [("a", 2, 0), ("a", 1, 1), ("b", 2, 10)]
    assert chained({}, SUPPRESS, EVEN, updates=updates) == []


def test_it_asks_for_what_was_before_and_makes_its_source_keep_a_store() -> None:
    updates = [("a", 1, 0), ("b", 2, 10), ("b", None, 20), ("b", None, 21)]
    assert chained({"materialized": False}, EVEN, SUPPRESS, updates=updates) == [("b", None, 2)]
