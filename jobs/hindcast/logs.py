"""The log of a topic: every planned record with its bytes and its fate, appended once; and the quarantine.

| log column | type | |
| --- | --- | --- |
| topicId | string | Kafka's id of the topic: one made anew under the same name has another |
| epoch, partition, offset | int, int, bigint | the record's place; epoch counts changes of the partition count |
| offsets | bigint | how many offsets the row stands for: 1, of a gap more (gaps.py) |
| timestamp, timestampType | timestamp, int | as Kafka has them (KIP-32): 0 the producer's, 1 the broker's, -1 none |
| key, value, headers | binary, binary, array | the bytes as sent |
| fate, reason | string, string | docs/glossary.md lists the fates; why it was refused |
| streamTime | timestamp | the partition's stream time before the record: the record is late if it is dated before |
| run, systemFrom | bigint, timestamp | the run that brought it, and its known-at |

What is refused stands in the quarantine too, one table per pipeline, with its topic's name.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from functools import reduce
from operator import or_
from typing import NamedTuple

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from hindcast import commits, gaps, order, plans, tables
from hindcast.contracts import Contract, Topic
from hindcast.contracts.sensitive import NOT_TOLD
from hindcast.decode import decode
from hindcast.errors import RecordError
from hindcast.plans import Plan, Share
from hindcast.settings import settings
from hindcast.tables import Table
from hindcast.topics import HEADERS, Cluster, Offsets, made_anew, records

QUARANTINE = ("topic", "partition", "offset", "timestamp", "key", "value", "fate", "reason", "run", "systemFrom")
"""Columns of a pipeline's quarantine."""

DISPUTED = "a record of the log decoded before and does not now"
DISPUTE_MEND = "put the column's type in the contract back, or give the topic's entry another name (a new table)"
_NEAR = 10_000
"""So many offsets before a range tell how far stream time had come at least."""

_DECODED = {"key": "_key", "value": "_value"}
_EMPTY = (
    "epoch int, partition int, offset long, timestamp timestamp, key binary, value binary, "
    f"{HEADERS}, fate string, run long"
)


class Claimed(NamedTuple):
    """What a step has just appended to a log, all that it has of the runs after `after`: its accepted records, decoded.

    Held apart from Kafka, which may have lost some of them meanwhile: what is no longer held fails, and a retry reads
    the log.
    """

    after: int
    records: DataFrame


def claim(spark: SparkSession, contract: Contract, todo: Plan, name: str) -> Claimed | None:
    """Claims a topic's planned offsets: one commit to its log, and then what it refused into quarantine.

    Returns what it has appended; None if there was nothing to do, or the run did it before. Before anything is written,
    TopicError if Kafka has lost offsets that the contract does not do without, and RecordError if more records are
    malformed than it allows.
    """
    log, claimed = plans.log(settings().warehouse, contract.pipeline, name), None
    if tables.published(log) < todo.run and todo.topics[name].parts:
        with Cluster(settings().kafka) as cluster:
            claimed = _append(spark, cluster, contract, todo, name, log)
    quarantined(spark, contract, name, log, name)
    return claimed


def accepted(spark: SparkSession, contract: Contract, name: str, after: int) -> DataFrame:
    """The records of a topic's log that the contract accepts, of the runs after `after`; none if there is no log yet.

    Under another history retention than they were replayed with, fates are others (`order.judge_again`).
    """
    log = plans.log(settings().warehouse, contract.pipeline, name)
    if tables.opened(log) is None:
        return none(spark)
    rows = tables.load(spark, log).where(F.col("run") > after)
    return order.judge_again(rows, retention(contract.topics[name])).where("fate = 'accepted'")


def brought(
    spark: SparkSession, contract: Contract, todo: Plan, name: str, fates: Sequence[str] = ("accepted",)
) -> DataFrame:
    """The records of these fates that a plan would bring to a topic's log, as the log has them; nothing is written."""
    log, share = plans.log(settings().warehouse, contract.pipeline, name), todo.topics[name]
    with Cluster(settings().kafka) as cluster:
        held = cluster.available(contract.kafka_topic(name))
    read = [gaps.left(part, gaps.lost(part, held)) for part in share.parts]
    if not read:
        return none(spark)
    judged = _union(_judged(spark, contract, todo, name, log, part) for part in read)
    return judged.where(F.col("fate").isin(*fates)).drop(*_DECODED.values()).withColumns(_origin(share, todo))


def none(spark: SparkSession) -> DataFrame:
    """No records, as a log has them."""
    return spark.createDataFrame([], _EMPTY)


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


def _append(
    spark: SparkSession, cluster: Cluster, contract: Contract, todo: Plan, name: str, log: Table
) -> Claimed | None:
    """The commit to the log: a row for each record that there is, and one for each gap between them."""
    topic, share, kafka = contract.topics[name], todo.topics[name], contract.kafka_topic(name)
    held = cluster.available(kafka)
    lost = [gaps.lost(part, held) for part in share.parts]
    for missing in lost:
        gaps.refuse(contract, name, missing, gaps.RETENTION)
    read = [gaps.left(part, missing) for part, missing in zip(share.parts, lost, strict=True)]
    # No persist: a commit to the log would drop what was kept of a plan that reads it.
    judged = _union(_judged(spark, contract, todo, name, log, part) for part in read).localCheckpoint(eager=False)
    came, refused = _account(judged, kafka, topic, f"topics.{name}.max_malformed")
    if cluster.topic_id(kafka) != share.topic_id:
        raise made_anew(kafka, todo.run)
    empty = [gaps.rows(spark, missing).withColumns(_why("gone", gaps.RETENTION)) for missing in lost if missing]
    wanted = Counter({p: r.end - r.start for part in read for p, r in part.items()})
    if short := {p for p, n in wanted.items() if came.get(p, 0) < n}:
        compacted = cluster.compacted(kafka)
        between = _union(gaps.between(judged, {p: r for p, r in part.items() if p in short}) for part in read)
        if compacted and topic.on_gap == "stop":
            found = {row["partition"]: row for row in between.sort(F.desc("partition"), F.desc("offset")).collect()}
            gone = {p: Offsets(row["offset"], row["offset"] + row["offsets"]) for p, row in found.items()}
            gaps.refuse(contract, name, gone, gaps.COMPACTION)
        why = _why("gone", gaps.COMPACTION) if compacted else _why("no_record", gaps.NO_RECORD)
        empty.append(between.withColumns(why))
    rows = _union([judged.drop(*_DECODED.values()), *empty]).withColumns(_origin(share, todo))
    tables.ensure(log, tables.nullable(rows.schema))
    note = {"run": todo.run, "runId": todo.run_id, "refused": refused}
    if not commits.append(rows, log, todo.run, note, after=share.after):
        return None
    return Claimed(share.after, _decoded(judged, share, todo))


def _decoded(judged: DataFrame, share: Share, todo: Plan) -> DataFrame:
    """The accepted ones of judged records, with `key` and `value` decoded."""
    taken = judged.where("fate = 'accepted'").withColumns({name: F.col(it) for name, it in _DECODED.items()})
    return taken.drop(*_DECODED.values()).withColumns(_origin(share, todo))


def _union(frames: Iterable[DataFrame]) -> DataFrame:
    """All rows; a column that one of the frames lacks is null there."""
    return reduce(lambda all_, more: all_.unionByName(more, allowMissingColumns=True), frames)


def _why(fate: str, reason: str) -> dict[str, Column]:
    return {"fate": F.lit(fate), "reason": F.lit(reason)}


def _origin(share: Share, todo: Plan) -> dict[str, Column]:
    """The columns that all rows of a run share."""
    return {
        "topicId": F.lit(share.topic_id),
        "epoch": F.lit(share.epoch),
        "run": F.lit(todo.run).cast("long"),
        "systemFrom": F.lit(todo.known_at),
    }


def _judged(
    spark: SparkSession, contract: Contract, todo: Plan, name: str, log: Table, ranges: Mapping[int, Offsets]
) -> DataFrame:
    """The records of these ranges as rows of the log, without what all rows of the run share; and `_DECODED`."""
    topic = contract.topics[name]
    raw = records(spark, settings().kafka, contract.kafka_topic(name), ranges)
    kept = raw.withColumns({"_rawKey": F.col("key"), "_rawValue": F.col("value")})
    decoded = decode(kept, topic, latest(topic, todo))
    judged = order.judge(*_with_stream_time(spark, log, decoded, retention(topic), ranges))
    return judged.select(
        "partition",
        "offset",
        F.lit(1).cast("long").alias("offsets"),
        "timestamp",
        "timestampType",
        F.col("_rawKey").alias("key"),
        F.col("_rawValue").alias("value"),
        "headers",
        "fate",
        F.coalesce("reason", F.when(F.col("fate") == "expired", too_late(topic))).alias("reason"),
        "streamTime",
        *(F.col(name).alias(it) for name, it in _DECODED.items()),
    )


def retention(topic: Topic) -> Column:
    """The history retention of a topic, as `order` takes it; null is without limit."""
    return F.lit(topic.history_retention).cast("interval day to second")


def too_late(topic: Topic) -> Column:
    """Why a record is expired."""
    return F.concat(
        F.lit(f"older than the history retention of {topic.history_retention} at stream time "),
        F.col("streamTime").cast("string"),
    )


def _with_stream_time(
    spark: SparkSession, log: Table, decoded: DataFrame, retention: Column, ranges: Mapping[int, Offsets]
) -> tuple[DataFrame, Column, Column | None]:
    """Records with the stream time that the log has before each partition's range, as `order.judge` takes them."""
    if tables.opened(log) is None:
        return decoded, retention, None

    def each(bound: Callable[[int, Offsets], Column]) -> Column:
        return reduce(or_, ((F.col("partition") == p) & bound(p, r) for p, r in ranges.items()))

    latest = F.max("timestamp").alias("_reached")
    before = tables.load(spark, log).where((F.col("fate") == "accepted") & each(lambda _, r: F.col("offset") < r.start))
    if tables.size(log) > tables.LARGE:
        # What the last offsets reached is seldom passed before them: Delta passes over nearly all files.
        near = before.where(each(lambda _, r: F.col("offset") >= r.start - _NEAR))
        least = {row["partition"]: row["_reached"] for row in near.groupBy("partition").agg(latest).collect()}
        before = before.where(each(lambda p, _: F.col("timestamp") >= F.lit(least[p]) if p in least else F.lit(True)))
    reached = before.groupBy("partition").agg(latest)
    return decoded.join(F.broadcast(reached), "partition", "left"), retention, F.col("_reached")


def _account(judged: DataFrame, kafka: str, topic: Topic, field: str) -> tuple[dict[int, int], int]:
    """How many records of each partition came, and how many are refused; no more may be malformed than allowed."""
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
    bad = sorted((row for row in rows if row["fate"] == "malformed"), key=lambda row: (row["partition"], row["first"]))
    total, allowed = sum(row["n"] for row in bad), topic.max_malformed
    if total > allowed:
        reason, key = (NOT_TOLD, "***") if topic.sensitive else (bad[0]["reason"], bad[0]["key"])
        raise RecordError(
            f"{total} of the run's records do not decode, {allowed} may; the first: {reason}",
            where=f"topic {kafka}, partition {bad[0]['partition']}, offset {bad[0]['first']}, key {key}",
            mend=f"mend the columns in the contract, or let them pass into quarantine with {field}: {total}; "
            "nothing was written",
        )
    came = Counter[int]()
    for row in rows:
        came[row["partition"]] += row["n"]
    return came, sum(row["n"] for row in rows if row["fate"] != "accepted")


def quarantined(spark: SparkSession, contract: Contract, name: str, decided: Table, part: str) -> None:
    """Brings the quarantine up to what was refused, each record once, also those of a run that was given up.

    `decided`: what has the fates of a topic's records; `part` names its commits to the quarantine.
    """
    table = quarantine(settings().warehouse, contract.pipeline)
    done = tables.published(table, part=part)
    new = [run for run, note in tables.notes(decided, limit=100).items() if run > done and note.get("refused")]
    if not new:
        return
    topic = F.lit(contract.kafka_topic(name)).alias("topic")
    rows = tables.load(spark, decided).where(~F.col("fate").isin("accepted", *gaps.FATES) & (F.col("run") > done))
    refused = rows.select(topic, *QUARANTINE[1:])
    tables.ensure(table, tables.nullable(refused.schema))
    commits.append(refused, table, max(new), {"run": max(new)}, part=part, after=done)


def quarantine(warehouse: str, pipeline: str) -> Table:
    """The table of what a pipeline refused."""
    return Table(warehouse, pipeline, "quarantine", "quarantine")
