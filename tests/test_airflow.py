"""The real scheduler: the whole stack as `hindcast up` starts it, and runs through Airflow."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from decimal import Decimal
from pathlib import Path

import pytest

from hindcast import journal, produce, read
from hindcast.contracts import find
from hindcast.demo import restaurant
from hindcast.local import airflow, ports, process, stack
from hindcast.local.api import Airflow
from hindcast.local.executor import PRELOADED
from hindcast.settings import Settings, settings


@contextmanager
def running(folder: Path, **variables: str) -> Iterator[tuple[Settings, Airflow]]:
    """A stack of its own with the restaurant's contract and its first records; stopped to its last process."""
    numbers = {f"HINDCAST_{name}_PORT": str(ports.free()) for name in ("KAFKA", "AIRFLOW", "SPARK")}
    schemas = folder / "schemas"
    schemas.mkdir()
    now = settings({"HINDCAST_VAR": str(folder), "HINDCAST_SCHEMAS": str(schemas), **numbers, **variables})
    shutil.copy(now.root / "schemas" / "restaurant.yaml", schemas)
    started: list[process.Process] = []
    try:
        _hindcast(now, "up")
        started = process.load(folder / "run")
        assert stack.is_up(now)
        first = restaurant.first()
        produce.create(now.kafka, *first)
        for topic, records in first.items():
            produce.send(now.kafka, topic, records)
        yield now, Airflow(airflow.url(now))
    finally:
        _hindcast(now, "down")
    assert process.family(started) == []
    assert not any(ports.listens(int(port)) for port in numbers.values())


@pytest.fixture(scope="module")
def up(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Settings, Airflow]]:
    with running(tmp_path_factory.mktemp("stack")) as both:
        yield both


def bills(now: Settings, run: int) -> dict[str, Decimal | None]:
    """What each customer was believed to owe after a run."""
    contract = find(now.schemas, "restaurant")
    moment = read.moment_of(now.warehouse, "restaurant", f"run:{run}")
    rows = read.query(now.warehouse, contract, "bills", known=moment).to_pylist()
    return {row["customer"]: row["amount"] for row in rows}


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
def test_runs_by_spark_submit_answer_the_same(tmp_path: Path) -> None:
    with running(tmp_path, HINDCAST_SPARK="submit") as (now, web):
        web.unpause("restaurant")
        web.wait("restaurant")
        assert bills(now, 1) == {"anna": 16, "bob": 10, "candace": 24, "dave": 6}


def test_what_tasks_are_forked_with_has_started_no_thread() -> None:
    imports = f"import importlib; [importlib.import_module(name) for name in {PRELOADED}]"
    code = f"{imports}; from hindcast import gates; gates.imported(); import threading; print(threading.active_count())"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert ran.stdout.split()[-1] == "1"


def _hindcast(now: Settings, command: str) -> None:
    code = f"from hindcast.local import stack; from hindcast.settings import settings; stack.{command}(settings())"
    subprocess.run([sys.executable, "-c", code], env={**os.environ, **now.environment}, check=True, timeout=240)
