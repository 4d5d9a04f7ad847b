"""A topic's `arrival`: when its records could be known, by Kafka's timestamp, a header or an expression. Pure.

arrival: header sent_at         the header's text: ISO 8601, or milliseconds since 1970
arrival: timestamp_millis(ts)   an expression over the columns that `valid_time` sees
"""

from __future__ import annotations

from collections.abc import Iterator

from hindcast.contract.shapes import FieldPath
from hindcast.contract.topic import Topic
from hindcast.contract.valid_time import RECORD_TIMESTAMP, check_time
from hindcast.contract.view_checks import Complaint


def needs_broker_time(topic: Topic) -> bool:
    """Return whether the topic's records must have timestamps of the broker (`LogAppendTime`).

    A producer's timestamp that dates the rows says when a record is true: by it, no record would be late.
    """
    is_dated = topic.valid_time is not None or topic.envelope is not None
    return topic.arrival is not None and topic.arrival.strip().lower() == RECORD_TIMESTAMP and not is_dated


def check_arrival(location: FieldPath, topic: Topic) -> Iterator[Complaint]:
    """Yield every complaint about `arrival` that needs no Spark."""
    yield from check_time(location, topic, "arrival")
