"""The difference between a table's current rows and derived ones, as rows to open and close."""

from __future__ import annotations

from datetime import datetime

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StringType, StructField, StructType, TimestampType

from hindcast.bitemporal.incremental_views import AffectedRows
from hindcast.plan import horizon
from hindcast.store import row_reader, schema_evolution, table_creation, tables
from hindcast.store.tables import Table


def diff_whole(spark: SparkSession, table: Table, derived: DataFrame, frozen: datetime | None) -> DataFrame:
    """Return the changes that turn a table's current rows into the derived ones.

    The table may be missing. Raise TableError if it cannot have the columns of the derived rows.
    """
    if (delta_table := tables.open_table(table)) is not None:
        table_creation.fit_columns(delta_table, table, table_schema(derived))
    if not tables.count_rows(table):
        return horizon.clip_rows(derived, table.kind, frozen).withColumn("_change", F.lit("open"))
    return diff_current_rows(table, row_reader.load_current_rows(spark, table), derived, frozen)


def diff_increment(table: Table, affected: AffectedRows, frozen: datetime | None) -> DataFrame:
    """Return the changes of affected rows."""
    return diff_current_rows(table, affected.current, affected.derived, frozen)


def diff_current_rows(table: Table, current: DataFrame, derived: DataFrame, frozen: datetime | None) -> DataFrame:
    """Return the changes that turn current rows of a table into derived ones (`horizon.diff_rows_since`).

    They have the columns of the derived rows. What was true before `frozen` stays as it is. Columns that the contract
    no longer names are not compared; columns that the table does not have yet are null in current rows.
    """
    content = [c for c in derived.columns if c not in table.identity and not c.startswith("_")]
    fitted = schema_evolution.fit_rows(current, derived.schema)
    return horizon.diff_rows_since(fitted, derived, table.identity, content, table.kind, frozen)


def table_schema(derived: DataFrame) -> StructType:
    """Return the schema of a table of these rows, with the columns that every table has."""
    fields = table_creation.make_nullable(derived.schema).fields
    moments = [StructField(name, TimestampType()) for name in ("systemFrom", "systemTo")]
    own = [field for field in fields if not field.name.startswith("_")]
    lineage = [field for field in fields if field.name.startswith("_")]
    return StructType([*own, *moments, *lineage, StructField("_belief", StringType())])
