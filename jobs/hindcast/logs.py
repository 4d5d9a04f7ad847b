"""The log of a topic: every planned record with its bytes and its fate, appended once; and the quarantine.

| log column | type | |
| --- | --- | --- |
| epoch, partition, offset | int, int, bigint | the record's place; epoch counts changes of the partition count |
| timestamp, timestampType | timestamp, int | as Kafka has them (KIP-32): 0 the producer's, 1 the broker's, -1 none |
| key, value, headers | binary, binary, array | the bytes as sent |
| fate, reason | string, string | accepted, expired, malformed, null_key, no_timestamp, time_skew; why refused |
| streamTime | timestamp | the partition's stream time before the record: the record is late if it is dated before |
| run, systemFrom | bigint, timestamp | the run that brought it, and its known-at |

What is refused stands in the quarantine too, one table per pipeline, with its topic's name.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from hindcast import order, plans, tables
from hindcast.contracts import Contract, Topic
from hindcast.decode import decode
from hindcast.errors import RecordError, RunError
from hindcast.plans import Plan
from hindcast.settings import settings
from hindcast.tables import Table
from hindcast.topics import Offsets, records

QUARANTINE = ("topic", "partition", "offset", "timestamp", "key", "value", "fate", "reason", "run", "systemFrom")
"""Columns of a pipeline's quarantine."""

DISPUTED = "a record of the log was accepted before and does not decode now"
DISPUTE_MEND = "put the column's type in the contract back, or give the topic's entry another name (a new table)"
_EMPTY = "partition int, offset long, timestamp timestamp, key binary, value binary, run long"


def claim(spark: SparkSession, contract: Contract, todo: Plan, name: str) -> None:
    """Claims a topic's planned offsets: one commit to its log, and then what it refused into quarantine.

    Does nothing that the run did before. Before anything is written, RunError if an offset has no record and
    RecordError if more records are malformed than the contract allows.
    """
    topic, ranges = contract.topics[name], todo.ranges[name]
    log = plans.log(settings().warehouse, contract.pipeline, name)
    if tables.published(log) < todo.run and any(r.end > r.start for r in ranges.values()):
        kafka = contract.kafka_topic(name)
        judged = _judged(spark, contract, todo, name, log).persist()
        try:
            refused = _account(judged, kafka, ranges, topic.max_malformed, f"topics.{name}.max_malformed")
            tables.ensure(log, tables.nullable(judged.schema))
            tables.append(judged, log, todo.run, {"run": todo.run, "refused": refused})
        finally:
            judged.unpersist()
    _quarantine(spark, contract, name, log)


def accepted(spark: SparkSession, contract: Contract, name: str, after: int) -> DataFrame:
    """The accepted records of a topic's log that runs after `after` brought; none if there is no log yet."""
    log = plans.log(settings().warehouse, contract.pipeline, name)
    if tables.opened(log) is None:
        return spark.createDataFrame([], _EMPTY)
    return tables.load(spark, log).where((F.col("fate") == "accepted") & (F.col("run") > after))


def undisputed(decoded: DataFrame, kafka: str) -> DataFrame:
    """Records that were accepted, as the contract in force decodes them; fails on one that it cannot decode.

    A value that does not decode is null, and a null value would end its key: never by a change of the contract.
    """
    place = F.concat_ws(" ", F.lit(f"topic {kafka}, partition"), "partition", F.lit("offset"), "offset")
    told = F.concat_ws(": ", F.lit(DISPUTED), place, "reason")
    disputed = F.col("fate").isin("malformed", "null_key")
    return decoded.withColumn("value", F.when(disputed, F.raise_error(told)).otherwise(F.col("value")))


def latest(topic: Topic, todo: Plan) -> datetime:
    """The latest record timestamp that a run believes."""
    return todo.known_at + topic.max_time_skew


def _judged(spark: SparkSession, contract: Contract, todo: Plan, name: str, log: Table) -> DataFrame:
    """The planned records as rows of the log."""
    topic = contract.topics[name]
    raw = records(spark, settings().kafka, contract.kafka_topic(name), todo.ranges[name])
    kept = raw.withColumns({"_rawKey": F.col("key"), "_rawValue": F.col("value")})
    retention = F.lit(topic.history_retention).cast("interval day to second")
    judged = order.judge(*_with_stream_time(spark, log, decode(kept, topic, latest(topic, todo)), retention))
    return judged.select(
        F.lit(0).alias("epoch"),
        "partition",
        "offset",
        "timestamp",
        "timestampType",
        F.col("_rawKey").alias("key"),
        F.col("_rawValue").alias("value"),
        "headers",
        "fate",
        F.coalesce("reason", F.when(F.col("fate") == "expired", _too_late(topic))).alias("reason"),
        "streamTime",
        F.lit(todo.run).cast("long").alias("run"),
        F.lit(todo.known_at).alias("systemFrom"),
    )


def _too_late(topic: Topic) -> Column:
    return F.concat(
        F.lit(f"older than the history retention of {topic.history_retention} at stream time "),
        F.col("streamTime").cast("string"),
    )


def _with_stream_time(
    spark: SparkSession, log: Table, decoded: DataFrame, retention: Column
) -> tuple[DataFrame, Column, Column | None]:
    """Records with the stream time that earlier runs left to each partition, as `order.judge` takes them."""
    if tables.opened(log) is None:
        return decoded, retention, None
    before = tables.load(spark, log).where("fate = 'accepted'")
    reached = before.groupBy("partition").agg(F.max("timestamp").alias("_reached"))
    return decoded.join(F.broadcast(reached), "partition", "left"), retention, F.col("_reached")


def _account(judged: DataFrame, kafka: str, ranges: Mapping[int, Offsets], allowed: int, field: str) -> int:
    """How many records are refused. Every planned offset must have come, and no more be malformed than allowed."""
    rows = (
        judged.groupBy("partition", "fate")
        .agg(
            F.count("*").alias("n"),
            F.min("offset").alias("first"),
            F.min_by("reason", "offset").alias("reason"),
            F.min_by(F.col("key").cast("string"), "offset").alias("key"),
        )
        .collect()
    )
    for partition, offsets in ranges.items():
        came = sum(row["n"] for row in rows if row["partition"] == partition)
        planned = offsets.end - offsets.start
        if came != planned:
            raise RunError(
                f"{planned} offsets were planned ({offsets.start} to {offsets.end - 1}), {came} records came",
                where=f"topic {kafka}, partition {partition}",
                mend="offsets without a record (compacted or aborted) cannot be accounted for yet; nothing was written",
            )
    bad = sorted((row for row in rows if row["fate"] == "malformed"), key=lambda row: (row["partition"], row["first"]))
    total = sum(row["n"] for row in bad)
    if total > allowed:
        raise RecordError(
            f"{total} of the run's records do not decode, {allowed} may; the first: {bad[0]['reason']}",
            where=f"topic {kafka}, partition {bad[0]['partition']}, offset {bad[0]['first']}, key {bad[0]['key']}",
            mend=f"mend the columns in the contract, or let them pass into quarantine with {field}: {total}; "
            "nothing was written",
        )
    return sum(row["n"] for row in rows if row["fate"] != "accepted")


def _quarantine(spark: SparkSession, contract: Contract, name: str, log: Table) -> None:
    """Brings the quarantine up to what the log refused, each record once, also those of a run that was given up."""
    table = quarantine(settings().warehouse, contract.pipeline)
    done = tables.published(table, part=name)
    new = [run for run, note in tables.notes(log, limit=100).items() if run > done and note.get("refused")]
    if not new:
        return
    topic = F.lit(contract.kafka_topic(name)).alias("topic")
    rows = tables.load(spark, log).where((F.col("fate") != "accepted") & (F.col("run") > done))
    refused = rows.select(topic, *QUARANTINE[1:])
    tables.ensure(table, tables.nullable(refused.schema))
    tables.append(refused, table, max(new), {"run": max(new)}, part=name)


def quarantine(warehouse: str, pipeline: str) -> Table:
    """The table of what a pipeline refused."""
    return Table(warehouse, pipeline, "quarantine", "quarantine")
