"""The inputs, the same every time: records drawn by numpy, and the tables that Hindcast makes of them, laid out as its
runs lay them out. What is there is taken again.

Three pipelines differ in how often keys come: `uniform`; `zipf`, by Zipf's law with exponent 1 (of 100,000 keys the
most frequent one has 8% of all records); `hot`, where one key has a tenth of the events, and the versions are uniform.
Of a hundred records one is late, by an exponential delay whose mean is a hundredth of the history; of a hundred records
of a table one is a tombstone.
"""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from bench.speed.names import KINDS

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from hindcast.contracts import Contract
    from hindcast.tables import Table

T0 = datetime(2026, 1, 1, tzinfo=UTC)
SPAN = timedelta(days=90)
"""How long the history is, whatever its records."""
KNOWN = datetime(2026, 6, 1, tzinfo=UTC)
"""The known-at of all rows."""
CATEGORIES = 1_000
CONTRACT = """
pipeline: {kind}
start: 2026-01-01
topics:
  prices: {{read: table, key: {{item: string}}, value: {{price: int, category: int}}}}
  stock: {{read: table, key: {{item: string}}, value: {{n: int}}}}
  events: {{read: stream, key: {{item: string}}, value: {{quantity: int}}}}
views:
  priced:
    stream: events
    join: {{table: prices, how: left}}
    select: {{quantity: events.quantity, price: prices.price}}
  stocked: {{table: prices, join: {{table: stock, how: inner}}, select: {{price: prices.price, n: stock.n}}}}
  categories: {{table: prices, aggregate: {{items: count(*), worth: sum(price)}}, group_by: {{category: category}}}}
"""
VALUES = {"prices": ("price", "category"), "stock": ("n",), "events": ("quantity",)}
_FORM = 1
"""Goes up when what is drawn changes: then nothing that is there is taken."""


@dataclass(frozen=True)
class Sizes:
    """How many events, records of each table, and keys."""

    events: int
    versions: int
    keys: int

    @property
    def text(self) -> str:
        return f"{self.events:,} events, {self.versions:,} versions, {self.keys:,} keys"


FULL, QUICK = Sizes(10_000_000, 2_000_000, 100_000), Sizes(1_000_000, 200_000, 10_000)


@dataclass(frozen=True)
class Inputs:
    """Where the tables of all kinds lie, and what is made of them."""

    folder: Path
    sizes: Sizes

    @property
    def warehouse(self) -> Path:
        return self.folder / "warehouse"

    def table(self, kind: str, name: str) -> Path:
        """The folder of a table, as `hindcast.tables.located` has it."""
        return self.warehouse / kind / name

    def contract(self, kind: str) -> Contract:
        from hindcast.contracts import load

        return load(self.folder / "schemas" / f"{kind}.yaml")

    def use(self) -> None:
        """Makes them the settings of this process."""
        places = {"WAREHOUSE": self.warehouse, "SCHEMAS": self.folder / "schemas", "VAR": self.folder / "var"}
        os.environ |= {f"HINDCAST_{name}": str(path) for name, path in places.items()}


def inputs(folder: Path, sizes: Sizes) -> Inputs:
    """The place of inputs of these sizes, with the contracts."""
    made = Inputs(folder / f"{_FORM}-{sizes.events}-{sizes.versions}-{sizes.keys}", sizes)
    (made.folder / "schemas").mkdir(parents=True, exist_ok=True)
    for kind in KINDS:
        path = made.folder / "schemas" / f"{kind}.yaml"
        path.write_text(CONTRACT.format(kind=kind).lstrip(), encoding="utf-8")
    made.use()
    return made


def ensure(spark: SparkSession, place: Inputs, kind: str, *names: str) -> None:
    """Makes the tables of a kind that are not there, and the plan of the run that derives views of them."""
    for name in names:
        done = place.folder / "done" / f"{kind}.{name}"
        if not done.exists():
            shutil.rmtree(place.table(kind, name), ignore_errors=True)
            _publish(spark, place, kind, name)
            done.parent.mkdir(exist_ok=True)
            done.touch()
    _plan(place, kind)


def marked(spark: SparkSession, place: Inputs, kind: str) -> Path:
    """The events with `validFrom` of the version that they meet, null where there is none: for the equi-join."""
    from hindcast import derive, joins, tables
    from hindcast.contracts import shapes
    from hindcast.session import sliced

    path, done = place.table(kind, "marked"), place.folder / "done" / f"{kind}.marked"
    if done.exists():
        return path
    shutil.rmtree(path, ignore_errors=True)
    contract = place.contract(kind)
    sides = [
        derive.relation(
            tables.load(spark, tables.located(str(place.warehouse), contract, name)), shapes(contract)[name]
        )
        for name in ("events", "prices")
    ]
    with sliced(spark, place.sizes.events):
        met = joins.stream_table(sides[0], sides[1], "left")
        flat = met.select("left.*", "timestamp", "position.partition", "position.offset", "right_from")
        names = {"partition": "_partition", "offset": "_offset", "right_from": "validFrom"}
        rows = flat.withColumnsRenamed(names).repartitionByRange(max(place.sizes.events // 250_000, 1), "timestamp")
        rows.sortWithinPartitions("timestamp").write.format("delta").save(str(path))
    done.touch()
    return path


def records(place: Inputs, kind: str, name: str) -> pa.Table:
    """The records of a topic in offset order: offset, timestamp, item, and its values, null in a tombstone."""
    count = place.sizes.events if name == "events" else place.sizes.versions
    chance = np.random.default_rng([KINDS.index(kind), list(VALUES).index(name)])
    numbers = np.arange(count, dtype=np.int64)
    history = int(SPAN.total_seconds() * 1000)
    delay = chance.exponential(history / 100, count) * (chance.random(count) < 0.01)
    millis = np.maximum((numbers * (history / count)).astype(np.int64) - delay.astype(np.int64), 0)
    items = pa.array([f"item-{n:06d}" for n in range(place.sizes.keys)])
    gone = chance.random(count) < 0.01 if name != "events" else np.zeros(count, dtype=bool)
    drawn = keys(chance, kind if name == "events" or kind == "zipf" else "uniform", count, place.sizes.keys)
    values: dict[str, Any] = {}
    for value in VALUES[name]:
        numbers_of = drawn % CATEGORIES if value == "category" else chance.integers(1, 100, count)
        values[value] = pa.array(numbers_of.astype(np.int32), mask=gone)
    at = pa.array(int(T0.timestamp() * 1000) + millis, pa.timestamp("ms", "UTC"))
    return pa.table({"offset": numbers, "timestamp": at, "item": items.take(pa.array(drawn)), **values})


def keys(chance: np.random.Generator, kind: str, count: int, of: int) -> Any:
    """Numbers of keys as a kind draws them; the smaller, the more frequent."""
    if kind == "zipf":
        shares = 1 / np.arange(1, of + 1)
        return np.searchsorted(np.cumsum(shares) / shares.sum(), chance.random(count)).clip(max=of - 1)
    drawn = chance.integers(0, of, count)
    return np.where(chance.random(count) < 0.1, 0, drawn) if kind == "hot" else drawn


def _publish(spark: SparkSession, place: Inputs, kind: str, name: str) -> None:
    """The table of a topic of these inputs."""
    from hindcast import tables

    drawn = place.folder / "records.parquet"
    some = records(place, kind, name)
    pq.write_table(some, drawn, row_group_size=250_000)
    table = tables.located(str(place.warehouse), place.contract(kind), name)
    publish(spark, spark.read.parquet(str(drawn)), table, name, some.num_rows)
    drawn.unlink()


def publish(spark: SparkSession, drawn: DataFrame, table: Table, name: str, count: int) -> None:
    """The table of a topic, as its first run publishes it."""
    from pyspark.sql import functions as F

    from hindcast import changes, commits, derive, tables
    from hindcast.session import temporarily

    known = drawn.select(
        F.struct("item").alias("key"),
        F.when(F.col(VALUES[name][0]).isNotNull(), F.struct(*VALUES[name])).alias("value"),
        "timestamp",
        F.lit(0).alias("partition"),
        "offset",
    )
    rows = derive.events(known) if name == "events" else derive.versions(known)
    tables.ensure(table, changes.table_schema(rows))
    with temporarily(spark, {"spark.sql.shuffle.partitions": "16"}):
        opened = rows.withColumn("change", F.lit("open"))
        commits.publish(opened, table, 1, KNOWN, closing=None, note={"run": 1, "opened": count})


def _plan(place: Inputs, kind: str) -> None:
    """The one run of a pipeline, planned: what `runs.build` asks for."""
    from hindcast import journal
    from hindcast.plans import Plan, Share
    from hindcast.topics import Offsets

    contract, warehouse = place.contract(kind), str(place.warehouse)
    if journal.runs(warehouse, kind):
        return
    shares = {name: Share(name, 0, 0, {0: 0}, {0: Offsets(0, 1)}, {}) for name in contract.topics}
    plan = Plan(kind, 1, "bench", KNOWN, None, contract.hash, shares).as_json()
    journal.write(warehouse, journal.Run(1, "bench", KNOWN, "planned", plan, plan))
