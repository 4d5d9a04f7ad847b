"""What former contracts of a pipeline marked as sensitive, or derived from what is marked today.

Rows that they made may still show it: until a run by today's contract has seen a table, all that the contract of its
rows marked, and afterwards what an earlier contract derived from columns that are sensitive still. Contracts come from
the journal, which others may have written: each is parsed in bounded time (former_marks_cache.py). One that is none
today, or was not looked at, hides all columns of its tables if it, today's contract or what it read marks anything.
"""

from __future__ import annotations

import hashlib
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from threading import Lock
from typing import NamedTuple, TypeAlias

from hindcast.contract import Contract, list_shapes
from hindcast.contract.sensitive import find_sensitive_columns, list_marks
from hindcast.contract.types import is_table_name
from hindcast.plan import definitions, former_marks_cache, inputs, matching_topics
from hindcast.plan.former_marks_cache import MAX_CONTRACTS, MarksByTable, start_budget
from hindcast.plan.runs import Run

SourceMarks: TypeAlias = Callable[[str], frozenset[str] | None]
"""Returns which columns of a table of another pipeline (`shop.menu`) are sensitive today; None for all."""

MAX_SOURCES = 500
"""How many tables that only former contracts of a pipeline read are looked at, each in the journal of its pipeline: as
many as one contract may read.
"""


def find_former_marks(
    contract: Contract, past: Sequence[Run], find_source_marks: SourceMarks, *, hide_unknown: bool = True
) -> MarksByTable:
    """Return by topic and view the columns that are hidden because earlier contracts made rows of it.

    `find_source_marks`: of inputs that former contracts had and today's has not. Nothing is hidden because of a
    contract that is not stored, as in older journals. `hide_unknown`: whether contracts that are none today, or for
    which no time is left, hide all columns of their tables.
    """
    found: dict[str, set[str]] = {name: set() for name in (*contract.topics, *contract.views)}
    today, redefined = contract.hash, []
    for name in found:
        last = next((run for run in reversed(past) if run.state == "completed" or run.had_published(name)), None)
        if last is not None and last.plan.contract != today:
            redefined.append(name)
    for name, columns in inputs.list_stored_marks(past, redefined).items():
        found[name].update(columns or ())
    finder = _CarriedMarks(contract, find_source_marks, hide_unknown=hide_unknown)
    formers = _list_former_contracts(contract, past)
    for n, (digest, fields) in enumerate(formers):
        is_old = n < len(formers) - MAX_CONTRACTS
        for name, hidden in (finder.hide_all(digest, fields) if is_old else finder.find(digest, fields)).items():
            if name in found:
                found[name] |= hidden
    return {name: frozenset(columns) for name, columns in found.items()}


def carry_marks(contract: Contract, former: Contract, find_source_marks: SourceMarks) -> MarksByTable:
    """Return by table of a former contract the columns that come from what is marked today."""
    return _CarriedMarks(contract, find_source_marks).carry(former)


def _list_former_contracts(contract: Contract, past: Iterable[Run]) -> list[tuple[str, Mapping[str, str]]]:
    """Return the digest and the fields of each contract that plans have stored, oldest first, without today's."""
    stored: dict[str, tuple[str, Mapping[str, str]]] = {}
    for run in past:
        if run.plan.definition and run.plan.contract not in stored:
            stored[run.plan.contract] = run.plan.definition_digest, run.plan.definition
    stored.pop(contract.hash, None)
    return [*stored.values()]


class _Summary(NamedTuple):
    """What is looked up in the fields of a former contract each time.

    `sources`: the columns that it has of the tables of other pipelines. `tables`: the names of its inputs, topics and
    views; `own`: those of topics and views.
    """

    has_marks: bool
    sources: Mapping[str, set[str]]
    tables: frozenset[str]
    own: frozenset[str]


class _CarriedMarks:
    """Finds the columns that tables had by former contracts and that come from what is marked today."""

    def __init__(self, contract: Contract, find_source_marks: SourceMarks, *, hide_unknown: bool = True) -> None:
        self._contract, self._find_source_marks, self._hide_unknown = contract, find_source_marks, hide_unknown
        self._marks, self._shapes = list_marks(contract), list_shapes(contract)
        self._sensitive = find_sensitive_columns(contract, self._marks)
        self._topics = matching_topics.TopicMatcher(contract)
        self._inputs: dict[str, frozenset[str]] = {}
        self._columns: dict[str, frozenset[str]] = {}
        for name, source in contract.inputs.items():
            self._inputs[source.table] = self._inputs.get(source.table, frozenset()) | self._marks[name]
            columns = self._columns.get(source.table, frozenset())
            self._columns[source.table] = columns | frozenset(self._shapes[name].columns)
        self._dropped: dict[str, frozenset[str] | None] = {}
        self._cache, self._budget = former_marks_cache.open_cache(contract.pipeline), start_budget()
        self._today = _digest(repr((self._describe_topics(), hide_unknown)))
        self._facts = {name: self._describe_table(name) for name in self._shapes}
        self._contract_digest = _digest(self._today, repr(self._facts))

    def _describe_topics(self) -> list[tuple[object, ...]]:
        """Return what `_derive` takes from today's topics, all of which may read what a former one did."""
        return [
            (
                name, self._contract.kafka_topic(name), topic.pattern, [*topic.key], [*topic.value], topic.sensitive,
                sorted(topic.headers.items()), sorted(topic.metadata.items()), sorted(topic.renamed.items()),
                topic.effective_key_format, topic.value_format, sorted(self._marks[name]),
            )
            for name, topic in sorted(self._contract.topics.items())
        ]  # fmt: skip

    def _describe_table(self, name: str) -> str:
        """Return what `_derive` takes from a table of today whose name a former contract has."""
        source = self._contract.inputs[name].table if name in self._contract.inputs else ""
        kind, marks = (name in self._contract.views, source), sorted(self._marks.get(name, ()))
        return repr((name, kind, sorted(self._shapes[name].columns), marks, sorted(self._sensitive.get(name, ()))))

    def find(self, digest: str, fields: Mapping[str, str]) -> MarksByTable:
        """Return by table the columns that a former contract with these fields, which have the digest, hides."""
        summary = _summarize(digest, fields)
        given = {table: self._find_marks(table, columns) for table, columns in summary.sources.items()}
        if not self._has_marks(summary, given.values()):
            return {}
        of_sources = sorted((it, repr(marks and sorted(marks))) for it, marks in given.items())
        facts = [self._facts[name] for name in sorted(summary.tables & self._facts.keys())]
        key = _digest(self._today, digest, repr((facts, of_sources)))
        if (known := self._cache.find(key)) is not None:
            return known
        if not self._cache.has_time(self._contract_digest, self._budget):
            return self._hide_all(summary)
        started, of_patterns = time.thread_time(), self._topics.spent
        former = definitions.parse_stored_fields(tuple(fields.items()))
        found = self._hide_all(summary) if former is None else self._derive(former, given)
        spent = time.thread_time() - started + self._topics.spent - of_patterns
        self._cache.spend(self._contract_digest, self._budget, spent)
        return self._cache.keep(key, found)

    def hide_all(self, digest: str, fields: Mapping[str, str]) -> MarksByTable:
        """Return by table the columns that a former contract hides which is not looked at."""
        summary = _summarize(digest, fields)
        given = (self._find_marks(table, columns) for table, columns in summary.sources.items())
        return self._hide_all(summary) if self._has_marks(summary, given) else {}

    def carry(self, former: Contract) -> MarksByTable:
        """Return by table the columns that a former contract hides."""
        sources: dict[str, set[str]] = {}
        for source in former.inputs.values():
            sources.setdefault(source.table, set()).update((*source.key, *source.value))
        return self._derive(former, {table: self._find_marks(table, columns) for table, columns in sources.items()})

    def _find_marks(self, table: str, columns: Iterable[str]) -> frozenset[str] | None:
        """Return which of the columns that a former contract had of another pipeline's table are marked; None for all.

        Those of today's inputs by these; columns and tables that are no longer among them by `find_source_marks`.
        """
        left = frozenset(columns) - self._columns.get(table, frozenset())
        if table not in self._inputs:
            return self._find_dropped_marks(table)
        if not left:
            return self._inputs[table]
        marks = self._find_dropped_marks(table)
        return self._inputs[table] | (left if marks is None else left & marks)

    def _find_dropped_marks(self, table: str) -> frozenset[str] | None:
        """Return what `find_source_marks` does; None, as of unknown tables, once it was asked for too many of them."""
        if table not in self._dropped:
            if len(self._dropped) >= MAX_SOURCES:
                return None
            self._dropped[table] = self._find_source_marks(table)
        return self._dropped[table]

    def _has_marks(self, summary: _Summary, given: Iterable[frozenset[str] | None]) -> bool:
        """Return whether a former contract, today's, or what is `given` of the tables that it read marks anything."""
        return summary.has_marks or any(self._marks.values()) or any(marks != frozenset() for marks in given)

    def _hide_all(self, summary: _Summary) -> MarksByTable:
        """Return all columns of the tables of a former contract that nobody knows: any may have what is marked."""
        if not self._hide_unknown:
            return {}
        return {name: frozenset(shape.columns) for name, shape in self._shapes.items() if name in summary.own}

    def _derive(self, former: Contract, given: Mapping[str, frozenset[str] | None]) -> MarksByTable:
        """Return what is sensitive by a former contract, if what is marked today of the same sources was marked then.

        A column that left its source is marked as it was then. Columns of a table that has another source today also
        count as marked if those of the same name do. `given`: what is marked of the tables of other pipelines.
        """
        marks, shapes, carried = list_marks(former), list_shapes(former), dict[str, frozenset[str]]()
        lost: set[str] = set()
        for name, shape in shapes.items():
            columns = frozenset(shape.columns)
            if name in former.topics:
                today = self._topics.find_topics(former, name)
                known, marked = self._topics.match_columns(former.topics[name], today, self._marks)
                carried[name] = (marks[name] - known) | marked
                is_same = name in today
                lost.update(() if today else (name,))
            else:
                is_same = name in self._shapes and _is_same_source(former, self._contract, name)
                known = frozenset(self._shapes[name].columns) if is_same else frozenset()
                carried[name] = (marks[name] - known) | (columns & known & self._marks.get(name, frozenset()))
            if name in former.inputs:
                its = given.get(former.inputs[name].table)
                carried[name] |= columns if its is None else columns & its
            if not is_same or (lost and not lost.isdisjoint(former.list_upstream(name))):
                carried[name] |= columns & self._sensitive.get(name, frozenset())
        return {name: its for name, its in find_sensitive_columns(former, carried).items() if its}


def list_sources(fields: Mapping[str, str]) -> dict[str, set[str]]:
    """Return the tables of other pipelines that a contract reads, and the columns that it has of them.

    A name that no table can have is none: nothing is looked for under it.
    """
    paths = {place: place.split(".") for place in fields}
    named = {path[1]: fields[place] for place, path in paths.items() if path[0] == "inputs" and path[2:] == ["table"]}
    names = {name: table for name, table in named.items() if is_table_name(table)}
    sources: dict[str, set[str]] = {table: set() for table in names.values()}
    for path in paths.values():
        if len(path) == 4 and path[0] == "inputs" and path[1] in names and path[2] in ("key", "value"):
            sources[names[path[1]]].add(path[3])
    return sources


def _is_same_source(former: Contract, today: Contract, name: str) -> bool:
    """Return whether a name means in both contracts a view, or an input from the same table."""
    if name in former.inputs:
        return name in today.inputs and former.inputs[name].table == today.inputs[name].table
    return name in former.views and name in today.views


def _digest(*values: str) -> str:
    return hashlib.sha256(repr(values).encode("utf-8", "surrogatepass")).hexdigest()


def _summarize(digest: str, fields: Mapping[str, str]) -> _Summary:
    """Return the summary of fields, which have the digest."""
    with _LOCK:
        if digest in _SUMMARIES:
            _SUMMARIES.move_to_end(digest)
            return _SUMMARIES[digest]
    names = {tuple(place.split(".")[:2]) for place in fields}
    tables = {kind: frozenset(n[1] for n in names if n[0] == kind and n[1:]) for kind in ("inputs", "topics", "views")}
    own = tables["topics"] | tables["views"]
    summary = _Summary(definitions.has_marks(fields), list_sources(fields), own | tables["inputs"], own)
    with _LOCK:
        _SUMMARIES[digest] = summary
        while len(_SUMMARIES) > _MAX_SUMMARIES:
            _SUMMARIES.popitem(last=False)
    return summary


_MAX_SUMMARIES = 4_000
_SUMMARIES: OrderedDict[str, _Summary] = OrderedDict()
_LOCK = Lock()
