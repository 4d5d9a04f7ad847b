"""The rows of Avro's container files, block by block.

| Avro | Python |
| --- | --- |
| record, map | a dict |
| array | a list |
| bytes, fixed; with `decimal` | bytes; a Decimal with all its digits |
| date, timestamp-millis, timestamp-micros | a date, a datetime in UTC |
| local-timestamp-millis, -micros | a datetime without a zone |
| a date or timestamp that Python has no form for | the text of its days, or milliseconds, since 1970 |
| float | the float of 64 bits with the same digits |
| other logical types | as the type beneath |
| union | the value of its branch |
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
import zstandard

from hindcast.archives.row_values import write_millis
from hindcast.contract.avro import parse_json

BLOCK_BYTES = 256 << 20
"""A block has at most so many bytes, compressed or not."""
MOST_ITEMS = 8 << 20
"""A block has at most so many rows and items of lists and maps."""
_MAGIC, _SYNC = b"Obj\x01", 16
_MOST_DEPTH, _VARINT = 64, 10
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_LOCAL = datetime(1970, 1, 1)  # noqa: DTZ001  # without a zone, as the type has none
_FIRST_DAY = date(1970, 1, 1).toordinal()

Decode: TypeAlias = "Callable[[AvroBytes], Any]"


class AvroBytes:
    """Bytes of Avro, read from their beginning to their end."""

    def __init__(self, data: bytes) -> None:
        self._data, self._place, self._items = data, 0, 0

    @property
    def size_left(self) -> int:
        """How many bytes are not read yet."""
        return len(self._data) - self._place

    def read(self, size: int) -> bytes:
        """Return the next bytes; raise ValueError if there are not so many."""
        if not 0 <= size <= self.size_left:
            raise ValueError(f"Avro of {len(self._data)} bytes ends within a value")
        self._place += size
        return self._data[self._place - size : self._place]

    def read_long(self) -> int:
        """Return the next int or long."""
        number = 0
        for shift in range(_VARINT):
            (byte,) = self.read(1)
            number |= (byte & 127) << 7 * shift
            if byte < 128:
                return (number >> 1) ^ -(number & 1)
        raise ValueError("a number of Avro has more than ten bytes")

    def read_bytes(self) -> bytes:
        """Return the next bytes with their length before them."""
        return self.read(self.read_long())

    def read_blocks(self) -> Iterator[int]:
        """Yield the numbers of an array's or map's items that follow, until the last block."""
        while count := self.read_long():
            if count < 0:
                count = -count
                self.read_long()
            yield from self.count_items(count)

    def count_items(self, count: int) -> Iterator[int]:
        """Yield the numbers of rows or items; raise ValueError if the bytes have too many: they may take no bytes."""
        self._items += count
        if count < 0 or self._items > MOST_ITEMS:
            raise ValueError(f"a block claims {self._items:,} rows and items of lists; {MOST_ITEMS:,} are read at most")
        yield from range(count)


def read_avro_rows(file: pa.NativeFile) -> Iterator[Any]:
    """Yield the rows of a container file; raise ValueError for one that is none, or is compressed in another way."""
    if file.read(len(_MAGIC)) != _MAGIC:
        raise ValueError("it is not a container file of Avro")
    header = _HeaderReader(file)
    names: dict[str, bytes] = {}
    while count := header.read_long():
        if count < 0:
            header.read_long()
        for _ in range(abs(count)):
            name = header.read_bytes().decode()
            names[name] = header.read_bytes()
    if "avro.schema" not in names:
        raise ValueError("the container file of Avro has no schema")
    try:
        decode = _SchemaReader().build(parse_json(names["avro.schema"].decode()), "", 0)
    except (TypeError, KeyError) as error:
        raise ValueError(f"the file's schema is none of Avro: {error}") from error
    codec, sync = names.get("avro.codec", b"null").decode(), header.read(_SYNC)
    while (rows := header.read_long_or_end()) is not None:
        data = AvroBytes(_decompress(codec, header.read_bytes()))
        for _ in data.count_items(rows):
            yield decode(data)
        if data.size_left or header.read(_SYNC) != sync:
            raise ValueError("a block does not end where it says")


class _HeaderReader(AvroBytes):
    """Reads numbers and bytes of a container file, of which only these are held."""

    def __init__(self, file: pa.NativeFile) -> None:
        super().__init__(b"")
        self._file = file

    def read(self, size: int) -> bytes:
        if not 0 <= size <= BLOCK_BYTES:
            raise ValueError(f"a part of a container file claims {size:,} bytes")
        data = bytes(self._file.read(size))
        if len(data) < size:
            raise ValueError("the container file of Avro is cut off")
        return data

    def read_long_or_end(self) -> int | None:
        """Return the next number; None at the end of the file."""
        first = bytes(self._file.read(1))
        if not first:
            return None
        data = first
        while data[-1] > 127 and len(data) < _VARINT:
            data += self.read(1)
        return AvroBytes(data).read_long()


def _decompress(codec: str, data: bytes) -> bytes:
    match codec:
        case "null":
            return data
        case "deflate":
            stream = zlib.decompressobj(-zlib.MAX_WBITS)
            try:
                found = stream.decompress(data, BLOCK_BYTES)
            except zlib.error as error:
                raise ValueError(f"a block is not deflate: {error}") from error
            if stream.unconsumed_tail:
                raise ValueError(f"a block has more than {BLOCK_BYTES:,} bytes")
            return found
        case "snappy":
            return _decompress_snappy(data[:-4])  # a checksum follows
        case "zstandard":
            try:
                with zstandard.ZstdDecompressor().stream_reader(data) as reader:
                    found = reader.read(BLOCK_BYTES + 1)
            except zstandard.ZstdError as error:
                raise ValueError(f"a block is not zstandard: {error}") from error
            if len(found) > BLOCK_BYTES:
                raise ValueError(f"a block has more than {BLOCK_BYTES:,} bytes")
            return found
    raise ValueError(f"it is compressed by {codec}; null, deflate, snappy and zstandard are read")


def _decompress_snappy(data: bytes) -> bytes:
    size = sum((byte & 127) << 7 * n for n, byte in enumerate(data[:5]) if all(it > 127 for it in data[:n]))
    if size > BLOCK_BYTES:
        raise ValueError(f"a block has more than {BLOCK_BYTES:,} bytes")
    return bytes(pa.decompress(data, decompressed_size=size, codec="snappy", asbytes=True))


class _SchemaReader:
    """Builds what decodes values of a schema."""

    def __init__(self) -> None:
        self._named: dict[str, Decode] = {}

    def build(self, schema: Any, space: str, depth: int) -> Decode:
        """Return what decodes values of a schema in a namespace; raise ValueError for a schema that is none."""
        if depth > _MOST_DEPTH:
            raise ValueError(f"the schema has more than {_MOST_DEPTH} levels")
        match schema:
            case str() if schema in _PRIMITIVES:
                return _PRIMITIVES[schema]
            case str():
                name = schema if "." in schema or not space else f"{space}.{schema}"
                if name not in self._named:
                    name = schema
                if name not in self._named:
                    raise ValueError(f"the file's schema has no type {schema}")
                return self._named[name]
            case list():
                return _decode_union([self.build(it, space, depth + 1) for it in schema])
            case {"type": dict() | list() as inner}:
                return self.build(inner, space, depth + 1)
            case {"type": "record" | "error", "name": str(), "fields": list()}:
                return self._build_record(schema, space, depth)
            case {"type": "enum", "symbols": list(symbols)}:
                return self._define(schema, space, _decode_enum(symbols))
            case {"type": "fixed", "size": int(size)}:
                decode = _decode_logical(schema, lambda data: data.read(size))
                return self._define(schema, space, decode)
            case {"type": "array", "items": items}:
                item = self.build(items, space, depth + 1)
                return lambda data: [item(data) for _ in data.read_blocks()]
            case {"type": "map", "values": values}:
                value = self.build(values, space, depth + 1)
                return lambda data: {data.read_bytes().decode(): value(data) for _ in data.read_blocks()}
            case {"type": str(kind)}:
                return _decode_logical(schema, self.build(kind, space, depth + 1))
        raise ValueError(f"the file's schema has no type {schema!r:.100}")

    def _build_record(self, schema: Mapping[str, Any], space: str, depth: int) -> Decode:
        fields: list[tuple[str, Decode]] = []

        def decode(data: AvroBytes) -> Mapping[str, Any]:
            return {name: read(data) for name, read in fields}

        self._define(schema, space, decode)
        inner = _full_name(schema, space).rpartition(".")[0]
        fields += [(str(it["name"]), self.build(it["type"], inner, depth + 1)) for it in schema["fields"]]
        return decode

    def _define(self, schema: Mapping[str, Any], space: str, decode: Decode) -> Decode:
        self._named[_full_name(schema, space)] = decode
        return decode


def _full_name(schema: Mapping[str, Any], space: str) -> str:
    name, own = str(schema["name"]), schema.get("namespace", space)
    return name if "." in name or not own else f"{own}.{name}"


def _decode_union(branches: list[Decode]) -> Decode:
    def decode(data: AvroBytes) -> Any:
        number = data.read_long()
        if not 0 <= number < len(branches):
            raise ValueError(f"a union of {len(branches)} types has no type {number}")
        return branches[number](data)

    return decode


def _decode_enum(symbols: list[str]) -> Decode:
    def decode(data: AvroBytes) -> str:
        number = data.read_long()
        if not 0 <= number < len(symbols):
            raise ValueError(f"an enum of {len(symbols)} symbols has no symbol {number}")
        return symbols[number]

    return decode


def _decode_logical(schema: Mapping[str, Any], plain: Decode) -> Decode:
    """Return what decodes values of a logical type, where the type beneath can have it."""
    match schema.get("logicalType"), schema.get("type"):
        case "decimal", "bytes" | "fixed":
            scale = int(schema.get("scale", 0))
            return lambda data: _build_decimal(plain(data), scale)
        case "date", "int":
            return lambda data: _build_date(plain(data))
        case "timestamp-millis" | "timestamp-micros" as name, "long":
            return lambda data: _build_moment(plain(data), _UNITS[name[-6:]], _EPOCH)
        case "local-timestamp-millis" | "local-timestamp-micros" as name, "long":
            return lambda data: _build_moment(plain(data), _UNITS[name[-6:]], _LOCAL)
    return plain


def _build_date(days: int) -> date | str:
    try:
        return date.fromordinal(_FIRST_DAY + days)
    except (ValueError, OverflowError):
        return str(days)


def _build_moment(units: int, per_second: int, epoch: datetime) -> datetime | str:
    try:
        return epoch + timedelta(microseconds=units * 1_000_000 // per_second)
    except OverflowError:
        return write_millis(units, per_second)


def _build_decimal(data: bytes, scale: int) -> Decimal:
    unscaled = int.from_bytes(data, signed=True)
    if len(data) > _DECIMAL_BYTES or not 0 <= scale <= _DECIMAL_BYTES:
        raise ValueError(f"a decimal has {len(data)} bytes and scale {scale}")
    return Decimal((int(unscaled < 0), tuple(map(int, str(abs(unscaled)))), -scale))


def _read_float(data: AvroBytes) -> float:
    """Return the float of 64 bits with the same digits as one of 32 bits has, by its shortest text."""
    return float(str(np.frombuffer(data.read(4), "<f4")[0]))


_DECIMAL_BYTES = 128
_UNITS = {"millis": 1_000, "micros": 1_000_000}
_PRIMITIVES: dict[str, Decode] = {
    "null": lambda _: None,
    "boolean": lambda data: data.read(1) != b"\x00",
    "int": AvroBytes.read_long,
    "long": AvroBytes.read_long,
    "float": _read_float,
    "double": lambda data: struct.unpack("<d", data.read(8))[0],
    "bytes": AvroBytes.read_bytes,
    "string": lambda data: data.read_bytes().decode(),
}
