"""Remove rows, and bytes of rows, from tables by commits whose conditions name no value.

A condition that named a key would be stored in Delta's own log. So a MERGE gets what goes as the rows of a view. Each
function can be repeated: the second time there is nothing to do.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from uuid import uuid4

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import LongType, StructField, StructType

from hindcast.common.session import override_conf
from hindcast.ingest import erasure_marks, topic_log
from hindcast.store import commit_once, row_reader, table_creation, tables
from hindcast.store.tables import Table

Rewriter = Callable[[str, str | None], str]
"""Returns the new text of a row from its text, and the table that it is about, if the rows have that as a column."""


def remove_rows(rows: DataFrame, table: Table, by: Sequence[str], run: int) -> int:
    """Remove the rows of a table that agree with `rows` in the columns `by`; return how many of `rows` there were."""
    count = rows.count()
    if count:
        _merge_rows(rows.select(*by).distinct(), table, by, "WHEN MATCHED THEN DELETE", run)
    return count


def clear_column(rows: DataFrame, table: Table, column: str, run: int) -> int:
    """Set a column to null in whole rows of a table; return how many there were."""
    count = rows.count()
    if count:
        _merge_rows(rows.distinct(), table, rows.columns, f"WHEN MATCHED THEN UPDATE SET `{column}` = NULL", run)
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
        wider = StructType([*tables.spark_schema(delta_table).fields, StructField(erasure_marks.MARK, LongType())])
        table_creation.ensure_table(table, table_creation.make_nullable(wider))
        names.append(erasure_marks.MARK)
    reason = (
        f"CASE WHEN t.reason IS NULL OR t.reason = '{topic_log.REQUEUED_REASON}' THEN t.reason ELSE "
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
    rows = places.select(*(F.col(source).alias(column) for column, source in by.items())).distinct()
    _merge_rows(rows, table, list(by), f"WHEN MATCHED AND ({has_bytes}{is_unmarked}) THEN UPDATE SET {assigned}", run)


def empty_table(spark: SparkSession, table: Table, run: int) -> int:
    """Remove all rows of a table; return how many there were."""
    count = tables.count_rows(table)
    if count:
        with override_conf(spark, _note_conf(run)):
            statement = f"DELETE FROM delta.`{table.path}`"  # noqa: S608  # a path of ours
            commit_once.commit_repeatable(lambda: spark.sql(statement).collect())
    return count


def rewrite_column(
    spark: SparkSession, table: Table, by: Sequence[str], column: str, run: int, rewrite: Rewriter
) -> int:
    """Replace texts in a column of a table of our own; return how many rows changed. `by`: its identifying columns."""
    delta_table = tables.open_table(table)
    if delta_table is None:
        return 0
    rows = row_reader.open_dataset(delta_table).to_table(
        columns=[*by, *({column, "table"} & {f.name for f in delta_table.schema().fields} - set(by))]
    )
    texts = ((row, rewrite(row[column] or "", row.get("table"))) for row in rows.to_pylist())
    changed = [{**row, column: new} for row, new in texts if new != row[column]]
    if changed:
        types = tables.column_types(delta_table)
        columns = [*by, column]
        updates = spark.createDataFrame(
            [[row[c] for c in columns] for row in changed], ", ".join(f"`{c}` {types[c]}" for c in columns)
        )
        _merge_rows(updates, table, by, f"WHEN MATCHED THEN UPDATE SET `{column}` = s.`{column}`", run)
    return len(changed)


def _merge_rows(rows: DataFrame, table: Table, by: Sequence[str], clause: str, run: int) -> None:
    spark, view = rows.sparkSession, f"forgotten_{uuid4().hex}"
    rows.createOrReplaceTempView(view)
    same = " AND ".join(f"t.`{c}` <=> s.`{c}`" for c in by)
    statement = f"MERGE INTO delta.`{table.path}` t USING {view} s ON {same} {clause}"  # names of ours
    try:
        with override_conf(spark, _note_conf(run)):
            commit_once.commit_repeatable(lambda: spark.sql(statement).collect())
    finally:
        spark.catalog.dropTempView(view)


def _note_conf(run: int) -> Mapping[str, str]:
    return {"spark.databricks.delta.commitInfo.userMetadata": json.dumps({"forgets": run})}
