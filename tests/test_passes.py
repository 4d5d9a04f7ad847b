"""Rehearsed runs that are made in one pass are the runs that would have been made date by date."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from hindcast.common.settings import read_settings
from hindcast.ingest import ledger
from hindcast.plan import journal
from hindcast.runs import rehearsal
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


def send_histories(p: Pipeline, chance: random.Random, count: int) -> None:
    """Records of several keys: late ones, ties, tombstones, repeats, arrivals that are missing or go back."""
    for topic in ("menu", "stock", "orders"):
        records = []
        for n in range(count):
            now = 60 * n / count
            headers = chance.choice([[sent(now)], [sent(now)], [sent(now - chance.randrange(30))], []])
            item, second = f"dish{chance.randrange(5)}", chance.randrange(40)
            if topic == "orders":
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
    found: dict[str, Any] = {name: sorted(map(repr, p.raw(name))) for name in (*names, "quarantine", "failing")}
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
    assert list_reports(p) == list_reports(other)


def test_a_pass_leaves_what_runs_date_by_date_leave(spark: SparkSession, broker: str, tmp_path: Path) -> None:
    chance = random.Random(3)  # noqa: S311  # any will do
    with pipeline(spark, broker, tmp_path / "a", CONTRACT, partitions=3) as p:
        send_histories(p, chance, 150)
        made = rehearse(p, -30, 60, "10 seconds", in_passes=True)
        plans = [run.plan for run in journal.read_runs(p.warehouse, p.name)]
        assert [plan.pass_numbers for plan in plans] == [None, *[(2, 9)] * 8]
        with beside(p, tmp_path / "b") as other:
            assert len(rehearse(other, -30, 60, "10 seconds", in_passes=False)) == len(made)
            assert_alike(p, other)
        assert wrong(p) == []
