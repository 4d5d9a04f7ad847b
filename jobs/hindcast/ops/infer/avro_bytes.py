"""Avro in the wire format of a schema registry, as plain values: enough to count and compare them. Pure."""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from decimal import Context, Decimal

from hindcast.common.json_values import JsonObject, JsonValue, list_objects
from hindcast.ops.infer.json_text import Number, Parsed, refuse_depth

_Read = Callable[["_Bytes"], Parsed]


class AvroDecoder:
    """A decoder of what one schema (parsed JSON) writes."""

    def __init__(self, schema: JsonValue) -> None:
        self._named: dict[str, _Read] = {}
        self._read = self._compile(schema, "")

    def decode(self, raw: bytes) -> Parsed:
        """Return the value in these bytes; ValueError if they are not exactly one, or it is nested too deeply."""
        source = _Bytes(raw)
        try:
            value = self._read(source)
        except (IndexError, KeyError, struct.error, RecursionError, UnicodeDecodeError, ArithmeticError) as error:
            raise ValueError(f"is not Avro of this schema: {type(error).__name__}") from None
        if source.place != len(raw):
            raise ValueError("is not Avro of this schema: something follows it")
        refuse_depth(value)
        return value

    def _compile(self, schema: JsonValue, namespace: str) -> _Read:
        if isinstance(schema, str):
            return _PRIMITIVES[schema] if schema in _PRIMITIVES else self._refer(schema, namespace)
        if isinstance(schema, list):
            branches = [self._compile(part, namespace) for part in schema]
            return lambda source: branches[_read_branch(source, len(branches))](source)
        if not isinstance(schema, Mapping):
            raise ValueError("is not an Avro schema")  # noqa: TRY004  # of what others write
        kind = schema.get("type")
        match kind:
            case "record" | "enum" | "fixed":
                return self._compile_named(schema, str(kind), namespace)
            case "array":
                return _block_reader(self._compile(schema.get("items"), namespace))
            case "map":
                return _map_reader(self._compile(schema.get("values"), namespace))
            case "bytes" if schema.get("logicalType") == "decimal":
                return _decimal_reader(_read_bytes, schema)
            case _:
                return self._compile(kind, namespace)

    def _compile_named(self, schema: JsonObject, kind: str, namespace: str) -> _Read:
        name = str(schema.get("name", ""))
        inner = name.rpartition(".")[0] or str(schema.get("namespace", namespace) or "")
        full = name if "." in name or not inner else f"{inner}.{name}"
        if kind == "record":
            fields: list[tuple[str, _Read]] = []
            self._named[full] = lambda source: {field: read(source) for field, read in fields}
            fields += [(str(it["name"]), self._compile(it.get("type"), inner)) for it in list_objects(schema["fields"])]
        elif kind == "enum":
            symbols = [str(symbol) for symbol in _list(schema["symbols"])]
            self._named[full] = lambda source: symbols[_read_branch(source, len(symbols))]
        else:
            size = int(str(schema["size"]))
            fixed: _Read = lambda source: source.take(size)  # noqa: E731  # one of two
            self._named[full] = _decimal_reader(fixed, schema) if schema.get("logicalType") == "decimal" else fixed
        return self._named[full]

    def _refer(self, name: str, namespace: str) -> _Read:
        full = f"{namespace}.{name}" if namespace and f"{namespace}.{name}" in self._named else name
        if full not in self._named:
            raise ValueError(f"has no type {name}")
        return self._named[full]


class _Bytes:
    """Bytes that are read from the front."""

    def __init__(self, raw: bytes) -> None:
        self.raw, self.place, self.items = raw, 0, 0

    def take(self, count: int) -> bytes:
        """Return the next bytes; IndexError if there are not so many."""
        end = self.place + count
        if count < 0 or end > len(self.raw):
            raise IndexError(end)
        taken, self.place = self.raw[self.place : end], end
        return taken


def _list(value: JsonValue) -> list[JsonValue]:
    return [*value] if isinstance(value, list) else []


def _read_long(source: _Bytes) -> int:
    number = shift = 0
    while True:
        byte = source.take(1)[0]
        number |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            return (number >> 1) ^ -(number & 1)
        if shift > _LONGEST:
            raise IndexError(shift)


_LONGEST = 63


def _read_branch(source: _Bytes, count: int) -> int:
    branch = _read_long(source)
    if not 0 <= branch < count:
        raise IndexError(branch)
    return branch


def _read_bytes(source: _Bytes) -> bytes:
    return source.take(_read_long(source))


def _read_boolean(source: _Bytes) -> bool:
    byte = source.take(1)[0]
    if byte > 1:
        raise IndexError(byte)
    return bool(byte)


def _decimal_reader(read: Callable[[_Bytes], Parsed], schema: JsonObject) -> _Read:
    scale = int(str(schema.get("scale", 0)))
    if not 0 <= scale <= 3 * _LONGEST_DECIMAL:
        raise ValueError(f"has a decimal of scale {scale:,}")

    def read_decimal(source: _Bytes) -> Parsed:
        raw = read(source)
        if not isinstance(raw, bytes) or len(raw) > _LONGEST_DECIMAL:
            raise IndexError(scale)
        unscaled = int.from_bytes(raw, signed=True)
        return Number(f"{Decimal(unscaled).scaleb(-scale, _EXACT):f}")

    return read_decimal


_LONGEST_DECIMAL = 1_000
"""More bytes than a decimal of a column has, by far."""

_EXACT = Context(prec=3 * _LONGEST_DECIMAL)


def _read_block(source: _Bytes) -> int:
    """Return the number of items of the next block; a negative one is followed by its size."""
    count = _read_long(source)
    if count < 0:
        _read_long(source)
    source.items += abs(count)
    if source.items > len(source.raw) + _MOST_EMPTY_ITEMS:
        raise IndexError(count)
    return abs(count)


_MOST_EMPTY_ITEMS = 100_000
"""The most items of no bytes in all arrays of a value."""


def _block_reader(read: _Read) -> _Read:
    def read_items(source: _Bytes) -> Parsed:
        items: list[Parsed] = []
        while count := _read_block(source):
            items += [read(source) for _ in range(count)]
        return items

    return read_items


def _map_reader(read: _Read) -> _Read:
    def read_entries(source: _Bytes) -> Parsed:
        entries: list[Parsed] = []
        while count := _read_block(source):
            entries += [{"key": _read_bytes(source).decode(), "value": read(source)} for _ in range(count)]
        return entries

    return read_entries


_PRIMITIVES: dict[str, _Read] = {
    "null": lambda _: None,
    "boolean": _read_boolean,
    "int": lambda source: Number(_read_long(source)),
    "long": lambda source: Number(_read_long(source)),
    "float": lambda source: Number(struct.unpack("<f", source.take(4))[0]),
    "double": lambda source: Number(struct.unpack("<d", source.take(8))[0]),
    "bytes": _read_bytes,
    "string": lambda source: _read_bytes(source).decode(),
}
