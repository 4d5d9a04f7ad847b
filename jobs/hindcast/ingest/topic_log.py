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
| arrival | timestamp | of a topic with `arrival`: when the record could be known; else null |
| run, systemFrom | bigint, timestamp | the run that ingested it, and its known-at |
| forgotten | bigint | the run that forgot it: its bytes are gone; only where there is such a record |

Refused records are also in the quarantine, one table per pipeline, with the name of their topic.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import reduce
from typing import cast

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import from_arrow_type

from hindcast.bitemporal import fates
from hindcast.contract import Topic
from hindcast.contract.bound import BoundContract
from hindcast.ingest import erasure_marks, retimestamping, trim_ledger
from hindcast.kafka import topic_patterns
from hindcast.kafka.topics import HEADERS_SCHEMA
from hindcast.plan.plans import Plan, TopicPlan
from hindcast.store import arrow_reader, file_listing, tables
from hindcast.store.tables import Table

DISPUTED_MESSAGE = "a record of the log no longer decodes"

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


def may_have_hidden_records(log: Table, first: int, until: int, moments: pa.Array | None = None) -> bool:
    """Return whether a log may have records of runs up to `until` that are hidden to new ones, dated from `first` on.

    Those are tombstones and records of a new one's moment (`incremental.find_hidden_records`). Files and their
    statistics tell, and if they are small, their rows. `first`: in microseconds since 1970. `moments`: the timestamps
    of all new records; None if they are not known, or if not every tombstone is a record without a value.
    """
    if (found := tables.open_table(log)) is None:
        return False
    files = _list_files_since(found, first, until)
    if not files or moments is None or not file_listing.are_small(found, files):
        return bool(files)
    dated, value = pc.field("timestamp"), pc.field("value")
    is_later = dated >= pa.scalar(first, tables.ARROW_TIMESTAMP)
    where = (pc.field("run") <= until) & is_later & (value.is_null() | dated.isin(moments))
    return any(batch.num_rows for batch in arrow_reader.read_rows(found, files, {"run", "timestamp", "value"}, where))


def _list_files_since(log: DeltaTable, first: int, until: int) -> list[str]:
    """Return the files of a log that may have records of runs up to `until` that are dated from a moment on.

    Their statistics tell, which are rounded down to milliseconds.
    """
    files = pa.table(log.get_add_actions(flatten=True))
    if not {"min.run", "max.timestamp", "null_count.timestamp"} <= {*files.column_names}:
        return cast("list[str]", files.column("path").to_pylist())
    is_earlier = pc.less_equal(files.column("min.run").fill_null(0), until)
    latest = files.column("max.timestamp").cast(pa.int64())
    is_dated = pc.not_equal(files.column("null_count.timestamp"), files.column("num_records")).fill_null(True)
    may_reach = pc.coalesce(pc.greater_equal(latest, first - 1_000), is_dated)
    return cast("list[str]", files.filter(pc.and_(is_earlier, may_reach)).column("path").to_pylist())


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
    """Return the columns that all rows of a run share (`run_values`), and those of members."""
    shared = {
        name: F.lit(it.as_py()).cast(from_arrow_type(it.type)) for name, it in run_values(topic_plan, plan).items()
    }
    return shared | topic_patterns.member_columns(topic_plan.members)


def run_values(topic_plan: TopicPlan, plan: Plan) -> dict[str, pa.Scalar]:
    """Return the values that all rows of a run share, but for the topics of members."""
    return {
        "topicId": pa.scalar(topic_plan.topic_id),
        "epoch": pa.scalar(topic_plan.epoch, pa.int32()),
        "run": pa.scalar(plan.run, pa.int64()),
        "systemFrom": pa.scalar(plan.known_at, tables.ARROW_TIMESTAMP),
    }


def retention_column(topic: Topic) -> Column:
    """Return the history retention of a topic as `order` takes it; null means no limit."""
    return F.lit(topic.history_retention).cast(retimestamping.RETENTION)


def expiry_reason(topic: Topic) -> Column:
    """Return the reason of expired records."""
    return F.concat(F.lit(describe_retention(topic)), F.col("streamTime").cast("string"))


def describe_retention(topic: Topic) -> str:
    return f"older than the history retention of {topic.history_retention} at stream time "
