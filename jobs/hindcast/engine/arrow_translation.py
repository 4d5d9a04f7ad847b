"""Which expressions of a contract are evaluated on Arrow's columns, and by which functions.

An expression is translated if all that it consists of is in the lists here, with operands of types whose rules are
known (typed_calls.py). All others are left to Spark.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, date, datetime
from decimal import Decimal
from functools import partial

import pyarrow as pa
from sqlglot import expressions as exp

from hindcast.contract.parsing import parse_resolved
from hindcast.engine import typed_calls
from hindcast.engine.arrow_expressions import ColumnReference, Constant, Expression
from hindcast.engine.typed_calls import UntranslatableError

Columns = Mapping[tuple[str, str], ColumnReference]
"""By input and name, the columns that an expression can read."""

MAX_TERMS = 50
"""So deep an expression may be at most, and so many operands or branches it may have in one place."""


def translate_expression(text: str, columns: Columns) -> Expression | None:
    """Return a resolved expression (`expressions.resolve`) as a tree over `columns`; None if it is Spark's to evaluate.

    >>> translate_expression("rlike(orders.item, 'a.c')", {})
    """
    try:
        found = _translate(parse_resolved(text), columns, 0)
    except UntranslatableError:
        return None
    return None if pa.types.is_null(found.kind) else found


def _translate(node: exp.Expr, columns: Columns, depth: int) -> Expression:
    if depth > MAX_TERMS or sum(1 for _ in node.iter_expressions()) > MAX_TERMS:
        raise UntranslatableError
    if isinstance(node, exp.Predicate):
        operands: list[exp.Expr] = [*node.iter_expressions()]
        if isinstance(node, exp.NullSafeEQ):  # sqlglot puts what is on its right into brackets
            operands = [it.unnest() for it in operands]
        if any(isinstance(it, _CONDITIONS) for it in operands):
            raise UntranslatableError  # a = b < c: where Spark's grammar has (a = b) < c, sqlglot's has a = (b < c)

    def translate(part: object) -> Expression:
        if not isinstance(part, exp.Expr):
            raise UntranslatableError
        return _translate(part, columns, depth + 1)

    if (constant := _find_constant(node)) is not None:
        return constant
    match node:
        case exp.Paren():
            return translate(node.this)
        case exp.Column():
            path = tuple(part.name for part in node.parts)
            if len(path) != 2 or path not in columns:
                raise UntranslatableError
            return columns[path]
        case exp.Not() if isinstance(node.this, exp.Is):
            return typed_calls.build_call("not", [translate(node.this)], pa.bool_())
        case exp.Is() if isinstance(node.expression, exp.Null):
            return typed_calls.build_call("is_null", [translate(node.this)], pa.bool_())
        case exp.Between(args={"low": low, "high": high}):
            value = translate(node.this)
            is_least = typed_calls.compare("greater_equal", value, translate(low))
            return typed_calls.connect("and", is_least, typed_calls.compare("less_equal", value, translate(high)))
        case exp.In() if node.expressions and set(_given(node)) == {"this", "expressions"}:
            constants = [it for it in map(_find_constant, node.expressions) if it is not None]
            if len(constants) < len(node.expressions):
                raise UntranslatableError
            return typed_calls.find_any(translate(node.this), constants)
        case exp.Case():
            return _translate_case(node, translate)
        case exp.If(args={"true": first, "false": exp.Expr() as second}):
            return typed_calls.choose([(translate(node.this), translate(first))], translate(second))
        case exp.Cast():
            return _cast_explicitly(translate(node.this), node)
        case exp.Trim() if _given(node) == ["this"]:
            return typed_calls.call_text("trim", translate(node.this))
        case exp.Substring(args={"start": start, "length": exp.Expr() as length}):
            since, count = _read_count(start), _read_count(length)
            if since < 1:
                raise UntranslatableError  # from the end, or from before the start
            return typed_calls.slice_text(translate(node.this), since - 1, since - 1 + count)
        case exp.Extract() if node.name.upper() in _EXTRACTED:
            return typed_calls.take_part(node.name.lower(), translate(node.expression))
        case exp.Anonymous() if isinstance(node.this, str):
            return _call_function(node.this.lower(), node.expressions, translate)
        case exp.Unary() | exp.Binary() if type(node) in _OPERATORS:
            operands = [node.this, *([node.expression] if isinstance(node, exp.Binary) else [])]
            return _OPERATORS[type(node)](*map(translate, operands))
    raise UntranslatableError


_CONDITIONS = (exp.Predicate, exp.Connector, exp.Not)


def _given(node: exp.Expr) -> list[str]:
    return [name for name, value in node.args.items() if value]


def _find_constant(node: exp.Expr) -> Constant | None:
    """Return a literal; None if it is another expression, or a literal of another type than those here."""
    match node:
        case exp.Null():
            return Constant(None, pa.null())
        case exp.Boolean():
            return Constant(bool(node.this), pa.bool_())
        case exp.Paren():
            return _find_constant(node.this)
        case exp.Neg() if isinstance(node.this, exp.Literal) and not node.this.is_string:
            return _read_number(f"-{node.this.name}")
        case exp.Literal():
            return Constant(node.name, pa.string()) if node.is_string else _read_number(node.name)
        case exp.TryCast() | exp.Cast() if isinstance(node.this, exp.Literal) and node.this.is_string:
            return _read_moment(node.this.name, node.to)
    return None


_INTEGER, _DECIMAL = re.compile(r"-?\d+"), re.compile(r"-?\d+\.\d+")


def _read_number(text: str) -> Constant | None:
    if _INTEGER.fullmatch(text):
        value = int(text)
        bits = next((n for n in (32, 64) if -(2 ** (n - 1)) <= value < 2 ** (n - 1)), None)
        return None if bits is None else Constant(value, typed_calls.INTEGERS[bits])
    if not _DECIMAL.fullmatch(text):
        return None
    decimal = Decimal(text)
    _, digits, exponent = decimal.as_tuple()
    scale = -int(exponent)
    precision = max(len(digits) if decimal else 1, scale)
    return Constant(decimal, pa.decimal128(precision, scale)) if precision <= typed_calls.MOST_DIGITS else None


_DATE, _TIMESTAMP = re.compile(r"\d{4}-\d{2}-\d{2}"), re.compile(r"\d{4}-\d{2}-\d{2} \d{2}:\d{2}:\d{2}(\.\d{6})?")


def _read_moment(text: str, to: exp.DataType) -> Constant | None:
    try:
        if to.this == exp.DType.DATE and _DATE.fullmatch(text):
            return Constant(date.fromisoformat(text), pa.date32())
        if to.this == exp.DType.TIMESTAMPTZ and (_TIMESTAMP.fullmatch(text) or _DATE.fullmatch(text)):
            return Constant(datetime.fromisoformat(text).replace(tzinfo=UTC), pa.timestamp("us", "UTC"))
    except ValueError:
        return None  # no such day
    return None


def _read_count(node: exp.Expr) -> int:
    """Return a literal number of characters or digits, which is not negative."""
    constant = _find_constant(node)
    if constant is None or not isinstance(constant.value, int) or isinstance(constant.value, bool):
        raise UntranslatableError
    if not 0 <= constant.value <= _MOST_CHARACTERS:
        raise UntranslatableError
    return constant.value


_MOST_CHARACTERS = 1_000_000


def _read_text(node: exp.Expr) -> str:
    constant = _find_constant(node)
    if constant is None or not isinstance(constant.value, str):
        raise UntranslatableError
    return constant.value


def _cast_explicitly(it: Expression, node: exp.Cast) -> Expression:
    to = node.to
    if node.args.get("safe") or node.args.get("format") or isinstance(it, Constant):
        raise UntranslatableError
    if to.this == exp.DType.DECIMAL:
        sizes = [_read_count(param.this) for param in to.expressions]
        if len(sizes) != 2:
            raise UntranslatableError
        return typed_calls.cast(it, typed_calls.decimal_type(*sizes))
    if to.this not in _CAST_TYPES:
        raise UntranslatableError
    return typed_calls.cast(it, _CAST_TYPES[to.this])


_CAST_TYPES = {
    exp.DType.TINYINT: pa.int8(),
    exp.DType.SMALLINT: pa.int16(),
    exp.DType.INT: pa.int32(),
    exp.DType.BIGINT: pa.int64(),
    exp.DType.DOUBLE: pa.float64(),
    exp.DType.DATE: pa.date32(),
    exp.DType.TEXT: pa.string(),
}


_OPERATORS: dict[type[exp.Expr], Callable[..., Expression]] = {
    exp.Add: partial(typed_calls.calculate, "add"),
    exp.Sub: partial(typed_calls.calculate, "subtract"),
    exp.Mul: partial(typed_calls.calculate, "multiply"),
    exp.Div: typed_calls.divide,
    exp.Neg: partial(typed_calls.call_number, "negate"),
    exp.EQ: partial(typed_calls.compare, "equal"),
    exp.NEQ: partial(typed_calls.compare, "not_equal"),
    exp.NullSafeEQ: partial(typed_calls.compare, "equal_or_both_null"),
    exp.LT: partial(typed_calls.compare, "less"),
    exp.LTE: partial(typed_calls.compare, "less_equal"),
    exp.GT: partial(typed_calls.compare, "greater"),
    exp.GTE: partial(typed_calls.compare, "greater_equal"),
    exp.And: partial(typed_calls.connect, "and"),
    exp.Or: partial(typed_calls.connect, "or"),
    exp.Not: partial(typed_calls.connect, "not"),
    exp.DPipe: partial(typed_calls.call_text, "concat"),
}


def _translate_case(node: exp.Case, translate: Callable[[object], Expression]) -> Expression:
    of = translate(node.this) if node.this else None
    chosen = []
    for branch in node.args["ifs"]:
        when = translate(branch.this)
        chosen.append((when if of is None else typed_calls.compare("equal", of, when), translate(branch.args["true"])))
    default = node.args.get("default")
    return typed_calls.choose(chosen, translate(default) if default else Constant(None, pa.null()))


_EXTRACTED = ("YEAR", "QUARTER", "MONTH", "DAY", "HOUR", "MINUTE")
_PARTS = (*typed_calls.PARTS_OF_DATES, "hour", "minute", "second")


def _call_function(name: str, arguments: Sequence[exp.Expr], translate: Callable[[object], Expression]) -> Expression:
    """Return the call of a function by its name, if it is one of those here."""
    match name, arguments:
        case ("coalesce", [_, *_]) | ("nvl" | "ifnull", [_, _]):
            return typed_calls.coalesce(*map(translate, arguments))
        case "nullif", [one, other]:
            value, null = translate(one), Constant(None, pa.null())
            return typed_calls.choose([(typed_calls.compare("equal", value, translate(other)), null)], value)
        case "abs", [one]:
            return typed_calls.call_number("abs", translate(one))
        case "round", [one, *digits] if len(digits) < 2:
            return typed_calls.round_half_up(translate(one), _read_count(digits[0]) if digits else 0)
        case (("greatest" | "least"), [_, _, *_]):
            return typed_calls.find_extreme(name, *map(translate, arguments))
        case ("concat", [_, _, *_]) | ("ltrim" | "rtrim" | "upper" | "lower", [_]):
            return typed_calls.call_text(name, *map(translate, arguments))
        case (("length" | "char_length"), [one]):
            return typed_calls.call_text("length", translate(one), kind=pa.int32())
        case "left", [one, count]:
            return typed_calls.slice_text(translate(one), 0, _read_count(count))
        case (("startswith" | "endswith" | "contains"), [one, part]):
            return typed_calls.call_text(name, translate(one), Constant(_read_text(part), pa.string()), kind=pa.bool_())
        case (("to_date" | "date"), [one]) if pa.types.is_timestamp((moment := translate(one)).kind):
            return typed_calls.cast(moment, pa.date32())
        case "date_trunc", [unit, one]:
            return typed_calls.truncate_moment(_read_text(unit).lower(), translate(one))
        case _, [one] if name in _PARTS:
            return typed_calls.take_part(name, translate(one))
    raise UntranslatableError
