"""The log of a topic: every planned record with its bytes and its fate, appended once; and the quarantine.

| log column | type | |
| --- | --- | --- |
| topicId | string | Kafka's id of the topic: one made anew under the same name has another |
| epoch, partition, offset | int, int, bigint | the record's place; epoch counts changes of the partition count |
| topic, topicPartition | string, int | of an entry with a `pattern`: the record's place in Kafka (members.py) |
| offsets | bigint | how many offsets the row stands for: 1, of a gap more (gaps.py) |
| timestamp | timestamp | when the record is true: by the contract's `valid_time`, else as Kafka has it |
| timestampType | int | whose Kafka's own timestamp is (KIP-32): 0 the producer's, 1 the broker's, -1 none |
| recordTimestamp | timestamp | Kafka's own, where `timestamp` is another |
| key, value, headers | binary, binary, array | the bytes as sent |
| fate, reason | string, string | docs/glossary.md lists the fates; why it was refused |
| streamTime | timestamp | the partition's stream time before the record: the record is late if it is dated before |
| run, systemFrom | bigint, timestamp | the run that brought it, and its known-at |
| forgotten | bigint | the run that forgot it: its bytes are gone (forgotten.py); only where there is such a record |

What is refused stands in the quarantine too, one table per pipeline, with its topic's name.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import reduce

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from hindcast.contracts import Contract, Topic
from hindcast.contracts.sensitive import NOT_TOLD
from hindcast.corrected import order, valid_time
from hindcast.delta import commits, contents, files, making, tables
from hindcast.delta.tables import Table
from hindcast.errors import RecordError, show_briefly
from hindcast.formats import limits, mismatch
from hindcast.formats.decode import decode
from hindcast.kafka import far, gaps, members
from hindcast.kafka.topics import HEADERS, Cluster, Offsets
from hindcast.planning import journal
from hindcast.planning.plans import Plan, Share
from hindcast.replay import forgotten, redating, schemas, trimmed
from hindcast.settings import settings

QUARANTINE = ("topic", "partition", "offset", "timestamp", "key", "value", "fate", "reason", "run", "systemFrom")
"""Columns of a pipeline's quarantine."""

REQUEUED = "requeued: it decodes by the contract of this run"
"""The reason in quarantine of a record that is not refused any more."""
NOT_REFUSED = ("accepted", "no_change")
"""The fates of records that are not in the quarantine."""

DISPUTED = "a record of the log decoded before and does not now"
_LONGEST = 1_000
"""So many characters are told of why a record does not decode."""

_NEAR = 10_000
"""So many offsets before a range tell how far stream time had come at least."""

DECODED = {"key": "_key", "value": "_value"}
_EMPTY = (
    "epoch int, partition int, offset long, timestamp timestamp, key binary, value binary, "
    f"{HEADERS}, fate string, run long"
)


def accepted(spark: SparkSession, contract: Contract, name: str, after: int) -> DataFrame:
    """The records of a topic's log that the contract accepts, of the runs after `after`; none if there is no log yet.

    Under another history retention or `valid_time` than they were replayed with, fates are others
    (`order.judge_again`, redating.py). What has been requeued is of the run that did that (requeued.py).
    """
    log = tables.log(settings().warehouse, contract.pipeline, name)
    if tables.opened(log) is None:
        return none(spark)
    rows = forgotten.remembered(redating.log(spark, contract, name, after))
    return again(rows, contract, name).where("fate = 'accepted'")


def again(rows: DataFrame, contract: Contract, name: str) -> DataFrame:
    """Rows of a topic's log with their fates by the contract's history retention (`order.judge_again`).

    What is left of before the log's horizon was in force there, and stays accepted (`trimmed.settled`).
    """
    at = trimmed.settled(tables.log(settings().warehouse, contract.pipeline, name))
    if at is None:
        return order.judge_again(rows, retention(contract.topics[name]))
    known = (F.col("timestamp") <= F.lit(at.horizon)) & (F.col("run") <= at.run)
    was = rows.withColumn("_settled", known & F.col("fate").isin("accepted", "expired"))
    judged = order.judge_again(was, retention(contract.topics[name]))
    return judged.withColumn("fate", F.when(F.col("_settled"), "accepted").otherwise(F.col("fate"))).drop("_settled")


def brought(
    spark: SparkSession, contract: Contract, todo: Plan, name: str, fates: Sequence[str] = ("accepted",)
) -> DataFrame:
    """The records of these fates that are `to_come`."""
    return to_come(spark, contract, todo, name).where(F.col("fate").isin(*fates))


def to_come(spark: SparkSession, contract: Contract, todo: Plan, name: str) -> DataFrame:
    """The records that a plan would bring to a topic's log, each as the log would have it; nothing is written."""
    log, share = tables.log(settings().warehouse, contract.pipeline, name), todo.topics[name]
    with Cluster(settings().kafka) as cluster:
        held = members.source(cluster, share.members, todo.run).available(contract.kafka_topic(name))
    read = [gaps.left(part, gaps.lost(part, held)) for part in share.parts]
    if not read:
        return none(spark)

    def judge(by_client: Collection[int]) -> DataFrame:
        return union(judged(spark, contract, todo, name, log, part, by_client, store=False) for part in read)

    rows = far.tried(judge, lambda made: made.localCheckpoint(), share.members)[1]
    return forgotten.remembered(rows).drop(*DECODED.values()).withColumns(origin(share, todo))


def none(spark: SparkSession) -> DataFrame:
    """No records, as a log has them."""
    return spark.createDataFrame([], _EMPTY)


def undisputed(decoded: DataFrame, kafka: str) -> DataFrame:
    """Records that were accepted, as the contract in force decodes them; fails on one that it cannot decode.

    A value that does not decode is null, and a null value would end its key: never by a change of the contract.
    """
    topic, partition = (F.col("topic"), "topicPartition") if "topic" in decoded.columns else (F.lit(kafka), "partition")
    place = F.concat_ws(" ", F.lit("topic"), topic, F.lit("partition"), partition, F.lit("offset"), "offset")
    told = F.concat_ws(": ", F.lit(DISPUTED), place, "reason")
    disputed = F.col("fate").isin("malformed", "null_key")
    return decoded.withColumn("value", F.when(disputed, F.raise_error(told)).otherwise(F.col("value")))


def union(frames: Iterable[DataFrame]) -> DataFrame:
    """All rows; a column that one of the frames lacks is null there."""
    return reduce(lambda all_, more: all_.unionByName(more, allowMissingColumns=True), frames)


def why(fate: str, reason: str) -> dict[str, Column]:
    """The fate of offsets without a record."""
    return {"fate": F.lit(fate), "reason": F.lit(reason)}


def origin(share: Share, todo: Plan) -> dict[str, Column]:
    """The columns that all rows of a run share."""
    return {
        "topicId": F.lit(share.topic_id),
        "epoch": F.lit(share.epoch),
        "run": F.lit(todo.run).cast("long"),
        "systemFrom": F.lit(todo.known_at),
        **members.columns(share.members),
    }


def judged(
    spark: SparkSession,
    contract: Contract,
    todo: Plan,
    name: str,
    log: Table,
    ranges: Mapping[int, Offsets],
    by_client: Collection[int],
    *,
    store: bool = True,
) -> DataFrame:
    """The records of these ranges as rows of the log, without what all rows of the run share; and `DECODED`.

    `by_client`: the partitions that Kafka's own client reads (far.py). `store`: whether the schemas that records name
    are kept beside the log (schemas.py).
    """
    topic = contract.topics[name]
    place = (settings().kafka, contract.kafka_topic(name), todo.topics[name].members)
    raw = members.records(spark, *place, {p: r for p, r in ranges.items() if p not in by_client})
    if apart := {p: r for p, r in ranges.items() if p in by_client}:
        raw = raw.unionByName(far.records(spark, *place, apart))
    kept = raw.withColumns({"_rawKey": F.col("key"), "_rawValue": F.col("value")})
    writers = schemas.of(contract, name, raw, todo if store else None)
    span = valid_time.span(topic, todo.known_at)
    decoded = limits.within(kept, topic, lambda some: decode(some, topic, *span, writers))
    before = redating.before(spark, contract, name, ranges) if tables.opened(log) is not None else None
    judged = order.judge(*_with_stream_time(spark, log, decoded, retention(topic), ranges, before))
    told = judged.select(
        "partition",
        "offset",
        F.lit(1).cast("long").alias("offsets"),
        "timestamp",
        "timestampType",
        "recordTimestamp",
        F.col("_rawKey").alias("key"),
        F.col("_rawValue").alias("value"),
        "headers",
        "fate",
        F.coalesce("reason", F.when(F.col("fate") == "expired", too_late(topic))).alias("reason"),
        "streamTime",
        *(F.col(name).alias(it) for name, it in DECODED.items()),
    )
    return forgotten.again(told, journal.runs(log.warehouse, contract.pipeline), name, ranges)


def retention(topic: Topic) -> Column:
    """The history retention of a topic, as `order` takes it; null is without limit."""
    return F.lit(topic.history_retention).cast(redating.RETENTION)


def too_late(topic: Topic) -> Column:
    """Why a record is expired."""
    return F.concat(
        F.lit(f"older than the history retention of {topic.history_retention} at stream time "),
        F.col("streamTime").cast("string"),
    )


def _with_stream_time(
    spark: SparkSession,
    log: Table,
    decoded: DataFrame,
    retention: Column,
    ranges: Mapping[int, Offsets],
    dated: DataFrame | None = None,
) -> tuple[DataFrame, Column, Column | None]:
    """Records with the stream time that the log has before each partition's range, as `order.judge` takes them.

    `dated`: the log's rows where they are dated anew (redating.py).
    """
    if tables.opened(log) is None:
        return decoded, retention, None

    def each(bound: Callable[[int, Offsets], str]) -> Column:
        # One text: Spark makes a balanced tree of it, which hundreds of partitions need.
        return F.expr(" OR ".join(f"(`partition` = {p} AND {bound(p, r)})" for p, r in ranges.items()))

    latest = F.max("timestamp")
    rows = contents.load(spark, log) if dated is None else dated
    before = rows.where((F.col("fate") == "accepted") & each(lambda _, r: f"offset < {r.start}"))
    if dated is None and tables.size(log) > tables.LARGE:
        # What the last offsets reached is seldom passed before them: Delta passes over nearly all files.
        near = before.where(each(lambda _, r: f"offset >= {r.start - _NEAR}"))
        reached = near.groupBy("partition").agg(F.unix_micros(latest))
        least = {partition: f"`timestamp` >= timestamp_micros({micros})" for partition, micros in reached.collect()}
        before = before.where(each(lambda p, _: least.get(p, "true")))
    reached = before.groupBy("partition").agg(latest.alias("_reached"))
    return decoded.join(F.broadcast(reached), "partition", "left"), retention, F.col("_reached")


def account(
    judged: DataFrame,
    place: Callable[[int], str],
    topic: Topic,
    field: str,
    before: Counter[str],
    to_come: int,
    written: str,
    *,
    weigh: bool = False,
) -> tuple[dict[int, int], int]:
    """How many records of each partition came, and how much all of them weigh (`files.weight`; 0 unless asked for); no
    more of a run may be malformed than allowed.

    `place`: what a partition is called. `before`: how many `records` the run's earlier commits brought, how many of
    these they `refused`, and how many were `malformed`; added to. `to_come`: how many offsets its later ones are to
    bring: a share is one of the whole run. `written`: what was written before, for the error.
    """
    rows = (
        judged.groupBy("partition", "fate")
        .agg(
            F.count("*").alias("n"),
            F.min("offset").alias("first"),
            F.min_by("reason", "offset").alias("reason"),
            F.min_by(F.substring(F.make_valid_utf8(F.col("key").cast("string")), 1, 200), "offset").alias("key"),
            F.min_by("value", "offset").alias("value"),
            (files.weight(judged.select("key", "value", "headers")) if weigh else F.lit(0)).alias("bytes"),
        )
        .collect()
    )
    bad = sorted((row for row in rows if row["fate"] == "malformed"), key=lambda row: (row["partition"], row["first"]))
    before["records"] += sum(row["n"] for row in rows)
    before["malformed"] += sum(row["n"] for row in bad)
    before["refused"] += sum(row["n"] for row in rows if row["fate"] not in NOT_REFUSED)
    total, allowed = before["malformed"], limits.malformed(topic, before["records"] + to_come)
    if bad and total > allowed:
        key = "no key" if bad[0]["key"] is None else f"key {'***' if topic.sensitive else bad[0]['key']}"
        reason = NOT_TOLD if topic.sensitive else show_briefly(bad[0]["reason"], _LONGEST)
        reason += "" if topic.sensitive else mismatch.told(topic, bad[0]["value"])
        ways = "" if bad[0]["reason"].startswith("op ") else "mend the columns in the contract, or "
        raise RecordError(
            f"{total} of the run's records do not decode, {allowed} may; the first: {reason}",
            where=f"{place(bad[0]['partition'])}, offset {bad[0]['first']}, {key}",
            mend=f"{ways}let them pass into quarantine with {field}: {total}; {written}",
        )
    came = Counter[int]()
    for row in rows:
        came[row["partition"]] += row["n"]
    return came, sum(row["bytes"] or 0 for row in rows)


def quarantined(
    spark: SparkSession, contract: Contract, name: str, decided: Table, part: str, limit: int = 100
) -> None:
    """Brings the quarantine up to what was refused, each record once, also those of a run that was given up; and
    to what of it was requeued.

    `decided`: what has the fates of a topic's records; `part` names its commits to the quarantine. `limit`: so many of
    the last commits to `decided` may have something for it.
    """
    table = quarantine(settings().warehouse, contract.pipeline)
    done = tables.published(table, part=part)
    new = [run for run, note in tables.notes(decided, limit=limit).items() if run > done and note.get("refused")]
    if not new:
        return
    rows = contents.load(spark, decided).where(F.col("run") > done)
    kafka = F.lit(contract.kafka_topic(name))
    place = {"partition": F.col("topicPartition")} if "topicPartition" in rows.columns else {"topic": kafka}
    again = (F.col("was") == "malformed") if "was" in rows.columns else F.lit(False)
    since = {"reason": F.coalesce("reason", F.when(again, F.lit(REQUEUED)))}
    refused = rows.where(~F.col("fate").isin(*NOT_REFUSED, *gaps.FATES) | again).withColumns(since)
    refused = refused.withColumns(place).select(*QUARANTINE)
    making.ensure(table, making.nullable(refused.schema))
    commits.append(refused, table, max(new), {"run": max(new)}, part=part, after=done)


def quarantine(warehouse: str, pipeline: str) -> Table:
    """The table of what a pipeline refused."""
    return Table(warehouse, pipeline, "quarantine", "quarantine")
