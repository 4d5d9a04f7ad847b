"""Session windows (the vectors' README, Windowed aggregation).

A session is [start, end], both inclusive. Of one key, those that the store shows lie further apart than the gap, so
that a record meets two at most: one on each side.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from hindcast.compiled import NOTHING, compiled, room
from hindcast.emits.folds import ADD, MERGE
from hindcast.emits.places import at_or_above, first, leave, ranked, take, taken_at
from hindcast.emits.windowed import Fold, Rows, results

if TYPE_CHECKING:
    from hindcast.compiled import Booleans, Integers
    from hindcast.emits.windowed import Task


@dataclass(frozen=True)
class SessionWindows:
    gap: int
    grace: int
    retention: int | None = None

    ends_inclusive = True
    stored_by_end = True
    takes_nulls = True
    keeps_headers = False

    @property
    def lag(self) -> int:
        return self.gap + self.grace

    @property
    def store_retention(self) -> int:
        return self.gap + self.grace if self.retention is None else self.retention

    def has(self, stored: Integers, written: Integers) -> Booleans:
        """A scan does not look at the retention. So what counts is whether the store has dropped the segment."""
        segment = max(self.store_retention // 2, 60_000)
        return stored // segment >= (written - self.store_retention) // segment

    def fold(self, task: Task) -> Fold:
        records, kept = task.records, task.kept.windows
        count, behind = len(kept.key), self.store_retention - 1
        keys, ends = np.append(kept.key, records.key), np.append(kept.end, records.timestamp)
        place, row = ranked(keys, ends)
        keys, ends = keys[row], ends[row]
        starts, nodes = np.empty(len(row), np.int64), np.empty(len(row), np.int64)
        starts[place[:count]], nodes[place[:count]] = kept.start, kept.node
        taken = taken_at(len(row), place[:count])
        rows, grown, written = _folded(
            records.key,
            records.value,
            records.timestamp,
            task.stream_time - self.lag,
            place[count:],
            keys,
            ends,
            starts,
            nodes,
            taken,
            task.nodes,
            task.kept.written,
            self.gap,
            behind,
            task.reduce,
        )
        there = np.flatnonzero(taken[len(taken) // 2 :])
        there = there[ends[there] >= written - behind]
        windows = Rows(keys[there], starts[there], ends[there], nodes[there], ends[there])
        return Fold(results(rows), grown, windows)


@compiled
def _folded(
    key: Integers,
    value: Integers,
    timestamp: Integers,
    close: Integers,
    own: Integers,
    keys: Integers,
    ends: Integers,
    starts: Integers,
    nodes: Integers,
    taken: Booleans,
    grown: Integers,
    written: int,
    gap: int,
    behind: int,
    reduce: bool,
) -> tuple[Integers, Integers, int]:
    """Rows of results, all nodes, and W. The sessions at their places (from `keys` to `taken`) follow.

    `own` is the place of a session that ends with the record, `close` the end that a session must have to take it.
    """
    rows, count, used = np.empty((0, 6), np.int64), 0, grown.shape[0]
    for record in range(key.shape[0]):
        moment = timestamp[record]
        lowest = first(keys, ends, key[record], max(moment - gap, written - behind))
        start, end, node, place, met, before = moment, moment, NOTHING, own[record], 0, used
        found = at_or_above(taken, lowest)
        while found != NOTHING and keys[found] == key[record] and starts[found] <= moment + gap:
            grown = room(grown, used)
            grown[used, 0], grown[used, 1], grown[used, 2] = MERGE, node, nodes[found]
            node, met, used = used, met + 1, used + 1
            start = min(start, starts[found])
            if ends[found] > end:
                end, place = ends[found], found
            found = at_or_above(taken, found + 1)
        if end < close[record]:
            used = before
            continue
        if start != end:
            for _ in range(met):
                found = at_or_above(taken, lowest)
                leave(taken, found)
                rows = room(rows, count)
                rows[count, 0], rows[count, 1], rows[count, 2] = record, key[record], starts[found]
                rows[count, 3], rows[count, 4], rows[count, 5] = ends[found], NOTHING, ends[found]
                count += 1
        if node != NOTHING or not reduce or value[record] != NOTHING:
            grown = room(grown, used)
            grown[used, 0], grown[used, 1], grown[used, 2] = ADD, node, value[record]
            node, used = used, used + 1
            take(taken, place)
            starts[place], nodes[place] = start, node
        written = max(written, end)
        rows = room(rows, count)
        rows[count, 0], rows[count, 1], rows[count, 2] = record, key[record], start
        rows[count, 3], rows[count, 4], rows[count, 5] = end, node, end
        count += 1
    return rows[:count], grown[:used], written
