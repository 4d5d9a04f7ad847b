"""The real scheduler: the whole stack as `hindcast up` starts it, and runs through Airflow."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path

import pytest

from browser import running
from hindcast import holds, journal, produce, read, tables
from hindcast.contracts import find
from hindcast.demo import restaurant
from hindcast.local.api import Airflow
from hindcast.local.executor import PRELOADED
from hindcast.produce import Record
from hindcast.questions import BEGINNING, Question
from hindcast.settings import Settings

ROOT = Path(__file__).resolve().parent.parent

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
DAYS = {
    "prices": [
        Record(b"curry", b'{"price": 8}', datetime(2026, 1, 1, 12, tzinfo=UTC)),
        Record(b"curry", b'{"price": 9}', datetime(2026, 1, 2, 12, tzinfo=UTC)),
        Record(b"curry", b'{"price": 10}', datetime(2026, 1, 3, 12, tzinfo=UTC)),
    ]
}


@contextmanager
def restaurant_and_daily(folder: Path, **variables: str) -> Iterator[tuple[Settings, Airflow]]:
    """A stack of its own with two contracts and their first records."""
    (folder / "daily.yaml").write_text(DAILY)
    with running(folder, ROOT / "schemas" / "restaurant.yaml", folder / "daily.yaml", **variables) as (now, web):
        first = restaurant.first()
        produce.create(now.kafka, *first, *DAYS)
        for topic, records in {**first, **DAYS}.items():
            produce.send(now.kafka, topic, records)
        yield now, web


@pytest.fixture(scope="module")
def up(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Settings, Airflow]]:
    with restaurant_and_daily(tmp_path_factory.mktemp("stack")) as both:
        yield both


def bills(now: Settings, run: int) -> dict[str, Decimal | None]:
    """What each customer was believed to owe after a run."""
    contract = find(now.schemas, "restaurant")
    moment = read.moment_of(now.warehouse, "restaurant", f"run:{run}")
    rows = read.query(now.warehouse, contract, "bills", Question(known_at=moment)).to_pylist()
    return {row["customer"]: row["amount"] for row in rows}


@pytest.mark.long
def test_a_scheduled_run_and_one_by_hand_that_brings_late_records(up: tuple[Settings, Airflow]) -> None:
    now, web = up
    web.unpause("restaurant")
    web.wait("restaurant")
    assert bills(now, 1) == {"anna": 16, "bob": 10, "candace": 24, "dave": 6}

    for topic, records in restaurant.late().items():
        produce.send(now.kafka, topic, records)
    web.wait("restaurant", web.trigger("restaurant"))
    assert bills(now, 2) == {"anna": 16, "bob": 10, "candace": 24, "dave": 5}
    assert bills(now, 1)["dave"] == 6
    assert [run.state for run in journal.runs(now.warehouse, "restaurant")] == ["completed", "completed"]


@pytest.mark.long
def test_what_a_gate_holds_back_is_approved_by_a_person(up: tuple[Settings, Airflow]) -> None:
    now, web = up
    assert [row["key"] for row in holds.held(now.warehouse, "restaurant").to_pylist()] == ['{"item":"lassi"}']
    asked = web.approve("restaurant__release")
    web.wait("restaurant__release", asked)
    last = journal.runs(now.warehouse, "restaurant")[-1]
    assert (last.state, last.run_id, last.plan["releases"]["menu"]["keys"]) == (
        "completed",
        asked,
        ['{"item":"lassi"}'],
    )
    lassi = read.history(now.warehouse, find(now.schemas, "restaurant"), "menu", key=("lassi",)).to_pylist()
    assert [(row["price"], row["systemFrom"]) for row in lassi] == [(0, last.known_at)]
    assert not holds.held(now.warehouse, "restaurant").num_rows


@pytest.mark.long
def test_a_backfill_replays_day_by_day_then_writes_nothing_then_what_a_new_definition_changes(
    up: tuple[Settings, Airflow],
) -> None:
    now, web = up
    days = ("2026-01-01T00:00:00Z", "2026-01-03T00:00:00Z")
    web.unpause("daily")
    web.backfill("daily", *days, max_active_runs=1, reprocess_behavior="none")
    assert [prices(now, run) for run in (1, 2, 3)] == [[16], [16, 18], [16, 18, 20]]

    versions = data_versions(now)
    web.backfill("daily", *days, max_active_runs=3, reprocess_behavior="completed", run_backwards=True)
    assert data_versions(now) == versions
    assert set(web.runs("daily").values()) == {"success"}

    (now.schemas / "daily.yaml").write_text(DAILY.replace("price * 2", "price * 3"))
    previewed = web.wait("daily", web.trigger("daily", preview=True))
    states = {task["task_id"]: task["state"] for task in web.tasks("daily", previewed)}
    assert (states.pop("preview"), set(states.values())) == ("success", {"skipped"})
    assert data_versions(now) == versions
    web.backfill("daily", *days, max_active_runs=3, reprocess_behavior="completed")
    last = journal.runs(now.warehouse, "daily")[-1].number
    assert prices(now, last) == [24, 27, 30]
    assert prices(now, 3) == [16, 18, 20]


def prices(now: Settings, run: int) -> list[int]:
    """The doubled prices from the first to the last, as known after a run."""
    contract = find(now.schemas, "daily")
    asked = Question(from_time=BEGINNING, known_at=read.moment_of(now.warehouse, "daily", f"run:{run}"))
    return read.query(now.warehouse, contract, "doubled", asked)["price"].to_pylist()


def data_versions(now: Settings) -> list[int]:
    """The Delta versions of the pipeline's tables but its journal."""
    contract = find(now.schemas, "daily")
    ours = [tables.located(now.warehouse, contract, name) for name in ("prices", "doubled")]
    return [found.version() for table in ours if (found := tables.opened(table))]


@pytest.mark.long
def test_runs_by_spark_submit_answer_the_same(tmp_path: Path) -> None:
    with restaurant_and_daily(tmp_path, HINDCAST_SPARK="submit") as (now, web):
        web.unpause("restaurant")
        web.wait("restaurant")
        assert bills(now, 1) == {"anna": 16, "bob": 10, "candace": 24, "dave": 6}


def test_what_tasks_are_forked_with_has_started_no_thread() -> None:
    imports = f"import importlib; [importlib.import_module(name) for name in {PRELOADED}]"
    ours = "from hindcast import expectations; expectations.imported()"
    code = f"{imports}; {ours}; import threading; print(threading.active_count())"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert ran.stdout.split()[-1] == "1"
