"""Files of a Delta table that Arrow writes: their rows, and their statistics in Delta's log."""

from __future__ import annotations

import json
import sys
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime
from decimal import Decimal
from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from deltalake import DeltaTable
from numpy.typing import NDArray

from hindcast.common.column_values import ColumnValue
from hindcast.common.json_values import JsonValue
from hindcast.common.session import FEW_ROWS
from hindcast.store import delta_log, tables
from hindcast.store.task_rows import TaskRows, collect_table

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

ROWS_PER_FILE, ROWS_PER_GROUP = 250_000, 125_000
"""The maximum number of rows in a file, and in a row group of it."""


@dataclass(frozen=True)
class DataFile:
    """A file that no commit has made visible yet: its path in the table, partition and statistics (Delta's JSON).

    `belief`: None in a table that has no `_belief`.
    """

    path: str
    belief: str | None
    size: int
    rows: int
    statistics: str


class TableFile(NamedTuple):
    """A file of a table: its path in Delta's log, size, `_belief`, and the bounds of a column where they are known."""

    path: str
    size: int
    belief: str | None
    least: datetime | None = None
    most: datetime | None = None


class FileChange(NamedTuple):
    """What a commit changes: the files that it adds, and those that it takes or marks rows in.

    `numbers`: of the marked rows, by path in Delta's log; without them a file is removed.
    """

    added: Sequence[DataFile]
    touched: Sequence[TableFile] = ()
    numbers: Mapping[str, NDArray[np.uint64]] = MappingProxyType({})


def list_files(delta_table: DeltaTable, column: str = "") -> list[TableFile]:
    """Return the files of a table, with the bounds of a column."""
    return [
        TableFile(
            file["path"],
            file["size_bytes"],
            file.get("partition._belief"),
            file.get(f"min.{column}"),
            file.get(f"max.{column}"),
        )
        for file in pa.table(delta_table.get_add_actions(flatten=True)).to_pylist()
    ]


def combine_parts(parts: Sequence[tuple[str | None, pa.Table]]) -> Iterator[tuple[str | None, pa.Table]]:
    """Yield rows as `write_files` takes them, with small parts combined."""
    for belief in dict.fromkeys(belief for belief, _ in parts):
        rows = [part for own_belief, part in parts if own_belief == belief]
        yield from ((belief, part) for part in rows if part.num_rows > FEW_ROWS)
        small = [part for part in rows if part.num_rows <= FEW_ROWS]
        if small:
            yield belief, pa.concat_tables(small)


def write_files(delta_table: DeltaTable, parts: Iterable[tuple[str | None, pa.Table]]) -> Iterator[DataFile]:
    """Write rows to files beside those of a table, and yield each; no reader sees them until a commit adds them.

    `parts`: rows with all columns but the partition's, and their `_belief`; None where a table has none. The commit is
    `delta_rs_writer.add_files`.
    """
    filesystem = delta_log.open_filesystem(delta_table)
    columns = delta_table.metadata().configuration.get(tables.STATISTICS, "")
    for belief, rows in parts:
        folder = f"_belief={belief}/" if belief else ""
        if rows.num_rows and folder:
            filesystem.create_dir(folder)
        for start in range(0, rows.num_rows, ROWS_PER_FILE):
            path = f"{folder}part-{uuid.uuid4()}.snappy.parquet"
            slice_ = rows.slice(start, ROWS_PER_FILE)
            collected: list[pq.FileMetaData] = []
            with filesystem.open_output_stream(path) as sink, _open_writer(sink, slice_, collected) as writer:
                writer.write_table(slice_, row_group_size=ROWS_PER_GROUP)
            size = filesystem.get_file_info(path).size
            yield DataFile(path, belief, size, slice_.num_rows, format_statistics(collected[0], columns.split(",")))


def _open_writer(sink: pa.NativeFile, rows: pa.Table, collected: list[pq.FileMetaData]) -> pq.ParquetWriter:
    return pq.ParquetWriter(
        sink,
        rows.schema,
        compression="snappy",
        use_dictionary=[name for name in rows.column_names if _has_repeated_values(rows.column(name))],
        store_decimal_as_integer=True,  # as Spark does
        store_schema=False,
        metadata_collector=collected,
    )


def _has_repeated_values(column: pa.ChunkedArray) -> bool:
    """Return whether a dictionary makes a column smaller: of a sample, a tenth of the values repeat others."""
    if pa.types.is_timestamp(column.type) or pa.types.is_nested(column.type):
        return False
    # Chunk by chunk: Arrow copies a column of several as a whole before it takes some values.
    sample = pa.chunked_array([_take_sample(it, len(column)) for it in column.chunks if len(it)], column.type)
    return len(sample.unique()) <= 0.9 * len(sample)


def _take_sample(values: pa.Array, of: int) -> pa.Array:
    """Return values at even distances, as many as their share of `_SAMPLE` of so many."""
    size = max(_SAMPLE * len(values) // of, 1)
    return values.take(pa.array(np.unique(np.linspace(0, len(values) - 1, size).astype(np.int64))))


_SAMPLE = 4_096


def text_size_column(rows: DataFrame) -> Column:
    """Return an aggregate: the approximate number of bytes in the texts and binary values of rows."""
    from pyspark.sql import functions as F

    sizes = ["0"]
    for field in rows.schema.fields:
        column = f"`{field.name}`"
        match field.dataType.typeName():
            case "string" | "binary":
                sizes.append(f"octet_length({column})")
            case "array" | "map":
                sizes.append(f"CASE WHEN size({column}) > 0 THEN octet_length(to_json({column})) END")
            case "struct":
                sizes.append(f"octet_length(to_json({column}))")
    total = " + ".join(f"coalesce({size}, 0L)" for size in sizes)
    return F.expr(f"sum({total})")  # one text: Spark's functions would be called thirty times


def is_small(count: int, bytes_: int | None = None) -> bool:
    """Return whether rows are so few, and so small (None: of any size), that this process can write them."""
    return count <= FEW_ROWS and (bytes_ or 0) <= SMALL_BYTES


SMALL_BYTES = 64 << 20


def collect_rows(rows: DataFrame | TaskRows, delta_table: DeltaTable) -> list[tuple[str | None, pa.Table]]:
    """Return a few rows of a table, computed by Spark, as `write_files` takes them (`change_tasks.can_write`)."""
    return split_rows(collect_table(rows), pa.schema(delta_table.schema().to_arrow()))


def split_rows(rows: pa.Table, schema: pa.Schema) -> list[tuple[str | None, pa.Table]]:
    """Return rows of a table with this schema as `write_files` takes them; a column that they lack is null."""
    has_column = {*rows.column_names}
    columns = [
        rows.column(field.name).cast(field.type) if field.name in has_column else pa.nulls(rows.num_rows, field.type)
        for field in schema
    ]
    whole = pa.table(columns, schema.names)
    if "_belief" not in schema.names:
        return [(None, whole)]
    beliefs, bare = whole.column("_belief"), whole.drop_columns(["_belief"])
    return [(belief, bare.filter(pc.equal(beliefs, belief))) for belief in beliefs.unique().to_pylist()]


def is_plain(delta_table: DeltaTable) -> bool:
    """Return whether a table can be written to without Spark: rows need only its columns, no other feature of Delta."""
    # An adopted table has the column, but no partitions by it: what we write by partition would have no belief there.
    beliefs = [field.name for field in delta_table.schema().fields if field.name == "_belief"]
    metadata = delta_table.metadata()
    is_ours = metadata.partition_columns == beliefs and tables.STATISTICS in metadata.configuration
    return is_ours and has_known_features(delta_table)


def has_known_features(delta_table: DeltaTable) -> bool:
    """Return whether a table has only features of Delta that this process can write by, and no rule for its columns."""
    protocol = delta_table.protocol()
    version, features = protocol.min_writer_version, {*(protocol.writer_features or ())}
    known = version <= _PLAIN_VERSION or (version >= _FEATURES_VERSION and features <= _KNOWN_FEATURES)
    promised = any(name.startswith("delta.") for field in delta_table.schema().fields for name in field.metadata)
    if "deletionVectors" in features and not tables.marks_rows(delta_table):
        return False  # its files may have vectors, and get none any more
    return known and not promised


_PLAIN_VERSION, _FEATURES_VERSION = 2, 7
_KNOWN_FEATURES = {"appendOnly", "invariants", "timestampNtz", "deletionVectors"}
"""`table_creation.ensure_table` makes tables of writer version 2, or 7, which names its features; those between check,
generate or map columns.
"""


def format_statistics(metadata: pq.FileMetaData, columns: Sequence[str]) -> str:
    """Return Delta's statistics of a file as JSON: the row count and, of these columns, minimum, maximum and nulls.

    A column without bounds in the file's own footer (a very long text, say) has the number of nulls alone.
    """
    least: dict[str, JsonValue] = {}
    most: dict[str, JsonValue] = {}
    nulls: dict[str, int] = {}
    numbers = {metadata.schema.column(n).path: n for n in range(metadata.num_columns)}
    for name in (name for name in columns if name in numbers):
        groups = [metadata.row_group(g).column(numbers[name]).statistics for g in range(metadata.num_row_groups)]
        if any(group is None or not group.has_null_count for group in groups):
            continue
        nulls[name] = sum(group.null_count for group in groups)
        low, high = _find_bounds([group for group in groups if group.num_values])
        if low is not None and high is not None:
            least[name], most[name] = low, high
    statistics = {"numRecords": metadata.num_rows, "minValues": least, "maxValues": most, "nullCount": nulls}
    # Not escaped: delta-rs misreads some of the surrogate pairs that JSON would escape characters to.
    return json.dumps(statistics, ensure_ascii=False)


def _find_bounds(groups: Sequence[pq.Statistics]) -> tuple[JsonValue, JsonValue]:
    """Return the least and greatest value of row groups as Delta's JSON has them; None if they have none.

    None also for moments after the year 9999, which Python does not have.
    """
    if not groups or not all(group.has_min_max for group in groups):
        return None, None
    try:
        return _format_bound(min(group.min for group in groups)), _format_bound(max(group.max for group in groups))
    except OverflowError:
        return None, None


def _format_bound(value: ColumnValue) -> JsonValue:
    """Return a bound as Delta's JSON has it; None if JSON would not have it exactly.

    For doubles Parquet leaves out NaN, which Spark takes for the largest one.
    """
    match value:
        case datetime():
            return value.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
        case date():
            return value.isoformat()
        case Decimal():
            return float(value) if len(value.as_tuple().digits) <= sys.float_info.dig else None
        case bool() | int() | str():
            return value
    return None
