"""Which of today's topics and columns read the same records and fields as those of a former contract.

Topics are found by their names in Kafka, as a contract can rename its tables; columns by the fields that they are read
from.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Mapping
from functools import lru_cache
from typing import TypeAlias

from hindcast.contract import Contract, Topic
from hindcast.contract.patterns import SlowPatternError, find_matches

_Origin: TypeAlias = tuple[str, str]
"""Where a column's values come from: `("field", "name")`, `("header", "trace")`."""


class TopicMatcher:
    """Finds the topics of today's contract that read what a topic of a former contract read.

    `spent`: the seconds that patterns took; one that takes too long counts as matching.
    """

    def __init__(self, contract: Contract) -> None:
        self._topics, self.spent = contract.topics, 0.0
        self._by_kafka: dict[str, list[str]] = {}
        self._exact: dict[str, list[str]] = {}
        self._patterns: dict[str, list[str]] = {}
        for name, topic in contract.topics.items():
            kafka = contract.kafka_topic(name)
            self._by_kafka.setdefault(kafka, []).append(name)
            (self._exact if topic.pattern is None else self._patterns).setdefault(kafka, []).append(name)
        self._origins: dict[str, dict[_Origin, set[str]]] = {}

    def find_topics(self, former: Contract, name: str) -> frozenset[str]:
        """Return the names of today's topics that read a topic of Kafka which a former contract's topic did.

        Two patterns may select the same topics: they count as doing so if nothing else of today matches.
        """
        kafka, pattern = former.kafka_topic(name), former.topics[name].pattern
        found = {*self._by_kafka.get(kafka, ())}
        if pattern is not None:
            found.update(n for it in self._select(pattern, tuple(self._exact)) for n in self._exact[it])
            return frozenset(found or (n for names in self._patterns.values() for n in names))
        for other, names in self._patterns.items():
            found.update(names if self._select(other, (kafka,)) else ())
        return frozenset(found)

    def match_columns(
        self, former: Topic, today: Iterable[str], marks: Mapping[str, Collection[str]]
    ) -> tuple[frozenset[str], frozenset[str]]:
        """Return the columns of a former topic that some of today's topics still have, and those that these mark.

        A topic that is sensitive as a whole also marks the columns that it no longer has.
        """
        known, marked, columns = set[str](), set[str](), (*former.key, *former.value)
        for name in today:
            origins = self._list_readers(name)
            marked.update(columns if self._topics[name].sensitive is True else ())
            for column in columns:
                readers = {reader for origin in _list_origins(former, column) for reader in origins.get(origin, ())}
                known.update((column,) if readers else ())
                marked.update(() if readers.isdisjoint(marks[name]) else (column,))
        return frozenset(known), frozenset(marked)

    def _list_readers(self, name: str) -> Mapping[_Origin, set[str]]:
        """Return by origin the columns of one of today's topics that are read from it."""
        if name not in self._origins:
            readers = self._origins.setdefault(name, {})
            for column in (*self._topics[name].key, *self._topics[name].value):
                for origin in _list_origins(self._topics[name], column):
                    readers.setdefault(origin, set()).add(column)
        return self._origins[name]

    def _select(self, pattern: str, names: tuple[str, ...]) -> tuple[str, ...]:
        started = time.monotonic()
        try:
            return _match_names(pattern, names)
        finally:
            self.spent += time.monotonic() - started


def _list_origins(topic: Topic, column: str) -> list[_Origin]:
    """Return what a column may be read from; columns of equal names count as the same whatever they are read from."""
    origins = [("column", column)]
    if column in topic.headers:
        return [*origins, ("header", topic.headers[column])]
    if column in topic.metadata:
        return [*origins, ("metadata", topic.metadata[column])]
    part, form = ("key", topic.effective_key_format) if column in topic.key else ("value", topic.value_format)
    if form in ("string", "primitive"):
        return [*origins, ("whole", part)]
    return [*origins, ("field", column), *(("field", field) for field in topic.renamed.get(column, ()))]


@lru_cache(maxsize=512)
def _match_names(pattern: str, names: tuple[str, ...]) -> tuple[str, ...]:
    """Return the names that a pattern matches; all if that takes too long."""
    try:
        return tuple(find_matches([pattern], names)[0])
    except SlowPatternError:
        return names
