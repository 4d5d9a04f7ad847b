"""Plans, the pure parts: the ranges of a run, and what a plan is stored as."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from bare_runs import bare_run
from hindcast.common.errors import TopicError
from hindcast.kafka.topic_patterns import MemberPartition
from hindcast.kafka.topics import OffsetRange, bound_ranges, refuse_lost_offsets
from hindcast.plan.plans import Plan, TopicPlan
from hindcast.plan.purposes import Upgrade
from hindcast.plan.runs import (
    Abandoned,
    Completed,
    has_unknown_rows,
    last_included_run,
    was_derived_since,
    was_ingested_late,
    was_lost,
    was_published_late,
)
from hindcast.plan.topic_planning import find_start_offsets
from pipelines import T0

HOUR = timedelta(hours=1)


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
    start = available[0] if claimed is None else claimed
    assert bound_ranges({0: OffsetRange(*available)}, {0: start}, {0: bound}) == {0: expected}, rule


def test_partitions_are_bounded_each_for_itself() -> None:
    available = {0: OffsetRange(0, 9), 1: OffsetRange(2, 5), 2: OffsetRange(0, 3)}
    assert bound_ranges(available, {0: 4, 1: 2, 2: 0}, {0: 6, 1: None}) == {0: (4, 6), 1: (2, 5), 2: (0, 3)}


def test_what_comes_next_is_there() -> None:
    refuse_lost_offsets("menu", {0: 3, 1: 9}, {0: OffsetRange(3, 9), 1: OffsetRange(0, 9), 2: OffsetRange(5, 6)})


@pytest.mark.parametrize(
    ("available", "found"),
    [
        ({0: OffsetRange(0, 2)}, "offsets up to 2 were replayed, but the partition ends at 1"),
        ({1: OffsetRange(0, 9)}, "was replayed before and no longer exists"),
    ],
)
def test_a_topic_has_less_than_was_replayed(available: dict[int, OffsetRange], found: str) -> None:
    with pytest.raises(TopicError) as caught:
        refuse_lost_offsets("menu", {0: 3}, available)
    assert (caught.value.found, caught.value.where) == (found, "topic menu, partition 0")
    assert "another pipeline: name" in caught.value.fix


SOME, OTHER = datetime(2026, 1, 1, tzinfo=UTC), datetime(2026, 2, 1, tzinfo=UTC)


def claimed(anchor: int, since: datetime | None = None) -> TopicPlan:
    return TopicPlan("id", 0, 1, {0: anchor}, {0: OffsetRange(anchor, 8)}, {}, since)


@pytest.mark.parametrize(
    ("rule", "held", "before", "since", "reached", "expected"),
    [
        ("the log's beginning", {0: (2, 9)}, None, None, {}, {0: 2}),
        ("or the first record dated `from`", {0: (2, 9)}, None, SOME, {0: 5}, {0: 5}),
        ("none while no record is dated so late", {0: (2, 9)}, None, SOME, {0: None}, {}),
        ("what is stored stays", {0: (7, 9)}, claimed(2), None, {}, {0: 2}),
        ("also under the same `from`", {0: (7, 9)}, claimed(2, SOME), SOME, {}, {0: 2}),
        ("it moves back", {0: (2, 9)}, claimed(5, OTHER), SOME, {0: 3}, {0: 3}),
        ("to the beginning where `from` goes", {0: (2, 9)}, claimed(5, OTHER), None, {}, {0: 2}),
        ("never on", {0: (2, 9)}, claimed(5, SOME), OTHER, {0: 6}, {0: 5}),
        (
            "an added partition begins at 0, whatever Kafka lost",
            {0: (0, 9), 1: (4, 9)},
            claimed(0),
            None,
            {},
            {0: 0, 1: 0},
        ),
        (
            "what Kafka lost before the first record may be dated so late, too",
            {0: (5, 9)},
            replace(claimed(3), start_offsets={}, ranges={0: OffsetRange(3, 3)}),
            SOME,
            {0: 5},
            {0: 3},
        ),
        (
            "unless a record before that one is still there",
            {0: (4, 9)},
            replace(claimed(3), start_offsets={}, ranges={0: OffsetRange(3, 3)}),
            SOME,
            {0: 5},
            {0: 5},
        ),
        ("or at its own `from`", {0: (0, 9), 1: (0, 9)}, claimed(0, SOME), SOME, {0: 1, 1: 4}, {0: 0, 1: 4}),
    ],
)
def test_the_anchor_of_a_partition(
    rule: str,
    held: dict[int, tuple[int, int]],
    before: TopicPlan | None,
    since: datetime | None,
    reached: dict[int, int | None],
    expected: dict[int, int],
) -> None:
    assert find_start_offsets({p: OffsetRange(*r) for p, r in held.items()}, before, since, reached) == expected, rule


@pytest.mark.parametrize("end", [None, datetime(2026, 1, 2, tzinfo=UTC)])
def test_a_plan_is_read_back_as_it_was_stored(end: datetime | None) -> None:
    known_at = datetime(2026, 1, 1, 12, 0, 0, 1, tzinfo=UTC)
    of_many = {0: MemberPartition("menu-eu", 0, "id1"), 10: MemberPartition("menu-us", 3, "id2")}
    menu = TopicPlan("", 2, 3, {0: 0, 10: 5}, {0: OffsetRange(0, 3), 10: OffsetRange(5, 5)}, {}, members=of_many)
    orders = TopicPlan("id2", 0, 0, {0: 1}, {0: OffsetRange(7, 9)}, {0: OffsetRange(1, 4)}, end)
    plan = Plan("restaurant", 7, "manual__1", known_at, end, "c0ffee", {"menu": menu, "orders": orders})
    assert orders.parts == [{0: (1, 4)}, {0: (7, 9)}]
    assert orders.planned_counts == {0: 5}
    assert Plan.from_json(json.loads(json.dumps(plan.as_json()))) == plan


def test_a_table_includes_no_run_that_skipped_tables_unless_that_published_it() -> None:
    upgrade = Upgrade("menu", "in-place", "begin", without=("dishes",))
    past = [bare_run("p", 1, T0, "completed"), bare_run("p", 2, T0, "completed", purpose=upgrade)]
    assert (last_included_run(past, 1), last_included_run(past, 2)) == (1, 2)
    assert last_included_run([*past, bare_run("p", 3, T0, "completed")], 1) == 3


def test_a_table_that_only_an_abandoned_run_published_was_lost_with_its_folder() -> None:
    run = replace(bare_run("p", 1, T0), outcome=Abandoned("", ("menu",)))
    assert (was_lost([run], "menu", 0), was_lost([run], "menu", 1), was_lost([run], "orders", 0)) == (
        True,
        False,
        False,
    )


@pytest.mark.parametrize(("hours", "was_derived"), [(None, True), (0, True), (1, True), (2, False)])
def test_a_table_without_rows_was_derived_by_a_run_that_was_completed_since_it_was_created(
    hours: int | None, was_derived: bool
) -> None:
    """Not by one that was abandoned, had another contract, or skipped tables."""
    report = Completed({"tables": {"bills": {"opened": 0}}})
    upgrade = Upgrade("menu", "in-place", "begin", without=("bills",))
    past = [replace(bare_run("p", n, T0 + n * HOUR, "completed"), outcome=report) for n in (0, 1)]
    past += [
        bare_run("p", 3, T0 + 3 * HOUR, "abandoned"),
        bare_run("p", 4, T0 + 4 * HOUR, "completed"),
        replace(bare_run("p", 5, T0 + 5 * HOUR, "completed", purpose=upgrade), outcome=report),
    ]
    created = None if hours is None else T0 + hours * HOUR
    assert was_derived_since(past, "bills", created) == was_derived
    assert not was_derived_since(past, "spent", created)


def test_an_abandoned_run_that_has_not_listed_a_table_has_published_it_late() -> None:
    abandoned = replace(bare_run("p", 3, T0, numbers=2), outcome=Abandoned("", ("menu",)))
    past = [bare_run("p", 1, T0, "completed"), abandoned, bare_run("p", 4, T0, "completed")]
    late = {name: [was_published_late(past, name, run) for run in range(5)] for name in ("menu", "orders")}
    assert late == {"menu": [False] * 5, "orders": [False, False, True, True, False]}
    assert has_unknown_rows(past, "orders", 3)


@pytest.mark.parametrize(("ingested", "late"), [(0, False), (1, False), (2, True), (3, False)])
def test_records_that_no_completed_run_has_planned_after_came_late(ingested: int, late: bool) -> None:
    past = [bare_run("p", 1, T0, "completed"), bare_run("p", 2, T0, "abandoned")]
    last = bare_run("p", 3, T0, "completed", topics={"menu": TopicPlan("id", 0, 1, {}, {}, {})})
    assert was_ingested_late([*past, last], "menu", ingested) == late
    assert not was_ingested_late(past, "menu", ingested)
    under_way = bare_run("p", 4, T0, topics={"menu": TopicPlan("id", 0, ingested, {}, {}, {})})
    assert was_ingested_late([*past, last, under_way], "menu", 4) == late
