"""Sorted places: what a store can hold is known before a loop runs, so that its order is an index and no tree of keys.

A place is the rank of a row among all rows that the run can ask for. Which places are taken is a binary tree of flags
(leaf `half + place`, parent `node // 2`), so that the next one taken is found in the logarithm of their number.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from hindcast.compiled import NOTHING, compiled

if TYPE_CHECKING:
    from hindcast.compiled import Booleans, Integers


def ranked(*columns: Integers) -> tuple[Integers, Integers]:
    """Of each row its place among the distinct rows in ascending order, and of each place a row that has it."""
    order = np.lexsort(columns[::-1])
    differs = np.ones(len(order), np.bool_)
    if len(order):
        differs[1:] = False
    for column in columns:
        ascending = column[order]
        differs[1:] |= ascending[1:] != ascending[:-1]
    place = np.empty(len(order), np.int64)
    place[order] = np.cumsum(differs) - 1
    return place, order[differs]


def free(count: int) -> Booleans:
    """The tree of `count` places, of which none is taken."""
    return np.zeros(2 << max(count - 1, 0).bit_length(), np.bool_)


def taken_at(count: int, places: Integers) -> Booleans:
    """The tree of `count` places, of which these are taken."""
    taken = free(count)
    node = len(taken) // 2 + places
    while node.any():
        taken[node] = True
        node //= 2
    return taken


@compiled
def first(keys: Integers, times: Integers, key: int, time: int) -> int:
    """The first place that is not before (key, time)."""
    low, high = 0, keys.shape[0]
    while low < high:
        middle = (low + high) // 2
        if keys[middle] < key or (keys[middle] == key and times[middle] < time):
            low = middle + 1
        else:
            high = middle
    return low


@compiled
def take(taken: Booleans, place: int) -> None:
    node = taken.shape[0] // 2 + place
    while node > 0 and not taken[node]:
        taken[node] = True
        node //= 2


@compiled
def leave(taken: Booleans, place: int) -> None:
    node = taken.shape[0] // 2 + place
    taken[node] = False
    while node > 1 and not taken[node ^ 1]:
        node //= 2
        taken[node] = False


@compiled
def is_taken(taken: Booleans, place: int) -> bool:
    return bool(taken[taken.shape[0] // 2 + place])


@compiled
def at_or_above(taken: Booleans, place: int) -> int:
    """The first place taken from this one on, or NOTHING."""
    half: int = taken.shape[0] // 2
    if place >= half:
        return NOTHING
    node = half + place
    while not taken[node]:
        while node % 2 == 1:
            node //= 2
        if node == 0:
            return NOTHING
        node += 1
    while node < half:
        node *= 2
        if not taken[node]:
            node += 1
    return node - half


@compiled
def at_or_below(taken: Booleans, place: int) -> int:
    """The last place taken up to this one, or NOTHING."""
    half: int = taken.shape[0] // 2
    if place < 0:
        return NOTHING
    node = half + place
    while not taken[node]:
        while node % 2 == 0:
            node //= 2
        if node == 1:
            return NOTHING
        node -= 1
    while node < half:
        node = 2 * node + 1
        if not taken[node]:
            node -= 1
    return node - half
