"""Tumbling and hopping windows: `TimeWindows` (the vectors' README, Windowed aggregation).

A window is [start, end), its start a multiple of the advance. It takes records while `end > T - grace`. So which
windows a record changes depends on timestamps alone, and the loop is left with what they amount to.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from hindcast.compiled import NOTHING, compiled
from hindcast.emits.folds import ADD
from hindcast.emits.places import ranked
from hindcast.emits.windowed import Fold, Results, Rows

if TYPE_CHECKING:
    from hindcast.compiled import Booleans, Integers
    from hindcast.emits.windowed import Task


@dataclass(frozen=True)
class TimeWindows:
    """Tumbling: the advance is the size."""

    size: int
    advance: int
    grace: int
    retention: int | None = None

    ends_inclusive = False
    stored_by_end = False
    takes_nulls = True
    keeps_headers = True

    @property
    def lag(self) -> int:
        return self.grace

    @property
    def store_retention(self) -> int:
        return self.size + self.grace if self.retention is None else self.retention

    def has(self, stored: Integers, written: Integers) -> Booleans:
        return stored >= written - self.store_retention

    def fold(self, task: Task) -> Fold:
        record, start = self._changes(task)
        kept, count = task.kept.windows, len(task.kept.windows.key)
        keys = np.append(kept.key, task.records.key[record])
        starts = np.append(kept.start, start)
        place, row = ranked(keys, starts)
        timestamps, nodes = np.full(len(row), NOTHING), np.full(len(row), NOTHING)
        timestamps[place[:count]], nodes[place[:count]] = kept.timestamp, kept.node

        value, timestamp = task.records.value[record], task.records.timestamp[record]
        made, latest, grown = _folded(place[count:], value, timestamp, timestamps, nodes, task.nodes, task.reduce)
        results = Results(record, keys[count:], start, start + self.size, made, latest)
        stays = (nodes != NOTHING) & (starts[row] + self.size > task.reached - self.grace)
        row = row[stays]
        windows = Rows(keys[row], starts[row], starts[row] + self.size, nodes[stays], timestamps[stays])
        return Fold(results, grown, windows)

    def _changes(self, task: Task) -> tuple[Integers, Integers]:
        """The windows that take each record, in order of start: number of the record, start."""
        timestamp, closed = task.records.timestamp, task.stream_time - self.grace
        lowest = np.maximum((np.maximum(timestamp, closed) - self.size) // self.advance + 1, 0)
        count = np.maximum(timestamp // self.advance - lowest + 1, 0)
        record = np.repeat(np.arange(len(timestamp)), count)
        nth = np.arange(len(record)) - (np.cumsum(count) - count)[record]
        return record, (lowest[record] + nth) * self.advance


@compiled
def _folded(
    window: Integers,
    value: Integers,
    timestamp: Integers,
    timestamps: Integers,
    nodes: Integers,
    before: Integers,
    reduce: bool,
) -> tuple[Integers, Integers, Integers]:
    """Node and timestamp of each result, and all nodes. `timestamps` and `nodes`, those of the windows, follow."""
    count, used = window.shape[0], before.shape[0]
    grown = np.empty((used + count, 3), np.int64)
    grown[:used] = before
    made, latest = np.empty(count, np.int64), np.empty(count, np.int64)
    for result in range(count):
        place = window[result]
        stored = nodes[place]
        if stored == NOTHING and reduce and value[result] == NOTHING:
            made[result], latest[result] = NOTHING, timestamp[result]
            continue
        grown[used, 0], grown[used, 1], grown[used, 2] = ADD, stored, value[result]
        timestamps[place] = timestamp[result] if stored == NOTHING else max(timestamps[place], timestamp[result])
        nodes[place] = used
        made[result], latest[result] = used, timestamps[place]
        used += 1
    return made, latest, grown[:used]
