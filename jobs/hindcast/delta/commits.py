"""Changes of a table as commits, each made once, whoever retries it and whatever else commits at the same time.

A commit carries a Delta transaction identifier: the table's application id and the run's number (`attempts.once`).
Those of few rows are made without Spark (`direct`).
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

from deltalake import DeltaTable
from pyspark.sql import Column, DataFrame, DataFrameWriter, SparkSession
from pyspark.sql import functions as F

from hindcast import questions
from hindcast.delta import direct, tables
from hindcast.delta.attempts import once, repeatable
from hindcast.delta.tables import Table
from hindcast.session import temporarily


def append(
    rows: DataFrame,
    table: Table,
    run: int,
    note: dict[str, Any],
    part: str = "",
    after: int | None = None,
    *,
    few: bool = False,
) -> bool:
    """Adds rows in one commit that a repeat of the run does not make again; `note` goes into the commit.

    Returns whether it made the commit; False if the run had made it before, maybe in another process. `part` names the
    commit among several that one run makes to the table. `after`: as `once` takes it. `few` (`files.few`): they are
    written by this process; a commit of Spark's would take longer than they do.
    """
    if few and (made := direct.append(rows, table, run, note, part, after)) is not None:
        return made
    # Rows come in the order of their time, or nearly: files of their own.
    writer = _writer(rows, table, run, note, part).mode("append").option("maxRecordsPerFile", _PER_FILE)
    return once(lambda: writer.save(table.path), lambda: tables.published(table, part), run, after, table.path)


def replace(rows: DataFrame, table: Table, run: int, note: dict[str, Any], where: str | None = None) -> bool:
    """Puts rows in place of those of a table that a condition is true of (None: of all), as `append` adds them."""
    writer = _writer(rows, table, run, note).mode("overwrite")
    writer = writer if where is None else writer.option("replaceWhere", where)
    return once(lambda: writer.save(table.path), lambda: tables.published(table), run, None, table.path)


def rewrite(rows: DataFrame, table: Table, run: int, note: dict[str, Any], part: str, by: tuple[str, ...]) -> bool:
    """Puts rows in place of all that a table has, also in other columns and partitions (`by`), as `append` adds them.

    Readers see the table before or after it: it is one commit.
    """
    writer = _writer(rows, table, run, note, part).mode("overwrite").option("overwriteSchema", "true").partitionBy(*by)
    return once(lambda: writer.save(table.path), lambda: tables.published(table, part), run, None, table.path)


def _writer(rows: DataFrame, table: Table, run: int, note: dict[str, Any], part: str = "") -> DataFrameWriter:
    """Of one commit of a run, which Delta makes once."""
    writer = rows.write.format("delta").option("txnAppId", table.app(part)).option("txnVersion", str(run))
    return writer.option("userMetadata", json.dumps(note))


def closing(table: Table) -> Column:
    """What a change closes, for `publish`: an aggregate over plane.changes, `closing`.

    Where the closed rows lie: how many are `open`, how many `past`, and the latter's first and last start and first
    end, in microseconds since 1970.
    """
    start, end = tables.period(table)
    closed = F.col("change") == "close"
    past = tables.corrects(table)
    return F.struct(
        F.count_if(closed & ~past).alias("open"),
        F.count_if(past).alias("past"),
        F.min(F.when(past, F.unix_micros(start))).alias("first"),
        F.max(F.when(past, F.unix_micros(start))).alias("last"),
        F.min(F.when(past, F.unix_micros(end))).alias("end"),
    ).alias("closing")


def publish(
    changes: DataFrame,
    table: Table,
    run: int,
    known_at: datetime,
    *,
    closing: Mapping[str, Any] | None,
    note: dict[str, Any],
    after: int | None = None,
    few: bool = False,
) -> None:
    """One commit that closes rows on the system axis at `known_at` and opens others; nothing if `run` made it before.

    `changes`: the table's columns without system period and `_belief`, and `change`: open, close (plane.changes).
    `closing`: where what is closed lies; with nothing to close (None) it is a plain append. A closed row keeps its
    valid period; it gets systemTo = known_at. `after`: the run that had committed last when the changes were computed
    (`once`). `few`: as for `append`.
    """
    now = F.lit(known_at)
    rows = changes.withColumns(
        {"systemFrom": now, "systemTo": F.lit(None).cast("timestamp"), "_belief": tables.belief(table)}
    )
    columns = [c for c in rows.columns if c != "change"]
    if closing is None:
        laid_out = _laid_out(rows.select(columns), table, note.get("opened", 0))
        append(laid_out, table, run, note, after=after, few=few)
        return
    spark = changes.sparkSession
    mark_rows_only(spark, table)
    if few and direct.publish(rows, table, run, known_at, note, after):
        return
    view = f"change_of_{table.pipeline}_{table.name}"
    rows.createOrReplaceTempView(view)
    same = " AND ".join(f"t.`{c}` <=> s.`{c}`" for c in table.identity)
    names = ", ".join(f"`{c}`" for c in columns)
    values = ", ".join(f"s.`{c}`" for c in columns)
    confs = {
        "spark.databricks.delta.write.txnAppId": table.app(),
        "spark.databricks.delta.write.txnVersion": str(run),
        "spark.databricks.delta.commitInfo.userMetadata": json.dumps(note),
    }
    merge = (
        f"MERGE INTO delta.`{table.path}` t USING {view} s "  # noqa: S608  # names of ours
        f"ON s.change = 'close' AND t.systemTo IS NULL AND {_reached(table, closing, changes)} AND {same} "
        "WHEN MATCHED THEN UPDATE SET systemTo = s.systemFrom, _belief = 'superseded' "
        f"WHEN NOT MATCHED AND s.change = 'open' THEN INSERT ({names}) VALUES ({values})"
    )
    try:
        with temporarily(spark, confs):
            once(lambda: spark.sql(merge).collect(), lambda: tables.published(table), run, after, table.path)
    finally:
        spark.catalog.dropTempView(view)


def describe(spark: SparkSession, table: Table, properties: Mapping[str, str], found: DeltaTable | None = None) -> None:
    """Sets properties of a table that is there, in one commit; none where it has them.

    `comment` is Delta's own description, where our mark is: it is always set.
    """
    found = found or DeltaTable(table.path)
    there = found.metadata().configuration
    new = {name: value for name, value in properties.items() if there.get(name) != value}
    if new:
        listed = ", ".join(f"'{name}' = {_text(value)}" for name, value in new.items())
        repeatable(lambda: spark.sql(f"ALTER TABLE delta.`{table.path}` SET TBLPROPERTIES ({listed})").collect())


def remove(spark: SparkSession, table: Table, where: str, note: Mapping[str, Any]) -> None:
    """Removes the rows of which a condition (Spark SQL) is true, in one commit that may be made twice."""
    statement = f"DELETE FROM delta.`{table.path}` WHERE {where}"  # noqa: S608  # conditions of ours
    with temporarily(spark, {"spark.databricks.delta.commitInfo.userMetadata": json.dumps(dict(note))}):
        repeatable(lambda: spark.sql(statement).collect())


def blank(spark: SparkSession, table: Table, columns: Sequence[str], where: str, note: Mapping[str, Any]) -> None:
    """Makes columns null in the rows of which a condition is true, as `remove` removes them."""
    nulls = ", ".join(f"`{column}` = NULL" for column in columns)
    statement = f"UPDATE delta.`{table.path}` SET {nulls} WHERE {where}"  # noqa: S608  # conditions of ours
    with temporarily(spark, {"spark.databricks.delta.commitInfo.userMetadata": json.dumps(dict(note))}):
        repeatable(lambda: spark.sql(statement).collect())


def _text(value: str) -> str:
    """A text as Spark SQL has it."""
    escaped = value.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"


_PER_FILE = 250_000


def _laid_out(rows: DataFrame, table: Table, count: int) -> DataFrame:
    """Many rows at once in files of their own times, as runs bring them: so that files can be passed over."""
    if count < 2 * _PER_FILE:
        return rows
    by = "_belief", tables.period(table)[0]
    return rows.repartitionByRange(count // _PER_FILE, *by).sortWithinPartitions(*by)


_FEW = 1_000
"""Starts of rows to close: up to so many of these rows they are told a merge one by one."""


def _reached(table: Table, closing: Mapping[str, Any], changes: DataFrame) -> str:
    """The rows that a merge has to look at, as a condition on them alone: Delta judges files by it, Spark rows."""
    lying = [belief for belief in ("open", "past") if closing[belief]]
    reached = f"t._belief IN ({', '.join(map(repr, lying))})"
    start, end = tables.period(table)
    first, last, ended = (_moment(closing[name]) for name in ("first", "last", "end"))
    if not closing["past"] or first is None or last is None or ended is None:
        return reached
    past = f"t.`{start}` BETWEEN {first} AND {last} AND t.`{end}` >= {ended}"
    if closing["past"] <= _FEW:
        closed = changes.where(tables.corrects(table))
        starts = closed.select(F.unix_micros(start)).distinct().collect()
        past += f" AND t.`{start}` IN ({', '.join(f'timestamp_micros({micros})' for (micros,) in starts)})"
    return f"{reached} AND (t.`{end}` IS NULL OR ({past}))"


def _moment(micros: int | None) -> str | None:
    """A moment as an SQL literal; None where there is none that Python knows."""
    try:
        at = questions.BEGINNING + timedelta(microseconds=micros or 0)
    except OverflowError:
        return None
    return None if micros is None else questions.moment(at)


def mark_rows_only(spark: SparkSession, table: Table) -> None:
    """From `LARGE` rows on a closed row is marked (a deletion vector), and its file is not written anew."""
    found = tables.opened(table)
    if found is not None and tables.VECTORS not in found.metadata().configuration and tables.size(table) > tables.LARGE:
        spark.sql(f"ALTER TABLE delta.`{table.path}` SET TBLPROPERTIES ('{tables.VECTORS}' = 'true')").collect()
