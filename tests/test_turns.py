"""Whose turn it is: releases, fresh runs and backfills of one pipeline, and rehearsals."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any

import pytest

from hindcast.airflow import priority, turns
from hindcast.airflow.run_requests import RunRequest
from hindcast.common.errors import RequestError
from hindcast.contract.load import load_text
from hindcast.plan.plans import Plan
from hindcast.plan.purposes import ArrivalInterval, Replay
from hindcast.plan.runs import Completed, Run
from pipelines import RESTAURANT

HOLDS = """\
    expect:
      - expect_column_values_to_be_between: {column: amount, min_value: 0}
        on_failure: quarantine
"""
INTERVAL = ArrivalInterval(datetime(2026, 1, 4, tzinfo=UTC), datetime(2026, 1, 5, tzinfo=UTC))


def ask(ti: Any, run: str, kind: str) -> Any:
    """What Airflow gives a task of a run of this kind."""
    return {"ti": ti, "run_id": run, "dag_run": SimpleNamespace(run_type=kind)}


BACKFILL, HOURLY, BY_HAND = "backfill__2026-01-02T00:00:00+00:00", "scheduled__2026-01-05T12:00:00+00:00", "mine"


@pytest.mark.parametrize(
    ("rule", "run", "waiting", "first"),
    [
        ("a fresh run goes first", BACKFILL, {HOURLY: "up_for_reschedule"}, HOURLY),
        ("one that goes on already does not wait", BACKFILL, {HOURLY: "success"}, None),
        ("nor one that has not begun to", BACKFILL, {HOURLY: None}, None),
        ("runs of backfills take their turns", BACKFILL, {"backfill__2026-01-03T00:00:00+00:00": "running"}, None),
        ("so do runs of a schedule that one takes up", "scheduled__2026-01-06T00:00:00Z", {HOURLY: "queued"}, None),
        ("in one order only", "scheduled__2026-01-02T00:00:00Z", {HOURLY: "queued"}, HOURLY),
        ("nor does what looks like one", BACKFILL, {"again__2026-01-31T25:00": "queued"}, None),
        ("a name tells no moment", BACKFILL, {BY_HAND: "queued"}, None),
        ("nor to the one that has it", BY_HAND, {HOURLY: "queued"}, None),
    ],
)
def test_a_backfill_lets_fresh_runs_go_first(
    rule: str, run: str, waiting: dict[str, str | None], first: str | None
) -> None:
    assert priority.find_fresh_run(run, waiting) == first, rule


class Instances:
    """What a task asks Airflow about runs and their tasks: `states` by DAG and run; the first DAG is its own.

    `before`: the run of its DAG with the logical date before its own.
    """

    def __init__(self, states: dict[str, dict[str, str]], *, paused: bool = False, before: Any = None) -> None:
        self.dag_id, self.task_id = next(iter(states)), "plan"
        self._states, self._paused, self._before = states, paused, before

    def get_dr_count(self, dag_id: str, states: list[str], run_ids: Collection[str] | None = None) -> int:
        runs = self._states.get(dag_id, {})
        if states == ["running"]:
            return sum(state != "success" for state in runs.values())
        assert states == ["queued", "running"]
        return sum(state in states for run, state in runs.items() if run_ids is None or run in run_ids)

    def get_previous_dagrun(self) -> Any:
        return self._before

    def get_task_states(self, dag_id: str, task_ids: list[str]) -> dict[str, dict[str, str]]:
        return {run: dict.fromkeys(task_ids, state) for run, state in self._states.get(dag_id, {}).items()}

    def get_dag(self, _: str) -> Any:
        return SimpleNamespace(is_paused=self._paused)


@pytest.mark.parametrize(
    ("rule", "run_type", "approval", "paused", "can_hold", "expected"),
    [
        ("an approval goes before a backfill", "backfill", {"a": "up_for_reschedule"}, False, True, "a goes first"),
        ("and before a fresh run", "scheduled", {"a": "up_for_reschedule"}, False, True, "a goes first"),
        ("not while a person is asked", "manual", {"a": "none"}, False, True, None),
        ("nor once it is planned", "manual", {"a": "success"}, False, True, None),
        ("nor if it cannot begin", "manual", {"a": "up_for_reschedule"}, True, True, None),
        ("nor if its DAG is gone with the last gate", "manual", {"a": "up_for_reschedule"}, False, False, None),
        ("a fresh run goes before a backfill", "backfill", {}, False, True, f"{HOURLY} goes first"),
        ("whatever gates there are", "backfill", {"a": "up_for_reschedule"}, False, False, f"{HOURLY} goes first"),
    ],
)
def test_what_goes_before_a_run_that_is_not_planned_yet(
    rule: str, run_type: str, approval: dict[str, str], paused: bool, can_hold: bool, expected: str | None
) -> None:
    own = {BACKFILL: "running", HOURLY: "queued"} if run_type == "backfill" else {HOURLY: "running"}
    ti = Instances({"shop": own, "shop__release": approval}, paused=paused)
    contract = load_text(RESTAURANT + (HOLDS if can_hold else ""))
    found = turns.describe_predecessor(ask(ti, next(iter(own)), run_type), contract, [], RunRequest())
    assert (found is None) if expected is None else (found or "").startswith(expected), rule


EARLIER, LATER = (f"backfill__2026-01-0{day}T00:00:00+00:00" for day in (2, 3))
BY_CLOCK, ADOPTED = "scheduled__2026-01-05T12:00:00+00:00", "scheduled__2026-01-02T00:00:00+00:00"


def rehearse(known_at: datetime, run_id: str) -> Run:
    """A run that has rehearsed the day before a moment."""
    interval = ArrivalInterval(known_at - timedelta(days=1), known_at)
    plan = Plan("fares", 1, run_id, known_at, known_at, "", {}, {}, Replay(arrival=interval), numbers=1)
    return Run(plan, Completed({}))


def describe(run: str, others: dict[str, str], past: Sequence[Run], adopted: str = "") -> str | None:
    """Whose turn it is: of these runs of one DAG, of which a backfill has taken one over."""
    contract = load_text(
        "pipeline: fares\nstart: 2026-01-01\ntopics:\n  fares:\n    read: table\n    key: {route: string}\n"
        "    value: {price: int}\n    arrival: header sent\n"
    )
    earlier = [
        SimpleNamespace(
            run_id=i,
            state=state,
            run_type="backfill" if i == adopted else i.partition("__")[0],
            data_interval_end=priority.parse_moment(i) or T0,
        )
        for i, state in others.items()
        if i.partition("__")[2] < run.partition("__")[2]
    ]
    before = max(earlier, key=lambda it: it.data_interval_end, default=None)
    ti, kind = Instances({"fares": others}, before=before), run.partition("__")[0]
    request = RunRequest(rehearsed=INTERVAL if kind == "backfill" else None)
    return turns.describe_predecessor(ask(ti, run, kind), contract, past, request)


T0 = datetime(2026, 1, 2, tzinfo=UTC)
DONE = [rehearse(T0, EARLIER)]


@pytest.mark.parametrize(
    ("rule", "run", "others", "past", "first"),
    [
        ("an interval waits for the one before", LATER, {EARLIER: "running", LATER: "running"}, [], EARLIER),
        ("which has ended then", LATER, {EARLIER: "success", LATER: "running"}, DONE, None),
        ("and not for the one after", EARLIER, {EARLIER: "running", LATER: "running"}, [], None),
        ("nor for one by the clock", LATER, {BY_CLOCK: "running", LATER: "running"}, [], None),
        (
            "that waits for all",
            BY_CLOCK,
            {EARLIER: "success", LATER: "queued", BY_CLOCK: "running"},
            DONE,
            "a backfill",
        ),
        ("until these have ended", BY_CLOCK, {EARLIER: "success", LATER: "failed", BY_CLOCK: "running"}, DONE, None),
        (
            "also for one taken over",
            BY_CLOCK,
            {EARLIER: "success", ADOPTED: "queued", BY_CLOCK: "running"},
            DONE,
            "a backfill",
        ),
    ],
)
def test_while_a_pipeline_can_be_rehearsed_backfills_go_first(
    rule: str, run: str, others: dict[str, str], past: Sequence[Run], first: str | None
) -> None:
    found = describe(run, others, past)
    assert (found is None) if first is None else (found or "").startswith(f"{first} goes first"), rule


@pytest.mark.parametrize(
    ("before", "past", "found"),
    [
        ("queued", [], f"{EARLIER} goes first, and waits until this run has ended"),
        ("failed", [], f"{EARLIER} goes first, and has not rehearsed its interval"),
        ("success", [], f"{EARLIER} goes first, and has not rehearsed its interval"),
        ("failed", [rehearse(T0 - timedelta(days=1), "rehearse__1")], "has not rehearsed its interval"),
    ],
)
def test_no_interval_is_rehearsed_before_an_earlier_one_of_its_backfill(
    before: str, past: Sequence[Run], found: str
) -> None:
    with pytest.raises(RequestError, match=re.escape(found)):
        describe(LATER, {EARLIER: before, LATER: "running"}, past)
