"""Offsets of topics, available and within an interval, and the columns of records."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from hindcast.common.errors import TopicError


class OffsetRange(NamedTuple):
    """The half-open range of offsets [start, end) of one partition."""

    start: int
    end: int


def count_offsets(parts: Iterable[Mapping[int, OffsetRange]]) -> int:
    """Return how many offsets ranges of partitions have."""
    return sum(r.end - r.start for part in parts for r in part.values())


def bound_ranges(
    available: Mapping[int, OffsetRange], starts: Mapping[int, int], bound: Mapping[int, int | None]
) -> dict[int, OffsetRange]:
    """Return the ranges of a run: per partition from its start up to the interval's bound, or to its end without one.

    A range never runs backwards: what earlier runs replayed beyond the bound stays replayed.
    """
    ranges = {}
    for partition, offsets in available.items():
        start, hit = starts[partition], bound.get(partition)
        ranges[partition] = OffsetRange(start, max(start, offsets.end if hit is None else min(hit, offsets.end)))
    return ranges


def split_ranges(ranges: Mapping[int, OffsetRange], size: int) -> list[dict[int, OffsetRange]]:
    """Return the ranges in pieces of about `size` offsets, each with the same part of every partition, in offset order.

    {0: [0, 6), 1: [0, 2)} by 4 -> {0: [0, 3), 1: [0, 1)}, {0: [3, 6), 1: [1, 2)}
    """
    total = sum(r.end - r.start for r in ranges.values())
    count = -(-total // size)
    pieces: list[dict[int, OffsetRange]] = [{} for _ in range(count)]
    before = 0
    for partition, (start, end) in ranges.items():
        # Partitions with fewer offsets than there are pieces take turns: what went `before` shifts their cuts.
        cuts = [start + ((end - start) * n + before % count) // count for n in range(count + 1)]
        for piece, low, high in zip(pieces, cuts, cuts[1:], strict=False):
            if high > low:
                piece[partition] = OffsetRange(low, high)
        before += end - start
    return [piece for piece in pieces if piece]


def refuse_lost_offsets(topic: str, ends: Mapping[int, int], available: Mapping[int, OffsetRange]) -> None:
    """Raise TopicError if Kafka has less of a topic than was replayed already, up to `ends`."""
    for partition, end in sorted(ends.items()):
        where = f"topic {topic}, partition {partition}"
        if partition not in available:
            raise TopicError("was replayed before and no longer exists", where=where, fix=_RECREATED_FIX)
        high = available[partition].end
        if end > high:
            raise TopicError(
                f"offsets up to {end - 1} were replayed, but the partition ends at {high - 1}",
                where=where,
                fix=_RECREATED_FIX,
            )


def recreated_topic_error(topic: str, run: int, *, is_ingested: bool = True) -> TopicError:
    """Return the error for a topic whose id is not the one that run `run` knew.

    `is_ingested`: the log has some of it.
    """
    fix = "replay the new topic into a new pipeline (another pipeline: name in the contract)"
    if not is_ingested:
        fix = f"if what the former topic had may go, write on_gap: record; or {fix}"
    found = f"was deleted and recreated since run {run}: its offsets mean other records"
    return TopicError(found, where=f"topic {topic}", fix=fix)


def other_topic_error(topic: str, former: str, run: int) -> TopicError:
    """Return the error for a topic in whose place run `run` read a former one."""
    found = f"run {run} read {former}, and the contract names another topic"
    fix = f"name {former} again, or give the pipeline another name: projects that share a warehouse need different ones"
    return TopicError(found, where=f"topic {topic}", fix=fix)


UNREADABLE_HEADERS = "(headers that cannot be read)"
"""The name of the only header of a record whose headers could not be read (`record_batches`)."""
HEADERS_SCHEMA = "headers array<struct<key: string, value: binary>>"


RECORD_SCHEMA = (
    f"partition int, offset long, timestamp timestamp, timestampType int, key binary, value binary, {HEADERS_SCHEMA}"
)
"""The columns of a record."""


_RECREATED_FIX = "the topic was recreated: replay it into a new pipeline (another pipeline: name in the contract)"
