"""What a kernel has written for a view: files beside those of its table, which one commit makes visible.

Until then no reader sees them; if no commit comes, VACUUM removes them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from deltalake import DeltaTable
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from hindcast import session
from hindcast.contracts import Contract
from hindcast.delta import listing, tables
from hindcast.delta.files import Written
from hindcast.delta.tables import Table
from hindcast.kernels import chosen, cuts


@dataclass(frozen=True)
class Staged:
    """Files with the first rows of a table; `left_out`: of an aggregate, the rows that it counts nowhere.

    `columns`: in the order in which Spark's plan has them.
    """

    table: Table
    operator: str
    columns: tuple[str, ...]
    files: tuple[Written, ...]
    left_out: Mapping[str, int] | None

    @property
    def told(self) -> dict[str, Any]:
        """What the commit notes of them."""
        counts = {"opened": sum(file.rows for file in self.files), "closed": 0, "corrected": 0, "ages": {}}
        note: dict[str, Any] = {**counts, "kernel": self.operator}
        return note if self.left_out is None else {**note, "leftOut": dict(self.left_out)}

    def changes(self, spark: SparkSession) -> DataFrame:
        """The rows as a change (`plane.changes`), for gates."""
        found = DeltaTable(self.table.path)
        rows = listing.rows(spark, found, tables.spark_schema(found), [file.path for file in self.files])
        return rows.select(*(f"`{name}`" for name in self.columns), F.lit("open").alias("change"))


def stage(
    derived: DataFrame, contract: Contract, name: str, inputs: Mapping[str, Table], table: Table, known_at: datetime
) -> Staged | None:
    """Has a kernel write all rows of a view whose table is there and empty; None if the view has none (`chosen`).

    `derived`: those rows as Spark's plan has them.
    """
    found = {i: tables.opened(it) for i, it in {**inputs, name: table}.items()}
    there = {i: it for i, it in found.items() if it is not None}
    form = chosen.form(contract, name, inputs, there, table, known_at) if len(there) == len(found) else None
    tasks = session.cores(derived.sparkSession)
    parts = cuts.parts(form, [there[i] for i in contract.views[name].inputs], tasks) if form else None
    if form is None or parts is None:
        return None
    from hindcast.kernels import task  # its loops take half a second to load

    numbers = derived.sparkSession.range(0, len(parts), 1, len(parts))
    told = numbers.mapInArrow(task.batches(form, parts), task.WRITTEN).collect()
    if any(row["refused"] for row in told):
        return None
    files = tuple(Written(*(row[c] for c in Written.__dataclass_fields__)) for row in told if row["path"])
    left_out = {kind: sum(row[kind] or 0 for row in told) for kind in ("no_key", "no_value")} | {"too_late": 0}
    return Staged(table, form.operator, tuple(derived.columns), files, left_out if form.measures else None)
