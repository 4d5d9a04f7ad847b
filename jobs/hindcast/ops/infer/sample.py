"""A sample of a topic: its records, where they lie, and what Kafka says of the topic. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from hindcast.kafka.topics import OffsetRange

TimestampType = Literal["CreateTime", "LogAppendTime", "none"]


class SampledRecord(NamedTuple):
    """A record of Kafka. `timestamp`: milliseconds since 1970, negative for none.

    `headers`: their names; None if one of them is not UTF-8 text.
    """

    partition: int
    offset: int
    timestamp: int
    timestamp_type: TimestampType
    key: bytes | None
    value: bytes | None
    headers: tuple[str, ...] | None = ()

    @property
    def place(self) -> str:
        """The record's place, as messages show it."""
        return f"partition {self.partition}, offset {self.offset}"


@dataclass(frozen=True)
class TopicSample:
    """The records that were read of a topic, in the order of partition and offset.

    `ranges`: the offsets of each partition; `compacted`: whether Kafka keeps only a key's last record, None if Kafka
    does not say; `stopped`: whether reading ended early because of the size of the records; `writers`: schemas of the
    registry by id, as JSON.
    """

    topic: str
    ranges: Mapping[int, OffsetRange]
    compacted: bool | None
    records: tuple[SampledRecord, ...]
    stopped: bool = False
    writers: Mapping[int, str] = field(default_factory=dict)

    @property
    def offset_count(self) -> int:
        """The number of offsets of all partitions: at least that of the records."""
        return sum(r.end - r.start for r in self.ranges.values())


def plan_sample(ranges: Mapping[int, OffsetRange], most: int) -> list[dict[int, OffsetRange]]:
    """Return the ranges to read, at most so many offsets: the beginning, the middle and the end of each partition.

    Small partitions are read whole, and leave their share to the others. The first part has the beginnings.

    {0: [0, 100), 1: [5, 7)} by 11 -> {1: [5, 7), 0: [0, 3)}, {0: [48, 51)}, {0: [97, 100)}
    """
    parts: list[dict[int, OffsetRange]] = [{}, {}, {}]
    left, waiting = most, sorted(ranges, key=lambda p: ranges[p].end - ranges[p].start)
    while waiting:
        partition = waiting.pop(0)
        start, end = ranges[partition]
        share = left // (len(waiting) + 1)
        if end - start <= share or share < _LEAST_SPLIT:
            parts[0][partition] = OffsetRange(start, min(end, start + max(share, 1)))
        else:
            third = share // _PLACES
            middle = start + (end - start - third) // 2
            for part, first in zip(parts, (start, middle, end - third), strict=True):
                part[partition] = OffsetRange(first, first + third)
        left -= sum(part[partition].end - part[partition].start for part in parts if partition in part)
    return [part for part in parts if part]


_PLACES, _LEAST_SPLIT = 3, 3


def find_wire_ids(payloads: list[bytes]) -> set[int]:
    """Return the schema ids that payloads in the schema registry's wire format name: a byte 0, then four of the id."""
    return {int.from_bytes(it[1:5]) for it in payloads if len(it) >= HEADER_SIZE and it[0] == 0}


HEADER_SIZE = 5
"""The bytes before the Avro of a payload that names its schema."""
