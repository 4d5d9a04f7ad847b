"""Kafka: which offsets there are, which of them an interval bounds, and the records themselves."""

from __future__ import annotations

import json
import time
from collections.abc import Generator, Mapping
from contextlib import closing
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicCollection, TopicPartition
from confluent_kafka.admin import AdminClient, ConfigResource  # type: ignore[attr-defined]  # it is not in its __all__
from pyspark.sql import DataFrame, SparkSession

from hindcast.errors import TopicError

TIMEOUT = 20.0
"""Seconds after which a broker that does not answer is an error."""


class Offsets(NamedTuple):
    """The half-open range of offsets [start, end) of one partition."""

    start: int
    end: int


class Cluster:
    """The brokers at `servers` (host:port, comma-separated). A context manager."""

    def __init__(self, servers: str) -> None:
        self.servers = servers
        self._config: dict[str, str | int | float | bool] = {
            "bootstrap.servers": servers,
            "socket.timeout.ms": 10_000,
            "log_level": 0,
        }
        self._admin = AdminClient(self._config)
        self._consumer = Consumer(
            {
                **self._config,
                "group.id": "hindcast-plan",
                "enable.auto.commit": False,
                "isolation.level": "read_committed",
                "auto.offset.reset": "error",
                "enable.partition.eof": True,
            }
        )

    def __enter__(self) -> Cluster:
        return self

    def __exit__(self, *_: object) -> None:
        self._consumer.close()

    def topic_id(self, topic: str) -> str:
        """The id that a topic made anew under the same name does not share."""
        wanted = TopicCollection([topic])
        found = self._ask(self._admin.describe_topics(wanted, request_timeout=TIMEOUT)[topic].result, topic)
        return str(found.topic_id)

    def available(self, topic: str) -> dict[int, Offsets]:
        """The offsets that each partition holds now: from its first record to after its last committed one.

        Raises TopicError if no broker answers or the topic is not there.
        """
        metadata = self._ask(lambda: self._consumer.list_topics(topic, timeout=TIMEOUT), topic)
        found = metadata.topics[topic]
        if found.error is not None:
            raise self._missing(topic)
        return {
            number: Offsets(*self._ask(lambda p=p: self._consumer.get_watermark_offsets(p, timeout=TIMEOUT), topic))
            for number in sorted(found.partitions)
            if (p := TopicPartition(topic, number))
        }

    def compacted(self, topic: str) -> bool:
        """Whether the topic keeps only the last record of a key."""
        asked = ConfigResource(ConfigResource.Type.TOPIC, topic)
        found = self._ask(self._admin.describe_configs([asked], request_timeout=TIMEOUT)[asked].result, topic)
        return "compact" in found["cleanup.policy"].value

    def reaching(self, topic: str, moment: datetime, latest: datetime) -> dict[int, int | None]:
        """Per partition the first offset whose timestamp reaches `moment` (KIP-32), None if there is none.

        Records dated after `latest` are passed over: one dated 2099 bounds nothing.
        """
        partitions = sorted(self.available(topic))
        asked = [TopicPartition(topic, p, _ms_from(moment)) for p in partitions]
        hits = self._ask(lambda: self._consumer.offsets_for_times(asked, timeout=TIMEOUT), topic)
        return {hit.partition: None if hit.offset < 0 else self._plausible(hit, moment, latest) for hit in hits}

    def committed(self, topic: str, ranges: Mapping[int, Offsets]) -> Generator[list[Message], None, None]:
        """The committed records of these ranges as they come, a few thousand at a time; each partition in order."""
        left = {partition: it.end for partition, it in ranges.items() if it.end > it.start}
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
                        raise TopicError(str(error), where=f"{topic} partition {partition}")
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
        """What has come of the assigned partitions; waits a second for the first of it."""
        first = self._consumer.poll(1.0)
        return [first, *self._consumer.consume(_AT_ONCE, 0)] if first is not None else []

    def _plausible(self, hit: TopicPartition, moment: datetime, latest: datetime) -> int | None:
        """The first offset from `hit` on that is dated from `moment` up to `latest`."""
        end = self._ask(lambda: self._consumer.get_watermark_offsets(hit, timeout=TIMEOUT), hit.topic)[1]
        with closing(self.committed(hit.topic, {hit.partition: Offsets(hit.offset, end)})) as batches:
            dated = (m for batch in batches for m in batch if _ms_from(moment) <= m.timestamp()[1] <= millis(latest))
            return next((message.offset() for message in dated), None)

    def _ask(self, question: Any, topic: str) -> Any:
        until = time.monotonic() + TIMEOUT
        while True:
            try:
                return question()
            except KafkaException as error:
                if error.args[0].name() not in _ELECTING or time.monotonic() > until:
                    raise self._told(error.args[0], topic) from None
                time.sleep(0.1)

    def _told(self, error: KafkaError, topic: str) -> TopicError:
        if error.name() in _NO_TOPIC:
            return self._missing(topic)
        if error.name() in _NO_BROKER:
            return TopicError(
                f"no Kafka broker answers ({error.str()})",
                where=f"{self.servers}, topic {topic}",
                mend="start it (make up), or set HINDCAST_KAFKA to the brokers' host:port",
            )
        return TopicError(error.str(), where=f"{self.servers}, topic {topic}")

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

    A range never runs backwards: what earlier runs replayed beyond the bound stays replayed (design.md 6).
    """
    ranges = {}
    for partition, offsets in available.items():
        start, hit = starts[partition], bound.get(partition)
        ranges[partition] = Offsets(start, max(start, offsets.end if hit is None else min(hit, offsets.end)))
    return ranges


def records(spark: SparkSession, servers: str, topic: str, ranges: Mapping[int, Offsets]) -> DataFrame:
    """The records of these ranges: partition, offset, timestamp, timestampType, key, value, headers (bytes as sent).

    Only committed records (read_committed). Fails rather than return fewer records where Kafka has lost some.
    """
    wanted = {str(p): r for p, r in ranges.items() if r.end > r.start}
    if not wanted:
        return spark.createDataFrame([], _RECORD)
    frame = (
        spark.read.format("kafka")
        .option("kafka.bootstrap.servers", servers)
        .option("kafka.isolation.level", "read_committed")
        .option("kafka.max.partition.fetch.bytes", str(8 << 20))
        .option("kafka.fetch.max.bytes", str(64 << 20))
        .option("assign", json.dumps({topic: [int(p) for p in wanted]}))
        .option("startingOffsets", json.dumps({topic: {p: r.start for p, r in wanted.items()}}))
        .option("endingOffsets", json.dumps({topic: {p: r.end for p, r in wanted.items()}}))
        .option("includeHeaders", "true")
        .option("failOnDataLoss", "true")
        .load()
    )
    return frame.select("partition", "offset", "timestamp", "timestampType", "key", "value", "headers")


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
_RECORD = f"partition int, offset long, timestamp timestamp, timestampType int, key binary, value binary, {HEADERS}"
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND = timedelta(milliseconds=1)
_AT_ONCE = 9_999
_NO_TOPIC = ("UNKNOWN_TOPIC_OR_PART", "_UNKNOWN_TOPIC")
_ELECTING = ("LEADER_NOT_AVAILABLE", "NOT_LEADER_FOR_PARTITION", "NOT_LEADER_OR_FOLLOWER")
_NO_BROKER = ("_TRANSPORT", "_TIMED_OUT", "_ALL_BROKERS_DOWN", "_RESOLVE")
_ANEW = "the topic was made anew: replay it into a new pipeline (another pipeline: name in the contract)"


def _ms_from(moment: datetime) -> int:
    """The first whole millisecond that is not before a moment."""
    return -(-(moment - _EPOCH) // _MILLISECOND)
