"""What steps tell of themselves: as lines of JSON, in Airflow's log, as its metrics."""

from __future__ import annotations

import json
import logging
import os
import re
import subprocess
import sys
from datetime import datetime
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.sql.connect.shell.progress import Progress, StageInfo

import receivers
from hindcast.airflow import step_metrics
from hindcast.airflow.step_metrics import Metric
from hindcast.cli import main
from hindcast.common import progress, progress_lines, step_events
from hindcast.common.errors import BusyError
from hindcast.common.settings import read_settings
from hindcast.common.step_events import Event
from hindcast.kafka.topics import OffsetRange
from hindcast.plan.plans import TopicPlan
from hindcast.runs import preview
from pipelines import at, pipeline

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

GUARDED = """
pipeline: guarded
start: 2026-01-01
topics:
  menu:
    read: table
    key: {item: string}
    value: {price: int}
    max_malformed: 1
    expect:
      - expect_column_values_to_be_between: {column: price, min_value: 0}
        on_failure: quarantine
  orders:
    read: stream
    key: {customer: string}
    value: {item: string, quantity: int}
views:
  bills:
    stream: orders
    join: {table: menu, on: item}
    select: {amount: quantity * price}
    expect:
      - expect_column_values_to_be_between: {column: amount, max_value: 1000}
"""
SECRETS = ("anna", "bob", "curry", "lassi", "4711", "nonsense")
"""Values of the records below."""


@pytest.mark.long
@pytest.mark.ci
def test_a_run_tells_what_each_step_has_done_and_no_value_of_a_record(
    spark: SparkSession,
    broker: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pipeline(spark, broker, tmp_path, GUARDED) as p:
        p.send("menu", ("curry", {"price": 8}, 0), ("lassi", {"price": -4711}, 1), ("soup", b"nonsense", 2))
        p.send("menu", ("soup", {"price": 5}, 0))
        p.send("orders", ("anna", {"item": "curry", "quantity": 1}, 1), ("bob", {"item": "curry", "quantity": 4711}, 9))
        monkeypatch.setenv("HINDCAST_LOG", "json")
        with step_events.write_event_lines(read_settings()):
            p.run("first", until=5)
        told = _told(capsys)
        assert main.main(["run", "guarded"]) == 1
        stopped = _told(capsys)

    assert [(e["event"], e["step"], e.get("table")) for e in told] == [
        (event, step, table)
        for step, table in (
            ("plan", None),
            ("replay", "menu"),
            ("replay", "orders"),
            ("build", "bills"),
            ("finish", None),
        )
        for event in ("step begun", "step ended")
    ]
    assert {(e["pipeline"], e["run_id"], e["level"]) for e in told} == {("guarded", "first", "info")}
    assert {e["run"] for e in told[1:]} == {1}
    assert all(e["seconds"] > 0 for e in told if e["event"] == "step ended")
    plan, menu, orders, bills, finish = told[1::2]
    assert (plan["offsets"], plan["offsets_left"]) == ({"menu": 4, "orders": 1}, {"menu": 0, "orders": 1})
    assert (menu["opened"], menu["closed"], menu["gates"]) == (2, 0, {"failed": 1})
    assert bills["gates"] == {"passed": 1}
    ago = (datetime.fromisoformat(orders["timestamp"]) - at(1)).total_seconds()
    assert orders["lag_seconds"]["orders"] == pytest.approx(ago, abs=1)
    assert finish["records"] == {"menu": {"accepted": 3, "malformed": 1}, "orders": {"accepted": 1}}
    assert (finish["late"], finish["held"]) == ({"menu": 1}, {"menu": 1})

    failed = stopped[-1]
    assert (failed["event"], failed["level"], failed["step"], failed["table"]) == (
        *("step failed", "error", "build", "bills"),
    )
    assert (failed["run_id"][:5], failed["error"], failed["gates"]) == ("cli__", "GateError", {"failed": 1})
    text = json.dumps([{**e, "timestamp": "", "run_id": "", "seconds": 0, "lag_seconds": 0} for e in (*told, *stopped)])
    assert not [secret for secret in SECRETS if secret in text]


def _told(capsys: pytest.CaptureFixture[str]) -> list[Event]:
    return [json.loads(line) for line in capsys.readouterr().err.splitlines() if line.startswith("{")]


@pytest.mark.long
@pytest.mark.ci
def test_a_step_that_takes_long_says_how_far_it_has_come(
    spark: SparkSession,
    broker: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(progress, "INTERVAL", 0.02)
    with pipeline(spark, broker, tmp_path, GUARDED) as p:
        p.send("menu", *((f"dish {n}", {"price": n}, 0) for n in range(6)))
        monkeypatch.setenv("HINDCAST_CHUNK", "2")
        with progress_lines.print_progress(read_settings()):
            p.run()
        lines = capsys.readouterr().err.splitlines()
        assert lines
        assert {line.partition(":")[0] for line in lines} <= {"replay menu", "replay orders", "build bills"}
        form = r"replay menu: 4 of 6 offsets \(67%\), \d+/s, (\d+ of \d+ tasks? in Spark, )?\d+ s, about \d+ s left"
        assert any(re.fullmatch(form, line) for line in lines)
        assert any(re.search(r"[:,] \d+ of \d+ tasks? in Spark", line) for line in lines)

        p.send("menu", ("dish 1", {"price": 8}, 1))
        with progress_lines.print_progress(read_settings()):
            preview.preview_run(spark, read_settings(), p.name)
        assert re.search(r"^preview guarded, bills: 2 of 3 tables \(67%\), ", capsys.readouterr().err, re.MULTILINE)

        monkeypatch.setattr(progress, "INTERVAL", 60.0)
        monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
        p.send("menu", ("dish 1", {"price": 9}, 1))
        with progress_lines.print_progress(read_settings()):
            p.run()
        assert re.search(r"replay menu: 2 rows opened, 1 closed, \d+\.\d s$", capsys.readouterr().err, re.MULTILINE)

        monkeypatch.setenv("HINDCAST_LOG", "json")
        with progress_lines.print_progress(read_settings()):
            p.run()
        assert capsys.readouterr().err == ""


def test_progress_in_a_spark_connect_server_is_that_of_all_its_operations(caplog: pytest.LogCaptureFixture) -> None:
    handlers: list[Any] = []
    remote = type("SparkSession", (SimpleNamespace,), {"__module__": "pyspark.sql.connect.session"})
    spark: Any = remote(registerProgressHandler=handlers.append, removeProgressHandler=handlers.remove)
    with progress._open_counter(spark) as count_tasks:
        first, second = (Progress(handlers=handlers, operation_id=name) for name in ("a", "b"))
        assert count_tasks() == (0, 0)
        first.update_ticks([StageInfo(1, 8, 8, 0, True), StageInfo(2, 5, 2, 0, False)], 1)
        second.update_ticks([StageInfo(3, 10, 1, 0, False)], 1)
        assert count_tasks() == (3, 15)
        first.finish()
        assert count_tasks() == (1, 10)
    assert handlers == []
    with caplog.at_level(logging.INFO, "hindcast.steps"):
        step_events.emit_progress(1, 2)
    assert caplog.text == "", "outside of a step"


def test_nothing_is_printed_unless_it_is_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    def failing() -> None:
        with (
            step_events.write_event_lines(read_settings({})),
            step_events.record_step("build", "restaurant", 7, "bills"),
        ):
            step_events.record_begin(run_id="first")
            raise KeyError

    with pytest.raises(KeyError):
        failing()
    assert capsys.readouterr() == ("", "")


def test_events_go_to_pythons_logging(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "hindcast.steps"), step_events.record_step("build", "restaurant", 7, "bills"):
        step_events.record_begin(run_id="first")
    assert caplog.messages[0] == "step begun pipeline=restaurant run=7 step=build table=bills run_id=first"


@pytest.mark.parametrize(
    ("error", "event", "level"),
    [(BusyError("another run"), "step waits", "info"), (KeyboardInterrupt(), "step failed", "error")],
)
def test_a_step_that_does_not_end_says_so(error: BaseException, event: str, level: str) -> None:
    told: list[Event] = []
    with (
        step_events.send_events_to(told.append),
        pytest.raises(type(error)),
        step_events.record_step("plan", "restaurant"),
    ):
        raise error
    assert [(it["event"], it["level"], it["error"]) for it in told] == [(event, level, type(error).__name__)]


def test_a_listener_that_fails_stops_no_step(caplog: pytest.LogCaptureFixture) -> None:
    def deaf(_: Event) -> None:
        raise OSError("no backend")

    done = False
    with step_events.send_events_to(deaf), step_events.record_step("build", "restaurant", 7, "bills"):
        done = True
    assert done
    assert "an event could not be reported: step ended" in caplog.text


def test_a_step_under_spark_submit_keeps_its_events_for_its_task(tmp_path: Path) -> None:
    """No contract is there, so the step fails before it needs Spark."""
    (tmp_path / "schemas").mkdir()
    place = tmp_path / "events.jsonl"
    code = "from hindcast.cli.main import step; import sys; sys.exit(step('replay', ['nowhere', '1', 'menu']))"
    fake = "import hindcast.common.session; hindcast.common.session.open_session = lambda: None; "
    env = {"HINDCAST_EVENTS": str(place), "HINDCAST_SCHEMAS": str(tmp_path / "schemas"), "HINDCAST_VAR": str(tmp_path)}
    subprocess.run([sys.executable, "-c", fake + code], env={**os.environ, **env}, capture_output=True, check=False)
    (event,) = step_events.read_events(place)
    assert (event["event"], event["step"], event["table"], event["run"]) == ("step failed", "replay", "menu", 1)
    assert event["error"] == "ContractError"


BUILT = {"event": "step ended", "pipeline": "restaurant", "step": "build", "table": "bills", "run": 7, "seconds": 2.5}
BILLS = {"pipeline": "restaurant", "table": "bills"}


@pytest.mark.parametrize(
    ("event", "metrics"),
    [
        ({"event": "step begun", "pipeline": "restaurant", "step": "plan"}, []),
        (
            {**BUILT, "opened": 3, "closed": 0, "gates": {"passed": 2, "failed": 1}},
            [
                Metric("timing", "step_duration", 2.5, {**BILLS, "step": "build"}),
                Metric("counter", "rows_opened", 3, BILLS),
                Metric("counter", "gates_failed", 1, {**BILLS, "outcome": "failed"}),
            ],
        ),
        (
            {**BUILT, "event": "step failed", "error": "GateError"},
            [
                Metric("timing", "step_duration", 2.5, {**BILLS, "step": "build"}),
                Metric("counter", "steps_failed", 1, {**BILLS, "step": "build", "error": "GateError"}),
            ],
        ),
        (
            {
                "event": "step ended",
                "pipeline": "restaurant",
                "step": "finish",
                "seconds": 1,
                "records": {"menu": {"accepted": 3, "malformed": 1}},
                "late": {"menu": 1},
                "held": {"menu": 0},
            },
            [
                Metric("timing", "step_duration", 1, {"pipeline": "restaurant", "step": "finish"}),
                Metric("counter", "records", 3, {"pipeline": "restaurant", "table": "menu", "fate": "accepted"}),
                Metric("counter", "records", 1, {"pipeline": "restaurant", "table": "menu", "fate": "malformed"}),
                Metric("counter", "late", 1, {"pipeline": "restaurant", "table": "menu"}),
                Metric("gauge", "held", 0, {"pipeline": "restaurant", "table": "menu"}),
            ],
        ),
    ],
)
def test_the_metrics_of_an_event(event: Event, metrics: list[Metric]) -> None:
    assert list(step_metrics.list_metrics(event)) == metrics


TASK = """
import sys
from airflow.sdk.configuration import conf
from airflow.sdk.log import configure_logging
from airflow.sdk.observability import stats
from airflow.sdk.observability.metrics import stats_utils
import receivers
from hindcast.airflow import step_metrics
from hindcast.common import progress, step_events
configure_logging(json_output=True, output=sys.stdout.buffer)
legacy = conf.getboolean("metrics", "legacy_names_on")
stats.initialize(factory=stats_utils.get_stats_factory(), export_legacy_names=legacy)
with step_events.send_events_to(step_metrics.send_event), step_events.record_step("build", "restaurant", 7, "bills"):
    step_events.record_begin(run_id="first")
    step_events.add_fields(opened=3, gates={"failed": 1}, lag_seconds={"bills": 0.5})
"""
"""What a task of Airflow's sets up before it runs us (airflow.sdk.execution_time.task_runner.main), and a step."""


def _task(home: Path, **environ: str) -> list[dict[str, Any]]:
    """Runs `TASK` in a process of its own; the lines of its log."""
    env = {**os.environ, "AIRFLOW_HOME": str(home), "PYTHONPATH": os.pathsep.join(sys.path), **environ}
    command = [sys.executable, "-W", "ignore", "-c", TASK]
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]


def test_in_airflow_fields_arrive_as_fields_of_its_log(tmp_path: Path) -> None:
    begun, ended = (line for line in _task(tmp_path) if line["logger"] == "hindcast.steps")
    fields = {"pipeline": "restaurant", "run": 7, "run_id": "first", "step": "build", "table": "bills"}
    assert {name: begun.get(name) for name in (*fields, "event", "level")} == {
        **fields,
        "event": "step begun",
        "level": "info",
    }
    assert (ended["event"], ended["opened"], ended["gates"]) == ("step ended", 3, {"failed": 1})


@pytest.mark.parametrize("legacy", [True, False])
def test_metrics_arrive_by_statsd_as_airflow_is_configured(tmp_path: Path, legacy: bool) -> None:
    pytest.importorskip("statsd", reason="the extra statsd (make test-observed)")
    with receivers.udp() as (port, lines):
        _task(
            tmp_path,
            AIRFLOW__METRICS__STATSD_ON="True",
            AIRFLOW__METRICS__STATSD_HOST="127.0.0.1",
            AIRFLOW__METRICS__STATSD_PORT=str(port),
            AIRFLOW__METRICS__STATSD_INFLUXDB_ENABLED="True",
            AIRFLOW__METRICS__LEGACY_NAMES_ON=str(legacy),
        )
    came = sorted(line for line in lines if line.startswith("airflow.hindcast.") and "step_duration" not in line)
    bills = "pipeline=restaurant,table=bills"
    tagged = [
        f"airflow.hindcast.gates_failed,{bills},outcome=failed:1|c",
        f"airflow.hindcast.lag_seconds,{bills}:0.5|g",
        f"airflow.hindcast.rows_opened,{bills}:3|c",
    ]
    dotted = [
        "airflow.hindcast.restaurant.bills.gates_failed.failed:1|c",
        "airflow.hindcast.restaurant.bills.lag_seconds:0.5|g",
        "airflow.hindcast.restaurant.bills.rows_opened:3|c",
    ]
    assert came == sorted([*tagged, *dotted] if legacy else tagged)


def test_metrics_arrive_by_opentelemetry_as_airflow_is_configured(tmp_path: Path) -> None:
    from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest

    with receivers.http() as (url, bodies):
        _task(
            tmp_path,
            AIRFLOW__METRICS__OTEL_ON="True",
            AIRFLOW__METRICS__LEGACY_NAMES_ON="False",
            OTEL_EXPORTER_OTLP_PROTOCOL="http/protobuf",
            OTEL_EXPORTER_OTLP_ENDPOINT=url,
        )
    came = [ExportMetricsServiceRequest.FromString(body) for body in bodies]
    metrics = [m for it in came for r in it.resource_metrics for s in r.scope_metrics for m in s.metrics]
    found = {m.name: m for m in metrics if m.name.startswith("airflow.hindcast.")}
    assert sorted(name.removeprefix("airflow.hindcast.") for name in found) == [
        *("gates_failed", "lag_seconds", "rows_opened", "step_duration"),
    ]
    (rows,) = found["airflow.hindcast.rows_opened"].sum.data_points
    assert rows.as_int == 3
    assert {tag.key: tag.value.string_value for tag in rows.attributes} == {"pipeline": "restaurant", "table": "bills"}


def test_a_plan_that_is_found_again_tells_no_leftovers() -> None:
    """How many offsets are left is asked of Kafka when a plan is made; a retry does not ask."""
    made = TopicPlan("id", 0, 0, {0: 0}, {0: OffsetRange(0, 5)}, {}, offsets_left=3)
    assert TopicPlan.from_json(made.as_json()).offsets_left is None
    assert TopicPlan.from_json(made.as_json()) == made
