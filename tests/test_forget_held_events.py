"""What is held of a stream's key stays held when another record of the key is forgotten: no record is lost by it."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from hindcast.common.settings import read_settings
from hindcast.ops.erase import forget, records
from hindcast.quality import failing_rows, held_changes
from hindcast.runs import special_runs
from pipelines import pipeline, wrong

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

CONTRACT = """
pipeline: restaurant
start: 2026-01-01
topics:
  orders:
    read: stream
    key: {customer: string}
    value: {quantity: int}
    hold: HOLD
    expect:
      - expect_column_values_to_be_between: {column: quantity, min_value: 2}
        on_failure: quarantine
"""


@pytest.mark.long
@pytest.mark.parametrize("hold", ["row", "key"])
def test_held_events_of_a_key_stay_held_when_another_event_of_it_is_forgotten(
    spark: SparkSession, broker: str, tmp_path: Path, hold: str
) -> None:
    with pipeline(spark, broker, tmp_path, CONTRACT.replace("HOLD", hold)) as p:
        p.send("orders", ("ann", {"quantity": 5}, 0))
        p.run()
        p.send("orders", ("ann", {"quantity": 7}, 1), ("ann", {"quantity": 1}, 2), ("bob", {"quantity": 3}, 3))
        p.run()

        def held() -> list[tuple[str, str | None, int]]:
            rows = held_changes.read_held_rows(p.warehouse, p.name).to_pylist()
            return sorted((row["key"], row["entry"], row["offset"]) for row in rows)

        before, all_of_ann = held(), '{"customer":"ann"}'
        assert before == [(all_of_ann, "held", n) for n in ((2,) if hold == "row" else (1, 2))]
        proof = forget.forget_records(spark, p.contract, records.parse_request(p.contract, "orders", None, ["0/0"]))
        assert proof.evidence.is_proven
        assert held() == before
        assert wrong(p) == []
        keys = {"orders": held_changes.find_held_keys(p.warehouse, p.name, "orders", ["ann"])}
        special_runs.run_release(
            spark,
            read_settings(),
            p.name,
            "release",
            keys,
            "eve",
            failing_rows.read_last_entry_time(p.warehouse, p.name),
        )
        assert [row[:2] for row in p.believed("orders")] == [("ann", 1), ("ann", 7), ("bob", 3)]
        assert wrong(p) == []


BILLS = """
pipeline: restaurant
start: 2026-01-01
topics:
  menu: {read: table, key: {item: string}, value: {price: int}}
  orders: {read: stream, key: {customer: string}, value: {item: string, quantity: int}}
views:
  bills:
    stream: orders
    join: {table: menu, on: item}
    select: {amount: quantity * price}
    hold: row
    expect: [{expect_column_values_to_be_between: {column: amount, max_value: 50}, on_failure: quarantine}]
"""


@pytest.mark.long
def test_a_held_event_stays_rejected_when_a_record_of_another_topic_at_its_place_is_forgotten(
    spark: SparkSession, broker: str, tmp_path: Path
) -> None:
    with pipeline(spark, broker, tmp_path, BILLS) as p:
        p.send("menu", ("naan", {"price": 1}, 0), ("curry", {"price": 2}, 0))
        p.send("orders", ("dave", {"item": "curry", "quantity": 100}, 5), ("eve", {"item": "curry", "quantity": 1}, 5))
        p.run()
        held_changes.reject_keys(p.warehouse, p.name, {"bills": ['{"customer":"dave"}']}, "boss", datetime.now(UTC))
        forget.forget_records(spark, p.contract, records.parse_request(p.contract, "menu", "naan"))
        rows = held_changes.read_held_rows(p.warehouse, p.name).to_pylist()
        assert [(row["entry"], row["offset"], row["run"]) for row in rows] == [("rejected", 0, 1)]
        forget.forget_records(spark, p.contract, records.parse_request(p.contract, "orders", "dave"))
        assert not p.raw("failing")
