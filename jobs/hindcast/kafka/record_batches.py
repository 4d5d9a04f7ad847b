"""Records as Kafka's own client reads them, as batches of Arrow; in this process or in a task of Spark."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, pairwise
from typing import NamedTuple, TypeAlias, cast

import numpy as np
import pyarrow as pa
from confluent_kafka import Message

from hindcast.kafka.topics import UNREADABLE_HEADERS

Headers: TypeAlias = list[tuple[str, bytes | None]]

HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
SCHEMA = pa.schema(
    [
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("timestamp", pa.timestamp("us", "UTC")),
        ("timestampType", pa.int32()),
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("headers", HEADERS),
    ]
)
"""The columns of `topics.RECORD_SCHEMA`."""

_RECORDS, _BYTES = 20_000, 32 << 20
"""About so many records are in a batch, and so many bytes of them wait for others of their partitions."""
_MAX_MILLIS = (2**63 - 1) // 1000


class ReceivedRecords(NamedTuple):
    """Messages of Kafka's client, with what each is asked for only once."""

    messages: list[Message]
    keys: list[bytes | None]
    headers: list[Headers | None]

    def slice(self, start: int, end: int) -> ReceivedRecords:
        """Return some of them."""
        return ReceivedRecords(self.messages[start:end], self.keys[start:end], self.headers[start:end])

    def select(self, places: list[int]) -> ReceivedRecords:
        """Return those at some places."""
        return ReceivedRecords(
            [self.messages[n] for n in places], [self.keys[n] for n in places], [self.headers[n] for n in places]
        )

    def extend(self, others: ReceivedRecords) -> None:
        """Add others."""
        self.messages.extend(others.messages)
        self.keys.extend(others.keys)
        self.headers.extend(others.headers)

    def measure(self) -> int:
        """Return how many bytes their keys, values and headers have."""
        of_headers = sum(map(_measure_headers, self.headers)) if any(self.headers) else 0
        return sum(map(len, self.messages)) + sum(map(len, filter(None, self.keys))) + of_headers


def build_batches(received: Iterable[list[Message]]) -> Iterator[pa.RecordBatch]:
    """Yield records in batches of one partition each, in the order in which they were received.

    A timestamp whose microseconds overflow becomes the nearest that Spark has. A record of which a header's name is not
    UTF-8 has only the header `UNREADABLE_HEADERS`: Kafka's client reads none of its headers.
    """
    waiting: dict[int, ReceivedRecords] = {}
    size = 0
    for records, bytes_ in _split_received(received):
        for partition, own in _group_by_partition(records).items():
            if partition in waiting:
                waiting[partition].extend(own)
            else:
                waiting[partition] = own
        size += bytes_
        full = [*waiting] if size >= _BYTES else [p for p, own in waiting.items() if len(own.messages) >= _RECORDS]
        for partition in full:
            yield _build_batch(waiting.pop(partition))
        size = size if waiting else 0
    for own in waiting.values():
        yield _build_batch(own)


def _split_received(received: Iterable[list[Message]]) -> Iterator[tuple[ReceivedRecords, int]]:
    """Yield records, at most about `_BYTES` of them at a time, and how many bytes these are."""
    for messages in received:
        keys: list[bytes | None] = [message.key() for message in messages]
        records = ReceivedRecords(messages, keys, _read_all_headers(messages))
        size = records.measure()
        if size <= _BYTES:
            yield records, size
            continue
        every = [records.slice(n, n + 1).measure() for n in range(len(messages))]
        cuts = (np.flatnonzero(np.diff(np.cumsum(every) // _BYTES)) + 1).tolist()
        for start, end in pairwise([0, *cuts, len(messages)]):
            yield records.slice(start, end), sum(every[start:end])


def _measure_headers(headers: Headers | None) -> int:
    return sum(len(name) + len(value or b"") for name, value in headers or ())


def _group_by_partition(records: ReceivedRecords) -> dict[int, ReceivedRecords]:
    partitions = [cast("int", message.partition()) for message in records.messages]
    if len({*partitions}) == 1:
        return {partitions[0]: records}
    places = defaultdict[int, list[int]](list)
    for n, partition in enumerate(partitions):
        places[partition].append(n)
    return {partition: records.select(own) for partition, own in places.items()}


def _build_batch(records: ReceivedRecords) -> pa.RecordBatch:
    """Return messages of a partition as records."""
    messages = records.messages
    kinds_and_times = chain.from_iterable([message.timestamp() for message in messages])
    times = np.fromiter(kinds_and_times, np.int64, 2 * len(messages)).reshape(-1, 2)
    micros = np.clip(times[:, 1], -_MAX_MILLIS, _MAX_MILLIS) * 1000
    columns = [
        pa.repeat(pa.scalar(messages[0].partition(), pa.int32()), len(messages)),
        pa.array([message.offset() for message in messages], pa.int64()),
        pa.array(micros).view(SCHEMA.field("timestamp").type),
        pa.array(times[:, 0] - 1, pa.int32()),
        pa.array(records.keys, pa.binary()),
        pa.array([message.value() for message in messages], pa.binary()),
        _build_headers(records.headers),
    ]
    return pa.RecordBatch.from_arrays(columns, schema=SCHEMA)


def _read_all_headers(messages: Sequence[Message]) -> list[Headers | None]:
    try:
        return [cast("Headers | None", message.headers()) for message in messages]
    except SystemError:  # of one of them
        return [_read_headers(message) for message in messages]


def _read_headers(message: Message) -> Headers | None:
    try:
        return cast("Headers | None", message.headers())
    except SystemError:  # a name is not UTF-8
        return [(UNREADABLE_HEADERS, None)]


def _build_headers(headers: Sequence[Headers | None]) -> pa.Array:
    """Return the headers of records; null of one that has none."""
    if not any(headers):
        return pa.nulls(len(headers), HEADERS)
    flat = [header for of_record in headers for header in of_record or ()]
    pairs = [pa.array([header[n] for header in flat], kind) for n, kind in enumerate((pa.string(), pa.binary()))]
    ends = np.cumsum([0, *(len(of_record or ()) for of_record in headers)])
    without = pa.array([not of_record for of_record in headers])
    items = pa.StructArray.from_arrays(pairs, fields=list(HEADERS.value_type))
    return pa.ListArray.from_arrays(pa.array(ends, pa.int32()), items, HEADERS, mask=without)
