"""The types of a contract's fields: durations, moments, column types, names; and the frozen base model."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from datetime import UTC, date, datetime, timedelta
from functools import lru_cache
from typing import Annotated, TypeAlias

import sqlglot
from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, StringConstraints, WithJsonSchema
from sqlglot import expressions as exp

from hindcast.common.json_values import JsonValue
from hindcast.common.yaml_loader import MOMENT_FIX
from hindcast.contract.bounds import NAME, TYPE, TYPE_DEPTH, refuse_deep_brackets

PERIOD_COLUMNS = (
    *("validFrom", "validTo", "systemFrom", "systemTo"),
    *("timestamp", "windowStart", "windowEnd", "windowClosed"),
)

ContractValue: TypeAlias = JsonValue | date | timedelta | Sequence["ContractValue"] | Mapping[str, "ContractValue"]
"""A value in a contract: what YAML gives, or what a field has become."""

_UNITS = {
    "ms": timedelta(milliseconds=1),
    "second": timedelta(seconds=1),
    "minute": timedelta(minutes=1),
    "hour": timedelta(hours=1),
    "day": timedelta(days=1),
    "week": timedelta(weeks=1),
}
_DURATION = re.compile(r"(\d+)\s*(ms|second|minute|hour|day|week)s?")
_SHARE = re.compile(r"\d+(\.\d+)?%")
_MAX_PERCENT = 100
_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_]*")
_PIPELINE = re.compile(r"[a-z][a-z0-9_]*")
_SCALARS = {
    exp.DataType.Type.TEXT,
    exp.DataType.Type.TINYINT,
    exp.DataType.Type.SMALLINT,
    exp.DataType.Type.INT,
    exp.DataType.Type.BIGINT,
    exp.DataType.Type.FLOAT,
    exp.DataType.Type.DOUBLE,
    exp.DataType.Type.BOOLEAN,
    exp.DataType.Type.DECIMAL,
    exp.DataType.Type.DATE,
    exp.DataType.Type.TIMESTAMP,
    exp.DataType.Type.TIMESTAMPTZ,
    exp.DataType.Type.BINARY,
}
_CLAUSE = re.compile(r"\b(collate|not|comment|default)\b", re.IGNORECASE)
_DEEP_ARRAYS = re.compile(rf"(\[\s*\]\s*){{{TYPE_DEPTH + 1}}}")
_DIGITS = 38
_MAX_SHOWN = 60
_NESTED = {exp.DataType.Type.ARRAY, exp.DataType.Type.STRUCT}

PARSER_ERRORS = (
    sqlglot.errors.SqlglotError,
    *(ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError),
)
"""What sqlglot raises for text that it cannot read: its own errors, and those of Python where it has no own."""


def format_value(value: ContractValue | Exception) -> str:
    """Return a value of a contract as messages show it.

    >>> format_value("a"), format_value(True), format_value(None), format_value({"a": 1}), format_value([])
    ("'a'", 'true', 'nothing', 'a mapping', 'a list')
    """
    match value:
        case None:
            return "nothing"
        case bool():
            return str(value).lower()
        case dict():
            return "a mapping"
        case list() | tuple():
            return "a list"
        case _:
            text = re.sub(r"\s+", " ", str(value))
            return f"'{text[:_MAX_SHOWN]}...'" if len(text) > _MAX_SHOWN else f"'{text}'"


def parse_duration(text: ContractValue) -> timedelta:
    """Return `30 days`, `90 minutes`, `500 ms` as a timedelta; raise ValueError with a fix for other text."""
    if isinstance(text, timedelta):
        if text % _UNITS["ms"]:
            raise ValueError(
                f"{text} is not a whole number of milliseconds; Kafka's timestamps have millisecond precision"
            )
        return text
    match = _DURATION.fullmatch(str(text).strip())
    if match is None:
        raise ValueError(f"'{text}' is not a duration; write a number and a unit: 30 days, 90 minutes, 500 ms")
    try:
        return int(match[1]) * _UNITS[match[2]]
    except OverflowError:
        raise ValueError(f"'{text}' exceeds the longest duration; write at most {timedelta.max.days} days") from None


def parse_allowance(value: ContractValue) -> ContractValue:
    """Return a number of records, or a percentage of them (`1%`), unchanged; raise ValueError for another value."""
    is_share = isinstance(value, str) and _SHARE.fullmatch(value) is not None and float(value[:-1]) <= _MAX_PERCENT
    if not is_share and (not isinstance(value, int) or isinstance(value, bool) or value < 0):
        raise ValueError(
            f"'{value}' is neither a number of records nor a percentage of them; write for example 10, or 1%"
        )
    return value


def format_duration(length: timedelta) -> str:
    """Return a duration as a contract writes it, in the largest unit up to days that divides it.

    >>> format_duration(timedelta(hours=36)), format_duration(timedelta(days=1))
    ('36 hours', '1 day')
    """
    unit = next(u for u in ("day", "hour", "minute", "second", "ms") if not length % _UNITS[u])
    number = length // _UNITS[unit]
    return f"{number} {unit}{'' if unit == 'ms' or number == 1 else 's'}"


def parse_column_type(text: ContractValue) -> str:
    """Return a Spark SQL type as Spark writes it; raise ValueError for one that a record's field cannot have.

    >>> parse_column_type("DECIMAL(8, 2)"), parse_column_type("integer")
    ('decimal(8,2)', 'int')
    """
    return _parse_column_type(str(text))


@lru_cache(maxsize=1024)
def _parse_column_type(text: str) -> str:
    refuse_deep_brackets(text, "<(", ">)", TYPE_DEPTH, "types")
    if "[" in re.sub(r"\[[0-9 ]*\]", "", text):  # the parser tries every way to read it
        raise ValueError(f"{format_value(text)} has a bracket [ that is not closed; write array<...>")
    if _DEEP_ARRAYS.search(text):
        raise ValueError(f"{format_value(text)} has more than {TYPE_DEPTH} nested types; split it into several steps")
    if len(text) > TYPE:
        raise ValueError(f"{format_value(text)} is a type with more than {TYPE:,} characters; make its fields columns")
    uneven = any(text.count(opened) != text.count(closed) for opened, closed in ("()", "<>"))
    if uneven and not text.startswith("map<"):
        raise ValueError(
            f"'{text}' is an incomplete type: inside braces YAML splits text at commas; "
            'put the type in quotes: "decimal(8,2)"'
        )
    try:
        parsed = exp.DataType.build(text, dialect="spark")
    except PARSER_ERRORS:
        parsed = None
    if not isinstance(parsed, exp.DataType) or (
        "," in text and not parsed.expressions
    ):  # the parser passes over a second type
        raise ValueError(f"'{text}' is not a Spark SQL type; write for example string, int, decimal(8,2)")
    if _has_clauses(text, parsed):
        raise ValueError(f"'{text}' has a clause, such as COLLATE, NOT NULL or COMMENT; write only names and types")
    for part in parsed.find_all(exp.DataType):
        if part.this is exp.DataType.Type.MAP:
            raise ValueError(f"'{text}': maps cannot be compared; write array<struct<key: ..., value: ...>>")
        if part.this not in _SCALARS | _NESTED:
            raise ValueError(
                f"'{text}' is not a supported type of a field; write string, int, bigint, "
                "double, boolean, decimal(8,2), date, timestamp, binary, array<...> or struct<...>"
            )
        _refuse_parameters(text, part)
        _refuse_parts(text, part)
    plain = parsed.sql(dialect="spark")
    return plain if parsed.this in _NESTED else plain.lower().replace(", ", ",")


def _has_clauses(text: str, parsed: exp.DataType) -> bool:
    """Return whether a type has clauses, which change how Spark compares or accepts its values."""
    nested = parsed.find(exp.ColumnConstraint) or any(it.args.get("collate") for it in parsed.find_all(exp.DataType))
    return bool(nested or (parsed.this not in _NESTED and _CLAUSE.search(text)))


def _refuse_parameters(text: str, part: exp.DataType) -> None:
    """Raise ValueError for parameters, except of decimals: at most 38 digits, including the scale."""
    if part.this in _NESTED or not part.expressions:
        return
    given = [int(p.name) if p.name.isdigit() else -1 for p in part.expressions]
    digits, scale = [*given, 0][:2]
    if part.this is not exp.DataType.Type.DECIMAL or not 0 <= scale <= digits <= _DIGITS or digits == 0:
        raise ValueError(
            f"'{text}' is not a Spark SQL type; only decimals have parameters: decimal(8,2), with at most 38 digits"
        )


def _refuse_parts(text: str, part: exp.DataType) -> None:
    """Raise ValueError for an array without one element type, or a struct without uniquely named, typed fields."""
    if part.this is exp.DataType.Type.ARRAY and len(part.expressions) != 1:
        raise ValueError(f"'{text}' has an array without an element type; write array<string>")
    if part.this is exp.DataType.Type.STRUCT:
        fields = [
            it.name.lower() if isinstance(it, exp.ColumnDef) and it.args.get("kind") else "" for it in part.expressions
        ]
        if not all(fields) or not fields:
            raise ValueError(
                f"'{text}' has a struct whose fields are not all names with types; write struct<name: string, n: int>"
            )
        if len({*fields}) < len(fields):
            raise ValueError(
                f"'{text}' has a struct with two fields of the same name (case is ignored); rename one of them"
            )


def parse_column_name(name: ContractValue) -> str:
    """Return a column's name unchanged; raise ValueError if it is not valid."""
    if not isinstance(name, str) or _NAME.fullmatch(name) is None:
        raise ValueError(
            f"{format_value(name)} is not a valid column name; use letters, digits and _, starting with a letter"
        )
    if len(name) > NAME:
        raise ValueError(f"{format_value(name)} is a name of {len(name)} characters; write at most {NAME}")
    if name.lower() in {column.lower() for column in PERIOD_COLUMNS}:
        raise ValueError(f"'{name}' is reserved for a period column; choose another name")
    return name


def _parse_pipeline_name(name: str) -> str:
    if _PIPELINE.fullmatch(name) is None:
        raise ValueError(
            f"{format_value(name)} is not a valid name; use lower-case letters, digits and _, starting with a letter"
        )
    if len(name) > NAME:
        raise ValueError(f"{format_value(name)} is a name of {len(name)} characters; write at most {NAME}")
    return name


def is_table_name(text: str) -> bool:
    """Return whether a text can be the name of a table of a pipeline, as inputs have it: `shop.menu`."""
    pipeline, _, table = text.partition(".")
    return len(text) <= 2 * NAME + 1 and all(map(_PIPELINE.fullmatch, (pipeline, table)))


def _refuse_padding(name: ContractValue) -> ContractValue:
    """Return a name unchanged; raise ValueError for whitespace around it, which would be stripped."""
    if isinstance(name, str) and name != name.strip():
        found = f"the name {name[:_MAX_SHOWN]!r} has leading or trailing whitespace"
        raise ValueError(f"{found}; write '{name.strip()[:_MAX_SHOWN]}'")
    return name


def pattern_validators(pattern: str, problem: str) -> tuple[AfterValidator, WithJsonSchema]:
    """Return annotations for a `str` that must match a pattern; the error says that it is `problem`."""

    def match(text: str) -> str:
        if re.fullmatch(pattern.strip("^$"), text) is None:
            raise ValueError(f"'{text}' is {problem}")
        return text

    return AfterValidator(match), _string_schema(pattern=pattern)


def _string_schema(**keywords: JsonValue) -> WithJsonSchema:
    return WithJsonSchema({"type": "string", **keywords})


def parse_moment(value: ContractValue) -> datetime:
    """Return a moment in UTC, of a date its start; raise ValueError for anything else: numbers, a text in another form
    than the error says, and fractions that microseconds do not hold.
    """
    try:
        has_form = not isinstance(value, str) or _MOMENT.fullmatch(value) is not None
        moment = value if isinstance(value, datetime) else datetime.fromisoformat(str(value))
        if has_form and isinstance(value, datetime | date | str):
            return moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment.astimezone(UTC)
    except (ValueError, OverflowError):
        pass
    raise ValueError(f"{format_value(value)} is not a valid timestamp; {MOMENT_FIX}")


def parse_date(value: ContractValue) -> date:
    """Return a date, or that of a text like 2026-01-31; raise ValueError for anything else."""
    if isinstance(value, date) and not isinstance(value, datetime):
        return value
    try:
        if isinstance(value, str) and _DATE.fullmatch(value):
            return date.fromisoformat(value)
    except ValueError:
        pass
    raise ValueError(f"{format_value(value)} is not a date; write for example 2026-01-31")


_DATE = re.compile("[0-9]{4}-[0-9]{2}-[0-9]{2}")
_MOMENT = re.compile(_DATE.pattern + "([Tt ](?!.*[.,][0-9]{7}).*)?")


Duration = Annotated[
    timedelta,
    BeforeValidator(parse_duration),
    _string_schema(pattern=r"^\d+\s*(ms|second|minute|hour|day|week)s?$", examples=["30 days", "90 minutes", "500 ms"]),
]
Allowance = Annotated[
    int | str,
    BeforeValidator(parse_allowance),
    WithJsonSchema(
        {"anyOf": [{"type": "integer", "minimum": 0}, {"type": "string", "pattern": r"^\d+(\.\d+)?%$"}]}
        | {"examples": [10, "1%"]}
    ),
]
Flag = Annotated[bool, Field(strict=True)]
ColumnType = Annotated[str, AfterValidator(parse_column_type), _string_schema(examples=["string", "decimal(8,2)"])]
ColumnName = Annotated[
    str,
    BeforeValidator(_refuse_padding),
    AfterValidator(parse_column_name),
    _string_schema(pattern=f"^{_NAME.pattern}$"),
]
Name = Annotated[
    str,
    BeforeValidator(_refuse_padding),
    AfterValidator(_parse_pipeline_name),
    _string_schema(pattern=f"^{_PIPELINE.pattern}$"),
]
Moment = Annotated[
    datetime,
    BeforeValidator(parse_moment),
    WithJsonSchema(
        {
            "type": "string",
            "pattern": r"^\d{4}-\d{2}-\d{2}([T ]\d{2}:\d{2}(:\d{2}(\.\d+)?)?(Z|[+-]\d{2}:\d{2})?)?$",
            "examples": ["2026-01-01", "2026-01-01T06:00:00Z"],
        }
    ),
]


ExactText = Annotated[str, StringConstraints(strip_whitespace=False)]
"""A text that means what it says, spaces around it too."""


class ContractModel(BaseModel):
    """A frozen model that refuses unknown fields."""

    model_config = ConfigDict(extra="forbid", frozen=True, str_strip_whitespace=True)
