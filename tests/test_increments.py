"""Runs by increments on the real parts: after every run every table is what deriving it whole would give."""

from __future__ import annotations

import json
import os
import random
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewPartitions
from pyspark.sql import functions as F

from hindcast.bitemporal import derivation, predicates
from hindcast.common import clock, spark_workers
from hindcast.engine import increment_tasks, operators, slice_reader
from hindcast.formats.spark_decoding import decode_records
from hindcast.ingest import topic_log
from hindcast.runs import incremental_state
from hindcast.store import duckdb_reader, file_listing, row_reader, tables
from pipelines import T0, Pipeline, pipeline, wrong

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

    from hindcast.common.spark_workers import BatchConverter

SEED = int(os.environ.get("HINDCAST_SEED", "1"))
SHOP = """
pipeline: shop
start: 2026-01-01
topics:
  menu: {read: table, key: {item: string}, value: {price: int, dish: string}, ttl: 9 seconds}
  dishes: {read: table, key: {dish: string}, value: {name: string}}
  orders: {read: stream, key: {customer: string}, value: {item: string, quantity: int}}
views:
  dues: {stream: orders, join: {table: menu, on: item}, select: {due: quantity * price, item: orders.item}}
  named: {table: menu, join: {table: dishes, on: dish, how: left}, select: {price: price, name: reverse(name)}}
  groups: {table: named, aggregate: {n: count(*), most: max(price)}, group_by: {name: name}}
  totals: {stream: dues, aggregate: {sum: sum(due)}, group_by: {item: item}}
  hours: {stream: orders, aggregate: {n: count(*)}, window: {hopping: 6 seconds, advance: 3 seconds, grace: 4 seconds}}
  visits: {stream: dues, aggregate: {n: sum(due)}, window: {session: 2 seconds, grace: 3 seconds}}
"""


AHEAD = """
pipeline: shop
start: 2026-01-01
topics:
  orders: {read: stream, from: 2026-01-01, max_time_skew: 1 minute, key: {customer: string}, value: {item: string}}
views:
  visits: {stream: orders, aggregate: {n: count(*)}, window: {tumbling: 5 minutes, grace: 0 seconds}}
"""


@pytest.mark.long
def test_an_event_that_was_ahead_of_the_clock_makes_those_after_it_late(
    spark: SparkSession, broker: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first run begins after it, since it is refused then; the second one, an hour later, begins with it."""
    monkeypatch.setattr(incremental_state, "MAX_WHOLE_ROWS", 0)
    now = datetime.now(UTC)
    with pipeline(spark, broker, tmp_path, AHEAD, 2) as p:  # one stays empty, so that beginnings are looked for again
        p.send("orders", *(("ann", {"item": "curry"}, now + timedelta(minutes=m)) for m in (30, -20, -10)))
        p.run()
        assert len(p.believed("visits")) == 2
        monkeypatch.setattr(clock, "now", lambda: datetime.now(UTC) + timedelta(hours=1))
        p.send("orders", ("ann", {"item": "curry"}, now + timedelta(minutes=40)))
        p.run()
        assert min(row[2] for row in p.believed("visits")) > (now - T0).total_seconds()
        assert not wrong(p)


@pytest.mark.long
@pytest.mark.parametrize(
    ("large", "views"),
    [
        pytest.param(True, 2, id="rows are marked"),
        pytest.param(True, 6, id="rows are marked, all views"),
        pytest.param(False, 6, id="files are written anew, all views"),
    ],
)
def test_after_every_run_each_table_is_what_the_whole_would_give(
    spark: SparkSession, broker: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, large: bool, views: int
) -> None:
    print(f"HINDCAST_SEED={SEED}")
    dice = random.Random(f"{SEED}/{large}")  # noqa: S311 - histories, not secrets
    monkeypatch.setattr(incremental_state, "MAX_WHOLE_ROWS", 0)
    monkeypatch.setattr(tables, "LARGE_ROWS", 0 if large else 10**9)
    text = "\n".join(SHOP.splitlines()[: SHOP.splitlines().index("views:") + 1 + views])
    with pipeline(spark, broker, tmp_path, text, partitions=2) as p:
        by_kernel: set[tuple[str, str]] = set()
        known: dict[str, dict[Any, list[tuple[Any, ...]]]] = {}
        for number in range(3 if views > 2 else 2):
            for topic in p.contract.topics:
                p.send(topic, *(_record(dice, topic, number) for _ in range(dice.randint(1, 9))))
            told = p.run()
            moment = told["knownAt"]
            by_kernel |= {(name, it["kernel"]) for name, it in told["tables"].items() if number and it.get("kernel")}
            for name in (*p.contract.topics, *p.contract.views):
                rows = row_reader.load_rows(spark, p.table(name))
                for earlier, then in known.setdefault(name, {}).items():
                    asked = predicates.known_at_condition(predicates.sql_literal(datetime.fromisoformat(earlier)))
                    assert _rows(rows.where(F.expr(predicates.translate_to_spark(asked)))) == then
                known[name][moment] = _rows(row_reader.load_current_rows(spark, p.table(name)))
            for name in ("menu", "dishes", *p.contract.views):
                assert known[name][moment] == _rows(_whole(spark, p, name)), (number, name)
                rows = row_reader.load_rows(spark, p.table(name))
                assert _read(p, name) == (rows.count(), rows.where("systemTo IS NULL").count()), "read without Spark"
            for name, view in p.contract.views.items():
                if view.aggregate is not None:
                    inputs = {view.first_input: row_reader.load_current_rows(spark, p.table(view.first_input))}
                    counted = derivation.count_left_out_of_view(p.contract, name, inputs)
                    assert counted is not None
                    wanted = counted.first().asDict(recursive=True)
                    assert {key: told["tables"][name][key] for key in wanted} == wanted
        expected = {
            ("menu", "of_topic"),
            ("dishes", "of_topic"),
            ("dues", "stream_table"),
            ("named", "table_table+spark"),
        }
        more = {("groups", "of_table"), ("totals", "of_stream"), ("hours", "in_windows"), ("visits", "in_sessions")}
        assert by_kernel == (expected if views == 2 else expected | more)


HIDDEN = """
pipeline: hidden
start: 2026-01-01
topics:
  menu: {read: table, key: {item: string}, value: {price: int}}
  items: {read: table, envelope: debezium, key: {id: int}, value: {name: string}}
"""


@pytest.mark.long
@pytest.mark.ci
def test_hidden_records_are_those_that_may_matter_and_no_others(
    spark: SparkSession, broker: str, tmp_path: Path, by_kernels: bool
) -> None:
    """A tombstone that has lost its tie does not win it later, also where partitions were added; and a deletion in an
    envelope is a tombstone.
    """
    with pipeline(spark, broker, tmp_path, HIDDEN) as p:
        p.send("menu", ("soup", {"price": 5}, 0), ("naan", {"price": 9}, 7))
        created, updated, deleted = (
            _envelope(*it) for it in (("c", "naan", 0), ("u", "garlic naan", 2), ("d", None, 5))
        )
        p.send("items", created, updated, deleted)
        p.run()
        admin = AdminClient({"bootstrap.servers": broker})
        admin.create_partitions([NewPartitions(p.kafka("menu"), 2)])[p.kafka("menu")].result(20)
        p.send("menu", ("naan", None, 7), ("naan", {"price": 9}, 7), ("tea", None, 7), ("tea", {"price": 2}, 7))
        p.send("items", updated)
        p.run()
        p.send("menu", ("naan", {"price": 3}, 4), ("tea", {"price": 1}, 4))
        told = p.run()["tables"]
        assert (told["menu"].get("kernel") is not None) == by_kernels
        rows = [("naan", 3, 4, 7), ("naan", 9, 7, None), ("soup", 5, 0, None), ("tea", 1, 4, 7), ("tea", 2, 7, None)]
        assert p.believed("menu") == rows
        assert p.believed("items") == [(1, "naan", 0, 2), (1, "garlic naan", 2, 5)]
        with p.here():
            assert wrong(p) == []


TYPED = """
pipeline: typed
start: 2026-01-01
topics:
  days: {read: table, key: {day: date}, value: {rate: "decimal(8,2)", until: date, seen: timestamp, ok: boolean}}
  times: {read: table, key: {time: timestamp}, value: {rate: "decimal(20,4)", raw: binary, x: double, day: date}}
  sales: {read: stream, key: {id: string}, value: {day: date, time: timestamp, ok: boolean, amount: "decimal(8,2)"}}
views:
  by_day: {stream: sales, join: {table: days, on: sales.day}, select: {total: amount * rate, until: until, seen: seen}}
  by_time: {stream: sales, join: {table: times, on: sales.time, how: left}, select: {rate: rate, raw: raw, x: x}}
  rates: {table: times, join: {table: days, on: times.day, how: left}, select: {rate: days.rate, until: until, ok: ok}}
  of_days: {stream: sales, group_by: {day: sales.day}, aggregate: {n: count(*), total: sum(amount)}}
  of_times: {table: times, group_by: {day: times.day, rate: times.rate}, aggregate: {n: count(*)}}
  of_hours: {stream: sales, group_by: {time: sales.time}, aggregate: {n: count(*)}, window: {tumbling: 1 hour}}
"""


@pytest.mark.long
@pytest.mark.ci
def test_a_run_may_change_one_input_alone_whatever_the_types_of_the_others(
    spark: SparkSession, broker: str, tmp_path: Path, by_kernels: bool
) -> None:
    def day(number: int) -> str:
        return f"2026-01-0{number}"

    def sale(name: str, number: int, second: float) -> Any:
        values = {"day": day(number), "time": f"{day(number)}T10:00:00Z", "ok": True, "amount": f"{number}.50"}
        return name, values, second

    def rate(number: int, second: float) -> Any:
        values = {"rate": "1.25", "until": day(number + 1), "seen": f"{day(1)}T00:00:00Z", "ok": False}
        return day(number), values, second

    def time(number: int, second: float) -> Any:
        values = {"rate": "0.0001", "raw": "AAE=", "x": 0.5, "day": day(number)}
        return f"{day(number)}T10:00:00Z", values, second

    with pipeline(spark, broker, tmp_path, TYPED) as p:
        p.send("days", *(rate(number, 0) for number in (1, 2, 3)))
        p.send("times", *(time(number, 0) for number in (1, 2, 3)))
        p.send("sales", *(sale(f"s{number}", 1 + number % 4, 1 + number) for number in range(8)))
        p.run()
        alone: dict[str, list[Any]] = {
            "sales": [sale("new", 2, 20), sale("late", 4, 0.5)],
            "days": [rate(4, 0.25)],
            "times": [time(2, 3), time(4, 0), (f"{day(1)}T10:00:00Z", None, 9)],
        }
        for topic, records in alone.items():
            p.send(topic, *records)
            told = p.run()["tables"]
            if by_kernels:
                found = {"by_day", "by_time", "of_days", "of_hours"} & p.contract.list_tables_below(topic)
                assert [name for name in sorted(found) if told[name].get("kernel") is None] == []
        with p.here():
            assert wrong(p) == []


SMALL = """
pipeline: small
start: 2026-01-01
topics:
  menu: {read: table, key: {item: string}, value: {price: "decimal(8,2)"}}
  orders: {read: stream, key: {guest: string}, value: {item: string, quantity: int}}
views:
  bills: {stream: orders, join: {table: menu, on: orders.item}, select: {item: orders.item, due: quantity * price}}
  dues: {stream: bills, group_by: {item: item}, aggregate: {total: sum(due)}}
"""


@pytest.fixture
def tasks(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The increments that Spark's tasks do from now on, each by the last column of its rows."""
    found: list[str] = []

    def note_task(frame: DataFrame, convert: BatchConverter, schema: StructType) -> DataFrame:
        found.append(schema.names[-1])
        return spark_workers.map_in_workers(frame, convert, schema)

    monkeypatch.setattr(increment_tasks, "map_in_workers", note_task)
    return found


def test_this_process_finds_what_few_records_change_and_tasks_where_much_is_to_be_read(
    spark: SparkSession, broker: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tasks: list[str]
) -> None:
    """Also those of late records, unless something may be hidden to them: a tombstone or a record of their moment."""
    with pipeline(spark, broker, tmp_path, SMALL) as p:
        found = []
        for records in (
            [("soup", {"price": 5}, 0), ("soup", {"price": 7}, 10), ("tea", {"price": 1}, 10)],
            [("soup", {"price": 6}, 4)],  # late
            [("soup", {"price": 8}, 10)],  # of the same moment
            [("soup", None, 12), ("naan", {"price": 2}, 11)],
            [("soup", {"price": 9}, 11.5)],  # there is a tombstone after it
            [("tea", {"price": 3}, 14)],
        ):
            p.send("menu", *records)
            p.send("orders", (f"guest {len(found)}", {"item": "soup", "quantity": 1}, 11))
            tasks.clear()
            kernels = [it.get("kernel") for it in p.run()["tables"].values()]
            assert kernels == ([None] * 4 if not found else ["of_topic", None, "stream_table", "of_stream"])
            found.append([*tasks])
        assert found == [[], [], ["_ties"], [], ["_ties"], []]
        monkeypatch.setattr(file_listing, "MAX_ROWS_HERE", 0)
        p.send("menu", ("tea", {"price": 4}, 12))
        p.send("orders", ("late", {"item": "tea", "quantity": 1}, 13))
        p.run()
        assert tasks == ["_ties", "_leftOut", "_leftOut"]
        with p.here():
            assert wrong(p) == []


PAIRED = """
pipeline: paired
start: 2026-01-01
topics:
  orders: {read: stream, key: {guest: string}, value: {item: string}}
  visits: {read: stream, key: {guest: string}, value: {room: string}}
views:
  pairs:
    stream: orders
    join: {stream: visits, before: 5 seconds, after: 5 seconds}
    select: {item: item, room: room}
"""


def test_tasks_find_what_is_much_though_it_comes_from_little(
    spark: SparkSession, broker: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tasks: list[str]
) -> None:
    """Four events of either side are sixteen pairs: more than the join makes here, or than its rows may be in all."""
    with pipeline(spark, broker, tmp_path, PAIRED) as p:
        for guest, module in enumerate((None, None, operators, slice_reader)):
            for topic, value in (("orders", {"item": "soup"}), ("visits", {"room": "hall"})):
                p.send(topic, *((f"guest {guest}", value, second) for second in range(4)))
            tasks.clear()
            with monkeypatch.context() as patch:
                if module is not None:
                    patch.setattr(module, "MAX_ROWS_HERE", 12)
                assert p.run()["tables"]["pairs"].get("kernel") == ("stream_stream" if guest else None)
            assert tasks == ([] if module is None else ["_leftOut"])
        assert len(p.believed("pairs")) == 4 * 16
        assert wrong(p) == []


def _envelope(op: str, name: str | None, second: float) -> tuple[Any, Any, float]:
    """A change of the row 1, as Debezium sends it."""
    row = {"id": 1, "name": name}
    source = {"ts_us": int((T0 + timedelta(seconds=second)).timestamp() * 1_000_000)}
    value = {"op": op, "before": None if op == "c" else row, "after": None if op == "d" else row, "source": source}
    return json.dumps({"id": 1}), value, second


def _read(p: Pipeline, name: str) -> tuple[int, int]:
    """How many rows DuckDB finds, and how many of them are believed."""
    found = tables.open_table(p.table(name))
    assert found is not None
    with duckdb_reader.open_engine() as engine:
        duckdb_reader.register_rows(engine, found)
        rows = engine.sql("SELECT * FROM rows").to_arrow_table()
    return rows.num_rows, rows.column("systemTo").null_count


def _record(dice: random.Random, topic: str, run: int) -> tuple[Any, Any, float]:
    second = dice.randint(0, 12) + 4 * run * (dice.random() < 0.7)
    if topic == "menu":
        value = None if dice.random() < 0.2 else {"price": dice.randint(1, 9), "dish": dice.choice("xy")}
        return dice.choice(["curry", "naan", "soup"]), value, second
    if topic == "dishes":
        return dice.choice("xy"), None if dice.random() < 0.2 else {"name": dice.choice("abc")}, second
    return (
        dice.choice(["anna", "bob"]),
        {"item": dice.choice(["curry", "naan"]), "quantity": dice.randint(1, 5)},
        second,
    )


def _whole(spark: SparkSession, p: Pipeline, name: str) -> DataFrame:
    if name in p.contract.topics:
        topic = p.contract.topics[name]
        with p.here():
            log = topic_log.read_accepted(spark, p.contract, name, after=0)
        return derivation.derive_topic_versions(decode_records(log, topic, datetime(2099, 1, 1, tzinfo=UTC)), topic.ttl)
    inputs = {i: row_reader.load_current_rows(spark, p.table(i)) for i in p.contract.views[name].inputs}
    return derivation.derive_view(p.contract, name, inputs)


def _rows(rows: DataFrame) -> list[tuple[Any, ...]]:
    columns = [c for c in rows.columns if not c.startswith("_") and not c.startswith("system")]
    return sorted((tuple(row) for row in rows.select(columns).collect()), key=str)
