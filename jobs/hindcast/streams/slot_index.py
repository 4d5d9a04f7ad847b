"""Sorted slots: what a store can hold is known before a loop runs, so its order is an index rather than a tree of keys.

A slot (or place) is the rank of a row among all rows that the run can ask for. Which slots are taken is a binary tree
of flags (leaf `half + place`, parent `node // 2`), in which the next taken slot is found in logarithmic time.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from hindcast.common.jit import NOTHING, compile_loop

if TYPE_CHECKING:
    from hindcast.common.jit import Booleans, Integers


def rank_rows(*columns: Integers) -> tuple[Integers, Integers]:
    """Return the rank of each row among the distinct rows in ascending order, and for each rank a row that has it."""
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


def empty_index(count: int) -> Booleans:
    """Return the index of `count` slots, none of them taken."""
    return np.zeros(2 << max(count - 1, 0).bit_length(), np.bool_)


def build_index(count: int, places: Integers) -> Booleans:
    """Return the index of `count` slots, of which these are taken."""
    taken = empty_index(count)
    node = len(taken) // 2 + places
    while node.any():
        taken[node] = True
        node //= 2
    return taken


@compile_loop
def find_first_slot(keys: Integers, times: Integers, key: int, time: int) -> int:
    """Return the first slot that is not before (key, time)."""
    low, high = 0, keys.shape[0]
    while low < high:
        middle = (low + high) // 2
        # rule: a place at the very time is found
        if keys[middle] < key or (keys[middle] == key and times[middle] < time):
            low = middle + 1
        else:
            high = middle
    return low


@compile_loop
def take_slot(taken: Booleans, place: int) -> None:
    """Mark a slot as taken."""
    node = taken.shape[0] // 2 + place
    while node > 0 and not taken[node]:
        taken[node] = True
        node //= 2


@compile_loop
def release_slot(taken: Booleans, place: int) -> None:
    """Mark a slot as free."""
    node = taken.shape[0] // 2 + place
    taken[node] = False
    while node > 1 and not taken[node ^ 1]:  # rule: a place left keeps its neighbours
        node //= 2
        taken[node] = False


@compile_loop
def is_taken(taken: Booleans, place: int) -> bool:
    """Return whether a slot is taken."""
    return bool(taken[taken.shape[0] // 2 + place])


@compile_loop
def find_at_or_above(taken: Booleans, place: int) -> int:
    """Return the first taken slot from this one on, or NOTHING."""
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


@compile_loop
def find_at_or_below(taken: Booleans, place: int) -> int:
    """Return the last taken slot up to this one, or NOTHING."""
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
