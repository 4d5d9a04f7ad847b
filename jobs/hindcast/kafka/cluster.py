"""A Kafka cluster asked by its own client: its topics, their offsets, and records without Spark."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from contextlib import closing
from datetime import UTC, datetime, timedelta
from types import TracebackType
from typing import TypeVar

import pyarrow as pa
from confluent_kafka import (
    Consumer,
    IsolationLevel,
    KafkaError,
    KafkaException,
    Message,
    TopicCollection,
    TopicPartition,
)
from confluent_kafka.admin import (  # type: ignore[attr-defined]  # not in __all__
    AdminClient,
    ClusterMetadata,
    ConfigResource,
    OffsetSpec,
    TopicMetadata,
)

from hindcast.common.errors import TopicError
from hindcast.kafka import access_errors
from hindcast.kafka.record_batches import build_batches
from hindcast.kafka.security import Security, client_config, read_security
from hindcast.kafka.topics import OffsetRange

A = TypeVar("A")


TIMEOUT = 20.0
"""Seconds after which a broker that does not answer is an error."""

LOST_OFFSETS = "Kafka lost offsets while they were read"
LOST_OFFSETS_FIX = "retry the run: it will name them, and go on without them if the contract has on_gap: record"


class Cluster:
    """The brokers at `servers` (host:port, comma-separated), as a context manager.

    `how` to connect to them: by default as the environment says. Every method raises AccessError if they refuse us.
    """

    def __init__(self, servers: str, how: Security | None = None) -> None:
        self.servers = servers
        self.missing_reason = None
        self._how = how or read_security(servers)
        self._errors, self._greeted = access_errors.ClientErrors(), False
        self._greeting: dict[str, ClusterMetadata] = {}
        config = {**client_config(servers, self._how), "socket.timeout.ms": 10_000}
        reading = {
            **config,
            "group.id": "hindcast-plan",
            "enable.auto.commit": False,
            "isolation.level": "read_committed",
            "auto.offset.reset": "error",
            "check.crcs": True,
            "fetch.queue.backoff.ms": 10,
            "fetch.wait.max.ms": 10,  # as long as that the next topic waits for the answer about the last
            "receive.message.max.bytes": _MOST_BYTES,
            "queued.min.messages": 30_000,
            "enable.partition.eof": True,
        }
        self._admin = access_errors.connect_client(AdminClient, config, self._errors, self._how)
        self._consumer = access_errors.connect_client(Consumer, reading, self._errors, self._how)

    def __enter__(self) -> Cluster:
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        self._consumer.close()

    def list_topics(self) -> dict[str, list[int]]:
        """Return every topic with its partitions; Kafka leaves out those that we may not Describe."""
        metadata = self._ask(lambda: self._consumer.list_topics(timeout=TIMEOUT), "")
        return {name: sorted(topic.partitions) for name, topic in metadata.topics.items() if topic.error is None}

    def has_topic(self, topic: str) -> bool:
        """Return whether the topic exists. AccessError without the right to Describe it: Kafka does not say then."""
        error = self._describe_topic(topic).error
        if error is not None and error.name() not in _NO_TOPIC:
            raise self._explain_error(error, topic)
        return error is None

    def topic_id(self, topic: str) -> str:
        """Return the id of the topic; a recreated topic of the same name has another."""
        topics = TopicCollection([topic])
        description = self._ask(self._admin.describe_topics(topics, request_timeout=TIMEOUT)[topic].result, topic)
        return str(description.topic_id)

    def list_allowed_operations(self, topic: str) -> set[str]:
        """Return what we may do with a topic, by the names of Kafka's operations: READ, DESCRIBE, ..."""
        topics = TopicCollection([topic])
        question = self._admin.describe_topics(topics, include_authorized_operations=True, request_timeout=TIMEOUT)
        description = self._ask(question[topic].result, topic)
        return {operation.name for operation in description.authorized_operations or ()}

    def read_offset_ranges(self, topic: str) -> dict[int, OffsetRange]:
        """Return the offsets that each partition holds now: from its first record to after its last committed one.

        Asks for all partitions at once. Raises TopicError if no broker answers or the topic does not exist.
        """
        described = self._describe_topic(topic)
        if described.error is not None:
            raise self._explain_error(described.error, topic)
        # Starts first: what retention removes meanwhile is reported as lost when it is read.
        starts, ends = (
            self._list_offsets(topic, described.partitions, at)
            for at in (OffsetSpec.earliest(), OffsetSpec.latest())  # type: ignore[no-untyped-call]
        )
        return {p: OffsetRange(starts[p], ends[p]) for p in sorted(described.partitions)}

    def is_compacted(self, topic: str) -> bool:
        """Return whether the topic keeps only the last record of a key."""
        resource = ConfigResource(ConfigResource.Type.TOPIC, topic)
        question = self._admin.describe_configs([resource], request_timeout=TIMEOUT)[resource].result
        config = self._ask(question, topic, "DescribeConfigs")
        return "compact" in config["cleanup.policy"].value

    def find_offsets_for_time(self, topic: str, moment: datetime, latest: datetime) -> dict[int, int | None]:
        """Return per partition the first offset whose timestamp reaches `moment` (KIP-32); None if there is none.

        Records dated after `latest` are skipped: one dated 2099 bounds nothing.
        """
        available = self.read_offset_ranges(topic)
        places = [TopicPartition(topic, p, _next_millis(moment)) for p in available]
        hits = self._ask(lambda: self._consumer.offsets_for_times(places, timeout=TIMEOUT), topic)
        left = {hit.partition: OffsetRange(hit.offset, available[hit.partition].end) for hit in hits if hit.offset >= 0}
        offsets: dict[int, int | None] = dict.fromkeys(available)
        many = 1  # nearly always the hit itself
        while left := {p: r for p, r in left.items() if r.end > r.start and offsets[p] is None}:
            searched = {p: OffsetRange(r.start, min(r.end, r.start + many)) for p, r in left.items()}
            offsets |= self._find_first_dated(topic, searched, moment, latest)
            left = {p: OffsetRange(searched[p].end, r.end) for p, r in left.items()}
            many = max(_AT_ONCE, 4 * many)
        return offsets

    def read_committed_records(
        self, topic: str, ranges: Mapping[int, OffsetRange], patience: float = TIMEOUT
    ) -> Generator[list[Message], None, None]:
        """Yield the committed records of these ranges, a few thousand at a time; each partition in order.

        Raise TopicError if Kafka has lost some of them, or if nothing more comes of the partitions that are not
        finished within `patience` seconds. What the others send beyond their ranges does not count, and neither does
        the time for which the reader keeps us waiting.
        """
        left = {partition: offsets.end for partition, offsets in ranges.items() if offsets.end > offsets.start}
        # Greets the broker first: greeting polls, which would consume a record later. Without asking, the client finds
        # the topic's leader only after some time.
        self._ask(lambda: self._consumer.list_topics(topic, TIMEOUT), topic)
        self._consumer.assign([TopicPartition(topic, partition, ranges[partition].start) for partition in left])
        last_progress = time.monotonic()
        try:
            while left:
                records, others = self._ask(self._poll_messages, topic)
                if any(message.partition() in left for message in (*others, *records)):
                    last_progress = time.monotonic()
                elif time.monotonic() - last_progress > patience:
                    raise self._explain_silence(topic, *min(left.items()))
                if len(ranges) > 1 or not records or (records[-1].offset() or 0) >= min(left.values()) - 1:
                    records = _take_own(records, left)
                for message in others:
                    partition, error = message.partition() or 0, message.error()
                    if error is not None and error.code() != KafkaError._PARTITION_EOF:  # noqa: SLF001  # its name
                        raise self._explain_error(error, topic, "Read", partition)
                    if (message.offset() or 0) >= left.get(partition, 0):  # of what is after the last record
                        left.pop(partition, None)
                if records:
                    yield records
                    last_progress = time.monotonic()
        finally:
            self._consumer.unassign()

    def read_batches(
        self, topic: str, ranges: Mapping[int, OffsetRange], patience: float = TIMEOUT
    ) -> Iterator[pa.RecordBatch]:
        """Yield the `read_committed_records` of these ranges in batches (`record_batches.build_batches`)."""
        return build_batches(self.read_committed_records(topic, ranges, patience))

    def _explain_silence(self, topic: str, partition: int, end: int) -> TopicError:
        where = f"{self.servers}, topic {topic}, partition {partition}"
        if not self.has_topic(topic):
            fix = "if its deletion was not meant, restore the topic; retry the run, which says what it can go on with"
            return TopicError("the topic was deleted while it was read", where=where, fix=fix)
        there = self.read_offset_ranges(topic).get(partition, OffsetRange(0, 0)).end
        if there < end:
            found = (
                f"the partition ends at offset {there}: its records up to {end} are gone, and perhaps the topic is new"
            )
            return TopicError(found, where=where, fix="retry the run: it will say what it can go on with")
        fix = "check that the partition has a leader and its broker is well, then retry"
        return TopicError("the broker sends no records", where=where, fix=fix)

    def _poll_messages(self) -> tuple[list[Message], list[Message]]:
        """Return the records received from the assigned partitions, and ends of these and errors; wait a second for
        the first.

        Drops the refusal of our consumer group: nothing is committed in it, so nobody needs a right to it.
        """
        first = self._consumer.poll(1.0)
        messages = [first, *self._consumer.consume(_AT_ONCE, 0)] if first is not None else []
        errors = [message.error() for message in messages]
        if not any(errors):
            return messages, []
        failed = [(it, error) for it, error in zip(messages, errors, strict=True) if error]
        records = [it for it, error in zip(messages, errors, strict=True) if not error]
        return records, [it for it, error in failed if error.name() not in _NO_GROUP_RIGHT]

    def _find_first_dated(
        self, topic: str, ranges: Mapping[int, OffsetRange], moment: datetime, latest: datetime
    ) -> dict[int, int]:
        """Return the first record of each range that is dated from `moment` up to `latest`, where there is one."""
        offsets: dict[int, int] = {}
        with closing(self.read_committed_records(topic, ranges)) as batches:
            for message in (message for batch in batches for message in batch):
                partition = message.partition() or 0
                if partition not in offsets and _next_millis(moment) <= message.timestamp()[1] <= millis(latest):
                    offsets[partition] = message.offset() or 0
        return offsets

    def _describe_topic(self, topic: str) -> TopicMetadata:
        """Return the partitions of a topic, and its error; once by what the first question of all has brought."""

        def describe() -> TopicMetadata:
            return (self._greeting.pop(topic, None) or self._consumer.list_topics(topic, timeout=TIMEOUT)).topics[topic]

        return self._ask(describe, topic)

    def _list_offsets(self, topic: str, partitions: Iterable[int], at: OffsetSpec) -> dict[int, int]:
        """Return where partitions begin or end, for readers of committed records; one request to each broker."""
        specs = {TopicPartition(topic, partition): at for partition in partitions}

        def list_offsets() -> dict[int, int]:
            futures = self._admin.list_offsets(
                specs, isolation_level=IsolationLevel.READ_COMMITTED, request_timeout=TIMEOUT
            )
            return {place.partition: future.result().offset for place, future in futures.items()}

        return self._ask(list_offsets, topic)

    def _ask(self, question: Callable[[], A], topic: str, operation: str = "Describe") -> A:
        """Return the answer to a question that needs the right to an operation on the topic (empty: on all topics)."""
        until = time.monotonic() + TIMEOUT
        while True:
            try:
                if not self._greeted:
                    self._greeting[topic] = access_errors.await_broker(
                        self._consumer, self._errors, self.servers, topic or None, self._how, TIMEOUT
                    )
                    self._greeted = True
                return question()
            except KafkaException as error:
                if error.args[0].name() not in _ELECTING or time.monotonic() > until:
                    raise self._explain_error(error.args[0], topic, operation) from None
                time.sleep(0.1)

    def _explain_error(
        self, error: KafkaError, topic: str, operation: str = "Describe", partition: int | None = None
    ) -> TopicError:
        if error.name() in _NO_TOPIC:
            return TopicError(
                "the topic does not exist",
                where=f"{self.servers}, topic {topic}",
                fix=f"create it, or name the right one in the contract with topic: under the topic's entry ({topic})",
            )
        if error.name() in _NO_RIGHT:
            return access_errors.authorization_error(operation, topic, self.servers, self._how)
        place = f"{self.servers}, topic {topic}" if topic else self.servers
        if error.name() in _LOST:
            where = place if partition is None else f"{place}, partition {partition}"
            return TopicError(LOST_OFFSETS, where=where, fix=LOST_OFFSETS_FIX)
        if error.name() in _NO_BROKER:
            access_errors.refuse_denied_access(self._errors, self.servers, self._how)
            return TopicError(
                f"no Kafka broker answers ({error.str()})",
                where=place,
                fix="start it (make up), or set HINDCAST_KAFKA to the brokers' host:port; "
                "HINDCAST_KAFKA_SECURITY if they ask for TLS or SASL (docs/security.md)",
            )
        return TopicError(error.str(), where=place if partition is None else f"{place}, partition {partition}")


def _take_own(records: list[Message], left: dict[int, int]) -> list[Message]:
    """Return the records before the ends of the partitions that are `left`, without those that they finish."""
    own = []
    for record in records:
        partition, offset = record.partition() or 0, record.offset() or 0
        end = left.get(partition, 0)
        if offset < end:
            own.append(record)
        if offset >= end - 1:
            left.pop(partition, None)
    return own


def millis(moment: datetime) -> int:
    """Return a moment as Kafka's timestamps have it: whole milliseconds since 1970, rounded down."""
    return (moment - _EPOCH) // _MILLISECOND


def floor_to_millis(moment: datetime) -> datetime:
    """Return a moment as Kafka stores it: rounded down to a millisecond."""
    return _EPOCH + millis(moment) * _MILLISECOND


_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


_MILLISECOND = timedelta(milliseconds=1)


_AT_ONCE = 9_999


_MOST_BYTES = (1 << 31) - 1
"""So many bytes an answer, and a batch that zstd has unpacked, may have: librdkafka's most."""


_NO_TOPIC = ("UNKNOWN_TOPIC_OR_PART", "_UNKNOWN_TOPIC")


_NO_RIGHT = ("TOPIC_AUTHORIZATION_FAILED",)


_NO_GROUP_RIGHT = ("GROUP_AUTHORIZATION_FAILED",)


_ELECTING = ("LEADER_NOT_AVAILABLE", "NOT_LEADER_FOR_PARTITION", "NOT_LEADER_OR_FOLLOWER")


_LOST = ("_AUTO_OFFSET_RESET", "OFFSET_OUT_OF_RANGE")


_NO_BROKER = ("_TRANSPORT", "_TIMED_OUT", "_ALL_BROKERS_DOWN", "_RESOLVE")


def _next_millis(moment: datetime) -> int:
    """Return the first whole millisecond not before a moment; 0 before 1970, where Kafka has no times to search."""
    return max(0, -(-(moment - _EPOCH) // _MILLISECOND))
