"""Sliding windows: `SlidingWindows` (the vectors' README, Windowed aggregation).

A window is [start, start + difference], both inclusive. It ends with a record, or starts just after one. What is in a
new one is told by those there are: the live topology keeps windows, not records. A record before the first difference
has passed is early: no window can end with it, and it is in [0, difference].
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from hindcast.compiled import NOTHING, compiled, room
from hindcast.emits.folds import ADD
from hindcast.emits.places import at_or_above, at_or_below, first, is_taken, ranked, take, taken_at
from hindcast.emits.windowed import Fold, Rows, results

if TYPE_CHECKING:
    from hindcast.compiled import Booleans, Integers
    from hindcast.emits.windowed import Task


@dataclass(frozen=True)
class SlidingWindows:
    difference: int
    grace: int
    retention: int | None = None

    ends_inclusive = True
    stored_by_end = False
    takes_nulls = False
    keeps_headers = True

    @property
    def lag(self) -> int:
        return self.grace

    @property
    def store_retention(self) -> int:
        return 2 * self.difference + self.grace if self.retention is None else self.retention

    def has(self, stored: Integers, written: Integers) -> Booleans:
        return stored >= written - self.store_retention

    def fold(self, task: Task) -> Fold:
        records, kept = task.records, task.kept.windows
        count, close = len(kept.key), task.stream_time - self.grace
        behind = self.store_retention if task.scans else self.store_retention - 1
        # All starts that a window can have: its record's, or just after the latest record of one that was kept.
        ending, following = np.maximum(records.timestamp - self.difference, 0), records.timestamp + 1
        keys = np.concatenate([kept.key, kept.key, records.key, records.key])
        starts = np.concatenate([kept.start, kept.timestamp + 1, ending, following])
        place, row = ranked(keys, starts)
        keys, starts = keys[row], starts[row]
        node, timestamp = np.empty((2, len(row)), np.int64)
        node[place[:count]], timestamp[place[:count]] = kept.node, kept.timestamp
        store = Store(keys, starts, node, timestamp, taken_at(len(row), place[:count]))

        left, right = np.split(place[2 * count :], 2)
        rows, grown, written = _folded(
            records.key,
            records.value,
            records.timestamp,
            close,
            left,
            right,
            store,
            task.nodes,
            task.kept.written,
            self.difference,
            behind,
        )
        # A record that is not late asks for windows that start at most three times the difference behind.
        oldest = max(written - behind, task.reached - self.grace - 3 * self.difference)
        there = np.flatnonzero(store.taken[len(store.taken) // 2 :])
        there = there[starts[there] >= oldest]
        start = starts[there]
        windows = Rows(keys[there], start, start + self.difference, store.node[there], store.timestamp[there])
        return Fold(results(rows), grown, windows)


PLACE, NODE, LATEST, COPIED = range(4)
"""Of a change: the place of a window, and node and latest timestamp before it. Copied: the record is not added."""


class Store(NamedTuple):
    """The windows at their places."""

    key: Integers
    start: Integers
    node: Integers
    timestamp: Integers
    taken: Booleans


@compiled
def _folded(
    key: Integers,
    value: Integers,
    timestamp: Integers,
    close: Integers,
    left: Integers,
    right: Integers,
    store: Store,
    grown: Integers,
    written: int,
    difference: int,
    behind: int,
) -> tuple[Integers, Integers, int]:
    """Rows of results, all nodes, and W. The store follows.

    `left` and `right` are the places of the windows that end with a record and start just after it, `close` the end
    that a window must have to take it.
    """
    rows, count, used = np.empty((0, 6), np.int64), 0, grown.shape[0]
    changes = np.empty((0, 4), np.int64)
    for record in range(key.shape[0]):
        moment, reach = timestamp[record], written - behind
        if moment + difference < close[record]:
            continue
        places = left[record], right[record]
        if moment >= difference:
            changes, changed = _usual(changes, store, moment, places, reach, close[record], difference)
        else:
            changes, changed = _early(changes, store, moment, places, reach, close[record], difference)
        for row in range(changed):
            place, node, latest = changes[row, PLACE], changes[row, NODE], changes[row, LATEST]
            if not changes[row, COPIED]:
                grown = room(grown, used)
                grown[used, 0], grown[used, 1], grown[used, 2] = ADD, node, value[record]
                node, latest, used = used, max(latest, moment), used + 1
            take(store.taken, place)
            store.node[place], store.timestamp[place] = node, latest
            start = store.start[place]
            written = max(written, start)
            rows = room(rows, count)
            rows[count, 0], rows[count, 1], rows[count, 2] = record, key[record], start
            rows[count, 3], rows[count, 4], rows[count, 5] = start + difference, node, latest
            count += 1
    return rows[:count], grown[:used], written


@compiled
def _usual(
    changes: Integers, store: Store, moment: int, places: tuple[int, int], reach: int, close: int, difference: int
) -> tuple[Integers, int]:
    """What a record changes, in order."""
    left, right = places
    key, count = store.key[left], 0
    reach = max(reach, moment - 2 * difference)

    # Windows that contain the record, from the last on. Of those that are closed only the last one matters.
    after = last = _shown(store, at_or_below(store.taken, right - 1), key, reach)
    while last > left and store.start[last] + difference >= close:
        changes, count = _change(changes, count, last, store.node[last], store.timestamp[last], False)
        last = _shown(store, at_or_below(store.taken, last - 1), key, reach)
    there = is_taken(store.taken, left) and store.start[left] >= reach
    if there and moment >= close:
        changes, count = _change(changes, count, left, store.node[left], store.timestamp[left], False)
    if there and store.timestamp[left] >= moment:
        return changes, count

    # The record before it is the latest of the window that ends next before it.
    before = _shown(store, at_or_below(store.taken, left - 1), key, reach)
    previous = store.timestamp[before] if before != NOTHING else store.timestamp[left] if there else NOTHING
    if previous != NOTHING and previous + 1 + difference >= max(moment, close):
        place = first(store.key, store.start, key, previous + 1)
        if not is_taken(store.taken, place):
            changes, count = _change(changes, count, place, NOTHING, NOTHING, False)
    if not there and moment >= close:
        node = store.node[before] if before != NOTHING and previous >= moment - difference else NOTHING
        changes, count = _change(changes, count, left, node, NOTHING, False)
    if after > left and store.timestamp[after] > moment and not is_taken(store.taken, right):
        changes, count = _change(changes, count, right, store.node[after], store.timestamp[after], True)
    return changes, count


@compiled
def _early(
    changes: Integers, store: Store, moment: int, places: tuple[int, int], reach: int, close: int, difference: int
) -> tuple[Integers, int]:
    """What an early record changes, in order. Its left place is that of [0, difference]."""
    left, right = places
    key, count = store.key[left], 0
    there = is_taken(store.taken, left) and reach <= 0

    # Windows that start after 0 and contain the record, from the first on.
    place = at_or_above(store.taken, first(store.key, store.start, key, max(1, reach, close - difference)))
    while place != NOTHING and place < right:
        changes, count = _change(changes, count, place, store.node[place], store.timestamp[place], False)
        place = at_or_above(store.taken, place + 1)
    after = _shown(store, at_or_below(store.taken, right - 1), key, reach)
    if after != NOTHING and store.timestamp[after] > moment and not is_taken(store.taken, right):
        changes, count = _change(changes, count, right, store.node[after], store.timestamp[after], True)
    if there and store.timestamp[left] < moment:
        place = first(store.key, store.start, key, store.timestamp[left] + 1)
        if not is_taken(store.taken, place) and store.start[place] + difference >= close:
            changes, count = _change(changes, count, place, NOTHING, NOTHING, False)
    if difference >= close:
        node, latest = (store.node[left], store.timestamp[left]) if there else (NOTHING, NOTHING)
        changes, count = _change(changes, count, left, node, latest, False)
    return changes, count


@compiled
def _shown(store: Store, place: int, key: int, reach: int) -> int:
    """The place, if it is one of the key that the store still shows; else NOTHING."""
    return place if place != NOTHING and store.key[place] == key and store.start[place] >= reach else NOTHING


@compiled
def _change(changes: Integers, count: int, place: int, node: int, latest: int, copied: bool) -> tuple[Integers, int]:
    changes = room(changes, count)
    changes[count, 0], changes[count, 1], changes[count, 2], changes[count, 3] = place, node, latest, copied
    return changes, count + 1
