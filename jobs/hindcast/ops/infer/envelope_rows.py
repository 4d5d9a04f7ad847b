"""Debezium's envelopes: the rows in them, when they changed, and the types that records' own schemas name. Pure."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from hindcast.formats.encodings import LOGICAL
from hindcast.formats.envelopes import PLACEHOLDER
from hindcast.ops.infer.field_types import TypeChoice, can_name_fields, limit_type, quote_field
from hindcast.ops.infer.json_text import Number, Parsed

_KEPT, _OPERATIONS = ("c", "u", "r"), ("c", "u", "r", "d", "t", "m")
_TIMES = (("ts_us", 1000), ("ts_ns", 1_000_000), ("ts_ms", 1))
_CONNECT = {
    "int8": "smallint",
    "int16": "smallint",
    "int32": "int",
    "int64": "bigint",
    "float": "float",
    "float32": "float",
    "double": "double",
    "float64": "double",
    "boolean": "boolean",
    "string": "string",
    "bytes": "binary",
}


@dataclass
class EnvelopeRows:
    """What envelopes have: rows with their records' places, operations that are no change of a row, times.

    `times`: milliseconds since 1970 of each change; `types`: the column types that records' schemas name, with their
    encoding, else empty; `unavailable`: how many rows lack a value that did not change; `odd`: the places of those, and
    of `others`.
    """

    rows: list[tuple[Mapping[str, Parsed], str]] = field(default_factory=list)
    times: list[int] = field(default_factory=list)
    others: Counter[str] = field(default_factory=Counter)
    deletes: int = 0
    unavailable: int = 0
    odd: set[str] = field(default_factory=set)
    types: dict[str, str] = field(default_factory=dict)


_MOST_SCHEMAS = 1_000
"""The most schemas that are read: nearly always all are the same."""


def is_change_event(parsed: Parsed) -> bool:
    """Return whether a value is an envelope of Debezium, with or without the schema around it."""
    envelope = unwrap(parsed)
    if not isinstance(envelope, Mapping):
        return False
    known = {"before", "after", "source", "ts_ms"} & envelope.keys()
    return envelope.get("op") in _OPERATIONS and isinstance(envelope.get("source"), Mapping) and len(known) > 1


def unwrap(parsed: Parsed) -> Parsed:
    """Return what Connect's schema is wrapped around, or the value itself."""
    return parsed["payload"] if isinstance(parsed, Mapping) and parsed.keys() == {"schema", "payload"} else parsed


def collect_rows(events: Iterable[tuple[Parsed, str]]) -> EnvelopeRows:
    """Return the rows of change events, each given with its record's place."""
    found = EnvelopeRows()
    for event, place in events:
        envelope = unwrap(event)
        if not isinstance(envelope, Mapping):
            continue
        found.times.append(_find_time(envelope))
        op, after = str(envelope["op"]), envelope.get("after")
        if op in _KEPT and isinstance(after, Mapping):
            found.rows.append((after, place))
            if any(value == PLACEHOLDER for value in after.values()):
                found.unavailable += 1
                found.odd.add(place)
        elif op == "d":
            found.deletes += 1
        else:
            found.others[op] += 1
            found.odd.add(place)
        if envelope is not event and isinstance(event, Mapping) and len(found.times) <= _MOST_SCHEMAS:
            found.types = {**read_connect_fields(event["schema"], "after"), **found.types}
    return found


def read_connect_fields(schema: Parsed, name: str = "") -> dict[str, str]:
    """Return the column types of the fields of Connect's schema, or of its field of this name; none without schema."""
    fields = _list_fields(schema)
    if name:
        inner = next((part for part in fields if part.get("field") == name), None)
        return read_connect_fields(inner) if inner is not None else {}
    types = {str(part["field"]): _find_type(part, nested=False) for part in fields if "field" in part}
    return {field: limit_type(TypeChoice(kind, "")).kind for field, kind in types.items() if kind}


def _find_type(part: Mapping[str, Parsed], *, nested: bool) -> str:
    """Return a field's column type, followed by its encoding if it has one: `decimal(8,2) Decimal`.

    Empty if the schema says what no schema can say. Nothing of it is taken unchecked: it is a record's.
    """
    encoding = LOGICAL.get(str(part.get("name")))
    if encoding is not None and not nested:
        encoded = _find_encoded_type(part, encoding)
        return f"{encoded} {encoding}" if encoded else ""
    if part.get("name") == "io.debezium.time.ZonedTimestamp" and not nested:
        return "timestamp"
    match part.get("type"):
        case "array":
            items = part.get("items")
            return f"array<{_find_type(items, nested=True) if isinstance(items, Mapping) else 'string'}>"
        case "struct":
            inner = _list_fields(part)
            names = [name for it in inner if isinstance(name := it.get("field"), str)]
            if not inner or len(names) < len(inner) or not can_name_fields(names):
                return "string"
            parts = (f"{quote_field(n)}: {_find_type(it, nested=True)}" for n, it in zip(names, inner, strict=True))
            return f"struct<{', '.join(parts)}>"
        case kind:
            return _CONNECT.get(str(kind), "string")


def _find_encoded_type(part: Mapping[str, Parsed], encoding: str) -> str:
    parameters = part.get("parameters")
    known = parameters if isinstance(parameters, Mapping) else {}
    match encoding:
        case "Decimal":
            scale = _read_digits(known.get("scale", "0"))
            digits = _read_digits(known.get("connect.decimal.precision", "38"))
            if scale is None or digits is None:
                return ""
            return f"decimal({min(max(digits, scale, 1), 38)},{min(max(scale, 0), 38)})"
        case "VariableScaleDecimal":
            return "decimal(38,10)"
        case "Date":
            return "date"
    return "timestamp"


def _list_fields(schema: Parsed) -> list[Mapping[str, Parsed]]:
    fields = schema.get("fields") if isinstance(schema, Mapping) else None
    return [part for part in fields if isinstance(part, Mapping)] if isinstance(fields, Sequence) else []


def _find_time(envelope: Mapping[str, Parsed]) -> int:
    """Return when a row was changed, as the contract dates it, in milliseconds since 1970; -1 if nothing says so."""
    for place in (envelope.get("source"), envelope):
        for name, per_milli in _TIMES:
            value = place.get(name) if isinstance(place, Mapping) else None
            if isinstance(value, Number) and (number := _read_digits(value)) is not None and number > 0:
                return number // per_milli
    return -1


def _read_digits(value: Parsed) -> int | None:
    """Return a whole number of a record, given as a number or as text; None for anything else, and for too large."""
    return int(value) if isinstance(value, str) and _DIGITS.fullmatch(value) else None


_DIGITS = re.compile(r"-?[0-9]{1,19}")
