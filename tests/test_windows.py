"""Lateness by source partition, and whether a window has closed."""

from __future__ import annotations

import random
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from hindcast.bitemporal import fates, windows
from hindcast.bitemporal.intervals import LAST_MICROS
from hindcast.bitemporal.measures import Measure
from hindcast.contract import Window
from relations import at, ms, records, rows


def counted(
    spark: SparkSession, window: windows.WindowDefinition, log: list[tuple[int, str, int, int]]
) -> list[tuple[int, ...]]:
    judged = windows.judge_events(records(spark, log), window)
    found = windows.aggregate_windows(judged, window, {"n": Measure("count", F.lit(1))})
    return rows(found, "windowStart", "windowEnd", "value.n")


def test_lateness_is_judged_by_the_source_partition(spark: SparkSession) -> None:
    tumbling = windows.HoppingWindow(ms(10), ms(10), ms(0))
    assert counted(spark, tumbling, [(0, "a", 1, 25), (1, "a", 1, 3), (0, "a", 1, 4)]) == [(0, 10, 1), (20, 30, 1)]


def test_a_window_ends_with_all_time_at_the_latest(spark: SparkSession) -> None:
    last = LAST_MICROS // 1000
    day = 86_400_000
    hopping = windows.HoppingWindow(ms(7 * day), ms(7 * day), ms(0))
    (found,) = counted(spark, hopping, [(0, "a", 1, last)])
    assert found == (last - last % (7 * day), last, 1)


@pytest.mark.long
@pytest.mark.ci
@pytest.mark.parametrize("length", [2, 1_000])
def test_events_are_judged_in_blocks_as_one_after_the_other(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch, length: int
) -> None:
    monkeypatch.setattr(fates, "OFFSETS_PER_BLOCK", length)
    dice = random.Random(length)  # noqa: S311
    log = [
        (
            partition,
            dice.choice(["a", "b", None]),
            dice.choice([1, 1, None]),
            max(2 * n - dice.choice([0, 0, 4, 12]), 0),
        )
        for n in range(60)
        for partition in range(4)
    ]
    events = records(spark, log).localCheckpoint()
    shapes = [
        windows.HoppingWindow(ms(10), ms(10), ms(0)),
        windows.HoppingWindow(ms(10), ms(3), ms(5)),
        windows.SlidingWindow(ms(3), ms(4)),
        windows.SessionWindow(ms(1), ms(2)),
    ]
    n, told = {"n": Measure("count", F.lit(1))}, set[bool | None]()
    for window in shapes:
        judged = windows.judge_events(events, window).localCheckpoint()
        exact = windows.mark_taken_events(fates.add_stream_time(events), window).localCheckpoint()
        assert rows(judged, "offset", "taken") == rows(exact, "offset", "taken")
        found = [windows.aggregate_windows(it, window, n) for it in (judged, exact)]
        assert len({str(rows(it, "key.k", "windowStart", "windowEnd", "value.n")) for it in found}) == 1
        told |= {taken for (taken,) in rows(exact, "taken")}
    assert told == {True, False, None}
    bounded = fates.add_stream_time_bounds(events)
    times = rows(
        fates.add_stream_time(bounded),
        "offset",
        F.greatest("timeBefore", "timestamp").alias("low"),
        "streamTime",
        "latestTime",
        F.col("key").isNotNull() & F.col("value").isNotNull(),
    )
    assert all(low <= time <= high for _, low, time, high, counts in times if counts)


def test_sessions_of_two_partitions_are_one_session_but_judged_apart(spark: SparkSession) -> None:
    session = windows.SessionWindow(ms(5), ms(0))
    log = [(0, "a", 1, 30), (1, "a", 1, 26), (0, "a", 1, 22), (1, "a", 1, 21)]
    assert counted(spark, session, log) == [(21, 30, 3)]


@pytest.mark.parametrize(
    ("window", "shape", "end", "last"),
    [
        ({"tumbling": "10 ms"}, lambda: windows.HoppingWindow(ms(10), ms(10), ms(3)), 20, 19),
        ({"hopping": "10 ms", "advance": "5 ms"}, lambda: windows.HoppingWindow(ms(10), ms(5), ms(3)), 15, 14),
        ({"sliding": "10 ms"}, lambda: windows.SlidingWindow(ms(10), ms(3)), 10, 10),
        ({"session": "4 ms"}, lambda: windows.SessionWindow(ms(4), ms(3)), 10, 10),
    ],
    ids=["tumbling", "hopping", "sliding", "session"],
)
def test_a_window_has_closed_when_it_takes_no_event_of_its_own_time_any_more(
    spark: SparkSession, window: dict[str, str], shape: Callable[[], windows.WindowDefinition], end: int, last: int
) -> None:
    """One partition for each stream time that may be reached: an event at 10, stream time, an event at `last`."""
    times = range(11, 40)
    log = [(t, key, 1, moment) for t in times for key, moment in (("a", 10), ("b", t), ("a", last))]
    judged = windows.judge_events(records(spark, log), shape())
    own = judged.withColumn("key", F.struct("key", "partition")).where("key.key.k = 'a'")
    found = windows.aggregate_windows(own, shape(), {"n": Measure("count", F.lit(1))}).where(
        F.col("windowEnd") == at(end)
    )
    taken = {partition for partition, n in rows(found, "key.partition", "value.n") if n == 2}
    moments = {t: datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=t) for t in (end, *times)}
    told = Window(**window, grace="3 ms")  # type: ignore[arg-type]  # as YAML has it
    closed = {t for t in times if moments[end] <= (windows.latest_closed_end(told, moments[t]) or moments[end])}
    assert taken == set(times) - closed
    assert taken
    assert closed


def test_a_grace_longer_than_all_time_closes_nothing() -> None:
    assert (
        windows.latest_closed_end(Window(tumbling="1 day", grace="999999 weeks"), datetime(2026, 1, 1, tzinfo=UTC))
        is None
    )
