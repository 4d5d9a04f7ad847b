"""Kafka: which offsets there are, which of them an interval bounds, and the records themselves."""

from __future__ import annotations

import json
import time
from collections.abc import Generator, Iterable, Mapping
from contextlib import closing
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

from confluent_kafka import (
    Consumer,
    IsolationLevel,
    KafkaError,
    KafkaException,
    Message,
    TopicCollection,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient, ConfigResource, OffsetSpec  # type: ignore[attr-defined]  # not in __all__
from pyspark.sql import DataFrame, SparkSession

from hindcast.errors import TopicError
from hindcast.kafka import handover, refusals
from hindcast.kafka.security import Security, client, security

TIMEOUT = 20.0
"""Seconds after which a broker that does not answer is an error."""


class Offsets(NamedTuple):
    """The half-open range of offsets [start, end) of one partition."""

    start: int
    end: int


class Cluster:
    """The brokers at `servers` (host:port, comma-separated). A context manager.

    `how` they are spoken to: as the environment says, if not given. AccessError from any question if they refuse us.
    """

    def __init__(self, servers: str, how: Security | None = None) -> None:
        self.servers = servers
        self._how = how or security(servers)
        self._heard, self._greeted = refusals.Heard(), False
        self._config = {
            **client(servers, self._how),
            "socket.timeout.ms": 10_000,
            "error_cb": self._heard,
        }
        reading = {
            **self._config,
            "group.id": "hindcast-plan",
            "enable.auto.commit": False,
            "isolation.level": "read_committed",
            "auto.offset.reset": "error",
            "enable.partition.eof": True,
        }
        self._admin = refusals.connected(AdminClient, self._config, self._how)
        self._consumer = refusals.connected(Consumer, reading, self._how)

    def __enter__(self) -> Cluster:
        return self

    def __exit__(self, *_: object) -> None:
        self._consumer.close()

    def topics(self) -> dict[str, list[int]]:
        """Every topic with its partitions; Kafka tells of none that we have no right to Describe."""
        found = self._ask(lambda: self._consumer.list_topics(timeout=TIMEOUT), "")
        return {name: sorted(it.partitions) for name, it in found.topics.items() if it.error is None}

    def has(self, topic: str) -> bool:
        """Whether the topic is there. AccessError without the right to Describe it: Kafka then tells nobody."""
        error = self._ask(lambda: self._consumer.list_topics(topic, timeout=TIMEOUT), topic).topics[topic].error
        if error is not None and error.name() not in _NO_TOPIC:
            raise self._told(error, topic)
        return error is None

    def topic_id(self, topic: str) -> str:
        """The id that a topic made anew under the same name does not share."""
        wanted = TopicCollection([topic])
        found = self._ask(self._admin.describe_topics(wanted, request_timeout=TIMEOUT)[topic].result, topic)
        return str(found.topic_id)

    def allowed(self, topic: str) -> set[str]:
        """What we may do with a topic, in the words of Kafka's operations: READ, DESCRIBE, ..."""
        wanted = TopicCollection([topic])
        question = self._admin.describe_topics(wanted, include_authorized_operations=True, request_timeout=TIMEOUT)
        found = self._ask(question[topic].result, topic)
        return {operation.name for operation in found.authorized_operations or ()}

    def available(self, topic: str) -> dict[int, Offsets]:
        """The offsets that each partition holds now: from its first record to after its last committed one.

        Asks for all partitions at once. Raises TopicError if no broker answers or the topic is not there.
        """
        metadata = self._ask(lambda: self._consumer.list_topics(topic, timeout=TIMEOUT), topic)
        found = metadata.topics[topic]
        if found.error is not None:
            raise self._told(found.error, topic)
        # The start first: what retention takes meanwhile is told as lost when it is read.
        starts, ends = (
            self._offsets(topic, found.partitions, at)
            for at in (OffsetSpec.earliest(), OffsetSpec.latest())  # type: ignore[no-untyped-call]
        )
        return {partition: Offsets(starts[partition], ends[partition]) for partition in sorted(found.partitions)}

    def compacted(self, topic: str) -> bool:
        """Whether the topic keeps only the last record of a key."""
        asked = ConfigResource(ConfigResource.Type.TOPIC, topic)
        question = self._admin.describe_configs([asked], request_timeout=TIMEOUT)[asked].result
        found = self._ask(question, topic, "DescribeConfigs")
        return "compact" in found["cleanup.policy"].value

    def reaching(self, topic: str, moment: datetime, latest: datetime) -> dict[int, int | None]:
        """Per partition the first offset whose timestamp reaches `moment` (KIP-32), None if there is none.

        Records dated after `latest` are passed over: one dated 2099 bounds nothing.
        """
        held = self.available(topic)
        asked = [TopicPartition(topic, p, _ms_from(moment)) for p in held]
        hits = self._ask(lambda: self._consumer.offsets_for_times(asked, timeout=TIMEOUT), topic)
        left = {hit.partition: Offsets(hit.offset, held[hit.partition].end) for hit in hits if hit.offset >= 0}
        found: dict[int, int | None] = dict.fromkeys(held)
        many = 1  # nearly always the hit itself
        while left := {p: r for p, r in left.items() if r.end > r.start and found[p] is None}:
            look = {p: Offsets(r.start, min(r.end, r.start + many)) for p, r in left.items()}
            found |= self._plausible(topic, look, moment, latest)
            left = {p: Offsets(look[p].end, r.end) for p, r in left.items()}
            many = max(_AT_ONCE, 4 * many)
        return found

    def committed(self, topic: str, ranges: Mapping[int, Offsets]) -> Generator[list[Message], None, None]:
        """The committed records of these ranges as they come, a few thousand at a time; each partition in order."""
        left = {partition: it.end for partition, it in ranges.items() if it.end > it.start}
        self._ask(lambda: None, topic)  # greets the broker, which polls: once records come, that would take one
        self._consumer.assign([TopicPartition(topic, partition, ranges[partition].start) for partition in left])
        heard = time.monotonic()
        try:
            while left:
                came = self._ask(self._come, topic)
                if not came and time.monotonic() - heard > TIMEOUT:
                    raise TopicError("the broker sends no records", where=f"{topic} partition {min(left)}")
                heard = time.monotonic() if came else heard
                wanted = []
                for message in came:
                    partition, error = message.partition(), message.error()
                    if error and error.code() != KafkaError._PARTITION_EOF:  # noqa: SLF001  # its name
                        raise self._told(error, topic, "Read", partition)
                    end = left.get(partition, 0)
                    if not error and message.offset() < end:
                        wanted.append(message)
                    if error or message.offset() >= end - 1:
                        left.pop(partition, None)
                if wanted:
                    yield wanted
        finally:
            self._consumer.unassign()

    def _come(self) -> list[Message]:
        """What has come of the assigned partitions; waits a second for the first of it.

        Not that we may not use our group: nothing is committed in it, so nobody needs a right to it.
        """
        first = self._consumer.poll(1.0)
        came = [first, *self._consumer.consume(_AT_ONCE, 0)] if first is not None else []
        return [message for message in came if (e := message.error()) is None or e.name() not in _OF_GROUP]

    def _plausible(
        self, topic: str, ranges: Mapping[int, Offsets], moment: datetime, latest: datetime
    ) -> dict[int, int]:
        """Of each range the first record that is dated from `moment` up to `latest`; none where there is none."""
        found: dict[int, int] = {}
        with closing(self.committed(topic, ranges)) as batches:
            for message in (message for batch in batches for message in batch):
                partition = message.partition() or 0
                if partition not in found and _ms_from(moment) <= message.timestamp()[1] <= millis(latest):
                    found[partition] = message.offset() or 0
        return found

    def _offsets(self, topic: str, partitions: Iterable[int], at: OffsetSpec) -> dict[int, int]:
        """Where partitions begin or end, for readers of committed records; one request to each broker."""
        wanted = {TopicPartition(topic, partition): at for partition in partitions}

        def asked() -> dict[int, int]:
            found = self._admin.list_offsets(
                wanted, isolation_level=IsolationLevel.READ_COMMITTED, request_timeout=TIMEOUT
            )
            return {place.partition: future.result().offset for place, future in found.items()}

        offsets: dict[int, int] = self._ask(asked, topic)
        return offsets

    def _ask(self, question: Any, topic: str, operation: str = "Describe") -> Any:
        """The answer to a question that takes the right to an operation on the topic; without one, of all topics."""
        until = time.monotonic() + TIMEOUT
        while True:
            try:
                if not self._greeted:
                    refusals.greet(self._consumer, self._heard, self.servers, topic or None, self._how, TIMEOUT)
                    self._greeted = True
                return question()
            except KafkaException as error:
                if error.args[0].name() not in _ELECTING or time.monotonic() > until:
                    raise self._told(error.args[0], topic, operation) from None
                time.sleep(0.1)

    def _told(
        self, error: KafkaError, topic: str, operation: str = "Describe", partition: int | None = None
    ) -> TopicError:
        if error.name() in _NO_TOPIC:
            return self._missing(topic)
        if error.name() in _NO_RIGHT:
            return refusals.no_right(operation, topic, self.servers, self._how)
        if error.name() in _NO_BROKER:
            refusals.refuse(self._heard, self.servers, self._how)
            return TopicError(
                f"no Kafka broker answers ({error.str()})",
                where=f"{self.servers}, topic {topic}" if topic else self.servers,
                mend="start it (make up), or set HINDCAST_KAFKA to the brokers' host:port; "
                "HINDCAST_KAFKA_SECURITY if they ask for TLS or SASL (docs/security.md)",
            )
        place = f"{self.servers}, topic {topic}" if topic else self.servers
        return TopicError(error.str(), where=place if partition is None else f"{place}, partition {partition}")

    def _missing(self, topic: str) -> TopicError:
        return TopicError(
            "there is no such topic",
            where=f"{self.servers}, topic {topic}",
            mend=f"create it, or name the right one in the contract with topic: under the topic's entry ({topic})",
        )


def bounded(
    available: Mapping[int, Offsets], starts: Mapping[int, int], bound: Mapping[int, int | None]
) -> dict[int, Offsets]:
    """The ranges of a run: per partition from its start up to the interval's bound, without one to its end.

    A range never runs backwards: what earlier runs replayed beyond the bound stays replayed.
    """
    ranges = {}
    for partition, offsets in available.items():
        start, hit = starts[partition], bound.get(partition)
        ranges[partition] = Offsets(start, max(start, offsets.end if hit is None else min(hit, offsets.end)))
    return ranges


def cut(ranges: Mapping[int, Offsets], size: int) -> list[dict[int, Offsets]]:
    """Ranges in pieces of about `size` offsets: each has the same share of every partition, in offset order.

    {0: [0, 6), 1: [0, 2)} by 4  ->  {0: [0, 3), 1: [0, 1)}, {0: [3, 6), 1: [1, 2)}
    """
    total = sum(r.end - r.start for r in ranges.values())
    count = -(-total // size)
    pieces: list[dict[int, Offsets]] = [{} for _ in range(count)]
    before = 0
    for partition, (start, end) in ranges.items():
        # Partitions with fewer offsets than there are pieces take turns: what went `before` shifts their cuts.
        cuts = [start + ((end - start) * n + before % count) // count for n in range(count + 1)]
        for piece, low, high in zip(pieces, cuts, cuts[1:], strict=False):
            if high > low:
                piece[partition] = Offsets(low, high)
        before += end - start
    return [piece for piece in pieces if piece]


def records(spark: SparkSession, servers: str, topic: str, ranges: Mapping[int, Offsets]) -> DataFrame:
    """The records of these ranges: partition, offset, timestamp, timestampType, key, value, headers (bytes as sent).

    Only committed records (read_committed). Fails rather than return fewer records where Kafka has lost some. Tasks
    read about `_PER_TASK` offsets each: a large partition is read by several, of many small ones one reads several.
    """
    return of_topics(spark, servers, {topic: ranges}).drop("topic")


def of_topics(spark: SparkSession, servers: str, ranges: Mapping[str, Mapping[int, Offsets]]) -> DataFrame:
    """The `records` of several topics, read at once, each with its `topic`."""
    wanted = {
        topic: told
        for topic, parts in ranges.items()
        if (told := {str(p): r for p, r in parts.items() if r.end > r.start})
    }
    if not wanted:
        return spark.createDataFrame([], f"topic string, {RECORD}")
    every = [r for parts in wanted.values() for r in parts.values()]
    tasks = max(_TASKS, sum(r.end - r.start for r in every) // _PER_TASK)
    frame = (
        spark.read.format("kafka")
        .options(**handover.options(servers))
        .option("kafka.isolation.level", "read_committed")
        .option("kafka.max.partition.fetch.bytes", str(8 << 20))
        .option("kafka.fetch.max.bytes", str(64 << 20))
        .option("assign", json.dumps({topic: [int(p) for p in parts] for topic, parts in wanted.items()}))
        .option(
            "startingOffsets", json.dumps({t: {p: r.start for p, r in parts.items()} for t, parts in wanted.items()})
        )
        .option("endingOffsets", json.dumps({t: {p: r.end for p, r in parts.items()} for t, parts in wanted.items()}))
        .option("includeHeaders", "true")
        .option("failOnDataLoss", "true")
        .option("minPartitions", str(tasks if tasks > _TASKS else 1))
        .load()
    )
    read = frame.select("topic", "partition", "offset", "timestamp", "timestampType", "key", "value", "headers")
    return read.coalesce(tasks) if len(every) > tasks else read


def continued(topic: str, ends: Mapping[int, int], available: Mapping[int, Offsets]) -> None:
    """Raises TopicError where Kafka has less of a topic than was replayed already, up to `ends`."""
    for partition, end in sorted(ends.items()):
        where = f"topic {topic}, partition {partition}"
        if partition not in available:
            raise TopicError("was replayed before and is not there any more", where=where, mend=_ANEW)
        high = available[partition].end
        if end > high:
            raise TopicError(
                f"offsets up to {end - 1} were replayed, the partition ends at {high - 1}", where=where, mend=_ANEW
            )


def made_anew(topic: str, run: int) -> TopicError:
    """The refusal of a topic whose id is not the one that run `run` knew."""
    return TopicError(
        f"was deleted and made anew since run {run}: its offsets mean other records",
        where=f"topic {topic}",
        mend="replay the new topic into a new pipeline (another pipeline: name in the contract)",
    )


def millis(moment: datetime) -> int:
    """A moment as Kafka's timestamps have it: whole milliseconds since 1970, exactly."""
    return (moment - _EPOCH) // _MILLISECOND


HEADERS = "headers array<struct<key: string, value: binary>>"
RECORD = f"partition int, offset long, timestamp timestamp, timestampType int, key binary, value binary, {HEADERS}"
"""The columns of a record."""

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND = timedelta(milliseconds=1)
_AT_ONCE = 9_999
_TASKS, _PER_TASK = 8, 100_000
"""So many tasks may read a few records; of many records one reads so many."""
_NO_TOPIC = ("UNKNOWN_TOPIC_OR_PART", "_UNKNOWN_TOPIC")
_NO_RIGHT = ("TOPIC_AUTHORIZATION_FAILED",)
_OF_GROUP = ("GROUP_AUTHORIZATION_FAILED",)
_ELECTING = ("LEADER_NOT_AVAILABLE", "NOT_LEADER_FOR_PARTITION", "NOT_LEADER_OR_FOLLOWER")
_NO_BROKER = ("_TRANSPORT", "_TIMED_OUT", "_ALL_BROKERS_DOWN", "_RESOLVE")
_ANEW = "the topic was made anew: replay it into a new pipeline (another pipeline: name in the contract)"


def _ms_from(moment: datetime) -> int:
    """The first whole millisecond that is not before a moment; 0 before 1970, where Kafka has no times to search."""
    return max(0, -(-(moment - _EPOCH) // _MILLISECOND))
