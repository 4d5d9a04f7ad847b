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
from datetime import timedelta
from functools import reduce

import pyarrow as pa
from pyspark import StorageLevel
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import from_arrow_type
from pyspark.sql.types import StructType, TimestampType

from hindcast.bitemporal import fates, valid_time
from hindcast.contract import Topic
from hindcast.contract.bound import BoundContract
from hindcast.formats import limits
from hindcast.formats.decode import decode_records
from hindcast.ingest import erasure_marks, retimestamping, schemas, segments, stream_times, trim_ledger
from hindcast.ingest.segment_fates import FateRule
from hindcast.ingest.segments import Origin, Segments
from hindcast.kafka import gaps, timestamp_overflow, topic_patterns
from hindcast.kafka.topic_patterns import TopicSource
from hindcast.kafka.topics import HEADERS_SCHEMA, OffsetRange
from hindcast.plan import journal
from hindcast.plan.plans import Plan, TopicPlan
from hindcast.store import files, tables
from hindcast.store.task_rows import TaskRows

DISPUTED_MESSAGE = "a record of the log no longer decodes"


DECODED_COLUMNS = {"key": "_key", "value": "_value"}
_LOG_COLUMNS = (
    *("partition", "offset", "offsets", "timestamp", "timestampType", "recordTimestamp", "key", "value", "headers"),
    *("fate", "reason", "streamTime", erasure_marks.MARK),
)
"""The columns of a log that a record has by itself, in order."""


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


def read_planned_segments(spark: SparkSession, contract: BoundContract, plan: Plan, name: str) -> Segments | None:
    """Return the records that a plan would add to a topic's log, without writing; None if there are no offsets."""
    topic_plan = plan.topics[name]
    with topic_patterns.open_source(contract.settings) as source:
        available = topic_patterns.offset_source(source, topic_plan.members, plan.run).read_offset_ranges(
            contract.kafka_topic(name)
        )
    read = [gaps.remaining_ranges(part, gaps.find_lost_ranges(part, available)) for part in topic_plan.parts]
    if not read:
        return None
    times = [stream_times.read_stream_times(spark, contract, name, part) for part in read]
    origin = Origin(read, times)
    return read_segments(spark, source, contract, plan, name, origin, store=False)


def read_planned(spark: SparkSession, contract: BoundContract, plan: Plan, name: str) -> DataFrame:
    """Return the records that a plan would add to a topic's log, as the log would have them, without writing."""
    return list_planned(spark, read_planned_segments(spark, contract, plan, name), plan, name)


def list_planned(spark: SparkSession, read: Segments | None, plan: Plan, name: str) -> DataFrame:
    """Return the records of `read_planned_segments` as the log would have them."""
    if read is None:
        return empty_records(spark)
    return erasure_marks.exclude_forgotten(select_log_rows(read, plan, name).as_frame())


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


def run_values(topic_plan: TopicPlan, plan: Plan, partition: int) -> dict[str, pa.Scalar]:
    """Return the values of `run_columns` in the rows of a partition."""
    values = {
        "topicId": pa.scalar(topic_plan.topic_id),
        "epoch": pa.scalar(topic_plan.epoch, pa.int32()),
        "run": pa.scalar(plan.run, pa.int64()),
        "systemFrom": pa.scalar(plan.known_at, tables.ARROW_TIMESTAMP),
    }
    if (member := topic_plan.members.get(partition)) is None:
        return values
    place = {"topic": pa.scalar(member.topic), "topicPartition": pa.scalar(member.partition, pa.int32())}
    return values | {"topicId": pa.scalar(member.topic_id)} | place


def read_segments(
    spark: SparkSession,
    source: TopicSource,
    contract: BoundContract,
    plan: Plan,
    name: str,
    origin: Origin,
    *,
    store: bool = True,
    on_disk: bool = False,
) -> Segments:
    """Return the records of these ranges, decoded, as segments.

    `store`: whether to store the schemas that records name beside the log (schemas.py). `on_disk`: keep them there.
    """
    topic, members = contract.topics[name], plan.topics[name].members
    few = files.is_small(sum(r.end - r.start for part in origin.ranges for r in part.values()))

    def read(by_client: Collection[int]) -> Segments:
        def decode_part(part: Mapping[int, OffsetRange]) -> DataFrame:
            raw = _read_raw_records(spark, source, contract, plan, name, part, by_client)
            return _decode_raw_records(contract, plan, name, part, raw, store=store)

        decoded = union_frames(map(decode_part, origin.ranges))
        # No persist: a commit to the log would drop the cache of a plan that reads it.
        storage = StorageLevel.DISK_ONLY if on_disk else None
        packed = segments.pack_records(decoded).localCheckpoint(eager=False, storageLevel=storage)
        return segments.read_segments(packed, decoded.schema, _fate_rule(topic), origin, few=few)

    return timestamp_overflow.run_with_client_fallback(read, members, source)


def select_log_rows(read: Segments, plan: Plan, name: str) -> TaskRows:
    """Return the records of segments as rows of a topic's log."""
    topic_plan = plan.topics[name]
    one = {"offsets": pa.scalar(1, pa.int64())}
    values = {p: one | run_values(topic_plan, plan, p) for p in topic_plan.planned_counts}
    shared = next(iter(values.values()))
    types = {field.name: field.dataType for field in read.schema} | {"streamTime": TimestampType()}
    types |= {column: from_arrow_type(value.type) for column, value in shared.items()}
    schema = StructType()
    for column in dict.fromkeys((*_LOG_COLUMNS, *shared)):
        if column in types:
            schema.add(column, types[column])
    return read.select_log_rows(values, schema)


def select_accepted(read: Segments, plan: Plan, name: str) -> DataFrame:
    """Return the accepted records of segments, as tables are derived from them (`initial_rows.RECORD_COLUMNS`)."""
    columns = {"_key": "key", "_value": "value", **{it: it for it in ("timestamp", "partition", "offset")}}
    shared = run_values(plan.topics[name], plan, 0)
    return read.select_accepted(columns, {it: shared[it] for it in ("epoch", "run")})


def _read_raw_records(
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


def _decode_raw_records(
    contract: BoundContract,
    plan: Plan,
    name: str,
    ranges: Mapping[int, OffsetRange],
    raw: DataFrame,
    *,
    store: bool,
) -> DataFrame:
    """Return the `raw` records of these ranges, decoded: `_LOG_COLUMNS` as far as no stream time is needed, of which
    `fate` is null where that decides it, and `DECODED_COLUMNS`.
    """
    topic = contract.topics[name]
    with_bytes = raw.withColumns({"_rawKey": F.col("key"), "_rawValue": F.col("value")})
    writers = schemas.resolve_schemas(contract, name, raw, plan if store else None)
    span = valid_time.skew_bounds(topic, plan.known_at)
    past = journal.read_runs(contract.warehouse, contract.pipeline)
    marked = erasure_marks.mark_forgotten(with_bytes, past, topic, name, writers, ranges)
    decoded = limits.decode_within_limit(marked, topic, lambda some: decode_records(some, topic, *span, writers))
    rows = decoded.select(
        "partition",
        "offset",
        "timestamp",
        "timestampType",
        "recordTimestamp",
        F.col("_rawKey").alias("key"),
        F.col("_rawValue").alias("value"),
        "headers",
        "fate",
        "reason",
        *(F.col(name).alias(alias) for name, alias in DECODED_COLUMNS.items()),
        *(column for column in decoded.columns if column == erasure_marks.MARK),
    )
    return erasure_marks.clear_forgotten(rows)


def retention_column(topic: Topic) -> Column:
    """Return the history retention of a topic as `order` takes it; null means no limit."""
    return F.lit(topic.history_retention).cast(retimestamping.RETENTION)


def _fate_rule(topic: Topic) -> FateRule:
    """Return which of a topic's records expire, and why."""
    retention = topic.history_retention
    micros = None if retention is None else retention // timedelta(microseconds=1)
    return FateRule(micros, _describe_retention(topic))


def expiry_reason(topic: Topic) -> Column:
    """Return the reason of expired records."""
    return F.concat(F.lit(_describe_retention(topic)), F.col("streamTime").cast("string"))


def _describe_retention(topic: Topic) -> str:
    return f"older than the history retention of {topic.history_retention} at stream time "
