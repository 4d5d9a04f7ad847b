"""The segments of a topic whose records need nothing of Spark but its tasks: Kafka's own client reads them.

A task reads some offsets, decodes them in Arrow and packs them; of a few this process does. The JVM sees no record.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import NamedTuple

import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql.pandas.types import from_arrow_schema

from hindcast.common.spark_workers import map_in_workers, pass_errors, raise_worker_errors
from hindcast.contract.bound import BoundContract
from hindcast.formats.arrow_decode import ArrowDecoder, ArrowDecoding
from hindcast.ingest import segments
from hindcast.ingest.segment_fates import FateRule
from hindcast.ingest.segments import Origin, Segments
from hindcast.kafka import jvm_credentials, record_batches
from hindcast.kafka.cluster import Cluster
from hindcast.kafka.topic_patterns import MemberPartitions, kafka_partition
from hindcast.kafka.topics import OffsetRange
from hindcast.store import files

_TASKS, _LEAST_PER_TASK, _MOST_PER_TASK = 8, 10_000, 200_000
"""About so many tasks read records, of so many offsets each."""
_PATIENCE = 120.0
"""Seconds that a task waits for records: Kafka may have to fetch old ones from elsewhere."""


class TopicRanges(NamedTuple):
    """Ranges of a topic by partition, and the `numbers` of these in the log."""

    topic: str
    ranges: dict[int, OffsetRange]
    numbers: dict[int, int]


class ClientReader(NamedTuple):
    """How Kafka's own client reads a topic's records: from these brokers, decoded so."""

    servers: str
    security_file: str | None
    decoding: ArrowDecoding

    def read_in_tasks(
        self, tasks: Sequence[list[TopicRanges]], numbers: Iterator[pa.RecordBatch]
    ) -> Iterator[pa.RecordBatch]:
        """Yield the segments that the tasks of these numbers read, for Spark's mapInArrow."""
        decoder = self.decoding.open_decoder()
        how = jvm_credentials.load_task_security(self.servers, self.security_file)
        with pass_errors(), Cluster(self.servers, how) as cluster:
            for number in (number for batch in numbers for number in batch.column(0).to_pylist()):
                yield from _read_segments(cluster, decoder, tasks[number])


def read_by_client(
    spark: SparkSession,
    contract: BoundContract,
    cluster: Cluster,
    decoding: ArrowDecoding,
    place: tuple[str, MemberPartitions],
    rule: FateRule,
    origin: Origin,
) -> Segments:
    """Return the records of ranges of a topic as segments; a few are read by this process.

    `place`: its name in Kafka, and the members of a pattern. Raises UnreadableHeadersError if Spark has to read them.
    """
    decoder = decoding.open_decoder()
    none = pa.RecordBatch.from_pylist([], record_batches.SCHEMA)
    schema = from_arrow_schema(decoder.decode_batch(none).schema)
    if files.is_small(total := origin.count_offsets()):
        packed = _read_few(cluster, decoder, [it for part in origin.ranges for it in _divide(part, place, None)])
        if packed is not None:
            return segments.hold_segments(spark, packed, schema, rule, origin)
    size = min(max(total // _TASKS, _LEAST_PER_TASK), _MOST_PER_TASK)
    tasks = [task for part in origin.ranges for task in _divide(part, place, size)]
    reader = ClientReader(contract.settings.kafka, jvm_credentials.write_task_security(contract.settings), decoding)
    numbers = spark.range(0, len(tasks), 1, len(tasks))
    frame = map_in_workers(numbers, partial(reader.read_in_tasks, tasks), segments.PACKED_SCHEMA)
    with raise_worker_errors():
        return segments.read_segments(frame, schema, rule, origin, few=False)


def _divide(
    ranges: Mapping[int, OffsetRange], place: tuple[str, MemberPartitions], size: int | None
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


def _read_few(
    cluster: Cluster, decoder: ArrowDecoder, readings: Sequence[list[TopicRanges]]
) -> list[pa.RecordBatch] | None:
    """Return the segments of a few records; None if they turn out to be large."""
    packed: list[pa.RecordBatch] = []
    for reading in readings:
        for batch in _read_segments(cluster, decoder, reading):
            packed.append(batch)
            if sum(it.nbytes for it in packed) > files.SMALL_BYTES:
                return None
    return packed


def _read_segments(cluster: Cluster, decoder: ArrowDecoder, reading: list[TopicRanges]) -> Iterator[pa.RecordBatch]:
    """Yield the segments of what is to be read."""

    def decode_batches() -> Iterator[pa.RecordBatch]:
        for topic, ranges, numbers in reading:
            for batch in record_batches.read_batches(cluster, topic, ranges, patience=_PATIENCE):
                number = pa.scalar(numbers[batch.column("partition")[0].as_py()], pa.int32())
                numbered = batch.set_column(0, "partition", pa.repeat(number, batch.num_rows))
                yield decoder.decode_batch(numbered)

    yield from segments.pack_batches(decode_batches())
