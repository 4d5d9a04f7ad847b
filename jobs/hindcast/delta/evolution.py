"""The columns of a table over time: Delta's schema evolution and type widening, as the contract asks for it.

A commit of metadata, never of data: the files that are there stay as they are, and what was believed before is read as
it was. `columns` says what a table can take; what changes in its rows, a run finds out as ever: it derives the table
whole, and a row that is the same in the contract's columns is neither closed nor opened.

    added price            null in the rows that are there; those whose record has it are corrected
    widened n to bigint    rows that are the same stay; only where the contract says `widen: spark_only`
    dropped note           the table keeps it; rows that are opened from then on have null
"""

from __future__ import annotations

import json
from datetime import datetime
from typing import Any

from deltalake import DeltaTable
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from hindcast.delta import attempts, columns, commits, making, tables
from hindcast.delta.columns import Difference
from hindcast.delta.tables import EVOLUTION, WIDENING, Table


def ensure(spark: SparkSession, table: Table, schema: StructType, known_at: datetime) -> DeltaTable:
    """The table of a topic or view, made if it is not there, with all columns of `schema`; other ones it keeps.

    `known_at`: that of the run, since when columns that `schema` lacks are dropped. TableError where the table cannot
    take them (`making.fit`). Safe to repeat: nothing is written where nothing changes.
    """
    found = making.ensure(table, schema)
    change, before = making.fit(found, table, schema), tables.dropped(found)
    dropped = {name: before.get(name, known_at) for name in change.dropped}
    if not change.grows and dropped == before:
        return found
    told = {name: at.isoformat() for name, at in dropped.items()}
    properties = {EVOLUTION: json.dumps({"dropped": told} if told else {})}
    if change.widened:
        properties[WIDENING] = "true"
    commits.describe(spark, table, properties, found)
    if change.grows:
        _grow(spark, table, schema, change, known_at)
    return DeltaTable(table.path)


def fitted(rows: DataFrame, schema: StructType) -> DataFrame:
    """Rows of a table with exactly the columns and types of `schema`: null for those that they lack."""
    if rows.schema.simpleString() == schema.simpleString():
        return rows
    return rows.select(*columns.selected(rows.schema, schema))


def _grow(spark: SparkSession, table: Table, schema: StructType, change: Difference, known_at: datetime) -> None:
    """One commit without rows that brings the columns: Delta merges them into the table's schema."""
    none = spark.createDataFrame([], making.nullable(schema)).write.format("delta").mode("append")
    note: dict[str, Any] = {"columns": str(change)}
    if change.widened:
        note |= {"widened": change.widened, "knownAt": known_at.isoformat()}
    writer = none.option("mergeSchema", "true").option("userMetadata", json.dumps(note))
    attempts.repeatable(lambda: writer.save(table.path))
