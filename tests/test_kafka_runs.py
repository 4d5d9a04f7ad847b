"""Kafka views from run to run: whatever a run dies of, each record is emitted once; previews, reports, the journal."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import reports
from crashes import watched
from hindcast.common.errors import GateError
from hindcast.ops import journal_rebuild
from hindcast.plan import journal, planner
from pipelines import Pipeline, pipeline, tell

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

CONTRACT = """
pipeline: live
start: 2026-01-01
topics:
  menu: {read: table, key: {item: string}, value: {price: int}, history_retention: 10 seconds}
  orders: {read: stream, key: {customer: string}, value: {item: string, quantity: int}}
  payments: {read: stream, key: {customer: string}, value: {paid: int}}
views:
  dear:
    semantics: kafka
    table: menu
    where: price > 5
  bills:
    semantics: kafka
    stream: orders
    join: {table: dear, on: item, how: left}
    select: {item: orders.item, due: quantity * price}
  visits:
    semantics: kafka
    stream: bills
    aggregate: {n: count(*), due: sum(due)}
    window: {session: 2 seconds}
  paid:
    semantics: kafka
    stream: orders
    join: {stream: payments, after: 3 seconds}
    select: {item: item, paid: paid}
"""
VIEWS = ("dear", "bills", "visits", "paid")
STORY: tuple[dict[str, list[Any]], ...] = (
    {
        "menu": [("curry", {"price": 8}, 0), ("soup", {"price": 3}, 1), ("curry", {"price": 10}, 4)],
        "orders": [("anna", {"item": "curry", "quantity": 1}, 1), ("bob", {"item": "soup", "quantity": 2}, 5)],
    },
    {
        "menu": [("curry", {"price": 9}, 2), ("soup", {"price": 6}, 6), ("naan", {"price": 7}, 6)],
        "orders": [("anna", {"item": "curry", "quantity": 2}, 2), ("carl", {"item": "soup", "quantity": 1}, 7)],
    },
    {"menu": [("naan", None, 8)], "orders": [("carl", {"item": "naan", "quantity": 1}, 9)]},
)
"""A late price, an order too late for its session, one that merges with another, a tombstone; no payments at first."""
PAID = {"payments": [("carl", {"paid": 5}, 8)]}


class CrashError(Exception):
    """What a step fails with."""


def told(p: Pipeline) -> dict[str, Any]:
    """What the views have emitted in order, what they keep, and every row ever believed; runs instead of moments."""
    found: dict[str, Any] = {"states": p.states()}
    for view in VIEWS:
        rows = sorted(p.raw(f"emitted/{view}"), key=lambda row: (row["_epoch"], row["_partition"], row["_offset"]))
        found[f"emitted/{view}"] = [{c: v for c, v in row.items() if c != "systemFrom"} for row in rows]
        for epoch in sorted({row["_epoch"] for row in rows}):
            found[f"kept/{view}/{epoch}"] = sorted(map(str, p.raw(f"kept/{view}/{epoch}")))
        found[view] = p.history(view)
    return found


def once(p: Pipeline) -> None:
    """Asserts that each record of the output has an offset of its own, and that none is missing."""
    for view in VIEWS:
        places: dict[tuple[int, int], list[int]] = {}
        for row in p.raw(f"emitted/{view}"):
            places.setdefault((row["_epoch"], row["_partition"]), []).append(row["_offset"])
        assert all(sorted(offsets) == list(range(len(offsets))) for offsets in places.values()), view


@pytest.fixture(scope="module")
def undisturbed(spark: SparkSession, broker: str, tmp_path_factory: pytest.TempPathFactory) -> Pipeline:
    """The story, in three runs that nothing disturbs."""
    with pipeline(spark, broker, tmp_path_factory.mktemp("undisturbed"), CONTRACT) as p:
        for brought in STORY:
            tell(p, brought)
            p.run()
    return p


@pytest.mark.long
def test_what_a_run_has_emitted_that_was_given_up_is_not_emitted_again(
    undisturbed: Pipeline, spark: SparkSession, broker: str, tmp_path: Path
) -> None:
    with pipeline(spark, broker, tmp_path, CONTRACT) as p:
        tell(p, STORY[0])
        _dies(p, "before committing to kept/bills/1")
        once(p)
        tell(p, STORY[1])
        _dies(p, "before committing to emitted/bills")
        tell(p, STORY[2])
        done = p.run()
        once(p)
        assert [state for _, state in p.states()] == ["abandoned", "abandoned", "completed"]
        assert _outputs(p) == _outputs(undisturbed)
        assert {view: p.believed(view) for view in VIEWS} == {view: undisturbed.believed(view) for view in VIEWS}
        assert {view: done["tables"][view]["emitted"]["records"] for view in VIEWS} == {
            "dear": 1,
            "bills": 3,
            "visits": 5,
            "paid": 0,
        }


@pytest.mark.long
def test_a_run_that_fails_at_every_commit_of_a_view_emits_each_record_once(
    undisturbed: Pipeline, spark: SparkSession, broker: str, tmp_path: Path
) -> None:
    seen: list[str] = []

    def fail(place: str) -> None:
        of_view = place.startswith("after committing to ") and any(view in place for view in VIEWS)
        if of_view and place not in seen:
            seen.append(place)
            raise CrashError(place)

    with pipeline(spark, broker, tmp_path, CONTRACT) as p, pytest.MonkeyPatch.context() as patch:
        watched(fail, patch.setattr)
        for number, brought in enumerate(STORY, 1):
            tell(p, brought)
            while True:
                try:
                    p.run(f"run {number}")
                    break
                except CrashError:
                    once(p)
        assert told(p) == told(undisturbed)
    for view in VIEWS:
        for run in (1, 2, 3):
            emits, keeps = (
                f"after committing to emitted/{view} in run {run}",
                f"after committing to kept/{view}/1 in run {run}",
            )
            assert seen.index(emits) < seen.index(keeps)


@pytest.mark.long
def test_what_was_emitted_stands_though_a_gate_stops_the_table_and_the_next_run_publishes_it(
    undisturbed: Pipeline, spark: SparkSession, broker: str, tmp_path: Path
) -> None:
    gate = "due: quantity * price}\n    expect: [{expect_column_values_to_be_between: {column: due, max_value: 15}}]"
    with pipeline(spark, broker, tmp_path, CONTRACT.replace("due: quantity * price}", gate)) as p:
        tell(p, STORY[0])
        p.run()
        believed = p.believed("bills")
        tell(p, STORY[1])
        with pytest.raises(GateError):
            p.run()
        assert (p.believed("bills"), len(p.raw("emitted/bills")), len(p.raw("emitted/visits"))) == (believed, 4, 2)
        assert p.states()[-1] == (2, "stopped")
        p.write(CONTRACT)
        tell(p, STORY[2])
        p.run()
        once(p)
        assert _outputs(p) == _outputs(undisturbed)
        assert {view: p.believed(view) for view in VIEWS} == {view: undisturbed.believed(view) for view in VIEWS}


def _dies(p: Pipeline, place: str) -> None:
    """A run that dies there, and is given up."""

    def fail(reached: str) -> None:
        if reached.startswith(place):
            raise CrashError(place)

    with pytest.MonkeyPatch.context() as patch:
        watched(fail, patch.setattr)
        with pytest.raises(CrashError):
            p.run()
    planner.abandon_run(p.warehouse, journal.read_runs(p.warehouse, p.name)[-1], "a test")


def _outputs(p: Pipeline) -> dict[str, Any]:
    """What the views have emitted, whichever run it was."""
    own = ("_run", "systemFrom")
    return {
        view: sorted(
            ({c: v for c, v in row.items() if c not in own} for row in p.raw(f"emitted/{view}")),
            key=lambda row: (row["_partition"], row["_offset"]),
        )
        for view in VIEWS
    }


@pytest.mark.long
def test_previews_runs_and_the_journal(spark: SparkSession, broker: str, tmp_path: Path) -> None:
    """One story: each preview is what the next run does, and writes nothing."""

    def previewed_and_run(**asked: str) -> dict[str, Any]:
        before = _versions(p)
        told = reports.preview_run(spark, p.name, **asked)["tables"]
        assert _versions(p) == before
        done = p.run(**asked)
        for name, table in told.items():
            counts = {count: done["tables"][name][count] for count in ("opened", "closed", "corrected")}
            assert {count: table[count] for count in counts} == counts, name
        once(p)
        return {view: done["tables"][view]["emitted"]["records"] for view in VIEWS}

    with pipeline(spark, broker, tmp_path, CONTRACT) as p:
        tell(p, STORY[0])
        assert previewed_and_run() == {"dear": 3, "bills": 2, "visits": 2, "paid": 0}
        tell(p, STORY[1])
        assert previewed_and_run() == {"dear": 3, "bills": 2, "visits": 1, "paid": 0}
        tell(p, PAID)
        assert previewed_and_run() == {"dear": 0, "bills": 0, "visits": 0, "paid": 1}

        # The table does not change, but the view emits: a join below would see it.
        p.send("menu", ("naan", {"price": 7}, 6))
        assert previewed_and_run() == {"dear": 1, "bills": 0, "visits": 0, "paid": 0}

        tell(p, STORY[2])
        assert previewed_and_run(only="bills") == {"dear": 0, "bills": 0, "visits": 0, "paid": 0}
        assert previewed_and_run(only="orders")["bills"] == 1
        assert previewed_and_run()["dear"] == 1

        emitted, believed = _outputs(p), {view: p.history(view) for view in VIEWS}
        shutil.rmtree(f"{p.warehouse}/{p.name}/runs")
        written = journal_rebuild.rebuild_journal(p.warehouse, p.contract)
        assert written[-1] == 7
        p.run()
        assert _outputs(p) == emitted
        assert {view: [row[:-2] for row in p.history(view)] for view in VIEWS} == {
            view: [row[:-2] for row in rows] for view, rows in believed.items()
        }

        p.write(CONTRACT.replace("price > 5", "price > 3"))
        assert previewed_and_run()["dear"] > 0
        assert {row["_epoch"] for row in p.raw("emitted/dear")} == {1, 2}
        assert {row["_epoch"] for row in p.raw("emitted/paid")} == {1}


def _versions(p: Pipeline) -> dict[str, Any]:
    """The Delta version of every table that there is, and the folders."""
    folder = Path(p.warehouse, p.name)
    return {str(log.parent): len(list(log.glob("*.json"))) for log in folder.rglob("_delta_log")} | p.versions()
