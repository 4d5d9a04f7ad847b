"""Staged files: what a kernel has written for a table, beside its own files, until one commit makes it visible.

Until then no reader sees them; if no commit comes, VACUUM removes them.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from deltalake import DeltaTable
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from hindcast.common import session
from hindcast.common.spark_workers import map_in_workers
from hindcast.contract import Contract, list_shapes
from hindcast.engine import eligibility, flat_records, increment_plans, row_exchange, spark_projection, time_slices
from hindcast.engine.spec import AggregateSpec, EventSpec, KernelOutput, MemberSource, SessionSpec
from hindcast.store import file_listing, table_columns, tables
from hindcast.store.commit_notes import BY_SPARK, LeftOut, TableNote, TieCounts
from hindcast.store.files import DataFile
from hindcast.store.tables import Table
from hindcast.store.task_rows import TaskRows

if TYPE_CHECKING:
    import pyarrow as pa

    from hindcast.engine.operators import KernelRows


@dataclass(frozen=True)
class StagedFiles:
    """Files with the first rows of a table, written but not committed.

    `operator`: as `TableNote.kernel` has it.
    `columns`: in the order of Spark's plan. `left_out`: for an aggregate, the input rows that it leaves out.
    `ties`: for a topic, those of its records, if all of these are new.
    """

    table: Table
    operator: str
    columns: tuple[str, ...]
    files: tuple[DataFile, ...]
    left_out: LeftOut | None
    ties: TieCounts | None = None

    def build_note(self, run: int) -> TableNote:
        """Return the note of the commit by which a run adds the files."""
        return TableNote(run, sum(file.rows for file in self.files), left_out=self.left_out, kernel=self.operator)

    def read_change(self, spark: SparkSession) -> DataFrame:
        """Return the rows as a change (`plane.diff_rows`), for gates."""
        found = DeltaTable(self.table.path)
        rows = file_listing.load_files(
            spark, found, table_columns.spark_schema(found), [file.path for file in self.files]
        )
        return rows.select(*(f"`{name}`" for name in self.columns), F.lit("open").alias("_change"))


def stage_view(
    spark: SparkSession,
    columns: tuple[str, ...],
    contract: Contract,
    name: str,
    inputs: Mapping[str, Table],
    current: Mapping[str, DataFrame],
    table: Table,
    known_at: datetime,
) -> StagedFiles | None:
    """Write all rows of a view by its kernel; return the staged files, or None if no kernel can derive them.

    The view's table must exist and be empty. `columns`: those of its derived rows, in order; `current`: the current
    rows of the inputs.
    """
    found = {i: tables.open_table(it) for i, it in {**inputs, name: table}.items()}
    there = {i: it for i, it in found.items() if it is not None}
    output = eligibility.describe_output(name, there, table, known_at) if len(there) == len(found) else None
    if output is None or there[name].protocol().writer_features:
        return None  # delta-rs, which commits, does not write with every feature that Spark may have set
    it = contract.views[name]

    if it.aggregate is None:
        written = _run_join(spark, contract, name, inputs, there, output)
    else:
        (source,) = inputs
        if it.window is None:
            written = _run_aggregate(spark, contract, name, inputs[source], there[source], current[source], output)
        else:
            written = _run_windows(spark, contract, name, inputs[source], there[source], current[source], output)
    if written is None:
        return None
    rows = written.reports
    left_out = _sum_left_out(rows, in_windows=it.window is not None) if it.aggregate is not None else None
    return StagedFiles(table, written.operator, columns, _list_files(rows), left_out)


def stage_topic(
    spark: SparkSession,
    columns: tuple[str, ...],
    contract: Contract,
    name: str,
    records: DataFrame | Sequence[TaskRows],
    count: int,
    table: Table,
    known_at: datetime,
    *,
    all_new: bool,
) -> StagedFiles | None:
    """Write all rows of the table of a topic's decoded `records`, so many at most; as `stage_view` otherwise.

    `all_new`: no record was published before.
    """
    from hindcast.engine import task, version_tasks, version_ties

    form, found = increment_plans.plan_topic(contract, name, table, known_at, nested=True), tables.open_table(table)
    if form is None or found is None or found.protocol().writer_features:
        return None
    shape, types = list_shapes(contract)[name], table_columns.spark_schema(found)
    flat = flat_records.flatten_new_records(shape, types, records)
    parts = time_slices.count_tasks(count, session.count_cores(spark), time_slices.RECORDS_PER_TASK)
    try:
        cuts = time_slices.find_cuts(tables.log_table(table.warehouse, table.pipeline, name), parts)
        with session.override_conf(spark, {} if isinstance(flat, DataFrame) else row_exchange.BATCH_LIMIT):
            reports = _collect(version_tasks.write_versions(form, flat, parts, cuts))
    except task.RefusalError:
        return None
    ties = version_ties.sum_reports(row["ties"] for row in reports if row["ties"])
    return StagedFiles(table, form.operator, columns, _list_files(reports), None, ties if all_new else None)


def _list_files(reports: list[Row]) -> tuple[DataFile, ...]:
    """Return the files that tasks report."""
    return tuple(DataFile(*(row[c] for c in DataFile.__dataclass_fields__)) for row in reports if row["path"])


def _sum_left_out(reports: list[Row], *, in_windows: bool) -> LeftOut:
    """Return what all tasks of an aggregate have left out; of windows also the stream times."""
    counts = {kind: sum(row[kind] or 0 for row in reports) for kind in ("no_key", "no_value", "too_late")}
    latest: dict[str, int] = {}
    for partition, at in (it for row in reports if row["reached"] for it in json.loads(row["reached"]).items()):
        latest[partition] = max(at, latest.get(partition, at))
    moments = {partition: datetime(1970, 1, 1) + timedelta(microseconds=at) for partition, at in latest.items()}  # noqa: DTZ001
    times = {partition: f"{at.isoformat(timespec='microseconds')}Z" for partition, at in moments.items()}
    return LeftOut(counts, times if in_windows else None)


class _Written(NamedTuple):
    """What the tasks of an operator report of their files (`task.REPORT_SCHEMA`)."""

    operator: str
    reports: list[Row]


def _run_aggregate(
    spark: SparkSession,
    contract: Contract,
    name: str,
    source: Table,
    found: DeltaTable,
    rows: DataFrame,
    output: KernelOutput,
    *,
    by_arrow: bool = True,
) -> _Written | None:
    """Run the kernel of an aggregate over time of `rows`, the current ones of `source`; as `_run_join` otherwise."""
    # Their loops take half a second to load.
    from hindcast.engine import aggregate_members, aggregation, operators, task

    if (planned := aggregation.plan_aggregate(contract, name, rows, output)) is None:
        return None
    form, members = planned
    its = aggregate_members.plan_source(contract, form, name, source, found, {}) if by_arrow else None
    parts = time_slices.count_tasks(tables.count_rows(source), session.count_cores(spark), time_slices.ROWS_PER_TASK)
    spread = aggregation.spread_groups(members, form.key, "validFrom", parts)
    try:
        return _aggregate_groups(spark, form, its, found, spread, parts, partial(operators.aggregate_rows, form))
    except task.RefusalError:
        if its is None:
            return None
    return _run_aggregate(spark, contract, name, source, found, rows, output, by_arrow=False)


def _aggregate_groups(
    spark: SparkSession,
    form: AggregateSpec | SessionSpec,
    source: MemberSource | None,
    found: DeltaTable,
    spread: DataFrame,
    parts: int,
    aggregate: Callable[[pa.Table], KernelRows],
) -> _Written:
    """Run an aggregate of the rows of `source`, or of those that Spark has `spread`; all of a group are in one task.

    `found`: the opened table of its input. RefusalError if a task refuses its part.
    """
    from hindcast.engine import task

    cores = session.count_cores(spark)
    slices = None if source is None else time_slices.plan_time_slices([found], [source.side], cores)
    if source is None or slices is None:
        groups, limit, by = spread, {}, BY_SPARK
    else:
        numbers = spark.range(0, len(slices), 1, len(slices))
        divided = map_in_workers(numbers, task.build_divider(form, source, slices, parts), row_exchange.SCHEMA)
        groups, limit, by = divided.repartitionById(parts, row_exchange.PART), row_exchange.BATCH_LIMIT, ""
    with session.override_conf(spark, limit):
        reports = map_in_workers(groups, task.build_aggregator(form.output, aggregate), task.REPORT_SCHEMA)
        return _Written(f"{form.operator}{by}", _collect(reports))


def _run_join(
    spark: SparkSession,
    contract: Contract,
    name: str,
    inputs: Mapping[str, Table],
    found: Mapping[str, DeltaTable],
    output: KernelOutput,
    *,
    by_arrow: bool = True,
) -> _Written | None:
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
            return _Written(form.operator, _collect(map_in_workers(numbers, mapper, task.REPORT_SCHEMA)))
        types = tuple(table_columns.spark_schema(found[i]) for i in it.inputs)
        flat = map_in_workers(numbers, mapper, spark_projection.flat_schema(form.columns, types, form.periods))
        rows = spark_projection.project_flat_rows(flat, it, name, form.columns, known)
        reports = _collect(map_in_workers(rows, task.build_writer(output), task.REPORT_SCHEMA))
        return _Written(f"{form.operator}{BY_SPARK}", reports)
    except task.RefusalError:
        if form.projection is None:
            return None
    return _run_join(spark, contract, name, inputs, found, output, by_arrow=False)


def _run_windows(
    spark: SparkSession,
    contract: Contract,
    name: str,
    source: Table,
    found: DeltaTable,
    rows: DataFrame,
    output: KernelOutput,
    *,
    by_arrow: bool = True,
) -> _Written | None:
    """Run the kernel of an aggregate in windows of `rows`, the current ones of `source`; as `_run_join` otherwise."""
    from hindcast.engine import aggregation, session_operator, task, window_aggregation

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
            spread = aggregation.spread_groups(members, form.key, "timestamp", len(slices))
            aggregate = partial(session_operator.aggregate_sessions, form)
            return _aggregate_groups(spark, form, its, found, spread, len(slices), aggregate)
        reports = run(form, task.write_windows, task.REPORT_SCHEMA, reach=form.reach)
        by_spark = "" if form.projection is not None else BY_SPARK
        return _Written(f"{form.operator}{by_spark}", _collect(reports))
    except task.RefusalError:
        if form.projection is None:
            return None
    return _run_windows(spark, contract, name, source, found, rows, output, by_arrow=False)


def _collect(reports: DataFrame) -> list[Row]:
    """Return what tasks report; RefusalError if one refuses its part."""
    from hindcast.engine import task

    with task.find_refusals():
        return reports.collect()
