"""Sliding windows: `SlidingWindows` (docs/kafka-parity.md, rules 52, 53, 56).

A window is [start, start + difference], both inclusive. It ends with a record, or starts just after one. The content of
a new window follows from the existing ones: the live topology stores windows, not records. A record timestamped before
`difference` is early: no window can end with it, and it is in [0, difference].
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from hindcast.common.jit import NOTHING, compile_loop, ensure_room
from hindcast.streams.aggregation_tree import ADD
from hindcast.streams.slot_index import (
    build_index,
    find_at_or_above,
    find_at_or_below,
    find_first_slot,
    is_taken,
    rank_rows,
    take_slot,
)
from hindcast.streams.windowed import FoldResult, WindowRows, window_updates

if TYPE_CHECKING:
    from hindcast.common.jit import Booleans, Integers
    from hindcast.streams.windowed import FoldTask


@dataclass(frozen=True)
class SlidingWindows:
    """Sliding windows; lengths in ms. `retention` of the store: None for the default."""

    difference: int
    grace: int
    retention: int | None = None

    ends_inclusive = True
    stored_by_end = False
    takes_nulls = False  # rule: null values are dropped
    keeps_headers = True

    @property
    def lag(self) -> int:
        return self.grace

    @property
    def store_retention(self) -> int:
        # rule: the default retention is two differences and the grace
        return 2 * self.difference + self.grace if self.retention is None else self.retention

    def is_retained(self, stored: Integers, written: Integers) -> Booleans:
        return stored >= written - self.store_retention

    def fold_records(self, task: FoldTask) -> FoldResult:
        records, stored = task.records, task.state.windows
        count, close = len(stored.key), task.stream_time - self.grace
        # rule: on_update the store's reach is one short of its retention
        behind = self.store_retention if task.scans else self.store_retention - 1
        # All starts that a window can have: by its record, or just after the latest record of a stored window.
        ending, following = np.maximum(records.timestamp - self.difference, 0), records.timestamp + 1
        keys = np.concatenate([stored.key, stored.key, records.key, records.key])
        starts = np.concatenate([stored.start, stored.timestamp + 1, ending, following])
        place, row = rank_rows(keys, starts)
        keys, starts = keys[row], starts[row]
        node, timestamp = np.empty((2, len(row)), np.int64)
        node[place[:count]], timestamp[place[:count]] = stored.node, stored.timestamp
        store = SlidingWindowStore(keys, starts, node, timestamp, build_index(len(row), place[:count]))

        left, right = np.split(place[2 * count :], 2)
        rows, grown, written = _fold_windows(
            records.key,
            records.value,
            records.timestamp,
            close,
            left,
            right,
            store,
            task.nodes,
            task.state.written,
            self.difference,
            behind,
        )
        # A record that is not late needs windows that start at most three times the difference earlier.
        oldest = max(written - behind, task.final_stream_time - self.grace - 3 * self.difference)
        remaining = np.flatnonzero(store.taken[len(store.taken) // 2 :])
        remaining = remaining[starts[remaining] >= oldest]
        start = starts[remaining]
        windows = WindowRows(
            keys[remaining], start, start + self.difference, store.node[remaining], store.timestamp[remaining]
        )
        return FoldResult(window_updates(rows), grown, windows)


PLACE, NODE, LATEST, COPIED = range(4)
"""Columns of a change: the slot of a window, its node and latest timestamp so far; COPIED: the record is not added."""


class SlidingWindowStore(NamedTuple):
    """The windows in their slots; `taken`: the index of the slots in use."""

    key: Integers
    start: Integers
    node: Integers
    timestamp: Integers
    taken: Booleans


@compile_loop
def _fold_windows(
    key: Integers,
    value: Integers,
    timestamp: Integers,
    close: Integers,
    left: Integers,
    right: Integers,
    store: SlidingWindowStore,
    grown: Integers,
    written: int,
    difference: int,
    behind: int,
) -> tuple[Integers, Integers, int]:
    """Return rows of results, all nodes, and W; update the store.

    `left` and `right` are the slots of the windows that end with a record and start just after it, `close` the earliest
    end of a window that can take it.
    """
    rows, count, used = np.empty((0, 6), np.int64), 0, grown.shape[0]
    changes = np.empty((0, 4), np.int64)
    for record in range(key.shape[0]):
        moment, reach = timestamp[record], written - behind
        if moment + difference < close[record]:  # rule: a record at T - grace is not late
            continue
        places = left[record], right[record]
        if moment >= difference:  # rule: early records have windows of their own
            changes, changed = _change_in_order(changes, store, moment, places, reach, close[record], difference)
        else:
            changes, changed = _change_early(changes, store, moment, places, reach, close[record], difference)
        for row in range(changed):
            place, node, latest = changes[row, PLACE], changes[row, NODE], changes[row, LATEST]
            if not changes[row, COPIED]:
                grown = ensure_room(grown, used)
                grown[used, 0], grown[used, 1], grown[used, 2] = ADD, node, value[record]
                node, latest, used = used, max(latest, moment), used + 1
            take_slot(store.taken, place)
            store.node[place], store.timestamp[place] = node, latest
            start = store.start[place]
            written = max(written, start)
            rows = ensure_room(rows, count)
            rows[count, 0], rows[count, 1], rows[count, 2] = record, key[record], start
            rows[count, 3], rows[count, 4], rows[count, 5] = start + difference, node, latest
            count += 1
    return rows[:count], grown[:used], written


@compile_loop
def _change_in_order(
    changes: Integers,
    store: SlidingWindowStore,
    moment: int,
    places: tuple[int, int],
    reach: int,
    close: int,
    difference: int,
) -> tuple[Integers, int]:
    """Return the changes that a record makes, in order, and their number. `changes` is the buffer for them."""
    left, right = places
    key, count = store.key[left], 0
    reach = max(reach, moment - 2 * difference)

    # Windows that contain the record, from the last one down. Of the closed ones only the last one matters.
    after = last = _visible_slot(store, find_at_or_below(store.taken, right - 1), key, reach)
    # rule: a window that ends at T - grace takes records
    while last > left and store.start[last] + difference >= close:
        changes, count = _append_change(changes, count, last, store.node[last], store.timestamp[last], False)
        last = _visible_slot(store, find_at_or_below(store.taken, last - 1), key, reach)
    exists = is_taken(store.taken, left) and store.start[left] >= reach  # rule: windows come by descending start
    if exists and moment >= close:
        changes, count = _append_change(changes, count, left, store.node[left], store.timestamp[left], False)
    if exists and store.timestamp[left] >= moment:
        return changes, count

    # The record before it is the latest of the window that ends next before it.
    before = _visible_slot(store, find_at_or_below(store.taken, left - 1), key, reach)
    previous = store.timestamp[before] if before != NOTHING else store.timestamp[left] if exists else NOTHING
    # rule: a window may begin just after the record before
    if previous != NOTHING and previous + 1 + difference >= max(moment, close):
        place = find_first_slot(store.key, store.start, key, previous + 1)
        if not is_taken(store.taken, place):
            changes, count = _append_change(changes, count, place, NOTHING, NOTHING, False)
    if not exists and moment >= close:
        node = store.node[before] if before != NOTHING and previous >= moment - difference else NOTHING
        changes, count = _append_change(changes, count, left, node, NOTHING, False)
    if after > left and store.timestamp[after] > moment and not is_taken(store.taken, right):
        # rule: the window just after a record does not take it
        changes, count = _append_change(changes, count, right, store.node[after], store.timestamp[after], True)
    return changes, count


@compile_loop
def _change_early(
    changes: Integers,
    store: SlidingWindowStore,
    moment: int,
    places: tuple[int, int],
    reach: int,
    close: int,
    difference: int,
) -> tuple[Integers, int]:
    """Return the changes that an early record makes, in order, and their number. Its left slot is [0, difference]."""
    left, right = places
    key, count = store.key[left], 0
    exists = is_taken(store.taken, left) and reach <= 0

    # Windows that start after 0 and contain the record, from the first one up.
    place = find_at_or_above(
        store.taken, find_first_slot(store.key, store.start, key, max(1, reach, close - difference))
    )
    while place != NOTHING and place < right:
        changes, count = _append_change(changes, count, place, store.node[place], store.timestamp[place], False)
        place = find_at_or_above(store.taken, place + 1)
    after = _visible_slot(store, find_at_or_below(store.taken, right - 1), key, reach)
    if after != NOTHING and store.timestamp[after] > moment and not is_taken(store.taken, right):
        changes, count = _append_change(changes, count, right, store.node[after], store.timestamp[after], True)
    if exists and store.timestamp[left] < moment:
        place = find_first_slot(store.key, store.start, key, store.timestamp[left] + 1)
        if not is_taken(store.taken, place) and store.start[place] + difference >= close:
            changes, count = _append_change(changes, count, place, NOTHING, NOTHING, False)
    if difference >= close:
        node, latest = (store.node[left], store.timestamp[left]) if exists else (NOTHING, NOTHING)
        changes, count = _append_change(changes, count, left, node, latest, False)
    return changes, count


@compile_loop
def _visible_slot(store: SlidingWindowStore, place: int, key: int, reach: int) -> int:
    """Return the slot if it belongs to the key and the store still shows it, else NOTHING."""
    return place if place != NOTHING and store.key[place] == key and store.start[place] >= reach else NOTHING


@compile_loop
def _append_change(
    changes: Integers, count: int, place: int, node: int, latest: int, copied: bool
) -> tuple[Integers, int]:
    changes = ensure_room(changes, count)
    changes[count, 0], changes[count, 1], changes[count, 2], changes[count, 3] = place, node, latest, copied
    return changes, count + 1
