"""Columns by any name that a contract allows: names that the engine uses too, and one that is named twice."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from hindcast.engine import eligibility
from pipelines import derive_whole_up_to, pipeline

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

CONTRACT = """
pipeline: names
start: 2026-01-01
topics:
  quotes: {read: table, key: {item: string}, value: {price: int, change: int}}
  trades: {read: stream, key: {change: string}, value: {item: string, row: int}}
  pairs: {read: table, key: {p: string, q: string}, value: {position: int}}
views:
  priced: {stream: trades, join: {table: quotes, on: item, how: left}, select: {change_of: quotes.change, row: row}}
  twice: {stream: trades, join: {table: pairs, on: [item, item], how: left}, select: {position: position}}
  moves: {table: quotes, aggregate: {change: sum(change)}, group_by: {x: item, y: item}}
  most: {stream: trades, aggregate: {key: max(row)}, group_by: {value: item}}
  hours: {stream: trades, aggregate: {key: max(row)}, window: {tumbling: 10 seconds}}
"""


@pytest.mark.long
@pytest.mark.parametrize("whole", [500_000, pytest.param(-1, marks=pytest.mark.ci)], ids=["whole", "by kernels"])
def test_columns_have_any_name_and_stand_for_themselves(
    spark: SparkSession, broker: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, whole: int
) -> None:
    derive_whole_up_to(whole, monkeypatch)
    monkeypatch.setattr(eligibility, "MIN_ROWS", max(0, whole))
    with pipeline(spark, broker, tmp_path, CONTRACT) as p:
        p.send("quotes", ("a", {"price": 10, "change": 1}, 0), ("a", {"price": 12, "change": 2}, 5))
        p.send("pairs", ('{"p": "a", "q": "a"}', {"position": 7}, 0), ('{"p": "a", "q": "b"}', {"position": 8}, 0))
        p.send("trades", ("x", {"item": "a", "row": 3}, 6))
        p.run()
        assert p.believed("quotes") == [("a", 10, 1, 0, 5), ("a", 12, 2, 5, None)]
        assert p.believed("trades") == [("x", "a", 3, 6)]
        p.send("quotes", ("a", {"price": 11, "change": 3}, 3))
        p.send("pairs", ('{"p": "a", "q": "a"}', {"position": 9}, 2))
        p.send("trades", ("y", {"item": "a", "row": 4}, 4), ("y", {"item": "a", "row": 5}, 7))
        told = p.run()["tables"]
        assert p.believed("quotes") == [("a", 10, 1, 0, 3), ("a", 11, 3, 3, 5), ("a", 12, 2, 5, None)]
        assert p.believed("priced") == [("x", 2, 3, 6), ("y", 3, 4, 4), ("y", 2, 5, 7)]
        assert p.believed("twice") == [("x", 9, 6), ("y", 9, 4), ("y", 9, 7)]
        assert p.believed("moves") == [("a", "a", 1, 0, 3), ("a", "a", 3, 3, 5), ("a", "a", 2, 5, None)]
        assert p.believed("most") == [("a", 4, 4, 6), ("a", 4, 6, 7), ("a", 5, 7, None)]
        assert p.believed("hours") == [("x", 3, 0, 10), ("y", 5, 0, 10)]
        assert {name for name in p.contract.views if told[name].get("kernel")} == (
            {*p.contract.views} if whole < 0 else set()
        )
