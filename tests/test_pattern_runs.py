"""Topics by pattern on the real broker: one log and one table of all that match, each record with its place in Kafka."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from confluent_kafka.admin import AdminClient

from hindcast import journal, plans, produce
from hindcast.topics import Cluster
from pipelines import Pipeline, pipeline, tuples, until

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SALES = """
pipeline: sales
start: 2026-01-01
topics:
  sales:
    pattern: sales-.*
    read: table
    key: {sale: string}
    value: {amount: int}
    max_malformed: 1
views:
  large:
    table: sales
    where: amount >= 10
"""


def made(p: Pipeline, **partitions: int) -> None:
    """Topics `sales-<name>` with so many partitions."""
    for name, count in partitions.items():
        produce.create(p.servers, p.kafka(f"sales-{name}"), partitions=count)


def deleted(p: Pipeline, topic: str) -> None:
    name = p.kafka(topic)
    AdminClient({"bootstrap.servers": p.servers, "log_level": 0}).delete_topics([name])[name].result(20)
    with Cluster(p.servers) as cluster:
        until(lambda: name not in cluster.topics())


def share(p: Pipeline) -> plans.Share:
    """What the last plan takes."""
    return plans.Plan.from_json(journal.runs(p.warehouse, p.name)[-1].plan).topics["sales"]


def named(p: Pipeline) -> list[tuple[int, str, int]]:
    """The members of the last plan: number, topic without the test's own prefix, partition."""
    return [(n, it.topic.removeprefix(f"{p.prefix}."), it.partition) for n, it in share(p).members.items()]


@pytest.mark.long
def test_all_topics_of_a_pattern_are_one_table(spark: SparkSession, broker: str, tmp_path: Path) -> None:
    with pipeline(spark, broker, tmp_path, SALES) as p:
        made(p, us=1, eu=2)
        produce.create(broker, p.kafka("presales-eu"), p.kafka("sales"))
        p.send("presales-eu", ("never", {"amount": 99}, 0))
        p.send("sales-eu", *((f"eu{n}", {"amount": n}, n) for n in range(20)))
        p.send("sales-us", ("us0", {"amount": 10}, 0), ("eu3", {"amount": 33}, 30))
        told = p.run("first")
        assert named(p) == [(0, "sales-eu", 0), (1, "sales-eu", 1), (2, "sales-us", 0)]
        assert told["topics"]["sales"]["offsets"] == 22
        now = {row[0]: row[1] for row in p.believed("sales") if row[-1] is None}
        assert now == {f"eu{n}": n for n in range(20)} | {"eu3": 33, "us0": 10}
        assert ("eu3", 33, 30, None) in p.believed("large")
        places = tuples(p.raw("logs/sales"), "topic", "topicPartition", "partition")
        assert set(places) == {(p.kafka(topic), partition, n) for n, topic, partition in named(p)}
        ids = {row["topic"]: row["topicId"] for row in p.raw("logs/sales")}
        with Cluster(broker) as cluster:
            assert ids == {topic: cluster.topic_id(topic) for topic in ids}

        before = p.versions()
        p.run("nothing new")
        assert p.versions() == before

        made(p, asia=1)  # its name comes first, its number last
        p.send("sales-asia", ("asia0", {"amount": 50}, 1), ("asia1", b"no number", 2), ("us0", {"amount": 11}, 3))
        p.send("sales-us", ("us1", {"amount": 12}, 4))
        p.run("third")
        assert named(p)[3:] == [(3, "sales-asia", 0)]
        assert share(p).ranges[3] == (0, 3)
        assert tuples(p.raw("quarantine"), "topic", "partition", "offset", "fate") == [
            (p.kafka("sales-asia"), 0, 1, "malformed")
        ]
        assert [row for row in p.believed("sales") if row[0] in ("asia0", "us0", "us1")] == [
            ("asia0", 50, 1, None),
            ("us0", 10, 0, 3),
            ("us0", 11, 3, None),
            ("us1", 12, 4, None),
        ]
        before = p.versions()
        p.run("backfill", until=60)
        assert p.versions() == before
