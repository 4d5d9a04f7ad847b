"""Logs as the contract in force dates their records, also where runs had replayed them under another `valid_time`.

A log keeps the times by which a run judged its records, and the plan of each run knows the `valid_time` that gave them.
Where that is another than the contract's, the bytes are decoded again, and the whole log is dated and judged anew: by
the same rules, each record against the known-at of its own run. What is not of time (malformed, null_key, gone) stays.
A requeued record is judged at its offset's stream time, and moves none (requeued.py).
"""

from __future__ import annotations

from collections.abc import Collection

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from hindcast import horizon
from hindcast.contracts import Contract, Topic
from hindcast.corrected import order, valid_time
from hindcast.delta import tables
from hindcast.formats import Writers
from hindcast.formats.decode import decode
from hindcast.kafka import gaps
from hindcast.planning import journal
from hindcast.planning.journal import Run
from hindcast.planning.plans import Share
from hindcast.replay import forgotten, requeued, schemas
from hindcast.settings import settings

RETENTION = "interval day to second"
"""The type in which `order` takes a history retention."""

_OF_TIME = ("no_timestamp", "time_skew")
_UNREAD = ("malformed", "null_key", "no_change")


def log(spark: SparkSession, contract: Contract, name: str, after: int = 0) -> DataFrame:
    """The rows of a topic's log that runs after `after` brought, dated by the contract in force; the log is there.

    Rows that are dated anew have their fate judged anew too, by the contract's history retention, and what it was as
    `was`.
    """
    rows = requeued.records(spark, settings().warehouse, contract.pipeline, name)
    horizon.refuse_dating(tables.log(settings().warehouse, contract.pipeline, name), contract.topics[name].valid_time)
    if all(run <= after for run in _stale(contract, name)):
        return rows.where(F.col("run") > after)
    writers = schemas.known(spark, contract, name)
    again = F.col("run").isin(requeued.runs(spark, settings().warehouse, contract.pipeline, name))
    return _anew(rows, contract.topics[name], writers, again).where(F.col("run") > after)


def before(spark: SparkSession, contract: Contract, name: str, partitions: Collection[int]) -> DataFrame | None:
    """What tells how far stream time has come: `partition`, `offset`, `timestamp` and `fate`; None if the log does.

    The whole log, dated anew; or only what came since, where each of these partitions has some of that: its records
    know the stream time before them.
    """
    stale = _stale(contract, name)
    if not stale:
        return None
    again = F.col("run").isin(requeued.runs(spark, settings().warehouse, contract.pipeline, name))
    since = log(spark, contract, name, after=max(stale)).where(~again)
    there = {row["partition"] for row in since.select("partition").distinct().collect()}
    if not there.issuperset(partitions):
        return log(spark, contract, name).where(~again)
    own = F.when(F.col("fate") == "accepted", F.col("timestamp"))
    reached = F.greatest("streamTime", own).alias("timestamp")
    return since.select("partition", "offset", reached, F.lit("accepted").alias("fate"))


def changed(contract: Contract, name: str) -> bool:
    """Whether `valid_time` is another than in the last completed run, or in one that was given up since."""
    past = journal.runs(settings().warehouse, contract.pipeline)
    last = max((n for n, run in enumerate(past) if run.state == "completed"), default=0)
    return any(share.valid_time != contract.topics[name].valid_time for share in _shares(past[last:], name).values())


def _stale(contract: Contract, name: str) -> list[int]:
    """The runs that brought or requeued records under another `valid_time`."""
    past, wanted = journal.runs(settings().warehouse, contract.pipeline), contract.topics[name].valid_time
    requeues = {run.number for run in past if name in run.plan.get("requeues", {}).get("topics", ())}
    shares = _shares(past, name).items()
    return [run for run, share in shares if (share.parts or run in requeues) and share.valid_time != wanted]


def _shares(runs: list[Run], name: str) -> dict[int, Share]:
    """What each run was to take of a topic."""
    return {run.number: Share.from_json(run.plan["topics"][name]) for run in runs if name in run.plan["topics"]}


def _anew(rows: DataFrame, topic: Topic, writers: Writers, again: Column) -> DataFrame:
    """All rows of a log, dated and judged by the topic as it is now; `again`: whether a row was requeued."""
    own: Column = F.col("timestamp")
    if "recordTimestamp" in rows.columns:
        own = F.coalesce("recordTimestamp", "timestamp")
    told = {"was": F.col("fate"), "_why": F.col("reason"), "_dated": F.col("timestamp"), "timestamp": own}
    kept = rows.withColumns(told)
    kept = kept.withColumns({"_rawKey": F.col("key"), "_rawValue": F.col("value")})
    decoded = decode(kept, topic, *valid_time.span(topic, F.col("systemFrom")), writers)
    settled = F.col("was").isin(*_UNREAD, *gaps.FATES) | forgotten.is_forgotten(rows)
    # One that decoded before and does not now is accepted still: who decodes it next refuses (logs.undisputed).
    found = F.col("fate").isin(*_OF_TIME) | ((F.col("was") == "no_timestamp") & F.col("fate").isin(*_UNREAD))
    fates = {
        "fate": F.when(settled, F.col("was")).when(found, F.col("fate")).when(again, F.lit("accepted")),
        "reason": F.when(settled, F.col("_why")).when(found, F.col("reason")),
        "key": F.col("_rawKey"),
        "value": F.col("_rawValue"),
        # What is forgotten cannot be asked for its valid time: it keeps the one that it had, and moves no stream time.
        "timestamp": F.when(forgotten.is_forgotten(rows), F.col("_dated")).otherwise(F.col("timestamp")),
    }
    retention = F.lit(topic.history_retention).cast(RETENTION)
    # What is decided already moves no stream time: of a requeued record it is decided first, then judged by it.
    judged = order.judge_again(order.judge(decoded.withColumns(fates).drop("streamTime"), retention), retention)
    judged = judged.withColumn("fate", F.when(forgotten.is_forgotten(rows), F.col("was")).otherwise(F.col("fate")))
    columns = [*rows.columns, *(c for c in ("recordTimestamp",) if c not in rows.columns), "was"]
    return judged.select(*columns)
