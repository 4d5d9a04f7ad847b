"""Small relations for tests: tuples in, tuples out. Times are milliseconds since 1970."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructType


def ms(milliseconds: int) -> Column:
    return F.lit(timedelta(milliseconds=milliseconds))


def at(milliseconds: int) -> Column:
    return F.timestamp_millis(F.lit(milliseconds))


def records(spark: SparkSession, rows: Sequence[tuple[int, str | None, Any, int]]) -> DataFrame:
    """Records from (partition, key, value, timestamp), offsets in the order given; fate null, `position` besides."""
    numbered = [(partition, n, key, _double(value), time) for n, (partition, key, value, time) in enumerate(rows)]
    schema = "partition int, offset bigint, k string, v double, time bigint"
    return spark.createDataFrame(numbered, schema).select(
        "partition",
        "offset",
        _struct("k").alias("key"),
        _struct("v").alias("value"),
        F.timestamp_millis("time").alias("timestamp"),
        F.lit(None).cast("string").alias("fate"),
        F.struct(F.lit(0).alias("epoch"), "partition", "offset").alias("position"),
    )


def versions(spark: SparkSession, rows: Sequence[tuple[str, Any, int, int | None]]) -> DataFrame:
    """Versions from (key, value, validFrom, validTo)."""
    plain = [(key, _double(value), start, end) for key, value, start, end in rows]
    return spark.createDataFrame(plain, "k string, v double, start bigint, end bigint").select(
        _struct("k").alias("key"),
        _struct("v").alias("value"),
        F.timestamp_millis("start").alias("validFrom"),
        F.timestamp_millis("end").alias("validTo"),
    )


def rows(relation: DataFrame, *columns: str | Column) -> list[tuple[Any, ...]]:
    """Rows as tuples, sorted; timestamps as milliseconds."""
    plain = [
        F.unix_millis(name).alias(name) if kind == "timestamp" else F.col(name)
        for selected in [relation.select(*columns)]
        for name, kind in selected.dtypes
    ]
    found = [tuple(row) for row in relation.select(*columns).select(*plain).collect()]
    return sorted(found, key=lambda row: [(value is not None, value) for value in row])


def _struct(name: str) -> Column:
    return F.when(F.col(name).isNotNull(), F.struct(name))


def _double(value: Any) -> float | None:
    return None if value is None else float(value)


def list_types(rows: Mapping[str, DataFrame]) -> dict[str, StructType]:
    """The columns of each."""
    return {name: it.schema for name, it in rows.items()}
