"""In-place migration of rows to today's store format: lazily, as runs touch their keys, and in the background.

A row gets the values that the proxy view shows, so no answer changes, and it does not matter who migrates it first. A
commit looks only for rows that lack some of them: made twice, it finds none the second time. A table keeps its files
and its partitions (none), whatever runs append to it.
"""

from __future__ import annotations

import json

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from hindcast.common.session import override_conf
from hindcast.store import commit_once, commits, own_tables, row_reader, store_formats, tables
from hindcast.store.tables import Table

_PENDING = "(systemFrom IS NULL OR _belief IS NULL)"
"""The condition of rows to migrate. Some that runs of earlier versions added to an adopted table have no belief."""

_COMMIT_NOTE = {
    "spark.databricks.delta.commitInfo.userMetadata": json.dumps({"upgraded": store_formats.CURRENT_FORMAT})
}
"""The note of these commits, which belong to no run."""


def migrate_changed_keys(changes: DataFrame, table: Table) -> None:
    """Migrate to today's format the rows that a change will close (`plane.diff_rows`), and all others of their keys.

    Does nothing to a table of today's format.
    """
    delta_table = tables.open_table(table)
    if delta_table is None or (older := tables.read_older_format(delta_table)) is None:
        return
    commits.enable_deletion_vectors(changes.sparkSession, table)
    spark, view = changes.sparkSession, f"touched_of_{table.pipeline}_{table.name}"
    names = {column: f"_key{n}" for n, column in enumerate(table.key)}
    keys = changes.where("_change = 'close'").select(*(F.col(f"`{c}`").alias(name) for c, name in names.items()))
    keys.distinct().createOrReplaceTempView(view)
    same = " AND ".join(f"t.`{column}` <=> s.`{name}`" for column, name in names.items())
    merge = (
        f"MERGE INTO delta.`{table.path}` t USING {view} s ON {_PENDING} AND {same} "
        f"WHEN MATCHED THEN UPDATE SET {_set_clause(older)}"
    )
    try:
        with override_conf(spark, _COMMIT_NOTE):
            commit_once.commit_repeatable(lambda: own_tables.run_statement(spark, table.path, merge))
    finally:
        spark.catalog.dropTempView(view)


def count_pending_rows(spark: SparkSession, table: Table) -> int:
    """Return how many rows of a table are not migrated to today's format yet."""
    return row_reader.load_stored_rows(spark, table).where(_PENDING).count()


def migrate_chunk(spark: SparkSession, table: Table, number: int, of: int) -> None:
    """Migrate the rows of some keys to today's format in one commit: chunk `number` of `of`, from 0."""
    delta_table = tables.open_table(table)
    if delta_table is None or (older := tables.read_older_format(delta_table)) is None:
        return
    commits.enable_deletion_vectors(spark, table)
    in_chunk = f"pmod(xxhash64({', '.join(f't.`{column}`' for column in table.key)}), {of}) = {number}"
    update = f"UPDATE delta.`{table.path}` t SET {_set_clause(older)} WHERE {_PENDING} AND {in_chunk}"  # noqa: S608  # as above
    with override_conf(spark, _COMMIT_NOTE):
        commit_once.commit_repeatable(lambda: own_tables.run_statement(spark, table.path, update))


def _set_clause(older: store_formats.OlderFormat) -> str:
    """Return what a row of an older format gets, as SQL: what the proxy view shows."""
    columns = (*store_formats.ADDED_COLUMNS, *store_formats.FORMATS[older.format])
    proxies = store_formats.proxy_columns(older, columns, "spark").items()
    return ", ".join(f"`{name}` = {text}" for name, text in proxies)
