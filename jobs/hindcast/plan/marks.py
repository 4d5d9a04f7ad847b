"""The columns whose values nobody is shown: those that are sensitive, and those that left a contract and may have been.

What another pipeline calls sensitive counts for the inputs made of its tables, and for what is derived from them.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from functools import lru_cache
from typing import TypeAlias, TypeVar

from hindcast.common.errors import ContractError, HindcastError
from hindcast.common.settings import Settings
from hindcast.contract import Contract, find, list_shapes
from hindcast.contract.bound import BoundContract, bind_contract
from hindcast.contract.folder import ContractFinder, build_finder
from hindcast.contract.sensitive import find_sensitive_columns, list_marks
from hindcast.contract.types import PERIOD_COLUMNS
from hindcast.plan import definitions, inputs, journal
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


def find_marked_columns(settings: Settings, contract: Contract, names: Collection[str]) -> dict[str, frozenset[str]]:
    """Return the sensitive columns of some topics and views: by the contract's marks, and by former ones."""
    if not names:
        return {}
    marked, past = find_sensitive_columns(contract), journal.read_runs(settings.warehouse, contract.pipeline)
    return {name: marked[name] | _find_former_marks(contract, past, name) for name in names}


def has_new_marks(contract: Contract, past: Sequence[Run], run: Run) -> bool:
    """Return whether texts of a run may show what is sensitive today and was not by its contract, or may not have been.

    True of a run whose contract is not stored, or is none today, if anything is marked.
    """
    if run.plan.contract == contract.hash:
        return False
    former, found = definitions.find_contract(past, run.plan.contract), find_sensitive_columns(contract)
    if former is None:
        return any(found.values())
    before, shapes = find_sensitive_columns(former), list_shapes(former)
    return any(found.get(name, frozenset()) & {*shape.columns} - before[name] for name, shape in shapes.items())


def _find_former_marks(contract: Contract, past: list[Run], name: str) -> frozenset[str]:
    """Return what of a table's rows is hidden because earlier contracts made them.

    Until a run by this contract has seen the table, all that the contract of its rows marked. Afterwards what an
    earlier contract derived from columns that are sensitive still: rows that are no longer current show it. All columns
    if an earlier contract that marks anything is none today; nothing if it is not stored, as in older journals.
    """
    last = next((run for run in reversed(past) if run.state == "completed" or run.had_published(name)), None)
    pending = frozenset[str]()
    if last is not None and last.plan.contract != contract.hash:
        pending = frozenset(inputs.find_stored_marks(past, name) or ())
    found = (_find_carried_marks(contract, past, former, name) for former in {run.plan.contract: 0 for run in past})
    return pending.union(*found)


def _find_carried_marks(contract: Contract, past: list[Run], former_hash: str, name: str) -> frozenset[str]:
    """Return the columns that a table had by a former contract and that come from what is marked today."""
    fields = definitions.find_fields(past, former_hash) if former_hash != contract.hash else None
    if fields is None or not any(place.split(".")[:2] in (["topics", name], ["views", name]) for place in fields):
        return frozenset()
    marks, shapes = list_marks(contract), list_shapes(contract)
    if not definitions.has_marks(fields) and not any(marks.values()):
        return frozenset()
    former = definitions.parse_stored_fields(tuple(fields.items()))
    if former is None:
        return frozenset(shapes[name].columns) if definitions.has_marks(fields) else frozenset()
    carried = {}
    for table, marked in list_marks(former).items():
        same = table in shapes and _find_source(former, table) == _find_source(contract, table)
        known = frozenset(shapes[table].columns) if same else frozenset[str]()
        columns = frozenset(list_shapes(former)[table].columns)
        carried[table] = (marked - known) | (columns & known & marks.get(table, frozenset()))
    return _derive_marks(tuple(fields.items()), frozenset(carried.items()))[name]


def _find_source(contract: Contract, name: str) -> str:
    """Return where the columns of a table come from: a topic of Kafka, a table of another pipeline, or its view."""
    if name in contract.inputs:
        return contract.inputs[name].table
    return contract.kafka_topic(name) if name in contract.topics else f"view {name}"


@lru_cache(maxsize=256)
def _derive_marks(
    fields: tuple[tuple[str, str], ...], marks: frozenset[tuple[str, frozenset[str]]]
) -> dict[str, frozenset[str]]:
    """Return what is sensitive by a contract with these stored fields, if these columns are marked by table."""
    contract = definitions.parse_stored_fields(fields)
    return {} if contract is None else find_sensitive_columns(contract, dict(marks))


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
        stored: Collection[str] | None = None
        with suppress(HindcastError):  # a damaged journal
            past = journal.read_runs(self._settings.warehouse, source.pipeline)
            if other is not None and source.name in (*other.topics, *other.views):
                former = _find_former_marks(other, past, source.name)
                return other, former | _find_left_columns(other, source.name, source)
            stored = inputs.find_stored_marks(past, source.name)
        return other, None if stored is None else frozenset(stored)


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
