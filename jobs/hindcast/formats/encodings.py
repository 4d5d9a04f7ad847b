"""Decimals, dates and moments as Debezium and Connect write them in JSON, which has none. Pure: columns to columns.

A record's own schema names a field's encoding; without schemas the contract does (`encoded`). Never is one guessed: a
number for a timestamp, of which nobody says what it counts, does not fit.

| encoding | a value is | of type |
| --- | --- | --- |
| Decimal | base64 of the unscaled number, big-endian; the schema has the scale, else it is the column's | decimal |
| VariableScaleDecimal | {"scale": 1, "value": "Dw=="} | decimal |
| Number | a number, or its text: never base64 | decimal |
| Date | days since 1970-01-01 | date |
| Timestamp, MicroTimestamp, NanoTimestamp | milli-, micro-, nanoseconds since 1970-01-01T00:00:00Z | timestamp |

Text that says what it is needs none: "12.34", 12.34, "2026-01-01", "2026-01-01T12:00:00Z". 1234 does not: it is base64
too.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from pyspark.sql import Column
from pyspark.sql import functions as F

from hindcast.formats.exact import digits_behind

LOGICAL = {
    "org.apache.kafka.connect.data.Decimal": "Decimal",
    "io.debezium.data.VariableScaleDecimal": "VariableScaleDecimal",
    "org.apache.kafka.connect.data.Date": "Date",
    "io.debezium.time.Date": "Date",
    "org.apache.kafka.connect.data.Timestamp": "Timestamp",
    "io.debezium.time.Timestamp": "Timestamp",
    "io.debezium.time.MicroTimestamp": "MicroTimestamp",
    "io.debezium.time.NanoTimestamp": "NanoTimestamp",
}
"""The names that schemas give the encodings."""

FIELD = "struct<field: string, name: string, parameters: struct<scale: string>>"
"""What is read of a field's schema."""

_MICROS = {"Timestamp": (1000, 1), "MicroTimestamp": (1, 1), "NanoTimestamp": (1, 1000)}
_FIRST, _LAST = -62_135_596_800_000_000, 253_402_300_799_999_999
_FIRST_DAY, _LAST_DAY = -719_162, 2_932_896
_WORD = 2**32 - 1


def encodable(kind: str) -> bool:
    """Whether values of a column type can be encoded, so that they are read as text and then by `read`."""
    return kind.startswith("decimal") or kind in ("date", "timestamp")


def asked(kind: str, declared: str | None) -> str:
    """The type that a JSON parser is asked for: what the encoding says, which nothing else is; else a variant, to be
    read as text.
    """
    match declared:
        case None | "Number":
            return "variant" if encodable(kind) else kind
        case "Decimal":
            return "binary"
        case "VariableScaleDecimal":
            return "struct<scale: int, value: binary>"
        case _:
            return "bigint"


def asked_typed(kind: str, declared: str | None) -> str:
    """The same of a format that has decimals, dates and timestamps of its own: Avro."""
    return kind if declared in (None, "Decimal", "Number") else asked(kind, declared)


def read_typed(raw: Column, kind: str, declared: str | None) -> Column:
    """`read` of a type `asked_typed`."""
    if declared is None or declared in ("Decimal", "Number"):
        return raw
    return _decoded(raw, kind, declared, F.lit(None).cast("string"))


def read(raw: Column, kind: str, declared: str | None, name: Column, scale: Column) -> Column:
    """A value as its column has it, null for what does not fit.

    `raw` is of the type `asked`, text for a variant; `name` and `scale` are strings, as the field's schema has them,
    null without.

        "AyA=" decimal(8,2), Decimal: 8.00    1767225600000 timestamp, Timestamp: 2026-01-01T00:00:00Z
    """
    own = _own(name)
    if declared == "Number":  # also where Connect's decimal.format is NUMERIC
        return F.when(own.isNull() | (own == "Decimal"), _number(raw, kind))
    if declared is not None:
        found = _decoded(raw, kind, declared, scale)
        return F.when(own.isNull() | (own == declared), found)
    return F.when(own.isNull(), _text(raw, kind)).otherwise(_named(raw, kind, own, scale))


def micros(number: Column, unit: str) -> Column:
    """A number of `Timestamp`'s, `MicroTimestamp`'s or `NanoTimestamp`'s units in microseconds: decimal(38,0)."""
    times, by = _MICROS[unit]
    wide = number.cast("decimal(20,0)")
    return (F.floor(wide / by) if by > 1 else wide * times).cast("decimal(38,0)")


def moment(microseconds: Column) -> Column:
    """Microseconds since 1970 as a timestamp, null beyond the years 1 to 9999."""
    return F.when(microseconds.between(_FIRST, _LAST), F.timestamp_micros(microseconds.cast("bigint")))


def _own(name: Column) -> Column:
    """The encoding that a schema names; null where it names none of ours."""
    found = F.lit(None).cast("string")
    for logical, encoding in LOGICAL.items():
        found = F.when(name == logical, encoding).otherwise(found)
    return found


def _decoded(raw: Column, kind: str, encoding: str, scale: Column) -> Column:
    match encoding:
        case "Decimal":
            return _decimal(raw, F.coalesce(scale, F.lit(str(_digits(kind)[1]))), kind)
        case "VariableScaleDecimal":
            return _decimal(raw["value"], raw["scale"].cast("string"), kind)
        case "Date":
            days = F.when(raw.between(_FIRST_DAY, _LAST_DAY), raw.cast("int"))
            return F.date_add(F.lit("1970-01-01").cast("date"), days)
        case _:
            return moment(micros(raw, encoding))


def _named(text: Column, kind: str, encoding: Column, scale: Column) -> Column:
    """Text by the encoding that the record's schema names."""
    number = F.when(text.rlike("^-?[0-9]{1,19}$"), text.try_cast("bigint"))
    if kind == "timestamp":
        found = F.lit(None).cast(kind)
        for unit in _MICROS:
            found = F.when(encoding == unit, _decoded(number, kind, unit, scale)).otherwise(found)
        return found
    if kind == "date":
        return F.when(encoding == "Date", _decoded(number, kind, "Date", scale))
    unscaled = F.when(text.rlike(_BASE64) & ~text.rlike(_NUMBER), F.try_to_binary(text, F.lit("base64")))
    decimal = F.coalesce(_decoded(unscaled, kind, "Decimal", scale), _text(text, kind))
    variable = F.from_json(text, "struct<scale: int, value: binary>")
    return (
        F.when(encoding == "Decimal", decimal)
        .when(encoding == "VariableScaleDecimal", _decoded(variable, kind, "VariableScaleDecimal", scale))
        .cast(kind)
    )


_BASE64 = "^([A-Za-z0-9+/]{4})*([A-Za-z0-9+/]{4}|[A-Za-z0-9+/]{3}=|[A-Za-z0-9+/]{2}==)$"
_NUMBER = r"^[-+]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][-+]?[0-9]{1,3})?$"


def _text(text: Column, kind: str) -> Column:
    """Text that says what it is."""
    if kind == "timestamp":
        return F.when(text.rlike("^[0-9]{4}-[0-9]{2}-[0-9]{2}[T ][0-9]{2}:"), text.try_cast(kind))
    if kind == "date":
        return F.when(text.rlike("^[0-9]{4}-[0-9]{2}-[0-9]{2}Z?$"), F.substring(text, 1, 10).try_cast(kind))
    return _number(F.when(~text.rlike(_BASE64), text), kind)


def _number(text: Column, kind: str) -> Column:
    return exact(F.when(text.rlike(_NUMBER), text), kind)


def exact(text: Column, kind: str) -> Column:
    """A number as a decimal, null if it has other digits than the type can hold: never rounded."""
    _, scale = _digits(kind)
    return _once(text, lambda it: F.when(digits_behind(it) <= scale, it.try_cast(kind)))


def _once(column: Column, use: Callable[[Column], Column]) -> Column:
    """What is made of a column that is used several times: as an element of an array of one, else Spark would plan and
    compute it anew for each use.
    """
    return F.get(F.transform(F.array(column), use), F.lit(0))


def _digits(kind: str) -> tuple[int, int]:
    """Precision and scale of a decimal type, as Spark takes them where they are left out."""
    given = [int(number) for number in re.findall("[0-9]+", kind)]
    digits, scale = [*given, *(10, 0)[len(given) :]]
    return digits, scale


def _decimal(unscaled: Column, scale: Column, kind: str) -> Column:
    """An unscaled number of two's complement, big-endian, with its scale (string), as a decimal; null if too large."""

    def number(hexed: Column) -> Column:
        negative = F.substring(hexed, 1, 1) >= "8"
        total = F.lit(0).cast("decimal(38,0)")
        for start in (1, 9, 17, 25):
            word = F.conv(F.substring(hexed, start, 8), 16, 10).cast("decimal(10,0)")
            word = F.when(negative, F.lit(_WORD).cast("decimal(10,0)") - word).otherwise(word)
            total = F.try_add(F.try_multiply(total, F.lit(_WORD + 1).cast("decimal(10,0)")), word).cast("decimal(38,0)")
        magnitude = F.try_add(total, F.when(negative, 1).otherwise(0)).cast("string")
        return F.concat(F.when(negative, "-").otherwise(""), magnitude)

    def padded(hexed: Column) -> Column:
        filling = F.when(F.substring(hexed, 1, 1) >= "8", "F").otherwise("0")
        return F.when(F.length(hexed).between(1, 32), F.lpad(hexed, 32, filling))

    told = _once(_once(F.hex(unscaled), padded), number)
    return exact(F.concat(told, F.lit("E-"), scale), kind)
