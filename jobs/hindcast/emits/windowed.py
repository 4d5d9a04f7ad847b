"""Windowed aggregates of a stream: what every kind of windows takes, gives and keeps.

The rules are the vectors' README, Windowed aggregation; T and W are its letters. A kind (`time_windows`,
`sliding_windows`, `session_windows`) tells what each record changes. When that comes out is the same for all: `closing`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Protocol

import numpy as np

from hindcast.emits.compiled import NOTHING
from hindcast.emits.folds import KEPT

if TYPE_CHECKING:
    from hindcast.emits.compiled import Booleans, Integers

RECORD, KEY, START, END, NODE, TIMESTAMP = range(6)
"""The columns of a fold's results."""


class Records(NamedTuple):
    """Of one task, in processing order."""

    order: Integers
    key: Integers
    value: Integers
    timestamp: Integers


class Rows(NamedTuple):
    """Windows with what they amount to, ascending by key, start and end."""

    key: Integers
    start: Integers
    end: Integers
    node: Integers
    timestamp: Integers


class Waiting(NamedTuple):
    """Rows with the `order` of the records that made them, whose headers they have."""

    key: Integers
    start: Integers
    end: Integers
    node: Integers
    timestamp: Integers
    headers: Integers


class Kept(NamedTuple):
    """What a run leaves to the next. The row of a KEPT node is one of `windows`, or after these of `waiting`."""

    stream_time: int
    """T: the largest timestamp of the records so far."""
    written: int
    """W: the largest window start (session: end) written so far."""
    windows: Rows
    """Of the store, what a record can still find, or a scan."""
    waiting: Waiting
    """What is suppressed until its window closes."""


class Task(NamedTuple):
    """What a fold goes through: the records that are aggregated, and T at each of them."""

    records: Records
    stream_time: Integers
    kept: Kept
    nodes: Integers
    """The nodes of what is kept; row n is the node of the n-th kept row. A fold adds its own."""
    scans: bool
    """Whether the store is one for `on_window_close`, which shows a millisecond more."""
    reduce: bool
    """Whether a first null makes null of a window, which is emitted but not stored."""

    @property
    def reached(self) -> int:
        """T after the last record."""
        return int(self.stream_time[-1]) if len(self.stream_time) else self.kept.stream_time


class Fold(NamedTuple):
    results: Integers
    """In order, what becomes of windows at each record: number of the record, key, start, end, node, timestamp."""
    nodes: Integers
    windows: Rows


class Windows(Protocol):
    """A kind of windows, with its lengths in milliseconds."""

    @property
    def lag(self) -> int:
        """How far stream time goes past the end of a window before it is closed."""

    @property
    def store_retention(self) -> int:
        """Kafka Streams takes none that is shorter than its default."""

    @property
    def ends_inclusive(self) -> bool:
        """Whether the end still belongs to the window."""

    @property
    def stored_by(self) -> int:
        """The column, START or END, that the store has as the time of a window."""

    def takes(self, records: Records) -> Booleans:
        """What is aggregated unless it is late. All else moves no time."""

    def fold(self, task: Task) -> Fold: ...


def nothing_kept() -> Kept:
    """What there is before the first run."""
    none = np.empty(0, np.int64)
    return Kept(-1, -1, Rows(none, none, none, none, none), Waiting(none, none, none, none, none, none))


def kept_nodes(kept: Kept) -> Integers:
    row = np.arange(len(kept.windows.key) + len(kept.waiting.key))
    return np.stack([np.full_like(row, KEPT), row, np.full_like(row, NOTHING)], axis=1)


def running(before: int, values: Integers) -> Integers:
    """The largest so far, at each."""
    return np.maximum.accumulate(np.append(before, values))[1:]


def shown(windows: Windows, task: Task) -> int:
    """How far behind W the store still shows windows to a record."""
    return windows.store_retention if task.scans else windows.store_retention - 1
