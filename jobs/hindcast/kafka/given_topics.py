"""Topics whose records are given, in place of a broker's: the source that tests of a contract run on.

A `GivenTopics` gives a run what a `Cluster` gives: topics, offsets and records. So a run plans and decodes given
records with the same code as Kafka's.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import NamedTuple

from pyspark.sql import DataFrame, SparkSession

from hindcast.common.settings import Settings
from hindcast.kafka.cluster import floor_to_millis
from hindcast.kafka.topics import RECORD_SCHEMA, OffsetRange


class GivenRecord(NamedTuple):
    """A record as Kafka would have it: its partition, timestamp, bytes and headers."""

    partition: int
    timestamp: datetime
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...] = ()


class GivenTopics:
    """Topics with `partitions` partitions each, to which records are appended; none of them is compacted."""

    servers = "given records"

    def __init__(self, topics: Iterable[str], partitions: int) -> None:
        self._logs: dict[str, list[list[GivenRecord]]] = {topic: [[] for _ in range(partitions)] for topic in topics}

    def append_records(self, topic: str, records: Iterable[GivenRecord]) -> None:
        """Append records to a topic; each gets the next offset of its partition."""
        for record in records:
            self._logs[topic][record.partition].append(record)

    def list_topics(self) -> dict[str, list[int]]:
        """Return every topic with its partitions."""
        return {topic: [*range(len(partitions))] for topic, partitions in self._logs.items()}

    def has_topic(self, topic: str) -> bool:
        """Return whether the topic exists."""
        return topic in self._logs

    def topic_id(self, topic: str) -> str:
        """Return the id of the topic, which is never recreated."""
        return f"given {topic}"

    def is_compacted(self, _: str) -> bool:
        """Return False: all records stay."""
        return False

    def read_offset_ranges(self, topic: str) -> dict[int, OffsetRange]:
        """Return the offsets that each partition holds now."""
        return {n: OffsetRange(0, len(records)) for n, records in enumerate(self._logs[topic])}

    def find_offsets_for_time(self, topic: str, moment: datetime, latest: datetime) -> dict[int, int | None]:
        """Return per partition the first offset dated from `moment` up to `latest`; None if there is none."""
        return {
            n: next(
                (o for o, record in enumerate(records) if moment <= floor_to_millis(record.timestamp) <= latest), None
            )
            for n, records in enumerate(self._logs[topic])
        }

    def read_topics(
        self, spark: SparkSession, _: Settings, ranges: Mapping[str, Mapping[int, OffsetRange]]
    ) -> DataFrame:
        """Return the records of these ranges, with their `topic` and the columns of `RECORD_SCHEMA`."""
        rows = [
            (topic, partition, offset, floor_to_millis(r.timestamp), 0, r.key, r.value, [*r.headers] or None)
            for topic, parts in ranges.items()
            for partition, (start, end) in parts.items()
            for offset, r in enumerate(self._logs[topic][partition][start:end], start)
        ]
        return spark.createDataFrame(rows, f"topic string, {RECORD_SCHEMA}")
