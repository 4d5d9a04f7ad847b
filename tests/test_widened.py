"""Tables whose columns have changed, as Delta has them, read without Spark: the rows are those that Spark reads."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from pyspark.sql.types import StructType

from hindcast.common.errors import RunError
from hindcast.store import commits, duckdb_reader, row_reader, schema_evolution, table_columns, table_creation, tables
from hindcast.store.tables import Table

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
PERIODS = ("validFrom", "validTo", "systemFrom", "systemTo")
OLD = (
    "item string, n int, f float, d decimal(8,2), at struct<x: int>, many array<struct<x: int, t: timestamp>>, gone int"
)
NEW = (
    "item string, n bigint, f double, d decimal(12,2), at struct<x: bigint, y: string>, "
    "many array<struct<x: bigint, t: timestamp, y: string>>, more int"
)


def columns(text: str) -> StructType:
    return StructType.fromDDL(f"{text}, {', '.join(f'{name} timestamp' for name in PERIODS)}, _belief string")


@pytest.mark.slow
def test_rows_are_not_rewritten_without_those_of_a_run_that_came_between(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process of run 1 that slept; run 2 does not ask for wider columns."""
    table = Table(str(tmp_path), "shop", "menu", "versions", ("item",), widen="rewrite")
    table_creation.ensure_table(table, columns("item string, n int"))
    row = spark.createDataFrame([("a", 1, NOON, None, NOON, None, "open")], columns("item string, n int"))
    load = row_reader.load_rows

    def load_and_sleep(spark: SparkSession, table: Table) -> DataFrame:
        rows = load(spark, table)
        commits.append_rows(row, table, 2, {})
        return rows

    monkeypatch.setattr(row_reader, "load_rows", load_and_sleep)
    with pytest.raises(RunError, match="run 2 has written to the table since run 1 read it"):
        schema_evolution.ensure_columns(spark, table, columns("item string, n bigint"), NOON, 1)
    found = DeltaTable(table.path)
    assert found.to_pyarrow_table().select(["item", "n"]).to_pylist() == [{"item": "a", "n": 1}]
    assert table_columns.column_types(found)["n"] == "int"


@pytest.mark.long
def test_a_table_is_read_as_spark_reads_it_whatever_its_files_have(spark: SparkSession, tmp_path: Path) -> None:
    """Columns added, widened and dropped. Rows marked in two bitmaps of each form: runs, bits, and single numbers."""
    table = Table(str(tmp_path / "a folder"), "shop", "menu", "versions", ("item",), widen="spark_only")
    table_creation.ensure_table(table, columns(OLD))
    old = spark.range(70_000).selectExpr(
        *("concat('a', id) AS item", "id::int AS n", "0.1f AS f", "1.5::decimal(8,2) AS d"),
        *("struct(1 AS x) AS at", "array(struct(1 AS x, timestamp '2026-01-01' AS t)) AS many", "7 AS gone"),
        *(f"{'NULL' if name.endswith('To') else repr('2026-01-01')}::timestamp AS {name}" for name in PERIODS),
        "'open' AS _belief",
    )
    old.coalesce(1).write.format("delta").mode("append").save(table.path)
    for later in (0, 1):
        found = schema_evolution.ensure_columns(spark, table, columns(NEW), NOON + timedelta(hours=later), later + 1)
    made = [(commit["operation"], commit.get("operationMetrics", {}).get("numFiles")) for commit in found.history()]
    assert made == [("WRITE", "0"), ("SET TBLPROPERTIES", None), ("WRITE", "1"), ("CREATE TABLE", None)]
    assert table_columns.read_dropped_columns(found) == {"gone": NOON}
    new = (
        *("b", 2**33, 0.1, Decimal("1234567890.12")),
        *((2**40, "y"), [(2**40, NOON, "y")], 8, NOON, None, NOON, None, "open"),
    )
    spark.createDataFrame([new], columns(NEW)).write.format("delta").mode("append").save(table.path)
    properties = f"'{tables.DELETION_VECTORS}' = 'true', 'delta.checkpointInterval' = '3'"
    spark.sql(f"ALTER TABLE delta.`{table.path}` SET TBLPROPERTIES ({properties})")
    checked(spark, table, 70_001)
    deleted = {"n = 5 OR n = 69000": 69_999, "n BETWEEN 1000 AND 9000": 61_998, "n % 2 = 0 AND n < 66000": 32_999}
    for where, left in deleted.items():
        spark.sql(f"DELETE FROM delta.`{table.path}` WHERE {where}")
        checked(spark, table, left)
    assert list(Path(table.path, "_delta_log").glob("*.checkpoint.parquet"))
    user = ["item", "n", "f", "d", "at", "many"]
    assert table_columns.list_columns(table) == [*user, "more", *PERIODS]
    assert table_columns.list_columns(table, known_at=NOON) == [*user, "more", *PERIODS]
    assert table_columns.list_columns(table, known_at=NOON - timedelta(hours=1)) == [*user, "gone", "more", *PERIODS]


def checked(spark: SparkSession, table: Table, rows: int) -> None:
    """Whether both of our readers read what Spark reads."""
    found = tables.open_table(table)
    assert found is not None
    expected = row_reader.load_rows(spark, table).drop("_belief").toArrow().sort_by("n")
    with duckdb_reader.open_engine() as engine:
        duckdb_reader.register_rows(engine, found)
        scanned = engine.sql("SELECT * FROM rows").to_arrow_table()
    for told in (scanned, pa.table(row_reader.open_arrow_rows(found))):
        assert told.num_rows == rows
        same = told.select(expected.column_names).sort_by("n")
        assert [str(kind) for kind in same.schema.types[:4]] == ["string", "int64", "double", "decimal128(12, 2)"]
        assert same.slice(0, 500).to_pylist() == expected.slice(0, 500).to_pylist()
        assert same.slice(rows - 500).to_pylist() == expected.slice(rows - 500).to_pylist()
        assert same.column("n") == expected.column("n")
