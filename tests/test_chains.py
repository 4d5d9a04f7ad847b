"""Views of views: a joined stream, re-keyed, as input of aggregates and windows, against the plain-Python reference.

Many generated logs lie in one Spark job: a log's number stands in its keys, and its partitions are its own. They go the
way of a run: records to versions and events, to the join, to what is made of the join.
"""

from __future__ import annotations

import os
import random
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import reference
from hindcast.bitemporal import derivation
from hindcast.contract import load
from reference import Record

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

SEED = int(os.environ.get("HINDCAST_SEED", "1"))

CONTRACT = """
pipeline: shop
start: 2026-01-01
topics:
  menu: {read: table, key: {log: int, item: string}, value: {price: bigint}, ttl: 9 ms}
  orders: {read: stream, key: {customer: string}, value: {log: int, item: string, quantity: bigint}}
views:
  bills:
    stream: orders
    join: {table: menu, on: [log, item], how: left}
    select: {log: orders.log, item: orders.item, price: price, due: "quantity * coalesce(price, 0)"}
  sold:
    stream: orders
    join: {table: menu, on: [log, item]}
    select: {log: orders.log, item: orders.item, price: price, due: quantity * price}
  by_item: {stream: bills, key: {log: log, k: item}}
  by_price: {stream: sold, key: {log: log, k: cast(price AS string)}}
"""

WINDOWS: dict[str, Any] = {
    "": None,
    "window: {tumbling: 4 ms, grace: 2 ms}": {"kind": "tumbling", "sizeMs": 4, "graceMs": 2},
    "window: {hopping: 5 ms, advance: 2 ms}": {"kind": "hopping", "sizeMs": 5, "advanceMs": 2, "graceMs": 0},
    "window: {sliding: 3 ms, grace: 1 ms}": {"kind": "sliding", "timeDifferenceMs": 3, "graceMs": 1},
    "window: {session: 2 ms, grace: 3 ms}": {"kind": "session", "inactivityGapMs": 2, "graceMs": 3},
}


@pytest.mark.parametrize(
    "count", [pytest.param(50, marks=pytest.mark.slow), pytest.param(3_000, marks=pytest.mark.long)]
)
def test_what_is_made_of_a_joined_stream_is_what_its_definition_says(
    spark: SparkSession, tmp_path: Path, count: int
) -> None:
    dice = random.Random(SEED)  # noqa: S311 - logs, not secrets
    logs = [log(dice, number) for number in range(count)]
    joins = {name: [list(joined(of, how)) for of in logs] for name, how in (("bills", "left"), ("sold", "inner"))}
    keyed = {
        "by_item": [[event(it, it.value["left"]["item"]) for it in of] for of in joins["bills"]],
        "by_price": [[event(it, str(it.value["right"])) for it in of] for of in joins["sold"]],
    }
    for window, meant in WINDOWS.items():
        made = rows(spark, tmp_path, logs, window)
        for name, events in keyed.items():
            for number, of in enumerate(events):
                told = f"HINDCAST_SEED={SEED}, log {number}, {name}, {window}\n" + "\n".join(map(str, logs[number]))
                assert sorted(made.get((name, number), [])) == sorted(expected(of, meant)), told


def log(dice: random.Random, number: int) -> list[Record]:
    """Up to 16 records on two partitions each, in the order of their offsets."""
    found = []
    for offset in range(dice.randint(2, 16)):
        time, item = dice.randint(0, 15), dice.choice("ab")
        partition = 2 * number + dice.randrange(2)
        if dice.random() < 0.5:
            found.append(Record("table", partition, offset, item, dice.choice([1, 2, 3, None]), time, 1))
        else:
            value = None if dice.random() < 0.1 else {"item": dice.choice("abc"), "n": dice.randint(1, 3)}
            found.append(Record("stream", partition, offset, dice.choice(["anna", "bob", None]), value, time, 1))
    return found


def joined(of: Sequence[Record], how: str) -> Iterator[Record]:
    """The joined stream: each event with what it was joined to, at its own place and time."""
    table = {"historyRetentionMs": 10**9, "ttlMs": 9}
    operation = {"type": "stream_table_join", "join": how, "onField": "item", "table": table}
    for row in reference.looked_up(operation, list(of)):
        source = next(record for record in of if record.offset == row["record"])
        yield source._replace(value=row["value"])


def event(of: Record, key: str) -> Record:
    """A joined event under another key, with what is to be paid as its value."""
    return of._replace(key=key, value=of.value["left"]["n"] * (of.value["right"] or 0))


def expected(events: list[Record], window: Any) -> list[tuple[Any, ...]]:
    """Key, count, sum and period of every row, by the reference."""
    kind, ends = ("windowed_aggregate", ("start", "end")) if window else ("stream_aggregate", ("validFrom", "validTo"))
    found = {}
    for aggregation in ("count", "sum"):
        for row in reference.rows({"type": kind, "aggregation": aggregation, "window": window}, events):
            found.setdefault((row["key"], *(row[end] for end in ends)), []).append(row["value"])
    return [(key, *values, start, -1 if end is None else end) for (key, start, end), values in found.items()]


def rows(
    spark: SparkSession, folder: Path, logs: Sequence[Sequence[Record]], window: str
) -> dict[tuple[str, int], list[tuple[Any, ...]]]:
    """Key, count, sum and period of every row of both chains, by view and log."""
    from pyspark.sql import functions as F

    path = folder / "shop.yaml"
    made = [
        f"  n_{name}:\n    stream: {name}\n    aggregate: {{n: count(*), due: sum(due)}}\n    {window}\n"
        for name in ("by_item", "by_price")
    ]
    path.write_text(CONTRACT.lstrip() + "".join(made), encoding="utf-8")
    contract = load(path)
    tables: dict[str, DataFrame] = inputs(spark, logs, contract.topics["menu"].ttl)
    for name in contract.ordered_views:
        tables[name] = derivation.derive_view(contract, name, tables)
    start, end = ("windowStart", "windowEnd") if window else ("validFrom", "validTo")
    found: dict[tuple[str, int], list[tuple[Any, ...]]] = {}
    for name in ("by_item", "by_price"):
        millis = F.unix_millis(start), F.coalesce(F.unix_millis(end), F.lit(-1))
        for number, *row in tables[f"n_{name}"].select("log", "k", "n", "due", *millis).collect():
            found.setdefault((name, number), []).append(tuple(row))
    return found


def inputs(spark: SparkSession, logs: Sequence[Sequence[Record]], ttl: Any) -> dict[str, DataFrame]:
    """The tables of both topics, from their records."""
    from pyspark.sql import functions as F

    menu, orders = [], []
    for number, of in enumerate(logs):
        for it in of:
            place = it.timestamp, it.partition, it.offset
            if it.topic == "table":
                menu.append(((number, it.key), None if it.value is None else (it.value,), *place))
            else:
                value = None if it.value is None else (number, it.value["item"], it.value["n"])
                orders.append((None if it.key is None else (it.key,), value, *place))
    place = "time bigint, partition int, offset bigint"
    schemas = {
        "menu": f"key struct<log: int, item: string>, value struct<price: bigint>, {place}",
        "orders": f"key struct<customer: string>, value struct<log: int, item: string, quantity: bigint>, {place}",
    }
    at = F.timestamp_millis("time").alias("timestamp")
    menus, ordered = (
        spark.createDataFrame(records, schemas[name]).select(
            "key", "value", at, "partition", "offset", F.lit(0).alias("epoch")
        )
        for name, records in (("menu", menu), ("orders", orders))
    )
    return {"menu": derivation.derive_topic_versions(menus, ttl), "orders": derivation.derive_topic_events(ordered)}
