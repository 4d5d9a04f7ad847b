"""Rows of a table that a function makes of the batches of a DataFrame, in the very tasks that write them."""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql.types import StructType

from hindcast.common.spark_workers import BatchConverter, map_in_workers


@dataclass(frozen=True)
class TaskRows:
    """Rows of this schema: `local`, if they are here, else what `convert` makes of the batches of `frame`."""

    frame: DataFrame
    convert: BatchConverter
    schema: StructType
    local: pa.Table | None = None

    @property
    def columns(self) -> list[str]:
        """The columns of the rows."""
        return self.schema.names

    def as_frame(self) -> DataFrame:
        """Return the rows as a DataFrame."""
        if self.local is not None:
            # Spark would leave out what follows a batch without rows.
            return self.frame.sparkSession.createDataFrame(self.local.combine_chunks(), self.schema)
        return map_in_workers(self.frame, self.convert, self.schema)


def map_rows(rows: DataFrame | TaskRows, work: BatchConverter, schema: str) -> DataFrame:
    """Return what `work` makes of the batches of rows, within the task that has them."""
    if isinstance(rows, DataFrame):
        return map_in_workers(rows, work, schema)
    if rows.local is not None:
        return map_in_workers(rows.as_frame(), work, schema)
    convert = rows.convert
    return map_in_workers(rows.frame, lambda batches: work(convert(batches)), schema)


def collect_table(rows: DataFrame | TaskRows) -> pa.Table:
    """Return rows as a table in this process."""
    if isinstance(rows, DataFrame):
        return rows.toArrow()
    return rows.local if rows.local is not None else rows.as_frame().toArrow()
