"""Airflow's backfill form rehearses: each interval's run is known at its end, and no run by the clock comes between."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from browser import running
from hindcast.bitemporal.predicates import Question
from hindcast.common.settings import Settings
from hindcast.contract import find
from hindcast.kafka import produce
from hindcast.kafka.produce import ProducerRecord
from hindcast.plan import journal
from hindcast.query import read
from hindcast_local.api import AirflowClient
from pipelines import until

FARES = """
pipeline: fares
schedule: "@daily"
start: 2099-01-01  # so that only a backfill runs it
topics:
  fares:
    read: table
    key: {route: string}
    value: {price: int}
    arrival: header sent
views:
  doubled:
    table: fares
    select: {price: price * 2}
"""
REHEARSE = {"dag_run_conf": {"replay": "rehearsal", "reason": "what we would have known"}}


def day(n: float) -> datetime:
    return datetime(2026, 1, 1, tzinfo=UTC) + timedelta(days=n - 1)


def fare(price: int, true: float, arrived: float) -> ProducerRecord:
    """A fare that is true from one day on and arrived on another."""
    sent = (("sent", day(arrived).isoformat()),)
    return ProducerRecord(b"north", f'{{"price": {price}}}'.encode(), day(true), sent)


ARRIVED = [fare(5, 1, 1.5), fare(6, 2, 2.5), fare(4, 1.5, 3.5)]


@pytest.fixture(scope="module")
def up(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Settings, AirflowClient]]:
    folder = tmp_path_factory.mktemp("rehearsal")
    (folder / "fares.yaml").write_text(FARES)
    with running(folder, folder / "fares.yaml") as (now, web):
        produce.create_topics(now.kafka, "fares")
        produce.send_records(now.kafka, "fares", ARRIVED)
        web.unpause("fares")
        yield now, web


def list_known_fares(settings: Settings, at: datetime | None) -> list[int]:
    """The doubled fares of the history that was known at a moment, in the order of their days."""
    contract = find(settings.schemas, "fares")
    question = Question(known_at=at, from_time=day(0), to_time=day(30))
    rows = read.query(settings.warehouse, contract, "doubled", question).to_pylist()
    return [row["price"] for row in sorted(rows, key=lambda row: row["validFrom"])]


def list_runs(settings: Settings) -> list[tuple[datetime, str]]:
    return [(run.known_at, run.state) for run in journal.read_runs(settings.warehouse, "fares")]


@pytest.mark.long
@pytest.mark.ci
def test_each_interval_of_a_backfill_is_known_at_its_end(up: tuple[Settings, AirflowClient]) -> None:
    now, web = up
    days: tuple[Any, ...] = ("2026-01-01T00:00:00Z", "2026-01-03T00:00:00Z")
    web.backfill("fares", *days, max_active_runs=3, reprocess_behavior="none", **REHEARSE)
    assert list_runs(now) == [(day(2), "completed"), (day(3), "completed"), (day(4), "completed")]
    assert [list_known_fares(now, day(n)) for n in (2, 3, 4)] == [[10], [10, 12], [10, 8, 12]]
    runs = journal.read_runs(now.warehouse, "fares")
    assert {run.plan.reason for run in runs} == {"what we would have known"}
    tried = {task["task_id"]: task["state"] for task in web.tasks("fares", runs[0].run_id)}
    assert tried == dict.fromkeys(("plan", "rehearse", "replay.fares", "build.doubled", "report"), "success") | {
        "preview": "skipped"
    }

    web.backfill("fares", *days, max_active_runs=3, reprocess_behavior="completed", **REHEARSE)
    assert len(list_runs(now)) == 3, "rehearsed before: nothing is written"
    assert set(web.read_run_states("fares").values()) == {"success"}
    assert any("run 1" in line for line in web.read_log("fares", runs[0].run_id, "report")), "its report is shown again"


@pytest.mark.long
@pytest.mark.ci
def test_a_run_by_the_clock_waits_for_the_backfill_and_ends_the_rehearsal(up: tuple[Settings, AirflowClient]) -> None:
    now, web = up
    produce.send_records(now.kafka, "fares", [fare(7, 4, 4.5), fare(8, 5, 5.5)])
    before = len(list_runs(now))
    with ThreadPoolExecutor(1) as beside:
        days = ("2026-01-04T00:00:00Z", "2026-01-05T00:00:00Z")
        backfill = beside.submit(web.backfill, "fares", *days, max_active_runs=1, reprocess_behavior="none", **REHEARSE)
        until(lambda: len(list_runs(now)) > before, 120)
        by_hand = web.trigger("fares")
        backfill.result()
    web.wait("fares", by_hand)
    runs = journal.read_runs(now.warehouse, "fares")
    assert [run.known_at for run in runs[before:-1]] == [day(5), day(6)]
    assert (runs[-1].run_id, runs[-1].plan.rehearsed_interval) == (by_hand, None)
    assert list_known_fares(now, day(6)) == [10, 8, 12, 14, 16]

    web.backfill("fares", "2026-01-06T00:00:00Z", "2026-01-06T00:00:00Z", reprocess_behavior="none", **REHEARSE)
    (failed,) = (run for run, state in web.read_run_states("fares").items() if state == "failed")
    said = "\n".join(web.read_log("fares", failed, "plan"))
    assert f"({by_hand}) was no rehearsed one: no run can be rehearsed after it" in said
    assert "rehearse it under another name" in said
