"""What a run did, as an object and as lines."""

from __future__ import annotations

from typing import Any

from hindcast import journal, report
from pipelines import Pipeline


def of_run(p: Pipeline, number: int) -> dict[str, Any]:
    return journal.runs(p.warehouse, p.name)[number - 1].detail


def test_fates_and_changes_are_counted(restaurant: Pipeline) -> None:
    first, second, third = (of_run(restaurant, number) for number in (1, 2, 3))
    assert first["topics"]["orders"] == {
        "topic": restaurant.kafka("orders"),
        "offsets": 4,
        "late": 2,
        "partitions": [{"partition": 0, "start": 0, "end": 4, "fates": {"accepted": 4}}],
    }
    assert second["topics"]["menu"]["late"] == 1
    changes = {
        name: [
            tuple(run["tables"][name][count] for count in ("opened", "closed", "corrected")) for run in (first, second)
        ]
        for name in ("menu", "orders", "bills")
    }
    assert changes == {
        "menu": [(3, 0, 0), (2, 1, 1)],
        "orders": [(4, 0, 0), (0, 0, 0)],
        "bills": [(3, 0, 0), (1, 1, 1)],
    }
    assert all(table["opened"] + table["closed"] == 0 for table in third["tables"].values())
    assert (second["run"], second["runId"], second["again"]) == (2, "second", "hindcast run restaurant")


def test_lines_for_people(restaurant: Pipeline) -> None:
    told = of_run(restaurant, 2)
    assert report.text(told).splitlines() == [
        f"restaurant, run 2 (second), known at {told['knownAt']}",
        "",
        "  menu                          1 offsets: 1 accepted; 1 late",
        "  orders                        0 offsets: nothing new",
        "",
        "  menu                 2 rows opened, 1 closed, 1 of these a past answer",
        "  orders               unchanged",
        "  bills                1 row opened, 1 closed, 1 of these a past answer",
        "",
        "  again: hindcast run restaurant",
    ]


def test_gates_that_did_not_pass_say_why(restaurant: Pipeline) -> None:
    told = of_run(restaurant, 2)
    gate = {
        "expectation": "expect_it",
        "kwargs": {"column": "a"},
        "on_failure": "warn",
        "outcome": "failed",
        "detail": "no",
    }
    told["tables"]["bills"]["gates"] = [gate, {**gate, "outcome": "passed", "detail": ""}]
    lines = [line.strip() for line in report.text(told).splitlines() if "expect_it" in line]
    assert lines == ["failed expect_it(column='a') (warn): no", "passed expect_it(column='a')"]
