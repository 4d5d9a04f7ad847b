"""The variables of a contract: declared with a type under `variables:`, written `$(name)` in its values.

    variables:
      region: {type: string, default: eu}
      least: {type: "decimal(8,2)"}
    topics:
      orders: {topic: $(region).orders, ...}    # topic: eu.orders
    views:
      large: {where: area = $(region) and amount > $(least), ...}
      # area = 'eu' and amount > CAST('9.50' AS DECIMAL(8,2))

Values are put in after the YAML is parsed, and into expressions as literals of Spark SQL: a value can add neither YAML
nor SQL. A value that is nothing but `$(name)` becomes the variable's own: a number stays a number. `$$(name)` is a
`$(name)` that nothing replaces, and nothing is replaced without `variables:`. What a value changes is part of a
contract's hash.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from datetime import date, timedelta
from decimal import Context, Decimal, InvalidOperation
from typing import Annotated, NamedTuple

import sqlglot
from pydantic import AfterValidator, Field, GetPydanticSchema, TypeAdapter
from pydantic_core.core_schema import any_schema
from sqlglot.errors import TokenError

from hindcast.common.target_entries import Scalar
from hindcast.contract import bounds
from hindcast.contract.shapes import FieldPath
from hindcast.contract.types import (
    ContractModel,
    ContractValue,
    Name,
    format_duration,
    format_value,
    parse_column_type,
    parse_date,
    parse_duration,
    parse_moment,
)

MAX_LENGTH = 1_000
"""The longest text that is the value of a variable."""

FIELD = "variables"


def _parse_type(text: str) -> str:
    kind = text if text == "duration" else parse_column_type(text)
    if kind not in _PARSERS and not kind.startswith("decimal("):
        raise ValueError(
            f"'{text}' is not a type that a variable can have; write {', '.join(_PARSERS)} or decimal(8,2)"
        )
    return kind


class Variable(ContractModel):
    """A variable: its type, and its value if nothing else gives one."""

    type: Annotated[str, AfterValidator(_parse_type)] = Field(
        description="duration, string, boolean, int and other whole numbers, double, decimal(8,2), date or timestamp."
    )
    default: Annotated[Scalar, GetPydanticSchema(lambda *_: any_schema())] = Field(
        None, description="Its value if neither a target nor --var gives one."
    )
    description: str = Field("", max_length=bounds.DESCRIPTION, description="What it is for.")


Variables = TypeAdapter(dict[Name, Variable])


class BoundValue(NamedTuple):
    """The value of a variable: as YAML would give it, and as a literal of Spark SQL."""

    value: Scalar
    literal: str


def parse_value(kind: str, value: Scalar) -> BoundValue:
    """Return a value as one of this type; raise ValueError, with a fix, for one that does not have it.

    >>> parse_value("decimal(8,2)", "1.5"), parse_value("string", "it's")
    (BoundValue(value=1.5, literal="CAST('1.5' AS DECIMAL(8,2))"), BoundValue(value="it's", literal="'it\\\\'s'"))
    """
    if kind.startswith("decimal("):
        return _parse_decimal(kind, value)
    return _PARSERS[kind](kind, value)


def _parse_string(_: str, value: Scalar) -> BoundValue:
    if not isinstance(value, str):
        raise _build_refusal(f"{format_value(value)} is not a text; put it in quotes")
    if len(value) > MAX_LENGTH:
        raise _build_refusal(f"the text has {len(value):,} characters; write at most {MAX_LENGTH:,}")
    if (odd := bounds.find_unprintable(value)) is not None:
        raise _build_refusal(f"the text contains the character U+{ord(odd):04X}; remove it")
    escaped = value.replace("\\", "\\\\").replace("'", "\\'").replace("\n", "\\n").replace("\t", "\\t")
    return BoundValue(value, f"'{escaped}'")


def _parse_integer(kind: str, value: Scalar) -> BoundValue:
    is_number = isinstance(value, int) and not isinstance(value, bool)
    if not is_number and not (isinstance(value, str) and re.fullmatch(r"-?[0-9]{1,19}", value)):
        raise _build_refusal(f"{format_value(value)} is not a whole number; write for example 10")
    number, bits = int(value), _BITS[kind]  # type: ignore[arg-type]  # neither a date nor nothing
    if not -(1 << bits - 1) <= number < 1 << bits - 1:
        raise _build_refusal(
            f"{number} does not fit in {kind}; write a smaller number, or give the variable another type"
        )
    plain = f"({number})" if number < 0 else str(number)
    return BoundValue(number, plain if kind == "int" else f"CAST({plain} AS {kind.upper()})")


def _parse_decimal(kind: str, value: Scalar) -> BoundValue:
    digits, scale = (int(part) for part in re.findall("[0-9]+", kind))
    text = repr(value) if isinstance(value, float) else str(value)
    try:
        number = Decimal(text) if re.fullmatch(r"-?[0-9]+(\.[0-9]+)?", text) and not isinstance(value, bool) else None
    except InvalidOperation:
        number = None
    if number is None or isinstance(value, date):
        raise _build_refusal(f"{format_value(value)} is not a decimal; write for example 0.5, in quotes if it is long")
    exponent = number.normalize(_EXACT).as_tuple().exponent
    if number and (number.adjusted() >= digits - scale or (isinstance(exponent, int) and -exponent > scale)):
        raise _build_refusal(
            f"{text[:50]} does not fit in {kind}; round it, or give the variable a type with more digits"
        )
    plain = int(number) if number == int(number) else float(number)
    return BoundValue(plain if Decimal(repr(plain)) == number else text, f"CAST('{text}' AS {kind.upper()})")


_EXACT = Context(prec=100)
_DOUBLE = re.compile(r"[-+]?([0-9]+(\.[0-9]*)?|\.[0-9]+)([eE][-+]?[0-9]{1,4})?")


def _parse_double(kind: str, value: Scalar) -> BoundValue:
    try:
        is_odd = isinstance(value, bool | date) or (isinstance(value, str) and _DOUBLE.fullmatch(value) is None)
        number = float("no" if is_odd or value is None or isinstance(value, date) else value)
    except (ValueError, TypeError, OverflowError):
        number = float("nan")
    if number - number != 0:
        raise _build_refusal(f"{format_value(value)} is not a finite number; write for example 0.5")
    return BoundValue(number, f"CAST('{number!r}' AS {kind.upper()})")


def _parse_boolean(_: str, value: Scalar) -> BoundValue:
    known = {"true": True, "false": False}.get(value, value) if isinstance(value, str) else value
    if not isinstance(known, bool):
        raise _build_refusal(f"{format_value(value)} is not a boolean; write true or false")
    return BoundValue(known, str(known).lower())


def _parse_date(_: str, value: Scalar) -> BoundValue:
    day = parse_date(value)
    return BoundValue(day.isoformat(), f"DATE '{day.isoformat()}'")


def _parse_timestamp(_: str, value: Scalar) -> BoundValue:
    moment = parse_moment(value)
    return BoundValue(moment.isoformat(), f"TIMESTAMP '{moment.replace(tzinfo=None)}Z'")


def _parse_duration(_: str, value: Scalar) -> BoundValue:
    length = parse_duration(value)
    days, rest = divmod(length, timedelta(days=1))
    literal = f"INTERVAL '{days} {str(timedelta(0) + rest).partition('.')[0].zfill(8)}"
    return BoundValue(format_duration(length), f"{literal}.{rest.microseconds // 1000:03d}' DAY TO SECOND")


def _build_refusal(text: str) -> ValueError:
    """Return the error for a value that does not have its type: what was found; what to do."""
    return ValueError(text)


_BITS = {"tinyint": 8, "smallint": 16, "int": 32, "bigint": 64}
_PARSERS: Mapping[str, Callable[[str, Scalar], BoundValue]] = {
    "string": _parse_string,
    **dict.fromkeys(_BITS, _parse_integer),
    "double": _parse_double,
    "boolean": _parse_boolean,
    "date": _parse_date,
    "timestamp": _parse_timestamp,
    "duration": _parse_duration,
}

_USE = re.compile(r"\$?\$\(([A-Za-z_][A-Za-z0-9_]*)\)")


class InsertionError(ValueError):
    """A value cannot be put in: what was found, what to do, and at which field."""

    def __init__(self, location: FieldPath, found: str, fix: str) -> None:
        self.location, self.found, self.fix = location, found, fix
        super().__init__(f"{found}; {fix}")


class Inserter:
    """Puts the values of variables into the fields of a contract.

    `find_value` returns the value of a variable; ValueError with a fix if there is none.
    """

    def __init__(self, find_value: Callable[[str], BoundValue]) -> None:
        self._find_value = find_value
        self._inserted = 0

    def insert(self, data: ContractValue, location: FieldPath = ()) -> ContractValue:
        """Return a copy of a contract's content with all values put in; InsertionError if one cannot be."""
        match data:
            case str() if "$(" in data:
                return self._insert_into_text(data, location)
            case dict():
                _refuse_other_syntax(data, location)
                return {name: self.insert(value, (*location, name)) for name, value in data.items()}
            case list():
                return [self.insert(value, (*location, n)) for n, value in enumerate(data)]
            case _:
                return data

    def _insert_into_text(self, text: str, location: FieldPath) -> ContractValue:
        if location == ("pipeline",):
            raise InsertionError(location, "a pipeline's name has no variables", "write the name itself")
        values = {}
        for name in {match[1] for match in _USE.finditer(text) if not match[0].startswith("$$")}:
            try:
                values[name] = self._find_value(name)
            except ValueError as error:
                found, _, fix = str(error).partition("; ")
                raise InsertionError(location, found, fix) from None
        is_sql, whole = is_expression(location), _USE.fullmatch(text.strip())
        if is_sql and values:
            _refuse_uses_in_texts(text, location)
        if whole and not is_sql and not whole[0].startswith("$$"):
            replaced: ContractValue = values[whole[1]].value
        else:
            in_braces = location[-1:] == ("unexpected_rows_query",)
            replaced = _USE.sub(lambda match: _format_use(match, values, is_sql=is_sql, in_braces=in_braces), text)
        self._inserted += len(str(replaced))
        if self._inserted > bounds.BYTES:
            raise InsertionError(location, "the contract is too large with its values", "use shorter values")
        return replaced


def _format_use(match: re.Match[str], values: Mapping[str, BoundValue], *, is_sql: bool, in_braces: bool) -> str:
    """Return what replaces a use of a variable; where `{batch}` is replaced later, other braces are doubled."""
    if match[0].startswith("$$"):
        return match[0][1:]
    value, literal = values[match[1]]
    if not is_sql:
        return str(value).lower() if isinstance(value, bool) else str(value)
    return literal.replace("{", "{{").replace("}", "}}") if in_braces else literal


def _refuse_other_syntax(gate: Mapping[str, ContractValue], location: FieldPath) -> None:
    """Raise InsertionError for a variable in a condition that is not in SQL, but in Great Expectations' own syntax."""
    condition = gate.get("row_condition")
    is_foreign = str(gate.get("condition_parser")).startswith("great_expectations")
    if is_foreign and isinstance(condition, str) and _USE.search(condition):
        found = "a condition in Great Expectations' own syntax has a variable"
        raise InsertionError(
            (*location, "row_condition"), found, "write the condition in SQL, without condition_parser"
        )


def is_expression(location: FieldPath) -> bool:
    """Return whether a field of a contract is Spark SQL."""
    match location:
        case ("topics", _, "valid_time" | "arrival"):
            return True
        case ("views", _, "where") | ("views", _, "select" | "key" | "group_by" | "aggregate", _):
            return True
        case ("views", _, "join", "on") | ("views", _, "join", "on", _):
            return True
        case ("topics" | "views", _, "expect", _, *_, "row_condition" | "unexpected_rows_query"):
            return True
        case _:
            return False


def _refuse_uses_in_texts(text: str, location: FieldPath) -> None:
    """Raise InsertionError if an expression has a variable within a text, a quoted name, a comment or another word."""
    if len(text) > bounds.EXPRESSION:
        return  # refused by its length, when it is read
    uses = [match[0] for match in _USE.finditer(text) if not match[0].startswith("$$")]
    marked = _USE.sub(lambda match: match[0] if match[0].startswith("$$") else _STAND_IN, text)
    try:
        tokens = sqlglot.tokenize(marked, read="spark")
    except (TokenError, ValueError):
        tokens = []
    kinds = ["", *(token.token_type.name for token in tokens), ""]
    alone = [n for n, token in enumerate(tokens, 1) if token.text == _STAND_IN and kinds[n] == "VAR"]
    as_name = any(kinds[n - 1] in _BEFORE_NAMES or kinds[n + 1] in _AFTER_NAMES for n in alone)
    if _STAND_IN in text or len(alone) < len(uses) or as_name:
        found = f"{uses[0]} is not a value of its own in this expression, but within a text, a name or a comment"
        raise InsertionError(location, found, "write concat('a-', $(name)); a name cannot be a variable")


_STAND_IN = "hindcast_stand_in"
_BEFORE_NAMES, _AFTER_NAMES = frozenset(("DOT", "ALIAS", "STRING")), frozenset(("DOT", "ARROW", "STRING", "L_PAREN"))
"""What is before, and after, a token that is no value: a part of a name or of a text, a name, a parameter, a call."""
