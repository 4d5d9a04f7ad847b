"""One record after the other, exactly: the values of its columns, or what is wrong with it.

This is what a record means. `batches` reads plain records faster and leaves all others to it.
"""

from __future__ import annotations

import math
import re
import struct
from collections.abc import Mapping
from fractions import Fraction
from typing import Any, NamedTuple

from hindcast.formats.json import scalars
from hindcast.formats.json.syntax import (
    JsonObject,
    JsonValue,
    Number,
    allow_depth,
    parse_json,
    write_json,
    write_text,
)
from hindcast.formats.json.types import WHOLE_BITS, FieldType

_SHOWN_VALUE, _SHOWN_RECORD = 60, 200
"""So many characters of a value and of a record a message shows."""

_LOOSE_KINDS = {*WHOLE_BITS, "float", "double", "boolean"}
_SPACE = "".join(map(chr, [*range(33), 127]))
_BOOLEANS = {
    **dict.fromkeys(("t", "true", "y", "yes", "1"), True),
    **dict.fromkeys(("f", "false", "n", "no", "0"), False),
}
_WHOLE = re.compile("[-+]?[0-9]+")
_FLOAT = re.compile(r"([-+]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][-+]?[0-9]+)?)[fFdD]?")
_INFINITE = re.compile("[-+]?inf(?:inity)?|nan", re.IGNORECASE)


class RecordShape(NamedTuple):
    """What to read from records: `fields` are the columns with the names that their fields can have, the preferred
    first, and their types; `mode` is the contract's; `wrong` begins a message for what is no such object, and `at` one
    for what is wrong within it.
    """

    fields: tuple[tuple[str, tuple[str, ...], FieldType], ...]
    mode: str
    wrong: str
    at: str


class _Misfit(Exception):  # noqa: N818  # it is what a record has, not what failed
    """What is wrong with a value, and where."""


def read_record(raw: bytes, shape: RecordShape) -> tuple[dict[str, Any] | None, str | None]:
    """Return a record's columns, or None and what is wrong with it.

    Dates are dates, timestamps are microseconds since 1970.
    """
    try:
        text = raw.decode()
        with allow_depth(text):
            found = parse_json(text, lenient=shape.mode == "lenient")
            return _read_columns(found, shape), None
    except _Misfit as misfit:
        return None, f"{shape.at}{misfit}"
    except ValueError:
        shown = raw.decode(errors="replace")
        return None, f"{shape.wrong}{shown[:_SHOWN_RECORD]}{'...' if len(shown) > _SHOWN_RECORD else ''}"


def _read_columns(found: JsonValue, shape: RecordShape) -> dict[str, Any]:
    if not isinstance(found, JsonObject):
        raise ValueError("not an object")
    loose = {column for column, _, type_ in shape.fields if shape.mode == "lenient" and type_.kind in _LOOSE_KINDS}
    types = {name: type_ for column, names, type_ in shape.fields for name in names if column not in loose}
    if not _is_fit(found, types):
        raise ValueError("a value of another type")
    last = dict(found)
    if shape.mode == "strict" and (
        len(found) != len(shape.fields) or not all(any(it in last for it in names) for _, names, _ in shape.fields)
    ):
        raise ValueError("other fields")
    chosen = {column: next((last[it] for it in names if it in last), None) for column, names, _ in shape.fields}
    read = {c: _parse_loose(chosen[c], type_) for c, _, type_ in shape.fields if c in loose}
    return {c: read[c] if c in loose else _convert(chosen[c], type_, c) for c, _, type_ in shape.fields}


def _is_fit(value: JsonValue, type_: FieldType | Mapping[str, FieldType]) -> bool:
    """Return whether a value, and each within it, has the type in JSON that its own type needs, repetitions too."""
    if value is None:
        return True
    if isinstance(type_, Mapping):
        return isinstance(value, JsonObject) and all(_is_fit(it, type_[name]) for name, it in value if name in type_)
    match type_.kind:
        case "struct":
            return _is_fit(value, dict(type_.fields))
        case "array":
            return isinstance(value, list) and not isinstance(value, JsonObject) and all(
                _is_fit(it, type_.element[0]) for it in value
            )
        case "boolean":
            return isinstance(value, bool)
        case "float" | "double":
            return isinstance(value, Number)
        case kind if kind in WHOLE_BITS:
            bits = max(WHOLE_BITS[kind], 16)  # a tinyint that is too large has a message of its own
            return isinstance(value, Number) and _WHOLE.fullmatch(value) is not None and _has_bits(int(value), bits)
    return True


def _convert(value: JsonValue, type_: FieldType, path: str) -> Any:
    """Return a value that `_is_fit` as one of its type; raise _Misfit if it is none."""
    if value is None:
        return None
    match type_.kind:
        case "struct":
            fields = dict(value)  # type: ignore[arg-type]  # it fits
            return {name: _convert(fields.get(name), it, f"{path}.{name}") for name, it in type_.fields}
        case "array":
            return [_convert(it, type_.element[0], f"{path}[]") for it in value]  # type: ignore[union-attr]  # it fits
        case "float" | "double":
            number = nearest_float(str(value), type_.kind)
            if not math.isfinite(number):
                raise _Misfit(f"{path} is not a {type_.name}: infinite")
            return number
        case "boolean":
            return value
        case "string":
            if isinstance(value, str) and not isinstance(value, Number):
                return value
            text = write_json(value)
            if isinstance(value, Number) and "Infinity" in text:
                raise _Misfit(f"{path} is a number that is none: {text}")
            return text
    found = parse_scalar(value, type_)
    if found is None:
        raise _Misfit(f"{path} is not a {type_.name}: {write_text(value)[:_SHOWN_VALUE]}")
    return found


def parse_scalar(value: JsonValue, type_: FieldType) -> Any:
    """Return a value that is not null as a whole number, decimal, date, timestamp, binary or variant, or None."""
    match type_.kind:
        case "variant":
            return _write_variant(value)
        case "binary":
            is_text = isinstance(value, str) and not isinstance(value, Number)
            return scalars.parse_base64(value) if is_text else None  # type: ignore[arg-type]  # it is a text
    if not isinstance(value, str):
        return None
    match type_.kind:
        case "decimal":
            return scalars.parse_decimal(value, type_)
        case "date":
            return scalars.parse_date(value)
        case "timestamp":
            return scalars.parse_timestamp(value)
    return int(value) if _has_bits(int(value), WHOLE_BITS[type_.kind]) else None


def nearest_float(text: str, kind: str) -> float:
    """Return the float or double that is nearest to a number, infinite if it is too large."""
    value = float(text)
    if kind == "double" or not math.isfinite(value):
        return value
    below, above = (_round_to_float(math.nextafter(value, it)) for it in (-math.inf, math.inf))
    if below != above and math.isfinite(above) and math.isfinite(below):  # rounding twice may be rounding wrongly
        beyond_half = 2 * Fraction(text) - Fraction(below) - Fraction(above)
        if beyond_half:
            return above if beyond_half > 0 else below
    return _round_to_float(value)


def _round_to_float(value: float) -> float:
    try:
        return float(struct.unpack("f", struct.pack("f", value))[0])
    except OverflowError:
        return math.copysign(math.inf, value)


def _parse_loose(value: JsonValue, type_: FieldType) -> Any:
    """Return a number or boolean, also from its text, as Spark casts it; raise ValueError if it is none."""
    if value is None:
        return None
    text = write_text(value).strip(_SPACE) if isinstance(value, str | bool) else ""
    found: Any = None
    if type_.kind == "boolean":
        found = _BOOLEANS.get(text.lower())
    elif type_.kind in WHOLE_BITS:
        found = int(text) if _WHOLE.fullmatch(text) and _has_bits(int(text), WHOLE_BITS[type_.kind]) else None
    elif _INFINITE.fullmatch(text):
        found = float(text)
    elif match := _FLOAT.fullmatch(text):
        number = nearest_float(match[1], type_.kind)
        found = number if math.isfinite(number) else None
    if found is None:
        raise ValueError(f"not a {type_.name}")
    return found


def _write_variant(value: JsonValue) -> str:
    """Return the text of any value; a number with an exponent has a point, so that it does not look like base64."""
    if isinstance(value, Number) and "." not in value:
        return re.sub("[eE]", ".0e", value)
    return write_text(value)


def _has_bits(number: int, bits: int) -> bool:
    return -(1 << bits - 1) <= number < 1 << bits - 1
