"""Stream-stream join, inner, left and outer (KStreamKStreamJoin; conformance README, "Stream-stream join").

A side is a number: RIGHT or LEFT. `T` is stream time: the largest timestamp of both sides, dropped records included.
`W` of a side is the largest timestamp that its window store has taken. `m` is the noted time by which Kafka Streams
decides whether to look at what waits. It can be later than the earliest that waits, so that a release comes late.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from hindcast.compiled import NOTHING, compiled, room
from hindcast.emits.places import at_or_above, at_or_below, free, leave, take

if TYPE_CHECKING:
    from hindcast.compiled import Booleans, Integers

RIGHT, LEFT = 0, 1


class Window(NamedTuple):
    """A right record is at most `before` earlier and `after` later than the left one. In milliseconds."""

    before: int
    after: int
    grace: int


class Records(NamedTuple):
    """Records of both sides in processing order."""

    order: Integers
    side: Integers
    key: Integers
    value: Integers
    timestamp: Integers


class Kept(NamedTuple):
    """The records that can still be joined or wait, by arrival; and T, W of right and left, and m."""

    side: Integers
    key: Integers
    value: Integers
    timestamp: Integers
    waiting: Booleans
    times: Integers


class Emitted(NamedTuple):
    """What comes out, in order. `left` or `right` is NOTHING for want of a match."""

    cause: Integers
    key: Integers
    left: Integers
    right: Integers
    timestamp: Integers


class _Tables(NamedTuple):
    """The records, kept ones first, and two orders of them.

    By key, side and time, as in the window stores: `store` has the places of those put there so far. By time, side and
    key, as they are released: `waits` has the places of those of each side that wait. `record_at` and `record_next`
    lead from a place to its record.
    """

    side: Integers
    key: Integers
    value: Integers
    timestamp: Integers
    waiting: Booleans
    record_at: Integers
    time_at: Integers
    others_from: Integers
    others_to: Integers
    store: Booleans
    record_next: Integers
    waits: tuple[Booleans, Booleans]


def nothing_kept() -> Kept:
    none = np.empty(0, np.int64)
    return Kept(none, none, none, none, np.empty(0, np.bool_), np.full(4, NOTHING))


def join(records: Records, window: Window, how: str, kept: Kept) -> tuple[Emitted, Kept]:
    """What an `inner`, `left` or `outer` join emits on these records, and what it keeps.

    A value is a number that the caller gives it; what is kept holds on to it.
    """
    side, key, value, timestamp = (np.concatenate(pair) for pair in zip(kept[:4], records[1:], strict=True))
    waiting = np.concatenate([kept.waiting, np.zeros(records.key.size, np.bool_)])
    group = 2 * np.unique(key, return_inverse=True)[1] + side
    record_at = np.lexsort((timestamp, group))
    record_next = np.lexsort((key, side, timestamp)) if how != "inner" else np.empty(0, np.int64)
    tables = _Tables(
        side,
        key,
        value,
        timestamp,
        waiting,
        record_at,
        timestamp[record_at],
        np.searchsorted(group[record_at], group ^ 1),
        np.searchsorted(group[record_at], group ^ 1, "right"),
        free(record_at.size),
        record_next,
        (free(record_next.size), free(record_next.size)),
    )
    rows, times = _joined(records.order, tables, window, (how == "outer", how != "inner"), kept.times)
    in_reach = timestamp >= _reach(times[1:3], window)[side]
    stays = waiting | ((key != NOTHING) & (value != NOTHING) & in_reach)
    return Emitted(*rows.T), Kept(side[stays], key[stays], value[stays], timestamp[stays], waiting[stays], times)


@compiled
def _reach(largest: Integers, window: Window) -> Integers:
    """Of each side the earliest timestamp that its window store still finds."""
    return largest - (window.before + window.after + window.grace) + 1


@compiled
def _joined(
    order: Integers, tables: _Tables, window: Window, outer: tuple[bool, bool], times: Integers
) -> tuple[Integers, Integers]:
    """The rows that are emitted, and the times after them. `outer` says of which side a record without match comes."""
    back, ahead = (window.after, window.before), (window.before, window.after)
    stream_time, noted = times[0], times[3]
    largest = times[1:3].copy()
    place, turn = np.empty_like(tables.record_at), np.empty_like(tables.record_next)
    place[tables.record_at] = np.arange(place.size)
    turn[tables.record_next] = np.arange(turn.size)
    known = place.size - order.size
    for record in range(known):
        take(tables.store, place[record])
        if tables.waiting[record]:
            take(tables.waits[tables.side[record]], turn[record])
    rows, used = np.empty((order.size, 5), np.int64), 0

    for record in range(known, place.size):
        cause, side, now = order[record - known], tables.side[record], tables.timestamp[record]
        stream_time = max(stream_time, now)
        if tables.value[record] == NOTHING:
            continue
        if tables.key[record] == NOTHING:
            if outer[side]:
                rows, used = _emit(rows, used, cause, tables, record, NOTHING)
            continue

        may_release = noted != NOTHING and noted + ahead[side] + window.grace < stream_time
        if now == stream_time and may_release:
            rows, used, noted = _release(rows, used, cause, tables, window, stream_time)

        upper = max(0, now + ahead[side])
        lower = max(0, now - back[side], _reach(largest, window)[1 - side])
        start, stop = tables.others_from[record], tables.others_to[record]
        start += np.searchsorted(tables.time_at[start:stop], lower)
        matched = False
        at = at_or_above(tables.store, start)
        while NOTHING < at < stop and tables.time_at[at] <= upper:
            matched = True
            other = tables.record_at[at]
            rows, used = _emit(rows, used, cause, tables, record, other)
            if tables.waiting[other]:
                tables.waiting[other] = False
                leave(tables.waits[1 - side], turn[other])
            at = at_or_above(tables.store, at + 1)
        if outer[side] and not matched:
            if upper < stream_time:
                rows, used = _emit(rows, used, cause, tables, record, NOTHING)
            else:
                tables.waiting[record] = True
                take(tables.waits[side], turn[record])
                noted = now if noted == NOTHING else min(noted, now)
        take(tables.store, place[record])
        largest[side] = max(largest[side], now)
    return rows[:used], np.array([stream_time, largest[RIGHT], largest[LEFT], noted])


@compiled
def _release(
    rows: Integers, used: int, cause: int, tables: _Tables, window: Window, stream_time: int
) -> tuple[Integers, int, int]:
    """Release what waits and is closed, in order, until something open of each side is found; and the new `m`.

    Kafka Streams takes one step more before it stops, and notes the time of the last entry that it has looked at.
    """
    closed = (stream_time - window.before - window.grace, stream_time - window.after - window.grace)
    looked_at = NOTHING
    heads = np.array([at_or_above(tables.waits[RIGHT], 0), at_or_above(tables.waits[LEFT], 0)])
    while True:
        side = NOTHING
        for of in (RIGHT, LEFT):
            is_closed = heads[of] != NOTHING and tables.timestamp[tables.record_next[heads[of]]] < closed[of]
            if is_closed and (side == NOTHING or heads[of] < heads[side]):
                side = of
        if side == NOTHING:
            break
        looked_at = heads[side]
        record = tables.record_next[looked_at]
        rows, used = _emit(rows, used, cause, tables, record, NOTHING)
        tables.waiting[record] = False
        leave(tables.waits[side], looked_at)
        heads[side] = at_or_above(tables.waits[side], looked_at)
    if heads.min() != NOTHING:
        looked_at = heads.max()
        beyond = (at_or_above(tables.waits[RIGHT], looked_at + 1), at_or_above(tables.waits[LEFT], looked_at + 1))
        if max(beyond) != NOTHING:
            looked_at = min(beyond) if min(beyond) != NOTHING else max(beyond)
    else:
        last = tables.waits[LEFT].size // 2 - 1
        for of in (RIGHT, LEFT):
            looked_at = max(looked_at, at_or_below(tables.waits[of], last))
    return rows, used, tables.timestamp[tables.record_next[looked_at]] if looked_at != NOTHING else NOTHING


@compiled
def _emit(rows: Integers, used: int, cause: int, tables: _Tables, record: int, other: int) -> tuple[Integers, int]:
    """A record with the one of the other side that it is joined with, or with NOTHING."""
    rows = room(rows, used)
    row = rows[used]
    row[0], row[1], row[4] = cause, tables.key[record], tables.timestamp[record]
    row[2 if tables.side[record] == LEFT else 3] = tables.value[record]
    row[3 if tables.side[record] == LEFT else 2] = tables.value[other] if other != NOTHING else NOTHING
    if other != NOTHING:
        row[4] = max(row[4], tables.timestamp[other])
    return rows, used + 1
