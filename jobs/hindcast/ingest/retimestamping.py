"""Logs as the current contract dates their records, also where runs had replayed them under another `valid_time`.

A log keeps the times by which a run judged its records, and the plan of each run knows the `valid_time` that gave them.
Where that differs from the contract's, the bytes are decoded again, and the whole log is dated and judged again: by the
same rules, each record against its arrival, or the known-at of its own run. Fates unrelated to time (malformed,
null_key, gone) stay.
Its time skew is judged once under a `valid_time`: by the run that ingested it, or by the first one that dated it so.
A requeued record is judged at its offset's stream time, and does not move it (requeued_records.py).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from itertools import takewhile

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from hindcast.bitemporal import valid_time
from hindcast.bitemporal.fates import decide_fates, redecide_fates
from hindcast.contract import Topic
from hindcast.contract.bound import BoundContract
from hindcast.contract.definition import parse_fields
from hindcast.contract.topic import TimeSkew
from hindcast.formats import WriterSchemas
from hindcast.formats.spark_decoding import decode_records
from hindcast.ingest import arrivals, erasure_marks, requeued_records, schemas
from hindcast.kafka import gaps
from hindcast.plan import definitions, horizon, journal
from hindcast.plan.plans import TopicPlan
from hindcast.plan.runs import Run
from hindcast.store import tables

RETENTION = "interval day to second"
"""The type in which `order` takes a history retention."""

_OF_TIME = ("no_timestamp", "time_skew")
_UNREAD = ("malformed", "null_key", "no_change")


def read_log(spark: SparkSession, contract: BoundContract, name: str, after: int = 0) -> DataFrame:
    """Return the rows of a topic's log, which exists, of runs after `after`, dated by the current contract.

    Rows that are dated again are also judged again, by the contract's history retention, and have their former fate as
    `was`.
    """
    rows = requeued_records.read_records(spark, contract.warehouse, contract.pipeline, name)
    horizon.refuse_dating(
        tables.log_table(contract.warehouse, contract.pipeline, name), contract.topics[name].valid_time
    )
    stale = find_stale_runs(spark, contract, name)
    if all(run <= after for run in stale):
        return rows.where(F.col("run") > after)
    writers = schemas.read_schemas(spark, contract, name)
    again, skews = is_requeued(spark, contract, name), _find_skews(contract, name, stale)
    return _retimestamp_rows(rows, contract.topics[name], writers, again, skews).where(F.col("run") > after)


def read_stream_time_rows(
    spark: SparkSession, contract: BoundContract, name: str, partitions: Collection[int]
) -> DataFrame | None:
    """Return the rows that give stream time: `partition`, `offset`, `timestamp`, `fate`; None if the log's are current.

    The whole log, dated again; or only later rows, if some of each of these partitions know the stream time before
    them: a gap does not.
    """
    stale = find_stale_runs(spark, contract, name)
    if not stale:
        return None
    again = is_requeued(spark, contract, name)
    own = F.when(F.col("fate") == "accepted", F.col("timestamp"))
    reached = F.greatest("streamTime", own).alias("timestamp")
    since = read_log(spark, contract, name, after=max(stale)).where(~again)
    since = since.select("partition", "offset", reached, F.lit("accepted").alias("fate")).where("timestamp IS NOT NULL")
    covered = {row["partition"] for row in since.select("partition").distinct().collect()}
    if not covered.issuperset(partitions):
        return exclude_undated(spark, read_log(spark, contract, name), contract, name).where(~again)
    return since


def exclude_undated(spark: SparkSession, rows: DataFrame, contract: BoundContract, name: str) -> DataFrame:
    """Return rows of `read_log` without forgotten ones that have only the time of another `valid_time`.

    They have no bytes to date, so they say nothing about stream time.
    """
    stale = find_stale_runs(spark, contract, name)
    return rows.where(~(erasure_marks.is_forgotten(rows) & F.col("run").isin(stale)))


def has_valid_time_changed(contract: BoundContract, name: str) -> bool:
    """Return whether `valid_time` differs from that of the last completed run, or of a run abandoned since."""
    topic_plans = _load_topic_plans(read_recent_runs(contract), name).values()
    return any(topic_plan.valid_time != contract.topics[name].valid_time for topic_plan in topic_plans)


def read_recent_runs(contract: BoundContract) -> list[Run]:
    """Return the last completed run of a pipeline and those after it; all runs if none was completed.

    One that skipped tables does not count.
    """
    past = journal.read_runs(contract.warehouse, contract.pipeline)
    last = max((n for n, run in enumerate(past) if run.has_done_all_tables), default=0)
    return past[last:]


def is_requeued(spark: SparkSession, contract: BoundContract, name: str) -> Column:
    """Return whether a requeue has decided a row of `read_log`: it does not move stream time."""
    runs = requeued_records.list_requeue_runs(spark, contract.warehouse, contract.pipeline, name)
    return F.col("run").isin(runs)


def find_stale_runs(spark: SparkSession, contract: BoundContract, name: str) -> list[int]:
    """Return the runs that ingested or requeued records under another `valid_time`."""
    past, topic = journal.read_runs(contract.warehouse, contract.pipeline), contract.topics[name]
    other = {run: plan for run, plan in _load_topic_plans(past, name).items() if plan.valid_time != topic.valid_time}
    if not other:
        return []
    # Not by their plans: in a journal that was rebuilt a requeue is a run like any other.
    requeues = requeued_records.list_requeue_runs(spark, contract.warehouse, contract.pipeline, name)
    return [run for run, plan in other.items() if plan.parts or run in requeues]


def _find_skews(contract: BoundContract, name: str, stale: list[int]) -> dict[int, TimeSkew]:
    """Return for each stale run the time skew by which its records are judged under the current `valid_time`.

    That of the first completed run that dated them by it; the contract's if there was none, or if its text is lost.
    """
    past, topic = journal.read_runs(contract.warehouse, contract.pipeline), contract.topics[name]
    dated = [run for run in reversed(past) if run.has_done_all_tables and name in run.plan.topics]
    dated = list(takewhile(lambda run: run.plan.topics[name].valid_time == topic.valid_time, dated))
    known = {run.number: skew for run in reversed(dated) if (skew := _read_skew(past, run, name)) is not None}
    return {run: next((skew for n, skew in known.items() if n > run), topic.time_skew) for run in stale}


def _read_skew(past: list[Run], run: Run, name: str) -> TimeSkew | None:
    """Return the time skew that a topic had in a run; None if the contract of that run is not known or not valid."""
    fields = definitions.find_fields(past, run.plan.contract)
    if fields is None:
        return None
    try:
        return parse_fields(fields).topics[name].time_skew
    except ValueError:
        return None


def _load_topic_plans(runs: list[Run], name: str) -> dict[int, TopicPlan]:
    """Return each run's plan of a topic."""
    return {run.number: run.plan.topics[name] for run in runs if name in run.plan.topics}


def _skew_bounds(skews: Mapping[int, TimeSkew], known: Column) -> tuple[Column, Column]:
    """Return the latest and the earliest time that a record of a log may have, if it is one of a run in `skews`.

    `known`: when it could be known.
    """
    latest = earliest = F.lit(None).cast("timestamp")
    runs: dict[TimeSkew, list[int]] = {}
    for run, skew in skews.items():
        runs.setdefault(skew, []).append(run)
    for skew, numbers in runs.items():
        of_these, bounds = F.col("run").isin(numbers), valid_time.skew_columns(skew, known)
        latest, earliest = (
            F.when(of_these, own).otherwise(it) for own, it in zip(bounds, (latest, earliest), strict=True)
        )
    return latest, earliest


def _retimestamp_rows(
    rows: DataFrame, topic: Topic, writers: WriterSchemas, again: Column, skews: Mapping[int, TimeSkew]
) -> DataFrame:
    """Return all rows of a log, dated and judged by the current topic.

    `again`: whether a row was requeued; `skews`: for each run that dated its records otherwise, their time skew.
    """
    own: Column = F.col("timestamp")
    if "recordTimestamp" in rows.columns:
        own = F.coalesce("recordTimestamp", "timestamp")
    previous = {"was": F.col("fate"), "_why": F.col("reason"), "_dated": F.col("timestamp"), "timestamp": own}
    before = rows.withColumns(previous)
    before = before.withColumns({"_rawKey": F.col("key"), "_rawValue": F.col("value")})
    known = F.col("systemFrom")
    if arrivals.COLUMN in rows.columns:
        known = F.coalesce(arrivals.COLUMN, known)
    decoded = decode_records(before, topic, *_skew_bounds(skews, known), writers)
    current = ~F.col("run").isin(*skews)  # dated so, and judged, by the run that ingested it
    forgotten = erasure_marks.is_forgotten(rows)
    settled = F.col("was").isin(*_UNREAD, *gaps.GAP_FATES) | (forgotten & ~current)
    settled = settled | (current & F.col("was").isin(*_OF_TIME))
    # A record that no longer decodes is still accepted here: `topic_log.refuse_undecodable` refuses it.
    judged_now = (~current & F.col("fate").isin(*_OF_TIME)) | (
        (F.col("was") == "no_timestamp") & F.col("fate").isin(*_UNREAD)
    )
    fates = {
        "fate": F.when(settled, F.col("was")).when(judged_now, F.col("fate")).when(again, F.lit("accepted")),
        "reason": F.when(settled | forgotten, F.col("_why")).when(judged_now, F.col("reason")),
        "key": F.col("_rawKey"),
        "value": F.col("_rawValue"),
        # A forgotten record has no bytes to date: it keeps its time, and moves stream time only if that is current.
        "timestamp": F.when(current | forgotten, F.col("_dated")).otherwise(F.col("timestamp")),
    }
    retention = F.lit(topic.history_retention).cast(RETENTION)
    # A decided record does not move stream time: requeued ones are decided first, then judged by it.
    judged = redecide_fates(decide_fates(decoded.withColumns(fates).drop("streamTime"), retention), retention)
    judged = judged.withColumn("fate", F.when(forgotten, F.col("was")).otherwise(F.col("fate")))
    columns = [*rows.columns, *(c for c in ("recordTimestamp",) if c not in rows.columns), "was"]
    return judged.select(*columns)
