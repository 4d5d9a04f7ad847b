"""The inputs: the tables that Hindcast makes of drawn records, laid out as its runs lay them out.

What is there is taken again.
"""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow.parquet as pq

from bench.speed.data import KNOWN, STREAMS, VALUES, Sizes, records
from bench.speed.names import KINDS
from hindcast.plan.runs import Run

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from hindcast.contract import Contract
    from hindcast.store.tables import Table

CONTRACT = """
pipeline: {kind}
start: 2026-01-01
topics:
  prices: {{read: table, key: {{item: string}}, value: {{price: int, category: int}}}}
  stock: {{read: table, key: {{item: string}}, value: {{n: int}}}}
  events: {{read: stream, key: {{item: string}}, value: {{quantity: int}}}}
  shipped: {{read: stream, key: {{item: string}}, value: {{quantity: int}}}}
views:
  priced:
    stream: events
    join: {{table: prices, how: left}}
    select: {{quantity: events.quantity, price: prices.price}}
  stocked: {{table: prices, join: {{table: stock, how: inner}}, select: {{price: prices.price, n: stock.n}}}}
  amounts:
    stream: events
    join: {{table: prices, how: left}}
    where: quantity > 0
    select: {{amount: quantity * price, rounded: "round(price * 0.19, 2)"}}
  coded:
    stream: events
    join: {{table: prices, how: left, on: "concat('item-', substring(item, 6, 6))"}}
    select: {{quantity: events.quantity, price: prices.price}}
  sold: {{stream: events, join: {{table: prices}}, where: quantity > 0}}
  stocked_left: {{table: prices, join: {{table: stock, how: left}}, select: {{price: prices.price, n: stock.n}}}}
  stocked_either: {{table: prices, join: {{table: stock, how: outer}}, select: {{price: prices.price, n: stock.n}}}}
  worth: {{table: prices, join: {{table: stock}}, where: n > 0, select: {{worth: price * n}}}}
  categories: {{table: prices, aggregate: {{items: count(*), worth: sum(price)}}, group_by: {{category: category}}}}
  extremes:
    table: prices
    where: price > 0
    group_by: {{category: category}}
    aggregate: {{items: count(*), least: min(price), most: max(price * 2), worth: sum(price * 2)}}
  hourly:
    stream: events
    where: quantity > 1
    window: {{tumbling: 1 hour, grace: 1 hour}}
    aggregate: {{many: count(*), sold: sum(quantity * 2)}}
  half_hourly:
    stream: events
    where: quantity > 1
    window: {{hopping: 1 hour, advance: 30 minutes, grace: 1 hour}}
    aggregate: {{many: count(*), sold: sum(quantity * 2)}}
  sittings:
    stream: events
    where: quantity > 1
    window: {{session: 30 minutes, grace: 90 days}}
    aggregate: {{many: count(*), sold: sum(quantity * 2)}}
  visits:
    stream: events
    where: quantity > 1
    window: {{session: 30 minutes, grace: 1 hour}}
    aggregate: {{many: count(*), sold: sum(quantity * 2)}}
  paired:
    stream: events
    join: {{stream: shipped, before: 1 hour, after: 1 hour}}
    select: {{quantity: events.quantity, shipped: shipped.quantity}}
  unpaired:
    stream: events
    join: {{stream: shipped, before: 1 hour, after: 1 hour, how: left}}
    where: events.quantity > 1
    select: {{missing: "events.quantity - coalesce(shipped.quantity, 0)"}}
  of_items: {{stream: events, window: {{tumbling: 1 hour, grace: 1 hour}}, aggregate: {{sold: sum(quantity)}}}}
  sales: {{stream: events, where: quantity > 0, aggregate: {{sold: sum(quantity), most: max(quantity)}}}}
"""
_FORM = 7
"""Goes up when what is drawn, or the contract, changes: then nothing that is there is taken."""


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
        from hindcast.contract import load

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
    from hindcast.bitemporal import derivation, joins
    from hindcast.common.session import slice_large_keys
    from hindcast.contract import list_shapes
    from hindcast.store import row_reader, tables

    path, done = place.table(kind, "marked"), place.folder / "done" / f"{kind}.marked"
    if done.exists():
        return path
    shutil.rmtree(path, ignore_errors=True)
    contract = place.contract(kind)
    sides = [
        derivation.as_relation(
            row_reader.load_rows(spark, tables.locate_table(str(place.warehouse), contract, name)),
            list_shapes(contract)[name],
        )
        for name in ("events", "prices")
    ]
    with slice_large_keys(spark, place.sizes.events):
        met = joins.join_stream_table(sides[0], sides[1], "left")
        flat = met.select("left.*", "timestamp", "position.partition", "position.offset", "right_from")
        names = {"partition": "_partition", "offset": "_offset", "right_from": "validFrom"}
        rows = flat.withColumnsRenamed(names).repartitionByRange(max(place.sizes.events // 250_000, 1), "timestamp")
        rows.sortWithinPartitions("timestamp").write.format("delta").save(str(path))
    done.touch()
    return path


def _publish(spark: SparkSession, place: Inputs, kind: str, name: str) -> None:
    """The table of a topic of these inputs."""
    from hindcast.store import tables

    drawn = place.folder / "records.parquet"
    some = records(place.sizes, kind, name)
    pq.write_table(some, drawn, row_group_size=250_000)
    table = tables.locate_table(str(place.warehouse), place.contract(kind), name)
    publish(spark, spark.read.parquet(str(drawn)), table, name, some.num_rows)
    drawn.unlink()


def publish(spark: SparkSession, drawn: DataFrame, table: Table, name: str, count: int) -> None:
    """The table of a topic, as its first run publishes it."""
    from pyspark.sql import functions as F

    from hindcast.bitemporal import derivation
    from hindcast.common.session import override_conf
    from hindcast.runs import table_diff
    from hindcast.store import commits, table_creation
    from hindcast.store.commit_notes import TableNote

    known = drawn.select(
        F.struct("item").alias("key"),
        F.when(F.col(VALUES[name][0]).isNotNull(), F.struct(*VALUES[name])).alias("value"),
        "timestamp",
        F.lit(0).alias("partition"),
        "offset",
    )
    rows = derivation.derive_topic_events(known) if name in STREAMS else derivation.derive_topic_versions(known)
    table_creation.ensure_table(table, table_diff.table_schema(rows))
    with override_conf(spark, {"spark.sql.shuffle.partitions": "16"}):
        opened = rows.withColumn("_change", F.lit("open"))
        commits.commit_change(opened, table, 1, KNOWN, closing=None, note=TableNote(1, count))


def _plan(place: Inputs, kind: str) -> None:
    """The one run of a pipeline, planned: what `run_steps.build_view` asks for."""
    from hindcast.kafka.topics import OffsetRange
    from hindcast.plan import journal
    from hindcast.plan.plans import Plan, TopicPlan

    contract, warehouse = place.contract(kind), str(place.warehouse)
    if journal.read_runs(warehouse, kind):
        return
    shares = {name: TopicPlan(name, 0, 0, {0: 0}, {0: OffsetRange(0, 1)}, {}) for name in contract.topics}
    plan = Plan(kind, 1, "bench", KNOWN, None, contract.hash, shares)
    journal.append_entry(warehouse, Run(plan))
