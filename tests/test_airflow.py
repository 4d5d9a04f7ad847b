"""The real scheduler: the whole stack as `hindcast up` starts it, and runs through Airflow."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from browser import running
from hindcast.bitemporal.predicates import FIRST_MOMENT, Question
from hindcast.common.errors import PlatformError
from hindcast.common.settings import Settings, read_settings
from hindcast.contract import find
from hindcast.kafka import produce
from hindcast.kafka.produce import ProducerRecord
from hindcast.ops.file_layout import MIN_FILES
from hindcast.plan import journal, planner
from hindcast.quality import held_changes
from hindcast.query import read
from hindcast.runs import run_steps
from hindcast.store import tables
from hindcast_demo import restaurant
from hindcast_local.api import AirflowClient
from hindcast_local.executor import PRELOADED
from pipelines import until

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
TIPS = """
pipeline: tips
schedule: inputs
start: 2026-01-01
topics:
  tips:
    read: stream
    key: {customer: string}
    value: {item: string, percent: int}
inputs:
  menu: {table: restaurant.menu, key: {item: string}, value: {price: "decimal(8,2)"}}
views:
  tipped:
    stream: tips
    join: {table: menu, on: item}
    select: {tip: price * percent / 100}
"""
DAYS = {
    "prices": [
        ProducerRecord(b"curry", b'{"price": 8}', datetime(2026, 1, 1, 12, tzinfo=UTC)),
        ProducerRecord(b"curry", b'{"price": 9}', datetime(2026, 1, 2, 12, tzinfo=UTC)),
        ProducerRecord(b"curry", b'{"price": 10}', datetime(2026, 1, 3, 12, tzinfo=UTC)),
    ]
}


TIP = {"tips": [ProducerRecord(b"dave", b'{"item": "naan", "percent": 10}', restaurant.example_time(3))]}


@contextmanager
def restaurant_and_daily(folder: Path, **variables: str) -> Iterator[tuple[Settings, AirflowClient]]:
    """A stack of its own with three contracts and their first records."""
    (folder / "daily.yaml").write_text(DAILY)
    (folder / "tips.yaml").write_text(TIPS)
    contracts = (ROOT / "schemas" / "restaurant.yaml", folder / "daily.yaml", folder / "tips.yaml")
    with running(folder, *contracts, **variables) as (now, web):
        first = {**restaurant.first_records(), **TIP}
        produce.create_topics(now.kafka, *first, *DAYS)
        for topic, records in {**first, **DAYS}.items():
            produce.send_records(now.kafka, topic, records)
        yield now, web


@pytest.fixture(scope="module")
def up(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Settings, AirflowClient]]:
    with restaurant_and_daily(tmp_path_factory.mktemp("stack")) as both:
        yield both


def bills(settings: Settings, run: int) -> dict[str, Decimal | None]:
    """What each customer was believed to owe after a run."""
    contract = find(settings.schemas, "restaurant")
    moment = read.moment_of(settings.warehouse, "restaurant", f"run:{run}")
    rows = read.query(settings.warehouse, contract, "bills", Question(known_at=moment)).to_pylist()
    return {row["customer"]: row["amount"] for row in rows}


def by_hand(settings: Settings) -> int:
    """The first run by hand; scheduled ones come between where an hour ends."""
    runs = journal.read_runs(settings.warehouse, "restaurant")
    return next(run.number for run in runs if run.run_id.startswith("manual__"))


@pytest.mark.long
@pytest.mark.ci
def test_a_scheduled_run_and_one_by_hand_that_brings_late_records(up: tuple[Settings, AirflowClient]) -> None:
    now, web = up
    web.unpause("tips")
    web.unpause("restaurant")
    web.wait("restaurant")
    assert bills(now, 1) == {"anna": 16, "bob": 10, "candace": 24, "dave": 6}

    for topic, records in restaurant.late_records().items():
        produce.send_records(now.kafka, topic, records)
    web.wait("restaurant", web.trigger("restaurant"))
    assert bills(now, by_hand(now)) == {"anna": 16, "bob": 10, "candace": 24, "dave": 5}
    assert bills(now, 1)["dave"] == 6
    written = [path for name in ("airflow", "logs", "reports", "warehouse") for path in (now.var / name).rglob("*")]
    open_ = [
        str(path) for path in written if path.stat(follow_symlinks=False).st_mode & 0o077 and not path.is_symlink()
    ]
    assert (len(written) > 50, open_) == (True, []), "others can read nothing of it"
    assert {run.state for run in journal.read_runs(now.warehouse, "restaurant")} == {"completed"}


@pytest.mark.long
def test_what_was_published_is_told_and_starts_the_pipelines_that_read_it(up: tuple[Settings, AirflowClient]) -> None:
    now, web = up
    told = [(event["run"], event["opened"], event["closed"]) for event in web.events("restaurant.bills")]
    second = by_hand(now)
    assert told == [(1, 4, 0), (second, 1, 1)]
    assert [event["run"] for event in web.events("restaurant.orders")] == [1]
    moments = {run.number: run.known_at.isoformat() for run in journal.read_runs(now.warehouse, "restaurant")}
    assert [event["knownAt"] for event in web.events("restaurant.menu")] == [moments[1], moments[second]]
    until(lambda: len(web.read_run_states("tips")) == 2, 60)
    for run in web.read_run_states("tips"):
        web.wait("tips", run)
    reasons = [run.plan.reason for run in journal.read_runs(now.warehouse, "tips")]
    assert reasons == ["published by restaurant, run 1", f"published by restaurant, run {second}"]
    tips = read.history(now.warehouse, find(now.schemas, "tips"), "tipped").to_pylist()
    assert [float(row["tip"]) for row in tips] == [0.3, 0.25]
    assert web.events("tips.tips")[0]["opened"] == 1
    assert len(web.events("tips.tips")) == 1


@pytest.mark.long
@pytest.mark.parametrize("asked", [{"only": "meno"}, {"until": "yesterday"}, {"replay": "twice"}])
def test_what_the_form_refuses(up: tuple[Settings, AirflowClient], asked: dict[str, str]) -> None:
    _, web = up
    before = web.read_run_states("restaurant")
    with pytest.raises(PlatformError, match="Airflow answers 400"):
        web.trigger("restaurant", **asked)
    assert web.read_run_states("restaurant") == before


@pytest.mark.long
def test_what_makes_no_sense_is_refused_by_the_first_task_in_our_words(up: tuple[Settings, AirflowClient]) -> None:
    _, web = up
    run = web.trigger("restaurant", until="2099-01-01T00:00:00Z")
    web.wait("restaurant", run, state="failed")
    (tried,) = (task["try_number"] for task in web.tasks("restaurant", run) if task["task_id"] == "plan")
    assert tried == 1
    said = [line for line in web.read_log("restaurant", run, "plan") if "asked for" in line]
    assert "records up to 2099-01-01T00:00:00+00:00, but now is " in said[-1]
    assert "what to do: ask for a moment that has passed" in said[-1]


@pytest.mark.long
def test_a_run_about_one_table_skips_the_tasks_of_others(up: tuple[Settings, AirflowClient]) -> None:
    now, web = up
    run = web.wait("restaurant", web.trigger("restaurant", only="bills", reason="look again"))
    assert states(web, "restaurant", run) == {
        **dict.fromkeys(("plan", "build.bills", "report"), "success"),
        **dict.fromkeys(("replay.menu", "replay.orders", "build.all_orders", "preview", "ask"), "skipped"),
    }
    last = journal.read_runs(now.warehouse, "restaurant")[-1]
    assert (last.state, last.plan.only, last.detail["reason"]) == ("completed", "bills", "look again")
    assert len(web.events("restaurant.bills")) == 2


def curl(section: str, number: int, **names: str) -> dict[str, Any]:
    """What Airflow answers to a request of a section of docs/airflow.md, as a shell makes it."""
    page = (ROOT / "docs" / "airflow.md").read_text(encoding="utf-8").split(f"\n## {section}\n")[1].split("\n## ")[0]
    request = re.findall(r"```sh\n(.*?)```", page, re.DOTALL)[number]
    done = subprocess.run(
        ["/bin/bash", "-c", request],
        env={**os.environ, **names},
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    told: dict[str, Any] = json.loads(done.stdout)
    return told


@pytest.mark.long
def test_what_a_gate_holds_back_is_approved_by_the_requests_of_the_docs(up: tuple[Settings, AirflowClient]) -> None:
    now, web = up
    assert [row["key"] for row in held_changes.read_held_rows(now.warehouse, "restaurant").to_pylist()] == [
        '{"item":"lassi"}'
    ]
    section, names = "Approve from a script", {"AIRFLOW": web.url, "TOKEN": web._token}
    until(lambda: curl(section, 0, **names)["total_entries"] == 1, 120)
    (waiting,) = curl(section, 0, **names)["hitl_details"]
    assert "lassi" in waiting["body"]
    asked = waiting["task_instance"]["dag_run_id"]
    answer = curl(section, 1, **names, RUN=asked)
    assert answer["chosen_options"] == ["Approve"]
    assert "already" in str(curl(section, 1, **names, RUN=asked)["detail"]), "an answer is given once"
    until(lambda: curl(section, 2, **names, RUN=asked)["state"] == "success", 300)
    assert curl(section, 0, **names)["total_entries"] == 0
    last = journal.read_runs(now.warehouse, "restaurant")[-1]
    assert (last.state, last.run_id, last.plan.released_keys["menu"].keys) == (
        "completed",
        asked,
        ('{"item":"lassi"}',),
    )
    lassi = read.history(now.warehouse, find(now.schemas, "restaurant"), "menu", key=("lassi",)).to_pylist()
    assert [(row["price"], row["systemFrom"]) for row in lassi] == [(0, last.known_at)]
    assert not held_changes.read_held_rows(now.warehouse, "restaurant").num_rows


@pytest.mark.long
def test_an_approval_waits_for_its_turn_and_goes_first(
    up: tuple[Settings, AirflowClient], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another run is under way, by a command; a fresh run waits already when a person approves. A preview does not."""
    now, web = up
    free = ProducerRecord(b"lassi", b'{"price": 0}', restaurant.example_time(9))
    produce.send_records(now.kafka, next(iter(restaurant.first_records())), [free])
    web.wait("restaurant", web.trigger("restaurant"))
    until(lambda: len(web.read_run_states("restaurant__release")) == 2, 60)
    release = list(web.read_run_states("restaurant__release"))[-1]
    for name, value in now.environment.items():
        monkeypatch.setenv(name, value)
    run_steps.plan_run(read_settings(), "restaurant", "cli__busy")
    busy = journal.read_runs(now.warehouse, "restaurant")[-1]

    fresh = web.trigger("restaurant")
    until(lambda: states(web, "restaurant", fresh)["plan"] == "up_for_reschedule", 60)
    web.approve("restaurant__release", release)
    until(lambda: states(web, "restaurant__release", release)["plan"] == "up_for_reschedule", 60)
    preview = web.wait("restaurant__preview", web.trigger("restaurant__preview", only=None))
    said = "\n".join(web.read_log("restaurant__preview", preview, "preview"))
    assert f"run {busy.number} (cli__busy) is under way" in said
    assert web.read_run_states("restaurant")[fresh] == "running"

    planner.abandon_run(now.warehouse, busy, "the test is done with it")
    web.wait("restaurant__release", release)
    web.wait("restaurant", fresh)
    last = [run.run_id for run in journal.read_runs(now.warehouse, "restaurant") if run.number > busy.number]
    assert last[:2] == [release, fresh]
    assert not held_changes.read_held_rows(now.warehouse, "restaurant").num_rows


def states(web: AirflowClient, dag: str, run: str) -> dict[str, str]:
    """The state of each task of a run."""
    return {task["task_id"]: task["state"] for task in web.tasks(dag, run)}


@pytest.mark.long
def test_a_backfill_replays_day_by_day_then_writes_nothing_then_what_a_new_definition_changes(
    up: tuple[Settings, AirflowClient],
) -> None:
    now, web = up
    days = ("2026-01-01T00:00:00Z", "2026-01-03T00:00:00Z")
    web.unpause("daily")
    web.backfill("daily", *days, max_active_runs=1, reprocess_behavior="none")
    assert [prices(now, run) for run in (1, 2, 3)] == [[16], [16, 18], [16, 18, 20]]

    versions = data_versions(now)
    web.backfill("daily", *days, max_active_runs=3, reprocess_behavior="completed", run_backwards=True)
    assert data_versions(now) == versions
    assert set(web.read_run_states("daily").values()) == {"success"}

    (now.schemas / "daily.yaml").write_text(DAILY.replace("price * 2", "price * 3"))
    previewed = web.wait("daily", web.trigger("daily", preview=True))
    web.wait("daily__preview", f"preview__{previewed}")
    said = "\n".join(web.read_log("daily__preview", f"preview__{previewed}", "preview"))
    assert "views.doubled.select.price: price * 2 -> price * 3" in said
    assert data_versions(now) == versions
    web.backfill("daily", *days, max_active_runs=3, reprocess_behavior="completed")
    last = journal.read_runs(now.warehouse, "daily")[-1].number
    assert prices(now, last) == [24, 27, 30]
    assert prices(now, 3) == [16, 18, 20]


@pytest.mark.long
def test_a_fresh_run_goes_ahead_of_what_a_backfill_has_left_to_do(up: tuple[Settings, AirflowClient]) -> None:
    now, web = up
    days = ("2026-01-01T00:00:00Z", "2026-01-03T00:00:00Z")
    before = len(journal.read_runs(now.warehouse, "daily"))
    with ThreadPoolExecutor(1) as beside:
        form = {"max_active_runs": 3, "reprocess_behavior": "completed"}
        backfill = beside.submit(web.backfill, "daily", *days, **form)
        until(lambda: len(journal.read_runs(now.warehouse, "daily")) > before, 60)
        fresh = web.trigger("daily")
        backfill.result()
    web.wait("daily", fresh)
    order = [run.run_id for run in journal.read_runs(now.warehouse, "daily")[before:]]
    assert len(order) == 4
    assert order.index(fresh) in (1, 2), order


@pytest.mark.long
def test_a_preview_and_a_run_do_not_wait_for_each_other(up: tuple[Settings, AirflowClient]) -> None:
    """A preview that does not come to its end, by the form of the pipeline; a run comes to its own meanwhile."""
    now, web = up
    web.unpause("daily")
    web._call("PATCH", "/api/v2/dags/daily__preview", {"is_paused": True})
    before = len(journal.read_runs(now.warehouse, "daily"))
    previewed = web.wait("daily", web.trigger("daily", preview=True, until="2026-01-02"))
    tasks = states(web, "daily", previewed)
    assert (tasks.pop("preview"), set(tasks.values())) == ("success", {"skipped"})
    web.wait("daily", web.trigger("daily"))
    assert len(journal.read_runs(now.warehouse, "daily")) == before + 1
    assert web.read_run_states("daily__preview")[f"preview__{previewed}"] == "queued"

    web.unpause("daily__preview")
    web.wait("daily__preview", f"preview__{previewed}")
    said = "\n".join(web.read_log("daily__preview", f"preview__{previewed}", "preview"))
    assert "daily: what a run would change; nothing was written" in said
    assert web.read_run("daily__preview", f"preview__{previewed}")["conf"] == {"until": "2026-01-02T00:00:00+00:00"}
    assert len(journal.read_runs(now.warehouse, "daily")) == before + 1


@pytest.mark.long
def test_tables_are_maintained_in_a_task_for_each_pipeline(up: tuple[Settings, AirflowClient]) -> None:
    now, web = up
    web.unpause("restaurant")
    web.wait("restaurant", web.trigger("restaurant"))
    last = journal.read_runs(now.warehouse, "restaurant")[-1].number
    owed = bills(now, last)
    web.unpause("hindcast_maintenance")
    run = web.wait("hindcast_maintenance", web.trigger("hindcast_maintenance"))
    tasks = {task["rendered_map_index"]: task["state"] for task in web.tasks("hindcast_maintenance", run)}
    names = ("daily", "restaurant", "tips")
    assert {name: tasks.get(name) for name in names} == dict.fromkeys(names, "success")
    books = [found for name in names if (found := tables.open_table(journal.runs_table(now.warehouse, name)))]
    assert books
    assert all(len(found.file_uris()) < MIN_FILES for found in books), "entries of runs are files of their own at first"
    assert bills(now, last) == owed


def prices(settings: Settings, run: int) -> list[int]:
    """The doubled prices from the first to the last, as known after a run."""
    contract = find(settings.schemas, "daily")
    asked = Question(from_time=FIRST_MOMENT, known_at=read.moment_of(settings.warehouse, "daily", f"run:{run}"))
    return read.query(settings.warehouse, contract, "doubled", asked)["price"].to_pylist()


def data_versions(settings: Settings) -> list[int]:
    """The Delta versions of the pipeline's tables but its journal."""
    contract = find(settings.schemas, "daily")
    ours = [tables.locate_table(settings.warehouse, contract, name) for name in ("prices", "doubled")]
    return [found.version() for table in ours if (found := tables.open_table(table))]


@pytest.mark.long
def test_runs_by_spark_submit_answer_the_same(tmp_path: Path) -> None:
    with restaurant_and_daily(tmp_path, HINDCAST_SPARK="submit") as (now, web):
        web.unpause("restaurant")
        web.wait("restaurant")
        assert bills(now, 1) == {"anna": 16, "bob": 10, "candace": 24, "dave": 6}
        web.unpause("hindcast_maintenance")
        web.wait("hindcast_maintenance", web.trigger("hindcast_maintenance"))
        assert bills(now, 1) == {"anna": 16, "bob": 10, "candace": 24, "dave": 6}


def test_what_tasks_are_forked_with_is_all_that_steps_import_and_has_started_no_thread() -> None:
    imports = f"import importlib; [importlib.import_module(name) for name in {PRELOADED}]"
    ours = "from hindcast.common import jit; jit.load_compiler()"
    ours += "; from hindcast.quality import expectations; expectations.import_gx()"
    steps = "sorted({'hindcast.runs.derive_view', 'hindcast.engine.task', 'numba'} - {*sys.modules})"
    code = f"{imports}; {ours}; import sys, threading; print(threading.active_count(), {steps})"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert ran.stdout.splitlines()[-1] == "1 []"
