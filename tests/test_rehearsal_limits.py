"""What a rehearsal refuses and goes on after: inputs, other contracts, lost offsets, a lost journal, questions."""

from __future__ import annotations

import json
import shutil
from datetime import datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient

from hindcast import read
from hindcast.cli.main import main
from hindcast.common.errors import BusyError, QueryError, RequestError, RunError
from hindcast.common.settings import read_settings
from hindcast.ingest import requeue
from hindcast.kafka import produce
from hindcast.ops.erase import forget, records
from hindcast.plan import journal, notices
from hindcast.plan.purposes import ArrivalInterval
from hindcast.runs import rehearsal, run_steps, special_runs
from pipelines import Pipeline, at, pipeline, wrong
from test_rehearsal import CONTRACT, define_bills, known_bills, rehearse, send, sent

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.connect

SECOND = """
pipeline: second
start: 2026-01-01
inputs:
  bills: {table: hindsight.bills, read: stream, key: {customer: string}, value: {item: string, amount: int}}
topics:
  rates:
    read: table
    key: {item: string}
    value: {rate: int}
    arrival: header sent
    max_malformed: 9
    max_record_bytes: 50
views:
  both:
    stream: bills
    join: {table: rates, on: bills.item}
    select: {total: amount * rate}
"""


def list_pins(p: Pipeline) -> list[datetime]:
    return [run.plan.as_of_system_times["bills"] for run in journal.read_completed_runs(p.warehouse, p.name)]


def test_an_input_is_read_as_it_was_known_then_and_has_to_be_rehearsed_first(
    spark: SparkSession, broker: str, tmp_path: Path
) -> None:
    with pipeline(spark, broker, tmp_path, CONTRACT) as p:
        send(p)
        second = Pipeline(spark, broker, tmp_path, SECOND)
        produce.create_topics(broker, second.kafka("rates"))
        second.send("rates", ("curry", {"rate": 2}, 0, sent(1)), ("cake", {"rate": 3, "n": "x" * 60}, 0, sent(8)))
        with pytest.raises(RunError, match="no completed run that is known at") as refused:
            rehearse(second, 0, 10)
        assert refused.value.fix == "rehearse hindsight first"
        rehearse(p, 0, 30)
        rehearse(second, 0, 10)
        second.write(SECOND.replace("50", "500"))
        asked = requeue.build_request(second.contract)
        special_runs.run_requeue(spark, read_settings(), second.name, "requeue-1", asked)
        forget.forget_records(spark, p.contract, records.parse_request(p.contract, "orders", "eve", ()))
        rehearse(second, 10, 30)
        assert list_pins(second) == [at(10), at(10), at(20), at(30)], "also of what is done within the rehearsal"
        with pytest.raises(RunError, match=r"of hindsight what arrived up to .* was rehearsed") as refused:
            rehearse(second, 30, 40)
        assert refused.value.fix == f"rehearse hindsight to {at(40).isoformat()} first"
        assert [state for _, state in second.states()] == ["completed"] * 4, "nothing was planned"


def test_no_run_by_the_clock_ends_a_rehearsal_that_is_under_way(
    spark: SparkSession, broker: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(notices, "BEAT", 0.2)
    with pipeline(spark, broker, tmp_path, CONTRACT) as p:
        send(p)
        reports = rehearsal.rehearse_runs(
            spark, read_settings(), p.name, [*rehearsal.list_intervals(at(0), at(30), "10 seconds")]
        )
        next(reports)
        with pytest.raises(BusyError, match="a rehearsal of the same tables is under way in another process"):
            p.run()
        assert len([*reports]) == 2
        p.run()


def test_moments_may_have_microseconds_and_what_is_not_settled_is_not_answered(
    spark: SparkSession, broker: str, tmp_path: Path
) -> None:
    with pipeline(spark, broker, tmp_path, CONTRACT) as p:
        send(p)
        micro = timedelta(microseconds=1)
        intervals = rehearsal.list_intervals(at(0) - micro, at(10) + micro, "1 hour")
        (report,) = rehearsal.rehearse_runs(spark, read_settings(), p.name, [*intervals])
        assert report.again.endswith("--every '10001 ms'")
        assert known_bills(p, at(10) + micro) == define_bills(10.0001)
        for later in (at(11), datetime.now(at(0).tzinfo)):
            with pytest.raises(QueryError, match="a rehearsal may go on") as refused:
                known_bills(p, later)
            assert f"use a time up to {(at(10) + micro).isoformat()}" in refused.value.fix
        assert main(["close", p.name, "early", "--from", at(0).isoformat(), "--to", at(9).isoformat()]) == 0
        assert main(["close", p.name, "late", "--to", at(12).isoformat(), "--known-at", at(11).isoformat()]) == 1


def test_no_definition_changes_within_a_rehearsal_and_limits_may(
    spark: SparkSession, broker: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor while it runs; nor `from`, ttl and other fields of a topic."""
    with pipeline(spark, broker, tmp_path, CONTRACT) as p:
        send(p)
        rehearse(p, 0, 10)
        for old, new in (
            ("read: stream", "read: stream\n    from: 2026-01-01T00:00:00Z"),
            ("read: table", "read: table\n    ttl: 3 seconds"),
            ("arrival: header sent", "arrival: header send"),
        ):
            p.write(CONTRACT.replace(old, new, 1))
            with pytest.raises(RequestError, match="the definition of a table was changed"):
                rehearse(p, 10, 20)
        p.write(CONTRACT.replace("read: stream", "read: stream\n    max_record_bytes: 5000"))
        finish = run_steps.finish_run

        def edit(*given: Any) -> Any:
            report = finish(*given)
            p.write(CONTRACT.replace("quantity * price", "quantity * price + 1"))
            return report

        monkeypatch.setattr(run_steps, "finish_run", edit)
        with pytest.raises(RequestError, match="the definition of a table was changed"):
            rehearse(p, 10, 30)
        assert [state for _, state in p.states()] == ["completed", "completed"]


def test_a_rehearsal_goes_on_after_lost_offsets_a_lost_journal_and_a_killed_run(
    spark: SparkSession, broker: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorded = CONTRACT.replace("arrival: header sent", "arrival: header sent\n    on_gap: record")
    with pipeline(spark, broker, tmp_path, recorded) as p:
        send(p)
        rehearse(p, 0, 10)
        place = TopicPartition(p.kafka("menu"), 0, 3)
        admin = AdminClient({"bootstrap.servers": broker, "log_level": 0})
        admin.delete_records([place])[place].result(20)
        with monkeypatch.context() as killing:
            killing.setattr(run_steps, "build_view", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
            with pytest.raises(KeyboardInterrupt):
                rehearse(p, 10, 20)
        with pytest.raises(RunError, match="has not ended") as refused:
            rehearse(p, 10, 20, "5 seconds")
        assert "repeat the hindcast rehearse that began it" in refused.value.fix
        rehearse(p, 10, 20)
        assert [(row["offset"], row["fate"]) for row in p.raw("logs/menu") if row["fate"] == "gone"] == [(2, "gone")]
        before = {second: known_bills(p, at(second)) for second in (10, 20)}
        shutil.rmtree(f"{p.warehouse}/{p.name}/runs")
        assert main(["ledger", p.name, "--rebuild"]) == 0
        rehearse(p, 10, 30)  # a rebuilt journal does not know that the last run was completed
        assert {second: known_bills(p, at(second)) for second in (10, 20)} == before
        assert journal.read_runs(p.warehouse, p.name)[-1].known_at == at(30)
        assert wrong(p) == []


def ask_for(p: Pipeline, since: float, until: float, **others: Any) -> int:
    """Make the run of one interval as Airflow does, and return its number."""
    assert p.spark is not None
    name = f"backfill__{at(since).isoformat()}"
    request = json.dumps({"from": at(since).isoformat(), "to": at(until).isoformat(), **others})
    number = rehearsal.plan_requested_run(p.spark, read_settings(), p.name, name, request)
    if next(run for run in journal.read_runs(p.warehouse, p.name) if run.number == number).state != "completed":
        run_steps.execute_run(p.spark, read_settings(), p.name, number)
    return number


@pytest.mark.parametrize("chunk", ["100000", "1"])
def test_runs_of_one_interval_each_are_those_of_one_rehearsal_also_by_another_name(
    spark: SparkSession, broker: str, tmp_path: Path, chunk: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HINDCAST_CHUNK", chunk)
    with pipeline(spark, broker, tmp_path, CONTRACT) as p:
        send(p)
        with pytest.raises(RequestError, match="the record arrived before"):
            ask_for(p, 3, 10)
        ask_for(p, 3, 10, earlier=True, reason="March")
        second = ask_for(p, 10, 20)
        assert ask_for(p, 10, 20) == second, "done before"
        with pytest.raises(RequestError, match="was rehearsed before, in other intervals"):
            ask_for(p, 12, 15)
        with pytest.raises(RequestError, match="the next interval does not begin there"):
            ask_for(p, 25, 30)
        shutil.rmtree(f"{p.warehouse}/{p.name}/runs")
        assert main(["ledger", p.name, "--rebuild"]) == 0
        intervals = [run.plan.rehearsed_interval for run in journal.read_runs(p.warehouse, p.name)]
        assert intervals == [ArrivalInterval(at(3), at(10)), ArrivalInterval(at(10), at(20))]
        rehearse(p, 10, 30)  # a rebuilt journal does not know that the last run was completed
        assert {second: known_bills(p, at(second)) for second in (10, 20, 30)} == {
            n: define_bills(n) for n in (10, 20, 30)
        }
        assert wrong(p) == []


STREAM = """
pipeline: moved
start: 2026-01-01
topics:
  orders:
    read: stream
    key: {customer: string}
    value: {item: string}
    arrival: header sent
    max_time_skew: {before: 100 seconds, after: 10 seconds}
    from: FROM
"""


@pytest.mark.parametrize("chunk", ["100000", "2"])
def test_arrivals_do_not_depend_on_chunks_if_from_moves_back(
    spark: SparkSession, broker: str, tmp_path: Path, chunk: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HINDCAST_CHUNK", chunk)
    item = {"item": "x"}
    with pipeline(spark, broker, tmp_path, STREAM.replace("FROM", at(100).isoformat())) as p:
        p.send("orders", ("a", item, 50, sent(130)), ("b", item, 60), ("c", item, 110, sent(110)), ("d", item, 111))
        p.run()
        p.write(STREAM.replace("FROM", at(0).isoformat()))
        p.send("orders", ("e", item, 135, sent(115)), ("f", item, 28, sent(126)))
        p.run()
        rows = sorted(p.raw("logs/orders"), key=lambda row: int(row["offset"]))
        seconds = [(row["fate"], int((row["arrival"] - at(0)).total_seconds())) for row in rows]
        assert seconds == [
            *(("accepted", 130), ("accepted", 130), ("accepted", 110), ("accepted", 110)),
            *(("accepted", 130), ("time_skew", 130)),
        ]
        assert wrong(p) == []
        assert read.query(p.warehouse, p.contract, "orders", read.Question()).num_rows == 5
