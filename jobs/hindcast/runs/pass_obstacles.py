"""Why rehearsed runs of a pipeline cannot be made in one pass, so that each date is a run of its own."""

from __future__ import annotations

from collections.abc import Sequence

from pyspark.sql import SparkSession

from hindcast.contract.bound import BoundContract
from hindcast.ingest import initial_rows
from hindcast.plan import horizon
from hindcast.plan.inputs import locate_own_table
from hindcast.plan.runs import Run
from hindcast.quality import gates_by_date, held_changes
from hindcast.runs import incremental_state
from hindcast.store import delta_rs_writer, tables


def find_obstacle(contract: BoundContract) -> str | None:
    """Return what of a contract cannot be asked or derived for many dates at once, in words; None if all can."""
    if not contract.settings.kernels:
        return "kernels are off (HINDCAST_KERNELS)"
    if contract.inputs:
        return f"{next(iter(contract.inputs))} is an input of another pipeline"
    for name, view in contract.views.items():
        if view.semantics == "kafka":
            return f"views.{name} is a kafka view"
    if (other := gates_by_date.find_other_gate(contract)) is not None:
        name, gate = other
        return f"the gate {gate.type} of {name} does not judge each row by itself"
    return None


def find_state_obstacle(spark: SparkSession, contract: BoundContract, past: Sequence[Run]) -> str | None:
    """Return what of a pipeline's tables, or of its runs, is in the way, in words; None if nothing is.

    A run of this contract must have made the tables before, and nothing may wait that a run would look at again.
    """
    last = past[-1] if past else None
    if last is None or last.plan.contract != contract.hash or not last.has_done_all_tables:
        return "it makes the tables by this contract"
    for name in (*contract.topics, *contract.views):
        table = locate_own_table(contract, name)
        if incremental_state.find_last_run_of_any_size(contract, table) is None:
            return f"{name} is to be derived whole"
        if horizon.find_frozen_until(table.warehouse, contract, name) is not None:
            return f"{name} was trimmed"
        place = table.warehouse, contract.pipeline, name
        if name in contract.topics and initial_rows.has_initial_rows(contract, name):
            return f"{name} began with an adopted table"
        if name in contract.topics and tables.open_table(tables.fates_table(*place)) is not None:
            return f"fates of {name} were decided again"
        if held_changes.read_held_units(spark, *place) is not None:
            return f"keys of {name} are held back"
        if held_changes.read_settled_units(spark, *place) is not None:
            return f"records of {name} were held back"
        if not delta_rs_writer.can_commit_history(table):
            return f"only Spark can write to the table of {name}"
    return None
