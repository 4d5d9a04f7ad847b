"""Epochs of kafka views: when one begins from scratch, so that nothing is counted twice and nothing is lost."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewPartitions

from hindcast.plan import journal, planner
from hindcast.runs import run_steps
from pipelines import pipeline, wrong

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

CHAIN = """
pipeline: shop
start: 2026-01-01
topics:
  orders: {read: stream, key: {customer: string}, value: {item: string, quantity: int}}
views:
  big: {stream: orders, where: quantity > 1, semantics: kafka}
  counts: {stream: big, aggregate: {n: count(*)}, semantics: kafka}
"""


@pytest.mark.long
@pytest.mark.ci
def test_a_view_begins_from_scratch_with_the_view_that_it_reads(
    spark: SparkSession, broker: str, tmp_path: Path
) -> None:
    """Though its own definition is the one that it has emitted by: a run with another was given up in between."""
    with pipeline(spark, broker, tmp_path, CHAIN) as p:
        p.send("orders", *(("ann", {"item": "curry", "quantity": n}, n) for n in (1, 2, 3)))
        p.run()
        assert p.believed("counts") == [("ann", 1, 2, 3), ("ann", 2, 3, None)]
        p.write(CHAIN.replace("quantity > 1", "quantity > 2"))
        number = run_steps.plan_run(p.settings, p.name, "given up")
        run_steps.replay_topic(spark, p.settings, p.name, number, "orders")
        run_steps.build_view(spark, p.settings, p.name, number, "big")
        planner.abandon_run(p.warehouse, journal.read_active_run(p.warehouse, p.name, number), "by a test")
        p.write(CHAIN)
        p.send("orders", ("ann", {"item": "curry", "quantity": 4}, 4))
        p.run()
        assert [row[1:] for row in p.believed("counts")] == [(1, 2, 3), (2, 3, 4), (3, 4, None)]
        before = p.versions()
        p.run()
        assert p.versions() == before
        assert wrong(p) == []


TWO = """
pipeline: shop
start: 2026-01-01
topics:
  orders: {read: stream, key: {customer: string}, value: {item: string}}
  menu: {read: table, key: {item: string}, value: {price: int}}
views:
  dear: {table: menu, where: price > 1, semantics: kafka}
  bills: {stream: orders, join: {table: dear, on: item}, select: {price: price}, semantics: kafka}
"""


@pytest.mark.long
def test_a_view_of_a_topic_that_gets_partitions_but_no_record_has_emitted_before_it_is_read_anew(
    spark: SparkSession, broker: str, tmp_path: Path
) -> None:
    with pipeline(spark, broker, tmp_path, TWO) as p:
        p.send("menu", ("tea", {"price": 8}, 0))  # of two partitions Kafka puts it into the first one, too
        p.send("orders", ("ann", {"item": "tea"}, 1))
        p.run()
        admin = AdminClient({"bootstrap.servers": broker})
        admin.create_partitions([NewPartitions(p.kafka("menu"), 2)])[p.kafka("menu")].result(20)
        p.send("orders", ("bob", {"item": "tea"}, 2))
        p.run(only="orders")
        assert [row[:2] for row in p.believed("bills")] == [("ann", 8), ("bob", 8)]
        p.send("orders", ("eve", {"item": "tea"}, 3))
        p.run()
        assert [row[:2] for row in p.believed("bills")] == [("ann", 8), ("bob", 8), ("eve", 8)]
        assert wrong(p) == []


GROUPS = """
pipeline: shop
start: 2026-01-01
topics:
  orders: {read: stream, key: {customer: string}, value: {item: string}, max_malformed: 1}
views:
  items: {stream: orders, group_by: {item: item}, aggregate: {n: count(*)}, semantics: kafka}
"""


@pytest.mark.long
def test_a_view_begins_from_scratch_when_a_topic_gets_partitions_but_not_when_more_may_be_malformed(
    spark: SparkSession, broker: str, tmp_path: Path
) -> None:
    with pipeline(spark, broker, tmp_path, GROUPS) as p:
        p.send("orders", *((f"c{n}", {"item": item}, n) for n, item in enumerate(("soup", "naan", "curry", "tea") * 2)))
        p.run()
        epochs = {row["_epoch"] for row in p.raw("emitted/items")}
        p.write(GROUPS.replace("max_malformed: 1", "max_malformed: 2"))
        p.send("orders", ("c9", {"item": "soup"}, 9))
        p.run()
        assert {row["_epoch"] for row in p.raw("emitted/items")} == epochs
        admin = AdminClient({"bootstrap.servers": broker})
        admin.create_partitions([NewPartitions(p.kafka("orders"), 3)])[p.kafka("orders")].result(20)
        p.send("orders", *((f"c{n}", {"item": item}, n) for n, item in enumerate(("soup", "naan", "curry", "tea"), 10)))
        p.run()
        now = {row[0]: row[1] for row in p.believed("items") if row[-1] is None}
        assert now == {"soup": 4, "naan": 3, "curry": 3, "tea": 3}
        assert wrong(p) == []
