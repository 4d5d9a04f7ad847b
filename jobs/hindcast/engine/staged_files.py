"""Staged files: what a kernel has written for a table, beside its own files, until one commit makes it visible.

Until then no reader sees them; if no commit comes, VACUUM removes them.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from deltalake import DeltaTable
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F

from hindcast.common import session
from hindcast.contract import Contract, list_shapes
from hindcast.engine import eligibility, flat_records, increment_plans, kernel_runs, row_exchange, time_slices
from hindcast.store import commit_notes, file_listing, table_columns, tables
from hindcast.store.commit_notes import LeftOut, TableNote, TieCounts
from hindcast.store.files import DataFile
from hindcast.store.tables import Table
from hindcast.store.task_rows import TaskRows


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
        written = kernel_runs.run_join(spark, contract, name, inputs, there, output)
    else:
        (source,) = inputs
        run = kernel_runs.run_aggregate if it.window is None else kernel_runs.run_windows
        written = run(spark, contract, name, inputs[source], there[source], current[source], output)
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
            reports = kernel_runs.collect_reports(version_tasks.write_versions(form, flat, parts, cuts))
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
    return LeftOut(counts, commit_notes.format_stream_times(latest) if in_windows else None)
