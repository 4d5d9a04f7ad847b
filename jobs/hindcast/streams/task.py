"""A task: the rows of one or several partitions, processed by the operator of a view. Arrow in, Arrow out."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from hindcast.common.jit import NOTHING
from hindcast.common.spark_workers import BatchConverter
from hindcast.streams import aggregate_processors, join_processors
from hindcast.streams.depth_first import sort_depth_first
from hindcast.streams.spec import ProcessorOutput, ProcessorSpec
from hindcast.streams.task_rows import TaskRows

if TYPE_CHECKING:
    from hindcast.common.jit import Integers
    from hindcast.streams.task_rows import ColumnArray


def process_task(spec: ProcessorSpec, table: pa.Table) -> pa.Table:
    """Return the rows that a task emits, and the rows of its state; columns as in `table` (`task_rows`).

    `put` is false for a tombstone. A tombstone `passes` if it stands for a value that does not pass the view's
    condition: a store has that. ValueError, beginning with NULL_KEY, for the record on which Kafka Streams fails.
    """
    rows = TaskRows(sort_depth_first(table, spec.input_routes) if spec.input_routes else table)
    emitted, state_tables = _OPERATORS[spec.operator](spec, rows)
    return pa.concat_tables([*_build_emitted_rows(spec, rows, emitted), *state_tables])


def _build_emitted_rows(spec: ProcessorSpec, rows: TaskRows, out: ProcessorOutput) -> list[pa.Table]:
    """Return the emitted rows, with offsets by partition, and the state rows of the last offsets.

    The key of a result is taken from a row with the same key code.
    """
    grouped = spec.operator == "aggregate" and 0 in (spec.stores or {})
    # The result of an event has the event's key, even if it was looked up and stored by another one.
    of_event = spec.operator in ("stream", "stream_table")
    key = out.first if of_event else np.where(out.key == NOTHING, NOTHING, rows.find_key_rows(out.key, others=grouped))
    partition = np.where(out.key == NOTHING, rows.partition[out.cause], np.append(rows.home, NOTHING)[out.key])
    more: dict[str, ColumnArray] = {} if out.measures is None else {"measures": out.measures}
    if out.start is not None:
        more |= {"start": out.start, "end": out.end}
    for side, before in (("first", out.before_first), ("second", out.before_second)):
        if before is not None and side in rows.table.column_names:
            more[f"before_{side}"] = rows.column(side).take(pa.array(before, mask=before == NOTHING))
    filtered = out.tombstone & rows.put[out.cause] & (spec.operator == "table")
    named = rows.column("other" if grouped else "id").take(pa.array(key, mask=key == NOTHING))
    # rule: the offsets of results go on over runs
    number, reached = _assign_offsets(partition, rows.read_clock("emitted"))
    return [
        rows.build_clock_rows("emitted", reached),
        rows.take(
            {
                "key": key,
                "first": out.first,
                "second": out.second,
                "headers": out.cause if out.headers is None else out.headers,
            },
            id=named,
            partition=partition,
            time=out.time,
            n=number,
            put=~out.tombstone,
            passes=filtered,
            order=rows.emitted_order(out.cause),
            **more,
        ),
    ]


def _assign_offsets(partition: Integers, reached: Integers) -> tuple[Integers, Integers]:
    """Return the offsets of emitted rows, counted from after `reached` in each partition, and the last ones."""
    order = np.argsort(partition, kind="stable")
    starts = np.searchsorted(partition[order], np.arange(len(reached)))
    number = np.empty(len(partition), np.int64)
    number[order] = np.arange(len(partition)) - starts[partition[order]] + reached[partition[order]] + 1
    return number, reached + np.bincount(partition, minlength=len(reached))


_OPERATORS: Mapping[str, Callable[[ProcessorSpec, TaskRows], tuple[ProcessorOutput, list[pa.Table]]]] = {
    "stream": join_processors.process_stream,
    "table": join_processors.process_table,
    "stream_table": join_processors.process_stream_table_join,
    "table_table": join_processors.process_table_table_join,
    "foreign_key": join_processors.process_foreign_key_join,
    "pairs": join_processors.process_stream_stream_join,
    "aggregate": aggregate_processors.process_aggregate,
    "windows": aggregate_processors.process_windowed_aggregate,
}


def build_batch_mapper(spec: ProcessorSpec) -> BatchConverter:
    """Return `process_task` as a function for Spark's mapInArrow."""

    def map_batches(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        received = list(batches)
        if received:
            yield from process_task(spec, pa.Table.from_batches(received)).to_batches(max_chunksize=100_000)

    return map_batches
