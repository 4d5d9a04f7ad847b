"""Plans, the pure parts: the ranges of a run, and what a plan is stored as."""

from __future__ import annotations

import json
from datetime import UTC, datetime

import pytest

from hindcast.errors import TopicError
from hindcast.plans import Plan
from hindcast.topics import Offsets, bounded, gone


@pytest.mark.parametrize(
    ("rule", "available", "claimed", "bound", "expected"),
    [
        ("everything, the first time and without a bound", (0, 9), None, None, (0, 9)),
        ("from the first record that Kafka still has", (4, 9), None, None, (4, 9)),
        ("from where the last run ended", (0, 9), 5, None, (5, 9)),
        ("up to the bound", (0, 9), 5, 7, (5, 7)),
        ("nothing new", (0, 9), 9, None, (9, 9)),
        ("a bound behind what was replayed takes nothing back", (0, 9), 5, 2, (5, 5)),
        ("a bound at the start brings nothing", (0, 9), None, 0, (0, 0)),
        ("records that came after the end was asked are left to the next run", (0, 9), None, 12, (0, 9)),
        ("an empty partition", (0, 0), None, None, (0, 0)),
    ],
)
def test_the_range_of_a_run(
    rule: str, available: tuple[int, int], claimed: int | None, bound: int | None, expected: tuple[int, int]
) -> None:
    replayed = {} if claimed is None else {0: claimed}
    assert bounded({0: Offsets(*available)}, replayed, {0: bound}) == {0: expected}, rule


def test_partitions_are_bounded_each_for_itself() -> None:
    available = {0: Offsets(0, 9), 1: Offsets(2, 5), 2: Offsets(0, 3)}
    assert bounded(available, {0: 4}, {0: 6, 1: None}) == {0: (4, 6), 1: (2, 5), 2: (0, 3)}


def test_what_comes_next_is_there() -> None:
    gone("menu", {0: 3, 1: 9}, {0: Offsets(3, 9), 1: Offsets(0, 9), 2: Offsets(5, 6)})


@pytest.mark.parametrize(
    ("available", "found", "mend"),
    [
        (
            {0: Offsets(5, 9)},
            "offsets 3 to 4 are gone from Kafka before they were replayed",
            "raise the topic's retention",
        ),
        ({0: Offsets(0, 2)}, "offsets up to 2 were replayed, the partition ends at 1", "another pipeline: name"),
        ({1: Offsets(0, 9)}, "was replayed before and is not there any more", "another pipeline: name"),
    ],
)
def test_what_comes_next_is_gone(available: dict[int, Offsets], found: str, mend: str) -> None:
    with pytest.raises(TopicError) as caught:
        gone("menu", {0: 3}, available)
    assert (caught.value.found, caught.value.where) == (found, "topic menu, partition 0")
    assert mend in caught.value.mend


@pytest.mark.parametrize("end", [None, datetime(2026, 1, 2, tzinfo=UTC)])
def test_a_plan_is_read_back_as_it_was_stored(end: datetime | None) -> None:
    known_at = datetime(2026, 1, 1, 12, 0, 0, 1, tzinfo=UTC)
    ranges = {"menu": {0: Offsets(0, 3), 10: Offsets(5, 5)}, "orders": {}}
    plan = Plan("restaurant", 7, "manual__1", known_at, end, "c0ffee", ranges, {"menu": "id1", "orders": "id2"})
    assert Plan.from_json(json.loads(json.dumps(plan.as_json()))) == plan
