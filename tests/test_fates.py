"""Another history retention decides fates anew: the table, the ledger and the quarantine follow, old answers stay."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import reports
from hindcast.common.settings import read_settings
from hindcast.ingest import fate_revisions, ledger
from hindcast.ops import journal_rebuild
from hindcast.plan import journal, planner
from hindcast.runs import run_steps
from pipelines import Pipeline, pipeline, tuples

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.connect

CONTRACT = """
pipeline: fates
start: 2026-01-01
topics:
  menu:
    read: table
    key: {item: string}
    value: {price: int}
    history_retention: RETENTION
"""


def within(seconds: int) -> str:
    return CONTRACT.replace("RETENTION", f"{seconds} seconds")


def counts(p: Pipeline) -> list[tuple[Any, ...]]:
    return tuples(ledger.read_ledger(p.warehouse, p.name).to_pylist(), "run", "first", "last", "accepted", "expired")


@pytest.mark.long
@pytest.mark.ci
def test_another_history_retention_decides_fates_anew(spark: SparkSession, broker: str, tmp_path: Path) -> None:
    with pipeline(spark, broker, tmp_path, within(10)) as p:
        p.send("menu", ("tea", {"price": 1}, 0), ("curry", {"price": 8}, 30), ("tea", {"price": 2}, 15))
        p.send("menu", ("tea", {"price": 3}, 25))
        p.run()
        first = [("curry", 8, 30, None), ("tea", 1, 0, 25), ("tea", 3, 25, None)]
        assert p.believed("menu") == first

        # what was expired is taken
        p.write(within(20))
        told = reports.preview_run(spark, p.name)["tables"]["menu"]
        assert (told["opened"], told["closed"], told["corrected"]) == (2, 1, 1)
        told = p.run()
        second = [("curry", 8, 30, None), ("tea", 1, 0, 15), ("tea", 2, 15, 25), ("tea", 3, 25, None)]
        assert p.believed("menu") == second
        assert [row for row in p.history("menu") if row[-1] is not None] == [("tea", 1, 0, 25, 1, 2)]
        assert told["topics"]["menu"]["decidedAnew"] == {"accepted": 1, "expired": 0}
        assert "earlier records under the current contract: 1 accepted" in reports.format_report(told)
        assert p.fates("menu")[2] == (2, "expired"), "the log keeps the first fate"
        assert tuples(p.raw("quarantine"), "offset", "run") == [(2, 1)], "and the quarantine what was refused"

        # and refused again, with another
        p.write(within(4))
        p.run()
        assert p.believed("menu") == [("curry", 8, 30, None), ("tea", 1, 0, None)]
        assert tuples(p.raw("quarantine"), "offset", "fate", "value", "run") == [
            (2, "expired", b'{"price": 2}', 1),
            (2, "expired", b'{"price": 2}', 3),
            (3, "expired", b'{"price": 3}', 3),
        ]
        assert tuples(p.raw("fates/menu"), "offset", "was", "fate", "run") == [
            (2, "accepted", "expired", 3),
            (2, "expired", "accepted", 2),
            (3, "accepted", "expired", 3),
        ]
        assert counts(p) == [(1, 0, 3, 3, 1), (2, 2, 2, 1, -1), (3, 2, 3, -2, 2)]

        # the retention that a run takes its own records by is that of its own contract
        p.send("menu", ("soup", {"price": 5}, 26), ("soup", {"price": 6}, 25))
        p.run()
        assert counts(p)[-1] == (4, 4, 5, 1, 1)
        before = p.versions()
        p.run()
        assert p.versions() == before

        known = {run.number: run.known_at for run in journal.read_runs(p.warehouse, p.name)}
        (Path(p.warehouse) / p.name / "runs").rename(tmp_path / "lost")
        assert journal_rebuild.rebuild_journal(p.warehouse, p.contract) == [1, 2, 3, 4], (
            "run 2 brought nothing but a fate"
        )
        assert {run.number: run.known_at for run in journal.read_runs(p.warehouse, p.name)} == {
            n: at for n, at in known.items() if n < 5
        }


@pytest.mark.long
def test_a_run_that_was_given_up_leaves_its_fates_to_the_next(spark: SparkSession, broker: str, tmp_path: Path) -> None:
    with pipeline(spark, broker, tmp_path, within(10)) as p:
        p.send("menu", ("curry", {"price": 8}, 30), ("tea", {"price": 2}, 15))
        p.run()
        p.write(within(20))
        number = run_steps.plan_run(read_settings(), p.name, "given up")
        plan = journal.read_active_run(p.warehouse, p.name, number).plan
        fate_revisions.revise_fates(spark, p.contract, plan, "menu")
        fate_revisions.revise_fates(spark, p.contract, plan, "menu")
        run_steps.replay_topic(spark, read_settings(), p.name, number, "menu")
        assert p.believed("menu") == [("curry", 8, 30, None), ("tea", 2, 15, None)]
        planner.abandon_run(p.warehouse, journal.read_active_run(p.warehouse, p.name, number), "by a test")

        # with the contract as it was before, the fate is what it was
        p.write(within(10))
        p.run()
        assert p.believed("menu") == [("curry", 8, 30, None)]
        assert counts(p) == [(1, 0, 1, 1, 1), (2, 1, 1, 1, -1), (3, 1, 1, -1, 1)]
