"""Stream-stream join, inner, left and outer (KStreamKStreamJoin; docs/kafka-parity.md, rules 66-73).

A side is a number: RIGHT or LEFT. `T` is stream time: the largest timestamp of both sides, dropped records included.
`W` of a side is the largest timestamp that its window store has accepted. `m` is the noted time by which Kafka Streams
decides whether to look at waiting records. It can be later than the earliest of them, so that a release comes late.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from hindcast.common.jit import NOTHING, compile_loop, ensure_room
from hindcast.streams.slot_index import empty_index, find_at_or_above, find_at_or_below, release_slot, take_slot

if TYPE_CHECKING:
    from hindcast.common.jit import Booleans, Integers

RIGHT, LEFT = 0, 1


class JoinWindows(NamedTuple):
    """A right record is at most `before` earlier and `after` later than the left one; lengths in ms."""

    before: int
    after: int
    grace: int


class JoinRecords(NamedTuple):
    """Records of both sides in processing order."""

    order: Integers
    side: Integers
    key: Integers
    value: Integers
    timestamp: Integers


class StreamJoinState(NamedTuple):
    """The records that can still be joined or wait, in order of arrival; `times`: T, W of right and left, and m."""

    side: Integers
    key: Integers
    value: Integers
    timestamp: Integers
    waiting: Booleans
    times: Integers


class JoinedPairs(NamedTuple):
    """The emitted pairs, in order. `left` or `right` is NOTHING if there is no match."""

    cause: Integers
    key: Integers
    left: Integers
    right: Integers
    timestamp: Integers


class _JoinStores(NamedTuple):
    """The records, those of the state first, and two orders of them.

    By key, side and time, as in the window stores: `store` indexes the records put there so far. By time, side and key,
    as they are released: `waits` indexes the waiting records of each side. `record_at` and `record_next` lead from a
    place in these orders to its record.
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


def empty_join_state() -> StreamJoinState:
    """Return the state before the first run."""
    none = np.empty(0, np.int64)
    return StreamJoinState(none, none, none, none, np.empty(0, np.bool_), np.full(4, NOTHING))


def join_stream_stream(
    records: JoinRecords, window: JoinWindows, how: str, state: StreamJoinState
) -> tuple[JoinedPairs, StreamJoinState]:
    """Return the pairs that an `inner`, `left` or `outer` join emits for these records, and the state after them.

    Values are numbers chosen by the caller; the state keeps them.
    """
    side, key, value, timestamp = (np.concatenate(pair) for pair in zip(state[:4], records[1:], strict=True))
    waiting = np.concatenate([state.waiting, np.zeros(records.key.size, np.bool_)])
    group = 2 * np.unique(key, return_inverse=True)[1] + side
    record_at = np.lexsort((timestamp, group))
    # rule: released by timestamp, side, key
    record_next = np.lexsort((key, side, timestamp)) if how != "inner" else np.empty(0, np.int64)
    tables = _JoinStores(
        side,
        key,
        value,
        timestamp,
        waiting,
        record_at,
        timestamp[record_at],
        np.searchsorted(group[record_at], group ^ 1),
        np.searchsorted(group[record_at], group ^ 1, "right"),
        empty_index(record_at.size),
        record_next,
        (empty_index(record_next.size), empty_index(record_next.size)),
    )
    rows, times = _join_records(records.order, tables, window, (how == "outer", how != "inner"), state.times)
    in_reach = timestamp >= _earliest_found(times[1:3], window)[side]  # rule: records at the edge of the reach are kept
    stays = waiting | ((key != NOTHING) & (value != NOTHING) & in_reach)
    return JoinedPairs(*rows.T), StreamJoinState(
        side[stays], key[stays], value[stays], timestamp[stays], waiting[stays], times
    )


@compile_loop
def _earliest_found(largest: Integers, window: JoinWindows) -> Integers:
    """Return, by side, the earliest timestamp that its window store still finds."""
    # rule: the reach has both windows, the grace and a millisecond
    return largest - (window.before + window.after + window.grace) + 1


@compile_loop
def _join_records(
    order: Integers, tables: _JoinStores, window: JoinWindows, outer: tuple[bool, bool], times: Integers
) -> tuple[Integers, Integers]:
    """Return the emitted rows, and the times after them. `outer`: by side, whether it emits a record without match."""
    # rule: the other side's window is turned round
    back, ahead = (window.after, window.before), (window.before, window.after)
    stream_time, noted = times[0], times[3]
    largest = times[1:3].copy()
    place, turn = np.empty_like(tables.record_at), np.empty_like(tables.record_next)
    place[tables.record_at] = np.arange(place.size)
    turn[tables.record_next] = np.arange(turn.size)
    known = place.size - order.size
    for record in range(known):
        take_slot(tables.store, place[record])
        if tables.waiting[record]:
            take_slot(tables.waits[tables.side[record]], turn[record])
    rows, used = np.empty((order.size, 5), np.int64), 0

    for record in range(known, place.size):
        cause, side, now = order[record - known], tables.side[record], tables.timestamp[record]
        stream_time = max(stream_time, now)  # rule: dropped records move T
        if tables.value[record] == NOTHING:
            continue
        if tables.key[record] == NOTHING:
            if outer[side]:  # rule: an outer side emits null keys
                rows, used = _emit_pair(rows, used, cause, tables, record, NOTHING)
            continue

        # rule: a record looks at what waits only where that may be due
        may_release = noted != NOTHING and noted + ahead[side] + window.grace < stream_time
        if now == stream_time and may_release:  # rule: only a record at T releases what waits
            rows, used, noted = _emit_non_joined(rows, used, cause, tables, window, stream_time)

        upper = max(0, now + ahead[side])
        lower = max(0, now - back[side], _earliest_found(largest, window)[1 - side])
        start, stop = tables.others_from[record], tables.others_to[record]
        start += np.searchsorted(tables.time_at[start:stop], lower)
        matched = False
        at = find_at_or_above(tables.store, start)
        while NOTHING < at < stop and tables.time_at[at] <= upper:  # rule: a window holds its upper bound
            matched = True
            other = tables.record_at[at]
            rows, used = _emit_pair(rows, used, cause, tables, record, other)
            if tables.waiting[other]:  # rule: what has found a match waits no more
                tables.waiting[other] = False
                release_slot(tables.waits[1 - side], turn[other])
            at = find_at_or_above(tables.store, at + 1)
        if outer[side] and not matched:
            if upper < stream_time:  # rule: a record whose window ends at T waits
                rows, used = _emit_pair(rows, used, cause, tables, record, NOTHING)
            else:
                tables.waiting[record] = True
                take_slot(tables.waits[side], turn[record])
                noted = now if noted == NOTHING else min(noted, now)  # rule: m is the earliest that waits
        take_slot(tables.store, place[record])
        largest[side] = max(largest[side], now)
    return rows[:used], np.array([stream_time, largest[RIGHT], largest[LEFT], noted])


@compile_loop
def _emit_non_joined(
    rows: Integers, used: int, cause: int, tables: _JoinStores, window: JoinWindows, stream_time: int
) -> tuple[Integers, int, int]:
    """Release closed waiting records, in order, until each side has an open one; return the rows and the new `m`.

    Kafka Streams takes one more step before it stops, and notes the time of the last entry that it looked at.
    """
    closed = (stream_time - window.before - window.grace, stream_time - window.after - window.grace)
    looked_at = NOTHING
    heads = np.array([find_at_or_above(tables.waits[RIGHT], 0), find_at_or_above(tables.waits[LEFT], 0)])
    while True:
        side = NOTHING
        for of in (RIGHT, LEFT):
            # rule: released once its window and grace are past
            is_closed = heads[of] != NOTHING and tables.timestamp[tables.record_next[heads[of]]] < closed[of]
            if is_closed and (side == NOTHING or heads[of] < heads[side]):
                side = of
        if side == NOTHING:
            break
        looked_at = heads[side]
        record = tables.record_next[looked_at]
        rows, used = _emit_pair(rows, used, cause, tables, record, NOTHING)
        tables.waiting[record] = False
        release_slot(tables.waits[side], looked_at)
        heads[side] = find_at_or_above(tables.waits[side], looked_at)
    if heads.min() != NOTHING:
        looked_at = heads.max()
        beyond = (
            find_at_or_above(tables.waits[RIGHT], looked_at + 1),
            find_at_or_above(tables.waits[LEFT], looked_at + 1),
        )
        if max(beyond) != NOTHING:
            # rule: a release looks at one entry more when both sides are open
            looked_at = min(beyond) if min(beyond) != NOTHING else max(beyond)
    else:
        last = tables.waits[LEFT].size // 2 - 1
        for of in (RIGHT, LEFT):
            looked_at = max(looked_at, find_at_or_below(tables.waits[of], last))
    return rows, used, tables.timestamp[tables.record_next[looked_at]] if looked_at != NOTHING else NOTHING


@compile_loop
def _emit_pair(
    rows: Integers, used: int, cause: int, tables: _JoinStores, record: int, other: int
) -> tuple[Integers, int]:
    """Add the pair of a record and its match on the other side, or NOTHING; return the rows and their number."""
    rows = ensure_room(rows, used)
    row = rows[used]
    row[0], row[1], row[4] = cause, tables.key[record], tables.timestamp[record]
    row[2 if tables.side[record] == LEFT else 3] = tables.value[record]
    row[3 if tables.side[record] == LEFT else 2] = tables.value[other] if other != NOTHING else NOTHING
    if other != NOTHING:
        row[4] = max(row[4], tables.timestamp[other])  # rule: a pair's time is the later one
    return rows, used + 1
