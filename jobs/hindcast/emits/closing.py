"""When results of windows come out, and what a run is as a whole (the vectors' README, Windowed aggregation).

What a record changes does not depend on what has come out. So the moment at which a window comes out is looked up: the
first at which the time that closes windows has got there.
"""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from hindcast.emits.compiled import NOTHING
from hindcast.emits.places import ranked
from hindcast.emits.windowed import Kept, Records, Results, Rows, Task, Waiting, Windows, running, taken_up

if TYPE_CHECKING:
    from hindcast.emits.compiled import Integers


class Emit(StrEnum):
    """Each change at once, `suppress(untilWindowCloses(unbounded))`, or `EmitStrategy.onWindowClose()`."""

    UPDATE = "update"
    SUPPRESS = "suppress_until_window_closes"
    ON_CLOSE = "on_window_close"


class Emitted(NamedTuple):
    """Results in the order in which they come out. `value` is a node; NOTHING is a tombstone, or the null of a reduce.

    `headers` is the `order` of the record whose headers a result has: its `cause`, but of one that was suppressed the
    record that made it.
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

    written = running(kept.written, results.end if windows.stored_by_end else results.start)
    waiting = kept.waiting
    if emit is Emit.UPDATE:
        cause = records.order[results.record]
        emitted = Emitted(cause, *results[1:], headers=cause)
    elif emit is Emit.SUPPRESS:
        emitted, waiting = _suppressed(windows, task, results)
    else:
        emitted = _scanned(windows, task, results, np.append(kept.written, written))
    reached = int(written[-1]) if len(written) else kept.written
    return emitted, nodes, Kept(task.reached, reached, rows, waiting)


def _suppressed(windows: Windows, task: Task, results: Results) -> tuple[Emitted, Waiting]:
    """After each result come out the windows that P, the largest timestamp of results so far, has closed."""
    before, cause = task.kept.waiting, task.records.order[results.record]
    waiting = Waiting(*map(np.append, before, (*results[1:], cause)))
    came = np.append(np.full(len(before.key), NOTHING), np.arange(len(cause)))
    # A record that moves T is never late, and has a result of this timestamp. So a run leaves P where it leaves T.
    largest = running(task.kept.stream_time, results.timestamp)
    at = _out(waiting, came, largest, waiting.end + windows.lag)

    out = np.flatnonzero((at != NOTHING) & (at < len(largest)))
    out = out[np.lexsort((waiting.start[out], waiting.key[out], waiting.end[out], at[out]))]
    stays = np.flatnonzero(at == len(largest))
    stays = stays[np.lexsort((waiting.end[stays], waiting.start[stays], waiting.key[stays]))]
    emitted = Emitted(cause[at[out]], *(column[out] for column in waiting))
    return emitted, Waiting(*(column[stays] for column in waiting))


def _scanned(windows: Windows, task: Task, results: Results, written: Integers) -> Emitted:
    """After each record that moves T come out the windows that it has closed, as far as the store shows them.

    `written` is W: at first, then at each result.
    """
    close, before = task.stream_time - windows.lag, task.kept.windows
    open_yet = before.end + windows.ends_inclusive > task.kept.stream_time - windows.lag
    rows = Rows(*map(np.append, (column[open_yet] for column in before), results[1:]))
    came = np.append(np.full(np.count_nonzero(open_yet), NOTHING), results.record)
    at = _out(rows, came, close, rows.end + windows.ends_inclusive)

    out = np.flatnonzero((at != NOTHING) & (at < len(close)))
    stored = (rows.end if windows.stored_by_end else rows.start)[out]
    reach = written[np.searchsorted(results.record, at[out], "right")] - windows.store_retention
    out, stored = out[stored >= reach], stored[stored >= reach]
    out = out[np.lexsort((rows.key[out], rows.start[out], stored, at[out]))]
    cause = task.records.order[at[out]]
    return Emitted(cause, *Rows(*(column[out] for column in rows)), headers=cause)


def _out(rows: Rows | Waiting, came: Integers, closing: Integers, end: Integers) -> Integers:
    """When each row comes out: the number of the step after which it does.

    A row came at a step, or NOTHING: before the first. It comes out as soon as `closing`, which never goes back, has
    got to its `end`: `len(closing)` if that is yet to be. NOTHING, if a later row of the window has taken its place by
    then, or it has no node.
    """
    at = np.searchsorted(closing, end)
    waits = np.flatnonzero(came <= at)
    place, row = ranked(*(column[waits] for column in (rows.key, rows.start, rows.end)))
    last = np.empty(len(row), np.int64)
    last[place] = waits
    replaced = np.zeros(len(at), np.bool_)
    replaced[waits] = True
    replaced[last] = False
    return np.where(replaced | (rows.node == NOTHING), NOTHING, np.maximum(at, came))
