"""Files of a Delta table as Spark's rows, without Spark asking Delta's log: that takes half a second for each table."""

from __future__ import annotations

import re
from collections.abc import Sequence
from urllib.parse import unquote

import pyarrow as pa
from deltalake import DeltaTable
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from hindcast.session import FEW


def rows(spark: SparkSession, found: DeltaTable, schema: StructType, paths: Sequence[str]) -> DataFrame:
    """The rows of some files, by their paths in the table; what a file lacks of the table's `schema` is null."""
    folder = unquote(found.table_uri.removeprefix("file://")).rstrip("/")
    if not paths:
        return spark.createDataFrame([], schema)
    named = (f"{folder}/{path}" for path in paths)
    literally = (re.sub(r"([*?\[\]{}\\])", r"\\\1", path) for path in named)  # they are no patterns
    read = spark.read.schema(schema).option("basePath", folder).parquet(*literally)
    return read.select(*(f"`{name}`" for name in schema.names))


def small(found: DeltaTable) -> list[str] | None:
    """The files of a table of few rows, None of a larger one.

    None too of a table that is more than its files (deletion vectors, columns under other names or types), and in an
    object store, where looking at files takes its time too.
    """
    told = found.protocol()
    plain = told.min_reader_version == 1 or {*(told.reader_features or ("legacy",))} <= {"timestampNtz"}
    if not plain or "://" in found.table_uri.removeprefix("file://"):
        return None
    added = pa.table(found.get_add_actions(flatten=True))
    counts = added.column("num_records").to_pylist()
    if len(counts) > _FILES or None in counts or sum(counts) > FEW:
        return None
    return [unquote(path) for path in added.column("path").to_pylist()]


_FILES = 100
