"""An old topic, rehearsed month by month: what was believed in March, a quarter that is closed, and its restatement.

A bus company's prices and trips of 2025. Each record says when it was sent, so that each month's run can be made as it
would have been made then. On a broker of its own, without Airflow.
"""

from __future__ import annotations

import json
import os
import shlex
import shutil
import time
from collections.abc import Iterator
from contextlib import redirect_stdout
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from io import StringIO

from hindcast.cli.main import main as run_command
from hindcast.common.settings import Settings, read_settings
from hindcast.kafka import produce, security
from hindcast.kafka.produce import ProducerRecord
from hindcast_local.broker import run_broker

PRICES, TRIPS = "fares.prices", "fares.trips"
ROUTES = ("coast", "hills", "north")
CONTRACT = f"""
pipeline: fares
start: 2025-01-01
topics:
  prices:
    topic: {PRICES}
    read: table
    key: {{route: string}}
    value: {{price: int}}
    arrival: header sent_at
  trips:
    topic: {TRIPS}
    read: stream
    key: {{trip: string}}
    value: {{route: string}}
    arrival: header sent_at
views:
  revenue:
    stream: trips
    join: {{table: prices, on: trips.route}}
    select: {{route: trips.route, price: price}}
    expect:
      - expect_column_values_to_be_between: {{column: price, min_value: 1, max_value: 100}}
"""
_START, _DAYS, _LATE_TRIP = datetime(2025, 1, 1, tzinfo=UTC), 181, 30


def main() -> int:
    """Tell the story in a new folder (<var>/demo-hindsight), and return 0."""
    before = read_settings()
    var = before.var / "demo-hindsight"
    settings = replace(before, var=var, warehouse=str(var / "warehouse"), schemas=var / "schemas")
    security.clear_environment()  # its broker has no security
    shutil.rmtree(var, ignore_errors=True)
    settings.schemas.mkdir(parents=True)
    (settings.schemas / "fares.yaml").write_text(CONTRACT.lstrip(), encoding="utf-8")
    started = time.monotonic()
    with run_broker(var / "broker") as servers:
        settings = replace(settings, kafka=servers)
        os.environ.update(settings.environment)
        produce.create_topics(servers, PRICES, TRIPS)
        for topic, records in ((PRICES, list_prices()), (TRIPS, list_trips())):
            print(f"sent to Kafka: {produce.send_records(servers, topic, records):,} {topic}")
        _tell(settings)
    print(f"\n{time.monotonic() - started:.0f} seconds; the tables stay in {settings.warehouse}")
    return 0


def _tell(settings: Settings) -> None:
    _say("Half a year is rehearsed: each month's run knows what had been sent by its end.")
    _run("rehearse fares --from 2025-01-01 --to 2025-07-01 --every month", shown=1)
    _run("runs fares")
    _say("What did we believe in March? A trip of 31 January to the hills, at the price that was known then:")
    trip = f"hills-{_LATE_TRIP:03}"
    _run(f"query fares.revenue --key {trip} --known-at 2025-03-01")
    _say("On 10 March a price of 15 January was sent. Since the run of that month the answer is another:")
    _run(f"query fares.revenue --key {trip} --known-at 2025-04-01")
    _say("The first quarter was reported as it was known at its end. It gets a name:")
    _run("close fares 2025-Q1 --from 2025-01-01 --to 2025-04-01 --known-at 2025-04-01")
    _say("Today a record arrives late: from 1 February on the coast cost 15, not 11.")
    late = ProducerRecord(b"coast", b'{"price": 15}', datetime(2025, 2, 1, tzinfo=UTC))
    produce.send_records(settings.kafka, PRICES, [late])
    _run("run fares")
    _say("What has changed in the figures of the quarter, and why:")
    picture = settings.var / "restated.html"
    _run(f"restate fares 2025-Q1 --page {shlex.quote(str(picture))}")
    _say(f"As a picture: {picture}")


def _say(text: str) -> None:
    print(f"\n# {text}", flush=True)


def _run(command: str, shown: int | None = None) -> None:
    """Run a command of ours, and print it with its output, or the first lines of that."""
    print(f"$ hindcast {command}", flush=True)
    with redirect_stdout(StringIO()) as output:
        result = run_command(shlex.split(command))
    lines = output.getvalue().splitlines()
    print("\n".join(lines if shown is None else [*lines[:shown], "..."]), flush=True)
    if result != 0:
        raise AssertionError(f"hindcast {command} ended with {result}")


def list_prices() -> Iterator[ProducerRecord]:
    """Return the prices of each route, a new one each month, sent on that day; and one that was sent much later."""
    for month in range(6):
        day = datetime(2025, month + 1, 1, tzinfo=UTC)
        for n, route in enumerate(ROUTES):
            yield _build_record(route, {"price": 10 + 2 * n + month}, day, day)
        if month == 2:
            yield _build_record("hills", {"price": 19}, datetime(2025, 1, 15, tzinfo=UTC), day + timedelta(days=9))


def list_trips() -> Iterator[ProducerRecord]:
    """Return a trip a day on each route; every tenth was sent three weeks after it."""
    sent = []
    for day in range(_DAYS):
        for n, route in enumerate(ROUTES):
            at = _START + timedelta(days=day, hours=8 + n)
            later = timedelta(days=21) if day % 10 == 5 else timedelta()
            sent.append((at + later, _build_record(f"{route}-{day:03}", {"route": route}, at, at + later)))
    return (record for _, record in sorted(sent, key=lambda it: it[0]))


def _build_record(key: str, value: dict[str, int | str], at: datetime, sent: datetime) -> ProducerRecord:
    return ProducerRecord(key.encode(), json.dumps(value).encode(), at, (("sent_at", sent.isoformat()),))
