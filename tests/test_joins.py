"""What the joins' own arguments mean; the vectors and histories show the rest."""

from __future__ import annotations

from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from hindcast.bitemporal import joins
from relations import records, rows, versions

PRICES = [("curry", 8, 0, 4), ("curry", 10, 4, 9)]


def test_an_event_meets_the_version_valid_at_its_timestamp(spark: SparkSession) -> None:
    orders = records(spark, [(0, "curry", 1, time) for time in (4, 3, 0, 9)] + [(0, None, 1, 4), (0, "rice", 1, 4)])
    prices = versions(spark, PRICES)
    left = joins.join_stream_table(orders, prices, "left")
    columns = "position.offset", "timestamp", "right.v", "right_from"
    assert rows(left, *columns) == [(0, 4, 10.0, 4), (1, 3, 8.0, 0), (2, 0, 8.0, 0)] + [
        (offset, time, None, None) for offset, time in ((3, 9), (4, 4), (5, 4))
    ]
    assert rows(joins.join_stream_table(orders, prices, "inner"), *columns) == rows(
        left.where("right IS NOT NULL"), *columns
    )


def test_no_event_meets_the_version_of_no_key(spark: SparkSession) -> None:
    events = records(spark, [(0, None, 1, 5)] * 200)
    joined = joins.join_stream_table(events, versions(spark, [(None, 8, 0, None)]), "left")
    assert {row[0] for row in rows(joined, "right.v")} == {None}


def test_an_expression_names_the_table_key_and_null_names_nothing(spark: SparkSession) -> None:
    orders = records(spark, [(0, "anna", 1, 5), (0, "bob", 2, 5)])
    on = F.when(F.col("value.v") == 1, F.struct(F.lit("curry").alias("k")))
    joined = joins.join_stream_table(orders, versions(spark, PRICES), "left", on)
    assert rows(joined, "key.k", "right.v") == [("anna", 10.0), ("bob", None)]


def test_a_foreign_key_join_shows_gaps_between_right_versions(spark: SparkSession) -> None:
    orders = versions(spark, [("1", 1, 0, None), ("2", 2, 3, 6), ("3", 1, 5, 6)])
    right = versions(spark, [("curry", 8, 2, 4), ("curry", 9, 7, None)])
    on = F.when(F.col("value.v") == 1, F.struct(F.lit("curry").alias("k")))
    columns = "key.k", "right.v", "validFrom", "validTo"
    assert rows(joins.join_foreign_key(orders, right, "left", on), *columns) == sorted(
        [
            ("1", None, 0, 2),
            ("1", 8.0, 2, 4),
            ("1", None, 4, 7),
            ("1", 9.0, 7, None),
            ("2", None, 3, 6),
            ("3", None, 5, 6),
        ],
        key=lambda row: [(value is not None, value) for value in row],
    )
    assert rows(joins.join_foreign_key(orders, right, "inner", on), *columns) == [("1", 8.0, 2, 4), ("1", 9.0, 7, None)]
