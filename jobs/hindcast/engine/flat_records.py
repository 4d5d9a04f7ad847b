"""Flat records: decoded records of a topic in the columns and types of its table, with their place and marks.

Spark makes them of a DataFrame; of rows that a task has at hand, that task makes them itself.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial, reduce
from typing import TypeAlias

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import BooleanType, DataType, IntegerType, StructField, StructType, TimestampType

from hindcast.common.spark_workers import BatchConverter
from hindcast.contract import Shape
from hindcast.contract.shapes import PLACE_COLUMNS
from hindcast.store.task_rows import TaskRows


def flatten_records(shape: Shape, types: StructType, records: DataFrame, *, is_new: bool) -> DataFrame:
    """Return records in the columns and types of their table, with their place and marks."""
    parts = {"key": shape.key, "value": shape.value}
    columns = [
        F.col(part).getField(column).cast(types[column].dataType).alias(column)
        for part, names in parts.items()
        for column in names
    ]
    place = dict(zip(PLACE_COLUMNS, ("partition", "offset"), strict=True))
    columns += [F.col(column).cast(types[name].dataType).alias(name) for name, column in place.items()]
    epoch: Column = F.col("epoch") if "epoch" in records.columns else F.lit(0)
    marks = {"_epoch": epoch.cast("int"), "_isTombstone": F.col("value").isNull(), "_isNew": F.lit(is_new)}
    return records.select(*columns, "timestamp", *(mark.alias(name) for name, mark in marks.items()))


def flatten_new_records(
    shape: Shape, types: StructType, records: DataFrame | Sequence[TaskRows]
) -> DataFrame | list[TaskRows]:
    """Return new records as `flatten_records` does; in the tasks that have them, if none of their columns is cast."""
    if isinstance(records, DataFrame):
        return flatten_records(shape, types, records, is_new=True)
    flat = [it for it in (_flatten_in_tasks(shape, types, rows) for rows in records) if it is not None]
    if len(flat) == len(records):
        return flat
    return flatten_records(shape, types, reduce(DataFrame.union, (rows.as_frame() for rows in records)), is_new=True)


def _flatten_in_tasks(shape: Shape, types: StructType, records: TaskRows) -> TaskRows | None:
    """Return flat records in the tasks that have them; None if a column would be cast."""
    sources = _list_sources(shape)
    schema = StructType([StructField(name, types[name].dataType) for name in sources])
    sources |= {"timestamp": ("timestamp",), "_epoch": ("epoch",)}
    schema.add("timestamp", TimestampType()).add("_epoch", IntegerType())
    if any(_find_type(records.schema, path) != schema[name].dataType for name, path in sources.items()):
        return None
    schema.add("_isTombstone", BooleanType()).add("_isNew", BooleanType())
    arrow, local = to_arrow_schema(schema, timezone="UTC"), None
    flatten = partial(_flatten_batches, sources, arrow)
    if records.local is not None:
        local = pa.Table.from_batches(flatten(iter, records.local.to_batches()), arrow)
    return TaskRows(records.frame, partial(flatten, records.convert), schema, local)


_Path: TypeAlias = tuple[str, ...]
"""A column of records, or a field of one that is a struct."""


def _list_sources(shape: Shape) -> dict[str, _Path]:
    """Return which columns of records a table's columns are taken from."""
    fields = {column: (part, column) for part in ("key", "value") for column in getattr(shape, part)}
    return fields | {name: (column,) for name, column in zip(PLACE_COLUMNS, ("partition", "offset"), strict=True)}


def _find_type(schema: StructType, path: _Path) -> DataType | None:
    """Return the type of a column or field, None if there is none."""
    found: DataType = schema
    for name in path:
        if not isinstance(found, StructType) or name not in found.names:
            return None
        found = found[name].dataType
    return found


def _flatten_batches(
    sources: Mapping[str, _Path], schema: pa.Schema, convert: BatchConverter, batches: Iterator[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """Yield the records of batches, flat: the columns of `sources` and the marks."""
    for batch in convert(batches):
        columns = [_read_column(batch, path) for path in sources.values()]
        columns += [batch.column("value").is_null(), pa.repeat(pa.scalar(True), batch.num_rows)]
        yield pa.record_batch(columns, schema)


def _read_column(batch: pa.RecordBatch, path: _Path) -> pa.Array:
    column = batch.column(path[0])
    for name in path[1:]:  # null where the struct is
        column = pc.struct_field(column, column.type.get_field_index(name))
    return column
