"""The tasks of a kernel: a slice of time from files of the inputs, or some of the groups, to files of the table."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterator
from dataclasses import asdict
from datetime import timedelta

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable

from hindcast.engine import arrow_expressions, operators, slice_reader, window_operator
from hindcast.engine.spec import SLICE, AggregateSpec, JoinSpec, KernelOutput, TimeSlice, WindowSpec
from hindcast.store import files
from hindcast.store.tables import ARROW_TIMESTAMP

REPORT_SCHEMA = (
    "path string, belief string, size bigint, rows bigint, statistics string, "
    "no_key bigint, no_value bigint, too_late bigint, reached string, refused string"
)
"""A row for each file that a task wrote; one without a path reports what was left out, or why the task `refused`.

`reached`: the latest event of each partition in microseconds, as JSON.
"""


def build_batch_mapper(form: JoinSpec, parts: list[TimeSlice]) -> BatchMapper:
    """Return a join as a function for Spark's mapInArrow, from the numbers of slices to reports of files.

    Of a join whose expressions Spark evaluates the function gives the joined rows instead, for `build_writer`.
    """

    def map_batches(given: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in given:
            for number in batch.column(0).to_pylist():
                yield from (join_slice if form.projection is None else write_slice)(form, parts[number])

    return map_batches


BatchMapper = Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]


def build_writer(output: KernelOutput) -> BatchMapper:
    """Return the second half of such a join for Spark's mapInArrow: from the view's rows to reports of files."""

    def map_batches(given: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        batches = [batch for batch in given if batch.num_rows]
        if batches:
            yield _report_batch([asdict(it) for it in _write_rows(output, pa.Table.from_batches(batches))])

    return map_batches


def build_aggregator(form: AggregateSpec) -> BatchMapper:
    """Return an aggregate as a function for Spark's mapInArrow: from all rows of some groups to reports of files."""

    def aggregate(rows: pa.Table) -> operators.KernelRows:
        return operators.aggregate_rows(form, rows)

    return lambda given: _aggregate_batches(given, form.output, aggregate)


def _aggregate_batches(
    given: Iterator[pa.RecordBatch], output: KernelOutput, aggregate: Callable[[pa.Table], operators.KernelRows]
) -> Iterator[pa.RecordBatch]:
    """Write the aggregate of all given rows, if there are any; yield a report of its files, or why it is refused."""
    try:
        batches = [batch for batch in slice_reader.limit_batches(given, output.uri) if batch.num_rows]
        if batches:
            yield _report_rows(output, aggregate(pa.Table.from_batches(batches).combine_chunks()))
    except _REFUSED as error:
        yield _report_batch([{"refused": str(error)}])


def build_event_reader(form: WindowSpec, parts: list[TimeSlice]) -> BatchMapper:
    """Return the first half of an aggregate in windows for Spark's mapInArrow: from numbers of slices to events.

    These are the events in the windows that start in the slice, with its number (`window_aggregation.read_schema`).
    """

    def map_batches(given: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in given:
            for number in batch.column(0).to_pylist():
                try:
                    own = _read_events(form, parts[number]).select(form.side.columns)
                    numbers = pa.repeat(pa.scalar(number, pa.int32()), own.num_rows)
                    yield from _list_plain_batches(own.append_column(SLICE, numbers))
                except _REFUSED as error:
                    raise RefusalError(str(error)) from error

    return map_batches


def _read_events(form: WindowSpec, span: TimeSlice) -> pa.Table:
    """Return the events in the windows that start in a slice."""
    return slice_reader.read_slice(form.side, widen_slice(span, form.size))


def build_window_writer(form: WindowSpec, parts: list[TimeSlice]) -> BatchMapper:
    """Return an aggregate in windows for Spark's mapInArrow, from numbers of slices to reports of files.

    Arrow evaluates its expressions.
    """

    def write_slice(span: TimeSlice) -> pa.RecordBatch:
        try:
            events = _read_events(form, span)
            if form.projection is not None:
                events = arrow_expressions.project_rows(form.projection, events)
            members = _decode_dictionaries(events, form.measures)
            return _report_rows(form.output, window_operator.aggregate_windows(form, span, members))
        except _REFUSED as error:
            return _report_batch([{"refused": str(error)}])

    def map_batches(given: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in given:
            yield from (write_slice(parts[number]) for number in batch.column(0).to_pylist())

    return map_batches


def widen_slice(span: TimeSlice, micros: int) -> TimeSlice:
    """Return a slice that ends so much later; without an end if Python has no such moment."""
    try:
        return span._replace(end=span.end and span.end + timedelta(microseconds=micros))
    except OverflowError:
        return span._replace(end=None)


def build_window_aggregator(form: WindowSpec, parts: list[TimeSlice]) -> BatchMapper:
    """Return the second half for Spark's mapInArrow: from the members of a slice's windows to reports of files."""

    def aggregate(members: pa.Table) -> operators.KernelRows:
        return window_operator.aggregate_windows(form, parts[members.column(SLICE)[0].as_py()], members)

    return lambda given: _aggregate_batches(given, form.output, aggregate)


def _report_rows(output: KernelOutput, found: operators.KernelRows) -> pa.RecordBatch:
    """Write the rows of an aggregate and report the files, and what was left out."""
    reached = None if found.reached is None else json.dumps(found.reached)
    left_out: Report = {"no_key": found.no_key, "no_value": found.no_value, "too_late": found.too_late}
    return _report_batch([{**left_out, "reached": reached}, *(asdict(it) for it in _write_rows(output, found.rows))])


Report = dict[str, str | int | None]


def write_slice(form: JoinSpec, span: TimeSlice) -> Iterator[pa.RecordBatch]:
    """Write the files of one slice of a join; yield a report of them, as rows of `REPORT_SCHEMA`."""
    try:
        rows = operators.join_sides(form, span, slice_reader.read_sides(form, span))
        if form.projection is not None:
            rows = arrow_expressions.project_rows(form.projection, rows)
    except _REFUSED as error:
        yield _report_batch([{"refused": str(error)}])
        return
    yield _report_batch([asdict(it) for it in _write_rows(form.output, rows)])


def join_slice(form: JoinSpec, span: TimeSlice) -> Iterator[pa.RecordBatch]:
    """Yield the joined rows of one slice, strings as such, for Spark to project; RefusalError if it cannot."""
    try:
        yield from _list_plain_batches(operators.join_sides(form, span, slice_reader.read_sides(form, span)))
    except _REFUSED as error:
        raise RefusalError(str(error)) from error


def _list_plain_batches(rows: pa.Table) -> list[pa.RecordBatch]:
    """Return rows for Spark, which does not know dictionaries."""
    batches: list[pa.RecordBatch] = _decode_dictionaries(rows, rows.column_names).to_batches(_ROWS_PER_BATCH)
    return batches


def _decode_dictionaries(rows: pa.Table, columns: Collection[str]) -> pa.Table:
    """Return rows with plain values in some columns."""
    fields = (
        field.with_type(field.type.value_type)
        if field.name in columns and pa.types.is_dictionary(field.type)
        else field
        for field in rows.schema
    )
    return rows.cast(pa.schema(list(fields)))


_REFUSED = (
    slice_reader.TooManyRowsError,
    OverflowError,
    MemoryError,
    pa.ArrowInvalid,
    arrow_expressions.EvaluationError,
)
"""What a task raises whose part is too large for it, or has expressions that are Spark's to evaluate.

ArrowInvalid: texts of more than 2 GiB in one array, for one.
"""

_ROWS_PER_BATCH = 65_536


class RefusalError(Exception):
    """A slice that is too large for its task, where Spark expects rows. Spark's plan can derive the view."""


def _write_rows(output: KernelOutput, rows: pa.Table) -> Iterator[files.DataFile]:
    return files.write_files(DeltaTable(output.uri), split_by_belief(output, rows))


def split_by_belief(output: KernelOutput, rows: pa.Table) -> list[tuple[str | None, pa.Table]]:
    """Return rows as `files.write_files` takes them: all columns in order and type; strings may be dictionaries."""
    known = pa.scalar(output.known_at, ARROW_TIMESTAMP)
    columns = []
    for field in output.types:
        match field.name:
            case "systemFrom":
                columns.append(pa.repeat(known, rows.num_rows))
            case "systemTo":
                columns.append(pa.nulls(rows.num_rows, known.type))
            case name if name not in rows.column_names:  # the contract has dropped it
                columns.append(pa.nulls(rows.num_rows, field.type))
            case name:
                column = rows.column(name)
                columns.append(column if pa.types.is_dictionary(column.type) else column.cast(field.type))
    whole = pa.table(columns, output.types.names)
    if output.kind != "versions":
        return [("past", whole)]
    is_open = pc.is_null(whole.column("validTo"))
    return [("open", whole.filter(is_open)), ("past", whole.filter(pc.invert(is_open)))]


def _report_batch(rows: list[Report]) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist(rows, _REPORT_ARROW_SCHEMA)


_NUMBERS = ("size", "rows", "no_key", "no_value", "too_late")
_REPORT_ARROW_SCHEMA = pa.schema(
    [
        (name, pa.int64() if name in _NUMBERS else pa.string())
        for name in (column.split()[0] for column in REPORT_SCHEMA.split(", "))
    ]
)
