"""A stream-table join in both readings, of the same records: what it costs to tell what a live topology would have.

    .venv/bin/python bench/readings.py [--events 10000000]

10 million events and 2 million records of a table of 100,000 keys, over four partitions; one record in a hundred of
either comes up to a minute late. `corrected`: the table's versions, and the join. `kafka`: the order of processing, and
the tasks with their stores. Both from Parquet to nowhere, in turns in one session; medians of three, and their ratio.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from hindcast.bitemporal import joins, plane, processing_order
from hindcast.common.session import open_session, slice_large_keys
from hindcast.contract import Contract
from hindcast.streams import spark_adapter

KEYS, PARTITIONS, ROUNDS, GOAL = 100_000, 4, 3, 2.0
CONTRACT = Contract.model_validate(
    {
        "pipeline": "bench",
        "start": "2026-01-01",
        "topics": {
            "prices": {"read": "table", "key": {"k": "string"}, "value": {"v": "bigint"}, "history_retention": "1 day"},
            "events": {"read": "stream", "key": {"k": "string"}, "value": {"v": "bigint"}},
        },
        "views": {
            "priced": {
                "semantics": "kafka",
                "stream": "events",
                "join": {"table": "prices", "how": "left"},
                "select": {"v": "events.v", "price": "prices.v"},
            }
        },
    }
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--events", type=int, default=10_000_000)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        spark = open_session("hindcast-bench-readings")
        logs = {name: made(spark, rows, f"{folder}/{name}") for name, rows in sizes(args.events).items()}
        seconds: dict[str, list[float]] = {"corrected": [], "kafka": []}
        for _ in range(ROUNDS):
            for reading, compute in (("corrected", corrected), ("kafka", kafka)):
                started = time.monotonic()
                with slice_large_keys(spark, sum(sizes(args.events).values())):
                    compute(logs).write.format("noop").mode("overwrite").save()
                seconds[reading].append(time.monotonic() - started)
                print(f"{reading:10} {seconds[reading][-1]:6.1f} s", flush=True)
        spark.stop()
    medians = {reading: statistics.median(took) for reading, took in seconds.items()}
    ratio = medians["kafka"] / medians["corrected"]
    told = {"events": args.events, "seconds": medians, "ratio": round(ratio, 2), "goal": GOAL}
    (Path(__file__).parent / "results" / "readings.json").write_text(
        json.dumps(told, indent=1) + "\n", encoding="utf-8"
    )
    print(f"kafka takes {ratio:.2f} times what corrected takes; the goal is {GOAL}")


def sizes(events: int) -> dict[str, int]:
    return {"prices": events // 5, "events": events}


def made(spark: SparkSession, rows: int, folder: str) -> DataFrame:
    """A topic's decoded records: what the job of either reading begins with."""
    number = F.xxhash64("id")
    key = F.pmod(number, F.lit(KEYS))
    late = F.when(F.pmod(number, F.lit(100)) == 0, F.pmod(F.xxhash64(number), F.lit(60_000))).otherwise(0)
    at = F.lit(1_767_225_600_000) + (F.col("id") * (86_400_000 / rows)).cast("long") - late
    spark.range(rows).select(
        F.struct(F.concat(F.lit("key-"), key).alias("k")).alias("key"),
        F.struct(F.concat(F.lit("key-"), key).alias("k"), F.pmod(number, F.lit(1_000)).alias("v")).alias("value"),
        F.timestamp_millis(at).alias("timestamp"),
        F.pmod(key, F.lit(PARTITIONS)).cast("int").alias("partition"),
        F.col("id").alias("offset"),
        F.lit(1).cast("long").alias("run"),
    ).write.parquet(folder)
    return spark.read.parquet(folder)


def corrected(logs: dict[str, DataFrame]) -> DataFrame:
    events, prices = (
        logs[name].select("key", "value", "timestamp", F.struct("partition", "offset").alias("position"))
        for name in ("events", "prices")
    )
    joined = joins.join_stream_table(events, plane.derive_versions(prices), "left")
    return joined.select("key", F.col("left.v").alias("v"), F.col("right.v").alias("price"), "timestamp")


def kafka(logs: dict[str, DataFrame]) -> DataFrame:
    records = {}
    for number, name in enumerate(CONTRACT.topics):
        ordered = processing_order.add_processing_order(logs[name], number)
        places = (F.col("partition").alias("_partition"), F.col("offset").alias("_offset"))
        id_ = F.col("key.k").cast("binary").alias("id")
        passes = F.lit(True).alias("passes")
        headers = F.lit(None).cast("array<struct<key string, value binary>>").alias("headers")
        records[name] = ordered.select("key", "value", "timestamp", "partition", id_, "order", headers, passes, *places)
    rows = spark_adapter.build_task_rows(CONTRACT, "priced", records, dict.fromkeys(records, PARTITIONS))
    done = spark_adapter.process_tasks(CONTRACT, "priced", rows, PARTITIONS)
    return spark_adapter.build_log_rows(CONTRACT, "priced", done.where("part IS NULL")).select(
        "k", "v", "price", "timestamp"
    )


if __name__ == "__main__":
    main()
