"""Requeue: malformed records are decoded again under the current contract, in a run that ingests nothing else.

Their bytes are in the log. A record that decodes now gets a new fate, judged at the log's stream time of its offset,
and enters its table as a late record, with the run's known-at. One that still does not stays in the quarantine.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from datetime import datetime
from typing import NamedTuple

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from hindcast.bitemporal import fates, valid_time
from hindcast.common.errors import QueryError, show_briefly, suggest_nearest
from hindcast.common.json_values import JsonObject, list_objects
from hindcast.contract import Contract
from hindcast.contract.bound import BoundContract
from hindcast.contract.sensitive import REDACTED
from hindcast.formats.spark_decoding import decode_records
from hindcast.ingest import arrivals, erasure_marks, requeued_records, retimestamping, schemas, topic_log
from hindcast.kafka import topic_patterns
from hindcast.plan import journal
from hindcast.plan.plans import Plan
from hindcast.plan.purposes import Requeue
from hindcast.store import duckdb_reader, row_reader, tables

FORGOTTEN_REASON = "its key was forgotten: forget it again, and this record goes too"
"""The reason of a record that decodes now, and whose key was forgotten after Kafka had it."""

MAX_SHOWN = 5
"""How many records that still do not decode are shown with their reason."""


def build_request(
    contract: Contract,
    topic: str | None = None,
    reason: str | None = None,
    partition: int | None = None,
    offsets: Sequence[int] = (),
) -> Requeue:
    """Return the request for malformed records to requeue; all by default.

    `topic`: of the contract, or of Kafka (all its entries); `partition`: of a topic in Kafka. `reason`: a part of the
    log's reason for refusing them. Raises QueryError for what does not exist.
    """
    kafka = topic if topic is not None and topic not in contract.topics else None
    names = [topic] if topic in contract.topics else contract.find_entries(kafka) if kafka else list(contract.topics)
    if not names and kafka is not None:
        raise QueryError(f"no topic '{kafka}'", where=contract.pipeline, fix=suggest_nearest(kafka, contract.topics))
    if (offsets and partition is None) or (partition is not None and topic is None and len(contract.topics) > 1):
        usage = "hindcast requeue PIPELINE --topic T --partition P --offset O"
        raise QueryError("--offset needs --partition, and --partition needs --topic", fix=usage)
    if partition is not None and kafka is None and contract.topics[names[0]].pattern is not None:
        problem = f"--partition needs one topic, but {names[0]} is a pattern of topics"
        raise QueryError(problem, fix="name the topic as Kafka does: hindcast requeue PIPELINE --topic orders-eu ...")
    return Requeue(tuple(names), kafka, reason, partition, tuple(sorted(set(offsets))))


def count_waiting(warehouse: str, contract: Contract, request: Requeue) -> dict[str, int]:
    """Return how many requested malformed records each topic has; topics without any are left out."""
    counts = {}
    for name in request.topics:
        log = tables.open_table(tables.log_table(warehouse, contract.pipeline, name))
        entered = tables.open_table(tables.fates_table(warehouse, contract.pipeline, name))
        if log is None:
            continue
        with duckdb_reader.open_arrow_engine() as engine:
            engine.register("ingested", row_reader.open_dataset(log))
            not_forgotten = erasure_marks.not_forgotten_sql(log)
            engine.execute(f"CREATE TEMP VIEW log AS SELECT * FROM ingested WHERE {not_forgotten}")  # noqa: S608  # our own columns
            source = "log"
            if entered is not None:
                engine.register("entered", row_reader.open_dataset(entered))
                requeued = requeued_records.requeued_sql([field.name for field in entered.schema().fields])
                source = _DECIDED.format(requeued=requeued)
            row = engine.execute(
                f"SELECT count(*) FROM {source} WHERE fate = 'malformed' "  # noqa: S608  # our own columns
                'AND ($reason IS NULL OR contains(reason, $reason)) AND ($all OR list_contains($some, "partition")) '
                'AND (len($offsets) = 0 OR list_contains($offsets, "offset"))',
                {
                    "reason": request.reason,
                    "all": (partitions := _find_partitions(warehouse, contract, name, request)) is None,
                    "some": partitions or [],
                    "offsets": list(request.offsets),
                },
            ).fetchone()
        if row and row[0]:
            counts[name] = int(row[0])
    return counts


def decide_records(
    spark: SparkSession,
    contract: BoundContract,
    name: str,
    request: Requeue,
    known_at: datetime,
    plan: Plan | None = None,
) -> DataFrame:
    """Return the requested malformed records of a topic, as rows of `fates/<topic>` without the run's columns.

    `fate` is theirs by the current contract; malformed where they still do not decode, or where their key was forgotten
    since. `plan`: that of the run that decides, which stores the schemas that they name.
    """
    topic, warehouse = contract.topics[name], contract.warehouse
    rows = erasure_marks.exclude_forgotten(retimestamping.read_log(spark, contract, name)).where("fate = 'malformed'")
    partitions = _find_partitions(warehouse, contract, name, request)
    rows = rows.where(_request_condition(request, partitions))
    own = F.coalesce("recordTimestamp", "timestamp") if "recordTimestamp" in rows.columns else F.col("timestamp")
    bytes_ = rows.drop("reason", "was").withColumns(
        {"_rawKey": F.col("key"), "_rawValue": F.col("value"), "timestamp": own}
    )
    span: tuple[Column | datetime, Column | datetime] = valid_time.skew_bounds(topic, known_at)
    if arrivals.COLUMN in rows.columns:
        known = F.coalesce(arrivals.COLUMN, valid_time.timestamp_literal(known_at))
        span = valid_time.skew_columns(topic.time_skew, known)
    writers = schemas.resolve_schemas(contract, name, bytes_, plan)
    marked = erasure_marks.mark_forgotten(bytes_, journal.read_runs(warehouse, contract.pipeline), topic, name, writers)
    decoded = decode_records(marked, topic, *span, writers, within_limit=True)
    taken = decoded.withColumn("fate", F.coalesce("fate", F.lit("accepted")))
    judged = fates.redecide_fates(taken, topic_log.retention_column(topic))
    refused = {"fate": F.lit("malformed"), "reason": F.lit(FORGOTTEN_REASON)}
    is_forgotten = erasure_marks.is_forgotten(judged)
    judged = judged.withColumns({n: F.when(is_forgotten, why).otherwise(F.col(n)) for n, why in refused.items()})
    return judged.select(
        *("partition", "offset", "timestamp"),
        F.col("_rawKey").alias("key"),
        F.col("_rawValue").alias("value"),
        F.lit("malformed").alias("was"),
        F.lit(True).alias("requeued"),
        "fate",
        F.coalesce("reason", F.when(F.col("fate") == "expired", topic_log.expiry_reason(topic))).alias("reason"),
    )


def describe_still_malformed(contract: BoundContract, name: str, decided: DataFrame) -> JsonObject:
    """Return how many `records` still do not decode, and the `first` of them with their reasons."""
    rows = decided.where("fate = 'malformed'")
    shown = _list_first(contract, name, rows)
    first = [{field: value for field, value in row.items() if field != "fate"} for row in shown]
    return {"records": rows.count() if len(first) == MAX_SHOWN else len(first), "first": first}


def _list_first(contract: BoundContract, name: str, decided: DataFrame) -> list[JsonObject]:
    """Return the first few records with their fate and the reason."""
    rows = (
        decided.sort("partition", "offset").select("partition", "offset", "fate", "reason").limit(MAX_SHOWN).collect()
    )
    hidden = contract.has_sensitive_entry(contract.kafka_topic(name))
    known = journal.read_members(contract.warehouse, contract, name)
    return [
        row.asDict()
        | topic_patterns.member_fields(known, row["partition"])
        | ({"reason": REDACTED} if hidden and row["reason"] else {})
        for row in rows
    ]


class RequeuePreview(NamedTuple):
    """How many records would get each fate, the `first` of them with theirs, and those that are malformed `still`
    (`describe_still_malformed`).
    """

    requeued: dict[str, int]
    first: list[JsonObject]
    still: JsonObject


def preview_requeue(
    spark: SparkSession, contract: BoundContract, request: Requeue, known_at: datetime
) -> dict[str, RequeuePreview]:
    """Return what a requeue would make of the records, by topic, without writing."""
    preview = {}
    for name in count_waiting(contract.warehouse, contract, request):
        rows = decide_records(spark, contract, name, request, known_at).persist()
        counts = {row["fate"]: row["count"] for row in rows.groupBy("fate").count().collect()}
        first = _list_first(contract, name, rows.where("fate <> 'malformed'"))
        still = describe_still_malformed(contract, name, rows)
        preview[name] = RequeuePreview(_exclude_malformed(counts), first, still)
        rows.unpersist()
    return preview


def format_requeue(counts: Mapping[str, int], left: JsonObject, first: Sequence[JsonObject] = ()) -> str:
    """Return what became of the malformed records of a topic, in words: `counts` by fate, and those that are `left`.

    `first`: the first of the former with their fates. A record has one line, whatever its reason says.
    """
    parts = [f"{n:,} {fate}" for fate, n in counts.items()]
    parts += [f"{left['records']:,} still malformed"] if left["records"] else []
    lines = [", ".join(parts) or "none"]
    for record in (*first, *list_objects(left["first"])):
        place = f"partition {record['partition']}"
        if "topic" in record:
            place = f"{record['topic']}, partition {record['topicPartition']}"
        fate = ": ".join(show_briefly(str(text)) for text in (record.get("fate"), record["reason"]) if text)
        lines.append(f"{place}, offset {record['offset']}: {fate}")
    return "\n      ".join(lines)


def _exclude_malformed(counts: Mapping[str, int]) -> dict[str, int]:
    return {fate: n for fate, n in sorted(counts.items()) if fate != "malformed"}


def _find_partitions(warehouse: str, contract: Contract, name: str, request: Requeue) -> list[int] | None:
    """Return the requested partitions of a topic's log (for a pattern, its members' numbers); None for all."""
    kafka, partition = request.kafka_topic, request.partition
    if kafka is None or not (known := journal.read_members(warehouse, contract, name)):
        return None if partition is None else [partition]
    return [n for n, member in known.items() if member.topic == kafka and partition in (None, member.partition)]


_DECIDED = """(
    SELECT "partition", "offset", coalesce(since.fate, log.fate) AS fate, coalesce(since.reason, log.reason) AS reason
    FROM log LEFT JOIN (
        SELECT "partition", "offset", last(fate ORDER BY run, {requeued}) AS fate,
               last(reason ORDER BY run, {requeued}) AS reason
        FROM entered GROUP BY "partition", "offset"
    ) AS since USING ("partition", "offset")
)"""
"""A log with its latest fates."""


def _request_condition(request: Requeue, partitions: Collection[int] | None) -> Column:
    condition = F.lit(True)
    if request.reason is not None:
        condition = condition & F.contains("reason", F.lit(request.reason))
    if partitions is not None:
        condition = condition & F.col("partition").isin(*partitions)
    if request.offsets:
        condition = condition & F.col("offset").isin(*request.offsets)
    return condition
