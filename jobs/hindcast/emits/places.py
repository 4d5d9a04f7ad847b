"""Sets of places: which places of an order that is known beforehand are taken, and which of them comes first.

All records of a run are known before the first is processed. So whatever a live topology keeps sorted is a place in one
sort here, and to put something in is to take its place. A set is a binary tree in an array, its root at 1: a node is
true if a place below it is taken. Every question is answered in as many steps as the tree is high.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from hindcast.emits.compiled import compiled

if TYPE_CHECKING:
    from hindcast.emits.compiled import Booleans


def places(count: int) -> Booleans:
    """A set of places 0 to `count` - 1, none of them taken."""
    return np.zeros(2 << max(count - 1, 0).bit_length(), np.bool_)


@compiled
def end(taken: Booleans) -> int:
    """The place after all places."""
    return taken.size // 2


@compiled
def take(taken: Booleans, place: int) -> None:
    node = end(taken) + place
    while node and not taken[node]:
        taken[node] = True
        node //= 2


@compiled
def leave(taken: Booleans, place: int) -> None:
    node = end(taken) + place
    taken[node] = False
    while node > 1 and not taken[node ^ 1]:
        node //= 2
        taken[node] = False


@compiled
def first(taken: Booleans, start: int) -> int:
    """The first place taken from `start` on; the end if there is none."""
    half = end(taken)
    if start >= half:
        return half
    node = half + start
    while not taken[node]:
        while node & 1:
            node //= 2
        if node == 0:
            return half
        node += 1
    while node < half:
        node = 2 * node if taken[2 * node] else 2 * node + 1
    return node - half


@compiled
def last(taken: Booleans) -> int:
    """The last place taken; -1 if there is none."""
    if not taken[1]:
        return -1
    half = end(taken)
    node = 1
    while node < half:
        node = 2 * node + 1 if taken[2 * node + 1] else 2 * node
    return node - half
