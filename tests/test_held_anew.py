"""Held changes when more changes than their records: `hold` itself, a definition that is put back, a removed folder."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from hindcast.runs import incremental_state
from pipelines import pipeline, wrong
from test_row_holds import held, release

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

EVENTS = """
pipeline: shop
start: 2026-01-01
topics:
  orders:
    read: stream
    key: {id: string}
    value: {n: int}
    hold: row
    expect: [{expect_column_values_to_be_between: {column: n, min_value: 5}, on_failure: quarantine}]
"""
BY_KEY = EVENTS.replace("    hold: row\n", "")


@pytest.mark.long
def test_events_of_a_key_that_is_held_now_and_was_held_by_row_are_published_once(
    spark: SparkSession, broker: str, tmp_path: Path
) -> None:
    with pipeline(spark, broker, tmp_path, EVENTS) as p:
        p.send("orders", ("ann", {"n": 1}, 1), ("ann", {"n": 7}, 2))
        p.run()
        assert p.believed("orders") == [("ann", 7, 2)]
        p.write(BY_KEY)
        p.run()
        release(p, "orders", "ann")
        if held(p, "orders"):  # what was shown has had only one of the two
            release(p, "orders", "ann")
        assert p.believed("orders") == [("ann", 1, 1), ("ann", 7, 2)]
        assert not held(p, "orders")
        assert not wrong(p)


@pytest.mark.long
def test_an_event_that_was_held_by_another_definition_is_not_published_again(
    spark: SparkSession, broker: str, tmp_path: Path
) -> None:
    gate = "{expect_column_values_to_be_in_set: {column: of, value_set: [x]}, on_failure: quarantine}"
    other = EVENTS.replace("{n: int}", "{n: int, of: string}").replace("expect: [", f"expect: [{gate}, ")
    with pipeline(spark, broker, tmp_path, EVENTS) as p:
        p.send("orders", ("ann", {"n": 7, "of": "y"}, 1))
        p.run()
        p.write(other)
        p.run()
        assert held(p, "orders")
        p.write(EVENTS)
        p.run()
        p.send("orders", ("bob", {"n": 8}, 2))
        p.run()
        assert [row[:2] for row in p.believed("orders")] == [("ann", 7), ("bob", 8)]


@pytest.mark.long
@pytest.mark.parametrize("read", ["stream", "table"])
def test_a_held_key_of_a_table_whose_folder_was_removed_is_released_with_all_its_rows(
    spark: SparkSession, broker: str, tmp_path: Path, read: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(incremental_state, "MAX_WHOLE_ROWS", 0)
    with pipeline(spark, broker, tmp_path, BY_KEY.replace("read: stream", f"read: {read}")) as p:
        p.send("orders", ("ann", {"n": 7}, 1), ("bob", {"n": 7}, 1))
        p.run()
        p.send("orders", ("ann", {"n": 1}, 2))
        p.run()
        shutil.rmtree(Path(p.warehouse, p.name, "orders"))
        p.run()
        assert [row[:2] for row in p.believed("orders")] == [("bob", 7)]
        p.send("orders", ("bob", {"n": 8}, 3))
        p.run()
        release(p, "orders", "ann")
        assert {row[:3] for row in p.believed("orders") if row[0] == "ann"} == {("ann", 7, 1), ("ann", 1, 2)}
        assert not held(p, "orders")
        assert not wrong(p)


PERIODS = """
pipeline: shop
start: 2026-01-01
topics:
  orders:
    read: table
    key: {id: string}
    value: {n: int}
    hold: row
    expect:
      - unexpected_rows_expectation:
          unexpected_rows_query: "SELECT * FROM {batch} WHERE validto < validfrom + INTERVAL 1 HOUR"
        on_failure: quarantine
"""


@pytest.mark.long
def test_a_gate_on_periods_is_one_in_any_case(spark: SparkSession, broker: str, tmp_path: Path) -> None:
    with pipeline(spark, broker, tmp_path, PERIODS) as p:
        p.send("orders", ("ann", {"n": 1}, 0))
        p.run()
        p.send("orders", ("ann", {"n": 2}, 600))
        p.run()
        assert held(p, "orders") == {('{"id":"ann"}', 1)}
        assert p.believed("orders") == [("ann", 1, 0, None)]
