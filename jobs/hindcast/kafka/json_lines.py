"""Records in a file of JSON lines, as `hindcast produce` takes them. Each line is an object:

| field | what is sent |
| --- | --- |
| key, value | text as it is, null as null, anything else as JSON |
| key_base64, value_base64 | instead: these bytes |
| timestamp | ISO 8601, UTC by default; or milliseconds since 1970; null: none; left out: now |
| headers | an object, or a list of pairs if a name occurs twice: text, null, or {"base64": "..."} |
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import BinaryIO

from hindcast.common.errors import TopicError, suggest_nearest
from hindcast.common.json_values import JsonObject, JsonValue
from hindcast.kafka.produce import ProducerRecord

FIELDS = ("key", "value", "key_base64", "value_base64", "timestamp", "headers")
_EXAMPLE = '{"key": "curry", "value": {"price": 8}, "timestamp": "2026-01-01T00:00:00Z"}'


class _LineError(ValueError):
    """A problem with a line, and its fix."""

    def __init__(self, problem: str, fix: str) -> None:
        self.found, self.fix = problem, fix
        super().__init__(problem)


def read_records(path: Path) -> Iterator[ProducerRecord]:
    """Yield the records of a file, in order, without empty lines; raise TopicError with file and line for a bad one."""
    try:
        file = path.open("rb")
    except OSError as error:
        raise TopicError(f"cannot be read: {error.strerror}", where=str(path), fix="check the path") from None
    return _parse_lines(path, file)


def _parse_lines(path: Path, file: BinaryIO) -> Iterator[ProducerRecord]:
    with file:
        for number, line in enumerate(file, 1):
            if not line.strip():
                continue
            try:
                yield _parse_record(line.strip())
            except _LineError as wrong:
                raise TopicError(f"is not a record: {wrong.found}", where=f"{path}:{number}", fix=wrong.fix) from None


def _parse_record(line: bytes) -> ProducerRecord:
    try:
        fields = json.loads(line)
    except UnicodeDecodeError:
        raise _LineError("it is not UTF-8", "write bytes as base64: key_base64, value_base64") from None
    except json.JSONDecodeError as error:
        raise _LineError(
            f"it is not valid JSON from character {error.colno} on", f"write an object on one line: {_EXAMPLE}"
        ) from None
    except (ValueError, RecursionError):
        found = "it has a number, or nested values, beyond what can be read"
        raise _LineError(found, "write the bytes as base64: key_base64, value_base64") from None
    if not isinstance(fields, dict):
        raise _LineError(f"it is {_json_type_name(fields)}, not an object", f"write {_EXAMPLE}")
    for name in fields:
        if name not in FIELDS:
            raise _LineError(f"unknown field '{name}'", suggest_nearest(name, FIELDS))
    return ProducerRecord(
        _parse_part(fields, "key"),
        _parse_part(fields, "value"),
        _parse_timestamp(fields),
        _parse_headers(fields.get("headers") or ()),
    )


def _parse_part(fields: JsonObject, name: str) -> bytes | None:
    """Return the bytes of the key or the value."""
    encoded = f"{name}_base64"
    if (name in fields) == (encoded in fields):
        problem = f"both {name} and {encoded}" if name in fields else f"no {name}"
        raise _LineError(problem, f"write one of them: {name} (null for none), or {encoded}")
    return _encode_value(fields[name], name) if name in fields else _decode_base64(fields[encoded], encoded)


def _encode_value(value: JsonValue, name: str) -> bytes | None:
    if value is None:
        return None
    try:
        return (value if isinstance(value, str) else json.dumps(value)).encode()
    except UnicodeEncodeError:
        raise _LineError(f"the {name} has half a character", f"write its bytes: {name}_base64") from None


def _decode_base64(text: JsonValue, name: str) -> bytes:
    with suppress(ValueError):
        if isinstance(text, str):
            return base64.b64decode(text, validate=True)
    raise _LineError(f"{name} is not base64: {_shorten_value(text)}", 'write text like "AAAAKg==", with its padding')


def _parse_timestamp(fields: JsonObject) -> datetime | int | None:
    """Return a moment or milliseconds since 1970: -1 for none; None for now."""
    if "timestamp" not in fields:
        return None
    stamp = fields["timestamp"]
    if stamp is None:
        return -1
    if isinstance(stamp, int) and not isinstance(stamp, bool) and -(2**63) <= stamp < 2**63:
        return stamp
    with suppress(ValueError):
        if isinstance(stamp, str):
            moment = datetime.fromisoformat(stamp)
            return moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment
    fix = 'write "2026-01-01T00:00:00Z", or milliseconds since 1970; null for none; leave it out for now'
    raise _LineError(f"timestamp is not a valid time: {_shorten_value(stamp)}", fix)


def _parse_headers(value: JsonValue) -> tuple[tuple[str, str | bytes | None], ...]:
    pairs: JsonValue = list(value.items()) if isinstance(value, dict) else value
    fix = 'write {"origin": "shop"}, or [["origin", "shop"], ["origin", null]]'
    if not isinstance(pairs, list | tuple):
        raise _LineError(f"headers are {_json_type_name(value)}, not an object or a list", fix)
    headers: list[tuple[str, str | bytes | None]] = []
    for pair in pairs:
        match pair:
            case (str(name), str() | None as text):
                _encode_value(name, "header"), _encode_value(text, "header")
                headers.append((name, text))
            case (str(name), {"base64": text}):
                headers.append((name, _decode_base64(text, f"the header {name}")))
            case _:
                raise _LineError(f"a header is a name with text, null or base64, not {_shorten_value(pair)}", fix)
    return tuple(headers)


def _json_type_name(value: JsonValue) -> str:
    names = {bool: "a boolean", int: "a number", float: "a number", str: "a text", list: "a list", dict: "an object"}
    return names.get(type(value), "null")


def _shorten_value(value: JsonValue) -> str:
    text = json.dumps(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
