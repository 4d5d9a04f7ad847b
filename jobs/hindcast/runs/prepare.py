"""Preparing a table for a change: it is created, gets the columns of the contract, and begins where its inputs do."""

from __future__ import annotations

from deltalake import DeltaTable
from pyspark.sql import SparkSession

from hindcast.contract.bound import BoundContract
from hindcast.plan import horizon, journal
from hindcast.plan.inputs import locate_own_table
from hindcast.plan.plans import Plan
from hindcast.plan.runs import was_derived_since
from hindcast.runs.derive_whole import DerivedChange
from hindcast.runs.table_diff import table_schema
from hindcast.store import commits, schema_evolution, tables
from hindcast.store.tables import Table


def prepare_table(spark: SparkSession, contract: BoundContract, plan: Plan, name: str, derived: DerivedChange) -> bool:
    """Create the table of a topic or view, or add columns to it, so that it can take a change.

    Return whether it existed and its columns are now others. Then the change has to be derived again: Spark may refuse
    to read the table by a plan made before. Safe to repeat. Raise TableError if it cannot take the columns.
    """
    table = locate_own_table(contract, name)
    before = tables.open_table(table)
    columns = before and before.schema()
    rows = derived.changes.drop("_change")
    delta_table = schema_evolution.ensure_columns(spark, table, table_schema(rows), plan.known_at, plan.run)
    if derived.frozen is not None and _is_new(table, delta_table):
        begins = horizon.Horizon(derived.frozen, stored_removal=horizon.Removal(None))  # no trim has removed a row
        commits.set_properties(spark, table, {horizon.PROPERTY: begins.text})
    return columns is not None and columns != delta_table.schema()


def _is_new(table: Table, delta_table: DeltaTable) -> bool:
    """Return whether no run has derived a table yet, not even one that found no rows for it, nor given it a horizon."""
    if tables.read_last_run(table) or horizon.read_horizon(table, delta_table) is not None:
        return False
    past = journal.read_runs(table.warehouse, table.pipeline)
    return not was_derived_since(past, table.name, tables.read_beginning(delta_table))
