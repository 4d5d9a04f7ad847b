"""Bringing rows to today's store format where they lie: lazily, as runs touch their keys, and in the background.

What a row lacks is what the proxy view shows, so no answer changes by it, and it does not matter who is first. Each
commit looks only for rows without systemFrom: one that is made twice finds none the second time. A table keeps its
files and its partitions (none), whatever runs append to it.
"""

from __future__ import annotations

import json

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from hindcast.delta import attempts, commits, contents, store_formats, tables
from hindcast.delta.tables import Table
from hindcast.session import temporarily

_PENDING = "t.systemFrom IS NULL"

_NOTED = {"spark.databricks.delta.commitInfo.userMetadata": json.dumps({"upgraded": store_formats.TODAY})}
"""These commits are ours, and no run's."""


def touch(changes: DataFrame, table: Table) -> None:
    """Brings the rows to today's form that a change is about to close (plane.changes), with all others of their keys.

    Nothing is done to a table of today's format.
    """
    found = tables.opened(table)
    if found is None or (older := tables.older(found)) is None:
        return
    commits.mark_rows_only(changes.sparkSession, table)
    spark, view = changes.sparkSession, f"touched_of_{table.pipeline}_{table.name}"
    names = {column: f"_key{n}" for n, column in enumerate(table.key)}
    keys = changes.where("change = 'close'").select(*(F.col(f"`{c}`").alias(name) for c, name in names.items()))
    keys.distinct().createOrReplaceTempView(view)
    same = " AND ".join(f"t.`{column}` <=> s.`{name}`" for column, name in names.items())
    merge = (
        f"MERGE INTO delta.`{table.path}` t USING {view} s ON {_PENDING} AND {same} "
        f"WHEN MATCHED THEN UPDATE SET {_set(older)}"
    )
    try:
        with temporarily(spark, _NOTED):
            attempts.repeatable(lambda: spark.sql(merge).collect())
    finally:
        spark.catalog.dropTempView(view)


def pending(spark: SparkSession, table: Table) -> int:
    """How many rows of a table are not of today's form yet."""
    return contents.stored(spark, table).where("systemFrom IS NULL").count()


def chunk(spark: SparkSession, table: Table, number: int, of: int) -> None:
    """One commit that brings the rows of some keys to today's form: chunk `number` of `of`, from 0."""
    found = tables.opened(table)
    if found is None or (older := tables.older(found)) is None:
        return
    commits.mark_rows_only(spark, table)
    share = f"pmod(xxhash64({', '.join(f't.`{column}`' for column in table.key)}), {of}) = {number}"
    update = f"UPDATE delta.`{table.path}` t SET {_set(older)} WHERE {_PENDING} AND {share}"  # noqa: S608  # as above
    with temporarily(spark, _NOTED):
        attempts.repeatable(lambda: spark.sql(update).collect())


def _set(older: store_formats.Older) -> str:
    """What a row of an older format gets, as SQL: what the proxy view shows."""
    there = (*store_formats.OURS, *store_formats.FORMATS[older.format])
    return ", ".join(f"`{name}` = {text}" for name, text in store_formats.proxy(older, there, "spark").items())
