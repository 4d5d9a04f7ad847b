"""Records that are small on the way and large where they are read: the run says so, and what to do."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
from confluent_kafka import Producer
from deltalake import write_deltalake
from pyspark.errors import PySparkException

from hindcast.common.errors import PlatformError, RunError
from hindcast.kafka.cluster import millis
from hindcast.runs.spark_errors import explain_spark_errors
from pipelines import Pipeline, at, pipeline, wrong
from test_formats import record, wrote

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

EVENTS = """
pipeline: shop
start: 2026-01-01
topics:
  events: {read: stream, key: {id: string}, value: {n: int}}
"""


def test_what_spark_says_of_its_memory_is_told_with_what_to_do(tmp_path: Path) -> None:
    said = (
        "Job aborted due to stage failure: Task 0 in stage 0.0 failed 1 times, most recent failure: Lost task 0.0 in "
        "stage 0.0 (TID 0) (localhost executor driver): java.lang.OutOfMemoryError: Java heap space\n\tat org.apache."
    )
    p = Pipeline(None, "nowhere:1", tmp_path, EVENTS)
    with pytest.raises(PlatformError) as caught, explain_spark_errors(p.contract, "events"):
        raise PySparkException(said)
    assert caught.value.found == "Spark's memory is too small for this (java.lang.OutOfMemoryError: Java heap space)"
    assert (caught.value.where, "docs/topics/poison.md" in caught.value.fix) == ("shop.events", True)


def test_a_file_that_vacuum_removes_under_a_step_is_named_with_what_to_do(spark: SparkSession, tmp_path: Path) -> None:
    p, path = Pipeline(None, "nowhere:1", tmp_path, EVENTS), str(tmp_path / "a table, read")
    write_deltalake(path, pa.table({"n": [1]}))
    rows = spark.read.format("delta").load(path)
    [file] = Path(path).glob("*.parquet")
    assert rows.count() == 1
    file.unlink()
    with pytest.raises(RunError) as caught, explain_spark_errors(p.contract, "events"):
        rows.collect()
    assert caught.value.found.startswith("a file was removed while it was read: ")
    assert caught.value.found.endswith(file.name)
    assert caught.value.where == "shop.events"
    assert "VACUUM keeps old files for too short a time" in caught.value.fix


AVRO = """
pipeline: shop
start: 2026-01-01
topics:
  events:
    read: stream
    key: {id: string}
    value: {n: int}
    value_format: avro
    value_schema: event.avsc
    max_malformed: 10
"""
SCHEMA = record(n="int", text="string", raw="bytes", tags={"type": "array", "items": "boolean"})
GOOD = {"n": 1, "text": "", "raw": b"", "tags": []}


def write_long(number: int) -> bytes:
    """Return a number as Avro writes it."""
    zigzag, written = number << 1 if number >= 0 else (-number << 1) - 1, bytearray()
    while zigzag > 0x7F:
        written.append(zigzag & 0x7F | 0x80)
        zigzag >>= 7
    return bytes([*written, zigzag])


AVRO_BOMBS = {
    "a text of a terabyte": write_long(1) + write_long(1 << 40) + b"x",
    "bytes of two gigabytes": write_long(1) + write_long(0) + write_long((1 << 31) - 1) + b"x",
    "two billion booleans": write_long(1) + write_long(0) + write_long(0) + write_long((1 << 31) - 10) + write_long(0),
    "a block of more than there is": write_long(1) + write_long(0) * 2 + write_long(9_000_000) + b"\0" * 300,
    "a length below zero": write_long(1) + write_long(-9) + b"x",
}


@pytest.mark.long
def test_avro_that_declares_more_than_it_has_is_malformed(spark: SparkSession, broker: str, tmp_path: Path) -> None:
    (tmp_path / "schemas").mkdir()
    (tmp_path / "schemas" / "event.avsc").write_text(json.dumps(SCHEMA), encoding="utf-8")
    with pipeline(spark, broker, tmp_path, AVRO) as p:
        p.send("events", (b"first", wrote(SCHEMA, GOOD), 0))
        p.send("events", *((name.encode(), bomb, 1) for name, bomb in AVRO_BOMBS.items()))
        p.send("events", (b"last", wrote(SCHEMA, GOOD), 2))
        p.run()
        assert [row[0] for row in p.believed("events")] == ["first", "last"]
        assert [row["fate"] for row in p.raw("quarantine")] == ["malformed"] * len(AVRO_BOMBS)


@pytest.mark.long
def test_a_batch_that_is_small_only_while_it_is_compressed_is_malformed(
    spark: SparkSession, broker: str, tmp_path: Path
) -> None:
    small = EVENTS.replace("value: {n: int}", "value: {n: int}, max_malformed: 10, max_record_bytes: 1000000")
    with pipeline(spark, broker, tmp_path, small) as p:
        p.send("events", ("first", {"n": 1}, 0))
        for compression in ("gzip", "zstd", "lz4"):
            options = {"compression.type": compression, "message.max.bytes": 100_000_000}
            producer = Producer({"bootstrap.servers": broker, "log_level": 0, **options})
            producer.produce(p.kafka("events"), b"\0" * 8_000_000, compression, timestamp=millis(at(1)))
            assert producer.flush(60) == 0
        p.send("events", ("last", {"n": 2}, 2))
        p.run()
        assert [row[:2] for row in p.believed("events")] == [("first", 1), ("last", 2)]
        (reason,) = {row["reason"].partition(":")[0] for row in p.raw("quarantine")}
        assert reason.startswith("oversized"), reason
        assert len(p.raw("quarantine")) == 3
        assert wrong(p) == []
