"""The grace period of stream-table joins, in the `kafka` reading."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from hindcast.streams.join_buffer import BufferState, empty_buffer, release_records
from hindcast.streams.records import Records
from kafka_adapter_streams import Vector, coded, named, same, vectors

VECTORS = vectors("stream_table_join_grace")
Lookup = tuple[int, int]


def replay(records: list[dict[str, Any]], grace: int, how: str, *cuts: int) -> tuple[list[Lookup], int, BufferState]:
    """Which record is looked up while which is processed, at which it fails, and what is kept; cut into runs."""
    columns = coded(records)[2:]
    stream = np.array([record.get("topic", "stream") == "stream" for record in records], np.bool_)
    kept, looked_up, failed = empty_buffer(), list[Lookup](), -1
    for start, stop in pairwise([0, *cuts, len(records)]):
        run = Records(*(column[start:stop][stream[start:stop]] for column in columns))
        out, kept = release_records(run, grace, how, kept)
        assert np.array_equal(out.records.timestamp, columns[3][out.records.order])
        looked_up += zip(out.cause.tolist(), out.records.order.tolist(), strict=True)
        failed = out.failed
        if failed != -1:
            break
    return looked_up, failed, kept


def replay_vector(vector: Vector, *cuts: int) -> tuple[list[Lookup], int, BufferState]:
    return replay(vector["records"], vector["operation"]["graceMs"], vector["operation"]["join"], *cuts)


@pytest.mark.parametrize("vector", VECTORS, ids=lambda vector: vector["name"])
def test_a_cut_anywhere_changes_nothing(vector: Vector) -> None:
    whole = replay_vector(vector)
    for cut in range(len(vector["records"]) + 1):
        assert same(replay_vector(vector, cut), whole)
    assert same(replay_vector(vector, *range(len(vector["records"]))), whole)


def looked_up(*records: tuple[str | None, Any, int], grace: int = 10, how: str = "inner") -> list[Lookup]:
    fields = ("key", "value", "timestamp")
    return replay([dict(zip(fields, record, strict=True)) for record in records], grace, how)[0]


def test_a_record_waits_until_stream_time_is_past_it_by_the_grace_period() -> None:
    assert looked_up(("a", 1, 5), ("a", 2, 14), ("a", 3, 15)) == [(2, 0)]


def test_a_late_record_is_looked_up_at_once_and_releases_nothing() -> None:
    assert looked_up(("a", 1, 20), ("a", 2, 9), ("a", 3, 11)) == [(1, 1)]


def test_at_stream_time_less_grace_a_record_is_not_late_and_released_at_once() -> None:
    assert looked_up(("a", 1, 20), ("a", 2, 10)) == [(1, 1)]


def test_released_records_come_by_timestamp_then_key_then_arrival() -> None:
    records = [("b", 1, 2), ("a", 2, 2), ("b", 3, 1), ("a", 4, 2), ("c", 5, 12)]
    assert looked_up(*records) == [(4, 2), (4, 1), (4, 3), (4, 0)]


def test_dropped_records_move_no_time() -> None:
    assert looked_up(("a", 1, 5), ("a", None, 40), (None, 2, 50), ("a", 3, 6)) == []


def test_without_grace_and_with_a_negative_one_each_record_is_looked_up_when_it_comes() -> None:
    for grace in (0, -5):
        records = [("a", 1, 0), ("b", 2, 9), ("a", 3, 3), ("a", 4, 12), ("b", 5, 12)]
        assert looked_up(*records, grace=grace) == [(i, i) for i in range(5)]


def test_a_left_join_fails_at_a_record_with_a_value_and_no_key_and_nothing_comes_after() -> None:
    records = [("a", 1, 0), (None, None, 5), ("a", 2, 12), (None, 3, 1), ("a", 4, 90)]
    fields = ("key", "value", "timestamp")
    out, failed, kept = replay([dict(zip(fields, record, strict=True)) for record in records], 10, "left")
    assert (out, failed, kept.records.order.tolist()) == ([(2, 0)], 3, [2])
    assert named(["a"], int(kept.records.key[0])) == "a"
