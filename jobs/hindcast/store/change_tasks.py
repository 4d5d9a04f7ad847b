"""Spark's tasks that write the rows of a change to files, and find and end the rows that it closes (closing.py)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from datetime import datetime

import numpy as np
import pyarrow as pa
from deltalake import DeltaTable
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql.pandas.types import to_arrow_schema

from hindcast.common import session
from hindcast.common.spark_workers import map_in_workers
from hindcast.contract.shapes import PERIODS
from hindcast.store import closing, files
from hindcast.store.closing import ClosingResult
from hindcast.store.files import DataFile, TableFile
from hindcast.store.tables import Table
from hindcast.store.task_rows import TaskRows, map_rows

_REPORT_SCHEMA = "path string, belief string, size bigint, rows bigint, statistics string, closed binary"
"""A row for each file: of one that a task wrote `DataFile`, of one with closed rows its path and their numbers."""

_BYTES_PER_TASK = 128 << 20
"""So many bytes of files a task looks through for the rows to close."""


def can_write(rows: DataFrame | TaskRows, delta_table: DeltaTable) -> bool:
    """Return whether a table takes rows with the columns and types of these from Arrow.

    If not, only Spark can write to it: it has features or columns that we do not write, and whose rules Delta enforces.
    """
    if not files.is_plain(delta_table) or set(rows.columns) - {field.name for field in delta_table.schema().fields}:
        return False
    try:
        files.split_rows(
            to_arrow_schema(rows.schema, timezone="UTC").empty_table(), pa.schema(delta_table.schema().to_arrow())
        )
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, TypeError):
        return False
    return True


def write_rows(rows: DataFrame | TaskRows, table: Table, delta_table: DeltaTable) -> list[DataFile]:
    """Write rows of a table to files of it, which nobody sees yet, and return these.

    A file has rows that are true for a time in the order of their starts, and others in the order in which they come.
    """
    uri, by = delta_table.table_uri, PERIODS.get(table.kind, ())[:1]
    schema = pa.schema(delta_table.schema().to_arrow())

    def map_batches(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for part in _collect_batches(batches):
            parts = files.split_rows(part, schema)
            ordered = ((belief, one.sort_by(by[0]) if by else one) for belief, one in parts)
            yield _report([asdict(file) for file in files.write_files(DeltaTable(uri), ordered)])

    return _read_files(map_rows(rows, map_batches, _REPORT_SCHEMA).collect())


def _collect_batches(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.Table]:
    """Yield the rows of batches as tables of about as many rows as a file has, or of as many bytes as memory takes."""
    some: list[pa.RecordBatch] = []
    for batch in batches:
        some.append(batch)
        part = pa.Table.from_batches(some)
        if part.num_rows >= files.ROWS_PER_FILE or part.nbytes >= files.SMALL_BYTES:
            yield part
            some = []
    if some:
        yield pa.Table.from_batches(some)


def close_rows(
    spark: SparkSession,
    delta_table: DeltaTable,
    table: Table,
    close: pa.Table,
    known_at: datetime,
    candidates: Sequence[TableFile],
) -> ClosingResult:
    """Do what `closing.write_closed_rows` does, in tasks that share the files."""
    uri, version = delta_table.table_uri, delta_table.version()
    count = max(sum(file.size for file in candidates) // _BYTES_PER_TASK, session.count_cores(spark))
    largest_first = sorted(candidates, key=lambda file: -file.size)
    shares = [largest_first[number::count] for number in range(count)]

    def map_batches(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for number in (number for batch in batches for number in batch.column(0).to_pylist()):
            opened = DeltaTable(uri, version=version)
            found = closing.write_closed_rows(opened, table, close, known_at, shares[number])
            yield _report([{"path": path, "closed": numbers.tobytes()} for path, numbers in found.numbers.items()])
            yield _report([asdict(file) for file in found.written])

    reports = map_in_workers(spark.range(0, count, 1, count), map_batches, _REPORT_SCHEMA).collect()
    numbers = {row["path"]: np.frombuffer(row["closed"], np.uint64) for row in reports if row["closed"] is not None}
    return ClosingResult(numbers, _read_files([row for row in reports if row["closed"] is None]))


def _report(rows: Sequence[Mapping[str, object]]) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist(list(rows), _REPORT_ARROW_SCHEMA)


def _read_files(reports: Sequence[Row]) -> list[DataFile]:
    return [DataFile(*(row[name] for name in _FILE_FIELDS)) for row in reports]


_FILE_FIELDS = tuple(DataFile.__dataclass_fields__)
_ARROW_TYPES = {"string": pa.string(), "bigint": pa.int64(), "binary": pa.binary()}
_REPORT_ARROW_SCHEMA = pa.schema(
    [(name, _ARROW_TYPES[kind]) for name, kind in (column.split() for column in _REPORT_SCHEMA.split(", "))]
)
