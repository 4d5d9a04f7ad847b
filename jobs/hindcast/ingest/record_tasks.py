"""Records of ranges of a topic, read in tasks of Spark by Kafka's own client or from logs: the JVM sees none."""

from __future__ import annotations

from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from typing import NamedTuple, TypeAlias

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from hindcast.archives.archived_topics import ArchivedTopics, TopicArchive
from hindcast.common.settings import Settings
from hindcast.common.spark_workers import BatchConverter, map_in_workers, pass_errors
from hindcast.ingest.logged_topics import LoggedTopics
from hindcast.kafka import record_batches, task_credentials
from hindcast.kafka.cluster import Cluster
from hindcast.kafka.topic_patterns import MemberPartitions, TopicSource, kafka_partition
from hindcast.kafka.topics import RECORD_SCHEMA, OffsetRange, count_offsets
from hindcast.store import files

_TASKS, _LEAST_PER_TASK, _MOST_PER_TASK = 8, 10_000, 200_000
"""About so many tasks read records, of so many offsets each."""
_PATIENCE = 120.0
"""Seconds that a task waits for records: Kafka may have to fetch old ones from elsewhere."""

TopicPlace: TypeAlias = tuple[str, MemberPartitions]
"""The topic of an entry in Kafka, and the members of its pattern."""


class TopicRanges(NamedTuple):
    """Ranges of a topic by partition, and the `numbers` of these in the log."""

    topic: str
    ranges: dict[int, OffsetRange]
    numbers: dict[int, int]


class Brokers(NamedTuple):
    """Brokers as tasks open them: their addresses, and the file with how to access them."""

    servers: str
    security_file: str | None

    def open_cluster(self) -> Cluster:
        """Return a cluster, which the caller closes."""
        return Cluster(self.servers, task_credentials.load_security(self.servers, self.security_file))

    @contextmanager
    def open_topics(self) -> Iterator[TopicSource]:
        """Yield the topics of the brokers."""
        with self.open_cluster() as cluster:
            yield cluster


class ArchivedBrokers(NamedTuple):
    """Brokers and archives of their topics, as tasks open them."""

    brokers: Brokers
    archives: Mapping[str, TopicArchive]

    @contextmanager
    def open_topics(self) -> Iterator[TopicSource]:
        """Yield the topics of the brokers, continued by the archives."""
        with self.brokers.open_cluster() as cluster:
            yield ArchivedTopics(cluster, self.archives)


class TaskReader(NamedTuple):
    """How tasks read records: from where, each task some ranges, and what converts their batches."""

    source: Brokers | ArchivedBrokers | LoggedTopics
    tasks: Sequence[list[TopicRanges]]
    convert: BatchConverter

    def read_batches(self, numbers: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield what the tasks of these numbers read, for Spark's mapInArrow."""
        with pass_errors(), self.source.open_topics() as source:
            ranges = (self.tasks[number] for batch in numbers for number in batch.column(0).to_pylist())
            yield from self.convert(batch for some in ranges for batch in read_ranges(source, some))


def read_in_tasks(
    spark: SparkSession,
    source: TopicSource,
    settings: Settings,
    place: TopicPlace,
    parts: Sequence[Mapping[int, OffsetRange]],
    convert: BatchConverter,
    schema: str,
) -> DataFrame:
    """Return what a converter makes of the records of these parts, which are read one after the other.

    A task has the records of a partition in offset order, and no other task has any between them. Its errors are those
    of `Cluster.read_committed_records`, for `raise_worker_errors`.
    """
    size = min(max(count_offsets(parts) // _TASKS, _LEAST_PER_TASK), _MOST_PER_TASK)
    tasks = [task for part in parts for task in divide_ranges(part, place, size)]
    reader = TaskReader(_describe_source(source, settings), tasks, convert)
    return map_in_workers(spark.range(0, len(tasks), 1, max(len(tasks), 1)), reader.read_batches, schema)


def _describe_source(source: TopicSource, settings: Settings) -> Brokers | ArchivedBrokers | LoggedTopics:
    """Return a source as tasks open it."""
    if isinstance(source, LoggedTopics):
        return source
    brokers = Brokers(settings.kafka, task_credentials.write_security(settings))
    return ArchivedBrokers(brokers, source.archives) if isinstance(source, ArchivedTopics) else brokers


def read_few(
    source: TopicSource, place: TopicPlace, parts: Sequence[Mapping[int, OffsetRange]]
) -> Generator[pa.RecordBatch, None, None] | None:
    """Return the records of these parts, which this process reads; None if they are too many for it.

    The caller closes it: a source reads one thing at a time. No task can read given records: all are read here.
    """
    if _can_tasks_read(source) and not files.is_small(count_offsets(parts)):
        return None
    return read_ranges(source, [one for part in parts for task in divide_ranges(part, place, None) for one in task])


def _can_tasks_read(source: TopicSource) -> bool:
    return isinstance(source, Cluster | ArchivedTopics | LoggedTopics)


def hold_batches(source: TopicSource, batches: Iterator[pa.RecordBatch]) -> list[pa.RecordBatch] | None:
    """Return what is made of `read_few`; None if it turns out to be too large for this process."""
    held, size = list[pa.RecordBatch](), 0
    for batch in batches:
        held.append(batch)
        size += batch.nbytes
        if _can_tasks_read(source) and size > files.SMALL_BYTES:
            return None
    return held


def read_records(
    spark: SparkSession, source: TopicSource, settings: Settings, place: TopicPlace, ranges: Mapping[int, OffsetRange]
) -> DataFrame:
    """Return the records of these ranges, with the columns of `RECORD_SCHEMA` and the bytes as sent."""
    if (few := read_few(source, place, [ranges])) is not None:
        with closing(few):
            held = hold_batches(source, few)
        if held is not None:
            return spark.createDataFrame(pa.Table.from_batches(held, record_batches.SCHEMA), RECORD_SCHEMA)
    return read_in_tasks(spark, source, settings, place, [ranges], iter, RECORD_SCHEMA)


def read_ranges(source: TopicSource, reading: Sequence[TopicRanges]) -> Generator[pa.RecordBatch, None, None]:
    """Yield the records of some ranges, with the numbers of their partitions in the log."""
    for topic, ranges, numbers in reading:
        for batch in source.read_batches(topic, ranges, _PATIENCE):
            number = pa.scalar(numbers[batch.column("partition")[0].as_py()], pa.int32())
            yield batch.set_column(0, "partition", pa.repeat(number, batch.num_rows))


def divide_ranges(
    ranges: Mapping[int, OffsetRange], place: TopicPlace, size: int | None
) -> Iterator[list[TopicRanges]]:
    """Yield ranges in tasks of about so many offsets each; all in one without a `size`."""
    task: list[TopicRanges] = []
    room = size
    for number, whole in sorted(ranges.items()):
        topic, partition = kafka_partition(*place, number)
        left = whole
        while left.start < left.end:
            if not task or task[-1].topic != topic:
                task.append(TopicRanges(topic, {}, {}))
            cut = left.end if room is None else min(left.end, left.start + room)
            task[-1].ranges[partition] = OffsetRange(left.start, cut)
            task[-1].numbers[partition] = number
            room = None if room is None else room - (cut - left.start)
            left = OffsetRange(cut, left.end)
            if room == 0:
                yield task
                task, room = [], size
    if task:
        yield task
