"""Increments by kernels within a run: what new records change in a topic's table, and changed inputs in a view."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from deltalake import DeltaTable
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from hindcast.bitemporal import derivation
from hindcast.bitemporal.incremental_views import AffectedRows
from hindcast.contract import Shape, list_shapes
from hindcast.contract.bound import BoundContract
from hindcast.engine import increment_plans, increment_tasks, spark_projection
from hindcast.engine.increment_plans import PlannedIncrement
from hindcast.engine.increment_rows import SIDE
from hindcast.engine.increment_tasks import STORED, GivenRecords
from hindcast.engine.spec import JoinIncrement, VersionIncrement, WindowIncrement
from hindcast.plan.inputs import locate_own_table
from hindcast.plan.plans import Plan
from hindcast.plan.runs import Run
from hindcast.runs import change_statistics
from hindcast.runs.change_statistics import CountedRow
from hindcast.runs.derive_whole import DerivedChange
from hindcast.store import tables
from hindcast.store.change_reader import ChangeReader
from hindcast.store.commit_notes import BY_SPARK, LeftOut, TieCounts
from hindcast.store.tables import Table
from hindcast.store.task_rows import TaskRows


class VersionsChange(NamedTuple):
    """What new records change in a topic's table: the current rows of their keys that stay or close, the rows to close
    and to open, the totals of these (`DerivedChange.totals`), and the ties of the records.
    """

    current: DataFrame
    changes: DataFrame
    totals: CountedRow
    ties: TieCounts


class OpenedTopic(NamedTuple):
    """A topic with what its increments are found from.

    `find_hidden` returns the records from a moment on that are hidden to new ones (`incremental.find_hidden_records`);
    None if it is known without Spark that there are none.
    `first`: when the earliest new one is dated, if that is known. Both in microseconds since 1970.
    """

    sources: ChangeReader
    contract: BoundContract
    plan: Plan
    name: str
    find_hidden: Callable[[int, DataFrame], DataFrame | None]
    first: int | None

    def list_records(self, new: DataFrame, here: Sequence[TaskRows] | None) -> GivenRecords:
        """Return new records, cached unless they are in this process, and those hidden to them."""
        if (first := self.first) is None:
            new = self.sources.cache_rows(new)
            (row,) = new.agg(F.unix_micros(F.min("timestamp")).alias("first")).collect()
            first = row["first"]
        hidden = None if first is None else self.find_hidden(first, new)
        return GivenRecords(new, hidden, here)


def derive_versions(
    topic: OpenedTopic, new: DataFrame, here: Sequence[TaskRows] | None = None
) -> VersionsChange | None:
    """Return what new records change in a topic's table; None if no kernel can find and compare it.

    `here`: the same records, if they are in this process.
    """
    from hindcast.engine import version_ties  # its loops take half a second to load

    table, column = locate_own_table(topic.contract, topic.name), increment_tasks.TIES
    if (found := _find_versions(topic, new, increment_tasks.derive_topic_change, here)) is None:
        return None
    if (totals := _count_change(found, table, topic.plan, F.max(column).alias(column))) is None:
        return None
    rows, ties = found.drop(column), version_ties.sum_reports(filter(None, [totals[column]]))
    current, changes = rows.where("_change <> 'open'").drop("_change"), rows.where("_change <> 'keep'")
    return VersionsChange(current, changes, totals, ties)


def refresh_versions(topic: OpenedTopic, new: DataFrame) -> AffectedRows | None:
    """Return the rows of a topic's table that new records affect; None if no kernel can find them."""
    found = _find_versions(topic, new, increment_tasks.derive_affected_versions)
    if found is None or not _has_computed(found):
        return None
    current, derived = (found.where(F.col(SIDE) == side).drop(SIDE) for side in ("current", "derived"))
    return AffectedRows(current, derived, kernel=VersionIncrement.operator)


def _find_versions(
    topic: OpenedTopic,
    new: DataFrame,
    derive: Callable[[ChangeReader, VersionIncrement, DeltaTable, Shape, GivenRecords], DataFrame],
    here: Sequence[TaskRows] | None = None,
) -> DataFrame | None:
    """Return what a kernel's task finds; None if there is no kernel."""
    contract, name = topic.contract, topic.name
    table = locate_own_table(contract, name)
    form, opened = increment_plans.plan_topic(contract, name, table, topic.plan.known_at), tables.open_table(table)
    if not contract.settings.kernels or form is None or opened is None:
        return None
    return derive(topic.sources, form, opened, list_shapes(contract)[name], topic.list_records(new, here))


def _count_change(found: DataFrame, table: Table, plan: Plan, *more: Column) -> CountedRow | None:
    """Compute what a kernel's task finds, and return the totals and `more`; None if it is refused."""
    from hindcast.engine import task  # its loops take half a second to load

    rows = found.drop(increment_tasks.LEFT_OUT, increment_tasks.TIES)
    columns = change_statistics.total_columns(table, plan.known_at, rows)
    try:
        with task.find_refusals():
            return change_statistics.read_counts(found.agg(*columns, *more))
    except task.RefusalError:
        return None


class OpenedView(NamedTuple):
    """A view with what its increments are found from: the tables and the current rows of its inputs."""

    spark: SparkSession
    sources: ChangeReader
    contract: BoundContract
    plan: Plan
    table: Table
    inputs: Mapping[str, Table]
    current: Mapping[str, DataFrame]

    def plan_increment(self, since: Run, *, by_arrow: bool = True) -> PlannedIncrement | None:
        """Return the specification of the increment since a run; None if no kernel has one."""
        contract, name = self.contract, self.table.name
        if not contract.settings.kernels:
            return None
        seen = {i: since.plan.as_of_system_times.get(i, since.known_at) for i in self.inputs}
        known_at, ends = self.plan.known_at, since.plan.ends
        return increment_plans.plan_view(
            contract, name, self.inputs, self.current, seen, self.table, known_at, ends=ends, by_arrow=by_arrow
        )


def derive_view(view: OpenedView, since: Run, before: LeftOut | None, after: int) -> DerivedChange | None:
    """Return what changes of its inputs since a run change in a view; None if no kernel can find and compare it.

    `before`: what an aggregate left out at that run, None if that is not known. `after`: as `DerivedChange` has it.
    """
    form, opened = view.plan_increment(since), tables.open_table(view.table)
    if form is None or opened is None or not form.is_by_arrow:
        return None
    found = increment_tasks.derive_view_change(view.sources, form, opened)
    if (totals := _count_change(found, view.table, view.plan)) is None:
        return None
    rows = found.where("_change IS NOT NULL").drop(increment_tasks.LEFT_OUT)
    change = DerivedChange(rows, after, kernel=form.operator, totals=totals)
    if not form.leaves_rows_out:
        return change
    if before is not None:
        return change._replace(left_out=_select_left_out(form, found), before=before)
    return change._replace(left_out=derivation.count_left_out_of_view(view.contract, view.table.name, view.current))


def refresh_view(view: OpenedView, since: Run, *, by_arrow: bool) -> AffectedRows | None:
    """Return the rows of a view that changes of its inputs since a run affect; None if no kernel can find them."""
    form, opened = view.plan_increment(since, by_arrow=by_arrow), tables.open_table(view.table)
    if form is None or opened is None:
        return None
    if form.is_by_arrow:
        found = increment_tasks.derive_affected_rows(view.sources, form, opened)
        if _has_computed(found):
            current, derived, units = (
                found.where(F.col(SIDE) == side).select(*(f"`{name}`" for name in columns))
                for side, columns in (("current", form.columns), ("derived", form.columns), ("unit", form.unit_columns))
            )
            left_out = _select_left_out(form, found) if form.leaves_rows_out else None
            return AffectedRows(current, derived, left_out, units, form.operator)
        form = view.plan_increment(since, by_arrow=False)  # Spark evaluates what Arrow could not for some row
    if not isinstance(form, JoinIncrement):
        return None
    name, known = view.table.name, list_shapes(view.contract)
    it = view.contract.views[name]
    sides = [side for side in (tables.open_table(view.inputs[i]) for i in it.inputs) if side is not None]
    found = increment_tasks.derive_joined_rows(view.sources, form, opened, sides)
    if not _has_computed(found):
        return None
    joined = found.where(F.col(SIDE) == "derived").drop(SIDE, STORED)
    derived = spark_projection.project_flat_rows(joined, it, name, form.join.columns, known)
    current, units = (
        found.where(F.col(SIDE) == side).select(f"{STORED}.*").select(*(f"`{name}`" for name in columns))
        for side, columns in (("current", form.columns), ("unit", form.unit_columns))
    )
    return AffectedRows(current, derived, None, units, f"{form.operator}{BY_SPARK}")


def _has_computed(found: DataFrame) -> bool:
    """Compute what a kernel's task finds; return False if the task refuses it."""
    from hindcast.engine import task

    try:
        with task.find_refusals():
            found.count()
    except task.RefusalError:
        return False
    return True


def _select_left_out(form: PlannedIncrement, found: DataFrame) -> DataFrame:
    """Return what an aggregate newly leaves out, as `derivation.count_left_out` does, of what a kernel's task finds."""
    left_out = F.col(increment_tasks.LEFT_OUT)
    counts = F.struct(*(left_out.getField(kind).alias(kind) for kind in ("no_key", "no_value", "too_late")))
    rows = found.where(left_out.isNotNull())
    if not isinstance(form, WindowIncrement):
        return rows.select(counts.alias("leftOut"))
    reached = F.from_json(left_out.getField("reached"), "map<string, bigint>")
    times = F.transform_values(reached, lambda _, at: derivation.format_moment(F.timestamp_micros(at)))
    return rows.select(counts.alias("leftOut"), times.alias("streamTimes"))
