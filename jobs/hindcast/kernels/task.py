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
    try:
        sides = [reading.rows(side, parts[number]) for side in form.sides]
        found = operators.derived(form, parts, number, sides)
    except (reading.TooManyError, OverflowError, MemoryError, pa.ArrowInvalid) as error:
        # ArrowInvalid: texts of more than 2 GiB in one array, for one.
        yield _told([{"refused": str(error)}])
        return
    left_out: dict[str, object] = {"no_key": found.no_key, "no_value": found.no_value}
    yield _told([left_out, *(asdict(written) for written in writing.write(form, found.rows))])


def _told(rows: list[dict[str, object]]) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist(rows, _SCHEMA)


_NUMBERS = ("size", "rows", "no_key", "no_value")
_SCHEMA = pa.schema(
    [
        (name, pa.int64() if name in _NUMBERS else pa.string())
        for name in (column.split()[0] for column in WRITTEN.split(", "))
    ]
)
