"""Processors of joins and of views of one input: from the rows of a task to results and state."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from hindcast.common.jit import NOTHING
from hindcast.streams import foreign_key, join_buffer, stream_stream, stream_table, suppress, table_table, tables
from hindcast.streams.depth_first import Turns, find_first_readers
from hindcast.streams.records import Records
from hindcast.streams.spec import (
    ProcessorOutput,
    ProcessorSpec,
    merge_outputs,
    partition_clock_rows,
    partition_state_rows,
)
from hindcast.streams.tables import OLD_VALUES_MATERIALIZED, JoinSide, TableChanges, TableStore, TransformStep
from hindcast.streams.task_rows import TaskRows
from hindcast.streams.versioned import empty_store_state

if TYPE_CHECKING:
    from hindcast.common.jit import Integers

NULL_KEY = "a null key in a left join with grace"
"""The error of a task; the place of the record follows: the number of its topic, partition, offset."""

NULL_KEY_FIX = "give the record a key, or drop grace: a left join without it emits the record with a null right"


def process_table_side(spec: ProcessorSpec, rows: TaskRows, side: int, asks: int) -> tuple[JoinSide, list[pa.Table]]:
    """Return an input that is a table as a side of a join, and the rows of its store's state.

    `asks`: which old values the operator needs (`tables.NO_OLD_VALUES` and following).
    """
    store = (spec.stores or {})[side]
    table_store = TableStore(rows.store_state(f"store {side}", f"reached {side}"), store.bound)
    numbers = rows.records(side)
    numbers = numbers[rows.key[numbers] != NOTHING]
    route = spec.input_routes[side] if spec.input_routes else None
    puts = find_first_readers(rows.column("order"), numbers, route.put) if route else numbers
    changes, stored = tables.materialize_source(
        numbers, rows.key[numbers], rows.time[numbers], rows.value[numbers], table_store, rows.home, puts
    )
    if route and route.sends_old_values:
        changes = changes._replace(before=rows.old_value_rows(changes.order))
    if spec.filters or not rows.passes[numbers].all():
        leaves_out = tables.plan_tombstone_drops(
            [TransformStep(True, False)], source_materialized=True, versioned=[store.versioned], asks=asks
        )
        changes = tables.filter_changes(changes, rows.passes, leaves_out=leaves_out[0])
    state = stored.state
    put = state.value != NOTHING
    state_numbers = np.where(put, state.value, rows.find_key_rows(state.key))
    # The key of an aggregate's results is the group, which a tombstone does not have.
    more: dict[str, pa.Array] = {"side": pa.repeat(side, len(state_numbers))}
    if spec.operator == "aggregate":
        more["key"] = rows.keys(np.where(put, state_numbers, NOTHING))
    return JoinSide(changes, stored, rows.passes), [
        rows.build_state_rows(
            f"store {side}", state_numbers, time=state.time, n=state.latest.astype(np.int64), put=put, **more
        ),
        rows.build_clock_rows(f"reached {side}", state.stream_time),
    ]


def process_stream(_spec: ProcessorSpec, rows: TaskRows) -> tuple[ProcessorOutput, list[pa.Table]]:
    """Return the records of a stream that pass; a stream has no state."""
    numbers = rows.records(0)
    numbers = numbers[rows.put[numbers] & rows.passes[numbers]]
    nothing = np.full(len(numbers), NOTHING)
    return ProcessorOutput(
        numbers, rows.key[numbers], numbers, nothing, rows.time[numbers], rows.put[numbers] & False
    ), []


def process_table(spec: ProcessorSpec, rows: TaskRows) -> tuple[ProcessorOutput, list[pa.Table]]:
    """Return the changes that a table passes on, suppressed if so specified, and the rows of its state."""
    side, state_tables = process_table_side(spec, rows, 0, tables.NO_OLD_VALUES)
    changes = side.changes
    if spec.suppress is not None:
        return _suppress_changes(spec, rows, changes, state_tables)
    nothing, before = np.full(len(changes.key), NOTHING), changes.before if spec.sends_old_values else None
    return ProcessorOutput(
        changes.order, changes.key, changes.value, nothing, changes.time, changes.value == NOTHING, before_first=before
    ), state_tables


def _suppress_changes(
    spec: ProcessorSpec, rows: TaskRows, changes: TableChanges, state_tables: list[pa.Table]
) -> tuple[ProcessorOutput, list[pa.Table]]:
    """Return the changes that suppression releases, and `state_tables` with its buffer added."""
    outs, reached = [], rows.read_clock("reached suppression")
    for partition in rows.present:
        own_changes = changes.where(rows.home[changes.key] == partition)
        held = partition_state_rows(rows, "suppressed", partition)
        # A tombstone has no row of its own: it is the record's, without a value.
        updates = Records(own_changes.order, own_changes.key, own_changes.value, own_changes.time)
        before = _select_records(rows, held)
        largest = int(reached[partition])
        out, state = suppress.suppress_updates(
            updates, spec.suppress or 0, suppress.SuppressState(rows.n[held], before, largest)
        )
        nothing = np.full(len(out.key), NOTHING)
        tombstone = out.value == NOTHING
        outs.append(
            ProcessorOutput(out.cause, out.key, out.value, nothing, out.timestamp, tombstone, headers=out.update)
        )
        order, put = state.update.order, state.update.value != NOTHING
        state_tables.append(
            rows.build_state_rows(
                "suppressed", order, time=state.update.timestamp, n=state.place, put=put, headers=True
            )
        )
        state_tables.append(partition_clock_rows(rows, "reached suppression", partition, state.largest))
    return merge_outputs(outs), state_tables


def process_stream_table_join(spec: ProcessorSpec, rows: TaskRows) -> tuple[ProcessorOutput, list[pa.Table]]:
    """Return the results of a stream-table join, and the rows of its state: the table's store and the buffer.

    ValueError, beginning with NULL_KEY, for the record on which Kafka Streams fails.
    """
    side, state_tables = process_table_side(spec, rows, 1, tables.NO_OLD_VALUES)
    events = _select_records(rows, rows.records(0))
    if spec.grace is not None:
        events = _release_buffered(spec, rows, events, state_tables)
    matches = stream_table.join_stream_table(events, side, "inner" if spec.how == "inner" else "left", rows.home)
    order, key, value, time = events.take(matches.event)
    # The headers are the event's own, not those of the record that releases it from a buffer.
    return ProcessorOutput(order, key, value, matches.right, time, value == NOTHING, headers=value), state_tables


def _select_records(rows: TaskRows, numbers: Integers) -> Records:
    """Return the records in the rows with these numbers."""
    return Records(numbers, rows.key[numbers], rows.value[numbers], rows.time[numbers])


def _release_buffered(spec: ProcessorSpec, rows: TaskRows, events: Records, state_tables: list[pa.Table]) -> Records:
    """Return events in the order in which the grace period releases them; add the buffer to `state_tables`."""
    released, reached = [], rows.read_clock("reached buffer")
    for partition in rows.present:
        held = partition_state_rows(rows, "buffer", partition)
        held = held[np.argsort(rows.n[held])]
        records = events.take(rows.partition[events.order] == partition)
        before = _select_records(rows, held)
        largest = int(reached[partition])
        out, state = join_buffer.release_records(
            records, spec.grace or 0, spec.how, join_buffer.BufferState(before, largest)
        )
        if out.failed != NOTHING:
            place = rows.column("order")[int(out.failed)].as_py()
            raise ValueError(f"{NULL_KEY}: {place['topic']}, {place['partition']}, {place['offset']}")
        released.append(out.records._replace(order=out.cause))
        row = state.records.order
        n = np.arange(len(row))
        state_tables.append(
            rows.build_state_rows("buffer", row, time=rows.time[row], n=n, put=rows.put[row], headers=True)
        )
        state_tables.append(partition_clock_rows(rows, "reached buffer", partition, state.largest))
    merged = Records(*(np.concatenate(columns) for columns in zip(*released, strict=True)))
    return merged.take(np.argsort(merged.order, kind="stable"))


def process_table_table_join(spec: ProcessorSpec, rows: TaskRows) -> tuple[ProcessorOutput, list[pa.Table]]:
    """Return the results of a table-table join on the primary key, and the rows of its state."""
    left, left_state = process_table_side(
        spec, rows, 0, OLD_VALUES_MATERIALIZED if spec.how != "inner" else tables.NO_OLD_VALUES
    )
    right, right_state = process_table_side(
        spec, rows, 1, OLD_VALUES_MATERIALIZED if spec.how == "outer" else tables.NO_OLD_VALUES
    )
    return _emit_join(
        spec, rows, table_table.join_table_table(left, right, spec.how, rows.home), [*left_state, *right_state]
    )


def process_foreign_key_join(spec: ProcessorSpec, rows: TaskRows) -> tuple[ProcessorOutput, list[pa.Table]]:
    """Return the results of a foreign-key join, and the rows of its state: both stores and the subscriptions."""
    left, left_state = process_table_side(spec, rows, 0, OLD_VALUES_MATERIALIZED)
    right, right_state = process_table_side(spec, rows, 1, OLD_VALUES_MATERIALIZED)
    held = rows.state_rows("subscribed")
    before = foreign_key.Subscriptions(rows.other[held], rows.key[held], held)
    content, hashes = None, np.empty(0, np.int64)
    if spec.input_routes:
        turns, hashes = Turns.read(rows.column("order")), rows.integers("start")
        content = foreign_key.SubscriptionHashes(turns.root, turns.steps[:, 0], hashes)
    joined, subscriptions = foreign_key.join_foreign_key(
        left.changes, right, rows.other, "inner" if spec.how == "inner" else "left", before, rows.home, content
    )
    row = subscriptions.value
    columns: dict[str, pa.Array] = {"start": pa.array(hashes[row])} if spec.input_routes else {}
    right_state.append(
        rows.build_state_rows("subscribed", row, time=rows.time[row], n=rows.n[row], put=rows.put[row], **columns)
    )
    return _emit_join(spec, rows, joined, [*left_state, *right_state])


def _emit_join(
    spec: ProcessorSpec, rows: TaskRows, joined: table_table.TableJoinResults, state_tables: list[pa.Table]
) -> tuple[ProcessorOutput, list[pa.Table]]:
    """Return the results of a join that the store of its result accepts, and `state_tables` with its clock added.

    Which ones the store rejects follows from its stream time alone.
    """
    if spec.result is not None and spec.result.versioned:
        # Values are the numbers of results here; they show which ones the store passes on.
        number = np.arange(len(joined.key))
        nothing = np.full(len(number), NOTHING)
        changes = TableChanges(joined.cause, joined.key, number, nothing, joined.time, nothing == NOTHING)
        # rule: the stream time of a result's store lasts over runs
        store = TableStore(
            empty_store_state(rows.partition_count)._replace(stream_time=rows.read_clock("reached result")),
            spec.result.bound,
        )
        passed, stored = tables.materialize_changes(changes, store, rows.home)
        joined = joined.take(passed.value)
        state_tables = [*state_tables, rows.build_clock_rows("reached result", stored.state.stream_time)]
    tombstone = (joined.left == NOTHING) & (joined.right == NOTHING)
    before = {"before_first": joined.left_before, "before_second": joined.right_before} if spec.sends_old_values else {}
    return ProcessorOutput(
        joined.cause, joined.key, joined.left, joined.right, joined.time, tombstone, **before
    ), state_tables


def process_stream_stream_join(spec: ProcessorSpec, rows: TaskRows) -> tuple[ProcessorOutput, list[pa.Table]]:
    """Return the pairs of a stream-stream join, and the rows of its state: the records that can still be joined."""
    outs, state_tables = [], []
    side = np.where(rows.side == 0, stream_stream.LEFT, stream_stream.RIGHT)
    arrival, reached = rows.integers("start"), [rows.read_clock(f"reached {name}") for name in _CLOCKS]
    for partition in rows.present:
        arrived = partition_state_rows(rows, "", partition)
        records = stream_stream.JoinRecords(
            arrived, side[arrived], rows.key[arrived], rows.value[arrived], rows.time[arrived]
        )
        held = partition_state_rows(rows, "joinable", partition)
        held = held[np.argsort(arrival[held])]
        times = np.array([numbers[partition] for numbers in reached])
        before = stream_stream.StreamJoinState(
            side[held], rows.key[held], held, rows.time[held], rows.n[held] > 0, times
        )
        out, state = stream_stream.join_stream_stream(
            records, spec.span or stream_stream.JoinWindows(0, 0, 0), spec.how, before
        )
        outs.append(ProcessorOutput(out.cause, out.key, out.left, out.right, out.timestamp, out.cause == NOTHING))
        state_tables.append(
            rows.build_state_rows(
                "joinable",
                state.value,
                time=state.timestamp,
                n=state.waiting.astype(np.int64),
                put=rows.put[state.value],
                start=np.arange(len(state.value)),
            )
        )
        state_tables += [
            partition_clock_rows(rows, f"reached {name}", partition, int(at))
            for name, at in zip(_CLOCKS, state.times, strict=True)
        ]
    return merge_outputs(outs), state_tables


_CLOCKS = ("stream time", "right", "left", "noted")
