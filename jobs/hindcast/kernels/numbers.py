"""Columns of tables as the arrays that sweeps take: keys as numbers, moments as microseconds, sums as two halves."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

from hindcast.compiled import NOTHING
from hindcast.kernels.sweeps import FOREVER

if TYPE_CHECKING:
    from hindcast.compiled import Integers

HALF = 32
"""Half of the bits of a number that is added."""


def keys(
    sides: Sequence[pa.Table], columns: Sequence[Sequence[str]], *, whole: bool | None
) -> tuple[list[Integers], int]:
    """The keys of several tables as numbers, equal where these are, and how many there are at most.

    A key is NOTHING if all its columns are null, with `whole` if any is, with None never; else a null is a value like
    any other.
    """
    found, count = np.zeros(sum(side.num_rows for side in sides), np.int64), 1
    none = np.full(len(found), not whole)
    for names in zip(*columns, strict=True):
        chunks = [chunk for side, name in zip(sides, names, strict=True) for chunk in side.column(name).chunks]
        kind = sides[0].schema.field(names[0]).type
        column = _encoded(pa.chunked_array(chunks, kind))
        null = column.indices.is_null().to_numpy(zero_copy_only=False)
        codes = column.indices.fill_null(len(column.dictionary)).to_numpy().astype(np.int64)
        found = found * (len(column.dictionary) + 1) + codes
        count *= len(column.dictionary) + 1
        none = none | null if whole else none & null
        if count > len(found):  # more numbers than keys there can be: count them anew
            found, count = _dense(found)
    if whole is not None:
        found[none] = NOTHING
    ends = np.cumsum([side.num_rows for side in sides])
    return np.split(found, ends[:-1]), count


def _encoded(column: pa.ChunkedArray) -> pa.DictionaryArray:
    encoded = column if pa.types.is_dictionary(column.type) else column.dictionary_encode()
    return _whole(encoded.unify_dictionaries())


def _dense(numbers: Integers) -> tuple[Integers, int]:
    codes, values = pd.factorize(numbers)
    return codes.astype(np.int64), len(values)


def first_of(codes: Integers, count: int) -> Integers:
    """Of each number the place where it is first; NOTHING where it is nowhere."""
    found, places = np.full(count, NOTHING), np.flatnonzero(codes != NOTHING)[::-1]
    found[codes[places]] = places
    return found


def moments(column: pa.ChunkedArray) -> Integers:
    """Moments in microseconds, FOREVER for null."""
    told: Integers = _whole(column.cast(pa.int64())).fill_null(FOREVER).to_numpy(zero_copy_only=False)
    return told


def timestamps(micros: Integers, kind: pa.DataType) -> pa.Array:
    """The same back."""
    return pa.array(micros, pa.int64(), mask=micros == FOREVER).cast(kind)


def taken(column: pa.ChunkedArray, places: Integers) -> pa.Array:
    """The values at some places, null for NOTHING."""
    return column.take(pa.array(places, mask=places == NOTHING))


def halves(column: pa.ChunkedArray) -> tuple[Integers, Integers]:
    """The upper and lower half of each whole number or decimal (without its point), 0 for null."""
    one = _whole(column)
    if pa.types.is_decimal(one.type):
        one = one.cast(pa.decimal128(one.type.precision, one.type.scale)).fill_null(0)
        words = np.frombuffer(one.buffers()[1], np.int64).reshape(-1, 2)[one.offset : one.offset + len(one)]
        values = words[:, 0]
    else:
        values = one.cast(pa.int64()).fill_null(0).to_numpy(zero_copy_only=False)
    return values >> HALF, values & (2**HALF - 1)


def sums(high: Integers, low: Integers, kind: pa.DataType, none: Any) -> pa.Array:
    """Sums of halves as numbers of a type, null where there are none; OverflowError if the type cannot hold one."""
    lower = (high.astype(np.uint64) << np.uint64(HALF)) + low.astype(np.uint64)
    carried = lower < low.astype(np.uint64)
    upper = (high >> HALF) + carried
    words = np.stack([lower.view(np.int64), upper], axis=1)
    if pa.types.is_decimal(kind):
        bits = pc.invert(pa.array(none)).buffers()[1] if len(none) else None
        return pa.Array.from_buffers(kind, len(none), [bits, pa.py_buffer(words.tobytes())])
    if np.any(upper != words[:, 0] >> 63):
        raise OverflowError("a sum is no bigint any more")
    return pa.array(words[:, 0], mask=none).cast(kind)


def _whole(column: pa.ChunkedArray) -> pa.Array:
    """All values in one array."""
    one = column.combine_chunks()
    return one if isinstance(one, pa.Array) else one.chunk(0)
