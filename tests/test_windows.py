"""Lateness by source partition, and whether a window has closed."""

from __future__ import annotations

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from hindcast import order, windows
from hindcast.aggregates import Measure
from relations import at, ms, records, rows


def counted(spark: SparkSession, window: windows.Shape, log: list[tuple[int, str, int, int]]) -> list[tuple[int, ...]]:
    judged = windows.judge(order.with_stream_time(records(spark, log)), window)
    found = windows.aggregate(judged, window, {"n": Measure("count", F.lit(1))})
    return rows(found, "windowStart", "windowEnd", "value.n")


def test_lateness_is_judged_by_the_source_partition(spark: SparkSession) -> None:
    tumbling = windows.Hopping(ms(10), ms(10), ms(0))
    assert counted(spark, tumbling, [(0, "a", 1, 25), (1, "a", 1, 3), (0, "a", 1, 4)]) == [(0, 10, 1), (20, 30, 1)]


def test_sessions_of_two_partitions_are_one_session_but_judged_apart(spark: SparkSession) -> None:
    session = windows.Session(ms(5), ms(0))
    log = [(0, "a", 1, 30), (1, "a", 1, 26), (0, "a", 1, 22), (1, "a", 1, 21)]
    assert counted(spark, session, log) == [(21, 30, 3)]


@pytest.mark.parametrize(
    ("window", "end", "closing"),
    [
        (lambda: windows.Hopping(ms(10), ms(5), ms(3)), 10, 13),
        (lambda: windows.Sliding(ms(10), ms(3)), 10, 24),
        (lambda: windows.Session(ms(4), ms(3)), 10, 18),
    ],
)
def test_a_window_has_closed_when_no_event_of_its_own_time_is_taken_any_more(
    spark: SparkSession, window: object, end: int, closing: int
) -> None:
    row = spark.range(1).select(at(end).alias("windowEnd"))
    shape = window()  # type: ignore[operator]
    states = [row.select(windows.closed(shape, at(time))).first()[0] for time in (closing - 1, closing)]
    assert states == [False, True]
