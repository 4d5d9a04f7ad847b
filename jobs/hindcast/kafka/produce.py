"""Writing records to Kafka, for the demo, the tests and `hindcast produce`."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import NamedTuple

from confluent_kafka import KafkaError, KafkaException, Message, Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from hindcast.common.errors import TopicError
from hindcast.common.plurals import format_count
from hindcast.kafka import access_errors
from hindcast.kafka.cluster import TIMEOUT, millis
from hindcast.kafka.partitioning import PARTITIONERS
from hindcast.kafka.security import Security, client_config, read_security


class ProducerRecord(NamedTuple):
    """A record to send: bytes or null, its timestamp, and headers in order.

    `timestamp`: a moment, or milliseconds since 1970, of which negative ones mean none (KIP-32); None: now.
    """

    key: bytes | None
    value: bytes | None
    timestamp: datetime | int | None
    headers: tuple[tuple[str, str | bytes | None], ...] = ()


def create_topics(
    servers: str,
    *topics: str,
    partitions: int = 1,
    config: Mapping[str, str] | None = None,
    how: Security | None = None,
) -> None:
    """Create the topics that do not exist, and return when the broker knows them.

    They have the brokers' number of replicas (default.replication.factor), and keep records of any date, unless
    `config` says otherwise. `how` to connect: by default as the environment says. Raises AccessError if the broker
    refuses us.
    """
    how, errors = how or read_security(servers), access_errors.ClientErrors()
    new = [NewTopic(topic, partitions, config={"retention.ms": "-1", **(config or {})}) for topic in topics]
    admin = access_errors.connect_client(AdminClient, client_config(servers, how), errors, how)
    _await_broker(admin, errors, servers, None, how)  # asking for the topic could create it, if the broker allows that
    for topic, future in admin.create_topics(new, request_timeout=TIMEOUT).items():
        try:
            future.result()
        except KafkaException as error:
            if error.args[0].code() in _NO_RIGHT:
                raise access_errors.authorization_error("Create", topic, servers, how) from None
            if error.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
                raise TopicError(error.args[0].str(), where=f"{servers}, topic {topic}", fix=_UP) from None
        until = time.monotonic() + TIMEOUT  # the broker learns of a topic a moment after its controller
        while admin.list_topics(topic, timeout=TIMEOUT).topics[topic].error and time.monotonic() < until:
            time.sleep(0.05)


def send_records(
    servers: str,
    topic: str,
    records: Iterable[ProducerRecord],
    how: Security | None = None,
    *,
    partitioner: str = "murmur2",
    partition: int | None = None,
    placed: dict[bytes, set[int]] | None = None,
) -> int:
    """Send records in order, wait until the broker has them all, and return their number.

    The `partitioner` (`partitioning.PARTITIONERS`) chooses the partition of a key, by default as Java clients do; with
    `partition`, all go there. `placed` is filled with the partitions of each key. `how`: see `create_topics`.
    """
    problems: list[KafkaError] = []

    def note(error: KafkaError | None, message: Message) -> None:
        if error is not None:
            problems.append(error)
        elif placed is not None and isinstance(key := message.key(), bytes):
            placed.setdefault(key, set()).add(message.partition() or 0)

    how, errors = how or read_security(servers), access_errors.ClientErrors()
    config = {**client_config(servers, how), "linger.ms": 20, "message.timeout.ms": 30_000}
    config |= {"partitioner": PARTITIONERS[partitioner]}
    reported = {"queue.buffering.max.messages": 500_000, "delivery.report.only.error": placed is None}
    producer = access_errors.connect_client(Producer, {**config, **reported}, errors, how)
    _await_broker(producer, errors, servers, topic, how)
    target = _ANY if partition is None else partition
    if partition is not None and not 0 <= partition < _count_partitions(producer, topic):
        fix = f"it has {format_count(_count_partitions(producer, topic), 'partition')}, numbered from 0"
        raise TopicError(f"there is no partition {partition}; nothing was sent", where=f"topic {topic}", fix=fix)
    sent = 0
    for record in records:
        stamp = millis(record.timestamp) if isinstance(record.timestamp, datetime) else record.timestamp or 0
        if record.timestamp is not None and not stamp:
            raise TopicError("the client cannot send a record dated 1970-01-01T00:00:00Z", where=topic, fix=_EPOCH)
        while True:
            try:
                headers = list(record.headers)
                producer.produce(topic, record.value, record.key, target, note, timestamp=stamp, headers=headers)
                break
            except BufferError:
                producer.poll(0.1)
            except KafkaException as error:
                producer.flush(60)
                problem = f"record {sent + 1} was not accepted: {error.args[0].str()}; those before it were"
                fix = "send what the broker accepts, from this record on"
                raise TopicError(problem, where=topic, fix=fix) from None
        sent += 1
        if sent % 10_000 == 0:
            producer.poll(0)
    left = producer.flush(60)
    if left or problems:
        if any(error.code() in _NO_RIGHT for error in problems):
            raise access_errors.authorization_error("Write", topic, servers, how)
        problem = problems[0].str() if problems else "the broker does not answer"
        raise TopicError(f"{left + len(problems)} of {sent} records were not accepted: {problem}", where=topic, fix=_UP)
    return sent


def _count_partitions(producer: Producer, topic: str) -> int:
    return len(producer.list_topics(topic, timeout=TIMEOUT).topics[topic].partitions)


def _await_broker(
    connected: access_errors.AnyClient,
    errors: access_errors.ClientErrors,
    servers: str,
    topic: str | None,
    how: Security,
) -> None:
    try:
        access_errors.await_broker(connected, errors, servers, topic, how, TIMEOUT)
    except KafkaException as error:
        where = f"{servers}, topic {topic}" if topic else servers
        raise TopicError(error.args[0].str(), where=where, fix=_UP) from None


_ANY = -1
"""The client's number for the partition that the partitioner chooses."""
_EPOCH = "date it a millisecond later; the client takes the epoch itself for `now`"
_NO_RIGHT = (KafkaError.TOPIC_AUTHORIZATION_FAILED, KafkaError.CLUSTER_AUTHORIZATION_FAILED)
_UP = "is a broker up? (make up, or set HINDCAST_KAFKA)"
