"""A task of a kernel: a slice of time, or some of the groups, from the files of the inputs to files of the table."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import asdict

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable

from hindcast.delta import files
from hindcast.delta.tables import MOMENT
from hindcast.kernels import operators, reading
from hindcast.kernels.form import Form, Span

WRITTEN = (
    "path string, belief string, size bigint, rows bigint, statistics string, "
    "no_key bigint, no_value bigint, refused string"
)
"""A row for each file that a task wrote; one without a path tells what was left out, or why it `refused`."""


def batches(form: Form, parts: list[Span]) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """The kernel as Spark's mapInArrow takes it: over the numbers of its parts."""

    def mapped(given: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in given:
            for number in batch.column(0).to_pylist():
                yield from part(form, parts, number)

    return mapped


def part(form: Form, parts: list[Span], number: int) -> Iterator[pa.RecordBatch]:
    """What one part of a kernel writes, as rows of `WRITTEN`."""
    try:
        sides = [reading.rows(side, parts[number]) for side in form.sides]
        found = operators.derived(form, parts, number, sides)
    except (reading.TooManyError, OverflowError, MemoryError, pa.ArrowInvalid) as error:
        # ArrowInvalid: texts of more than 2 GiB in one array, for one.
        yield _told([{"refused": str(error)}])
        return
    left_out: dict[str, object] = {"no_key": found.no_key, "no_value": found.no_value}
    written = files.write(DeltaTable(form.uri), by_belief(form, found.rows))
    yield _told([left_out, *(asdict(it) for it in written)])


def by_belief(form: Form, rows: pa.Table) -> list[tuple[str | None, pa.Table]]:
    """The rows as `files.write` takes them: all columns in their order and types; strings may be dictionaries."""
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
    whole = pa.table(columns, form.types.names)
    if form.kind != "versions":
        return [("past", whole)]
    is_open = pc.is_null(whole.column("validTo"))
    return [("open", whole.filter(is_open)), ("past", whole.filter(pc.invert(is_open)))]


def _told(rows: list[dict[str, object]]) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist(rows, _SCHEMA)


_NUMBERS = ("size", "rows", "no_key", "no_value")
_SCHEMA = pa.schema(
    [
        (name, pa.int64() if name in _NUMBERS else pa.string())
        for name in (column.split()[0] for column in WRITTEN.split(", "))
    ]
)
