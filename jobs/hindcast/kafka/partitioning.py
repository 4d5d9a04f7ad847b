"""Partitioning of keys: the hashes that clients use, and keys that are in several partitions because of that.

Java clients use murmur2; librdkafka, and with it most clients of Python, Go, C# and PHP, uses crc32 by default; Sarama
uses fnv1a. A topic that is written with two of them has most keys in two partitions.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from contextlib import closing

from hindcast.kafka.cluster import Cluster
from hindcast.kafka.topics import OffsetRange

PARTITIONERS = {
    "murmur2": "murmur2_random",
    "crc32": "consistent_random",
    "fnv1a": "fnv1a_random",
    "random": "random",
}
"""Our names of partitioners, with those of librdkafka. Records without a key go anywhere."""

MAX_NEWEST_RECORDS = 100_000
"""How many of a topic's newest records are searched for keys."""


def find_partitions(cluster: Cluster, topic: str, keys: Collection[bytes]) -> dict[bytes, set[int]]:
    """Return the partitions in which the newest records of a topic have these keys; nothing for a single partition."""
    available = cluster.read_offset_ranges(topic)
    if len(available) == 1 or not keys:
        return {}
    each = MAX_NEWEST_RECORDS // len(available)
    ranges = {p: OffsetRange(max(start, end - each), end) for p, (start, end) in available.items()}
    partitions: dict[bytes, set[int]] = {}
    with closing(cluster.read_committed_records(topic, ranges)) as batches:
        for message in (message for batch in batches for message in batch):
            key = message.key()
            if isinstance(key, bytes) and key in keys:
                partitions.setdefault(key, set()).add(message.partition() or 0)
    return partitions


def describe_scattered(topic: str, sent: Mapping[bytes, set[int]], before: Mapping[bytes, set[int]]) -> str | None:
    """Return a warning if keys were sent to other partitions than those that have them already; None if none was."""
    others = {key: before[key] - places for key, places in sent.items() if before.get(key, places) - places}
    if not others:
        return None
    key, previous = next(iter(others.items()))
    now_in, before_in = _format_partitions(sent[key]), _format_partitions(previous)
    shown = f"{key.decode('utf-8', 'replace')}: now in {now_in}, before in {before_in}"
    many = f"{len(others):,} of {len(sent):,} keys are" if len(sent) > 1 else "the key is"
    return (
        f"warning: {many} in other partitions of {topic} too ({shown}). Of two records of a key with one timestamp the "
        "one in the larger partition holds, whichever was sent later: take the partitioner of the topic's other "
        f"producers (--partitioner {', '.join(PARTITIONERS)}), or --partition"
    )


def _format_partitions(partitions: Collection[int]) -> str:
    return ", ".join(map(str, sorted(partitions)))
