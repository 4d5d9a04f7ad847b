"""Which records a table takes, and stream time."""

from __future__ import annotations

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from hindcast.bitemporal import fates
from relations import at, ms, records, rows

LOG = [(0, "a", 1, 30), (0, "b", 1, 20), (0, "a", 1, 19), (0, "a", 1, 40), (0, "a", 1, 29), (1, "a", 1, 0)]


def test_a_record_expires_when_it_is_older_than_stream_time_of_its_partition_less_retention(
    spark: SparkSession,
) -> None:
    judged = fates.decide_fates(records(spark, LOG), ms(10))
    wanted = ["accepted", "accepted", "expired", "accepted", "expired", "accepted"]
    assert rows(judged, "offset", "fate") == list(enumerate(wanted))


@pytest.mark.parametrize("cut", range(len(LOG) + 1))
def test_fates_do_not_depend_on_how_runs_cut_the_log(spark: SparkSession, cut: int) -> None:
    whole = records(spark, LOG)
    reached = max((time for partition, _, _, time in LOG[:cut] if partition == 0), default=None)
    earlier = F.when(F.col("partition") == 0, F.lit(None) if reached is None else at(reached))
    first = fates.decide_fates(whole.where(F.col("offset") < cut), ms(10))
    second = fates.decide_fates(whole.where(F.col("offset") >= cut), ms(10), earlier.cast("timestamp"))
    assert rows(first.union(second), "offset", "fate") == rows(fates.decide_fates(whole, ms(10)), "offset", "fate")


@pytest.mark.parametrize("retention", [None, 0, 9, 10, 11, 12])
def test_judged_again_fates_are_those_of_the_other_retention(spark: SparkSession, retention: int | None) -> None:
    log = records(spark, LOG).withColumn("fate", F.when(F.col("offset") == 3, F.lit("malformed")))
    other = ms(retention) if retention is not None else F.lit(None).cast("interval day to second")
    again = fates.redecide_fates(fates.decide_fates(log, ms(10)), other)
    assert rows(again, "offset", "fate") == rows(fates.decide_fates(log, other), "offset", "fate")


def test_a_fate_decided_before_stays_and_moves_no_time(spark: SparkSession) -> None:
    malformed = F.when(F.col("offset") == 0, F.lit("malformed"))
    judged = fates.decide_fates(records(spark, LOG).withColumn("fate", malformed), ms(10))
    assert rows(judged, "offset", "fate")[:3] == [(0, "malformed"), (1, "accepted"), (2, "accepted")]


def test_stream_time_of_events_is_by_source_partition_and_counts_only_events(spark: SparkSession) -> None:
    log = [(0, "a", 1, 5), (0, None, 1, 90), (0, "a", None, 80), (0, "b", 1, 3), (1, "a", 1, 2), (0, "a", 1, 7)]
    timed = fates.add_stream_time(records(spark, log))
    assert rows(timed, "position.offset", "streamTime") == [(0, 5), (1, 5), (2, 5), (3, 5), (4, 2), (5, 7)]
