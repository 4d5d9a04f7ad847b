"""Windowed aggregates of a stream: the input, output and state that all kinds of windows share.

Source: docs/kafka-parity.md, rules 49-61; T and W are its letters. A kind (`time_windows`, `sliding_windows`,
`session_windows`) decides what each record changes; `emit_strategy` decides when that is emitted.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Protocol

import numpy as np

from hindcast.common.jit import NOTHING
from hindcast.streams.aggregation_tree import KEPT
from hindcast.streams.records import Records

if TYPE_CHECKING:
    from hindcast.common.jit import Booleans, Integers


class WindowRows(NamedTuple):
    """Windows with their nodes, ascending by key, start and end; times in ms, `timestamp` that of the aggregate."""

    key: Integers
    start: Integers
    end: Integers
    node: Integers
    timestamp: Integers


class WaitingWindows(NamedTuple):
    """Windows with the `order` of the records whose headers they are emitted with; NOTHING: no headers of their own."""

    key: Integers
    start: Integers
    end: Integers
    node: Integers
    timestamp: Integers
    headers: Integers


class WindowState(NamedTuple):
    """The state that a run leaves to the next. The row of a KEPT node counts through `windows`, then `waiting`."""

    stream_time: int
    """T: the largest timestamp of the records so far."""
    written: int
    """W: the largest window start (session: end) written so far."""
    windows: WindowRows
    """The windows in the store that a record can still find."""
    waiting: WaitingWindows
    """The windows to be emitted when they close."""


class FoldTask(NamedTuple):
    """The input of a fold: the records to aggregate, and T at each of them."""

    records: Records
    stream_time: Integers
    state: WindowState
    nodes: Integers
    """The nodes of the state. A fold adds its own."""
    scans: bool
    """True if results are emitted `on_window_close`: that uses another store."""
    reduce: bool
    """True for a reducer: it makes null of the first null of a window, which is emitted but not stored."""

    @property
    def final_stream_time(self) -> int:
        """T after the last record."""
        return int(self.stream_time[-1]) if len(self.stream_time) else self.state.stream_time


class WindowUpdates(NamedTuple):
    """Updates of windows, in order. NOTHING as a node is a tombstone, or a reducer's null."""

    record: Integers
    """The number of the causing record in the task."""
    key: Integers
    start: Integers
    end: Integers
    node: Integers
    timestamp: Integers


class FoldResult(NamedTuple):
    """The output of a fold: updates, all nodes, and the windows that the next run can still find."""

    results: WindowUpdates
    nodes: Integers
    windows: WindowRows


class Windows(Protocol):
    """A kind of windows, with its lengths in milliseconds."""

    @property
    def lag(self) -> int:
        """How far stream time must pass the end of a window to close it."""

    @property
    def store_retention(self) -> int:
        """The retention of the store; Kafka Streams allows none shorter than its default."""

    @property
    def ends_inclusive(self) -> bool:
        """True if the end belongs to the window."""

    @property
    def stored_by_end(self) -> bool:
        """True if the store files a window under its end, false if under its start."""

    @property
    def takes_nulls(self) -> bool:
        """True if null values are aggregated; otherwise they do not even move T."""

    @property
    def keeps_headers(self) -> bool:
        """True if an update has the headers of the record that causes it; otherwise it has none."""

    def is_retained(self, stored: Integers, written: Integers) -> Booleans:
        """Return whether a scan still finds windows in the store, given their times in it and W."""

    def fold_records(self, task: FoldTask) -> FoldResult:
        """Return the updates that records make to windows."""


def empty_window_state() -> WindowState:
    """Return the state before the first run."""
    none = np.empty(0, np.int64)
    return WindowState(
        -1, -1, WindowRows(none, none, none, none, none), WaitingWindows(none, none, none, none, none, none)
    )


def restore_state(state: WindowState) -> tuple[WindowState, Integers]:
    """Return the state with its nodes for this run, and these nodes."""
    row = np.arange(len(state.windows.key) + len(state.waiting.key))
    # rule: what waits is apart from what is in the store
    of_windows, of_waiting = np.split(row, [len(state.windows.key)])
    windows, waiting = state.windows._replace(node=of_windows), state.waiting._replace(node=of_waiting)
    nodes = np.stack([np.full_like(row, KEPT), row, np.full_like(row, NOTHING)], axis=1)
    return state._replace(windows=windows, waiting=waiting), nodes


def running_maximum(before: int, values: Integers) -> Integers:
    """Return, for each value, the largest of `before` and the values so far."""
    return np.maximum.accumulate(np.append(before, values))[1:]  # rule: T and W last over runs


def window_updates(rows: Integers) -> WindowUpdates:
    """Return rows of record, key, start, end, node and timestamp as updates."""
    return WindowUpdates(*np.ascontiguousarray(rows.T))
