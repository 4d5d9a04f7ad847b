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
from hindcast.plan import definitions, inputs
from hindcast.plan.runs import Run

MarksByTable: TypeAlias = Mapping[str, frozenset[str]]

SECONDS = 5.0
"""How long contracts that were not looked at before may take in a call; the next one goes on with the others."""

SourceMarks: TypeAlias = Callable[[str], frozenset[str] | None]
"""Returns which columns of a table of another pipeline (`shop.menu`) are sensitive today; None for all."""


def find_former_marks(contract: Contract, past: Sequence[Run], find_source_marks: SourceMarks) -> MarksByTable:
    """Return by topic and view the columns that are hidden because earlier contracts made rows of it.

    `find_source_marks`: of inputs that former contracts had and today's has not. Nothing is hidden because of a
    contract that is not stored, as in older journals.
    """
    found: dict[str, set[str]] = {name: set() for name in (*contract.topics, *contract.views)}
    for name, columns in found.items():
        last = next((run for run in reversed(past) if run.state == "completed" or run.had_published(name)), None)
        if last is not None and last.plan.contract != contract.hash:
            columns.update(inputs.find_stored_marks(past, name) or ())
    finder = _CarriedMarks(contract, find_source_marks)
    for fields in _list_former_contracts(contract, past):
        for name, hidden in finder.find(fields).items():
            if name in found:
                found[name] |= hidden
    return {name: frozenset(columns) for name, columns in found.items()}


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

    def __init__(self, contract: Contract, find_source_marks: SourceMarks) -> None:
        self._contract, self._find_source_marks = contract, find_source_marks
        self._marks, self._shapes = list_marks(contract), list_shapes(contract)
        self._inputs = {source.table: self._marks[name] for name, source in contract.inputs.items()}
        self._today = repr((contract.hash, sorted((name, sorted(its)) for name, its in self._marks.items() if its)))
        self._spent = 0.0

    def find(self, fields: Mapping[str, str]) -> MarksByTable:
        """Return by table the columns that a former contract with these fields hides."""
        sources = {text for place, text in fields.items() if _is_source(place)}
        given = {it: self._inputs[it] if it in self._inputs else self._find_source_marks(it) for it in sources}
        if not definitions.has_marks(fields) and not any(self._marks.values()) and set(given.values()) <= {frozenset()}:
            return {}
        of_sources = sorted((it, repr(marks and sorted(marks))) for it, marks in given.items())
        key = _digest(self._today, [*fields.items()], of_sources)
        if (known := _read_cache(key)) is not None:
            return known
        if self._spent > SECONDS:
            return self._hide_all(fields)
        started = time.thread_time()
        former = definitions.parse_stored_fields(tuple(fields.items()))
        found = self._hide_all(fields) if former is None else self._derive(former, given)
        self._spent += time.thread_time() - started
        return _keep(key, found)

    def _hide_all(self, fields: Mapping[str, str]) -> MarksByTable:
        """Return all columns of the tables of a contract that is none today, if it marks anything."""
        if not definitions.has_marks(fields):
            return {}
        tables = {tuple(place.split(".")[:2]) for place in fields}
        return {
            name: frozenset(shape.columns)
            for name, shape in self._shapes.items()
            if ("topics", name) in tables or ("views", name) in tables
        }

    def _derive(self, former: Contract, given: Mapping[str, frozenset[str] | None]) -> MarksByTable:
        """Return what is sensitive by a former contract, if what is marked today of the same sources was marked then.

        A column that left a table is marked as it was then. `given`: what is marked of the tables of other pipelines.
        """
        marks, shapes, carried = list_marks(former), list_shapes(former), dict[str, frozenset[str]]()
        for name, shape in shapes.items():
            columns = frozenset(shape.columns)
            if name in self._shapes and _locate_columns(former, name) == _locate_columns(self._contract, name):
                known = frozenset(self._shapes[name].columns)
                carried[name] = (marks[name] - known) | (columns & known & self._marks[name])
            else:
                carried[name] = marks[name]
            if name in former.inputs:
                its = given.get(former.inputs[name].table)
                carried[name] |= columns if its is None else columns & its
        return {name: its for name, its in find_sensitive_columns(former, carried).items() if its}


def _is_source(place: str) -> bool:
    """Return whether a field of a contract is the table of another pipeline."""
    path = place.split(".")
    return len(path) == 3 and path[0] == "inputs" and path[2] == "table"  # inputs.NAME.table


def _locate_columns(contract: Contract, name: str) -> str:
    """Return where the columns of a table come from: a topic of Kafka, a table of another pipeline, or its view."""
    if name in contract.inputs:
        return contract.inputs[name].table
    return contract.kafka_topic(name) if name in contract.topics else f"view {name}"


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
