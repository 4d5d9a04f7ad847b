"""The verdict on freshness: up to date, overdue or failed, measured from now by the contract's schedule."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path
from unittest.mock import Mock

import pytest
from fastapi.testclient import TestClient

from hindcast.airflow.pages import freshness
from hindcast.airflow.pages.access import PageAccess
from hindcast.airflow.pages.routes import build_app
from hindcast.common.settings import Settings
from hindcast.contract import Contract, load
from hindcast.plan import journal
from hindcast.plan.purposes import Release
from hindcast.plan.runs import Abandoned, Completed, Outcome, Planned, Run, Stopped
from hindcast.report.run_report import RunReport
from warehouses import RUNS, SHOP, plan, report, shop

DONE, FAILED, LOST = Completed({}), Stopped("menu", "a gate failed"), Abandoned("lost")
DAILY = "schedule: '@daily'"
NOON = datetime.fromisoformat("2026-02-02T12:00:00+00:00")
"""Twelve hours after the known-at of run 2."""


def contract(tmp_path: Path, schedule: str) -> Contract:
    (tmp_path / "shop.yaml").write_text(f"{SHOP}{schedule}\n", encoding="utf-8")
    return load(tmp_path / "shop.yaml")


def runs(of: Contract, outcomes: Sequence[Outcome]) -> list[Run]:
    return [Run(plan(of, n), outcome) for n, outcome in enumerate(outcomes, 1)]


@pytest.mark.parametrize(
    ("schedule", "outcomes", "now", "kind", "words"),
    [
        (DAILY, [DONE, DONE], NOON, "passed", "Up to date: CHANGE; runs every day; the next run is due in 12 h."),
        (DAILY, [DONE, DONE], NOON + timedelta(hours=14), "attention",
         "Not up to date: a run has been overdue for 2 h; runs every day; CHANGE."),
        (DAILY, [DONE, DONE], NOON + timedelta(hours=12, minutes=1), "passed",
         "Up to date: CHANGE; runs every day; the next run is due now."),
        (DAILY, [DONE, FAILED], NOON, "stopped", "Not up to date: the last run (2) failed 11 h 59 min ago; CHANGE."),
        (DAILY, [DONE, LOST], NOON, "attention",
         "Not up to date: a run has been overdue for 12 h; runs every day; CHANGE."),
        (DAILY, [DONE, Planned()], NOON, "passed",
         "Up to date: run 2 began 11 h 59 min ago and has not ended; CHANGE; runs every day; DUE."),
        ("schedule: 17 13 * * *", [DONE, DONE], NOON, "passed",
         "Up to date: CHANGE; runs at 17 13 * * *; the next run is due in 1 h 17 min."),
        ("", [DONE, DONE], NOON, "unchecked", "CHANGE; runs on request only, so no run is due."),
        ("intervals: '@daily'", [DONE, DONE], NOON, "unchecked", "CHANGE; runs by backfills only."),
    ],
)  # fmt: skip
def test_a_verdict_is_by_the_schedule(
    tmp_path: Path, schedule: str, outcomes: Sequence[Outcome], now: datetime, kind: str, words: str
) -> None:
    of = contract(tmp_path, schedule)
    found = freshness.judge_freshness(of, runs(of, outcomes), "CHANGE", now, {})
    assert found == (kind, words.replace("DUE", "the next run is due in 12 h"))


@pytest.mark.parametrize(
    ("table", "kind", "words"),
    [
        ("menu", "stopped", "Not up to date: the last run (2) failed 11 h 59 min ago; CHANGE."),
        ("bills", "attention",
         "Not up to date: run 2 was stopped at menu 11 h 59 min ago; bills waits for that; CHANGE."),
        ("people", "passed", "Up to date: CHANGE; runs every day; the next run is due in 12 h."),
    ],
)  # fmt: skip
def test_a_table_says_which_one_it_waits_for(tmp_path: Path, table: str, kind: str, words: str) -> None:
    of = contract(tmp_path, DAILY)
    assert freshness.judge_freshness(of, runs(of, [DONE, FAILED]), "CHANGE", NOON, {}, table) == (kind, words)


def test_before_the_first_run_there_is_no_verdict(tmp_path: Path) -> None:
    assert freshness.judge_freshness(contract(tmp_path, DAILY), [], "", NOON, {}) is None


def test_a_release_is_no_run_that_was_due(tmp_path: Path) -> None:
    of = contract(tmp_path, DAILY)
    first, second = runs(of, [DONE, DONE])
    release = replace(second, plan=replace(second.plan, purpose=Release({})))
    found = freshness.judge_freshness(of, [first, release], "", NOON, {})
    assert found is not None
    assert found.words == "Not up to date: a run has been overdue for 12 h; runs every day."


def test_what_a_run_covers_is_its_interval(tmp_path: Path) -> None:
    """A scheduled run that began late does not cover the interval in which it ran."""
    of = contract(tmp_path, DAILY)
    first, second = runs(of, [DONE, DONE])
    late = replace(second, plan=replace(second.plan, interval_end=RUNS[0].replace(microsecond=0)))
    found = freshness.judge_freshness(of, [first, late], "", NOON, {})
    assert found is not None
    assert found.words.startswith("Not up to date: a run has been overdue for 12 h")


@pytest.mark.parametrize(
    ("outcome", "kind", "start", "limit"),
    [
        ("passed", "passed", "Up to date", "prices keeps its limit of 2 hours"),
        ("failed", "attention", "Too old", "prices exceeds its limit of 2 hours"),
        ("unchecked", "passed", "Up to date", None),
    ],
)
def test_a_limit_has_its_verdict(tmp_path: Path, outcome: str, kind: str, start: str, limit: str | None) -> None:
    of = contract(tmp_path, DAILY)
    gate = {"gate": 0, "expectation": "expect_table_to_be_fresh", "kwargs": {"within": "2 hours"}, "outcome": outcome}
    limits = freshness.read_limits(of, RunReport.from_json(report(of, 2) | {"tables": {"prices": {"gates": [gate]}}}))
    found = freshness.judge_freshness(of, runs(of, [DONE, DONE]), "", NOON, limits)
    assert found is not None
    assert (found.kind, found.words.partition(":")[0]) == (kind, start)
    assert ("limit" in found.words) == (limit is not None)
    assert limit is None or limit in found.words


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ([False, True], "last change 1 d 11 h ago (run 1)"),
        ([False, False], "no change in the last 2 runs"),
        ([False], "no change so far"),
        ([None, True], ""),
    ],
)
def test_a_change_is_named_with_its_run(tmp_path: Path, changed: list[bool | None], words: str) -> None:
    past = [*reversed(runs(contract(tmp_path, ""), [DONE, DONE]))]
    assert freshness.describe_change(zip(past, changed, strict=False), NOON) == words


@pytest.fixture(name="settings")
def fill_settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Settings]:
    monkeypatch.setattr(freshness, "datetime", Mock(now=lambda _: NOON))
    with shop(tmp_path) as found:
        yield found


@pytest.fixture(name="web")
def open_web(settings: Settings) -> TestClient:
    assert settings.schemas.exists()
    return TestClient(build_app(PageAccess(lambda: None, lambda: None, lambda: frozenset({"shop"}))))


@pytest.mark.parametrize("page", ["quality", "quality/shop", "machine/shop?table=prices"])
def test_the_pages_have_the_verdict(web: TestClient, page: str) -> None:
    words = "Last change 11 h 59 min ago (run 2); runs on request only, so no run is due."
    assert f"<b>Fresh?</b> {words}</p>" in web.get(f"/{page}").text


def test_a_table_has_its_own_last_change(web: TestClient) -> None:
    assert "No change in the last 2 runs;" in web.get("/machine/shop.json?table=bills").json()["fresh"]["words"]


def test_the_last_change_of_a_table_is_not_known_without_the_report(web: TestClient, settings: Settings) -> None:
    of = load(settings.schemas / "shop.yaml")
    third = replace(plan(of, 2), run=3, run_id="manual__3", known_at=RUNS[1] + timedelta(hours=1))
    for outcome in (Planned(), Completed({"tables": {"prices": {"opened": "x"}}})):
        journal.append_entry(settings.warehouse, Run(third, outcome))
    assert web.get("/machine/shop.json?table=prices").json()["fresh"]["words"].startswith("Runs on request")
