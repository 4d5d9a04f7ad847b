"""Staged files: what a kernel has written for a view, beside its table, until one commit makes it visible.

Until then no reader sees them; if no commit comes, VACUUM removes them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime

from deltalake import DeltaTable
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from hindcast.common import session
from hindcast.contract import Contract
from hindcast.engine import eligibility, time_slices
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
    from hindcast.engine import task  # its loops take half a second to load

    numbers = spark.range(0, len(parts), 1, len(parts))
    reports = numbers.mapInArrow(task.build_batch_mapper(form, parts), task.REPORT_SCHEMA).collect()
    if any(row["refused"] for row in reports):
        return None
    files = tuple(DataFile(*(row[c] for c in DataFile.__dataclass_fields__)) for row in reports if row["path"])
    left_out = {kind: sum(row[kind] or 0 for row in reports) for kind in ("no_key", "no_value")} | {"too_late": 0}
    return StagedFiles(table, form.operator, columns, files, left_out if form.measures else None)
