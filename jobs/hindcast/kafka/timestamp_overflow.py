"""Records whose timestamps make Spark's Kafka connector fail: their milliseconds overflow its microseconds.

Those are dates outside the years -290308 to 294247: nanoseconds sent as milliseconds, say, or garbage. Kafka's own
client then reads the partition, in a Spark task, and takes the nearest timestamp that Spark has.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TypeVar

import pyarrow as pa
from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]  # it has no types
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from hindcast.common.settings import Settings
from hindcast.common.spark_workers import map_in_workers
from hindcast.kafka import jvm_credentials
from hindcast.kafka.cluster import Cluster
from hindcast.kafka.record_batches import read_batches
from hindcast.kafka.topic_patterns import MemberPartitions, TopicSource, kafka_partition, log_partition
from hindcast.kafka.topics import RECORD_SCHEMA, OffsetRange

Result = TypeVar("Result")

_OVERFLOW = re.compile(r"Record at topic (\S+) partition (\d+) offset \d+ has timestamp value -?\d+ that overflows")


def run_with_client_fallback(
    read: Callable[[frozenset[int]], Result], members: MemberPartitions, topics: TopicSource
) -> Result:
    """Return what `read` returns for the records of topics.

    It gets the partitions that Kafka's own client has to read: none at first, then those of which Spark's connector
    refuses a record. Given `topics` have no such records, and no broker that a client could ask: whatever an
    error of theirs says, it is raised.
    """
    by_client = frozenset[int]()
    while True:
        try:
            return read(by_client)
        except (PySparkException, Py4JJavaError) as error:
            refused = _OVERFLOW.search(str(error)) if isinstance(topics, Cluster) else None
            if refused is None or (partition := log_partition(members, refused[1], int(refused[2]))) in by_client:
                raise
            by_client |= {partition}


def read_records_by_client(
    spark: SparkSession, settings: Settings, kafka: str, members: MemberPartitions, ranges: Mapping[int, OffsetRange]
) -> DataFrame:
    """Return the rows of `topic_patterns.read_records`, read by Kafka's own client: a task for each partition."""
    rows = [(n, *kafka_partition(kafka, members, n), *offsets) for n, offsets in ranges.items()]
    columns = "number int, topic string, partition int, start long, end long"
    frame = spark.createDataFrame(rows, columns).repartition(len(rows), "number")
    servers, security_file = settings.kafka, jvm_credentials.write_task_security(settings)

    def read(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for row in (row for batch in batches for row in batch.to_pylist()):
            with Cluster(servers, jvm_credentials.load_task_security(servers, security_file)) as cluster:
                offsets = {row["partition"]: OffsetRange(row["start"], row["end"])}
                for records in read_batches(cluster, row["topic"], offsets, all_headers=False):
                    numbers = pa.repeat(pa.scalar(row["number"], pa.int32()), records.num_rows)
                    yield records.set_column(0, "partition", numbers)

    return map_in_workers(frame, read, RECORD_SCHEMA)
