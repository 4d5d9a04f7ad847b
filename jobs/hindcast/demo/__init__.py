"""The example pipelines on real parts: Kafka, Airflow, Spark, Delta; twice, the second time after late records.

Beside the second run a person approves in Airflow what a gate has held back, and a third run of votes is stopped.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from decimal import Decimal

import duckdb
import pyarrow as pa

from hindcast import read, show
from hindcast.contracts import find
from hindcast.delta import emitted, scan, tables
from hindcast.delta.tables import Table
from hindcast.demo import flights, readings, restaurant, votes
from hindcast.kafka import produce, security
from hindcast.local import stack
from hindcast.local.airflow import api
from hindcast.planning import journal
from hindcast.quality import holds
from hindcast.questions import BEGINNING, Question
from hindcast.reports import report
from hindcast.session import BRIEF
from hindcast.settings import Settings, settings

PIPELINES = ("restaurant", "votes", "flights")
RELEASE = "restaurant__release"
_PORTS_AWAY = 100


def main() -> int:
    """The demo, in a folder and on ports of its own (<var>/demo, the configured ports + 100), which it makes anew."""
    now = _own(settings())
    security.forget()  # its broker is its own
    os.environ.update({**now.environment, "JDK_JAVA_OPTIONS": " ".join(BRIEF)})
    if now.var.exists():
        stack.down(now)
    shutil.rmtree(now.var, ignore_errors=True)
    started = time.monotonic()
    with ThreadPoolExecutor(1) as beside:
        sent = beside.submit(_produce, now, first=True)
        try:
            stack.up(now, brief=True)
            airflow = api(now)
            told = sent.result()
            _say(started, f"sent to Kafka: {told}")
            _say(started, "run one: Airflow's schedule")
            for pipeline in PIPELINES:
                airflow.unpause(pipeline)
            for pipeline in PIPELINES:
                airflow.wait(pipeline)
            _say(started, f"sent to Kafka, late: {_produce(now, first=False)}")
            _say(started, "run two: triggered by hand")
            second = {pipeline: airflow.trigger(pipeline) for pipeline in PIPELINES}
            airflow.wait("restaurant", second["restaurant"])
            released = airflow.approve(RELEASE)
            airflow.wait("votes", second["votes"])
            for topic, records in votes.wrong().items():
                produce.send(now.kafka, topic, records)
            stopped = airflow.trigger("votes")
            airflow.wait(RELEASE, released)
            airflow.wait("votes", stopped, state="failed")
            airflow.wait("flights", second["flights"])
            _say(started, "done; read back from Delta:")
            _show_restaurant(now)
            _show_votes(now)
            _show_flights(now)
            _show_gates(now)
        finally:
            stack.down(now)
    _say(started, f"the tables stay in {now.warehouse}")
    return 0


def _own(now: Settings) -> Settings:
    var = now.var / "demo"
    kafka_port = now.kafka_port + _PORTS_AWAY
    return replace(
        now,
        var=var,
        warehouse=str(var / "warehouse"),
        reports=var / "reports",
        kafka=f"127.0.0.1:{kafka_port}",
        kafka_port=kafka_port,
        airflow_port=now.airflow_port + _PORTS_AWAY,
        spark_port=now.spark_port + _PORTS_AWAY,
    )


def _produce(now: Settings, *, first: bool) -> str:
    records = {**restaurant.first(), **votes.first()} if first else {**restaurant.late(), **votes.late()}
    records |= {flights.WEATHER: list(flights.weather(late=not first))}
    if first:
        departures = flights.departures()
        january = [record for record in departures if str(record.timestamp) < "2013-02-01"]
        records |= {flights.DEPARTURES: departures, flights.ROTATIONS: january, flights.PLANES: list(flights.planes())}
        produce.create(now.kafka, *records)
    return ", ".join(f"{produce.send(now.kafka, topic, r):,} {topic}" for topic, r in records.items())


def _show_restaurant(now: Settings) -> None:
    one, two = _known(now, "restaurant", "bills")
    print("\nrestaurant.bills: what each order was believed to cost\n")
    print(show.aligned(_beside(one, two, ("customer", "item", "quantity", "timestamp"), ("amount",))))
    due = next(row["amount"] for row in two.to_pylist() if row["customer"] == "candace")
    if due != Decimal(24):
        raise AssertionError(f"Candace must pay 24.00, not {due}")
    print("\nCandace ordered three at t=3, when curry cost 8.00: she pays 24.00 and not 30.00, though the new price")
    print("was known before her order came.")
    print("Dave's naan was corrected by a late price; what was believed before is still there.")


def _show_votes(now: Settings) -> None:
    one, two = _known(now, "votes", "by_region")
    same = ("region", "candidate", "validFrom", "validTo")
    print("\nvotes.by_region: the votes of each region and candidate, from when to when\n")
    print("believed after run 1")
    print(show.aligned(one.select([*same, "votes"])))
    print("believed after run 2: Ben had voted red before blue, and Ann had withdrawn her vote")
    print(show.aligned(two.select([*same, "votes"])))


def _show_flights(now: Settings) -> None:
    contract = find(now.schemas, "flights")
    found = readings.beside(
        _rows(emitted.log(now.warehouse, contract, "departures_weather_kafka")),
        _rows(tables.located(now.warehouse, contract, "departures_weather")),
        _rows(tables.located(now.warehouse, contract, "weather")),
        _rows(tables.log(now.warehouse, "flights", "weather")),
        same=("flight", "airport"),
        values=("temp", "wind_speed", "precip", "visib"),
        on={"airport": "airport"},
    )
    two = found.differing.to_pylist()
    by_temp = [n for n, row in enumerate(two) if row["temp, kafka"] != row["temp, corrected"]]
    told = ("flight", "airport", "timestamp", "temp, kafka", "temp, corrected", *readings.WHY)
    shown = found.differing.take(by_temp[:5]).select(told)
    print("\nflights.departures_weather and flights.departures_weather_kafka: one view in both readings")
    print(
        f"{found.same:,} of {found.same + len(two):,} departures have the same weather in both, {len(two):,} have not;"
    )
    print(f"the first of {len(by_temp):,} that have another temperature:\n")
    print(show.aligned(shown))
    late, once = sum(row["late record in run"] is not None for row in two), sum(row["closed"] for row in two)
    print(f"\nwhy: {late:,} of the {len(two):,} were emitted before the record of {flights.WEATHER} came")
    print("that was valid then")
    print("kafka: what was emitted stands, as in the output topic of an application")
    print(f"corrected: {once:,} had the same answer then; late weather has closed it and opened the right one")
    ask = f"HINDCAST_VAR={now.var} .venv/bin/hindcast history flights.departures_weather --key"
    print(f"\nall about one: {ask} {shown['flight'][0]}")


def _show_gates(now: Settings) -> None:
    print(
        "\nrestaurant.menu: lassi for 0.00 was held back by a gate in run 1, approved in Airflow, published by run 3\n"
    )
    lassi = read.history(now.warehouse, find(now.schemas, "restaurant"), "menu", key=("lassi",))
    print(show.aligned(lassi.select(["item", "price", "validFrom", "systemFrom"])))
    entries = holds.listed(now.warehouse, "restaurant")
    print(show.aligned(entries.select(["run", "entry", "key", "expectation", "topic", "partition", "offset", "by"])))
    print("\nvotes, run 3: a vote for nobody; a gate stopped the run, nothing of it was published\n")
    stopped = journal.runs(now.warehouse, "votes")[-1]
    told = report.of(now.warehouse, find(now.schemas, "votes"), stopped)
    print("\n".join(line for line in report.text(told).splitlines() if "stopped:" in line or "failed" in line))
    print(f"\nthe pages of all runs: {now.reports}")


def _rows(table: Table) -> pa.Table:
    """Every row of a table that is there."""
    found = tables.opened(table)
    if found is None:
        raise AssertionError(f"{table.path} was not made")
    with scan.engine() as engine:
        scan.register(engine, found)
        return engine.sql("FROM rows").to_arrow_table()


def _known(now: Settings, pipeline: str, view: str) -> tuple[pa.Table, pa.Table]:
    """A view as known after the first run and after the last."""
    contract = find(now.schemas, pipeline)
    runs = [run.known_at for run in journal.runs(now.warehouse, pipeline) if run.state == "completed"]
    asked = (Question(from_time=BEGINNING, known_at=known) for known in (runs[0], runs[-1]))
    one, two = (read.query(now.warehouse, contract, view, question) for question in asked)
    return one, two


def _beside(one: pa.Table, two: pa.Table, same: tuple[str, ...], values: tuple[str, ...]) -> pa.Table:
    """Both answers in one row."""
    names: Mapping[str, str] = {"one": "after run 1", "two": "after run 2"}
    columns = [f'{t}."{v}" AS "{v}, {names[t]}"' for v in values for t in names]
    told = ", ".join([*(f'two."{c}"' for c in same), *columns])
    matched = " AND ".join(f'one."{c}" IS NOT DISTINCT FROM two."{c}"' for c in same)
    order = ", ".join(f'two."{c}"' for c in ("timestamp", *same))
    with duckdb.connect() as engine:
        engine.execute("SET TimeZone = 'UTC'")
        engine.register("one", one)
        engine.register("two", two)
        return engine.sql(
            f"SELECT {told} FROM one JOIN two ON {matched} ORDER BY {order}"  # noqa: S608  # names of ours
        ).to_arrow_table()


def _say(started: float, text: str) -> None:
    print(f"[{time.monotonic() - started:4.0f} s] {text}", flush=True)
