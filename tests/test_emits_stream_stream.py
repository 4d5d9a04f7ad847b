"""The stream-stream join of the `kafka` reading."""

from __future__ import annotations

from itertools import pairwise
from time import process_time
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hindcast.streams.stream_stream import (
    LEFT,
    RIGHT,
    JoinRecords,
    JoinWindows,
    StreamJoinState,
    empty_join_state,
    join_stream_stream,
)
from kafka_adapter_streams import Vector, coded, named, same, vectors

VECTORS = vectors("stream_stream_join")


def replay(
    records: list[dict[str, Any]], window: JoinWindows, how: str, *cuts: int
) -> tuple[list[dict[str, Any]], StreamJoinState]:
    """What a join emits and keeps, its records cut into runs."""
    keys, values, order, *columns = coded(records)
    side = np.array([LEFT if record["topic"] == "left" else RIGHT for record in records], np.int64)
    emitted, kept = list[dict[str, Any]](), empty_join_state()
    for start, stop in pairwise([0, *cuts, len(records)]):
        run = JoinRecords(*(column[start:stop] for column in (order, side, *columns)))
        out, kept = join_stream_stream(run, window, how, kept)
        for cause, key, left, right, timestamp in zip(*(column.tolist() for column in out), strict=True):
            value = {"left": named(values, left), "right": named(values, right)}
            emitted.append({"key": named(keys, key), "value": value, "timestamp": timestamp, "cause": cause})
    return emitted, kept


def arguments(vector: Vector) -> tuple[list[dict[str, Any]], JoinWindows, str]:
    window = JoinWindows(*(vector["operation"]["window"][field] for field in ("beforeMs", "afterMs", "graceMs")))
    return vector["records"], window, vector["operation"]["join"]


@pytest.mark.parametrize("vector", VECTORS, ids=lambda vector: vector["name"])
def test_a_cut_anywhere_changes_nothing(vector: Vector) -> None:
    whole = replay(*arguments(vector))
    for cut in range(len(vector["records"]) + 1):
        assert same(replay(*arguments(vector), cut), whole)
    assert same(replay(*arguments(vector), *range(len(vector["records"]))), whole)


def plain(records: list[dict[str, Any]], window: JoinWindows, how: str) -> list[dict[str, Any]]:
    """The rules once more, one record after the other, in plain Python."""
    before, after, grace = window
    ahead, outer = {"left": after, "right": before}, {"left": how != "inner", "right": how == "outer"}
    time, noted = -1, None
    stores: dict[str, list[dict[str, Any]]] = {"left": [], "right": []}
    waiting: list[dict[str, Any]] = []
    emitted = []

    def emit(cause: int, record: dict[str, Any], other: dict[str, Any] | None) -> None:
        value = {"left": None, "right": None, record["topic"]: record["value"]}
        if other is not None:
            value[other["topic"]] = other["value"]
        timestamp = max(record["timestamp"], other["timestamp"] if other else 0)
        emitted.append({"key": record["key"], "value": value, "timestamp": timestamp, "cause": cause})

    for cause, record in enumerate(records):
        side, now = record["topic"], record["timestamp"]
        other_side = "right" if side == "left" else "left"
        time = max(time, now)
        if record["value"] is None or record["key"] is None:
            if record["value"] is not None and outer[side]:
                emit(cause, record, None)
            continue
        if now == time and noted is not None and noted + ahead[side] + grace < time:
            noted, still_open = None, set()
            waiting.sort(key=lambda entry: (entry["timestamp"], entry["topic"] == "left", entry["key"].encode()))
            for entry in list(waiting):
                noted = entry["timestamp"]
                if len(still_open) == 2:
                    break
                if entry["timestamp"] + ahead[entry["topic"]] + grace >= time:
                    still_open.add(entry["topic"])
                else:
                    emit(cause, entry, None)
                    waiting = [kept for kept in waiting if kept is not entry]
        reach = max([other["timestamp"] for other in stores[other_side]], default=-1) - sum(window) + 1
        low, high = max(0, now - ahead[other_side]), max(0, now + ahead[side])
        matches = [
            other
            for other in sorted(stores[other_side], key=lambda other: other["timestamp"])
            if other["key"] == record["key"] and max(low, reach) <= other["timestamp"] <= high
        ]
        for match in matches:
            emit(cause, record, match)
            waiting = [kept for kept in waiting if kept is not match]
        if outer[side] and not matches:
            if high < time:
                emit(cause, record, None)
            else:
                waiting.append(record)
                noted = now if noted is None else min(noted, now)
        stores[side].append(record)
    return emitted


RECORDS = st.lists(
    st.builds(
        lambda topic, key, value, timestamp: {"topic": topic, "key": key, "value": value, "timestamp": timestamp},
        st.sampled_from(["left", "right"]),
        st.sampled_from(["a", "b", "a", "b", None]),
        st.one_of(st.integers(0, 9), st.integers(0, 9), st.none()),
        st.one_of(st.integers(0, 20), st.integers(0, 60)),
    ),
    max_size=60,
)
WINDOWS = st.builds(JoinWindows, st.integers(-3, 10), st.integers(3, 10), st.integers(0, 6))


@given(RECORDS, WINDOWS, st.sampled_from(["inner", "left", "outer"]), st.data())
@settings(max_examples=300, deadline=None)
def test_it_is_the_plain_rules_however_cut(
    records: list[dict[str, Any]], window: JoinWindows, how: str, data: st.DataObject
) -> None:
    whole = replay(records, window, how)
    assert whole[0] == plain(records, window, how)
    cuts = data.draw(st.lists(st.integers(0, len(records)), max_size=5).map(sorted))
    assert same(replay(records, window, how, *cuts), whole)


@pytest.mark.parametrize("vector", VECTORS, ids=lambda vector: vector["name"])
def test_the_plain_rules_are_those_of_the_vectors(vector: Vector) -> None:
    assert plain(*arguments(vector)) == vector["expected"]["emitted"]


def joined(*records: tuple[str, str | None, Any, int], window: JoinWindows, how: str) -> list[tuple[Any, ...]]:
    """Records as (topic, key, value, timestamp), what comes out as (cause, left, right, timestamp)."""
    fields = ("topic", "key", "value", "timestamp")
    emitted = replay([dict(zip(fields, record, strict=True)) for record in records], window, how)[0]
    return [(row["cause"], row["value"]["left"], row["value"]["right"], row["timestamp"]) for row in emitted]


def test_a_dropped_record_moves_stream_time_but_not_the_reach_of_its_store() -> None:
    records = [
        ("right", "a", 1, 10),
        ("right", "a", None, 90),
        ("right", None, 2, 95),
        ("left", "a", 3, 11),
        ("left", "a", 4, 30),
    ]
    assert joined(*records, window=JoinWindows(5, 5, 0), how="left") == [(3, 3, 1, 11), (4, 4, None, 30)]


def test_the_other_side_is_out_of_reach_when_it_has_gone_on_by_the_whole_window() -> None:
    for largest, found in ((19, [(2, 3, 1, 10)]), (20, [])):
        records = [("right", "a", 1, 10), ("right", "b", 2, largest), ("left", "a", 3, 10)]
        assert joined(*records, window=JoinWindows(5, 5, 0), how="inner") == found


def test_what_waits_comes_out_before_the_results_of_the_record_that_releases_it() -> None:
    records = [("left", "a", 1, 0), ("right", "b", 2, 0), ("right", "c", 3, 9), ("left", "c", 4, 9)]
    assert joined(*records, window=JoinWindows(3, 3, 0), how="outer") == [
        (2, None, 2, 0),
        (2, 1, None, 0),
        (3, 4, 3, 9),
    ]


def test_a_release_can_come_later_than_it_could() -> None:
    """At 15, d is looked at last. So 13 is noted, and at 16 nothing is looked at, though the window of c has closed."""
    times = [("a", 8), ("b", 11), ("c", 12), ("d", 13), ("e", 15), ("f", 16), ("g", 17)]
    records = [("left", key, key, timestamp) for key, timestamp in times]
    out = joined(*records, window=JoinWindows(3, 3, 0), how="left")
    assert [(cause, left) for cause, left, _, _ in out] == [(2, "a"), (4, "b"), (6, "c"), (6, "d")]


def test_one_entry_more_is_looked_at_when_something_open_of_both_sides_was_found() -> None:
    """At 8, c and d are found to be open, and f is looked at. So 7 is noted, and at 10 nothing is looked at."""
    times = [("left", "a", 0), ("left", "b", 4), ("right", "c", 5), ("left", "d", 6), ("right", "f", 7)]
    times += [("left", "e", 8), ("left", "g", 10), ("left", "h", 11)]
    records = [(side, key, key, timestamp) for side, key, timestamp in times]
    out = joined(*records, window=JoinWindows(3, 3, 0), how="outer")
    assert [(cause, left or right) for cause, left, right, _ in out] == [
        (1, "a"),
        (5, "b"),
        (7, "c"),
        (7, "d"),
        (7, "f"),
    ]


HOSTILE = 100_000


@pytest.mark.parametrize("how", ["inner", "outer"])
@pytest.mark.parametrize("step", [10, -10, 0])
def test_cost_grows_with_records_and_results_whatever_their_order(how: str, step: int) -> None:
    order = np.arange(4 * HOSTILE)
    side, timestamp = order % 2, 10**8 + step * order
    if step == 0:  # all at one instant, the sides one after the other, both out of the other's reach
        side = np.repeat([LEFT, RIGHT], 2 * HOSTILE)
        timestamp = np.where(np.isin(order, [0, 2 * HOSTILE]), 10**9, 10**8)
        window = JoinWindows(5, 5, 0)
    else:
        window = JoinWindows(10, 10, 0)
    started = process_time()
    out, _ = join_stream_stream(
        JoinRecords(order, side, np.zeros_like(order), order, timestamp), window, how, empty_join_state()
    )
    assert process_time() - started < 5
    assert out.cause.size < 4 * order.size
