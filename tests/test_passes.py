"""Rehearsed runs that are made in one pass are the runs that would have been made date by date."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from hindcast import read
from hindcast.common.errors import HindcastError
from hindcast.common.settings import read_settings
from hindcast.ingest import ledger
from hindcast.plan import journal
from hindcast.quality import gate_results
from hindcast.runs import rehearsal
from hindcast.store import delta_rs_writer
from pipelines import Pipeline, at, pipeline, wrong
from test_rehearsal import sent

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.connect

CONTRACT = """
pipeline: passes
start: 2026-01-01
topics:
  menu:
    read: table
    key: {item: string}
    value: {price: int}
    arrival: header sent
    expect:
      - expect_column_values_to_be_between: {column: price, max_value: 100}
        on_failure: quarantine
  orders:
    read: stream
    key: {customer: string}
    value: {item: string, quantity: int}
    arrival: header sent
    expect:
      - expect_column_values_to_not_be_null: {column: item}
  stock:
    read: table
    key: {item: string}
    value: {n: int}
    arrival: header sent
views:
  bills:
    stream: orders
    join: {table: menu, on: item}
    select: {item: orders.item, amount: quantity * price}
  spent:
    stream: bills
    aggregate: {bills: count(*), total: sum(amount)}
  stocked:
    table: menu
    join: {table: stock, how: left}
    select: {price: price, n: n}
  by_price:
    table: stocked
    aggregate: {items: count(*), stock: sum(n)}
    group_by: {price: price}
"""


STREAMS = """
pipeline: streams
start: 2026-01-01
topics:
  menu:
    read: table
    key: {item: string}
    value: {price: int}
    arrival: header sent
  orders:
    read: stream
    key: {customer: string}
    value: {item: string, quantity: int}
    arrival: header sent
  payments:
    read: stream
    key: {customer: string}
    value: {item: string, quantity: int}
    arrival: header sent
views:
  cheap:
    table: menu
    where: price < 3
    select: {price: price, twice: 2 * price}
  large:
    stream: orders
    where: quantity > 1
    key: {item: item}
    select: {customer: customer, quantity: quantity}
    expect:
      - expect_column_values_to_be_between: {column: quantity, min_value: 2}
  large_bills:
    stream: large
    join: {table: cheap, how: left}
    select: {customer: customer, amount: quantity * price}
  hours:
    stream: orders
    aggregate: {n: count(*), sum: sum(quantity)}
    window: {hopping: 6 seconds, advance: 3 seconds, grace: 9 seconds}
  slides:
    stream: orders
    aggregate: {most: max(quantity)}
    group_by: {item: item}
    window: {sliding: 4 seconds, grace: 8 seconds}
  sittings:
    stream: payments
    where: quantity < 3
    aggregate: {n: count(*)}
    window: {session: 2 seconds, grace: 9 seconds}
  hourly:
    stream: large_bills
    aggregate: {sum: sum(amount)}
    window: {tumbling: 5 seconds, grace: 5 seconds}
  visits:
    stream: large_bills
    aggregate: {n: sum(amount)}
    group_by: {customer: customer}
    window: {session: 3 seconds, grace: 6 seconds}
  paid:
    stream: orders
    join: {stream: payments, before: 3 seconds, after: 2 seconds, how: outer}
    select: {item: orders.item, paid: payments.quantity}
"""


def test_selections_windows_and_joins_of_streams_are_made_in_passes(
    spark: SparkSession, broker: str, tmp_path: Path
) -> None:
    chance = random.Random(9)  # noqa: S311  # any will do
    with pipeline(spark, broker, tmp_path / "a", STREAMS, partitions=2) as p:
        send_histories(p, chance, 120, ("menu", "orders", "payments"))
        rehearse(p, -30, 60, "20 seconds", in_passes=True)
        runs = journal.read_runs(p.warehouse, p.name)
        assert [run.plan.pass_numbers for run in runs] == [None, *[(2, len(runs))] * (len(runs) - 1)]
        with beside(p, tmp_path / "b") as other:
            rehearse(other, -30, 60, "20 seconds", in_passes=False)
            assert_alike(p, other)
            late = [it["leftOut"]["too_late"] for it in list_reports(p)[-1]["tables"].values() if "streamTimes" in it]
            assert len(late) == 5
            assert all(late)
        p.send("orders", ("guest1", {"item": "dish1", "quantity": 2}, 39))
        p.run()
        assert wrong(p) == []


def send_histories(
    p: Pipeline, chance: random.Random, count: int, topics: Sequence[str] = ("menu", "stock", "orders")
) -> None:
    """Records of several keys: late ones, ties, tombstones, repeats, arrivals that are missing or go back."""
    for topic in topics:
        records = []
        for n in range(count):
            now = 60 * n / count
            headers = chance.choice([[sent(now)], [sent(now)], [sent(now - chance.randrange(30))], []])
            item, second = f"dish{chance.randrange(5)}", chance.randrange(40)
            if topic in ("orders", "payments"):
                value: Any = {"item": item, "quantity": chance.randrange(1, 4)}
                records.append((f"guest{n % 7}", value, second, *headers))
            else:
                column = "price" if topic == "menu" else "n"
                value = chance.choice([None, {column: chance.randrange(6)}, {column: chance.randrange(6)}])
                records.append((item, value, second, *headers))
        p.send(topic, *records)


def rehearse(p: Pipeline, since: float, until: float, every: str, *, in_passes: bool) -> list[Any]:
    assert p.spark is not None
    intervals = [*rehearsal.list_intervals(at(since), at(until), every)]
    made = rehearsal.rehearse_runs(p.spark, read_settings(), p.name, intervals, with_earlier=True, in_passes=in_passes)
    return [report.as_json() for report in made]


@contextmanager
def beside(p: Pipeline, folder: Path) -> Iterator[Pipeline]:
    """The same pipeline, on the same topics, in another warehouse."""
    other = Pipeline(p.spark, p.servers, folder, p.path.read_text(encoding="utf-8"))
    with other.here():
        yield other


def list_everything(p: Pipeline) -> dict[str, Any]:
    """All that runs have left, as rows in order."""
    names = [*p.contract.topics, *p.contract.views, *(f"logs/{topic}" for topic in p.contract.topics)]
    found: dict[str, Any] = {name: sorted(map(repr, p.raw(name))) for name in (*names, "quarantine")}
    found["failing"] = sorted(repr({k: v for k, v in row.items() if k != "at"}) for row in p.raw("failing"))
    found["ledger"] = ledger.read_ledger(p.warehouse, p.name).to_pylist()
    results = [{k: v for k, v in row.items() if k != "at"} for row in p.raw("gates")]
    found["gates"] = sorted(map(repr, results))
    return found


def list_reports(p: Pipeline) -> list[dict[str, Any]]:
    """The reports of all runs, without what only says who derived a table."""
    found = []
    for run in journal.read_runs(p.warehouse, p.name):
        report = json.loads(json.dumps(run.detail, default=str))
        for table in report.get("tables", {}).values():
            table.pop("kernel", None)
        found.append(report)
    return found


def assert_alike(p: Pipeline, other: Pipeline) -> None:
    ours, theirs = list_everything(p), list_everything(other)
    for name, rows in theirs.items():
        assert ours[name] == rows, name
    assert p.states() == other.states()
    for own, expected in zip(list_reports(p), list_reports(other), strict=True):
        assert own == expected


def test_passes_leave_what_runs_date_by_date_leave(
    spark: SparkSession, broker: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A pass takes as many dates as `HINDCAST_CHUNK` has records; the next one goes on from what the tables have."""
    chance = random.Random(3)  # noqa: S311  # any will do
    monkeypatch.setenv("HINDCAST_CHUNK", "250")
    with pipeline(spark, broker, tmp_path / "a", CONTRACT, partitions=3) as p:
        send_histories(p, chance, 150)
        made = rehearse(p, -30, 60, "10 seconds", in_passes=True)
        passes = [run.plan.pass_numbers for run in journal.read_runs(p.warehouse, p.name)]
        assert passes[0] is None
        assert len({*passes[1:]} - {None}) == 2, "two passes"
        with beside(p, tmp_path / "b") as other:
            assert len(rehearse(other, -30, 60, "10 seconds", in_passes=False)) == len(made)
            assert_alike(p, other)
        p.send("orders", ("gus", {"item": "dish1", "quantity": 2}, 7))
        p.run()
        assert wrong(p) == []


SMALL = (
    CONTRACT.partition("  stock:\n")[0]
    + "views:\n  bills:"
    + CONTRACT.partition("  bills:")[2].partition("  spent:")[0]
)


@pytest.mark.parametrize("bad", ["held", "stopped", "malformed"])
def test_a_date_that_a_run_must_hold_or_stop_is_a_run_by_itself(
    spark: SparkSession, broker: str, tmp_path: Path, bad: str
) -> None:
    """The dates before it are made together, and those after it if nothing is held."""
    chance = random.Random(6)  # noqa: S311  # any will do
    with pipeline(spark, broker, tmp_path / "a", SMALL) as p:
        send_histories(p, chance, 60, ("menu", "orders"))
        match bad:
            case "held":
                p.send("menu", ("dish9", {"price": 200}, 5, sent(65)))
            case "stopped":
                p.send("orders", ("tom", {"item": None, "quantity": 1}, 8, sent(65)))
            case "malformed":
                p.send("orders", ("tom", b"{", 8, sent(65)))
        p.send("orders", *((f"tim{n}", {"item": "dish1", "quantity": 1}, 9, sent(65 + 10 * n)) for n in range(1, 5)))
        with beside(p, tmp_path / "b") as other:
            pass
        for one, in_passes in ((p, True), (other, False)):
            with one.here():
                if bad != "held":
                    with pytest.raises(HindcastError):
                        rehearse(one, 0, 120, "20 seconds", in_passes=in_passes)
                    one.write(name_topics(p, ("menu", "orders"), mend(bad)))
                rehearse(one, 0, 120, "20 seconds", in_passes=in_passes)
        passes = [run.plan.pass_numbers for run in journal.read_runs(p.warehouse, p.name)]
        assert passes[:4] == [None, (2, 3), (2, 3), None]
        assert passes[4:] == ([None, None] if bad == "held" else [None, (6, 7), (6, 7)])
        assert_alike(p, other)
        assert wrong(p) == []


def mend(bad: str) -> str:
    if bad == "malformed":
        return SMALL.replace("    read: stream\n", "    read: stream\n    max_malformed: 1\n")
    return SMALL.replace("not_be_null: {column: item}", "not_be_null: {column: customer}")


def name_topics(p: Pipeline, names: Sequence[str], text: str) -> str:
    """A contract whose topics have the names in Kafka that those of a pipeline have."""
    for name in names:
        text = text.replace(f"  {name}:\n    read:", f"  {name}:\n    topic: {p.kafka(name)}\n    read:")
    return text


class Killed(BaseException):
    """Ends a process at once."""


def test_a_pass_that_is_killed_after_each_of_its_commits_goes_on(
    spark: SparkSession, broker: str, tmp_path: Path
) -> None:
    chance = random.Random(7)  # noqa: S311  # any will do
    with pipeline(spark, broker, tmp_path / "a", SMALL, partitions=2) as p:
        send_histories(p, chance, 60, ("menu", "orders"))
        p.send("menu", ("odd", b"{", 8, sent(25)))
        text = SMALL.replace("    read: table\n", "    read: table\n    max_malformed: 1\n", 1)
        p.write(name_topics(p, ("menu", "orders"), text))
        rehearse(p, -30, 0, "30 seconds", in_passes=True)
        known, kills = ask_bills(p, 0), 0
        while kills < 20:
            try:
                with pytest.MonkeyPatch.context() as patch:
                    kill_after_commit(patch)
                    rehearse(p, 0, 60, "15 seconds", in_passes=True)
            except Killed:
                kills += 1
                states = {state for number, state in p.states() if number > 1}
                assert states in ({"planned"}, {"completed"}), "all runs of a pass, or none"
                assert ask_bills(p, 0) == known, "what was known before a pass can be asked for"
            else:
                break
        assert kills == 9, "plans, two logs, the quarantine, three tables, gates, reports"
        with beside(p, tmp_path / "b") as other:
            rehearse(other, -30, 0, "30 seconds", in_passes=False)
            rehearse(other, 0, 60, "15 seconds", in_passes=False)
            assert_alike(p, other)
        assert wrong(p) == []


def kill_after_commit(patch: pytest.MonkeyPatch) -> None:
    """Let the process be killed after its first commit to a table or the journal."""

    def then_die(commit: Any) -> Any:
        def dying(*arguments: Any, **options: Any) -> None:
            commit(*arguments, **options)
            raise Killed

        return dying

    for module, name in (
        (delta_rs_writer, "_commit_files"),
        (journal, "_commit_rows"),
        (gate_results, "write_deltalake"),
    ):
        patch.setattr(module, name, then_die(getattr(module, name)))


def ask_bills(p: Pipeline, second: float) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = read.query(
        p.warehouse, p.contract, "bills", read.Question(known_at=at(second))
    ).to_pylist()
    return rows
