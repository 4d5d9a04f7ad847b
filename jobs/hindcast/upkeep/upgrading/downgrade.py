"""Downgrades: a table of today's store format becomes one of an older format, which others can read and write.

    lost? -> mark -> rewrite

The mark comes first: with it runs refuse the table, and it is read through the proxy view, which shows rows of today's
form as they are. Then one commit leaves what the older format has. Log and base stay: an upgrade derives from them.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructField, StructType, TimestampType

from hindcast.contracts import Contract
from hindcast.delta import commits, contents, making, store_formats, tables
from hindcast.delta.store_formats import FORMATS, PROPERTY, TODAY, UNKNOWN, Older
from hindcast.delta.tables import Table
from hindcast.errors import AskedError, BusyError
from hindcast.planning import journal, notices
from hindcast.upkeep.upgrading.upgrade import DOWNGRADED, of_topic


def downgrade(spark: SparkSession, contract: Contract, name: str, to: str, *, lose: bool = False) -> list[str]:
    """Makes a topic's table one of an older store format, or goes on with that; what was done, in lines.

    Of a table that is of that format already only that.
    AskedError for a table that has nothing to take away, or where it would lose something and `lose` is not set.
    BusyError if a run of the pipeline has not ended.
    """
    table = of_topic(contract, name)
    found = tables.opened(table)
    if found is None:
        raise AskedError("there is no table", where=table.path, mend="run the pipeline: it makes one")
    older, there = tables.older(found), [field.name for field in found.schema().fields]
    if older is not None and older.mode is not None:
        mend = f"finish it: hindcast upgrade {table.pipeline}.{name} --mode {older.mode}"
        raise AskedError("is being upgraded", where=table.path, mend=mend)
    now, formats = older.format if older else TODAY, list(FORMATS)
    done = f"the store format is {to}; runs refuse the table until it is upgraded"
    if to == now and store_formats.cut(to, there):
        return [done]
    if formats.index(to) > formats.index(now):
        raise AskedError(f"has the store format {now}: there is nothing to take away", where=table.path)
    open_runs = [run for run in journal.runs(table.warehouse, table.pipeline) if not run.finished]
    if open_runs:
        raise BusyError(
            f"run {open_runs[0].number} ({open_runs[0].run_id}) has not ended",
            where=table.pipeline,
            mend=f"wait for it or retry it; if it cannot be finished: hindcast abandon {table.pipeline}",
        )
    with notices.post_notice(table.warehouse, table.pipeline, f"the downgrade of {name}"):
        return [*_downgraded(spark, table, to, lose=lose), done]


def _downgraded(spark: SparkSession, table: Table, to: str, *, lose: bool) -> list[str]:
    """Mark and rewrite a table; return what it lost, in lines. AskedError if that is more than it may."""
    rows = contents.load(spark, table)
    lost = losses(rows, to)
    if lost and not lose:
        raise AskedError(
            f"the format {to} has no room for {'; '.join(lost)}",
            where=table.path,
            mend=f"hindcast downgrade {table.pipeline}.{table.name} --to {to} --lose; log and base keep the records",
        )
    micros = rows.agg(F.unix_micros(F.max(F.greatest("systemFrom", "systemTo")))).collect()[0][0]
    at = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=micros or 0)
    mark(spark, table, Older(to, at), {store_formats.SINCE: at.isoformat()} if lost else {})
    rewrite(contents.load(spark, table), table, to)
    return [f"lost: {it}" for it in lost]


def losses(rows: DataFrame, to: str) -> list[str]:
    """What rows of a proxy view, or of a table of today's format, say that an older format cannot, in words."""
    believed = F.col("systemTo").isNull()
    true_now = believed & F.col("validTo").isNull()
    counts = {
        "{:,} rows that are not believed any more": F.count_if(~believed),
        "{:,} more moments since when rows are believed": F.greatest(
            F.count_distinct(F.when(believed, F.col("systemFrom"))) - 1, F.lit(0)
        ),
    }
    if to != "versioned":
        counts["{:,} versions that have ended"] = F.count_if(believed & F.col("validTo").isNotNull())
    if to == "latest":
        counts["{:,} moments since when values are true"] = F.count_if(
            true_now & (F.col("validFrom") != F.lit(UNKNOWN))
        )
    row = rows.agg(*(count.alias(f"n{n}") for n, count in enumerate(counts.values()))).collect()[0]
    return [text.format(n) for text, n in zip(counts, row, strict=True) if n]


def mark(spark: SparkSession, table: Table, older: Older, besides: Mapping[str, str]) -> None:
    """One commit by which a table is of an older format, whatever rows it still has; with other properties."""
    found = tables.opened(table)
    fields = tables.spark_schema(found).fields if found is not None else []
    users = store_formats.users([field.name for field in fields])
    kept = [field for field in fields if field.name in users]
    kept += [StructField(name, TimestampType()) for name in FORMATS[older.format]]
    statistics = ",".join(making.sought(table, StructType([f for f in kept if f.name in {it.name for it in fields}])))
    properties = {"comment": table.mark(0), PROPERTY: older.as_json(), tables.STATISTICS: statistics}
    commits.describe(spark, table, {**properties, **besides})


def rewrite(rows: DataFrame, table: Table, to: str) -> None:
    """One commit by which a table has what an older format has of rows; readers see it before or after."""
    condition, periods = store_formats.older_rows(to)
    own = [F.col(f"`{name}`") for name in store_formats.users(rows.columns)]
    shown = rows.where(condition).select(*own, *(F.expr(text).alias(name) for name, text in periods.items()))
    number = tables.published(table, DOWNGRADED) + 1
    commits.rewrite(shown, table, number, {DOWNGRADED: to}, DOWNGRADED, ())
