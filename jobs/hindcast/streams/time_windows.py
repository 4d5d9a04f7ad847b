"""Tumbling and hopping windows: `TimeWindows` (docs/kafka-parity.md, rules 51 and 56).

A window is [start, end), its start a multiple of the advance. It takes records while `end > T - grace`. So which
windows a record changes depends on timestamps alone, and the loop only has to aggregate.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from hindcast.common.jit import NOTHING, compile_loop
from hindcast.streams.aggregation_tree import ADD
from hindcast.streams.slot_index import rank_rows
from hindcast.streams.windowed import FoldResult, WindowRows, WindowUpdates

if TYPE_CHECKING:
    from hindcast.common.jit import Booleans, Integers
    from hindcast.streams.windowed import FoldTask


@dataclass(frozen=True)
class TimeWindows:
    """Tumbling (`advance` = `size`) and hopping windows; lengths in ms. `retention` of the store: None: the default."""

    size: int
    advance: int
    grace: int
    retention: int | None = None

    ends_inclusive = False
    stored_by_end = False
    takes_nulls = True  # rule: null values are aggregated
    keeps_headers = True

    @property
    def lag(self) -> int:
        return self.grace

    @property
    def store_retention(self) -> int:
        return self.size + self.grace if self.retention is None else self.retention

    def is_retained(self, stored: Integers, written: Integers) -> Booleans:
        return stored >= written - self.store_retention  # rule: a scan finds the windows at the edge of the retention

    def fold_records(self, task: FoldTask) -> FoldResult:
        record, start = self._assign_windows(task)
        stored, count = task.state.windows, len(task.state.windows.key)
        keys = np.append(stored.key, task.records.key[record])
        starts = np.append(stored.start, start)
        place, row = rank_rows(keys, starts)
        timestamps, nodes = np.full(len(row), NOTHING), np.full(len(row), NOTHING)
        timestamps[place[:count]], nodes[place[:count]] = stored.timestamp, stored.node

        value, timestamp = task.records.value[record], task.records.timestamp[record]
        result_nodes, latest, grown = _fold_windows(
            place[count:], value, timestamp, timestamps, nodes, task.nodes, task.reduce
        )
        results = WindowUpdates(record, keys[count:], start, start + self.size, result_nodes, latest)
        # rule: windows within their grace are kept
        stays = (nodes != NOTHING) & (starts[row] + self.size > task.final_stream_time - self.grace)
        row = row[stays]
        windows = WindowRows(keys[row], starts[row], starts[row] + self.size, nodes[stays], timestamps[stays])
        return FoldResult(results, grown, windows)

    def _assign_windows(self, task: FoldTask) -> tuple[Integers, Integers]:
        """Return the windows that take each record, in order of start: number of the record, start."""
        timestamp, closed = task.records.timestamp, task.stream_time - self.grace
        # rule: a window that ends at T - grace is closed, none begins before 0
        lowest = np.maximum((np.maximum(timestamp, closed) - self.size) // self.advance + 1, 0)
        count = np.maximum(timestamp // self.advance - lowest + 1, 0)
        record = np.repeat(np.arange(len(timestamp)), count)
        nth = np.arange(len(record)) - (np.cumsum(count) - count)[record]
        return record, (lowest[record] + nth) * self.advance


@compile_loop
def _fold_windows(
    window: Integers,
    value: Integers,
    timestamp: Integers,
    timestamps: Integers,
    nodes: Integers,
    before: Integers,
    reduce: bool,
) -> tuple[Integers, Integers, Integers]:
    """Return node and timestamp of each result, and all nodes; update `timestamps` and `nodes` of the windows."""
    count, used = window.shape[0], before.shape[0]
    grown = np.empty((used + count, 3), np.int64)
    grown[:used] = before
    result_nodes, latest = np.empty(count, np.int64), np.empty(count, np.int64)
    for result in range(count):
        place = window[result]
        stored = nodes[place]
        if stored == NOTHING and reduce and value[result] == NOTHING:  # rule: a reducer's first null is not stored
            result_nodes[result], latest[result] = NOTHING, timestamp[result]
            continue
        grown[used, 0], grown[used, 1], grown[used, 2] = ADD, stored, value[result]
        # rule: a result has the latest time
        timestamps[place] = timestamp[result] if stored == NOTHING else max(timestamps[place], timestamp[result])
        nodes[place] = used
        result_nodes[result], latest[result] = used, timestamps[place]
        used += 1
    return result_nodes, latest, grown[:used]
