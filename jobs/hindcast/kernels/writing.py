"""Files of a Delta table: rows in the order of their times, so many in each, and what Delta's log tells of a file."""

from __future__ import annotations

import json
import sys
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from deltalake import DeltaTable

from hindcast import tables, widened
from hindcast.kernels.form import MOMENT, Form

PER_FILE, PER_GROUP = 250_000, 125_000
"""So many rows are in a file, and in a row group of it, at most."""


@dataclass(frozen=True)
class Written:
    """A file that no commit has made visible yet: its path in the table, partition and statistics (Delta's JSON)."""

    path: str
    belief: str
    size: int
    rows: int
    statistics: str


def write(form: Form, rows: pa.Table) -> Iterator[Written]:
    """Writes rows in files of their `_belief`, beside those of the table: nobody's until a commit adds them."""
    found = DeltaTable(form.uri)
    place = widened.files(found)
    told = found.metadata().configuration.get(tables.STATISTICS, "")
    whole = _completed(form, rows)
    for belief, part in _by_belief(form, whole):
        if part.num_rows:
            place.create_dir(f"_belief={belief}")
        for start in range(0, part.num_rows, PER_FILE):
            path = f"_belief={belief}/part-{uuid.uuid4()}.snappy.parquet"
            some = part.slice(start, PER_FILE)
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


def _completed(form: Form, rows: pa.Table) -> pa.Table:
    """All columns of the files in their order and types; strings may be dictionaries."""
    known = pa.scalar(form.known_at, MOMENT)
    columns = []
    for field in form.types:
        match field.name:
            case "systemFrom":
                columns.append(pa.repeat(known, rows.num_rows))
            case "systemTo":
                columns.append(pa.nulls(rows.num_rows, known.type))
            case name:
                column = rows.column(name)
                columns.append(column if pa.types.is_dictionary(column.type) else column.cast(field.type))
    return pa.table(columns, form.types.names)


def _by_belief(form: Form, rows: pa.Table) -> list[tuple[str, pa.Table]]:
    if form.kind != "versions":
        return [("past", rows)]
    is_open = pc.is_null(rows.column("validTo"))
    return [("open", rows.filter(is_open)), ("past", rows.filter(pc.invert(is_open)))]


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
