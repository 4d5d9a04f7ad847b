"""The columns whose values nobody is shown: those that are sensitive, and those that left a contract and may have been.

What another pipeline calls sensitive counts for the inputs made of its tables, and for what is derived from them.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from typing import TypeAlias, TypeVar

from hindcast.common.errors import ContractError, HindcastError
from hindcast.common.settings import Settings
from hindcast.contract import Contract, find, list_shapes
from hindcast.contract.bound import BoundContract, bind_contract
from hindcast.contract.folder import ContractFinder, build_finder
from hindcast.contract.sensitive import find_sensitive_columns, list_marks
from hindcast.contract.types import PERIOD_COLUMNS
from hindcast.plan import definitions, inputs, journal
from hindcast.plan.former_marks import MarksByTable, find_former_marks
from hindcast.plan.runs import Run
from hindcast.store import store_formats, tables
from hindcast.store.tables import Table

AnyContract = TypeVar("AnyContract", bound=Contract)


def find_bound_contract(settings: Settings, pipeline: str) -> BoundContract:
    """Return the contract of a pipeline, with the marks of other pipelines; raise ContractError as `find` does."""
    contract = find(settings.schemas, pipeline, settings.choice)
    return bind_contract(add_marks_of_others(settings, contract), settings)


def add_marks_of_others(
    settings: Settings, contract: AnyContract, find_other: ContractFinder | None = None
) -> AnyContract:
    """Return a contract that knows what other pipelines mark of its inputs, by all marks of theirs.

    Nothing is read for a contract without inputs.
    """
    if not contract.inputs:
        return contract
    return contract.with_marks(_Followed(settings, contract, find_other or build_finder(settings.choice)).find_marks())


def find_hidden_columns(settings: Settings, contract: Contract, name: str) -> frozenset[str]:
    """Return the hidden columns of a topic, view or input, also those that only its table has."""
    if name in contract.inputs:
        return find_sensitive_columns(contract)[name]
    table = tables.locate_table(settings.warehouse, contract, name)
    return find_marked_columns(settings, contract, [name])[name] | _find_left_columns(contract, name, table)


def find_marked_columns(
    settings: Settings, contract: Contract, names: Collection[str], find_other: ContractFinder | None = None
) -> dict[str, frozenset[str]]:
    """Return the sensitive columns of some topics and views: by the contract's marks, and by former ones."""
    if not names:
        return {}
    marked, past = find_sensitive_columns(contract), journal.read_runs(settings.warehouse, contract.pipeline)
    source_marks = _SourceMarks(settings, find_other or build_finder(settings.choice))
    former = find_former_marks(contract, past, source_marks.find)
    return {name: marked[name] | former[name] for name in names}


def has_new_marks(contract: BoundContract, past: Sequence[Run], run: Run) -> bool:
    """Return whether texts of a run may show what is sensitive today and was not by its contract, or may not have been.

    True of a run whose contract is not stored, or is none today, if anything is marked. What other pipelines mark
    counts as marked then if the last contract did by which they ran until then.
    """
    found = find_sensitive_columns(contract)
    is_same = run.plan.contract == contract.hash
    if not any(found.values()) or (is_same and not any(contract.marks_of_others.values())):
        return False
    former = contract.with_marks({}) if is_same else definitions.find_contract(past, run.plan.contract)
    if former is None:
        return True
    then = former.with_marks(_find_marks_at(contract.settings, former, run.known_at, {contract.pipeline}))
    before, shapes = find_sensitive_columns(then), list_shapes(former)
    return any(found.get(name, frozenset()) & {*shape.columns} - before[name] for name, shape in shapes.items())


def _find_marks_at(
    settings: Settings, contract: Contract, moment: datetime, readers: frozenset[str] | set[str]
) -> dict[str, frozenset[str]]:
    """Return by input what the pipelines that it comes from marked at a moment, by their last contracts until then.

    `readers`: pipelines that have been looked at, on the way here. What is not known counts as not marked.
    """
    marks: dict[str, frozenset[str]] = {}
    for name, source in contract.inputs.items():
        pipeline, _, table = source.table.partition(".")
        with suppress(HindcastError):  # a damaged journal
            past = [run for run in journal.read_runs(settings.warehouse, pipeline) if run.known_at <= moment]
            other = definitions.find_last_contract(past) if pipeline not in readers else None
            if other is not None:
                others = _find_marks_at(settings, other, moment, {*readers, pipeline})
                marks[name] = find_sensitive_columns(other.with_marks(others)).get(table, frozenset())
    return marks


class _SourceMarks:
    """Finds what is sensitive of the tables that contracts had as inputs, by the contracts of their pipelines."""

    def __init__(self, settings: Settings, find_other: ContractFinder) -> None:
        self._settings, self._find_other = settings, find_other
        self._found: dict[str, frozenset[str] | None] = {}

    def find(self, source: str) -> frozenset[str] | None:
        """Return the sensitive columns of a table (`shop.menu`); None for all.

        All columns if that is not known, and of a pipeline that itself reads others of which any marks something.
        """
        if source not in self._found:
            self._found[source] = self._find_marks(*source.partition(".")[::2])
        return self._found[source]

    def _find_marks(self, pipeline: str, table: str) -> frozenset[str] | None:
        other = self._find_other(self._settings.schemas, pipeline)
        if isinstance(other, Contract) and table in (*other.topics, *other.views):
            may_inherit = any(self._marks_anything(name, {pipeline}) for name in _list_sources(other))
            return None if may_inherit else find_sensitive_columns(other)[table]
        if isinstance(other, ContractError):
            return None
        return _find_stored_marks(self._settings, pipeline, table)

    def _marks_anything(self, pipeline: str, seen: set[str]) -> bool:
        """Return whether a pipeline, or one that it reads, marks anything, or may do so."""
        if pipeline in seen:
            return False
        seen.add(pipeline)
        other = self._find_other(self._settings.schemas, pipeline)
        if not isinstance(other, Contract):
            return True
        return any(list_marks(other).values()) or any(self._marks_anything(name, seen) for name in _list_sources(other))


def _list_sources(contract: Contract) -> list[str]:
    """Return the pipelines that a contract reads tables of."""
    return [source.table.partition(".")[0] for source in contract.inputs.values()]


def _find_stored_marks(settings: Settings, pipeline: str, table: str) -> frozenset[str] | None:
    """Return what the last stored contract marked that had a table; None for all if that is not known."""
    try:
        stored = inputs.find_stored_marks(journal.read_runs(settings.warehouse, pipeline), table)
    except HindcastError:  # a damaged journal
        return None
    return None if stored is None else frozenset(stored)


_Place: TypeAlias = tuple[str, str]
"""A pipeline and one of its topics or views."""


class _Followed:
    """The pipelines that a contract's inputs come from, directly or through others, and what is marked in them.

    Marks are passed on until nothing changes: pipelines may read each other.
    """

    def __init__(self, settings: Settings, contract: Contract, find_other: ContractFinder) -> None:
        self._settings, self._find_other, self._root = settings, find_other, contract.pipeline
        self._contracts: dict[str, Contract] = {contract.pipeline: contract}
        self._fixed: dict[_Place, frozenset[str] | None] = {}
        self._former: dict[str, MarksByTable] = {}
        self._source_marks = _SourceMarks(settings, find_other)
        waiting = [contract]
        while waiting:
            reader = waiting.pop()
            for name in reader.inputs:
                place = _locate_source(settings, reader, name)
                if (place.pipeline, place.name) in self._fixed:
                    continue
                known = self._contracts.get(place.pipeline)
                other, fixed = self._find_fixed_marks(place, known)
                self._fixed[place.pipeline, place.name] = fixed
                if known is None and isinstance(other, Contract):
                    self._contracts[place.pipeline] = other
                    waiting.append(other)

    def find_marks(self) -> dict[str, frozenset[str]]:
        """Return by input what is marked of it."""
        given: dict[str, dict[str, frozenset[str]]] = {}
        sensitive: dict[str, dict[str, frozenset[str]]] = {}
        has_changed = True
        while has_changed:
            has_changed = False
            for pipeline, contract in reversed(self._contracts.items()):  # sources mostly come before their readers
                marks = {name: self._list_marks(contract, name, sensitive) for name in contract.inputs}
                if given.get(pipeline) != marks:
                    has_changed, given[pipeline] = True, marks
                    sensitive[pipeline] = find_sensitive_columns(contract.with_marks(marks))
        return given[self._root]

    def _list_marks(
        self, contract: Contract, name: str, sensitive: Mapping[str, Mapping[str, frozenset[str]]]
    ) -> frozenset[str]:
        source = contract.inputs[name]
        pipeline, _, table = source.table.partition(".")
        columns, fixed = frozenset([*source.key, *source.value]), self._fixed[pipeline, table]
        return columns if fixed is None else columns & (fixed | sensitive.get(pipeline, {}).get(table, frozenset()))

    def _find_fixed_marks(
        self, source: Table, known: Contract | None
    ) -> tuple[Contract | ContractError | None, frozenset[str] | None]:
        """Return the contract of a source's pipeline, and what it hides of the source whatever its own inputs mark.

        None for all columns, if what is marked is not known: while a file that may be the contract does not load, since
        it may mark more than the contract of the last run.
        """
        other = known or self._find_other(self._settings.schemas, source.pipeline)
        if isinstance(other, ContractError):
            return other, None
        if other is None or source.name not in (*other.topics, *other.views):
            return other, _find_stored_marks(self._settings, source.pipeline, source.name)
        try:
            former = self._find_former_marks(other)[source.name]
        except HindcastError:  # a damaged journal
            return other, None
        return other, former | _find_left_columns(other, source.name, source)

    def _find_former_marks(self, contract: Contract) -> MarksByTable:
        """Return what is hidden of a pipeline's tables by its former contracts; found once."""
        if contract.pipeline not in self._former:
            past = journal.read_runs(self._settings.warehouse, contract.pipeline)
            self._former[contract.pipeline] = find_former_marks(contract, past, self._source_marks.find)
        return self._former[contract.pipeline]


def _locate_source(settings: Settings, contract: Contract, name: str) -> Table:
    return inputs.locate_input_table(settings.warehouse, contract, name)


def _find_left_columns(contract: Contract, name: str, table: Table) -> frozenset[str]:
    """Return the columns that a table has, or had, and the contract does not."""
    known = {*list_shapes(contract)[name].columns, *PERIOD_COLUMNS}
    return frozenset(column for column in _list_columns(table) if column not in known and not column.startswith("_"))


def _list_columns(table: Table) -> list[str]:
    """Return a table's columns, without those that are always ours; none if it cannot be read."""
    with suppress(HindcastError):
        if (delta_table := tables.open_table(table)) is not None:
            return store_formats.user_columns([field.name for field in delta_table.schema().fields])
    return []
