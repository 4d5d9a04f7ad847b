"""The texts that records said, and what may stay of what was written about them. Pure."""

from __future__ import annotations

import html
import json
import re
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from hindcast.replay.forgotten import SAID

LEAST, DIGITS = 4, 8
"""Shorter texts, and shorter ones of digits alone, are in every file by chance: a search for them tells nothing."""

_FREE = ("reason", "found", "detail", "definition", "before", "after", "again")
"""The fields of plans, notes and reports that people or errors write, contracts too, and commands that name keys."""

_DATE = re.compile(r"\d{4}-\d\d-\d\d([T ][\d:.,+Z-]*)?$")
_QUOTED = re.compile(r'(?<=[:,\[{])\s*"([^"\\]+)"(?!\s*:)')
_EXAMPLES = re.compile(r", for example .*|^observed .*", re.DOTALL)


@dataclass(frozen=True)
class Texts:
    """What is forgotten: `keys`, the texts of its key's columns; `said`, all texts of its records, the keys among them.

    `tables`: the topic's and those that are made of it.
    """

    keys: frozenset[str]
    said: frozenset[str]
    tables: frozenset[str]

    @cached_property
    def sought(self) -> frozenset[str]:
        """The texts that a search can find, in every way in which our files write them."""
        return frozenset(way for text in self.said if telling(text) for way in spellings(text))

    @cached_property
    def _words(self) -> re.Pattern[str]:
        texts = sorted({*self.keys, *(text for text in self.said if len(text) >= LEAST)}, key=len, reverse=True)
        return re.compile(
            "|".join(rf"(?<!\w){re.escape(way)}(?!\w)" for text in texts for way in spellings(text)) or "(?!)"
        )

    def text(self, text: str) -> str:
        """What may stay of a text: all of it, or that something was forgotten. Of JSON its free texts."""
        if not self._words.search(text):
            return text
        try:
            told = json.loads(text)
        except ValueError:
            return SAID
        return json.dumps(self.told(told)) if isinstance(told, dict) else SAID

    def told(self, told: Any, table: str | None = None, field: str | None = None) -> Any:
        """What may stay of a plan, a note or a report: everything but free texts, and keys that were released."""
        if isinstance(told, dict):
            return {n: self.told(it, n if field == "tables" else table, n) for n, it in told.items()}
        if isinstance(told, list) and field == "keys":
            return [it for it in told if not self.names(str(it))]
        if isinstance(told, list):
            return [self.told(it, table, field) for it in told]
        if isinstance(told, str) and field in _FREE:
            return self.detail(told, table)
        return told

    def detail(self, text: str, table: str | None) -> str:
        """What may stay of a gate's detail: of the tables concerned no examples."""
        kept = _EXAMPLES.sub("", text) if table in self.tables else text
        return SAID if self._words.search(kept) else kept

    def names(self, key: str) -> bool:
        """Whether a key (JSON) has one of the texts of the key."""
        return not self.keys.isdisjoint(leaves(key))

    def said_in(self, key: str) -> bool:
        """Whether a key (JSON) has one of the texts that the records said."""
        return not self.said.isdisjoint(leaves(key))


def telling(text: str) -> bool:
    """Whether finding a text tells anything: it is long enough, and no date."""
    return len(text) >= (DIGITS if text.isdigit() else LEAST) and not _DATE.match(text)


def spellings(text: str) -> set[str]:
    """A text as it is, in JSON, in HTML."""
    return {text, json.dumps(text)[1:-1], json.dumps(text, ensure_ascii=False)[1:-1], html.escape(text)}


def leaves(text: str) -> Iterator[str]:
    """The texts in a JSON value, numbers as they are written too; of what is no JSON the text itself.

    >>> list(leaves('{"name": "Ann", "lives": {"in": ["Rome"]}, "n": 7}'))
    ['Ann', 'Rome', '7']
    """
    try:
        told = json.loads(text)
    except ValueError:
        yield text
        return
    yield from _leaves(told)


def strings(text: str) -> Iterator[str]:
    """The same without numbers; of broken JSON also the texts in quotes that name no field.

    >>> list(strings('{"name": "Ann"'))
    ['{"name": "Ann"', 'Ann']
    """
    try:
        told = json.loads(text)
    except ValueError:
        yield text
        yield from _QUOTED.findall(text)
        return
    yield from (it for it in _leaves(told, numbers=False))


def _leaves(told: Any, *, numbers: bool = True) -> Iterator[str]:
    parts: Iterable[Any] = ()
    match told:
        case dict():
            parts = told.values()
        case list():
            parts = told
        case str():
            yield told
        case bool() | None:
            return
        case int() | float() if numbers:
            yield str(told)
    for part in parts:
        yield from _leaves(part, numbers=numbers)


def pattern(sought: Collection[str]) -> str:
    """A regular expression that finds any of some texts, in RE2's and in Python's writing."""
    return "|".join(re.escape(text) for text in sorted(sought))
