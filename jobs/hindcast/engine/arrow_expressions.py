"""Expressions over Arrow tables: trees of columns, constants and calls, and what they give.

Each function gives what Spark's of that name gives, to the last digit and null, in ANSI mode and in UTC
(tests/test_arrow_expressions.py compares them). Where Spark would fail, and where Arrow could differ, EvaluationError
is raised. arrow_translation.py says which expressions of a contract become such trees.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc


class EvaluationError(ValueError):
    """An expression that has no value in a row, such as a sum that is too large for its type, or one unlike Spark's."""


@dataclass(frozen=True)
class ColumnReference:
    """A column of the rows."""

    name: str
    kind: pa.DataType


@dataclass(frozen=True)
class Constant:
    """A value, the same in each row: null, bool, int, str, Decimal, float, date or datetime."""

    value: object
    kind: pa.DataType


@dataclass(frozen=True)
class Call:
    """A function (`FUNCTIONS`, `LAZY_FUNCTIONS`) of other expressions, and the type of what it gives.

    `size`: how many calls it consists of; a part that it uses twice counts twice, as it is evaluated twice.
    """

    function: str
    arguments: tuple[Expression, ...]
    kind: pa.DataType
    size: int = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        parts = (it.size for it in self.arguments if isinstance(it, Call))
        object.__setattr__(self, "size", 1 + sum(parts))


Expression = ColumnReference | Constant | Call

Values: TypeAlias = pa.ChunkedArray | pa.Scalar
"""The values of an expression; of a constant, one for all rows."""


@dataclass(frozen=True)
class Projection:
    """The columns of a view as expressions, by name, and the condition of its rows."""

    columns: Mapping[str, Expression]
    where: Expression | None

    @property
    def reads(self) -> set[str]:
        """The columns that it is evaluated over."""
        every = [*self.columns.values(), *([] if self.where is None else [self.where])]
        return set().union(*map(list_columns, every))


def project_rows(form: Projection, rows: pa.Table) -> pa.Table:
    """Return the columns of the rows that meet the condition; EvaluationError if one has no value."""
    if form.where is not None:
        rows = rows.filter(evaluate_column(form.where, rows))
    return pa.table({name: evaluate_column(it, rows) for name, it in form.columns.items()})


def evaluate_column(it: Expression, rows: pa.Table) -> pa.ChunkedArray:
    """Return the value in each row; a column that is only copied may be a dictionary.

    EvaluationError if it has none in a row.
    """
    if isinstance(it, ColumnReference):
        return rows.column(it.name)
    try:
        found = evaluate(it, rows)
    except (pa.ArrowInvalid, pa.ArrowCapacityError, pa.ArrowNotImplementedError) as error:
        raise EvaluationError(str(error)) from error
    return pa.chunked_array([pa.repeat(found, rows.num_rows)]) if isinstance(found, pa.Scalar) else found


def evaluate(it: Expression, rows: pa.Table) -> Values:
    """Return the value of an expression in each row, of the type `it.kind`."""
    if isinstance(it, Constant):
        return pa.scalar(it.value, it.kind)
    if isinstance(it, ColumnReference):
        column = rows.column(it.name)
        return column.cast(it.kind) if pa.types.is_dictionary(column.type) else column
    if it.function in LAZY_FUNCTIONS:
        return LAZY_FUNCTIONS[it.function](it.arguments, rows)
    return FUNCTIONS[it.function]([evaluate(argument, rows) for argument in it.arguments], it.kind)


def list_columns(it: Expression) -> set[str]:
    """Return the names of the columns that an expression reads."""
    if isinstance(it, Call):
        return set().union(*map(list_columns, it.arguments))
    return {it.name} if isinstance(it, ColumnReference) else set()


def _evaluate_where(it: Expression, rows: pa.Table, condition: Values) -> Values:
    """Return the value in the rows that meet a condition, and any value or null in the others."""
    if not _can_fail(it):
        return evaluate(it, rows)
    if isinstance(condition, pa.Scalar):
        condition = pa.chunked_array([pa.repeat(condition, rows.num_rows)])
    found = evaluate(it, rows.filter(condition))
    if isinstance(found, pa.Scalar):
        return found
    chosen = condition.to_numpy()
    places = np.cumsum(chosen) - 1
    return found.take(pa.array(places, mask=~chosen))


def _can_fail(it: Expression) -> bool:
    return isinstance(it, Call) and (it.function in _FAILING or any(map(_can_fail, it.arguments)))


def _evaluate_and(arguments: tuple[Expression, ...], rows: pa.Table) -> Values:
    left = evaluate(arguments[0], rows)
    # rule: the second condition counts where the first is not false
    return pc.and_kleene(left, _evaluate_where(arguments[1], rows, pc.fill_null(left, True)))


def _evaluate_or(arguments: tuple[Expression, ...], rows: pa.Table) -> Values:
    left = evaluate(arguments[0], rows)
    # rule: the second condition counts where the first is not true
    return pc.or_kleene(left, _evaluate_where(arguments[1], rows, pc.invert(pc.fill_null(left, False))))


def _evaluate_if(arguments: tuple[Expression, ...], rows: pa.Table) -> Values:
    condition = pc.fill_null(evaluate(arguments[0], rows), False)
    first = _evaluate_where(arguments[1], rows, condition)
    return pc.if_else(condition, first, _evaluate_where(arguments[2], rows, pc.invert(condition)))


def _evaluate_coalesce(arguments: tuple[Expression, ...], rows: pa.Table) -> Values:
    first = evaluate(arguments[0], rows)
    return pc.coalesce(first, _evaluate_where(arguments[1], rows, pc.is_null(first)))


LAZY_FUNCTIONS: dict[str, Callable[[tuple[Expression, ...], pa.Table], Values]] = {
    "and": _evaluate_and,
    "or": _evaluate_or,
    "if": _evaluate_if,
    "coalesce": _evaluate_coalesce,
}
"""Functions that evaluate an argument only in the rows where its value counts."""

_FAILING = ("add", "subtract", "multiply", "divide", "negate", "abs", "cast", "upper", "lower")


def _cast(arguments: list[Values], kind: pa.DataType) -> Values:
    """Return values of another type, as Spark casts those that `arrow_translation` has casts of."""
    (values,) = arguments
    given = values.type
    if pa.types.is_integer(given) and pa.types.is_floating(kind):
        return pc.cast(values, kind, safe=False)
    if pa.types.is_decimal(given) and pa.types.is_floating(kind):
        # Both are exact doubles, so the quotient is the nearest one.
        unscaled = pc.cast(
            pc.multiply(values, pa.scalar(10**given.scale, pa.decimal128(given.scale + 1, 0))), pa.int64()
        )
        return pc.divide(pc.cast(unscaled, kind), pa.scalar(float(10**given.scale), kind))
    if pa.types.is_decimal(given) and pa.types.is_integer(kind):
        return pc.cast(pc.trunc(values), kind)
    if pa.types.is_integer(given) and pa.types.is_decimal(kind):
        values, given = pc.cast(values, pa.decimal128(20, 0)), pa.decimal128(20, 0)
    if pa.types.is_decimal(given) and pa.types.is_decimal(kind):
        return _rescale(values, kind)
    return pc.cast(values, kind)


def _rescale(values: Values, kind: pa.DataType) -> Values:
    """Return decimals with another precision and scale, rounded half up."""
    given = values.type
    if kind.scale < given.scale:
        # rule: a decimal is rounded half up
        values = pc.round(pc.cast(values, pa.decimal128(38, given.scale)), kind.scale, "half_towards_infinity")
    return pc.cast(values, kind)


def _change_case(change: Callable[[Values], Values]) -> Callable[[list[Values], pa.DataType], Values]:
    def apply(arguments: list[Values], _: pa.DataType) -> Values:
        (values,) = arguments
        if not pc.all(pc.string_is_ascii(values), min_count=0).as_py():
            raise EvaluationError("upper and lower case of letters beyond ASCII")
        return change(values)

    return apply


Comparison = Callable[[Values, Values], Values]


def _compare(compare: Comparison, of_doubles: Comparison) -> Callable[[list[Values], pa.DataType], Values]:
    """Return a comparison in which, as in Spark, NaN equals NaN and is more than any other double."""

    def apply(arguments: list[Values], _: pa.DataType) -> Values:
        return (of_doubles if pa.types.is_floating(arguments[0].type) else compare)(*arguments)

    return apply


def _equal_doubles(one: Values, other: Values) -> Values:
    return pc.or_(pc.equal(one, other), pc.and_(pc.is_nan(one), pc.is_nan(other)))


def _less_doubles(one: Values, other: Values) -> Values:
    # rule: NaN is more than any other double
    return pc.and_(pc.invert(pc.is_nan(one)), pc.or_(pc.is_nan(other), pc.less(one, other)))


def _at_least_doubles(one: Values, other: Values) -> Values:
    return pc.invert(_less_doubles(one, other))


_equal = _compare(pc.equal, _equal_doubles)


def _equal_or_both_null(arguments: list[Values], kind: pa.DataType) -> Values:
    one, other = arguments
    both = pc.and_(pc.is_null(one), pc.is_null(other))
    return pc.or_(both, pc.fill_null(_equal(arguments, kind), False))


def _take_part(part: Callable[[Values], Values]) -> Callable[[list[Values], pa.DataType], Values]:
    """Return a function that gives a part of a moment, which is in UTC, or of a date."""

    def apply(arguments: list[Values], kind: pa.DataType) -> Values:
        (moments,) = arguments
        local = pc.cast(moments, pa.timestamp("us")) if pa.types.is_timestamp(moments.type) else moments
        return pc.cast(part(local), kind)

    return apply


def _truncate(arguments: list[Values], kind: pa.DataType) -> Values:
    moments, unit = arguments
    local = pc.cast(moments, pa.timestamp("us"))
    return pc.cast(pc.floor_temporal(local, unit=unit.as_py()), kind)


def _slice_text(arguments: list[Values], _: pa.DataType) -> Values:
    text, start, stop = arguments
    return pc.utf8_slice_codeunits(text, start.as_py(), stop.as_py())


def _round(arguments: list[Values], kind: pa.DataType) -> Values:
    return _rescale(arguments[0], kind)


FUNCTIONS: dict[str, Callable[[list[Values], pa.DataType], Values]] = {
    "cast": _cast,
    "add": lambda it, _: pc.add_checked(*it),
    "subtract": lambda it, _: pc.subtract_checked(*it),
    "multiply": lambda it, _: pc.multiply_checked(*it),
    "divide": lambda it, _: pc.divide_checked(*it),
    "negate": lambda it, _: pc.negate_checked(*it),
    "abs": lambda it, _: pc.abs_checked(*it),
    "round": _round,
    "equal": _equal,
    "not_equal": _compare(pc.not_equal, lambda *it: pc.invert(_equal_doubles(*it))),
    "less": _compare(pc.less, _less_doubles),
    "less_equal": _compare(pc.less_equal, lambda one, other: _at_least_doubles(other, one)),
    "greater": _compare(pc.greater, lambda one, other: _less_doubles(other, one)),
    "greater_equal": _compare(pc.greater_equal, _at_least_doubles),
    "equal_or_both_null": _equal_or_both_null,
    "not": lambda it, _: pc.invert(*it),
    "is_null": lambda it, _: pc.is_null(*it),
    "greatest": lambda it, _: pc.max_element_wise(*it),
    "least": lambda it, _: pc.min_element_wise(*it),
    "concat": lambda it, _: pc.binary_join_element_wise(*it, "", null_handling="emit_null"),
    "length": lambda it, kind: pc.cast(pc.utf8_length(*it), kind),
    "trim": lambda it, _: pc.utf8_trim(*it, characters=" "),
    "ltrim": lambda it, _: pc.utf8_ltrim(*it, characters=" "),
    "rtrim": lambda it, _: pc.utf8_rtrim(*it, characters=" "),
    "upper": _change_case(pc.ascii_upper),
    "lower": _change_case(pc.ascii_lower),
    "slice": _slice_text,
    "startswith": lambda it, _: pc.starts_with(it[0], it[1].as_py()),
    "endswith": lambda it, _: pc.ends_with(it[0], it[1].as_py()),
    "contains": lambda it, _: pc.match_substring(it[0], it[1].as_py()),
    "year": _take_part(pc.year),
    "quarter": _take_part(pc.quarter),
    "month": _take_part(pc.month),
    "day": _take_part(pc.day),
    "dayofyear": _take_part(pc.day_of_year),
    "dayofweek": _take_part(lambda it: pc.day_of_week(it, count_from_zero=False, week_start=7)),
    "weekday": _take_part(pc.day_of_week),
    "hour": _take_part(pc.hour),
    "minute": _take_part(pc.minute),
    "second": _take_part(pc.second),
    "date_trunc": _truncate,
}
