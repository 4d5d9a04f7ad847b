"""Ties across partitions, on the real broker: what produce, the report, doctor and a gate tell of them."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

import reports
from hindcast.cli import main
from hindcast.common.settings import read_settings
from hindcast.kafka import partitioning, produce
from hindcast.kafka.cluster import Cluster
from hindcast.kafka.produce import ProducerRecord
from hindcast.ops import doctor, retention
from hindcast.plan.horizon import Horizon
from hindcast.quality import gate_results, held_changes
from hindcast.runs import incremental_state, special_runs
from hindcast.streams import murmur2
from pipelines import Pipeline, at, pipeline

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

CONTRACT = """
pipeline: cafe
start: 2026-01-01
topics:
  menu:
    read: table
    key: {item: string}
    value: {price: int}
    expect:
      - expect_ties_to_be_ordered: {}
        on_failure: warn
"""


def send(p: Pipeline, partition: int, *records: tuple[str, int | None, float]) -> None:
    told = [
        ProducerRecord(key.encode(), None if price is None else json.dumps({"price": price}).encode(), at(second))
        for key, price, second in records
    ]
    produce.send_records(p.servers, p.kafka("menu"), told, partition=partition)


def menu(told: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = told["topics"]["menu"]
    return found


def judged(p: Pipeline, run: int) -> list[tuple[str, int, int]]:
    told = gate_results.read_results(p.warehouse, p.name, run)["menu"]
    return [(gate.outcome, gate.checked, gate.failing) for gate in told]


@pytest.mark.long
@pytest.mark.ci
def test_a_correction_that_loses_to_another_partition_is_told(
    spark: SparkSession, broker: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pipeline(spark, broker, tmp_path, CONTRACT, partitions=2) as p:
        send(p, 1, ("curry", 8, 0), ("soup", 5, 0), ("tea", 2, 0))
        first = p.run()
        assert ("ties" in menu(first), judged(p, 1)) == (False, [("passed", 3, 0)])

        place = f"topic {p.kafka('menu')}, partition"
        send(p, 0, ("curry", 9, 0), ("soup", 6, 3))  # a correction that loses; a later version in another partition
        previewed = reports.preview_run(spark, p.name)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(incremental_state, "MAX_WHOLE_ROWS", -1)  # by increments
            told = p.run()
        lost = {"lost": 1, "loser": f"{place} 0, offset 0", "winner": f"{place} 1, offset 0"}
        assert menu(told)["ties"] == {"scattered": 2, **lost}
        assert menu(previewed)["ties"] == menu(told)["ties"]
        assert [(it["outcome"], it["checked"]) for it in previewed["tables"]["menu"]["gates"]] == [("failed", 2)]
        assert "warning: 1 record lost a tie" in previewed.text
        assert judged(p, 2) == [("failed", 2, 1)]
        text = reports.format_report(told)
        assert "warning: 2 keys are in more than one partition: producers use different partitioners" in text
        assert (
            f"warning: 1 record lost a tie to a larger partition number, whichever was sent later; namely: {place} 0"
            in text
        )
        assert "2 keys are in more than one partition" in reports.render_page(told)
        assert p.believed("menu") == [
            ("curry", 8, 0, None),
            ("soup", 5, 0, 3),
            ("soup", 6, 3, None),
            ("tea", 2, 0, None),
        ]
        assert main.main(["failing", p.name, "--run", "2"]) == 0
        assert '"price":9' in capsys.readouterr().out

        lines = [line for line in doctor._check_keys(read_settings()) if line.what == "keys"]
        assert [(line.state, line.found) for line in lines] == [
            ("warning", "cafe.menu: 2 keys are in more than one partition")
        ]

        p.write(CONTRACT.replace("{}", "{also_replaced: true}"))  # another contract: the table is derived whole
        send(p, 0, ("rice", 3, 0), ("rice", 4, 0), ("tea", 7, 0))  # rice is in order, and its first price is never seen
        told = p.run()
        lost = {"lost": 1, "loser": f"{place} 0, offset 4", "winner": f"{place} 1, offset 2"}
        assert menu(told)["ties"] == {"scattered": 1, "replaced": 1, **lost}
        assert judged(p, 3) == [("failed", 3, 2)]
        assert (
            "1 record was replaced at the same timestamp by a later one of this run, and never seen"
            in reports.format_report(told)
        )
        assert ("rice", 4, 0, None) in p.believed("menu")


HOLDING = (
    CONTRACT
    + """\
      - expect_column_values_to_be_between: {column: price, min_value: 0}
        on_failure: quarantine
"""
)


def release(p: Pipeline) -> dict[str, Any]:
    assert p.spark is not None
    keys = {"menu": held_changes.find_held_keys(p.warehouse, p.name, "menu", ())}
    return special_runs.run_release(
        p.spark, read_settings(), p.name, "released", keys, "ann", datetime.now(UTC)
    ).as_json()


@pytest.mark.long
@pytest.mark.parametrize("whole", [incremental_state.MAX_WHOLE_ROWS, -1], ids=["whole", "by increments"])
def test_ties_of_a_held_key_are_counted_by_the_run_that_publishes_it(
    spark: SparkSession, broker: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, whole: int
) -> None:
    monkeypatch.setattr(incremental_state, "MAX_WHOLE_ROWS", whole)
    with pipeline(spark, broker, tmp_path, HOLDING, partitions=2) as p:
        send(p, 1, ("curry", 8, 0), ("tea", 2, 0))
        p.run()
        # Both lose their tie; the price below nothing holds all of curry back.
        send(p, 0, ("curry", 9, 0), ("tea", 3, 0), ("curry", -5, 4))
        previewed = reports.preview_run(spark, p.name) if whole == -1 else None
        told, place = p.run(), f"topic {p.kafka('menu')}, partition"
        tea = {"lost": 1, "loser": f"{place} 0, offset 1", "winner": f"{place} 1, offset 1"}
        assert menu(told)["ties"] == {"scattered": 1, **tea}
        assert previewed is None or menu(previewed)["ties"] == menu(told)["ties"]
        assert judged(p, 2)[0] == ("failed", 1, 1)
        curry = {"lost": 1, "loser": f"{place} 0, offset 0", "winner": f"{place} 1, offset 0"}
        assert menu(release(p))["ties"] == {"scattered": 1, **curry}
        assert judged(p, 3)[0] == ("failed", 2, 1)
        assert "ties" not in menu(p.run())


@pytest.mark.long
def test_a_record_does_not_lose_to_one_that_is_held(spark: SparkSession, broker: str, tmp_path: Path) -> None:
    with pipeline(spark, broker, tmp_path, HOLDING.replace("    expect:", "    hold: row\n    expect:"), 2) as p:
        send(p, 0, ("soup", 5, 0), ("tea", 3, 0))
        send(p, 1, ("soup", -1, 0), ("tea", 2, 0))
        told, place = p.run(), f"topic {p.kafka('menu')}, partition"
        tea = {"lost": 1, "loser": f"{place} 0, offset 1", "winner": f"{place} 1, offset 1"}
        assert menu(told)["ties"] == {"scattered": 1, **tea}
        assert ("soup", 5, 0, None) in p.believed("menu")
        assert menu(release(p))["ties"] == {"scattered": 1}
        assert judged(p, 2)[0] == ("failed", 1, 1)


def test_produce_takes_a_partitioner_or_a_partition_and_warns_of_keys_that_are_elsewhere(
    broker: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The keys curry and a null one; curry is in partition 1 by murmur2, as Java has it, and in 0 by crc32."""
    with pipeline(None, broker, tmp_path, CONTRACT, partitions=3) as p:
        topic, file = p.kafka("menu"), tmp_path / "menu.jsonl"
        file.write_text('{"key": "curry", "value": {"price": 8}}\n{"key": null, "value": null}\n')

        def produce_with(*more: str) -> tuple[int, str, set[int]]:
            code = main.main(["produce", topic, str(file), *more])
            told = capsys.readouterr().err
            with Cluster(broker) as cluster:
                return code, told, partitioning.find_partitions(cluster, topic, {b"curry"}).get(b"curry", set())

        code, told, places = produce_with()
        (java,) = places
        assert (code, told, java) == (0, "", murmur2.assign_partitions(pa.array([b"curry"]), 3)[0].as_py())
        code, told, places = produce_with("--partitioner", "crc32")
        (librdkafka,) = places - {java}
        assert f"the key is in other partitions of {topic} too (curry: now in {librdkafka}, before in {java})" in told
        (third,) = {0, 1, 2} - places
        code, told, places = produce_with("--partition", str(third))
        assert (code, places) == (0, {0, 1, 2})
        assert f"now in {third}, before in {min(java, librdkafka)}, {max(java, librdkafka)}" in told
        code, told, _ = produce_with("--partition", "3")
        assert (code, f"topic {topic}: there is no partition 3; nothing was sent" in told) == (1, True)
        assert "it has 3 partitions, numbered from 0" in told


@pytest.mark.long
def test_a_late_record_loses_to_one_at_the_horizon_whatever_their_partitions(
    spark: SparkSession, broker: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(incremental_state, "MAX_WHOLE_ROWS", -1)
    with pipeline(spark, broker, tmp_path, CONTRACT.replace("    expect", "    keep: 10 seconds\n    expect"), 2) as p:
        send(p, 0, ("soup", 5, 14))
        send(p, 1, ("tea", 2, 14))
        p.run()
        assert retention.trim_pipeline(spark, p.contract).tables["menu"].horizon == Horizon(at(4))
        send(p, 1, ("curry", 8, 3))
        p.run()
        assert ("curry", 8, 4, None) in p.believed("menu"), "it counts from the horizon on"
        send(p, 0, ("curry", 9, 4))
        p.run()
        assert ("curry", 9, 4, None) in p.believed("menu")
