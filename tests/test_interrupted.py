"""What a scheduler has under way when it is killed, and backfills that overlap: runs end right, each offset once."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from browser import Up, running
from hindcast import read
from hindcast.contracts import find
from hindcast.delta import contents, tables
from hindcast.errors import PlatformError
from hindcast.kafka import produce
from hindcast.kafka.produce import Record
from hindcast.local import airflow, process, stack
from hindcast.local.api import Airflow
from hindcast.planning import journal
from hindcast.questions import BEGINNING, Question
from hindcast.upkeep.verifying.verify import verify
from pipelines import until

DAILY = """
pipeline: daily
schedule: "@daily"
start: 2099-01-01  # so that only a backfill runs it
topics:
  prices:
    read: table
    key: {item: string}
    value: {price: int}
views:
  doubled:
    table: prices
    select: {price: price * 2}
"""
PRICES = [Record(b"curry", b'{"price": %d}' % (7 + day), datetime(2026, 1, day, 12, tzinfo=UTC)) for day in range(1, 6)]
DAYS = ("2026-01-01T00:00:00Z", "2026-01-05T00:00:00Z")
ENDED = ("success", "failed")


class Patient(Airflow):
    """Airflow's API, asked again where it does not answer in time: a busy machine is not what is tested."""

    def _call(self, method: str, path: str, body: dict[str, Any] | None = None) -> Any:
        for _ in range(9 if method == "GET" else 0):
            try:
                return super()._call(method, path, body)
            except PlatformError as error:
                if "does not answer" not in str(error):
                    raise
        return super()._call(method, path, body)


@pytest.fixture
def up(tmp_path: Path) -> Iterator[Up]:
    contract = tmp_path / "daily.yaml"
    contract.write_text(DAILY)
    with running(tmp_path, contract) as started:
        produce.create(started.now.kafka, "prices")
        produce.send(started.now.kafka, "prices", PRICES)
        web = Patient(started.web.url, ("admin", airflow.passwords(started.now)["admin"]))
        web.unpause("daily")
        yield Up(started.now, web)


def kill_scheduler(up: Up) -> None:
    """Kill the scheduler's own process, and nothing that it has started."""
    folder = up.now.var / "run"
    (scheduler,) = (one for one in process.load(folder) if one.name == "airflow-scheduler")
    os.kill(scheduler.pid, signal.SIGKILL)
    until(lambda: not process.is_running(scheduler), 30)


def state(up: Up, run: str, task: str) -> str | None:
    return next((it["state"] for it in up.web.tasks("daily", run) if it["task_id"] == task), None)


def refuse_damage(up: Up, prices: int) -> None:
    """Raise unless each offset has its fate once, the view is made of all prices, and `verify` finds nothing."""
    contract = find(up.now.schemas, "daily")
    log = tables.opened(tables.log(up.now.warehouse, "daily", "prices"))
    assert log is not None
    rows = contents.dataset(log).to_table(columns=["offset", "fate"]).to_pylist()
    assert sorted((row["offset"], row["fate"]) for row in rows) == [(n, "accepted") for n in range(prices)]
    told = read.query(up.now.warehouse, contract, "doubled", Question(from_time=BEGINNING))
    assert told["price"].to_pylist() == [2 * (8 + n) for n in range(prices)]
    assert verify(up.now.warehouse, contract).findings == []


@pytest.mark.long
@pytest.mark.parametrize("task", ["replay.prices", "build.doubled"])
def test_a_run_whose_scheduler_is_killed_ends_when_it_is_started_again(up: Up, task: str) -> None:
    run = up.web.trigger("daily")
    until(lambda: state(up, run, task) == "running", 300)
    kill_scheduler(up)
    assert not stack.is_up(up.now)
    stack.up(up.now)
    up.web.wait("daily", run, seconds=1200)
    assert [(it.number, it.state, it.run_id) for it in journal.runs(up.now.warehouse, "daily")] == [
        (1, "completed", run)
    ]
    refuse_damage(up, len(PRICES))


def begin_backfill(up: Up, **form: Any) -> int:
    asked = {"dag_id": "daily", "from_date": DAYS[0], "to_date": DAYS[1], "dag_run_conf": {}, "max_active_runs": 3}
    return int(up.web._call("POST", "/api/v2/backfills", {**asked, **form})["id"])


def wait_for_all(up: Up, seconds: float = 1200) -> dict[str, str]:
    """Wait until no run of the DAG is under way; return their states."""
    end = time.monotonic() + seconds
    while not (states := up.web.runs("daily")) or not {*states.values()} <= {*ENDED}:
        assert time.monotonic() < end, states
        time.sleep(1)
    return states


@pytest.mark.long
def test_backfills_that_overlap_each_other_and_runs_by_hand(up: Up) -> None:
    """One beside runs by hand; a second one meanwhile; one that is cancelled amid a run, and one over the same days."""
    first = begin_backfill(up, reprocess_behavior="none")
    until(lambda: len(journal.runs(up.now.warehouse, "daily")) > 0, 300)
    by_hand = [up.web.trigger("daily"), up.web.trigger("daily", until="2026-01-02T18:00:00Z")]
    with pytest.raises(PlatformError, match="409"):
        begin_backfill(up, reprocess_behavior="completed", run_backwards=True)
    states = wait_for_all(up)
    assert set(states.values()) == {"success"}
    assert {*by_hand} < {*states}
    refuse_damage(up, len(PRICES))

    runs = len(journal.runs(up.now.warehouse, "daily"))
    second = begin_backfill(up, reprocess_behavior="completed", run_backwards=True)
    assert second != first
    until(lambda: journal.runs(up.now.warehouse, "daily")[-1].number > runs, 300)
    up.web._call("PUT", f"/api/v2/backfills/{second}/cancel")
    produce.send(up.now.kafka, "prices", [Record(b"curry", b'{"price": 13}', datetime(2026, 1, 6, 12, tzinfo=UTC))])
    up.web.trigger("daily")
    begin_backfill(up, reprocess_behavior="completed")
    wait_for_all(up)
    assert {run.state for run in journal.runs(up.now.warehouse, "daily")} <= {"completed", "abandoned"}
    refuse_damage(up, len(PRICES) + 1)
