"""Files of a Delta table that Arrow writes: so many rows in each, and what Delta's log tells of a file."""

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
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from deltalake import DeltaTable

from hindcast.delta import tables, widened
from hindcast.session import FEW

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

PER_FILE, PER_GROUP = 250_000, 125_000
"""So many rows are in a file, and in a row group of it, at most."""


@dataclass(frozen=True)
class Written:
    """A file that no commit has made visible yet: its path in the table, partition and statistics (Delta's JSON).

    `belief`: None in a table that has no `_belief`.
    """

    path: str
    belief: str | None
    size: int
    rows: int
    statistics: str


def write(found: DeltaTable, parts: Iterable[tuple[str | None, pa.Table]]) -> Iterator[Written]:
    """Writes rows in files beside those of a table: nobody's until a commit adds them (`direct.add`).

    `parts`: rows with all columns but the partition's, and the `_belief` that they have; None where a table has none.
    """
    place = widened.files(found)
    told = found.metadata().configuration.get(tables.STATISTICS, "")
    for belief, rows in parts:
        folder = f"_belief={belief}/" if belief else ""
        if rows.num_rows and folder:
            place.create_dir(folder)
        for start in range(0, rows.num_rows, PER_FILE):
            path = f"{folder}part-{uuid.uuid4()}.snappy.parquet"
            some = rows.slice(start, PER_FILE)
            collected: list[Any] = []
            with place.open_output_stream(path) as sink, _writer(sink, some.schema, collected) as writer:
                writer.write_table(some, row_group_size=PER_GROUP)
            size = place.get_file_info(path).size
            yield Written(path, belief, size, some.num_rows, statistics(collected[0], told.split(",")))


def _writer(sink: Any, schema: pa.Schema, collected: list[Any]) -> pq.ParquetWriter:
    own = [field.name for field in schema if not pa.types.is_timestamp(field.type) and field.name != "_offset"]
    return pq.ParquetWriter(
        sink, schema, compression="snappy", use_dictionary=own, store_schema=False, metadata_collector=collected
    )


def weight(rows: DataFrame) -> Column:
    """An aggregate: how many bytes the texts and the binary values of rows have, about."""
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


def few(count: int, bytes_: int | None = None) -> bool:
    """Whether rows are so few, and weigh so little (None: whatever they weigh), that this process can write them."""
    return count <= FEW and (bytes_ or 0) <= LIGHT


LIGHT = 64 << 20


def of_rows(rows: DataFrame, found: DeltaTable) -> list[tuple[str | None, pa.Table]] | None:
    """Has Spark compute a few rows of a table, and gives them as `write` takes them.

    None where only Spark can write into the table: it has features or columns that we do not make, and Delta sees to
    what they promise.
    """
    names, partitions = [field.name for field in found.schema().fields], found.metadata().partition_columns
    if not _plain(found) or partitions not in ([], ["_belief"]) or set(rows.columns) - {*names}:
        return None
    brought, columns = rows.toArrow(), []
    try:
        for field in pa.schema(found.schema().to_arrow()):
            there = field.name in brought.column_names
            column = brought.column(field.name) if there else pa.nulls(brought.num_rows, field.type)
            columns.append(column.cast(field.type))
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        return None
    whole = pa.table(columns, names)
    if not partitions:
        return [(None, whole)]
    beliefs, bare = whole.column("_belief"), whole.drop_columns(["_belief"])
    return [(it, bare.filter(pc.equal(beliefs, it))) for it in beliefs.unique().to_pylist()]


def _plain(found: DeltaTable) -> bool:
    """Whether nothing more is promised of the rows of a table than their columns."""
    told, configuration = found.protocol(), found.metadata().configuration
    version, features = told.min_writer_version, {*(told.writer_features or ())}
    known = version <= _PLAIN or (version >= _NAMED and features <= _KNOWN)
    promised = any(name.startswith("delta.") for field in found.schema().fields for name in field.metadata)
    return known and tables.STATISTICS in configuration and not promised


_PLAIN, _NAMED, _KNOWN = 2, 7, {"appendOnly", "invariants", "timestampNtz"}
"""Tables that `making.ensure` makes have writer version 2, or 7, which names its features; versions between them check,
generate or map columns.
"""


def statistics(metadata: Any, columns: Sequence[str]) -> str:
    """What Delta's log tells of a file: how many rows it has and, of these columns, least, most and nulls.

    Of a column without bounds in the file's own footer (a very long text, say) it tells the nulls alone.
    """
    least: dict[str, Any] = {}
    most: dict[str, Any] = {}
    nulls: dict[str, int] = {}
    numbers = {metadata.schema.column(n).path: n for n in range(metadata.num_columns)}
    for name in (name for name in columns if name in numbers):
        groups = [metadata.row_group(g).column(numbers[name]).statistics for g in range(metadata.num_row_groups)]
        if any(it is None or not it.has_null_count for it in groups):
            continue
        nulls[name] = sum(it.null_count for it in groups)
        low, high = _bounds([it for it in groups if it.num_values])
        if low is not None and high is not None:
            least[name], most[name] = low, high
    found = {"numRecords": metadata.num_rows, "minValues": least, "maxValues": most, "nullCount": nulls}
    # Characters as they are: delta-rs takes some of the pairs that JSON can escape them to for other characters.
    return json.dumps(found, ensure_ascii=False)


def _bounds(groups: Sequence[Any]) -> tuple[Any, Any]:
    """The least and the most value of row groups that have some, as Delta's JSON has them; None where they tell none.

    Nor do we of moments after the year 9999, which Python has not.
    """
    if not groups or not all(it.has_min_max for it in groups):
        return None, None
    try:
        return _told(min(it.min for it in groups)), _told(max(it.max for it in groups))
    except OverflowError:
        return None, None


def _told(value: Any) -> Any:
    """A bound as Delta's JSON has it; None for one that it would not have exactly.

    Of doubles Parquet leaves out NaN, which Spark takes for the largest one.
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
