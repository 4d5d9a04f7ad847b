"""Records that Kafka's own client reads, in this process and in tasks of Spark, and what becomes of its errors."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from pyspark.sql import SparkSession
from pyspark.sql import functions as F
from pyspark.storagelevel import StorageLevel

from hindcast.common import spark_workers
from hindcast.common.errors import AccessError, HindcastError, TopicError
from hindcast.common.settings import read_settings
from hindcast.ingest import client_segments, record_tasks, topic_segments
from hindcast.kafka import produce, record_batches
from hindcast.kafka.cluster import LOST_OFFSETS, Cluster
from hindcast.kafka.produce import ProducerRecord
from hindcast.kafka.topics import OffsetRange
from hindcast.store import files
from pipelines import Pipeline, at, pipeline

ODD = [
    ProducerRecord(b"k", b'{"n": 1}', at(1)),
    ProducerRecord(None, None, at(2)),
    ProducerRecord(b"", b"", at(3)),
    ProducerRecord(b"\xff", b"\x00\xff", -1),
    ProducerRecord(b"k", b"v", 1),
    ProducerRecord(b"k", b"v", 9_000_000_000_000_000),
    ProducerRecord(b"k", b"v", at(4), (("by", b"\xff"), ("by", b""), ("", None), ("ä", b"x"))),
    ProducerRecord(b"k", b"v", at(5), (("last", b"1"),)),
]


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_records_come_as_they_were_sent(spark: SparkSession, broker: str, codec: str) -> None:
    """To this process, and from tasks of a few offsets through Spark."""
    name = f"client.{codec}"
    produce.create_topics(broker, name, partitions=2)
    producer = Producer({"bootstrap.servers": broker, "compression.type": codec})
    for partition in (0, 1):
        for it in ODD:
            producer.produce(name, it.value, it.key, partition, timestamp=millis(it), headers=[*it.headers])
    producer.flush(20)
    ranges = {0: OffsetRange(1, 8), 1: OffsetRange(0, 5)}
    expected = [
        (
            *(partition, offset, max(-MOST, min(millis(it), MOST)) * 1000, 0, it.key),
            *(it.value, [{"key": name, "value": value} for name, value in it.headers] or None),
        )
        for partition, (start, end) in ranges.items()
        for offset, it in enumerate(ODD)
        if start <= offset < end
    ]
    settings = replace(read_settings(), kafka=broker)
    with Cluster(broker) as cluster, pytest.MonkeyPatch.context() as patch:
        here = pa.Table.from_batches([*cluster.read_batches(name, ranges)], record_batches.SCHEMA)
        few = record_tasks.read_records(spark, cluster, settings, (name, {}), ranges).toArrow()
        patch.setattr(files, "is_small", lambda *_: False)
        patch.setattr(record_tasks, "_LEAST_PER_TASK", 3)
        tasks = record_tasks.read_records(spark, cluster, settings, (name, {}), ranges)
        assert tasks.rdd.getNumPartitions() == 4
        for found in (here, few, tasks.toArrow()):
            rows = found.sort_by([("partition", "ascending"), ("offset", "ascending")])
            rows = rows.set_column(2, "timestamp", rows.column("timestamp").cast(pa.int64()))
            assert [tuple(row.values()) for row in rows.to_pylist()] == expected


MOST = (2**63 - 1) // 1000
"""Spark's last millisecond."""


def millis(record: ProducerRecord) -> int:
    """The timestamp of a record."""
    it = record.timestamp
    return it if isinstance(it, int) else int(it.timestamp() * 1000)


CONTRACT = """
pipeline: by_client
start: 2026-01-01
topics:
  prices:
    read: table
    key: {item: string}
    value: {price: int, at: timestamp}
    max_malformed: 100
    history_retention: 10 seconds
"""
DATED = (
    CONTRACT.replace("at: timestamp}", "at: timestamp, by: string}")
    + """
    headers: {by: by}
    valid_time: at
    max_record_bytes: 60
"""
)


def logs(p: Pipeline) -> list[dict[str, Any]]:
    """The rows of the log and the table, without what differs from pipeline to pipeline."""
    own = ("run", "runId", "topicId", "systemFrom", "knownAt")
    rows = [
        {name: value for name, value in row.items() if name not in own}
        for table in ("logs/prices", "prices")
        for row in p.raw(table)
    ]
    return sorted(rows, key=repr)


PLACES = {
    "is_small": (files, "is_small"),
    "size": (record_tasks, "_MOST_PER_TASK"),
    "least": (record_tasks, "_LEAST_PER_TASK"),
    "forgotten": (topic_segments, "_has_forgotten"),
}


def replay(
    spark: SparkSession, broker: str, folder: Path, text: str = CONTRACT, **patches: Any
) -> tuple[list[dict[str, Any]], int]:
    """What a replay of records of every kind makes, and how many of its segments were decoded where they were read."""
    folder.mkdir()
    found = []
    with pipeline(spark, broker, folder, text) as p, pytest.MonkeyPatch.context() as patch:
        for name, value in patches.items():
            patch.setattr(*PLACES[name], value)
        read = client_segments.read_decoded

        def watch(*args: Any) -> Any:
            segments = read(*args)
            found.append(len(segments.starts))
            return segments

        patch.setattr(client_segments, "read_decoded", watch)
        records = [
            ProducerRecord(*pair, at(seconds))
            for n, seconds in enumerate((0, 30, 5, 25, 31, 2, 60))
            for pair in ((b"curry", b'{"price": %d}' % n), (b"soup", None), (None, b"{}"), (b"x", b'{"price": 1.5}'))
        ]
        dated = [
            ProducerRecord(b"tea", b'{"price": %d, "at": "2026-01-01T00:00:%02d"}' % (n, second), at(n), headers)
            for n, second in enumerate((40, 20, 55, 45, 44))
            for headers in ((("by", "ann"), ("by", "bob")), (("by", b"\xff"),), (), (("other", b"x" * 40),))
        ]
        produce.send_records(p.servers, p.kafka("prices"), [*records, *dated, ProducerRecord(b"y", b"{}", -1)])
        p.run("first")
        return logs(p), sum(found)


@pytest.mark.parametrize("text", [CONTRACT, DATED])
def test_a_replay_is_the_same_whoever_reads(spark: SparkSession, broker: str, tmp_path: Path, text: str) -> None:
    """Decoded as Spark hands them over, or where they are read: in this process, in tasks of few offsets, in one."""
    by_spark, none = replay(spark, broker, tmp_path / "spark", text, forgotten=lambda *_: True)
    here, few = replay(spark, broker, tmp_path / "here", text)
    one, whole = replay(spark, broker, tmp_path / "one", text, is_small=lambda *_: False)
    several, many = replay(spark, broker, tmp_path / "several", text, is_small=lambda *_: False, size=4, least=1)
    assert none == 0 < few == whole < many
    assert len(by_spark) > 30
    assert {row.get("fate") for row in by_spark} >= {"accepted", "expired", "malformed", "no_timestamp"}
    assert by_spark == here == one == several


def test_a_batch_is_read_however_much_zstd_unpacks(broker: str) -> None:
    """Java's producer makes such batches when its estimate of the compression is off."""
    produce.create_topics(broker, "client.unpacked")
    own = {"compression.type": "zstd", "batch.size": 200 << 20, "linger.ms": 60_000, "batch.num.messages": 100_000}
    producer = Producer({"bootstrap.servers": broker, "message.max.bytes": 500 << 20, **own})
    for _ in range(6_000):
        producer.produce("client.unpacked", b"a" * 10_000)
    producer.flush(60)
    with Cluster(broker) as cluster:
        ranges = cluster.read_offset_ranges("client.unpacked")
        assert sum(batch.num_rows for batch in cluster.read_batches("client.unpacked", ranges)) == 6_000


@pytest.mark.long
def test_packed_records_need_no_memory_once_they_are_written(spark: SparkSession) -> None:
    """A hundred values of 32 MB: more than the test's JVM has."""
    rows = spark.range(0, 100, 1, 1).select(F.repeat(F.lit("x"), 32 << 20).alias("rows"))
    assert rows.localCheckpoint(storageLevel=StorageLevel.DISK_ONLY).count() == 100


def test_a_reader_that_is_left_early_can_read_something_else(broker: str) -> None:
    produce.create_topics(broker, "client.left")
    produce.send_records(broker, "client.left", [ProducerRecord(b"k", b"x" * 1000, at(n)) for n in range(50)])
    with Cluster(broker) as cluster, pytest.MonkeyPatch.context() as patch:
        few = record_tasks.read_few(cluster, ("client.left", {}), [{0: OffsetRange(0, 50)}])
        assert few is not None
        patch.setattr(files, "SMALL_BYTES", 10)
        with closing(few):
            assert record_tasks.hold_batches(cluster, few) is None
        assert sum(map(len, cluster.read_committed_records("client.left", {0: OffsetRange(10, 50)}))) == 40


def test_a_topic_that_is_deleted_while_it_is_read_says_so(broker: str) -> None:
    produce.create_topics(broker, "client.deleted")
    produce.send_records(broker, "client.deleted", [ProducerRecord(b"k", b"{}", at(0))])
    with Cluster(broker) as cluster:
        read = cluster.read_committed_records("client.deleted", {0: OffsetRange(0, 5)}, 3.0)
        assert len(next(read)) == 1
        admin = AdminClient({"bootstrap.servers": broker})
        admin.delete_topics(["client.deleted"])["client.deleted"].result(20)
        with pytest.raises(TopicError, match=r"deleted while it was read|does not exist") as caught:
            list(read)
    assert caught.value.fix


def test_a_reader_that_stops_early_is_an_error(broker: str) -> None:
    produce.create_topics(broker, "client.short")
    produce.send_records(broker, "client.short", [ProducerRecord(b"k", b"{}", at(n)) for n in range(5)])
    with Cluster(broker) as cluster:
        assert sum(map(len, cluster.read_committed_records("client.short", {0: OffsetRange(2, 5)}))) == 3
        with pytest.raises(TopicError, match="ends at offset 5: its records up to 7 are gone"):
            list(cluster.read_committed_records("client.short", {0: OffsetRange(2, 7)}, 1.0))
        admin = AdminClient({"bootstrap.servers": broker})
        place = TopicPartition("client.short", 0, 3)
        admin.delete_records([place])[place].result(20)
        with pytest.raises(TopicError, match=LOST_OFFSETS):
            list(cluster.read_committed_records("client.short", {0: OffsetRange(1, 5)}))


@pytest.mark.parametrize(
    ("kind", "texts"),
    [
        (TopicError, ('lost "offsets"]', "topic a, partition 1", "retry\nor not")),
        (AccessError, ("refused: äöü [1]", "b", "")),
    ],
)
def test_errors_of_workers_say_in_this_process_what_they_say_there(
    spark: SparkSession, kind: type[HindcastError], texts: tuple[str, str, str]
) -> None:
    def fail(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        with spark_workers.pass_errors():
            yield from batches
            raise kind(texts[0], where=texts[1], fix=texts[2])

    rows = spark_workers.map_in_workers(spark.range(0, 2, 1, 1), fail, "id long")
    with pytest.raises(kind) as caught, spark_workers.raise_worker_errors():
        rows.collect()
    assert (caught.value.found, caught.value.where, caught.value.fix) == texts


class Sent:
    """A message of 10 bytes, and more of headers."""

    def __init__(self, partition: int, offset: int, header: bytes = b"") -> None:
        self.place, self.header = (partition, offset), header

    def __len__(self) -> int:
        return 10

    def partition(self) -> int:
        return self.place[0]

    def offset(self) -> int:
        return self.place[1]

    def timestamp(self) -> tuple[int, int]:
        return 1, 0

    def key(self) -> None:
        return None

    def headers(self) -> list[tuple[str, bytes]] | None:
        return [("h", self.header)] if self.header else None

    value = key


def test_keys_and_headers_count_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(record_batches, "_BYTES", 1_000)
    received: Any = [[Sent(0, offset, b"x" * 300) for offset in range(10)]]
    found = [it.column("offset").to_pylist() for it in record_batches.build_batches(received)]
    assert found == [[*range(6)], [*range(6, 10)]]


def test_few_bytes_wait_for_others_of_their_partitions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(record_batches, "_BYTES", 100)
    monkeypatch.setattr(record_batches, "_RECORDS", 6)
    messages = [[Sent(p, offset)] for offset in range(9) for p in (0, 1, 2) if p == 0 or offset % 4 == 0]
    received: Any = messages
    found = [it.select(["partition", "offset"]).to_pydict() for it in record_batches.build_batches(received)]
    assert [(it["partition"], it["offset"]) for it in found] == [
        ([0] * 6, [0, 1, 2, 3, 4, 5]),
        ([1, 1], [0, 4]),
        ([2, 2], [0, 4]),
        ([0, 0, 0], [6, 7, 8]),
        ([1], [8]),
        ([2], [8]),
    ]


def test_ranges_are_divided_among_tasks() -> None:
    ranges = {2: OffsetRange(0, 7), 0: OffsetRange(5, 9), 1: OffsetRange(3, 3)}
    tasks = record_tasks.divide_ranges(ranges, ("menu", {}), 5)
    assert [[(part.topic, part.ranges) for part in task] for task in tasks] == [
        [("menu", {0: (5, 9), 2: (0, 1)})],
        [("menu", {2: (1, 6)})],
        [("menu", {2: (6, 7)})],
    ]
    ((whole,),) = record_tasks.divide_ranges(ranges, ("menu", {}), None)
    assert (whole.ranges, whole.numbers) == ({0: (5, 9), 2: (0, 7)}, {0: 0, 2: 2})
