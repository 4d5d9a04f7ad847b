"""Derived rows beside those that a table has: what makes these into those."""

from __future__ import annotations

from datetime import datetime

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StringType, StructField, StructType, TimestampType

from hindcast import horizon
from hindcast.corrected.refresh import Refreshed
from hindcast.delta import commits, contents, evolution, making, tables
from hindcast.delta.tables import Table
from hindcast.planning.plans import Plan


def whole(spark: SparkSession, table: Table, derived: DataFrame, todo: Plan, frozen: datetime | None) -> DataFrame:
    """What makes the rows believed now into the derived ones; the table is made if it is not there."""
    found = evolution.ensure(spark, table, table_schema(derived), todo.known_at)
    if frozen is not None and not tables.published(table) and horizon.of(table, found) is None:
        # It begins where its inputs do.
        commits.describe(spark, table, {horizon.PROPERTY: horizon.Horizon(frozen).text})
    if not tables.size(table):
        return horizon.begun(derived, table.kind, frozen).withColumn("change", F.lit("open"))
    return compared(table, contents.believed(spark, table), derived, frozen)


def fitting(spark: SparkSession, table: Table, found: Refreshed, todo: Plan, frozen: datetime | None) -> DataFrame:
    """What increments found, compared; TableError where the table cannot have these columns."""
    evolution.ensure(spark, table, table_schema(found.right), todo.known_at)
    return compared(table, found.believed, found.right, frozen)


def compared(table: Table, believed: DataFrame, right: DataFrame, frozen: datetime | None) -> DataFrame:
    """What makes believed rows of a table into the right ones (horizon.changes), in the columns of these.

    What was true before the table is `frozen` stays as it is. In what the contract does not name any more rows may
    differ; in what the table does not have yet, believed ones have null.
    """
    content = [c for c in right.columns if c not in table.identity and not c.startswith("_")]
    there = evolution.fitted(believed, right.schema)
    return horizon.changes(there, right, table.identity, content, table.kind, frozen)


def table_schema(derived: DataFrame) -> StructType:
    """The columns of a table of these rows."""
    fields = making.nullable(derived.schema).fields
    moments = [StructField(name, TimestampType()) for name in ("systemFrom", "systemTo")]
    own = [field for field in fields if not field.name.startswith("_")]
    lineage = [field for field in fields if field.name.startswith("_")]
    return StructType([*own, *moments, *lineage, StructField("_belief", StringType())])
