"""Sweeps through moments in their order, compiled: what is valid when, of keys that are numbers.

Keys are numbers from 0, NOTHING for one that meets nothing. Moments are microseconds since 1970, FOREVER for the end of
what has not ended. No two versions of a key overlap.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from hindcast.common.jit import NOTHING, compile_loop, ensure_room

if TYPE_CHECKING:
    from hindcast.common.jit import Booleans, Integers

FOREVER = 2**63 - 1


@compile_loop
def find_valid_versions(
    on: Integers, at: Integers, key: Integers, start: Integers, end: Integers, keys: int
) -> Integers:
    """Return, for each event, the number of the version of `on` that is valid at `at`; NOTHING if there is none.

    Events are sorted by `at`, versions by `start`; `keys` is the number of keys.

        versions 0: [0, 4), 1: [4, ..)    events @3, @4    ->    0, 1
    """
    found, last, version = np.full(len(on), NOTHING), np.full(keys, NOTHING), 0
    for event in range(len(on)):
        while version < len(key) and start[version] <= at[event]:  # rule: a version begins at its first moment
            if key[version] != NOTHING:
                last[key[version]] = version
            version += 1
        if on[event] != NOTHING:
            met = last[on[event]]
            # rule: a version ends before its last moment, or never
            if met != NOTHING and (end[met] == FOREVER or at[event] < end[met]):
                found[event] = met
    return found


@compile_loop
def group_by_key(key: Integers, keys: int) -> tuple[Integers, Integers]:
    """Return the numbers of versions by key, each key's in their order, and for each key the place of its first.

    The places have one more entry, the number of all versions that have a key.
    """
    first = np.zeros(keys + 1, np.int64)
    for version in range(len(key)):
        if key[version] != NOTHING:
            first[key[version] + 1] += 1
    for number in range(keys):
        first[number + 1] += first[number]
    place, grouped = first[:keys].copy(), np.empty(first[keys], np.int64)
    for version in range(len(key)):
        if key[version] != NOTHING:
            grouped[place[key[version]]] = version
            place[key[version]] += 1
    return grouped, first


@compile_loop
def find_near_events(
    key: Integers, at: Integers, others: tuple[Integers, Integers], other_at: Integers, before: int, after: int
) -> tuple[Integers, Integers]:
    """Return, for each event, the places of the first other event near it and of the one behind the last.

    Near are those of its key from so many microseconds before it to so many after it. `others`: their numbers by key
    (`group_by_key`), each key's in the order of `other_at`. Places are those in the first of its arrays.

        event @10    others @4, @5, @16, before 5, after 5    ->    1, 2
    """
    grouped, first = others
    low, high = np.zeros(len(key), np.int64), np.zeros(len(key), np.int64)
    for event in range(len(key)):
        if key[event] == NOTHING:
            continue
        earliest, latest = at[event] - before, at[event] + after
        place, last = first[key[event]], first[key[event] + 1]
        while place < last:  # the first one that is early enough no more
            middle = (place + last) // 2
            if other_at[grouped[middle]] >= earliest:  # rule: an event as long before as may be is near
                last = middle
            else:
                place = middle + 1
        low[event], last = place, first[key[event] + 1]
        while place < last:  # the first one that is too late
            middle = (place + last) // 2
            if other_at[grouped[middle]] > latest:  # rule: an event as long after as may be is near
                last = middle
            else:
                place = middle + 1
        high[event] = place
    return low, high


@compile_loop
def find_pieces(
    on: Integers,
    start: Integers,
    end: Integers,
    others: tuple[Integers, Integers],
    other_start: Integers,
    other_end: Integers,
    later: Integers,
    since: int,
    until: int,
    with_other: bool,  # as the compiled code takes it
    without_other: bool,
) -> Integers:
    """Return the pieces into which the versions of key `on` on the other side divide each version.

    A piece is a row of four: the version, the other side's version or NOTHING, start, end. Only pieces that start at
    `since` or later and before `until`; those with and those without another version as asked for. `others`: the other
    side's versions by key (`group_by_key`). `later`: by key, the first of their starts that is not among them.

        0: [0, 8)    others 0: [2, 4), 1: [6, ..)    ->    (0, -) [0, 2), (0, 0) [2, 4), (0, -) [4, 6), (0, 1) [6, 8)
    """
    grouped, first = others
    pieces, count = np.empty((len(on) + len(grouped), 4), np.int64), 0
    for version in range(len(on)):
        # rule: what begins at a cut is in the slice after it
        now, stop, has_begun = start[version], end[version], start[version] < since
        place, last, following = 0, 0, FOREVER
        if on[version] != NOTHING:
            place, last, following = first[on[version]], first[on[version] + 1], later[on[version]]
        least, high = since if has_begun else now + 1, last  # rule: a version is not met at its end
        while place < high:  # the first other version that ends at `least` or later
            middle = (place + high) // 2
            if other_end[grouped[middle]] >= least:
                high = middle
            else:
                place = middle + 1
        # Of what has begun, the piece at `since` is of the slice before, unless it begins just then.
        if has_begun:  # rule: what begins before a slice is not in it again
            now = following
            if place < last:
                now = other_start[grouped[place]]
                if now < since:
                    now, place = other_end[grouped[place]], place + 1
        while now < stop and now < until:  # rule: a slice has the pieces that begin in it
            other, next_ = NOTHING, following
            if place < last:
                if other_start[grouped[place]] <= now:
                    other, place = grouped[place], place + 1
                    next_ = other_end[other]
                else:
                    next_ = other_start[grouped[place]]  # rule: an absence ends when another version begins
            if with_other if other != NOTHING else without_other:
                pieces = ensure_room(pieces, count)
                pieces[count, 0], pieces[count, 1], pieces[count, 2] = version, other, now
                pieces[count, 3] = min(stop, next_)  # rule: a piece lasts while both versions do
                count += 1
            now = next_
    return pieces[:count]


@compile_loop
def sum_steps(
    key: Integers,
    start: Integers,
    end: Integers,
    by_end: Integers,
    counted: Booleans,
    high: Integers,
    low: Integers,
    keys: int,
) -> tuple[Integers, Integers, Integers, Integers, Integers, Integers]:
    """Return the sums over the versions of each key, from each moment at which one starts or ends to the next.

    Versions are sorted by their starts; `by_end` has the numbers of those that end, sorted by their ends. For each
    measure, a row of `counted` shows which versions count, and rows of `high` and `low` the upper and lower 32 bits of
    what they add. Returns key, start and end of each step that has versions, by start, and for each measure a row of
    counts, and rows of the sums of `high` and `low`.

        0: 5 [0, 8), 0: 7 [4, ..)    ->    5 [0, 4), 12 [4, 8), 7 [8, ..)
    """
    measures, room = counted.shape[0], len(key) + len(by_end)
    of, since, until = np.empty(room, np.int64), np.empty(room, np.int64), np.full(room, FOREVER)
    counts = np.empty((measures, room), np.int64)
    highs, lows = np.empty((measures, room), np.int64), np.empty((measures, room), np.int64)
    there, step, seen = np.zeros(keys, np.int64), np.full(keys, NOTHING), np.full(keys, NOTHING)
    now_counts = np.zeros((measures, keys), np.int64)
    now_highs, now_lows = np.zeros((measures, keys), np.int64), np.zeros((measures, keys), np.int64)
    touched = np.empty(keys, np.int64)
    count = starting = ending = turn = 0
    while starting < len(key) or ending < len(by_end):
        now = FOREVER
        if starting < len(key):
            now = start[starting]
        if ending < len(by_end):
            now = min(now, end[by_end[ending]])
        turn, many = turn + 1, 0
        while True:  # rule: edges at one moment are one step
            if starting < len(key) and start[starting] == now:
                version, sign = starting, 1
                starting += 1
            elif ending < len(by_end) and end[by_end[ending]] == now:
                version, sign = by_end[ending], -1  # rule: an end takes off what a start adds
                ending += 1
            else:
                break
            its = key[version]
            if seen[its] != turn:
                seen[its] = turn
                touched[many] = its
                many += 1
            there[its] += sign
            for measure in range(measures):
                now_counts[measure, its] += sign * counted[measure, version]
                now_highs[measure, its] += sign * high[measure, version]
                now_lows[measure, its] += sign * low[measure, version]
        for number in range(many):
            its = touched[number]
            if step[its] != NOTHING:
                until[step[its]] = now
                step[its] = NOTHING
            if there[its] > 0:  # rule: a group without members ends
                step[its] = count
                of[count], since[count] = its, now
                for measure in range(measures):
                    counts[measure, count] = now_counts[measure, its]
                    highs[measure, count] = now_highs[measure, its]
                    lows[measure, count] = now_lows[measure, its]
                count += 1
    return of[:count], since[:count], until[:count], counts[:, :count], highs[:, :count], lows[:, :count]


@compile_loop
def find_extremes(
    order: Integers,
    key: Integers,
    start: Integers,
    end: Integers,
    steps: tuple[Integers, Integers],
    since: Integers,
) -> Integers:
    """Return for each step the first version in `order` that is valid in it; NOTHING if none is.

    `order`: numbers of versions, of each key the one with the extreme value first; key by key is fastest. `steps`: the
    numbers of steps by key (`group_by_key`); `since`: their starts. A version starts and ends where steps do.

        0: 5 [0, 8), 0: 7 [4, ..)    max    ->    5 [0, 4), 7 [4, 8), 7 [8, ..)
    """
    grouped, first = steps
    begun, taken, free = since[grouped], np.full(len(grouped), NOTHING), np.arange(len(grouped) + 1)
    for version in order:
        place, last = first[key[version]], first[key[version] + 1]
        high = last
        while place < high:  # the first step that starts with the version or later
            middle = (place + high) // 2
            if begun[middle] >= start[version]:
                high = middle
            else:
                place = middle + 1
        while True:
            while free[place] != place:  # over steps that have their version
                free[place] = free[free[place]]
                place = free[place]
            if place >= last or begun[place] >= end[version]:  # rule: an extreme has no step after its end
                break
            taken[place] = version
            free[place] = place + 1
    found = np.empty(len(grouped), np.int64)
    found[grouped] = taken
    return found


@compile_loop
def sum_groups(group: Integers, high: Integers, low: Integers, groups: int) -> tuple[Integers, Integers, Integers]:
    """Return for each group the number of its members, and the sums of the halves of what they add."""
    counts, highs, lows = np.zeros(groups, np.int64), np.zeros(groups, np.int64), np.zeros(groups, np.int64)
    for member in range(len(group)):
        counts[group[member]] += 1
        highs[group[member]] += high[member]
        lows[group[member]] += low[member]
    return counts, highs, lows


@compile_loop
def find_least(group: Integers, rank: Integers, groups: int) -> Integers:
    """Return for each group the least rank of its members; NOTHING if it has none."""
    least = np.full(groups, NOTHING)
    for member in range(len(group)):
        if least[group[member]] == NOTHING or rank[member] < least[group[member]]:
            least[group[member]] = rank[member]
    return least
