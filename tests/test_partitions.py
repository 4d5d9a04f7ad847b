"""Topics of many partitions, most of them empty: what a plan asks, how many tasks read them, and what a run tells."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from hindcast.airflow.pages import ledger_page
from hindcast.common.settings import read_settings
from hindcast.ingest import ledger, record_tasks
from hindcast.kafka import produce
from hindcast.kafka.cluster import Cluster
from hindcast.kafka.given_topics import GivenTopics
from hindcast.kafka.topics import RECORD_SCHEMA, OffsetRange
from hindcast.plan import journal
from hindcast.runs import run_steps
from hindcast.store import tables
from pipelines import Pipeline, at, pipeline

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

MANY = 200
CONTRACT = """
pipeline: many
start: 2026-01-01
topics:
  prices:
    read: table
    key: {item: string}
    value: {price: int}
"""


def test_a_plan_asks_for_many_partitions_as_often_as_for_one(broker: str, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    ask = Cluster._ask

    def counted(cluster: Cluster, question: Any, topic: str) -> Any:
        asked.extend([topic] * (question != cluster._poll_messages))
        return ask(cluster, question, topic)

    monkeypatch.setattr(Cluster, "_ask", counted)
    for name, partitions in (("partitions.one", 1), ("partitions.many", MANY)):
        produce.create_topics(broker, name, partitions=partitions)
        produce.send_records(
            broker, name, [produce.ProducerRecord(b"%d" % n, b"{}", at(n % 2 * 10)) for n in range(220)]
        )
        with Cluster(broker) as cluster:
            held = cluster.read_offset_ranges(name)
            bound = cluster.find_offsets_for_time(name, at(5), at(20))
        assert sum(r.end - r.start for r in held.values()) == 220
        assert held.keys() == bound.keys() == set(range(partitions))
        assert all(bound[p] is None for p, r in held.items() if r.end == r.start)
        assert any(hit is not None for hit in bound.values())
    assert asked.count("partitions.one") == asked.count("partitions.many") < 10


@pytest.mark.long
@pytest.mark.ci
@pytest.mark.slow
def test_a_run_over_many_partitions_reads_only_those_that_have_something(
    spark: SparkSession, broker: str, tmp_path: Path
) -> None:
    with pipeline(spark, broker, tmp_path, CONTRACT, partitions=MANY) as p, pytest.MonkeyPatch.context() as patch:
        patch.setenv("HINDCAST_CHUNK", "15")
        patch.setattr(ledger_page, "MAX_PARTITIONS", 10)
        p.send("prices", *((f"item{n}", {"price": n}, n) for n in range(24)), ("item1", {"price": 0}, -5))
        report = p.run("first")
        assert len(p.believed("prices")) == 25
        assert report["topics"]["prices"]["late"] == 1
        pieces = ledger.read_ingested_ranges(tables.log_table(p.warehouse, p.name, "prices"))
        assert {(it.partition, it.start, it.end) for it in pieces} == taken(p, 2)
        rows = ledger.read_ledger(p.warehouse, p.name).to_pylist()
        assert len(rows) == len(pieces)
        assert sum(row["accepted"] for row in rows) == 25
        (shown,) = ledger_page.build_page(read_settings(), p.contract, ["prices"])["topics"]
        assert (len(shown["rows"]), shown["partitions"]) == (10, len({it.partition for it in pieces}))

        p.send("prices", *((f"item{n}", {"price": n}, n + 200) for n in range(0, 24, 2)))
        new = taken(p, run_steps.plan_run(read_settings(), p.name, "second"))
        assert len(new) <= 12
        assert new.isdisjoint(taken(p, 2))


def taken(p: Pipeline, number: int) -> set[tuple[int, int, int]]:
    """Partition, start and end of what a run has planned to read."""
    (run,) = (run for run in journal.read_runs(p.warehouse, p.name) if run.number == number)
    parts = run.plan.topics["prices"].parts
    return {(partition, *its) for part in parts for partition, its in part.items()}


def test_a_large_partition_is_read_by_several_tasks_and_small_ones_share_them(spark: SparkSession) -> None:
    settings = replace(read_settings(), kafka="localhost:1")  # only planned
    for count, size, tasks in ((1, 4_000_000, 20), (10, 5, 1), (3, 8_000, 3), (300, 100, 3)):
        ranges = {n: OffsetRange(0, size) for n in range(count)}
        source = GivenTopics([], 1)  # only planned
        read = record_tasks.read_in_tasks(spark, source, settings, ("p", {}), [ranges], iter, RECORD_SCHEMA)
        assert read.rdd.getNumPartitions() == tasks
