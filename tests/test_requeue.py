"""Requeue: malformed records that the contract takes now enter their tables as late records, each once."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import reports
from hindcast.bitemporal.fates import FATES
from hindcast.cli.main import main
from hindcast.common.errors import QueryError, RequestError
from hindcast.common.settings import read_settings
from hindcast.ingest import fate_revisions, ledger, quarantine, requeue
from hindcast.ops import journal_rebuild
from hindcast.plan import journal, planner, plans
from hindcast.plan.purposes import Requeue
from hindcast.report import report_text
from hindcast.report.run_report import RunReport
from hindcast.runs import incremental_state, special_runs
from hindcast.store import commits
from pipelines import Pipeline, pipeline, tuples, wrong

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.connect

MENU = """
pipeline: requeues
start: 2026-01-01
topics:
  menu:
    read: table
    key: {item: string}
    value: {price: int, note: string}
    history_retention: 10 seconds
    max_malformed: 90%
    max_record_bytes: LIMIT
"""
ORDERS = """
  orders:
    read: stream
    key: {customer: string}
    value: {item: string, quantity: int, note: string}
    max_malformed: 9
    max_record_bytes: LIMIT
"""
BILLS = """
views:
  bills:
    stream: orders
    join: {table: menu, on: item}
    select: {item: orders.item, amount: quantity * price}
"""
MORE = """
  sold:
    stream: orders
    aggregate: {n: sum(quantity)}
    group_by: {item: item}
    window: {tumbling: 10 seconds}
  told:
    stream: orders
    join: {table: menu, on: item}
    select: {item: orders.item, amount: quantity * price}
    semantics: kafka
  waited:
    stream: orders
    join: {table: menu, on: item}
    select: {item: orders.item, amount: quantity * price}
    semantics: kafka
    wait: true
"""
LONG = "x" * 100
SHOP = MENU + ORDERS + BILLS
ALL = SHOP + MORE


def limited(bytes_: int, text: str = SHOP) -> str:
    return text.replace("LIMIT", str(bytes_))


def counts(p: Pipeline, run: int) -> list[dict[str, Any]]:
    names = ("run", "topic", "first", "last", "anew", *FATES)
    rows = ledger.read_ledger(p.warehouse, p.name).to_pylist()
    return [{n: row[n] for n in names if row[n]} for row in rows if row["run"] == run]


def sums(p: Pipeline) -> dict[str, int]:
    """How many records the ledger has of each fate in all."""
    rows = ledger.read_ledger(p.warehouse, p.name).to_pylist()
    return {fate: n for fate in FATES if (n := sum(row[fate] or 0 for row in rows))}


def believed(p: Pipeline) -> dict[str, list[tuple[Any, ...]]]:
    return {name: p.believed(name) for name in (*p.contract.topics, *p.contract.views)}


def refused(p: Pipeline, *, everything: bool = False) -> list[tuple[Any, ...]]:
    rows = quarantine.list_refused(p.warehouse, p.contract, everything=everything).to_pylist()
    return [(row["topic"].rpartition(".")[2], row["offset"], row["fate"], row["now"]) for row in rows]


def requeued(p: Pipeline, spark: SparkSession, **asked: Any) -> dict[str, Any]:
    asked_for = requeue.build_request(p.contract, **asked)
    return special_runs.run_requeue(spark, read_settings(), p.name, f"requeue-{len(p.states())}", asked_for).as_json()


def send(p: Pipeline) -> None:
    """Of each topic records that are malformed for two reasons, and others around them."""
    p.send(
        "menu",
        ("curry", {"price": 8}, 0),
        ("curry", {"price": 9, "note": LONG}, 2),  # oversized
        ("soup", {"price": "no"}, 3),
        ("tea", {"price": 1, "note": LONG}, 1),  # oversized
        ("curry", {"price": 10}, 12),
        ("tea", {"price": 2, "note": LONG}, 1),  # oversized, and expired at the stream time of its offset
        (None, {"price": 2, "note": LONG}, 12),  # oversized, and without a key
    )
    if "orders" not in p.contract.topics:
        return
    p.send(
        "orders",
        ("anna", {"item": "curry", "quantity": 1}, 3),
        ("bob", {"item": "curry", "quantity": 2, "note": LONG}, 25),  # oversized; it closes windows behind it
        ("carl", {"item": "tea", "quantity": 3}, 4),
        ("dan", {"item": "curry", "quantity": 4}, 13),
    )


def test_the_reason_of_a_record_stays_on_its_line() -> None:
    """It can quote the record: line breaks would add lines to the report, and control characters erase some."""
    hostile: dict[str, Any] = {"partition": 0, "reason": "price: 'no\n  orders   5 accepted\r\x1b[2K' is not an int"}
    still, first = {"records": 1, "first": [{**hostile, "offset": 1}]}, [{**hostile, "offset": 2, "fate": "expired"}]
    assert requeue.format_requeue({"expired": 1}, still, first).split("\n") == [
        "1 expired, 1 still malformed",
        r"      partition 0, offset 2: expired: price: 'no\n  orders   5 accepted\r\x1b[2K' is not an int",
        r"      partition 0, offset 1: price: 'no\n  orders   5 accepted\r\x1b[2K' is not an int",
    ]


@pytest.mark.long
@pytest.mark.parametrize("before_too", [pytest.param(False, marks=pytest.mark.ci), True])
def test_malformed_records_are_decoded_anew(
    spark: SparkSession,
    broker: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    before_too: bool,
) -> None:
    """Before too: what a requeue does that takes nothing, and a run of the contract that takes more."""
    monkeypatch.setattr(incremental_state, "MAX_WHOLE_ROWS", 0)  # by increments
    with pipeline(spark, broker, tmp_path, limited(60)) as p:
        send(p)
        p.run()
        first = [("menu", 1), ("menu", 2), ("menu", 3), ("menu", 5), ("menu", 6), ("orders", 1)]
        assert refused(p) == [(*place, "malformed", "refused") for place in first]
        assert sums(p) == {"accepted": 5, "malformed": 6}
        assert p.believed("menu") == [("curry", 8, None, 0, 12), ("curry", 10, None, 12, None)]
        before = p.versions()

        if before_too:  # nothing decodes now that did not before: told, and nothing is written but that
            told = requeued(p, spark, topic="menu")
            assert told["topics"]["menu"]["requeued"] == {}
            assert told["topics"]["menu"]["still"]["records"] == 5
            assert "5 still malformed" in reports.format_report(told)
            assert "offset 1: oversized: " in reports.format_report(told)
            changed = {name for name, version in p.versions().items() if version != before[name]}
            assert changed == {"fates/menu"}

        # the contract takes larger ones now: a run of its own does not touch what is malformed, a requeue does
        p.write(limited(500))
        if before_too:
            p.run()
        assert len(refused(p)) == 6
        asked = requeue.build_request(p.contract, reason="oversized")
        assert requeue.count_waiting(p.warehouse, p.contract, asked) == {"menu": 4, "orders": 1}
        last_run = journal.read_runs(p.warehouse, p.name)[-1]
        menu = requeue.preview_requeue(spark, p.contract, asked, last_run.known_at)["menu"]
        assert menu.requeued == {"accepted": 2, "expired": 1, "null_key": 1}
        became = [(it["offset"], it["fate"]) for it in menu.first]
        assert became == [(1, "accepted"), (3, "accepted"), (5, "expired"), (6, "null_key")]
        assert "\n      partition 0, offset 1: accepted\n" in requeue.format_requeue(
            menu.requeued, menu.still, menu.first
        )
        told = requeued(p, spark, reason="oversized")
        assert told["topics"]["menu"]["requeued"] == {"accepted": 2, "expired": 1, "null_key": 1}
        assert told["topics"]["menu"]["offsets"] == 0
        assert set(p.believed("menu")) == {
            ("curry", 8, None, 0, 2),
            ("curry", 9, LONG, 2, 12),
            ("curry", 10, None, 12, None),
            ("tea", 1, LONG, 1, None),
        }
        last = len(p.states())
        assert [row for row in p.history("menu") if row[-1]] == [("curry", 8, None, 0, 12, 1, last)]
        assert ("bob", "curry", 20, 25) in [row[:4] for row in p.believed("bills")]
        assert ("anna", "curry", 9, 3) in [row[:4] for row in p.believed("bills")], "a past answer is corrected"

        # once each: the ledger adds up, the quarantine keeps and tells them
        assert sums(p) == {"accepted": 8, "expired": 1, "malformed": 1, "null_key": 1}
        assert counts(p, last) == [
            {"run": last, "topic": "menu", "first": 1, "last": 6, "anew": True}
            | {"accepted": 2, "expired": 1, "malformed": -4, "null_key": 1},
            {"run": last, "topic": "orders", "first": 1, "last": 1, "anew": True, "accepted": 1, "malformed": -1},
        ]
        assert refused(p) == [
            *[
                ("menu", 2, "malformed", "refused"),
                ("menu", 5, "expired", "refused"),
                ("menu", 6, "null_key", "refused"),
            ]
        ]
        assert [row for row in refused(p, everything=True) if row[-1] == "requeued"] == [
            *[("menu", 1, "accepted", "requeued"), ("menu", 3, "accepted", "requeued")],
            ("orders", 1, "accepted", "requeued"),
        ]
        assert p.fates("menu")[1] == (1, "malformed"), "the log keeps the first fate"

        before = p.versions()
        p.run()
        assert p.versions() == before, "nothing is left to do"
        with pytest.raises(RequestError):
            requeued(p, spark, reason="oversized")
        assert main(["requeue", p.name, "--reason", "oversized"]) == 0
        assert "nothing to requeue" in capsys.readouterr().out
        assert main(["quarantine", p.name]) == 0
        assert "null_key" in capsys.readouterr().out
        before = {run.number: run for run in journal.read_runs(p.warehouse, p.name)}
        (Path(p.warehouse) / p.name / "runs").rename(tmp_path / "lost")
        journal_rebuild.rebuild_journal(p.warehouse, p.contract)
        after = {run.number: run for run in journal.read_runs(p.warehouse, p.name)}
        assert after[last].known_at == before[last].known_at
        assert after[last].plan.requeue == Requeue(("menu", "orders"))


@pytest.mark.long
def test_kafka_views_take_what_is_requeued_as_records_that_come_now(
    spark: SparkSession, broker: str, tmp_path: Path
) -> None:
    with pipeline(spark, broker, tmp_path, limited(60, ALL)) as p:
        send(p)
        p.run()
        p.write(limited(500, ALL))
        p.run()
        requeued(p, spark, reason="oversized")
        amounts = tuples(p.raw("emitted/told"), "_run", "customer", "amount")
        assert [row for row in amounts if row[0] == 3] == [(3, "bob", 20)]
        late = [row["_causeOffset"] for row in p.raw("emitted/waited") if row["_run"] == 3]
        assert late == [], "it waits for the other topic"
        p.send("menu", ("tea", {"price": 3}, 40))
        p.send("orders", ("eve", {"item": "tea", "quantity": 1}, 41))
        p.run()
        late = [(row["_causeOffset"], row["amount"]) for row in p.raw("emitted/waited") if row["_run"] > 3]
        assert (1, 20) in late
        causes = [(row["_causeTopic"], row["_causeOffset"]) for row in p.raw("emitted/waited")]
        assert len(causes) == len(set(causes)), "nothing is processed twice"


@pytest.mark.long
def test_a_requeue_is_told_alike_by_increments(
    spark: SparkSession, broker: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A requeue that was given up after it has decided, and a run after it that brings records, by increments."""
    monkeypatch.setattr(incremental_state, "MAX_WHOLE_ROWS", 0)
    with pipeline(spark, broker, tmp_path, limited(60, ALL)) as p:
        send(p)
        p.run()
        p.write(limited(500, ALL))
        p.run()
        number = planner.ensure_plan(
            p.contract,
            "given up",
            instead=requeue.build_request(p.contract, reason="oversized"),
        ).run
        plan = journal.read_active_run(p.warehouse, p.name, number).plan
        assert plans.Plan.from_json(plan.as_json()) == plan
        for name in ("menu", "orders", "orders"):
            fate_revisions.revise_fates(spark, p.contract, plan, name)
        assert len(p.raw("fates/orders")) == 1, "a repeat decides nothing again"
        planner.abandon_run(p.warehouse, journal.read_active_run(p.warehouse, p.name, number), "by a test")
        p.send("menu", ("soup", {"price": 5}, 14))
        p.send("orders", ("eve", {"item": "soup", "quantity": 1}, 26), ("finn", {"item": "curry", "quantity": 1}, 5))
        p.run()
        found = believed(p)
        assert ("bob", "curry", 20, 25) in [row[:4] for row in found["bills"]]
        monkeypatch.setattr(incremental_state, "MAX_WHOLE_ROWS", 10_000)
        for name in ("menu", "orders"):
            told = p.run(only=name)
            assert {n: one["opened"] for n, one in told["tables"].items()} == dict.fromkeys(believed(p), 0)
        assert believed(p) == found


@pytest.mark.slow
@pytest.mark.parametrize(
    ("killed", "then"),
    [
        ("fates/menu", "retried"),
        pytest.param("fates/menu", "given up", marks=pytest.mark.long),
        ("fates/menu", "given up under a contract that a run has seen"),
        pytest.param("menu", "retried", marks=pytest.mark.long),
        pytest.param("quarantine", "retried", marks=pytest.mark.long),
        pytest.param("quarantine", "given up", marks=pytest.mark.long),
        pytest.param("menu", "given up", marks=pytest.mark.long),
    ],
)
def test_a_requeue_that_died_is_finished(
    spark: SparkSession,
    broker: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    killed: str,
    then: str,
) -> None:
    with pipeline(spark, broker, tmp_path, limited(60, MENU)) as p:
        send(p)
        p.run()
        p.write(limited(500, MENU))
        if then == "given up under a contract that a run has seen":
            p.run()
        asked, number = requeue.build_request(p.contract), len(p.states()) + 1
        with monkeypatch.context() as patch:
            for function in ("append_rows", "commit_change"):
                real = getattr(commits, function)

                def dying(rows: Any, table: Any, *args: Any, real: Any = real, **kwargs: Any) -> Any:
                    done = real(rows, table, *args, **kwargs)
                    if table.name == killed:
                        raise KeyboardInterrupt
                    return done

                patch.setattr(commits, function, dying)
            with pytest.raises(KeyboardInterrupt):
                special_runs.run_requeue(spark, read_settings(), p.name, "requeue__dying", asked)
        if then == "retried":
            assert main(["requeue", p.name, "--topic", "menu", "--reason", "another"]) == 3
            assert "run 2 (requeue__dying), begun to requeue other records, has not ended" in capsys.readouterr().err
            told = special_runs.run_requeue(spark, read_settings(), p.name, "requeue__dying", asked).as_json()
            assert told["topics"]["menu"]["requeued"] == {"accepted": 2, "expired": 1, "null_key": 1}
            assert p.states() == [(1, "completed"), (2, "completed")]
        else:
            planner.abandon_run(p.warehouse, journal.read_active_run(p.warehouse, p.name, number), "by a test")
            told = p.run()
            (given_up,) = told["givenUp"]
            assert {*given_up["tables"]} == ({"menu"} if killed == "menu" else set())
            assert given_up["fates"] == {"menu": {"accepted": 2, "expired": 1, "null_key": 1}}
            assert (
                f"run {number} was abandoned; what it did stays: menu: 4 fates decided again "
                "(2 accepted, 1 expired, 1 null_key)"
            ) in report_text.format_report(RunReport.from_json(told))
            assert p.states()[1:] == [*p.states()[1 : number - 1], (number, "abandoned"), (number + 1, "completed")]
        closed_by = number if killed == "menu" else len(p.states())
        assert len(p.raw("fates/menu")) == 4
        assert len(p.raw("quarantine")) == 9
        assert sums(p) == {"accepted": 4, "expired": 1, "malformed": 1, "null_key": 1}
        assert [row for row in p.history("menu") if row[-1]] == [("curry", 8, None, 0, 12, 1, closed_by)]
        assert wrong(p) == []


def test_what_a_requeue_is_asked_for() -> None:
    from hindcast.contract import Contract

    topic = {"read": "stream", "key": {"id": "string"}, "value": {"n": "int"}}
    one = Contract.model_validate({"pipeline": "p", "start": "2026-01-01", "topics": {"a": topic}})
    two = Contract.model_validate({"pipeline": "p", "start": "2026-01-01", "topics": {"a": topic, "b": topic}})
    assert requeue.build_request(two) == Requeue(("a", "b"))
    assert requeue.build_request(two, "b", "over", 0, [3, 1, 3]) == Requeue(
        ("b",), reason="over", partition=0, offsets=(1, 3)
    )
    assert requeue.build_request(one, partition=0).partition == 0
    for contract, asked in ((one, {"topic": "c"}), (one, {"offsets": [1]}), (two, {"partition": 1})):
        with pytest.raises(QueryError):
            requeue.build_request(contract, **asked)
