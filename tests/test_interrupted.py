"""What a scheduler has under way when it is killed, and backfills that overlap: runs end right, each offset once."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import pytest

from browser import Up, running
from hindcast.bitemporal.predicates import FIRST_MOMENT, Question
from hindcast.common.errors import PlatformError
from hindcast.kafka import produce
from hindcast.kafka.produce import ProducerRecord
from hindcast.ops.verify.verify import verify_tables
from hindcast.plan import journal
from hindcast.plan.marks import find_bound_contract
from hindcast.query import read
from hindcast.store import row_reader, tables
from hindcast_local import airflow, process, stack
from hindcast_local.api import AirflowClient
from pipelines import until

DAILY = """
pipeline: NAME
schedule: "@daily"
start: 2099-01-01  # so that only a backfill runs it
topics:
  prices:
    topic: NAME.prices
    read: table
    key: {item: string}
    value: {price: int}
views:
  doubled:
    table: prices
    select: {price: price * 2}
"""
PRICES = [
    ProducerRecord(b"curry", b'{"price": %d}' % (7 + day), datetime(2026, 1, day, 12, tzinfo=UTC))
    for day in range(1, 6)
]
DAYS = ("2026-01-01T00:00:00Z", "2026-01-05T00:00:00Z")


class Patient(AirflowClient):
    """Airflow's API, asked again where it does not answer in time: a busy machine is not what is tested."""

    def _call(self, method: str, path: str, body: dict[str, Any] | None = None) -> Any:
        for _ in range(9 if method == "GET" else 0):
            try:
                return super()._call(method, path, body)
            except PlatformError as error:
                if "does not answer" not in str(error):
                    raise
        return super()._call(method, path, body)


NAMES = ("amid_replay", "amid_build", "backfilled")


@pytest.fixture(scope="module")
def up(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Up]:
    folder = tmp_path_factory.mktemp("stack")
    contracts = [folder / f"{name}.yaml" for name in NAMES]
    for path in contracts:
        path.write_text(DAILY.replace("NAME", path.stem))
    with running(folder, *contracts) as started:
        web = Patient(started.web.url, ("admin", airflow.ensure_passwords(started.now)["admin"]))
        for name in NAMES:
            produce.create_topics(started.now.kafka, f"{name}.prices")
            produce.send_records(started.now.kafka, f"{name}.prices", PRICES)
            web.unpause(name)
        yield Up(started.now, web)


def kill_scheduler(up: Up) -> None:
    """Kill the scheduler's own process, and nothing that it has started."""
    folder = up.now.var / "run"
    (scheduler,) = (one for one in process.load_records(folder) if one.name == "airflow-scheduler")
    os.kill(scheduler.pid, signal.SIGKILL)
    until(lambda: not process.is_running(scheduler), 30)


def state(up: Up, dag: str, run: str, task: str) -> str | None:
    return next((it["state"] for it in up.web.tasks(dag, run) if it["task_id"] == task), None)


def refuse_damage(up: Up, name: str, prices: int) -> None:
    """Raise unless each offset has its fate once, the view is made of all prices, and `verify` finds nothing."""
    contract = find_bound_contract(up.now, name)
    log = tables.open_table(tables.log_table(up.now.warehouse, name, "prices"))
    assert log is not None
    rows = row_reader.open_dataset(log).to_table(columns=["offset", "fate"]).to_pylist()
    assert sorted((row["offset"], row["fate"]) for row in rows) == [(n, "accepted") for n in range(prices)]
    told = read.query(up.now.warehouse, contract, "doubled", Question(from_time=FIRST_MOMENT))
    assert told["price"].to_pylist() == [2 * (8 + n) for n in range(prices)]
    assert verify_tables(contract).findings == []


@pytest.mark.long
@pytest.mark.parametrize(("name", "task"), [("amid_replay", "replay.prices"), ("amid_build", "build.doubled")])
def test_a_run_whose_scheduler_is_killed_ends_when_it_is_started_again(up: Up, name: str, task: str) -> None:
    run = up.web.trigger(name)
    until(lambda: state(up, name, run, task) == "running", 300)
    kill_scheduler(up)
    until(lambda: stack.is_up(up.now), 60)  # by the supervisor
    up.web.wait(name, run, seconds=1200)
    assert [(it.number, it.state, it.run_id) for it in journal.read_runs(up.now.warehouse, name)] == [
        (1, "completed", run)
    ]
    refuse_damage(up, name, len(PRICES))


def begin_backfill(up: Up, name: str, **form: Any) -> int:
    """Begin a backfill, three days at once; return its id."""
    return up.web.begin_backfill(name, *DAYS[:2], max_active_runs=3, **form)


def is_over(up: Up, backfill: int) -> bool:
    """Whether Airflow has taken note that a backfill has ended: until then it begins no other one of the DAG."""
    return bool(up.web._call("GET", f"/api/v2/backfills/{backfill}")["completed_at"])


def wait_for_all(up: Up, name: str, seconds: float = 1200) -> dict[str, str]:
    """Wait until no run of the DAG is under way; return their states."""
    end = time.monotonic() + seconds
    while not (states := up.web.read_run_states(name)) or not {*states.values()} <= {"success", "failed"}:
        assert time.monotonic() < end, states
        restart_what_died(up)
        time.sleep(1)
    return states


def restart_what_died(up: Up) -> bool:
    """Start again what has died: Airflow 3.3.2's scheduler may, of a backfill that puts its runs in place of others."""
    if not stack.is_up(up.now):
        stack.start_stack(up.now)
    return True


@pytest.mark.long
def test_backfills_that_overlap_each_other_and_runs_by_hand(up: Up) -> None:
    """One beside runs by hand; a second one meanwhile; one that is cancelled amid a run, and one over the same days."""
    name, warehouse = "backfilled", up.now.warehouse
    first = begin_backfill(up, name, reprocess_behavior="none")
    until(lambda: len(journal.read_runs(warehouse, name)) > 0, 300)
    by_hand = [up.web.trigger(name), up.web.trigger(name, until="2026-01-02T18:00:00Z")]
    with pytest.raises(PlatformError, match="409"):
        begin_backfill(up, name, reprocess_behavior="completed", run_backwards=True)
    states = wait_for_all(up, name)
    until(lambda: is_over(up, first), 300)
    assert {*states.values()} == {"success"}
    assert {*by_hand} < {*states}
    refuse_damage(up, name, len(PRICES))

    runs = len(journal.read_runs(warehouse, name))
    second = begin_backfill(up, name, reprocess_behavior="completed", run_backwards=True)
    assert second != first
    until(lambda: restart_what_died(up) and len(journal.read_runs(warehouse, name)) > runs, 600)
    up.web._call("PUT", f"/api/v2/backfills/{second}/cancel")
    until(lambda: is_over(up, second), 300)
    record = ProducerRecord(b"curry", b'{"price": 13}', datetime(2026, 1, 6, 12, tzinfo=UTC))
    produce.send_records(up.now.kafka, f"{name}.prices", [record])
    up.web.trigger(name)
    begin_backfill(up, name, reprocess_behavior="completed")
    wait_for_all(up, name)
    assert {run.state for run in journal.read_runs(warehouse, name)} == {"completed"}
    refuse_damage(up, name, len(PRICES) + 1)
