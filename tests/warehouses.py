"""A warehouse without Spark: tables written as runs write them, from rows; and a journal of runs.

with shop(folder) as now: ...    # settings of a pipeline with all kinds of tables, two runs, and a hostile value
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from decimal import Decimal
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
from hindcast.store import tables

T0 = datetime(2026, 1, 1, tzinfo=UTC)
RUNS = [datetime(2026, 2, 1, 0, 0, 0, 123456, tzinfo=UTC), datetime(2026, 2, 2, 0, 0, 0, 654321, tzinfo=UTC)]
HOSTILE = "<script>document.title='taken'</script>"

SHOP = """
pipeline: shop
description: Sells things.
start: 2026-01-01
topics:
  prices: {topic: shop.prices, read: table, key: {item: string}, value: {price: "decimal(8,2)", note: string}}
  orders: {read: stream, key: {customer: string}, value: {item: string, quantity: int}}
  visits: {read: stream, key: {customer: string}, value: {page: string}}
  people: {read: table, key: {id: int}, value: {name: string, city: string}, sensitive: [name]}
  secrets: {read: table, key: {id: string}, value: {n: int}, sensitive: true}
views:
  bills:
    stream: orders
    join: {table: prices, on: orders.item}
    select: {item: orders.item, amount: quantity * price}
  met: {stream: orders, join: {stream: visits, before: 10 minutes}, select: {item: item, page: page}}
  daily: {stream: orders, aggregate: {n: count(*)}, window: {tumbling: 1 day}}
  cities: {table: people, group_by: {city: city}, aggregate: {n: count(*)}}
"""


def settings_of(schemas: Path) -> Settings:
    """Return the default settings with this folder of contracts."""
    return replace(read_settings({}), schemas=schemas)


READER_OF_SHOP = """
pipeline: reader
start: 2026-01-01
topics:
  questions: {read: stream, key: {id: string}, value: {who: int}}
inputs:
  folks: {table: shop.people, key: {id: int}, value: {name: string, city: string}}
views:
"""
"""The beginning of a contract that reads a table of `shop`; its views follow."""

ANSWERS_OF_SHOP = f"""{READER_OF_SHOP}\
  answers: {{stream: questions, join: {{table: folks, on: who}}, select: {{city: city}}}}
"""
"""The same with a view, for `answer_questions`."""


def at(minute: float) -> datetime:
    return T0 + timedelta(minutes=minute)


def row(since: int, until: int | None = None, **values: Any) -> dict[str, Any]:
    """A row that run `since` opened and run `until` closed."""
    ended = RUNS[until - 1] if until else None
    belief = "superseded" if ended else "open" if values.get("validTo", T0) is None else "past"
    return {**values, "systemFrom": RUNS[since - 1], "systemTo": ended, "_belief": belief}


def version(since: int, until: int | None, start: float, end: float | None, **values: Any) -> dict[str, Any]:
    ended = None if end is None else at(end)
    return row(since, until, **values, validFrom=at(start), validTo=ended)


def place(offset: int) -> dict[str, Any]:
    return {"_partition": 0, "_offset": offset}


ROWS: Mapping[str, list[dict[str, Any]]] = {
    "prices": [
        version(1, 2, 0, None, item="naan", price=Decimal(3), note="", **place(0)),
        version(2, None, 0, 1, item="naan", price=Decimal(3), note="", **place(0)),
        version(2, None, 1, None, item="naan", price=Decimal("2.5"), note="late", **place(2)),
        version(1, None, 0, None, item=HOSTILE, price=Decimal(1), note=HOSTILE, **place(1)),
    ],
    "orders": [row(1, customer="dave", item="naan", quantity=2, timestamp=at(2), **place(0))],
    "visits": [row(1, customer="dave", page=HOSTILE, timestamp=at(1), **place(7))],
    "people": [version(1, None, 0, None, id=1, name="Ann Secret", city="Rome", **place(0))],
    "secrets": [version(1, None, 0, None, id="s1", n=1, **place(0))],
    "bills": [
        row(1, 2, customer="dave", item="naan", amount=Decimal(6), timestamp=at(2), **place(0)),
        row(2, None, customer="dave", item="naan", amount=Decimal(5), timestamp=at(2), **place(0)),
    ],
    "met": [
        row(1, None, customer="dave", item="naan", page=HOSTILE, timestamp=at(2), **place(0))
        | {"_rightPartition": 0, "_rightOffset": 7}
    ],
    "daily": [row(1, None, customer="dave", n=1, windowStart=T0, windowEnd=T0 + timedelta(days=1))],
    "cities": [version(1, None, 0, None, city="Rome", n=1)],
}


def write(settings: Settings, contract: Contract, name: str, rows: list[dict[str, Any]]) -> None:
    """A table of the contract, as a run would have made it."""
    table = tables.locate_table(settings.warehouse, contract, name)
    sought = [column for column in rows[0] if not column.startswith("_") and column not in ("price", "n", "note")]
    write_deltalake(
        table.path,
        pa.Table.from_pylist(rows, schema=_schema(rows)),
        mode="append",
        partition_by=["_belief"],
        name=f"{table.pipeline}.{table.name}",
        description=table.description,
        configuration={"delta.dataSkippingStatsColumns": ",".join(sought)},
    )


def report(contract: Contract, run: int, **told: Any) -> dict[str, Any]:
    """The report of a run that replayed offsets of the prices."""
    start, end = {1: (0, 2), 2: (2, 3)}[run]
    partitions = [{"partition": 0, "start": start, "end": end, "fates": {"accepted": end - start}}]
    topic = {"topic": "shop.prices", "offsets": end - start, "late": run - 1, "partitions": partitions}
    changed = {"opened": 2, "closed": 1, "corrected": run - 1, "gates": []}
    return {
        "pipeline": contract.pipeline,
        "run": run,
        "runId": f"manual__{run}",
        "knownAt": RUNS[run - 1].isoformat(),
        "intervalEnd": None,
        "state": "completed",
        "topics": {"prices": topic},
        "tables": {"prices": changed},
        "again": f"hindcast run {contract.pipeline}",
        **told,
    }


def plan(contract: Contract, run: int) -> Plan:
    """The plan of a run that ingests two offsets."""
    topic_plan = TopicPlan("t", 0, run - 1, {0: 0}, {0: OffsetRange(0, 2)}, {})
    identity = contract.pipeline, run, f"manual__{run}", RUNS[run - 1], None, contract.hash
    return Plan(*identity, {"prices": topic_plan})


def complete(settings: Settings, contract: Contract, run: int, *, stored: bool = True) -> None:
    """A run that has ended, with its report; its plan has `stored` the contract, or not, as older programs have not."""
    past = journal.read_runs(settings.warehouse, contract.pipeline)
    fields = definitions.list_unstored_fields(past, contract) if stored else {}
    entry, made = Run(replace(plan(contract, run), definition=fields)), report(contract, run)
    journal.append_entry(settings.warehouse, entry)
    journal.append_entry(settings.warehouse, replace(entry, outcome=Completed(made)))
    reports.write_page(settings.reports, made)


@contextmanager
def shop(folder: Path, *others: str, stored: bool = True) -> Iterator[Settings]:
    """A warehouse with the pipeline `shop` and other contracts: its settings, in force as long as the block lasts."""
    schemas = folder / "schemas"
    schemas.mkdir(parents=True)
    for text in (SHOP, *others):
        name = text.split("pipeline: ")[1].splitlines()[0]
        (schemas / f"{name}.yaml").write_text(text, encoding="utf-8")
    environ = {"HINDCAST_VAR": str(folder / "var"), "HINDCAST_SCHEMAS": str(schemas)}
    settings = read_settings(environ)
    contract = load(schemas / "shop.yaml")
    for run in (1, 2):
        complete(settings, contract, run, stored=stored)
    for name, rows in ROWS.items():
        write(settings, contract, name, rows)
    with pytest.MonkeyPatch.context() as patch:
        for name, value in settings.environment.items():
            patch.setenv(name, value)
        yield settings


def fill(settings: Settings, pipeline: str, table: str, rows: list[dict[str, Any]]) -> None:
    """Two completed runs of another pipeline, and its only table as they would have made it."""
    contract = load(settings.schemas / f"{pipeline}.yaml")
    for run in (1, 2):
        complete(settings, contract, run)
    write(settings, contract, table, rows)


def answer_questions(settings: Settings) -> None:
    """Complete two runs of `ANSWERS_OF_SHOP`, with a question and its answer."""
    contract = load(settings.schemas / "reader.yaml")
    for run in (1, 2):
        complete(settings, contract, run)
    write(settings, contract, "questions", [row(1, id="q1", who=1, timestamp=at(2), **place(0))])
    write(settings, contract, "answers", [row(1, id="q1", city="Rome", timestamp=at(2), **place(0))])


def _schema(rows: list[dict[str, Any]]) -> pa.Schema:
    moment = pa.timestamp("us", "UTC")
    kinds = {"price": pa.decimal128(8, 2), "amount": pa.decimal128(19, 2), "id": pa.int32(), "quantity": pa.int32()}
    kinds |= dict.fromkeys(
        ("validFrom", "validTo", "systemFrom", "systemTo", "timestamp", "windowStart", "windowEnd"), moment
    )
    kinds |= {
        "_partition": pa.int32(),
        "_rightPartition": pa.int32(),
        "_offset": pa.int64(),
        "_rightOffset": pa.int64(),
    }
    texts = pa.Table.from_pylist(rows).schema
    found = [(name, kinds.get(name, texts.field(name).type)) for name in rows[0]]
    return pa.schema([(n, pa.string() if n == "id" and isinstance(rows[0]["id"], str) else kind) for n, kind in found])
