"""The values of a stored plan, which others may have written: each is what it should be, or raises."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta

from hindcast.common.json_values import JsonValue
from hindcast.contract import bounds

_MAX_NUMBER = (1 << 63) - 1
_DAY = timedelta(days=1)
_FIRST, _LAST = datetime.min.replace(tzinfo=UTC) + _DAY, datetime.max.replace(tzinfo=UTC) - _DAY

MAX_FIELDS = 2 * bounds.PARTS
"""The most fields of a stored contract: a file has half as many names and values, and fields have defaults."""


def parse_text(value: JsonValue) -> str:
    """Return a text; raise TypeError for another value."""
    if not isinstance(value, str):
        raise TypeError(f"a {type(value).__name__} is not a text")
    return value


def parse_optional_text(value: JsonValue) -> str | None:
    """Return a text or None; raise TypeError for another value."""
    return None if value is None else parse_text(value)


def parse_number(value: JsonValue, least: int = 0) -> int:
    """Return a whole number of 64 bits from `least` on; raise TypeError or ValueError for another value."""
    if not isinstance(value, int) or isinstance(value, bool):
        raise TypeError(f"a {type(value).__name__} is not a whole number")
    if not least <= value <= _MAX_NUMBER:
        raise ValueError("a number is out of range")
    return value


def parse_moment(value: JsonValue) -> datetime:
    """Return a moment that has a zone and that every zone can show; raise TypeError or ValueError for another value."""
    moment = datetime.fromisoformat(parse_text(value))
    if moment.tzinfo is None or not _FIRST < moment < _LAST:
        raise ValueError("a moment has no zone, or is out of range")
    return moment


def parse_texts(value: JsonValue) -> dict[str, str]:
    """Return texts by name; raise TypeError for another value."""
    if not isinstance(value, Mapping):
        raise TypeError(f"a {type(value).__name__} is not an object")
    return {name: parse_text(text) for name, text in value.items()}


def parse_definition(fields: JsonValue) -> dict[str, str]:
    """Return the fields of a contract from pairs of texts; raise TypeError or ValueError for what no contract has."""
    if not isinstance(fields, list | tuple) or len(fields) > MAX_FIELDS:
        raise ValueError(f"the fields of a contract are no list, or more than {MAX_FIELDS:,}")
    found = {parse_text(place): parse_text(text) for place, text in fields}
    parts = (place.split(".") for place in found)
    tables = {(path[0], path[1]) for path in parts if path[0] in ("inputs", "topics", "views") and path[1:]}
    if len(tables) > bounds.TABLES:
        raise ValueError(f"a contract has more than {bounds.TABLES} topics, inputs and views")
    return found
