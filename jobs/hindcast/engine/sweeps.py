"""Sweeps through moments in their order, compiled: what is valid when, of keys that are numbers.

Keys are numbers from 0, NOTHING for one that meets nothing. Moments are microseconds since 1970, FOREVER for the end of
what has not ended. No two versions of a key overlap.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from hindcast.common.jit import NOTHING, compile_loop

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
def find_overlaps(
    left: Integers,
    left_start: Integers,
    left_end: Integers,
    right: Integers,
    right_start: Integers,
    right_end: Integers,
    since: int,
    keys: int,
) -> tuple[Integers, Integers]:
    """Return the pairs of versions of equal keys that overlap: the numbers of the left and of the right ones.

    Only pairs that begin to overlap at `since` or later, sorted by that moment. Both sides are sorted by their starts.

        left 0: [0, 8)    right 0: [2, 4), 1: [6, ..)    ->    (0, 0), (0, 1)
    """
    lefts, rights = np.full(keys, NOTHING), np.full(keys, NOTHING)
    met_left = np.empty(len(left) + len(right), np.int64)
    met_right = np.empty(len(left) + len(right), np.int64)
    count = one = other = 0
    while one < len(left) or other < len(right):
        now = FOREVER
        if one < len(left):
            now = left_start[one]
        if other < len(right):
            now = min(now, right_start[other])
        first_left, first_right = one, other
        while one < len(left) and left_start[one] == now:
            if left[one] != NOTHING:
                lefts[left[one]] = one
            one += 1
        while other < len(right) and right_start[other] == now:
            if right[other] != NOTHING:
                rights[right[other]] = other
            other += 1
        if now < since:  # rule: what begins at a cut is in the slice after it
            continue
        for started in range(first_left, one):
            met = rights[left[started]] if left[started] != NOTHING else NOTHING
            if met != NOTHING and right_end[met] > now:  # rule: a right version is not met at its end
                met_left[count], met_right[count] = started, met
                count += 1
        for started in range(first_right, other):
            met = lefts[right[started]] if right[started] != NOTHING else NOTHING
            # What starts on both sides at once was met above.
            # rule: what begins on both sides at once is met once
            if met != NOTHING and left_end[met] > now and left_start[met] < now:
                met_left[count], met_right[count] = met, started
                count += 1
    return met_left[:count], met_right[:count]


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
