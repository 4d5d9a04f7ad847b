"""Windowed aggregates of a stream: what every kind of windows takes, gives and keeps.

The rules are those of the vectors' README, Windowed aggregation; T and W are its letters. A kind (`time_windows`,
`sliding_windows`, `session_windows`) tells what each record changes. When that comes out is one matter for all of them
(`closing`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Protocol

import numpy as np

from hindcast.compiled import NOTHING
from hindcast.emits.folds import KEPT
from hindcast.emits.records import Records

if TYPE_CHECKING:
    from hindcast.compiled import Booleans, Integers


class Rows(NamedTuple):
    """Windows with what they amount to, ascending by key, start and end."""

    key: Integers
    start: Integers
    end: Integers
    node: Integers
    timestamp: Integers


class Waiting(NamedTuple):
    """Rows with the `order` of the records whose headers they come out with; NOTHING: none of their own."""

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
    """Of the store, what a record can still find."""
    waiting: Waiting
    """What comes out when its window closes."""


class Task(NamedTuple):
    """What a fold goes through: the records that are aggregated, and T at each of them."""

    records: Records
    stream_time: Integers
    kept: Kept
    nodes: Integers
    """The nodes of what is kept. A fold adds its own."""
    scans: bool
    """Whether results come out `on_window_close`: the store is another one then."""
    reduce: bool
    """Whether a first null makes null of a window, which is emitted but not stored."""

    @property
    def reached(self) -> int:
        """T after the last record."""
        return int(self.stream_time[-1]) if len(self.stream_time) else self.kept.stream_time


class Results(NamedTuple):
    """What becomes of windows, in order. NOTHING as a node is a tombstone, or the null that a reducer makes."""

    record: Integers
    """The number of the record in the task."""
    key: Integers
    start: Integers
    end: Integers
    node: Integers
    timestamp: Integers


class Fold(NamedTuple):
    results: Results
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
    def stored_by_end(self) -> bool:
        """Whether the end is the time of a window in the store; else it is the start."""

    @property
    def takes_nulls(self) -> bool:
        """Whether a null value is aggregated. Else it does not even move T."""

    @property
    def keeps_headers(self) -> bool:
        """Whether a change has the headers of the record that makes it; else it has none."""

    def has(self, stored: Integers, written: Integers) -> Booleans:
        """Whether a scan still finds windows in the store, by their times there and W."""

    def fold(self, task: Task) -> Fold: ...


def nothing_kept() -> Kept:
    """What there is before the first run."""
    none = np.empty(0, np.int64)
    return Kept(-1, -1, Rows(none, none, none, none, none), Waiting(none, none, none, none, none, none))


def taken_up(kept: Kept) -> tuple[Kept, Integers]:
    """What is kept, with the nodes that it has in this run, and these nodes."""
    row = np.arange(len(kept.windows.key) + len(kept.waiting.key))
    of_windows, of_waiting = np.split(row, [len(kept.windows.key)])
    windows, waiting = kept.windows._replace(node=of_windows), kept.waiting._replace(node=of_waiting)
    nodes = np.stack([np.full_like(row, KEPT), row, np.full_like(row, NOTHING)], axis=1)
    return kept._replace(windows=windows, waiting=waiting), nodes


def running(before: int, values: Integers) -> Integers:
    """The largest so far, at each."""
    return np.maximum.accumulate(np.append(before, values))[1:]


def results(rows: Integers) -> Results:
    return Results(*np.ascontiguousarray(rows.T))
