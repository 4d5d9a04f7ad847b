"""A task of a kernel: a slice of time, or some of the groups, from the files of the inputs to files of the table."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import asdict

import pyarrow as pa

from hindcast.kernels import operators, reading, writing
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
    span = parts[number]
    none: dict[str, object] = {"no_key": 0, "no_value": 0, "refused": None}
    try:
        if form.operator == "of_table":
            found = operators.of_table(form, reading.rows(form.sides[0], span), number, len(parts))
            rows, none = found.rows, none | {"no_key": found.no_key, "no_value": found.no_value}
        elif form.operator == "table_table":
            rows = operators.table_table(form, span, *(reading.rows(side, span) for side in form.sides))
        else:
            rows = operators.stream_table(form, *(reading.rows(side, span) for side in form.sides))
    except (reading.TooManyError, OverflowError, MemoryError, pa.ArrowInvalid) as error:
        # ArrowInvalid: texts of more than 2 GiB in one array, for one.
        yield _told([{"refused": str(error)}])
        return
    yield _told([none, *(asdict(written) for written in writing.write(form, rows))])


def _told(rows: list[dict[str, object]]) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist(rows, _SCHEMA)


_NUMBERS = ("size", "rows", "no_key", "no_value")
_SCHEMA = pa.schema(
    [
        (name, pa.int64() if name in _NUMBERS else pa.string())
        for name in (column.split()[0] for column in WRITTEN.split(", "))
    ]
)
