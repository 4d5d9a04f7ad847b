"""Differences between a record and its contract: names and types, never values."""

from __future__ import annotations

import json
from collections.abc import Sequence

from hindcast.common.json_values import JsonObject, JsonValue
from hindcast.contract import Topic

MAX_SHOWN = 50
"""The number of fields of an object that are shown."""


def describe_mismatch(topic: Topic, value: bytes | None) -> str:
    """Return the contract's schema as text; if the value is a JSON object, its schema on a second line.

    the contract: price decimal(8,2), note string
      the record: price string, size bigint
    """
    contract = ", ".join(f"{name} {kind}" for name, kind in topic.value.items())
    lines = [f"\n  the contract: {contract}"]
    try:
        found = json.loads(value or b"")
    except (ValueError, RecursionError):
        found = None
    if isinstance(found, dict):
        lines.append(f"\n    the record: {_format_fields(found, ' ') or 'no fields'}")
    return "".join(lines)


def json_type(value: JsonValue) -> str:
    """Return the type of a JSON value as Spark would read it.

    >>> json_type({"at": [1, 2.5], "by": None, "ok": True})
    'struct<at:array<double>, by:void, ok:boolean>'
    """
    match value:
        case None:
            return "void"
        case bool():
            return "boolean"
        case int():
            return "bigint" if -(2**63) <= value < 2**63 else "decimal"
        case float():
            return "double"
        case str():
            return "string"
        case Sequence():
            kinds = {json_type(one) for one in value if one is not None} or {"void"}
            return f"array<{'double' if kinds == {'bigint', 'double'} else ' or '.join(sorted(kinds)[:MAX_SHOWN])}>"
    return f"struct<{_format_fields(value, ':')}>"


def _format_fields(found: JsonObject, between: str) -> str:
    named = [f"{json.dumps(n) if not n.isidentifier() else n}{between}{json_type(v)}" for n, v in found.items()]
    return ", ".join([*named[:MAX_SHOWN], *([f"and {len(named) - MAX_SHOWN} more"] if len(named) > MAX_SHOWN else [])])
