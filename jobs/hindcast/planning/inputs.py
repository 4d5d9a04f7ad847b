"""What a view is made of. Tables of other pipelines are read as they were known at a moment that a plan fixes."""

from __future__ import annotations

from datetime import datetime

from hindcast.contracts import Contract
from hindcast.contracts.shapes import topic_shape
from hindcast.contracts.types import column_type
from hindcast.delta import tables
from hindcast.delta.tables import Table
from hindcast.errors import RunError, TableError, nearest
from hindcast.planning import journal
from hindcast.planning.plans import Plan
from hindcast.settings import settings


def table(warehouse: str, contract: Contract, name: str, pin: datetime | None = None) -> Table:
    """The table that an input of a contract is, read as known at `pin`."""
    it = contract.inputs[name]
    pipeline, _, other = it.table.partition(".")
    return Table(warehouse, pipeline, other, topic_shape(it).kind, tuple(it.key), pin)


def pinned(warehouse: str, contract: Contract, name: str) -> datetime:
    """The known-at of the last completed run of an input's pipeline.

    RunError if there is none; TableError if the table is not of the kind that is read, with the contract's columns.
    """
    it, where = contract.inputs[name], f"{contract.pipeline}, inputs.{name}: {contract.inputs[name].table}"
    pipeline = it.table.partition(".")[0]
    completed = [run.known_at for run in journal.completed(warehouse, pipeline)]
    found = tables.opened(table(warehouse, contract, name))
    if not completed or found is None:
        mend = f"hindcast run {pipeline}, or name another table"
        raise RunError("no completed run has published the table", where=where, mend=mend)
    marks = tables.marked(found) or {}
    wanted = topic_shape(it).kind
    if marks["kind"] != wanted or list(marks["key"]) != list(it.key):
        told = f"holds {marks['kind']} with the key {', '.join(marks['key'])}"
        raise TableError(told, where=where, mend=_MENDS.get(marks["kind"], "windows and pairs cannot be inputs yet"))
    there = tables.types(found)
    for column, kind in {**it.key, **it.value}.items():
        if column not in there or column_type(there[column]) != kind:
            has = f"column '{column}' is {there[column]}" if column in there else f"no column '{column}'"
            mend = f"write its type as it is, not {kind}" if column in there else nearest(column, there)
            raise TableError(has, where=where, mend=mend)
    return max(completed)


def source(contract: Contract, todo: Plan, name: str) -> Table:
    """The table that a view is made of: a topic's, another view's, or one of another pipeline as the plan pins it."""
    if name in contract.inputs:
        return table(settings().warehouse, contract, name, todo.pins[name])
    return located(contract, name)


def located(contract: Contract, name: str) -> Table:
    """The table of a topic or view, in the warehouse that is set."""
    return tables.located(settings().warehouse, contract, name)


_MENDS = {
    "versions": "read it as a table (read: table), and write its key as it is",
    "events": "read it as a stream (read: stream), and write its key as it is",
}
