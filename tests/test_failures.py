"""Failures as a user of Airflow sees them, both ways of running Spark: what a log ends in, what a stop stops."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from datetime import UTC, datetime

import psutil
import pytest

from browser import Up, running
from hindcast.kafka import produce
from hindcast.kafka.produce import ProducerRecord
from hindcast.plan import journal
from hindcast_local import process
from pipelines import until

PRICES = """
pipeline: prices
start: 2026-01-01
topics:
  prices:
    read: table
    key: {item: string}
    value: {price: int}
"""
SHARES = """
pipeline: shares
start: 2026-01-01
topics:
  counts:
    read: table
    key: {item: string}
    value: {n: int}
views:
  shares:
    table: counts
    select: {share: 100 / n}
"""
PAIRS = """
pipeline: pairs
start: 2026-01-01
topics:
  ones: {read: stream, key: {k: string}, value: {v: int}}
  others: {read: stream, key: {k: string}, value: {w: int}}
views:
  pairs:
    stream: ones
    join: {stream: others, before: 1 hour, after: 1 hour}
"""
MANY = 40_000
"""Of two streams so many events of one key are more pairs than anybody waits for."""

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)


@pytest.fixture(scope="module", params=["connect", "submit"])
def up(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Up]:
    folder = tmp_path_factory.mktemp(request.param)
    contracts = [folder / f"{name}.yaml" for name in ("prices", "shares", "pairs")]
    for path, text in zip(contracts, (PRICES, SHARES, PAIRS), strict=True):
        path.write_text(text)
    with running(folder, *contracts, HINDCAST_SPARK=request.param, HINDCAST_POOL="spark") as started:
        produce.create_topics(started.now.kafka, "prices", "counts", "ones", "others")
        yield started


def failed(up: Up, dag: str, task: str) -> tuple[int, list[str]]:
    """A run of which this task fails: at which try, and the lines of its log."""
    up.web.unpause(dag)
    run = up.web.wait(dag, up.web.trigger(dag), state="failed")
    (told,) = (told for told in up.web.tasks(dag, run) if told["task_id"] == task)
    return told["try_number"], up.web.read_log(dag, run, task, told["try_number"])


@pytest.mark.long
def test_a_record_that_does_not_decode_fails_the_task_at_once_and_its_log_ends_in_our_words(up: Up) -> None:
    produce.send_records(up.now.kafka, "prices", [ProducerRecord(b"curry", b"{", NOON)])
    tried, lines = failed(up, "prices", "replay.prices")
    assert tried == 1
    assert "do not decode" in last(lines)
    assert "what to do:" in last(lines)


@pytest.mark.long
def test_what_fails_in_spark_is_told_with_the_contracts_line_and_nothing_of_java_follows(up: Up) -> None:
    produce.send_records(up.now.kafka, "counts", [ProducerRecord(b"curry", b'{"n": 0}', NOON)])
    tried, lines = failed(up, "shares", "build.shares")
    assert tried == 1
    assert "shares.yaml:" in last(lines)
    assert "what to do:" in last(lines)
    assert "org.apache.spark" not in last(lines)


def last(lines: list[str]) -> str:
    """What a log ends in, but for Airflow's own marks."""
    return [line for line in lines if line and not line.startswith("::")][-1]


@pytest.mark.long
def test_a_task_leads_to_the_report_of_its_run(up: Up) -> None:
    run = next(iter(up.web.read_run_states("prices")))
    links = up.web._call("GET", f"/api/v2/dags/prices/dagRuns/{run}/taskInstances/replay.prices/links")["extra_links"]
    (last,) = journal.read_runs(up.now.warehouse, "prices")
    assert links == {"Report": f"/hindcast/dag/prices/run/{last.run_id.replace(':', '%3A').replace('+', '%2B')}/report"}


@pytest.mark.long
def test_a_task_that_is_marked_failed_stops_its_spark_job(up: Up) -> None:
    for topic, value in (("ones", "v"), ("others", "w")):
        many = (ProducerRecord(b"k", json.dumps({value: n}).encode(), NOON) for n in range(MANY))
        produce.send_records(up.now.kafka, topic, list(many))
    up.web.unpause("pairs")
    run = up.web.trigger("pairs")

    def state() -> str:
        return next(t["state"] for t in up.web.tasks("pairs", run) if t["task_id"] == "build.pairs")

    until(lambda: state() == "running", 120)
    until(lambda: busy(up) > 0.5, 60)
    time.sleep(5)
    assert busy(up) > 0.5
    up.web.fail("pairs", run, "build.pairs")
    until(lambda: busy(up) < 0.1, 30)
    assert state() == "failed"


def busy(up: Up, seconds: float = 2) -> float:
    """How many cores Spark's drivers have been busy for so long."""
    drivers = [
        p
        for pid in process.find_descendants(process.load_records(up.now.var / "run"))
        if is_driver(p := psutil.Process(pid))
    ]

    def spent() -> float:
        return sum(sum(p.cpu_times()[:2]) for p in drivers if p.is_running() and p.status() != psutil.STATUS_ZOMBIE)

    before = spent()
    time.sleep(seconds)
    return max(0.0, (spent() - before) / seconds)


def is_driver(one: psutil.Process) -> bool:
    """Whether it is a JVM of Spark's that computes."""
    try:
        return "org.apache.spark.deploy.SparkSubmit" in one.cmdline()
    except psutil.Error:
        return False
