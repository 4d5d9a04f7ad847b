"""Spark rows of the files of a Delta table, without Spark reading Delta's log: that takes it half a second."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from hindcast.common.session import FEW_ROWS
from hindcast.store import delta_log, files, own_paths


def load_files(spark: SparkSession, delta_table: DeltaTable, schema: StructType, paths: Sequence[str]) -> DataFrame:
    """Return the rows of some files, by their paths in the table; a column of `schema` that a file lacks is null."""
    folder = unquote(delta_table.table_uri.removeprefix("file://")).rstrip("/")
    delta_log.refuse_foreign_files(delta_table, paths)
    if not paths:
        return spark.createDataFrame([], schema)
    named = (f"{folder}/{path}" for path in paths)
    literally = (re.sub(r"([*?\[\]{}\\])", r"\\\1", path) for path in named)  # they are no patterns
    read = spark.read.schema(schema).option("basePath", folder).parquet(*literally)
    return read.select(*(f"`{name}`" for name in schema.names))


def list_small_table_files(delta_table: DeltaTable) -> list[str] | None:
    """Return the files of a table of few rows; None for a larger one.

    None also for a table that is more than its files (deletion vectors, columns under other names or types); if a file
    is in other folders than those of its partitions, by which Spark would tell them; and in an object store, where
    looking at files is slow too.
    """
    protocol = delta_table.protocol()
    plain = protocol.min_reader_version == 1 or {*(protocol.reader_features or ("legacy",))} <= {"timestampNtz"}
    if not plain or "://" in delta_table.table_uri.removeprefix("file://"):
        return None
    added = pa.table(delta_table.get_add_actions(flatten=True))
    counts, paths = (added.column(name).to_pylist() for name in ("num_records", "path"))
    if len(counts) > _MAX_FILES or None in counts or sum(counts) > FEW_ROWS:
        return None
    paths, partitions = [unquote(path) for path in paths], delta_table.metadata().partition_columns
    return paths if all(_list_folder_columns(path) == partitions for path in paths) else None


def _list_folder_columns(path: str) -> list[str]:
    """Return the columns of the folders `column=value` in which a file is, the whole name of any other folder."""
    return [folder.partition("=")[0] for folder in path.split("/")[:-1]]


def has_files_elsewhere(delta_table: DeltaTable) -> bool:
    """Return whether a table has files that are not in its folder, as a shallow clone has."""
    paths = pa.table(delta_table.get_add_actions(flatten=True)).column("path").to_pylist()
    return any(map(own_paths.leads_out, paths))


_MAX_FILES = 100


def are_small(delta_table: DeltaTable, paths: Iterable[str]) -> bool:
    """Return whether some files of a table are so small that this process reads them itself; unknown ones are not."""
    added = pa.table(delta_table.get_add_actions(flatten=True))
    own = added.filter(pc.is_in(added.column("path"), pa.array(paths, pa.string())))
    rows, size = (pc.sum(own.column(name), min_count=0).as_py() for name in ("num_records", "size_bytes"))
    return not own.column("num_records").null_count and bool(rows <= MAX_ROWS_HERE and size <= files.SMALL_BYTES)


MAX_ROWS_HERE = 1_000_000
