"""When results of windows come out, and what a run is as a whole (the vectors' README, Windowed aggregation).

What a record changes does not depend on what has come out. So the moment at which a window comes out is looked up: the
first at which the time that closes windows has got there.
"""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from hindcast.compiled import NOTHING
from hindcast.emits.places import ranked
from hindcast.emits.records import Records
from hindcast.emits.windowed import Kept, Results, Task, Waiting, Windows, running, taken_up

if TYPE_CHECKING:
    from hindcast.compiled import Booleans, Integers


class Emit(StrEnum):
    """Each change at once, `suppress(untilWindowCloses(unbounded))`, or `EmitStrategy.onWindowClose()`."""

    UPDATE = "update"
    SUPPRESS = "suppress_until_window_closes"
    ON_CLOSE = "on_window_close"


class Emitted(NamedTuple):
    """Results in the order in which they come out. `value` is a node; NOTHING is a tombstone, or the null of a reduce.

    `headers` is the `order` of the record whose headers a result has: its `cause`, but of one that was suppressed the
    record that made it. NOTHING: it has none, as of sessions that were not scanned for (KStreamSessionWindowAggregate).
    """

    cause: Integers
    key: Integers
    start: Integers
    end: Integers
    value: Integers
    timestamp: Integers
    headers: Integers


def aggregate(
    windows: Windows, emit: Emit, records: Records, kept: Kept, *, reduce: bool = False
) -> tuple[Emitted, Integers, Kept]:
    """What comes out of the records, its nodes, and what the next run goes on from.

    `reduce` says that a reducer aggregates: it makes null of a window's first null, which comes out but is not stored.
    """
    taken = records.key != NOTHING
    if not windows.takes_nulls:
        taken &= records.value != NOTHING
    records = Records(*(column[taken] for column in records))
    stream_time = running(kept.stream_time, records.timestamp)
    kept, nodes = taken_up(kept)
    task = Task(records, stream_time, kept, nodes, emit is Emit.ON_CLOSE, reduce)
    results, nodes, rows = windows.fold(task)

    cause = records.order[results.record]
    headers = cause if windows.keeps_headers else np.full_like(cause, NOTHING)
    emitted, waiting = Emitted(cause, *results[1:], headers), kept.waiting
    written = np.append(kept.written, running(kept.written, results.end if windows.stored_by_end else results.start))
    if emit is Emit.SUPPRESS:
        emitted, waiting = _suppressed(windows, task, results, headers)
    elif emit is Emit.ON_CLOSE:
        emitted, waiting = _scanned(windows, task, results, written)
    return emitted, nodes, Kept(task.reached, int(written[-1]), rows, waiting)


def _suppressed(windows: Windows, task: Task, results: Results, headers: Integers) -> tuple[Emitted, Waiting]:
    """After each result come out the windows that P, the largest timestamp of results so far, has closed."""
    # A record that moves T is never late, and has a result of this timestamp. So a run leaves P where it leaves T.
    largest = running(task.kept.stream_time, results.timestamp)
    rows, at = _closed(task, results, headers, np.arange(len(largest)), largest, windows.lag)
    out = np.flatnonzero((at != NOTHING) & (at < len(largest)))
    out = out[np.lexsort((rows.start[out], rows.key[out], rows.end[out], at[out]))]
    cause = task.records.order[results.record[at[out]]]
    return Emitted(cause, *Waiting(*(column[out] for column in rows))), _left(rows, at == len(largest))


def _scanned(windows: Windows, task: Task, results: Results, written: Integers) -> tuple[Emitted, Waiting]:
    """After each record that moves T come out the windows that it has closed, as far as the store still has them.

    `written` is W: at first, then at each result.
    """
    close = task.stream_time - windows.lag
    none = np.full_like(results.record, NOTHING)
    rows, at = _closed(task, results, none, results.record, close, int(windows.ends_inclusive))
    out = np.flatnonzero((at != NOTHING) & (at < len(close)))
    stored = rows.end if windows.stored_by_end else rows.start
    out = out[windows.has(stored[out], written[np.searchsorted(results.record, at[out], "right")])]
    out = out[np.lexsort((rows.key[out], rows.start[out], stored[out], at[out]))]
    cause = task.records.order[at[out]]
    emitted = Emitted(cause, *Waiting(*(column[out] for column in rows))._replace(headers=cause))
    return emitted, _left(rows, at == len(close))


def _closed(
    task: Task, results: Results, headers: Integers, came: Integers, closing: Integers, after: int
) -> tuple[Waiting, Integers]:
    """The rows that have waited and those of the results, and when each comes out: after which step.

    Results come at steps, and so does time: `closing`, which never goes back. A row comes out as soon as it has got to
    `after` the row's end, `len(closing)` if that is yet to be. NOTHING, if a later row of the window has taken its
    place by then, or if it has no node.
    """
    rows = Waiting(*map(np.append, task.kept.waiting, (*results[1:], headers)))
    came = np.append(np.full(len(rows.key) - len(came), NOTHING), came)
    at = np.searchsorted(closing, rows.end + after)
    waits = np.flatnonzero(came <= at)
    place, row = ranked(*(column[waits] for column in (rows.key, rows.start, rows.end)))
    last = np.empty(len(row), np.int64)
    last[place] = waits
    replaced = np.zeros(len(at), np.bool_)
    replaced[waits] = True
    replaced[last] = False
    return rows, np.where(replaced | (rows.node == NOTHING), NOTHING, np.maximum(at, came))


def _left(rows: Waiting, stays: Booleans) -> Waiting:
    left = np.flatnonzero(stays)
    left = left[np.lexsort((rows.end[left], rows.start[left], rows.key[left]))]
    return Waiting(*(column[left] for column in rows))
