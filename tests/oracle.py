"""Kafka Streams itself, to compare with: what its test driver makes of vectors, and what a real application writes.

    PYTHONPATH=scripts .venv/bin/python tests/oracle.py FOLDER COUNT [SEED [FACTOR]]

writes `COUNT` random vectors of every family, with what is expected of them, to `FOLDER`; with FACTOR all durations
and timestamps are multiplied by it.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple

import java_for_tests

import topologies

Json = Any
_numbers = count()


class Row(NamedTuple):
    """A record of an output topic; the key of a windowed result is its JSON object."""

    key: Json
    value: Json
    timestamp: int
    partition: int
    offset: int


class Run(NamedTuple):
    """What an application wrote, by partition and offset, and the partition of each record that it was given.

    `prefix`: with what the names of its topics begin; it wrote to `output`.
    """

    rows: list[Row]
    partitions: list[int]
    prefix: str


def expected(vectors: Sequence[Mapping[str, Json]]) -> list[dict[str, Json]]:
    """Vectors with what Kafka Streams' test driver makes of them."""
    with tempfile.TemporaryDirectory() as folder:
        given, made, state = (Path(folder) / name for name in ("vectors.json", "results.json", "state"))
        given.write_text(json.dumps(list(vectors)), encoding="utf-8")
        _run([*java_for_tests.streams(), "driver", str(given), str(made), str(state)])
        found: list[dict[str, Json]] = json.loads(made.read_text(encoding="utf-8"))
        return found


def live_output(
    servers: str,
    operation: Mapping[str, Json],
    records: Sequence[Mapping[str, Json]],
    *,
    partitions: int = 2,
    one_by_one: bool = False,
    config: Mapping[str, str] | None = None,
) -> Run:
    """Run an operation as a real application over records that are in its topics before it starts.

    A record goes to the partition that Kafka's own partitioner gives its key. `one_by_one`: the application has
    processed each record to the end, through its own topics too, before it is given the next.
    """
    from hindcast.kafka import produce

    prefix = f"live-{os.getpid()}-{next(_numbers)}-"
    topics = sorted({record["topic"] for record in records})
    produce.create_topics(servers, *(f"{prefix}{topic}" for topic in (*topics, "output")), partitions=partitions)
    job = {"bootstrap": servers, "application": f"app-{prefix[:-1]}", "prefix": prefix, "operation": operation}
    sender, placed = _sender(servers), list[int]()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "job.json"
        path.write_text(json.dumps({**job, "config": dict(config or {})}), encoding="utf-8")
        if not one_by_one:
            placed = _send(sender, prefix, records)
        command = [*java_for_tests.streams(), "live", str(path), str(Path(folder) / "state")]
        with (Path(folder) / "errors").open("w+") as errors:
            application = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, text=True, bufsize=1
            )
            try:
                done = _await(application)
                for record in records if one_by_one and done else ():
                    placed += _send(sender, prefix, [record])
                    print(file=application.stdin, flush=True)
                    done = done and _await(application)
                application.communicate(timeout=60)
            finally:
                application.kill()
            errors.seek(0)
            assert done and application.returncode == 0, errors.read()  # noqa: PT018
    return Run(_rows(servers, f"{prefix}output", partitions), placed, prefix)


def _await(application: subprocess.Popen[str]) -> bool:
    assert application.stdout is not None
    return application.stdout.readline() == "done\n"


def _sender(servers: str) -> Json:
    from confluent_kafka import Producer

    config = {"bootstrap.servers": servers, "partitioner": "murmur2", "enable.idempotence": True, "linger.ms": 0}
    return Producer({**config, "log_level": 0})


def _send(producer: Json, prefix: str, records: Sequence[Mapping[str, Json]]) -> list[int]:
    """Send records in order; the partition of each."""
    placed: dict[int, int] = {}
    for number, record in enumerate(records):
        assert record["timestamp"] > 0, "the client takes a timestamp of 0 for now"
        producer.produce(
            prefix + record["topic"],
            None if record["value"] is None else json.dumps(record["value"]),
            record["key"],
            timestamp=record["timestamp"],
            on_delivery=lambda error, message, number=number: placed.update({number: _placed(error, message)}),
        )
        producer.poll(0)
    assert producer.flush(60) == 0
    return [placed[number] for number in range(len(records))]


def _placed(error: Json, message: Json) -> int:
    assert error is None, error
    return int(message.partition())


def _rows(servers: str, topic: str, partitions: int) -> list[Row]:
    from confluent_kafka import Consumer, TopicPartition

    consumer = Consumer({"bootstrap.servers": servers, "group.id": topic, "enable.auto.commit": False})
    rows: list[Row] = []
    try:
        for partition in range(partitions):
            _, end = consumer.get_watermark_offsets(TopicPartition(topic, partition), timeout=30)
            consumer.assign([TopicPartition(topic, partition, 0)])
            while end and (not rows or rows[-1][3:] != (partition, end - 1)):
                message = consumer.poll(30)
                assert message is not None and message.error() is None, message  # noqa: PT018
                rows.append(_row(message))
    finally:
        consumer.close()
    return rows


def _row(message: Json) -> Row:
    key, value = message.key(), message.value()
    text = None if key is None else key.decode()
    return Row(
        json.loads(text) if text and text.startswith("{") else text,
        None if value is None else json.loads(value),
        message.timestamp()[1],
        message.partition(),
        message.offset(),
    )


def _run(command: Sequence[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def _main(folder: Path, count: int, seed: int = 0, factor: int = 1) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for family in topologies.FAMILIES:
        vectors = [topologies.scaled(vector, factor) for vector in topologies.vectors(family, count, seed)]
        lines = ",\n".join(json.dumps(vector, ensure_ascii=False) for vector in expected(vectors))
        (folder / f"{family}.json").write_text(f"[\n{lines}\n]\n", encoding="utf-8")


if __name__ == "__main__":
    _main(Path(sys.argv[1]), *map(int, sys.argv[2:]))
