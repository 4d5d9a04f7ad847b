"""Runs of kernels: Spark's tasks that read the inputs of a view, derive its first rows, and write these to files.

Spark evaluates the expressions of a view if Arrow cannot, and then does so between two functions of the tasks.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from deltalake import DeltaTable
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql.types import StructType

from hindcast.common import session
from hindcast.common.spark_workers import map_in_workers
from hindcast.contract import Contract, list_shapes
from hindcast.engine import eligibility, row_exchange, spark_projection, time_slices
from hindcast.engine.spec import AggregateSpec, EventSpec, KernelOutput, MemberSource, SessionSpec
from hindcast.store import table_columns, tables
from hindcast.store.commit_notes import BY_SPARK
from hindcast.store.tables import Table

if TYPE_CHECKING:
    import pyarrow as pa

    from hindcast.engine import task
    from hindcast.engine.operators import KernelRows


class WrittenFiles(NamedTuple):
    """What the tasks of an operator report of their files (`task.REPORT_SCHEMA`)."""

    operator: str
    reports: list[Row]


def run_aggregate(
    spark: SparkSession,
    contract: Contract,
    name: str,
    source: Table,
    found: DeltaTable,
    rows: DataFrame,
    output: KernelOutput,
    *,
    by_arrow: bool = True,
) -> WrittenFiles | None:
    """Run the kernel of an aggregate over time of `rows`, the current ones of `source`; as `run_join` otherwise."""
    # Their loops take half a second to load.
    from hindcast.engine import aggregate_members, aggregation, operators, task

    if (planned := aggregation.plan_aggregate(contract, name, rows, output)) is None:
        return None
    form, members = planned
    its = aggregate_members.plan_source(contract, form, name, source, found, {}) if by_arrow else None
    parts = time_slices.count_tasks(tables.count_rows(source), session.count_cores(spark), time_slices.ROWS_PER_TASK)
    aggregate = partial(operators.aggregate_rows, form)
    try:
        return _aggregate_groups(spark, form, its, found, (members, "validFrom"), parts, aggregate)
    except task.RefusalError:
        if its is None:
            return None
    return run_aggregate(spark, contract, name, source, found, rows, output, by_arrow=False)


def _aggregate_groups(
    spark: SparkSession,
    form: AggregateSpec | SessionSpec,
    source: MemberSource | None,
    found: DeltaTable,
    members: tuple[DataFrame, str],
    parts: int,
    aggregate: Callable[[pa.Table], KernelRows],
) -> WrittenFiles:
    """Run an aggregate of the rows of `source`; without it of the `members`, which Spark reads and spreads by their
    groups, and by a column with their times. All rows of a group are in one task.

    `found`: the opened table of its input. RefusalError if a task refuses its part.
    """
    from hindcast.engine import aggregation, task

    cores = session.count_cores(spark)
    slices = None if source is None else time_slices.plan_time_slices([found], [source.side], cores)
    if source is None or slices is None:
        groups, limit, by = aggregation.spread_groups(members[0], form.key, members[1], parts), {}, BY_SPARK
    else:
        numbers = spark.range(0, len(slices), 1, len(slices))
        divided = map_in_workers(numbers, task.build_divider(form, source, slices, parts), row_exchange.SCHEMA)
        groups, limit, by = divided.repartitionById(parts, row_exchange.PART), row_exchange.BATCH_LIMIT, ""
    with session.override_conf(spark, limit):
        reports = map_in_workers(groups, task.build_aggregator(form.output, aggregate), task.REPORT_SCHEMA)
        return WrittenFiles(f"{form.operator}{by}", collect_reports(reports))


def run_join(
    spark: SparkSession,
    contract: Contract,
    name: str,
    inputs: Mapping[str, Table],
    found: Mapping[str, DeltaTable],
    output: KernelOutput,
    *,
    by_arrow: bool = True,
) -> WrittenFiles | None:
    """Run the kernel of a join; return what its tasks report, None if there is none or a task refuses its part.

    Spark evaluates its expressions without `by_arrow`, and if Arrow cannot.
    """
    from hindcast.engine import task

    it, known = contract.views[name], list_shapes(contract)
    if (form := eligibility.find_join(contract, name, inputs, found, output, by_arrow=by_arrow)) is None:
        return None
    slices = time_slices.plan_join_slices(form, [found[i] for i in it.inputs], session.count_cores(spark))
    if slices is None:
        return None
    mapper, numbers = task.build_batch_mapper(form, slices), spark.range(0, len(slices), 1, len(slices))
    try:
        if form.projection is not None:
            return WrittenFiles(form.operator, collect_reports(map_in_workers(numbers, mapper, task.REPORT_SCHEMA)))
        types = tuple(table_columns.spark_schema(found[i]) for i in it.inputs)
        flat = map_in_workers(numbers, mapper, spark_projection.flat_schema(form.columns, types, form.periods))
        rows = spark_projection.project_flat_rows(flat, it, name, form.columns, known)
        reports = collect_reports(map_in_workers(rows, task.build_writer(output), task.REPORT_SCHEMA))
        return WrittenFiles(f"{form.operator}{BY_SPARK}", reports)
    except task.RefusalError:
        if form.projection is None:
            return None
    return run_join(spark, contract, name, inputs, found, output, by_arrow=False)


def run_windows(
    spark: SparkSession,
    contract: Contract,
    name: str,
    source: Table,
    found: DeltaTable,
    rows: DataFrame,
    output: KernelOutput,
    *,
    by_arrow: bool = True,
) -> WrittenFiles | None:
    """Run the kernel of an aggregate in windows of `rows`, the current ones of `source`; as `run_join` otherwise."""
    from hindcast.engine import session_operator, task, window_aggregation

    form = window_aggregation.plan_windows(contract, name, source, found, rows, output, by_arrow=by_arrow)
    slices = time_slices.plan_time_slices([found], [form.side], session.count_cores(spark)) if form else None
    if form is None or slices is None:
        return None
    view, known = contract.views[name], list_shapes(contract)
    numbers = spark.range(0, len(slices), 1, len(slices))

    def run(
        form: EventSpec, work: task.SliceWork, schema: str | StructType, *, reach: tuple[int, int] = (0, 0)
    ) -> DataFrame:
        if form.projection is not None:
            return map_in_workers(numbers, task.build_window_task(form, slices, work, reach), schema)
        read = window_aggregation.read_schema(form, found)
        events = map_in_workers(numbers, task.build_event_reader(form, slices, reach), read)
        members = window_aggregation.select_members(events, view, known)
        return map_in_workers(members, task.build_member_task(form, slices, work), schema)

    try:
        late = window_aggregation.find_late_events(form, run)
        if late is None:
            return None
        form = replace(form, late=late)
        if isinstance(form, SessionSpec):
            # A session may last for ever, so all events of a group are in one task.
            its = None if form.projection is None else MemberSource(form.side, form.projection)
            members = window_aggregation.select_members(rows, view, known)
            aggregate = partial(session_operator.aggregate_sessions, form)
            return _aggregate_groups(spark, form, its, found, (members, "timestamp"), len(slices), aggregate)
        reports = run(form, task.write_windows, task.REPORT_SCHEMA, reach=form.reach)
        by_spark = "" if form.projection is not None else BY_SPARK
        return WrittenFiles(f"{form.operator}{by_spark}", collect_reports(reports))
    except task.RefusalError:
        if form.projection is None:
            return None
    return run_windows(spark, contract, name, source, found, rows, output, by_arrow=False)


def collect_reports(reports: DataFrame) -> list[Row]:
    """Return what tasks report; RefusalError if one refuses its part."""
    from hindcast.engine import task

    with task.find_refusals():
        return reports.collect()
