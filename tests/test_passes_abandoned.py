"""Passes that were abandoned: what becomes of their dates, and what is said about them."""

from __future__ import annotations

import random
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from bare_runs import bare_run
from hindcast.cli.main import main
from hindcast.common.errors import BusyError, RunError
from hindcast.ops.upgrade import downgrade
from hindcast.plan import journal
from hindcast.plan.purposes import ArrivalInterval, Replay
from pipelines import Pipeline, at, cloned, pipeline, wrong
from test_passes import SMALL, Killed, ask_bills, beside, kill_after_commit, rehearse, send_histories

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.mark.connect
def test_a_pass_that_was_abandoned_before_it_wrote_anything_is_made_again_at_its_dates(
    spark: SparkSession, broker: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Once a part was written, the records of all dates are in a log: no date can be known without the others then."""
    chance = random.Random(8)  # noqa: S311  # any will do
    with pipeline(spark, broker, tmp_path / "a", SMALL) as p:
        send_histories(p, chance, 40, ("menu", "orders"))
        rehearse(p, -30, 0, "30 seconds", in_passes=True)
        kill_pass(p)
        with pytest.raises(BusyError) as refused:
            downgrade.downgrade_table(spark, p.contract, "menu", "versioned")
        assert refused.value.fix.startswith("wait for it or repeat the hindcast rehearse that began it; if")
        with pytest.MonkeyPatch.context() as patch:
            other = cloned(p, tmp_path / "b")
            for name, value in other.environ.items():
                patch.setenv(name, value)
            kill_pass(other)
            assert main(["abandon", p.name]) == 0
            assert f"will be known after {at(60).isoformat()}\n  to know it at their dates:" in capsys.readouterr().out
            rehearse(other, 0, 60, "15 seconds", in_passes=True)
            assert ask_bills(other, 45) == ask_bills(other, 0), "what arrived by then is in the log with later records"
            assert wrong(other) == []
        assert main(["abandon", p.name]) == 0
        told = capsys.readouterr().out
        assert told.startswith("passes: runs 2 to 5, which are made together, were abandoned\n  nothing of them")
        assert journal.read_runs(p.warehouse, p.name)[-1].known_at < at(1)
        made = rehearse(p, 0, 60, "15 seconds", in_passes=True)
        assert [report["knownAt"] for report in made] == [at(second).isoformat() for second in (15, 30, 45, 60)]
        assert [run.plan.pass_numbers for run in journal.read_runs(p.warehouse, p.name)][-3:] == [(7, 9)] * 3
        with beside(p, tmp_path / "c") as right:
            rehearse(right, -30, 0, "30 seconds", in_passes=False)
            rehearse(right, 0, 60, "15 seconds", in_passes=False)
            for name in (*p.contract.topics, *p.contract.views):
                assert sorted(map(repr, p.raw(name))) == sorted(map(repr, right.raw(name))), name
        assert wrong(p) == []


def kill_pass(p: Pipeline) -> None:
    """Let a pass be killed after its next commit."""
    with pytest.MonkeyPatch.context() as patch:
        kill_after_commit(patch)
        with pytest.raises(Killed):
            rehearse(p, 0, 60, "15 seconds", in_passes=True)


def test_whoever_works_for_a_rehearsed_run_that_has_ended_is_not_told_to_run_by_the_clock(tmp_path: Path) -> None:
    """A run by the clock would end the rehearsal for good."""
    purpose = Replay(arrival=ArrivalInterval(at(0), at(10)))
    for state in ("planned", "completed"):
        journal.append_entry(str(tmp_path), bare_run("passes", 1, at(10), state, purpose=purpose))
    with pytest.raises(RunError, match="run 1 is completed") as refused:
        journal.read_active_run(str(tmp_path), "passes", 1)
    assert "hindcast rehearse" in refused.value.fix
