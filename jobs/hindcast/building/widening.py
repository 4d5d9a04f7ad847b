"""Columns that a contract would widen in tables that are there: told without Spark, before a run writes anything.

A table with a widened column is closed to every reader but Spark and ourselves (docs/topics/evolution.md). So a run
widens only where the contract says `widen: spark_only`. What a view's expression gives only Spark knows where it is not
a plain column; of such a view the step that would widen it refuses (`making.fit`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from pyspark.sql.types import StructField, StructType

from hindcast.contracts import Contract, shapes
from hindcast.contracts.views import Complaint
from hindcast.delta import tables
from hindcast.delta.columns import declared_type, difference
from hindcast.delta.making import LOCKED_OUT

Widened = Mapping[str, tuple[str, str]]
"""Columns with their types before and after; fields of structs are written `place.city`."""


def find_widened(warehouse: str, contract: Contract) -> dict[str, Widened]:
    """Return what the next run would widen in each table that is not widened yet, as far as the contract tells it."""
    found: dict[str, Widened] = {}
    known = shapes(contract)
    for name in (*contract.topics, *contract.ordered):
        there = tables.opened(tables.located(warehouse, contract, name))
        if there is None or tables.is_widened(there) or tables.older(there) is not None:
            continue
        wanted = {column: declared_type(kind) for column, kind in known[name].columns.items() if kind is not None}
        own = [field for field in tables.spark_schema(there).fields if field.name in wanted]
        given = StructType([StructField(column, kind) for column, kind in wanted.items()])
        if widened := difference(StructType(own), given, known[name].key).widened:
            found[name] = widened
    return found


def find_complaints(warehouse: str, contract: Contract) -> Iterator[Complaint]:
    """Yield a complaint if tables would be widened whose entries do not consent: at the first of them, naming all."""
    refused = {name: it for name, it in find_widened(warehouse, contract).items() if not contract.can_widen(name)}
    if not refused:
        return
    name, widened = next(iter(refused.items()))
    steps = "; ".join(describe(other, columns) for other, columns in refused.items())
    yield Complaint(
        _locate(contract, name, next(iter(widened))),
        f"{steps}. {LOCKED_OUT}",
        f"write widen: spark_only under {' and '.join(refused)}, if Spark alone reads it; or put the type back, and "
        "add a column of the wider type under another name",
    )


def describe(name: str, widened: Widened) -> str:
    """Return what is widened in a table as a sentence without its period."""
    steps = ", ".join(f"{column} from {old} to {new}" for column, (old, new) in widened.items())
    return f"{name} would be widened: {steps}"


def _locate(contract: Contract, name: str, path: str) -> tuple[str, ...]:
    """Return the place in the contract of a column of a table."""
    column = path.partition(".")[0]
    if name in contract.topics:
        return "topics", name, "key" if column in contract.topics[name].key else "value", column
    return "views", name, "select", column
