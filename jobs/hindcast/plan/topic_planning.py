"""Planning a topic: which of its offsets a run ingests, given what runs before it have taken."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime

from hindcast.archives import archived_topics
from hindcast.bitemporal import valid_time
from hindcast.common import clock
from hindcast.contract.bound import BoundContract
from hindcast.kafka import gaps, topic_patterns
from hindcast.kafka.topic_patterns import TopicSource
from hindcast.kafka.topics import (
    OffsetRange,
    bound_ranges,
    other_topic_error,
    recreated_topic_error,
    refuse_lost_offsets,
)
from hindcast.plan import definitions
from hindcast.plan.plans import TopicPlan
from hindcast.plan.runs import Run
from hindcast.plan.taken_offsets import TakenOffsets


def plan_no_offsets(contract: BoundContract, name: str, taken: TopicPlan) -> TopicPlan:
    """Return the plan for a topic of which a run ingests nothing, after what was taken of it; Kafka is not asked."""
    topic_patterns.refuse_other_topics(contract, name, taken.members)
    ranges = {p: OffsetRange(r.end, r.end) for p, r in taken.ranges.items()}
    valid_time = contract.topics[name].valid_time
    return replace(taken, ranges=ranges, earlier={}, abandoned_ranges={}, chunk=0, valid_time=valid_time)


def plan_topic(
    cluster: TopicSource,
    contract: BoundContract,
    name: str,
    state: TakenOffsets | None,
    upto: datetime | Mapping[int, int] | None,
    known_at: datetime,
    past: list[Run],
) -> TopicPlan:
    """Return the plan for a topic, following what was taken of it.

    `upto`: the end of the interval by Kafka's timestamps, or the offset by partition; None for everything.

    One that was recreated is refused, unless nothing of it was ingested yet and gaps are only recorded. If its last run
    was abandoned in the middle of `earlier` offsets, the rest of them comes first; only then the start offset moves on.
    Where an offset is looked for by time, records that are dated too late at `known_at` are skipped.
    """
    topic, kafka = contract.topics[name], contract.kafka_topic(name)
    last, before = state or (0, None)
    known = topic_patterns.find_members(cluster, contract, name, before.members if before else None)
    source = topic_patterns.offset_source(cluster, known, last)
    held, topic_id = source.read_offset_ranges(kafka), source.topic_id(kafka)
    if before and before.topic_id != topic_id:
        if before.after or topic.on_gap == "stop":
            if (former := _find_former_topic(past, last, name)) not in ("", kafka):
                raise other_topic_error(kafka, former, last)
            raise recreated_topic_error(kafka, last, is_ingested=bool(before.after))
        return plan_topic(cluster, contract, name, None, upto, known_at, past)
    ends = {p: before.ranges[p].end for p in before.start_offsets} if before else {}
    held |= topic_patterns.find_deleted_ranges(contract, name, known, before.ranges if before else {}, held)
    refuse_lost_offsets(kafka, ends, held)
    seen_at = clock.now() if isinstance(upto, Mapping) else known_at
    latest = valid_time.skew_bounds(topic, seen_at).latest
    since = (
        source.find_offsets_for_time(kafka, topic.since, latest)
        if topic.since and _needs_start_offsets(topic.since, before, held)
        else {}
    )
    start_offsets = find_start_offsets(held, before, topic.since, since)
    earlier = {
        p: OffsetRange(start_offsets[p], a)
        for p, a in (before.start_offsets if before else {}).items()
        if start_offsets[p] < a
    }
    left = before.abandoned_ranges if before else {}
    start_offsets |= {p: before.start_offsets[p] for p in left if before}
    earlier |= left
    for p in [p for p in earlier if before and ends[p] == before.start_offsets[p]]:  # none of it was replayed yet
        ends[p] = earlier.pop(p).start
    bound: Mapping[int, int | None] = {}
    if isinstance(upto, Mapping):
        bound = {p: upto.get(p, r.start) for p, r in held.items()}
    elif upto is not None:
        bound = archived_topics.find_bounds(source, kafka, upto, latest, ends)
    ranges = bound_ranges(held, {p: ends.get(p, start_offsets.get(p, r.end)) for p, r in held.items()}, bound)
    epoch = before.epoch + (len(before.ranges) != len(held)) if before else 0
    found_since = before.since if before and left else topic.since
    offsets_left = sum(max(held[p].end - r.end, 0) for p, r in ranges.items())
    after = before.after if before else 0
    topic_plan = TopicPlan(
        topic_id,
        epoch,
        after,
        start_offsets,
        ranges,
        earlier,
        found_since,
        0,
        {},
        topic.valid_time,
        known,
        offsets_left,
    )
    chunk = contract.settings.chunk
    topic_plan = replace(topic_plan, chunk=chunk) if sum(topic_plan.planned_counts.values()) > chunk else topic_plan
    for part in topic_plan.parts:
        gaps.refuse_gap(contract, name, gaps.find_lost_ranges(part, held), known, gaps.RETENTION)
        missing = archived_topics.find_archive_gaps(cluster, kafka, part)
        gaps.refuse_gap(contract, name, missing, known, gaps.NOT_ARCHIVED)
    return topic_plan


def _find_former_topic(past: list[Run], number: int, name: str) -> str:
    """Return the name in Kafka of a topic that a run read; "" if it is not known."""
    hashes = (run.plan.contract for run in past if run.number == number)
    contract = definitions.find_contract(past, next(hashes, ""))
    return contract.kafka_topic(name) if contract is not None and name in contract.topics else ""


def find_start_offsets(
    held: Mapping[int, OffsetRange], before: TopicPlan | None, since: datetime | None, reached: Mapping[int, int | None]
) -> dict[int, int]:
    """Return per partition the first offset to replay: the log's beginning, or where it `reached` `from`.

    `before`: what was taken of the topic. A start offset moves back when `from` does, never forward. That of a
    partition that was added since is 0. A partition without a record dated so late has none. If the first record that
    it holds is dated so late, those that Kafka lost directly before it may have been, too: it starts with them.
    """
    start_offsets = dict(before.start_offsets) if before else {}
    for partition, offsets in held.items():
        if since is None:
            reached = {**reached, partition: 0 if before and partition not in before.ranges else offsets.start}
        hit = reached.get(partition)
        if hit is not None:
            if before and partition in before.ranges and hit <= offsets.start:
                hit = min(hit, before.ranges[partition].end)
            start_offsets[partition] = min(hit, start_offsets.get(partition, hit))
    return start_offsets


def _needs_start_offsets(since: datetime, before: TopicPlan | None, held: Mapping[int, OffsetRange]) -> bool:
    """Return whether to look for start offsets: in the first run, for another `from`, or if a partition has none."""
    return before is None or before.since != since or held.keys() != before.start_offsets.keys()
