"""Staged files: what a kernel has written for a view, beside its table, until one commit makes it visible.

Until then no reader sees them; if no commit comes, VACUUM removes them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime

from deltalake import DeltaTable
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F

from hindcast.common import session
from hindcast.contract import Contract, list_shapes
from hindcast.engine import eligibility, projection, time_slices
from hindcast.engine.spec import KernelSpec, TimeSlice
from hindcast.store import file_listing, tables
from hindcast.store.commit_notes import LeftOut, TableNote
from hindcast.store.files import DataFile
from hindcast.store.tables import Table


@dataclass(frozen=True)
class StagedFiles:
    """Files with the first rows of a table, written but not committed.

    `columns`: in the order of Spark's plan. `left_out`: for an aggregate, the numbers of input rows that it leaves out.
    """

    table: Table
    operator: str
    columns: tuple[str, ...]
    files: tuple[DataFile, ...]
    left_out: Mapping[str, int] | None

    def build_note(self, run: int) -> TableNote:
        """Return the note of the commit by which a run adds the files."""
        left_out = LeftOut(self.left_out) if self.left_out is not None else None
        return TableNote(run, sum(file.rows for file in self.files), left_out=left_out, kernel=self.operator)

    def read_change(self, spark: SparkSession) -> DataFrame:
        """Return the rows as a change (`plane.diff_rows`), for gates."""
        found = DeltaTable(self.table.path)
        rows = file_listing.load_files(spark, found, tables.spark_schema(found), [file.path for file in self.files])
        return rows.select(*(f"`{name}`" for name in self.columns), F.lit("open").alias("change"))


def stage_view(
    spark: SparkSession,
    columns: tuple[str, ...],
    contract: Contract,
    name: str,
    inputs: Mapping[str, Table],
    table: Table,
    known_at: datetime,
) -> StagedFiles | None:
    """Write all rows of a view by its kernel; return the staged files, or None if no kernel can derive them.

    The view's table must exist and be empty. `columns`: those of its derived rows, in order.
    """
    found = {i: tables.open_table(it) for i, it in {**inputs, name: table}.items()}
    there = {i: it for i, it in found.items() if it is not None}
    form = eligibility.find_kernel(contract, name, inputs, there, table, known_at) if len(there) == len(found) else None
    tasks = session.count_cores(spark)
    parts = time_slices.plan_time_slices(form, [there[i] for i in contract.views[name].inputs], tasks) if form else None
    if form is None or parts is None:
        return None
    reports = _collect_reports(spark, form, parts, contract, name, there)
    if reports is None or any(row["refused"] for row in reports):
        return None
    files = tuple(DataFile(*(row[c] for c in DataFile.__dataclass_fields__)) for row in reports if row["path"])
    left_out = {kind: sum(row[kind] or 0 for row in reports) for kind in ("no_key", "no_value")} | {"too_late": 0}
    return StagedFiles(table, form.operator, columns, files, left_out if form.measures else None)


def _collect_reports(
    spark: SparkSession,
    form: KernelSpec,
    parts: list[TimeSlice],
    contract: Contract,
    name: str,
    found: Mapping[str, DeltaTable],
) -> list[Row] | None:
    """Run a kernel; return its tasks' reports of files. None if a task refuses its part of a projected kernel."""
    from hindcast.engine import task  # its loops take half a second to load

    numbers = spark.range(0, len(parts), 1, len(parts))
    if not form.is_projected:
        return numbers.mapInArrow(task.build_batch_mapper(form, parts), task.REPORT_SCHEMA).collect()
    it, known = contract.views[name], list_shapes(contract)
    types = tuple(tables.spark_schema(found[i]) for i in it.inputs)
    flat = numbers.mapInArrow(
        task.build_batch_mapper(form, parts), projection.flat_schema(form.columns, types, form.kind)
    )
    rows = projection.project_flat_rows(flat, it, name, form.columns, known)
    try:
        return rows.mapInArrow(task.build_writer(form), task.REPORT_SCHEMA).collect()
    except PySparkException as error:
        if task.RefusalError.__name__ in str(error):
            return None
        raise
