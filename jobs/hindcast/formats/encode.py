"""Values into the bytes of a topic's format, as a producer would write them: the reverse of `decode`, for tests."""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from datetime import date
from typing import Literal

from hindcast.contract import Topic
from hindcast.contract.formats import part_format, record_columns
from hindcast.contract.types import ContractValue, format_value
from hindcast.formats import avro_encode

_PACKED = {"smallint": ">h", "int": ">i", "bigint": ">q", "float": ">f", "double": ">d", "boolean": ">?"}
"""How Kafka's own serializers write types: the highest byte first."""


def encode_part(topic: Topic, part: Literal["key", "value"], value: ContractValue) -> bytes | None:
    """Return the bytes of a record's key or value; None for a null one.

    json: any value as JSON. string, primitive: the value of the one column, alone or as `{column: value}`. avro: a
    value as JSON has it, by the schema in the contract. Raise ValueError for a value that the format cannot write, and
    for Avro by a schema registry.
    """
    format_ = part_format(topic, part)
    if value is None:
        return None
    if format_ == "json":
        return json.dumps(value, default=_format_moment, ensure_ascii=False).encode()
    if format_ == "avro":
        schema = topic.key_schema if part == "key" else topic.value_schema
        if schema is None:
            raise ValueError(
                f"the {part} is Avro of a schema registry, which a test does not ask; {_name_schema(part)}"
            )
        return avro_encode.encode_value(schema.text, value)
    ((column, kind),) = record_columns(topic, part).items()
    if isinstance(value, Mapping) and [*value] == [column]:
        value = value[column]
    if isinstance(value, Mapping | list | tuple):
        found = f"the {part} is {format_}, found {format_value(value)}"
        raise ValueError(f"{found}; write the value of {column} alone")  # noqa: TRY004  # a value of the wrong kind
    if format_ == "primitive" and kind in _PACKED:
        return _pack_value(kind, column, value)
    if isinstance(value, bool):
        return str(value).lower().encode()
    return (_format_moment(value) if isinstance(value, date) else str(value)).encode()


def _name_schema(part: Literal["key", "value"]) -> str:
    return f"name its schema in the contract ({part}_schema: orders.avsc), or test it with hindcast produce and run"


def _pack_value(kind: str, column: str, value: ContractValue) -> bytes:
    if isinstance(value, bool) == (kind == "boolean"):
        try:
            return struct.pack(_PACKED[kind], value)
        except (struct.error, OverflowError):
            pass
    raise ValueError(f"{format_value(value)} is not a valid {kind}; write one for column {column}")


def _format_moment(value: object) -> str:
    """Return a date or a moment as records write it; raise ValueError for another value that JSON does not have."""
    if isinstance(value, date):
        return value.isoformat()
    raise ValueError(f"{value!r} cannot be written as JSON; put it in quotes")
