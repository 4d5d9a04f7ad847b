"""The texts that records said, and what may stay of texts written about them. Pure."""

from __future__ import annotations

import html
import json
import re
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property

from hindcast.common.json_values import JsonValue
from hindcast.ingest.erasure_marks import REPLACEMENT_TEXT

MIN_LENGTH, MIN_DIGITS = 4, 8
"""Shorter texts (or numbers, by their digits) are in every file by chance: finding them proves nothing."""

_FREE_TEXT_FIELDS = ("reason", "found", "detail", "definition", "before", "after", "again")
"""The fields of plans, notes and reports with text by people, errors or contracts, or commands that name keys."""

_DATE = re.compile(r"\d{4}-\d\d-\d\d([T ][\d:.,+Z-]*)?$")
_QUOTED = re.compile(r'(?<=[:,\[{])\s*"([^"\\]+)"(?!\s*:)')
_EXAMPLES = re.compile(r", for example .*|^observed .*|(?<=^could not be evaluated): .*", re.DOTALL)
_STOPPED = re.compile(r".*? gates stopped it; nothing of it was published\.")


@dataclass(frozen=True)
class ForgottenTexts:
    """The texts of what is forgotten: `keys`, of its key's columns; `record_texts`, of its records, with the key that
    was asked for.

    `tables`: the topic's and those that are made of it; `views`: the latter, whose texts can be derived from these.
    """

    keys: frozenset[str]
    record_texts: frozenset[str]
    tables: frozenset[str]
    views: frozenset[str] = frozenset()

    @cached_property
    def search_terms(self) -> frozenset[str]:
        """The texts that a search can find, in every spelling that our files use."""
        return frozenset(term for text in self.record_texts if is_distinctive(text) for term in spellings(text))

    @cached_property
    def _words(self) -> re.Pattern[str]:
        texts = sorted(
            {*self.keys, *(text for text in self.record_texts if len(text) >= MIN_LENGTH)}, key=len, reverse=True
        )
        words = "|".join(re.escape(spelling) for text in texts for spelling in spellings(text)) or "(?!)"
        return re.compile(rf"(?<!\w)(?:{words})(?!\w)")

    def scrub_text(self, text: str) -> str:
        """Return what may stay of a text: all of it, or a replacement; of a JSON object, all other fields."""
        if not self._words.search(text):
            return text
        try:
            value = json.loads(text)
        except ValueError:
            return REPLACEMENT_TEXT
        return json.dumps(self.scrub_json(value)) if isinstance(value, dict) else REPLACEMENT_TEXT

    def scrub_json(self, value: JsonValue, table: str | None = None, field: str | None = None) -> JsonValue:
        """Return what may stay of a plan, a note or a report: all but the affected free texts, and keys."""
        if isinstance(value, dict):
            by_table = field in ("tables", "releases")
            return {n: self.scrub_json(item, n if by_table else table, n) for n, item in value.items()}
        if isinstance(value, list) and field == "keys":
            if table in self.views:
                return []
            return [item for item in value if not self.has_key_text(str(item))]
        if isinstance(value, list):
            return [self.scrub_json(item, table, field) for item in value]
        if isinstance(value, str) and field == "key":
            return REPLACEMENT_TEXT if table in self.views or self.has_key_text(value) else value
        if isinstance(value, str) and field == "found":
            return self._scrub_error(value)
        if isinstance(value, str) and field in _FREE_TEXT_FIELDS:
            return self.scrub_detail(value, table)
        return value

    def scrub_detail(self, text: str, table: str | None) -> str:
        """Return what may stay of a gate's detail; for the tables concerned, without examples."""
        remaining = _EXAMPLES.sub("", text) if table in self.tables else text
        return REPLACEMENT_TEXT if self._words.search(remaining) else remaining

    def _scrub_error(self, text: str) -> str:
        """Return what may stay of the error that stopped a run; if it is about a view, at most that gates did."""
        if any(re.search(rf"(?<!\w){re.escape(view)}(?!\w)", text) for view in self.views):
            match = _STOPPED.match(text)
            text = match[0] if match else REPLACEMENT_TEXT
        return self.scrub_detail(text, None)

    def has_key_text(self, key: str) -> bool:
        """Return True if a key (JSON) has one of the texts of the forgotten key."""
        return not self.keys.isdisjoint(json_leaves(key))

    def said_in(self, key: str) -> bool:
        """Whether a key (JSON) has one of the texts that the records said."""
        return not self.record_texts.isdisjoint(json_leaves(key))


def is_distinctive(text: str) -> bool:
    """Return True if finding a text proves something: it is long enough, and not a date."""
    return len(text) >= (MIN_DIGITS if text.isdigit() else MIN_LENGTH) and not _DATE.match(text)


def spellings(text: str) -> set[str]:
    """Return a text as it is, in JSON, and in HTML."""
    return {text, json.dumps(text)[1:-1], json.dumps(text, ensure_ascii=False)[1:-1], html.escape(text)}


def json_leaves(text: str) -> Iterator[str]:
    """Yield the texts in a JSON value, and numbers as they are written; of what is not JSON, the text itself.

    >>> list(json_leaves('{"name": "Ann", "lives": {"in": ["Rome"]}, "n": 7}'))
    ['Ann', 'Rome', '7']
    """
    try:
        value = json.loads(text)
    except ValueError:
        yield text
        return
    yield from _walk_leaves(value)


def json_strings(text: str) -> Iterator[str]:
    """Yield the texts in a JSON value without numbers; of broken JSON, also the quoted texts that are not field names.

    >>> list(json_strings('{"name": "Ann"'))
    ['{"name": "Ann"', 'Ann']
    """
    try:
        value = json.loads(text)
    except ValueError:
        yield text
        yield from _QUOTED.findall(text)
        return
    yield from _walk_leaves(value, numbers=False)


def _walk_leaves(value: JsonValue, *, numbers: bool = True) -> Iterator[str]:
    parts: Iterable[JsonValue] = ()
    match value:
        case dict():
            parts = value.values()
        case list():
            parts = value
        case str():
            yield value
        case bool() | None:
            return
        case int() | float() if numbers:
            yield str(value)
    for part in parts:
        yield from _walk_leaves(part, numbers=numbers)


def search_pattern(sought: Collection[str]) -> str:
    """Return a regular expression that finds any of some texts, in the syntax of RE2 and Python."""
    return "|".join(re.escape(text) for text in sorted(sought))
