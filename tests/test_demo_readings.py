"""Both readings of a join beside each other: which events have two answers, and which late record is why."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa

from hindcast_demo.semantics_diff import CAUSE_COLUMNS, ReadingsComparison, compare_readings

EVENTS = {"anna": (0, 1), "bob": (1, 5), "carla": (2, 6)}
"""Of each event its offset and second."""


def moment(second: int | None) -> datetime | None:
    return None if second is None else datetime(2026, 1, 1, tzinfo=UTC) + timedelta(seconds=second)


def run(number: int | None) -> datetime | None:
    return None if number is None else datetime(2026, 2, number, tzinfo=UTC)


def emitted(*rows: tuple[str, int | None, int], epoch: int = 1, tombstone: bool = False) -> list[dict[str, Any]]:
    """Who, which price, in which run."""
    return [
        {"customer": who, "item": "curry", "price": price, "timestamp": moment(EVENTS[who][1]), "_run": number,
         "systemFrom": run(number), "_epoch": epoch, "_tombstone": tombstone,
         "_sourcePartition": 0, "_sourceOffset": EVENTS[who][0]}
        for who, price, number in rows
    ]  # fmt: skip


def bills(*rows: tuple[str, int | None, int, int | None]) -> list[dict[str, Any]]:
    """Who, which price, believed from which run to which."""
    return [
        {"customer": who, "item": "curry", "price": price, "timestamp": moment(EVENTS[who][1]),
         "systemFrom": run(first), "systemTo": run(last), "_partition": 0, "_offset": EVENTS[who][0]}
        for who, price, first, last in rows
    ]  # fmt: skip


def menu(*rows: tuple[int, int | None, int, int, int | None]) -> list[dict[str, Any]]:
    """From which second to which, the record's offset, believed from which run to which."""
    return [
        {"dish": "curry", "validFrom": moment(start), "validTo": moment(end), "_partition": 0, "_offset": offset,
         "systemFrom": run(first), "systemTo": run(last)}
        for start, end, offset, first, last in rows
    ]  # fmt: skip


def read(
    told: list[dict[str, Any]], right: list[dict[str, Any]], versions: list[dict[str, Any]], log: dict[int, int]
) -> tuple[int, list[tuple[Any, ...]]]:
    """`log`: the run that brought each offset of the menu. The events that differ without item and timestamp."""
    brought = [{"partition": 0, "offset": offset, "run": number} for offset, number in log.items()]
    found: ReadingsComparison = compare_readings(
        *(pa.Table.from_pylist(rows) for rows in (told, right, versions, brought)),
        same=("customer", "item"),
        values=("price",),
        on={"dish": "item"},
    )
    names = ("customer", "price, kafka", "price, corrected", *CAUSE_COLUMNS, "closed")
    return found.equal_count, [tuple(row[name] for name in names) for row in found.differing.to_pylist()]


def test_a_record_that_came_after_the_result_was_emitted_is_why() -> None:
    told = emitted(("anna", 8, 1), ("bob", 8, 1))
    right = bills(("anna", 8, 1, None), ("bob", 8, 1, 2), ("bob", 9, 2, None))
    versions = menu((0, None, 0, 1, 2), (0, 4, 0, 2, None), (4, None, 1, 2, None))
    assert read(told, right, versions, {0: 1, 1: 2}) == (1, [("bob", 8, 9, 1, 2, 1, True)])


def test_a_version_that_was_only_ended_anew_came_with_its_record_not_with_the_run_that_ended_it() -> None:
    told, right = emitted(("anna", None, 1)), bills(("anna", 8, 1, None))
    versions = menu((0, None, 0, 1, 2), (0, 4, 0, 2, None), (4, None, 1, 2, None))
    assert read(told, right, versions, {0: 1, 1: 2}) == (0, [("anna", None, 8, 1, None, None, False)])


def test_a_result_that_was_emitted_after_the_record_has_another_reason() -> None:
    told, right, versions = emitted(("bob", 8, 2)), bills(("bob", 9, 2, None)), menu((0, None, 0, 1, None))
    assert read(told, right, versions, {0: 1}) == (0, [("bob", 8, 9, 2, None, None, False)])


def test_a_version_that_had_ended_by_then_is_no_reason() -> None:
    told, right = emitted(("bob", 8, 1)), bills(("bob", 8, 1, 2), ("bob", None, 2, None))
    assert read(told, right, menu((0, 4, 1, 2, None)), {1: 2}) == (0, [("bob", 8, None, 1, None, None, True)])


def test_an_event_that_only_one_reading_has_differs_also_where_its_answer_is_null() -> None:
    told, right = emitted(("anna", None, 1)), bills(("bob", None, 2, None))
    assert read(told, right, menu((9, None, 0, 1, None)), {0: 1}) == (
        0,
        [("anna", None, None, 1, None, None, False), ("bob", None, None, None, None, None, False)],
    )


def test_what_an_earlier_definition_emitted_is_passed_over() -> None:
    told = [*emitted(("anna", 7, 1)), *emitted(("anna", 8, 2), epoch=2)]
    assert read(told, bills(("anna", 8, 1, None)), menu((0, None, 0, 1, None)), {0: 1}) == (1, [])


def test_a_tombstone_is_no_answer() -> None:
    told = [*emitted(("anna", 8, 1)), *emitted(("bob", None, 1), tombstone=True)]
    assert read(told, bills(("anna", 8, 1, None)), menu((0, None, 0, 1, None)), {0: 1}) == (1, [])


def test_the_events_that_differ_are_in_the_order_of_time() -> None:
    told = emitted(("carla", 8, 1), ("bob", 8, 1), ("anna", 8, 1))
    right = bills(("bob", 9, 1, None), ("carla", 9, 1, None), ("anna", 9, 1, None))
    _, found = read(told, right, menu((0, None, 0, 1, None)), {0: 1})
    assert [row[0] for row in found] == ["anna", "bob", "carla"]
