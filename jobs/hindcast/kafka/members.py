"""Topics by pattern: the partitions of all topics that an entry's `pattern` matches, as the partitions of one log.

A member is a partition of one of them. The plan that sees it first gives it a number, which is the `partition` of the
entry's log and of all that is made of it. Numbers go on where the last ones ended, by topic and partition. Every plan
has them (`Share.members`), taken over from the run that wrote to the log last: so they never change once they stand in
the log, which has `topic` and `topicPartition` beside `partition`.

    orders-.*:  orders-eu 0 and 1, orders-us 0    ->    0, 1, 2
    then orders-asia 0, and orders-us 1           ->    3, 4

An entry of one topic has no members: the partitions of its log are the topic's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from typing import NamedTuple, Protocol, TypeVar

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from hindcast.contracts import Contract
from hindcast.errors import TopicError, nearest
from hindcast.kafka import topics
from hindcast.kafka.topics import Cluster, Offsets, made_anew


class Member(NamedTuple):
    """A partition of a topic, and Kafka's id of the topic when it was seen first."""

    topic: str
    partition: int
    topic_id: str


Members = Mapping[int, Member]
"""Members by their numbers; none of an entry of one topic."""

Told = TypeVar("Told")


class Source(Protocol):
    """What plans and claims ask about an entry, by the partitions of its log: of a `Cluster`, or of a `Matched`."""

    def topic_id(self, topic: str) -> str: ...
    def available(self, topic: str) -> dict[int, Offsets]: ...
    def reaching(self, topic: str, moment: datetime, latest: datetime) -> dict[int, int | None]: ...


class Matched:
    """Several topics asked as if they were one, whose partitions are their members; topics that are gone are left out.

    `run`: the last one that is known to have seen the members. AccessError for a topic that we may not Describe: it is
    not known to be gone.
    """

    def __init__(self, cluster: Cluster, members: Members, run: int) -> None:
        self._cluster, self._members, self._run = cluster, members, run

    def topic_id(self, _: str) -> str:
        """None of its own; TopicError if one of the topics was made anew."""
        ids = {topic: self._cluster.topic_id(topic) for topic in self._there()}
        for member in self._members.values():
            if ids.get(member.topic, member.topic_id) != member.topic_id:
                raise made_anew(member.topic, self._run)
        return ""

    def available(self, _: str) -> dict[int, Offsets]:
        """The offsets that each member holds now."""
        return self._each(self._cluster.available)

    def reaching(self, _: str, moment: datetime, latest: datetime) -> dict[int, int | None]:
        """Of each member the first offset whose timestamp reaches `moment`, as a `Cluster` tells it."""
        return self._each(lambda topic: self._cluster.reaching(topic, moment, latest))

    def _each(self, ask: Callable[[str], Mapping[int, Told]]) -> dict[int, Told]:
        told = {topic: ask(topic) for topic in self._there()}
        # One that was made anew may have fewer partitions; topic_id tells of it.
        return {
            n: told[it.topic][it.partition] for n, it in self._members.items() if it.partition in told.get(it.topic, {})
        }

    def _there(self) -> list[str]:
        told = self._cluster.topics()
        return [topic for topic in _topics(self._members) if topic in told or self._cluster.has(topic)]


def source(cluster: Cluster, members: Members, run: int) -> Source:
    """Whom to ask about an entry with these members: the cluster itself if it has none."""
    return Matched(cluster, members, run) if members else cluster


def seen(cluster: Cluster, contract: Contract, name: str, known: Members | None) -> dict[int, Member]:
    """The members of an entry: those that are `known` (None before the first run), and what its pattern matches since.

    TopicError for a pattern that matches no topic, or one that another entry has too; and where the contract does not
    match any more what the log has.
    """
    pattern = contract.topics[name].pattern
    _refuse_other(contract, name, known)
    if pattern is None:
        return {}
    there = cluster.topics()
    matched = [topic for topic in sorted(there) if contract.topics[name].matches(topic)]
    if not matched:
        others = nearest(pattern, (topic for topic in there if not topic.startswith("__")))
        mend = f"{others}; Kafka tells of no topic that we may not Describe (docs/security.md)"
        raise TopicError("the pattern matches no topic", where=f"{cluster.servers}, pattern {pattern}", mend=mend)
    _refuse_shared(contract, name, matched)
    members = dict(known or {})
    old = {(it.topic, it.partition) for it in members.values()}
    new = [(topic, p) for topic in matched for p in there[topic] if (topic, p) not in old]
    ids = {topic: cluster.topic_id(topic) for topic in {topic for topic, _ in new}}
    return members | {n: Member(*it, ids[it[0]]) for n, it in enumerate(new, max(members, default=-1) + 1)}


def ended(
    contract: Contract, name: str, members: Members, ranges: Mapping[int, Offsets], held: Iterable[int]
) -> dict[int, Offsets]:
    """Of members whose topics were deleted since their `ranges` were replayed: that they hold nothing after these.

    What was in Kafka after them nobody knows: TopicError if the contract does not say `on_gap: record`.
    """
    gone = {n: Offsets(ranges[n].end, ranges[n].end) for n in members if n in ranges and n not in held}
    if gone and contract.topics[name].on_gap == "stop":
        first = min(gone)
        raise TopicError(
            f"its topic was deleted; {gone[first].end} is the next offset that was to be replayed",
            where=place(contract.kafka_topic(name), members, first),
            mend=f"restore it if it can be; to go on with what was replayed of it: topics.{name}.on_gap: record",
        )
    return gone


def real(kafka: str, members: Members, partition: int) -> tuple[str, int]:
    """The topic and partition in Kafka of a partition of an entry's log; `kafka` is the entry's topic if it has one."""
    member = members.get(partition)
    return (member.topic, member.partition) if member else (kafka, partition)


def place(kafka: str, members: Members, partition: int) -> str:
    """The same in words, for errors: `topic orders-eu, partition 0`."""
    topic, number = real(kafka, members, partition)
    return f"topic {topic}, partition {number}"


def several(members: Members, partitions: Iterable[int]) -> str:
    """Some partitions of a log in words: `partition 1, 2`, or `partition 1 of orders-eu`."""
    told = by_topic("", members, partitions)
    return " and ".join(f"{_listed(members, of)}{f' of {topic}' if topic else ''}" for topic, of in told.items())


def number(members: Members, topic: str, partition: int) -> int:
    """The partition of an entry's log that a partition of a topic is."""
    return next((n for n, it in members.items() if (it.topic, it.partition) == (topic, partition)), partition)


def by_topic(kafka: str, members: Members, partitions: Iterable[int]) -> dict[str, list[int]]:
    """Partitions of an entry's log by their topics in Kafka."""
    found: dict[str, list[int]] = {}
    for partition in sorted(partitions):
        found.setdefault(real(kafka, members, partition)[0], []).append(partition)
    return found


def told(members: Members, partition: int) -> dict[str, str | int]:
    """What reports have of a member beside its `partition`: topic, topicPartition. Nothing without members."""
    return dict(zip(("topic", "topicPartition"), real("", members, partition), strict=True)) if members else {}


def columns(members: Members, partition: str = "partition") -> dict[str, Column]:
    """What rows have of the members in the column `partition`: topicId, topic, topicPartition. None without members."""
    if not members:
        return {}

    def each(of: Callable[[Member], str | int]) -> Column:
        every = [of(members[n]) if n in members else None for n in range(max(members) + 1)]
        return F.array(*map(F.lit, every))[F.col(partition)]

    return {
        "topicId": each(lambda it: it.topic_id),
        "topic": each(lambda it: it.topic),
        "topicPartition": each(lambda it: it.partition),
    }


def records(
    spark: SparkSession, servers: str, kafka: str, members: Members, ranges: Mapping[int, Offsets]
) -> DataFrame:
    """The records of these ranges of an entry, as `topics.records` has them."""
    if not members:
        return topics.records(spark, servers, kafka, ranges)
    asked: dict[str, dict[int, Offsets]] = {}
    for n, offsets in ranges.items():
        asked.setdefault(members[n].topic, {})[members[n].partition] = offsets
    numbers = spark.createDataFrame(
        [(n, members[n].topic, members[n].partition) for n in ranges], "_number int, topic string, partition int"
    )
    read = topics.of_topics(spark, servers, asked)
    named = read.join(F.broadcast(numbers), ["topic", "partition"]).withColumn("partition", F.col("_number"))
    return named.select(*(column for column in read.columns if column != "topic"))


def _listed(members: Members, partitions: Iterable[int]) -> str:
    return f"partition {', '.join(str(real('', members, p)[1]) for p in partitions)}"


def _topics(members: Members) -> list[str]:
    return sorted({member.topic for member in members.values()})


def _refuse_other(contract: Contract, name: str, known: Members | None) -> None:
    """TopicError if an entry's log is of other topics than the contract says."""
    entry, kafka = contract.topics[name], contract.kafka_topic(name)
    if known is None:
        return
    if bool(known) != (entry.pattern is not None):
        was, now = ("a pattern", "one topic") if known else ("one topic", "a pattern")
        found = f"its log was replayed from {was}, the contract says {now}: {kafka}"
    elif other := next((it.topic for it in known.values() if not entry.matches(it.topic)), None):
        found = f"its log has the topic {other}, which the pattern {kafka} does not match"
    else:
        return
    mend = "match what the log has, or give the entry another name (a new table)"
    raise TopicError(found, where=f"{contract.pipeline}, topics.{name}", mend=mend)


def _refuse_shared(contract: Contract, name: str, matched: Iterable[str]) -> None:
    """TopicError for a topic that another entry takes too: its records would be in two logs."""
    for topic in matched:
        for other in (it for it in contract.topics if it != name):
            if contract.topics[other].matches(topic):
                raise TopicError(
                    f"the patterns of topics.{name} and topics.{other} both match it",
                    where=f"{contract.pipeline}, topic {topic}",
                    mend="write patterns that no topic matches twice",
                )
