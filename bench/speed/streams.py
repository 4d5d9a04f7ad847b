"""Kafka Streams beside operation a: a real application with a versioned store on RocksDB, against a real broker.

It is the application that the tests run (tests/streams/Live.java), with two threads, the full compiler and a commit a
second. It is given the first part of the same events and of the versions up to their time, in JSON, from two partitions
of a topic each, which are all there when it starts. Counted from the start of its process until all is processed and
written. Late versions reach it after events that would have met them, so its results differ in those; only the number
of rows is checked.
"""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from bench.speed.data import SPAN, T0, records
from bench.speed.inputs import Inputs
from bench.speed.measuring import Measured
from bench.speed.names import STREAMS

EVENTS = 500_000
"""Of 10 million; it takes a minute."""
OPERATION = {
    "type": "stream_table_join",
    "join": "left",
    "table": {"versioned": True, "historyRetentionMs": int(SPAN.total_seconds() * 1000)},
}
CONFIG = {"num.stream.threads": "2", "commit.interval.ms": "1000"}


def measure(place: Inputs, kind: str, rounds: int) -> list[Measured]:
    """The seconds that it takes for its share of the events, in rounds of its own."""
    from hindcast_local.broker import run_broker

    found = Measured("a", kind, STREAMS, share=min(EVENTS / place.sizes.events, 1), writes="Kafka")
    with tempfile.TemporaryDirectory() as folder, run_broker(Path(folder) / "broker") as servers:
        for number in range(rounds):
            prefix = f"streams-{kind}-{number}-"
            sent = _send(servers, prefix, place, kind, found.share)
            found.seconds.append(_run(Path(folder), servers, prefix))
            written = _count(servers, f"{prefix}output")
            assert written == sent["stream"], f"{written} rows of {sent['stream']} events"
            print(f"a {kind:8} round {number + 1}  {STREAMS:34} {found.seconds[-1]:7.2f} s for {sent}", flush=True)
    return [found]


def _send(servers: str, prefix: str, place: Inputs, kind: str, share: float) -> dict[str, int]:
    """The first records of both topics into Kafka."""
    from hindcast.kafka import produce

    produce.create_topics(servers, *(f"{prefix}{topic}" for topic in ("stream", "table", "output")), partitions=2)
    end = pa.scalar(T0 + SPAN * share, pa.timestamp("ms", "UTC"))
    sent = {}
    for topic, name in (("table", "prices"), ("stream", "events")):
        every = records(place.sizes, kind, name)
        count = int(every.num_rows * share)
        some = every.slice(0, count).filter(pc.less_equal(every.slice(0, count)["timestamp"], end))
        sent[topic] = produce.send_records(servers, f"{prefix}{topic}", _records(some))
    return sent


def _records(some: pa.Table) -> Iterator[Any]:
    from hindcast.kafka.produce import ProducerRecord

    values = [name for name in some.column_names if name not in ("offset", "timestamp", "item")]
    millis = pc.cast(some["timestamp"], pa.int64())
    for batch in some.set_column(1, "timestamp", millis).to_batches(max_chunksize=50_000):
        for row in batch.to_pylist():
            value = {name: row[name] for name in values}
            gone = row[values[0]] is None
            yield ProducerRecord(row["item"].encode(), None if gone else json.dumps(value).encode(), row["timestamp"])


def _run(folder: Path, servers: str, prefix: str) -> float:
    """Seconds of an application from its start until it has done everything."""
    import java_for_tests

    job = {"bootstrap": servers, "application": f"app-{prefix[:-1]}", "prefix": prefix}
    path = folder / f"{prefix}job.json"
    path.write_text(json.dumps({**job, "operation": OPERATION, "config": CONFIG}), encoding="utf-8")
    java, _, *more = [word for word in java_for_tests.streams() if word not in java_for_tests.QUICK]
    command = [java, "-Xmx3g", *more, "live", str(path), str(folder / f"{prefix}state")]
    errors = folder / f"{prefix}errors"
    begun = time.monotonic()
    with errors.open("w") as into:
        it = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=into, text=True, env={**os.environ}
        )
        try:
            assert it.stdout is not None
            done = it.stdout.readline()
            took = time.monotonic() - begun
            it.communicate(timeout=60)
        finally:
            it.kill()
    assert done == "done\n", errors.read_text(encoding="utf-8")[-2000:]
    return took


def _count(servers: str, topic: str) -> int:
    """How many records a topic of two partitions has."""
    from confluent_kafka import Consumer, TopicPartition

    consumer = Consumer({"bootstrap.servers": servers, "group.id": topic, "enable.auto.commit": False})
    try:
        ends = [consumer.get_watermark_offsets(TopicPartition(topic, p), timeout=30) for p in (0, 1)]
        return sum(high - low for low, high in ends)
    finally:
        consumer.close()
