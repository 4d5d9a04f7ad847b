"""Failing rows, and the changes that are held back because of them. One Delta table per pipeline, `failing`.

| column | type | |
| --- | --- | --- |
| run, at | bigint, timestamp | the run that found it, and when: always later than earlier entries |
| table, gate | string, int | whose gate, and its number under `expect`, from 0; null: held with others of its key |
| entry | string | see below |
| expectation, reason | string, string | the rule, and the gate as people write it |
| key | string | the key as JSON; of a row that is held with another key, that key |
| change, row | string | open or close; the row as JSON, without sensitive columns |
| topic, partition, offset | string, int, bigint | the record that the row comes from, if there is one |
| since | bigint | of what is held: the last run whose records the key's current rows include |
| digest | bigint | of what is held: a hash of the whole change of the key |
| by | string | who released or rejected it |
| unit | string | with `hold: row` what is held, as JSON: a record, event, pair or window; null: the whole key |

Entries: `stopped` and `warned` are rows that a gate with that on_failure found; `held` rows are the whole change of a
key with a row that a quarantine gate found, or, with `hold: row`, only that row. What becomes of held rows is an entry
of its own: `released` (a person approved them), `rejected` (a person did not; they stay held), `mended` (the change
passes in a later run, or nothing is left of it).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import TypeAlias

import pyarrow as pa
from pyspark.sql.types import IntegerType, LongType, StringType, StructField, StructType, TimestampType

from hindcast.common.errors import TableError
from hindcast.plan import journal
from hindcast.store import duckdb_reader, odd_tables, table_creation, tables
from hindcast.store.duckdb_reader import EngineFactory
from hindcast.store.tables import Table

SCHEMA = StructType(
    [
        StructField("run", LongType()),
        StructField("at", TimestampType()),
        StructField("table", StringType()),
        StructField("gate", IntegerType()),
        StructField("entry", StringType()),
        StructField("expectation", StringType()),
        StructField("reason", StringType()),
        StructField("key", StringType()),
        StructField("change", StringType()),
        StructField("row", StringType()),
        StructField("topic", StringType()),
        StructField("partition", IntegerType()),
        StructField("offset", LongType()),
        StructField("since", LongType()),
        StructField("digest", LongType()),
        StructField("by", StringType()),
        StructField("unit", StringType()),
    ]
)


def failing_table(warehouse: str, pipeline: str) -> Table:
    """Return the table of a pipeline's failing rows."""
    return Table(warehouse, pipeline, "failing", "failing")


def list_entries(
    warehouse: str, pipeline: str, name: str | None = None, run: int | None = None, gate: int | None = None
) -> pa.Table:
    """Return the entries of a pipeline, of one table, run or gate if given: `SCHEMA` without `digest` and `unit`."""
    filters = {'"table"': name, "run": run, "gate": gate}
    filters = {column: value for column, value in filters.items() if value is not None}
    where = " AND ".join(["true", *(f"{column} = ?" for column in filters)])
    query = (
        f'SELECT * EXCLUDE (digest, unit) FROM failing WHERE {where} ORDER BY run, "table", key, "at", {RECORD_ORDER}'  # noqa: S608  # names of ours
    )
    return query_entries(warehouse, pipeline, query, list(filters.values()))


def read_last_entry_time(warehouse: str, pipeline: str) -> datetime:
    """Return the moment of the last entry of a run that has ended: a reader has seen all entries up to it. The earliest
    moment if there is none.

    A run that is under way may still enter something with the moment of its first entry.
    """
    rows = query_entries(warehouse, pipeline, 'SELECT run, max("at") AS last FROM failing GROUP BY run', []).to_pylist()
    # After the entries: a run that is planned in between has none of them.
    under_way = {run.number for run in journal.read_runs(warehouse, pipeline) if run.state == "planned"}
    moments = (row["last"] for row in rows if row["run"] not in under_way)
    return max(moments, default=datetime.min.replace(tzinfo=UTC))


RECORD_ORDER = 'topic, "partition", "offset", gate, "change"'
"""Orders the rows of one key by their records."""
Parameter: TypeAlias = int | str | list[str] | list[int] | None


def query_entries(
    warehouse: str,
    pipeline: str,
    query: str,
    values: Sequence[Parameter] | Mapping[str, Parameter],
    open_engine: EngineFactory = duckdb_reader.open_engine,
) -> pa.Table:
    """Return what a query of the view `failing` finds; TableError if the table is damaged. `open_engine` opens what
    reads it.
    """
    table = failing_table(warehouse, pipeline)
    delta_table = tables.open_table(table)
    opened = duckdb_reader.open_arrow_engine() if delta_table is None else open_engine(delta_table)
    with odd_tables.refuse_unreadable_rows(table), opened as engine:
        own = engine.from_arrow(table_creation.arrow_schema(SCHEMA).empty_table())
        if delta_table is None:
            engine.register("rows", own)
        else:
            duckdb_reader.register_rows(engine, delta_table)
        rows = engine.sql("FROM rows")
        kinds = dict(zip(rows.columns, rows.types, strict=True))
        kinds.setdefault("unit", own.types[own.columns.index("unit")])  # older tables lack the column
        if other := [name for name, kind in zip(own.columns, own.types, strict=True) if kinds.get(name) != kind]:
            raise build_columns_error(table, ", ".join(other))
        unit = "" if "unit" in rows.columns else ", NULL::VARCHAR AS unit"
        engine.execute(f"CREATE TEMP VIEW failing AS SELECT *{unit} FROM rows")  # noqa: S608  # ours
        found = engine.sql(query, params=values).to_arrow_table()
        odd_tables.refuse_odd_moments(found)
        return found


def build_columns_error(table: Table, what: str) -> TableError:
    """Return the error of a table with other columns than those of `SCHEMA`; `what` says which."""
    fix = "put back a backup of this folder, or move it away"
    return TableError(f"has other columns than it should: {what}", where=table.path, fix=fix)
