"""What a run costs as the tables grow: the same 100,000 records into tables of 1, 4 and 16 million rectangles.

    PYTHONPATH=jobs .venv/bin/python bench/increment.py [--sizes 1,4,16] [--keys 100000] [--records 100000] [--evenly]
                                                        [--windows] [--keep]

For each size a pipeline is made whose tables hold so many million rectangles, by the steps of a run: a first run of
records that Spark makes, in place of Kafka's. Then come runs of `--records` records: of ten four prices, two of stock
and four orders. One in a hundred is late, by an exponential delay whose mean is a hundredth of the history; with
`--evenly` by any delay up to the whole history. `--windows` adds the bills of each hour, whose events late prices
change. The first of these runs warms up; of the rest the median counts. With
`--keep` what the first run has made (10 minutes of the 16 million) is kept, and taken again the next time.

After them the first and the last run are compared, as `hindcast diff` does it.

Writes bench/results/increment.json: seconds and bytes of data files by table and run, the seconds of the diff, and
`time_ratio` and `bytes_ratio`, of the largest size to the smallest.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import time
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from hindcast.plan.runs import Completed, Run

CONTRACT = """
pipeline: increment
start: 2026-01-01
topics:
  prices: {read: table, key: {id: int}, value: {price: int, category: int}}
  stock: {read: table, key: {id: int}, value: {n: int}}
  orders: {read: stream, key: {customer: int}, value: {id: int, quantity: int}}
views:
  bills: {stream: orders, join: {table: prices, on: orders.id}, select: {amount: quantity * price}}
  stocked: {table: prices, join: {table: stock, how: left}, select: {price: price, n: n}}
  categories: {table: prices, aggregate: {items: count(*), worth: sum(price)}, group_by: {category: category}}
"""
WINDOWS = """
  hourly:
    stream: bills
    aggregate: {bills: count(*), amount: sum(amount)}
    group_by: {size: "case when amount < 10 then 1 when amount < 30 then 2 else 3 end"}
    window: {tumbling: 1 hour, grace: 1 day}
"""
SHARES = {"prices": 4, "stock": 2, "orders": 4}
"""Of ten records."""
GROUPS = 1_000
T0 = datetime(2020, 1, 1, tzinfo=UTC)
TICK = timedelta(milliseconds=250)
"""Between two records of the history."""
RESULTS = Path(__file__).parent / "results" / "increment.json"


def main() -> None:
    """Measures every size and writes the results."""
    options = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    options.add_argument("--sizes", default="1,4,16", help="millions of rectangles in the table of prices")
    options.add_argument("--keys", type=int, default=100_000)
    options.add_argument("--records", type=int, default=100_000, help="records that a run brings")
    options.add_argument("--runs", type=int, default=4, help="runs of each size, the first of which warms up")
    options.add_argument("--evenly", action="store_true", help="late records are dated evenly over the history")
    options.add_argument("--windows", action="store_true", help="also aggregate the bills of each hour")
    options.add_argument("--memory", default="10g")
    options.add_argument("--folder", type=Path, default=Path("var/bench-increment"))
    options.add_argument("--out", type=Path, default=RESULTS)
    options.add_argument("--keep", action="store_true", help="keep the tables of the first runs for the next time")
    told = options.parse_args()
    if not told.keep:
        shutil.rmtree(told.folder, ignore_errors=True)
    (told.folder / "schemas").mkdir(parents=True, exist_ok=True)
    (told.folder / "schemas" / "increment.yaml").write_text(
        CONTRACT.lstrip() + (WINDOWS.lstrip("\n") if told.windows else ""), encoding="utf-8"
    )
    os.environ["HINDCAST_SCHEMAS"] = str(told.folder / "schemas")
    os.environ["HINDCAST_VAR"] = str(told.folder / "var")

    from hindcast.common.session import open_session

    spark = open_session("hindcast-bench-increment", {"spark.driver.memory": told.memory})
    spark.sparkContext.setLogLevel("ERROR")
    sizes = [measure(spark, told, float(size)) for size in told.sizes.split(",")]
    ratios = {
        f"{name}_ratio": round(sizes[-1][f"median_{name}"] / sizes[0][f"median_{name}"], 3)
        for name in ("time", "bytes")
    }
    result = {
        "keys": told.keys,
        "records": told.records,
        "late": "evenly over the history" if told.evenly else "exponentially, mean a hundredth of the history",
        **ratios,
        "sizes": sizes,
    }
    told.out.parent.mkdir(parents=True, exist_ok=True)
    told.out.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    print(json.dumps(ratios))


def measure(spark: SparkSession, told: argparse.Namespace, millions: float) -> dict[str, Any]:
    """The runs of one size."""
    from hindcast.common.session import override_conf
    from hindcast.contract import load

    warehouse, kept = (told.folder / f"{name}-{millions:g}" for name in ("warehouse", "kept"))
    os.environ["HINDCAST_WAREHOUSE"] = str(warehouse)
    contract = load(told.folder / "schemas" / "increment.yaml")
    # Of the history there are as many prices as rectangles.
    start = int(millions * 1_000_000 * 10 / SHARES["prices"])
    shutil.rmtree(warehouse, ignore_errors=True)
    if kept.exists():
        shutil.copytree(kept, warehouse)
    else:
        with override_conf(spark, {"spark.sql.shuffle.partitions": "32"}):
            steps = run(spark, told, contract, 1, (0, start), late=False)
        print(f"{millions:g} million, run 1: {steps}", flush=True)
        if told.keep:
            shutil.copytree(warehouse, kept)
    runs: list[dict[str, Any]] = []
    for number in range(2, 2 + told.runs):
        before = files(warehouse)
        begun = time.monotonic()
        steps = run(spark, told, contract, number, (start, start + told.records), late=True)
        seconds = time.monotonic() - begun
        written = sum(size for path, size in files(warehouse).items() if path not in before)
        runs.append({"seconds": round(seconds, 2), "bytes": written, "steps": steps})
        print(f"{millions:g} million, run {number}: {seconds:6.1f} s {written / 1e6:8.2f} MB {steps}", flush=True)
        start += told.records
    counted = runs[1:]
    counts, compared = rows(contract), compare_runs(contract, 1, 1 + told.runs)
    print(f"{millions:g} million, diff of run 1 and {1 + told.runs}: {compared}", flush=True)
    shutil.rmtree(warehouse)
    return {
        "millions": millions,
        "rows": counts,
        "median_time": statistics.median(run["seconds"] for run in counted),
        "median_bytes": statistics.median(run["bytes"] for run in counted),
        "diff": compared,
        "runs": runs,
    }


def compare_runs(contract: Any, first: int, last: int) -> dict[str, float]:
    """What `hindcast diff increment --from run:first --to run:last` takes, and how many changes it counts."""
    from hindcast.common.settings import read_settings
    from hindcast.query import changes
    from hindcast.query.changes import ChangeQuestion

    question = ChangeQuestion(date_run(first), date_run(last))
    begun = time.monotonic()
    counts = changes.count_changes(read_settings().warehouse, contract, question)
    seconds = round(time.monotonic() - begun, 2)
    return {"changes": sum(it.lines for it in counts.values()), "seconds": seconds}


def date_run(number: int) -> datetime:
    """The known-at of a run."""
    return T0 + timedelta(days=3650, hours=number)


def run(
    spark: SparkSession,
    told: argparse.Namespace,
    contract: Any,
    number: int,
    span: tuple[int, int],
    *,
    late: bool,
    behind: int = 0,
) -> dict[str, float]:
    """One run: its records into the logs, as a replay would put them there, then the steps that follow; seconds.

    `behind`: so many numbers before its own is the record whose key and time each one has.
    """
    from hindcast.common.settings import read_settings
    from hindcast.contract.bound import bind_contract
    from hindcast.kafka.topics import OffsetRange
    from hindcast.plan import journal
    from hindcast.plan.plans import Plan, TopicPlan
    from hindcast.runs import run_steps

    settings = read_settings()
    contract = bind_contract(contract, settings)
    ends = {topic: [position(topic, end) for end in span] for topic in SHARES}
    known_at = date_run(number)
    shares = {t: TopicPlan(t, 0, number - 1, {0: 0}, {0: OffsetRange(*ends[t])}, {}) for t in SHARES}
    plan = Plan(contract.pipeline, number, f"run-{number}", known_at, None, contract.hash, shares)
    entry = Run(plan)
    journal.append_entry(settings.warehouse, entry)
    steps = {}
    for topic in contract.topics:
        begun = time.monotonic()
        claim(contract, plan, topic, records(spark, told, topic, span, late=late, behind=behind))
        steps[f"log {topic}"] = round(time.monotonic() - begun, 2)
        begun = time.monotonic()
        run_steps.replay_topic(spark, settings, contract.pipeline, number, topic)
        steps[topic] = round(time.monotonic() - begun, 2)
    for view in contract.ordered_views:
        begun = time.monotonic()
        run_steps.build_view(spark, settings, contract.pipeline, number, view)
        steps[view] = round(time.monotonic() - begun, 2)
    journal.append_entry(settings.warehouse, replace(entry, outcome=Completed({"tables": {}})))
    return steps


def claim(contract: Any, plan: Any, topic: str, arrived: DataFrame) -> None:
    """A topic's records (`records`) into its log, judged as a replay judges what Kafka gives."""
    from hindcast.bitemporal import fates
    from hindcast.common.settings import read_settings
    from hindcast.ingest import stream_times
    from hindcast.store import commits, table_creation, tables

    table = tables.log_table(read_settings().warehouse, contract.pipeline, topic)
    raw, spark = arrived.withColumn("fate", F.lit(None).cast("string")), arrived.sparkSession
    retention = F.lit(None).cast("interval day to second")
    times = stream_times.read_stream_times(spark, contract, topic, plan.topics[topic].ranges)
    reached = spark.createDataFrame([*times.items()], "partition int, _reached long")
    timed = raw.join(F.broadcast(reached), "partition", "left")
    judged = fates.decide_fates(timed, retention, F.timestamp_micros("_reached"))
    rows = judged.select(
        "partition",
        "offset",
        F.lit(1).cast("long").alias("offsets"),
        "timestamp",
        F.lit(0).alias("timestampType"),
        "key",
        "value",
        F.lit(None).cast("array<struct<key: string, value: binary>>").alias("headers"),
        "fate",
        F.lit(None).cast("string").alias("reason"),
        "streamTime",
        F.lit(topic).alias("topicId"),
        F.lit(0).alias("epoch"),
        F.lit(plan.run).cast("long").alias("run"),
        F.lit(plan.known_at).alias("systemFrom"),
    )
    table_creation.ensure_table(table, table_creation.make_nullable(rows.schema))
    commits.append_rows(rows, table, plan.run, {"run": plan.run, "refused": 0})


def records(
    spark: SparkSession, told: argparse.Namespace, topic: str, span: tuple[int, int], *, late: bool, behind: int = 0
) -> DataFrame:
    """The records of one topic among those of the numbers `span`, as Kafka would give them; `behind`: as in `run`."""
    first = sum(share for name, share in SHARES.items() if list(SHARES).index(name) < list(SHARES).index(topic))
    last = first + SHARES[topic]
    number, turn = F.col("id") - behind, F.col("id") % 10
    history = (span[0] - behind) * TICK.total_seconds()
    delay = -F.log(1 - chance("delay")) * (history / 100)
    if told.evenly:
        delay = chance("delay") * history
    delayed = F.when(chance("late") < 0.01, F.least(delay, F.lit(history))).otherwise(0) if late else F.lit(0)
    micros = (number * int(TICK.total_seconds() * 1e6) - (delayed * 1_000_000).cast("long")).cast("long")
    key = (chance("key", number) * told.keys).cast("int")
    drawn = {name: (chance(name) * 9 + 1).cast("int") for name in ("price", "n", "quantity")}
    item = (chance("item", number) * told.keys).cast("int")
    values = {
        "prices": F.struct(drawn["price"].alias("price"), (key % GROUPS).alias("category")),
        "stock": F.struct(drawn["n"].alias("n")),
        "orders": F.struct(item.alias("id"), drawn["quantity"].alias("quantity")),
    }
    return (
        spark.range(*span)
        .where((turn >= first) & (turn < last))
        .select(
            F.lit(0).alias("partition"),
            (F.floor(F.col("id") / 10) * SHARES[topic] + turn - first).cast("long").alias("offset"),
            F.timestamp_millis(F.lit(int(T0.timestamp() * 1000)) + F.floor(micros / 1000)).alias("timestamp"),
            key.cast("string").cast("binary").alias("key"),
            F.to_json(values[topic]).cast("binary").alias("value"),
        )
    )


def chance(name: str, number: Column | None = None) -> Column:
    """A number from 0 to 1 that a record's number gives (None: its own), the same every time."""
    number = F.col("id") if number is None else number
    return F.pmod(F.xxhash64(number, F.lit(name)), F.lit(1_000_003)) / 1_000_003


def position(topic: str, number: int) -> int:
    """The offset in a topic at which the record of a number would stand; numbers are multiples of ten."""
    return number // 10 * SHARES[topic]


def files(folder: Path) -> dict[str, int]:
    """The data files of all tables with their sizes, deletion vectors included; logs of Delta are left out."""
    found = (
        path for path in folder.rglob("*") if path.suffix in (".parquet", ".bin") and "_delta_log" not in path.parts
    )
    return {str(path): path.stat().st_size for path in found}


def rows(contract: Any) -> dict[str, int]:
    """How many rectangles each table holds."""
    from hindcast.common.settings import read_settings
    from hindcast.store import tables

    return {
        name: tables.count_rows(tables.locate_table(read_settings().warehouse, contract, name))
        for name in (*contract.topics, *contract.views)
    }


if __name__ == "__main__":
    main()
