"""Sorted places and the tree of those taken, against a list of what is taken."""

from __future__ import annotations

from random import Random

import numpy as np
import pytest

from hindcast.common.jit import NOTHING
from hindcast.streams.slot_index import (
    build_index,
    find_at_or_above,
    find_at_or_below,
    find_first_slot,
    is_taken,
    rank_rows,
    release_slot,
    take_slot,
)


@pytest.mark.parametrize("count", [1, 2, 3, 8, 9, 40])
def test_the_next_place_taken_is_found_on_both_sides(count: int) -> None:
    rng = Random(count)  # noqa: S311
    held = set(rng.sample(range(count), count // 2))
    tree = build_index(count, np.array(sorted(held), np.int64))
    for _ in range(200):
        place = rng.randrange(count)
        if rng.random() < 0.5:
            take_slot(tree, place)
            held.add(place)
        else:
            release_slot(tree, place)
            held.discard(place)
        for asked in range(count):
            assert find_at_or_above(tree, asked) == min((at for at in held if at >= asked), default=NOTHING)
            assert find_at_or_below(tree, asked) == max((at for at in held if at <= asked), default=NOTHING)
            assert is_taken(tree, asked) == (asked in held)
        assert find_at_or_above(tree, len(tree)) == find_at_or_below(tree, -1) == NOTHING


def test_rows_are_ranked_column_by_column_and_equal_rows_share_a_place() -> None:
    keys, times = np.array([1, 0, 1, 0, 1]), np.array([5, 9, 5, 3, -4])
    place, row = rank_rows(keys, times)
    assert place.tolist() == [3, 1, 3, 0, 2]
    assert list(zip(keys[row].tolist(), times[row].tolist(), strict=True)) == [(0, 3), (0, 9), (1, -4), (1, 5)]
    assert [part.tolist() for part in rank_rows(keys[:0], times[:0])] == [[], []]


@pytest.mark.parametrize(("key", "time", "place"), [(0, 0, 0), (0, 3, 0), (0, 4, 1), (0, 10, 2), (1, -4, 2), (1, 6, 4)])
def test_the_first_place_not_before_a_time_of_a_key(key: int, time: int, place: int) -> None:
    assert find_first_slot(np.array([0, 0, 1, 1]), np.array([3, 9, -4, 5]), key, time) == place
