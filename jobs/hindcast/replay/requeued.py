"""The log of a topic with what requeues have made of it: records that were malformed, decided once more.

The log itself keeps the fate that a record got when it was replayed. A requeue enters what a malformed record is since
(fates.py, `was` = malformed). Here such a record has that fate, and run and known-at of the requeue that decided it: so
it is new to whoever asks for the records after a run, and is told alike whether a table is derived whole or not. It has
moved no stream time, and moves none: other records keep their fates.
"""

from __future__ import annotations

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from hindcast.delta import contents, tables

_DECIDED = ("timestamp", "fate", "reason", "run", "systemFrom")
_PLACE = ["partition", "offset"]
_ONCE = "fate IN ('malformed', 'no_timestamp')"
"""What a requeue can have decided: a record without timestamp may be malformed to another `valid_time`."""


def records(spark: SparkSession, warehouse: str, pipeline: str, name: str) -> DataFrame:
    """All rows of a topic's log, which is there, with the columns that a log has."""
    rows = contents.load(spark, tables.log(warehouse, pipeline, name))
    decided = _entries(spark, warehouse, pipeline, name)
    if decided is None:
        return rows
    was = rows.where(_ONCE).join(decided, _PLACE, "left")
    # Of an accepted one the reason is null: a fate tells whether there is an entry.
    since = {c: F.when(F.col("_fate").isNotNull(), F.col(f"_{c}")).otherwise(F.col(c)) for c in _DECIDED}
    if "recordTimestamp" in rows.columns:  # Kafka's own, where the record is dated otherwise now
        own = F.when(F.col("_timestamp") != F.col("timestamp"), F.col("timestamp"))
        since["recordTimestamp"] = F.coalesce("recordTimestamp", own)
    told = was.withColumns(since).select(*rows.columns)
    return rows.where(f"NOT ({_ONCE})").unionByName(told)


def runs(spark: SparkSession, warehouse: str, pipeline: str, name: str) -> list[int]:
    """The requeues that have decided records of a topic: all that `records` has of these runs."""
    decided = _entries(spark, warehouse, pipeline, name)
    return [] if decided is None else sorted(row[0] for row in decided.select("_run").distinct().collect())


def turn(spark: SparkSession, warehouse: str, pipeline: str, name: str) -> Column:
    """Between which requeues a record of `records` has come, as an even number; of a requeued one its own, odd.

    In the order of (turn, offset) a requeued record comes after all of its partition that were there before it.

        runs 1, 2, 4 and requeue 3    ->    0, 0, 2 and 1
    """
    turns = F.lit(0)
    for run in runs(spark, warehouse, pipeline, name):
        turns = turns + F.when(F.col("run") > run, 2).when(F.col("run") == run, 1).otherwise(0)
    return turns


def _entries(spark: SparkSession, warehouse: str, pipeline: str, name: str) -> DataFrame | None:
    """What requeues have decided of a topic, by place; None where there was none."""
    entered = tables.fates(warehouse, pipeline, name)
    if tables.opened(entered) is None:
        return None
    rows = contents.load(spark, entered).where("was = 'malformed'")
    return rows.select(*_PLACE, *(F.col(c).alias(f"_{c}") for c in _DECIDED))
