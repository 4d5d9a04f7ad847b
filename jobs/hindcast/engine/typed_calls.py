"""Calls of Arrow's functions with the types that Spark gives them, by the rules of ANSI mode.

Operands of different types are cast as Spark casts them. UntranslatableError: there is no such call, or its rules are
not known here.
"""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from hindcast.engine.arrow_expressions import Call, Constant, Expression, evaluate, list_columns


class UntranslatableError(Exception):
    """A part of an expression that is Spark's to evaluate."""


MAX_CALLS = 1_000
"""How many calls an expression may have: `nullif`, `between`, `in` and `case` use a part of theirs several times."""


def build_call(function: str, arguments: Sequence[Expression], kind: pa.DataType) -> Call:
    """Return a call; of constants alone there is none, since Spark evaluates it once."""
    found = Call(function, tuple(arguments), kind)
    if found.size > MAX_CALLS or not list_columns(found) or any(pa.types.is_null(it.kind) for it in arguments):
        raise UntranslatableError
    return found


INTEGERS = {8: pa.int8(), 16: pa.int16(), 32: pa.int32(), 64: pa.int64()}
MOST_DIGITS = 38
_DIGITS_OF_INTEGERS = {8: 3, 16: 5, 32: 10, 64: 20}
_DOUBLE_DIGITS = 15
"""So many digits each have a double of their own."""


def _is_exact(kind: pa.DataType) -> bool:
    return pa.types.is_decimal128(kind) or kind in INTEGERS.values()


def _measure_decimal(it: Expression, *, beside: pa.DataType | None = None) -> tuple[int, int]:
    """Return precision and scale of a decimal, or of an integer as one; of a literal beside a decimal, its own."""
    if pa.types.is_decimal(it.kind):
        return it.kind.precision, it.kind.scale
    # rule: a literal beside a decimal has its own digits
    if isinstance(it, Constant) and beside is not None and pa.types.is_decimal(beside):
        return len(str(abs(int(str(it.value))))), 0
    return _DIGITS_OF_INTEGERS[it.kind.bit_width], 0


def decimal_type(precision: int, scale: int) -> pa.DataType:
    """Return a decimal type; UntranslatableError if it has more digits than Spark keeps."""
    if not 0 <= scale <= precision <= MOST_DIGITS:
        raise UntranslatableError
    return pa.decimal128(precision, scale)


def _find_common_type(them: Sequence[Expression]) -> pa.DataType:
    """Return the type to which Spark casts values of several types to compare them or to choose among them."""
    kinds = [it.kind for it in them if not pa.types.is_null(it.kind)]
    if not kinds:
        raise UntranslatableError
    common = kinds[0]
    for kind in kinds[1:]:
        common = _find_wider_type(common, kind)
    return common


def _find_wider_type(one: pa.DataType, other: pa.DataType) -> pa.DataType:
    if one == other:
        return one
    if {one, other} <= {*INTEGERS.values()}:
        return max(one, other, key=lambda kind: kind.bit_width)
    if _is_exact(one) and _is_exact(other):
        (p, s), (q, t) = (_measure_decimal(Constant(0, kind)) for kind in (one, other))
        return decimal_type(max(p - s, q - t) + max(s, t), max(s, t))
    if pa.float64() in (one, other) and (_is_exact(one) or _is_exact(other)):
        return pa.float64()
    raise UntranslatableError


def _coerce(it: Expression, kind: pa.DataType) -> Expression:
    """Return an expression as one of a type, by a cast that Spark adds too."""
    if it.kind == kind:
        return it
    if isinstance(it, Constant) and it.value is None:
        return Constant(None, kind)
    return cast(it, kind)


def cast(it: Expression, kind: pa.DataType) -> Expression:
    """Return an expression as another type: between numbers, to a text, from a moment to its date."""
    if it.kind == kind:
        return it
    is_possible = (
        (_is_exact(it.kind) and _is_exact(kind))
        or (it.kind in INTEGERS.values() and kind in (pa.float64(), pa.string()))
        or (pa.types.is_decimal(it.kind) and it.kind.precision <= _DOUBLE_DIGITS and kind == pa.float64())
        or (pa.types.is_timestamp(it.kind) and kind == pa.date32())
        or (pa.types.is_boolean(it.kind) and kind == pa.string())
    )
    if not is_possible:
        raise UntranslatableError
    call = Call("cast", (it,), kind)
    if isinstance(it, Constant):
        try:
            return Constant(evaluate(call, pa.table({})).as_py(), kind)
        except pa.ArrowInvalid:
            raise UntranslatableError from None
    return call


def calculate(function: str, left: Expression, right: Expression) -> Expression:
    """Return a sum, a difference or a product: of integers, of decimals, or of doubles."""
    if not all(_is_exact(it.kind) or it.kind == pa.float64() for it in (left, right)):
        raise UntranslatableError
    if pa.float64() in (left.kind, right.kind):
        return build_call(function, [_coerce(left, pa.float64()), _coerce(right, pa.float64())], pa.float64())
    if not any(pa.types.is_decimal(it.kind) for it in (left, right)):
        common = _find_wider_type(left.kind, right.kind)
        return build_call(function, [_coerce(left, common), _coerce(right, common)], common)
    p, s = _measure_decimal(left, beside=right.kind)
    q, t = _measure_decimal(right, beside=left.kind)
    if function == "multiply":
        kind = decimal_type(p + q + 1, s + t)
    else:
        kind = decimal_type(max(p - s, q - t) + max(s, t) + 1, max(s, t))
    sides = [_coerce(left, decimal_type(p, s)), _coerce(right, decimal_type(q, t))]
    return build_call(function, sides, kind)


def divide(left: Expression, right: Expression) -> Expression:
    """Return a quotient of integers or doubles, which is a double."""
    if not all(it.kind == pa.float64() or it.kind in INTEGERS.values() for it in (left, right)):
        raise UntranslatableError
    return build_call("divide", [_coerce(left, pa.float64()), _coerce(right, pa.float64())], pa.float64())


def call_number(function: str, it: Expression) -> Expression:
    """Return a function of a number that gives one of the same type."""
    if not _is_exact(it.kind) and it.kind != pa.float64():
        raise UntranslatableError
    return build_call(function, [it], it.kind)


def compare(function: str, left: Expression, right: Expression) -> Expression:
    """Return a comparison, as values of one type."""
    common = _find_common_type([left, right])
    if not _is_comparable(common):
        raise UntranslatableError
    return build_call(function, [_coerce(left, common), _coerce(right, common)], pa.bool_())


def _is_comparable(kind: pa.DataType) -> bool:
    is_moment = pa.types.is_date32(kind) or pa.types.is_timestamp(kind)
    return _is_exact(kind) or kind in (pa.float64(), pa.string(), pa.bool_()) or is_moment


def connect(function: str, *conditions: Expression) -> Expression:
    """Return conditions connected by and, or, or not."""
    if any(it.kind != pa.bool_() for it in conditions):
        raise UntranslatableError
    return build_call(function, conditions, pa.bool_())


def call_text(function: str, *texts: Expression, kind: pa.DataType | None = None) -> Expression:
    """Return a function of texts that gives a text, or a value of another type."""
    if not texts or any(it.kind != pa.string() for it in texts):
        raise UntranslatableError
    return build_call(function, texts, kind or pa.string())


def find_any(value: Expression, constants: Sequence[Constant]) -> Expression:
    """Return whether a value is one of some constants."""
    common = _find_common_type([value, *constants])
    found = compare("equal", _coerce(value, common), _coerce(constants[0], common))
    for constant in constants[1:]:
        found = connect("or", found, compare("equal", _coerce(value, common), _coerce(constant, common)))
    return found


def choose(chosen: Sequence[tuple[Expression, Expression]], otherwise: Expression) -> Expression:
    """Return the value beside the first condition that is true."""
    common = _find_common_type([*(value for _, value in chosen), otherwise])
    found = _coerce(otherwise, common)
    for condition, value in reversed(chosen):
        if condition.kind != pa.bool_():
            raise UntranslatableError
        found = build_call("if", [condition, _coerce(value, common), found], common)
    return found


def coalesce(*them: Expression) -> Expression:
    """Return the first value that is not null."""
    common = _find_common_type(them)
    *others, found = (_coerce(it, common) for it in them)
    for it in reversed(others):
        found = build_call("coalesce", [it, found], common)
    return found


def round_half_up(it: Expression, digits: int) -> Expression:
    """Return a decimal, or an integer, rounded half up."""
    if isinstance(it, Constant) or not _is_exact(it.kind):
        raise UntranslatableError  # to Spark a constant is a literal no more when it is rounded
    if it.kind in INTEGERS.values():
        return it
    scale = min(it.kind.scale, digits)
    return build_call("round", [it], decimal_type(it.kind.precision - it.kind.scale + 1 + scale, scale))


def find_extreme(function: str, *them: Expression) -> Expression:
    """Return the greatest or the least of some values, of which nulls do not count."""
    common = _find_common_type(them)
    if not _is_comparable(common) or common == pa.float64():
        raise UntranslatableError
    return build_call(function, [_coerce(it, common) for it in them], common)


def slice_text(text: Expression, start: int, stop: int) -> Expression:
    """Return the characters of a text from one place to before another."""
    if text.kind != pa.string():
        raise UntranslatableError
    return build_call("slice", [text, Constant(start, pa.int64()), Constant(stop, pa.int64())], pa.string())


def truncate_moment(unit: str, moment: Expression) -> Expression:
    """Return the start of the year, the hour, ... of a timestamp."""
    if unit not in _UNITS or not pa.types.is_timestamp(moment.kind) or moment.kind.tz is None:
        raise UntranslatableError
    return build_call("date_trunc", [moment, Constant(unit, pa.string())], moment.kind)


_UNITS = ("year", "quarter", "month", "day", "hour", "minute", "second")
PARTS_OF_DATES = ("year", "quarter", "month", "day", "dayofmonth", "dayofyear", "dayofweek", "weekday")


def take_part(name: str, moment: Expression) -> Expression:
    """Return a part of a date or a timestamp, such as its year."""
    if not pa.types.is_temporal(moment.kind) or (pa.types.is_date32(moment.kind) and name not in PARTS_OF_DATES):
        raise UntranslatableError
    return build_call("day" if name == "dayofmonth" else name, [moment], pa.int32())
