"""What the sample says of a topic besides its columns: keys, timestamps, lateness, partitions. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from typing import Literal, NamedTuple
from zlib import crc32

import pyarrow as pa

from hindcast.common.plurals import format_count
from hindcast.contract.types import format_duration
from hindcast.ops.infer.sample import SampledRecord, TopicSample
from hindcast.streams.murmur2 import assign_partitions

_DAY = timedelta(days=1)
_STEPS = tuple(_DAY * days for days in (1, 2, 3, 7, 14, 30, 60, 90, 180, 365, 730, 3650))


class Lateness(NamedTuple):
    """How far records are behind the largest timestamp before them in their partition, as far as the sample shows."""

    records: int
    late: int
    p99: timedelta
    most: timedelta

    @property
    def retention(self) -> timedelta:
        """Twice the largest lateness, rounded up to a length that people write; at least a day."""
        return next((step for step in _STEPS if step >= 2 * self.most), 2 * self.most)


class KeyFacts(NamedTuple):
    """How many records have a key, how many keys there are, how many repeat, how many are in several partitions."""

    records: int
    null: int
    different: int
    repeated: int
    scattered: int


def find_partitioner(sample: TopicSample) -> str | None:
    """Return the hash by which keys are partitioned, `murmur2` or `crc32`; empty for another one.

    None if that cannot be told: from a single partition, or from few keys.
    """
    partitions = {record.key: record.partition for record in sample.records if record.key is not None}
    keys = [*partitions][:_MOST_KEYS]
    if len(sample.ranges) == 1 or len(keys) < _LEAST_KEYS:
        return None
    count = len(sample.ranges)
    by_hash = {
        "murmur2": assign_partitions(pa.array(keys, pa.binary()), count).to_pylist(),
        "crc32": [crc32(key) % count for key in keys],
    }
    actual = [partitions[key] for key in keys]
    return next((name for name, expected in by_hash.items() if expected == actual), "")


_LEAST_KEYS, _MOST_KEYS = 20, 2_000


def describe_partitioner(sample: TopicSample) -> Iterator[str]:
    """Yield how keys are partitioned, in words, if that can be told."""
    match find_partitioner(sample):
        case None:
            return
        case "":
            yield (
                "keys are not all partitioned by murmur2 (Java's clients) or by crc32 (librdkafka's): views with "
                "semantics: kafka join only topics that are partitioned alike"
            )
        case name:
            yield f"keys are partitioned by {name}, as by {_CLIENTS[name]}"


_CLIENTS = {"murmur2": "Java's clients", "crc32": "librdkafka's clients"}


def measure_lateness(times: Iterable[tuple[int, int]]) -> Lateness:
    """Return the lateness of records, given the partition and the milliseconds of each in the order of offsets."""
    stream_time: dict[int, int] = {}
    behind: list[int] = []
    for partition, at in times:
        if at >= 0:
            known = min(at, _MAX)  # a timedelta has no more
            latest = stream_time[partition] = max(known, stream_time.get(partition, known))
            behind.append(latest - known)
    ordered = sorted(behind)
    p99 = ordered[(99 * len(ordered) - 1) // 100] if ordered else 0
    most = ordered[-1] if ordered else 0
    late = sum(1 for lag in ordered if lag)
    return Lateness(len(ordered), late, timedelta(milliseconds=p99), timedelta(milliseconds=most))


def count_keys(records: Sequence[SampledRecord]) -> KeyFacts:
    """Return how often keys repeat, and whether they keep to one partition."""
    counts = Counter(record.key for record in records if record.key is not None)
    places: dict[bytes, set[int]] = {}
    for record in records:
        if record.key is not None:
            places.setdefault(record.key, set()).add(record.partition)
    null = len(records) - counts.total()
    repeated = sum(1 for n in counts.values() if n > 1)
    return KeyFacts(len(records), null, len(counts), repeated, sum(1 for found in places.values() if len(found) > 1))


def choose_reading(sample: TopicSample, keys: KeyFacts, *, envelope: bool) -> tuple[Literal["table", "stream"], str]:
    """Return how to read a topic, and the reason."""
    tombstones = sum(1 for record in sample.records if record.value is None)
    if envelope:
        return "table", "change events of a database's table"
    if sample.compacted:
        return "table", f"the topic is compacted; {_describe_keys(keys)}"
    if tombstones:
        return "table", f"{format_count(tombstones, 'tombstone')}: records without a value, which end their key"
    compaction = "not compacted" if sample.compacted is False else "Kafka does not say whether it is compacted"
    reason = f"{compaction}, no tombstones; {_describe_keys(keys)}"
    if keys.repeated:
        reason += "; write table if a record replaces the one before it of its key"
    return "stream", reason


def describe_sample(sample: TopicSample) -> str:
    """Return how much of the topic was read, in words."""
    count, total = len(sample.records), sample.offset_count
    partitions = format_count(len(sample.ranges), "partition")
    empty = sum(1 for r in sample.ranges.values() if r.end == r.start)
    without = f", {empty} of them empty" if empty else ""
    stopped = ", fewer than asked for because they are large" if sample.stopped else ""
    if count == total:
        return f"{sample.topic}: all {format_count(count, 'record')} of {partitions}{without}"
    where = "at the beginning, the middle and the end of each partition"
    return f"{sample.topic}: {count:,} records of {total:,} offsets in {partitions}{without}, {where}{stopped}"


def describe_timestamps(sample: TopicSample, now: datetime) -> Iterator[str]:
    """Yield what Kafka's timestamps are, and what is odd about them, in words."""
    kinds = Counter(record.timestamp_type for record in sample.records)
    times = [record.timestamp for record in sample.records if record.timestamp >= 0]
    if times:
        span = f"{_format_millis(min(times))} to {_format_millis(max(times))}"
        names = ", ".join(f"{_TYPES[kind]} ({kind}) in {n:,}" for kind, n in kinds.most_common() if kind != "none")
        yield f"timestamps: {names}; {span}"
    if missing := len(sample.records) - len(times):
        yield f"{format_count(missing, 'record')} without a timestamp would be refused (no_timestamp)"
    limit = (now + _DAY).timestamp() * 1000
    if future := sum(1 for at in times if at > limit):
        yield f"{format_count(future, 'record')} dated more than a day ahead would be refused (max_time_skew)"


def describe_lateness(lateness: Lateness) -> Iterator[str]:
    """Yield how late records come, in words; nothing if they have no timestamps."""
    if lateness.records and not lateness.late:
        yield f"lateness: none of {lateness.records:,} records is dated before one that came earlier in its partition"
    elif lateness.late:
        p99, most = _format_length(lateness.p99), _format_length(lateness.most)
        yield (
            f"lateness: {lateness.late:,} of {lateness.records:,} records are dated before one that came earlier in "
            f"their partition; 99% by at most {p99}, the latest by {most}"
        )


def _describe_keys(keys: KeyFacts) -> str:
    if keys.null == keys.records:
        return "no record has a key"
    return f"{format_count(keys.different, 'key')} in {format_count(keys.records - keys.null, 'record')}"


_TYPES = {"CreateTime": "the producer's", "LogAppendTime": "the broker's"}
_MIN, _MAX = -62_135_596_800_000, 253_402_300_799_999


def _format_millis(millis: int) -> str:
    moment = datetime.fromtimestamp(0, UTC) + timedelta(milliseconds=max(_MIN, min(millis, _MAX)))
    return moment.strftime("%Y-%m-%d %H:%M:%S").rjust(19, "0")


def _format_length(length: timedelta) -> str:
    """Return a length in words, rounded up to whole seconds from ten seconds on, to minutes from ten minutes on."""
    for unit in (timedelta(hours=1), timedelta(minutes=1), timedelta(seconds=1)):
        if length >= 10 * unit:
            return format_duration(-(-length // unit) * unit)
    return format_duration(length) if length else "0 s"
