"""Daylight saving: the hour that a local clock does not have, and the one that it has twice, are hours as any other.

In Berlin 2026-03-29 02:30 is not, and 2026-10-25 02:30 is twice. All that Hindcast is told without a zone is UTC.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pendulum
import pytest

from hindcast.airflow import run_requests
from hindcast.common.session import fit_to_rows
from hindcast.contract import load
from hindcast.kafka import json_lines
from hindcast.query import read
from pipelines import pipeline, tell, wrong

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

BERLIN = "Europe/Berlin"
MISSING, TWICE = "2026-03-29T02:30:00", "2026-10-25T02:30:00"


@pytest.fixture
def _in_berlin(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """This process has Berlin's local time."""
    monkeypatch.setenv("TZ", BERLIN)
    time.tzset()
    assert datetime.fromtimestamp(0).hour == 1  # noqa: DTZ006  # it is asked what local time is
    yield
    monkeypatch.undo()
    time.tzset()


CLOCKS = """
pipeline: clocks
start: 2026-01-01
topics:
  prices:
    read: table
    valid_time: since
    key: {item: string}
    value: {price: int, since: timestamp}
  sold:
    read: stream
    key: {shop: string}
    value: {item: string, at: timestamp}
views:
  bills:
    stream: sold
    join: {table: prices, on: item}
    select:
      price: price
      day: to_date(at)
      hour: hour(at)
      said: cast(at as string)
      next: "at + interval 1 day"
      there: "cast('2026-10-25 02:30:00' as timestamp)"
  days:
    stream: sold
    aggregate: {n: count(*)}
    window: {tumbling: 1 day}
"""


@pytest.mark.long
@pytest.mark.usefixtures("_in_berlin")
def test_a_run_in_a_session_with_berlins_zone_computes_in_utc(spark: SparkSession, broker: str, tmp_path: Path) -> None:
    """Prices and sales in the hour that is missing and the one that comes twice, dated without a zone and with one."""
    session = spark.newSession() if hasattr(spark, "newSession") else spark
    session.conf.set("spark.sql.session.timeZone", BERLIN)
    since = {1: MISSING, 2: "2026-03-29T03:30:00", 3: f"{TWICE}+02:00", 4: f"{TWICE}+01:00"}
    prices = [("a", {"price": price, "since": text}, 0) for price, text in since.items()]
    sales = ["2026-03-28T23:30:00", "2026-03-29T02:45:00", "2026-10-24T22:30:00"]
    sales += ["2026-10-25T00:45:00", "2026-10-25T01:45:00", "2026-10-25T23:30:00"]
    sold = [("x", {"item": "a", "at": text}, datetime.fromisoformat(f"{text}+00:00")) for text in sales]
    with pipeline(session, broker, tmp_path, CLOCKS) as p:
        tell(p, {"prices": prices, "sold": sold})
        p.run()
        bills = sorted(p.raw("bills"), key=lambda row: row["said"])
        assert [(row["said"], row["price"]) for row in bills] == [
            ("2026-03-29 02:45:00", 1),
            ("2026-10-24 22:30:00", 2),
            ("2026-10-25 00:45:00", 3),
            ("2026-10-25 01:45:00", 4),
            ("2026-10-25 23:30:00", 4),
        ], "2026-03-28 23:30 had no price yet"
        for row in bills:
            at = datetime.fromisoformat(row["said"]).replace(tzinfo=UTC)
            assert (row["day"], row["hour"], row["next"]) == (at.date(), at.hour, at + timedelta(days=1))
            assert (row["timestamp"], row["there"]) == (at, datetime(2026, 10, 25, 2, 30, tzinfo=UTC))
        days = sorted((row["windowStart"], row["windowEnd"], row["n"]) for row in p.raw("days"))
        first = [datetime(2026, *day, tzinfo=UTC) for day in ((3, 28), (3, 29), (10, 24), (10, 25))]
        assert days == [(day, day + timedelta(days=1), n) for day, n in zip(first, (1, 1, 1, 3), strict=True)]
        assert session.conf.get("spark.sql.session.timeZone") == BERLIN, "a caller's session stays as it was"
        assert wrong(p) == []


def test_steps_have_utc_in_whatever_session_they_are_called(spark: SparkSession) -> None:
    session = spark.newSession() if hasattr(spark, "newSession") else spark
    there = "SELECT cast(to_date(timestamp'2026-03-28 23:30:00Z') as string)"
    session.conf.set("spark.sql.session.timeZone", BERLIN)
    try:
        assert session.sql(there).collect()[0][0] == "2026-03-29"
        with fit_to_rows(session, 1):
            assert session.sql(there).collect()[0][0] == "2026-03-28"
        assert session.conf.get("spark.sql.session.timeZone") == BERLIN
    finally:
        session.conf.set("spark.sql.session.timeZone", "UTC")


@pytest.mark.usefixtures("_in_berlin")
@pytest.mark.parametrize("text", [MISSING, TWICE])
def test_a_text_without_a_zone_is_utc_wherever_it_is_told(text: str, tmp_path: Path) -> None:
    moment = datetime.fromisoformat(text).replace(tzinfo=UTC)
    assert read.moment_of("", "p", text) == moment
    (tmp_path / "lines").write_text(f'{{"key": "k", "value": 1, "timestamp": "{text}"}}')
    (record,) = json_lines.read_records(tmp_path / "lines")
    assert record.timestamp == moment
    contract = f"pipeline: p\nstart: {text}\ntopics:\n  t: {{read: stream, key: {{k: string}}, value: {{v: int}}}}\n"
    (tmp_path / "p.yaml").write_text(contract.replace("value:", f"from: {text}, value:"))
    found = load(tmp_path / "p.yaml")
    assert (found.start, found.topics["t"].since) == (moment, moment)
    form = {"replay": "interval", "until": text, "only": None, "preview": False, "reason": None}
    asked = run_requests.read_run_request(
        {"params": form, "dag_run": SimpleNamespace(dag_id="p")}, moment + timedelta(days=1)
    )
    assert asked.until == moment


@pytest.mark.usefixtures("_in_berlin")
def test_an_interval_that_ends_in_the_hour_that_comes_twice_ends_where_airflow_says() -> None:
    form = {"replay": "interval", "until": None, "only": None, "preview": False, "reason": None}
    ends = []
    for offset in ("+02:00", "+01:00"):
        end = pendulum.parse(f"{TWICE}{offset}").in_timezone(BERLIN)  # type: ignore[union-attr]
        assert end.isoformat() == f"{TWICE}{offset}"
        given: Any = {"data_interval_start": end.subtract(hours=1), "data_interval_end": end}
        context = {"params": form, "dag_run": SimpleNamespace(dag_id="p"), **given}
        ends.append(run_requests.read_run_request(context, datetime(2027, 1, 1, tzinfo=UTC)).until)
    assert ends == [datetime(2026, 10, 25, 0, 30, tzinfo=UTC), datetime(2026, 10, 25, 1, 30, tzinfo=UTC)]
