"""The task of an increment by a kernel, and the change that it finds as a DataFrame.

A task that reads little is done by this process at once, any other by Spark when the change is read. That fails with
RefusalError (`task.find_refusals`) if the task takes too much memory, or if Arrow cannot evaluate an expression for
some row.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

import pyarrow as pa
from deltalake import DeltaTable
from pyspark.sql import DataFrame
from pyspark.sql.pandas.types import to_arrow_schema, to_arrow_type
from pyspark.sql.types import LongType, StringType, StructField, StructType

from hindcast.common.spark_workers import map_in_workers
from hindcast.contract import Shape
from hindcast.engine import flat_records, spark_projection
from hindcast.engine.increment_rows import SIDE, ChangedRows, Comparison, LeftOutRows, ReadNear
from hindcast.engine.spec import JoinIncrement, VersionIncrement, ViewIncrement
from hindcast.store import table_columns
from hindcast.store.change_reader import ChangeReader
from hindcast.store.task_rows import TaskRows, collect_table

if TYPE_CHECKING:
    from hindcast.engine.slice_reader import OpenedTables

LEFT_OUT = "_leftOut"
"""The column with what an aggregate leaves out, in a row of its own (`derive_view_change`)."""


def derive_view_change(sources: ChangeReader, form: ViewIncrement, view: DeltaTable) -> DataFrame:
    """Return what a run changes in a view (`increments.find_change`), with `_change`; `view` is its opened table.

    One row more, without `_change`, has in `_leftOut` what an aggregate leaves out (`derivation.count_left_out`).
    """
    schema = _list_columns(form, view).add("_change", StringType()).add(LEFT_OUT, _COUNTS)
    return _run_once(sources, _list_opened(form, view), partial(_find_view_change, form), schema)


_COUNTS = StructType(
    [
        *(StructField(kind, LongType()) for kind in ("no_key", "no_value", "too_late")),
        StructField("reached", StringType()),
    ]
)
"""As `increment_rows.LeftOutRows`; `reached` is JSON."""


def _list_columns(form: ViewIncrement, table: DeltaTable) -> StructType:
    """Return the columns that are compared, with the types that the view's table has."""
    types = table_columns.spark_schema(table)
    return StructType([types[column] for column in form.columns])


_Work: TypeAlias = "Callable[[OpenedTables | None], Iterator[pa.RecordBatch]]"
"""What a task does, given the tables that are open if this process does it (`slice_reader.read_near`)."""


def _list_opened(form: ViewIncrement | VersionIncrement, table: DeltaTable) -> OpenedTables:
    """Return the table that a form is about, which is open."""
    return {(form.view.uri, table.version()): table}


def _run_once(sources: ChangeReader, opened: OpenedTables, work: _Work, schema: StructType) -> DataFrame:
    """Return the rows that some work yields: done by this process if it reads little, else by one task, cached."""
    if (found := _work_here(sources, opened, work, schema)) is not None:
        return found
    return sources.cache_rows(map_in_workers(sources.spark.range(0, 1, 1, 1), partial(_work_once, work), schema))


def _work_here(sources: ChangeReader, opened: OpenedTables, work: _Work, schema: StructType) -> DataFrame | None:
    """Return the rows that some work yields in this process; None if it is refused, or yields much."""
    from hindcast.engine import slice_reader, task

    ((place, _), *_) = opened
    try:
        with task.refuse_too_large():
            batches = [*slice_reader.limit_batches(work(opened), place, here=opened)]
    except task.RefusalError:
        return None
    types = to_arrow_schema(schema, timezone="UTC")
    rows = sources.spark.createDataFrame(pa.Table.from_batches(batches, types).combine_chunks(), schema)
    return rows.coalesce(1)  # Spark need not bring them together


def _work_once(work: _Work, given: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in given:
        for _ in range(batch.num_rows):
            yield from work(None)


def derive_affected_rows(sources: ChangeReader, form: ViewIncrement, view: DeltaTable) -> DataFrame:
    """Return the affected rows of a view (`increments.refresh_view`), with `_side` (`increment_rows`).

    One row more, without a side, is as `derive_view_change` has it.
    """
    schema = _list_columns(form, view).add(SIDE, StringType()).add(LEFT_OUT, _COUNTS)
    return _run_once(sources, _list_opened(form, view), partial(_find_affected_rows, form), schema)


def _find_view_change(form: ViewIncrement, here: OpenedTables | None) -> Iterator[pa.RecordBatch]:
    """Yield the change, and what is left out."""
    from hindcast.engine import increments, task

    with task.refuse_too_large():
        change = increments.find_change(form, *_open_tables(form, here), is_here=here is not None)
    yield from _add_left_out(change.rows, change.left_out)


def _find_affected_rows(form: ViewIncrement, here: OpenedTables | None) -> Iterator[pa.RecordBatch]:
    """Yield the affected rows, and what is left out."""
    from hindcast.engine import increment_rows, increments, task

    with task.refuse_too_large():
        compared = increments.refresh_view(form, *_open_tables(form, here), is_here=here is not None)
        rows = increment_rows.list_affected_rows(form, compared)
    yield from _add_left_out(rows, compared.left_out)


def _add_left_out(rows: pa.Table, left_out: LeftOutRows) -> Iterator[pa.RecordBatch]:
    """Yield rows, and one with what is left out."""
    reached = None if left_out.reached is None else json.dumps(left_out.reached)
    counts = pa.array([left_out._asdict() | {"reached": reached}], to_arrow_type(_COUNTS))
    yield from _add_summary(rows, LEFT_OUT, counts)


def _add_summary(rows: pa.Table, column: str, summary: pa.Array) -> Iterator[pa.RecordBatch]:
    """Yield rows with another column, and one row with nothing but the only value of that column."""
    from hindcast.engine import task

    yield from rows.append_column(column, pa.nulls(rows.num_rows, summary.type)).to_batches(task.ROWS_PER_BATCH)
    columns = [*(pa.nulls(1, field.type) for field in rows.schema), summary]
    yield pa.record_batch(columns, [*rows.column_names, column])


def _open_tables(form: ViewIncrement, here: OpenedTables | None) -> tuple[list[ChangedRows], ReadNear]:
    """Return what has changed in the inputs, and what reads the view's current rows."""
    from hindcast.engine import slice_reader

    inputs = [
        ChangedRows(*slice_reader.read_changes(side, at, here=here), partial(slice_reader.read_near, side, here=here))
        for side, at in zip(form.sides, form.seen, strict=True)
    ]
    return inputs, partial(slice_reader.read_near, form.view, here=here)


STORED = "_stored"
"""The column with what an affected row has of the view's own columns (`derive_joined_rows`)."""


def derive_joined_rows(
    sources: ChangeReader, form: JoinIncrement, view: DeltaTable, inputs: Sequence[DeltaTable]
) -> DataFrame:
    """Return the affected rows of a join whose expressions Spark evaluates, with `_side` as `derive_affected_rows`.

    Derived ones are joined rows, flat (spark_projection.py). The others have their columns in `_stored`. `view` and
    `inputs` are the opened tables.
    """
    types = tuple(map(table_columns.spark_schema, inputs))
    flat = spark_projection.flat_schema(form.join.columns, types, form.join.periods)
    schema = flat.add(STORED, _list_columns(form, view)).add(SIDE, StringType())
    return _run_once(sources, _list_opened(form, view), partial(_find_joined_rows, form), schema)


def _find_joined_rows(form: JoinIncrement, here: OpenedTables | None) -> Iterator[pa.RecordBatch]:
    """Yield the rows."""
    from hindcast.engine import increment_rows, increments, integer_encoding, task

    with task.refuse_too_large():
        compared = increments.refresh_view(form, *_open_tables(form, here), is_here=here is not None)
        joined = integer_encoding.decode_dictionaries(compared.derived, compared.derived.column_names).combine_chunks()
        stored = increment_rows.list_affected_rows(form, compared._replace(derived=compared.current.slice(0, 0)))
    packed = pa.table({STORED: stored.select(form.columns).to_struct_array(), SIDE: stored.column(SIDE)})
    joined = joined.append_column(SIDE, pa.repeat("derived", joined.num_rows))
    rows = pa.concat_tables([joined, packed], promote_options="default").combine_chunks()
    yield from rows.select([name for name in rows.column_names if name != SIDE] + [SIDE]).to_batches(
        task.ROWS_PER_BATCH
    )


def derive_topic_change(
    sources: ChangeReader, form: VersionIncrement, table: DeltaTable, shape: Shape, records: GivenRecords
) -> DataFrame:
    """Return what new records change in a topic's table (`version_increments.refresh_versions`), with `_change`.

    `table`: the opened one. Current rows of the records' keys that stay have the `_change` 'keep'. One row more,
    without `_change`, has in `_ties` the ties of the new records (version_ties.py).
    """
    types = _list_columns(form, table)
    schema = StructType([*types, StructField("_change", StringType()), StructField(TIES, StringType())])
    opened, work = _list_opened(form, table), partial(_find_topic_change, form)
    return _run_on_records(sources, opened, work, schema, records.flatten_all(shape, types))


def derive_affected_versions(
    sources: ChangeReader, form: VersionIncrement, table: DeltaTable, shape: Shape, records: GivenRecords
) -> DataFrame:
    """Return the affected rows of a topic's table, with `_side` (`increment_rows`); otherwise as the change."""
    types = _list_columns(form, table)
    schema = StructType([*types, StructField(SIDE, StringType())])
    opened, work = _list_opened(form, table), partial(_find_affected_versions, form)
    return _run_on_records(sources, opened, work, schema, records.flatten_all(shape, types))


class GivenRecords(NamedTuple):
    """Records of a topic: new ones, and those hidden to them, if any. `here`: the new ones, if in this process."""

    new: DataFrame
    hidden: DataFrame | None
    here: Sequence[TaskRows] | None

    def flatten_all(self, shape: Shape, types: StructType) -> DataFrame | pa.Table:
        """Return the records, flat (flat_records.py); as a table if all are in this process."""
        if self.hidden is None and self.here is not None:
            flat = flat_records.flatten_new_records(shape, types, self.here)
            return pa.concat_tables(map(collect_table, [flat] if isinstance(flat, DataFrame) else flat))
        flat = flat_records.flatten_records(shape, types, self.new, is_new=True)
        if self.hidden is None:
            return flat
        return flat.unionByName(flat_records.flatten_records(shape, types, self.hidden, is_new=False))


_RecordWork: TypeAlias = "Callable[[OpenedTables | None, Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]"


def _run_on_records(
    sources: ChangeReader, opened: OpenedTables, work: _RecordWork, schema: StructType, records: DataFrame | pa.Table
) -> DataFrame:
    """Return what some work makes of all flat records, done as by `_run_once`, and by this process only of a few."""
    if isinstance(records, pa.Table):
        batches = records.to_batches()
        if (found := _work_here(sources, opened, lambda here: work(here, batches), schema)) is not None:
            return found
        records = sources.spark.createDataFrame(records)
    return sources.cache_rows(map_in_workers(records.repartition(1), partial(work, None), schema))


TIES = "_ties"
"""The column with the ties of new records, in a row of its own (`derive_topic_change`)."""


def _find_topic_change(
    form: VersionIncrement, here: OpenedTables | None, given: Iterable[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """Yield the change and the ties, for Spark's mapInArrow."""
    from hindcast.engine import increment_rows, task, version_ties

    with task.refuse_too_large():
        if (refreshed := _refresh_versions(form, here, given)) is None:
            return
        records, compared = refreshed
        rows = increment_rows.diff_rows(form, compared, with_kept=True)
        ties = version_ties.count_ties_of_increment(form, records, compared.current)
    yield from _add_summary(rows, TIES, pa.array([ties.as_text()]))


def _find_affected_versions(
    form: VersionIncrement, here: OpenedTables | None, given: Iterable[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """Yield the affected rows, for Spark's mapInArrow."""
    from hindcast.engine import increment_rows, task

    with task.refuse_too_large():
        if (refreshed := _refresh_versions(form, here, given)) is None:
            return
        rows = increment_rows.list_affected_rows(form, refreshed[1])
    yield from rows.to_batches(task.ROWS_PER_BATCH)


def _refresh_versions(
    form: VersionIncrement, here: OpenedTables | None, given: Iterable[pa.RecordBatch]
) -> tuple[pa.Table, Comparison] | None:
    """Return new and hidden records, and the comparison of a topic's versions; None if there are no records."""
    from hindcast.engine import slice_reader, task, version_increments

    if (records := task.collect_rows(given, form.output)) is None:
        return None
    read_view = partial(slice_reader.read_near, form.view, here=here)
    return records, version_increments.refresh_versions(form, records, read_view)
