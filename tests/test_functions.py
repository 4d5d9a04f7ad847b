"""Table functions of Spark SQL: the same answers as read.query gives."""

from __future__ import annotations

import shutil
from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING

import pytest
from pyspark.errors import PySparkException

from hindcast.bitemporal.predicates import FIRST_MOMENT, Question
from hindcast.common.session import override_conf
from hindcast.plan import journal
from hindcast.plan.purposes import Erasure, Upgrade
from hindcast.plan.runs import Abandoned, Completed, Run
from hindcast.query import read, spark_functions
from pipelines import Pipeline, at

if TYPE_CHECKING:
    from datetime import datetime
    from pathlib import Path

    from pyspark.sql import SparkSession


@pytest.fixture(scope="module")
def asking(restaurant: Pipeline, spark: SparkSession) -> SparkSession:
    spark_functions.register(spark, restaurant.warehouse, restaurant.contract)
    return spark


def moment(of: datetime) -> str:
    return f"TIMESTAMP '{of.isoformat(' ')}'"


FIRST = "<known-at of run 1>"
THREE, FOUR = moment(at(3)), moment(at(4))


@pytest.mark.parametrize(
    ("call", "table", "question", "run"),
    [
        ("restaurant_menu()", "menu", Question(from_time=FIRST_MOMENT), None),
        ("restaurant_menu(run => 1)", "menu", Question(from_time=FIRST_MOMENT), 1),
        ("restaurant_menu_as_of()", "menu", Question(), None),
        (f"restaurant_menu_as_of({THREE})", "menu", Question(as_of=at(3)), None),
        (f"restaurant_menu_as_of({THREE}, {FIRST})", "menu", Question(as_of=at(3)), 1),
        (f"restaurant_menu_as_of({THREE}, run => 1)", "menu", Question(as_of=at(3)), 1),
        (f"restaurant_menu_between(to_time => {THREE})", "menu", Question(to_time=at(3)), None),
        (f"restaurant_menu_between({FOUR}, {FOUR}, run => 2)", "menu", Question(from_time=at(4), to_time=at(4)), 2),
        ("restaurant_bills(run => 1)", "bills", Question(), 1),
        (f"restaurant_bills_as_of({THREE})", "bills", Question(as_of=at(3)), None),
        (f"restaurant_bills_between({THREE}, {THREE})", "bills", Question(from_time=at(3), to_time=at(3)), None),
        (f"restaurant_menu_as_of({THREE}) WHERE item = 'curry'", "menu", Question(["curry"], as_of=at(3)), None),
    ],
)
def test_a_function_answers_what_read_answers(
    asking: SparkSession, restaurant: Pipeline, call: str, table: str, question: Question, run: int | None
) -> None:
    known = {r.number: r.known_at for r in journal.read_runs(restaurant.warehouse, restaurant.name)}
    told = Question(**{**vars(question), "known_at": known[run] if run else None})
    expected = read.frame(asking, restaurant.warehouse, restaurant.contract, table, told)
    found = asking.sql(f"SELECT * FROM {call.replace(FIRST, moment(known[1]))}")
    assert found.columns == expected.columns
    assert sorted(map(str, found.collect())) == sorted(map(str, expected.collect()))
    assert found.count() > 0


@pytest.mark.parametrize(
    ("call", "told"),
    [
        ("restaurant_menu(run => 9)", "no completed run 9"),
        ("restaurant_menu(TIMESTAMP '2999-01-01')", "is not known yet"),
        (f"restaurant_menu_between({FOUR}, {THREE})", "the times are reversed"),
    ],
)
def test_a_function_refuses_what_has_no_answer(asking: SparkSession, call: str, told: str) -> None:
    with pytest.raises(PySparkException, match=told):
        asking.sql(f"SELECT * FROM {call}").collect()


def test_given_moments_reach_the_scan(asking: SparkSession, restaurant: Pipeline) -> None:
    known = journal.read_runs(restaurant.warehouse, restaurant.name)[0].known_at
    with override_conf(asking, {"spark.sql.maxPlanStringLength": "100000"}):
        asked = asking.sql(f"EXPLAIN SELECT * FROM restaurant_menu_as_of({THREE}, {moment(known)})").collect()
    plan = str(asked[0][0])
    assert f"LessThanOrEqual(systemFrom,{known.strftime('%Y-%m-%d')}" in plan


@pytest.mark.long
@pytest.mark.ci
def test_what_a_run_that_has_not_ended_may_change_is_refused(
    spark: SparkSession, tmp_path: Path, restaurant: Pipeline
) -> None:
    """A run is planned beside the completed ones: what is known before it has an answer, and nothing later."""
    warehouse = tmp_path / "warehouse"
    shutil.copytree(restaurant.warehouse, warehouse)
    last = journal.read_runs(str(warehouse), restaurant.name)[-1]
    begun = last.known_at + timedelta(seconds=1)
    plan = replace(last.plan, run=last.number + 1, run_id="under way", known_at=begun)
    journal.append_entry(str(warehouse), Run(plan))
    spark_functions.register(spark, str(warehouse), restaurant.contract)
    try:
        for call in ("restaurant_menu()", f"restaurant_menu({moment(last.known_at)})", "restaurant_menu(run => 1)"):
            assert spark.sql(f"SELECT * FROM {call}").count() > 0
        with pytest.raises(PySparkException, match="has not ended: the answer can still change"):
            spark.sql(f"SELECT * FROM restaurant_menu({moment(begun)})").collect()
    finally:
        spark_functions.register(spark, restaurant.warehouse, restaurant.contract)


@pytest.mark.long
@pytest.mark.ci
def test_nothing_is_answered_while_what_a_forgetting_has_removed_is_not_derived_again(
    spark: SparkSession, tmp_path: Path, restaurant: Pipeline
) -> None:
    """Also by functions that were made before it, and where no row is read; only a run of all tables ends that."""
    warehouse = str(tmp_path / "warehouse")
    shutil.copytree(restaurant.warehouse, warehouse)
    last = journal.read_runs(warehouse, restaurant.name)[-1].plan
    purposes = {"erasing": Erasure("menu", "0" * 64), "skipping": Upgrade("menu", "offline", "end", without=("bills",))}
    calls = ("restaurant_menu(run => 1)", f"restaurant_orders_as_of({THREE})", "restaurant_menu() WHERE item = 'none'")
    spark_functions.register(spark, warehouse, restaurant.contract)
    try:
        for n, (run_id, purpose) in enumerate([*purposes.items(), ("whole", last.purpose)], last.run + 1):
            assert all(spark.sql(f"SELECT * FROM {call}").collect() for call in calls[:2] if n == last.run + 1)
            known_at = last.known_at + timedelta(seconds=n)
            run = Run(replace(last, run=n, run_id=run_id, known_at=known_at, purpose=purpose))
            journal.append_entry(warehouse, run)
            fix = "repeat when it has; if it was killed" if n == last.run + 1 else "hindcast run restaurant"
            for call in calls:
                with pytest.raises(
                    Exception, match=f"run {last.run + 1} has removed rows that it forgets, [^:]*: {fix}"
                ):
                    spark.sql(f"SELECT * FROM {call}").collect()
            journal.append_entry(warehouse, replace(run, outcome=Abandoned("") if n == last.run + 1 else Completed({})))
        assert all(spark.sql(f"SELECT * FROM {call}").collect() for call in calls[:2])
    finally:
        spark_functions.register(spark, restaurant.warehouse, restaurant.contract)
