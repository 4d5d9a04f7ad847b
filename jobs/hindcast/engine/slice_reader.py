"""The rows of an input that a task needs, as an Arrow table in the order of their times."""

from __future__ import annotations

from datetime import datetime
from functools import reduce
from operator import and_

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable

from hindcast.bitemporal.predicates import LAST_MOMENT, ColumnBound
from hindcast.common.errors import HindcastError
from hindcast.engine import integer_encoding
from hindcast.engine.spec import KernelInput, TimeSlice
from hindcast.store import arrow_reader, duckdb_reader
from hindcast.store.tables import ARROW_TIMESTAMP

MAX_ROWS, MAX_BYTES = 20_000_000, 2 << 30
"""So many rows, and so many bytes of them, a task takes of an input at most; it has them in memory."""


class TooManyRowsError(HindcastError):
    """A task would need more than `MAX_ROWS` rows or `MAX_BYTES` bytes in memory."""


def read_slice(side: KernelInput, span: TimeSlice) -> pa.Table:
    """Return the current rows of a slice: the events in it, or the versions valid at some moment of it.

    TooManyRowsError if there are more than `MAX_ROWS`, or if they are larger than `MAX_BYTES`.
    """
    found = DeltaTable(side.uri, version=side.version)
    wanted = {*side.key, *side.columns, *side.periods, *_SYSTEM}
    schema = pa.schema(found.schema().to_arrow())
    texts = {name for name in side.key if pa.types.is_string(schema.field(name).type)}
    files = duckdb_reader.find_candidate_files(found, _file_bounds(side, span))
    batches: list[pa.RecordBatch] = []
    count = size = 0
    reader = arrow_reader.read_rows(found, files, wanted, _row_condition(side, span), texts)
    for batch in reader:
        batches += [batch] if batch.num_rows else []
        count, size = count + batch.num_rows, size + batch.nbytes
        if count > MAX_ROWS or size > MAX_BYTES:
            raise TooManyRowsError(f"a slice of time has {count:,} rows of {size:,} bytes, or more", where=side.uri)
    start = side.periods[0]
    batches.sort(key=lambda batch: batch.column(start)[0].value)  # most files have their own times
    return _sort_by_time(pa.Table.from_batches(batches, reader.schema), start)


_SYSTEM = ("systemFrom", "systemTo")


def _file_bounds(side: KernelInput, span: TimeSlice) -> list[ColumnBound]:
    """Return the bounds by which files are skipped (`duckdb_reader.find_candidate_files`)."""
    bounds = [ColumnBound("systemTo", least=side.as_of or LAST_MOMENT, or_null=True)]
    if side.as_of is not None:
        bounds.append(ColumnBound("systemFrom", most=side.as_of))
    first, last = side.periods[0], side.periods[-1]
    return [*bounds, ColumnBound(first, most=span.end), ColumnBound(last, least=span.start, or_null=True)]


def _row_condition(side: KernelInput, span: TimeSlice) -> pc.Expression:
    """Return the condition of the rows of a slice."""
    ended = pc.field("systemTo")
    conditions = [ended.is_null()]
    if side.as_of is not None:
        conditions = [
            pc.field("systemFrom") <= _timestamp_scalar(side.as_of),
            ended.is_null() | (ended > _timestamp_scalar(side.as_of)),
        ]
    first, last = side.periods[0], side.periods[-1]
    if span.end is not None:
        # rule: an event at a cut is not in the slice before
        conditions.append(pc.field(first) < _timestamp_scalar(span.end))
    if span.start is not None and side.kind == "events":
        # rule: an event at a cut is in the slice after
        conditions.append(pc.field(first) >= _timestamp_scalar(span.start))
    elif span.start is not None:
        # rule: a slice has what began before it and lasts
        conditions.append(pc.field(last).is_null() | (pc.field(last) > _timestamp_scalar(span.start)))
    return reduce(and_, conditions)


def _timestamp_scalar(at: datetime) -> pa.Scalar:
    return pa.scalar(at, ARROW_TIMESTAMP)


def _sort_by_time(rows: pa.Table, column: str) -> pa.Table:
    at = integer_encoding.encode_timestamps(rows.column(column))
    if np.all(at[1:] >= at[:-1]):  # rule: files out of order are sorted
        return rows
    return rows.unify_dictionaries().combine_chunks().take(pa.array(np.argsort(at, kind="stable")))
