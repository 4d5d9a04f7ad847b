"""The small types a contract is written in: durations, column types, names."""

from __future__ import annotations

import re
from datetime import timedelta
from typing import Annotated

import sqlglot
from pydantic import AfterValidator, BeforeValidator, WithJsonSchema
from sqlglot import expressions as exp

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
_DIGITS = 38
_NESTED = {exp.DataType.Type.ARRAY, exp.DataType.Type.STRUCT}


def duration(text: object) -> timedelta:
    """`30 days`, `90 minutes`, `500 ms` as a timedelta; ValueError says what would do."""
    if isinstance(text, timedelta):
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


def column_type(text: object) -> str:
    """A Spark SQL type that a record's field can have, as Spark writes it; ValueError names what is wrong.

    >>> column_type("DECIMAL(8, 2)"), column_type("integer")
    ('decimal(8,2)', 'int')
    """
    try:
        parsed = exp.DataType.build(str(text), dialect="spark")
    except (sqlglot.errors.SqlglotError, ValueError):
        parsed = None
    if parsed is None or ("," in str(text) and not parsed.expressions):  # the parser passes over a second type
        raise ValueError(f"'{text}' is not a Spark SQL type; write for example string, int, decimal(8,2)")
    for part in parsed.find_all(exp.DataType):
        if part.this is exp.DataType.Type.MAP:
            raise ValueError(f"'{text}': maps cannot be compared; write array<struct<key: ..., value: ...>>")
        if part.this not in _SCALARS | _NESTED:
            raise ValueError(
                f"'{text}' is not a Spark SQL type that a field can have; write string, int, bigint, "
                "double, boolean, decimal(8,2), date, timestamp, binary, array<...> or struct<...>"
            )
        _parameters(str(text), part)
    plain = parsed.sql(dialect="spark")
    return plain if parsed.this in _NESTED else plain.lower().replace(", ", ",")


def _parameters(text: str, part: exp.DataType) -> None:
    """Only decimals have some: at most 38 digits, of which the scale is a part."""
    if part.this in _NESTED or not part.expressions:
        return
    given = [int(p.name) if p.name.isdigit() else -1 for p in part.expressions]
    digits, scale = [*given, 0][:2]
    if part.this is not exp.DataType.Type.DECIMAL or not 0 <= scale <= digits <= _DIGITS or digits == 0:
        raise ValueError(f"'{text}' is not a Spark SQL type; only decimals have parameters: decimal(8,2), at most 38")


def _column(name: str) -> str:
    if name.lower() in {column.lower() for column in PERIOD_COLUMNS}:
        raise ValueError(f"'{name}' is the name of a period column; choose another")
    if _NAME.fullmatch(name) is None:
        raise ValueError(f"'{name}' is not a column name; letters, digits and _ only, a letter first")
    return name


def _pipeline(name: str) -> str:
    if _PIPELINE.fullmatch(name) is None:
        raise ValueError(f"'{name}' is not a name; lower-case letters, digits and _ only, a letter first")
    return name


def _schema(**keywords: object) -> WithJsonSchema:
    return WithJsonSchema({"type": "string", **keywords})


Duration = Annotated[
    timedelta,
    BeforeValidator(duration),
    _schema(pattern=r"^\d+\s*(ms|second|minute|hour|day|week)s?$", examples=["30 days", "90 minutes", "500 ms"]),
]
ColumnType = Annotated[str, AfterValidator(column_type), _schema(examples=["string", "decimal(8,2)"])]
ColumnName = Annotated[str, AfterValidator(_column), _schema(pattern=f"^{_NAME.pattern}$")]
Name = Annotated[str, AfterValidator(_pipeline), _schema(pattern=f"^{_PIPELINE.pattern}$")]
