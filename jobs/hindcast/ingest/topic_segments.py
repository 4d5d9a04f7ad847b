"""The segments of a topic: from what Kafka has of planned offsets to rows of its log and accepted records."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timedelta

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import from_arrow_type
from pyspark.sql.types import StructType, TimestampType

from hindcast.bitemporal import valid_time
from hindcast.bitemporal.intervals import to_micros
from hindcast.common.spark_workers import raise_worker_errors
from hindcast.contract import Topic
from hindcast.contract.bound import BoundContract
from hindcast.formats.decode import decode_records
from hindcast.formats.decoder import TimeBounds, plan_decoding
from hindcast.ingest import erasure_marks, record_tasks, schemas, segments, stream_times, topic_log
from hindcast.ingest.client_segments import read_decoded_segments
from hindcast.ingest.segment_fates import FateRule
from hindcast.ingest.segments import Origin, Segments
from hindcast.kafka import gaps, topic_patterns
from hindcast.kafka.topic_patterns import TopicSource
from hindcast.kafka.topics import OffsetRange
from hindcast.plan import journal
from hindcast.plan.plans import Plan, TopicPlan
from hindcast.store import files
from hindcast.store.task_rows import TaskRows

_DECODED_COLUMNS = {"key": "_key", "value": "_value"}
_LOG_COLUMNS = (
    *("partition", "offset", "offsets", "timestamp", "timestampType", "recordTimestamp", "key", "value", "headers"),
    *("fate", "reason", "streamTime", erasure_marks.MARK),
)
"""The columns of a log that a record has by itself, in order."""


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
        return read_segments(spark, source, contract, plan, name, Origin(read, times), store=False)


def read_planned(spark: SparkSession, contract: BoundContract, plan: Plan, name: str) -> DataFrame:
    """Return the records that a plan would add to a topic's log, as the log would have them, without writing."""
    return list_planned(spark, read_planned_segments(spark, contract, plan, name), plan, name)


def read_planned_by_fate(
    spark: SparkSession, contract: BoundContract, plan: Plan, name: str, fates: Sequence[str] = ("accepted",)
) -> DataFrame:
    """Return the records of `read_planned` that have these fates."""
    return read_planned(spark, contract, plan, name).where(F.col("fate").isin(*fates))


def list_planned(spark: SparkSession, read: Segments | None, plan: Plan, name: str) -> DataFrame:
    """Return the records of `read_planned_segments` as the log would have them."""
    if read is None:
        return topic_log.empty_records(spark)
    return erasure_marks.exclude_forgotten(select_log_rows(read, plan, name).as_frame())


def read_segments(
    spark: SparkSession,
    source: TopicSource,
    contract: BoundContract,
    plan: Plan,
    name: str,
    origin: Origin,
    *,
    store: bool = True,
) -> Segments:
    """Return the records of these ranges, decoded, as segments.

    `store`: whether to store the schemas that records name beside the log (schemas.py).
    """
    rule, place = _fate_rule(contract.topics[name]), (contract.kafka_topic(name), plan.topics[name].members)

    def decode_part(part: Mapping[int, OffsetRange]) -> DataFrame:
        raw = record_tasks.read_records(spark, source, contract.settings, place, part)
        return _decode_raw_records(contract, plan, name, part, raw, store=store)

    with raise_worker_errors():
        if _is_decoded_by_tasks(contract, name, origin):
            topic = contract.topics[name]
            latest, earliest = (
                it(topic, plan.known_at) for it in (valid_time.latest_within_skew, valid_time.earliest_within_skew)
            )
            bounds = TimeBounds(to_micros(latest), to_micros(earliest))
            decoding = plan_decoding(topic)
            return read_decoded_segments(spark, source, contract.settings, decoding, bounds, place, rule, origin)
        decoded = topic_log.union_frames(map(decode_part, origin.ranges))
        few = files.is_small(origin.count_offsets())
        return segments.read_segments(segments.pack_records(decoded), decoded.schema, rule, origin, few=few)


def _is_decoded_by_tasks(contract: BoundContract, name: str, origin: Origin) -> bool:
    """Return whether the tasks that read records can decode them: nothing of Spark is needed, and none is forgotten."""
    past = journal.read_runs(contract.warehouse, contract.pipeline)
    if any(erasure_marks.has_passed(past, name, part) for part in origin.ranges):
        return False
    return not plan_decoding(contract.topics[name]).needs_spark


def select_log_rows(read: Segments, plan: Plan, name: str) -> TaskRows:
    """Return the records of segments as rows of a topic's log."""
    topic_plan = plan.topics[name]
    one = {"offsets": pa.scalar(1, pa.int64())}
    shared_by_all = one | topic_log.run_values(topic_plan, plan)
    values = {p: shared_by_all | _member_values(topic_plan, p) for p in topic_plan.planned_counts}
    shared = next(iter(values.values()))
    types = {field.name: field.dataType for field in read.schema} | {"streamTime": TimestampType()}
    types |= {column: from_arrow_type(value.type) for column, value in shared.items()}
    schema = StructType()
    for column in dict.fromkeys((*_LOG_COLUMNS, *shared)):
        if column in types:
            schema.add(column, types[column])
    return read.select_log_rows(values, schema)


def select_accepted(read: Segments, plan: Plan, name: str) -> TaskRows:
    """Return the accepted records of segments, as tables are derived from them (`initial_rows.RECORD_COLUMNS`)."""
    columns = {"_key": "key", "_value": "value", **{it: it for it in ("timestamp", "partition", "offset")}}
    shared = topic_log.run_values(plan.topics[name], plan)
    return read.select_accepted(columns, {it: shared[it] for it in ("epoch", "run")})


def _member_values(topic_plan: TopicPlan, partition: int) -> dict[str, pa.Scalar]:
    """Return the values of `topic_patterns.member_columns` in the rows of a partition."""
    if (member := topic_plan.members.get(partition)) is None:
        return {}
    return {
        "topicId": pa.scalar(member.topic_id),
        "topic": pa.scalar(member.topic),
        "topicPartition": pa.scalar(member.partition, pa.int32()),
    }


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
    `fate` is null where that decides it, and `_DECODED_COLUMNS`.
    """
    topic = contract.topics[name]
    with_bytes = raw.withColumns({"_rawKey": F.col("key"), "_rawValue": F.col("value")})
    writers = schemas.resolve_schemas(contract, name, raw, plan if store else None)
    span = valid_time.skew_bounds(topic, plan.known_at)
    past = journal.read_runs(contract.warehouse, contract.pipeline)
    marked = erasure_marks.mark_forgotten(with_bytes, past, topic, name, writers, ranges)
    decoded = decode_records(marked, topic, *span, writers, within_limit=True)
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
        *(F.col(name).alias(alias) for name, alias in _DECODED_COLUMNS.items()),
        *(column for column in decoded.columns if column == erasure_marks.MARK),
    )
    return erasure_marks.clear_forgotten(rows)


def _fate_rule(topic: Topic) -> FateRule:
    """Return which of a topic's records expire, and why."""
    retention = topic.history_retention
    micros = None if retention is None else retention // timedelta(microseconds=1)
    return FateRule(micros, topic_log.describe_retention(topic))
