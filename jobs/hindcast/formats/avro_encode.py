"""Values into Avro by a schema, as a producer would write them, for tests. Pure.

Of a union the first branch takes a value that can write it. A field that is left out has its default, or is null.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal, InvalidOperation, localcontext
from typing import Any

from hindcast.contract.types import ContractValue, format_value, parse_date, parse_moment

_Names = dict[str, tuple[Mapping[str, Any], str]]
"""By full name, the record, enum or fixed, and the namespace of what is in it."""

_PACKED = {"float": "<f", "double": "<d"}
_LIMITS = {"int": 31, "long": 63}
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MOMENTS = {
    "timestamp-millis": 1_000,
    "timestamp-micros": 1,
    "local-timestamp-millis": 1_000,
    "local-timestamp-micros": 1,
}
"""By logical type, how many microseconds one has."""
_MOST_DIGITS = 200


def encode_value(schema: str, value: ContractValue) -> bytes:
    """Return a value as plain Avro of a schema (JSON); raise ValueError, which names the field, if it has no such."""
    return _encode(json.loads(schema), value, "the value", "", {})


def _encode(schema: Any, value: ContractValue, place: str, space: str, names: _Names) -> bytes:
    if isinstance(schema, list):
        return _encode_union(schema, value, place, space, names)
    if isinstance(schema, str):
        full = schema if "." in schema or not space else f"{space}.{schema}"
        if found := names.get(full) or names.get(schema):
            return _encode(found[0], value, place, found[1], names)
        return _encode_scalar({"type": schema}, value, place)
    kind = schema["type"]
    if isinstance(kind, dict | list):
        return _encode(kind, value, place, space, names)
    if kind in ("record", "enum", "fixed"):
        full = str(schema["name"])
        if "." not in full and (own := schema.get("namespace", space)):
            full = f"{own}.{full}"
        space = full.rpartition(".")[0]
        names[full] = schema, space
    match kind:
        case "record":
            return _encode_record(schema, value, place, space, names)
        case "array":
            if not isinstance(value, list):
                raise _misfit(value, place, "array")
            parts = [_encode(schema["items"], part, f"{place}[{n}]", space, names) for n, part in enumerate(value)]
            return _encode_block(parts)
        case "map":
            if not isinstance(value, Mapping):
                raise _misfit(value, place, "map")
            entries = value.items()
            return _encode_block(
                [
                    _encode_bytes(name.encode()) + _encode(schema["values"], part, f"{place}.{name}", space, names)
                    for name, part in entries
                ]
            )
        case "enum":
            if value not in schema["symbols"]:
                raise _misfit(value, place, f"enum of {', '.join(schema['symbols'])}")
            return _encode_number(schema["symbols"].index(value))
        case _ if str(kind) in names or f"{space}.{kind}" in names:
            return _encode(kind, value, place, space, names)
        case _:
            return _encode_scalar(schema, value, place)


def _encode_union(branches: list[Any], value: ContractValue, place: str, space: str, names: _Names) -> bytes:
    refusals = []
    encoded: tuple[int, bytes] | None = None
    for number, branch in enumerate(branches):
        try:
            written = _encode(branch, value, place, space, names)
        except ValueError as error:
            refusals.append(error)
        else:
            encoded = encoded or (number, written)  # the others may define names that later fields use
    if encoded is None:
        raise refusals[-1]
    return _encode_number(encoded[0]) + encoded[1]


def _encode_record(schema: Mapping[str, Any], value: ContractValue, place: str, space: str, names: _Names) -> bytes:
    if not isinstance(value, Mapping):
        raise _misfit(value, place, "record")
    fields = {field["name"]: field for field in schema["fields"]}
    if unknown := sorted(map(str, value.keys() - fields.keys())):
        raise ValueError(f"{place} has no field '{unknown[0]}' in its schema; write one of {', '.join(fields)}")
    parts = []
    for name, field in fields.items():
        inner = value.get(name) if name in value else field.get("default")
        parts.append(_encode(field["type"], inner, f"{place}.{name}", space, names))
    return b"".join(parts)


def _encode_scalar(schema: Mapping[str, Any], value: ContractValue, place: str) -> bytes:
    kind, logical = schema["type"], schema.get("logicalType")
    try:
        match kind:
            case "null" if value is None:
                return b""
            case "boolean" if isinstance(value, bool):
                return bytes([value])
            case "int" | "long":
                number = _read_number(logical, value)
                if -(1 << _LIMITS[kind]) <= number < 1 << _LIMITS[kind]:
                    return _encode_number(number)
            case "float" | "double" if isinstance(value, int | float) and not isinstance(value, bool):
                return struct.pack(_PACKED[kind], value)
            case "bytes" | "fixed":
                data = _read_bytes(schema, value)
                if kind == "bytes":
                    return _encode_bytes(data)
                if len(data) == schema["size"]:
                    return data
            case "string" if isinstance(value, str):
                return _encode_bytes(value.encode())
    except (TypeError, ValueError, OverflowError, InvalidOperation):
        pass
    raise _misfit(value, place, f"{logical} ({kind})" if logical else str(kind))


def _read_number(logical: str | None, value: ContractValue) -> int:
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    if logical == "date":
        return (parse_date(value) - date(1970, 1, 1)).days
    if logical in _MOMENTS:
        return (parse_moment(value) - _EPOCH) // timedelta(microseconds=_MOMENTS[logical])
    raise TypeError


def _read_bytes(schema: Mapping[str, Any], value: ContractValue) -> bytes:
    if schema.get("logicalType") != "decimal":
        if isinstance(value, str):
            return value.encode()
        raise TypeError
    if isinstance(value, bool):
        raise TypeError
    with localcontext(prec=_MOST_DIGITS):
        unscaled = Decimal(str(value)).scaleb(schema.get("scale", 0))
        if unscaled != int(unscaled) or abs(unscaled) >= 10 ** schema["precision"]:
            raise ValueError("more digits than the schema has")
    number = int(unscaled)
    size = schema["size"] if schema["type"] == "fixed" else number.bit_length() // 8 + 1
    return number.to_bytes(size, "big", signed=True)


def _encode_number(number: int) -> bytes:
    """Return a number as Avro's int and long have it: zigzag, seven bits a byte, the lowest first."""
    left, data = (number << 1) ^ (number >> 63), bytearray()
    while left > 0x7F:
        data.append(left & 0x7F | 0x80)
        left >>= 7
    return bytes([*data, left])


def _encode_bytes(data: bytes) -> bytes:
    return _encode_number(len(data)) + data


def _encode_block(parts: list[bytes]) -> bytes:
    return (_encode_number(len(parts)) + b"".join(parts) if parts else b"") + b"\0"


def _misfit(value: ContractValue, place: str, kind: str) -> ValueError:
    return ValueError(f"{place} is {format_value(value)}, which is not a valid {kind}; write one, as the schema says")
