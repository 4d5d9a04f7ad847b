"""What is forgotten moves stream time as before under the same `valid_time`, and not at all under another."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from hindcast.ingest import quarantine
from hindcast.kafka.cluster import millis
from hindcast.ops import retention
from hindcast.ops.erase import forget, records
from pipelines import Pipeline, pipeline, wrong
from test_gaps import retain_from

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SENT = """
pipeline: dated
start: 2026-01-01
topics:
  menu:
    read: table
    key: {item: string}
    value: {ts: bigint}
    history_retention: 30 days
    on_gap: record
"""
DATED = SENT + "    valid_time: timestamp_millis(ts)\n    keep: 90 days\n"


def day(number: int) -> datetime:
    """A day of 2020, by the values; to Kafka all is of 2026."""
    return datetime(2020, 1, 1, tzinfo=UTC) + timedelta(days=number)


def send(p: Pipeline, **days: int) -> None:
    p.send("menu", *((item, {"ts": millis(day(number))}, 0) for item, number in days.items()))


def forget_item(spark: SparkSession, p: Pipeline, item: str) -> None:
    assert forget.forget_records(spark, p.contract, records.parse_request(p.contract, "menu", item)).evidence.is_proven


@pytest.mark.long
def test_stream_time_is_by_the_current_valid_time_whatever_was_forgotten(
    spark: SparkSession, broker: str, tmp_path: Path
) -> None:
    def items() -> list[Any]:
        return [row[0] for row in p.believed("menu")]

    with pipeline(spark, broker, tmp_path, SENT) as p:
        send(p, truffle=0, tea=60)
        p.run()
        forget_item(spark, p, "truffle")
        p.write(DATED)
        send(p, lost=90)
        retain_from(p, "menu", 3)
        p.run()
        assert p.fates("menu")[2] == (2, "gone")
        send(p, cake=20, morel=100, soup=50)
        p.run()
        logged = [(0, "accepted"), (1, "accepted"), (2, "gone"), (3, "expired"), (4, "accepted"), (5, "expired")]
        assert p.fates("menu") == logged, "60 after the gap; the truffle has no date in 2020"
        assert items() == ["morel", "tea"]

        forget_item(spark, p, "morel")
        assert items() == ["tea"], "the soup is as late as it was"
        assert p.fates("menu") == logged
        assert wrong(p) == []
        trimmed = retention.trim_pipeline(spark, p.contract, dry_run=True).logs["menu"].horizon
        assert trimmed is not None
        assert trimmed.moment == day(100 - 90)


@pytest.mark.long
def test_fates_follow_when_a_forgotten_record_no_longer_moves_stream_time(
    spark: SparkSession, broker: str, tmp_path: Path
) -> None:
    dated = "    valid_time: timestamp_millis(ts)\n"
    with pipeline(spark, broker, tmp_path, SENT + dated) as p:
        send(p, tea=0)
        send(p, tea=60)
        send(p, tea=20)
        p.run()
        assert p.fates("menu")[2] == (2, "expired")
        p.write(SENT + "    valid_time: coalesce(timestamp_millis(ts), record_timestamp)\n")
        p.run()
        assert forget.forget_records(
            spark, p.contract, records.parse_request(p.contract, "menu", None, ["0/1"])
        ).evidence
        revised = [(row["offset"], row["was"], row["fate"]) for row in p.raw("fates/menu")]
        assert revised == [(2, "expired", "accepted")]
        assert [row["now"] for row in quarantine.list_refused(p.warehouse, p.contract).to_pylist()] == []
        assert sorted(row[1] for row in p.believed("menu")) == [millis(day(0)), millis(day(20))]
        assert wrong(p) == []
