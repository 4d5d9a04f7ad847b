"""Operation e: JSON records from a real broker into log and bitemporal table, beside copying their bytes to Delta.

Operation i: records of other forms (forms_of_records.py), in the same way.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bench.speed.measuring import Measured, Watch, unwatched
from bench.speed.names import BYTES, OURS, RECORDS

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from hindcast.kafka.produce import ProducerRecord

COUNT, FORM_COUNT, KEYS, PARTITIONS = 5_000_000, 1_000_000, 100_000, 4
PRICES = "{read: table, key: {item: string}, value: {price: int, category: int, note: string}}"


def measure(
    spark: SparkSession, folder: Path, rounds: int, count: int = COUNT, watch: Watch = unwatched
) -> list[Measured]:
    """Both in turns, in warehouses of their own; that all offsets are there is checked each time.

    Hindcast's time is that of a run's plan and replay, which commits the log in chunks, then the table.
    """
    with run_topic(folder, PRICES, draw_records(count)) as servers:
        return _measure("e", RECORDS, spark, servers, rounds, count, watch)


def measure_forms(
    spark: SparkSession, folder: Path, rounds: int, count: int = FORM_COUNT, watch: Watch = unwatched
) -> list[Measured]:
    """The same of each form of records, one topic after the other."""
    from bench.speed import forms_of_records

    measured = []
    for form in forms_of_records.list_forms():
        with (
            forms_of_records.open_registry(folder, form) as entry,
            run_topic(folder, entry, form.records(count)) as servers,
        ):
            measured += _measure("i", form.name, spark, servers, rounds, count, watch)
    return measured


@contextmanager
def run_topic(folder: Path, entry: str, records: Iterable[ProducerRecord]) -> Iterator[str]:
    """A broker with these records in `prices`, and a contract whose entry of that topic this is."""
    from hindcast.kafka import produce
    from hindcast_local.broker import run_broker

    with tempfile.TemporaryDirectory(dir=folder) as made, run_broker(Path(made) / "broker") as servers:
        place = Path(made)
        (place / "schemas").mkdir()
        text = f"pipeline: replayed\nstart: 2026-01-01\ntopics:\n  prices: {entry}\n"
        (place / "schemas" / "replayed.yaml").write_text(text, encoding="utf-8")
        os.environ |= {
            "HINDCAST_SCHEMAS": str(place / "schemas"),
            "HINDCAST_KAFKA": servers,
            **dict.fromkeys(("HINDCAST_WAREHOUSE", "HINDCAST_VAR"), str(place / "output")),
        }
        produce.create_topics(servers, "prices", partitions=PARTITIONS)
        produce.send_records(servers, "prices", records)
        yield servers


def _measure(
    operation: str, data: str, spark: SparkSession, servers: str, rounds: int, count: int, watch: Watch
) -> list[Measured]:
    ours, raw = Measured(operation, data, OURS, writes="Delta"), Measured(operation, data, BYTES, writes="Delta")
    output = Path(os.environ["HINDCAST_WAREHOUSE"])
    for number in range(rounds):
        for it, work in ((ours, _replayed), (raw, _copied)):
            shutil.rmtree(output, ignore_errors=True)
            begun = time.monotonic()
            rows = watch(f"{operation} {it.peer}", partial(work, spark, output, servers))
            it.seconds.append(time.monotonic() - begun)
            assert rows() == count, f"{rows()} of {count} records"
            print(f"{operation} {data} round {number + 1}  {it.peer:34} {it.seconds[-1]:7.2f} s", flush=True)
    return [ours, raw]


def _replayed(spark: SparkSession, output: Path, servers: str) -> Any:  # noqa: ARG001  # as the other one
    from hindcast.common.settings import read_settings
    from hindcast.runs import run_steps
    from hindcast.store import tables

    settings = read_settings()
    run = run_steps.plan_run(settings, "replayed", f"bench-{time.time_ns()}")
    run_steps.replay_topic(spark, settings, "replayed", run, "prices")
    return lambda: tables.count_rows(tables.log_table(str(output), "replayed", "prices"))


def _copied(spark: SparkSession, output: Path, servers: str) -> Any:
    copy_bytes(spark, servers, "prices", str(output))
    return lambda: spark.read.format("delta").load(str(output)).count()


def copy_bytes(spark: SparkSession, servers: str, topic: str, target: str) -> None:
    """Copy what a topic has to a Delta table, by Spark alone."""
    source = spark.read.format("kafka").option("kafka.bootstrap.servers", servers).option("subscribe", topic)
    source.load().write.format("delta").save(target)


def draw_records(count: int) -> Iterator[ProducerRecord]:
    """Prices of 100,000 items over 90 days, a hundredth of them up to a minute late."""
    from hindcast.kafka.produce import ProducerRecord

    start, step = 1_767_225_660_000, 90 * 86_400_000 / count
    for n in range(count):
        late = n * 7919 % 60_000 if n % 100 == 0 else 0
        value = b'{"price":%d,"category":%d,"note":"%080d"}' % (n % 100, n % 1000, n)
        yield ProducerRecord(b"item-%06d" % (n * 2_654_435_761 % KEYS), value, int(start + n * step) - late)
