"""Texts as decimals, dates, moments and bytes: exactly what was sent, or None.

| column type | what is taken |
| --- | --- |
| decimal(p,s) | a number, or its text, that needs no more than p digits, s of them behind the point |
| date | 2026-01-31, years 1 to 9999 |
| timestamp | ISO 8601, UTC unless it says otherwise, years 1 to 9999; what is below a microsecond is cut |
| | or seconds since 1970, of 5 to 12 digits |
| binary | base64 with all its padding |
"""

from __future__ import annotations

import base64
import re
from datetime import date
from decimal import Context, Decimal

from hindcast.formats.json.types import FieldType

_LONGEST = 128
"""So many characters a decimal may have."""
_SIDE = 20
"""So many digits it may have on each side of the point if it has an exponent."""

_DECIMAL = re.compile(r"[-+]?([0-9]+)(?:\.([0-9]+))?(?:[eE]([-+]?[0-9]{1,2}))?")
_DATE = re.compile("[0-9]{4}-[0-9]{2}-[0-9]{2}")
_MOMENT = re.compile(
    r"([0-9]{4})-([0-9]{2})-([0-9]{2})"
    r"(?:[T ]([0-9]{2}):([0-9]{2})(?::([0-9]{2})(?:\.([0-9]{1,9}))?)?(?:Z|([+-])([0-9]{2}):([0-9]{2}))?)?"
)
_SECONDS = re.compile("-?[0-9]{5,12}")
_BASE64 = re.compile("[A-Za-z0-9+/]*={0,2}")
_WIDE = Context(prec=40)
_EPOCH, _CYCLE = date(1970, 1, 1).toordinal(), 146_097
_FIRST, _LAST = -62_135_596_800_000_000, 253_402_300_799_999_999
_HOUR, _MINUTE, _MAX_ZONE = 3_600, 60, 18 * 3_600


def parse_decimal(text: str, type_: FieldType) -> Decimal | None:
    """Return a decimal with the scale of its type; None if it needs more digits than that has."""
    match = _DECIMAL.fullmatch(text) if len(text) <= _LONGEST else None
    if match is None:
        return None
    whole, fraction, power = match[1], match[2] or "", match[3]
    if power is not None and max(len(whole), len(fraction)) > _SIDE:
        return None
    unscaled, places = int(whole + fraction), type_.scale - len(fraction) + int(power or 0)
    unscaled, lost = divmod(unscaled * 10 ** max(places, 0), 10 ** max(-places, 0))
    if lost or unscaled >= 10**type_.digits:
        return None
    return Decimal(-unscaled if text[0] == "-" else unscaled).scaleb(-type_.scale, _WIDE)


def parse_date(text: str) -> date | None:
    """Return a day."""
    try:
        return date.fromisoformat(text) if _DATE.fullmatch(text) else None
    except ValueError:
        return None


def parse_timestamp(text: str) -> int | None:
    """Return a moment in microseconds since 1970."""
    if _SECONDS.fullmatch(text):
        found = int(text) * 1_000_000
    else:
        match = _MOMENT.fullmatch(text)
        found = _count_microseconds(match) if match else None
    return found if found is not None and _FIRST <= found <= _LAST else None


def parse_base64(text: str) -> bytes | None:
    """Return the bytes of a text in base64."""
    return base64.b64decode(text) if len(text) % 4 == 0 and _BASE64.fullmatch(text) else None


def _count_microseconds(match: re.Match[str]) -> int | None:
    year, month, day, hour, minute, second = (int(it or 0) for it in match.groups()[:6])
    offset = int(match[9] or 0) * _HOUR + int(match[10] or 0) * _MINUTE
    if hour > 23 or max(minute, second, int(match[10] or 0)) > 59 or offset > _MAX_ZONE:  # noqa: PLR2004
        return None
    try:
        days = date(year or 400, month, day).toordinal() - (0 if year else _CYCLE) - _EPOCH  # its zone may be in year 1
    except ValueError:
        return None
    seconds = days * 24 * _HOUR + hour * _HOUR + minute * _MINUTE + second
    seconds += offset if match[8] == "-" else -offset
    return seconds * 1_000_000 + int((match[7] or "")[:6].ljust(6, "0"))
