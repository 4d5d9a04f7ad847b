"""A warehouse at the limits of what pages show: 5,000 keys, a key of 500 rectangles, 36 runs, names of 240 characters.

with stressed(folder) as settings: ...    # without Spark, in some seconds
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import write_deltalake

import reports
from hindcast.common.settings import Settings, read_settings
from hindcast.contract import Contract, load
from hindcast.kafka.topics import OffsetRange
from hindcast.plan import definitions, journal
from hindcast.plan.plans import Plan, TopicPlan
from hindcast.plan.runs import Completed, Run
from hindcast.quality import failing_rows, gate_results
from hindcast.quality.gate_results import GateResult
from hindcast.store import table_creation, tables

KEYS, RECTANGLES, RUNS = 5_000, 500, 36
FIRST = datetime(2026, 1, 1, tzinfo=UTC)
LONG = "departures_weather_by_airport_"
TOPIC = (LONG * 8)[:240]
"""Kafka takes 249 characters for the name of a topic, a contract 200 for the name of a table."""
VIEW = (LONG * 8)[:200]
SENSOR = ("ab" * 120)[:240]
"""The key with the most rectangles: one word that no browser breaks by itself."""

CONTRACT = f"""
pipeline: stress
description: Measures **everything**, at [every place](https://example.com), {"and then something more " * 20}.
start: 2026-01-01
topics:
  readings:
    topic: {TOPIC}
    read: table
    key: {{sensor: string}}
    value: {{level: double, note: string}}
    expect:
      - expect_column_values_to_be_between: {{column: level, min_value: 0}}
        on_failure: quarantine
      - expect_column_values_to_be_in_set: {{column: note, value_set: [{SENSOR}, plain]}}
        on_failure: warn
views:
  {VIEW}: {{table: readings, group_by: {{note: note}}, aggregate: {{n: count(*)}}}}
"""
GATES = (
    ("expect_column_values_to_be_between", {"column": "level", "min_value": 0}, "quarantine", "failed"),
    ("expect_column_values_to_be_in_set", {"column": "note", "value_set": [SENSOR, "plain"]}, "warn", "passed"),
)


@contextmanager
def stressed(folder: Path) -> Iterator[Settings]:
    """The warehouse: its settings, in force as long as the block lasts."""
    schemas = folder / "schemas"
    schemas.mkdir(parents=True)
    (schemas / "stress.yaml").write_text(CONTRACT, encoding="utf-8")
    settings = read_settings({"HINDCAST_VAR": str(folder / "var"), "HINDCAST_SCHEMAS": str(schemas)})
    contract = load(schemas / "stress.yaml")
    for run in range(1, RUNS + 1):
        _complete(settings, contract, run)
    _write(settings, contract, "readings", list_readings())
    _write(settings, contract, VIEW, [_row(1, None, 0, None, note="plain", n=KEYS)])
    _hold(settings)
    with pytest.MonkeyPatch.context() as patch:
        for name, value in settings.environment.items():
            patch.setenv(name, value)
        yield settings


def known_at(run: int) -> datetime:
    return FIRST + timedelta(days=run, microseconds=run)


def list_readings() -> list[dict[str, Any]]:
    """One version of each key, and of the longest the versions that each run opened and the next one closed."""
    place = {"_partition": 0, "_offset": 0}
    rows = [
        _row(1 + n % RUNS, None, n, None, sensor=f"s{n:04}", level=n / 7, note="plain", **place) for n in range(1, KEYS)
    ]
    for n in range(RECTANGLES):
        run = 1 + n * RUNS // RECTANGLES
        until = run + 1 if n % 3 == 0 and run < RUNS else None
        rows.append(
            _row(
                run,
                until,
                3 * n,
                3 * n + 3,
                sensor=SENSOR,
                level=n + 0.123456789,
                note=SENSOR,
                **place,
            )
            | {"_offset": n}
        )
    return rows


def _row(run: int, until: int | None, begin: int, end: int | None, **values: Any) -> dict[str, Any]:
    belief = "superseded" if until else "open" if end is None else "past"
    times = {"validFrom": begin, "validTo": end}
    valid = {name: None if hour is None else FIRST + timedelta(hours=hour) for name, hour in times.items()}
    system = {"systemFrom": known_at(run), "systemTo": known_at(until) if until else None}
    return {**values, **valid, **system, "_belief": belief}


def _write(settings: Settings, contract: Contract, name: str, rows: list[dict[str, Any]]) -> None:
    moment, table = pa.timestamp("us", "UTC"), tables.locate_table(settings.warehouse, contract, name)
    kinds = dict.fromkeys(("validFrom", "validTo", "systemFrom", "systemTo"), moment)
    kinds |= {"_partition": pa.int32(), "_offset": pa.int64(), "n": pa.int64()}
    inferred = pa.Table.from_pylist(rows).schema
    schema = pa.schema([(name, kinds.get(name, inferred.field(name).type)) for name in rows[0]])
    write_deltalake(
        table.path,
        pa.Table.from_pylist(rows, schema=schema),
        partition_by=["_belief"],
        name=f"{table.pipeline}.{table.name}",
        description=table.description,
    )


def _complete(settings: Settings, contract: Contract, run: int) -> None:
    """A run that has ended, with its report."""
    past = journal.read_runs(settings.warehouse, contract.pipeline)
    span = OffsetRange(1_000 * (run - 1), 1_000 * run)
    topic_plan = TopicPlan("t", 0, run - 1, {0: 0}, {0: span}, {})
    run_id = f"scheduled__{known_at(run).isoformat()}"
    plan = Plan("stress", run, run_id, known_at(run), known_at(run), contract.hash, {"readings": topic_plan})
    plan = replace(plan, definition=definitions.list_unstored_fields(past, contract))
    gates = [
        GateResult(n, name, kwargs, on_failure, outcome, 1_000, 2 if outcome == "failed" else 0, 0.002, "2 of 1,000")
        for n, (name, kwargs, on_failure, outcome) in enumerate(GATES)
    ]
    rows = {"rows": "hindcast failing stress --held"}
    shown = [gate.as_json() | {"trend": [0.001 * run]} | (rows if gate.failing else {}) for gate in gates]
    held = {"held": {"keys": 2, "rows": 2, "newly": 2 if run == RUNS else 0}}
    changed = {"opened": 1_000, "closed": 100, "corrected": 3 * run, "ages": {"older than a day": run}}
    partition = {"partition": 0, "start": span.start, "end": span.end, "fates": {"accepted": 990, "malformed": 10}}
    made = {
        "pipeline": "stress",
        "run": run,
        "runId": run_id,
        "knownAt": known_at(run).isoformat(),
        "intervalEnd": known_at(run).isoformat(),
        "state": "completed",
        "topics": {"readings": {"topic": TOPIC, "offsets": 1_000, "late": run, "partitions": [partition]}},
        "tables": {"readings": changed | held | {"gates": shown}, VIEW: changed | {"gates": []}},
        "again": "hindcast run stress",
    }
    journal.append_entry(settings.warehouse, Run(plan))
    journal.append_entry(settings.warehouse, Run(plan, Completed(made)))
    reports.write_page(settings.reports, made)
    if run == RUNS:
        gate_results.append_results(settings.warehouse, "stress", run, "readings", gates)


def _hold(settings: Settings) -> None:
    """Enter what the last run holds back: of two keys, one with a long name."""
    schema = table_creation.arrow_schema(failing_rows.SCHEMA)
    valid = '"validFrom":"2026-01-03T04:05:06.000000Z","validTo":null'
    base = dict.fromkeys(schema.names) | {
        "run": RUNS, "at": known_at(RUNS), "table": "readings", "gate": 0, "entry": "held", "change": "open",
        "topic": TOPIC, "partition": 0,
    }  # fmt: skip
    rows = [
        base | {"key": f'{{"sensor":"{key}"}}', "offset": n, "gate": gate, "change": change}
        | {"row": f'{{"sensor":"{key}","level":{level},"note":"{SENSOR}",{valid}}}'}
        for n, key in enumerate(("s0001", SENSOR))
        for gate, change, level in ((0, "open", -1.5), (None, "close", 2.5))
    ]  # fmt: skip
    table = table_creation.ensure_table(failing_rows.failing_table(settings.warehouse, "stress"), failing_rows.SCHEMA)
    write_deltalake(table, pa.Table.from_pylist(rows, schema=schema), mode="append")
