"""The example pipelines on real services (Kafka, Airflow, Spark, Delta), run twice, the second time with late records.

During the second run a person approves in Airflow what a gate has held back, and a gate stops a third run of votes.
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

from hindcast.bitemporal.predicates import FIRST_MOMENT, Question
from hindcast.common.session import SHORT_LIVED_JVM_OPTIONS
from hindcast.common.settings import Settings, read_settings
from hindcast.contract import find
from hindcast.kafka import produce, security
from hindcast.plan import journal
from hindcast.plan.marks import find_bound_contract
from hindcast.quality import failing_rows
from hindcast.query import read, show
from hindcast.report import report, report_text
from hindcast.store import duckdb_reader, emitted_log, tables
from hindcast.store.tables import Table
from hindcast_demo import flights, restaurant, semantics_diff, votes
from hindcast_local import stack
from hindcast_local.airflow import api

PIPELINES = ("restaurant", "votes", "flights")
RELEASE = "restaurant__release"
REASON = "The lassi is free in its first week."
"""Why the held price is released: it is what the gate was asked to find."""
_PORTS_AWAY = 100


def main() -> int:
    """Run the demo in a new folder (<var>/demo) and on its own ports (the configured ones + 100), and return 0."""
    settings = _demo_settings(read_settings())
    security.clear_environment()  # its broker has no security
    os.environ.update({**settings.environment, "JDK_JAVA_OPTIONS": " ".join(SHORT_LIVED_JVM_OPTIONS)})
    if settings.var.exists():
        stack.stop_stack(settings)
    shutil.rmtree(settings.var, ignore_errors=True)
    started = time.monotonic()
    with ThreadPoolExecutor(1) as pool:
        sent = pool.submit(_produce_records, settings, first=True)
        try:
            stack.start_stack(settings, brief=True)
            airflow = api(settings)
            _print_progress(started, f"sent to Kafka: {sent.result()}")
            _print_progress(started, "run one: Airflow's schedule")
            for pipeline in PIPELINES:
                airflow.unpause(pipeline)
            for pipeline in PIPELINES:
                airflow.wait(pipeline)
            _print_progress(started, f"sent to Kafka, late: {_produce_records(settings, first=False)}")
            _print_progress(started, "run two: triggered by hand")
            second = {pipeline: airflow.trigger(pipeline) for pipeline in PIPELINES}
            airflow.wait("restaurant", second["restaurant"])
            released = airflow.approve(RELEASE, reason=REASON)
            airflow.wait("votes", second["votes"])
            for topic, records in votes.invalid_records().items():
                produce.send_records(settings.kafka, topic, records)
            stopped = airflow.trigger("votes")
            airflow.wait(RELEASE, released)
            airflow.wait("votes", stopped, state="failed")
            airflow.wait("flights", second["flights"])
            _print_progress(started, "done; read back from Delta:")
            _show_restaurant(settings)
            _show_votes(settings)
            _show_flights(settings)
            _show_gates(settings)
        finally:
            stack.stop_stack(settings)
    _print_progress(started, f"the tables stay in {settings.warehouse}")
    return 0


def _demo_settings(settings: Settings) -> Settings:
    var = settings.var / "demo"
    kafka_port = settings.kafka_port + _PORTS_AWAY
    return replace(
        settings,
        var=var,
        warehouse=str(var / "warehouse"),
        reports=var / "reports",
        kafka=f"127.0.0.1:{kafka_port}",
        kafka_port=kafka_port,
        airflow_port=settings.airflow_port + _PORTS_AWAY,
        spark_port=settings.spark_port + _PORTS_AWAY,
    )


def _produce_records(settings: Settings, *, first: bool) -> str:
    records = (
        {**restaurant.first_records(), **votes.first_records()}
        if first
        else {**restaurant.late_records(), **votes.late_records()}
    )
    records |= {flights.WEATHER: list(flights.read_weather(late=not first))}
    if first:
        departures = flights.read_departures()
        january = [record for record in departures if str(record.timestamp) < "2013-02-01"]
        records |= {
            flights.DEPARTURES: departures,
            flights.ROTATIONS: january,
            flights.PLANES: list(flights.read_planes()),
        }
        produce.create_topics(settings.kafka, *records)
    return ", ".join(f"{produce.send_records(settings.kafka, topic, r):,} {topic}" for topic, r in records.items())


def _show_restaurant(settings: Settings) -> None:
    one, two = _query_first_and_last(settings, "restaurant", "bills")
    print("\nrestaurant.bills: the amount of each order, as known after run 1 and after run 2\n")
    print(show.format_aligned(_join_answers(one, two, ("customer", "item", "quantity", "timestamp"), ("amount",))))
    due = next(row["amount"] for row in two.to_pylist() if row["customer"] == "candace")
    if due != Decimal(24):
        raise AssertionError(f"Candace must pay 24.00, not {due}")
    print("\nCandace ordered three at t=3, when curry cost 8.00: she pays 24.00 and not 30.00, though the new price")
    print("was known before her order came.")
    print("A late price corrected Dave's bill for naan; the former answer is still there.")


def _show_votes(settings: Settings) -> None:
    one, two = _query_first_and_last(settings, "votes", "by_region")
    same = ("region", "candidate", "validFrom", "validTo")
    print("\nvotes.by_region: the votes of each region and candidate, from when to when\n")
    print("as known after run 1")
    print(show.format_aligned(one.select([*same, "votes"])))
    print("as known after run 2: Ben had voted red before blue, and Ann had withdrawn her vote")
    print(show.format_aligned(two.select([*same, "votes"])))


def _show_flights(settings: Settings) -> None:
    contract = find(settings.schemas, "flights")
    comparison = semantics_diff.compare_readings(
        _read_rows(emitted_log.emitted_table(settings.warehouse, contract, "departures_weather_kafka")),
        _read_rows(tables.locate_table(settings.warehouse, contract, "departures_weather")),
        _read_rows(tables.locate_table(settings.warehouse, contract, "weather")),
        _read_rows(tables.log_table(settings.warehouse, "flights", "weather")),
        same=("flight", "airport"),
        values=("temp", "wind_speed", "precip", "visib"),
        on={"airport": "airport"},
    )
    rows = comparison.differing.to_pylist()
    by_temp = [n for n, row in enumerate(rows) if row["temp, kafka"] != row["temp, corrected"]]
    columns = ("flight", "airport", "timestamp", "temp, kafka", "temp, corrected", *semantics_diff.CAUSE_COLUMNS)
    shown = comparison.differing.take(by_temp[:5]).select(columns)
    print("\nflights.departures_weather and flights.departures_weather_kafka: one view in both readings")
    print(
        f"{comparison.equal_count:,} of {comparison.equal_count + len(rows):,} departures have the same weather in "
        f"both, {len(rows):,} do not;"
    )
    print(f"the first of {len(by_temp):,} that differ in temperature:\n")
    print(show.format_aligned(shown))
    late, closed = sum(row["late record in run"] is not None for row in rows), sum(row["closed"] for row in rows)
    print(f"\nwhy: {late:,} of the {len(rows):,} were emitted before the record of {flights.WEATHER} arrived")
    print("that was valid then")
    print("kafka: what was emitted stands, as in the output topic of an application")
    print(f"corrected: {closed:,} had the same answer then; late weather has closed it and opened the right one")
    command = f"HINDCAST_VAR={settings.var} .venv/bin/hindcast history flights.departures_weather --key"
    print(f"\nthe history of one: {command} {shown['flight'][0]}")


def _show_gates(settings: Settings) -> None:
    print("\nrestaurant.menu: in run 1 a gate held back lassi for 0.00; approved in Airflow, run 3 published it\n")
    lassi = read.history(settings.warehouse, find(settings.schemas, "restaurant"), "menu", key=("lassi",))
    print(show.format_aligned(lassi.select(["item", "price", "validFrom", "systemFrom"])))
    entries = failing_rows.list_entries(settings.warehouse, "restaurant")
    columns = ["run", "entry", "key", "expectation", "topic", "partition", "offset", "by"]
    print(show.format_aligned(entries.select(columns)))
    print("\nvotes, run 3: a vote for a candidate who does not exist; a gate stopped the run, nothing was published\n")
    stopped = journal.read_runs(settings.warehouse, "votes")[-1]
    fields = report.read_report(find_bound_contract(settings, "votes"), stopped)
    lines = report_text.format_report(fields).splitlines()
    print("\n".join(line for line in lines if "stopped:" in line or "failed" in line))
    print(f"\nthe reports of all runs: {settings.reports}")


def _read_rows(table: Table) -> pa.Table:
    """Return every row of a table; AssertionError if it does not exist."""
    delta_table = tables.open_table(table)
    if delta_table is None:
        raise AssertionError(f"{table.path} does not exist")
    with duckdb_reader.open_engine() as engine:
        duckdb_reader.register_rows(engine, delta_table)
        return engine.sql("FROM rows").to_arrow_table()


def _query_first_and_last(settings: Settings, pipeline: str, view: str) -> tuple[pa.Table, pa.Table]:
    """Return a view as known after the first run and as known after the last."""
    contract = find(settings.schemas, pipeline)
    runs = [run.known_at for run in journal.read_runs(settings.warehouse, pipeline) if run.state == "completed"]
    questions = (Question(from_time=FIRST_MOMENT, known_at=known) for known in (runs[0], runs[-1]))
    one, two = (read.query(settings.warehouse, contract, view, question) for question in questions)
    return one, two


def _join_answers(one: pa.Table, two: pa.Table, same: tuple[str, ...], values: tuple[str, ...]) -> pa.Table:
    """Return the rows of both answers that are the `same`, with the `values` of each side by side."""
    names: Mapping[str, str] = {"one": "after run 1", "two": "after run 2"}
    columns = [f'{t}."{v}" AS "{v}, {names[t]}"' for v in values for t in names]
    selected = ", ".join([*(f'two."{c}"' for c in same), *columns])
    matched = " AND ".join(f'one."{c}" IS NOT DISTINCT FROM two."{c}"' for c in same)
    order = ", ".join(f'two."{c}"' for c in ("timestamp", *same))
    with duckdb.connect() as engine:
        engine.execute("SET TimeZone = 'UTC'")
        engine.register("one", one)
        engine.register("two", two)
        return engine.sql(
            f"SELECT {selected} FROM one JOIN two ON {matched} ORDER BY {order}"  # noqa: S608  # names of ours
        ).to_arrow_table()


def _print_progress(started: float, text: str) -> None:
    print(f"[{time.monotonic() - started:4.0f} s] {text}", flush=True)
