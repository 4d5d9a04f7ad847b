"""Topics whose records are given, in place of a broker's: the source that tests of a contract run on.

A `GivenTopics` gives a run what a `Cluster` gives: topics, offsets and records. So a run plans and decodes given
records with the same code as Kafka's.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime
from typing import NamedTuple

import pyarrow as pa

from hindcast.kafka import record_batches
from hindcast.kafka.cluster import floor_to_millis
from hindcast.kafka.topics import OffsetRange


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
    missing_reason = None

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

    def read_batches(
        self,
        topic: str,
        ranges: Mapping[int, OffsetRange],
        patience: float = 0.0,  # noqa: ARG002  # of a broker
    ) -> Iterator[pa.RecordBatch]:
        """Yield the records of these ranges, a batch for each partition."""
        for partition, (start, end) in ranges.items():
            rows = [
                (partition, offset, floor_to_millis(r.timestamp), 0, r.key, r.value, [*r.headers] or None)
                for offset, r in enumerate(self._logs[topic][partition][start:end], start)
            ]
            if rows:
                columns = zip(record_batches.SCHEMA.names, zip(*rows, strict=True), strict=True)
                yield pa.RecordBatch.from_pydict(dict(columns), record_batches.SCHEMA)
