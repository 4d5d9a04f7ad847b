"""Operation f: a run that brings 100,000 records of a table, into 2 and into 20 million rectangles; beside a MERGE.

The records of a run follow on those that the table was made of; 1% are late, as everywhere here (data.py). Hindcast's
time is that of the commit to the log, from a file in place of Kafka, and of the step `replay`. The MERGE is the plain
one of SCD2, with late records put in their place: it looks up the versions that a key's records fall among, and merges
the new ones by key and start. No round counts in which its table and what is believed in Hindcast's are not the same.
A second one does less: it closes the open version of each key that has a record, and appends, late or not.
"""

from __future__ import annotations

import os
import time
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from bench.speed import data, inputs
from bench.speed.measuring import Measured, Watch, unwatched
from bench.speed.names import CLOSING, LARGE, MERGE, OURS, SMALL, UNIFORM
from hindcast.plan.runs import Completed, Run

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from hindcast.contract import Contract

RECORDS, RUNS = 100_000, 8
"""How many a run brings, and for how many runs there are records."""
CONTRACT = """
pipeline: growing
start: 2026-01-01
topics:
  prices: {read: table, key: {item: string}, value: {price: int, category: int}}
"""
APPENDING = """
MERGE INTO delta.`{table}` t
USING (SELECT item AS closes, * FROM batch WHERE number = 1 UNION ALL
       SELECT NULL AS closes, * FROM batch WHERE price IS NOT NULL) s
ON t.item = s.closes AND t.validTo IS NULL
WHEN MATCHED AND t.validFrom < s.validFrom THEN UPDATE SET validTo = s.validFrom
WHEN NOT MATCHED AND s.closes IS NULL THEN INSERT (item, price, category, validFrom, validTo)
     VALUES (s.item, s.price, s.category, s.validFrom, s.validTo)"""
BATCH = """
SELECT item, price, category, timestamp AS validFrom, lead(timestamp) OVER w AS validTo, row_number() OVER w AS number
FROM brought WINDOW w AS (PARTITION BY item ORDER BY timestamp, offset)"""

IN_PLACE = """
MERGE INTO delta.`{table}` t USING batch s ON t.item = s.item AND t.validFrom = s.validFrom
WHEN MATCHED AND s.price IS NULL THEN DELETE
WHEN MATCHED AND NOT (struct(t.price, t.category, t.validTo) <=> struct(s.price, s.category, s.validTo))
     THEN UPDATE SET price = s.price, category = s.category, validTo = s.validTo
WHEN NOT MATCHED AND s.price IS NOT NULL THEN INSERT (item, price, category, validFrom, validTo)
     VALUES (s.item, s.price, s.category, s.validFrom, s.validTo)"""
PLACED = """
WITH first AS (SELECT item, min(timestamp) AS since FROM brought GROUP BY item),
touched AS (SELECT t.* FROM delta.`{table}` t JOIN first USING (item) WHERE t.validTo IS NULL OR t.validTo > since),
told AS (
  SELECT item, timestamp AS at, price, category, offset AS turn FROM brought
  UNION ALL SELECT item, validFrom, price, category, -1 FROM touched
  UNION ALL SELECT item, validTo, NULL, NULL, -2 FROM touched WHERE validTo IS NOT NULL)
SELECT item, price, category, at AS validFrom, following AS validTo
FROM (SELECT *, lead(at) OVER (PARTITION BY item ORDER BY at, turn) AS following FROM told)
WHERE following IS NULL OR following > at"""

MERGES = {MERGE: (PLACED, IN_PLACE), CLOSING: (BATCH, APPENDING)}
"""What each merges, and how."""


@dataclass(frozen=True)
class Grown:
    """A table of so many versions, and what runs bring to it."""

    folder: Path
    count: int

    @property
    def warehouse(self) -> str:
        return str(self.folder / "warehouse")

    def of(self, peer: str) -> Path:
        """A peer's table."""
        return self.folder / ("merged" if peer == MERGE else "closed")

    def brought(self, run: int) -> Path:
        """The records of a run; the first one made the table."""
        return self.folder / f"run-{run}.parquet"

    def span(self, run: int) -> tuple[int, int]:
        """Its offsets."""
        start = self.count + (run - 2) * RECORDS
        return (0, self.count) if run == 1 else (start, start + RECORDS)


def measure(
    spark: SparkSession, folder: Path, rounds: int, scale: float = 1, watch: Watch = unwatched
) -> list[Measured]:
    """In turns, after a round that warms up; the tables go on growing."""
    sizes = {SMALL: int(2_000_000 * scale), LARGE: int(20_000_000 * scale)}
    grown = {name: _made(spark, folder, count) for name, count in sizes.items()}
    found = {(name, peer): Measured("f", name, peer, writes="Delta") for name in grown for peer in (OURS, *MERGES)}
    for number in range(rounds + 1):
        for name, it in grown.items():
            contract = _use(it)
            run = _next(it)
            for peer in (OURS, *MERGES):
                begun = time.monotonic()
                if peer == OURS:
                    watch(f"f {name}", partial(_run, spark, it, contract, run))
                else:
                    _merge(spark, it, run, peer)
                took = time.monotonic() - begun
                if number and found[name, peer].why is None:
                    found[name, peer].seconds.append(took)
                print(f"f {name} round {number}  {peer:34} {took:7.2f} s", flush=True)
            _compare(spark, it, found[name, MERGE])
    return list(found.values())


def _compare(spark: SparkSession, it: Grown, measured: Measured) -> None:
    """What a MERGE has made is what is believed, or its times do not count."""
    ours = spark.read.format("delta").load(f"{it.warehouse}/growing/prices").where("systemTo IS NULL")
    told = [
        rows.selectExpr(
            "count(*)", "sum(cast(xxhash64(item, price, category, validFrom, validTo) AS decimal(38)))"
        ).first()
        for rows in (ours, spark.read.format("delta").load(str(it.of(MERGE))))
    ]
    if told[0] != told[1]:
        measured.seconds.clear()
        measured.why = f"its result differs: {told[1]} instead of {told[0]} (rows, sum of hashes)"
        print(f"f {measured.data}  {measured.peer}: {measured.why}", flush=True)


def _made(spark: SparkSession, folder: Path, count: int) -> Grown:
    """The tables of both and the records of all runs, if they are not there; else as runs have left them."""
    from hindcast.plan import journal
    from hindcast.store import tables

    it = Grown(folder / f"f-{count}", count)
    if (it.folder / "done").exists():
        return it
    (it.folder / "schemas").mkdir(parents=True, exist_ok=True)
    (it.folder / "schemas" / "growing.yaml").write_text(CONTRACT.lstrip(), encoding="utf-8")
    contract = _use(it)
    every = data.records(data.Sizes(0, count + RUNS * RECORDS, 100_000), UNIFORM, "prices")
    reached = np.maximum.accumulate(np.asarray(every["timestamp"].cast(pa.int64())))
    before = pa.array(np.concatenate([[0], reached[:-1]]), pa.timestamp("ms", "UTC"))
    every = every.append_column("streamTime", before)
    for run in range(1, RUNS + 2):
        start, end = it.span(run)
        pq.write_table(every.slice(start, end - start), it.brought(run), row_group_size=250_000)
    first = spark.read.parquet(str(it.brought(1)))
    _log(spark, it, contract, 1)
    inputs.publish(spark, first, tables.locate_table(it.warehouse, contract, "prices"), "prices", count)
    entry = _entry(it, contract, 1)
    for outcome in (entry.outcome, Completed({"tables": {}})):
        journal.append_entry(it.warehouse, replace(entry, outcome=outcome))
    rows = spark.read.format("delta").load(f"{it.warehouse}/growing/prices")
    for peer in MERGES:
        rows.select("item", "price", "category", "validFrom", "validTo").write.format("delta").save(str(it.of(peer)))
    (it.folder / "done").touch()
    return it


def _use(it: Grown) -> Contract:
    from hindcast.contract import load

    os.environ |= {"HINDCAST_SCHEMAS": str(it.folder / "schemas"), "HINDCAST_WAREHOUSE": it.warehouse}
    return load(it.folder / "schemas" / "growing.yaml")


def _next(it: Grown) -> int:
    """The number of the next run; AssertionError where there are no records left for it."""
    from hindcast.plan import journal

    number = len(journal.read_runs(it.warehouse, "growing")) + 1
    assert number <= RUNS + 1, f"no more records: remove {it.folder}"
    return number


def _run(spark: SparkSession, it: Grown, contract: Contract, run: int) -> None:
    """A run of Hindcast's, from its log on."""
    from hindcast.common.settings import read_settings
    from hindcast.plan import journal
    from hindcast.runs import run_steps

    entry = _entry(it, contract, run)
    journal.append_entry(it.warehouse, entry)
    _log(spark, it, contract, run)
    run_steps.replay_topic(spark, read_settings(), "growing", run, "prices")
    journal.append_entry(it.warehouse, replace(entry, outcome=Completed({"tables": {}})))


def _entry(it: Grown, contract: Contract, run: int) -> Any:
    from hindcast.kafka.topics import OffsetRange
    from hindcast.plan.plans import Plan, TopicPlan

    share = TopicPlan("prices", 0, run - 1, {0: 0}, {0: OffsetRange(*it.span(run))}, {})
    known_at = data.KNOWN + timedelta(hours=run - 1)
    plan = Plan("growing", run, f"run-{run}", known_at, None, contract.hash, {"prices": share})
    return Run(plan)


def _log(spark: SparkSession, it: Grown, contract: Contract, run: int) -> None:
    """The records of a run into the log, as a replay would put them there."""
    from pyspark.sql import functions as F

    from hindcast.store import commits, table_creation, tables

    value = F.to_json(F.struct("price", "category"))
    rows: DataFrame = spark.read.parquet(str(it.brought(run))).select(
        F.lit(0).alias("partition"),
        "offset",
        F.lit(1).cast("long").alias("offsets"),
        "timestamp",
        F.lit(0).alias("timestampType"),
        F.col("item").cast("binary").alias("key"),
        F.when(F.col("price").isNotNull(), value).cast("binary").alias("value"),
        F.lit(None).cast("array<struct<key: string, value: binary>>").alias("headers"),
        F.lit("accepted").alias("fate"),
        F.lit(None).cast("string").alias("reason"),
        "streamTime",
        F.lit("prices").alias("topicId"),
        F.lit(0).alias("epoch"),
        F.lit(run).cast("long").alias("run"),
        F.lit(data.KNOWN + timedelta(hours=run - 1)).alias("systemFrom"),
    )
    table = tables.log_table(it.warehouse, contract.pipeline, "prices")
    table_creation.ensure_table(table, table_creation.make_nullable(rows.schema))
    commits.append_rows(rows, table, run, {"run": run, "refused": 0})


def _merge(spark: SparkSession, it: Grown, run: int, peer: str) -> None:
    """The same records by MERGE."""
    batch, merge = MERGES[peer]
    spark.read.parquet(str(it.brought(run))).createOrReplaceTempView("brought")
    spark.sql(batch.format(table=it.of(peer))).createOrReplaceTempView("batch")
    spark.sql(merge.format(table=it.of(peer))).collect()
