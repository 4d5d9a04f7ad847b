"""Hulls and islands: the periods that have all moments at which a change of an input can make a difference.

Keys are numbers from 0, or NOTHING; moments are microseconds since 1970, FOREVER for the end of what has not ended. A
key has one hull, or any number of islands. They have their first and their last moment, and may be wider than the
changes in them: an operator that sees all that touches a hull or an island is right within it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from hindcast.common.jit import NOTHING
from hindcast.engine import integer_encoding
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


MAX_PAIRS = 5_000_000
"""So many pairs of a row and an island that it touches are looked at; there can be far more of them than rows."""


class CrowdedError(Exception):
    """Rows touch too many islands: the hulls of the keys are needed."""


class Islands(NamedTuple):
    """Periods of keys of which none touches another one of its key: parallel arrays in the order of keys and times."""

    key: Integers
    low: Integers
    high: Integers

    def join_by_key(self) -> Islands:
        """Return the hulls of all keys as islands."""
        starts = np.flatnonzero(np.append(True, self.key[1:] != self.key[:-1])[: len(self.key)])
        ends = np.append(starts[1:], len(self.key))[: len(starts)] - 1
        return Islands(self.key[starts], self.low[starts], self.high[ends])

    def find_touching(self, rows: Periods) -> tuple[Integers, Integers]:
        """Return which rows touch which islands of their keys, if only at a single moment: a pair of numbers for each.

        The rows of NOTHING touch none. CrowdedError if there are more than `MAX_PAIRS`, and a key has several islands.
        """
        first, behind = self._find_range(rows)
        if np.sum(np.maximum(behind - first, 0)) > MAX_PAIRS and np.any(self.key[1:] == self.key[:-1]):
            raise CrowdedError(f"rows touch more than {MAX_PAIRS:,} islands")
        numbers, nth = integer_encoding.repeat_numbers(np.maximum(behind - first, 0))
        return numbers, first[numbers] + nth

    def _find_range(self, rows: Periods) -> tuple[Integers, Integers]:
        """Return the first island that each row touches, and the one behind the last."""
        moments = np.concatenate([self.low, self.high, rows.start, rows.end])
        ranks = np.unique(moments, return_inverse=True)[1].astype(np.int64)
        width = np.int64(len(moments) + 1)
        bounds = [len(self.key), 2 * len(self.key), 2 * len(self.key) + len(rows.key)]
        low, high, start, end = np.split(ranks, bounds)
        # rule: a row that only touches an island counts
        first = np.searchsorted(self.key * width + high, rows.key * width + start, "left")
        return first, np.searchsorted(self.key * width + low, rows.key * width + end, "right")

    def include_periods(self, rows: Periods) -> tuple[Islands, Integers]:
        """Return islands that have these periods of their keys too, and for each of these islands its number there."""
        # rule: an island grows by the current rows that touch it
        grown = build_islands(Periods(*self), rows)
        return grown, grown.find_touching(Periods(*self))[1]


def build_islands(*periods: Periods) -> Islands:
    """Return the islands of periods; periods without a key have none.

    0: [4, 6), [5, 7), [9, ..)    ->    0: [4, 7), [9, ..)
    """
    key, start, end = (np.concatenate(parts) for parts in zip(*periods, strict=True))
    order = np.lexsort((start, key))
    order = order[key[order] != NOTHING]
    key, start, end = key[order], start[order], end[order]
    if not len(key):
        return Islands(key, start, end)
    latest = _find_latest_ends(key, end)
    # rule: periods that touch are one island
    begins = np.append(True, (key[1:] != key[:-1]) | (start[1:] > latest[:-1]))
    first = np.flatnonzero(begins)
    last = np.append(first[1:], len(key)) - 1
    return Islands(key[first], start[first], latest[last])


def _find_latest_ends(key: Integers, end: Integers) -> Integers:
    """Return the latest end up to each place among those of its key; keys are in order."""
    ranked = np.unique(end, return_inverse=True)
    width = np.int64(len(ranked[0]) + 1)
    latest = np.maximum.accumulate(key * width + ranked[1]) - key * width
    found: Integers = ranked[0][latest]
    return found


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
