"""Which partition a key goes to: the hashes that clients use, and keys that are in several partitions because of that.

Java clients take murmur2; librdkafka, and with it most clients of Python, Go, C# and PHP, takes crc32 unless it is told
otherwise; Sarama takes fnv1a. A topic that is written with two of them has most keys in two partitions.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from contextlib import closing

from hindcast.kafka.topics import Cluster, Offsets

PARTITIONERS = {
    "murmur2": "murmur2_random",
    "crc32": "consistent_random",
    "fnv1a": "fnv1a_random",
    "random": "random",
}
"""Partitioners by what they are called here, as librdkafka calls them. Records without a key go anywhere."""

NEWEST = 100_000
"""So many of a topic's newest records are searched for keys."""


def find_partitions(cluster: Cluster, topic: str, keys: Collection[bytes]) -> dict[bytes, set[int]]:
    """Return the partitions in which the newest records of a topic have these keys; nothing for a single partition."""
    held = cluster.available(topic)
    if len(held) == 1 or not keys:
        return {}
    each = NEWEST // len(held)
    ranges = {partition: Offsets(max(it.start, it.end - each), it.end) for partition, it in held.items()}
    found: dict[bytes, set[int]] = {}
    with closing(cluster.committed(topic, ranges)) as batches:
        for message in (message for batch in batches for message in batch):
            key = message.key()
            if isinstance(key, bytes) and key in keys:
                found.setdefault(key, set()).add(message.partition() or 0)
    return found


def describe_scattered(topic: str, sent: Mapping[bytes, set[int]], before: Mapping[bytes, set[int]]) -> str | None:
    """Return a warning if keys were sent to other partitions than those that have them already; None if none was."""
    others = {key: before[key] - places for key, places in sent.items() if before.get(key, places) - places}
    if not others:
        return None
    key, there = next(iter(others.items()))
    shown = f"{key.decode('utf-8', 'replace')}: now in {_list(sent[key])}, before in {_list(there)}"
    many = f"{len(others):,} of {len(sent):,} keys are" if len(sent) > 1 else "the key is"
    return (
        f"warning: {many} in other partitions of {topic} too ({shown}). Of two records of a key with one timestamp the "
        "one in the larger partition holds, whichever was sent later: take the partitioner of the topic's other "
        f"producers (--partitioner {', '.join(PARTITIONERS)}), or --partition"
    )


def _list(partitions: Collection[int]) -> str:
    return ", ".join(map(str, sorted(partitions)))
