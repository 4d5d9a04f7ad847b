"""The columns whose values nobody is shown: those that are sensitive, and those that left a contract and may have been.

What another pipeline calls sensitive counts for the inputs made of its tables, and for what is derived from them.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import TypeAlias, TypeVar

from hindcast.common.errors import ContractError, HindcastError
from hindcast.common.settings import Settings
from hindcast.contract import Contract, find, list_shapes
from hindcast.contract.bound import BoundContract, bind_contract
from hindcast.contract.folder import ContractFinder, build_finder
from hindcast.contract.sensitive import find_sensitive_columns, list_marks
from hindcast.contract.types import PERIOD_COLUMNS
from hindcast.plan import definitions, inputs, journal
from hindcast.plan.former_marks import MAX_SOURCES, carry_marks, find_former_marks, list_sources
from hindcast.plan.former_marks_cache import MarksByTable
from hindcast.plan.known_pipelines import KnownPipelines, PastPipelines, Pipelines
from hindcast.plan.runs import Run
from hindcast.store import store_formats, tables
from hindcast.store.replacements import refuse_replacing
from hindcast.store.tables import Table

AnyContract = TypeVar("AnyContract", bound=Contract)


def find_bound_contract(settings: Settings, pipeline: str) -> BoundContract:
    """Return the contract of a pipeline, with the marks of other pipelines; raise ContractError as `find` does, and
    BusyError while another pipeline takes the place of this one, or this one that of another.
    """
    refuse_replacing(settings.warehouse, pipeline)
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
    pipelines = KnownPipelines(settings, find_other or build_finder(settings.choice))
    return contract.with_marks(_Followed(pipelines, contract).find_marks())


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
    source_marks = _SourceMarks(KnownPipelines(settings, find_other or build_finder(settings.choice)))
    former = find_former_marks(contract, past, source_marks.find)
    return {name: marked[name] | former[name] for name in names}


def has_new_marks(
    contract: BoundContract, past: Sequence[Run], run: Run, find_other: ContractFinder | None = None
) -> bool:
    """Return whether texts of a run may show what is sensitive today and was not by its contract, or may not have been.

    True of a run whose contract is not stored, or is none today, if anything is marked, also of a table of another
    pipeline that it read. What is marked today is looked for where the run's contract had it. What other pipelines mark
    counts as marked then if it was by the last contracts by which they ran until then.
    """
    is_same = run.plan.contract == contract.hash
    if is_same and not any(contract.marks_of_others.values()):
        return False
    marks_anything = any(find_sensitive_columns(contract).values())
    fields = {} if is_same else definitions.find_fields(past, run.plan.contract)
    if not marks_anything and not any(place.startswith("inputs.") for place in fields or ()):
        return False
    former = contract.with_marks({}) if is_same else definitions.find_contract(past, run.plan.contract)
    pipelines = KnownPipelines(contract.settings, find_other or build_finder(contract.settings.choice))
    if former is None:
        return marks_anything or _mark_any(pipelines, list_sources(fields or {}))
    marked = carry_marks(contract, former, _DroppedMarks(pipelines).find)
    if not _has_more(marked, find_sensitive_columns(former)):
        return False
    then = _Followed(PastPipelines(contract.settings, run.known_at), former).find_marks()
    return _has_more(marked, find_sensitive_columns(former.with_marks(then)))


def has_any_marks(settings: Settings, contract: Contract, past: Iterable[Run]) -> bool:
    """Return whether anything is sensitive by a pipeline's contract, a former one, or that of a pipeline that any of
    them read.
    """
    former = [run.plan.definition for run in past if run.plan.definition]
    if any(find_sensitive_columns(contract).values()) or any(map(definitions.has_marks, former)):
        return True
    sources = {source.table for source in contract.inputs.values()}
    sources.update(*map(list_sources, former))
    return len(sources) > MAX_SOURCES or _mark_any(KnownPipelines(settings, build_finder(settings.choice)), sources)


def _mark_any(pipelines: Pipelines, sources: Iterable[str]) -> bool:
    """Return whether anything of these tables of other pipelines is sensitive, or may be."""
    dropped = _DroppedMarks(pipelines)
    return any(dropped.find(source) != frozenset() for source in sorted(sources))


def _has_more(marked: MarksByTable, before: MarksByTable) -> bool:
    return any(columns - before.get(name, frozenset()) for name, columns in marked.items())


class _SourceMarks:
    """Finds what is sensitive of the tables that contracts had as inputs, by the contracts of their pipelines."""

    def __init__(self, pipelines: Pipelines) -> None:
        self._pipelines = pipelines
        self._found: dict[str, frozenset[str] | None] = {}

    def find(self, source: str) -> frozenset[str] | None:
        """Return the sensitive columns of a table (`shop.menu`); None for all.

        All columns of a pipeline that itself reads others of which any marks something, and if what may be marked is
        not known. None are if nothing at all is known of the pipeline.
        """
        if source not in self._found:
            unknown = None if self._pipelines.hide_unknown else frozenset[str]()
            self._found[source] = unknown  # while it is looked for: pipelines may read each other
            marks = self._find_marks(*source.partition(".")[::2])
            self._found[source] = unknown if marks is None else marks
        return self._found[source]

    def find_stored(self, pipeline: str, table: str) -> frozenset[str] | None:
        """Return what is sensitive of a table that its pipeline's contract lacks; None if that is not known.

        That is what the last stored contract marked that had the table, and what of it is marked today elsewhere.
        """
        try:
            past = self._pipelines.read_runs(pipeline)
        except HindcastError:  # a damaged journal
            return None
        stored = inputs.find_stored_marks(past, table)
        contract, former = self._pipelines.find_contract(pipeline), definitions.find_contract_with(past, table)
        if stored is None or former is None or not isinstance(contract, Contract):
            return None if stored is None else frozenset(stored)
        return frozenset(stored) | carry_marks(contract, former, self.find).get(table, frozenset())

    def _find_marks(self, pipeline: str, table: str) -> frozenset[str] | None:
        other = self._pipelines.find_contract(pipeline)
        if isinstance(other, Contract) and table in (*other.topics, *other.views):
            may_inherit = any(self._marks_anything(name, {pipeline}) for name in _list_sources(other))
            may_inherit = may_inherit and self._pipelines.hide_unknown
            return None if may_inherit else find_sensitive_columns(other)[table]
        if isinstance(other, ContractError) and self._pipelines.may_mark(pipeline):
            return None
        marks = self.find_stored(pipeline, table)
        return frozenset() if marks is None and not self._pipelines.may_mark(pipeline) else marks

    def _marks_anything(self, pipeline: str, seen: set[str]) -> bool:
        """Return whether a pipeline, or one that it reads, marks anything, or may do so."""
        if pipeline in seen:
            return False
        seen.add(pipeline)
        other = self._pipelines.find_contract(pipeline)
        if not isinstance(other, Contract):
            return self._pipelines.may_mark(pipeline)
        return any(list_marks(other).values()) or any(self._marks_anything(name, seen) for name in _list_sources(other))


def _list_sources(contract: Contract) -> list[str]:
    """Return the pipelines that a contract reads tables of."""
    return [source.table.partition(".")[0] for source in contract.inputs.values()]


_Place: TypeAlias = tuple[str, str]
"""A pipeline and one of its topics or views."""


class _Followed:
    """The pipelines that a contract's inputs come from, directly or through others, and what is marked in them.

    Marks are passed on until nothing changes: pipelines may read each other.
    """

    def __init__(self, pipelines: Pipelines, contract: Contract) -> None:
        self._pipelines, self._root = pipelines, contract.pipeline
        self._contracts: dict[str, Contract] = {contract.pipeline: contract}
        self._fixed: dict[_Place, frozenset[str] | None] = {}
        self._left: dict[_Place, frozenset[str]] = {}
        self._former: dict[str, MarksByTable] = {}
        self._source_marks = _SourceMarks(pipelines)
        waiting = [contract]
        while waiting:
            reader = waiting.pop()
            for name in reader.inputs:
                source = inputs.locate_input_table(pipelines.warehouse, reader, name)
                place = source.pipeline, source.name
                known = self._contracts.get(source.pipeline)
                other = known or pipelines.find_contract(source.pipeline)
                if place not in self._fixed:
                    self._fixed[place] = self._find_fixed_marks(source, other)
                if place not in self._left and isinstance(other, Contract):
                    self._find_left_columns(reader, name, other, source)
                if known is None and isinstance(other, Contract):
                    self._contracts[source.pipeline] = other
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
        if fixed is None:
            return columns if self._pipelines.hide_unknown else frozenset()
        marks = sensitive.get(pipeline, {}).get(table, frozenset())
        return columns & (fixed | self._left.get((pipeline, table), frozenset()) | marks)

    def _find_fixed_marks(self, source: Table, other: Contract | ContractError | None) -> frozenset[str] | None:
        """Return what the contract of a source's pipeline hides of the source, whatever its own inputs mark.

        None for all columns, if what is marked is not known: while a file that may be the contract does not load, since
        it may mark more than the contract of the last run.
        """
        if isinstance(other, ContractError):
            return None
        if other is None or source.name not in (*other.topics, *other.views):
            return self._source_marks.find_stored(source.pipeline, source.name)
        try:
            return self.find_former_marks(other)[source.name]
        except HindcastError:  # a damaged journal
            return None

    def _find_left_columns(self, reader: Contract, name: str, other: Contract, source: Table) -> None:
        """Add the columns that left a source; its table is only looked at for inputs that have such columns."""
        shape = self._pipelines.list_shapes(other).get(source.name)
        columns = {*reader.inputs[name].key, *reader.inputs[name].value}
        if shape is not None and not columns <= {*shape.columns}:
            self._left[source.pipeline, source.name] = _find_left_columns(other, source.name, source)

    def find_former_marks(self, contract: Contract) -> MarksByTable:
        """Return what is hidden of a pipeline's tables by its former contracts; found once."""
        if contract.pipeline not in self._former:
            past = self._pipelines.read_runs(contract.pipeline)
            self._former[contract.pipeline] = find_former_marks(
                contract, past, self._source_marks.find, hide_unknown=self._pipelines.hide_unknown
            )
        return self._former[contract.pipeline]


class _DroppedMarks:
    """Finds what is sensitive today of tables that only a former contract reads, also by what their pipelines read."""

    def __init__(self, pipelines: Pipelines) -> None:
        self._pipelines, self._source_marks = pipelines, _SourceMarks(pipelines)
        self._found: dict[str, MarksByTable | None] = {}

    def find(self, source: str) -> frozenset[str] | None:
        """Return the sensitive columns of a table (`shop.menu`); None for all."""
        pipeline, _, table = source.partition(".")
        other = self._pipelines.find_contract(pipeline)
        if not isinstance(other, Contract) or table not in (*other.topics, *other.views):
            return self._source_marks.find(source)
        if pipeline not in self._found:
            self._found[pipeline] = self._find_all(other)
        found = self._found[pipeline]
        left = _find_left_columns(other, table, tables.locate_table(self._pipelines.warehouse, other, table))
        return None if found is None else found[table] | left

    def _find_all(self, other: Contract) -> MarksByTable | None:
        """Return the sensitive columns of a pipeline's topics and views; None if its journal is damaged."""
        followed = _Followed(self._pipelines, other)
        try:
            former = followed.find_former_marks(other)
        except HindcastError:
            return None
        sensitive = find_sensitive_columns(other.with_marks(followed.find_marks()))
        return {name: sensitive[name] | former[name] for name in (*other.topics, *other.views)}


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
