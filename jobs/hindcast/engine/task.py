"""The tasks of a kernel: a slice of time from files of the inputs, or some of the groups, to files of the table."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable
from pyspark.errors import PySparkException

from hindcast.common.spark_workers import BatchConverter
from hindcast.engine import (
    arrow_expressions,
    integer_encoding,
    operators,
    row_exchange,
    slice_reader,
    window_operator,
)
from hindcast.engine.spec import (
    SLICE,
    AggregateSpec,
    EventSpec,
    JoinSpec,
    KernelOutput,
    MemberSource,
    SessionSpec,
    SlidingSpec,
    TimeSlice,
    WindowSpec,
)
from hindcast.store import files
from hindcast.store.tables import ARROW_TIMESTAMP

REPORT_SCHEMA = (
    "path string, belief string, size bigint, rows bigint, statistics string, "
    "no_key bigint, no_value bigint, too_late bigint, reached string, ties string"
)
"""A row for each file that a task wrote; one without a path reports what was left out, or ties.

`reached`: the latest event of each partition in microseconds, as JSON. `ties`: as `version_ties` has them.
"""


def build_batch_mapper(form: JoinSpec, parts: list[TimeSlice]) -> BatchConverter:
    """Return a join as a function for Spark's mapInArrow, from the numbers of slices to reports of files.

    Of a join whose expressions Spark evaluates the function gives the joined rows instead, for `build_writer`.
    """

    def map_batches(given: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in given:
            for number in batch.column(0).to_pylist():
                yield from (join_slice if form.projection is None else write_slice)(form, parts[number])

    return map_batches


def build_writer(output: KernelOutput) -> BatchConverter:
    """Return the second half of such a join for Spark's mapInArrow: from the view's rows to reports of files."""

    def map_batches(given: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        with refuse_too_large():
            if (rows := collect_rows(given, output)) is not None:
                yield report_files(output, rows)

    return map_batches


def build_divider(
    form: AggregateSpec | SessionSpec, source: MemberSource, slices: list[TimeSlice], parts: int
) -> BatchConverter:
    """Return the first half of an aggregate for Spark's mapInArrow, from numbers of slices to their rows by group.

    As `row_exchange.divide_rows` has them, for `build_aggregator`.
    """

    def read_members(span: TimeSlice) -> pa.Table:
        rows = slice_reader.read_beginning(source.side, span)
        return operators.project_members(source.projection, form.measures, rows)

    def map_batches(given: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        with refuse_too_large():
            spans = (slices[number] for batch in given for number in batch.column(0).to_pylist())
            yield from row_exchange.divide_rows(map(read_members, spans), form.key, parts, whole=form.whole)

    return map_batches


def build_aggregator(output: KernelOutput, aggregate: Callable[[pa.Table], operators.KernelRows]) -> BatchConverter:
    """Return an aggregate as a function for Spark's mapInArrow: from all rows of some groups to reports of files."""

    def map_batches(given: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        with refuse_too_large():
            if (rows := collect_rows(row_exchange.open_parts(given), output)) is not None:
                yield _report_rows(output, aggregate(rows))

    return map_batches


def collect_rows(given: Iterable[pa.RecordBatch], output: KernelOutput) -> pa.Table | None:
    """Return all rows that a task is given; None if there are none."""
    batches = [batch for batch in slice_reader.limit_batches(given, output.uri) if batch.num_rows]
    return pa.Table.from_batches(batches).combine_chunks() if batches else None


SliceWork = Callable[..., pa.Table | pa.RecordBatch]
"""What is done with the members of a slice, given an `EventSpec` (`write_windows`, late_events.py)."""


def build_window_task(
    form: EventSpec, parts: list[TimeSlice], work: SliceWork, reach: tuple[int, int]
) -> BatchConverter:
    """Return some work on the members of windows for Spark's mapInArrow, from numbers of slices to what it returns.

    Arrow evaluates the view's expressions. The members are the events in a slice, and so many microseconds before and
    after it. RefusalError if a slice is too large, or an expression is Spark's to evaluate.
    """

    def map_batches(given: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for number in (number for batch in given for number in batch.column(0).to_pylist()):
            with refuse_too_large():
                events = _read_events(form, parts[number], reach)
                members = operators.project_members(form.projection, form.measures, events)
                yield from _list_batches(work(form, parts[number], members))

    return map_batches


def build_event_reader(form: EventSpec, parts: list[TimeSlice], reach: tuple[int, int]) -> BatchConverter:
    """Return the first half of such a task, if Spark evaluates the expressions: from numbers of slices to events.

    These have the number of their slice (`window_aggregation.read_schema`).
    """

    def map_batches(given: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for number in (number for batch in given for number in batch.column(0).to_pylist()):
            with refuse_too_large():
                own = _read_events(form, parts[number], reach).select(form.side.columns)
                numbers = pa.repeat(pa.scalar(number, pa.int32()), own.num_rows)
                yield from _list_plain_batches(own.append_column(SLICE, numbers))

    return map_batches


def build_member_task(form: EventSpec, parts: list[TimeSlice], work: SliceWork) -> BatchConverter:
    """Return the second half: from the members of a slice's windows to what some work on them returns."""

    def map_batches(given: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        with refuse_too_large():
            if (members := collect_rows(given, form.output)) is not None:
                yield from _list_batches(work(form, parts[members.column(SLICE)[0].as_py()], members))

    return map_batches


def write_windows(form: WindowSpec | SlidingSpec, span: TimeSlice, members: pa.Table) -> pa.RecordBatch:
    """Write the files of the windows that start in a slice; return a report of them, as rows of `REPORT_SCHEMA`."""
    return _report_rows(form.output, window_operator.aggregate_windows(form, span, members))


def _list_batches(found: pa.Table | pa.RecordBatch) -> list[pa.RecordBatch]:
    return [found] if isinstance(found, pa.RecordBatch) else found.to_batches()


@contextmanager
def refuse_too_large() -> Iterator[None]:
    """Raise RefusalError for what a task raises whose part is too large, or has expressions that are Spark's."""
    try:
        yield
    except _REFUSED as error:
        raise RefusalError(str(error)) from error


@contextmanager
def find_refusals() -> Iterator[None]:
    """Raise RefusalError for the error of a Spark job one of whose tasks raised it."""
    try:
        yield
    except PySparkException as error:
        if RefusalError.__name__ in str(error):
            raise RefusalError(str(error)) from error
        raise


def _read_events(form: EventSpec, span: TimeSlice, reach: tuple[int, int]) -> pa.Table:
    return slice_reader.read_slice(form.side, slice_reader.widen_slice(span, *reach))


def _report_rows(output: KernelOutput, found: operators.KernelRows) -> pa.RecordBatch:
    """Write the rows of an aggregate and report the files, and what was left out."""
    reached = None if found.reached is None else json.dumps(found.reached)
    left_out: Report = {"no_key": found.no_key, "no_value": found.no_value, "too_late": found.too_late}
    return _report_batch([{**left_out, "reached": reached}, *(asdict(it) for it in _write_rows(output, found.rows))])


Report = dict[str, str | int | None]


def write_slice(form: JoinSpec, span: TimeSlice) -> Iterator[pa.RecordBatch]:
    """Write the files of one slice of a join; yield a report of them, as rows of `REPORT_SCHEMA`."""
    with refuse_too_large():
        rows = operators.join_sides(form, span, slice_reader.read_sides(form, span))
        if form.projection is not None:
            rows = arrow_expressions.project_rows(form.projection, rows)
        yield report_files(form.output, rows)


def join_slice(form: JoinSpec, span: TimeSlice) -> Iterator[pa.RecordBatch]:
    """Yield the joined rows of one slice, strings as such, for Spark to project."""
    with refuse_too_large():
        yield from _list_plain_batches(operators.join_sides(form, span, slice_reader.read_sides(form, span)))


def _list_plain_batches(rows: pa.Table) -> list[pa.RecordBatch]:
    """Return rows for Spark, which does not know dictionaries."""
    batches: list[pa.RecordBatch] = integer_encoding.decode_dictionaries(rows, rows.column_names).to_batches(
        ROWS_PER_BATCH
    )
    return batches


_REFUSED = (
    slice_reader.TooManyRowsError,
    OverflowError,
    MemoryError,
    pa.ArrowInvalid,
    pa.ArrowCapacityError,
    arrow_expressions.EvaluationError,
)
"""What a task raises whose part is too large for it, or has expressions that are Spark's to evaluate.

ArrowInvalid and ArrowCapacityError: texts of more than 2 GiB in one array, for one.
"""

ROWS_PER_BATCH = 65_536


class RefusalError(Exception):
    """A task cannot do its part: it is too large, or has expressions that are Spark's. Spark's plan can."""


def report_files(output: KernelOutput, rows: pa.Table) -> pa.RecordBatch:
    """Write rows of a table to files; return a report of them, as rows of `REPORT_SCHEMA`."""
    return _report_batch([asdict(it) for it in _write_rows(output, rows)])


def report_ties(ties: Sequence[str]) -> pa.RecordBatch:
    """Return a report of ties."""
    return _report_batch([{"ties": it} for it in ties])


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
