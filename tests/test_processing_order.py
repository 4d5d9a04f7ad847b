"""Processing order: which record of several topics and partitions comes next."""

from __future__ import annotations

from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from hindcast.bitemporal import processing_order
from relations import records


def places(spark: SparkSession, log: list[tuple[int, str, int, int]], cut: int, *, waits: bool = False) -> list[int]:
    """Offsets in processing order; those from `cut` on came in a second run, odd ones are of a second topic."""
    run = records(spark, log).withColumn("run", F.when(F.col("offset") < cut, 1).otherwise(2).cast("long"))
    topics = [run.where(F.col("offset") % 2 == topic) for topic in (0, 1)]
    ordered = [processing_order.add_processing_order(its, topic, waits=waits) for topic, its in enumerate(topics)]
    return [row["offset"] for row in ordered[0].union(ordered[1]).orderBy("order").collect()]


BUFFERED = [
    (0, "a", 0, 1),
    (0, "a", 0, 3),
    (0, "a", 0, 9),
    (1, "a", 0, 3),
    (0, "a", 0, 2),
    (1, "a", 0, 9),
    (1, "a", 0, 3),
]


def test_the_partition_goes_first_whose_next_record_is_the_oldest_ties_by_topic_then_partition(
    spark: SparkSession,
) -> None:
    assert places(spark, BUFFERED, cut=7) == [0, 6, 1, 3, 2, 4, 5]


def test_runs_are_processed_one_after_the_other_unless_they_wait(spark: SparkSession) -> None:
    assert places(spark, BUFFERED, cut=4) == [0, 1, 3, 2, 4, 6, 5]
    assert places(spark, BUFFERED, cut=4, waits=True) == places(spark, BUFFERED, cut=7)
