"""The log of a topic with the malformed records that requeues have decided again.

The log itself keeps the fate that a record got when it was replayed. A requeue enters the new fate of a malformed
record (fate_revisions.py, `requeued`). Here such a record has the fate that the last requeue gave it, and the run and
known-at of this requeue: so it is new to a reader of the records after a run, and the same whether a table is derived
whole or not. It never moves stream time: other records keep their fates.
"""

from __future__ import annotations

from collections.abc import Collection

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from hindcast.store import row_reader, tables

_DECIDED = ("timestamp", "fate", "reason", "run", "systemFrom")
_PLACE = ["partition", "offset"]
_ONCE = "fate IN ('malformed', 'no_timestamp')"
"""The fates that a requeue may have changed: a record without timestamp may be malformed by another `valid_time`."""


def read_records(spark: SparkSession, warehouse: str, pipeline: str, name: str) -> DataFrame:
    """Return all rows of a topic's log, which exists, with the columns of the log."""
    rows = row_reader.load_rows(spark, tables.log_table(warehouse, pipeline, name))
    decided = _read_entries(spark, warehouse, pipeline, name)
    if decided is None:
        return rows
    undecided = rows.where(_ONCE).join(decided, _PLACE, "left")
    # The reason of an accepted record is null: only the fate shows whether there is an entry.
    since = {c: F.when(F.col("_fate").isNotNull(), F.col(f"_{c}")).otherwise(F.col(c)) for c in _DECIDED}
    if "recordTimestamp" in rows.columns:  # Kafka's own, where the record has another date now
        own = F.when(F.col("_timestamp") != F.col("timestamp"), F.col("timestamp"))
        since["recordTimestamp"] = F.coalesce("recordTimestamp", own)
    requeued = undecided.withColumns(since).select(*rows.columns)
    return rows.where(f"NOT ({_ONCE})").unionByName(requeued)


def list_requeue_runs(spark: SparkSession, warehouse: str, pipeline: str, name: str) -> list[int]:
    """Return the requeues that decided records of a topic: `read_records` has no other rows of these runs."""
    decided = _read_entries(spark, warehouse, pipeline, name)
    return [] if decided is None else sorted(row[0] for row in decided.select("_run").distinct().collect())


def requeue_turn(spark: SparkSession, warehouse: str, pipeline: str, name: str) -> Column:
    """Return the turn of a record of `read_records`: even between requeues, odd for what a requeue decided.

    In the order of (turn, offset) a requeued record follows all records of its partition that were there before it.

        runs 1, 2, 4 and requeue 3    ->    0, 0, 2 and 1
    """
    turns = F.lit(0)
    for run in list_requeue_runs(spark, warehouse, pipeline, name):
        turns = turns + F.when(F.col("run") > run, 2).when(F.col("run") == run, 1).otherwise(0)
    return turns


def requeued_sql(columns: Collection[str]) -> str:
    """Return the condition, for Spark and DuckDB, that a requeue made an entry of a table of fates with these columns.

    Tables of older programs do not say so: there it is every entry about a malformed record.
    """
    return "coalesce(requeued, was = 'malformed')" if "requeued" in columns else "was = 'malformed'"


def _read_entries(spark: SparkSession, warehouse: str, pipeline: str, name: str) -> DataFrame | None:
    """Return what requeues have decided of a topic, by place; None without a requeue."""
    entered = tables.fates_table(warehouse, pipeline, name)
    if tables.open_table(entered) is None:
        return None
    rows = row_reader.load_rows(spark, entered)
    last = F.max_by(F.struct(*_DECIDED), "run").alias("_last")
    rows = rows.where(requeued_sql(rows.columns)).groupBy(*_PLACE).agg(last)
    return rows.select(*_PLACE, *(F.col(f"_last.{c}").alias(f"_{c}") for c in _DECIDED))
