"""Whole runs on the real parts: broker, Spark, Delta."""

from __future__ import annotations

import json
import shutil
from collections import Counter
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

import pytest

import reports
from bare_runs import OUTCOMES
from hindcast.cli.main import main
from hindcast.common.errors import GateError, RecordError, RunError, TableError, TopicError
from hindcast.common.settings import read_settings
from hindcast.ingest import quarantine
from hindcast.plan import journal, planner
from hindcast.plan.runs import Run
from hindcast.report import page
from hindcast.runs import run_steps
from hindcast.store import table_creation, tables
from pipelines import RESTAURANT, SEED, T0, Pipeline, pipeline, tell, tuples, wrong

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.connect

MENU = [  # item, price, validFrom, validTo, systemFrom, systemTo
    ("curry", 8.0, 0, 2, 2, None),
    ("curry", 8.0, 0, 4, 1, 2),
    ("curry", 9.0, 2, 4, 2, None),
    ("curry", 10.0, 4, None, 1, None),
    ("soup", 5.0, 0, None, 1, None),
]
BILLS = [  # customer, item, amount, timestamp, systemFrom, systemTo
    ("anna", "curry", 8.0, 1, 1, None),
    ("bob", "curry", 20.0, 5, 1, None),
    ("candace", "curry", 24.0, 3, 1, 2),
    ("candace", "curry", 27.0, 3, 2, None),
]


def test_candace_pays_24_and_after_the_late_correction_27_with_the_old_answer_readable(restaurant: Pipeline) -> None:
    assert restaurant.history("menu") == MENU
    assert restaurant.history("bills") == BILLS


def test_a_run_that_brings_nothing_new_writes_no_delta_version(restaurant: Pipeline) -> None:
    assert restaurant.versions() == restaurant.before
    assert restaurant.states() == [(1, "completed"), (2, "completed"), (3, "completed")]


def test_each_table_gets_one_commit_for_each_run_that_changes_it(restaurant: Pipeline) -> None:
    # version 0 makes the table
    there = {name: version for name, version in restaurant.versions().items() if version is not None}
    assert there == {"menu": 2, "orders": 1, "bills": 2, "logs/menu": 2, "logs/orders": 1}


def test_system_times_are_the_known_at_of_runs_which_grow(restaurant: Pipeline) -> None:
    moments = [run.known_at for run in journal.read_runs(restaurant.warehouse, "restaurant")]
    assert moments == sorted(set(moments))
    written = {
        row[c] for name in ("menu", "orders", "bills") for row in restaurant.raw(name) for c in row if "system" in c
    }
    assert written - {None} == set(moments[:2])


class CrashError(Exception):
    """What a test makes a step fail with."""


FATES = """
pipeline: fates
start: 2026-01-01
topics:
  menu:
    read: table
    key: {item: string}
    value: {price: int}
    history_retention: 10 seconds
    max_malformed: 2
"""
FAR = T0.replace(year=2099)


@pytest.mark.long
@pytest.mark.ci
@pytest.mark.slow
def test_every_record_has_one_fate_and_what_is_refused_stands_in_quarantine_once(
    spark: SparkSession, broker: str, tmp_path: Path
) -> None:
    with pipeline(spark, broker, tmp_path, FATES) as p:
        p.send(
            "menu",
            ("curry", {"price": 8}, 30),  # 0 accepted
            ("soup", {"price": 5}, 20),  # 1 accepted: just within the retention
            ("soup", {"price": 4}, 19.999),  # 2 expired
            (None, {"price": 1}, 30),  # 3 null_key
            ("cake", b"{", 31),  # 4 malformed
            (b"\xff", {"price": 1}, 31),  # 5 malformed
            ("cake", {"price": 3}, FAR),  # 6 time_skew, and moves no time
            ("curry", None, 33),  # 7 accepted: a tombstone
        )
        fates = ["accepted", "accepted", "expired", "null_key", "malformed", "malformed", "time_skew", "accepted"]

        # a run that claims the log and is given up before the quarantine is written
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(quarantine, "update_quarantine", lambda *_, **__: (_ for _ in ()).throw(CrashError("killed")))
            with pytest.raises(CrashError):
                p.run("first")
        [first] = journal.read_runs(p.warehouse, p.name)
        planner.abandon_run(p.warehouse, first, "by a test")

        # stream time goes on from 33, where the first run left it
        p.send("menu", ("soup", {"price": 6}, 23), ("soup", {"price": 7}, 22))
        told = p.run("second")

        assert p.fates("menu") == list(enumerate([*fates, "accepted", "expired"]))
        assert told["topics"]["menu"]["partitions"] == [
            {"partition": 0, "start": 8, "end": 10, "fates": {"accepted": 1, "expired": 1}}
        ]
        assert p.believed("menu") == [("curry", 8, 30, 33), ("soup", 5, 20, 23), ("soup", 6, 23, None)]
        entered = {row["offset"]: row for row in p.raw("quarantine")}
        assert tuples(p.raw("quarantine"), "offset", "fate", "key", "value", "run") == [
            (2, "expired", b"soup", b'{"price": 4}', 1),
            (3, "null_key", None, b'{"price": 1}', 1),
            (4, "malformed", b"cake", b"{", 1),
            (5, "malformed", b"\xff", b'{"price": 1}', 1),
            (6, "time_skew", b"cake", b'{"price": 3}', 1),
            (9, "expired", b"soup", b'{"price": 7}', 2),
        ]
        assert entered[2]["reason"] == "older than the history retention of 0:00:10 at stream time 2026-01-01 00:00:30"
        assert entered[4]["reason"] == "the value is not a JSON object of `price` int: {"
        assert entered[4]["topic"] == p.kafka("menu")

        # more malformed records than the contract allows
        before = p.versions()
        p.send("menu", ("a", "x", 40), ("b", "y", 40), ("c", "z", 40))
        with pytest.raises(
            RecordError, match="3 of the run's records do not decode, and the limit is 2; the first: the value is not"
        ) as e:
            p.run("third")
        assert e.value.where == f"topic {p.kafka('menu')}, partition 0, offset 10, key a"
        assert "topics.menu.max_malformed: 3" in e.value.fix
        assert p.versions() == before
        assert len(p.raw("quarantine")) == 6


GATED = (
    RESTAURANT
    + """\
    expect:
      - expect_column_values_to_be_between: {column: amount, max_value: 100}
      - expect_column_values_to_be_in_set: {column: item, value_set: [curry]}
        on_failure: warn
"""
)


@pytest.mark.long
@pytest.mark.ci
@pytest.mark.slow
def test_a_gate_stops_the_view_and_the_next_run_takes_over(spark: SparkSession, broker: str, tmp_path: Path) -> None:
    with pipeline(spark, broker, tmp_path, GATED) as p:
        tell(p, SEED)
        p.send("orders", ("eve", {"item": "soup", "quantity": 1}, 1), ("max", {"item": "curry", "quantity": 100}, 1))
        with pytest.raises(GateError, match="1 of 2 gates stopped it; nothing of it was published") as stopped:
            p.run("first")
        assert "expect_column_values_to_be_between(column='amount', max_value=100)" in stopped.value.found
        assert "1 of 5 rows fail, for example 800" in stopped.value.found
        assert stopped.value.where == "restaurant.bills, run 1"
        assert p.believed("bills") == []
        assert p.states() == [(1, "stopped")]
        [run] = journal.read_runs(p.warehouse, p.name)
        assert run.detail["table"] == "bills"

        p.send("menu", ("curry", {"price": 1}, 1))  # the mend: from 1 to 4 curry was $1
        told = p.run("second")
        assert p.states() == [(1, "abandoned"), (2, "completed")]
        assert p.believed("bills") == [
            ("anna", "curry", 1.0, 1),
            ("bob", "curry", 20.0, 5),
            ("candace", "curry", 3.0, 3),
            ("eve", "soup", 5.0, 1),
            ("max", "curry", 100.0, 1),
        ]
        assert [(g["outcome"], g["on_failure"]) for g in told["tables"]["bills"]["gates"]] == [
            ("passed", "stop"),
            ("failed", "warn"),
        ]
        assert "1 of 5 rows fail, for example soup" in reports.format_report(told)
        assert [(it["run"], it["offsets"], set(it["tables"])) for it in told["givenUp"]] == [
            (1, {"menu": len(SEED["menu"]), "orders": len(SEED["orders"]) + 2}, {"menu", "orders"})
        ]
        assert "run 1 was abandoned; what it did stays: menu: " in reports.format_report(told)
        assert "run 1 was abandoned; what it did stays: menu: " in reports.render_page(told)
        assert "givenUp" not in p.run("third")


# Plans need the broker, no Spark.


def test_an_unfinished_run_refuses_another_until_it_is_given_up(broker: str, tmp_path: Path) -> None:
    with pipeline(None, broker, tmp_path) as p:
        assert run_steps.plan_run(read_settings(), p.name, "first") == 1
        assert run_steps.plan_run(read_settings(), p.name, "first") == 1, "a retry finds its plan"
        with pytest.raises(RunError, match=r"run 1 \(first\) has not ended") as refused:
            run_steps.plan_run(read_settings(), p.name, "second")
        assert "hindcast abandon restaurant" in refused.value.fix
        planner.abandon_run(p.warehouse, journal.read_active_run(p.warehouse, p.name, 1), "by a test")
        assert run_steps.plan_run(read_settings(), p.name, "second") == 2
        assert p.states() == [(1, "abandoned"), (2, "planned")]
        with pytest.raises(RunError, match="run 1 is abandoned"):
            run_steps.finish_run(read_settings(), p.name, 1)
        with pytest.raises(RunError, match="run 7 is not planned"):
            run_steps.finish_run(read_settings(), p.name, 7)
        planner.abandon_run(p.warehouse, journal.read_active_run(p.warehouse, p.name, 2), "by a test")
        run_steps.plan_run(read_settings(), p.name, "requeue__1")
        with pytest.raises(RunError, match=r"run 3 \(requeue__1\) has not ended") as refused:
            run_steps.plan_run(read_settings(), p.name, "third")
        assert "retry it (hindcast requeue restaurant); " in refused.value.fix


def test_a_run_that_was_stopped_is_planned_anew_by_a_retry_of_its_plan(broker: str, tmp_path: Path) -> None:
    with pipeline(None, broker, tmp_path) as p:
        run_steps.plan_run(read_settings(), p.name, "first")
        journal.append_entry(
            p.warehouse, replace(journal.read_active_run(p.warehouse, p.name, 1), outcome=OUTCOMES["stopped"])
        )
        p.send("orders", ("ann", {"item": "curry", "quantity": 1}, 1))
        assert run_steps.plan_run(read_settings(), p.name, "first") == 2
        assert p.states() == [(1, "abandoned"), (2, "planned")]
        again = journal.read_active_run(p.warehouse, p.name, 2).plan
        assert sum(again.topics["orders"].planned_counts.values()) == 1, "with what has come since"


def test_a_retry_finishes_the_plan_that_was_stored_not_what_came_since(broker: str, tmp_path: Path) -> None:
    with pipeline(None, broker, tmp_path) as p:
        run_steps.plan_run(read_settings(), p.name, "first")
        first = journal.read_active_run(p.warehouse, p.name, 1)
        tell(p, SEED)
        run_steps.plan_run(read_settings(), p.name, "first")
        assert journal.read_active_run(p.warehouse, p.name, 1) == first


def test_a_contract_changed_before_anything_was_written_is_planned_anew(broker: str, tmp_path: Path) -> None:
    with pipeline(None, broker, tmp_path) as p:
        run_steps.plan_run(read_settings(), p.name, "first")
        p.write(RESTAURANT.replace("quantity * price", "quantity + price"))
        with pytest.raises(RunError, match="the contract was changed after the run was planned") as refused:
            run_steps.finish_run(read_settings(), p.name, 1)
        assert "run its plan step again" in refused.value.fix
        assert run_steps.plan_run(read_settings(), p.name, "first") == 2
        assert p.states() == [(1, "abandoned"), (2, "planned")]


def test_a_contract_changed_under_way_is_refused(broker: str, tmp_path: Path) -> None:
    with pipeline(None, broker, tmp_path) as p, pytest.MonkeyPatch.context() as patch:
        run_steps.plan_run(read_settings(), p.name, "first")
        patch.setattr(
            planner, "read_last_run", lambda table: 1 if table.name == "logs/menu" else 0
        )  # its log has run 1
        plan = journal.read_active_run(p.warehouse, p.name, 1).plan
        told = planner.describe_written(p.warehouse, p.contract, plan, 0, 1)
        assert "nothing was written for this topic; what was written for others stays" in told
        assert "stays, and the next run continues after it" in told
        p.write(RESTAURANT.replace("quantity * price", "quantity + price"))
        with pytest.raises(RunError, match="the contract was changed while the run was under way") as refused:
            run_steps.plan_run(read_settings(), p.name, "first")
        assert refused.value.fix == (
            "put the contract and its variables (--var) back and retry, or abandon the run: hindcast abandon restaurant"
        )


def test_of_two_that_plan_the_same_run_one_fails(broker: str, tmp_path: Path) -> None:
    with pipeline(None, broker, tmp_path) as p, pytest.MonkeyPatch.context() as patch:
        run_steps.plan_run(read_settings(), p.name, "first")
        planner.abandon_run(p.warehouse, journal.read_active_run(p.warehouse, p.name, 1), "by a test")
        seen = tables.open_table(journal.runs_table(p.warehouse, p.name))
        run_steps.plan_run(read_settings(), p.name, "second")
        mine = journal.read_active_run(p.warehouse, p.name, 2)
        with pytest.raises(RunError, match="another run of restaurant was planned as number 2"):
            journal.append_entry(p.warehouse, mine)
        views = iter([seen])  # as the other saw it at the same moment, and then as it is
        patch.setattr(journal, "ensure_table", lambda *of: next(views, None) or table_creation.ensure_table(*of))
        with pytest.raises(RunError, match="another run of restaurant was planned as number 2"):
            journal.append_entry(p.warehouse, mine)


def test_known_at_grows_even_where_the_clock_goes_back(broker: str, tmp_path: Path) -> None:
    with pipeline(None, broker, tmp_path) as p:
        run_steps.plan_run(read_settings(), p.name, "first")
        run = journal.read_active_run(p.warehouse, p.name, 1)
        ahead = run.known_at + timedelta(minutes=50)
        planner.abandon_run(p.warehouse, run, "by a test")
        second = Run(replace(run.plan, run=2, run_id="second", known_at=ahead))
        journal.append_entry(p.warehouse, second)
        planner.abandon_run(p.warehouse, second, "by a test")
        run_steps.plan_run(read_settings(), p.name, "third")
        assert journal.read_active_run(p.warehouse, p.name, 3).known_at == ahead + timedelta(microseconds=1)


def test_an_interval_bounds_what_is_planned(broker: str, tmp_path: Path) -> None:
    with pipeline(None, broker, tmp_path) as p:
        tell(p, SEED)
        run_steps.plan_run(read_settings(), p.name, "first", T0 + timedelta(seconds=3))
        topics = journal.read_active_run(p.warehouse, p.name, 1).plan.topics
        assert {name: topic.as_json()["partitions"] for name, topic in topics.items()} == {
            "menu": [{"partition": 0, "anchor": 0, "start": 0, "end": 2}],
            "orders": [{"partition": 0, "anchor": 0, "start": 0, "end": 1}],
        }


def test_nothing_is_planned_without_a_topic(broker: str, tmp_path: Path) -> None:
    with pipeline(None, broker, tmp_path) as p:
        p.path.write_text(p.path.read_text(encoding="utf-8").replace(p.kafka("menu"), "nowhere"), encoding="utf-8")
        with pytest.raises(TopicError, match="the topic does not exist"):
            run_steps.plan_run(read_settings(), p.name, "first")
        assert p.states() == []


def test_nothing_is_planned_with_an_expectation_that_is_not_there(broker: str, tmp_path: Path) -> None:
    with pipeline(None, broker, tmp_path, GATED.replace("be_in_set", "be_in_sett")) as p:
        with pytest.raises(Exception, match="no expectation 'expect_column_values_to_be_in_sett'") as refused:
            run_steps.plan_run(read_settings(), p.name, "first")
        assert "did you mean 'expect_column_values_to_be_in_set'?" in str(refused.value)
        assert p.states() == []


def test_nothing_is_written_into_a_folder_that_is_not_ours(broker: str, tmp_path: Path) -> None:
    with pipeline(None, broker, tmp_path) as p:
        theirs = Path(p.warehouse) / p.name / "runs" / "letter.txt"
        theirs.parent.mkdir(parents=True)
        theirs.write_text("dear all")
        with pytest.raises(TableError, match="is not a Delta table") as refused:
            run_steps.plan_run(read_settings(), p.name, "first")
        assert refused.value.where == str(theirs.parent)
        assert "HINDCAST_WAREHOUSE" in refused.value.fix
        assert [f.name for f in Path(p.warehouse).rglob("*") if f.is_file()] == ["letter.txt"]


def test_fates_that_do_not_add_up_fail_the_run(broker: str, tmp_path: Path) -> None:
    with pipeline(None, broker, tmp_path) as p:
        tell(p, SEED)
        run_steps.plan_run(read_settings(), p.name, "first")
        with pytest.raises(RunError, match=r"3 offsets were planned \(0 to 2\), but 0 have a fate: {}") as refused:
            run_steps.finish_run(read_settings(), p.name, 1)
        assert refused.value.where.endswith("logs/menu, partition 0, run 1")
        assert p.states() == [(1, "planned")]


@pytest.mark.parametrize("then", ["run", *(pytest.param(it, marks=pytest.mark.long) for it in ("requeue", "release"))])
def test_a_page_that_a_killed_run_has_not_written_is_written_later(
    spark: SparkSession, broker: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, then: str
) -> None:
    def die(*_: object) -> None:
        raise KeyboardInterrupt

    with pipeline(spark, broker, tmp_path) as p, p.here():
        tell(p, SEED)
        with monkeypatch.context() as patch:
            patch.setattr(page, "write_page", die)
            with pytest.raises(KeyboardInterrupt):
                p.run()
        assert p.states() == [(1, "completed")]
        folder = p.settings.reports / p.name
        assert not folder.exists()
        if then == "run":
            p.run()
            assert (folder / "run-2.html").exists()
        else:
            main([then, p.name])
        assert (folder / "run-1.html").exists()
        assert json.loads((folder / "run-1.json").read_text())["run"] == 1


def test_a_page_that_a_killed_stopped_run_has_not_written_is_written_by_the_next_plan(
    spark: SparkSession, broker: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def die(*_: object) -> None:
        raise KeyboardInterrupt

    with pipeline(spark, broker, tmp_path) as p:
        p.send("menu", ("curry", b"{", 0))
        run_steps.plan_run(p.settings, p.name, "first")
        with monkeypatch.context() as patch:
            patch.setattr(page, "write_page", die)
            with pytest.raises(KeyboardInterrupt):
                run_steps.replay_topic(spark, p.settings, p.name, 1, "menu")
        assert p.states() == [(1, "stopped")]
        assert run_steps.plan_run(p.settings, p.name, "second") == 2
        told = json.loads((p.settings.reports / p.name / "run-1.json").read_text())
        assert (told["run"], told["state"]) == (1, "stopped")


def test_a_report_that_is_asked_again_is_the_same(restaurant: Pipeline) -> None:
    with restaurant.here():
        again = run_steps.finish_run(read_settings(), "restaurant", 2).as_json()
    told = {run.number: run.detail for run in journal.read_runs(restaurant.warehouse, "restaurant")}
    assert again == told[2]
    assert json.loads(json.dumps(again)) == again
    assert Counter(state for _, state in restaurant.states()) == {"completed": 3}


REMOVED = (
    RESTAURANT
    + """
  none: {table: menu, where: price > 1000}
  dishes: {table: menu, group_by: {price: price}, aggregate: {n: count(*)}, semantics: kafka}
"""
)


@pytest.mark.long
@pytest.mark.ci
@pytest.mark.slow
def test_a_table_whose_folder_was_removed_is_derived_again_though_nothing_is_new(
    spark: SparkSession, broker: str, tmp_path: Path
) -> None:
    with pipeline(spark, broker, tmp_path, REMOVED) as p:
        tell(p, SEED)
        p.run()
        names = (*p.contract.topics, *p.contract.views)
        before = {name: p.believed(name) for name in names}
        assert before["bills"]
        assert before["dishes"]
        for name in names:
            shutil.rmtree(f"{p.warehouse}/{p.name}/{name}")
        p.run()
        assert {name: p.believed(name) for name in names} == before
        versions = p.versions()
        assert None not in {versions[name] for name in names}
        p.run()
        assert p.versions() == versions
        assert wrong(p) == []
        publish = run_steps.gate_and_publish_change

        def die(contract: Any, plan: Any, name: str, derived: Any) -> Any:
            if name == "bills":
                raise RuntimeError("died")
            return publish(contract, plan, name, derived)

        shutil.rmtree(f"{p.warehouse}/{p.name}/bills")
        with patch.object(run_steps, "gate_and_publish_change", die), pytest.raises(RuntimeError, match="died"):
            p.run()
        assert p.believed("bills") == [], "its table is there again, without a row"
        planner.abandon_run(p.warehouse, journal.read_runs(p.warehouse, p.name)[-1], "by a test")
        p.run()
        assert p.believed("bills") == before["bills"]
