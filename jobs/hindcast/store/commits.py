"""Changes to tables, each committed once, whoever retries it and whatever else is committed at the same time.

A commit carries a Delta transaction identifier: the table's application id and the run's number
(`commit_once.commit_once`, which also tries again if another writer was faster). What every commit of a run is refused
for is in `commit_ids.refuse_ended_run`. Where delta-rs can commit to a table (`delta_rs_writer`), it does; otherwise
Spark appends or merges. A change of what a commit means goes into both. What a commit says is in commit_notes.py.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import NamedTuple

from deltalake import DeltaTable
from pyspark.sql import Column, DataFrame, DataFrameWriter, SparkSession
from pyspark.sql import functions as F

from hindcast.bitemporal import predicates
from hindcast.common.json_values import JsonObject
from hindcast.common.session import override_conf
from hindcast.store import commit_ids, delta_rs_writer, files, own_tables, tables
from hindcast.store.commit_notes import TableNote
from hindcast.store.commit_once import commit_once, commit_repeatable, refuse_other_commit
from hindcast.store.tables import Table
from hindcast.store.task_rows import TaskRows


def append_rows(
    rows: DataFrame | TaskRows,
    table: Table,
    run: int,
    note: JsonObject,
    part: str = "",
    after: int | None = None,
    *,
    few: bool = False,
) -> bool:
    """Append rows in one commit, which a repeat of the run does not make again, and return whether this call made it.

    `note` goes into the commit. `part` names the commit among several that one run makes to the table. `after`: see
    `commit_once`. `few` (`files.is_small`): this process writes the rows, else Spark's tasks do.
    """
    if (committed := delta_rs_writer.append_rows(rows, table, run, note, part, after, few=few)) is not None:
        return committed
    # Rows come in the order of their time, or nearly: files of their own.
    frame = rows if isinstance(rows, DataFrame) else rows.as_frame()
    writer = _build_writer(frame, table, run, note, part).mode("append").option("maxRecordsPerFile", _ROWS_PER_FILE)
    return _commit_by_spark(lambda: writer.save(table.path), table, run, part, after)


def append_columns(none: DataFrame, table: Table, run: int, note: JsonObject, part: str) -> None:
    """Add the columns of an empty DataFrame to a table, in a commit that a repeat of the run does not make again."""
    writer = _build_writer(none, table, run, note, part).mode("append").option("mergeSchema", "true")
    _commit_by_spark(lambda: writer.save(table.path), table, run, part)


def replace_rows(rows: DataFrame, table: Table, run: int, note: JsonObject, where: str | None = None) -> bool:
    """Replace the rows for which a condition is true (None: all), and return whether this call made the commit."""
    writer = _build_writer(rows, table, run, note).mode("overwrite")
    if where is None:
        return _commit_by_spark(lambda: writer.save(table.path), table, run)
    own_tables.open_whole(table.path)  # files with other rows are rewritten
    return _commit_by_spark(lambda: writer.option("replaceWhere", where).save(table.path), table, run)


def rewrite_table(
    rows: DataFrame,
    table: Table,
    run: int,
    note: JsonObject,
    part: str,
    by: Sequence[str],
    after: int | None = None,
) -> bool:
    """Replace all rows of a table in one commit, also with other columns and partitions (`by`); see `append_rows`.

    `after`: the last run whose rows are among them (None: not checked); RunError if another has published rows since.
    """
    writer = _build_writer(rows, table, run, note, part).mode("overwrite").option("overwriteSchema", "true")
    writer = writer.partitionBy(*by)

    def rewrite() -> None:
        if after is not None:
            refuse_other_commit(tables.read_last_run(table), after, run, table.path)
        writer.save(table.path)

    return _commit_by_spark(rewrite, table, run, part)


def _commit_by_spark(
    commit: Callable[[], object], table: Table, run: int, part: str = "", after: int | None = None
) -> bool:
    """Let Spark make a commit of a run once, as `commit_once` does.

    Raise what `commit_ids.refuse_ended_run` raises, also if the run ended before Spark began: then Spark wrote nothing.
    """
    app_id = table.app_id(part)

    def read_last_run() -> int:
        if (delta_table := tables.open_table(table)) is None:
            return 0
        commit_ids.refuse_ended_run(delta_table, app_id, run)
        return commit_ids.read_last_run(delta_table, app_id)

    is_made = commit_once(commit, read_last_run, run, after, table.path)
    read_last_run()
    return is_made


def _build_writer(rows: DataFrame, table: Table, run: int, note: JsonObject, part: str = "") -> DataFrameWriter:
    """Return the writer of one commit of a run, which Delta makes once."""
    writer = rows.write.format("delta").option("txnAppId", table.app_id(part)).option("txnVersion", str(run))
    return writer.option("userMetadata", json.dumps(note))


class ClosedRows(NamedTuple):
    """How many rows a change closes that are `open`, and how many that are `past` answers; of these the `first` and
    `last` start and the first `end`, in microseconds since 1970.
    """

    open: int
    past: int
    first: int | None
    last: int | None
    end: int | None


def closing_summary(table: Table) -> Column:
    """Return what a change closes, for `commit_change`: an aggregate over the rows of `plane.diff_rows`, `closing`.

    A struct with the fields of `ClosedRows`.
    """
    (start, end), past = tables.period_columns(table), tables.correction_sql(table)
    fields = {  # one text: Spark's functions would be called thirty times
        "open": f"count_if(_change = 'close' AND NOT {past})",
        "past": f"count_if({past})",
        "first": f"min(unix_micros(`{start}`)) FILTER (WHERE {past})",
        "last": f"max(unix_micros(`{start}`)) FILTER (WHERE {past})",
        "end": f"min(unix_micros(`{end}`)) FILTER (WHERE {past})",
    }
    named = ", ".join(f"'{name}', {it}" for name, it in fields.items())
    return F.expr(f"named_struct({named})").alias("closing")


def commit_change(
    changes: DataFrame,
    table: Table,
    run: int,
    known_at: datetime,
    *,
    closing: ClosedRows | None,
    note: TableNote,
    after: int | None = None,
    text_bytes: int = 0,
) -> None:
    """Commit a change once: close rows on the system axis at `known_at` and open others.

    `changes`: the table's columns without system period and `_belief`, and `_change`: open, close
    (`plane.diff_rows`). A closed row keeps its valid period and gets systemTo = known_at. `closing`: the
    `closing_summary`; None where nothing is closed, which is a plain append. `after`: the run that had committed last
    when the changes were computed (`commit_once`). `text_bytes`: the size of its texts (`files.text_size_column`).
    """
    few = files.is_small(note.changed_rows, text_bytes)
    now = F.lit(known_at)
    rows = changes.withColumns(
        {"systemFrom": now, "systemTo": F.lit(None).cast("timestamp"), "_belief": tables.belief_column(table)}
    )
    columns = [c for c in rows.columns if c != "_change"]
    if closing is None:
        laid_out = _lay_out_rows(rows.select(columns), table, note.opened)
        append_rows(laid_out, table, run, note.as_json(), after=after, few=few)
        return
    spark = changes.sparkSession
    enable_deletion_vectors(spark, table)
    can_hold = note.closed <= _MAX_CLOSED_ROWS and text_bytes <= _MAX_TEXT_BYTES
    if can_hold and delta_rs_writer.try_commit_change(rows, table, run, known_at, note.as_json(), after, few=few):
        return
    view = f"change_of_{table.pipeline}_{table.name}"
    rows.createOrReplaceTempView(view)
    same = " AND ".join(f"t.`{c}` <=> s.`{c}`" for c in table.closing_columns)
    names = ", ".join(f"`{c}`" for c in columns)
    values = ", ".join(f"s.`{c}`" for c in columns)
    confs = {
        "spark.databricks.delta.write.txnAppId": table.app_id(),
        "spark.databricks.delta.write.txnVersion": str(run),
        "spark.databricks.delta.commitInfo.userMetadata": json.dumps(note.as_json()),
    }
    merge = (
        f"MERGE INTO delta.`{table.path}` t USING {view} s "  # noqa: S608  # names of ours
        f"ON s._change = 'close' AND t.systemTo IS NULL AND {_merge_condition(table, closing, changes)} AND {same} "
        "WHEN MATCHED THEN UPDATE SET systemTo = s.systemFrom, _belief = 'superseded' "
        f"WHEN NOT MATCHED AND s._change = 'open' THEN INSERT ({names}) VALUES ({values})"
    )
    try:
        with override_conf(spark, confs):
            _commit_by_spark(lambda: own_tables.run_statement(spark, table.path, merge), table, run, after=after)
    finally:
        spark.catalog.dropTempView(view)


def set_properties(
    spark: SparkSession, table: Table, properties: Mapping[str, str], delta_table: DeltaTable | None = None
) -> None:
    """Set properties of a table in one commit, unless it has them already.

    `comment` is Delta's own description, where our mark is: it is always set.
    """
    delta_table = delta_table or DeltaTable(table.path)
    current = delta_table.metadata().configuration
    new = {name: value for name, value in properties.items() if current.get(name) != value}
    if new and not delta_rs_writer.try_set_properties(table, new):
        listed = ", ".join(f"'{name}' = {_quote_text(value)}" for name, value in new.items())
        commit_repeatable(lambda: spark.sql(f"ALTER TABLE delta.`{table.path}` SET TBLPROPERTIES ({listed})").collect())


def delete_rows(spark: SparkSession, table: Table, where: str, note: JsonObject) -> None:
    """Delete the rows for which a condition (Spark SQL) is true, in one commit that may be made twice."""
    _commit_statement(spark, table, f"DELETE FROM delta.`{table.path}` WHERE {where}", note)  # noqa: S608  # our conditions


def clear_columns(spark: SparkSession, table: Table, columns: Sequence[str], where: str, note: JsonObject) -> None:
    """Set columns to null in the rows for which a condition (Spark SQL) is true, in a commit that may be made twice."""
    nulls = ", ".join(f"`{column}` = NULL" for column in columns)
    _commit_statement(spark, table, f"UPDATE delta.`{table.path}` SET {nulls} WHERE {where}", note)  # noqa: S608  # our conditions


def _commit_statement(spark: SparkSession, table: Table, statement: str, note: JsonObject) -> None:
    with override_conf(spark, {"spark.databricks.delta.commitInfo.userMetadata": json.dumps(note)}):
        commit_repeatable(lambda: own_tables.run_statement(spark, table.path, statement))


def _quote_text(value: str) -> str:
    """Return a text as a Spark SQL literal."""
    escaped = value.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"


_ROWS_PER_FILE = 250_000


_MAX_CLOSED_ROWS, _MAX_TEXT_BYTES = 2_000_000, 512 << 20
"""Up to so many rows of a change that large are closed without a MERGE: this process has their keys in memory."""


def _lay_out_rows(rows: DataFrame, table: Table, count: int) -> DataFrame:
    """Return the rows; many at once are sorted into files by their time, so that readers can skip files."""
    if count < 2 * _ROWS_PER_FILE:
        return rows
    by = "_belief", tables.period_columns(table)[0]
    return rows.repartitionByRange(count // _ROWS_PER_FILE, *by).sortWithinPartitions(*by)


_MAX_LISTED_STARTS = 1_000
"""The number of rows to close up to which a merge lists their starts one by one."""


def _merge_condition(table: Table, closing: ClosedRows, changes: DataFrame) -> str:
    """Return the condition on the rows that a merge has to look at; Delta uses it to skip files, Spark to skip rows."""
    beliefs = [belief for belief, count in (("open", closing.open), ("past", closing.past)) if count]
    condition = f"t._belief IN ({', '.join(map(repr, beliefs))})"
    start, end = tables.period_columns(table)
    first, last, ended = map(_moment_literal, (closing.first, closing.last, closing.end))
    if not closing.past or first is None or last is None or ended is None:
        return condition
    past = f"t.`{start}` BETWEEN {first} AND {last} AND t.`{end}` >= {ended}"
    if closing.past <= _MAX_LISTED_STARTS:
        closed = changes.where(tables.is_correction(table))
        starts = closed.select(F.unix_micros(start)).distinct().collect()
        past += f" AND t.`{start}` IN ({', '.join(f'timestamp_micros({micros})' for (micros,) in starts)})"
    return f"{condition} AND (t.`{end}` IS NULL OR ({past}))"


def _moment_literal(micros: int | None) -> str | None:
    """Return a moment as an SQL literal; None if Python has no such moment."""
    at = predicates.parse_micros(micros)
    return None if at is None else predicates.spark_timestamp(at)


def enable_deletion_vectors(spark: SparkSession, table: Table) -> None:
    """Turn on deletion vectors from `LARGE_ROWS` rows on: a closed row is marked, and its file is not rewritten."""
    delta_table = tables.open_table(table)
    if (
        delta_table is not None
        and tables.DELETION_VECTORS not in delta_table.metadata().configuration
        and tables.count_rows(table) > tables.LARGE_ROWS
    ):
        set_properties(spark, table, {tables.DELETION_VECTORS: "true"}, delta_table)
