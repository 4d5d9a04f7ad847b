"""Records to rectangles, and change sets."""

from __future__ import annotations

from datetime import timedelta

from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from hindcast.bitemporal import derivation, plane
from hindcast.bitemporal.intervals import LAST_MICROS
from relations import ms, records, rows

COLUMNS = ("key.k", "value.v", "validFrom", "validTo")


def test_a_version_is_valid_until_the_keys_next_version_tombstones_too(spark: SparkSession) -> None:
    log = [(0, "a", 8, 0), (1, "a", 10, 4), (0, "a", None, 6), (0, "b", 1, 5), (0, "a", 9, 2)]
    assert rows(plane.derive_versions(records(spark, log)), *COLUMNS) == [
        ("a", 8.0, 0, 2),
        ("a", 9.0, 2, 4),
        ("a", 10.0, 4, 6),
        ("b", 1.0, 5, None),
    ]


def test_of_equal_timestamps_the_later_position_wins_also_a_tombstone(spark: SparkSession) -> None:
    log = [(1, "a", 1, 0), (0, "a", 2, 0), (0, "b", 3, 0), (0, "b", None, 0), (0, "c", None, 0), (0, "c", 4, 0)]
    assert rows(plane.derive_versions(records(spark, log)), *COLUMNS) == [("a", 1.0, 0, None), ("c", 4.0, 0, None)]


def test_with_ttl_a_version_ends_at_the_latest_ttl_after_its_start(spark: SparkSession) -> None:
    log = [(0, "a", 1, 0), (0, "a", 2, 3), (0, "a", 3, 20)]
    assert rows(plane.derive_versions(records(spark, log), ms(10)), *COLUMNS) == [
        ("a", 1.0, 0, 3),
        ("a", 2.0, 3, 13),
        ("a", 3.0, 20, 30),
    ]


def test_with_ttl_a_version_that_would_end_after_all_time_does_not_end(spark: SparkSession) -> None:
    last = LAST_MICROS // 1000
    log = [(0, "a", 1, 0), (0, "a", 2, last - 10), (0, "a", 3, last - 9)]
    assert rows(plane.derive_versions(records(spark, log), ms(10)), *COLUMNS) == [
        ("a", 1.0, 0, 10),
        ("a", 2.0, last - 10, last - 9),
        ("a", 3.0, last - 9, None),
    ]
    ttl = derivation.interval_literal(timedelta.max)
    assert rows(plane.derive_versions(records(spark, log[:1]), ttl), *COLUMNS) == [("a", 1.0, 0, None)]


def test_changes_close_what_is_not_derived_any_more_and_open_what_is_new(spark: SparkSession) -> None:
    nan = float("nan")
    believed = spark.createDataFrame(
        [("same", None, nan, "x"), ("differs", 1, 1.0, "x"), ("gone", 1, 1.0, "x")],
        "k string, f int, c double, old string",
    )
    derived = spark.createDataFrame(
        [("same", None, nan, "y"), ("differs", 1, 2.0, "y"), ("new", None, None, "y")],
        "k string, f int, c double, new string",
    )
    changes = plane.diff_rows(believed, derived, ["k", "f"], ["c"])
    assert rows(changes, "_change", "k", F.col("c").cast("string"), "old", "new") == [
        ("close", "differs", "1.0", "x", None),
        ("close", "gone", "1.0", "x", None),
        ("open", "differs", "2.0", None, "y"),
        ("open", "new", None, None, "y"),
    ]
    assert rows(plane.diff_rows(believed, believed, ["k", "f"], ["c", "old"])) == []
