"""What former contracts of a pipeline marked as sensitive, or derived from what is marked today.

Rows that they made may still show it: until a run by today's contract has seen a table, all that the contract of its
rows marked, and afterwards what an earlier contract derived from columns that are sensitive still. Contracts come from
the journal, which others may have written: each is parsed in bounded time, and one that is none today hides all columns
of its tables if it marks anything.
"""

from __future__ import annotations

import hashlib
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from threading import Lock
from typing import TypeAlias

from hindcast.contract import Contract, list_shapes
from hindcast.contract.sensitive import find_sensitive_columns, list_marks
from hindcast.plan import definitions, inputs, matching_topics
from hindcast.plan.runs import Run

MarksByTable: TypeAlias = Mapping[str, frozenset[str]]

SECONDS = 5.0
"""How long contracts that were not looked at before may take in a call; the next one goes on with the others."""

SourceMarks: TypeAlias = Callable[[str], frozenset[str] | None]
"""Returns which columns of a table of another pipeline (`shop.menu`) are sensitive today; None for all."""


def find_former_marks(
    contract: Contract, past: Sequence[Run], find_source_marks: SourceMarks, *, hide_unknown: bool = True
) -> MarksByTable:
    """Return by topic and view the columns that are hidden because earlier contracts made rows of it.

    `find_source_marks`: of inputs that former contracts had and today's has not. Nothing is hidden because of a
    contract that is not stored, as in older journals. `hide_unknown`: whether contracts that are none today, or for
    which no time is left, hide all columns of their tables.
    """
    found: dict[str, set[str]] = {name: set() for name in (*contract.topics, *contract.views)}
    for name, columns in found.items():
        last = next((run for run in reversed(past) if run.state == "completed" or run.had_published(name)), None)
        if last is not None and last.plan.contract != contract.hash:
            columns.update(inputs.find_stored_marks(past, name) or ())
    finder = _CarriedMarks(contract, find_source_marks, hide_unknown=hide_unknown)
    for fields in _list_former_contracts(contract, past):
        for name, hidden in finder.find(fields).items():
            if name in found:
                found[name] |= hidden
    return {name: frozenset(columns) for name, columns in found.items()}


def carry_marks(contract: Contract, former: Contract, find_source_marks: SourceMarks) -> MarksByTable:
    """Return by table of a former contract the columns that come from what is marked today."""
    return _CarriedMarks(contract, find_source_marks).carry(former)


def _list_former_contracts(contract: Contract, past: Iterable[Run]) -> Iterable[Mapping[str, str]]:
    """Return the stored fields of each contract that plans have stored, without today's."""
    stored: dict[str, Mapping[str, str]] = {}
    for run in past:
        if run.plan.definition and run.plan.contract not in stored:
            stored[run.plan.contract] = run.plan.definition
    stored.pop(contract.hash, None)
    return stored.values()


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
        marks = sorted((name, sorted(its)) for name, its in self._marks.items() if its)
        self._today = repr((contract.hash, marks, hide_unknown))
        self._spent = 0.0

    def find(self, fields: Mapping[str, str]) -> MarksByTable:
        """Return by table the columns that a former contract with these fields hides."""
        given = {table: self._find_marks(table, columns) for table, columns in _list_sources(fields).items()}
        if not definitions.has_marks(fields) and not any(self._marks.values()) and set(given.values()) <= {frozenset()}:
            return {}
        of_sources = sorted((it, repr(marks and sorted(marks))) for it, marks in given.items())
        key = _digest(self._today, [*fields.items()], of_sources)
        if (known := _read_cache(key)) is not None:
            return known
        if self._spent + self._topics.spent > SECONDS:
            return self._hide_all(fields)
        started = time.thread_time()
        former = definitions.parse_stored_fields(tuple(fields.items()))
        found = self._hide_all(fields) if former is None else self._derive(former, given)
        self._spent += time.thread_time() - started
        return _keep(key, found)

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
            return self._find_source_marks(table)
        if not left:
            return self._inputs[table]
        marks = self._find_source_marks(table)
        return self._inputs[table] | (left if marks is None else left & marks)

    def _hide_all(self, fields: Mapping[str, str]) -> MarksByTable:
        """Return all columns of the tables of a contract that is none today, if it marks anything."""
        if not self._hide_unknown or not definitions.has_marks(fields):
            return {}
        tables = {tuple(place.split(".")[:2]) for place in fields}
        return {
            name: frozenset(shape.columns)
            for name, shape in self._shapes.items()
            if ("topics", name) in tables or ("views", name) in tables
        }

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


def _list_sources(fields: Mapping[str, str]) -> dict[str, set[str]]:
    """Return the tables of other pipelines that a contract reads, and the columns that it has of them."""
    paths = {place: place.split(".") for place in fields}
    names = {path[1]: fields[place] for place, path in paths.items() if path[0] == "inputs" and path[2:] == ["table"]}
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


def _digest(*values: str | Sequence[tuple[str, str]]) -> str:
    return hashlib.sha256(repr(values).encode("utf-8", "surrogatepass")).hexdigest()


def _read_cache(key: str) -> MarksByTable | None:
    with _LOCK:
        if key in _FOUND:
            _FOUND.move_to_end(key)
        return _FOUND.get(key)


def _keep(key: str, found: MarksByTable) -> MarksByTable:
    with _LOCK:
        _FOUND[key] = found
        while len(_FOUND) > _MOST:
            _FOUND.popitem(last=False)
    return found


_MOST = 4_000
_FOUND: OrderedDict[str, MarksByTable] = OrderedDict()
"""What former contracts hide, by their fields and by what is marked today."""
_LOCK = Lock()
