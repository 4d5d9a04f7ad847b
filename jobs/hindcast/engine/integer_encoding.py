"""Columns of tables as arrays for sweeps: keys as numbers, moments as microseconds, sums as two halves."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

from hindcast.common.jit import NOTHING
from hindcast.engine.sweeps import FOREVER

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from hindcast.common.jit import Booleans, Integers

    Hashes: TypeAlias = NDArray[np.uint64]

HALF = 32
"""Half of the bits of a number that is added."""


def encode_keys(
    sides: Sequence[pa.Table], columns: Sequence[Sequence[str]], *, whole: bool | None
) -> tuple[list[Integers], int]:
    """Return the keys of several tables as numbers, equal if the keys are equal, and an upper bound of the numbers.

    `columns`: by table, the key's columns. A key is NOTHING if all its columns are null (`whole` true: if any is; None:
    never); otherwise a null is a value like any other.
    """
    found, count = np.zeros(sum(side.num_rows for side in sides), np.int64), 1
    for names in zip(*columns, strict=True):
        column = _encode_dictionary([side.column(name) for side, name in zip(sides, names, strict=True)])
        codes = column.indices.fill_null(len(column.dictionary)).to_numpy().astype(np.int64)
        found = found * (len(column.dictionary) + 1) + codes
        count *= len(column.dictionary) + 1
        if count > len(found):  # more numbers than keys there can be: count them anew
            found, count = _renumber(found)
    if whole is not None:
        null = [find_null_keys(side, names, whole=whole) for side, names in zip(sides, columns, strict=True)]
        found[np.concatenate(null)] = NOTHING
    ends = np.cumsum([side.num_rows for side in sides])
    return np.split(found, ends[:-1]), count


def find_null_keys(rows: pa.Table, columns: Sequence[str], *, whole: bool) -> Booleans:
    """Return which keys are NOTHING to `encode_keys`."""
    nulls = np.stack([rows.column(name).is_null().to_numpy() for name in columns])
    join = np.logical_or if whole else np.logical_and
    null: Booleans = join.reduce(nulls)
    return null


def hash_keys(rows: pa.Table, columns: Sequence[str]) -> Hashes:
    """Return a hash of the key of each row, which is the same in every process; equal keys (`encode_keys` with `whole`
    None) have equal hashes. The columns have types that `eligibility.is_key` takes.
    """
    found = np.zeros(rows.num_rows, np.uint64)
    for name in columns:
        column = _encode_dictionary([rows.column(name)])
        hashes = np.append(_hash_values(column.dictionary), _NULL_HASH)
        # rule: a null has a hash of its own
        found = found * _HASH_FACTOR + hashes[column.indices.fill_null(len(column.dictionary)).to_numpy()]
    return found


_NULL_HASH, _HASH_FACTOR = np.uint64(0x9E3779B97F4A7C15), np.uint64(0x100000001B3)


def _hash_values(values: pa.Array) -> Hashes:
    """Return the hashes of values, none of them null: of the bytes of texts, and of all others as integers."""
    if pa.types.is_decimal(values.type):
        words = _read_words(values)
        lower, upper = (pd.util.hash_array(words[:, place], categorize=False) for place in (0, 1))
        both: Hashes = upper * _HASH_FACTOR + lower
        return both
    if pa.types.is_string(values.type):
        plain = values.cast(pa.binary()).to_numpy(zero_copy_only=False)
    elif pa.types.is_date32(values.type):
        plain = values.cast(pa.int32()).to_numpy().astype(np.int64)
    else:
        plain = values.cast(pa.int64()).to_numpy()
    # rule: equal keys have one hash in all tasks
    hashes: Hashes = pd.util.hash_array(plain, categorize=False)
    return hashes


def drop_unused_values(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return a column with the values alone in its dictionary that it has; one without a dictionary as it is."""
    if not pa.types.is_dictionary(column.type):
        return column
    one = _combine_chunks(column.unify_dictionaries())
    codes = one.indices.fill_null(len(one.dictionary)).to_numpy()
    is_used = np.zeros(len(one.dictionary) + 1, np.bool_)
    is_used[codes] = True
    numbers = (np.cumsum(is_used) - 1).astype(np.int32)[codes]
    indices = pa.array(numbers, mask=one.indices.is_null().to_numpy(zero_copy_only=False))
    used = one.dictionary.filter(pa.array(is_used[:-1]))
    return pa.chunked_array([pa.DictionaryArray.from_arrays(indices, used)], column.type)


def decode_dictionaries(rows: pa.Table, columns: Collection[str]) -> pa.Table:
    """Return rows with plain values in some columns."""
    fields = (
        field.with_type(field.type.value_type)
        if field.name in columns and pa.types.is_dictionary(field.type)
        else field
        for field in rows.schema
    )
    return rows.cast(pa.schema(list(fields)))


def _encode_dictionary(columns: Sequence[pa.ChunkedArray]) -> pa.DictionaryArray:
    """Return the values of several columns, some of them dictionaries maybe, in one dictionary."""
    if any(pa.types.is_dictionary(column.type) for column in columns):
        columns = [it if pa.types.is_dictionary(it.type) else it.dictionary_encode() for it in columns]
    every = pa.chunked_array([chunk for column in columns for chunk in column.chunks], columns[0].type)
    encoded = every if pa.types.is_dictionary(every.type) else every.dictionary_encode()
    return _combine_chunks(encoded.unify_dictionaries())


def _renumber(numbers: Integers) -> tuple[Integers, int]:
    codes, values = pd.factorize(numbers)
    return codes.astype(np.int64), len(values)


def find_first_rows(codes: Integers, count: int) -> Integers:
    """Return the first place of each number below `count`; NOTHING if it does not occur."""
    found, places = np.full(count, NOTHING), np.flatnonzero(codes != NOTHING)[::-1]
    found[codes[places]] = places
    return found


def sort_by_time(rows: pa.Table, column: str) -> pa.Table:
    """Return rows in the order of a column of timestamps; those of one moment stay in theirs."""
    at = encode_timestamps(rows.column(column))
    if np.all(at[1:] >= at[:-1]):  # rule: files out of order are sorted
        return rows
    return rows.unify_dictionaries().combine_chunks().take(pa.array(np.argsort(at, kind="stable")))


def repeat_numbers(times: Integers) -> tuple[Integers, Integers]:
    """Return the number of each entry as often as it says, and beside it which time that is, from 0.

    2, 0, 1    ->    0, 0, 2    and    0, 1, 0
    """
    numbers = np.repeat(np.arange(len(times)), times)
    return numbers, np.arange(len(numbers)) - np.repeat(np.cumsum(times) - times, times)


def encode_timestamps(column: pa.ChunkedArray) -> Integers:
    """Return timestamps in microseconds since 1970, FOREVER for null."""
    micros: Integers = _combine_chunks(column.cast(pa.int64())).fill_null(FOREVER).to_numpy(zero_copy_only=False)
    return micros


def decode_timestamps(micros: Integers, kind: pa.DataType) -> pa.Array:
    """Return microseconds since 1970 as timestamps of a type, null for FOREVER."""
    return pa.array(micros, pa.int64(), mask=micros == FOREVER).cast(kind)


def take_values(column: pa.ChunkedArray, places: Integers) -> pa.Array:
    """Return the values at some places, null for NOTHING."""
    return column.take(pa.array(places, mask=places == NOTHING))


def split_halves(column: pa.ChunkedArray) -> tuple[Integers, Integers]:
    """Return the upper and lower half of each integer or unscaled decimal, 0 for null.

    OverflowError if a decimal has more than 64 bits.
    """
    one = _combine_chunks(column)
    if pa.types.is_decimal(one.type):
        words = _read_words(one.cast(pa.decimal128(one.type.precision, one.type.scale)).fill_null(0))
        values = words[:, 0]
        if np.any(words[:, 1] != values >> 63):
            raise OverflowError("a decimal has more than 64 bits")
    else:
        values = one.cast(pa.int64()).fill_null(0).to_numpy(zero_copy_only=False)
    return values >> HALF, values & (2**HALF - 1)  # rule: a sum has its lower half


def _read_words(decimals: pa.Array) -> Integers:
    """Return the lower and the upper word of each unscaled decimal, as two columns; of nulls, anything."""
    words: Integers = np.frombuffer(decimals.buffers()[1], np.int64).reshape(-1, 2)
    return words[decimals.offset : decimals.offset + len(decimals)]


def combine_halves(high: Integers, low: Integers, kind: pa.DataType, none: Booleans) -> pa.Array:
    """Return sums of halves as numbers of a type, null where `none` is true; OverflowError if the type is too small."""
    lower = (high.astype(np.uint64) << np.uint64(HALF)) + low.astype(np.uint64)
    carried = lower < low.astype(np.uint64)
    upper = (high >> HALF) + carried
    values = lower.view(np.int64)
    if pa.types.is_decimal(kind):
        words = np.stack([values, upper], axis=1)
        bits = pc.invert(pa.array(none)).buffers()[1] if len(none) else None
        return pa.Array.from_buffers(kind, len(none), [bits, pa.py_buffer(words.tobytes())])
    if np.any(upper != values >> 63):
        raise OverflowError("a sum is no bigint any more")
    return pa.array(values, mask=none).cast(kind)


def round_halves(high: Integers, low: Integers, none: Booleans) -> pa.Array:
    """Return the doubles that are nearest to sums of halves, null where `none` is true.

    Both halves are doubles if the upper one has at most 53 bits: then only their sum is rounded, once.
    """
    upper, lower = high + (low >> HALF), low & (2**HALF - 1)
    nearest = upper * 2.0**HALF + lower
    # rule: a sum is rounded to a double once
    for place in np.flatnonzero((upper > _EXACT_DOUBLE) | (upper < -_EXACT_DOUBLE)):
        nearest[place] = float((int(upper[place]) << HALF) + int(lower[place]))
    return pa.array(nearest, mask=none)


_EXACT_DOUBLE = 2**53
"""Up to this integer, and down to its negative, each is a double."""


def _combine_chunks(column: pa.ChunkedArray) -> pa.Array:
    """Return all values in one array."""
    if not column.num_chunks and pa.types.is_dictionary(column.type):  # of most types Arrow itself cannot
        return pa.DictionaryArray.from_arrays(pa.nulls(0, pa.int32()), pa.nulls(0, column.type.value_type))
    one = column.combine_chunks()
    return one if isinstance(one, pa.Array) else one.chunk(0)
