"""Rows that tasks hand to other tasks, packed as values that Spark moves without looking into them.

A task divides its rows by key: each part of them is one value (Arrow's stream format) or a few, and Spark brings the
values of a part to one task, which opens them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise

import numpy as np
import pyarrow as pa

from hindcast.common.arrow_streams import open_rows, pack_rows
from hindcast.engine import integer_encoding

BATCH_LIMIT = {"spark.sql.execution.arrow.maxBytesPerBatch": str(64 << 20)}
"""Settings with which tasks are run that open values: about so many bytes Spark hands to one at once.

Otherwise it would hand over all values of a part at once, which it cannot if they have 2 GB, and no task could refuse
them. For rows that are not values it would be expensive.
"""

PART = "_part"
"""The column with the number of the part that a key is in."""

SCHEMA = f"{PART} int, rows binary"
"""Divided rows: a part's number, and some of its rows."""


def divide_rows(
    given: Iterable[pa.Table], key: Sequence[str], parts: int, *, whole: bool | None
) -> Iterator[pa.RecordBatch]:
    """Yield rows (`SCHEMA`) by the part that their key is in; all tasks have a key in the same part.

    Rows whose key is NOTHING (`integer_encoding.encode_keys`) are spread over all parts.
    """
    for rows in given:
        numbers = (integer_encoding.hash_keys(rows, key) % np.uint64(parts)).astype(np.uint16)
        if whole is not None:
            keyless = np.flatnonzero(integer_encoding.find_null_keys(rows, key, whole=whole))
            numbers[keyless] = keyless % parts
        order = np.argsort(numbers, kind="stable")
        places = np.searchsorted(numbers[order], np.arange(1, parts))
        whole_rows = rows.unify_dictionaries().combine_chunks()
        groups = pack_groups(whole_rows.take(pa.array(order)), places.tolist())
        yield from (pa.record_batch(columns, [PART, "rows"]) for columns in batch_values(groups))


def gather_batches(given: Iterator[pa.RecordBatch]) -> Iterator[pa.Table]:
    """Yield the rows of batches, about `BYTES_PER_VALUE` at a time."""
    batches: list[pa.RecordBatch] = []
    size = 0
    for batch in (batch for batch in given if batch.num_rows):
        batches.append(batch)
        size += batch.nbytes
        if size >= BYTES_PER_VALUE:
            yield pa.Table.from_batches(batches).combine_chunks()
            batches, size = [], 0
    if batches:
        yield pa.Table.from_batches(batches).combine_chunks()


def batch_values(values: Iterable[tuple[int, bytes]]) -> Iterator[list[pa.Array]]:
    """Yield the numbers of values and these, many at a time: each batch takes Spark half a millisecond."""
    some: list[tuple[int, bytes]] = []
    size = 0
    for number, value in values:
        some.append((number, value))
        size += len(value)
        if size >= BYTES_PER_BATCH:
            yield _make_arrays(some)
            some, size = [], 0
    if some:
        yield _make_arrays(some)


def _make_arrays(values: Sequence[tuple[int, bytes]]) -> list[pa.Array]:
    numbers, packed = zip(*values, strict=True)
    return [pa.array(numbers, pa.int32()), pa.array(packed, pa.binary())]


def pack_groups(rows: pa.Table, places: Sequence[int]) -> Iterator[tuple[int, bytes]]:
    """Yield groups of rows by their number, each in one value or a few. `places`: where all but the first begin."""
    for number, (start, end) in enumerate(pairwise([0, *places, rows.num_rows])):
        for some in _split_rows(_standardize_columns(rows.slice(start, end - start))):
            yield number, pack_rows(some)


BYTES_PER_VALUE, BYTES_PER_BATCH = 32 << 20, 8 << 20


def _split_rows(rows: pa.Table) -> Iterator[pa.Table]:
    """Yield rows in parts of about so many bytes."""
    count = max(rows.num_rows * BYTES_PER_VALUE // max(rows.nbytes, 1), 1)
    yield from (rows.slice(start, count) for start in range(0, rows.num_rows, count))


def _standardize_columns(rows: pa.Table) -> pa.Table:
    """Return rows with the same types of columns whoever has them, and dictionaries without values of other rows."""
    columns = [integer_encoding.drop_unused_values(it) for it in rows.columns]
    return pa.table(columns, rows.column_names)  # a column that is never null is not another one


def open_parts(given: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield rows that are given as such, or by part as values (`divide_rows`)."""
    for batch in given:
        if batch.schema.names == [PART, "rows"]:
            yield from open_values(value.as_buffer() for value in batch.column("rows"))
        else:
            yield batch


def open_values(values: Iterable[pa.Buffer]) -> Iterator[pa.RecordBatch]:
    """Yield the rows of values (`pack_groups`)."""
    return (batch for value in values for batch in open_rows(value))
