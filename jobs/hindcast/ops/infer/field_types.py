"""The column type for what was seen of a field, and the reason for it. Pure.

A type is chosen so that all values that were seen fit exactly. What several types can take becomes `string`, which
takes any JSON value as its text.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from decimal import Decimal
from typing import NamedTuple

from hindcast.common.errors import show_briefly
from hindcast.common.plurals import format_count
from hindcast.contract.bounds import TYPE, TYPE_DEPTH
from hindcast.ops.infer.fields import FieldStats, NumberStats, TextStats
from hindcast.ops.infer.sensitive_values import choose_reason, find_sensitive_text, looks_sensitive


class TypeChoice(NamedTuple):
    """A column type as the contract writes it, and why, in words."""

    kind: str
    reason: str


_INT, _BIGINT, _CAREFUL = 2**31 - 1, 2**63 - 1, 2**30
_MOST_DIGITS, _LEAST_DECIMAL, _SPARE = 38, 10, 3
_MAX_SCALE, _MAX_MONEY_SCALE = 6, 10
_SHOWN = 10**8
"""Ranges of larger numbers are not shown: they could be somebody's phone number or account."""

_MONEY = re.compile(
    r"price|amount|total|cost|fee|balance|tax|paid|pay|sum|charge|discount|revenue|salary|rate|money|credit|debit", re.I
)


def choose_type(stats: FieldStats, name: str, *, plain: bool = False, hidden: bool = False) -> TypeChoice:
    """Return the type of a field with these values.

    `plain`: no decimals, dates and timestamps within arrays and structs, which an envelope cannot decode; `hidden`:
    show no range.
    """
    return _choose_type(stats, name, plain, hidden or find_sensitive_reason(stats, name) is not None, 0)


def find_sensitive_reason(stats: FieldStats, name: str) -> str | None:
    """Return why a field looks secret or personal, in words, by its name, its values or what is within; else None."""
    if looks_sensitive(name):
        return "by name"
    if reason := choose_reason(stats.sensitive, stats.count):
        return reason
    if stats.items is not None and (reason := find_sensitive_reason(stats.items, "")):
        return reason
    if stats.is_map:
        return None
    found = ((inner, find_sensitive_reason(its, inner)) for inner, its in stats.fields.items())
    return next((f"{show_briefly(inner, 60)} within it, {reason}" for inner, reason in found if reason), None)


def _choose_type(stats: FieldStats, name: str, plain: bool, hidden: bool, depth: int) -> TypeChoice:
    kinds = [kind for kind in stats.kinds if kind != "null"]
    if not kinds:
        return TypeChoice("string", "always null: the type is a guess, and string takes any")
    if sorted(kinds) == ["number", "text"] and stats.texts.numbers.count == stats.texts.count:
        both = _merge_numbers(stats.numbers, stats.texts.numbers)
        return _choose_written_decimal(both, name, hidden, "numbers, some of them as text")
    if len(kinds) > 1:
        counts = ", ".join(f"{stats.kinds[kind]:,} {kind} (the first at {stats.places[kind]})" for kind in kinds)
        return TypeChoice("string", f"of several kinds: {counts}; string takes any as its JSON text")
    nested = plain and depth > 0
    match kinds[0]:
        case "boolean":
            return TypeChoice("boolean", "true and false")
        case "number":
            return _choose_number(stats.numbers, name, hidden, nested)
        case "text":
            return _choose_text(stats.texts, name, hidden, nested)
        case "bytes":
            return TypeChoice("binary", "bytes")
        case "list":
            return _choose_array(stats, name, plain, hidden, depth)
    return _choose_struct(stats, plain, hidden, depth)


def _choose_number(numbers: NumberStats, name: str, hidden: bool, nested: bool) -> TypeChoice:
    if numbers.fractions or numbers.exponents:
        if nested:
            return TypeChoice("double", "numbers with fractions; an envelope decodes no decimal within a value")
        return _choose_decimal(numbers, name, hidden, "numbers")
    return choose_whole(numbers, hidden)


def choose_whole(numbers: NumberStats, hidden: bool) -> TypeChoice:
    """Return the type of whole numbers; bigint before they get near the end of int."""
    least, most = numbers.least or Decimal(0), numbers.most or Decimal(0)
    reason = f"whole numbers{_format_range(numbers, hidden)}"
    if least >= -_CAREFUL and most < _CAREFUL:
        return TypeChoice("int", reason)
    if least >= -_BIGINT and most <= _BIGINT:
        beyond = "too large for int" if most > _INT or least < -_INT else "close to the end of int"
        return TypeChoice("bigint", f"{reason}: {beyond}")
    if numbers.digits <= _MOST_DIGITS:
        return TypeChoice("decimal(38,0)", f"{reason}: too large for bigint")
    return TypeChoice("string", f"{reason}: too large for any number")


def _choose_decimal(numbers: NumberStats, name: str, hidden: bool, what: str) -> TypeChoice:
    is_money = _MONEY.search(name) is not None
    after = f"{format_count(numbers.scale, 'digit')} after the point"
    most_scale = _MAX_MONEY_SCALE if is_money else _MAX_SCALE
    if numbers.exponents or numbers.scale > most_scale or numbers.digits + numbers.scale > _MOST_DIGITS:
        why = "written with exponents" if numbers.exponents else f"up to {after}, as floating-point numbers have"
        doubt = "; the name sounds like money, of which a double keeps about 15 digits" if is_money else ""
        return TypeChoice("double", f"{what}{_format_range(numbers, hidden)}, {why}{doubt}")
    digits = min(max(numbers.digits + _SPARE + numbers.scale, _LEAST_DECIMAL), _MOST_DIGITS)
    reason = f"{what}{_format_range(numbers, hidden)}, up to {after}; more would be malformed"
    return TypeChoice(f"decimal({digits},{numbers.scale})", reason)


def _choose_written_decimal(numbers: NumberStats, name: str, hidden: bool, what: str) -> TypeChoice:
    """Return the type of numbers that are written as text: decimal, or string, because no double is read from text."""
    choice = _choose_decimal(numbers, name, hidden, what)
    return choice if choice.kind != "double" else TypeChoice("string", f"{what}, too long for a decimal")


def _choose_text(texts: TextStats, name: str, hidden: bool, nested: bool) -> TypeChoice:
    total = texts.count
    if nested:
        return TypeChoice("string", "text")
    if texts.dates + texts.moments == total and texts.moments:
        zone = f"; {texts.zoneless:,} without a zone are read as UTC" if texts.zoneless else ""
        return TypeChoice("timestamp", f"ISO 8601 as text{zone}")
    if texts.dates == total:
        return TypeChoice("date", "ISO 8601 as text")
    if texts.numbers.count == total and (texts.numbers.fractions or _MONEY.search(name)):
        return _choose_written_decimal(texts.numbers, name, hidden, "numbers as text")
    if texts.whole == total:
        return TypeChoice("string", "text, always of whole numbers")
    return TypeChoice("string", "UUIDs as text" if texts.uuids == total else "text")


def _choose_array(stats: FieldStats, name: str, plain: bool, hidden: bool, depth: int) -> TypeChoice:
    items = stats.items
    if items is None or not items.count:
        return TypeChoice("array<string>", "lists without a value: the type of their items is a guess")
    inner = _choose_type(items, name, plain, hidden, depth + 1)
    return limit_type(TypeChoice(f"array<{inner.kind}>", f"lists of {inner.reason}"), depth)


def _choose_struct(stats: FieldStats, plain: bool, hidden: bool, depth: int) -> TypeChoice:
    if stats.is_map:
        return TypeChoice("string", "objects with ever other fields: a map, kept as its JSON text")
    if not stats.fields:
        return TypeChoice("string", "empty objects, kept as their JSON text")
    if not can_name_fields(stats.fields):
        return TypeChoice("string", "objects with field names that a struct cannot have, kept as their JSON text")
    parts = {name: _choose_type(its, name, plain, hidden, depth + 1) for name, its in stats.fields.items()}
    kind = f"struct<{', '.join(f'{quote_field(name)}: {part.kind}' for name, part in parts.items())}>"
    absent = sum(its.kinds.total() < stats.kinds["object"] for its in stats.fields.values())
    missing = f", {absent} of them not in every object" if absent else ""
    choice = TypeChoice(kind, f"objects of {format_count(len(parts), 'field')}{missing}")
    return limit_type(choice, depth)


def can_name_fields(names: Collection[str]) -> bool:
    """Return whether a struct can have fields of these names, and a contract can show them."""
    if len({name.lower() for name in names}) < len(names):
        return False
    return all(_FIELD.fullmatch(name) and name.isprintable() and not find_sensitive_text(name) for name in names)


_FIELD = re.compile(r"[^\x00-\x1f`<>()\[\],:\"'\\]{1,100}")


def quote_field(name: str) -> str:
    """Return the name of a struct's field as a type has it."""
    return name if re.fullmatch(r"[a-z_][a-z0-9_]*", name) and name not in _TYPE_WORDS else f"`{name}`"


_TYPE_WORDS = {"array", "struct", "map", "select", "from", "not", "comment", "default", "collate", "null", "order"}


def limit_type(choice: TypeChoice, depth: int = 0) -> TypeChoice:
    """Return a nested type, or string in place of one that is too deep or too long for a contract."""
    nesting = choice.kind.count("<")
    if depth == 0 and (
        len(choice.kind) > TYPE // 4 or nesting > TYPE_DEPTH * 4 or _measure_depth(choice.kind) >= TYPE_DEPTH
    ):
        return TypeChoice("string", "values with too many parts for a column type, kept as their JSON text")
    return choice


def _measure_depth(kind: str) -> int:
    depth = most = 0
    for character in kind:
        depth += (character == "<") - (character == ">")
        most = max(most, depth)
    return most


def _format_range(numbers: NumberStats, hidden: bool) -> str:
    least, most = numbers.least, numbers.most
    if least is None or most is None or hidden or numbers.exponents:
        return ""
    if max(least.copy_abs(), most.copy_abs()) >= _SHOWN:
        return f" of up to {numbers.digits} digits"
    if least == most:
        return ", all the same"
    shown = f" {least:,f} to {most:,f}"
    return shown if len(shown) <= _LONGEST_RANGE else ""


_LONGEST_RANGE = 60


def _merge_numbers(one: NumberStats, other: NumberStats) -> NumberStats:
    bounds = [value for value in (one.least, one.most, other.least, other.most) if value is not None]
    return NumberStats(
        one.count + other.count,
        one.fractions + other.fractions,
        one.exponents + other.exponents,
        min(bounds, default=None),
        max(bounds, default=None),
        max(one.digits, other.digits),
        max(one.scale, other.scale),
    )
