"""Remove rows, and bytes of rows, from tables by commits whose conditions name no value.

A condition that named a key would be stored in Delta's own log. So this process rewrites the files of a small table,
and a MERGE, which takes Spark two seconds, gets what goes as the rows of a view. Each function can be repeated: the
second time there is nothing to do.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from uuid import uuid4

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import LongType, StructField, StructType

from hindcast.common.json_values import JsonObject
from hindcast.common.session import FEW_ROWS, override_conf
from hindcast.ingest import erasure_marks, quarantine
from hindcast.store import (
    closing,
    commit_once,
    delta_log,
    delta_rs_writer,
    own_tables,
    row_reader,
    table_columns,
    table_creation,
    tables,
)
from hindcast.store.commit_notes import parse_note
from hindcast.store.tables import Table

TextRewriter = Callable[[str, str | None], str]
"""Returns the new text of a row from its text, and the table that it is about, if the rows have that as a column."""


def remove_rows(rows: DataFrame, table: Table, by: Sequence[str], run: int) -> int:
    """Remove the rows of a table that agree with `rows` in the columns `by`; return how many of `rows` there were."""
    found = _collect_few(rows.select(*by), table)
    if found is not None and _try_rewrite(
        found, table, lambda own, at: own.filter(pc.invert(at)), _note(run, found.num_rows)
    ):
        return int(found.num_rows)
    count = rows.count()
    if count:
        _merge_rows(rows.select(*by).distinct(), table, by, "WHEN MATCHED THEN DELETE", _note(run, count))
    return count


def clear_column(rows: DataFrame, table: Table, column: str, run: int) -> int:
    """Set a column to null in whole rows of a table; return how many there were."""
    found = _collect_few(rows, table)
    if found is not None and _try_rewrite(
        found, table, lambda own, at: _assign(own, column, at, None), _note(run, found.num_rows)
    ):
        return int(found.num_rows)
    count = rows.count()
    if count:
        clause = f"WHEN MATCHED THEN UPDATE SET `{column}` = NULL"
        _merge_rows(rows.distinct(), table, rows.columns, clause, _note(run, count))
    return count


def blank_records(places: DataFrame, table: Table, by: Mapping[str, str], run: int) -> None:
    """Remove the bytes of some records from a log, or a table like one; their rows stay, as places.

    `by`: the columns of the table that hold the place, with those of `places`. A log gets the mark `forgotten`.
    """
    delta_table = tables.open_table(table)
    if delta_table is None:
        return
    names = [field.name for field in delta_table.schema().fields]
    if table.kind == "log" and table.name.startswith("logs/") and erasure_marks.MARK not in names:
        wider = StructType(
            [*table_columns.spark_schema(delta_table).fields, StructField(erasure_marks.MARK, LongType())]
        )
        table_creation.ensure_table(table, table_creation.make_nullable(wider))
        names.append(erasure_marks.MARK)
    rows = places.select(*(F.col(source).alias(column) for column, source in by.items())).distinct()
    found = _collect_few(rows, table)
    if found is not None and _try_rewrite(found, table, lambda own, at: _blank_rows(own, at, run), _note(run)):
        return
    reason = (
        f"CASE WHEN t.reason IS NULL OR t.reason = '{quarantine.REQUEUED_REASON}' THEN t.reason ELSE "
        f"'{erasure_marks.REPLACEMENT_TEXT}' END"
    )
    new_values = {"key": "NULL", "value": "NULL", "headers": "NULL", "reason": reason, erasure_marks.MARK: str(run)}
    assigned = ", ".join(f"`{name}` = {to}" for name, to in new_values.items() if name in names)
    has_bytes = " OR ".join(f"t.`{name}` IS NOT NULL" for name in ("key", "value", "headers") if name in names)
    is_unmarked = (
        f" OR t.{erasure_marks.MARK} IS NULL"
        if erasure_marks.MARK in names
        else f" OR t.reason <> '{erasure_marks.REPLACEMENT_TEXT}'"
    )
    _merge_rows(
        rows, table, list(by), f"WHEN MATCHED AND ({has_bytes}{is_unmarked}) THEN UPDATE SET {assigned}", _note(run)
    )


def empty_table(spark: SparkSession, table: Table, run: int) -> int:
    """Remove all rows of a table; return how many there were."""
    count = tables.count_rows(table)
    if count:
        with override_conf(spark, _note_conf(_note(run, count))):
            statement = f"DELETE FROM delta.`{table.path}`"  # noqa: S608  # a path of ours
            commit_once.commit_repeatable(lambda: own_tables.run_upkeep(spark, table.path, statement))
    return count


def rewrite_column(
    spark: SparkSession, table: Table, by: Sequence[str], column: str, run: int, rewrite: TextRewriter
) -> None:
    """Replace texts in a column of a table of our own. `by`: its identifying columns."""
    delta_table = tables.open_table(table)
    if delta_table is None or delta_rs_writer.try_rewrite_rows(
        table, lambda own: _rewrite_texts(own, column, rewrite), _note(run)
    ):
        return
    rows = row_reader.open_dataset(delta_table).to_table(
        columns=[*by, *({column, "table"} & {f.name for f in delta_table.schema().fields} - set(by))]
    )
    updates = _rewrite_texts(rows, column, rewrite)
    if updates is not rows:
        changed = updates.filter(pc.not_equal(updates.column(column), rows.column(column))).select([*by, column])
        types = table_columns.column_types(delta_table)
        listed = ", ".join(f"`{c}` {types[c]}" for c in changed.column_names)
        rewritten = spark.createDataFrame([list(row.values()) for row in changed.to_pylist()], listed)
        _merge_rows(rewritten, table, by, f"WHEN MATCHED THEN UPDATE SET `{column}` = s.`{column}`", _note(run))


def _rewrite_texts(rows: pa.Table, column: str, rewrite: TextRewriter) -> pa.Table:
    """Return rows with other texts in a column; the same rows if no text changes."""
    texts = rows.column(column).to_pylist()
    about = rows.column("table").to_pylist() if "table" in rows.column_names else [None] * len(texts)
    new = [text and rewrite(text, name) for text, name in zip(texts, about, strict=True)]
    return rows if new == texts else _replace_column(rows, column, pa.array(new, rows.schema.field(column).type))


def _blank_rows(rows: pa.Table, places: pa.Array, run: int) -> pa.Table:
    """Return rows of a log without their bytes at some places, as `blank_records`; the same rows if they have none."""
    names = [name for name in ("key", "value", "headers") if name in rows.column_names]
    is_marked, replacement = erasure_marks.MARK in rows.column_names, erasure_marks.REPLACEMENT_TEXT
    reasons = rows.column("reason")
    is_left = rows.column(erasure_marks.MARK).is_null() if is_marked else pc.not_equal(reasons, replacement)
    for name in names:
        is_left = pc.or_kleene(is_left, rows.column(name).is_valid())
    changed = pc.and_(places, pc.fill_null(is_left, False))
    if not pc.any(changed).as_py():
        return rows
    told = pc.and_kleene(reasons.is_valid(), pc.not_equal(reasons, quarantine.REQUEUED_REASON))
    for name in names:
        rows = _assign(rows, name, changed, None)
    rows = _assign(rows, erasure_marks.MARK, changed, run) if is_marked else rows
    return _assign(rows, "reason", pc.and_(changed, pc.fill_null(told, False)), replacement)


def _assign(rows: pa.Table, column: str, at: pa.Array, value: str | int | None) -> pa.Table:
    """Return rows with a value in a column at some places."""
    scalar = pa.scalar(value, rows.schema.field(column).type)
    return _replace_column(rows, column, pc.if_else(at, scalar, rows.column(column)))


def _replace_column(rows: pa.Table, column: str, values: pa.Array) -> pa.Table:
    place = rows.schema.get_field_index(column)
    return rows.set_column(place, rows.schema.field(place), values)


def _collect_few(rows: DataFrame, table: Table) -> pa.Table | None:
    """Return rows that go from a table, whose columns they have; None if they are many or only Spark compares them."""
    delta_table = tables.open_table(table)
    if delta_table is None or {*rows.columns} & {*delta_table.metadata().partition_columns}:
        return None
    found = rows.limit(FEW_ROWS + 1).toArrow()
    return found if found.num_rows <= FEW_ROWS else None


def _try_rewrite(
    found: pa.Table, table: Table, rewrite: Callable[[pa.Table, pa.Array], pa.Table], note: JsonObject
) -> bool:
    """Rewrite the rows of a table that equal one of `found`; return False if that needs a MERGE.

    `rewrite` gets rows and, for each, whether it is one of them.
    """

    def rewrite_matching(rows: pa.Table) -> pa.Table:
        at = closing.find_matching_rows(rows, found, found.column_names)
        return rewrite(rows, pa.array(at)) if at.any() else rows

    return not found.num_rows or delta_rs_writer.try_rewrite_rows(table, rewrite_matching, note)


def _merge_rows(rows: DataFrame, table: Table, by: Sequence[str], clause: str, note: JsonObject) -> None:
    spark, view = rows.sparkSession, f"forgotten_{uuid4().hex}"
    rows.createOrReplaceTempView(view)
    same = " AND ".join(f"t.`{c}` <=> s.`{c}`" for c in by)
    statement = f"MERGE INTO delta.`{table.path}` t USING {view} s ON {same} {clause}"  # names of ours
    try:
        with override_conf(spark, _note_conf(note)):
            commit_once.commit_repeatable(lambda: own_tables.run_upkeep(spark, table.path, statement))
    finally:
        spark.catalog.dropTempView(view)


def _note_conf(note: JsonObject) -> Mapping[str, str]:
    return {"spark.databricks.delta.commitInfo.userMetadata": json.dumps(note)}


def _note(run: int, removed: int | None = None) -> JsonObject:
    """Return the note of a commit, with the number of rows that it removes or clears."""
    return {"forgets": run} if removed is None else {"forgets": run, "removed": removed}


_MAX_COMMITS = 1000
"""The number of a table's last commits among which those of a run are looked for."""


def list_forgetting_runs(delta_table: DeltaTable) -> set[int]:
    """Return the runs that have removed or cleared rows of a table, by the notes of its commits."""
    runs = (parse_note(commit).get("forgets") for commit in delta_log.list_commits(delta_table, _MAX_COMMITS))
    return {run for run in runs if type(run) is int}


def count_removed(table: Table, run: int) -> int:
    """Return how many rows of a table all attempts of a run have removed or cleared, by the notes of its commits."""
    delta_table = tables.open_table(table)
    notes = map(parse_note, delta_log.list_commits(delta_table, _MAX_COMMITS) if delta_table else ())
    counts = (note.get("removed", 0) for note in notes if note.get("forgets") == run)
    return sum(count for count in counts if type(count) is int)
