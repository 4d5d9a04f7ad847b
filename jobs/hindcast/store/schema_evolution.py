"""The columns of a table over time: Delta's schema evolution and type widening, as the contract asks for it.

A change of columns commits metadata: existing files stay as they are, unless the contract says `widen: rewrite`; what
was believed before is read as it was. `columns` says what a table can take. A run then derives the whole table, and a
row that is the same in the contract's columns is neither closed nor opened.

    added price            null in existing rows; those whose record has it are corrected
    widened n to bigint    equal rows stay; only where the contract says `widen: rewrite` or `widen: spark_only`
    dropped note           the table keeps it; rows that are opened from then on have null
"""

from __future__ import annotations

import json
from datetime import datetime

from deltalake import DeltaTable
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from hindcast.common.json_values import JsonObject, JsonValue
from hindcast.store import columns, commits, row_reader, table_columns, table_creation, tables
from hindcast.store.commit_ids import ADDING, REWRITING
from hindcast.store.tables import EVOLUTION, WIDENING, Table


def ensure_columns(spark: SparkSession, table: Table, schema: StructType, known_at: datetime, run: int) -> DeltaTable:
    """Return the table of a topic or view, created if needed, with the columns of `schema` added to its own.

    `known_at`: that of the `run`, since when columns that `schema` lacks are dropped. Raises TableError if the table
    cannot take the columns (`table_creation.fit_columns`). Safe to repeat: nothing is written where nothing changes.
    """
    delta_table = table_creation.ensure_table(table, schema, known_at)
    change, before = (
        table_creation.fit_columns(delta_table, table, schema),
        table_columns.read_dropped_columns(delta_table),
    )
    dropped = {name: before.get(name, known_at) for name in change.dropped}
    if not change.needs_change and dropped == before:
        return delta_table
    dropped_at = {name: at.isoformat() for name, at in dropped.items()}
    properties = {EVOLUTION: json.dumps({"dropped": dropped_at} if dropped_at else {})}
    rewrites = bool(change.widened) and table.widen == "rewrite" and not table_columns.is_widened(delta_table)
    if change.widened and not rewrites:
        properties[WIDENING] = "true"
    if columns.has_local_moments(schema) and _LOCAL_MOMENTS not in (delta_table.protocol().writer_features or ()):
        properties[f"delta.feature.{_LOCAL_MOMENTS}"] = "supported"  # Delta adds it only to tables that it creates
    commits.set_properties(spark, table, properties, delta_table)
    note: dict[str, JsonValue] = {"columns": str(change)}
    if change.widened:
        note |= {"widened": change.widened, "knownAt": known_at.isoformat()}
    if rewrites:
        _rewrite_rows(spark, table, schema, run, note | {"rewritten": run})
    elif change.needs_change:
        _add_columns(spark, table, schema, run, note)
    return DeltaTable(table.path)


_LOCAL_MOMENTS = "timestampNtz"
"""The feature of Delta of tables with columns of timestamp_ntz; delta-rs knows it too."""


def fit_rows(rows: DataFrame, schema: StructType) -> DataFrame:
    """Return rows of a table with exactly the columns and types of `schema`; a column that they lack is null."""
    if rows.schema.simpleString() == schema.simpleString():
        return rows
    return rows.select(*columns.select_columns(rows.schema, schema))


def _add_columns(spark: SparkSession, table: Table, schema: StructType, run: int, note: JsonObject) -> None:
    """Commit the new columns without rows: Delta merges them into the table's schema."""
    none = spark.createDataFrame([], table_creation.make_nullable(schema))
    commits.append_columns(none, table, run, note, ADDING)


def _rewrite_rows(spark: SparkSession, table: Table, schema: StructType, run: int, note: JsonObject) -> None:
    """Commit all rows of a table with the columns of `schema`, and those of its own that `schema` lacks."""
    after = tables.read_last_run(table)
    rows = row_reader.load_rows(spark, table)
    wanted = {field.name: field for field in table_creation.make_nullable(schema).fields}
    kept = [wanted.pop(field.name, field) for field in rows.schema.fields]
    rows = fit_rows(rows, StructType([*kept, *wanted.values()]))
    partitions = DeltaTable(table.path).metadata().partition_columns
    commits.rewrite_table(rows, table, run, note, REWRITING, partitions, after)
