"""JSON texts as values, and values as texts: exactly what the text says, or ValueError.

Objects keep the order of their fields and repetitions; numbers are as they were written.
"""

from __future__ import annotations

import json
import math
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from decimal import Decimal
from typing import NamedTuple, NoReturn, TypeAlias

from hindcast.formats.json.lenient import to_standard_json

MAX_DEPTH, MAX_DIGITS, MAX_NAME, MAX_TEXT = 1_000, 1_000, 50_000, 20_000_000
"""The most levels of a record, digits of a number, characters of a name and of a text."""


class Number(str):
    """A number as it was written."""

    __slots__ = ()


class MinusZero(Number):
    """The number -0: it is 0, but for what is read from texts."""

    __slots__ = ()


class JsonObject(NamedTuple):
    """An object; its fields have a name and a value."""

    fields: list[tuple[str, JsonValue]]


JsonValue: TypeAlias = "bool | Number | str | list[JsonValue] | JsonObject | None"

_HALF = re.compile(r"\\u[dD][89a-fA-F]")
_PAIR = re.compile(r"\\u[dD][89abAB]..\\u[dD][c-fC-F]")
_BRACKETS = re.compile(r'"[^"\\]*+(?:\\.[^"\\]*+)*+"?|[\[\]{}]', re.DOTALL)
_STEPS = {"[": 1, "{": 1, "]": -1, "}": -1}
_FEW_LEVELS, _FRAMES = 100, 5
"""So many levels are never too many; at most so many frames of Python are needed for each."""
_ESCAPED = re.compile(r'[\x00-\x1f"\\\U00010000-\U0010ffff]')
_SHORT = {'"': '\\"', "\\": "\\\\", "\b": "\\b", "\t": "\\t", "\n": "\\n", "\f": "\\f", "\r": "\\r"}


def parse_json(text: str, *, lenient: bool = False) -> JsonValue:
    """Return the value of a text, in the JSON of lenient mode if `lenient`; raise ValueError if it is not one value."""
    if "\\u" in text and _HALF.search(_PAIR.sub("", text.replace("\\\\", "_"))):
        raise ValueError("half a character")
    value: JsonValue = _LENIENT.decode(to_standard_json(text)) if lenient else _STRICT.decode(text)
    if len(text) > MAX_NAME:
        _refuse_long_texts(value)
    return value


def read_number(text: str) -> Number:
    """Return a number as it was written, -0 as 0; raise ValueError if it has too many digits."""
    if len(text) > MAX_DIGITS and sum(it.isdecimal() for it in text) > MAX_DIGITS:
        raise ValueError("a number of too many digits")
    return MinusZero("0") if text == "-0" else Number(text)


@contextmanager
def allow_depth(text: str) -> Iterator[None]:
    """Let values of `MAX_DEPTH` levels be read and written in the block; raise ValueError if the text has more."""
    if is_deep(text):
        raise ValueError("nested too deeply")
    before = sys.getrecursionlimit()
    if text.count("[") + text.count("{") > _FEW_LEVELS:
        sys.setrecursionlimit(before + _FRAMES * MAX_DEPTH)
    try:
        yield
    finally:
        sys.setrecursionlimit(before)


def is_deep(text: str) -> bool:
    """Return whether a text has more than `MAX_DEPTH` levels."""
    if text.count("[") + text.count("{") <= MAX_DEPTH:
        return False
    level = 0
    for token in _BRACKETS.finditer(text):
        level += _STEPS.get(token[0], 0)
        if level > MAX_DEPTH:
            return True
    return False


def write_text(value: JsonValue) -> str:
    """Return a text as it is, a number as it was written, and another value as JSON."""
    return value if isinstance(value, str) else write_json(value)


def write_json(value: JsonValue) -> str:
    r"""Return a value as JSON as Spark writes it: without spaces, and numbers with a point or an exponent as doubles.

    >>> write_json([JsonObject([("a", Number("1.50"))]), Number("1e7"), Number("-5"), "\x1f", None, True])
    '[{"a":1.5},1.0E7,-5,"\\u001F",null,true]'
    """
    match value:
        case None:
            return "null"
        case bool():
            return "true" if value else "false"
        case Number():
            return value if value.lstrip("-").isdecimal() else _write_double(float(value))
        case str():
            return f'"{_ESCAPED.sub(_escape_character, value)}"'
        case JsonObject(fields):
            return "{" + ",".join([f"{write_json(name)}:{write_json(it)}" for name, it in fields]) + "}"
    return "[" + ",".join([write_json(it) for it in value]) + "]"


def _write_double(value: float) -> str:
    """Return a double as Java writes it: the shortest digits that are its own, with one after the point at least.

    >>> [_write_double(it) for it in (1e7, 0.001, 123.0, 1.5e-7, 5e-324, -0.0)]
    ['1.0E7', '0.001', '123.0', '1.5E-7', '4.9E-324', '-0.0']
    """
    if not math.isfinite(value):
        return '"NaN"' if math.isnan(value) else '"Infinity"' if value > 0 else '"-Infinity"'
    if value == 0 or 1e-3 <= abs(value) < 1e7:
        return repr(value)
    digits = len(Decimal(repr(value)).normalize().as_tuple().digits)
    mantissa, _, power = f"{value:.{max(digits - 1, 1)}e}".partition("e")
    return f"{mantissa}E{int(power)}"


def _escape_character(found: re.Match[str]) -> str:
    units = found[0].encode("utf-16-be")
    return _SHORT.get(found[0]) or "".join(f"\\u{units[n : n + 2].hex().upper()}" for n in range(0, len(units), 2))


def _refuse_long_texts(value: JsonValue) -> None:
    values = [value]
    while values:
        match values.pop():
            case JsonObject(fields):
                values += [it for _, it in fields]
                if any(len(name) > MAX_NAME for name, _ in fields):
                    raise ValueError("a name that is too long")
            case list() as elements:
                values += elements
            case str() as text if len(text) > MAX_TEXT:
                raise ValueError("a text that is too long")


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


_STRICT = json.JSONDecoder(
    object_pairs_hook=JsonObject, parse_float=read_number, parse_int=read_number, parse_constant=_refuse_constant
)
_LENIENT = json.JSONDecoder(
    object_pairs_hook=JsonObject, parse_float=read_number, parse_int=read_number, parse_constant=Number, strict=False
)
