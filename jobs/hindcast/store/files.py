"""Files of a Delta table that Arrow writes: their rows, and their statistics in Delta's log."""

from __future__ import annotations

import json
import sys
import uuid
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime
from decimal import Decimal
from functools import reduce
from operator import add
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from deltalake import DeltaTable

from hindcast.common.column_values import ColumnValue
from hindcast.common.json_values import JsonValue
from hindcast.common.session import FEW_ROWS
from hindcast.store import arrow_reader, tables

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


def write_files(delta_table: DeltaTable, parts: Iterable[tuple[str | None, pa.Table]]) -> Iterator[DataFile]:
    """Write rows to files beside those of a table, and yield each; no reader sees them until a commit adds them.

    `parts`: rows with all columns but the partition's, and their `_belief`; None where a table has none. The commit is
    `delta_rs_writer.add_files`.
    """
    filesystem = arrow_reader.open_filesystem(delta_table)
    columns = delta_table.metadata().configuration.get(tables.STATISTICS, "")
    for belief, rows in parts:
        folder = f"_belief={belief}/" if belief else ""
        if rows.num_rows and folder:
            filesystem.create_dir(folder)
        for start in range(0, rows.num_rows, ROWS_PER_FILE):
            path = f"{folder}part-{uuid.uuid4()}.snappy.parquet"
            slice_ = rows.slice(start, ROWS_PER_FILE)
            collected: list[pq.FileMetaData] = []
            with filesystem.open_output_stream(path) as sink, _open_writer(sink, slice_.schema, collected) as writer:
                writer.write_table(slice_, row_group_size=ROWS_PER_GROUP)
            size = filesystem.get_file_info(path).size
            yield DataFile(path, belief, size, slice_.num_rows, format_statistics(collected[0], columns.split(",")))


def _open_writer(sink: pa.NativeFile, schema: pa.Schema, collected: list[pq.FileMetaData]) -> pq.ParquetWriter:
    own = [field.name for field in schema if not pa.types.is_timestamp(field.type) and field.name != "_offset"]
    return pq.ParquetWriter(
        sink, schema, compression="snappy", use_dictionary=own, store_schema=False, metadata_collector=collected
    )


def text_size_column(rows: DataFrame) -> Column:
    """Return an aggregate: the approximate number of bytes in the texts and binary values of rows."""
    from pyspark.sql import functions as F

    sizes = [F.lit(0)]
    for field in rows.schema.fields:
        column = F.col(f"`{field.name}`")
        match field.dataType.typeName():
            case "string" | "binary":
                sizes.append(F.octet_length(column))
            case "array" | "map":
                sizes.append(F.when(F.size(column) > 0, F.octet_length(F.to_json(column))))
            case "struct":
                sizes.append(F.octet_length(F.to_json(column)))
    return F.sum(reduce(add, (F.coalesce(size, F.lit(0)).cast("bigint") for size in sizes)))


def is_small(count: int, bytes_: int | None = None) -> bool:
    """Return whether rows are so few, and so small (None: of any size), that this process can write them."""
    return count <= FEW_ROWS and (bytes_ or 0) <= SMALL_BYTES


SMALL_BYTES = 64 << 20


def collect_rows(rows: DataFrame, delta_table: DeltaTable) -> list[tuple[str | None, pa.Table]] | None:
    """Return a few rows of a table, computed by Spark, as `write_files` takes them.

    None if only Spark can write to the table: it has features or columns that we do not write, and whose rules Delta
    enforces.
    """
    names, partitions = [field.name for field in delta_table.schema().fields], delta_table.metadata().partition_columns
    if not is_plain(delta_table) or partitions not in ([], ["_belief"]) or set(rows.columns) - {*names}:
        return None
    collected, columns = rows.toArrow(), []
    try:
        for field in pa.schema(delta_table.schema().to_arrow()):
            has_column = field.name in collected.column_names
            column = collected.column(field.name) if has_column else pa.nulls(collected.num_rows, field.type)
            columns.append(column.cast(field.type))
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        return None
    whole = pa.table(columns, names)
    if not partitions:
        return [(None, whole)]
    beliefs, bare = whole.column("_belief"), whole.drop_columns(["_belief"])
    return [(belief, bare.filter(pc.equal(beliefs, belief))) for belief in beliefs.unique().to_pylist()]


def is_plain(delta_table: DeltaTable) -> bool:
    """Return whether the rows of a table need only its columns, and no other feature of Delta."""
    protocol, configuration = delta_table.protocol(), delta_table.metadata().configuration
    version, features = protocol.min_writer_version, {*(protocol.writer_features or ())}
    known = version <= _PLAIN_VERSION or (version >= _FEATURES_VERSION and features <= _KNOWN_FEATURES)
    promised = any(name.startswith("delta.") for field in delta_table.schema().fields for name in field.metadata)
    return known and tables.STATISTICS in configuration and not promised


_PLAIN_VERSION, _FEATURES_VERSION, _KNOWN_FEATURES = 2, 7, {"appendOnly", "invariants", "timestampNtz"}
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
