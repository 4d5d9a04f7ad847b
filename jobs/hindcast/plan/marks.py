"""The columns whose values nobody is shown: those that are sensitive, and those that left a contract and may have been.

What another pipeline calls sensitive counts for the inputs made of its tables, and for what is derived from them.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import TypeAlias, TypeVar

from hindcast.common.errors import ContractError, HindcastError
from hindcast.common.settings import Settings
from hindcast.contract import Contract, list_shapes, try_load_all
from hindcast.contract.sensitive import find_sensitive_columns
from hindcast.contract.types import PERIOD_COLUMNS
from hindcast.plan import inputs, journal
from hindcast.plan.runs import Run
from hindcast.store import store_formats, tables
from hindcast.store.tables import Table

AnyContract = TypeVar("AnyContract", bound=Contract)
LoadedFolder: TypeAlias = tuple[Mapping[str, Contract], Mapping[str, ContractError]]
"""The contracts of a folder by pipeline, and the errors of those that do not load."""


def load_folder(schemas: Path) -> LoadedFolder:
    """Return the contracts of a folder by pipeline, and by file what is wrong with the others."""
    read = try_load_all(schemas)
    contracts = {it.pipeline: it for it in read.values() if isinstance(it, Contract)}
    return contracts, {str(path): it for path, it in read.items() if isinstance(it, ContractError)}


def find_hidden_columns(
    settings: Settings, contract: Contract, name: str, load: Callable[[Path], LoadedFolder] = load_folder
) -> frozenset[str]:
    """Return the hidden columns of a topic, view or input, also those that only its table has.

    `load`: how to load the contracts of a folder.
    """
    if name in contract.inputs:
        marked = find_sensitive_columns(contract)[name]
        source = _locate_source(settings, contract, name)
        return marked | _find_marks_of_other(settings, source, cache(load), {contract.pipeline})
    table = tables.locate_table(settings.warehouse, contract, name)
    return find_marked_columns(settings, contract, [name], load)[name] | _find_left_columns(contract, name, table)


def find_marked_columns(
    settings: Settings,
    contract: Contract,
    names: Collection[str],
    load: Callable[[Path], LoadedFolder] = load_folder,
) -> dict[str, frozenset[str]]:
    """Return the sensitive columns of some topics and views, by all marks: its own, those of others, and former ones.

    `load`: how to load the contracts of a folder; nothing is loaded for a contract without inputs.
    """
    if not names:
        return {}
    marked = find_sensitive_columns(add_marks_of_others(settings, contract, load))
    past = journal.read_runs(settings.warehouse, contract.pipeline)
    return {name: marked[name] | _find_former_marks(contract, past, name) for name in names}


def add_marks_of_others(
    settings: Settings, contract: AnyContract, load: Callable[[Path], LoadedFolder] = load_folder
) -> AnyContract:
    """Return a contract whose inputs mark what the pipelines that they come from do, by all marks of theirs."""
    return _mark_inputs(settings, contract, cache(load))


def _find_former_marks(contract: Contract, past: list[Run], name: str) -> frozenset[str]:
    """Return what the contract of the last run marked, until there is a run by this one: its rows are as they were.

    Nothing, if that contract is not stored, as in journals of older versions.
    """
    if not past or past[-1].plan.contract == contract.hash:
        return frozenset()
    return frozenset(inputs.find_stored_marks(past, name) or ())


def _mark_inputs(
    settings: Settings, contract: AnyContract, load: Callable[[Path], LoadedFolder], readers: Collection[str] = ()
) -> AnyContract:
    """Do what `add_marks_of_others` does.

    `readers`: the pipelines that read it; what they read of each other is not followed twice.
    """
    if not contract.inputs:
        return contract
    marked, readers = {}, {*readers, contract.pipeline}
    for name, source in contract.inputs.items():
        columns = {*source.key, *source.value}
        place = _locate_source(settings, contract, name)
        others = _find_marks_of_other(settings, place, load, readers) & columns
        own = columns if source.sensitive is True else {*(source.sensitive or ())}
        marked[name] = source.model_copy(update={"sensitive": tuple(sorted(own | others))})
    return contract.model_copy(update={"inputs": marked})


def _locate_source(settings: Settings, contract: Contract, name: str) -> Table:
    return inputs.locate_input_table(settings.warehouse, contract, name)


def _find_marks_of_other(
    settings: Settings,
    source: Table,
    load: Callable[[Path], LoadedFolder],
    readers: Collection[str],
) -> frozenset[str]:
    """Return the hidden columns of a table of another pipeline; all of them if its contract is not known.

    It is not while the contract does not load: the file may mark more than the contract of the last run.
    """
    contracts, broken = load(settings.schemas)
    other = contracts.get(source.pipeline)
    if other is not None and source.name in (*other.topics, *other.views):
        followed = other if source.pipeline in readers else _mark_inputs(settings, other, load, readers)
        return find_sensitive_columns(followed)[source.name] | _find_left_columns(other, source.name, source)
    stored: Collection[str] | None = None
    if other is not None or not broken:
        with suppress(HindcastError):  # a damaged journal
            stored = inputs.find_stored_marks(journal.read_runs(settings.warehouse, source.pipeline), source.name)
    return frozenset(_list_columns(source) if stored is None else stored)


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
