"""Retention on the real parts: what `keep` says need not be kept goes, and no promised answer changes."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest.mock import Mock, patch

import pytest
from deltalake import DeltaTable

from hindcast.airflow.pages import time_machine
from hindcast.bitemporal.predicates import Question
from hindcast.cli import main
from hindcast.common.errors import BusyError, QueryError, RequestError, RunError, TableError
from hindcast.common.settings import read_settings
from hindcast.contract.bound import BoundContract
from hindcast.contract.shapes import PERIODS
from hindcast.ingest import ledger
from hindcast.ops import journal_rebuild, maintenance, retention, trim_horizons
from hindcast.ops.erase import forget, records
from hindcast.ops.verify.verify import verify_tables
from hindcast.plan import horizon, journal, notices, planner
from hindcast.plan.horizon import Horizon
from hindcast.plan.plans import Plan
from hindcast.plan.purposes import Erasure, Requeue
from hindcast.query import read, spark_functions
from hindcast.runs import incremental_state, run_steps, special_runs
from hindcast.runs.derive_whole import DerivedChange
from hindcast.store import commit_once, commits, row_reader, tables
from hindcast.store.commit_notes import TableNote
from pipelines import T0, Pipeline, derive_whole_up_to, pipeline, wrong

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.slow

KEPT = """
pipeline: restaurant
start: 2026-01-01
topics:
  menu:
    read: table
    key: {item: string}
    value: {price: int}
    keep: {table: 10 seconds, quarantine: 1 week}
    max_malformed: 10
"""


def moment(second: float) -> datetime:
    return T0 + timedelta(seconds=second)


SLOWEST = {"topic": "menu", "partition": 0, "reached": moment(14).isoformat()}


def told(p: Pipeline) -> None:
    """Two runs, after which the horizon is at 4."""
    p.send("menu", ("curry", {"price": 8}, 0), ("soup", {"price": 5}, 0), ("curry", {"price": 9}, 2))
    p.send("menu", ("cake", {"price": 3}, 1), ("cake", None, 3), ("tea", b"{", 3), ("curry", {"price": 10}, 6))
    p.run()
    p.send("menu", ("curry", {"price": 12}, 14))
    p.run()


LOST = (
    ("menu", "systemTo IS NOT NULL", "published: had "),
    ("logs/menu", '"offset" = 7', "offsets: 1 hole"),
    ("logs/menu", '"offset" = 5', "offsets: of offsets 0 to 6"),
    ("trimmed/menu", "fate = 'accepted'", "published: has nothing of trim "),
)
"""Rows that others delete of a trimmed pipeline, and what is told of it."""

SECOND = "INTERVAL '1 second'"
LATE = (("curry", {"price": 7}, 3), ("cake", {"price": 4}, 2), ("rice", {"price": 1}, 1), ("soup", {"price": 6}, 5))
"""Late: one that was in force at the horizon, one before a tombstone, one of a new key, one after the horizon."""

AFTER = [
    ("curry", 7, 4, 6),
    ("curry", 9, 2, 4),
    ("curry", 10, 6, 14),
    ("curry", 12, 14, None),
    ("rice", 1, 4, None),
    ("soup", 5, 0, 5),
    ("soup", 6, 5, None),
]


@pytest.mark.long
@pytest.mark.parametrize("again", [pytest.param(False, marks=pytest.mark.ci), True])
def test_a_table_and_its_log_are_trimmed_and_late_records_are_right_all_the_same(
    spark: SparkSession, broker: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], again: bool
) -> None:
    """Again: and the late ones are trimmed too."""
    with pipeline(spark, broker, tmp_path, KEPT) as p:
        told(p)
        before, counted = p.versions(), ledger.read_ledger(p.warehouse, p.name).to_pylist()
        assert main.main(["trim", p.name, "--dry-run"]) == 0
        assert "table menu: 2 rows; horizon 2026-01-01T00:00:04+00:00" in capsys.readouterr().out
        assert p.versions() == before, "a dry run writes nothing"

        assert retention.trim_pipeline(spark, p.contract).as_json() == {
            "pipeline": "restaurant",
            "knownAt": journal.read_completed_runs(p.warehouse, p.name)[-1].known_at.isoformat(),
            "tables": {"menu": {"horizon": moment(4).isoformat(), "slowest": SLOWEST, "rows": 2}},
            "logs": {"menu": {"horizon": moment(4).isoformat(), "slowest": SLOWEST, "records": 2}},
            "quarantine": {"menu": 0},
        }
        assert sorted(row["offset"] for row in p.raw("logs/menu")) == [1, 2, 4, 5, 6, 7]
        assert ledger.read_ledger(p.warehouse, p.name).to_pylist() == counted, "the ledger is whole"
        assert journal_rebuild.rebuild_journal(p.warehouse, p.contract) == []
        trimmed = p.versions()
        assert retention.trim_pipeline(spark, p.contract).logs["menu"].removed == 0
        assert p.versions() == trimmed, "a repeat does nothing"

        p.send("menu", *LATE)
        assert p.run()["topics"]["menu"]["beforeHorizon"] == 3
        assert sorted(p.believed("menu"), key=str) == sorted(AFTER, key=str)
        refused = r"is not kept: the history of menu was trimmed up to 2026-01-01T00:00:04"
        for question in (
            Question(as_of=moment(3)),
            Question(from_time=moment(1), to_time=moment(9)),
            Question(as_of=moment(9), known_at=moment(3)),
        ):
            with pytest.raises(QueryError, match=refused):
                read.query(p.warehouse, p.contract, "menu", question)
            with pytest.raises(QueryError, match=refused):
                read.frame(spark, p.warehouse, p.contract, "menu", question)
        with pytest.raises(QueryError, match=refused):
            time_machine.build_page(
                read_settings(),
                p.contract,
                ["restaurant"],
                time_machine.MachineRequest("menu", "curry", moment(3).isoformat()),
            )
        there = time_machine.build_page(
            read_settings(),
            p.contract,
            ["restaurant"],
            time_machine.MachineRequest("menu", "curry", moment(4).isoformat()),
        )
        assert [row["values"]["price"] for row in there["answer"]["rows"]] == [7]
        spark_functions.register(spark, p.warehouse, p.contract)
        asked = "SELECT item, price FROM restaurant_menu_as_of(TIMESTAMP '2026-01-01 00:00:0{} UTC') ORDER BY item"
        assert [tuple(row) for row in spark.sql(asked.format(4)).collect()] == [("curry", 7), ("rice", 1), ("soup", 5)]
        with pytest.raises(Exception, match="is not kept: the history of menu was trimmed"):
            spark.sql(asked.format(3)).collect()
        during = "SELECT item FROM restaurant_menu_between({}, {}) WHERE validTo IS NULL"
        assert spark.sql(during.format("TIMESTAMP '1970-01-01'", "NULL")).count()
        before = "TIMESTAMP '2026-01-01 00:00:03 UTC'"
        for times in ((before, "NULL"), ("NULL", before), ("NULL", "TIMESTAMP '1960-01-01'")):
            with pytest.raises(Exception, match="is not kept: the history of menu was trimmed"):
                spark.sql(during.format(*times)).collect()

        if again:  # the late ones like any other, and the ledger adds up
            assert wrong(p) == []
            p.send("menu", ("soup", {"price": 8}, 20))
            p.run()
            counted = ledger.read_ledger(p.warehouse, p.name).to_pylist()
            maintained = maintenance.maintain_tables(lambda: spark, read_settings(), p.contract)
            assert "rows; horizon 2026-01-01T00:00:10+00:00" in maintained.trimmed
            assert sorted(row["offset"] for row in p.raw("logs/menu")) == [4, 5, 6, 7, 10, 11, 12]
            assert ledger.read_ledger(p.warehouse, p.name).to_pylist() == counted
        assert wrong(p) == []
        told_of = []
        for name, rows, words in LOST:
            found = DeltaTable(f"{p.warehouse}/{p.name}/{name}")
            whole = found.version()
            assert found.delete(rows)["num_deleted_rows"]
            told_of.append((words, [f"{it.check}: {it.found}" for it in verify_tables(p.contract).findings]))
            found.restore(whole)
        assert all(words in findings[0] for words, findings in told_of), told_of
        assert not again or {len(findings) for _, findings in told_of} == {1}, told_of
        DeltaTable(f"{p.warehouse}/{p.name}/logs/menu").update(
            updates={"streamTime": f"streamTime + {SECOND}"}, predicate='"offset" = 11'
        )
        assert [it.check for it in verify_tables(p.contract).findings] == ["stream time"]


@pytest.mark.long
def test_a_trim_that_fails_at_every_commit_changes_no_answer_and_is_finished_by_the_next(
    spark: SparkSession, broker: str, tmp_path: Path
) -> None:
    text = KEPT.replace("quarantine: 1 week", "quarantine: 1 ms")
    with pipeline(spark, broker, tmp_path, text) as p:
        told(p)
        counted, promised = ledger.read_ledger(p.warehouse, p.name).to_pylist(), state(p, "menu", 2, moment(4))
        seen: set[str] = set()
        while True:
            try:
                with failing(seen):
                    retention.trim_pipeline(spark, p.contract)
                break
            except CrashError:
                assert ledger.read_ledger(p.warehouse, p.name).to_pylist() == counted, sorted(seen)
                assert state(p, "menu", 2, moment(4)) == promised
                assert verify_tables(p.contract).findings == [], sorted(seen)
        assert {place.split()[0] for place in seen} >= {"set_properties", "append_rows", "commit_once", "delete_rows"}
        assert sorted(row["offset"] for row in p.raw("logs/menu")) == [1, 2, 4, 6, 7], "the malformed one went too"
        assert p.raw("quarantine") == []
        assert wrong(p) == []
        p.send("menu", *LATE)
        p.run()
        assert sorted(p.believed("menu"), key=str) == sorted(AFTER, key=str)
        with pytest.raises(RequestError, match="no malformed record like that is left") as nothing:
            special_runs.run_requeue(spark, read_settings(), p.name, "again", Requeue(("menu",)))
        assert "was trimmed" in nothing.value.fix

        # another valid_time cannot date what was removed; a run under way, and another contract, are waited for
        p.write(text.replace("    keep:", "    valid_time: record_timestamp\n    keep:"))
        with pytest.raises(TableError, match="valid_time was changed, but the log was trimmed"):
            p.run("dated")
        with pytest.raises(BusyError, match=r"\(dated\) has not ended"):
            retention.trim_pipeline(spark, p.contract)


@pytest.mark.long
@pytest.mark.parametrize("still", ["set_properties 1", "set_properties 2", "set_properties 3", "commit_once 1"])
@pytest.mark.parametrize("noticed", [True, False])
def test_a_trim_that_was_taken_for_dead_and_goes_on_moves_nothing_back(
    spark: SparkSession, broker: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, still: str, noticed: bool
) -> None:
    """It stands still at a commit; meanwhile a run is done, and another trim. Not `noticed`: after its check."""
    if not noticed:
        monkeypatch.setattr(notices, "refuse_lost_notice", lambda: None)
    with pipeline(spark, broker, tmp_path, KEPT) as p:
        told(p)
        numbers: dict[str, int] = {}
        before: dict[str, Any] = {}

        def stand_still() -> None:
            with commit_once.guard_commits(lambda: None):
                held = notices._HELD.set(())
                for notice in Path(p.warehouse, p.name, "_notices").glob("*.json"):
                    notice.unlink()
                p.send("menu", ("curry", {"price": 13}, 30), ("soup", {"price": 7}, 31))
                p.run()
                assert retention.trim_pipeline(spark, p.contract).tables["menu"].removed
                notices._HELD.reset(held)
            before.update(p.versions())

        def wrap(owner: Any, name: str) -> None:
            real = getattr(owner, name)

            def wrapped(*args: Any, **kwargs: Any) -> Any:
                numbers[name] = numbers.get(name, 0) + 1
                if f"{name} {numbers[name]}" == still:
                    stand_still()
                return real(*args, **kwargs)

            monkeypatch.setattr(owner, name, wrapped)

        wrap(commits, "set_properties")
        wrap(commit_once, "commit_once")
        expected = "trimming stops here" if noticed else "another trim has|others have trimmed"
        with pytest.raises(RunError, match=expected) as refused:
            retention.trim_pipeline(spark, p.contract)
        assert refused.value.fix.startswith("start ")
        assert p.versions() == before
        assert horizon.read_horizon(p.table("menu")) == Horizon(moment(21))
        assert wrong(p) == []


class CrashError(Exception):
    """What a trim fails with."""


@contextmanager
def failing(seen: set[str]) -> Iterator[None]:
    """Commits fail at the first boundary that was not seen yet."""
    numbers: dict[str, int] = {}
    with pytest.MonkeyPatch.context() as patch:

        def wrap(owner: Any, name: str) -> None:
            real = getattr(owner, name)

            def wrapped(*args: Any, **kwargs: Any) -> Any:
                numbers[name] = numbers.get(name, 0) + 1
                for when in ("before", "after"):
                    if when == "after":
                        done = real(*args, **kwargs)
                    if (place := f"{name} {numbers[name]} {when}") not in seen:
                        seen.add(place)
                        raise CrashError(place)
                return done

            patch.setattr(owner, name, wrapped)

        for name in ("set_properties", "append_rows", "delete_rows", "clear_columns"):
            wrap(commits, name)
        wrap(commit_once, "commit_once")
        yield


CHANGED = """
pipeline: restaurant
start: 2026-01-01
topics:
  menu:
    read: table
    key: {item: string}
    value: {price: int}
    history_retention: 5 seconds
    keep: 10 seconds
  orders:
    read: stream
    key: {customer: string}
    value: {item: string}
    keep: 10 seconds
views:
  bills:
    stream: orders
    join: {table: menu, on: item}
    select: {price: price}
"""
NEW = """
  more:
    table: menu
    select: {price: price}
  served:
    stream: orders
    join: {table: menu, on: item}
    semantics: kafka
    select: {price: price}
"""


@pytest.mark.long
def test_definition_changes_stop_at_the_horizon(spark: SparkSession, broker: str, tmp_path: Path) -> None:
    with pipeline(spark, broker, tmp_path, CHANGED) as p:
        p.send("menu", ("soup", {"price": 4}, 0), ("curry", {"price": 8}, 0), ("soup", {"price": 5}, 3))
        p.send(
            "menu",
            ("cake", {"price": 3}, 2),
            ("curry", {"price": 9}, 6),
            ("curry", {"price": 10}, 15),
            ("soup", {"price": 6}, 14),
        )
        p.send("menu", ("soup", {"price": 7}, 9))  # expired
        p.send("orders", ("anna", {"item": "curry"}, 1), ("bob", {"item": "soup"}, 5), ("carl", {"item": "curry"}, 7))
        p.send("orders", ("dan", {"item": "curry"}, 15))
        p.run()
        assert retention.trim_pipeline(spark, p.contract).logs["menu"].removed == 1
        assert horizon.find_frozen_until(p.warehouse, p.contract, "bills") == moment(5)
        assert p.believed("bills") == [("anna", 8, 1), ("bob", 5, 5), ("carl", 9, 7), ("dan", 10, 15)], "kept for ever"

        # another expression, another history retention: from 5 on, and the expired one is taken there
        doubled = CHANGED.replace("{price: price}", "{price: 2 * price}")
        p.write(doubled.replace("history_retention: 5 seconds", "history_retention: 10 seconds"))
        p.send("orders", ("eve", {"item": "soup"}, 10), ("fay", {"item": "soup"}, 4))
        p.run()
        assert sorted(p.believed("menu")[1:], key=lambda row: (row[0], row[2])) == [
            ("curry", 8, 0, 6),
            ("curry", 9, 6, 15),
            ("curry", 10, 15, None),
            ("soup", 5, 3, 9),
            ("soup", 7, 9, 14),
            ("soup", 6, 14, None),
        ]
        after = [("anna", 8, 1), ("bob", 10, 5), ("carl", 18, 7), ("dan", 20, 15), ("eve", 14, 10)]
        assert p.believed("bills") == after, "fay came too late for a row"
        p.write(CHANGED.replace("history_retention: 5 seconds", "history_retention: 0 ms"))
        p.run()
        assert ("cake", 3, 2, None) in p.believed("menu"), "what was in force at the horizon stays"

        # a view that is new begins there; a kafka view with another definition is refused
        p.write(CHANGED + NEW)
        p.run()
        assert min(row[2] for row in p.believed("more")) == 5
        with pytest.raises(QueryError, match="trimmed up to 2026-01-01T00:00:05"):
            read.query(p.warehouse, p.contract, "more", Question(as_of=moment(4)))
        assert ("dan", 10, 15) in p.believed("served")
        assert wrong(p) == []
        anew = "served: would start from scratch, but the log of orders was trimmed up to"
        with pytest.raises(TableError, match=anew):
            forget.forget_records(spark, p.contract, records.parse_request(p.contract, "orders", "eve"))
        assert p.states()[-1][1] == "completed", "nothing was begun"
        p.write(CHANGED + NEW.replace("kafka\n    select: {price: price}", "kafka\n    select: {price: -price}"))
        with pytest.raises(TableError, match=anew):
            p.run()


EMPTY = """
pipeline: shop
start: 2026-01-01
topics:
  menu: {read: table, key: {item: string}, value: {price: int}, keep: 60 seconds}
  orders: {read: stream, key: {customer: string}, value: {item: string}}
"""
SPENT = """
views:
  bills: {stream: orders, join: {table: menu, on: item}, select: {price: price}}
  spent: {stream: bills, aggregate: {spent: sum(price)}}
"""


def test_a_view_that_had_no_rows_when_its_input_was_trimmed_has_no_horizon(
    spark: SparkSession, broker: str, tmp_path: Path
) -> None:
    """An aggregate of all its events so far needs none that was trimmed."""
    with pipeline(spark, broker, tmp_path, EMPTY + SPENT) as p:
        p.send("menu", ("curry", {"price": 8}, 0))
        p.send("orders", ("ann", {"item": "cake"}, 5))
        p.run()
        assert retention.trim_pipeline(spark, p.contract).tables["menu"].horizon == Horizon(moment(-60))
        p.send("orders", ("ann", {"item": "curry"}, 7))
        p.run()
        assert p.believed("spent") == [("ann", 8, 7, None)]
        assert horizon.read_horizon(p.table("bills")) is None
        assert wrong(p) == []


def test_a_view_that_only_an_abandoned_run_has_created_begins_where_its_input_does(
    spark: SparkSession, broker: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pipeline(spark, broker, tmp_path, EMPTY) as p:
        p.send("menu", ("curry", {"price": 8}, 0))
        p.send("orders", ("ann", {"item": "curry"}, 5))
        p.run()
        p.write(EMPTY + SPENT)
        with monkeypatch.context() as killed:
            die_third = Mock(side_effect=[TableNote(2), TableNote(2), KeyboardInterrupt])
            killed.setattr(run_steps, "gate_and_publish_change", die_third)
            with pytest.raises(KeyboardInterrupt):
                p.run()
        assert tables.open_table(p.table("bills")) is not None
        planner.abandon_run(p.warehouse, journal.read_active_run(p.warehouse, p.name, 2), "by a test")
        p.write(EMPTY)
        p.run()
        assert retention.trim_pipeline(spark, p.contract).tables["menu"].horizon == Horizon(moment(-60))
        p.write(EMPTY + SPENT)
        with pytest.raises(TableError, match="aggregates all events of bills so far, but those before"):
            p.run()
        assert horizon.read_horizon(p.table("bills")) == Horizon(moment(-60))


TWINS = """
pipeline: twins
start: 2026-01-01
topics:
  menu:
    read: table
    key: {item: string}
    value: {g: string, price: int}
    max_time_skew: 30 days
    keep: 15 seconds
  orders:
    read: stream
    key: {item: string}
    value: {n: int}
    max_time_skew: 30 days
    keep: 15 seconds
views:
  bills:
    stream: orders
    join: {table: menu, how: left}
    select: {n: n, price: price}
    keep: 20 seconds
  groups:
    table: menu
    group_by: {g: g}
    aggregate: {items: count(*), total: sum(price)}
"""
RATES = """
topics:
  rates:
    read: table
    key: {item: string}
    value: {rate: int}
    max_time_skew: 30 days
    history_retention: 12 seconds
    keep: {table: 15 seconds, log: 20 seconds}
"""
MORE = """
  sessions:
    stream: orders
    aggregate: {n: count(*), total: sum(n)}
    window: {session: 3 seconds, grace: 10 seconds}
  rated:
    table: menu
    join: {table: rates, how: outer}
    select: {price: price, rate: rate}
    keep: 12 seconds
  spans:
    stream: orders
    aggregate: {n: count(*)}
    window: {sliding: 2 seconds, grace: 5 seconds}
  billed:
    stream: bills
    aggregate: {total: sum(price)}
    window: {tumbling: 4 seconds, grace: 8 seconds}
"""


@pytest.mark.long
@pytest.mark.parametrize(
    ("seed", "times", "more", "whole"),
    [(1, 2, False, True), (2, 5, True, True), (3, 4, True, False)],
    ids=["short", "whole", "by increments"],
)
def test_all_promised_answers_are_those_of_a_twin_that_was_never_trimmed(
    spark: SparkSession,
    broker: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    seed: int,
    times: int,
    more: bool,
    whole: bool,
) -> None:
    """Random records, many of them late, in runs with trims between, and a definition that changes."""
    derive_whole_up_to(incremental_state.MAX_WHOLE_ROWS if whole else -1, monkeypatch)
    by_kernel: set[str] = set()
    dice = random.Random(seed)  # noqa: S311 - histories, not secrets
    begun = datetime.now(UTC).replace(microsecond=0)
    text = TWINS.replace("\ntopics:\n", RATES) + MORE if more else TWINS
    with pipeline(spark, broker, tmp_path / "one", text, partitions=2) as p:
        twin = Pipeline(spark, broker, tmp_path / "twin", text)
        twin.prefix = p.prefix
        removed = 0
        for number in range(1, times + 1):
            if number == 2:
                text = text.replace("sum(price)", "sum(2 * price)").replace("{g: string,", "{note: string, g: string,")
            p.write(text)
            twin.write("\n".join(line for line in text.splitlines() if "keep:" not in line))
            for topic in p.contract.topics:
                # What is dated before the horizon has a table derived whole: the last increments have nothing late.
                late = 0 if number == times and not whole else 0.4
                p.send(topic, *(_record(dice, topic, begun, number, late) for _ in range(40)))
            told, _ = p.run(), twin.run()
            by_kernel |= {name for name, it in told["tables"].items() if number > 2 and it.get("kernel")}
            for name in (*p.contract.topics, *p.contract.views):
                _same(p, twin, name, f"seed {seed}, run {number}, {name}")
            if dice.random() < 0.8 or number == 1:
                trimmed = retention.trim_pipeline(spark, p.contract)
                removed += sum(it.removed for it in trimmed.tables.values())
                assert (
                    ledger.read_ledger(p.warehouse, p.name)
                    .drop(_OWN)
                    .equals(ledger.read_ledger(twin.warehouse, p.name).drop(_OWN))
                )
        for name in (*p.contract.topics, *p.contract.views):
            _same(p, twin, name, f"seed {seed}, at the end, {name}")
        assert removed > 10 * times, "there is something to see"
        assert whole or by_kernel >= {"menu", "bills"}, "by kernels, though they are frozen"
        assert wrong(p) == []


_OWN = ["knownAt", "runId"]


def _record(dice: random.Random, topic: str, begun: datetime, number: int, late: float) -> tuple[Any, ...]:
    """A record of one of twelve items, dated up to half a minute after the last run's, or, that often, long before."""
    second = dice.uniform(-20, 30 * number) if dice.random() < late else dice.uniform(30 * number - 30, 30 * number)
    value = {
        "menu": {"g": dice.choice("xyz"), "price": dice.randint(1, 5), "note": dice.choice("ab")},
        "rates": {"rate": dice.randint(1, 3)},
        "orders": {"n": dice.randint(1, 9)},
    }[topic]
    deleted = dice.random() < 0.15
    return f"item {dice.randrange(12)}", None if deleted else value, begun + timedelta(seconds=round(second))


def _same(p: Pipeline, twin: Pipeline, name: str, where: str) -> None:
    since = _promised(p, name)
    known = journal.read_completed_runs(p.warehouse, p.name)
    for run, following in zip(known, [*known[1:], None], strict=True):
        # Known at a moment from the horizon on, at which the run was the last one.
        if since is None or following is None or following.known_at > since:
            assert state(p, name, run.number, since) == state(twin, name, run.number, since), where


def _promised(p: Pipeline, name: str) -> datetime | None:
    """From when on neither a table nor what it is made of is frozen: it tells what is true."""
    found = [horizon.find_frozen_until(p.warehouse, p.contract, name)]
    if name in p.contract.views:
        view = p.contract.views[name]
        made_of = (_promised(p, i) for i in view.inputs)
        found += [at + horizon.lookback_period(view) for at in made_of if at is not None]
    return max((at for at in found if at is not None), default=None)


def state(p: Pipeline, name: str, run: int, since: datetime | None) -> list[tuple[Any, ...]]:
    """What a table tells of the time from a moment on, as known at a run, without what is of no reading."""
    numbers = {it.known_at: it.number for it in journal.read_runs(p.warehouse, p.name)}
    kind, found = p.table(name).kind, []
    start, end = PERIODS[kind][0], PERIODS[kind][-1]
    for row in p.raw(name):
        if numbers[row["systemFrom"]] > run or (row["systemTo"] is not None and numbers[row["systemTo"]] <= run):
            continue
        if since is not None and kind == "versions":
            if row[end] is not None and row[end] <= since:
                continue
            row[start] = max(row[start], since)
        elif since is not None and row[start] < since:
            continue
        told = (c for c in sorted(row) if c not in ("systemFrom", "systemTo", "_belief"))
        # Of two records that say the same a row has the place of the first that was known.
        found.append(tuple(str(row[c]) for c in told if kind != "versions" or not c.startswith("_")))
    return sorted(found)


VISITS = """
pipeline: shop
start: 2026-01-01
topics:
  clicks: {read: stream, key: {who: string}, value: {n: int}, keep: 10 seconds}
views:
  visits: {stream: clicks, aggregate: {n: sum(n)}, window: {session: 2 seconds, grace: 4 seconds}, keep: 10 seconds}
"""


@pytest.mark.long
@pytest.mark.ci
def test_a_session_that_reaches_over_the_horizon_and_goes_on_stays_as_it_is(
    spark: SparkSession, broker: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(incremental_state, "MAX_WHOLE_ROWS", -1)
    with pipeline(spark, broker, tmp_path, VISITS) as p:
        p.send("clicks", *(("ann", {"n": 1}, second) for second in range(0, 21, 2)), ("bob", {"n": 1}, 20))
        p.run()
        assert p.believed("visits") == [("ann", 11, 0, 20), ("bob", 1, 20, 20)]
        retention.trim_pipeline(spark, p.contract)
        assert p.believed("visits") == [("ann", 11, 0, 20), ("bob", 1, 20, 20)]
        p.send("clicks", ("ann", {"n": 1}, 21), ("bob", {"n": 1}, 21))
        p.run()
        assert p.believed("visits") == [("ann", 11, 0, 20), ("bob", 2, 20, 21)]
        assert wrong(p) == []


WAITING = """
pipeline: shop
start: 2026-01-01
topics:
  menu: {read: table, key: {item: string}, value: {price: int}}
  orders: {read: stream, key: {customer: string}, value: {item: string}, keep: 10 seconds}
views:
  bills:
    stream: orders
    join: {table: menu, on: item}
    select: {price: price}
    semantics: kafka
    wait: true
"""


@pytest.mark.long
@pytest.mark.ci
def test_what_a_view_with_wait_has_not_processed_is_kept(spark: SparkSession, broker: str, tmp_path: Path) -> None:
    with pipeline(spark, broker, tmp_path, WAITING) as p:
        p.send("orders", *((f"c{second}", {"item": "curry"}, second) for second in (1, 2, 30, 60, 5)))
        p.run()
        assert retention.trim_pipeline(spark, p.contract).logs["orders"].removed == 0, "it waits for the menu"
        p.send("menu", ("curry", {"price": 8}, 0))
        p.run()
        trimmed = retention.trim_pipeline(spark, p.contract).logs["orders"]
        assert (trimmed.removed, trimmed.slowest) == (0, trim_horizons.PartitionProgress("menu", 0, moment(0)))
        p.send("menu", ("tea", {"price": 2}, 100))
        p.run()
        assert [row[0] for row in p.believed("bills")] == ["c1", "c2", "c30"]
        assert retention.trim_pipeline(spark, p.contract).logs["orders"].removed == 3
        at = horizon.read_horizon(tables.log_table(p.warehouse, p.name, "orders"))
        p.send("menu", ("tea", {"price": 3}, 200))
        p.send("orders", ("c90", {"item": "tea"}, 90), ("c150", {"item": "tea"}, 150))
        p.run()
        assert [row[0] for row in p.believed("bills")] == ["c1", "c2", "c30", "c5", "c60"], "c5 was late"
        found = trim_horizons.find_table_horizons

        def forget_meanwhile(*given: Any) -> Any:
            planner.ensure_plan(p.contract, "forget-it", reason=None, instead=Erasure("orders", "digest", ()))
            return found(*given)

        with (
            patch.object(trim_horizons, "find_table_horizons", forget_meanwhile),
            pytest.raises(BusyError, match="forget"),
        ):
            retention.trim_pipeline(spark, p.contract)
        assert horizon.read_horizon(tables.log_table(p.warehouse, p.name, "orders")) == at, (
            "records may be needed to begin again"
        )


@pytest.mark.long
@pytest.mark.usefixtures("by_kernels")
def test_late_records_before_the_horizon_count_among_each_other(
    spark: SparkSession, broker: str, tmp_path: Path
) -> None:
    """A row that begins at the horizon comes from a record before it."""
    with pipeline(spark, broker, tmp_path, KEPT) as p:
        p.send("menu", ("curry", {"price": 8}, 0), ("tea", {"price": 1}, 14))
        p.run()
        retention.trim_pipeline(spark, p.contract)
        for price, second, believed in ((9, 3, 9), (7, 3.5, 7), (5, 2, 7)):
            p.send("menu", ("curry", {"price": price}, second))
            p.run()
            assert ("curry", believed, 4, None) in p.believed("menu"), (price, second)
        assert wrong(p) == []


ORDERS = """
pipeline: shop
start: 2026-01-01
topics:
  orders: {read: stream, key: {customer: string}, value: {quantity: int}, keep: 10 seconds}
"""
READER = """
pipeline: reader
start: 2026-01-01
topics:
  none: {read: stream, key: {a: string}, value: {b: int}}
inputs:
  orders: {table: shop.orders, read: stream, key: {customer: string}, value: {quantity: int}}
views:
  more: {stream: orders, select: {more: quantity * 2}}
"""


@pytest.mark.long
def test_a_trim_beside_a_run_of_another_pipeline_takes_no_row_of_its_views(
    spark: SparkSession, broker: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a table that is read when its rows are needed, as large ones are; after the run has looked at its horizon."""
    with pipeline(spark, broker, tmp_path, ORDERS) as shop, pipeline(spark, broker, tmp_path, READER) as reader:
        shop.send("orders", *((f"at {second}", {"quantity": 1}, second) for second in (0, 30)))
        shop.run()
        reader.run()
        monkeypatch.setattr(row_reader.file_listing, "list_small_table_files", lambda _: None)
        reader.write(READER.replace("* 2", "* 3"))
        publish = run_steps.gate_and_publish_change

        def trim_and_publish(contract: BoundContract, plan: Plan, name: str, derived: DerivedChange) -> TableNote:
            if name == "more":
                retention.trim_pipeline(spark, shop.contract)
            return publish(contract, plan, name, derived)

        with monkeypatch.context() as patch:
            patch.setattr(run_steps, "gate_and_publish_change", trim_and_publish)
            with pytest.raises(
                RunError, match=r"was trimmed up to 2026-01-01T00:00:20\+00:00 while run 2 was reading it"
            ):
                reader.run("again")
        reader.run("again")
        assert reader.believed("more") == [("at 0", 2, 0), ("at 30", 3, 30)]
        assert wrong(reader) == []
