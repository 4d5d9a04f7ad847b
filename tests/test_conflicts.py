"""What else may commit at the same time: maintenance, a second process at the same run, a run that was given up."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from deltalake.exceptions import CommitFailedError
from pyspark.errors import PySparkException

from crashes import watched
from hindcast.common.errors import HindcastError, RunError
from hindcast.common.settings import read_settings
from hindcast.ingest import ingest_commits
from hindcast.plan import journal, planner
from hindcast.runs import run_steps
from hindcast.store import commit_once, tables
from hindcast.store.tables import Table
from pipelines import CORRECTION, SEED, Pipeline, pipeline, tell

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

CONFLICT = PySparkException("[DELTA_CONCURRENT_DELETE_READ] This transaction attempted to read files that were deleted")
OTHER = PySparkException("[PATH_NOT_FOUND] Path does not exist")


def failing(*errors: Exception) -> tuple[Callable[[], None], list[int]]:
    """A commit that fails with these errors in turn and then is made; and how often it was tried."""
    left, tried = list(errors), [0]

    def commit() -> None:
        tried[0] += 1
        if left:
            raise left.pop(0)

    return commit, tried


@pytest.fixture
def _at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(commit_once.time, "sleep", lambda _: None)


@pytest.mark.usefixtures("_at_once")
def test_a_commit_that_conflicts_is_tried_again() -> None:
    commit, tried = failing(CONFLICT, CONFLICT)
    commit_once.commit_once(commit, lambda: 1, 2, 1, "menu")
    assert tried == [3]


@pytest.mark.usefixtures("_at_once")
def test_a_commit_is_not_tried_for_ever() -> None:
    commit, tried = failing(*[CONFLICT] * 99)
    with pytest.raises(PySparkException):
        commit_once.commit_once(commit, lambda: 1, 2, 1, "menu")
    assert tried == [commit_once.MAX_TRIES]


def test_another_failure_is_not_a_conflict() -> None:
    commit, tried = failing(OTHER)
    with pytest.raises(PySparkException, match="PATH_NOT_FOUND"):
        commit_once.commit_once(commit, lambda: 1, 2, 1, "menu")
    assert tried == [1]


@pytest.mark.usefixtures("_at_once")
def test_a_commit_that_another_process_made_is_not_made_again() -> None:
    commit, tried = failing(CONFLICT)
    published = iter([1, 2])
    commit_once.commit_once(commit, lambda: next(published), 2, 1, "menu")
    assert tried == [1]


def test_a_commit_after_one_that_it_does_not_know_of_is_refused() -> None:
    commit, tried = failing()
    with pytest.raises(RunError, match="run 3 has written to the table since run 4 read it"):
        commit_once.commit_once(commit, lambda: 3, 4, 2, "menu")
    assert tried == [0]


@pytest.mark.usefixtures("_at_once")
def test_a_commit_of_a_run_that_ends_while_it_is_tried_is_not_made() -> None:
    commit, tried = failing(CONFLICT, CONFLICT)
    checks = iter([None, RunError("run 2 is abandoned")])

    def refuse() -> None:
        if (error := next(checks)) is not None:
            raise error

    with commit_once.guard_commits(refuse), pytest.raises(RunError, match="run 2 is abandoned"):
        commit_once.commit_once(commit, lambda: 1, 2, 1, "menu")
    assert tried == [1]
    commit_once.commit_once(commit, lambda: 1, 2, 1, "menu")
    assert tried == [3], "after the block nothing is asked"


@pytest.mark.long
def test_a_run_that_was_given_up_and_goes_on_writing_brings_no_offset_twice(
    spark: SparkSession, broker: str, tmp_path: Path
) -> None:
    with pipeline(spark, broker, tmp_path) as p:
        tell(p, SEED)
        run_steps.plan_run(read_settings(), p.name, "first")
        first = journal.read_active_run(p.warehouse, p.name, 1)
        planner.abandon_run(p.warehouse, first, "by a test")
        run_steps.plan_run(read_settings(), p.name, "second")
        ingest_commits.ingest_topic(spark, p.contract, first.plan, "menu")  # the process of run 1 is still there
        with pytest.raises(RunError, match="run 1 has written to the table since run 2 read it") as refused:
            p.run("second")
        assert "abandon" in refused.value.fix
        planner.abandon_run(p.warehouse, journal.read_active_run(p.warehouse, p.name, 2), "by a test")
        p.run("third")
        ingest_commits.ingest_topic(spark, p.contract, first.plan, "orders")  # and still
        assert p.fates("menu") == [(n, "accepted") for n in range(3)]
        assert p.fates("orders") == [(n, "accepted") for n in range(4)]
        assert p.believed("bills") == [("anna", "curry", 8, 1), ("bob", "curry", 20, 5), ("candace", "curry", 24, 3)]


@pytest.mark.long
def test_two_processes_at_one_run_write_it_once(
    spark: SparkSession, broker: str, tmp_path: Path, restaurant: Pipeline
) -> None:
    with pipeline(spark, broker, tmp_path) as p:
        for run_id, brought in (("first", SEED), ("second", CORRECTION)):
            tell(p, brought)
            number = run_steps.plan_run(read_settings(), p.name, run_id)
            failures: list[Exception] = []

            def work(session: SparkSession, number: int = number, failures: list[Exception] = failures) -> None:
                try:
                    run_steps.execute_run(session, read_settings(), p.name, number)
                except HindcastError as error:
                    failures.append(error)

            both = [threading.Thread(target=work, args=(spark.newSession(),)) for _ in range(2)]
            for one in both:
                one.start()
            for one in both:
                one.join()
            assert len(failures) < 2, failures
            p.run(run_id) if p.states()[-1] != (number, "completed") else None
        names = ("menu", "orders", "bills")
        assert {n: p.history(n) for n in names} == {n: restaurant.history(n) for n in names}
        assert p.fates("menu") == restaurant.fates("menu")
        assert p.fates("orders") == restaurant.fates("orders")


def test_of_two_runs_at_once_one_is_refused_with_what_to_do(broker: str, tmp_path: Path) -> None:
    with pipeline(None, broker, tmp_path) as p:
        run_steps.plan_run(read_settings(), p.name, "one")
        with pytest.raises(RunError, match=r"run 1 \(one\) has not ended") as refused:
            run_steps.plan_run(read_settings(), p.name, "two")
        assert refused.value.fix == "wait for it or retry it; if it cannot be finished: hindcast abandon restaurant"
        assert p.states() == [(1, "planned")]


def maintained(table: Table, *, vacuum: bool) -> None:
    """OPTIMIZE that rewrites all files, and VACUUM of everything that the newest version does not need."""
    if (found := tables.open_table(table)) is None or not found.file_uris():
        return
    column = next(f.name for f in found.schema().fields if f.name in ("item", "customer", "offset", "run"))
    with contextlib.suppress(CommitFailedError):  # the run came first
        found.optimize.z_order([column])
    if vacuum:
        found.vacuum(retention_hours=0, dry_run=False, enforce_retention_duration=False)


@pytest.mark.long
def test_maintenance_between_and_during_commits_does_no_harm(
    spark: SparkSession, broker: str, tmp_path: Path, restaurant: Pipeline
) -> None:
    with pipeline(spark, broker, tmp_path) as p, pytest.MonkeyPatch.context() as patch:
        alongside: list[threading.Thread] = []

        def during(name: str) -> None:
            for _ in range(3):
                maintained(Table(p.warehouse, p.name, name, "log"), vacuum=False)
                maintained(Table(p.warehouse, p.name, "runs", "log"), vacuum=False)
                time.sleep(0.3)

        def maintain(place: str) -> None:
            when, _, rest = place.partition(" committing to ")
            name = rest.split(" in ")[0]
            if rest and when == "before":
                alongside.append(threading.Thread(target=during, args=(name,)))
                alongside[-1].start()
            elif rest:
                alongside[-1].join()
                maintained(Table(p.warehouse, p.name, name, "log"), vacuum=True)

        tell(p, SEED)
        p.run("first")
        watched(maintain, patch.setattr)
        tell(p, CORRECTION)
        p.run("second")
        p.run("third")
        names = ("menu", "orders", "bills")
        assert {n: p.history(n) for n in names} == {n: restaurant.history(n) for n in names}
        assert p.states() == [(n, "completed") for n in (1, 2, 3)]
