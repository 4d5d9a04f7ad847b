"""Values of an archive's rows as the bytes that Kafka had, or as JSON that says the same.

| in the file | bytes |
| --- | --- |
| bytes | as they are |
| text | UTF-8, or what it is in base64 |
| another value of a JSON file | its text, as it is written |
| another value of a Parquet or Avro file | JSON: decimals with all their digits, dates, times and timestamps in ISO 8601, bytes in base64, a map as an object |
"""  # noqa: E501  # a table

from __future__ import annotations

import base64
import binascii
import json
import math
from collections.abc import Mapping
from datetime import UTC, date, datetime, time
from decimal import Decimal
from json.encoder import encode_basestring
from typing import Any

import msgspec

from hindcast.kafka.record_batches import Headers


class JsonText(str):
    """The text of a value in JSON, which is no text itself."""

    __slots__ = ()


def encode_value(value: Any, *, is_base64: bool, is_text: bool = False) -> bytes | None:
    """Return the bytes of a key, value or header; None for null. Raise ValueError for what has none.

    `is_text`: dates and timestamps are texts, not texts in JSON.
    """
    if value is None or isinstance(value, bytes):
        return value
    if isinstance(value, JsonText):
        return value.encode()
    if is_text and isinstance(value, date | time):
        return value.isoformat().encode()
    if not isinstance(value, str):
        return write_json(value).encode()
    if not is_base64:
        return value.encode()
    try:
        return base64.b64decode(value, validate=True)
    except (binascii.Error, ValueError) as error:
        raise ValueError(f"it is not base64 ({error})") from error


def write_json(value: Any) -> str:
    """Return a value of a Parquet or Avro file as JSON. Raise ValueError for one that JSON has no form for."""
    match value:
        case None:
            return "null"
        case bool():
            return "true" if value else "false"
        case JsonText():
            return value
        case str():
            return encode_basestring(value)
        case int():
            return str(value)
        case float():
            return repr(value) if math.isfinite(value) else json.dumps(value)
        case Decimal():
            return format(value, "f")
        case bytes():
            return f'"{base64.b64encode(value).decode()}"'
        case date() | time():
            return f'"{value.isoformat()}"'
        case Mapping():
            fields = (f"{encode_basestring(str(name))}: {write_json(it)}" for name, it in value.items())
            return f"{{{', '.join(fields)}}}"
        case list() | tuple():
            return f"[{', '.join(map(write_json, value))}]"
        case _:
            raise ValueError(f"JSON has no form for a {type(value).__name__}")


def write_millis(units: int, per_second: int) -> str:
    """Return a timestamp that Python has no form for, in units since 1970, as the text of its milliseconds."""
    return str(units * 1_000 // per_second)


def parse_integer(value: Any) -> int | None:
    """Return a whole number; None for null. Raise ValueError for anything else."""
    if value is None or (isinstance(value, int) and not isinstance(value, bool)):
        return value
    if isinstance(value, str) and len(value) < _DIGITS and value.removeprefix("-").isdecimal():
        return int(value)
    raise ValueError("it is not a whole number")


def parse_timestamp(value: Any) -> int | None:
    """Return a timestamp in microseconds since 1970: one of the file, ISO 8601, or milliseconds. None for null.

    Raise ValueError for anything else.
    """
    if isinstance(value, str) and not isinstance(value, JsonText) and not value.removeprefix("-").isdecimal():
        try:
            value = datetime.fromisoformat(value)
        except ValueError:
            raise ValueError("it is not a timestamp in ISO 8601") from None
    if isinstance(value, datetime):
        moment = value if value.tzinfo else value.replace(tzinfo=UTC)
        since = moment - _EPOCH
        return (since.days * 86_400 + since.seconds) * 1_000_000 + since.microseconds
    millis = parse_integer(value)
    if millis is not None and not -_MOST_MILLIS <= millis <= _MOST_MILLIS:
        return _MOST_MILLIS * 1_000 if millis > 0 else -_MOST_MILLIS * 1_000
    return None if millis is None else millis * 1_000


def parse_headers(value: Any, *, is_base64: bool) -> Headers | None:
    """Return a record's headers, in order: of a list of objects with key and value, or of names with values.

    None for null. Raise ValueError for anything else.
    """
    if isinstance(value, JsonText):
        value = _split_headers(str(value))
    match value:
        case None:
            return None
        case Mapping():
            pairs = [*value.items()]
        case list():
            pairs = [(it["key"], it.get("value")) for it in value if isinstance(it, Mapping) and "key" in it]
            if len(pairs) < len(value):
                raise ValueError("a header is an object with key and value")
        case _:
            raise ValueError("headers are a list of objects with key and value, or an object")
    for name, _ in pairs:
        if type(name) is not str:
            raise ValueError(f"a header's name is text, and this one is {name!r:.100}")
    return [(name, encode_value(it, is_base64=is_base64)) for name, it in pairs]


def _split_headers(text: str) -> Any:
    """Return headers in JSON, with what is no text as it is written."""
    if text.startswith("["):
        return [split_fields(bytes(it).decode()) for it in _ITEMS.decode(text)]
    names = json.loads(text, object_pairs_hook=lambda pairs: [name for name, _ in pairs], parse_int=str)
    fields = split_fields(text)
    if len(names) > len(fields):
        raise ValueError("the object repeats a name; headers that do are a list of objects with key and value")
    return fields


def split_fields(line: str) -> Mapping[str, Any]:
    """Return the fields of an object in JSON: texts, None, and the `JsonText` of other values, as it is written.

    Raise ValueError for what is no object.
    """
    return {name: parse_text(bytes(raw).decode()) for name, raw in _FIELDS.decode(line).items()}


def parse_text(text: str) -> str | None:
    """Return what a text in JSON, or null, says; of another value the `JsonText`."""
    if text.startswith('"'):
        return str(_ANY.decode(text))
    return None if text == "null" else JsonText(text)


_FIELDS, _ANY = msgspec.json.Decoder(dict[str, msgspec.Raw]), msgspec.json.Decoder()
_ITEMS = msgspec.json.Decoder(list[msgspec.Raw])
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MOST_MILLIS = (2**63 - 1) // 1000
_DIGITS = 20
