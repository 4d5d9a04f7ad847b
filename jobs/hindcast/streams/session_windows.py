"""Session windows (docs/kafka-parity.md, rules 54, 55, 57).

A session is [start, end], both inclusive. The sessions of a key that the store shows lie further apart than the gap, so
that a record meets at most two: one on each side.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from hindcast.common.jit import NOTHING, compile_loop, ensure_room
from hindcast.streams.aggregation_tree import ADD, MERGE
from hindcast.streams.slot_index import (
    build_index,
    find_at_or_above,
    find_first_slot,
    rank_rows,
    release_slot,
    take_slot,
)
from hindcast.streams.windowed import FoldResult, WindowRows, window_updates

if TYPE_CHECKING:
    from hindcast.common.jit import Booleans, Integers
    from hindcast.streams.windowed import FoldTask


@dataclass(frozen=True)
class SessionWindows:
    """Session windows; lengths in ms. `retention` of the store: None for the default."""

    gap: int
    grace: int
    retention: int | None = None

    ends_inclusive = True
    stored_by_end = True
    takes_nulls = True  # rule: null values are aggregated
    keeps_headers = False

    @property
    def lag(self) -> int:
        return self.gap + self.grace

    @property
    def store_retention(self) -> int:
        return self.gap + self.grace if self.retention is None else self.retention

    def is_retained(self, stored: Integers, written: Integers) -> Booleans:
        """Return whether the store still has the segment of a session: a scan does not look at the retention itself."""
        segment = max(self.store_retention // 2, 60_000)  # rule: a segment is at least a minute long
        return stored // segment >= (written - self.store_retention) // segment

    def fold_records(self, task: FoldTask) -> FoldResult:
        records, stored = task.records, task.state.windows
        # rule: the store's reach is one short of its retention
        count, behind = len(stored.key), self.store_retention - 1
        keys, ends = np.append(stored.key, records.key), np.append(stored.end, records.timestamp)
        place, row = rank_rows(keys, ends)
        keys, ends = keys[row], ends[row]
        starts, nodes = np.empty(len(row), np.int64), np.empty(len(row), np.int64)
        starts[place[:count]], nodes[place[:count]] = stored.start, stored.node
        taken = build_index(len(row), place[:count])
        rows, grown, written = _fold_sessions(
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
            task.state.written,
            self.gap,
            behind,
            task.reduce,
        )
        remaining = np.flatnonzero(taken[len(taken) // 2 :])
        remaining = remaining[ends[remaining] >= written - behind]
        windows = WindowRows(keys[remaining], starts[remaining], ends[remaining], nodes[remaining], ends[remaining])
        return FoldResult(window_updates(rows), grown, windows)


@compile_loop
def _fold_sessions(
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
    """Return rows of results, all nodes, and W; update the sessions in their slots (`keys` to `taken`).

    `own` is the slot of a session that ends with the record, `close` the earliest end of a session that can take it.
    """
    rows, count, used = np.empty((0, 6), np.int64), 0, grown.shape[0]
    for record in range(key.shape[0]):
        moment = timestamp[record]
        # rule: sessions a gap apart merge, in the store's reach
        lowest = find_first_slot(keys, ends, key[record], max(moment - gap, written - behind))
        start, end, node, place, met, before = moment, moment, NOTHING, own[record], 0, used
        session = find_at_or_above(taken, lowest)
        while session != NOTHING and keys[session] == key[record] and starts[session] <= moment + gap:
            grown = ensure_room(grown, used)
            grown[used, 0], grown[used, 1], grown[used, 2] = MERGE, node, nodes[session]
            node, met, used = used, met + 1, used + 1
            start = min(start, starts[session])
            if ends[session] > end:
                end, place = ends[session], session
            session = find_at_or_above(taken, session + 1)
        if end < close[record]:  # rule: a session that ends at T - grace - gap takes records
            used = before
            continue
        if start != end:  # rule: a session that grows has a tombstone
            for _ in range(met):
                session = find_at_or_above(taken, lowest)
                release_slot(taken, session)
                rows = ensure_room(rows, count)
                rows[count, 0], rows[count, 1], rows[count, 2] = record, key[record], starts[session]
                # rule: a tombstone has the time of its session's end
                rows[count, 3], rows[count, 4], rows[count, 5] = ends[session], NOTHING, ends[session]
                count += 1
        if node != NOTHING or not reduce or value[record] != NOTHING:
            grown = ensure_room(grown, used)
            grown[used, 0], grown[used, 1], grown[used, 2] = ADD, node, value[record]
            node, used = used, used + 1
            take_slot(taken, place)
            starts[place], nodes[place] = start, node
        written = max(written, end)
        rows = ensure_room(rows, count)
        rows[count, 0], rows[count, 1], rows[count, 2] = record, key[record], start
        rows[count, 3], rows[count, 4], rows[count, 5] = end, node, end
        count += 1
    return rows[:count], grown[:used], written
