"""When results come out of windowed aggregates, and what a run is as a whole (the vectors' README, Windowed aggregation).

What a record changes does not depend on what has come out. So the moment at which a window comes out is looked up: the
first at which the time that closes windows has got there.
"""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from hindcast.emits.compiled import NOTHING
from hindcast.emits.places import ranked
from hindcast.emits.windowed import (
    KEY,
    RECORD,
    START,
    Fold,
    Kept,
    Records,
    Task,
    Waiting,
    Windows,
    kept_nodes,
    running,
)

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
    taken = windows.takes(records)
    records = Records(*(column[taken] for column in records))
    stream_time = running(kept.stream_time, records.timestamp)
    task = Task(records, stream_time, kept, kept_nodes(kept), emit is Emit.ON_CLOSE, reduce)
    fold = windows.fold(task)

    cause = records.order[fold.results[:, RECORD]]
    written = np.append(kept.written, running(kept.written, fold.results[:, windows.stored_by]))
    emitted, waiting = Emitted(cause, *fold.results[:, KEY:].T, cause), kept.waiting
    if emit is Emit.SUPPRESS:
        emitted, waiting = _suppressed(windows, task, emitted)
    elif emit is Emit.ON_CLOSE:
        emitted = _scanned(windows, task, fold, written)
    return emitted, fold.nodes, Kept(task.reached, int(written[-1]), fold.windows, waiting)


def _suppressed(windows: Windows, task: Task, results: Emitted) -> tuple[Emitted, Waiting]:
    """After each result come out the windows that P, the largest timestamp of results so far, has closed."""
    before = task.kept.waiting
    stored, count = len(task.kept.windows.key), len(before.key)
    waiting = Waiting(*map(np.append, before._replace(node=stored + np.arange(count)), results[1:]))
    came = np.append(np.full(count, NOTHING), np.arange(len(results.key)))
    # A record that moves T is never late, and has a result of this timestamp. So a run leaves P where it leaves T.
    largest = running(task.kept.stream_time, results.timestamp)
    at = _out(waiting[:4], came, largest, waiting.end + windows.lag)

    out = np.flatnonzero((at != NOTHING) & (at < len(largest)))
    out = out[np.lexsort((waiting.start[out], waiting.key[out], waiting.end[out], at[out]))]
    stays = np.flatnonzero(at == len(largest))
    stays = stays[np.lexsort((waiting.end[stays], waiting.start[stays], waiting.key[stays]))]
    emitted = Emitted(results.cause[at[out]], *(column[out] for column in waiting))
    return emitted, Waiting(*(column[stays] for column in waiting))


def _scanned(windows: Windows, task: Task, fold: Fold, written: Integers) -> Emitted:
    """After each record that moves T come out the windows that it has closed, as far as the store shows them."""
    close = task.stream_time - windows.lag
    before, results = task.kept.windows, fold.results
    open_yet = before.end + windows.ends_inclusive > task.kept.stream_time - windows.lag
    rows = [column[open_yet] for column in before._replace(node=np.arange(len(before.key)))]
    rows = [np.append(*columns) for columns in zip(rows, results[:, KEY:].T, strict=True)]
    key, start, end, node, timestamp = rows
    came = np.append(np.full(len(key) - len(results), NOTHING), results[:, RECORD])
    at = _out((key, start, end, node), came, close, end + windows.ends_inclusive)

    out = np.flatnonzero((at != NOTHING) & (at < len(close)))
    stored = (start if windows.stored_by == START else end)[out]
    reach = written[np.searchsorted(results[:, RECORD], at[out], "right")] - windows.store_retention
    out, stored = out[stored >= reach], stored[stored >= reach]
    out = out[np.lexsort((key[out], start[out], stored, at[out]))]
    cause = task.records.order[at[out]]
    return Emitted(cause, *(column[out] for column in rows), cause)


def _out(window: tuple[Integers, ...], came: Integers, closing: Integers, end: Integers) -> Integers:
    """When each row (key, start, end, node) comes out: the number of the step after which it does.

    A row came at a step, or earlier. It comes out as soon as `closing`, which never goes back, has reached its `end`:
    `len(closing)` if it never does. NOTHING, if a later row of the window has taken its place by then, or it has no node.
    """
    at = np.searchsorted(closing, end)
    waits = np.flatnonzero(came <= at)
    place, row = ranked(*(column[waits] for column in window[:3]))
    last = np.empty(len(row), np.int64)
    last[place] = waits
    replaced = np.zeros(len(at), np.bool_)
    replaced[waits] = True
    replaced[last] = False
    return np.where(replaced | (window[3] == NOTHING), NOTHING, np.maximum(at, came))
