"""What is seen of one field: which JSON values, how large, how often none. Pure.

`FieldStats.observe` counts a value, and what is within it; `field_types` chooses a column type from the counts.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from decimal import Decimal

from hindcast.ops.infer.json_text import Number, Parsed, format_parsed
from hindcast.ops.infer.sensitive_values import find_sensitive_number, find_sensitive_text

MAX_VALUES = 20_000
"""The most different values of a field that are kept, to compare them with keys."""

MAX_FIELDS, _FEW_FIELDS, _LEAST_FILLED = 300, 30, 0.1
"""An object is a map, whose names are data, with more different fields, or more than a few that are mostly absent."""


@dataclass
class NumberStats:
    """Numbers: their range, and the digits that they need."""

    count: int = 0
    fractions: int = 0
    exponents: int = 0
    least: Decimal | None = None
    most: Decimal | None = None
    digits: int = 0
    scale: int = 0

    def observe(self, number: Number) -> None:
        """Count one number; those that are not finite have no digits."""
        value = number.decimal
        self.count += 1
        if not value.is_finite():
            self.exponents += 1
            return
        self.least = value if self.least is None else min(self.least, value)
        self.most = value if self.most is None else max(self.most, value)
        if number.is_whole:
            self.digits = max(self.digits, len(number.lstrip("-")))
            return
        self.fractions += 1
        self.exponents += "e" in number.lower()
        _, digits, exponent = value.as_tuple()
        zeros = len(digits) - len("".join(map(str, digits)).rstrip("0")) if value else len(digits)
        places = max(-int(exponent), 0)
        self.scale = max(self.scale, places if places <= _WRITTEN_SCALE else max(places - zeros, _WRITTEN_SCALE))
        self.digits = max(self.digits, len(digits) + int(exponent), 1)


_WRITTEN_SCALE = 6
"""Up to so many digits after the point zeros at the end count, as in 12.50."""


@dataclass
class TextStats:
    """Texts: how many are dates, timestamps, numbers or UUIDs."""

    count: int = 0
    dates: int = 0
    moments: int = 0
    zoneless: int = 0
    uuids: int = 0
    whole: int = 0
    numbers: NumberStats = field(default_factory=NumberStats)

    def observe(self, text: str) -> None:
        """Count one text."""
        self.count += 1
        if len(text) > _LONGEST_FORM:
            return
        if len(text) == _UUID_LENGTH and _UUID.fullmatch(text):
            self.uuids += 1
        elif text[:1] not in _FIRST_OF_NUMBER:
            return
        elif _NUMBER.fullmatch(text):
            self.whole += _WHOLE.fullmatch(text) is not None
            self.numbers.observe(Number(text))
        elif _MOMENT.fullmatch(text) and _is_moment(text):
            is_date = len(text) == _DATE_LENGTH
            self.dates += is_date
            self.moments += not is_date
            self.zoneless += not is_date and not _ZONE.search(text)


_LONGEST_FORM, _DATE_LENGTH, _UUID_LENGTH = 40, 10, 36
_FIRST_OF_NUMBER = frozenset("-0123456789")
_NUMBER = re.compile(r"-?[0-9]+(?:\.[0-9]+)?")
_WHOLE = re.compile(r"-?(?:0|[1-9][0-9]*)")
_MOMENT = re.compile(
    r"[0-9]{4}-[0-9]{2}-[0-9]{2}"
    r"(?:[T ][0-9]{2}:[0-9]{2}(?::[0-9]{2}(?:\.[0-9]{1,9})?(?:Z|[+-](?:0[0-9]|1[0-7]):[0-9]{2})?)?)?"
)
"""What the contract's JSON takes for a timestamp, and Spark can cast: no zone without seconds, and at most 18 hours."""

_ZONE = re.compile(r"(?:Z|[+-][0-9]{2}:[0-9]{2})$")
_UUID = re.compile(r"[0-9a-fA-F]{8}-(?:[0-9a-fA-F]{4}-){3}[0-9a-fA-F]{12}")
_FRACTION = re.compile(r"\.[0-9]+")


def _is_moment(text: str) -> bool:
    try:
        moment = datetime.fromisoformat(_FRACTION.sub("", text))
        return moment.tzinfo is None or moment.astimezone(UTC).year > 0
    except (ValueError, OverflowError):  # also of the year 0, or of one that its offset moves beyond 1 to 9999
        return False


@dataclass
class FieldStats:
    """The values of one field: `kinds` counts them by what they are in JSON, `places` has the first one of each."""

    keeps_values: bool = False
    kinds: Counter[str] = field(default_factory=Counter)
    places: dict[str, str] = field(default_factory=dict)
    numbers: NumberStats = field(default_factory=NumberStats)
    texts: TextStats = field(default_factory=TextStats)
    fields: dict[str, FieldStats] = field(default_factory=dict)
    items: FieldStats | None = None
    sensitive: Counter[str] = field(default_factory=Counter)
    values: set[str] = field(default_factory=set)
    has_secret_names: bool = False

    @property
    def count(self) -> int:
        """The number of values that are not null."""
        return self.kinds.total() - self.kinds["null"]

    @property
    def is_map(self) -> bool:
        """Whether the names of its objects are data: too many, mostly absent, or like secrets themselves."""
        if len(self.fields) <= _FEW_FIELDS:
            return self.has_secret_names
        filled = sum(its.kinds.total() for its in self.fields.values())
        mostly_absent = filled < _LEAST_FILLED * len(self.fields) * self.kinds["object"]
        return self.has_secret_names or mostly_absent or len(self.fields) > MAX_FIELDS

    def observe(self, value: Parsed, place: str) -> None:
        """Count a value of the record at a place, and the values within it."""
        kind = _name_kind(value)
        self.kinds[kind] += 1
        if kind not in self.places:
            self.places[kind] = place
        if self.keeps_values and value is not None and len(self.values) < MAX_VALUES:
            self.values.add(format_parsed(value))
        match value:
            case Number():
                self.numbers.observe(value)
                self._note_sensitive(find_sensitive_number(value))
            case str():
                self.texts.observe(value)
                self._note_sensitive(find_sensitive_text(value))
            case dict():
                self._observe_fields(value, place)
            case list():
                self.items = self.items or FieldStats()
                for item in value:
                    self.items.observe(item, place)

    def _observe_fields(self, value: Mapping[str, Parsed], place: str) -> None:
        for name, inner in value.items():
            if name not in self.fields:
                reason = find_sensitive_text(name)
                self._note_sensitive(reason)
                self.has_secret_names |= reason is not None
            if name in self.fields or len(self.fields) <= MAX_FIELDS:
                self.fields.setdefault(name, FieldStats()).observe(inner, place)

    def _note_sensitive(self, reason: str | None) -> None:
        if reason is not None:
            self.sensitive[reason] += 1


def _name_kind(value: Parsed) -> str:
    match value:
        case None:
            return "null"
        case bool():
            return "boolean"
        case Number():
            return "number"
        case str():
            return "text"
        case bytes():
            return "bytes"
        case dict():
            return "object"
    return "list"
