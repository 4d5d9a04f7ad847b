"""JSON as the contract's format reads it: numbers as they were written, and nothing that Spark would refuse. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
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


Parsed: TypeAlias = bool | Number | str | bytes | Sequence["Parsed"] | Mapping[str, "Parsed"] | None
"""A value of a record: what JSON has, and the bytes of Avro."""


def parse_json(raw: bytes) -> Parsed:
    """Return the value of JSON in UTF-8; ValueError for any other bytes, NaN, Infinity, and half a character."""
    try:
        parsed: Parsed = json.loads(raw.decode(), parse_float=Number, parse_int=Number, parse_constant=_refuse_constant)
    except RecursionError:
        raise ValueError("is nested too deeply") from None
    if b"\\u" in raw:
        json.dumps(parsed, ensure_ascii=False).encode()
    return parsed


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
