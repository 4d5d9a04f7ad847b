"""The first rows of a topic's table, written by a kernel: those of Spark's plan, in files that follow time."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from hindcast.common.errors import GateError
from hindcast.common.settings import read_settings
from hindcast.engine import flat_records, task, version_tasks
from hindcast.engine.spec import VersionIncrement
from hindcast.ingest import ingest_commits
from hindcast.kafka import produce
from hindcast.runs import incremental_state, run_steps
from kernel_runs import files, kernels, live, note, stored_alike, twin
from pipelines import Pipeline, at, pipeline, wrong

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

CONTRACT = """
pipeline: shop
start: 2026-01-01
topics:
  items:
    read: table
    key: {shop: string, item: int}
    value: {price: "decimal(8,2)", at: timestamp, share: double, text: string}
  short: {read: table, ttl: 3 seconds, key: {day: date}, value: {n: bigint}}
  nested: {read: table, key: {item: int}, value: {parts: "array<int>"}}
  amounts: {read: table, key: {amount: "decimal(38,4)"}, value: {n: int}}
  doubles: {read: table, key: {share: double}, value: {n: int}}
  held:
    read: table
    key: {item: int}
    value: {price: int}
    expect:
      - expect_column_values_to_be_between: {column: price, max_value: 20}
        on_failure: quarantine
  stopped:
    read: table
    key: {item: int}
    value: {price: int}
    expect:
      - expect_column_values_to_be_between: {column: price, max_value: 20}
"""
BY_KERNEL = ("items", "short", "nested", "amounts")
MOMENTS = ("0001-01-01T00:00:00.000001Z", "9999-12-31T23:59:59.998999Z", None)
RECORDS = 300


def build_records(dice: random.Random) -> dict[str, list[Any]]:
    """Records of every topic in no order of time, many at the same moments; every tenth is a tombstone."""

    def build_one(topic: str) -> tuple[Any, Any, float]:
        keys = {
            "items": {"shop": dice.choice(("x", "ä€😀", None)), "item": dice.choice((1, 2, None))},
            "short": dice.choice(("0001-01-01", "2026-01-02", "9999-12-31")),
            "amounts": dice.choice(("0", "-0.0001", "1" * 34 + ".5", "-" + "1" * 34)),
            "doubles": json.dumps(dice.choice((0.5, -0.0, 0.0))),
        }
        values = {
            "items": {
                "price": dice.choice((None, 0, -1.5, 999999.99)),
                "at": dice.choice(MOMENTS),
                "share": dice.choice((0.1, -0.0, None)),
                "text": dice.choice(("", "x" * 5000, "\U0010ffff", None)),
            },
            "short": {"n": dice.choice((2**63 - 1, -(2**63), None))},
            "nested": {"parts": [1, None]},
        }
        gone = dice.random() < 0.1
        key = keys.get(topic, str(dice.randrange(5)))
        return key, None if gone else values.get(topic, {"n": 1, "price": dice.randrange(25)}), dice.randrange(60)

    return {topic: [build_one(topic) for _ in range(RECORDS)] for topic in (*BY_KERNEL, "doubles")}


def send_records(p: Pipeline, dice: random.Random) -> None:
    """Send records to any partition of their topic."""
    for topic, records in build_records(dice).items():
        for number in range(3):
            sent = [
                produce.ProducerRecord(
                    key.encode() if isinstance(key, str) else json.dumps(key).encode(),
                    None if value is None else json.dumps(value).encode(),
                    at(second),
                )
                for key, value, second in records[number::3]
            ]
            produce.send_records(p.servers, p.kafka(topic), sent, partition=number)


@pytest.fixture(scope="module")
def planned(spark: SparkSession, broker: str, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A planned run with records in several partitions. To be copied, not to be run."""
    with pipeline(spark, broker, tmp_path_factory.mktemp("planned"), CONTRACT, partitions=3) as p:
        send_records(p, random.Random(5))  # noqa: S311
        for topic in ("held", "stopped"):
            p.send(topic, *((str(n), {"price": n}, n) for n in range(25)))
        with p.here():
            run_steps.plan_run(read_settings(), p.name, "first")
        yield p


def replay_topics(p: Pipeline, *topics: str, on: bool, run: int = 1) -> None:
    """Do the replay steps of the first run, with kernels or without."""
    assert p.spark is not None
    with p.here(), kernels(on=on):
        for topic in topics:
            run_steps.replay_topic(p.spark, read_settings(), p.name, run, topic)


@pytest.mark.long
@pytest.mark.ci
def test_tables_of_topics_made_by_a_kernel_are_those_of_sparks_plan(planned: Pipeline, tmp_path: Path) -> None:
    one, other = (twin(planned, tmp_path / name) for name in ("one {1} *", "other"))
    topics = (*BY_KERNEL, "doubles", "held")
    for p, on in ((one, True), (other, False)):
        replay_topics(p, *topics, on=on)
    for name in topics:
        own, expected = note(one, name), note(other, name)
        assert own == {**expected, **({"kernel": "of_topic"} if name in BY_KERNEL else {})}, name
        assert stored_alike(one, other, name), name
    assert note(one, "items")["ties"]["scattered"], "records of several partitions tie"
    assert note(one, "held")["opened"] == 21
    # later runs go on from what the kernel wrote
    assert incremental_state.MAX_WHOLE_ROWS > 0
    for p, on in ((one, True), (other, False)):
        with pytest.MonkeyPatch.context() as patch, p.here():
            patch.setattr(incremental_state, "MAX_WHOLE_ROWS", -1)
            with kernels(on=on), pytest.raises(GateError):
                run_steps.replay_topic(p.spark, read_settings(), p.name, 1, "stopped")
            p.write(CONTRACT.partition("  stopped:")[0])
            if on:
                send_records(p, random.Random(7))  # noqa: S311
            with kernels(on=on):
                p.run("second")
            assert wrong(p) == []
    for name in topics:
        assert one.believed(name) == other.believed(name), name


@pytest.mark.long
@pytest.mark.ci
def test_files_that_a_kernel_writes_for_a_topic_follow_time(planned: Pipeline, tmp_path: Path) -> None:
    p = twin(planned, tmp_path / "p")
    replay_topics(p, "items", on=True)
    added = pa.table(DeltaTable(p.table("items").path).get_add_actions(flatten=True)).to_pylist()
    spans = sorted((a["min.validFrom"], a["max.validFrom"]) for a in added if a["partition._belief"] == "past")
    assert len(spans) > 5, "several tasks have written"
    assert all(end <= start for (_, end), (start, _) in pairwise(spans)), "no two overlap"
    assert sum(a["num_records"] for a in added) == note(p, "items")["opened"]


@pytest.mark.long
@pytest.mark.ci
def test_what_a_gate_stops_or_a_task_refuses_leaves_no_file_that_is_seen(
    planned: Pipeline, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    p, other = twin(planned, tmp_path / "p"), twin(planned, tmp_path / "other")
    with pytest.raises(GateError, match="1 gates stopped it"):
        replay_topics(p, "stopped", on=True)
    assert files(p, "stopped")
    assert not live(p, "stopped")
    real = version_tasks._write_slices

    def refuse(form: VersionIncrement, given: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield from real(form, given)
        raise task.RefusalError("too large")

    monkeypatch.setattr(version_tasks, "_write_slices", refuse)
    replay_topics(p, "short", on=True)
    replay_topics(other, "short", on=False)
    assert "kernel" not in note(p, "short")
    assert live(p, "short") < files(p, "short"), "the kernel has written some"
    assert stored_alike(p, other, "short")


@pytest.mark.long
@pytest.mark.ci
@pytest.mark.parametrize(("chunk", "by_spark"), [(100, False), (45, True)])
def test_records_of_chunks_leave_the_tasks_that_have_them_by_key(
    spark: SparkSession, broker: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, chunk: int, by_spark: bool
) -> None:
    """Of a few chunks no row is Spark's; those of more than are kept are decoded once more, from the log."""
    monkeypatch.setenv("HINDCAST_CHUNK", str(chunk))
    monkeypatch.setattr(ingest_commits, "MAX_KEPT_CHUNKS", 4)
    flattened = []
    flatten_records = flat_records.flatten_records

    def flatten(*given: Any, **more: Any) -> DataFrame:
        flattened.append(given)
        return flatten_records(*given, **more)

    monkeypatch.setattr(flat_records, "flatten_records", flatten)
    with pipeline(spark, broker, tmp_path / "planned", CONTRACT, partitions=3) as p:
        send_records(p, random.Random(11))  # noqa: S311
        with p.here():
            run = run_steps.plan_run(read_settings(), p.name, "first")
        one, other = (twin(p, tmp_path / name) for name in ("one", "other"))
        replay_topics(one, *BY_KERNEL, on=True, run=run)
        replay_topics(other, *BY_KERNEL, on=False, run=run)
    assert bool(flattened) == by_spark
    for name in BY_KERNEL:
        assert note(one, name, run)["kernel"] == "of_topic"
        assert stored_alike(one, other, name), name
