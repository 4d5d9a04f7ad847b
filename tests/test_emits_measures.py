"""Measures over the nodes of folds, beside the same told over lists of values in plain Python."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hindcast.common.jit import NOTHING
from hindcast.streams.aggregation_tree import ADD, KEPT, MERGE, SUBTRACT
from hindcast.streams.measures import MeasurePart, evaluate_part, measure_parts

Nodes = list[tuple[int, int, int]]
DECIMAL = pa.decimal128(18, 2)
VALUES: dict[pa.DataType, st.SearchStrategy[Any]] = {
    pa.int64(): st.integers(-9, 9),
    pa.float64(): st.integers(-9, 9).map(float),
    DECIMAL: st.integers(-999, 999).map(lambda number: Decimal(number).scaleb(-2)),
}


def evaluated(function: str, nodes: Nodes, values: list[Any], kept: list[Any], kind: pa.DataType) -> list[Any]:
    """A part for each node; `kept` are parts."""
    of_part = pa.int64() if function in ("rows", "count") else kind
    its = np.array(nodes, np.int64).reshape(-1, 3)
    told = evaluate_part(MeasurePart(function, 0), its, pa.array(values, kind), pa.array(kept, of_part))
    return told.to_pylist()  # type: ignore[no-any-return]


def plain(function: str, nodes: Nodes, values: list[Any], kept: list[Any]) -> list[Any]:
    """The same, from what each node was made of: (sign, value) of a value, and parts that were kept."""
    of: list[tuple[list[tuple[int, Any]], list[Any]]] = []
    for what, first, second in nodes:
        added, begun = of[first] if first != NOTHING and what != KEPT else ([], [])
        if what == KEPT:
            begun = [kept[first]]
        elif what == MERGE and second != NOTHING:
            added, begun = added + of[second][0], begun + of[second][1]
        elif what != MERGE:
            added = [*added, (1 if what == ADD else -1, None if second == NOTHING else values[second])]
        of.append((added, begun))
    return [_amount(function, added, [part for part in begun if part is not None]) for added, begun in of]


def _amount(function: str, added: list[tuple[int, Any]], begun: list[Any]) -> Any:
    there = [(sign, value) for sign, value in added if value is not None]
    match function:
        case "rows":
            return sum(sign for sign, _ in added) + sum(begun)
        case "count":
            return sum(sign for sign, _ in there) + sum(begun)
        case "sum":
            numbers = [sign * value for sign, value in there] + begun
            return sum(numbers) if numbers else None
    numbers = [value for _, value in there] + begun
    return {"min": min, "max": max}[function](numbers) if numbers else None


@st.composite
def folds(draw: st.DrawFn, function: str, kind: pa.DataType) -> tuple[Nodes, list[Any], list[Any]]:
    """Nodes, values, and parts that were kept."""
    values = draw(st.lists(st.none() | VALUES[kind], min_size=1, max_size=8))
    counts = function in ("rows", "count")
    kept = draw(st.lists(st.integers(0, 9) if counts else st.none() | VALUES[kind], max_size=4))
    kinds = [ADD, ADD, MERGE, *([SUBTRACT] if function not in ("min", "max") else []), *([KEPT] if kept else [])]
    nodes: Nodes = []
    for number in range(draw(st.integers(0, 12))):
        what = draw(st.sampled_from(kinds))
        before = st.integers(NOTHING, number - 1)
        if what == KEPT:
            nodes.append((KEPT, draw(st.integers(0, len(kept) - 1)), NOTHING))
        else:
            second = before if what == MERGE else st.integers(NOTHING, len(values) - 1)
            nodes.append((what, draw(before), draw(second)))
    return nodes, values, kept


@pytest.mark.parametrize("kind", VALUES, ids=str)
@pytest.mark.parametrize("function", ["rows", "count", "sum", "min", "max"])
@given(st.data())
@settings(max_examples=60, deadline=None)
def test_each_node_amounts_to_what_it_was_made_of(function: str, kind: pa.DataType, data: st.DataObject) -> None:
    nodes, values, kept = data.draw(folds(function, kind))
    assert evaluated(function, nodes, values, kept, kind) == plain(function, nodes, values, kept)


NULL_FIVE: Nodes = [(ADD, NOTHING, 0), (ADD, 0, 1), (SUBTRACT, 1, 1), (ADD, NOTHING, NOTHING)]


@pytest.mark.parametrize(
    ("function", "amounts"),
    [("rows", [1, 2, 1, 1]), ("count", [0, 1, 0, 0]), ("sum", [None, 5, 0, None])],
)
def test_nulls_are_left_out_but_counted_as_rows_and_a_sum_of_what_is_gone_is_0(
    function: str, amounts: list[Any]
) -> None:
    assert evaluated(function, NULL_FIVE, [None, 5], [], pa.int64()) == amounts


def test_an_average_is_kept_as_its_sum_and_its_count() -> None:
    assert measure_parts(["rows", "avg", "max"]) == [
        MeasurePart("rows", 0),
        MeasurePart("sum", 1),
        MeasurePart("count", 1),
        MeasurePart("max", 2),
    ]


@pytest.mark.parametrize(("first", "second"), [(2**63 - 1, 1), (-(2**63), -1)])
@pytest.mark.parametrize("merged", [False, True])
def test_a_sum_too_large_for_a_bigint_fails_and_does_not_wrap_round(first: int, second: int, merged: bool) -> None:
    added: Nodes = [(ADD, NOTHING, 0), (ADD, 0, 1)]
    nodes: Nodes = [(ADD, NOTHING, 0), (ADD, NOTHING, 1), (MERGE, 0, 1)] if merged else added
    with pytest.raises(OverflowError, match="a sum of integers is too large for a bigint"):
        evaluated("sum", nodes, [first, second], [], pa.int64())


LEAST = -(2**63)


@pytest.mark.parametrize(
    ("values", "total"),
    [([-1, LEAST], 2**63 - 1), ([LEAST, LEAST], 0), ([0, LEAST], None), ([LEAST, 1], None), ([2**63 - 1, -1], None)],
)
def test_what_is_taken_back_may_be_the_least_bigint(values: list[int], total: int | None) -> None:
    nodes: Nodes = [(ADD, NOTHING, 0), (SUBTRACT, 0, 1)]
    if total is not None:
        assert evaluated("sum", nodes, values, [], pa.int64()) == [values[0], total]
    else:
        with pytest.raises(OverflowError, match="a sum of integers is too large for a bigint"):
            evaluated("sum", nodes, values, [], pa.int64())


def test_decimals_are_exact_up_to_18_digits_and_no_further() -> None:
    cents = pa.decimal128(38, 2)
    nodes: Nodes = [(ADD, NOTHING, 0), (SUBTRACT, 0, 1)]
    exact = [Decimal("-1234567890123456.78"), Decimal("0.01")]
    assert evaluated("sum", nodes, exact, [], cents) == [exact[0], exact[0] - exact[1]]
    with pytest.raises(OverflowError, match="a sum of decimals has more than 18 digits"):
        evaluated("sum", nodes, [Decimal("123456789012345678.90"), exact[1]], [], cents)


@pytest.mark.parametrize("function", ["min", "max"])
def test_a_least_or_largest_value_cannot_be_taken_back(function: str) -> None:
    with pytest.raises(ValueError, match="cannot be taken back"):
        evaluated(function, [(ADD, NOTHING, 0), (SUBTRACT, 0, 0)], [1], [], pa.int64())
