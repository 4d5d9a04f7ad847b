"""A task: the rows of one or several partitions through the operator of a view. Arrow in, Arrow out."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from hindcast.compiled import NOTHING
from hindcast.emits import aggregating, joining
from hindcast.emits.depth import sort_by_place
from hindcast.emits.form import Form, Out
from hindcast.emits.rows import Rows

if TYPE_CHECKING:
    from hindcast.compiled import Integers


def process(form: Form, table: pa.Table) -> pa.Table:
    """What the rows of a task emit, and what they leave, as `Rows` has them; `put` is false for a tombstone.

    A tombstone `passes` if it is a value that does not pass the view's condition: a store has it. Raises ValueError,
    its text beginning with NULL_KEY, for the record on which Kafka Streams fails.
    """
    rows = Rows(sort_by_place(table, form.ways) if form.ways else table)
    emitted, kept = _OPERATORS[form.operator](form, rows)
    return pa.concat_tables([*_emitted(form, rows, emitted), *kept])


def _emitted(form: Form, rows: Rows, out: Out) -> list[pa.Table]:
    """Emitted rows, numbered by partition: their offsets; and the last of these.

    The key of a result is that of the row that has it, or of one with the same code.
    """
    grouped = form.operator == "aggregate" and 0 in (form.stores or {})
    # What comes of one event has the event's key; it may be looked up, and stored, by another one.
    of_event = form.operator in ("stream", "stream_table")
    key = out.first if of_event else np.where(out.key == NOTHING, NOTHING, rows.named(out.key, others=grouped))
    partition = np.where(out.key == NOTHING, rows.partition[out.cause], np.append(rows.home, NOTHING)[out.key])
    more: dict[str, Any] = {} if out.measures is None else {"measures": out.measures}
    if out.start is not None:
        more |= {"start": out.start, "end": out.end}
    for side, before in (("first", out.before_first), ("second", out.before_second)):
        if before is not None and side in rows.table.column_names:
            more[f"before_{side}"] = rows.column(side).take(pa.array(before, mask=before == NOTHING))
    filtered = out.tombstone & rows.put[out.cause] & (form.operator == "table")
    named = rows.column("other" if grouped else "id").take(pa.array(key, mask=key == NOTHING))
    number, reached = _numbered(partition, rows.reached("emitted"))
    return [
        rows.clock("emitted", reached),
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
            order=rows.causes(out.cause),
            **more,
        ),
    ]


def _numbered(partition: Integers, reached: Integers) -> tuple[Integers, Integers]:
    """The offsets of what is emitted, each partition going on after the one it has `reached`; and the last ones."""
    order = np.argsort(partition, kind="stable")
    starts = np.searchsorted(partition[order], np.arange(len(reached)))
    number = np.empty(len(partition), np.int64)
    number[order] = np.arange(len(partition)) - starts[partition[order]] + reached[partition[order]] + 1
    return number, reached + np.bincount(partition, minlength=len(reached))


_OPERATORS: Mapping[str, Callable[[Form, Rows], tuple[Out, list[pa.Table]]]] = {
    "stream": joining.stream,
    "table": joining.table_alone,
    "stream_table": joining.stream_with_table,
    "table_table": joining.tables_by_key,
    "foreign_key": joining.tables_by_foreign_key,
    "pairs": joining.streams,
    "aggregate": aggregating.aggregate,
    "windows": aggregating.windows,
}


def batches(form: Form) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """`process` as Spark's mapInArrow takes it."""

    def mapped(given: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        some = list(given)
        if some:
            yield from process(form, pa.Table.from_batches(some)).to_batches(max_chunksize=100_000)

    return mapped
