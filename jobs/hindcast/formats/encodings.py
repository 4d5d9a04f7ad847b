"""Encodings of decimals, dates and moments in JSON, as Debezium and Connect write them.

A record's own schema names a field's encoding; without schemas the contract does (`encoded`). Never is one guessed: a
number for a timestamp, of which nobody says what it counts, does not fit.

| encoding | a value is | of type |
| --- | --- | --- |
| Decimal | base64 of the unscaled number, big-endian; the schema has the scale, else it is the column's | decimal |
| VariableScaleDecimal | {"scale": 1, "value": "Dw=="} | decimal |
| Number | a number, or its text: never base64 | decimal |
| Date | days since 1970-01-01 | date |
| Timestamp, MicroTimestamp, NanoTimestamp | milli-, micro-, nanoseconds since 1970-01-01T00:00:00Z | timestamp |

Numbers, and text that says what it is, need none: 12.34, "12.34", "2026-01-01", "2026-01-01T12:00:00Z". "1234" does
not: it is base64 too. Where a schema says Decimal, every text without a point is base64.
"""

from __future__ import annotations

import base64
import json
import re
from datetime import date, timedelta
from decimal import Decimal
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from hindcast.common.column_values import ColumnValue
from hindcast.contract.avro_compatibility import parse_declared_type
from hindcast.formats.json.columns import column_type, match_all, parse_plain_texts
from hindcast.formats.json.values import MAX_MICROS, MIN_MICROS, decimal_digits, parse_text, scale_decimal

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

MICROS = {"Timestamp": (1000, 1), "MicroTimestamp": (1, 1), "NanoTimestamp": (1, 1000)}
"""By the encoding of a moment: its number, times the first and divided by the second, is in microseconds."""
_EPOCH, _FIRST_DAY, _LAST_DAY = date(1970, 1, 1), -719_162, 2_932_896
_MOST = (1 << 63) - 1
_LONGEST = 1_000
"""So many characters a number may have: beyond them nothing is matched, as to match base64 takes 30 times its size."""
_WHOLE = re.compile(r"(-?[0-9]{1,19})\.?")
_POINT = r"^(-?[0-9]+)\.$"
"""A whole number as a variant has it."""
_BASE64 = re.compile("(?:[A-Za-z0-9+/]{4})*(?:[A-Za-z0-9+/]{4}|[A-Za-z0-9+/]{3}=|[A-Za-z0-9+/]{2}==)")
_NUMBER = re.compile(r"[-+]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][-+]?[0-9]{1,3})?")
_DAY = re.compile("([0-9]{4}-[0-9]{2}-[0-9]{2})Z?")
_MOMENT = re.compile("[0-9]{4}-[0-9]{2}-[0-9]{2}[T ][0-9]{2}:.*", re.DOTALL)


class FieldSchema(NamedTuple):
    """What a record's own schema says of a field: the name of its encoding, and its scale; None for nothing."""

    name: str | None = None
    scale: str | None = None


def is_encodable(kind: str) -> bool:
    """Return whether values of a column type can have an encoding; if so, they are read by `decode_values`."""
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


def decode_typed_values(raw: pa.Array, kind: str, declared: str | None) -> pa.Array:
    """Return `decode_values` of values of type `typed_parser_type`."""
    if declared is None or declared in ("Decimal", "Number"):
        return raw
    return decode_values(raw, kind, declared, [FieldSchema()] * len(raw))


def decode_values(raw: pa.Array, kind: str, declared: str | None, schemas: list[FieldSchema]) -> pa.Array:
    """Return values in their column's type `kind`; null if they do not fit.

    `raw` has the type `parser_type`, string for a variant; `declared` is the contract's encoding, or None; `schemas`:
    what the schema of each record says of the field.

        "AyA=" decimal(8,2), Decimal: 8.00    1767225600000 timestamp, Timestamp: 2026-01-01T00:00:00Z
    """
    if len({*schemas}) == 1 and (column := _decode_column(raw, kind, declared, schemas[0])) is not None:
        return column
    values = [
        None if value is None else _decode_value(value, kind, declared, schema)
        for value, schema in zip(raw.to_pylist(), schemas, strict=True)
    ]
    return pa.array(values, column_type(kind))


def _decode_column(raw: pa.Array, kind: str, declared: str | None, schema: FieldSchema) -> pa.Array | None:
    """Return all values at once, if they have one schema and none is unusual; None otherwise."""
    own = None if schema.name is None else LOGICAL.get(schema.name)
    if not pa.types.is_string(raw.type):
        return _count_column(raw, kind, declared) if pa.types.is_int64(raw.type) and own in (None, declared) else None
    is_decimal = kind.startswith("decimal")
    if own is None or (is_decimal and own == "Decimal"):
        is_plain = not is_decimal or declared == "Number" or match_all(raw, r"\.")  # with a point it is no base64
        return parse_plain_texts(_remove_points(raw), parse_declared_type(kind)) if is_plain else None
    if own in (*MICROS, "Date") and match_all(raw, r"^-?[0-9]{1,18}\.?$"):
        return _count_column(_remove_points(raw).cast(pa.int64()), kind, own)
    return None


def _remove_points(texts: pa.Array) -> pa.Array:
    """Return texts without the point at the end of whole numbers."""
    return pc.replace_substring_regex(texts, _POINT, r"\1")


def show_variant(text: str) -> str:
    """Return the text of a variant as its record has it: without the point at the end of a whole number."""
    return text.removesuffix(".")


def _count_column(numbers: pa.Array, kind: str, encoding: str | None) -> pa.Array | None:
    """Return numbers of an encoding as dates or timestamps, null beyond the years 1 to 9999; None if they are none."""
    if kind == "timestamp" and encoding in MICROS:
        return count_micros(numbers, encoding).cast(column_type(kind))
    if kind == "date" and encoding == "Date":
        return _select_within(numbers, _FIRST_DAY, _LAST_DAY).cast(pa.int32()).cast(column_type(kind))
    return None


def count_micros(numbers: pa.Array, encoding: str) -> pa.Array:
    """Return numbers of an encoding of moments in microseconds since 1970, null beyond the years 1 to 9999."""
    times, by = MICROS[encoding]
    first, last = (max(-_MOST - 1, min(it * by // times, _MOST)) for it in (MIN_MICROS, MAX_MICROS))
    held = _select_within(numbers, first, last)
    known = held.fill_null(0).to_numpy(zero_copy_only=False)
    return pc.if_else(held.is_valid(), pa.array(known * times // by), pa.scalar(None, pa.int64()))


def _select_within(numbers: pa.Array, first: int, last: int) -> pa.Array:
    """Return numbers, null for those that are less than the first or more than the last."""
    held = pc.and_(pc.greater_equal(numbers, first), pc.less_equal(numbers, last))
    return pc.if_else(held, numbers, pa.scalar(None, pa.int64()))


def _decode_value(value: ColumnValue, kind: str, declared: str | None, schema: FieldSchema) -> ColumnValue:
    own = None if schema.name is None else LOGICAL.get(schema.name)
    if not isinstance(value, str):
        return (
            None if declared is None or own not in (None, declared) else _decode_as(value, kind, declared, schema.scale)
        )
    if declared == "Number":  # also where Connect's decimal.format is NUMERIC
        return _parse_decimal(value, kind) if own in (None, "Decimal") else None
    return _parse_text(value, kind) if own is None else _decode_named(value, kind, own, schema.scale)


def _decode_as(value: ColumnValue, kind: str, encoding: str, scale: str | None) -> ColumnValue:
    match value:
        case bytes():
            return _scale_number(value, str(decimal_digits(kind)[1]) if scale is None else scale, kind)
        case {"scale": int(own), "value": bytes(unscaled)}:
            return _scale_number(unscaled, str(own), kind)
        case int() if encoding == "Date":
            return _EPOCH + timedelta(value) if _FIRST_DAY <= value <= _LAST_DAY else None
        case int():
            times, by = MICROS[encoding]
            micros = value * times // by
            return micros if MIN_MICROS <= micros <= MAX_MICROS else None
    return None


def _decode_named(text: str, kind: str, encoding: str, scale: str | None) -> ColumnValue:
    """Return text decoded by the encoding that the record's schema names."""
    if kind in ("date", "timestamp"):
        fits = encoding == "Date" if kind == "date" else encoding in MICROS
        match = _WHOLE.fullmatch(text) if fits else None
        number = int(match[1]) if match else 1 << 63
        return _decode_as(number, kind, encoding, scale) if -(1 << 63) <= number < 1 << 63 else None
    if encoding == "VariableScaleDecimal":
        return _decode_as(_parse_variable(text), kind, encoding, scale)
    if encoding != "Decimal" or len(text) > _LONGEST:
        return None
    if "." in text:
        return _parse_decimal(text, kind)
    return _decode_as(base64.b64decode(text), kind, encoding, scale) if _BASE64.fullmatch(text) else None


def _parse_variable(text: str) -> ColumnValue:
    """Return the scale and the bytes of a decimal with its own scale; None for what is not such."""
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        found = None
    scale, value = (found.get("scale"), found.get("value")) if isinstance(found, dict) else (None, None)
    if type(scale) is not int or not isinstance(value, str) or len(value) > _LONGEST:
        return None
    if not _BASE64.fullmatch(value):
        return None
    return {"scale": scale, "value": base64.b64decode(value)}


def _parse_text(text: str, kind: str) -> ColumnValue:
    """Return text that describes itself as a value."""
    if kind == "timestamp":
        return parse_text(text, kind) if _MOMENT.fullmatch(text) else None
    if kind == "date":
        match = _DAY.fullmatch(text)
        return parse_text(match[1], kind) if match else None
    return None if len(text) > _LONGEST or _BASE64.fullmatch(text) else _parse_decimal(text, kind)


def _parse_decimal(text: str, kind: str) -> Decimal | None:
    """Return the text of a number as a decimal, never rounded; None if the type cannot hold its digits."""
    if len(text) > _LONGEST or not _NUMBER.fullmatch(text):
        return None
    sign, digits, exponent = Decimal(text).as_tuple()
    number = int("".join(map(str, digits)))
    return scale_decimal(-number if sign else number, int(exponent), *decimal_digits(kind))


def _scale_number(unscaled: bytes, scale: str, kind: str) -> Decimal | None:
    """Return a big-endian two's-complement number with its scale as a decimal; None if it does not fit."""
    if not 1 <= len(unscaled) <= 16 or not re.fullmatch("[-+]?[0-9]{1,3}", scale):
        return None
    return scale_decimal(int.from_bytes(unscaled, signed=True), -int(scale), *decimal_digits(kind))
