"""The forms of records that operation i replays: many decimals, nested ones, change events, Avro from a registry."""

from __future__ import annotations

import io
import json
import os
import struct
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from hindcast.kafka.produce import ProducerRecord

_KEYS, _START = 100_000, 1_767_225_660_000
_AVRO = {
    "type": "record",
    "name": "Price",
    "fields": [
        {"name": "price", "type": {"type": "bytes", "logicalType": "decimal", "precision": 8, "scale": 2}},
        {"name": "category", "type": "int"},
        {"name": "note", "type": "string"},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-micros"}},
    ],
}


class Form(NamedTuple):
    """A form of records: the topic's entry in a contract, and what makes the n-th value."""

    name: str
    entry: str
    value: Callable[[int], bytes]
    json_key: bool = False

    def records(self, count: int) -> Iterator[ProducerRecord]:
        """Records of 100,000 keys over 90 days, a hundredth of them up to a minute late."""
        from hindcast.kafka.produce import ProducerRecord

        step = 90 * 86_400_000 / count
        for n in range(count):
            late = n * 7919 % 60_000 if n % 100 == 0 else 0
            item = b"item-%06d" % (n * 2_654_435_761 % _KEYS)
            key = b'{"item":"%s"}' % item if self.json_key else item
            yield ProducerRecord(key, self.value(n), int(_START + n * step) - late)


def list_forms() -> list[Form]:
    """Return the forms, each with what its contract says of the topic."""
    return [
        *(Form(f"{n} decimals", _entry({f"n{i}": "'decimal(8,2)'" for i in range(n)}), _decimals(n)) for n in (20, 40)),
        Form(
            "nested",
            _entry({"id": "int", "lines": "'array<struct<sku: string, quantity: int, price: decimal(8,2)>>'"}),
            _nest,
        ),
        Form(
            "Debezium",
            _entry({"price": "'decimal(8,2)'", "at": "timestamp", "note": "string"}, "envelope: debezium"),
            _change,
            json_key=True,
        ),
        Form(
            "Avro",
            _entry(
                {"price": "'decimal(8,2)'", "category": "int", "note": "string", "at": "timestamp"},
                "value_format: avro",
            ),
            _write_avro,
        ),
    ]


@contextmanager
def open_registry(folder: Path, form: Form) -> Iterator[str]:
    """Yield the entry of a form's topic; while it is used, a schema registry knows the schema of Avro."""
    if form.name != "Avro":
        yield form.entry
        return
    from registries import apicurio, register  # type: ignore[import-not-found]  # of tests/

    (folder / "registry").mkdir(exist_ok=True)
    with apicurio(folder / "registry") as url:
        os.environ["HINDCAST_SCHEMA_REGISTRY"] = url
        assert register(url, "prices-value", _AVRO) == 1
        yield form.entry


def _entry(value: dict[str, str], more: str = "") -> str:
    columns = ", ".join(f"{name}: {kind}" for name, kind in value.items())
    return f"{{read: table, key: {{item: string}}, value: {{{columns}}}{f', {more}' if more else ''}}}"


def _decimals(count: int) -> Callable[[int], bytes]:
    def write(n: int) -> bytes:
        numbers = (b'"n%d":%d.%02d' % (i, (n * 7919 + i * 104_729) % 99_999, (n + i) % 100) for i in range(count))
        return b"{%s}" % b",".join(numbers)

    return write


def _nest(n: int) -> bytes:
    lines = (b'{"sku":"sku-%d","quantity":%d,"price":%d.%02d}' % (n % 1000, i + 1, n % 100, i) for i in range(n % 5))
    return b'{"id":%d,"lines":[%s]}' % (n, b",".join(lines))


def _change(n: int) -> bytes:
    """Return a change event of Debezium for PostgreSQL, with its schema left out."""
    micros = 1000 * (_START + n * 7776)
    source = {
        "version": "3.2.0",
        "connector": "postgresql",
        "name": "shop",
        "ts_ms": micros // 1000,
        "db": "shop",
        "ts_us": micros,
    }
    after: dict[str, Any] = {
        "item": f"item-{n % _KEYS:06d}",
        "price": f"{n % 1000}.{n % 100:02d}",
        "at": "2026-01-01T00:00:00Z",
    }
    after["note"] = f"{n:080d}"
    event = {"before": None, "after": after, "source": source, "transaction": None, "op": "u", "ts_ms": micros // 1000}
    return json.dumps(event, separators=(",", ":")).encode()


def _write_avro(n: int) -> bytes:
    """Return a record of `_AVRO` in the schema registry's wire format, with id 1."""
    out = io.BytesIO(b"\0" + struct.pack(">i", 1))
    out.seek(0, io.SEEK_END)
    price = (n % 99_999).to_bytes(4, signed=True)
    for number in (len(price), None, n % 1000, 80, "text", 1000 * (_START + n * 7776)):
        if number is None:
            out.write(price)
        elif number == "text":
            out.write(b"%080d" % n)
        else:
            out.write(_zigzag(int(number)))
    return out.getvalue()


def _zigzag(number: int) -> bytes:
    left, found = (number << 1) ^ (number >> 63), bytearray()
    while left > 0x7F:
        found.append(left & 0x7F | 0x80)
        left >>= 7
    return bytes([*found, left])
