"""Records in a file of JSON lines, as `hindcast produce` takes them. Each line is an object:

| field | what is sent |
| --- | --- |
| key, value | text as it is, null as null, anything else as JSON |
| key_base64, value_base64 | instead: these bytes |
| timestamp | ISO 8601, UTC unless it says otherwise; or milliseconds since 1970; null: none; left out: now |
| headers | an object, or where a name stands twice a list of pairs: text, null, or {"base64": "..."} |
"""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, BinaryIO

from hindcast.errors import TopicError, nearest
from hindcast.kafka.produce import Record

FIELDS = ("key", "value", "key_base64", "value_base64", "timestamp", "headers")
_EXAMPLE = '{"key": "curry", "value": {"price": 8}, "timestamp": "2026-01-01T00:00:00Z"}'


class _WrongError(ValueError):
    """What is wrong with a line, and what to write instead."""

    def __init__(self, found: str, mend: str) -> None:
        self.found, self.mend = found, mend
        super().__init__(found)


def records(path: Path) -> Iterator[Record]:
    """The records of a file, in order; empty lines are passed over. TopicError with file and line for what is none."""
    try:
        file = path.open("rb")
    except OSError as error:
        raise TopicError(f"cannot be read: {error.strerror}", where=str(path), mend="check the path") from None
    return _records(path, file)


def _records(path: Path, file: BinaryIO) -> Iterator[Record]:
    with file:
        for number, line in enumerate(file, 1):
            if not line.strip():
                continue
            try:
                yield _record(line.strip())
            except _WrongError as wrong:
                raise TopicError(f"is not a record: {wrong.found}", where=f"{path}:{number}", mend=wrong.mend) from None


def _record(line: bytes) -> Record:
    try:
        told = json.loads(line)
    except UnicodeDecodeError:
        raise _WrongError("it is not UTF-8", "write bytes as base64: key_base64, value_base64") from None
    except json.JSONDecodeError as error:
        raise _WrongError(
            f"no JSON from character {error.colno} on", f"write an object on one line: {_EXAMPLE}"
        ) from None
    if not isinstance(told, dict):
        raise _WrongError(f"{_kind(told)}, not an object", f"write {_EXAMPLE}")
    for name in told:
        if name not in FIELDS:
            raise _WrongError(f"unknown field '{name}'", nearest(name, FIELDS))
    return Record(_part(told, "key"), _part(told, "value"), _timestamp(told), _headers(told.get("headers") or ()))


def _part(told: dict[str, Any], name: str) -> bytes | None:
    """The bytes of the key or the value."""
    coded = f"{name}_base64"
    if (name in told) == (coded in told):
        found = f"both {name} and {coded}" if name in told else f"no {name}"
        raise _WrongError(found, f"write one of them: {name} (null for none), or {coded}")
    return _bytes(told[name], name) if name in told else _decoded(told[coded], coded)


def _bytes(value: Any, name: str) -> bytes | None:
    if value is None:
        return None
    try:
        return (value if isinstance(value, str) else json.dumps(value)).encode()
    except UnicodeEncodeError:
        raise _WrongError(f"the {name} has half a character", f"write its bytes: {name}_base64") from None


def _decoded(text: Any, name: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except (TypeError, ValueError, binascii.Error):
        raise _WrongError(
            f"{name} is not base64: {_shown(text)}", 'write text like "AAAAKg==", with its padding'
        ) from None


def _timestamp(told: dict[str, Any]) -> datetime | int | None:
    """A moment, or milliseconds since 1970: -1 for none; null for now."""
    if "timestamp" not in told:
        return None
    stamp = told["timestamp"]
    if stamp is None:
        return -1
    if isinstance(stamp, int) and not isinstance(stamp, bool) and -(2**63) <= stamp < 2**63:
        return stamp
    try:
        moment = datetime.fromisoformat(stamp)
    except (TypeError, ValueError):
        mend = 'write "2026-01-01T00:00:00Z", or milliseconds since 1970; null for none; leave it out for now'
        raise _WrongError(f"timestamp is no moment: {_shown(stamp)}", mend) from None
    return moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment


def _headers(told: Any) -> tuple[tuple[str, str | bytes | None], ...]:
    pairs = list(told.items()) if isinstance(told, dict) else told
    mend = 'write {"origin": "shop"}, or [["origin", "shop"], ["origin", null]]'
    if not isinstance(pairs, list | tuple):
        raise _WrongError(f"headers are {_kind(told)}", mend)
    found: list[tuple[str, str | bytes | None]] = []
    for pair in pairs:
        match pair:
            case (str(name), str() | None as value):
                _bytes(name, "header"), _bytes(value, "header")
                found.append((name, value))
            case (str(name), {"base64": text}):
                found.append((name, _decoded(text, f"the header {name}")))
            case _:
                raise _WrongError(f"a header is a name with text, null or base64, not {_shown(pair)}", mend)
    return tuple(found)


def _kind(value: Any) -> str:
    names = {bool: "a boolean", int: "a number", float: "a number", str: "a text", list: "a list", dict: "an object"}
    return names.get(type(value), "null")


def _shown(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
