"""JSON values as values of column types: exactly what was sent, or a misfit; nothing is rounded, cut off or guessed.

| column type | what is taken |
| --- | --- |
| decimal(p,s) | a number, or its text, that needs no more than p digits, s of them behind the point |
| tinyint, smallint, int, bigint | a whole number that fits, without point and exponent |
| float, double | a number that is finite as one; it is the nearest one |
| date | 2026-01-31, years 1 to 9999 |
| timestamp | ISO 8601, UTC unless it says otherwise, years 1 to 9999; what is below a microsecond is cut |
| | or seconds since 1970, of 5 to 12 digits |
| boolean, binary | true, false; base64 with all its padding |
| string | a string; of another value its JSON text, as Spark writes it |
| variant | the text of any value, with the digits of a number as they were written, and a point: 8 is `8.` |
"""

from __future__ import annotations

import base64
import math
import re
import struct
from datetime import date
from decimal import Context, Decimal
from fractions import Fraction
from functools import cache
from typing import Any

from hindcast.common.column_values import ColumnValue
from hindcast.contract.avro import ArrayType, FieldType, RecordType
from hindcast.formats.json.syntax import JsonObject, JsonValue, MinusZero, Number, write_json, write_text

BITS = {"tinyint": 8, "smallint": 16, "int": 32, "bigint": 64}
"""The bits of whole numbers, by type."""

_SHOWN = 60
_LONGEST, _SIDE = 128, 20
"""The most characters of a decimal; and of its digits on each side of the point, if it has an exponent."""
_DECIMAL = re.compile(r"[-+]?([0-9]+)(?:\.([0-9]+))?(?:[eE]([-+]?[0-9]{1,2}))?")
_DATE = re.compile("[0-9]{4}-[0-9]{2}-[0-9]{2}")
_MOMENT = re.compile(
    r"([0-9]{4})-([0-9]{2})-([0-9]{2})"
    r"(?:[T ]([0-9]{2}):([0-9]{2})(?::([0-9]{2})(?:\.([0-9]{1,9}))?(?:Z|([+-])([0-9]{2}):([0-9]{2}))?)?)?"
)
_SECONDS = re.compile("-?[0-9]{5,12}")
_BASE64 = re.compile("[A-Za-z0-9+/]*={0,2}")
_WIDE = Context(prec=40)
_EPOCH, _CYCLE = date(1970, 1, 1).toordinal(), 146_097
"""The number of 1970's first day; the days in 400 years."""
MIN_MICROS, MAX_MICROS = -62_135_596_800_000_000, 253_402_300_799_999_999
"""The bounds of the years 1 to 9999, in microseconds since 1970."""
_MINUTE, _HOUR, _DAY = 60, 3_600, 86_400
_SPACE = "".join(map(chr, [*range(33), 127]))
_WHOLE = re.compile("[-+]?[0-9]+")
_WHOLE_TEXT = re.compile("-?[0-9]{1,20}")
_FLOAT_TEXT = re.compile(r"-?[0-9]+(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?")
_FLOAT = re.compile(r"([-+]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][-+]?[0-9]+)?)[fFdD]?")
_HEXADECIMAL = re.compile("([-+]?0[xX](?:[0-9a-fA-F]+(?:[.][0-9a-fA-F]*)?|[.][0-9a-fA-F]+)[pP][-+]?[0-9]+)[fFdD]?")
_INFINITE = re.compile("[-+]?inf(?:inity)?|nan", re.IGNORECASE)
_BOOLEANS = {
    **dict.fromkeys(("t", "true", "y", "yes", "1"), True),
    **dict.fromkeys(("f", "false", "n", "no", "0"), False),
}


class Misfit(Exception):  # noqa: N818  # what a record has, not what failed
    """What is wrong with a value, and where."""


def has_json_type(value: JsonValue, type_: FieldType) -> bool:
    """Return whether a value, and all within it, repeated fields too, has the JSON type that its own type requires."""
    match type_:
        case _ if value is None:
            return True
        case RecordType(types):
            return isinstance(value, JsonObject) and all(
                has_json_type(it, types[name]) for name, it in value.fields if name in types
            )
        case ArrayType(element):
            return isinstance(value, list) and all(has_json_type(it, element) for it in value)
    match str(type_):
        case "boolean":
            return isinstance(value, bool)
        case "float" | "double":
            return isinstance(value, Number)
        case name if name in BITS:
            bits = max(BITS[name], 16)  # a tinyint that is too large has a message of its own
            return isinstance(value, Number) and _WHOLE.fullmatch(value) is not None and _has_bits(int(value), bits)
    return True


def convert(value: JsonValue, type_: FieldType, path: str) -> Any:
    """Return a value for which `has_json_type` holds as one of its type; raise Misfit with its path if it is none.

    Dates are dates, timestamps are microseconds since 1970.
    """
    match type_, value:
        case _, None:
            return None
        case RecordType(types), JsonObject(fields):
            last = dict(fields)
            return {name: convert(last.get(name), it, f"{path}.{name}") for name, it in types.items()}
        case ArrayType(element), list():
            return [convert(it, element, f"{path}[]") for it in value]
    name = str(type_)
    match parse_scalar(value, name):
        case float() as number if not math.isfinite(number):
            raise Misfit(f"{path} is not a {name}: infinite")
        case None if name == "string":
            raise Misfit(f"{path} is a number that is none: {write_json(value)}")
        case None:
            raise Misfit(f"{path} is not a {name}: {write_text(value)[:_SHOWN]}")
        case found:
            return found


def parse_scalar(value: JsonValue, name: str) -> Any:
    """Return a value for which `has_json_type` holds as one of a type without parts, or None."""
    match name:
        case "string":
            text = write_json(value) if isinstance(value, Number) else write_text(value)
            return None if isinstance(value, Number) and "Infinity" in text else text
        case "variant":
            return _write_variant(value)
        case "boolean":
            return value
        case "binary":
            return _parse_base64(value) if isinstance(value, str) and not isinstance(value, Number) else None
    if not isinstance(value, str):
        return None
    match name:
        case "float" | "double":
            return _nearest_float(value, name)
        case "date":
            return _parse_date(value)
        case "timestamp":
            return _parse_timestamp(value)
    if name in BITS:
        return int(value) if _has_bits(int(value), BITS[name]) else None
    return _parse_decimal(value, *decimal_digits(name))


def _write_variant(value: JsonValue) -> str:
    """Return a value as text; a number or a boolean with a point, which no base64 has: texts alone are base64."""
    text = write_text(value)
    if not isinstance(value, Number | bool) or "." in text:
        return text
    return re.sub("[eE]", ".0e", text) if isinstance(value, Number) and "e" in text.lower() else f"{text}."


def parse_text(text: str, name: str) -> ColumnValue:
    """Return a text, such as a record's key, as a value of a type without parts; None if it is not exactly one.

    " 42" and "4e1" are no int, "yes" is no boolean, "12:30" no timestamp, "1.005" no decimal(8,2).
    """
    found: ColumnValue = None
    if name == "boolean":
        found = {"true": True, "false": False}.get(text)
    elif name in ("float", "double"):
        number = _nearest_float(text, name) if _FLOAT_TEXT.fullmatch(text) else math.inf
        found = number if math.isfinite(number) else None
    elif name not in BITS or _WHOLE_TEXT.fullmatch(text):
        found = parse_scalar(text, name)
    return found


def parse_loose(value: JsonValue, name: str) -> Any:
    """Return a number or boolean, also from its text, as Spark casts it; raise ValueError if it is none."""
    text = write_text(value).strip(_SPACE) if isinstance(value, str | bool) else ""
    text = "-0" if isinstance(value, MinusZero) else text
    found: Any = None
    if value is None:
        return None
    if name == "boolean":
        found = _BOOLEANS.get(text.lower())
    elif name in BITS:
        found = int(text) if _WHOLE.fullmatch(text) and _has_bits(int(text), BITS[name]) else None
    elif _INFINITE.fullmatch(text):
        found = float(text)
    elif match := _FLOAT.fullmatch(text):
        number = _nearest_float(match[1], name)
        found = number if math.isfinite(number) else None
    elif match := _HEXADECIMAL.fullmatch(text):  # as Java reads it
        found = _read_hexadecimal(match[1], name)
    if found is None:
        raise ValueError(f"not a {name}")
    return found


def _read_hexadecimal(text: str, name: str) -> float | None:
    try:
        number = float.fromhex(text)
    except OverflowError:
        return None
    number = number if name == "double" else _round_to_float(number)
    return number if math.isfinite(number) else None


@cache
def decimal_digits(name: str) -> tuple[int, int]:
    """Return how many digits a decimal type has, and how many of them behind the point."""
    digits, *scale = map(int, re.findall("[0-9]+", name))
    return digits, scale[0] if scale else 0


def _has_bits(number: int, bits: int) -> bool:
    return -(1 << bits - 1) <= number < 1 << bits - 1


def _nearest_float(text: str, name: str) -> float:
    """Return the float or double that is nearest to a number, infinite if it is too large."""
    value = float(text)
    if name == "double" or not math.isfinite(value):
        return value
    below, above = (_round_to_float(math.nextafter(value, it)) for it in (-math.inf, math.inf))
    if below != above and math.isfinite(above - below):  # halfway between both: rounding twice could be wrong
        beyond_half = 2 * Fraction(text) - Fraction(below) - Fraction(above)
        if beyond_half:
            return above if beyond_half > 0 else below
    return _round_to_float(value)


def _round_to_float(value: float) -> float:
    try:
        return float(struct.unpack("f", struct.pack("f", value))[0])
    except OverflowError:
        return math.copysign(math.inf, value)


def _parse_decimal(text: str, digits: int, scale: int) -> Decimal | None:
    match = _DECIMAL.fullmatch(text) if len(text) <= _LONGEST else None
    if match is None:
        return None
    whole, fraction, power = match[1], match[2] or "", match[3]
    if power is not None and max(len(whole), len(fraction)) > _SIDE:
        return None
    number = -int(whole + fraction) if text[0] == "-" else int(whole + fraction)
    return scale_decimal(number, int(power or 0) - len(fraction), digits, scale)


def scale_decimal(number: int, exponent: int, digits: int, scale: int) -> Decimal | None:
    """Return a number times a power of ten as a decimal of a type, never rounded; None if it needs more digits."""
    places = exponent + scale
    unscaled, lost = divmod(abs(number) * 10 ** max(places, 0), 10 ** max(-places, 0))
    if lost or unscaled >= 10**digits:
        return None
    return Decimal(unscaled if number >= 0 else -unscaled).scaleb(-scale, _WIDE)


def _parse_date(text: str) -> date | None:
    try:
        return date.fromisoformat(text) if _DATE.fullmatch(text) else None
    except ValueError:
        return None


def _parse_timestamp(text: str) -> int | None:
    if _SECONDS.fullmatch(text):
        found: int | None = int(text) * 1_000_000
    else:
        match = _MOMENT.fullmatch(text)
        found = _count_microseconds(match) if match else None
    return found if found is not None and MIN_MICROS <= found <= MAX_MICROS else None


def _count_microseconds(match: re.Match[str]) -> int | None:
    year, month, day, hour, minute, second = (int(it or 0) for it in match.groups()[:6])
    zone_minute = int(match[10] or 0)
    offset = int(match[9] or 0) * _HOUR + zone_minute * _MINUTE
    if hour > 23 or max(minute, second, zone_minute) > 59 or offset > 18 * _HOUR:
        return None
    try:  # a day of year 0 may be one of year 1 in UTC
        days = date(year or 400, month, day).toordinal() - (0 if year else _CYCLE) - _EPOCH
    except ValueError:
        return None
    seconds = days * _DAY + hour * _HOUR + minute * _MINUTE + second + (offset if match[8] == "-" else -offset)
    return seconds * 1_000_000 + int((match[7] or "")[:6].ljust(6, "0"))


def _parse_base64(text: str) -> bytes | None:
    return base64.b64decode(text) if len(text) % 4 == 0 and _BASE64.fullmatch(text) else None
