"""Two entries of one topic in Kafka: they share its part of the quarantine."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from hindcast.contract import load
from hindcast.ingest import quarantine, requeue
from hindcast.ops import retention
from hindcast.ops.verify.verify import verify_tables
from hindcast.plan import horizon
from hindcast.plan.horizon import Horizon
from pipelines import T0, pipeline, wrong

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

CONTRACT = """
pipeline: shop
start: 2026-01-01
topics:
  visits: {topic: web, read: stream, key: {id: string}, value: {n: int}, max_malformed: 9}
  people:
    {topic: web, read: stream, key: {id: string}, value: {name: string, age: int}, sensitive: [name], max_malformed: 9}
"""


def test_a_refused_record_is_masked_if_any_entry_is_sensitive(tmp_path: Path) -> None:
    path = tmp_path / "shop.yaml"
    path.write_text(CONTRACT)
    contract = load(path)
    columns = {"run": 1, "topic": "web", "reason": "age is no int: Ann Marker", "key": b"7"}
    (shown,) = quarantine.mask_refused(str(tmp_path), contract, pa.Table.from_pylist([columns])).to_pylist()
    assert (shown["key"], shown["reason"]) == ("***", "***")
    assert requeue.build_request(contract, "web").topics == ("visits", "people")
    assert requeue.build_request(contract, "people").topics == ("people",)


@pytest.mark.parametrize(("visits", "people", "expected"), [(1, 2, 1), (2, 1, 1), (None, 2, None), (2, None, None)])
def test_the_quarantine_is_trimmed_by_the_entry_that_keeps_longest(
    tmp_path: Path, visits: int | None, people: int | None, expected: int | None
) -> None:
    path = tmp_path / "shop.yaml"
    path.write_text(CONTRACT)
    days = {"visits": visits, "people": people}
    horizons = {name: Horizon(T0, T0 + timedelta(n)) if n else None for name, n in days.items()}
    trimmed = horizon.find_quarantine_horizon(load(path), "web", horizons)
    assert trimmed == (T0 + timedelta(expected) if expected else None)


KEEP = ", keep: {table: 1 hour, log: 1 hour, quarantine: 1 second}}"


@pytest.mark.long
@pytest.mark.ci
def test_the_quarantine_of_a_shared_topic_is_trimmed_and_verified_alike(
    spark: SparkSession, broker: str, tmp_path: Path
) -> None:
    """Each entry refuses one record."""
    with pipeline(spark, broker, tmp_path, CONTRACT.replace("topic: web, ", "")) as p:
        none = CONTRACT.replace("web", p.kafka("visits"))
        first, both = none.replace("}\n", f"{KEEP}\n", 1), none.replace("}\n", f"{KEEP}\n")
        p.write(none)
        p.send("visits", ("7", {"n": 1, "name": "Ann", "age": "x"}, 0), ("8", {"n": "y", "name": "Bob", "age": 3}, 1))
        p.run()
        p.send("visits", ("9", {"n": 1, "name": "Cy", "age": 1}, 100_000))
        p.run()
        second = both.replace(KEEP, "}", 1)
        for text, left in ((first, [0, 1]), (second, [0, 1]), (both, [])):
            p.write(text)
            for dry_run in (True, False):
                report = retention.trim_pipeline(spark, p.contract, dry_run=dry_run)
                assert sum(report.quarantine.values()) == 2 - len(left)
            assert sorted(row["offset"] for row in p.raw("quarantine")) == left
            assert wrong(p) == []
            assert verify_tables(p.contract, "people").findings == []
        assert p.fates("visits") == p.fates("people") == [(2, "accepted")]
