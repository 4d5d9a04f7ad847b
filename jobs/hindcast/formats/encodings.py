"""Encodings of decimals, dates and moments in JSON, as Debezium and Connect write them. Pure: columns to columns.

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

from hindcast.formats.exact import decimal_places

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


def is_encodable(kind: str) -> bool:
    """Return whether values of a column type can have an encoding; if so, they are read by `decode_value`."""
    return kind.startswith("decimal") or kind in ("date", "timestamp")


def parser_type(kind: str, declared: str | None) -> str:
    """Return the type that a JSON parser must read: the encoding's if that is known, else a variant, read as text.

    `declared`: the encoding in the contract, or None.
    """
    match declared:
        case None | "Number":
            return "variant" if is_encodable(kind) else kind
        case "Decimal":
            return "binary"
        case "VariableScaleDecimal":
            return "struct<scale: int, value: binary>"
        case _:
            return "bigint"


def typed_parser_type(kind: str, declared: str | None) -> str:
    """Return the type that a parser must read in a format with its own decimals, dates and timestamps: Avro."""
    return kind if declared in (None, "Decimal", "Number") else parser_type(kind, declared)


def decode_typed_value(raw: Column, kind: str, declared: str | None) -> Column:
    """Return `decode_value` of a value of type `typed_parser_type`."""
    if declared is None or declared in ("Decimal", "Number"):
        return raw
    return _decode_as(raw, kind, declared, F.lit(None).cast("string"))


def decode_value(raw: Column, kind: str, declared: str | None, name: Column, scale: Column) -> Column:
    """Return a value in its column's type `kind`; null if it does not fit.

    `raw` has the type `parser_type`, string for a variant; `declared` is the contract's encoding, or None; `name` and
    `scale` are strings from the field's schema, null without one.

        "AyA=" decimal(8,2), Decimal: 8.00    1767225600000 timestamp, Timestamp: 2026-01-01T00:00:00Z
    """
    own = _named_encoding(name)
    if declared == "Number":  # also where Connect's decimal.format is NUMERIC
        return F.when(own.isNull() | (own == "Decimal"), _parse_number(raw, kind))
    if declared is not None:
        found = _decode_as(raw, kind, declared, scale)
        return F.when(own.isNull() | (own == declared), found)
    return F.when(own.isNull(), _parse_text(raw, kind)).otherwise(_decode_named(raw, kind, own, scale))


def micros(number: Column, unit: str) -> Column:
    """Return a number in microseconds, as decimal(38,0).

    `unit`: its encoding (`Timestamp`, `MicroTimestamp`, `NanoTimestamp`).
    """
    times, by = _MICROS[unit]
    wide = number.cast("decimal(20,0)")
    return (F.floor(wide / by) if by > 1 else wide * times).cast("decimal(38,0)")


def timestamp_from_micros(microseconds: Column) -> Column:
    """Return microseconds since 1970 as a timestamp; null beyond the years 1 to 9999."""
    return F.when(microseconds.between(_FIRST, _LAST), F.timestamp_micros(microseconds.cast("bigint")))


def _named_encoding(name: Column) -> Column:
    """Return the encoding that a schema names; null if it names none of ours."""
    found = F.lit(None).cast("string")
    for logical, encoding in LOGICAL.items():
        found = F.when(name == logical, encoding).otherwise(found)
    return found


def _decode_as(raw: Column, kind: str, encoding: str, scale: Column) -> Column:
    match encoding:
        case "Decimal":
            return _scaled_decimal(raw, F.coalesce(scale, F.lit(str(_precision_and_scale(kind)[1]))), kind)
        case "VariableScaleDecimal":
            return _scaled_decimal(raw["value"], raw["scale"].cast("string"), kind)
        case "Date":
            days = F.when(raw.between(_FIRST_DAY, _LAST_DAY), raw.cast("int"))
            return F.date_add(F.lit("1970-01-01").cast("date"), days)
        case _:
            return timestamp_from_micros(micros(raw, encoding))


def _decode_named(text: Column, kind: str, encoding: Column, scale: Column) -> Column:
    """Return text decoded by the encoding that the record's schema names."""
    number = F.when(text.rlike("^-?[0-9]{1,19}$"), text.try_cast("bigint"))
    if kind == "timestamp":
        found = F.lit(None).cast(kind)
        for unit in _MICROS:
            found = F.when(encoding == unit, _decode_as(number, kind, unit, scale)).otherwise(found)
        return found
    if kind == "date":
        return F.when(encoding == "Date", _decode_as(number, kind, "Date", scale))
    unscaled = F.when(text.rlike(_BASE64) & ~text.rlike(_NUMBER), F.try_to_binary(text, F.lit("base64")))
    decimal = F.coalesce(_decode_as(unscaled, kind, "Decimal", scale), _parse_text(text, kind))
    variable = F.from_json(text, "struct<scale: int, value: binary>")
    return (
        F.when(encoding == "Decimal", decimal)
        .when(encoding == "VariableScaleDecimal", _decode_as(variable, kind, "VariableScaleDecimal", scale))
        .cast(kind)
    )


_BASE64 = "^([A-Za-z0-9+/]{4})*([A-Za-z0-9+/]{4}|[A-Za-z0-9+/]{3}=|[A-Za-z0-9+/]{2}==)$"
_NUMBER = r"^[-+]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][-+]?[0-9]{1,3})?$"


def _parse_text(text: Column, kind: str) -> Column:
    """Return text that describes itself as a value."""
    if kind == "timestamp":
        return F.when(text.rlike("^[0-9]{4}-[0-9]{2}-[0-9]{2}[T ][0-9]{2}:"), text.try_cast(kind))
    if kind == "date":
        return F.when(text.rlike("^[0-9]{4}-[0-9]{2}-[0-9]{2}Z?$"), F.substring(text, 1, 10).try_cast(kind))
    return _parse_number(F.when(~text.rlike(_BASE64), text), kind)


def _parse_number(text: Column, kind: str) -> Column:
    return exact_decimal(F.when(text.rlike(_NUMBER), text), kind)


def exact_decimal(text: Column, kind: str) -> Column:
    """Return the text of a number as a decimal type `kind`, never rounded; null if the type cannot hold its digits."""
    _, scale = _precision_and_scale(kind)
    return _compute_once(text, lambda it: F.when(decimal_places(it) <= scale, it.try_cast(kind)))


def _compute_once(column: Column, use: Callable[[Column], Column]) -> Column:
    """Return what is computed from a column that is used several times, as an element of an array of one.

    Else Spark would plan and compute it again for each use.
    """
    return F.get(F.transform(F.array(column), use), F.lit(0))


def _precision_and_scale(kind: str) -> tuple[int, int]:
    """Return precision and scale of a decimal type, with Spark's defaults."""
    given = [int(number) for number in re.findall("[0-9]+", kind)]
    digits, scale = [*given, *(10, 0)[len(given) :]]
    return digits, scale


def _scaled_decimal(unscaled: Column, scale: Column, kind: str) -> Column:
    """Return a big-endian two's-complement number with its scale (string) as a decimal; null if too large."""

    def number(hexed: Column) -> Column:
        negative = F.substring(hexed, 1, 1) >= "8"
        total = F.lit(0).cast("decimal(38,0)")
        for start in (1, 9, 17, 25):
            word = F.conv(F.substring(hexed, start, 8), 16, 10).cast("decimal(10,0)")
            word = F.when(negative, F.lit(_WORD).cast("decimal(10,0)") - word).otherwise(word)
            total = F.try_add(F.try_multiply(total, F.lit(_WORD + 1).cast("decimal(10,0)")), word).cast("decimal(38,0)")
        magnitude = F.try_add(total, F.when(negative, 1).otherwise(0)).cast("string")
        return F.concat(F.when(negative, "-").otherwise(""), magnitude)

    def pad_digits(hexed: Column) -> Column:
        filling = F.when(F.substring(hexed, 1, 1) >= "8", "F").otherwise("0")
        return F.when(F.length(hexed).between(1, 32), F.lpad(hexed, 32, filling))

    digits = _compute_once(_compute_once(F.hex(unscaled), pad_digits), number)
    return exact_decimal(F.concat(digits, F.lit("E-"), scale), kind)
