"""Measures of aggregates over the nodes of an aggregation tree, each computed once for all nodes.

A measure has parts: an average has a sum and a count, any other measure only itself. The parts of a node are stored
between runs; a `KEPT` node begins with them. Sums of integers, also those of averages, are bigints and refuse to
overflow; sums of decimals have 18 digits.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from hindcast.common.jit import NOTHING, compile_loop
from hindcast.streams.aggregation_tree import ADD, KEPT, MERGE, SUBTRACT

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from hindcast.common.jit import Booleans, Integers

    Number = np.int64 | np.float64
    Numbers = NDArray[Number]

# rule: an average is over values that are not null
PARTS = {
    "rows": ("rows",),
    "count": ("count",),
    "sum": ("sum",),
    "min": ("min",),
    "max": ("max",),
    "avg": ("sum", "count"),
}
"""By measure, the parts that it is computed from."""


class MeasurePart(NamedTuple):
    """A part of a measure: `rows`, `count`, `sum`, `min` or `max` of the argument with a number."""

    function: str
    argument: int


def measure_parts(functions: Sequence[str]) -> list[MeasurePart]:
    """Return the parts of some measures, in order; measure n has argument n."""
    return [MeasurePart(part, number) for number, function in enumerate(functions) for part in PARTS[function]]


def evaluate_part(part: MeasurePart, nodes: Integers, arguments: pa.Array, state: pa.Array) -> pa.Array:
    """Return a part of a measure for each node. `arguments`: its argument for each value; `state`: the part in each row
    of the state.

    Nulls are left out, as in SQL: the count of none is 0, any other part of none is null. `rows` counts nulls too, as
    `count(*)` does. OverflowError for a sum of integers above a bigint, or of decimals with more than 18 digits;
    ValueError for a subtraction from `min` or `max`.
    """
    if part.function in ("rows", "count"):
        counted = pc.is_valid(arguments).to_numpy(zero_copy_only=False)
        # rule: rows are counted, null values are not
        counted = np.append(counted, False) if part.function == "count" else np.ones(len(arguments) + 1, np.bool_)
        begun = state.fill_null(0).to_numpy(zero_copy_only=False).astype(np.int64)
        total, _ = _sum_nodes(nodes, counted.astype(np.int64), counted, begun, np.ones(len(begun), np.bool_), _BIGINTS)
        return pa.array(total)
    if part.function == "sum":
        numbers, valid = _as_numbers(arguments)
        begun, some = _as_numbers(state.cast(sum_type(arguments.type)))
        numbers, valid = np.append(numbers, numbers.dtype.type(0)), np.append(valid, False)
        bounds = _DOUBLES if numbers.dtype == np.float64 else _BIGINTS
        total, is_number = _sum_nodes(nodes, numbers, valid, begun, some, bounds)
        return _restore_type(total, is_number, sum_type(arguments.type))
    every = pa.concat_arrays([_combine_chunks(arguments), _combine_chunks(state.cast(arguments.type))])
    order = pc.sort_indices(every).to_numpy()
    rank = np.empty(len(order), np.int64)
    rank[order] = np.arange(len(order))
    sign = 1 if part.function == "min" else -1  # rule: the largest is the least of the negative
    rank = np.where(pc.is_valid(every).to_numpy(zero_copy_only=False), sign * rank, _NO_RANK)
    best = _rank_least(nodes, np.append(rank[: len(arguments)], _NO_RANK), rank[len(arguments) :])
    return every.take(pa.array(order[np.abs(best) % max(len(order), 1)], mask=best == _NO_RANK))


def sum_type(of: pa.DataType) -> pa.DataType:
    """Return the type of a sum over a type, as in Spark."""
    if pa.types.is_decimal(of):
        return pa.decimal128(min(of.precision + 10, 38), of.scale)
    return pa.float64() if pa.types.is_floating(of) else pa.int64()


_NO_RANK = 2**62
INEXACT = "a sum of decimals has more than 18 digits"
OVERFLOW = "a sum of integers is too large for a bigint"
_BIGINTS = np.int64(-(2**63)), np.int64(2**63 - 1)
_DOUBLES = np.float64(-np.inf), np.float64(np.inf)


def _combine_chunks(array: pa.Array) -> pa.Array:
    return array.combine_chunks() if isinstance(array, pa.ChunkedArray) else array


def _as_numbers(array: pa.Array) -> tuple[Numbers, Booleans]:
    """Return an array as numbers that a loop can add, and which of them are not null.

    The numbers are integers, doubles, or the unscaled integers of decimals.
    """
    array = _combine_chunks(array)
    valid = pc.is_valid(array).to_numpy(zero_copy_only=False)
    if pa.types.is_decimal(array.type):
        # A decimal is 16 bytes, the low half first; where it fits into the low half the high one is its sign.
        halves = np.frombuffer(array.buffers()[1] or b"", np.int64).reshape(-1, 2)[array.offset :][: len(array)]
        if len(array) and (halves[valid, 1] != halves[valid, 0] >> 63).any():
            raise OverflowError(INEXACT)  # rule: decimals of more than 18 digits are an error
        return np.where(valid, halves[:, 0], 0) if len(array) else np.empty(0, np.int64), valid
    kind = np.float64 if pa.types.is_floating(array.type) else np.int64
    return array.fill_null(0).to_numpy(zero_copy_only=False).astype(kind), valid


def _restore_type(total: Numbers, is_number: Booleans, kind: pa.DataType) -> pa.Array:
    """Return numbers of `_as_numbers` as an array of a type, null where there is none."""
    if not pa.types.is_decimal(kind):
        return pa.array(total, type=kind, mask=~is_number)  # rule: a sum of no number is null
    halves = pa.py_buffer(np.stack((total, total.view(np.int64) >> 63), 1).tobytes())
    return pa.Array.from_buffers(kind, len(total), [pa.array(is_number).buffers()[1], halves])


@compile_loop
def _sum_nodes(
    nodes: Integers,
    numbers: Numbers,
    valid: Booleans,
    state: Numbers,
    state_is_number: Booleans,
    bounds: tuple[Number, Number],
) -> tuple[Numbers, Booleans]:
    """Return the sum of each node, and whether it has a number in it. The last of `numbers` stands for a null value.

    OverflowError for a sum out of the `bounds`.
    """
    total, is_number = np.zeros(len(nodes), numbers.dtype), np.zeros(len(nodes), np.bool_)
    for n in range(len(nodes)):
        what, first, second = nodes[n]
        if what == KEPT:
            total[n], is_number[n] = state[first], state_is_number[first]  # rule: a kept sum of no number is null
            continue
        if first != NOTHING:
            total[n], is_number[n] = total[first], is_number[first]
        if what == MERGE:
            if second != NOTHING:
                total[n] = _add(total[n], total[second], bounds)
                is_number[n] = is_number[n] or is_number[second]
        elif valid[second]:
            if what == ADD:
                total[n] = _add(total[n], numbers[second], bounds)
            else:
                total[n] = _subtract(total[n], numbers[second], bounds)  # rule: the subtractor subtracts
            is_number[n] = True
    return total, is_number


# Overflow is looked for before it happens: compiled code may take it for impossible, and leave out a later check.


@compile_loop
def _add(total: Number, change: Number, bounds: tuple[Number, Number]) -> Number:
    least, most = bounds
    if (change > 0 and total > most - change) or (change < 0 and total < least - change):
        raise OverflowError(OVERFLOW)  # rule: a sum that overflows is an error
    return total + change


@compile_loop
def _subtract(total: Number, change: Number, bounds: tuple[Number, Number]) -> Number:
    least, most = bounds
    if (change < 0 and total > most + change) or (change > 0 and total < least + change):
        raise OverflowError(OVERFLOW)  # rule: a difference that overflows is an error
    return total - change


@compile_loop
def _rank_least(nodes: Integers, ranks: Integers, state: Integers) -> Integers:
    """Return the least rank of each node."""
    least = np.full(len(nodes), _NO_RANK)
    for n in range(len(nodes)):
        what, first, second = nodes[n]
        if what == KEPT:
            least[n] = state[first]
            continue
        if first != NOTHING:
            least[n] = least[first]
        if what == MERGE and second != NOTHING:
            least[n] = min(least[n], least[second])
        elif what == ADD:
            least[n] = min(least[n], ranks[second])
        elif what == SUBTRACT:
            raise ValueError("a least or largest value cannot be taken back")
    return least
