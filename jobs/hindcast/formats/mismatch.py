"""What a record has beside what the contract says of it: names and types, never values."""

from __future__ import annotations

import json
from typing import Any

from hindcast.contracts import Topic

SHOWN = 50
"""So many fields of an object are told."""


def told(topic: Topic, value: bytes | None) -> str:
    """Both schemas in two lines, where the value is a JSON object; otherwise the contract's alone.

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
        lines.append(f"\n    the record: {_fields(found, ' ') or 'no fields'}")
    return "".join(lines)


def kind(value: Any) -> str:
    """The type of a JSON value as Spark would read it.

    >>> kind({"at": [1, 2.5], "by": None, "ok": True})
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
        case list():
            kinds = {kind(one) for one in value if one is not None} or {"void"}
            return f"array<{'double' if kinds == {'bigint', 'double'} else ' or '.join(sorted(kinds)[:SHOWN])}>"
    return f"struct<{_fields(value, ':')}>"


def _fields(found: dict[str, Any], between: str) -> str:
    named = [f"{json.dumps(n) if not n.isidentifier() else n}{between}{kind(v)}" for n, v in found.items()]
    return ", ".join([*named[:SHOWN], *([f"and {len(named) - SHOWN} more"] if len(named) > SHOWN else [])])
