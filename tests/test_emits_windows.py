"""Windowed aggregates as Kafka Streams emits them: what the vectors do not show, and that a cut changes nothing.

What is expected in tables here was seen in Kafka Streams 4.3.1, as the vectors were.
"""

from __future__ import annotations

from random import Random
from typing import Any

import numpy as np
import pytest

from hindcast.streams.emit_strategy import EmitStrategy, aggregate_windows
from hindcast.streams.records import Records
from hindcast.streams.session_windows import SessionWindows
from hindcast.streams.sliding_windows import SlidingWindows
from hindcast.streams.time_windows import TimeWindows
from hindcast.streams.windowed import Windows, empty_window_state
from kafka_adapter_streams import vectors
from kafka_adapter_windows import emitted


def vector(window: dict[str, Any], emit: EmitStrategy, *records: tuple[str, int]) -> dict[str, Any]:
    lines = [{"topic": "stream", "key": key, "value": 1, "timestamp": timestamp} for key, timestamp in records]
    operation = {"type": "windowed_aggregate", "aggregation": "count", "window": window, "emit": str(emit)}
    return {"operation": operation, "records": lines}


def rows(done: list[dict[str, Any]]) -> list[tuple[Any, ...]]:
    """Key, start, end, value, cause of each result."""
    return [(*result["key"].values(), result["value"], result["cause"]) for result in done]


@pytest.mark.parametrize("family", ["tumbling", "hopping", "sliding", "session"])
def test_a_cut_anywhere_changes_neither_results_nor_what_is_kept(family: str) -> None:
    rng = Random(family)  # noqa: S311
    for each in vectors(f"windowed_{family}"):
        whole, count = emitted(each), len(each["records"])
        some = [tuple(sorted(rng.choices(range(count + 1), k=4))) for _ in range(3)]
        for cuts in [*((cut,) for cut in range(count + 1)), *some]:
            assert emitted(each, cuts) == whole, (each["name"], cuts)


SESSION = {"kind": "session", "inactivityGapMs": 5, "graceMs": 0}


@pytest.mark.parametrize(
    ("window", "jump", "found"),
    [
        (SESSION, 10, True),  # the retention of 5 does not matter: a segment has 60 s
        (SESSION, 60_004, True),
        (SESSION, 60_005, False),
        ({**SESSION, "storeRetentionMs": 300_000}, 449_999, True),  # half the retention, if that is longer
        ({**SESSION, "storeRetentionMs": 300_000}, 450_000, False),
    ],
)
def test_a_closed_session_comes_out_unless_its_segment_is_dropped(
    window: dict[str, Any], jump: int, found: bool
) -> None:
    done, _ = emitted(vector(window, EmitStrategy.ON_CLOSE, ("a", 0), ("b", jump)))
    assert rows(done) == [("a", 0, 0, 1, 1)] * found


def test_a_session_that_is_not_seen_any_more_comes_out_beside_the_one_that_should_have_merged_with_it() -> None:
    both = vector(SESSION, EmitStrategy.ON_CLOSE, ("a", 5), ("a", 10), ("b", 15), ("a", 10), ("b", 30))
    whole = emitted(both)
    assert rows(whole[0]) == [("a", 5, 10, 2, 4), ("a", 10, 10, 1, 4), ("b", 15, 15, 1, 4)]
    assert [emitted(both, (cut,)) for cut in range(6)] == [whole] * 6
    again = vector(SESSION, EmitStrategy.ON_CLOSE, ("a", 10), ("b", 15), ("a", 10), ("b", 30))
    assert rows(emitted(again)[0]) == [("a", 10, 10, 1, 3), ("b", 15, 15, 1, 3)]


@pytest.mark.parametrize(
    ("emit", "records", "seen"),
    [
        (
            EmitStrategy.SUPPRESS,
            "b103 a103 b103 a103 a103 b104 a104 a103 a102",
            "b102:1@0 a102:1@1 b102:2@2 a102:2@3 a102:3@4 b103:3@5 a103:1@6 a103:2@7",
        ),
        (EmitStrategy.ON_CLOSE, "b0 a0 c0 a0 b0 a0 c0 c1 c2 a1 a0 a1 a1 a3 a0", "a0:3@8 b0:2@8 c0:3@8 a1:3@13 c1:2@13"),
    ],
)
def test_the_store_shows_sliding_windows_less_than_their_retention_behind_or_at_it_when_emitted_on_close(
    emit: EmitStrategy, records: str, seen: str
) -> None:
    """Records as key and timestamp, results as key, start, count and cause."""
    window = {"kind": "sliding", "timeDifferenceMs": 1, "graceMs": 0}
    done, _ = emitted(vector(window, emit, *((record[0], int(record[1:])) for record in records.split())))
    assert " ".join(f"{key}{start}:{count}@{cause}" for key, start, _, count, cause in rows(done)) == seen


@pytest.mark.parametrize(
    ("emit", "headers"), [(EmitStrategy.UPDATE, [0, 1, 2]), (EmitStrategy.SUPPRESS, [1]), (EmitStrategy.ON_CLOSE, [2])]
)
def test_a_suppressed_result_has_the_headers_of_the_record_that_made_it(emit: EmitStrategy, headers: list[int]) -> None:
    window = {"kind": "tumbling", "sizeMs": 10, "graceMs": 0}
    three = vector(window, emit, ("a", 0), ("a", 9), ("a", 10))
    assert [[result["headers"] for result in emitted(three, cuts)[0]] for cuts in ((), (1,), (2,))] == [headers] * 3


@pytest.mark.parametrize(
    "windows",
    [
        TimeWindows(100, 100, 0),
        TimeWindows(100, 50, 5000, 10_000),
        SlidingWindows(100, 0),
        SlidingWindows(100, 5000, 10**9),
        SessionWindows(100, 0),
    ],
)
@pytest.mark.parametrize("emit", EmitStrategy)
def test_windows_that_no_record_can_change_are_forgotten(windows: Windows, emit: EmitStrategy) -> None:
    kept = empty_window_state()
    most = []
    for low in range(0, 1_000_000, 100_000):
        timestamp = np.arange(low, low + 100_000, 20)
        column = np.arange(len(timestamp))
        _, _, kept = aggregate_windows(windows, emit, Records(column, column % 7, column, timestamp), kept)
        most.append(len(kept.windows.key) + len(kept.waiting.key))
    assert max(most) == most[-1] == most[1] < 6000


ORDERS = {
    "in time": np.arange(100_000) * 10,
    "back in time": np.arange(100_000)[::-1] * 10,
    "shuffled": np.random.default_rng(1).permutation(100_000) * 10,
    "at one time": np.full(100_000, 10**6),
}


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize(
    "windows",
    [
        TimeWindows(40, 20, 10**7),
        SlidingWindows(20, 10**7),
        SlidingWindows(20, 10**7, 10**8),
        SessionWindows(5, 10**7),
        SessionWindows(25, 10**7),
    ],
)
def test_one_hot_key_costs_the_same_in_any_order(windows: Windows, order: str) -> None:
    """A loop that is quadratic in 100,000 records would take minutes, not a second."""
    timestamp = ORDERS[order]
    column = np.arange(len(timestamp))
    for emit in EmitStrategy:
        done, _, kept = aggregate_windows(
            windows, emit, Records(column, column * 0, column, timestamp), empty_window_state()
        )
        assert len(done.key) + len(kept.waiting.key) > 0


def test_late_records_do_not_look_at_each_closed_window_that_contains_them() -> None:
    closed, late = 10**6 + np.arange(1000), np.full(100_000, 10**6 + 1000)
    timestamp = np.concatenate([closed, [10**6 + 1000 + 10_000], late])
    column = np.arange(len(timestamp))
    done, _, _ = aggregate_windows(
        SlidingWindows(10_000, 0),
        EmitStrategy.UPDATE,
        Records(column, column * 0, column, timestamp),
        empty_window_state(),
    )
    assert len(done.key) > len(late)
