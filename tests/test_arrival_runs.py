"""Arrival in whole runs, on the real broker: by headers and expressions, over runs, trims, requeues and changes."""

from __future__ import annotations

from datetime import datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from deltalake import DeltaTable

from hindcast.bitemporal import valid_time
from hindcast.common.errors import TopicError
from hindcast.common.settings import read_settings
from hindcast.ingest import requeue
from hindcast.ops import retention
from hindcast.runs import special_runs
from pipelines import Pipeline, at, pipeline, wrong
from test_arrival import CONTRACT as PLAIN

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.connect

CONTRACT = f"{PLAIN}    max_record_bytes: 50\n"
LONG = {"price": 2, "note": "x" * 60}


def arrived(p: Pipeline, topic: str = "menu") -> list[tuple[int, str, datetime | None]]:
    return [(row["offset"], row["fate"], row.get("arrival")) for row in sorted(p.raw(f"logs/{topic}"), key=by_offset)]


def by_offset(row: dict[str, Any]) -> int:
    return int(row["offset"])


def sent(moment: str) -> tuple[str, bytes]:
    return ("sent", moment.encode())


def test_a_log_keeps_the_arrival_of_each_record_by_its_header_from_run_to_run(
    spark: SparkSession, broker: str, tmp_path: Path
) -> None:
    """One without, one that is no time, one that goes back and one ahead of the run count as the one before."""
    with pipeline(spark, broker, tmp_path, CONTRACT.replace("ARRIVAL", "header sent")) as p:
        p.send("menu", ("a", {"price": 1}, 0))
        p.send("menu", ("a", {"price": 2}, 1, sent(at(60).isoformat())), ("a", {"price": 3}, 2, sent("soon")))
        p.send("menu", ("a", {"price": 4}, 3, sent("2099-01-01T00:00:00Z")), ("b", {"price": 5}, 100_000))
        report = p.run()
        p.send("menu", ("b", {"price": 6}, 4), ("b", {"price": 7}, 5, sent(at(30).isoformat())))
        p.send("menu", ("b", {"price": 8}, 6, sent(str(int(at(90).timestamp() * 1000)))))
        p.run()
        first = valid_time.FIRST_MOMENT
        assert arrived(p) == [
            (0, "accepted", first),
            *((n, "accepted", at(60)) for n in (1, 2, 3)),
            (4, "time_skew", at(60)),
            (5, "accepted", at(60)),
            (6, "accepted", at(60)),
            (7, "accepted", at(90)),
        ]
        assert report["topics"]["menu"]["arrivalsAhead"] == 1
        refused = p.raw("quarantine")
        assert [row["reason"] for row in refused] == [
            "dated after 2026-01-02T00:01:00+00:00, the record's arrival plus max_time_skew"
        ]
        assert wrong(p) == []


def test_arrival_by_an_expression_is_what_spark_computes(spark: SparkSession, broker: str, tmp_path: Path) -> None:
    """Beside a `valid_time` that Spark computes too; null for a tombstone, which has no value to ask."""
    text = CONTRACT.replace("ARRIVAL", "timestamp_millis(ts) + INTERVAL 1 SECOND")
    with pipeline(spark, broker, tmp_path, text) as p:
        ts = int(at(50).timestamp() * 1000)
        p.send("menu", ("a", {"price": 1, "ts": ts}, 0), ("a", {"price": 2, "ts": ts - 9}, 1), ("a", None, 2))
        p.send("menu", ("b", b"{", 3), ("b", {"price": 3, "ts": ts + 5}, 4))
        p.run()
        late = at(51) + timedelta(milliseconds=5)
        assert arrived(p) == [
            *((n, "accepted", at(51)) for n in (0, 1, 2)),
            (3, "malformed", at(51)),
            (4, "accepted", late),
        ]
        p.write(text + "    valid_time: coalesce(timestamp_millis(ts), record_timestamp) - INTERVAL 2 SECONDS\n")
        p.send("menu", ("c", {"price": 4, "ts": ts + 1_000}, 9))
        p.run()
        assert arrived(p)[-1] == (5, "accepted", at(52))
        assert wrong(p) == []


def test_a_producers_timestamp_is_no_arrival_unless_something_else_dates_the_rows(
    spark: SparkSession, broker: str, tmp_path: Path
) -> None:
    with pipeline(spark, broker, tmp_path, CONTRACT.replace("ARRIVAL", "record_timestamp")) as p:
        p.send("menu", ("a", {"price": 1, "ts": 5_000}, 0))
        with pytest.raises(TopicError) as refused:
            p.run("first")
        assert "the producer set the record's timestamp (CreateTime)" in str(refused.value)
        assert refused.value.where == f"topic {p.kafka('menu')}, partition 0, offset 0"
        assert DeltaTable.is_deltatable(f"{p.warehouse}/arriving/logs/menu") is False, "before anything was written"
        p.write(CONTRACT.replace("ARRIVAL", "record_timestamp") + "    valid_time: timestamp_millis(ts)\n")
        p.run("first")
        assert arrived(p) == [(0, "accepted", at(0))]


def test_a_log_takes_the_column_of_a_later_contract_and_a_requeue_goes_by_it(
    spark: SparkSession, broker: str, tmp_path: Path
) -> None:
    """A log of older runs gets columns that it was not created with."""
    older = CONTRACT.replace("    arrival: ARRIVAL\n", "")
    with pipeline(spark, broker, tmp_path, older) as p:
        p.send("menu", ("a", {"price": 1}, 0))
        p.run()
        p.write(CONTRACT.replace("ARRIVAL", "header sent"))
        p.send("menu", ("a", LONG, 86_500, sent(at(60).isoformat())), ("b", LONG, 86_400))
        p.run()
        assert arrived(p) == [(0, "accepted", None), (1, "malformed", at(60)), (2, "malformed", at(60))]
        p.write(CONTRACT.replace("ARRIVAL", "header sent").replace("50", "500"))
        asked = requeue.build_request(p.contract)
        report = special_runs.run_requeue(spark, read_settings(), p.name, "requeue-1", asked)
        assert report.topics["menu"].requeued == {"accepted": 1, "time_skew": 1}
        rows = {row["offset"]: row for row in p.raw("fates/menu")}
        assert [rows[n]["fate"] for n in (1, 2)] == ["time_skew", "accepted"]
        assert wrong(p) == []


def test_arrival_goes_on_from_records_that_were_trimmed(spark: SparkSession, broker: str, tmp_path: Path) -> None:
    text = CONTRACT.replace("ARRIVAL", "header sent") + "    keep: 1 hour\n"
    with pipeline(spark, broker, tmp_path, text) as p:
        p.send("menu", ("b", {"price": 1}, 7_200, sent(at(10).isoformat())), ("a", {"price": 2}, 1))
        p.send("menu", ("a", {"price": 3}, 0, sent(at(86_400).isoformat())))
        p.run()
        assert retention.trim_pipeline(spark, p.contract).logs["menu"].removed == 1
        assert arrived(p)[-1] == (1, "accepted", at(10)), "the last record is gone"
        p.send("menu", ("b", {"price": 4}, 3))
        p.run()
        assert arrived(p)[-1] == (3, "accepted", at(86_400))
        assert wrong(p) == []
