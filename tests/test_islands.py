"""Where a result may differ: keys whose columns are all null are keys like any other."""

from __future__ import annotations

from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from hindcast.bitemporal import affected_periods
from relations import at, rows, versions


def test_rows_of_a_key_that_is_null_are_touched_and_clipped(spark: SparkSession) -> None:
    believed = versions(spark, [("k", 1, 0, None), (None, 2, 0, None), (None, 3, 10, 20)])  # type: ignore[list-item]
    learnt = spark.range(1).select(
        F.lit(None).cast("struct<k: string>").alias("key"), at(4).alias("start"), at(6).alias("end")
    )
    scope = affected_periods.build_scope(learnt, lambda _: believed)
    assert rows(scope.rows, "value.v", "validFrom", "validTo") == [(2.0, 0, None)]
    wide = versions(spark, [(None, 5, 0, 5), (None, 6, 5, None), ("k", 7, 0, None)])  # type: ignore[list-item]
    assert rows(scope.restrict(wide), "value.v", "validFrom", "validTo") == [(5.0, 0, 5), (6.0, 5, None)]
