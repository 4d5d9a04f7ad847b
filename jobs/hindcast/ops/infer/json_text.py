"""JSON as the contract's format reads it: numbers as they were written, and nothing that Spark would refuse. Pure."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from decimal import Decimal
from typing import TypeAlias


class Number(str):
    """A number as it was written, which may have more digits than a float."""

    __slots__ = ()

    @property
    def is_whole(self) -> bool:
        """Whether it is written without point and exponent."""
        return self.lstrip("-").isdigit()

    @property
    def decimal(self) -> Decimal:
        """Its exact value; Infinity for one that is too large for Python."""
        try:
            return Decimal(self)
        except ArithmeticError:
            return Decimal("Infinity")


MAX_DEPTH = 100
"""The deepest nesting of a value that is read: all that is done with values recurses into them."""

Parsed: TypeAlias = bool | Number | str | bytes | Sequence["Parsed"] | Mapping[str, "Parsed"] | None
"""A value of a record: what JSON has, and the bytes of Avro."""


def parse_json(raw: bytes) -> Parsed:
    """Return the value of JSON in UTF-8; ValueError for any other bytes.

    So too for NaN, Infinity, half a character, and what is nested too deeply.
    """
    try:
        parsed: Parsed = json.loads(raw.decode(), parse_float=Number, parse_int=Number, parse_constant=_refuse_constant)
    except RecursionError:
        raise ValueError(_TOO_DEEP) from None
    if raw.count(b"{") + raw.count(b"[") > MAX_DEPTH:
        refuse_depth(parsed)
    if b"\\u" in raw:
        json.dumps(parsed, ensure_ascii=False).encode()
    return parsed


def refuse_depth(value: Parsed) -> None:
    """Raise ValueError for a value that is nested too deeply."""
    level: list[Parsed] = [value]
    for _ in range(MAX_DEPTH + 1):
        level = [part for it in level for part in _list_parts(it)]
        if not level:
            return
    raise ValueError(_TOO_DEEP)


def _list_parts(value: Parsed) -> Iterable[Parsed]:
    match value:
        case dict():
            return value.values()
        case list():
            return value
    return ()


_TOO_DEEP = "is nested too deeply"


def format_parsed(value: Parsed) -> str:
    """Return a value as the text by which keys are compared: 42 and "42" have the same."""
    match value:
        case bool():
            return str(value).lower()
        case str():
            return str(value)
        case bytes():
            return value.hex()
        case None:
            return ""
    return json.dumps(value, ensure_ascii=False, sort_keys=True, default=repr)


def _refuse_constant(name: str) -> Parsed:
    raise ValueError(f"{name} is not JSON")
