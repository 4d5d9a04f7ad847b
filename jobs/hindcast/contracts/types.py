"""What the parts of a contract are made of: durations, moments, column types, names; objects that cannot change."""

from __future__ import annotations

import re
from datetime import UTC, date, datetime, timedelta
from functools import lru_cache
from typing import Annotated

import sqlglot
from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, WithJsonSchema
from sqlglot import expressions as exp

from hindcast.contracts.bounds import NAME, TYPE, TYPE_DEPTH, refuse_deep_brackets

PERIOD_COLUMNS = (
    *("validFrom", "validTo", "systemFrom", "systemTo"),
    *("timestamp", "windowStart", "windowEnd", "windowClosed"),
)

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
_ALL = 100
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
_DIGITS = 38
_LONG = 60
_NESTED = {exp.DataType.Type.ARRAY, exp.DataType.Type.STRUCT}


def shown(value: object) -> str:
    """A value of a contract as messages show it.

    >>> shown("a"), shown(True), shown(None), shown({"a": 1}), shown([])
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
            text = " ".join(str(value).split())
            return f"'{text[:_LONG]}...'" if len(text) > _LONG else f"'{text}'"


def duration(text: object) -> timedelta:
    """`30 days`, `90 minutes`, `500 ms` as a timedelta; ValueError says what would do."""
    if isinstance(text, timedelta):
        if text % _UNITS["ms"]:
            raise ValueError(f"{text} is not whole milliseconds; Kafka's times have no more")
        return text
    match = _DURATION.fullmatch(str(text).strip())
    if match is None:
        raise ValueError(f"'{text}' is not a duration; write a number and a unit: 30 days, 90 minutes, 500 ms")
    try:
        return int(match[1]) * _UNITS[match[2]]
    except OverflowError:
        raise ValueError(
            f"'{text}' is longer than a duration can be; write at most {timedelta.max.days} days"
        ) from None


def allowance(told: object) -> object:
    """A number of records, or a share of them (`1%`), as it is; ValueError says what would do."""
    share = isinstance(told, str) and _SHARE.fullmatch(told) is not None and float(told[:-1]) <= _ALL
    if not share and (not isinstance(told, int) or isinstance(told, bool) or told < 0):
        raise ValueError(f"'{told}' is neither a number of records nor a share of them; write for example 10, or 1%")
    return told


def written(length: timedelta) -> str:
    """A duration as a contract has it, in the largest unit up to days that fits.

    >>> written(timedelta(hours=36)), written(timedelta(days=1)), written(timedelta(milliseconds=1500))
    ('36 hours', '1 day', '1500 ms')
    """
    unit = next(u for u in ("day", "hour", "minute", "second", "ms") if not length % _UNITS[u])
    number = length // _UNITS[unit]
    return f"{number} {unit}{'' if unit == 'ms' or number == 1 else 's'}"


def column_type(text: object) -> str:
    """A Spark SQL type that a record's field can have, as Spark writes it; ValueError names what is wrong.

    >>> column_type("DECIMAL(8, 2)"), column_type("integer")
    ('decimal(8,2)', 'int')
    """
    return _column_type(str(text))


@lru_cache(maxsize=1024)
def _column_type(text: str) -> str:
    refuse_deep_brackets(text, "<(", ">)", TYPE_DEPTH, "types")
    if len(text) > TYPE:
        raise ValueError(f"{shown(text)} is a type of more than {TYPE:,} characters; make columns of its fields")
    uneven = any(text.count(opened) != text.count(closed) for opened, closed in ("()", "<>"))
    if uneven and not text.startswith("map<"):
        raise ValueError(
            f"'{text}' is not a whole type: between braces YAML cuts text at a comma; "
            'put the type in quotes: "decimal(8,2)"'
        )
    try:
        parsed = exp.DataType.build(text, dialect="spark")
    except (sqlglot.errors.SqlglotError, ValueError, RecursionError):
        parsed = None
    if not isinstance(parsed, exp.DataType) or (
        "," in text and not parsed.expressions
    ):  # the parser passes over a second type
        raise ValueError(f"'{text}' is not a Spark SQL type; write for example string, int, decimal(8,2)")
    if _says_more(text, parsed):
        raise ValueError(f"'{text}' has more than types: COLLATE, NOT NULL or COMMENT; write names and types alone")
    for part in parsed.find_all(exp.DataType):
        if part.this is exp.DataType.Type.MAP:
            raise ValueError(f"'{text}': maps cannot be compared; write array<struct<key: ..., value: ...>>")
        if part.this not in _SCALARS | _NESTED:
            raise ValueError(
                f"'{text}' is not a Spark SQL type that a field can have; write string, int, bigint, "
                "double, boolean, decimal(8,2), date, timestamp, binary, array<...> or struct<...>"
            )
        _parameters(text, part)
        _parts(text, part)
    plain = parsed.sql(dialect="spark")
    return plain if parsed.this in _NESTED else plain.lower().replace(", ", ",")


def _says_more(text: str, parsed: exp.DataType) -> bool:
    """Whether a type has clauses: values of such a one may be equal that differ, or be refused by Spark alone."""
    within = parsed.find(exp.ColumnConstraint) or any(it.args.get("collate") for it in parsed.find_all(exp.DataType))
    return bool(within or (parsed.this not in _NESTED and _CLAUSE.search(text)))


def _parameters(text: str, part: exp.DataType) -> None:
    """Only decimals have some: at most 38 digits, of which the scale is a part."""
    if part.this in _NESTED or not part.expressions:
        return
    given = [int(p.name) if p.name.isdigit() else -1 for p in part.expressions]
    digits, scale = [*given, 0][:2]
    if part.this is not exp.DataType.Type.DECIMAL or not 0 <= scale <= digits <= _DIGITS or digits == 0:
        raise ValueError(f"'{text}' is not a Spark SQL type; only decimals have parameters: decimal(8,2), at most 38")


def _parts(text: str, part: exp.DataType) -> None:
    """An array is of one type; a struct has fields, each with a name of its own and a type."""
    if part.this is exp.DataType.Type.ARRAY and len(part.expressions) != 1:
        raise ValueError(f"'{text}' has an array without the type of what it holds; write array<string>")
    if part.this is exp.DataType.Type.STRUCT:
        fields = [
            it.name.lower() if isinstance(it, exp.ColumnDef) and it.args.get("kind") else "" for it in part.expressions
        ]
        if not all(fields) or not fields:
            raise ValueError(
                f"'{text}' has a struct whose fields are not names with types; write struct<name: string, n: int>"
            )
        if len({*fields}) < len(fields):
            raise ValueError(
                f"'{text}' has a struct with two fields of one name (case does not count); rename one of them"
            )


def column_name(name: object) -> str:
    """A column's name as it is; ValueError says what is wrong with it."""
    if not isinstance(name, str) or _NAME.fullmatch(name) is None:
        raise ValueError(f"{shown(name)} is not a column name; letters, digits and _ only, a letter first")
    if len(name) > NAME:
        raise ValueError(f"{shown(name)} is a name of {len(name)} characters; write at most {NAME}")
    if name.lower() in {column.lower() for column in PERIOD_COLUMNS}:
        raise ValueError(f"'{name}' is the name of a period column; choose another")
    return name


def _pipeline(name: str) -> str:
    if _PIPELINE.fullmatch(name) is None:
        raise ValueError(f"{shown(name)} is not a name; lower-case letters, digits and _ only, a letter first")
    if len(name) > NAME:
        raise ValueError(f"{shown(name)} is a name of {len(name)} characters; write at most {NAME}")
    return name


def _unpadded(name: object) -> object:
    """Return a name as it is; ValueError for one with line breaks or blanks around it, which would vanish."""
    if isinstance(name, str) and name != name.strip():
        found = f"the name {name[:_LONG]!r} has a line break or blanks around it"
        raise ValueError(f"{found}; write '{name.strip()[:_LONG]}'")
    return name


def matching(pattern: str, told: str) -> tuple[AfterValidator, WithJsonSchema]:
    """What makes `str` one that matches a pattern; of another it is told what it is not, and what would do."""

    def matched(text: str) -> str:
        if re.fullmatch(pattern.strip("^$"), text) is None:
            raise ValueError(f"'{text}' is {told}")
        return text

    return AfterValidator(matched), _schema(pattern=pattern)


def _schema(**keywords: object) -> WithJsonSchema:
    return WithJsonSchema({"type": "string", **keywords})


def _moment(value: object) -> object:
    """A moment in UTC; of a date its begin. ValueError for what is neither, also for a number."""
    try:
        told = value if isinstance(value, datetime) else datetime.fromisoformat(str(value))
        if isinstance(value, datetime | date | str):
            return told.replace(tzinfo=UTC) if told.tzinfo is None else told.astimezone(UTC)
    except (ValueError, OverflowError):
        pass
    raise ValueError(f"{shown(value)} is not a moment; write for example 2026-01-31, or 2026-01-31T06:00:00Z")


Duration = Annotated[
    timedelta,
    BeforeValidator(duration),
    _schema(pattern=r"^\d+\s*(ms|second|minute|hour|day|week)s?$", examples=["30 days", "90 minutes", "500 ms"]),
]
Allowance = Annotated[
    int | str,
    BeforeValidator(allowance),
    WithJsonSchema(
        {"anyOf": [{"type": "integer", "minimum": 0}, {"type": "string", "pattern": r"^\d+(\.\d+)?%$"}]}
        | {"examples": [10, "1%"]}
    ),
]
Flag = Annotated[bool, Field(strict=True)]
ColumnType = Annotated[str, AfterValidator(column_type), _schema(examples=["string", "decimal(8,2)"])]
ColumnName = Annotated[
    str, BeforeValidator(_unpadded), AfterValidator(column_name), _schema(pattern=f"^{_NAME.pattern}$")
]
Name = Annotated[str, BeforeValidator(_unpadded), AfterValidator(_pipeline), _schema(pattern=f"^{_PIPELINE.pattern}$")]
Moment = Annotated[
    datetime,
    BeforeValidator(_moment),
    WithJsonSchema(
        {
            "type": "string",
            "pattern": r"^\d{4}-\d{2}-\d{2}([T ]\d{2}:\d{2}(:\d{2}(\.\d+)?)?(Z|[+-]\d{2}:\d{2})?)?$",
            "examples": ["2026-01-01", "2026-01-01T06:00:00Z"],
        }
    ),
]


class Model(BaseModel):
    """A frozen object that refuses fields it does not know."""

    model_config = ConfigDict(extra="forbid", frozen=True, str_strip_whitespace=True)
