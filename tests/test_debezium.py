"""Records of a real Debezium, of a real PostgreSQL: what we believe is what the database had, at each moment."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta
from functools import cache
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import Consumer, TopicPartition

from databases import Database, debezium, postgres
from hindcast.kafka import produce
from pipelines import pipeline, until

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

pytestmark = pytest.mark.long

TABLES = (
    """CREATE TABLE item (
        id int PRIMARY KEY, name text, price numeric(8,2), free numeric, day date, at timestamp, zoned timestamptz,
        at3 timestamp(3), weight float8, tags text[], data jsonb, raw bytea, fine boolean
    )""",
    "ALTER TABLE item ALTER name SET STORAGE EXTERNAL",
    "ALTER TABLE item REPLICA IDENTITY FULL",
    "CREATE TABLE seat (row int, place text, taken boolean, PRIMARY KEY (row, place))",
)
BEFORE = (
    """INSERT INTO item VALUES (1, 'curry', 8, 1.5, '2026-01-01', '2026-01-01 10:00:00.123456',
        '2026-01-01 10:00:00.5+02', '2026-01-01 10:00:00.123', 0.5, '{a,NULL}', '{"x": 1}', 'ab', true)""",
    "INSERT INTO item (id, name, price, free) VALUES (2, repeat('x', 9000), -999999.99, -12345678901234567890.5)",
    "INSERT INTO item (id) VALUES (3)",
    "INSERT INTO seat VALUES (1, 'a', true), (1, 'b', false)",
)
"""What the snapshot finds."""

FIRST = [
    ["INSERT INTO item (id, name, price) VALUES (4, 'naan', 0.01)", "UPDATE seat SET taken = false WHERE place = 'a'"],
    ["UPDATE item SET price = 9 WHERE id = 1"],
    ["UPDATE item SET price = 7 WHERE id = 2"],  # its name is stored apart, and not changed
    ["UPDATE item SET id = 20 WHERE id = 2"],
    ["DELETE FROM item WHERE id = 4"],
    ["INSERT INTO item (id, name) VALUES (4, 'roti')"],
    ["UPDATE item SET price = 1 WHERE id = 1", "UPDATE item SET price = 2 WHERE id = 1"],
    ["DELETE FROM item WHERE id = 1", "INSERT INTO item (id, name, day) VALUES (1, 'korma', '0044-03-15')"],
    ["UPDATE item SET at = '1969-12-31 23:59:59.999999', raw = NULL, zoned = '1960-01-01 00:00+00' WHERE id = 1"],
    ["INSERT INTO seat VALUES (2, 'a', true)", "DELETE FROM seat WHERE row = 1 AND place = 'b'"],
]
SECOND = [
    ["UPDATE item SET name = name || '!', fine = NOT coalesce(fine, false)"],
    ["UPDATE seat SET row = row + 1 WHERE row = 2"],
    ["DELETE FROM item WHERE id = 20"],
    ["INSERT INTO item (id, name) VALUES (20, 'tea')", "DELETE FROM item WHERE id = 20"],
]
SHOP = """
pipeline: shop
start: 2026-01-01
topics:
  items:
    topic: {form}.{name}.public.item
    read: table
    envelope: debezium
    key: {{id: int}}
    value:
      name: string
      price: "decimal(8,2)"
      free: "decimal(38,10)"
      day: date
      at: timestamp
      zoned: timestamp
      at3: timestamp
      weight: double
      tags: array<string>
      data: string
      raw: binary
      fine: boolean
      op: string
      lsn: bigint
      tx: string
      nth: bigint
      committed: timestamp
    metadata: {{op: op, lsn: source.lsn, tx: transaction.id, nth: transaction.total_order, committed: source.ts_us}}
    encoded: {encoded}
  seats:
    topic: {form}.{name}.public.seat
    read: table
    envelope: debezium
    key: {{row: int, place: string}}
    value: {{taken: boolean}}
"""
ENCODED = "{price: Decimal, free: VariableScaleDecimal, day: Date, at: MicroTimestamp, at3: Timestamp}"
ITEM = "SELECT *, data::text AS document, encode(raw, 'hex') AS hexed FROM item ORDER BY id"
SEAT = "SELECT * FROM seat ORDER BY row, place"
NAME = "shop"
TOPICS = [f"{form}.{NAME}.{it}" for form in ("plain", "schema") for it in ("public.item", "public.seat", "transaction")]
CONFIG = {"topic.prefix": NAME, "slot.name": NAME, "table.include.list": "public.item,public.seat"}

State = tuple[list[dict[str, Any]], list[dict[str, Any]]]


def state(db: Database) -> State:
    return db.rows(ITEM), db.rows(SEAT)


def work(db: Database, steps: list[list[str]]) -> dict[datetime, State]:
    """Does each step in a transaction; what the database had from that commit on."""
    return {db.commit(*step): state(db) for step in steps}


@cache
def watching(servers: str) -> Consumer:
    return Consumer({"bootstrap.servers": servers, "group.id": "watch", "log_level": 0})


def records(servers: str, topic: str) -> int:
    """How many records a topic has."""
    found: int = watching(servers).get_watermark_offsets(TopicPartition(topic, 0))[1]
    return found


@pytest.fixture(scope="module")
def history(broker: str, tmp_path_factory: pytest.TempPathFactory) -> dict[datetime, State]:
    """A database's history in Kafka, by a Debezium that is killed midway; what the database had from each moment on."""
    folder = tmp_path_factory.mktemp("debezium")
    produce.create_topics(broker, *TOPICS)
    item, seat = "schema.shop.public.item", "schema.shop.public.seat"
    with postgres(folder) as db:
        db.run(*TABLES, *BEFORE)
        with debezium(db, broker, folder, CONFIG):
            until(lambda: (records(broker, item), records(broker, seat)) == (3, 2), 120)
        states = {datetime.now(UTC): state(db)}
        with debezium(db, broker, folder, CONFIG, crash=True):
            states |= work(db, FIRST)
            until(lambda: (records(broker, item), records(broker, seat)) == (18, 6), 120)
        states |= work(db, SECOND)
        with debezium(db, broker, folder, CONFIG):
            last = db.commit("INSERT INTO seat VALUES (99, 'z', true)", "DELETE FROM seat WHERE row = 99")
            until(lambda: settled(broker), 120)
        assert records(broker, item) == 18 + 15 + 9, "what was sent before the crash comes again"
        return {**states, last: state(db)}


def settled(servers: str) -> bool:
    """Whether the last that was done has come: a delete, and its tombstone."""
    topic = "schema.shop.public.seat"
    watching(servers).assign([TopicPartition(topic, 0, records(servers, topic) - 1)])
    last = watching(servers).poll(10)
    return last is not None and last.value() is None and b'"row":99' in (last.key() or b"")


@pytest.mark.parametrize("form", ["plain", "schema"])
def test_at_each_moment_we_believe_what_the_database_had(
    spark: SparkSession, broker: str, tmp_path: Path, history: dict[datetime, State], form: str
) -> None:
    text = SHOP.format(form=form, name=NAME, encoded=ENCODED if form == "plain" else "{}")
    with pipeline(spark, broker, tmp_path, text) as p:
        report = p.run()
        for name in ("items", "seats"):
            fates = report["topics"][name]["partitions"][0]["fates"]
            assert set(fates) == {"accepted", "no_change"}, fates
            assert fates["no_change"] > 0
        items, seats = p.raw("items"), p.raw("seats")
        ends = [moment - timedelta(microseconds=1) for moment in history][1:]
        for since, upto, (had_items, had_seats) in zip(
            history, [*ends, datetime.now(UTC)], history.values(), strict=True
        ):
            for moment in (since, upto):
                assert [item(row) for row in at(items, moment, "id")] == [database(row) for row in had_items], moment
                told = [{k: row[k] for k in ("row", "place", "taken")} for row in at(seats, moment, "row", "place")]
                assert told == had_seats, moment
        for row in items:
            assert (row["op"] == "r") == (row["tx"] is None)
            assert row["committed"] == row["validFrom"]
            assert row["lsn"] > 0
        assert {row["nth"] for row in items} >= {None, 1}


def at(rows: list[dict[str, Any]], moment: datetime, *key: str) -> list[dict[str, Any]]:
    """The rows that are believed and true at a moment."""
    found = [
        row
        for row in rows
        if row["systemTo"] is None
        and row["validFrom"] <= moment
        and (row["validTo"] is None or moment < row["validTo"])
    ]
    return sorted(found, key=lambda row: [row[name] for name in key])


def item(row: dict[str, Any]) -> tuple[Any, ...]:
    """A row of ours, to be compared."""
    return (
        *(row[name] for name in ("id", "name", "price", "free", "day", "at", "at3", "zoned", "weight", "tags")),
        row["data"],
        row["raw"],
        row["fine"],
    )


def database(row: dict[str, Any]) -> tuple[Any, ...]:
    """The same of the database, which tells it as JSON."""
    moments = [row[name] and datetime.fromisoformat(row[name]) for name in ("at", "at3", "zoned")]
    aware = [moment and moment.replace(tzinfo=moment.tzinfo or UTC) for moment in moments]
    return (
        row["id"],
        row["name"],
        row["price"],
        row["free"],
        row["day"] and date.fromisoformat(row["day"]),
        *aware,
        row["weight"] and float(row["weight"]),
        row["tags"],
        row["document"],
        None if row["hexed"] is None else bytes.fromhex(row["hexed"]),
        row["fine"],
    )
