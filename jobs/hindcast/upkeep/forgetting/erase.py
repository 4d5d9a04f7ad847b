"""Removing rows, and bytes of rows, from tables: commits whose conditions name no value.

A condition that named a key would stand in Delta's own log. So what goes is told a MERGE as rows of a view.
Each of these can be repeated: the second time there is nothing to do.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any
from uuid import uuid4

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import LongType, StructField, StructType

from hindcast.delta import attempts, contents, making, tables
from hindcast.delta.tables import Table
from hindcast.replay import forgotten, logs
from hindcast.session import temporarily

Anew = Callable[[Mapping[str, Any]], str | None]
"""The text that a row is to have."""


def remove(rows: DataFrame, table: Table, by: Sequence[str], run: int) -> int:
    """Removes the rows of a table that agree with some rows in the columns `by`; how many of `rows` there were."""
    count = rows.count()
    if count:
        _merge(rows.select(*by).distinct(), table, by, "WHEN MATCHED THEN DELETE", run)
    return count


def clear(rows: DataFrame, table: Table, column: str, run: int) -> int:
    """Make a column null in rows of a table, given whole; return how many there were."""
    count = rows.count()
    if count:
        _merge(rows.distinct(), table, rows.columns, f"WHEN MATCHED THEN UPDATE SET `{column}` = NULL", run)
    return count


def blank(places: DataFrame, table: Table, by: Mapping[str, str], run: int) -> None:
    """Takes the bytes of some records out of a log, or what is like one; their rows stay, as places.

    `by`: the columns of the table that say the place, with those of `places`. A log gets the mark `forgotten`.
    """
    found = tables.opened(table)
    if found is None:
        return
    names = [field.name for field in found.schema().fields]
    if table.kind == "log" and table.name.startswith("logs/") and forgotten.MARK not in names:
        wider = StructType([*tables.spark_schema(found).fields, StructField(forgotten.MARK, LongType())])
        making.ensure(table, making.nullable(wider))
        names.append(forgotten.MARK)
    said = f"CASE WHEN t.reason IS NULL OR t.reason = '{logs.REQUEUED}' THEN t.reason ELSE '{forgotten.SAID}' END"
    told = {"key": "NULL", "value": "NULL", "headers": "NULL", "reason": said, forgotten.MARK: str(run)}
    assigned = ", ".join(f"`{name}` = {to}" for name, to in told.items() if name in names)
    still = " OR ".join(f"t.`{name}` IS NOT NULL" for name in ("key", "value", "headers") if name in names)
    marked = f" OR t.{forgotten.MARK} IS NULL" if forgotten.MARK in names else f" OR t.reason <> '{forgotten.SAID}'"
    rows = places.select(*(F.col(of).alias(column) for column, of in by.items())).distinct()
    _merge(rows, table, list(by), f"WHEN MATCHED AND ({still}{marked}) THEN UPDATE SET {assigned}", run)


def empty(spark: SparkSession, table: Table, run: int) -> int:
    """Removes all rows of a table; how many there were."""
    count = tables.size(table)
    if count:
        with temporarily(spark, _noted(run)):
            statement = f"DELETE FROM delta.`{table.path}`"  # noqa: S608  # a path of ours
            attempts.repeatable(lambda: spark.sql(statement).collect())
    return count


def rewrite(spark: SparkSession, table: Table, by: Sequence[str], column: str, run: int, anew: Anew) -> int:
    """Puts other texts into a column of a table of our own; how many rows changed. `by`: what tells its rows apart."""
    found = tables.opened(table)
    if found is None:
        return 0
    rows = contents.dataset(found).to_table(
        columns=[*by, *({column, "table"} & {f.name for f in found.schema().fields} - set(by))]
    )
    changed = [{**row, column: new} for row in rows.to_pylist() if (new := anew(row)) != row[column]]
    if changed:
        types = tables.types(found)
        columns = [*by, column]
        told = spark.createDataFrame(
            [[row[c] for c in columns] for row in changed], ", ".join(f"`{c}` {types[c]}" for c in columns)
        )
        _merge(told, table, by, f"WHEN MATCHED THEN UPDATE SET `{column}` = s.`{column}`", run)
    return len(changed)


def _merge(rows: DataFrame, table: Table, by: Sequence[str], clause: str, run: int) -> None:
    spark, view = rows.sparkSession, f"forgotten_{uuid4().hex}"
    rows.createOrReplaceTempView(view)
    same = " AND ".join(f"t.`{c}` <=> s.`{c}`" for c in by)
    statement = f"MERGE INTO delta.`{table.path}` t USING {view} s ON {same} {clause}"  # names of ours
    try:
        with temporarily(spark, _noted(run)):
            attempts.repeatable(lambda: spark.sql(statement).collect())
    finally:
        spark.catalog.dropTempView(view)


def _noted(run: int) -> Mapping[str, str]:
    return {"spark.databricks.delta.commitInfo.userMetadata": json.dumps({"forgets": run})}
