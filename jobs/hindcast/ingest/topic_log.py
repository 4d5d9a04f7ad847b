"""The log of a topic, to which every planned record is appended once with its bytes and fate; and the quarantine.

| log column | type | |
| --- | --- | --- |
| topicId | string | Kafka's id of the topic: a recreated topic of the same name has another |
| epoch, partition, offset | int, int, bigint | the record's place; epoch counts changes of the partition count |
| topic, topicPartition | string, int | of an entry with a `pattern`: the record's place in Kafka (topic_patterns.py) |
| offsets | bigint | how many offsets the row stands for: 1, of a gap more (gaps.py) |
| timestamp | timestamp | when the record is true: by the contract's `valid_time`, else as Kafka has it |
| timestampType | int | who set Kafka's own timestamp (KIP-32): 0 the producer, 1 the broker, -1 nobody |
| recordTimestamp | timestamp | Kafka's own, where `timestamp` differs |
| key, value, headers | binary, binary, array | the bytes as sent |
| fate, reason | string, string | docs/glossary.md lists the fates; reason: why it was refused |
| streamTime | timestamp | the partition's stream time before the record: the record is late if it is dated before |
| run, systemFrom | bigint, timestamp | the run that ingested it, and its known-at |
| forgotten | bigint | the run that forgot it: its bytes are gone; only where there is such a record |

Refused records are also in the quarantine, one table per pipeline, with the name of their topic.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import reduce

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from hindcast.bitemporal import fates, valid_time
from hindcast.contract import Topic
from hindcast.contract.bound import BoundContract
from hindcast.formats import limits
from hindcast.formats.decode import decode_records
from hindcast.ingest import erasure_marks, retimestamping, schemas, stream_times, trim_ledger
from hindcast.ingest.stream_times import StreamTimes
from hindcast.kafka import gaps, timestamp_overflow, topic_patterns
from hindcast.kafka.topic_patterns import TopicSource
from hindcast.kafka.topics import HEADERS_SCHEMA, OffsetRange
from hindcast.plan import journal
from hindcast.plan.plans import Plan, TopicPlan
from hindcast.store import tables

DISPUTED_MESSAGE = "a record of the log no longer decodes"


DECODED_COLUMNS = {"key": "_key", "value": "_value"}


_EMPTY = (
    "epoch int, partition int, offset long, timestamp timestamp, key binary, value binary, "
    f"{HEADERS_SCHEMA}, fate string, run long"
)


def read_accepted(spark: SparkSession, contract: BoundContract, name: str, after: int) -> DataFrame:
    """Return the records of a topic's log that the contract accepts, of the runs after `after`; none without a log.

    Under another history retention or `valid_time` than that of their run, records have other fates
    (`fates.redecide_fates`, retimestamping.py). A requeued record belongs to the run that requeued it
    (requeued_records.py).
    """
    log = tables.log_table(contract.warehouse, contract.pipeline, name)
    if tables.open_table(log) is None:
        return empty_records(spark)
    rows = erasure_marks.exclude_forgotten(retimestamping.read_log(spark, contract, name, after))
    return judge_again(rows, contract, name).where("fate = 'accepted'")


def judge_again(rows: DataFrame, contract: BoundContract, name: str) -> DataFrame:
    """Return rows of a topic's log with their fates by the contract's history retention (`fates.redecide_fates`).

    What a trim left from before the log's horizon was in force there, and stays accepted (`trim_ledger.read_log_trim`).
    """
    trim = trim_ledger.read_log_trim(tables.log_table(contract.warehouse, contract.pipeline, name))
    if trim is None:
        return fates.redecide_fates(rows, retention_column(contract.topics[name]))
    known = is_trimmed_until(trim)
    marked = rows.withColumn("_settled", known & F.col("fate").isin("accepted", "expired"))
    judged = fates.redecide_fates(marked, retention_column(contract.topics[name]))
    return judged.withColumn("fate", F.when(F.col("_settled"), "accepted").otherwise(F.col("fate"))).drop("_settled")


def is_trimmed_until(trim: trim_ledger.LogTrim) -> Column:
    """Return whether a row of a log is of the time and runs that a trim has gone through.

    If it was accepted and is not held, its record was in force at the horizon of the trim; none before it is left.
    """
    return (F.col("timestamp") <= F.lit(trim.horizon)) & (F.col("run") <= trim.run)


def read_planned_by_fate(
    spark: SparkSession, contract: BoundContract, plan: Plan, name: str, fates: Sequence[str] = ("accepted",)
) -> DataFrame:
    """Return the records of `read_planned` that have these fates."""
    return read_planned(spark, contract, plan, name).where(F.col("fate").isin(*fates))


def read_planned(spark: SparkSession, contract: BoundContract, plan: Plan, name: str) -> DataFrame:
    """Return the records that a plan would add to a topic's log, as the log would have them, without writing."""
    topic_plan = plan.topics[name]
    with topic_patterns.open_source(contract.settings) as source:
        available = topic_patterns.offset_source(source, topic_plan.members, plan.run).read_offset_ranges(
            contract.kafka_topic(name)
        )
    read = [gaps.remaining_ranges(part, gaps.find_lost_ranges(part, available)) for part in topic_plan.parts]
    if not read:
        return empty_records(spark)

    def judge(by_client: Collection[int]) -> DataFrame:
        def judge_part(part: dict[int, OffsetRange]) -> DataFrame:
            raw = read_raw_records(spark, source, contract, plan, name, part, by_client)
            times = stream_times.read_stream_times(spark, contract, name, part)
            return judge_records(spark, contract, plan, name, part, raw, times, store=False)

        return union_frames(map(judge_part, read))

    members = topic_plan.members
    _, rows = timestamp_overflow.run_with_client_fallback(judge, lambda rows: rows.localCheckpoint(), members, source)
    rows = erasure_marks.exclude_forgotten(rows).drop(*DECODED_COLUMNS.values())
    return rows.withColumns(run_columns(topic_plan, plan))


def empty_records(spark: SparkSession) -> DataFrame:
    """Return a DataFrame of no records, with the columns of a log."""
    return spark.createDataFrame([], _EMPTY)


def refuse_undecodable(decoded: DataFrame, kafka: str) -> DataFrame:
    """Return accepted records decoded by the current contract; reading them fails on one that no longer decodes.

    `decoded`: the columns of `decode_records`. A value that does not decode is null, and null would end its key: a
    change of the contract must never do that.
    """
    topic, partition = (F.col("topic"), "topicPartition") if "topic" in decoded.columns else (F.lit(kafka), "partition")
    place = F.concat_ws(" ", F.lit("topic"), topic, F.lit("partition"), partition, F.lit("offset"), "offset")
    message = F.concat_ws(": ", F.lit(DISPUTED_MESSAGE), place, "reason")
    disputed = F.col("fate").isin("malformed", "null_key")
    return decoded.withColumn("value", F.when(disputed, F.raise_error(message)).otherwise(F.col("value")))


def union_frames(frames: Iterable[DataFrame]) -> DataFrame:
    """Return all rows; a column that one of the frames lacks is null there."""
    return reduce(lambda all_, more: all_.unionByName(more, allowMissingColumns=True), frames)


def run_columns(topic_plan: TopicPlan, plan: Plan) -> dict[str, Column]:
    """Return the columns that all rows of a run share."""
    return {
        "topicId": F.lit(topic_plan.topic_id),
        "epoch": F.lit(topic_plan.epoch),
        "run": F.lit(plan.run).cast("long"),
        "systemFrom": F.lit(plan.known_at),
        **topic_patterns.member_columns(topic_plan.members),
    }


def read_raw_records(
    spark: SparkSession,
    source: TopicSource,
    contract: BoundContract,
    plan: Plan,
    name: str,
    ranges: Mapping[int, OffsetRange],
    by_client: Collection[int],
) -> DataFrame:
    """Return the records of these ranges with their bytes (`topics.RECORD_SCHEMA`).

    `by_client`: the partitions that Kafka's own client reads (timestamp_overflow.py).
    """
    place = (contract.settings, contract.kafka_topic(name), plan.topics[name].members)
    raw = topic_patterns.read_records(spark, source, *place, {p: r for p, r in ranges.items() if p not in by_client})
    if client_ranges := {p: r for p, r in ranges.items() if p in by_client}:
        raw = raw.unionByName(timestamp_overflow.read_records_by_client(spark, *place, client_ranges))
    return raw


def judge_records(
    spark: SparkSession,
    contract: BoundContract,
    plan: Plan,
    name: str,
    ranges: Mapping[int, OffsetRange],
    raw: DataFrame,
    times: StreamTimes,
    *,
    store: bool = True,
) -> DataFrame:
    """Return the `raw` records of these ranges as rows of the log, without `run_columns`, and with `DECODED_COLUMNS`.

    `times`: the stream time before each range. `store`: whether to store the schemas that records name beside the log
    (schemas.py).
    """
    topic = contract.topics[name]
    with_bytes = raw.withColumns({"_rawKey": F.col("key"), "_rawValue": F.col("value")})
    writers = schemas.resolve_schemas(contract, name, raw, plan if store else None)
    span = valid_time.skew_bounds(topic, plan.known_at)
    past = journal.read_runs(contract.warehouse, contract.pipeline)
    marked = erasure_marks.mark_forgotten(with_bytes, past, topic, name, writers, ranges)
    decoded = limits.decode_within_limit(marked, topic, lambda some: decode_records(some, topic, *span, writers))
    timed, reached = stream_times.add_stream_times(spark, decoded, times)
    judged = fates.decide_fates(timed, retention_column(topic), reached)
    rows = judged.select(
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
        F.coalesce("reason", F.when(F.col("fate") == "expired", expiry_reason(topic))).alias("reason"),
        "streamTime",
        *(F.col(name).alias(alias) for name, alias in DECODED_COLUMNS.items()),
        *(column for column in judged.columns if column == erasure_marks.MARK),
    )
    return erasure_marks.clear_forgotten(rows)


def retention_column(topic: Topic) -> Column:
    """Return the history retention of a topic as `order` takes it; null means no limit."""
    return F.lit(topic.history_retention).cast(retimestamping.RETENTION)


def expiry_reason(topic: Topic) -> Column:
    """Return the reason of expired records."""
    return F.concat(
        F.lit(f"older than the history retention of {topic.history_retention} at stream time "),
        F.col("streamTime").cast("string"),
    )
