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
from hindcast.common import clock
from hindcast.common.errors import BusyError, GateError, QueryError, RequestError, RunError
from hindcast.common.settings import read_settings
from hindcast.ingest import requeue
from hindcast.kafka import produce
from hindcast.ops import rebuilt_runs, retention
from hindcast.ops.erase import forget, records
from hindcast.plan import journal, notices, rehearsals
from hindcast.plan.purposes import ArrivalInterval, Release, Replay, Requeue
from hindcast.plan.rehearsals import MICROSECOND
from hindcast.plan.runs import Run
from hindcast.quality import held_changes
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


REFUSING = CONTRACT.replace("header sent", "header sent\n    max_malformed: 9\n    max_record_bytes: 99")
HOLDING = f"""{REFUSING}
    expect:
      - expect_column_values_to_be_between: {{column: amount, max_value: 19}}
        on_failure: quarantine
"""


def test_a_rebuilt_release_or_requeue_is_no_run_by_the_clock(spark: SparkSession, broker: str, tmp_path: Path) -> None:
    with pipeline(spark, broker, tmp_path, HOLDING) as p:

        def list_runs() -> dict[int, Run]:
            return {run.number: run for run in journal.read_runs(p.warehouse, p.name)}

        def rebuild() -> tuple[dict[int, Run], dict[int, Run]]:
            """Lose the journal and rebuild it; return the runs before and after."""
            before = list_runs()
            shutil.rmtree(f"{p.warehouse}/{p.name}/runs")
            assert main(["ledger", p.name, "--rebuild"]) == 0
            after = list_runs()
            assert {n: run.known_at for n, run in after.items()} == {n: run.known_at for n, run in before.items()}
            assert rehearsals.is_open([*after.values()])
            return before, after

        p.send("orders", ("zed", {"item": "curry", "quantity": 1, "note": "x" * 99}, 6, sent(1)))
        send(p)
        rehearse(p, 0, 10)
        keys = {"bills": held_changes.find_held_keys(p.warehouse, p.name, "bills", ["bob"])}
        special_runs.run_release(spark, read_settings(), p.name, "released", keys, "eva", clock.now())
        before, after = rebuild()
        assert [(run.state, run.known_at) for run in after.values()][1] == ("abandoned", at(10) + MICROSECOND)
        released, again = (runs[2].plan.released_keys["bills"] for runs in (before, after))
        assert (again.keys, again.by, again.until > released.until) == (released.keys, "eva", True)
        rehearse(p, 10, 20)
        p.write(HOLDING.replace("bytes: 99", "bytes: 999"))
        special_runs.run_requeue(spark, read_settings(), p.name, "requeued", requeue.build_request(p.contract))
        moments = [run.known_at for run in list_runs().values()]
        known = [known_bills(p, moment) for moment in moments]
        _, after = rebuild()
        assert [type(run.plan.purpose) for run in after.values()] == [Replay, Release, Replay, Requeue]
        assert after[4].plan.requeue == Requeue(("orders",))
        rehearse(p, 20, 30)
        assert [known_bills(p, moment) for moment in moments] == known
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


def test_an_interval_that_a_gate_stopped_is_not_skipped(spark: SparkSession, broker: str, tmp_path: Path) -> None:
    rule = "expect_column_values_to_be_between: {column: price, max_value: 50}"
    gate = f"    expect:\n      - {rule}\n        on_failure: stop\n"
    with pipeline(
        spark, broker, tmp_path, CONTRACT.replace("    arrival: header sent\n", f"    arrival: header sent\n{gate}", 1)
    ) as p:
        p.send("menu", ("curry", {"price": 99}, 0, sent(1)), ("curry", {"price": 9}, 0, sent(11)))
        with pytest.raises(GateError):
            rehearse(p, 0, 10)
        with pytest.raises(RequestError, match=r"was to rehearse what arrived from .* on, and was not completed"):
            rehearse(p, 10, 20)
        p.write(CONTRACT)
        rehearse(p, 0, 20)
        first, second = (run.known_at for run in journal.read_completed_runs(p.warehouse, p.name))
        assert (first - at(10) <= timedelta(microseconds=1), second) == (True, at(20))


SPENT = "  spent:\n    stream: bills\n    aggregate: {spent: sum(amount)}\n"


def test_a_rebuilt_journal_has_no_stopped_or_abandoned_date_as_completed(
    spark: SparkSession, broker: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor if the run that rehearsed it again had nothing left to ingest, so that no log has its interval."""
    gate = "    expect:\n      - expect_column_values_to_be_between: {column: price, max_value: 9}\n"
    stopping = f"header sent\n{gate}        on_failure: stop"
    build = run_steps.build_view

    def die_before_spent(*given: Any) -> Any:
        if "spent" in given:
            raise KeyboardInterrupt
        return build(*given)

    def list_runs() -> list[tuple[str, datetime, ArrivalInterval | None]]:
        return [
            (run.state, run.known_at, run.plan.rehearsed_interval) for run in journal.read_runs(p.warehouse, p.name)
        ]

    def rebuild() -> None:
        shutil.rmtree(f"{p.warehouse}/{p.name}/runs")
        assert main(["ledger", p.name, "--rebuild"]) == 0

    first, second, third = (ArrivalInterval(at(n), at(n + 10)) for n in (0, 10, 20))
    with pipeline(spark, broker, tmp_path, CONTRACT.replace("header sent", stopping, 1) + SPENT) as p:
        send(p)
        with pytest.raises(GateError):
            rehearse(p, 0, 10)
        p.write(CONTRACT + SPENT)
        rehearse(p, 0, 10)
        rebuild()
        abandoned = [("abandoned", at(10), first), ("abandoned", at(10) + MICROSECOND, first)]
        assert list_runs() == abandoned, "nobody knows whether the last one was completed"
        with pytest.raises(QueryError, match="no run has been completed yet") as refused:
            known_bills(p, None)
        assert refused.value.fix == "repeat the hindcast rehearse that began it"
        rehearse(p, 0, 10)
        with monkeypatch.context() as killing:
            killing.setattr(run_steps, "build_view", die_before_spent)
            with pytest.raises(KeyboardInterrupt):
                rehearse(p, 10, 20)
        assert main(["abandon", p.name]) == 0
        rehearse(p, 10, 20)
        rebuild()
        assert list_runs()[-2:] == [("abandoned", at(20), second), ("abandoned", at(20) + MICROSECOND, second)]
        assert rehearsals.find_end(journal.read_runs(p.warehouse, p.name)) == at(10)
        assert known_bills(p, None) == define_bills(10)
        rehearse(p, 10, 30)
        rebuild()
        assert [interval for state, _, interval in list_runs() if state == "completed"] == [first, second]
        assert list_runs()[-1] == ("abandoned", at(30), third)
        rehearse(p, 20, 30)
        assert known_bills(p, None) == define_bills(30)
        assert wrong(p) == []


def interval(since: float, until: float) -> ArrivalInterval:
    return ArrivalInterval(at(since), at(until))


@pytest.mark.parametrize(
    ("rehearsed", "ended", "unfinished"),
    [
        ({1: interval(0, 10), 2: interval(10, 20)}, set(), set()),
        ({1: interval(0, 10), 2: interval(0, 10)}, set(), {1}),
        ({1: interval(0, 10), 3: interval(0, 20), 4: interval(20, 30)}, set(), {1}),
        ({1: interval(0, 10), 2: interval(10, 20)}, {2}, {2}),
        ({1: interval(0, 10), 3: interval(10, 20)}, {1}, set()),
    ],
)
def test_an_interval_was_not_completed_if_a_later_run_begins_before_its_end_or_tables_refuse_the_last_one(
    rehearsed: dict[int, ArrivalInterval], ended: set[int], unfinished: set[int]
) -> None:
    assert rebuilt_runs.find_unfinished(rehearsed, ended) == unfinished


def test_what_limits_have_changed_asks_for_the_next_interval_and_not_for_a_run_by_the_clock(
    spark: SparkSession, broker: str, tmp_path: Path
) -> None:
    with pipeline(spark, broker, tmp_path, CONTRACT) as p:
        send(p)
        rehearse(p, 0, 10)
        p.write(CONTRACT.replace("read: table", "read: table\n    max_malformed: 1"))
        way = "rehearse the next interval, or put the contract back, then "
        with pytest.raises(RequestError, match="was changed since run 1") as refused:
            forget.forget_records(spark, p.contract, records.parse_request(p.contract, "orders", "ann", ()))
        assert refused.value.fix == f"{way}forget"
        with pytest.raises(RequestError, match="was changed since run 1") as refused:
            retention.trim_pipeline(spark, p.contract, dry_run=True)
        assert refused.value.fix == f"{way}trim"


def test_no_command_runs_by_the_clock_while_a_backfill_rehearses(
    spark: SparkSession, broker: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pipeline(spark, broker, tmp_path, CONTRACT) as p:
        send(p)
        ask_for(p, 0, 10)
        with pytest.raises(
            BusyError, match="a backfill of Airflow rehearses the pipeline: its last run is 1"
        ) as refused:
            p.run()
        assert f"hindcast rehearse {p.name} --end" in refused.value.fix
        ask_for(p, 10, 20)
        monkeypatch.setattr("hindcast.cli.commands.running.open_session", lambda *_: spark)
        with monkeypatch.context() as killing:
            killing.setattr(run_steps, "execute_run", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
            assert main(["rehearse", p.name, "--end"]) != 0
        assert main(["rehearse", p.name, "--end"]) == 0, "it is finished"
        assert [state for _, state in p.states()] == ["completed"] * 3
        assert journal.read_runs(p.warehouse, p.name)[-1].plan.rehearsed_interval is None
        p.run()
        assert known_bills(p, at(20)) == define_bills(20)


def test_a_proof_of_a_warehouse_that_was_replaced_is_no_run_of_a_rebuilt_journal(
    spark: SparkSession, broker: str, tmp_path: Path
) -> None:
    with pipeline(spark, broker, tmp_path, CONTRACT) as p:
        send(p)
        rehearse(p, 0, 10)
        p.run()
        forget.forget_records(spark, p.contract, records.parse_request(p.contract, "orders", "ann", ()))
        shutil.rmtree(f"{p.warehouse}/{p.name}")
        rehearse(p, 0, 10)
        shutil.rmtree(f"{p.warehouse}/{p.name}/runs")
        assert main(["ledger", p.name, "--rebuild"]) == 0
        assert [run.number for run in journal.read_runs(p.warehouse, p.name)] == [1]
        rehearse(p, 0, 20)
        assert known_bills(p, at(20)) == define_bills(20)


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
