"""What a run did, as an object and as lines."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import yaml

import reports
from hindcast.bitemporal.predicates import Question
from hindcast.contract import load
from hindcast.kafka.topics import OffsetRange
from hindcast.plan import journal
from hindcast.plan.plans import Plan, TopicPlan
from hindcast.plan.purposes import Release, ReleasedKeys, Replay, Requeue
from hindcast.query import read, spark_functions
from hindcast.report import report, report_text
from hindcast.report.run_report import TableReport
from hindcast.store.commit_notes import LeftOut
from pipelines import T0, Pipeline, cloned, pipeline

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def of_run(p: Pipeline, number: int) -> dict[str, Any]:
    return journal.read_runs(p.warehouse, p.name)[number - 1].detail


def test_fates_and_changes_are_counted(restaurant: Pipeline) -> None:
    first, second, third = (of_run(restaurant, number) for number in (1, 2, 3))
    assert first["topics"]["orders"] == {
        "topic": restaurant.kafka("orders"),
        "offsets": 4,
        "late": 2,
        "partitions": [{"partition": 0, "start": 0, "end": 4, "fates": {"accepted": 4}}],
        "withoutValue": 0,
        "lateBy": {"median": 2.0, "p95": 2.0, "largest": 2.0},
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


def test_a_repeat_is_given_the_same_variables(restaurant: Pipeline) -> None:
    """Without them it would derive everything by the defaults."""
    plan = journal.read_runs(restaurant.warehouse, restaurant.name)[1].plan
    given, options = (("least", "3"), ("name", "a b")), "--var least=3 --var 'name=a b'"
    built = report.build_report(restaurant.warehouse, restaurant.contract, plan, variables=given)
    assert built.again == f"hindcast run restaurant {options}"
    commands: list[tuple[Replay | Requeue | Release, str]] = [
        (Replay("menu"), "hindcast run restaurant --only menu"),
        (Requeue(("menu",)), "hindcast requeue restaurant --topic menu"),
        (Release({"menu": ReleasedKeys(T0, ("x",), "ann")}), "hindcast release restaurant.menu --key x"),
    ]
    for purpose, command in commands:
        changed = replace(plan, purpose=purpose)
        again = report._rerun_commands(restaurant.contract, changed, {"menu": frozenset()}, given)
        assert again == f"{command} {options}"


def test_lines_for_people(restaurant: Pipeline) -> None:
    told = of_run(restaurant, 2)
    assert reports.format_report(told).splitlines() == [
        f"restaurant, run 2 (second), known at {told['knownAt']}",
        "",
        "  menu                          1 offset: 1 accepted; 1 late",
        "  orders                        0 offsets: nothing new",
        "",
        "  menu                 2 rows opened, 1 closed, 1 of these a past answer",
        "  orders               unchanged",
        "  bills                1 row opened, 1 closed, 1 of these a past answer",
        "",
        "  again: hindcast run restaurant",
    ]


WINDOWED = """
pipeline: windowed
start: 2026-01-01
topics:
  orders: {read: stream, key: {customer: string}, value: {quantity: int}}
views:
  by_five:
    stream: orders
    aggregate: {n: sum(quantity)}
    window: {tumbling: 5 seconds, grace: 2 seconds}
  in_all:
    stream: orders
    aggregate: {n: count(*)}
    where: quantity > 0
"""


def test_a_report_tells_what_has_changed_in_the_contract(restaurant: Pipeline, tmp_path: Path) -> None:
    p = cloned(restaurant, tmp_path)
    with p.here():
        told = yaml.safe_load(p.path.read_text(encoding="utf-8"))
        told["views"]["bills"]["where"] = "quantity > 1"
        p.path.write_text(yaml.safe_dump(told), encoding="utf-8")
        done = p.run("fourth")
    assert reports.format_report(done).splitlines()[2:5] == [
        "the contract was changed since run 3:",
        "  views.bills.where added: quantity > 1",
        "",
    ]
    assert "views.bills.where added: quantity &gt; 1" in reports.render_page(done)
    assert ["contract" in of_run(p, number) for number in (1, 2, 3, 4)] == [False, False, False, True]


@pytest.mark.long
@pytest.mark.parametrize("views", [pytest.param(1, marks=pytest.mark.ci), 2])
def test_what_a_view_left_out_is_counted_once(spark: SparkSession, broker: str, tmp_path: Path, views: int) -> None:
    with pipeline(spark, broker, tmp_path, WINDOWED if views == 2 else WINDOWED.partition("  in_all:")[0]) as p:
        p.send("orders", ("anna", {"quantity": 1}, 1), ("anna", {"quantity": 2}, 6), (None, {"quantity": 3}, 7))
        first = p.run()
        # too late for its window, without a value to aggregate, without any value: no row of by_five changes
        p.send("orders", ("bob", {"quantity": 1}, 8), ("anna", {"quantity": 4}, 3), ("anna", {}, 6), ("anna", None, 6))
        second = p.run()
        p.send("orders", ("anna", {"quantity": 4}, 2))
        third = p.run()
        versions = p.versions()
        fourth = p.run()
        assert p.versions() == versions
        assert p.believed("by_five") == [("anna", 1, 0, 5), ("anna", 2, 5, 10), ("bob", 1, 5, 10)]
        spark_functions.register(spark, p.warehouse, p.contract)
        for run, closed in ((1, [False, False]), (2, [True, False, False])):
            question = Question(known_at=journal.read_runs(p.warehouse, p.name)[run - 1].known_at)
            rows = read.query(p.warehouse, p.contract, "by_five", question)
            assert rows["windowClosed"].to_pylist() == closed
            frame = read.frame(spark, p.warehouse, p.contract, "by_five", question)
            made = spark.sql(f"SELECT * FROM windowed_by_five(run => {run})")
            assert rows.column_names == frame.columns == made.columns
            assert sorted(row["windowClosed"] for row in frame.collect()) == sorted(closed)
            assert sorted(row["windowClosed"] for row in made.collect()) == sorted(closed)

    tables = [told["tables"]["by_five"] for told in (first, second, third, fourth)]
    assert [(*table["leftOut"].values(), *table["newlyLeftOut"].values()) for table in tables] == [
        (1, 0, 0, 1, 0, 0),
        (1, 1, 1, 0, 1, 1),
        (1, 1, 2, 0, 0, 1),
        (1, 1, 2, 0, 0, 0),
    ]
    assert [table["closedUpTo"][17:19] for table in tables] == ["04", "06", "06", "06"]
    assert [told["topics"]["orders"]["withoutValue"] for told in (first, second, third)] == [0, 1, 0]
    lines = [reports.format_report(told).splitlines() for told in (first, second, third)]
    left_out = ["  by_five              2 rows opened; left out: 1 without a key"]
    left_out += ["  in_all               2 rows opened; left out: 1 without a key"]
    assert lines[0][5 : 5 + views] == left_out[:views]
    assert lines[1][2] == "  orders                        4 offsets: 4 accepted; 3 late; 1 without a value"
    assert lines[1][5] == "  by_five              1 row opened; left out: 1 without a value, 1 too late"
    assert lines[2][5] == "  by_five              unchanged; left out: 1 too late"


@pytest.mark.parametrize(
    ("times", "closed"),
    [
        ({"0": "2026-01-01T00:00:09Z", "1": "2026-01-01T00:00:08Z"}, "2026-01-01T00:00:06+00:00"),
        ({"0": "2026-01-01T00:00:09Z"}, None),
        ({}, None),
    ],
)
def test_a_window_closes_when_every_partition_of_the_topic_has_gone_past_it(
    tmp_path: Path, times: dict[str, str], closed: str | None
) -> None:
    """Also of a stream that was joined or re-keyed on the way: an event may come from any partition of the topic."""
    (tmp_path / "windowed.yaml").write_text(
        WINDOWED.replace(
            "stream: orders\n    aggregate: {n: sum(quantity)}", "stream: few\n    aggregate: {n: count(*)}"
        )
        + "  few: {stream: orders, where: quantity < 5}\n"
    )
    share = TopicPlan("id", 0, 0, {}, {partition: OffsetRange(0, 9) for partition in (0, 1)}, {})
    plan = Plan("windowed", 1, "first", T0, None, "hash", {"orders": share})
    note = LeftOut({"no_key": 0, "no_value": 0, "too_late": 2}, times)
    table, earlier = TableReport(left_out=note), LeftOut({"too_late": 1})
    told = report.summarize_aggregate(load(tmp_path / "windowed.yaml"), plan, "by_five", table, earlier).as_json()
    assert (told["closedUpTo"], told["newlyLeftOut"]["too_late"]) == (closed, 1)


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
    lines = [" ".join(line.split()) for line in reports.format_report(told).splitlines() if "expect_it" in line]
    assert lines == ["failed expect_it(column='a') (warn): no", "passed expect_it(column='a')"]


@pytest.mark.parametrize(
    ("table", "words"),
    [
        ({}, "unchanged"),
        ({"emitted": {"records": 0, "tombstones": 0}}, "unchanged"),
        ({"emitted": {"records": 1200, "tombstones": 0}}, "unchanged; emitted: 1,200"),
        ({"emitted": {"records": 3, "tombstones": 1}}, "unchanged; emitted: 3, 1 of them tombstones"),
        (
            {"settled": {"upTo": None, "waitsFor": {"topic": "shop.menu", "partition": 1}}},
            "unchanged; processed: nothing; waits for shop.menu, partition 1",
        ),
        (
            {"settled": {"upTo": "2026-01-01T00:00:05+00:00", "waitsFor": {"topic": "menu", "partition": 0}}},
            "unchanged; processed: all before 2026-01-01T00:00:05+00:00; waits for menu, partition 0",
        ),
    ],
)
def test_what_a_kafka_view_emitted_and_how_far_it_is_settled_in_words(table: dict[str, Any], words: str) -> None:
    topic = {"offsets": 0, "late": 0, "partitions": []}
    told = {"opened": 0, "closed": 0, "corrected": 0, "gates": [], **table}
    of_run = {"pipeline": "p", "run": 1, "runId": "r", "knownAt": "", "topics": {"t": topic}, "again": "hindcast run p"}
    lines = reports.format_report({**of_run, "tables": {"view": told}}).splitlines()
    assert f"  {'view':<20} {words}" in lines
    shown = reports.render_page({**of_run, "tables": {"view": told}})
    assert all(note in shown for note in report_text.format_emission(TableReport.from_json(told)))


def test_a_report_says_where_spark_evaluated_the_expressions_of_a_kernel() -> None:
    topic = {"offsets": 0, "late": 0, "partitions": []}
    of_run = {"pipeline": "p", "run": 1, "runId": "r", "knownAt": "", "topics": {"t": topic}, "again": "hindcast run p"}
    tables = {
        "joined": {"opened": 4, "closed": 0, "corrected": 0, "gates": [], "kernel": "stream_table+spark"},
        "counted": {
            "opened": 2,
            "closed": 0,
            "corrected": 0,
            "gates": [],
            "kernel": "of_table",
            "leftOut": {"no_key": 1},
            "newlyLeftOut": {"no_key": 1},
        },
        "copied": {"opened": 3, "closed": 0, "corrected": 0, "gates": []},
    }
    lines = [" ".join(line.split()) for line in reports.format_report({**of_run, "tables": tables}).splitlines()]
    assert "joined 4 rows opened by a kernel, expressions by Spark" in lines
    assert "counted 2 rows opened; left out: 1 without a key" in lines
    assert "copied 3 rows opened" in lines
    shown = " ".join(re.sub(r"<[^>]*>", " ", reports.render_page({**of_run, "tables": tables})).split())
    assert "joined (4 opened by a kernel, expressions by Spark, 0 closed)" in shown
    assert "copied (3 opened, 0 closed)" in shown
    assert "counted left out" in shown
