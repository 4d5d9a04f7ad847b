"""The small types a contract is written in: durations, column types, names."""

from __future__ import annotations

import re
from datetime import timedelta
from typing import Annotated

import sqlglot
from pydantic import AfterValidator, BeforeValidator, Field, WithJsonSchema
from sqlglot import expressions as exp

PERIOD_COLUMNS = ("validFrom", "validTo", "systemFrom", "systemTo", "timestamp", "windowStart", "windowEnd")

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
_NESTED = {exp.DataType.Type.ARRAY, exp.DataType.Type.STRUCT}


def duration(text: object) -> timedelta:
    """`30 days`, `90 minutes`, `500 ms` as a timedelta; ValueError says what would do."""
    if isinstance(text, timedelta):
        return text
    match = _DURATION.fullmatch(str(text).strip())
    if match is None:
        raise ValueError(f"'{text}' is not a duration; write a number and a unit: 30 days, 90 minutes, 500 ms")
    return int(match[1]) * _UNITS[match[2]]


def column_type(text: object) -> str:
    """A Spark SQL type that a record's field can have; ValueError names what is wrong."""
    try:
        parsed = exp.DataType.build(str(text), dialect="spark")
    except (sqlglot.errors.SqlglotError, ValueError):
        raise ValueError(f"'{text}' is not a Spark SQL type; write for example string, int, decimal(8,2)") from None
    for part in parsed.find_all(exp.DataType):
        if part.this is exp.DataType.Type.MAP:
            raise ValueError(f"'{text}': maps cannot be compared; write array<struct<key: ..., value: ...>>")
        if part.this not in _SCALARS | _NESTED:
            raise ValueError(
                f"'{text}' is not a Spark SQL type that a field can have; write string, int, bigint, "
                "double, boolean, decimal(8,2), date, timestamp, binary, array<...> or struct<...>"
            )
    return str(text).strip().lower() if "<" not in str(text) else str(text).strip()


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
ColumnName = Annotated[str, AfterValidator(_column), Field(pattern=_NAME.pattern)]
Name = Annotated[str, AfterValidator(_pipeline), Field(pattern=_PIPELINE.pattern)]
