"""A task of a kernel: a slice of time, or some of the groups, from the files of the inputs to files of the table."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import asdict

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable

from hindcast.engine import operators, slice_reader
from hindcast.engine.spec import KernelSpec, TimeSlice
from hindcast.store import files
from hindcast.store.tables import ARROW_TIMESTAMP

REPORT_SCHEMA = (
    "path string, belief string, size bigint, rows bigint, statistics string, "
    "no_key bigint, no_value bigint, refused string"
)
"""A row for each file that a task wrote; one without a path reports what was left out, or why the task `refused`."""


def build_batch_mapper(
    form: KernelSpec, parts: list[TimeSlice]
) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """Return a kernel as a function for Spark's mapInArrow; its input rows are the numbers of parts."""

    def map_batches(given: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in given:
            for number in batch.column(0).to_pylist():
                yield from run_part(form, parts, number)

    return map_batches


def run_part(form: KernelSpec, parts: list[TimeSlice], number: int) -> Iterator[pa.RecordBatch]:
    """Write the files of one part of a kernel; yield a report of them, as rows of `REPORT_SCHEMA`."""
    try:
        sides = [slice_reader.read_slice(side, parts[number]) for side in form.sides]
        found = operators.run_operator(form, parts, number, sides)
    except (slice_reader.TooManyRowsError, OverflowError, MemoryError, pa.ArrowInvalid) as error:
        # ArrowInvalid: texts of more than 2 GiB in one array, for one.
        yield _report_batch([{"refused": str(error)}])
        return
    left_out: dict[str, str | int | None] = {"no_key": found.no_key, "no_value": found.no_value}
    written = files.write_files(DeltaTable(form.uri), split_by_belief(form, found.rows))
    yield _report_batch([left_out, *(asdict(it) for it in written)])


def split_by_belief(form: KernelSpec, rows: pa.Table) -> list[tuple[str | None, pa.Table]]:
    """Return rows as `files.write_files` takes them: all columns in order and type; strings may be dictionaries."""
    known = pa.scalar(form.known_at, ARROW_TIMESTAMP)
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
    whole = pa.table(columns, form.types.names)
    if form.kind != "versions":
        return [("past", whole)]
    is_open = pc.is_null(whole.column("validTo"))
    return [("open", whole.filter(is_open)), ("past", whole.filter(pc.invert(is_open)))]


def _report_batch(rows: list[dict[str, str | int | None]]) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist(rows, _REPORT_ARROW_SCHEMA)


_NUMBERS = ("size", "rows", "no_key", "no_value")
_REPORT_ARROW_SCHEMA = pa.schema(
    [
        (name, pa.int64() if name in _NUMBERS else pa.string())
        for name in (column.split()[0] for column in REPORT_SCHEMA.split(", "))
    ]
)
