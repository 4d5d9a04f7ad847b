"""Retention on the real parts: what `keep` says need not be kept goes, and no promised answer changes."""

from __future__ import annotations

from datetime import datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from hindcast import cli, horizon, journal, ledger, plans, read, rebuild, tables
from hindcast.errors import QueryError
from hindcast.questions import Question
from hindcast.tables import Table
from hindcast.upkeep import retention
from pipelines import T0, Pipeline, at, pipeline

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.slow

KEPT = """
pipeline: restaurant
start: 2026-01-01
topics:
  menu:
    read: table
    key: {item: string}
    value: {price: int}
    keep: 10 seconds
    max_malformed: 10
"""


def moment(second: float) -> datetime:
    return T0 + timedelta(seconds=second)


def test_a_table_and_its_log_are_trimmed_and_a_late_record_is_right_all_the_same(
    spark: SparkSession, broker: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pipeline(spark, broker, tmp_path, KEPT) as p:
        p.send("menu", ("curry", {"price": 8}, 0), ("soup", {"price": 5}, 0), ("curry", {"price": 9}, 2))
        p.send("menu", ("cake", {"price": 3}, 1), ("cake", None, 3), ("tea", b"{", 3), ("curry", {"price": 10}, 6))
        p.run()
        p.send("menu", ("curry", {"price": 12}, 14))
        p.run()
        assert retention.trim(spark, p.contract, dry_run=True)["tables"] == {
            "menu": {"horizon": moment(4).isoformat(), "slowest": slowest(p, 14), "rows": 3}
        }
        before = p.versions()
        told_before = ledger.fates(p.warehouse, p.name).to_pylist()
        with p.here():
            assert cli.main(["trim", p.name, "--dry-run"]) == 0
        assert p.versions() == before, "a dry run writes nothing"

        told = retention.trim(spark, p.contract)
        assert told["tables"]["menu"]["rows"] == 3, "8 from 0 to 2, cake, and what was believed until run 2 stays"
        assert told["logs"]["menu"]["records"] == 2
        assert [row["offset"] for row in p.raw("logs/menu")] == [1, 2, 4, 5, 6, 7]
        assert ledger.fates(p.warehouse, p.name).to_pylist() == told_before, "the ledger is whole"
        assert rebuild.rebuild(p.warehouse, p.contract) == []
        again = p.versions()
        assert retention.trim(spark, p.contract)["logs"]["menu"]["records"] == 0
        assert p.versions() == again, "a repeat does nothing"

        # late records: one that was in force at the horizon, one before a tombstone, one of a key that is new
        p.send("menu", ("curry", {"price": 7}, 3), ("cake", {"price": 4}, 2), ("rice", {"price": 1}, 1))
        p.run()
        assert p.believed("menu") == [
            ("curry", 7, 4, 6),
            ("curry", 9, 2, 4),
            ("curry", 10, 6, 14),
            ("curry", 12, 14, None),
            ("rice", 1, 4, None),
            ("soup", 5, 0, None),
        ]
        for question in (
            Question(as_of=moment(3)),
            Question(from_time=moment(1), to_time=moment(9)),
            Question(to_time=moment(3)),
            Question(as_of=moment(9), known_at=moment(3)),
        ):
            with pytest.raises(
                QueryError, match=r"is not kept: the history of menu was trimmed up to 2026-01-01T00:00:04"
            ):
                read.query(p.warehouse, p.contract, "menu", question)
        asked = read.query(p.warehouse, p.contract, "menu", Question(as_of=moment(4))).to_pylist()
        assert sorted((row["item"], row["price"]) for row in asked) == [("curry", 7), ("rice", 1), ("soup", 5)]


def slowest(p: Pipeline, second: float) -> dict[str, Any]:
    return {"topic": "menu", "partition": 0, "reached": moment(second).isoformat()}
