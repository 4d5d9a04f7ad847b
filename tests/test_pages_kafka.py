"""Pages of kafka views: which record made a view emit a row, and in which run."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import CommitProperties, write_deltalake
from fastapi.testclient import TestClient

from hindcast.common.settings import Settings
from hindcast.contract import Contract, load
from hindcast.query import read
from hindcast.store import emitted_log, tables
from hindcast.store.tables import Table
from test_pages import client, text, twin
from warehouses import HOSTILE, RUNS, T0, at, complete, place, row, shop, version, write

LIVE = """
pipeline: live
start: 2026-01-01
topics:
  prices: {topic: shop.prices, read: table, key: {item: string}, value: {price: "decimal(8,2)", note: string}}
  orders: {read: stream, key: {customer: string}, value: {item: string, quantity: int}}
  visits: {read: stream, key: {customer: string}, value: {page: string}}
  people: {read: table, key: {id: int}, value: {name: string, city: string}, sensitive: [name]}
views:
  bills:
    semantics: kafka
    wait: true
    stream: orders
    join: {table: prices, on: orders.item}
    select: {item: orders.item, amount: quantity * price}
  met:
    semantics: kafka
    stream: orders
    join: {stream: visits, before: 10 minutes, how: left}
    select: {item: item, page: page}
  daily: {semantics: kafka, stream: orders, aggregate: {n: count(*)}, window: {tumbling: 1 day}}
  cities: {semantics: kafka, table: people, group_by: {city: city}, aggregate: {n: count(*)}}
  folk: {semantics: kafka, table: people, where: id > 0}
  sums: {stream: orders, aggregate: {n: count(*)}}
"""
DAY = {"windowStart": T0, "windowEnd": T0 + timedelta(days=1)}

ROWS: dict[str, list[dict[str, Any]]] = {
    "prices": [
        version(1, 2, 0, None, item="naan", price=Decimal(3), note="", **place(0)),
        version(2, None, 0, 1, item="naan", price=Decimal(3), note="", **place(0)),
        version(2, None, 1, None, item="naan", price=Decimal("2.5"), note="late", **place(2)),
    ],
    "orders": [row(1, customer="dave", item="naan", quantity=2, timestamp=at(2), **place(0))],
    "visits": [row(2, customer="dave", page=HOSTILE, timestamp=at(1), **place(7))],
    "people": [version(1, None, 0, None, id=1, name="Ann Secret", city="Rome", **place(0))],
    "bills": [row(1, customer="dave", item="naan", amount=Decimal(6), timestamp=at(2), **place(0))],
    "met": [
        row(1, None, customer="dave", item="naan", page="", timestamp=at(2), **place(0))
        | {"_rightPartition": None, "_rightOffset": None},
        row(2, None, customer="dave", item="naan", page=HOSTILE, timestamp=at(2), **place(0))
        | {"_rightPartition": 0, "_rightOffset": 7},
    ],
    "daily": [row(1, 2, customer="dave", n=1, **DAY), row(2, None, customer="dave", n=2, **DAY)],
    "cities": [version(1, None, 0, None, city="Rome", n=1, **place(3))],
    "folk": [version(1, None, 0, None, id=1, name="Ann Secret", city="Rome", **place(0))],
    "sums": [version(1, None, 2, None, customer="dave", n=1)],
}


def came(run: int, offset: int, cause: str, tombstone: bool = False, epoch: int = 1, **values: Any) -> dict[str, Any]:
    """A record that a view emitted in a run, caused by a record (`topic offset`) of partition 0."""
    topic, _, number = cause.partition(" ")
    by = {"_causeTopic": topic, "_causePartition": 0, "_causeOffset": int(number)}
    emits = {"_epoch": epoch, "_partition": 0, "_offset": offset, "_tombstone": tombstone, "_run": run}
    return {**values, **emits, **by, "systemFrom": RUNS[run - 1]}


def source(offset: int, right: int | None = None) -> dict[str, Any]:
    found = {"_sourcePartition": 0, "_sourceOffset": offset}
    return found | {"_rightPartition": None if right is None else 0, "_rightOffset": right}


EMITTED: dict[str, list[dict[str, Any]]] = {
    "bills": [came(1, 0, "orders 0", customer="dave", timestamp=at(2), **source(0))],
    "met": [
        came(1, 0, "orders 1", customer="dave", timestamp=at(2), **source(0)),
        came(2, 1, "visits 7", customer="dave", timestamp=at(2), **source(0, 7)),
    ],
    "daily": [
        came(1, 0, "orders 0", customer="dave", timestamp=at(2), **DAY),
        came(2, 1, "orders 5", True, customer="dave", timestamp=at(2), **DAY),
        came(2, 2, "orders 6", customer="dave", timestamp=at(2), **DAY),
        came(2, 3, "orders 7", customer="eve", timestamp=at(2), **DAY),
    ],
    "cities": [
        came(1, 3, "people 9", epoch=1, city="Rome", timestamp=at(0)),
        came(1, 3, "people 4", epoch=2, city="Rome", timestamp=at(0)),
        came(2, 3, "people 1", epoch=3, city="Rome", timestamp=at(0)),
    ],
    "folk": [came(1, 0, "people 0", id=1, timestamp=at(0))],
}
LOG: dict[str, list[tuple[int, float, float | None, str]]] = {
    "orders": [(0, 2, None, "accepted"), (1, 3, 2, "accepted"), (6, 1, 9, "accepted")],
    "visits": [(7, 1, 9, "accepted")],
    "people": [(0, 0, 5, "expired"), (4, 0, 5, "expired")],
}


@pytest.fixture(scope="module", autouse=True)
def settings(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Settings]:
    with shop(tmp_path_factory.mktemp("live"), LIVE) as found:
        contract = load(found.schemas / "live.yaml")
        for run in (1, 2):
            complete(found, contract, run)
        for name, rows in ROWS.items():
            write(found, contract, name, rows)
        for name, rows in EMITTED.items():
            log = emitted_log.emitted_table(found.warehouse, contract, name)
            for run in (1, 2):
                new = [it for it in rows if it["_run"] == run]
                waits = {"upto": (T0.timestamp() + run) * 1000, "waitsFor": ["prices", 1]}
                note = {"run": run, "epoch": run, **(waits if name == "bills" else {"upto": -1, "waitsFor": None})}
                _append(log, pa.Table.from_pylist(new or rows).slice(0, len(new)), note)
        for name, told in LOG.items():
            log = tables.log_table(found.warehouse, contract.pipeline, name)
            moments = [{"timestamp": at(when), "streamTime": None if t is None else at(t)} for _, when, t, _ in told]
            rows = [
                {"partition": 0, "offset": offset, **moment, "fate": fate, "run": 1}
                for (offset, *_, fate), moment in zip(told, moments, strict=True)
            ]
            schema = pa.Table.from_pylist(rows).schema
            index = schema.get_field_index("streamTime")
            _append(
                log,
                pa.Table.from_pylist(rows, schema.set(index, pa.field("streamTime", schema.field("timestamp").type))),
                {},
            )
        yield found


def _append(table: Table, rows: pa.Table, note: dict[str, Any]) -> None:
    """Rows of a log as a run appends them, with its note."""
    ints = {"_partition", "_causePartition", "_sourcePartition", "_rightPartition"}
    kinds = {"_rightOffset": pa.int64(), **dict.fromkeys(ints, pa.int32())}
    fields = [pa.field(f.name, kinds.get(f.name, f.type)) for f in rows.schema]
    write_deltalake(
        table.path,
        rows.cast(pa.schema(fields)),
        mode="append",
        name=f"{table.pipeline}.{table.name}",
        description=table.description,
        commit_properties=CommitProperties(custom_metadata={"userMetadata": json.dumps(note)}),
    )


@pytest.fixture
def web() -> TestClient:
    return client("live")


def plane(web: TestClient, table: str, key: str, **asked: str) -> Any:
    return twin(web, "/machine/live", table=table, key=key, **asked)


def why(web: TestClient, table: str, key: str, **asked: str) -> tuple[str, dict[str, int]]:
    told = plane(web, table, key, **asked)["why"]
    return told["text"], {part["name"]: part["total"] for part in told["parts"]}


@pytest.mark.parametrize(
    ("table", "run", "words", "parts"),
    [
        # An event, by the record that released it; a later price changes nothing.
        (
            "bills",
            1,
            "run 1, as offset 0 of partition 0 of its output, when orders, partition 0, offset 0",
            {"orders": 1},
        ),
        (
            "bills",
            2,
            "run 1, as offset 0 of partition 0 of its output, when orders, partition 0, offset 0",
            {"orders": 1},
        ),
        # Of two pairs of one event each has its own; the first was released by a later event.
        (
            "met",
            1,
            "run 1, as offset 0 of partition 0 of its output, when orders, partition 0, offset 1",
            {"orders": 0},
        ),
        # Of a window what came last by the run that opened the row.
        (
            "daily",
            1,
            "run 1, as offset 0 of partition 0 of its output, when orders, partition 0, offset 0",
            {"orders": 1},
        ),
        (
            "daily",
            2,
            "run 2, as offset 2 of partition 0 of its output, when orders, partition 0, offset 6",
            {"orders": 0},
        ),
    ],
)
def test_why_of_a_kafka_view_is_the_record_that_made_it_emit(
    web: TestClient, table: str, run: int, words: str, parts: dict[str, int]
) -> None:
    told, found = why(web, table, "dave", knownAt=f"run:{run}")
    assert (told.startswith(f"It was emitted in {words}"), found) == (True, parts), told


def test_of_a_pair_the_one_that_came_by_both_events(settings: Settings) -> None:
    contract = load(settings.schemas / "live.yaml")
    log = emitted_log.emitted_table(settings.warehouse, contract, "met")
    causes = [emitted_log.find_cause(log, "pairs", it) for it in ROWS["met"]]
    assert [(it.run, it.topic, it.cause_offset) for it in causes if it] == [(1, "orders", 1), (2, "visits", 7)]


def test_the_epoch_is_that_of_the_run_that_opened_the_row(web: TestClient) -> None:
    for run in (1, 2):
        told, _ = why(web, "cities", "Rome", knownAt=f"run:{run}")
        assert "people, partition 0, offset 4, dated 2026-01-01" in told
        assert told.endswith("it is expired, so people does not have it.")


def test_a_cause_that_another_retention_has_accepted_since_is_shown(web: TestClient) -> None:
    told, parts = why(web, "folk", "1")
    assert (told.endswith("was processed; it was late."), parts) == (True, {"people": 1})


def test_that_the_cause_was_late_is_told(web: TestClient) -> None:
    told, _ = why(web, "daily", "dave")
    assert told.endswith("dated 2026-01-01 00:01, was processed; it was late.")


def test_a_row_from_before_the_kafka_reading_is_told_as_it_was_derived(settings: Settings) -> None:
    contract = load(settings.schemas / "live.yaml")
    from hindcast.query.explain import explain_row

    old = {**ROWS["bills"][0], "systemFrom": RUNS[0] - timedelta(days=1)}
    told = explain_row(settings, contract, "bills", old, RUNS[1], {"live"})
    assert told["text"].startswith("One event of orders looked up prices")


def test_a_version_is_the_record_that_was_emitted_and_an_event_that_of_its_topic(web: TestClient) -> None:
    found = {}
    for table, key in (("cities", "Rome"), ("bills", "dave"), ("daily", "dave"), ("sums", "dave")):
        (shown, *_) = plane(web, table, key)["plane"]["rectangles"]
        found[table] = [(it["topic"], it["offset"]) for it in shown["records"]]
    assert found == {"cities": [("emitted/cities", 3)], "bills": [("orders", 0)], "daily": [], "sums": []}


def test_sensitive_columns_of_kafka_views_and_of_their_causes_are_hidden(web: TestClient) -> None:
    for address in ("/machine/live", "/machine/live.json"):
        for asked in ({"table": "folk", "key": "1"}, {"table": "cities", "key": "Rome"}):
            answer = web.get(address, params=asked)
            assert (answer.status_code, "Ann" in answer.text) == (200, False)
    assert "***" in web.get("/machine/live", params={"table": "folk", "key": "1"}).text


LOOKED_UP = """
pipeline: live
start: 2026-01-01
topics:
  prices: {read: table, key: {item: string}, value: {price: int}}
  orders: {read: table, key: {id: string}, value: {item: string, quantity: int}MARK}
views:
  bills:
    semantics: kafka
    table: orders
    join: {table: prices, on: orders.item}
    select: {amount: quantity * 2}
  large: {semantics: kafka, table: bills, where: amount > 1}
"""


@pytest.mark.parametrize("is_hidden", [True, False])
def test_a_record_that_was_looked_up_by_a_sensitive_value_is_not_named_as_the_cause(
    tmp_path: Path, *, is_hidden: bool
) -> None:
    """It would tell the value: the price of naan is the cause only for an order of naan. Nor by a view of the view."""
    with shop(tmp_path, LOOKED_UP.replace("MARK", ", sensitive: [item]" if is_hidden else "")) as settings:
        contract = load(settings.schemas / "live.yaml")
        for run in (1, 2):
            complete(settings, contract, run)
        write(settings, contract, "prices", [version(2, None, 3, None, item="naan", price=3, **place(4))])
        write(settings, contract, "orders", [version(1, None, 0, None, id="o", item="naan", quantity=2, **place(0))])
        for name in ("bills", "large"):
            write(settings, contract, name, [version(2, None, 3, None, id="o", amount=4, **place(1))])
            log, note = emitted_log.emitted_table(settings.warehouse, contract, name), {"run": 2, "epoch": 1}
            rows = pa.Table.from_pylist([came(2, 1, "prices 4", id="o", timestamp=at(3))])
            _append(log, rows, {**note, "upto": -1, "waitsFor": None})
        moments = {"timestamp": at(3), "streamTime": at(3), "systemFrom": RUNS[1]}
        logged = {"partition": 0, "offset": 4, "fate": "accepted", "run": 2, **moments}
        _append(tables.log_table(settings.warehouse, "live", "prices"), pa.Table.from_pylist([logged]), {})
        for name in ("bills", "large"):
            answer = client("live").get("/machine/live.json", params={"table": name, "key": "o"})
            assert (answer.status_code, "naan" in answer.text) == (200, not is_hidden)
            assert ("prices, partition 0, offset 4" in answer.json()["why"]["text"]) != is_hidden
            (line,) = twin(client("live"), "/changes/live", table=name)["lines"]
            assert [cause["offset"] for cause in line["causes"]] == ([] if is_hidden else [4])


def test_every_page_is_there_and_tells_the_reading(web: TestClient) -> None:
    for address in ("/quality/live", "/quality", "/machine", "/ledger/live"):
        assert "live" in text(web, address)
    assert "bills (events, kafka)" in text(web, "/machine/live", table="bills")
    assert "sums (versions)" in text(web, "/machine/live", table="bills")
    boxes = {box["name"]: box["reading"] for box in twin(web, "/ledger/live")["graph"]["boxes"]}
    assert (boxes["bills"], boxes["sums"], boxes["prices"]) == ("kafka", "corrected", None)
    assert "windows, kafka" in text(web, "/ledger/live")


def test_what_a_run_has_emitted_is_counted_and_how_far_a_view_that_waits_has_come(settings: Settings) -> None:
    contract: Contract = load(settings.schemas / "live.yaml")
    log = emitted_log.emitted_table(settings.warehouse, contract, "daily")
    assert [emitted_log.count_records(log, run) for run in (1, 2, 3)] == [
        {"records": 1, "tombstones": 0},
        {"records": 3, "tombstones": 1},
        {"records": 0, "tombstones": 0},
    ]
    waits = emitted_log.emitted_table(settings.warehouse, contract, "bills")
    assert emitted_log.read_last_note(waits, 0) is None
    assert [
        emitted_log.find_progress(contract, note).as_json()
        for run in (1, 5)
        if (note := emitted_log.read_last_note(waits, run))
    ] == [
        {"upTo": (T0 + timedelta(seconds=run)).isoformat(), "waitsFor": {"topic": "shop.prices", "partition": 1}}
        for run in (1, 2)
    ]


def test_tables_of_kafka_views_are_asked_as_any_other(settings: Settings) -> None:
    contract = load(settings.schemas / "live.yaml")
    (window,) = read.query(settings.warehouse, contract, "daily").to_pylist()
    assert (window["n"], window["windowClosed"]) == (2, False)
    assert read.query(settings.warehouse, contract, "met").num_rows == 2
