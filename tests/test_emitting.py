"""Kafka views through real runs: what is emitted, in order; the table that it amounts to; and runs cut anywhere."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from pyspark.sql import SparkSession

from hindcast.common.errors import RecordError
from hindcast.common.yaml_loader import ContractLoader
from hindcast.plan import journal, planner
from hindcast.runs import emission
from pipelines import Pipeline, _plain, at, pipeline, tell, wrong

pytestmark = pytest.mark.connect

CONTRACT = """
pipeline: live
start: 2026-01-01
topics:
  menu: {read: table, key: {item: string}, value: {price: int, dish: string}, history_retention: 10 seconds}
  order: {read: table, key: {dish: string}, value: {name: string}, versioned: false}
  stock: {read: table, key: {item: string}, value: {n: int}, versioned: false}
  orders: {read: stream, key: {customer: string}, value: {item: string, quantity: int}}
  payments: {read: stream, key: {customer: string}, value: {paid: int}}
views:
  bills:
    semantics: kafka
    stream: orders
    join: {table: menu, on: item, how: left}
    select: {item: orders.item, due: quantity * price}
  both:
    semantics: kafka
    table: menu
    join: {table: stock, how: outer}
    select: {price: price, n: n}
  named:
    semantics: kafka
    table: menu
    join: {table: order, on: dish, how: left}
    select: {price: price, name: name}
  by_dish:
    semantics: kafka
    table: menu
    group_by: {dish: dish}
    aggregate: {items: count(*), total: sum(price), mean: avg(price)}
  ordered:
    semantics: kafka
    stream: orders
    group_by: {item: item}
    aggregate: {n: count(*), most: max(quantity), total: sum(quantity)}
  visits:
    semantics: kafka
    stream: orders
    aggregate: {n: count(*)}
    window: {session: 2 seconds, grace: 1 second}
  minutes:
    semantics: kafka
    stream: orders
    aggregate: {n: count(*), total: sum(quantity)}
    window: {tumbling: 4 seconds, emit: suppress_until_window_closes}
  paid:
    semantics: kafka
    stream: orders
    join: {stream: payments, before: 1 second, after: 3 seconds, how: left}
    select: {item: item, paid: paid}
  dear:
    semantics: kafka
    table: menu
    where: price > 5
    select: {price: price}
  big:
    semantics: kafka
    stream: bills
    where: due > 10
    select: {due: due}
"""
RECORDS: dict[str, list[Any]] = {
    "menu": [
        ("curry", {"price": 8, "dish": "hot"}, 0),
        ("naan", {"price": 3, "dish": "bread"}, 1),
        ("curry", {"price": 10, "dish": "hot"}, 4),
        ("curry", {"price": 9, "dish": "cold"}, 2),
        ("naan", None, 6),
        ("curry", {"price": 11, "dish": "cold"}, 20),
        ("soup", {"price": 4, "dish": "hot"}, 3),
        ("curry", {"price": 12, "dish": None}, 21),
    ],
    "order": [("hot", {"name": "Hot"}, 1), ("bread", {"name": "Bread"}, 5), ("hot", {"name": "HOT"}, 7)],
    "stock": [("curry", {"n": 5}, 2), ("curry", None, 8), ("cake", {"n": 1}, 9)],
    "orders": [
        ("anna", {"item": "curry", "quantity": 2}, 1),
        ("bob", {"item": "curry", "quantity": 1}, 5),
        ("carl", {"item": "curry", "quantity": 3}, 3),
        ("anna", {"item": "cake", "quantity": 1}, 4),
        ("anna", {"item": "naan", "quantity": 1}, 2),
        ("bob", {"item": "curry", "quantity": 1}, 15),
        ("bob", {"item": "curry", "quantity": 5}, 4),
    ],
    "payments": [
        ("anna", {"paid": 16}, 3),
        ("bob", {"paid": 10}, 4),
        ("carl", {"paid": 1}, 9),
        ("bob", {"paid": 2}, 19),
    ],
}
WITH_HEADERS = {
    topic: [(*record, ("from", f"{topic} {n}".encode())) for n, record in enumerate(sent)]
    for topic, sent in RECORDS.items()
}
"""Each says which one it is."""


def emitted(p: Pipeline, view: str) -> list[tuple[Any, ...]]:
    """What a view has emitted, in order: the columns of its table, and whether it is a tombstone."""
    rows = log(p, view)
    shown = [c for c in rows[0] if not c.startswith("_") and c not in ("headers", "systemFrom")] if rows else []
    return [(*(_plain(row[c]) for c in shown), row["_tombstone"]) for row in rows]


def headers(p: Pipeline, view: str) -> list[list[str] | None]:
    """The values of the headers of what a view has emitted, in order."""
    return [
        None if row["headers"] is None else [header["value"].decode() for header in row["headers"]]
        for row in log(p, view)
    ]


def log(p: Pipeline, view: str) -> list[dict[str, Any]]:
    rows = p.raw(f"emitted/{view}")
    last = max((row["_epoch"] for row in rows), default=0)
    return sorted((row for row in rows if row["_epoch"] == last), key=lambda row: (row["_partition"], row["_offset"]))


def of_views(*names: str) -> str:
    """The contract with these views alone, and the topics that they are made of."""
    told = yaml.load(CONTRACT, Loader=ContractLoader)  # noqa: S506  # a safe loader
    told["views"] = {name: told["views"][name] for name in names}
    said = str(told["views"])
    told["topics"] = {name: topic for name, topic in told["topics"].items() if f"'{name}'" in said}
    return str(yaml.safe_dump(told, sort_keys=False))


@pytest.fixture(
    scope="module",
    params=[
        pytest.param(of_views("bills", "both", "big"), id="some"),
        pytest.param(CONTRACT, id="all", marks=pytest.mark.long),
    ],
)
def live(
    spark: SparkSession, broker: str, tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> Pipeline:
    """All records in one run. Some: a join, one of two tables, a view of a view."""
    with pipeline(spark, broker, tmp_path_factory.mktemp("live"), request.param) as made:
        tell(made, {topic: WITH_HEADERS[topic] for topic in made.contract.topics})
        made.run("first")
    return made


EMITTED: dict[str, list[tuple[Any, ...]]] = {
    "bills": [
        ("anna", "curry", 16, 1, False),
        ("bob", "curry", 10, 5, False),
        ("carl", "curry", 27, 3, False),
        ("anna", "cake", None, 4, False),
        ("anna", "naan", 3, 2, False),
        ("bob", "curry", 10, 15, False),
        ("bob", "curry", 50, 4, False),
    ],
    "both": [
        ("curry", 8, None, 0, False),
        ("naan", 3, None, 1, False),
        ("curry", 8, 5, 2, False),
        ("curry", 10, 5, 4, False),
        ("naan", None, None, 6, True),
        ("curry", 10, None, 8, False),
        ("cake", None, 1, 9, False),
        ("curry", 11, None, 20, False),
        ("curry", 12, None, 21, False),
    ],
    "named": [
        ("curry", 8, None, 0, False),
        ("naan", 3, None, 1, False),
        ("curry", 8, "Hot", 1, False),
        ("curry", 10, "Hot", 4, False),
        ("naan", 3, "Bread", 5, False),
        ("naan", None, None, 6, True),
        ("curry", 10, "HOT", 7, False),
        ("curry", 11, None, 20, False),
        ("curry", 12, None, 21, False),
    ],
    "by_dish": [
        ("hot", 1, 8, 8.0, 0, False),
        ("bread", 1, 3, 3.0, 1, False),
        ("hot", 1, 10, 10.0, 4, False),
        ("bread", 0, 0, None, 6, False),
        ("hot", 0, 0, None, 20, False),
        ("cold", 1, 11, 11.0, 20, False),
        ("cold", 0, 0, None, 21, False),
    ],
    "ordered": [
        ("curry", 1, 2, 2, 1, False),
        ("curry", 2, 2, 3, 5, False),
        ("curry", 3, 3, 6, 5, False),
        ("cake", 1, 1, 1, 4, False),
        ("naan", 1, 1, 1, 2, False),
        ("curry", 4, 3, 7, 15, False),
        ("curry", 5, 5, 12, 15, False),
    ],
    "visits": [
        ("anna", 1, 1, 1, 1, False),
        ("bob", 1, 5, 5, 5, False),
        ("carl", 1, 3, 3, 3, False),
        ("anna", 1, 4, 4, 4, False),
        ("anna", None, 4, 4, 4, True),
        ("anna", 2, 4, 2, 4, False),
        ("bob", 1, 15, 15, 15, False),
    ],
    "minutes": [("anna", 1, 2, 1, 0, 4, False), ("anna", 1, 1, 4, 4, 8, False), ("bob", 1, 1, 5, 4, 8, False)],
    "paid": [
        ("anna", "curry", 16, 3, False),
        ("bob", "curry", 10, 5, False),
        ("anna", "cake", 16, 4, False),
        ("anna", "naan", 16, 3, False),
        ("carl", "curry", None, 3, False),
        ("bob", "curry", None, 4, False),
        ("bob", "curry", None, 15, False),
    ],
    "dear": [
        ("curry", 8, 0, False),
        ("naan", None, 1, True),
        ("curry", 10, 4, False),
        ("curry", 9, 2, False),
        ("naan", None, 6, True),
        ("curry", 11, 20, False),
        ("curry", 12, 21, False),
    ],
    "big": [("anna", 16, 1, False), ("carl", 27, 3, False), ("bob", 50, 4, False)],
}
"""What the README of the vectors says, worked out by hand. Records of `menu` go to 21: stream time 4 at 2, 20 at 3."""


@pytest.mark.slow
def test_what_each_operator_emits_in_order(live: Pipeline) -> None:
    assert {view: emitted(live, view) for view in live.contract.views} == {
        view: EMITTED[view] for view in live.contract.views
    }


@pytest.mark.slow
def test_what_is_emitted_has_the_headers_of_its_record_also_in_a_view_of_the_view(live: Pipeline) -> None:
    of = {
        "bills": [f"orders {n}" for n in range(7)],
        "big": ["orders 0", "orders 2", "orders 6"],
        "both": ["menu 0", "menu 1", "stock 0", "menu 2", "menu 4", "stock 1", "stock 2", "menu 5", "menu 7"],
        "minutes": ["orders 0", "orders 3", "orders 1"],
        "dear": [f"menu {n}" for n in (0, 1, 2, 3, 4, 5, 7)],
    }
    there = [view for view in of if view in live.contract.views]
    assert {view: headers(live, view) for view in there} == {view: [[one] for one in of[view]] for view in there}
    if "visits" in live.contract.views:
        assert headers(live, "visits") == [None] * 7


@pytest.mark.slow
def test_the_tables_that_this_amounts_to(live: Pipeline) -> None:
    assert live.believed("both") == [
        ("cake", None, 1, 9, None),
        ("curry", 8, None, 0, 2),
        ("curry", 8, 5, 2, 4),
        ("curry", 11, None, 20, 21),
        ("curry", 12, None, 21, None),
        ("curry", 10, 5, 4, 8),
        ("curry", 10, None, 8, 20),
        ("naan", 3, None, 1, 6),
    ]
    assert sorted(live.believed("big")) == [("anna", 16, 1), ("bob", 50, 4), ("carl", 27, 3)]
    if "visits" in live.contract.views:
        assert live.believed("visits") == [
            ("anna", 1, 1, 1),
            ("anna", 2, 2, 4),
            ("bob", 1, 15, 15),
            ("bob", 1, 5, 5),
            ("carl", 1, 3, 3),
        ]


FAILS = """
pipeline: fails
start: 2026-01-01
topics:
  menu: {read: table, key: {item: string}, value: {price: int}, history_retention: 10 seconds}
  orders: {read: stream, key: {item: string}, value: {quantity: int}}
views:
  bills:
    semantics: kafka
    stream: orders
    join: {table: menu, how: left, grace: 1 second}
    select: {due: quantity * price}
"""


@pytest.mark.slow
def test_the_record_on_which_kafka_streams_fails_stops_the_view_and_is_named(
    spark: SparkSession, broker: str, tmp_path: Path
) -> None:
    with pipeline(spark, broker, tmp_path, FAILS) as p:
        p.send("menu", ("curry", {"price": 8}, 0))
        p.send("orders", ("curry", {"quantity": 1}, 1), (None, {"quantity": 2}, 2))
        with pytest.raises(RecordError) as stopped:
            p.run()
        found = "a null key in a left join with grace: topic "
        assert str(stopped.value).startswith(
            f"fails.bills: {found}{p.contract.kafka_topic('orders')}, partition 0, offset 1;"
        )


WAITING = CONTRACT.replace("semantics: kafka", "semantics: kafka\n    wait: true")


@pytest.mark.long
def test_with_wait_it_does_not_matter_where_runs_cut_the_log(
    spark: SparkSession, broker: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = {}
    for cuts in (1, 3):
        monkeypatch.setattr(
            emission, "BUCKETED_FROM_ROWS", -1 if cuts == 3 else emission.BUCKETED_FROM_ROWS
        )  # and by buckets
        with pipeline(spark, broker, tmp_path / str(cuts), WAITING, partitions=2) as p:
            for n in range(cuts):
                some = {
                    topic: sent[len(sent) * n // cuts : len(sent) * (n + 1) // cuts]
                    for topic, sent in WITH_HEADERS.items()
                }
                tell(p, some)
                p.run()
            last = {
                topic: [(f"{key}{n}", value, 1000) for n in range(8)]
                for topic, (*_, (key, value, _)) in RECORDS.items()
            }
            tell(p, last)
            p.run()
            told[cuts] = {view: [emitted(p, view), headers(p, view)] for view in p.contract.views}
    assert told[3] == told[1]
    assert all(map(all, told[1].values()))


MOVED = """
pipeline: moved
start: 2026-01-01
topics:
  orders:
    read: stream
    key: {customer: string}
    value: {at: timestamp}
    valid_time: at
    from: 2026-01-01T00:00:10Z
views:
  seen: {stream: orders, select: {at: at}, semantics: kafka, wait: true}
"""


@pytest.mark.long
def test_what_a_run_that_was_given_up_brought_from_before_a_start_is_emitted_once(
    spark: SparkSession, broker: str, tmp_path: Path
) -> None:
    with pipeline(spark, broker, tmp_path, MOVED) as p:

        def send(*orders: tuple[int, int]) -> None:
            p.send("orders", *((f"{sent}", {"at": at(true).isoformat()}, sent) for sent, true in orders))

        # the second is true later than all that follow it in the first run
        send((1, 5), (2, 35), (10, 10), (20, 20), (30, 30))
        p.run()
        assert [row[0] for row in p.believed("seen")] == ["10", "20"]
        p.write(MOVED.replace("00:00:10", "00:00:01"))
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(emission, "emit_view", crash)
            with pytest.raises(RuntimeError, match="a test ends the run here"):
                p.run("given up")
        planner.abandon_run(p.warehouse, journal.read_active_run(p.warehouse, p.name, 2), "by a test")
        p.write(MOVED)
        for more in (40, 50):
            send((more, more))
            p.run()
            last = max(row["_epoch"] for row in p.raw("emitted/seen"))
            seen = [row for row in p.raw("emitted/seen") if row["_epoch"] == last]
            sent = ["1", "2", "10", "20", "30", "40"][: 5 + (more > 40)]
            assert [row["customer"] for row in sorted(seen, key=lambda row: row["_offset"])] == sent
            assert sorted(row[0] for row in p.believed("seen")) == sorted(sent)
            assert wrong(p) == []
        assert last == 2, "it began from scratch once"


def crash(*_: Any) -> None:
    raise RuntimeError("a test ends the run here")
