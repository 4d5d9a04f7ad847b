"""Which of many places are taken, and which taken one is next: in a few steps, however far away it is."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from hindcast.emits.compiled import NOTHING, compiled

if TYPE_CHECKING:
    from hindcast.emits.compiled import Booleans, Integers

_SPAN = 256


class Marks(NamedTuple):
    """Places 0 to n; how many are taken in each block of 256, and in each block of these."""

    taken: Booleans
    blocks: Integers
    wide: Integers


def marks(places: int) -> Marks:
    """None is taken."""
    blocks = places // _SPAN + 1
    return Marks(np.zeros(places, np.bool_), np.zeros(blocks, np.int64), np.zeros(blocks // _SPAN + 1, np.int64))


@compiled
def take(marks: Marks, place: int) -> None:
    """Takes a place, if it is free."""
    if not marks.taken[place]:
        marks.taken[place] = True
        marks.blocks[place // _SPAN] += 1
        marks.wide[place // _SPAN // _SPAN] += 1


@compiled
def free(marks: Marks, place: int) -> None:
    """Frees a place, if it is taken."""
    if marks.taken[place]:
        marks.taken[place] = False
        marks.blocks[place // _SPAN] -= 1
        marks.wide[place // _SPAN // _SPAN] -= 1


@compiled
def upto(marks: Marks, place: int, first: int) -> int:
    """The last taken place from `first` up to `place`, or NOTHING."""
    while place >= first:
        if marks.taken[place]:
            return place
        if place % _SPAN or marks.blocks[max(place // _SPAN - 1, 0)]:
            place -= 1
        elif place // _SPAN % _SPAN or marks.wide[max(place // _SPAN // _SPAN - 1, 0)]:
            place -= _SPAN
        else:
            place -= _SPAN * _SPAN
    return NOTHING


@compiled
def since(marks: Marks, place: int, last: int) -> int:
    """The first taken place from `place` up to `last`, or NOTHING."""
    while place <= last:
        if marks.taken[place]:
            return place
        block = place // _SPAN
        if marks.blocks[block]:
            place += 1
        elif marks.wide[block // _SPAN]:
            place = (block + 1) * _SPAN
        else:
            place = (block // _SPAN + 1) * _SPAN * _SPAN
    return NOTHING
