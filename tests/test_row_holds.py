"""`hold: row`: failing records count as not yet known, and tables are their definition over all others.

Every key of a topic is a random history of its own, so that one pipeline tries many of them.
"""

from __future__ import annotations

import os
import random
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest

import reference
from hindcast.common.settings import read_settings
from hindcast.ops import retention
from hindcast.ops.erase import forget, records
from hindcast.plan import journal, planner
from hindcast.quality import approval, failing_rows, held_changes
from hindcast.runs import incremental_state, special_runs
from hindcast.store import commits
from pipelines import Pipeline, derive_whole_up_to, pipeline, wrong

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SEED = int(os.environ.get("HINDCAST_SEED", "1"))
KEYS, RUNS, LEAST = 40, 3, 5

CONTRACT = f"""
pipeline: quotes
start: 2026-01-01
topics:
  quotes:
    read: table
    key: {{item: string}}
    value: {{price: int}}
    hold: row
    expect:
      - expect_column_values_to_be_between: {{column: price, min_value: {LEAST}}}
        on_failure: quarantine
"""


class Sent(NamedTuple):
    """A record of a history; `value` None: a tombstone."""

    key: str
    value: int | None
    second: int
    run: int


class Model:
    """What `hold: row` means, in plain Python: which records are held after each run."""

    def __init__(self) -> None:
        self.log: list[Sent] = []
        self.held: set[int] = set()
        self.released: set[int] = set()

    def bring(self, sent: list[Sent]) -> None:
        """A run: of keys that get a record all that is held is judged anew, with what is new."""
        believed = {row[:3] for row in rows(self.known())}
        new = range(len(self.log), len(self.log) + len(sent))
        self.log += sent
        touched = {self.log[n].key for n in new}
        judged = {n for n in self.held if self.log[n].key in touched} | {*new}
        self.held -= judged
        while failing := {n for n in judged - self.held - self.released if self._fails(n, believed)}:
            self.held |= failing

    def release(self, key: str) -> None:
        mine = {n for n in self.held if self.log[n].key == key}
        self.released |= mine
        self.held -= mine

    def known(self) -> list[Sent]:
        return [record for n, record in enumerate(self.log) if n not in self.held]

    def overdue(self) -> set[str]:
        """The keys that show a value which a held record would have ended."""
        shown = rows(self.known())
        late = [self.log[n] for n in self.held]
        return {
            it.key
            for it in late
            for key, _, start, end in shown
            if key == it.key and start <= it.second and (end is None or it.second < end)
        }

    def _fails(self, n: int, believed: set[tuple[Any, ...]]) -> bool:
        """Whether a record has a row, which is not believed yet, and that fails: of its key and time it is the last
        among those that are not held.
        """
        record = self.log[n]
        rivals = [m for m, it in enumerate(self.log) if (it.key, it.second) == (record.key, record.second)]
        last = max(m for m in rivals if m not in self.held)
        repeats = (record.key, record.value, record.second) in believed
        return n == last and record.value is not None and record.value < LEAST and not repeats


TABLE = {"type": "table_transform", "table": {"versioned": True, "historyRetentionMs": 10**9}}


def rows(records: list[Sent]) -> set[tuple[Any, ...]]:
    """The table that records amount to, by the reference."""
    log = [reference.Record("table", 0, n, it.key, it.value, it.second, 1) for n, it in enumerate(records)]
    found = reference.rows(TABLE, log)
    return {(row["key"], row["value"], row["validFrom"], row["validTo"]) for row in found}


def histories(dice: random.Random) -> list[list[Sent]]:
    """What each run brings: late, repeated and failing records, tombstones, and several of one time."""

    def record(run: int) -> Sent:
        value = None if dice.random() < 0.15 else dice.randint(1, 9)
        return Sent(f"k{dice.randrange(KEYS)}", value, dice.randint(0, 6), run)

    return [[record(run) for _ in range(KEYS)] for run in range(RUNS)]


def believed(p: Pipeline) -> set[tuple[Any, ...]]:
    return {tuple(row) for row in p.believed("quotes")}


def held(p: Pipeline, name: str = "quotes") -> set[tuple[str, int]]:
    """Key and offset of each record that is held."""
    found = held_changes.read_held_rows(p.warehouse, p.name).to_pylist()
    return {(row["key"], row["offset"]) for row in found if row["table"] == name}


def release(p: Pipeline, name: str, *keys: str) -> dict[str, Any]:
    assert p.spark is not None
    with p.here():
        named = {name: held_changes.find_held_keys(p.warehouse, p.name, name, keys)}
        name = f"release-{len(p.states())}"
        return special_runs.run_release(
            p.spark, read_settings(), p.name, name, named, "ann", datetime.now(UTC)
        ).as_json()


@pytest.mark.parametrize(
    ("whole", "runs"),
    [
        (incremental_state.MAX_WHOLE_ROWS, 1),
        pytest.param(incremental_state.MAX_WHOLE_ROWS, RUNS, marks=pytest.mark.long),
        pytest.param(-1, RUNS, marks=pytest.mark.long),
    ],
    ids=["once", "whole", "by increments"],
)
def test_a_table_is_its_definition_over_the_records_that_are_not_held(
    spark: SparkSession, broker: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, whole: int, runs: int
) -> None:
    derive_whole_up_to(whole, monkeypatch)
    dice, model = random.Random(SEED), Model()  # noqa: S311 - histories, not secrets
    seen: list[set[tuple[Any, ...]]] = []
    with pipeline(spark, broker, tmp_path, CONTRACT) as p:

        def check() -> None:
            assert held(p) == {(f'{{"item":"{model.log[n].key}"}}', n) for n in model.held}
            assert believed(p) == rows(model.known())
            seen.append(believed(p))

        for sent in histories(dice)[:runs]:
            p.send("quotes", *((it.key, None if it.value is None else {"price": it.value}, it.second) for it in sent))
            told = p.run()
            model.bring(sent)
            check()
            shown = told["tables"]["quotes"]["held"]
            assert shown["keys"] == len({model.log[n].key for n in model.held})
            assert shown["overdue"]["keys"] == len(model.overdue())
            if len(seen) == min(2, runs):
                some = sorted({model.log[n].key for n in model.held})[::2]
                release(p, "quotes", *some)
                for key in some:
                    model.release(key)
                check()
        assert model.held
        assert model.released
        # As known at each run.
        history = p.history("quotes")
        for number, then in enumerate(seen, 1):
            assert {row[:-2] for row in history if row[-2] <= number and (row[-1] is None or row[-1] > number)} == then
        if runs > 1:
            assert not wrong(p)


VIEWS = """
pipeline: shop
start: 2026-01-01
topics:
  menu: {read: table, key: {item: string}, value: {price: int}}
  orders: {read: stream, key: {customer: string}, value: {item: string, quantity: int}}
  payments: {read: stream, key: {customer: string}, value: {paid: int}}
views:
  bills:
    stream: orders
    join: {table: menu, on: item}
    select: {amount: quantity * price}
    hold: row
    expect:
      - expect_column_values_to_be_between: {column: amount, max_value: 100}
        on_failure: quarantine
  sums:
    stream: orders
    window: {tumbling: 10 seconds, grace: 1 day}
    aggregate: {quantity: sum(quantity)}
    hold: row
    expect:
      - expect_column_values_to_be_between: {column: quantity, max_value: 30}
        on_failure: quarantine
  sittings:
    stream: orders
    window: {session: 5 seconds, grace: 1 day}
    aggregate: {orders: count(*)}
    hold: row
    expect:
      - expect_column_values_to_be_between: {column: orders, max_value: 2}
        on_failure: quarantine
  settled:
    stream: orders
    join: {stream: payments, before: 0 seconds, after: 3 seconds, how: left}
    select: {quantity: orders.quantity, paid: payments.paid}
    hold: row
    expect:
      - expect_column_values_to_be_between: {column: paid, min_value: 0}
        on_failure: quarantine
"""


def order(customer: str, quantity: int, second: int) -> tuple[str, dict[str, Any], int]:
    return customer, {"item": "curry", "quantity": quantity}, second


@pytest.mark.long
@pytest.mark.parametrize("whole", [incremental_state.MAX_WHOLE_ROWS, -1], ids=["whole", "by increments"])
def test_of_a_view_what_was_believed_of_a_failing_row_stays_and_all_others_are_published(
    spark: SparkSession, broker: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, whole: int
) -> None:
    derive_whole_up_to(whole, monkeypatch)
    with pipeline(spark, broker, tmp_path, VIEWS) as p:
        p.send("menu", ("curry", {"price": 8}, 0))
        p.send("orders", order("anna", 2, 1), order("anna", 20, 2), order("carl", 12, 1), order("dave", 1, 1))
        p.send("orders", order("anna", 25, 30), order("anna", 1, 21))
        p.run()
        assert told_of(p, "bills") == {("anna", 16, 1), ("anna", 8, 21), ("carl", 96, 1), ("dave", 8, 1)}
        alone = {("anna", quantity, None, second) for quantity, second in ((1, 21), (2, 1), (20, 2), (25, 30))}
        assert told_of(p, "settled") == {*alone, ("carl", 12, None, 1), ("dave", 1, None, 1)}
        assert told_of(p, "sittings") == {
            *[("anna", 2, 1, 2), ("anna", 1, 21, 21), ("anna", 1, 30, 30)],
            ("carl", 1, 1, 1),
            ("dave", 1, 1, 1),
        }

        # Dearer from the start: carl's bill fails and stays; of anna's two that did, nothing is believed yet.
        p.send("menu", ("curry", {"price": 10}, 0))
        # A third order makes anna's sitting and her first ten seconds fail; dave's go on.
        p.send("orders", order("anna", 9, 4), order("dave", 2, 3))
        p.send("payments", ("anna", {"paid": -1}, 3), ("dave", {"paid": -5}, 2), ("dave", {"paid": 5}, 3))
        told = p.run()
        of_anna = {("anna", amount, second) for amount, second in ((10, 21), (20, 1), (90, 4))}
        assert told_of(p, "bills") == {*of_anna, ("carl", 96, 1), ("dave", 10, 1), ("dave", 20, 3)}
        assert told["tables"]["bills"]["held"] == {"keys": 2, "rows": 4, "newly": 1, "grown": 1}
        assert ("anna", 22, 0, 10) in told_of(p, "sums")
        assert {("anna", 2, 1, 2), ("dave", 2, 1, 3)} <= told_of(p, "sittings")
        assert ("anna", 3, 1, 4) not in told_of(p, "sittings")
        settled = told_of(p, "settled")
        assert {("anna", 2, None, 1), ("anna", 20, None, 2), ("dave", 1, 5, 3), ("dave", 2, 5, 3)} <= settled
        assert not [row for row in settled if row[2] is not None and row[2] < 0]
        assert ("dave", 1, None, 1) not in settled
        assert not wrong(p)

        # Cheaper again: all that was held of bills passes, nothing of the others is touched.
        p.send("menu", ("curry", {"price": 4}, 0))
        release(p, "settled", "anna")
        p.run()
        of_anna = {("anna", amount, second) for amount, second in ((4, 21), (8, 1), (36, 4), (80, 2), (100, 30))}
        assert told_of(p, "bills") == {*of_anna, ("carl", 48, 1), ("dave", 4, 1), ("dave", 8, 3)}
        settled = told_of(p, "settled")
        assert {("anna", 2, -1, 3), ("anna", 20, -1, 3)} <= settled
        assert not [row for row in settled if row[0] == "anna" and row[2] is None and row[3] < 3]
        assert not wrong(p)


def told_of(p: Pipeline, name: str) -> set[tuple[Any, ...]]:
    """The rows of a view that are believed now: key, values and periods."""
    return {row[:4] for row in p.believed(name)}


@pytest.mark.long
@pytest.mark.usefixtures("by_kernels")
def test_a_published_row_of_a_held_key_follows_what_came_and_went(
    spark: SparkSession, broker: str, tmp_path: Path
) -> None:
    """The price is again what it was when the other row of the key was held."""
    text = VIEWS.partition("  sums:")[0].replace("max_value: 100", "max_value: 17")
    with pipeline(spark, broker, tmp_path, text) as p:
        p.send("menu", ("curry", {"price": 8}, 0))
        orders = (("anna", {"item": "curry", "quantity": n}, n) for n in (1, 2))
        p.send("orders", *orders)
        p.run()
        p.send("menu", ("curry", {"price": 9}, 0))
        p.run()
        assert sorted(row[1] for row in p.believed("bills")) == [9, 16], "18 is held"
        p.send("menu", ("curry", {"price": 8}, 0))
        p.run()
        assert sorted(row[1] for row in p.believed("bills")) == [8, 16]
        assert not held_changes.read_held_rows(p.warehouse, p.name).num_rows


@pytest.mark.long
def test_what_is_held_is_trimmed_and_forgotten_as_what_it_is(spark: SparkSession, broker: str, tmp_path: Path) -> None:
    kept = CONTRACT.replace("    hold: row", "    keep: 10 seconds\n    hold: row")
    with pipeline(spark, broker, tmp_path, kept) as p:
        p.send(
            "quotes", ("a", {"price": 8}, 0), ("a", {"price": 1}, 4), ("b", {"price": 2}, 1), ("c", {"price": 9}, 20)
        )
        p.run()
        assert held(p) == {('{"item":"a"}', 1), ('{"item":"b"}', 2)}
        held_changes.reject_keys(p.warehouse, p.name, {"quotes": ['{"item":"b"}']}, "ann", datetime.now(UTC))
        forget.forget_records(spark, p.contract, records.parse_request(p.contract, "quotes", None, ["0/2"]))
        assert held(p) == {('{"item":"a"}', 1)}
        assert '{"item":"b"}' not in failing_rows.list_entries(p.warehouse, p.name)["key"].to_pylist()
        # 8 is in force at the horizon, for the record that would have ended it is held.
        retention.trim_pipeline(spark, p.contract)
        assert {0, 1} <= {row["offset"] for row in p.raw("logs/quotes")}
        assert p.believed("quotes") == [("a", 8, 0, None), ("c", 9, 20, None)]
        assert not wrong(p)
        release(p, "quotes", "a")
        # Before the horizon nothing changes any more.
        assert p.believed("quotes") == [("a", 8, 0, 10), ("a", 1, 10, None), ("c", 9, 20, None)]
        assert not held(p)


@pytest.mark.long
def test_a_release_leaves_a_rejected_record_of_its_key_alone(spark: SparkSession, broker: str, tmp_path: Path) -> None:
    with pipeline(spark, broker, tmp_path, CONTRACT) as p:
        p.send("quotes", ("a", {"price": 8}, 0), ("a", {"price": 1}, 4))
        p.run()
        held_changes.reject_keys(p.warehouse, p.name, {"quotes": ['{"item":"a"}']}, "ann", datetime.now(UTC))
        p.send("quotes", ("a", {"price": 2}, 6))
        p.run()
        assert held(p) == {('{"item":"a"}', 1), ('{"item":"a"}', 2)}
        (line,) = approval.read_held_keys(p.contract)
        assert (line.rows, line.offset) == (1, 2), "what was rejected is not asked about again"
        release(p, "quotes", "a")
        assert p.believed("quotes") == [("a", 8, 0, 6), ("a", 2, 6, None)]
        assert held(p) == {('{"item":"a"}', 1)}
        release(p, "quotes", "a")  # by its name, and nothing else is held of it
        assert p.believed("quotes") == [("a", 8, 0, 4), ("a", 1, 4, 6), ("a", 2, 6, None)]


NOTED = CONTRACT.replace("price: int}", "price: int, note: string}")
UNGATED = CONTRACT.partition("    hold")[0]


@pytest.mark.long
def test_what_an_abandoned_run_held_by_another_contract_ends_with_that_contract(
    spark: SparkSession, broker: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def die(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    with pipeline(spark, broker, tmp_path, UNGATED) as p:
        p.send("quotes", ("tea", {"price": 9, "note": "a"}, 0), ("tea", {"price": 1, "note": "b"}, 10))
        p.run()
        before = p.believed("quotes")
        p.write(NOTED)
        with monkeypatch.context() as patch:
            patch.setattr(commits, "commit_change", die)
            with pytest.raises(KeyboardInterrupt):
                p.run()
        assert held(p) == {('{"item":"tea"}', 1)}
        planner.abandon_run(p.warehouse, journal.read_runs(p.warehouse, p.name)[-1], "it died")
        p.write(UNGATED)
        p.run()  # nothing has come, but something may be held
        assert (held(p), [row[:2] for row in p.believed("quotes")]) == (set(), [row[:2] for row in before])
        p.send("quotes", ("cake", {"price": 1}, 20))
        p.run()
        assert [row[:2] for row in p.believed("quotes")] == [("cake", 1), *(row[:2] for row in before)]
        assert not wrong(p)


@pytest.mark.long
def test_a_release_is_of_the_record_as_it_was_seen(spark: SparkSession, broker: str, tmp_path: Path) -> None:
    with pipeline(spark, broker, tmp_path, CONTRACT) as p:
        p.send("quotes", ("tea", {"price": 1, "note": "bad"}, 0), ("cake", {"price": 9}, 0))
        p.run()
        release(p, "quotes", "tea")
        assert [row[:2] for row in p.believed("quotes")] == [("cake", 9), ("tea", 1)]
        p.write(NOTED)  # nobody has seen the note
        p.run()
        assert [row[:2] for row in p.believed("quotes")] == [("cake", 9)]
        assert held(p) == {('{"item":"tea"}', 0)}
        assert not wrong(p)
