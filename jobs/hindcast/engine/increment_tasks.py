"""The Spark task of an increment by a kernel, and the change that it finds as a DataFrame.

An action on such a change fails with RefusalError (`task.find_refusals`) if it takes too much memory, or if Arrow
cannot evaluate an expression for some row.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial

import pyarrow as pa
from deltalake import DeltaTable
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import LongType, StringType, StructField, StructType

from hindcast.contract import Shape
from hindcast.contract.shapes import PLACE_COLUMNS
from hindcast.engine import spark_projection
from hindcast.engine.increment_rows import ChangedRows, ReadNear
from hindcast.engine.spec import JoinIncrement, VersionIncrement, ViewIncrement
from hindcast.store import tables

LEFT_OUT = "_leftOut"
"""The column with what an aggregate leaves out, in a row of its own (`derive_view_change`)."""


def derive_view_change(spark: SparkSession, form: ViewIncrement, view: DeltaTable) -> DataFrame:
    """Return what a run changes in a view (`increments.find_change`), with `change`; `view` is its opened table.

    One row more, without `change`, has in `_leftOut` what an aggregate leaves out (`derivation.count_left_out`).
    """
    counts = StructType([StructField(kind, LongType()) for kind in _KINDS])
    schema = _list_columns(form, view).add("change", StringType()).add(LEFT_OUT, counts)
    return _run_once(spark, partial(_find_view_change, form), schema)


_KINDS = ("no_key", "no_value", "too_late")


def _list_columns(form: ViewIncrement, table: DeltaTable) -> StructType:
    """Return the columns that are compared, with the types that the view's table has."""
    types = tables.spark_schema(table)
    return StructType([types[column] for column in form.columns])


def _run_once(spark: SparkSession, work: Callable[[], Iterator[pa.RecordBatch]], schema: StructType) -> DataFrame:
    """Return the rows that some work yields, which one task does."""
    return spark.range(0, 1, 1, 1).mapInArrow(partial(_work_once, work), schema)


def _work_once(
    work: Callable[[], Iterator[pa.RecordBatch]], given: Iterator[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    for batch in given:
        for _ in range(batch.num_rows):
            yield from work()


def _find_view_change(form: ViewIncrement) -> Iterator[pa.RecordBatch]:
    """Yield the change."""
    from hindcast.engine import increments, task

    counts = pa.struct([(kind, pa.int64()) for kind in _KINDS])
    with task.refuse_too_large():
        change = increments.find_change(form, *_open_tables(form))
    rows = change.rows.append_column(LEFT_OUT, pa.nulls(change.rows.num_rows, counts))
    yield from rows.to_batches(task.ROWS_PER_BATCH)
    left_out = dict(zip(_KINDS, (*change.left_out, 0), strict=True))
    columns = [pa.array([left_out if field.name == LEFT_OUT else None], field.type) for field in rows.schema]
    yield pa.record_batch(columns, rows.schema.names)


def _open_tables(form: ViewIncrement) -> tuple[list[ChangedRows], ReadNear]:
    """Return what has changed in the inputs, and what reads the view's current rows."""
    from hindcast.engine import slice_reader

    inputs = [
        ChangedRows(*slice_reader.read_changes(side, at), partial(slice_reader.read_near, side))
        for side, at in zip(form.sides, form.seen, strict=True)
    ]
    return inputs, partial(slice_reader.read_near, form.view)


CURRENT = "_current"
"""The column with the view's current rows (`derive_joined_rows`)."""


def derive_joined_rows(
    spark: SparkSession, form: JoinIncrement, view: DeltaTable, inputs: Sequence[DeltaTable]
) -> DataFrame:
    """Return the affected rows of a join whose expressions Spark evaluates: joined ones, flat (spark_projection.py).

    Others have nothing but `_current`: a current row of the view that may be affected. `view` and `inputs` are the
    opened tables.
    """
    types = tuple(map(tables.spark_schema, inputs))
    flat = spark_projection.flat_schema(form.join.columns, types, form.output.kind)
    schema = flat.add(CURRENT, _list_columns(form, view))
    return _run_once(spark, partial(_find_joined_rows, form), schema)


def _find_joined_rows(form: JoinIncrement) -> Iterator[pa.RecordBatch]:
    """Yield the rows."""
    from hindcast.engine import increments, integer_encoding, task

    with task.refuse_too_large():
        compared = increments.refresh_view(form, *_open_tables(form))
        derived, current = (
            integer_encoding.decode_dictionaries(rows, rows.column_names).combine_chunks()
            for rows in (compared.derived, compared.current.select(form.columns))
        )
    packed = current.to_struct_array().combine_chunks()
    joined = derived.append_column(CURRENT, pa.nulls(derived.num_rows, packed.type))
    rows = pa.concat_tables([joined, pa.table({CURRENT: packed})], promote_options="default")
    yield from rows.to_batches(task.ROWS_PER_BATCH)


def derive_topic_change(
    form: VersionIncrement, table: DeltaTable, shape: Shape, new: DataFrame, hidden: DataFrame
) -> DataFrame:
    """Return what new records change in a topic's table (`version_increments.refresh_versions`), with `change`.

    `table`: the opened one. `new` and `hidden`: decoded records. Current rows of their keys that stay have the `change`
    'keep'.
    """
    schema = _list_columns(form, table)
    records = _flatten_records(shape, schema, new, is_new=True).unionByName(
        _flatten_records(shape, schema, hidden, is_new=False)
    )
    return records.repartition(1).mapInArrow(partial(_find_topic_change, form), schema.add("change", StringType()))


def _flatten_records(shape: Shape, types: StructType, records: DataFrame, *, is_new: bool) -> DataFrame:
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


def _find_topic_change(form: VersionIncrement, given: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield the change, for Spark's mapInArrow."""
    from hindcast.engine import increment_rows, slice_reader, task, version_increments

    with task.refuse_too_large():
        if (records := task.collect_rows(given, form.output)) is None:
            return
        compared = version_increments.refresh_versions(form, records, partial(slice_reader.read_near, form.view))
        change = increment_rows.diff_rows(form, compared, with_kept=True)
    yield from change.to_batches(task.ROWS_PER_BATCH)
