"""Downgrade a table of today's store format to an older one, which other programs can read and write.

    mark -> losses? -> rewrite

The mark comes first: with it runs refuse the table, also those that were planned before, and it is read through the
proxy view, which shows rows of today's format as they are. It is taken back if the table would lose what it may not.
Otherwise one commit leaves what the older format has. Log and base stay: an upgrade derives from them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta

from deltalake import DeltaTable
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructField, StructType, TimestampType

from hindcast.common.errors import BusyError, HindcastError, RequestError
from hindcast.contract.bound import BoundContract
from hindcast.ops.upgrade.upgrade import DOWNGRADE_NOTE, locate_topic_table
from hindcast.plan import horizon, journal, notices, planner
from hindcast.plan.horizon import Removal
from hindcast.runs import store_migration
from hindcast.store import commits, row_reader, store_formats, table_columns, table_creation, tables
from hindcast.store.store_formats import CURRENT_FORMAT, FORMAT_PROPERTY, FORMATS, UNKNOWN_TIME, OlderFormat
from hindcast.store.tables import Table


def downgrade_table(
    spark: SparkSession, contract: BoundContract, name: str, to: str, *, lose: bool = False
) -> list[str]:
    """Downgrade a topic's table to an older store format, or go on with that; return what was done, as lines.

    Raises RequestError for a table whose format is older already, or that would lose something while `lose` is not set.
    Raises BusyError if a run of the pipeline has not ended, or another process downgrades the table.
    """
    table = locate_topic_table(contract, name)
    with notices.post_alone(table.warehouse, table.pipeline, f"the downgrade of {name}"):
        delta_table = tables.open_table(table)
        if delta_table is None:
            raise RequestError("there is no table", where=table.path, fix="run the pipeline: it creates one")
        older_format = tables.read_older_format(delta_table)
        columns = [field.name for field in delta_table.schema().fields]
        if older_format is not None and older_format.mode is not None:
            fix = f"finish it: hindcast upgrade {table.pipeline}.{table.name} --mode {older_format.mode}"
            raise RequestError("is being upgraded", where=table.path, fix=fix)
        current, formats = older_format.format if older_format else CURRENT_FORMAT, list(FORMATS)
        done = f"the store format is {to}; runs refuse the table until it is upgraded"
        if to == current and store_formats.is_within_format(to, columns):
            return [done]
        if formats.index(to) > formats.index(current):
            raise RequestError(f"already has the older store format {current}", where=table.path)
        _refuse_open_runs(table)
        has_todays_rows = "systemFrom" in columns
        if has_todays_rows:  # else runs refuse the table already
            mark_older_format(spark, table, OlderFormat(to, _EPOCH), {})
        try:
            lost = _rewrite_marked(spark, table, to, lose=lose)
        except HindcastError:
            if has_todays_rows:
                _take_mark_back(spark, table)
            raise
        return [*lost, done]


_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def _refuse_open_runs(table: Table) -> None:
    open_runs = [run for run in journal.read_runs(table.warehouse, table.pipeline) if not run.is_finished]
    if open_runs:
        abandon = f"hindcast abandon {table.pipeline}"
        raise BusyError(
            f"run {open_runs[0].number} ({open_runs[0].run_id}) has not ended",
            where=table.pipeline,
            fix=f"wait for it or {planner.name_retry(open_runs[0])}; if it cannot be finished: {abandon}",
        )


def _rewrite_marked(spark: SparkSession, table: Table, to: str, *, lose: bool) -> list[str]:
    """Rewrite a table that has the mark; return what it lost, as lines. Raise RequestError if it would and may not."""
    _refuse_open_runs(table)  # of one that was planned after the mark the table refuses the commit
    last = tables.read_last_run(table)
    rows = row_reader.load_rows(spark, table)
    lost = describe_losses(rows, to)
    if lost and not lose:
        raise RequestError(
            f"the format {to} has no room for {'; '.join(lost)}",
            where=table.path,
            fix=f"hindcast downgrade {table.pipeline}.{table.name} --to {to} --lose; log and base keep the records",
        )
    micros = rows.agg(F.unix_micros(F.max(F.greatest("systemFrom", "systemTo")))).collect()[0][0]
    at = _EPOCH + timedelta(microseconds=micros or 0)
    others = {}
    if lost:
        others[store_formats.DOWNGRADE_PROPERTY] = at.isoformat()
        if (trimmed := horizon.read_horizon(table)) is not None:  # rows of closes before it are gone
            others[horizon.PROPERTY] = replace(trimmed, stored_removal=Removal(trimmed.moment)).text
    mark_older_format(spark, table, OlderFormat(to, at), others)
    rewrite_rows(row_reader.load_rows(spark, table), table, to, last)
    return [f"lost: {loss}" for loss in lost]


def describe_losses(rows: DataFrame, to: str) -> list[str]:
    """Return what rows of today's format, or of a proxy view, have that an older format cannot keep, in words."""
    current = F.col("systemTo").isNull()
    true_now = current & F.col("validTo").isNull()
    counts = {
        "{:,} rows that are no longer current": F.count_if(~current),
        "{:,} more moments at which current rows became known": F.greatest(
            F.count_distinct(F.when(current, F.col("systemFrom"))) - 1, F.lit(0)
        ),
    }
    if to != "versioned":
        counts["{:,} versions that have ended"] = F.count_if(current & F.col("validTo").isNotNull())
    if to == "latest":
        counts["{:,} moments at which values became true"] = F.count_if(
            true_now & (F.col("validFrom") != F.lit(UNKNOWN_TIME))
        )
    row = rows.agg(*(count.alias(f"n{n}") for n, count in enumerate(counts.values()))).collect()[0]
    return [text.format(n) for text, n in zip(counts, row, strict=True) if n]


def mark_older_format(spark: SparkSession, table: Table, older: OlderFormat, others: Mapping[str, str]) -> None:
    """Commit the mark that a table has an older format, whatever rows it still has, with other properties."""
    delta_table = tables.open_table(table)
    fields = table_columns.spark_schema(delta_table).fields if delta_table is not None else []
    users = store_formats.user_columns([field.name for field in fields])
    remaining = [field for field in fields if field.name in users]
    remaining += [StructField(name, TimestampType()) for name in FORMATS[older.format]]
    existing = StructType([field for field in remaining if field.name in {f.name for f in fields}])
    statistics = ",".join(table_creation.statistics_columns(table, existing))
    properties = {"comment": table.format_mark(0), FORMAT_PROPERTY: older.as_json(), tables.STATISTICS: statistics}
    commits.set_properties(spark, table, {**properties, **others})


def _take_mark_back(spark: SparkSession, table: Table) -> None:
    """Mark a table that still has rows of today's format as one that runs write."""
    fields = table_columns.spark_schema(DeltaTable(table.path))
    statistics = ",".join(table_creation.statistics_columns(table, fields))
    commits.set_properties(spark, table, {"comment": table.description, tables.STATISTICS: statistics})
    store_migration.drop_proxy_view(spark, table)


def rewrite_rows(rows: DataFrame, table: Table, to: str, after: int) -> None:
    """Commit what an older format keeps of the rows of a table; readers see it before or after.

    `after`: see `commits.rewrite_table`.
    """
    condition, periods = store_formats.older_rows_query(to)
    own = [F.col(f"`{name}`") for name in store_formats.user_columns(rows.columns)]
    shown = rows.where(condition).select(*own, *(F.expr(text).alias(name) for name, text in periods.items()))
    number = tables.read_last_run(table, DOWNGRADE_NOTE) + 1
    commits.rewrite_table(shown, table, number, {DOWNGRADE_NOTE: to}, DOWNGRADE_NOTE, (), after)
