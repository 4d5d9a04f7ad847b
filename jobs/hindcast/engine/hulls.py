"""Hulls: for each key the one period that has all moments at which a change of an input can make a difference.

Keys are numbers from 0, or NOTHING; moments are microseconds since 1970, FOREVER for the end of what has not ended. A
hull has its first and its last moment. It may be wider than the changes in it: an operator that sees all that touches
a hull is right within it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from hindcast.common.jit import NOTHING
from hindcast.engine.sweeps import FOREVER

if TYPE_CHECKING:
    from hindcast.common.jit import Booleans, Integers


class Periods(NamedTuple):
    """Periods of keys: parallel arrays."""

    key: Integers
    start: Integers
    end: Integers

    def select(self, mask: Booleans) -> Periods:
        """Return those of a mask."""
        return Periods(self.key[mask], self.start[mask], self.end[mask])

    def find_span(self) -> tuple[int, int] | None:
        """Return the first start and the last end; None if there are none."""
        return (int(self.start.min()), int(self.end.max())) if len(self.key) else None


class Hulls(NamedTuple):
    """The hull of each key: `low` and `high`, by the key's number; of a key without one FOREVER and -FOREVER.

    The last of each is that of NOTHING.
    """

    low: Integers
    high: Integers

    def touch(self, rows: Periods) -> Booleans:
        """Return which rows touch the hull of their key, if only at a single moment."""
        # rule: a row that only touches a hull counts
        touching: Booleans = (rows.end >= self.low[rows.key]) & (rows.start <= self.high[rows.key])
        return touching

    def include_periods(self, rows: Periods) -> Hulls:
        """Return hulls that have these periods of their keys too."""
        others = build_hulls(len(self.low) - 1, rows)
        # rule: a hull grows by the current rows that touch it
        return Hulls(np.minimum(self.low, others.low), np.maximum(self.high, others.high))


def build_hulls(count: int, *periods: Periods) -> Hulls:
    """Return the hulls of periods, given the number of keys; periods without a key have none.

    0: [4, 6), [9, ..)    ->    0: [4, ..)
    """
    low, high = np.full(count + 1, FOREVER), np.full(count + 1, -FOREVER)
    for some in periods:
        keyed = some.select(some.key != NOTHING)
        np.minimum.at(low, keyed.key, keyed.start)
        np.maximum.at(high, keyed.key, keyed.end)
    return Hulls(low, high)


def intersect_hulls(rows: Periods, of: Hulls, unit: Integers) -> Periods:
    """Return what rows share with the hulls of their keys, even a single moment, as periods of another key `unit`."""
    touching = of.touch(rows)
    shared = rows.select(touching)
    start, end = np.maximum(shared.start, of.low[shared.key]), np.minimum(shared.end, of.high[shared.key])
    return Periods(unit[touching], start, end)


class Versions(NamedTuple):
    """Versions by the periods of what they belong to; `row` and `content` number what they are of and what they say."""

    periods: Periods
    row: Integers
    content: Integers


def find_changed_periods(closed: Versions, opened: Versions) -> Periods:
    """Return the periods in which versions differ, given those that were closed and those that were opened.

    A version of which only the end has changed differs between its two ends:

        close 8 [0, ..), open 8 [0, 4), open 10 [4, ..)    ->    [4, ..), [4, ..)
    """
    key, start, end = (np.concatenate(parts) for parts in zip(closed.periods, opened.periods, strict=True))
    row, content = (np.concatenate(parts) for parts in zip(closed[1:], opened[1:], strict=True))
    is_open = np.repeat([0, 1], [len(closed.row), len(opened.row)])
    order = np.lexsort((is_open, start, row))
    key, start, end, row, content = (values[order] for values in (key, start, end, row, content))
    first = np.flatnonzero((row[1:] == row[:-1]) & (start[1:] == start[:-1]) & (content[1:] == content[:-1]))
    since = start.copy()
    # rule: a version that only ends elsewhere changes what is between
    since[first] = since[first + 1] = np.minimum(end[first], end[first + 1])
    return Periods(key, since, end).select(since < end)
