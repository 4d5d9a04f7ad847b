"""What aggregates amount to: measures over the nodes of folds (folds.py), each computed once for all nodes.

A measure has parts: an average a sum and a count, every other one itself. A part of a node is kept between runs, and is
what a `KEPT` node begins with. Sums of integers are exact and refuse to overflow, sums of decimals have 18 digits.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from hindcast.compiled import NOTHING, compiled
from hindcast.emits.folds import ADD, KEPT, MERGE, SUBTRACT

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from hindcast.compiled import Booleans, Integers

PARTS = {
    "rows": ("rows",),
    "count": ("count",),
    "sum": ("sum",),
    "min": ("min",),
    "max": ("max",),
    "avg": ("sum", "count"),
}
"""Of each measure what it is computed from."""


class Part(NamedTuple):
    """A part of a measure: of which argument, by number, it is the count, the sum, the least or the largest."""

    function: str
    argument: int


def parts(functions: Sequence[str]) -> list[Part]:
    """The parts of some measures, in order; measure n has argument n."""
    return [Part(part, number) for number, function in enumerate(functions) for part in PARTS[function]]


def evaluate(part: Part, nodes: Integers, given: pa.Array, kept: pa.Array) -> pa.Array:
    """A part for each node. `given`: its argument for each value; `kept`: the part for each row that is kept.

    Nulls are left out, as in SQL: the count of none is 0, all else of none is null. `rows` counts values that are null
    too, as `count(*)` does.
    """
    if part.function in ("rows", "count"):
        counted = pc.is_valid(given).to_numpy(zero_copy_only=False)
        counted = np.append(counted, False) if part.function == "count" else np.ones(len(given) + 1, np.bool_)
        begun = kept.fill_null(0).to_numpy(zero_copy_only=False).astype(np.int64)
        total, _ = _summed(nodes, counted.astype(np.int64), counted, begun, np.ones(len(begun), np.bool_))
        return pa.array(total)
    if part.function == "sum":
        numbers, valid = _numbers(given)
        begun, some = _numbers(kept.cast(summed_type(given.type)))
        total, there = _summed(nodes, np.append(numbers, numbers.dtype.type(0)), np.append(valid, False), begun, some)
        return _back(total, there, summed_type(given.type))
    every = pa.concat_arrays([_whole(given), _whole(kept.cast(given.type))])
    order = pc.sort_indices(every).to_numpy()
    rank = np.empty(len(order), np.int64)
    rank[order] = np.arange(len(order))
    sign = 1 if part.function == "min" else -1
    rank = np.where(pc.is_valid(every).to_numpy(zero_copy_only=False), sign * rank, _NO_RANK)
    best = _least(nodes, np.append(rank[: len(given)], _NO_RANK), rank[len(given) :])
    return every.take(pa.array(order[np.abs(best) % max(len(order), 1)], mask=best == _NO_RANK))


def summed_type(of: pa.DataType) -> pa.DataType:
    """The type of a sum, as in Spark."""
    if pa.types.is_decimal(of):
        return pa.decimal128(min(of.precision + 10, 38), of.scale)
    return pa.float64() if pa.types.is_floating(of) else pa.int64()


_NO_RANK = 2**62
_INEXACT = "a sum of decimals has more than 18 digits"
_OVERFLOW = "a sum of integers is too large for a bigint"


def _whole(array: pa.Array) -> pa.Array:
    return array.combine_chunks() if isinstance(array, pa.ChunkedArray) else array


def _numbers(array: pa.Array) -> tuple[NDArray[Any], Booleans]:
    """Numbers that a loop can add: integers, decimals as integers of their last digit, or doubles; and which are."""
    array = _whole(array)
    valid = pc.is_valid(array).to_numpy(zero_copy_only=False)
    if pa.types.is_decimal(array.type):
        # A decimal is 16 bytes, the low half first; where it fits into the low half the high one is its sign.
        halves = np.frombuffer(array.buffers()[1] or b"", np.int64).reshape(-1, 2)[array.offset :][: len(array)]
        if len(array) and (halves[valid, 1] != halves[valid, 0] >> 63).any():
            raise OverflowError(_INEXACT)
        return np.where(valid, halves[:, 0], 0) if len(array) else np.empty(0, np.int64), valid
    kind = np.float64 if pa.types.is_floating(array.type) else np.int64
    return array.fill_null(0).to_numpy(zero_copy_only=False).astype(kind), valid


def _back(total: NDArray[Any], there: Booleans, kind: pa.DataType) -> pa.Array:
    if not pa.types.is_decimal(kind):
        return pa.array(total, type=kind, mask=~there)
    halves = pa.py_buffer(np.stack((total, total >> 63), 1).tobytes())
    return pa.Array.from_buffers(kind, len(total), [pa.array(there).buffers()[1], halves])


@compiled
def _summed(nodes: Integers, numbers: Any, valid: Booleans, kept: Any, some: Booleans) -> tuple[Any, Booleans]:
    """The sum of each node, and whether it is one of any number. The last of `numbers` stands for a null value."""
    total, there = np.zeros(len(nodes), numbers.dtype), np.zeros(len(nodes), np.bool_)
    for n in range(len(nodes)):
        what, first, second = nodes[n]
        if what == KEPT:
            total[n], there[n] = kept[first], some[first]
            continue
        if first != NOTHING:
            total[n], there[n] = total[first], there[first]
        before = total[n]
        if what == MERGE:
            if second != NOTHING:
                total[n] += total[second]
                there[n] = there[n] or there[second]
                _check(before, total[second], total[n])
        elif valid[second]:
            change = numbers[second] if what == ADD else -numbers[second]
            total[n] += change
            there[n] = True
            _check(before, change, total[n])
    return total, there


@compiled
def _check(before: Any, change: Any, after: Any) -> None:
    if (change > 0 and after < before) or (change < 0 and after > before):
        raise OverflowError(_OVERFLOW)


@compiled
def _least(nodes: Integers, ranks: Integers, kept: Integers) -> Integers:
    """The least rank of each node."""
    least = np.full(len(nodes), _NO_RANK)
    for n in range(len(nodes)):
        what, first, second = nodes[n]
        if what == KEPT:
            least[n] = kept[first]
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
