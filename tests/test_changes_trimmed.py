"""What changed in a table whose older history was trimmed."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from hindcast.common.errors import ContractError, QueryError
from hindcast.ops import retention
from hindcast.plan import journal
from hindcast.query import changes, read
from hindcast.query.changes import ChangeQuestion
from pipelines import Pipeline, pipeline

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

KEPT = """
pipeline: restaurant
start: 2026-01-01
topics:
  menu: {read: table, key: {item: string}, value: {price: int}, keep: {table: 10 seconds, log: 1 day}}
  orders: {read: stream, key: {customer: string}, value: {n: int}, keep: {table: 10 seconds, log: 1 day}}
"""


def list_changes(p: Pipeline, name: str) -> list[tuple[object, ...]]:
    """What the second run changed: item or customer, from, to, and how."""
    earlier, later = (run.known_at for run in journal.read_completed_runs(p.warehouse, p.name))
    lines = changes.read_changes(p.warehouse, p.contract, name, ChangeQuestion(earlier, later)).lines.to_pylist()
    return [
        (
            *line["key"].values(),
            (line.get("validFrom") or line.get("timestamp")).second,
            line["validTo"].second if line.get("validTo") else None,
            line["change"],
        )
        for line in lines
    ]


@pytest.mark.long
@pytest.mark.ci
def test_changes_begin_where_the_history_of_a_table_does(spark: SparkSession, broker: str, tmp_path: Path) -> None:
    with pipeline(spark, broker, tmp_path, KEPT) as p:
        p.send("menu", ("curry", {"price": 8}, 0), ("soup", {"price": 5}, 0), ("cake", {"price": 3}, 14))
        p.send("orders", ("x", {"n": 1}, 0), ("x", {"n": 2}, 14))
        p.run("first")
        p.send("menu", ("curry", {"price": 9}, 2), ("soup", {"price": 6}, 8), ("tea", {"price": 7}, 1))
        p.send("orders", ("y", {"n": 1}, 1), ("y", {"n": 3}, 9))
        p.run("second")
        before = {("curry", 2, None, "changed"), ("soup", 8, None, "changed"), ("tea", 1, None, "added")}
        assert {*list_changes(p, "menu")} == before
        retention.trim_pipeline(spark, p.contract)
        # the horizon is at 4 s: what is true from then on is compared
        after = {("curry", 4, None, "changed"), ("soup", 8, None, "changed"), ("tea", 4, None, "added")}
        assert {*list_changes(p, "menu")} == after
        assert list_changes(p, "orders") == [("y", 9, None, "added")]


KEYED = """
pipeline: prices
start: 2026-01-01
topics:
  menu: {read: table, key: {item: string, shop: string}, key_format: json, value: {price: int}}
"""


@pytest.mark.long
@pytest.mark.ci
def test_a_table_is_not_read_by_another_key_nor_planned_with_one(
    spark: SparkSession, broker: str, tmp_path: Path
) -> None:
    with pipeline(spark, broker, tmp_path, KEYED) as p:
        p.send("menu", ('{"item":"curry","shop":"a"}', {"price": 8}, 0))
        p.run("first")
        narrow = "key: {item: string}, key_format: json, value: {price: int, shop: string}"
        p.write(KEYED.replace("key: {item: string, shop: string}, key_format: json, value: {price: int}", narrow))
        with pytest.raises(QueryError, match="its key is item, shop, and the contract's is item"):
            read.query(p.warehouse, p.contract, "menu")
        p.write(KEYED.replace("{item: string, shop: string}", "{shop: string, item: string}"))
        p.send("menu", ('{"item":"curry","shop":"b"}', {"price": 9}, 0))
        with pytest.raises(ContractError, match="the key was item, shop"):
            p.run("second")
        assert p.states() == [(1, "completed")], "nothing was planned"
        p.write(KEYED)
        p.run("third")
        assert len(p.believed("menu")) == 2
