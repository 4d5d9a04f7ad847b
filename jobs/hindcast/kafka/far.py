"""Records dated so far off that Spark's Kafka connector fails on them: their milliseconds are too many for its
microseconds (years -290308 to 294247). The partition is then read by Kafka's own client, in a task of Spark.

Nobody dates a record so on purpose: it is nanoseconds sent as milliseconds, or no number at all. Its timestamp is taken
for the nearest that Spark has.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, TypeVar, cast

import pyarrow as pa
from confluent_kafka import Message
from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]  # it has no types
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from hindcast.kafka import handover
from hindcast.kafka.members import Members, number, real
from hindcast.kafka.topics import RECORD, Cluster, Offsets

Used = TypeVar("Used")

_REFUSED = re.compile(r"Record at topic (\S+) partition (\d+) offset \d+ has timestamp value -?\d+ that overflows")
_MOST = (2**63 - 1) // 1000
_ARROW = pa.schema(
    [
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("timestamp", pa.timestamp("us", "UTC")),
        ("timestampType", pa.int32()),
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("headers", pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))),
    ]
)


def tried(
    make: Callable[[frozenset[int]], DataFrame], use: Callable[[DataFrame], Used], members: Members
) -> tuple[DataFrame, Used]:
    """What `make` makes of records, and what comes of using it.

    `make` is given the partitions that Kafka's own client has to read: none at first, then those of which Spark's
    connector refuses a record when they are used.
    """
    by_client = frozenset[int]()
    while True:
        try:
            made = make(by_client)
            return made, use(made)
        except (PySparkException, Py4JJavaError) as error:
            refused = _REFUSED.search(str(error))
            if refused is None or (partition := number(members, refused[1], int(refused[2]))) in by_client:
                raise
            by_client |= {partition}


def records(
    spark: SparkSession, servers: str, kafka: str, members: Members, ranges: Mapping[int, Offsets]
) -> DataFrame:
    """The same as `members.records`, read by Kafka's own client: a task for each partition."""
    rows = [(n, *real(kafka, members, n), *offsets) for n, offsets in ranges.items()]
    columns = "number int, topic string, partition int, start long, end long"
    asked = spark.createDataFrame(rows, columns).repartition(len(rows), "number")
    told = handover.of_task(servers)

    def read(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for row in (row for batch in batches for row in batch.to_pylist()):
            with Cluster(servers, handover.security_of(servers, told)) as cluster:
                for messages in cluster.committed(row["topic"], {row["partition"]: Offsets(row["start"], row["end"])}):
                    found = [_told(message) | {"partition": row["number"]} for message in messages]
                    yield pa.RecordBatch.from_pylist(found, _ARROW)

    return asked.mapInArrow(read, RECORD)


def _told(message: Message) -> dict[str, Any]:
    """A record as Spark's connector tells it, but for its partition."""
    kind, millis = message.timestamp()
    headers = [
        {"key": key, "value": value} for key, value in cast("list[tuple[str, bytes | None]]", message.headers() or [])
    ]
    return {
        "offset": message.offset(),
        "timestamp": max(-_MOST, min(millis, _MOST)) * 1000,
        "timestampType": kind - 1,
        "key": message.key(),
        "value": message.value(),
        "headers": headers or None,
    }
