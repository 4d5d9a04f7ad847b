"""The rows of an input that a task needs, as an Arrow table in the order of their times."""

from __future__ import annotations

from datetime import datetime
from functools import reduce
from operator import and_

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable

from hindcast.delta import scan, widened
from hindcast.delta.tables import MOMENT
from hindcast.errors import HindcastError
from hindcast.kernels import numbers
from hindcast.kernels.form import Side, Span
from hindcast.questions import END, Bound

MOST, LARGEST = 20_000_000, 2 << 30
"""So many rows, and so many bytes of them, a task takes of an input at most; it has them in memory."""


class TooManyError(HindcastError):
    """A task would have to hold more than `MOST` rows, or more than `LARGEST` bytes."""


def rows(side: Side, span: Span) -> pa.Table:
    """The believed rows of a slice: events in it, versions that are valid at some moment of it.

    TooManyError where these are more than `MOST` or larger than `LARGEST`.
    """
    found = DeltaTable(side.uri, version=side.version)
    wanted = {*side.key, *side.columns, *side.periods, *_SYSTEM}
    schema = pa.schema(found.schema().to_arrow())
    texts = {name for name in side.key if pa.types.is_string(schema.field(name).type)}
    files = scan.holding(found, _bounds(side, span))
    batches: list[pa.RecordBatch] = []
    count = size = 0
    reader = widened.rows(found, files, wanted, _condition(side, span), texts)
    for batch in reader:
        batches += [batch] if batch.num_rows else []
        count, size = count + batch.num_rows, size + batch.nbytes
        if count > MOST or size > LARGEST:
            raise TooManyError(f"a slice of time has {count:,} rows of {size:,} bytes, or more", where=side.uri)
    start = side.periods[0]
    batches.sort(key=lambda batch: batch.column(start)[0].value)  # most files have their own times
    return _in_order(pa.Table.from_batches(batches, reader.schema), start)


_SYSTEM = ("systemFrom", "systemTo")


def _bounds(side: Side, span: Span) -> list[Bound]:
    """What passes over files (`scan.holding`)."""
    told = [Bound("systemTo", least=side.pin or END, or_null=True)]
    if side.pin is not None:
        told.append(Bound("systemFrom", most=side.pin))
    first, last = side.periods[0], side.periods[-1]
    return [*told, Bound(first, most=span.end), Bound(last, least=span.start, or_null=True)]


def _condition(side: Side, span: Span) -> pc.Expression:
    """The rows themselves."""
    ended = pc.field("systemTo")
    told = [ended.is_null()]
    if side.pin is not None:
        told = [pc.field("systemFrom") <= _moment(side.pin), ended.is_null() | (ended > _moment(side.pin))]
    first, last = side.periods[0], side.periods[-1]
    if span.end is not None:
        told.append(pc.field(first) < _moment(span.end))
    if span.start is not None and side.kind == "events":
        told.append(pc.field(first) >= _moment(span.start))
    elif span.start is not None:
        told.append(pc.field(last).is_null() | (pc.field(last) > _moment(span.start)))
    return reduce(and_, told)


def _moment(at: datetime) -> pa.Scalar:
    return pa.scalar(at, MOMENT)


def _in_order(rows: pa.Table, column: str) -> pa.Table:
    at = numbers.moments(rows.column(column))
    if np.all(at[1:] >= at[:-1]):
        return rows
    return rows.unify_dictionaries().combine_chunks().take(pa.array(np.argsort(at, kind="stable")))
