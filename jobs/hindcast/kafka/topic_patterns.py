"""Topics by pattern: the partitions of all topics that an entry's `pattern` matches, as the partitions of one log.

A member is a partition of one of them. The plan that first sees it gives it a number, which is the `partition` of the
entry's log and of all that is made of it. New numbers follow the last ones, by topic and partition. Every plan has them
(`TopicPlan.members`), taken over from the run that last wrote to the log: so they never change once they are in the
log, which has `topic` and `topicPartition` beside `partition`.

    orders-.*:  orders-eu 0 and 1, orders-us 0    ->    0, 1, 2
    then orders-asia 0, and orders-us 1           ->    3, 4

An entry of one topic has no members: the partitions of its log are the topic's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import datetime
from typing import NamedTuple, Protocol, TypeVar

import pyarrow as pa
from pyspark.sql import Column
from pyspark.sql import functions as F

from hindcast.common.errors import TopicError, suggest_nearest
from hindcast.contract import Contract
from hindcast.kafka.topics import OffsetRange, recreated_topic_error


class MemberPartition(NamedTuple):
    """A partition of a topic, and Kafka's id of the topic when it was first seen."""

    topic: str
    partition: int
    topic_id: str


MemberPartitions = Mapping[int, MemberPartition]
"""Members by their numbers; empty for an entry of one topic."""

Answer = TypeVar("Answer")


class OffsetSource(Protocol):
    """The offsets of an entry, by the partitions of its log: a `Cluster`, or a `MatchedTopics`."""

    def topic_id(self, topic: str) -> str: ...
    def read_offset_ranges(self, topic: str) -> dict[int, OffsetRange]: ...
    def find_offsets_for_time(self, topic: str, moment: datetime, latest: datetime) -> dict[int, int | None]: ...


class TopicSource(OffsetSource, Protocol):
    """Topics with their offsets and records: those of a `Cluster`, with archives (archives/) or without, or
    given ones (given_topics.py), or those of logs (ingest/logged_topics.py).
    """

    @property
    def servers(self) -> str: ...
    @property
    def missing_reason(self) -> str | None:
        """Why an offset between others has no record, if Kafka is not to be asked."""

    def list_topics(self) -> dict[str, list[int]]: ...
    def has_topic(self, topic: str) -> bool: ...
    def is_compacted(self, topic: str) -> bool: ...
    def read_batches(
        self, topic: str, ranges: Mapping[int, OffsetRange], patience: float = ...
    ) -> Iterator[pa.RecordBatch]: ...


class MatchedTopics:
    """Several topics queried as if they were one, whose partitions are their members; deleted topics are left out.

    `run`: the last one that is known to have seen the members. Raises AccessError for a topic that we may not Describe:
    it may still exist.
    """

    def __init__(self, cluster: TopicSource, members: MemberPartitions, run: int) -> None:
        self._cluster, self._members, self._run = cluster, members, run

    def topic_id(self, _: str) -> str:
        """Return an empty id; raise TopicError if one of the topics was recreated."""
        ids = {topic: self._cluster.topic_id(topic) for topic in self._list_existing_topics()}
        for member in self._members.values():
            if ids.get(member.topic, member.topic_id) != member.topic_id:
                raise recreated_topic_error(member.topic, self._run)
        return ""

    def read_offset_ranges(self, _: str) -> dict[int, OffsetRange]:
        """Return the offsets that each member holds now."""
        return self._ask_each(self._cluster.read_offset_ranges)

    def find_offsets_for_time(self, _: str, moment: datetime, latest: datetime) -> dict[int, int | None]:
        """Return per member the first offset whose timestamp reaches `moment`, as a `Cluster` does."""
        return self._ask_each(lambda topic: self._cluster.find_offsets_for_time(topic, moment, latest))

    def _ask_each(self, ask: Callable[[str], Mapping[int, Answer]]) -> dict[int, Answer]:
        answers = {topic: ask(topic) for topic in self._list_existing_topics()}
        # A recreated topic may have fewer partitions; topic_id refuses it.
        return {
            n: answers[member.topic][member.partition]
            for n, member in self._members.items()
            if member.partition in answers.get(member.topic, {})
        }

    def _list_existing_topics(self) -> list[str]:
        existing = self._cluster.list_topics()
        return [topic for topic in _list_topics(self._members) if topic in existing or self._cluster.has_topic(topic)]


def offset_source(cluster: TopicSource, members: MemberPartitions, run: int) -> OffsetSource:
    """Return the source of offsets of an entry with these members: the cluster itself if it has none."""
    return MatchedTopics(cluster, members, run) if members else cluster


def find_members(
    cluster: TopicSource, contract: Contract, name: str, known: MemberPartitions | None
) -> dict[int, MemberPartition]:
    """Return the members of an entry: the `known` ones (None before the first run), and new matches of its pattern.

    Raises TopicError if a pattern matches no topic or one of another entry, or if the contract no longer matches the
    topics in the log.
    """
    pattern = contract.topics[name].pattern
    refuse_other_topics(contract, name, known)
    if pattern is None:
        return {}
    partitions = cluster.list_topics()
    matched = contract.topics[name].select_topics(sorted(partitions))
    if not matched:
        others = suggest_nearest(pattern, (topic for topic in partitions if not topic.startswith("__")))
        fix = f"{others}; Kafka lists only topics that we may Describe (docs/security.md)"
        raise TopicError("the pattern matches no topic", where=f"{cluster.servers}, pattern {pattern}", fix=fix)
    _refuse_shared(contract, name, matched)
    members = dict(known or {})
    old = {(member.topic, member.partition) for member in members.values()}
    new = [(topic, p) for topic in matched for p in partitions[topic] if (topic, p) not in old]
    ids = {topic: cluster.topic_id(topic) for topic in {topic for topic, _ in new}}
    added = (MemberPartition(topic, partition, ids[topic]) for topic, partition in new)
    return members | dict(enumerate(added, max(members, default=-1) + 1))


def find_deleted_ranges(
    contract: Contract, name: str, members: MemberPartitions, ranges: Mapping[int, OffsetRange], held: Iterable[int]
) -> dict[int, OffsetRange]:
    """Return empty ranges, after the replayed `ranges`, of members whose topics were deleted since.

    Nobody knows what Kafka had after them: raises TopicError unless the contract says `on_gap: record`.
    """
    gone = {n: OffsetRange(ranges[n].end, ranges[n].end) for n in members if n in ranges and n not in held}
    if gone and contract.topics[name].on_gap == "stop":
        first = min(gone)
        raise TopicError(
            f"its topic was deleted; {gone[first].end} is the next offset that was to be replayed",
            where=describe_partition(contract.kafka_topic(name), members, first),
            fix=f"restore it if it can be; to go on with what was replayed of it: topics.{name}.on_gap: record",
        )
    return gone


def kafka_partition(kafka: str, members: MemberPartitions, partition: int) -> tuple[str, int]:
    """Return the topic and partition in Kafka of a log's partition; `kafka` is the entry's topic, if it has one."""
    member = members.get(partition)
    return (member.topic, member.partition) if member else (kafka, partition)


def describe_partition(kafka: str, members: MemberPartitions, partition: int) -> str:
    """Return the same in words, for errors: `topic orders-eu, partition 0`."""
    topic, number = kafka_partition(kafka, members, partition)
    return f"topic {topic}, partition {number}"


def describe_partitions(members: MemberPartitions, partitions: Iterable[int]) -> str:
    """Return some partitions of a log in words: `partition 1, 2`, or `partition 1 of orders-eu`."""
    by_topic = group_by_topic("", members, partitions)
    return " and ".join(
        f"{_format_partitions(members, numbers)}{f' of {topic}' if topic else ''}"
        for topic, numbers in by_topic.items()
    )


def group_by_topic(kafka: str, members: MemberPartitions, partitions: Iterable[int]) -> dict[str, list[int]]:
    """Return partitions of an entry's log by their topics in Kafka."""
    groups: dict[str, list[int]] = {}
    for partition in sorted(partitions):
        groups.setdefault(kafka_partition(kafka, members, partition)[0], []).append(partition)
    return groups


def find_member(members: MemberPartitions, partition: int) -> tuple[str, int] | tuple[None, None]:
    """Return the topic and partition in Kafka of a partition of a pattern's log; twice None without members."""
    return kafka_partition("", members, partition) if members else (None, None)


def member_fields(members: MemberPartitions, partition: int) -> dict[str, str | int]:
    """Return the fields of a member beside its `partition`: topic, topicPartition; none without members."""
    topic, number = find_member(members, partition)
    return {} if topic is None or number is None else {"topic": topic, "topicPartition": number}


def member_columns(members: MemberPartitions, partition: str = "partition") -> dict[str, Column]:
    """Return the columns topicId, topic, topicPartition of the members numbered in `partition`; {} without members."""
    if not members:
        return {}

    def each(field: Callable[[MemberPartition], str | int]) -> Column:
        every = [field(members[n]) if n in members else None for n in range(max(members) + 1)]
        return F.array(*map(F.lit, every))[F.col(partition)]

    return {
        "topicId": each(lambda member: member.topic_id),
        "topic": each(lambda member: member.topic),
        "topicPartition": each(lambda member: member.partition),
    }


def _format_partitions(members: MemberPartitions, partitions: Iterable[int]) -> str:
    return f"partition {', '.join(str(kafka_partition('', members, p)[1]) for p in partitions)}"


def _list_topics(members: MemberPartitions) -> list[str]:
    return sorted({member.topic for member in members.values()})


def refuse_other_topics(contract: Contract, name: str, known: MemberPartitions | None) -> None:
    """Raise TopicError if an entry's log has other topics than the contract says."""
    entry, kafka = contract.topics[name], contract.kafka_topic(name)
    if known is None:
        return
    if bool(known) != (entry.pattern is not None):
        was, now = ("a pattern", "one topic") if known else ("one topic", "a pattern")
        problem = f"its log was replayed from {was}, the contract says {now}: {kafka}"
    elif others := set(read := _list_topics(known)) - {*entry.select_topics(read)}:
        problem = f"its log has the topic {min(others)}, which the pattern {kafka} does not match"
    else:
        return
    fix = "match what the log has, or give the entry another name (a new table)"
    raise TopicError(problem, where=f"{contract.pipeline}, topics.{name}", fix=fix)


def _refuse_shared(contract: Contract, name: str, matched: Iterable[str]) -> None:
    """Raise TopicError for a topic that another entry reads too: its records would be in two logs."""
    for other in (entry for entry in contract.topics if entry != name):
        for topic in contract.topics[other].select_topics(matched):
            raise TopicError(
                f"the patterns of topics.{name} and topics.{other} both match it",
                where=f"{contract.pipeline}, topic {topic}",
                fix="write patterns that no topic matches twice",
            )
