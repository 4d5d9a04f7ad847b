"""Records into Kafka: what the demo, the tests and `hindcast produce` write topics with."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any, NamedTuple

from confluent_kafka import KafkaError, KafkaException, Message, Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from hindcast.errors import TopicError
from hindcast.kafka import refusals
from hindcast.kafka.partitioning import PARTITIONERS
from hindcast.kafka.security import Security, client, security
from hindcast.kafka.topics import TIMEOUT, millis
from hindcast.words import counted


class Record(NamedTuple):
    """What is sent: bytes or null, the record's timestamp, and headers in order.

    `timestamp`: a moment, or milliseconds since 1970, of which negative ones are none (KIP-32); null: now.
    """

    key: bytes | None
    value: bytes | None
    timestamp: datetime | int | None
    headers: tuple[tuple[str, str | bytes | None], ...] = ()


def create(
    servers: str,
    *topics: str,
    partitions: int = 1,
    config: Mapping[str, str] | None = None,
    how: Security | None = None,
) -> None:
    """Makes the topics that are not there, and returns when the broker knows them.

    They have as many replicas as the brokers are set to give (default.replication.factor), and keep records of any
    date, unless `config` has settings of their own. `how` the broker is spoken to: as the
    environment says, if not given. AccessError if it refuses us.
    """
    how, heard = how or security(servers), refusals.Heard()
    new = [NewTopic(topic, partitions, config={"retention.ms": "-1", **(config or {})}) for topic in topics]
    admin = refusals.connected(AdminClient, {**client(servers, how), "error_cb": heard}, how)
    _greet(admin, heard, servers, None, how)  # to ask for the topic could make it, as the broker likes
    for topic, future in admin.create_topics(new, request_timeout=TIMEOUT).items():
        try:
            future.result()
        except KafkaException as error:
            if error.args[0].code() in _NO_RIGHT:
                raise refusals.no_right("Create", topic, servers, how) from None
            if error.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
                raise TopicError(error.args[0].str(), where=f"{servers}, topic {topic}", mend=_UP) from None
        until = time.monotonic() + TIMEOUT  # the broker learns of a topic a moment after its controller
        while admin.list_topics(topic, timeout=TIMEOUT).topics[topic].error and time.monotonic() < until:
            time.sleep(0.05)


def send(
    servers: str,
    topic: str,
    records: Iterable[Record],
    how: Security | None = None,
    *,
    partitioner: str = "murmur2",
    partition: int | None = None,
    placed: dict[bytes, set[int]] | None = None,
) -> int:
    """Sends records in order and waits until the broker has them all; returns how many. `how`: as `create` has it.

    To the partition that a `partitioner` (`partitioning.PARTITIONERS`) gives their keys, as Java clients do if none is
    named; or all to one `partition`. `placed` is filled with the partitions that each key went to.
    """
    problems: list[KafkaError] = []

    def note(error: KafkaError | None, message: Message) -> None:
        if error is not None:
            problems.append(error)
        elif placed is not None and isinstance(key := message.key(), bytes):
            placed.setdefault(key, set()).add(message.partition() or 0)

    how, heard = how or security(servers), refusals.Heard()
    config = {**client(servers, how), "error_cb": heard, "linger.ms": 20, "message.timeout.ms": 30_000}
    config |= {"partitioner": PARTITIONERS[partitioner]}
    reported = {"queue.buffering.max.messages": 500_000, "delivery.report.only.error": placed is None}
    producer = refusals.connected(Producer, {**config, **reported}, how)
    _greet(producer, heard, servers, topic, how)
    target = _ANY if partition is None else partition
    if partition is not None and not 0 <= partition < _count_partitions(producer, topic):
        mend = f"it has {counted(_count_partitions(producer, topic), 'partition')}, numbered from 0"
        raise TopicError(f"there is no partition {partition}; nothing was sent", where=f"topic {topic}", mend=mend)
    sent = 0
    for record in records:
        stamp = millis(record.timestamp) if isinstance(record.timestamp, datetime) else record.timestamp or 0
        if record.timestamp is not None and not stamp:
            raise TopicError("the client cannot send a record dated 1970-01-01T00:00:00Z", where=topic, mend=_EPOCH)
        while True:
            try:
                headers = list(record.headers)
                producer.produce(topic, record.value, record.key, target, note, timestamp=stamp, headers=headers)
                break
            except BufferError:
                producer.poll(0.1)
            except KafkaException as error:
                producer.flush(60)
                told = f"record {sent + 1} was not taken: {error.args[0].str()}; those before it were"
                raise TopicError(told, where=topic, mend="send what the broker takes, from this record on") from None
        sent += 1
        if sent % 10_000 == 0:
            producer.poll(0)
    left = producer.flush(60)
    if left or problems:
        if any(error.code() in _NO_RIGHT for error in problems):
            raise refusals.no_right("Write", topic, servers, how)
        told = problems[0].str() if problems else "the broker does not answer"
        raise TopicError(f"{left + len(problems)} of {sent} records were not taken: {told}", where=topic, mend=_UP)
    return sent


def _count_partitions(producer: Producer, topic: str) -> int:
    return len(producer.list_topics(topic, timeout=TIMEOUT).topics[topic].partitions)


def _greet(connected: Any, heard: refusals.Heard, servers: str, topic: str | None, how: Security) -> None:
    try:
        refusals.greet(connected, heard, servers, topic, how, TIMEOUT)
    except KafkaException as error:
        where = f"{servers}, topic {topic}" if topic else servers
        raise TopicError(error.args[0].str(), where=where, mend=_UP) from None


_ANY = -1
"""For the client: the partition that the partitioner gives."""
_EPOCH = "date it a millisecond later; the client takes the epoch itself for `now`"
_NO_RIGHT = (KafkaError.TOPIC_AUTHORIZATION_FAILED, KafkaError.CLUSTER_AUTHORIZATION_FAILED)
_UP = "is a broker up? (make up, or set HINDCAST_KAFKA)"
