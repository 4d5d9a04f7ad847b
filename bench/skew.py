"""One key with a tenth of all records: how the work of a join or an aggregate is spread over tasks, with and without
slices of time.

    .venv/bin/python bench/skew.py [stream_table|table_table|of_table|of_stream|foreign_key ...] [--events 5000000]

Prints, for each operator, wall seconds (median of three) and the longest and the median task of the stage that sweeps.
Both are measured in one session, in turns.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable
from functools import partial
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from hindcast.bitemporal import aggregates, joins
from hindcast.bitemporal.measures import Measure
from hindcast.common.session import ROWS_PER_SLICE, SLICES, open_session, override_conf

KEYS, TASKS, ROUNDS = 100_000, 16, 3


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("operators", nargs="*", default=list(OPERATORS))
    parser.add_argument("--events", type=int, default=5_000_000)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "log"
        log.mkdir()
        logged = {"enabled": "true", "dir": log.as_uri(), "rolling.enabled": "false", "compress": "false"}
        spark = open_session("hindcast-bench-skew", {f"spark.eventLog.{name}": told for name, told in logged.items()})
        spark.conf.set("spark.sql.shuffle.partitions", str(TASKS))
        spark.conf.set("spark.sql.adaptive.coalescePartitions.enabled", "false")
        tables = made(spark, args.events, f"{folder}/data")
        print(f"{args.events:,} events or versions, a tenth of them of one key; {TASKS} tasks")
        for name in args.operators:
            measure(spark, name, partial(OPERATORS[name], *tables), args.events, log)
        spark.stop()


def made(spark: SparkSession, rows: int, folder: str) -> tuple[DataFrame, ...]:
    """Events, as many versions, and a tenth as many, in files; keys are equally frequent but for one.

    A version lasts a second, and the times of a table are whole seconds apart: no two versions overlap.
    """
    number = F.xxhash64("id")
    key = F.when(F.col("id") % 10 == 0, F.lit("hot")).otherwise(F.concat(F.lit("k"), F.pmod(number, F.lit(KEYS))))
    # Odd multiples modulo a power of two: another second for every row, in no order.
    at = F.timestamp_seconds(F.lit(1_700_000_000) + F.pmod(F.col("id") * 2_654_435_761, F.lit(2**26)))
    place = F.struct(F.lit(0).alias("epoch"), F.lit(0).alias("partition"), F.col("id").alias("offset"))
    periods = [at.alias("validFrom"), (at + F.expr("INTERVAL '1' SECOND")).alias("validTo")]
    kinds = {"events": [at.alias("timestamp"), place.alias("position")], "versions": periods, "fewer": periods}
    for name, columns in kinds.items():
        every = spark.range(rows // 10 if name == "fewer" else rows)
        value = F.struct(F.pmod(number, F.lit(1_000)).alias("v")).alias("value")
        every.select(F.struct(key.alias("k")).alias("key"), value, *columns).write.parquet(f"{folder}/{name}")
    return tuple(spark.read.parquet(f"{folder}/{name}") for name in kinds)


def stream_table(events: DataFrame, versions: DataFrame, fewer: DataFrame) -> DataFrame:  # noqa: ARG001 - like the others
    return joins.join_stream_table(events, fewer, "left")


def table_table(events: DataFrame, versions: DataFrame, fewer: DataFrame) -> DataFrame:  # noqa: ARG001 - like the others
    return joins.join_table_table(versions, fewer, "left")


def of_table(events: DataFrame, versions: DataFrame, fewer: DataFrame) -> DataFrame:  # noqa: ARG001 - like the others
    members = versions.withColumns({"group": F.col("key"), "key": F.struct("key", "validFrom")})
    measures = {"n": Measure("count", F.lit(1)), "v": Measure("sum", F.col("value.v"))}
    return aggregates.aggregate_table(members, F.col("group"), measures)


def of_stream(events: DataFrame, versions: DataFrame, fewer: DataFrame) -> DataFrame:  # noqa: ARG001 - like the others
    measures = {"n": Measure("count", F.lit(1)), "v": Measure("sum", F.col("value.v"))}
    return aggregates.aggregate_stream(events, measures)


def foreign_key(events: DataFrame, versions: DataFrame, fewer: DataFrame) -> DataFrame:  # noqa: ARG001 - like the others
    """A tenth of the left versions names one key."""
    lefts = versions.withColumns({"value": F.struct("key.k"), "key": F.struct("key.k", "validFrom")})
    return joins.join_foreign_key(lefts, fewer, "left", F.struct("value.k"))


OPERATORS: dict[str, Callable[..., DataFrame]] = {
    "stream_table": stream_table,
    "table_table": table_table,
    "of_table": of_table,
    "of_stream": of_stream,
    "foreign_key": foreign_key,
}


def measure(spark: SparkSession, name: str, made: Callable[[], DataFrame], rows: int, log: Path) -> None:
    seconds: dict[str, list[float]] = defaultdict(list)
    for turn in range(ROUNDS):
        for how, conf in (("whole", {}), ("sliced", {ROWS_PER_SLICE: str(rows // SLICES)})):
            with override_conf(spark, conf):
                spark.sparkContext.setJobDescription(f"{name} {how} {turn}")
                started = time.monotonic()
                made().write.format("noop").mode("overwrite").save()
                seconds[how].append(time.monotonic() - started)
    time.sleep(2)  # the listener writes behind
    spread = tasks(log)
    for how, took in seconds.items():
        longest, median = spread[f"{name} {how} {ROUNDS - 1}"]
        print(
            f"{name:13} {how:7} {statistics.median(took):6.1f} s [{min(took):.1f}-{max(took):.1f}]   "
            f"longest task {longest:5.1f} s, median {median:5.2f} s, ratio {longest / max(median, 0.01):.1f}",
            flush=True,
        )


def tasks(log: Path) -> dict[str, tuple[float, float]]:
    """By job: the longest and the median task, in seconds, of the stage that reads most from other tasks: the sweep."""
    stages: dict[int, str] = {}
    times: dict[int, list[float]] = defaultdict(list)
    read: dict[int, int] = defaultdict(int)
    for line in next(log.iterdir()).read_text(encoding="utf-8").splitlines():
        event = json.loads(line)
        if event["Event"] == "SparkListenerJobStart":
            stages |= dict.fromkeys(event["Stage IDs"], event["Properties"].get("spark.job.description", ""))
        elif event["Event"] == "SparkListenerTaskEnd":
            metrics = event["Task Metrics"]
            times[event["Stage ID"]].append(metrics["Executor Run Time"] / 1000)
            read[event["Stage ID"]] += metrics["Shuffle Read Metrics"]["Local Bytes Read"]
    found = {}
    for job in set(stages.values()):
        sweep = max((stage for stage, told in stages.items() if told == job), key=lambda stage: read[stage])
        found[job] = max(times[sweep], default=0.0), statistics.median(times[sweep] or [0.0])
    return found


if __name__ == "__main__":
    main()
