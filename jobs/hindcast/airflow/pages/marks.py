"""The columns whose values no page shows: those that are sensitive, and those that left a contract and may have been.

What another pipeline calls sensitive counts for the inputs made of its tables, and for what is derived from them.
"""

from __future__ import annotations

from collections.abc import Collection
from contextlib import suppress

from hindcast.airflow.pages import catalog
from hindcast.common.errors import HindcastError, QueryError
from hindcast.common.settings import Settings
from hindcast.contract import Contract, list_shapes
from hindcast.contract.sensitive import find_sensitive_columns
from hindcast.contract.types import PERIOD_COLUMNS
from hindcast.plan import inputs, journal
from hindcast.store import store_formats, tables
from hindcast.store.tables import Table


def find_hidden_columns(settings: Settings, contract: Contract, name: str) -> frozenset[str]:
    """Return the hidden columns of a topic, view or input."""
    if name in contract.inputs:
        marked = find_sensitive_columns(contract)[name]
        return marked | _find_marks_of_other(settings, _locate_source(settings, contract, name))
    marked = find_sensitive_columns(_add_marks_of_others(settings, contract))[name]
    table = tables.locate_table(settings.warehouse, contract, name)
    return marked | _find_left_columns(contract, name, table) | _find_former_marks(contract, table)


def _find_former_marks(contract: Contract, table: Table) -> frozenset[str]:
    """Return what the contract of the last run marked, until there is a run by this one: its rows are as they were.

    Nothing, if that contract is not stored, as in journals of older versions.
    """
    past = journal.read_runs(table.warehouse, table.pipeline)
    if not past or past[-1].plan.contract == contract.hash:
        return frozenset()
    return frozenset(inputs.find_stored_marks(past, table.name) or ())


def refuse_hidden_key(settings: Settings, contract: Contract, name: str) -> frozenset[str]:
    """Return the hidden columns of a table; QueryError if one is of its key, as the pages ask by key."""
    hidden = find_hidden_columns(settings, contract, name)
    if hidden & set(tables.locate_table("", contract, name).key):
        raise QueryError(
            f"the key of {name} is sensitive",
            where=contract.pipeline,
            fix="choose another table; the pages show no rows of this one",
        )
    return hidden


def _add_marks_of_others(settings: Settings, contract: Contract) -> Contract:
    """Return a contract whose inputs mark what the pipelines that they come from do."""
    marked = {}
    for name, source in contract.inputs.items():
        columns = {*source.key, *source.value}
        others = _find_marks_of_other(settings, _locate_source(settings, contract, name)) & columns
        own = columns if source.sensitive is True else {*(source.sensitive or ())}
        marked[name] = source.model_copy(update={"sensitive": tuple(sorted(own | others))})
    return contract.model_copy(update={"inputs": marked})


def _locate_source(settings: Settings, contract: Contract, name: str) -> Table:
    return inputs.locate_input_table(settings.warehouse, contract, name)


def _find_marks_of_other(settings: Settings, source: Table) -> frozenset[str]:
    """Return the hidden columns of a table of another pipeline; all of them if its contract is not known.

    It is not while the contract does not load: the file may mark more than the contract of the last run.
    """
    contracts, broken = catalog.load_contracts(settings.schemas)
    other = contracts.get(source.pipeline)
    if other is not None and source.name in (*other.topics, *other.views):
        return find_sensitive_columns(other)[source.name] | _find_left_columns(other, source.name, source)
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
