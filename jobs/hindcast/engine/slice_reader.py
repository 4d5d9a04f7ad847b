"""The rows of an input that a task needs, as an Arrow table in the order of their times."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from functools import partial, reduce
from operator import and_, or_
from typing import TypeAlias

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable

from hindcast.bitemporal.predicates import LAST_MOMENT, ColumnBound, parse_micros
from hindcast.common.errors import HindcastError
from hindcast.engine import arrow_expressions, integer_encoding
from hindcast.engine.increment_rows import Among
from hindcast.engine.spec import JoinSpec, KernelInput, TimeSlice
from hindcast.engine.sweeps import FOREVER
from hindcast.store import arrow_reader, duckdb_reader, file_listing
from hindcast.store.files import SMALL_BYTES
from hindcast.store.tables import ARROW_TIMESTAMP

MAX_ROWS, MAX_BYTES = 20_000_000, 2 << 30
"""So many rows, and so many bytes of them, a task takes of an input at most; it has them in memory."""

MAX_ROWS_HERE, MAX_BYTES_HERE = 100_000, SMALL_BYTES
"""The same of this process, where it does a task itself."""

OpenedTables: TypeAlias = dict[tuple[str, int], DeltaTable]
"""Tables by their places and versions."""


class TooManyRowsError(HindcastError):
    """A task would need more than `MAX_ROWS` rows or `MAX_BYTES` bytes in memory, or this process more than little."""


def read_sides(form: JoinSpec, span: TimeSlice) -> list[pa.Table]:
    """Return the rows of a kernel's inputs that its operator needs for a slice (`operators.join_sides`)."""
    if form.operator == "stream_stream":
        before, after = form.reach
        # rule: of two streams a slice also has the events near those in it
        lefts = widen_slice(span, after, before) if form.how == "outer" else span
        return [read_slice(form.sides[0], lefts), read_slice(form.sides[1], widen_slice(span, before, after))]
    sides = [read_slice(side, span) for side in form.sides]
    if form.operator != "table_table" or form.how == "inner" or span.end is None:
        return sides
    later = form.sides[:0:-1] if form.how == "left" else reversed(form.sides)
    return [*sides, *(read_starts_after(side, span.end) for side in later)]


def read_slice(side: KernelInput, span: TimeSlice) -> pa.Table:
    """Return the current rows of a slice: the events in it, or the versions valid in it or up to its start.

    TooManyRowsError if there are more than `MAX_ROWS`, or if they are larger than `MAX_BYTES`.
    """
    return _read_current_rows(side, _slice_bounds(side, span), _slice_conditions(side, span))


def read_beginning(side: KernelInput, span: TimeSlice) -> pa.Table:
    """Return the current rows that begin in a slice: of versions not those that last into it; as `read_slice` else."""
    bounds = [ColumnBound(side.periods[0], least=span.start, most=span.end)]
    return _read_current_rows(side, bounds, _beginning_conditions(side, span))


def widen_slice(span: TimeSlice, before: int, after: int) -> TimeSlice:
    """Return a slice that begins and ends so many microseconds earlier and later; without a bound that Python lacks."""

    def move(moment: datetime | None, micros: int) -> datetime | None:
        try:
            return moment and moment + timedelta(microseconds=micros)
        except OverflowError:
            return None

    return TimeSlice(move(span.start, -before), move(span.end, after))


def read_current(side: KernelInput) -> pa.Table:
    """Return all current rows: its key, columns and periods. TooManyRowsError as for `read_slice`."""
    rows = _read_current_rows(side, [], [])
    columns = list(dict.fromkeys((*side.key, *side.columns, *side.periods)))
    return integer_encoding.decode_dictionaries(rows.select(columns), columns)


def read_starts_after(side: KernelInput, end: datetime) -> pa.Table:
    """Return keys and periods of the versions that start at `end` or later, in the order of their starts."""
    start = side.periods[0]
    is_later = pc.field(start) >= _timestamp_scalar(end)
    return _read_current_rows(replace(side, columns=()), [ColumnBound(start, least=end)], [is_later])


def read_near(side: KernelInput, span: tuple[int, int], *among: Among, here: OpenedTables | None = None) -> pa.Table:
    """Return the current rows that touch a span of time, in microseconds, if only at a single moment.

    Given some `among`, only rows that are among one of these (increment_rows.py), as far as their file's times tell.
    `here`: the tables that this process, which does the task itself, has opened; then TooManyRowsError already if it
    would read many rows, or open large files.
    """
    low, high = parse_micros(span[0]), parse_micros(span[1] + 1) if span[1] < FOREVER else None
    touching = TimeSlice(low, high)
    conditions = _slice_conditions(side, touching)
    stored = [some.select_columns(set(some.columns) - side.computed.keys()) for some in among]
    return _read_current_rows(side, _slice_bounds(side, touching), conditions, stored, here=here)


def _find_conditions(
    side: KernelInput, found: DeltaTable, files: Iterable[str], where: pc.Expression, among: Sequence[Among]
) -> dict[str, Callable[[], pc.Expression]]:
    """Return what makes the condition of the rows of each file that can be among some, by path; no other file has any.

    The conditions of many files and keys together would take much memory.
    """
    spans = {}
    for path, (first, last) in duckdb_reader.read_time_spans(found, side.periods[0], side.periods[-1]).items():
        spans[path] = -FOREVER if first is None else first, FOREVER if last is None else last
    near = [path for path in files if any(some.has_values(*spans[path]) for some in among)]
    return {path: partial(_build_condition, where, among, spans[path]) for path in near}


def _build_condition(where: pc.Expression, among: Sequence[Among], span: tuple[int, int]) -> pc.Expression:
    """Return the condition of rows that meet another one and are among some in a span; null is a value too."""
    values = [some for some in (some.list_values(*span) for some in among) if some is not None]
    if not all(values):
        return where
    parts = (reduce(and_, (pc.field(name).isin(own) for name, own in some)) for some in values)
    return where & reduce(or_, parts)


def read_changes(side: KernelInput, seen: datetime, *, here: OpenedTables | None = None) -> tuple[pa.Table, pa.Table]:
    """Return the rows closed and those opened after the known-at `seen`; not those both opened and closed since."""
    began, ended, known = pc.field("systemFrom"), pc.field("systemTo"), _timestamp_scalar(seen)
    # rule: what was opened since is current now, what was closed since was current then
    opened = _read_current_rows(side, [ColumnBound("systemFrom", least=seen)], [began > known], here=here)
    bounds = [ColumnBound("systemFrom", most=seen), ColumnBound("systemTo", least=seen, most=side.as_of)]
    until = [ended <= _timestamp_scalar(side.as_of)] if side.as_of is not None else []
    return _read_rows(side, bounds, reduce(and_, [began <= known, ended > known, *until]), here=here), opened


def _slice_bounds(side: KernelInput, span: TimeSlice) -> list[ColumnBound]:
    return [
        ColumnBound(side.periods[0], most=span.end),
        ColumnBound(side.periods[-1], least=span.start, or_null=True),
    ]


def _read_current_rows(
    side: KernelInput,
    bounds: list[ColumnBound],
    conditions: list[pc.Expression],
    among: Sequence[Among] = (),
    *,
    here: OpenedTables | None = None,
) -> pa.Table:
    return _read_rows(side, [*_current_bounds(side), *bounds], _current_condition(side, conditions), among, here=here)


def _open_input(side: KernelInput, here: OpenedTables | None) -> DeltaTable:
    if here is None:
        return DeltaTable(side.uri, version=side.version)
    if (found := here.get((side.uri, side.version))) is None:
        found = here[side.uri, side.version] = DeltaTable(side.uri, version=side.version)
    return found


def _read_rows(
    side: KernelInput,
    bounds: list[ColumnBound],
    where: pc.Expression,
    among: Sequence[Among] = (),
    *,
    here: OpenedTables | None = None,
) -> pa.Table:
    found = _open_input(side, here)
    read = set().union(*map(arrow_expressions.list_columns, side.computed.values()))
    system = {bound.column for bound in bounds}.intersection(("systemFrom", "systemTo"))
    wanted = {*side.key, *side.columns, *side.periods, *system, *read}.difference(side.computed)
    schema = pa.schema(found.schema().to_arrow())
    texts = {name for name in wanted.intersection(side.key) if pa.types.is_string(schema.field(name).type)}
    files = duckdb_reader.find_candidate_files(found, bounds)
    conditions = _find_conditions(side, found, files, where, among) if among else None
    files = files if conditions is None else list(conditions)
    if here is not None and not file_listing.are_small(found, files):
        raise TooManyRowsError("the files to read are larger than this process opens", where=side.uri)
    reader = arrow_reader.read_rows(found, files, wanted, conditions or where, texts)
    batches = [batch for batch in limit_batches(reader, side.uri, here=here) if batch.num_rows]
    start = side.periods[0]
    batches.sort(key=lambda batch: batch.column(start)[0].value)  # most files have their own times
    rows = pa.Table.from_batches(batches, reader.schema).drop_columns([*system])
    return add_computed_columns(side, integer_encoding.sort_by_time(rows, start))


def add_computed_columns(side: KernelInput, rows: pa.Table) -> pa.Table:
    """Return rows of an input with the columns that are computed; EvaluationError if one has no value in a row."""
    for name, column in side.computed.items():
        rows = rows.append_column(name, arrow_expressions.evaluate_column(column, rows))
    return rows


def limit_batches(
    batches: Iterable[pa.RecordBatch], where: str, *, here: OpenedTables | None = None
) -> Iterator[pa.RecordBatch]:
    """Yield batches of rows; TooManyRowsError if there are more rows than `MAX_ROWS`, or more bytes than `MAX_BYTES`.

    `where`: the table that the error names. `here`: as in `read_near`.
    """
    count = size = 0
    most_rows, most_bytes = (MAX_ROWS, MAX_BYTES) if here is None else (MAX_ROWS_HERE, MAX_BYTES_HERE)
    for batch in batches:
        count, size = count + batch.num_rows, size + batch.nbytes
        if count > most_rows or size > most_bytes:
            raise TooManyRowsError(f"a task has {count:,} rows of {size:,} bytes, or more", where=where)
        yield batch


def _current_bounds(side: KernelInput) -> list[ColumnBound]:
    """Return the bounds by which files without a current row are skipped (`duckdb_reader.find_candidate_files`)."""
    bounds = [ColumnBound("systemTo", least=side.as_of or LAST_MOMENT, or_null=True)]
    return bounds if side.as_of is None else [*bounds, ColumnBound("systemFrom", most=side.as_of)]


def _current_condition(side: KernelInput, conditions: list[pc.Expression]) -> pc.Expression:
    """Return the condition of rows that are current where the side is read, and meet the others."""
    ended = pc.field("systemTo")
    if side.as_of is None:
        return reduce(and_, [ended.is_null(), *conditions])
    begun = pc.field("systemFrom") <= _timestamp_scalar(side.as_of)
    return reduce(and_, [begun, ended.is_null() | (ended > _timestamp_scalar(side.as_of)), *conditions])


def _slice_conditions(side: KernelInput, span: TimeSlice) -> list[pc.Expression]:
    """Return the conditions of the rows of a slice; of versions also those that end where it starts."""
    if side.kind == "events":
        return _beginning_conditions(side, span)
    conditions, last = _beginning_conditions(side, span._replace(start=None)), pc.field(side.periods[-1])
    if span.start is not None:
        # rule: a slice has what began before it and lasts, and what ends where it starts
        conditions.append(last.is_null() | (last >= _timestamp_scalar(span.start)))
    return conditions


def _beginning_conditions(side: KernelInput, span: TimeSlice) -> list[pc.Expression]:
    """Return the conditions of the rows that begin in a slice."""
    first, conditions = pc.field(side.periods[0]), []
    if span.end is not None:
        # rule: an event at a cut is not in the slice before
        conditions.append(first < _timestamp_scalar(span.end))
    if span.start is not None:
        # rule: an event at a cut is in the slice after
        conditions.append(first >= _timestamp_scalar(span.start))
    return conditions


def _timestamp_scalar(at: datetime) -> pa.Scalar:
    return pa.scalar(at, ARROW_TIMESTAMP)
