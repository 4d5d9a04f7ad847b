"""Reading a bounded sample of a topic: the only module here that asks Kafka or a schema registry."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import closing

from confluent_kafka import TIMESTAMP_CREATE_TIME, TIMESTAMP_LOG_APPEND_TIME, Message

from hindcast.common.errors import AccessError, TopicError, suggest_nearest
from hindcast.common.settings import Settings
from hindcast.formats import registry
from hindcast.kafka.cluster import Cluster
from hindcast.kafka.topics import OffsetRange, count_offsets
from hindcast.ops.infer.sample import SampledRecord, TimestampType, TopicSample, find_wire_ids, plan_sample

MAX_BYTES = 64 << 20
"""The most bytes of a topic's keys and values that are kept."""

_MAX_IDS = 50
"""More different schema ids than this are not those of a registry, but numbers that look like them."""


def read_samples(settings: Settings, topics: Sequence[str], most: int) -> list[TopicSample]:
    """Return a sample of at most so many records of each topic; TopicError for one that is missing or empty.

    Raises AccessError if Kafka or the registry refuses us, SettingsError if values need a registry and none is set.
    """
    with Cluster(settings.kafka) as cluster:
        known = cluster.list_topics()
        for topic in topics:
            if topic not in known and not cluster.has_topic(topic):
                names = [name for name in known if not name.startswith("__")]
                where = f"{settings.kafka}, topic {topic}"
                raise TopicError("the topic does not exist", where=where, fix=suggest_nearest(topic, names))
        return [_read_sample(cluster, settings, topic, most) for topic in topics]


def _read_sample(cluster: Cluster, settings: Settings, topic: str, most: int) -> TopicSample:
    ranges = cluster.read_offset_ranges(topic)
    records: dict[tuple[int, int], SampledRecord] = {}
    parts = plan_sample(ranges, most)
    stopped = [_read_part(cluster, topic, part, records, most, MAX_BYTES // len(parts)) for part in parts]
    planned = count_offsets(parts)
    is_sparse = len(records) < min(most, planned) // 2  # compaction or transactions left few records at these offsets
    if is_sparse and planned < count_offsets([ranges]) and not any(stopped):
        stopped.append(_read_part(cluster, topic, ranges, records, most, MAX_BYTES))
    if not records:
        raise _empty_topic_error(topic, max((r.end for r in ranges.values()), default=0))
    ordered = tuple(record for _, record in sorted(records.items()))
    sample = TopicSample(topic, ranges, _find_compaction(cluster, topic), ordered, any(stopped))
    return _add_schemas(settings, sample)


def _read_part(
    cluster: Cluster,
    topic: str,
    part: Mapping[int, OffsetRange],
    records: dict[tuple[int, int], SampledRecord],
    most: int,
    most_bytes: int,
) -> bool:
    """Add the records of these ranges to `records`, until there are `most`; return whether they had too many bytes."""
    size = 0
    with closing(cluster.read_committed_records(topic, part)) as batches:
        for record in (_convert_message(message) for batch in batches for message in batch):
            records[record.partition, record.offset] = record
            size += len(record.key or b"") + len(record.value or b"")
            if size > most_bytes:
                return True
            if len(records) >= most:
                break
    return False


def _convert_message(message: Message) -> SampledRecord:
    kind, timestamp = message.timestamp()
    timestamp_type = _TIMESTAMP_TYPES.get(kind, "none")
    key, value = message.key(), message.value()
    return SampledRecord(
        message.partition() or 0,
        message.offset() or 0,
        timestamp if timestamp_type != "none" else -1,
        timestamp_type,
        key.encode() if isinstance(key, str) else key,
        value.encode() if isinstance(value, str) else value,
        _read_header_names(message),
    )


def _read_header_names(message: Message) -> tuple[str, ...] | None:
    """Return the names of a message's headers; None if Kafka's client cannot read them, as one is not UTF-8 text."""
    try:
        return tuple(str(header[0]) for header in message.headers() or ())
    except (SystemError, UnicodeDecodeError):  # the client returns no headers and leaves its error behind
        return None


_TIMESTAMP_TYPES: dict[int, TimestampType] = {
    TIMESTAMP_CREATE_TIME: "CreateTime",
    TIMESTAMP_LOG_APPEND_TIME: "LogAppendTime",
}


def _empty_topic_error(topic: str, end: int) -> TopicError:
    found = "the topic has no records"
    if end:
        found += ": retention, compaction or aborted transactions have left none of those that it had"
    fix = f"send some first (hindcast produce {topic} FILE), or write the contract by hand (docs/contract.md)"
    return TopicError(found, where=f"topic {topic}", fix=fix)


def _find_compaction(cluster: Cluster, topic: str) -> bool | None:
    """Return whether the topic is compacted; None without the right to see its configuration."""
    try:
        return cluster.is_compacted(topic)
    except AccessError:
        return None


def _add_schemas(settings: Settings, sample: TopicSample) -> TopicSample:
    """Return a sample with the schemas that its records name, if they are in the registry's wire format."""
    writers: dict[int, str] = {}
    for part in ("key", "value"):
        payloads = [raw for record in sample.records if (raw := getattr(record, part)) is not None]
        ids = find_wire_ids(payloads) - {0}
        named = sum(1 for raw in payloads if raw[:1] == b"\0" and len(raw) > _LEAST_WIRE)
        if not ids or len(ids) > _MAX_IDS or 2 * named < len(payloads) or _are_numbers(payloads):
            continue
        writers |= registry.fetch_schemas(settings, ids, f"topic {sample.topic}")
    return TopicSample(sample.topic, sample.ranges, sample.compacted, sample.records, sample.stopped, writers)


_LEAST_WIRE = 5


def _are_numbers(payloads: Sequence[bytes]) -> bool:
    """Return whether payloads look like what Kafka's LongSerializer writes: 8 bytes each, with different numbers."""
    return {len(raw) for raw in payloads} == {8} and len({raw[1:5] for raw in payloads}) > 1
