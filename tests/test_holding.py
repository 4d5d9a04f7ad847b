"""Quarantine gates: what is held back, what becomes of it, and that the rest goes on."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import reports
from hindcast.cli import main
from hindcast.common.errors import BusyError, GateError, RunError
from hindcast.common.settings import read_settings
from hindcast.plan import journal, planner
from hindcast.quality import failing_rows, held_changes
from hindcast.runs import incremental_state, special_runs
from hindcast.store import commits
from pipelines import T0, Pipeline, pipeline

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.connect

CONTRACT = """
pipeline: restaurant
start: 2026-01-01
topics:
  menu:
    read: table
    key: {item: string}
    value: {price: int}
    expect:
      - expect_column_values_to_be_between: {column: price, min_value: 0}
        on_failure: quarantine
  orders:
    read: stream
    key: {customer: string}
    value: {item: string, quantity: int}
    expect:
      - expect_column_values_to_be_between: {column: quantity, min_value: 1}
        on_failure: quarantine
views:
  bills:
    stream: orders
    join: {table: menu, on: item}
    select: {item: orders.item, amount: quantity * price}
  dear:
    table: menu
    select: {price: price}
    expect:
      - expect_column_values_to_be_between: {column: price, max_value: 50}
        on_failure: quarantine
"""


MENU = CONTRACT.partition("  dear:")[0].replace(
    """    expect:
      - expect_column_values_to_be_between: {column: quantity, min_value: 1}
        on_failure: quarantine
""",
    "",
)
"""Only the menu has a gate."""


def held(p: Pipeline, name: str) -> set[tuple[Any, ...]]:
    """Key, change, value, second from, rule and entry of each row that is held of a table."""
    told = set()
    for row in held_changes.read_held_rows(p.warehouse, p.name).to_pylist():
        if row["table"] == name:
            (key, *_), values = json.loads(row["key"]).values(), json.loads(row["row"])
            start = datetime.fromisoformat(values.get("validFrom") or values["timestamp"]) - T0
            value = values.get("price", values.get("quantity"))
            rule = (row["expectation"] or "").removeprefix("expect_column_values_to_be_")
            told.add((key, row["change"], value, start.total_seconds(), rule, row["entry"]))
    return told


def release(p: Pipeline, name: str, *told: str) -> dict[str, Any]:
    assert p.spark is not None
    with p.here():
        keys = {name: held_changes.find_held_keys(p.warehouse, p.name, name, told)}
        name = f"release-{len(p.states())}"
        return special_runs.run_release(
            p.spark, read_settings(), p.name, name, keys, "ann", datetime.now(UTC)
        ).as_json()


@pytest.mark.long
@pytest.mark.ci
@pytest.mark.parametrize("as_in_airflow", [False, True])
def test_a_failing_key_stays_as_believed_and_is_released_in_a_run_of_its_own(
    spark: SparkSession, broker: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], as_in_airflow: bool
) -> None:
    with pipeline(spark, broker, tmp_path, MENU.partition("  orders:")[0]) as p:
        p.send("menu", ("curry", {"price": 8}, 0), ("naan", {"price": 3}, 0))
        p.run()
        p.send("menu", ("curry", {"price": -1}, 4), ("naan", {"price": 4}, 4))
        told = p.run()
        assert told["tables"]["menu"]["held"] == {"keys": 1, "rows": 3, "newly": 1, "grown": 0}
        assert p.believed("menu") == [("curry", 8, 0, None), ("naan", 3, 0, 4), ("naan", 4, 4, None)]
        keys = {"menu": held_changes.find_held_keys(p.warehouse, p.name, "menu", ["curry"])}
        run_id = journal.new_run_id("release")  # of a command that died after its plan
        special_runs.plan_release(p.settings, p.name, run_id, keys, "ann", datetime.now(UTC))
        with pytest.raises(BusyError, match="has not ended") as refused:
            p.run()
        assert "hindcast release restaurant" in refused.value.fix
        for other in (["restaurant.menu", "--key", "naan"], ["restaurant.dear"]):
            assert main.main(["release", *other]) == 3
            assert "begun to release other keys, has not ended" in capsys.readouterr().err
        with pytest.raises(RunError, match="the release other has no plan"):
            special_runs.run_planned_release(spark, p.settings, p.name, "other")
        if as_in_airflow:
            assert main.step("release", ["restaurant", run_id]) == 0
            assert p.states()[-1] == (3, "completed")
            assert ("curry", -1, 4, None) in p.believed("menu")
            return
        assert main.main(["release", "restaurant"]) == 0
        assert "finishing run 3" in capsys.readouterr().err
        assert p.states()[-1] == (3, "completed")
        assert ("curry", -1, 4, None) in p.believed("menu")
        assert ("curry", 8, 0, None, 1, 3) in p.history("menu")
        with pytest.raises(RunError, match="nothing is held back"):
            release(p, "menu")


@pytest.mark.long
@pytest.mark.parametrize("whole", [incremental_state.MAX_WHOLE_ROWS, -1], ids=["whole", "by increments"])
def test_what_is_held_stays_as_believed_until_it_is_released_or_mended(
    spark: SparkSession, broker: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, whole: int
) -> None:
    monkeypatch.setattr(incremental_state, "MAX_WHOLE_ROWS", whole)
    with pipeline(spark, broker, tmp_path, MENU) as p:
        _story(p)


def _story(p: Pipeline) -> None:
    p.send("menu", ("curry", {"price": 8}, 0), ("naan", {"price": 3}, 0))
    p.send("orders", ("anna", {"item": "curry", "quantity": 2}, 5))
    p.run()
    # A price below nothing: all of curry's change is held, naan's goes on.
    p.send("menu", ("curry", {"price": -1}, 4), ("curry", {"price": 9}, 6), ("naan", {"price": 4}, 4))
    told = p.run()
    assert held(p, "menu") == {
        ("curry", "close", 8, 0, "", "held"),
        ("curry", "open", 8, 0, "", "held"),
        ("curry", "open", -1, 4, "between", "held"),
        ("curry", "open", 9, 6, "", "held"),
    }
    assert told["tables"]["menu"]["held"] == {"keys": 1, "rows": 4, "newly": 1, "grown": 0}
    assert (told["tables"]["menu"]["opened"], told["tables"]["menu"]["closed"]) == (2, 1)
    gate = told["tables"]["menu"]["gates"][0]
    assert (gate["outcome"], gate["checked"], gate["failing"]) == ("failed", 5, 1)
    assert gate["rows"] == "hindcast failing restaurant --run 2 --table menu --held"
    assert "1 key is held back, 1 of them newly: hindcast release restaurant.menu" in reports.format_report(told)
    assert p.believed("menu") == [("curry", 8, 0, None), ("naan", 3, 0, 4), ("naan", 4, 4, None)]
    assert p.believed("bills") == [("anna", "curry", 16, 5)]
    # A further record of the key: its whole change, from where it was held on, is held anew.
    p.send("menu", ("curry", {"price": 10}, 8), ("naan", {"price": 5}, 8))
    told = p.run()
    assert told["tables"]["menu"]["held"] == {"keys": 1, "rows": 5, "newly": 0, "grown": 1}
    assert p.believed("menu") == [("curry", 8, 0, None), ("naan", 3, 0, 4), ("naan", 4, 4, 8), ("naan", 5, 8, None)]
    # Released: a run of its own, with a known-at of its own; what is made of it follows.
    before = p.versions()
    told = release(p, "menu", "curry")
    assert {name for name, version in p.versions().items() if version != before[name]} == {"menu", "bills", "failing"}
    assert told["topics"]["menu"]["offsets"] == 0
    assert "held" not in told["tables"]["menu"]
    assert told["tables"]["menu"]["gates"][0]["rows"] == "hindcast failing restaurant --run 4 --table menu"
    assert "released" in failing_rows.list_entries(p.warehouse, p.name, "menu", 4)["entry"].to_pylist()
    released = {("curry", 8, 0, 4), ("curry", -1, 4, 6), ("curry", 9, 6, 8), ("curry", 10, 8, None)}
    assert released < set(p.believed("menu"))
    assert p.believed("bills") == [("anna", "curry", -2, 5)]
    assert ("anna", "curry", 16, 5, 1, 4) in p.history("bills")
    entries = failing_rows.list_entries(p.warehouse, p.name)
    assert {row["by"] for row in entries.to_pylist()} <= {None, "ann"}
    # Held again, and mended by what the topic brings.
    p.send("menu", ("naan", {"price": -2}, 10))
    assert p.run()["tables"]["menu"]["held"] == {"keys": 1, "rows": 3, "newly": 1, "grown": 0}
    p.send("menu", ("naan", {"price": 6}, 10))
    told = p.run()
    assert "held" not in told["tables"]["menu"]
    assert {("naan", 5, 8, 10), ("naan", 6, 10, None)} < set(p.believed("menu"))
    assert [state for _, state in p.states()] == ["completed"] * 6


@pytest.mark.long
def test_a_held_key_is_derived_again_only_if_something_has_changed_for_it(
    spark: SparkSession, broker: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(incremental_state, "MAX_WHOLE_ROWS", -1)  # a small table is derived whole
    text = MENU.partition("  orders:")[0]
    with pipeline(spark, broker, tmp_path, text) as p:
        p.send("menu", *((item, {"price": 8}, 0) for item in ("curry", "naan", "soup")))
        p.run()
        p.send("menu", ("curry", {"price": -1}, 4), ("soup", {"price": -1}, 4))
        assert p.run()["tables"]["menu"]["held"]["keys"] == 2
        before = p.versions()
        p.run("nothing new")
        assert p.versions() == before, "nothing was judged or held anew"
        p.send("menu", ("naan", {"price": 9}, 4))
        told = p.run()["tables"]["menu"]
        assert told["gates"][0]["checked"] == 2, "the rows that begin of the new record's key"
        p.send("menu", ("soup", {"price": 9}, 4))
        told = p.run()["tables"]["menu"]
        assert (told["gates"][0]["checked"], told["held"]["keys"]) == (2, 1), "soup's alone"
        p.write(text.replace("min_value: 0", "min_value: -5"))
        p.run()
        assert ("curry", -1, 4, None) in p.believed("menu"), "by another contract it passes"


@pytest.mark.long
@pytest.mark.ci
def test_a_held_key_is_not_judged_beside_the_keys_of_others_where_a_small_table_is_derived_whole(
    spark: SparkSession, broker: str, tmp_path: Path
) -> None:
    text = CONTRACT.replace(*MOSTLY).replace("max_value: 50}", "max_value: 50, mostly: 0.7}")
    topic, _, views = text.partition("  orders:")
    text = f"{topic}views:\n  dear:{views.partition('  dear:')[2]}"
    with pipeline(spark, broker, tmp_path, text) as p:
        p.send("menu", ("curry", {"price": 8}, 0))
        p.run()
        p.send("menu", ("curry", {"price": -1}, 4), ("soup", {"price": 60}, 4))
        held = [p.run()["tables"][name]["held"]["keys"] for name in ("menu", "dear")]
        assert held == [1, 1]
        p.send("menu", *((item, {"price": 3}, 4) for item in ("naan", "rice", "tea")))
        told = p.run()["tables"]
        assert [(told[n]["gates"][0]["checked"], told[n]["held"]["keys"]) for n in ("menu", "dear")] == [(3, 1), (3, 1)]
        assert [row for row in p.believed("menu") if row[0] == "curry"] == [("curry", 8, 0, None)]
        assert "soup" not in {row[0] for row in p.believed("dear")}
        p.send("menu", ("curry", {"price": 2}, 4))
        told = p.run()["tables"]
        assert ("held" in told["menu"], told["dear"]["held"]["keys"]) == (False, 1)
        p.write(text.replace("max_value: 50", "max_value: 70"))
        assert "held" not in p.run()["tables"]["dear"]


MOSTLY = "min_value: 0}", "min_value: 0, mostly: 0.7}"


@pytest.mark.long
def test_events_and_views_are_held_by_key_too(
    spark: SparkSession, broker: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(incremental_state, "MAX_WHOLE_ROWS", -1)
    with pipeline(spark, broker, tmp_path, CONTRACT) as p:
        _others(p)


def _others(p: Pipeline) -> None:
    p.send("menu", ("curry", {"price": 8}, 0), ("truffle", {"price": 90}, 0))
    p.send("orders", ("anna", {"item": "curry", "quantity": 2}, 1), ("bob", {"item": "curry", "quantity": 0}, 2))
    p.run()
    assert p.believed("orders") == [("anna", "curry", 2, 1)]
    assert p.believed("dear") == [("curry", 8, 0, None)]
    # Bob orders properly: his first order still holds all of his.
    p.send("orders", ("bob", {"item": "curry", "quantity": 1}, 3), ("anna", {"item": "truffle", "quantity": 1}, 3))
    p.send("menu", ("curry", {"price": 60}, 5))
    told = p.run()
    assert told["tables"]["bills"]["kernel"] == "stream_table"
    assert told["tables"]["orders"]["held"] == {"keys": 1, "rows": 2, "newly": 0, "grown": 1}
    assert told["tables"]["dear"]["held"] == {"keys": 2, "rows": 4, "newly": 1, "grown": 0}
    assert p.believed("bills") == [("anna", "curry", 16, 1), ("anna", "truffle", 90, 3)]
    assert p.believed("dear") == [("curry", 8, 0, None)]
    # One of two keys released, the other rejected: it stays held and is not new.
    release(p, "dear", "curry")
    assert p.believed("dear") == [("curry", 8, 0, 5), ("curry", 60, 5, None)]
    keys = {"dear": held_changes.find_held_keys(p.warehouse, p.name, "dear", ())}
    held_changes.reject_keys(p.warehouse, p.name, keys, "ann", datetime.now(UTC))
    assert held(p, "dear") == {("truffle", "open", 90, 0, "between", "rejected")}
    release(p, "orders")
    assert {("bob", "curry", 0, 2), ("bob", "curry", 1, 3), ("anna", "truffle", 1, 3)} < set(p.believed("orders"))
    assert p.run()["tables"]["dear"]["held"] == {"keys": 1, "rows": 1, "newly": 0, "grown": 0}
    with pytest.raises(RunError, match="nothing is held back"):
        release(p, "orders")


def test_a_gate_that_stops_holds_nothing_and_its_rows_are_found(
    spark: SparkSession, broker: str, tmp_path: Path
) -> None:
    stopping = CONTRACT.replace("on_failure: quarantine", "on_failure: stop", 1)
    with pipeline(spark, broker, tmp_path, stopping) as p:
        p.send("menu", *((f"i{n}", {"price": -1 if n % 2 else 1}, 0) for n in range(600)))
        with pytest.raises(GateError, match="300 of 600 rows fail"):
            p.run()
        rows = failing_rows.list_entries(p.warehouse, p.name, name="menu", run=1, gate=0).to_pylist()
        assert len(rows) == 300
        assert {(r["entry"], r["topic"], r["partition"]) for r in rows} == {("stopped", p.kafka("menu"), 0)}
        assert sorted(r["offset"] for r in rows) == list(range(1, 600, 2))
        assert p.states() == [(1, "stopped")]
        assert not held_changes.read_held_rows(p.warehouse, p.name).num_rows


@pytest.mark.long
def test_what_only_fails_on_what_another_gate_leaves_is_held_too(
    spark: SparkSession, broker: str, tmp_path: Path
) -> None:
    second = """\
      - expect_column_values_to_be_between: {column: price, max_value: 9, mostly: 0.6}
        on_failure: quarantine
  orders:"""
    with pipeline(spark, broker, tmp_path, MENU.replace("  orders:", second, 1)) as p:
        # Two of three are at most 9; without the one below nothing, one of two.
        p.send("menu", ("curry", {"price": -1}, 0), ("naan", {"price": 3}, 0), ("truffle", {"price": 90}, 0))
        told = p.run()
        assert [gate["outcome"] for gate in told["tables"]["menu"]["gates"]] == ["failed", "failed"]
        assert held(p, "menu") == {
            ("curry", "open", -1, 0, "between", "held"),
            ("truffle", "open", 90, 0, "between", "held"),
        }
        assert p.believed("menu") == [("naan", 3, 0, None)]


@pytest.mark.long
def test_a_row_that_only_fails_beside_what_another_gate_leaves_is_held_too(
    spark: SparkSession, broker: str, tmp_path: Path
) -> None:
    """Also where its gate has held another row already."""
    second = """\
      - unexpected_rows_expectation:
          unexpected_rows_query: >
            SELECT * FROM {batch} WHERE price > 2 * (SELECT avg(price) FROM {batch})
        on_failure: quarantine
  orders:"""
    with pipeline(spark, broker, tmp_path, MENU.replace("  orders:", second, 1)) as p:
        # Beside 400, which is more than twice 76.33, 50 is not much; beside what is left of all it is.
        prices = {"curry": -1, "naan": 3, "soup": 4, "tea": 2, "stew": 50, "truffle": 400}
        p.send("menu", *((item, {"price": price}, 0) for item, price in prices.items()))
        told = p.run()
        assert [gate["outcome"] for gate in told["tables"]["menu"]["gates"]] == ["failed", "failed"]
        assert {row[0] for row in held(p, "menu")} == {"curry", "stew", "truffle"}
        assert {row[0] for row in p.believed("menu")} == {"naan", "soup", "tea"}


@pytest.mark.long
def test_a_release_that_dies_is_finished_and_one_of_something_else_is_none(
    spark: SparkSession, broker: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(incremental_state, "MAX_WHOLE_ROWS", -1)
    with pipeline(spark, broker, tmp_path, MENU) as p:
        p.send("menu", ("curry", {"price": 8}, 0), ("naan", {"price": 3}, 0))
        p.run()
        p.send("menu", ("curry", {"price": -1}, 4))
        p.run()
        looked_at, keys = datetime.now(UTC), {"menu": ['{"item":"curry"}']}
        p.send("menu", ("curry", {"price": -2}, 6))
        p.run()
        special_runs.run_release(spark, read_settings(), p.name, "stale", keys, "ann", looked_at)
        assert p.believed("menu") == [("curry", 8, 0, None), ("naan", 3, 0, None)]
        assert len(held(p, "menu")) == 4
        # Entered as released, but not yet published.
        looked_at = datetime.now(UTC)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(commits, "commit_change", _dies)
            with pytest.raises(RuntimeError, match="died"):
                special_runs.run_release(spark, read_settings(), p.name, "dies", keys, "ann", looked_at)
        special_runs.run_release(spark, read_settings(), p.name, "dies", keys, "ann", looked_at)
        assert {("curry", 8, 0, 4), ("curry", -1, 4, 6), ("curry", -2, 6, None)} < set(p.believed("menu"))
        # The same, but given up: what was entered has not come true, and is held still.
        p.send("menu", ("naan", {"price": -1}, 4))
        p.run()
        looked_at, keys = datetime.now(UTC), {"menu": ['{"item":"naan"}']}
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(commits, "commit_change", _dies)
            with pytest.raises(RuntimeError, match="died"):
                special_runs.run_release(spark, read_settings(), p.name, "given up", keys, "ann", looked_at)
        planner.abandon_run(p.warehouse, journal.read_runs(p.warehouse, p.name)[-1], "test")
        assert {row[0] for row in held(p, "menu")} == {"naan"}
        p.run()
        assert {row[0] for row in held(p, "menu")} == {"naan"}
        special_runs.run_release(spark, read_settings(), p.name, "at last", keys, "ann", datetime.now(UTC))
        assert ("naan", -1, 4, None) in p.believed("menu")


def _dies(*_: Any, **__: Any) -> None:
    raise RuntimeError("died")
