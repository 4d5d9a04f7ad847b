"""The segments of a topic: from what Kafka has of planned offsets to rows of its log and accepted records."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timedelta

import pyarrow as pa
from pyspark import StorageLevel
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import from_arrow_type
from pyspark.sql.types import StructType, TimestampType

from hindcast.archives import archived_topics
from hindcast.bitemporal import valid_time
from hindcast.common.errors import TopicError
from hindcast.common.spark_workers import raise_worker_errors
from hindcast.contract import Topic
from hindcast.contract.bound import BoundContract
from hindcast.formats.dating import TimeBounds, find_time_bounds
from hindcast.formats.decoder import plan_decoding
from hindcast.formats.spark_decoding import decode_records
from hindcast.ingest import (
    arrivals,
    client_segments,
    erasure_marks,
    record_tasks,
    schemas,
    segment_packing,
    segments,
    stream_times,
    topic_log,
)
from hindcast.ingest.run_division import RunDivision
from hindcast.ingest.schemas import SchemasById
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
    *("fate", "reason", "streamTime", arrivals.COLUMN, erasure_marks.MARK),
)
"""The columns of a log that a record has by itself, in order."""


def read_planned_segments(spark: SparkSession, contract: BoundContract, plan: Plan, name: str) -> Segments | None:
    """Return the records that a plan would add to a topic's log, without writing; None if there are no offsets."""
    topic_plan = plan.topics[name]
    with archived_topics.open_source(contract) as source:
        available = topic_patterns.offset_source(source, topic_plan.members, plan.run).read_offset_ranges(
            contract.kafka_topic(name)
        )
        read = [gaps.remaining_ranges(part, gaps.find_lost_ranges(part, available)) for part in topic_plan.parts]
        if not read:
            return None
        times = [stream_times.read_stream_times(spark, contract, name, part) for part in read]
        arrived = [stream_times.read_arrivals(contract, name, part) for part in read]
        return read_segments(spark, source, contract, plan, name, Origin(read, times, arrived), store=False)


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

    `store`: whether to store the schemas that records name beside the log (schemas.py). Raises TopicError if producers
    set the timestamps that are to be arrivals.
    """
    topic, few = contract.topics[name], files.is_small(origin.count_offsets())
    place, decoding = (contract.kafka_topic(name), plan.topics[name].members), plan_decoding(topic, with_arrival=True)
    bounds = find_time_bounds(topic, plan.known_at)
    rule = _fate_rule(topic, bounds)

    def read_raw(part: Mapping[int, OffsetRange]) -> tuple[DataFrame, SchemasById]:
        raw = record_tasks.read_records(spark, source, contract.settings, place, part)
        if schemas.list_parts_with_ids(topic) and not few:  # read twice
            raw = raw.localCheckpoint(eager=False, storageLevel=StorageLevel.DISK_ONLY)
        return raw, schemas.resolve_schemas(contract, name, raw, plan if store else None)

    def pack_part(part: Mapping[int, OffsetRange]) -> DataFrame:
        raw, writers = read_raw(part)
        return client_segments.pack_avro(raw, plan_decoding(topic, writers, with_arrival=True), bounds, rule)

    def decode_part(part: Mapping[int, OffsetRange]) -> DataFrame:
        return _decode_raw_records(contract, plan, name, part, *read_raw(part))

    def read() -> Segments:
        if decoding.computed_times or _has_forgotten(contract, name, origin):
            decoded = topic_log.union_frames(map(decode_part, origin.ranges))
            packed = segment_packing.pack_records(decoded, rule)
            return segments.read_segments(packed, decoded.schema, rule, origin, few=few)
        if not decoding.needs_spark:
            return client_segments.read_decoded(spark, source, contract.settings, decoding, bounds, place, rule, origin)
        packed = topic_log.union_frames(map(pack_part, origin.ranges))
        return segments.read_segments(packed, client_segments.decoded_schema(decoding, bounds), rule, origin, few=few)

    with raise_worker_errors():
        found = read()
    _refuse_producers_times(contract, plan, name, found)
    return found


def _refuse_producers_times(contract: BoundContract, plan: Plan, name: str, read: Segments) -> None:
    """Raise TopicError if records have producers' timestamps, and `arrival` needs the broker's."""
    places = [(it.partition, it.created) for it in read.starts if it.created is not None]
    if not places:
        return
    partition, offset = min(places)
    place = topic_patterns.describe_partition(contract.kafka_topic(name), plan.topics[name].members, partition)
    raise TopicError(
        "the producer set the record's timestamp (CreateTime): it says when the record is true, not when it arrived, "
        f"but topics.{name}.arrival is record_timestamp",
        where=f"{place}, offset {offset}",
        fix="let arrival name a header or a column that says when the record was sent; or, if record_timestamp does, "
        "let valid_time say when it is true",
    )


def _has_forgotten(contract: BoundContract, name: str, origin: Origin) -> bool:
    """Return whether records of these ranges may be of a key that was forgotten."""
    past = journal.read_runs(contract.warehouse, contract.pipeline)
    return any(erasure_marks.has_passed(past, name, part) for part in origin.ranges)


def select_log_rows(read: Segments, plan: Plan, name: str, division: RunDivision | None = None) -> TaskRows:
    """Return the records of segments as rows of a topic's log; `division`: among the runs of a pass, else of one."""
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
    return read.select_log_rows(values, schema, division)


def select_accepted(read: Segments, plan: Plan, name: str, division: RunDivision | None = None) -> TaskRows:
    """Return the accepted records of segments, as tables are derived from them (`initial_rows.RECORD_COLUMNS`)."""
    columns = {"_key": "key", "_value": "value", **{it: it for it in ("timestamp", "partition", "offset")}}
    shared = topic_log.run_values(plan.topics[name], plan)
    return read.select_accepted(columns, {it: shared[it] for it in ("epoch", "run")}, division)


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
    writers: SchemasById,
) -> DataFrame:
    """Return the `raw` records of these ranges, decoded: `_LOG_COLUMNS` as far as no stream time is needed, of which
    `fate` is null where that decides it, and `_DECODED_COLUMNS`.
    """
    topic = contract.topics[name]
    with_bytes = raw.withColumns({"_rawKey": F.col("key"), "_rawValue": F.col("value")})
    span = valid_time.skew_bounds(topic, plan.known_at)
    past = journal.read_runs(contract.warehouse, contract.pipeline)
    marked = erasure_marks.mark_forgotten(with_bytes, past, topic, name, writers, ranges)
    decoded = decode_records(marked, topic, *span, writers, within_limit=True, with_arrival=True)
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
        *(column for column in decoded.columns if column in (arrivals.COLUMN, erasure_marks.MARK)),
    )
    return erasure_marks.clear_forgotten(rows)


def _fate_rule(topic: Topic, bounds: TimeBounds) -> FateRule:
    """Return which of a topic's records expire, and why, and how their arrivals are judged."""
    retention = topic.history_retention
    micros = None if retention is None else retention // timedelta(microseconds=1)
    latest = bounds.latest if isinstance(bounds.latest, int) else 0
    return FateRule(micros, topic_log.describe_retention(topic), arrivals.build_rule(topic, latest))
