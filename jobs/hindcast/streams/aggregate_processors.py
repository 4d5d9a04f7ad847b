"""Processors of aggregates: from the rows of a task to results and state."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from hindcast.common.jit import NOTHING
from hindcast.streams import aggregates, emit_strategy, measures, windowed
from hindcast.streams.join_processors import process_table_side
from hindcast.streams.records import Records
from hindcast.streams.spec import (
    ProcessorOutput,
    ProcessorSpec,
    StoreSpec,
    merge_outputs,
    partition_clock_rows,
    partition_state_rows,
)
from hindcast.streams.tables import OLD_VALUES_MATERIALIZED
from hindcast.streams.task_rows import TaskRows

if TYPE_CHECKING:
    from hindcast.common.jit import Integers


def process_aggregate(spec: ProcessorSpec, rows: TaskRows) -> tuple[ProcessorOutput, list[pa.Table]]:
    """Return the results of an aggregate without windows, and the rows of its state."""
    contributions, state_tables = _read_contributions(spec, rows)
    store = spec.result or StoreSpec(versioned=False)
    grouped = 0 in (spec.stores or {})
    before = rows.store_state("aggregate", "reached aggregate")
    if grouped:
        before = before._replace(key=rows.other[rows.state_rows("aggregate")])
    result = aggregates.aggregate_contributions(contributions, before, rows.home, store.bound)
    computed = _compute_measures(spec, rows, result.nodes, rows.state_rows("aggregate"))
    changes, state = result.changes, result.state
    nothing, tombstone = np.full(len(changes.key), NOTHING), changes.value == NOTHING
    measured = take_measures(computed, changes.value)
    out = ProcessorOutput(changes.order, changes.key, nothing, nothing, changes.time, tombstone, measures=measured)
    key_rows = rows.find_key_rows(state.key, others=grouped)
    names = (
        {"other": "other", "home": "home", "partition": "home"} if grouped else {"id": "id", "partition": "partition"}
    )
    state_tables.append(
        rows.take(
            {"key": key_rows},
            part=pa.repeat("aggregate", len(key_rows)),
            time=state.time,
            n=state.latest.astype(np.int64),
            put=state.value != NOTHING,
            measures=take_measures(computed, state.value),
            **{name: rows.column(source).take(pa.array(key_rows)) for name, source in names.items()},
        )
    )
    state_tables.append(rows.build_clock_rows("reached aggregate", state.stream_time))
    return out, state_tables


def _read_contributions(spec: ProcessorSpec, rows: TaskRows) -> tuple[aggregates.Contributions, list[pa.Table]]:
    """Return the contributions of the input, and the state rows of its store if it is a table."""
    if spec.stores and 0 in spec.stores:
        side, state_tables = process_table_side(spec, rows, 0, OLD_VALUES_MATERIALIZED)
        return aggregates.table_contributions(side.changes, rows.other), state_tables
    numbers = rows.records(0)
    numbers = numbers[rows.passes[numbers]]
    return aggregates.stream_contributions(numbers, rows.key[numbers], rows.time[numbers], rows.value[numbers]), []


def process_windowed_aggregate(spec: ProcessorSpec, rows: TaskRows) -> tuple[ProcessorOutput, list[pa.Table]]:
    """Return the results of a windowed aggregate, and the rows of its state: windows that are stored, or wait."""
    outs, state_tables = [], []
    if spec.windows is None:
        raise ValueError("the spec of a windowed aggregate has no windows")
    numbers = rows.records(0)
    start, end = rows.integers("start"), rows.integers("end")
    stream_time, written = rows.read_clock("reached T"), rows.read_clock("reached W")
    for partition in rows.present:
        # rule: windows are aggregated by partition
        taken = numbers[(rows.partition[numbers] == partition) & rows.passes[numbers]]
        stored, waiting = (partition_state_rows(rows, part, partition) for part in ("window", "waiting"))
        stored, waiting = (some[np.lexsort((end[some], start[some], rows.key[some]))] for some in (stored, waiting))
        before = windowed.WindowState(
            int(stream_time[partition]),
            int(written[partition]),
            windowed.WindowRows(
                rows.key[stored], start[stored], end[stored], np.arange(len(stored)), rows.time[stored]
            ),
            windowed.WaitingWindows(
                rows.key[waiting],
                start[waiting],
                end[waiting],
                len(stored) + np.arange(len(waiting)),
                rows.time[waiting],
                waiting,
            ),
        )
        records = Records(taken, rows.key[taken], rows.value[taken], rows.time[taken])
        out, nodes, state = emit_strategy.aggregate_windows(spec.windows, spec.emit, records, before)
        computed = _compute_measures(spec, rows, nodes, np.concatenate((stored, waiting)))
        nothing = np.full(len(out.key), NOTHING)
        measured = take_measures(computed, out.value)
        tombstone = out.value == NOTHING
        window = (out.start, out.end)
        outs.append(
            ProcessorOutput(
                out.cause, out.key, nothing, nothing, out.timestamp, tombstone, *window, measured, headers=out.headers
            )
        )
        no_headers = np.full(len(state.windows.key), NOTHING)
        for part, part_rows, headers in (
            ("window", state.windows, no_headers),
            ("waiting", state.waiting, state.waiting.headers),
        ):
            key_rows = rows.find_key_rows(part_rows.key)
            state_tables.append(
                rows.take(
                    {"key": key_rows, "id": key_rows, "partition": key_rows, "headers": headers},
                    part=pa.repeat(part, len(key_rows)),
                    start=part_rows.start,
                    end=part_rows.end,
                    time=part_rows.timestamp,
                    put=part_rows.node != NOTHING,
                    measures=take_measures(computed, part_rows.node),
                )
            )
        state_tables += [
            partition_clock_rows(rows, "reached T", partition, state.stream_time),
            partition_clock_rows(rows, "reached W", partition, state.written),
        ]
    return merge_outputs(outs), state_tables


def _compute_measures(spec: ProcessorSpec, rows: TaskRows, nodes: Integers, state_rows: Integers) -> pa.StructArray:
    """Return, for each node, the parts of its measures. `state_rows`: the rows that KEPT nodes refer to."""
    numbers, before = rows.column("numbers"), rows.column("measures").take(pa.array(state_rows))
    parts = measures.measure_parts(spec.measures)
    names = [field.name for field in before.type]
    arrays = [
        measures.evaluate_part(part, nodes, numbers.field(part.argument), before.field(name)).cast(field.type)
        for part, name, field in zip(parts, names, before.type, strict=True)
    ]
    return pa.StructArray.from_arrays(arrays, fields=list(before.type))


def take_measures(computed: pa.StructArray, nodes: Integers) -> pa.Array:
    """Return the measures of some nodes, null for NOTHING."""
    return computed.take(pa.array(nodes, mask=nodes == NOTHING))
