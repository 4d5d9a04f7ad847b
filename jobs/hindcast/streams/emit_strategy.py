"""When results of windows come out, and what a run is as a whole (docs/kafka-parity.md, rules 58-61).

What a record changes does not depend on what was emitted. So the step at which a window is emitted is looked up: the
first one at which the time that closes windows has reached it.
"""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from hindcast.common.jit import NOTHING
from hindcast.streams.records import Records
from hindcast.streams.slot_index import rank_rows
from hindcast.streams.windowed import (
    FoldTask,
    WaitingWindows,
    Windows,
    WindowState,
    WindowUpdates,
    restore_state,
    running_maximum,
)

if TYPE_CHECKING:
    from hindcast.common.jit import Booleans, Integers


class EmitStrategy(StrEnum):
    """Every change at once, `suppress(untilWindowCloses(unbounded))`, or `EmitStrategy.onWindowClose()`."""

    UPDATE = "update"
    SUPPRESS = "suppress_until_window_closes"
    ON_CLOSE = "on_window_close"


class EmittedWindows(NamedTuple):
    """Results in the order in which they are emitted. `value` is a node; NOTHING is a tombstone, or a reducer's null.

    `headers` is the `order` of the record whose headers a result has: its `cause`, or of a suppressed result the record
    that made it. NOTHING: no headers, as of sessions that no scan has emitted (KStreamSessionWindowAggregate).
    """

    cause: Integers
    key: Integers
    start: Integers
    end: Integers
    value: Integers
    timestamp: Integers
    headers: Integers


def aggregate_windows(
    windows: Windows, emit: EmitStrategy, records: Records, state: WindowState, *, reduce: bool = False
) -> tuple[EmittedWindows, Integers, WindowState]:
    """Return the windows that records make a windowed aggregate emit, all nodes, and the state for the next run.

    `reduce`: the aggregate is a reducer. It makes null of the first null of a window; that is emitted, but not stored.
    """
    taken = records.key != NOTHING  # rule: null keys do not move T
    if not windows.takes_nulls:
        taken &= records.value != NOTHING
    records = records.take(taken)
    stream_time = running_maximum(state.stream_time, records.timestamp)
    state, nodes = restore_state(state)
    task = FoldTask(records, stream_time, state, nodes, emit is EmitStrategy.ON_CLOSE, reduce)
    results, nodes, rows = windows.fold_records(task)

    cause = records.order[results.record]
    headers = cause if windows.keeps_headers else np.full_like(cause, NOTHING)
    emitted, waiting = EmittedWindows(cause, *results[1:], headers), state.waiting
    written = np.append(
        state.written, running_maximum(state.written, results.end if windows.stored_by_end else results.start)
    )
    if emit is EmitStrategy.SUPPRESS:
        emitted, waiting = _emit_suppressed(windows, task, results, headers)
    elif emit is EmitStrategy.ON_CLOSE:
        emitted, waiting = _emit_on_close(windows, task, results, written)
    return emitted, nodes, WindowState(task.final_stream_time, int(written[-1]), rows, waiting)


def _emit_suppressed(
    windows: Windows, task: FoldTask, results: WindowUpdates, headers: Integers
) -> tuple[EmittedWindows, WaitingWindows]:
    """Return what is emitted, and what still waits: after each result, the windows that P has closed.

    P is the largest timestamp of the results so far.
    """
    # A record that moves T is never late, and has a result of this timestamp. So a run leaves P where it leaves T.
    largest = running_maximum(task.state.stream_time, results.timestamp)
    # rule: suppression lets out a window at its end and grace
    rows, at = _find_closing_steps(task, results, headers, np.arange(len(largest)), largest, windows.lag)
    out = np.flatnonzero((at != NOTHING) & (at < len(largest)))
    # rule: suppressed results come by end, key, start
    out = out[np.lexsort((rows.start[out], rows.key[out], rows.end[out], at[out]))]
    cause = task.records.order[results.record[at[out]]]
    # rule: a suppressed result has the headers of its own record
    return EmittedWindows(cause, *WaitingWindows(*(column[out] for column in rows))), _select_waiting(
        rows, at == len(largest)
    )


def _emit_on_close(
    windows: Windows, task: FoldTask, results: WindowUpdates, written: Integers
) -> tuple[EmittedWindows, WaitingWindows]:
    """Return what is emitted, and what still waits: after each record that moves T, the windows that it has closed.

    A window that the store has dropped by then is not emitted. `written` is W: at first, then at each result.
    """
    close = task.stream_time - windows.lag
    none = np.full_like(results.record, NOTHING)
    # rule: a scan leaves a window that still takes records
    rows, at = _find_closing_steps(task, results, none, results.record, close, int(windows.ends_inclusive))
    out = np.flatnonzero((at != NOTHING) & (at < len(close)))
    stored = rows.end if windows.stored_by_end else rows.start
    # rule: a scan finds only what the store retains
    out = out[windows.is_retained(stored[out], written[np.searchsorted(results.record, at[out], "right")])]
    # rule: scanned results come by the store's order, start, key
    out = out[np.lexsort((rows.key[out], rows.start[out], stored[out], at[out]))]
    cause = task.records.order[at[out]]
    emitted = EmittedWindows(cause, *WaitingWindows(*(column[out] for column in rows))._replace(headers=cause))
    return emitted, _select_waiting(rows, at == len(close))


def _find_closing_steps(
    task: FoldTask, results: WindowUpdates, headers: Integers, arrival: Integers, closing: Integers, after: int
) -> tuple[WaitingWindows, Integers]:
    """Return the rows that have waited and those of the results, and for each the step after which it is emitted.

    `arrival` is the step of each result, `closing` the time at each step; it never goes back. A row is emitted as soon
    as that time is `after` later than the row's end: `len(closing)` if it is not yet. NOTHING if a later row of the
    window has replaced it by then, or if it has no node.
    """
    rows = WaitingWindows(*map(np.append, task.state.waiting, (*results[1:], headers)))
    arrival = np.append(np.full(len(rows.key) - len(arrival), NOTHING), arrival)
    at = np.searchsorted(closing, rows.end + after)
    waits = np.flatnonzero(arrival <= at)
    place, row = rank_rows(*(column[waits] for column in (rows.key, rows.start, rows.end)))
    last = np.empty(len(row), np.int64)
    last[place] = waits
    replaced = np.zeros(len(at), np.bool_)
    replaced[waits] = True
    replaced[last] = False
    # rule: suppression emits the last result, and no tombstone
    return rows, np.where(replaced | (rows.node == NOTHING), NOTHING, np.maximum(at, arrival))


def _select_waiting(rows: WaitingWindows, stays: Booleans) -> WaitingWindows:
    """Return the rows that stay, sorted by key, start and end."""
    selected = np.flatnonzero(stays)
    selected = selected[np.lexsort((rows.end[selected], rows.start[selected], rows.key[selected]))]
    return WaitingWindows(*(column[selected] for column in rows))
