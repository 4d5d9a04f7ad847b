"""Mutations of valid records, and an oracle that says what a JSON record is: Python's own parser, and the rules of
`json.values` written down a second time.
"""

from __future__ import annotations

import base64
import json
import math
import random
import re
import struct
from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal, InvalidOperation
from typing import Any

COLUMNS = {
    "d": "decimal(8,2)",
    "e": "decimal(38,10)",
    "f": "float",
    "x": "double",
    "t": "tinyint",
    "i": "int",
    "l": "bigint",
    "b": "boolean",
    "day": "date",
    "at": "timestamp",
    "text": "string",
    "bin": "binary",
}

TOKENS = (
    *("0", "-0", "1e3", "1E-2", "1e999", "-1e-999", "127", "128", "200", "-129", "2147483648", "9223372036854775808"),
    *("8.005", "1.10", "12345678901234567890.1234567891", "0.1", "NaN", "Infinity", "true", "null", "[]", "{}", '""'),
    *('"2026-01-31"', '"2026-02-30"', '"12:30"', '"2026-01-31T12:30:00Z"', '"0000-01-01"', '"10000-01-01"', '"1,000"'),
    *('"\\ud83d"', '"\\ud83d\\ude00"', '"\\u0000"', '"\\\\ud83d"', '"AAE="', '"AAE"', '"1e5"', '"8.5"', "1700000000"),
    *('"8.5\\n"', '"2026-01-31\\n"'),
    *("1e-999999999", "1e999999999", "9" * 50, "0." + "0" * 50 + "1", "1.00000000000000000001e2", "3.4028236e38"),
)
BYTES = (
    b"\0",
    b"\xff",
    b"\xc0\x80",
    b"\xed\xa0\x80",
    b'"',
    b"\\",
    b"{",
    b"}",
    b"[",
    b"]",
    b",",
    b":",
    b" ",
    b"\xef\xbb\xbf",
)


class Refused(Exception):  # noqa: N818  # it is no error
    """The oracle takes no such record."""


def valid(rng: random.Random) -> dict[str, Any]:
    """A record of `COLUMNS`; of each column some value, or null, or none."""
    moment = datetime(1, 1, 2, tzinfo=UTC) + timedelta(microseconds=rng.randrange(10**17))
    made: dict[str, Callable[[], Any]] = {
        "d": lambda: rng.choice(
            [rng.randrange(-99999999, 99999999) / 100, str(rng.randrange(999)), rng.randrange(99999)]
        ),
        "e": lambda: rng.choice([rng.random(), rng.randrange(10**18), rng.randrange(10**9) / 1000]),
        "f": lambda: rng.choice([rng.uniform(-1e6, 1e6), rng.randrange(100)]),
        "x": lambda: rng.choice([rng.uniform(-1e300, 1e300), rng.random(), rng.randrange(10**15)]),
        "t": lambda: rng.randrange(-128, 128),
        "i": lambda: rng.randrange(-(2**31), 2**31),
        "l": lambda: rng.randrange(-(2**63), 2**63),
        "b": lambda: rng.random() < 0.5,
        "day": lambda: moment.date().isoformat(),
        "at": lambda: rng.choice([moment.isoformat(), rng.randrange(10**5, 10**11)]),
        "text": lambda: rng.choice(["", "käse", "\U0001f600", 'a\\b"c\n', "\0", "12:30", "1.234567890123456789"]),
        "bin": lambda: base64.b64encode(rng.randbytes(rng.randrange(9))).decode(),
    }
    some = {name: make() if rng.random() < 0.9 else None for name, make in made.items() if rng.random() < 0.8}
    return some | ({"unknown": [1, {"a": "b"}]} if rng.random() < 0.3 else {})


def mutated(rng: random.Random) -> bytes:
    """A valid record, then up to three mutations of its text."""
    ascii_, spaced = rng.random() < 0.5, rng.random() < 0.5
    text = json.dumps(valid(rng), ensure_ascii=ascii_, separators=(", ", ": ") if spaced else (",", ":")).encode()
    for _ in range(rng.choice([0, 1, 1, 1, 2, 3])):
        text = rng.choice(_MUTATIONS)(rng, text)
    return text


def _flip(rng: random.Random, text: bytes) -> bytes:
    if not text:
        return text
    n = rng.randrange(len(text))
    return text[:n] + bytes([text[n] ^ 1 << rng.randrange(8)]) + text[n + 1 :]


def _truncate(rng: random.Random, text: bytes) -> bytes:
    return text[: rng.randrange(len(text) + 1)]


def _splice(rng: random.Random, text: bytes) -> bytes:
    a, b = (rng.randrange(len(text) + 1) for _ in range(2))
    return text[:a] + text[b:]


def _insert(rng: random.Random, text: bytes) -> bytes:
    n = rng.randrange(len(text) + 1)
    return text[:n] + rng.choice([*BYTES, *(digit.encode() for digit in "0123456789.eE-+")]) + text[n:]


def _token(rng: random.Random, text: bytes) -> bytes:
    """Another value in place of one."""
    values = [m.span(1) for m in re.finditer(rb'":\s?("(?:[^"\\]|\\.)*"|[-+.0-9eE]+|true|false|null)', text)]
    if not values:
        return text
    start, end = rng.choice(values)
    return text[:start] + rng.choice(TOKENS).encode() + text[end:]


def _twice(rng: random.Random, text: bytes) -> bytes:
    """A field that stands there twice."""
    name = rng.choice(list(COLUMNS))
    return b'{"%s": %s, %s' % (name.encode(), rng.choice(TOKENS).encode(), text[1:])


_MUTATIONS = (_flip, _truncate, _splice, _insert, _token, _token, _token, _twice)


class _Number(str):
    """A number as it was written."""

    __slots__ = ()


def oracle(raw: bytes) -> dict[str, Any]:
    """The columns of a record; Refused if it is malformed."""
    try:
        text = raw.decode()
        found = json.loads(text, parse_int=_Number, parse_float=_Number, parse_constant=_refuse)
    except (ValueError, RecursionError):
        raise Refused from None
    if not isinstance(found, dict):
        raise Refused
    told = _Pairs(text).every
    if any(0xD800 <= ord(c) <= 0xDFFF for c in json.dumps(told, ensure_ascii=False)):
        raise Refused
    for name, value in told:
        if name in COLUMNS:
            _passed_over(name, value)  # the last one counts, but no other may be of another JSON type
    return {name: _read(name, found.get(name)) for name in COLUMNS}


def _passed_over(name: str, value: Any) -> None:
    """Refused for a field that stands there once more, if the parser cannot pass over it."""
    match COLUMNS[name]:
        case "tinyint" if value is not None:
            _whole(-(2**15), 2**15 - 1)(value, "")
        case "float" | "double":
            if value is not None and not isinstance(value, _Number):
                raise Refused
        case "int" | "bigint" | "boolean":
            _read(name, value)


class _Pairs:
    """The fields of an object with repetitions."""

    def __init__(self, text: str) -> None:
        self.every: list[tuple[str, Any]] = []
        json.loads(text, parse_int=_Number, parse_float=_Number, object_pairs_hook=self._keep)

    def _keep(self, pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        self.every = pairs  # the outermost comes last
        return dict(pairs)


def _refuse(_: str) -> Any:
    raise Refused


def _read(name: str, value: Any) -> Any:
    if value is None:
        return None
    try:
        return _READ[COLUMNS[name].partition("(")[0]](value, COLUMNS[name])
    except (ValueError, OverflowError, InvalidOperation, TypeError):
        raise Refused from None


def _decimal(value: Any, kind: str) -> Decimal:
    digits, scale = map(int, re.findall(r"\d+", kind))
    if not isinstance(value, str) or not re.fullmatch(r"[-+]?[0-9]+(\.[0-9]+)?([eE][-+]?[0-9]{1,2})?", value):
        raise Refused
    number = Decimal(value)
    _, mantissa, exponent = number.as_tuple()
    behind = "".join(map(str, mantissa)).zfill(-int(exponent))[int(exponent) :] if int(exponent) < 0 else ""
    if behind[scale:].strip("0") or int(number.copy_abs()) >= 10 ** (digits - scale):
        raise Refused
    return number


def _whole(least: int, most: int) -> Callable[[Any, str], int]:
    def read(value: Any, _: str) -> int:
        if not isinstance(value, _Number) or not re.fullmatch("-?[0-9]+", value) or len(value) > 1000:
            raise Refused
        number = int(value)
        if not least <= number <= most:
            raise Refused
        return number

    return read


def _float(value: Any, kind: str) -> float:
    if not isinstance(value, _Number):
        raise Refused
    number = float(value)
    if kind == "float":
        number = struct.unpack("f", struct.pack("f", number))[0]
    if not math.isfinite(number):
        raise Refused
    return number


def _boolean(value: Any, _: str) -> bool:
    if not isinstance(value, bool):
        raise Refused
    return value


def _date(value: Any, _: str) -> date:
    if not isinstance(value, str) or not re.fullmatch("[0-9]{4}-[0-9]{2}-[0-9]{2}", value):
        raise Refused
    return date.fromisoformat(value)


_MOMENT = (
    r"([0-9]{4}-[0-9]{2}-[0-9]{2})(?:[T ]([0-9]{2}:[0-9]{2}(?::[0-9]{2})?)(\.[0-9]{1,9})?(Z|[+-][0-9]{2}:[0-9]{2})?)?"
)


def _timestamp(value: Any, _: str) -> datetime:
    if isinstance(value, str) and re.fullmatch("-?[0-9]{5,12}", value):
        return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(seconds=int(value))
    parts = re.fullmatch(_MOMENT, value) if isinstance(value, str) else None
    if parts is None or (parts[3] and len(parts[2]) == 5):
        raise Refused
    zone = (parts[4] or "Z").replace("Z", "+00:00")
    if abs(int(zone[1:3])) > 18 or int(zone[4:]) > 59 or (zone[1:3] == "18" and zone[4:] != "00"):
        raise Refused
    moment = datetime.fromisoformat(f"{parts[1]}T{parts[2] or '00:00'}+00:00")
    moment += timedelta(microseconds=int((parts[3] or ".0")[1:7].ljust(6, "0")))
    return moment - (1 if zone[0] == "+" else -1) * timedelta(hours=int(zone[1:3]), minutes=int(zone[4:]))


def _text(value: Any, _: str) -> Any:
    if isinstance(value, _Number):
        return float(value) if math.isfinite(float(value)) else _refuse("")
    if value in ('"Infinity"', '"-Infinity"'):
        raise Refused
    return value


def _binary(value: Any, _: str) -> bytes:
    if not isinstance(value, str) or isinstance(value, _Number):
        raise Refused
    if len(value) % 4:  # Python takes padding that is too much
        raise Refused
    return base64.b64decode(value, validate=True)


_READ: dict[str, Callable[[Any, str], Any]] = {
    "decimal": _decimal,
    "float": _float,
    "double": _float,
    "tinyint": _whole(-128, 127),
    "int": _whole(-(2**31), 2**31 - 1),
    "bigint": _whole(-(2**63), 2**63 - 1),
    "boolean": _boolean,
    "date": _date,
    "timestamp": _timestamp,
    "string": _text,
    "binary": _binary,
}
