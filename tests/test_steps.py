"""The steps as Airflow's tasks call them: what a run is asked to do, what is refused, how a failure is told."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.sdk.exceptions import AirflowException, AirflowFailException

from hindcast.airflow import assets, operators, run_requests, task_errors, tasks
from hindcast.airflow.run_requests import RunRequest
from hindcast.common.errors import GateError, RequestError, RunError
from hindcast.contract import load
from hindcast.plan.purposes import ArrivalInterval
from hindcast.report.run_report import RunReport
from hindcast.runs import run_steps
from hindcast.runs.table_steps import TABLE_STEPS
from hindcast.store.commit_notes import TableNote

ROOT = Path(__file__).parent.parent
NOW = datetime(2026, 1, 5, 12, tzinfo=UTC)
MONDAY, TUESDAY = datetime(2026, 1, 4, tzinfo=UTC), datetime(2026, 1, 5, tzinfo=UTC)
FORM = {"replay": "interval", "earlier": False, "until": None, "only": None, "preview": False, "reason": None}
DAY = {"data_interval_start": MONDAY, "data_interval_end": TUESDAY}


def context(form: dict[str, Any], **given: Any) -> Any:
    return {"params": {**FORM, **form}, "dag_run": SimpleNamespace(dag_id="restaurant"), **given}


@pytest.mark.parametrize(
    ("form", "given", "expected"),
    [
        ({}, {}, RunRequest()),
        ({}, DAY, RunRequest(TUESDAY)),
        ({"replay": "everything"}, DAY, RunRequest()),
        ({"until": "2026-01-02"}, DAY, RunRequest(datetime(2026, 1, 2, tzinfo=UTC))),
        ({"until": "2026-01-02T01:00:00+02:00"}, {}, RunRequest(datetime(2026, 1, 1, 23, tzinfo=UTC))),
        ({"reason": "half \ud800 a character"}, {}, RunRequest(reason="half ? a character")),
        ({"only": "menu", "reason": "a wrong price"}, {}, RunRequest(None, "menu", "a wrong price")),
        (
            {"replay": "rehearsal", "earlier": True, "reason": "March"},
            DAY,
            RunRequest(reason="March", rehearsed=ArrivalInterval(MONDAY, TUESDAY), earlier=True),
        ),
        (
            {},
            {"data_interval_start": NOW, "data_interval_end": NOW + timedelta(seconds=30)},
            RunRequest(NOW + timedelta(seconds=30)),
        ),
    ],
)
def test_what_a_run_is_asked_to_do(form: dict[str, Any], given: dict[str, Any], expected: RunRequest) -> None:
    assert run_requests.read_run_request(context(form, **given), NOW) == expected


@pytest.mark.parametrize(
    ("form", "given", "found"),
    [
        ({"util": "2026-01-02"}, {}, "the form has no field 'util'"),
        ({"until": "0001-01-01T00:00:00+14:00"}, {}, "until is '0001-01-01T00:00:00+14:00': date value out of range"),
        ({"until": "9999-12-31T23:59:59-14:00"}, {}, "until is '9999-12-31T23:59:59-14:00': date value out of range"),
        ({}, {"data_interval_start": TUESDAY, "data_interval_end": MONDAY}, "before it starts at 2026-01-05T00:00:00"),
        (
            {"until": "2026-01-06T00:00:00Z"},
            {},
            "records up to 2026-01-06T00:00:00+00:00, but now is 2026-01-05T12",
        ),
        (
            {},
            {"data_interval_start": TUESDAY, "data_interval_end": datetime(2026, 1, 6, tzinfo=UTC)},
            "up to 2026-01-06",
        ),
        ({"until": "2026-13-01"}, {}, "until is '2026-13-01': month must be in 1..12"),
        ({"replay": "rehearsal"}, {}, "the run has no interval to rehearse"),
        (
            {"replay": "rehearsal"},
            {"data_interval_start": MONDAY, "data_interval_end": MONDAY},
            "the run has no interval to rehearse",
        ),
        ({"replay": "rehearsal", "only": "menu"}, DAY, "the form asks for a rehearsal, and also for only"),
        ({"replay": "rehearsal", "preview": True}, DAY, "the form asks for a rehearsal, and also for preview"),
        (
            {"until": "2026-01-02", "replay": "everything"},
            DAY,
            "the form asks for everything, and also for records up to 2026-01-02",
        ),
    ],
)
def test_what_makes_no_sense_is_refused(form: dict[str, Any], given: dict[str, Any], found: str) -> None:
    with pytest.raises(RequestError) as refused:
        run_requests.read_run_request(context(form, **given), NOW)
    assert found in refused.value.found
    assert (refused.value.where, bool(refused.value.fix)) == ("restaurant", True)


@pytest.mark.parametrize(
    ("form", "found"),
    [
        ({"until": "2026-01-02"}, None),
        ({"only": "menu"}, None),
        ({"until": "2026-13-01"}, "until is '2026-13-01': month must be in 1..12"),
        ({"until": "0001-01-01T00:00:00+14:00"}, "until is '0001-01-01T00:00:00+14:00': date value out of range"),
        ({"until": "2999-01-01"}, "records up to 2999-01-01T00:00:00+00:00, but now is "),
        ({"reason": "a wrong price"}, "the form has no field 'reason'"),
    ],
)
def test_a_preview_whose_form_makes_no_sense_fails_before_it_begins(form: dict[str, Any], found: str | None) -> None:
    dag = SimpleNamespace(dag_id="restaurant__preview")
    asked: Any = {"params": {"until": None, "only": None, **form}, "dag_run": dag}
    if found is None:
        tasks.check_preview(asked)
        return
    with pytest.raises(AirflowFailException, match=re.escape(found)):
        tasks.check_preview(asked)


def test_a_run_that_another_pipeline_has_started_says_so() -> None:
    extra = {"pipeline": "restaurant", "run": 7, "knownAt": "...", "opened": 1, "closed": 0, "corrected": 0}
    events = {"menu": [SimpleNamespace(extra=extra)], "bills": [SimpleNamespace(extra=extra)], "of another": []}
    asked = run_requests.read_run_request(context({}, triggering_asset_events=events), NOW)
    assert asked == RunRequest(None, None, "published by restaurant, run 7")
    events["menu"] = [SimpleNamespace(extra=extra | {"run": run}) for run in (10, 9)]
    asked = run_requests.read_run_request(context({}, triggering_asset_events=events), NOW)
    assert asked.reason == "published by restaurant, run 7; restaurant, run 9; restaurant, run 10"


def test_an_event_is_sent_for_each_table_of_which_something_was_published() -> None:
    sent: list[tuple[str, dict[str, Any]]] = []

    class Events(dict[Any, Any]):
        def __getitem__(self, alias: Any) -> Any:
            assert alias.name == "restaurant"
            return SimpleNamespace(add=lambda asset, extra: sent.append((asset.name, extra)))

    counts = {"opened": 0, "closed": 0, "corrected": 0}
    tables = {"menu": counts, "orders": {**counts, "opened": 2}, "bills": {**counts, "closed": 1, "corrected": 1}}
    report = {"pipeline": "restaurant", "run": 3, "knownAt": "2026-01-05T12:00:00+00:00", "tables": tables}
    assert assets.send_asset_events("/w", Events(), RunReport.from_json(report)) == ["orders", "bills"]  # type: ignore[arg-type]
    told = {"pipeline": "restaurant", "run": 3, "knownAt": report["knownAt"]}
    assert sent == [
        ("restaurant.orders", {**told, **counts, "opened": 2}),
        ("restaurant.bills", {**told, **counts, "closed": 1, "corrected": 1}),
    ]
    rehearsed = replace(RunReport.from_json(report), rehearsed=ArrivalInterval(MONDAY, TUESDAY))
    assert assets.send_asset_events("/w", Events(), rehearsed) == []  # type: ignore[arg-type]
    assert len(sent) == 2


def test_an_asset_is_where_its_table_lies() -> None:
    for warehouse, uri in (("/w h", "file:///w%20h/shop/menu"), ("s3a://bucket/w", "s3a://bucket/w/shop/menu")):
        asset = assets.table_asset(warehouse, "shop.menu")
        assert (asset.name, asset.uri) == ("shop.menu", uri)


def test_events_of_others_start_no_run_with_a_reason() -> None:
    """Anybody may send an event of a table's asset."""
    odd: list[Any] = [{"run": 7}, {"run": "7", "pipeline": "shop"}, {"run": {}, "pipeline": "shop"}, {}]
    assert assets.describe_trigger(odd) is None
    known = [{"pipeline": "shop", "run": 10}, {"pipeline": "shop", "run": 9}]
    assert assets.describe_trigger([*odd, *known]) == "published by shop, run 9; shop, run 10"


@pytest.mark.parametrize(
    ("error", "kind"),
    [(GateError("failed"), AirflowFailException), (RunError("not now", fix="later"), AirflowException)],
)
def test_a_failure_ends_in_our_words_and_what_a_retry_meets_again_is_final(
    error: Exception, kind: type[Exception], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    with pytest.raises(AirflowException) as told, task_errors.raise_airflow_errors():
        raise error from ValueError("at org.apache.spark")
    assert (type(told.value), str(told.value), told.value.__suppress_context__) == (kind, str(error), True)
    assert "at org.apache.spark" in caplog.text


def test_a_step_under_spark_submit_tells_what_has_stopped_it(tmp_path: Any) -> None:
    place = tmp_path / "failure.json"
    code = "from hindcast.cli.main import step; import sys; sys.exit(step('replay', ['nowhere', '1', 'menu']))"
    (tmp_path / "schemas").mkdir()
    env = {"HINDCAST_FAILURE": str(place), "HINDCAST_SCHEMAS": str(tmp_path / "schemas"), "HINDCAST_VAR": str(tmp_path)}
    fake = "import hindcast.common.session; hindcast.common.session.open_session = lambda: None; "
    ran = subprocess.run([sys.executable, "-c", fake + code], env=env, capture_output=True, text=True, check=False)
    assert (ran.returncode, "Traceback" in ran.stderr) == (1, False), ran.stderr
    told = operators._read_failure(place)
    assert (type(told), "no pipeline 'nowhere'" in str(told)) == (AirflowFailException, True)
    place.write_text(json.dumps({"text": "not now", "final": False}))
    assert (type(operators._read_failure(place)), str(operators._read_failure(place))) == (AirflowException, "not now")
    assert "without an error from Hindcast" in str(operators._read_failure(tmp_path / "none"))


def test_every_step_of_tables_has_its_job_and_its_task(monkeypatch: pytest.MonkeyPatch) -> None:
    restaurant = load(ROOT / "schemas" / "restaurant.yaml")
    done: list[tuple[object, ...]] = []

    def record(name: str, *arguments: object) -> TableNote:
        done.append((name, *arguments))
        return TableNote(7)

    for name, step in TABLE_STEPS.items():
        function = {"topic": "replay_topic", "view": "build_view"}[step.per]
        monkeypatch.setattr(run_steps, function, partial(record, name))
        assert f'step("{name}", ' in (ROOT / "jobs" / f"{name}.py").read_text(encoding="utf-8")
        execute = tasks.table_callable(step)
        assert execute.__name__ == name, "its lineage is found by that"
        for table in step.list_tables(restaurant):
            execute("restaurant", "7", table, spark=None)
    tables = [*restaurant.topics, *restaurant.ordered_views]
    assert [(name, *arguments[2:]) for name, *arguments in done] == [
        ("replay", "restaurant", 7, table, None) if table in restaurant.topics else ("build", "restaurant", 7, table)
        for table in tables
    ]
