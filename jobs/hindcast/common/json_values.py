"""The types of JSON and YAML documents that others write: contracts, Avro schemas, gates' arguments, commit metadata.

What Hindcast itself writes has types of its own; each has `as_json` and `from_json`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

JsonValue: TypeAlias = bool | int | float | str | Sequence["JsonValue"] | Mapping[str, "JsonValue"] | None
"""Any value of a JSON document; reading code narrows it before it uses it."""

JsonObject: TypeAlias = Mapping[str, JsonValue]
"""An object of a JSON document, by field name."""

StoredObject: TypeAlias = Mapping[str, Any]
"""An object that Hindcast itself has stored: the `from_json` of its type says what it must have."""


def list_objects(value: JsonValue) -> list[JsonObject]:
    """Return the objects of a JSON array; none of another value."""
    return [part for part in value if isinstance(part, Mapping)] if isinstance(value, Sequence) else []


def parse_object(value: JsonValue) -> JsonObject:
    """Return a JSON object; an empty one for another value."""
    return value if isinstance(value, Mapping) else {}
