"""Increments by kernels within a run: what new records change in a topic's table, and changed inputs in a view."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from deltalake import DeltaTable
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from hindcast.bitemporal import derivation
from hindcast.bitemporal.affected_periods import NearbyRows, end_of_time
from hindcast.bitemporal.incremental_views import AffectedRows
from hindcast.contract import list_shapes
from hindcast.contract.bound import BoundContract
from hindcast.engine import increment_plans, increment_tasks, spark_projection
from hindcast.engine.spec import JoinIncrement
from hindcast.plan.inputs import locate_own_table
from hindcast.plan.plans import Plan
from hindcast.plan.runs import Run
from hindcast.runs import table_diff
from hindcast.runs.derive_whole import DerivedChange, find_derivable_from
from hindcast.store import tables
from hindcast.store.change_reader import ChangeReader
from hindcast.store.commit_notes import BY_SPARK, LeftOut
from hindcast.store.tables import Table


def derive_versions(
    sources: ChangeReader, contract: BoundContract, plan: Plan, name: str, new: DataFrame, log: NearbyRows
) -> tuple[DataFrame, DataFrame] | None:
    """Return the current rows of new records' keys, and the changes of a topic's table; None if no kernel can.

    `log`: returns the hidden records near some periods.
    """
    table = locate_own_table(contract, name)
    form, opened = increment_plans.plan_topic(contract, name, table, plan.known_at), tables.open_table(table)
    if form is None or opened is None:
        return None
    new = sources.cache_rows(new)
    since = new.agg(F.min("timestamp").alias("start")).withColumn("end", end_of_time())
    found = increment_tasks.derive_topic_change(form, opened, list_shapes(contract)[name], new, log(since))
    if not _compute_change(found := sources.cache_rows(found)):
        return None
    return found.where("change <> 'open'").drop("change"), found.where("change <> 'keep'")


def _compute_change(found: DataFrame) -> bool:
    """Compute what a kernel's task finds, which is cached; return False if the task refuses it."""
    from hindcast.engine import task  # its loops take half a second to load

    try:
        with task.find_refusals():
            found.count()
    except task.RefusalError:
        return False
    return True


def derive_view(
    spark: SparkSession,
    sources: ChangeReader,
    contract: BoundContract,
    plan: Plan,
    table: Table,
    inputs: Mapping[str, Table],
    current: Mapping[str, DataFrame],
    since: Run,
    before: LeftOut | None,
    after: int,
) -> DerivedChange | None:
    """Return what changes of its inputs since a run change in a view, found by a kernel; None if no kernel can.

    `before`: what an aggregate left out at that run, None if that is not known. `after`: as `DerivedChange` has it.
    """
    opened = tables.open_table(table)
    is_frozen = find_derivable_from(contract, plan, table.name) is not None
    if not contract.settings.kernels or is_frozen or opened is None:
        return None
    name, seen = table.name, {i: since.plan.as_of_system_times.get(i, since.known_at) for i in inputs}
    plan_form = partial(increment_plans.plan_view, contract, name, inputs, current, seen, table, plan.known_at)
    form = plan_form()
    if form is not None and form.is_by_arrow:
        found = sources.cache_rows(increment_tasks.derive_view_change(spark, form, opened))
        if _compute_change(found):
            rows = found.where("change IS NOT NULL").drop(increment_tasks.LEFT_OUT)
            change = DerivedChange(rows, after, kernel=form.operator)
            return _add_left_out(change, contract, name, current, found, before)
        form = plan_form(by_arrow=False)  # Spark evaluates what Arrow could not for some row
    if not isinstance(form, JoinIncrement):
        return None
    joined = _derive_join_by_spark(spark, sources, contract, table, opened, inputs, form)
    return None if joined is None else DerivedChange(joined, after, kernel=f"{form.operator}{BY_SPARK}")


def _add_left_out(
    change: DerivedChange,
    contract: BoundContract,
    name: str,
    current: Mapping[str, DataFrame],
    found: DataFrame,
    before: LeftOut | None,
) -> DerivedChange:
    """Return a view's change with what an aggregate leaves out: what a kernel has `found`, added to `before`."""
    if contract.views[name].aggregate is None:
        return change
    if before is None:
        return change._replace(left_out=derivation.count_left_out_of_view(contract, name, current))
    left_out = found.where("change IS NULL").select(F.col(increment_tasks.LEFT_OUT).alias("leftOut"))
    return change._replace(left_out=left_out, before=before)


def _derive_join_by_spark(
    spark: SparkSession,
    sources: ChangeReader,
    contract: BoundContract,
    table: Table,
    opened: DeltaTable,
    inputs: Mapping[str, Table],
    form: JoinIncrement,
) -> DataFrame | None:
    """Return the changes of a join that a kernel does and whose expressions Spark evaluates; None if no kernel can."""
    name, known = table.name, list_shapes(contract)
    it = contract.views[name]
    sides = [side for side in (tables.open_table(inputs[i]) for i in it.inputs) if side is not None]
    found = sources.cache_rows(increment_tasks.derive_joined_rows(spark, form, opened, sides))
    if not _compute_change(found):
        return None
    joined = found.where(f"{increment_tasks.CURRENT} IS NULL").drop(increment_tasks.CURRENT)
    derived = spark_projection.project_flat_rows(joined, it, name, form.join.columns, known)
    current = found.where(f"{increment_tasks.CURRENT} IS NOT NULL").select(f"{increment_tasks.CURRENT}.*")
    return table_diff.diff_increment(table, AffectedRows(current, derived), None)
