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
from urllib.parse import unquote

import duckdb
import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable
from pyspark.sql.types import IntegerType, LongType, StringType, StructField, StructType, TimestampType

from hindcast.bitemporal.predicates import ColumnBound
from hindcast.common.errors import TableError
from hindcast.contract import bounds
from hindcast.plan import journal
from hindcast.quality import gate_rows
from hindcast.store import arrow_reader, duckdb_reader, row_reader, table_creation, tables
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


def sample_entries(warehouse: str, pipeline: str, run: int, most: int) -> pa.Table:
    """Return for each gate of a run the first rows that it found, at most `most`: what pages show of them.

    A row of more than `MAX_SHOWN` characters is null; entries with such a key are left out, also those of gates beyond
    the most that a contract has. Other long texts are cut, since no run writes them. Raise TableError if the files with
    the rows take too much memory.
    """
    query = f"""
        SELECT "table", gate, entry, key, "change",
            CASE WHEN strlen("row") <= 4 * $longest AND length("row") <= $longest THEN "row" END AS "row",
            topic, "partition", "offset"
        FROM (
            SELECT *, row_number() OVER (PARTITION BY "table", gate ORDER BY key, "at", {RECORD_ORDER}) AS place
            FROM (
                SELECT * EXCLUDE (unit)
                    REPLACE (left(topic, {_MAX_NAME}) AS topic, left("change", {_MAX_NAME}) AS "change")
                FROM failing
            )
            WHERE run = $run AND gate IS NOT NULL AND entry IN ('stopped', 'warned', 'held')
            AND strlen(key) <= 4 * $longest AND length(key) <= $longest AND strlen("table") <= 4 * {_MAX_NAME}
        ) WHERE place <= $most ORDER BY "table", gate, place LIMIT {bounds.GATES} * $most
    """  # noqa: S608  # names and numbers of ours
    table = failing_table(warehouse, pipeline)
    delta_table = tables.open_table(table)
    rows = None if delta_table is None else _load_run(table, delta_table, run)
    return query_entries(warehouse, pipeline, query, {"run": run, "most": most, "longest": MAX_SHOWN}, rows)


def _load_run(table: Table, delta_table: DeltaTable, run: int) -> pa.Table:
    """Return what pages show of a run's entries, with texts as dictionaries, which have each text once."""
    paths = [unquote(path) for path in duckdb_reader.find_candidate_files(delta_table, [ColumnBound("run", run, run)])]
    with row_reader.refuse_broken_files(table):
        _, size = gate_rows.measure_files(delta_table, paths, run, run, _TEXTS)
        if size > MAX_STORED_BYTES:
            found = f"the failing rows of run {run} are not shown: they are in files with {size:,} bytes of text"
            fix = f"hindcast failing {table.pipeline} --run {run} lists them"
            raise TableError(found, where=table.path, fix=fix)
        columns = {"run", "at", "gate", "partition", "offset", *_TEXTS}
        return arrow_reader.read_rows(delta_table, paths, columns, pc.field("run") == run, _TEXTS).read_all()


MAX_STORED_BYTES = 1 << 30
"""The most bytes of texts in the parts of files that a page reads."""

_TEXTS = ("table", "entry", "key", "change", "row", "topic")

MAX_SHOWN = 2_000
"""The number of characters of a key or a row that pages show."""

_MAX_NAME = 250
"""The most characters of the name of a table or topic: Kafka's have 249."""


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
Parameter: TypeAlias = int | str | list[str] | None


def query_entries(
    warehouse: str,
    pipeline: str,
    query: str,
    values: Sequence[Parameter] | Mapping[str, Parameter],
    rows: pa.Table | None = None,
) -> pa.Table:
    """Return what a query of the view `failing` finds; TableError if the table is damaged.

    `rows`: those of the view, if they were read already; otherwise all.
    """
    table = failing_table(warehouse, pipeline)
    delta_table = tables.open_table(table)
    with row_reader.refuse_broken_files(table), duckdb_reader.open_arrow_engine() as engine:
        empty = table_creation.arrow_schema(SCHEMA).empty_table()
        stored = empty if delta_table is None else row_reader.open_dataset(delta_table)
        entered = stored if rows is None else rows
        engine.register("entered", entered)
        unit = "" if "unit" in entered.schema.names else ", NULL::VARCHAR AS unit"  # older tables lack the column
        engine.execute(f"CREATE TEMP VIEW failing AS SELECT *{unit} FROM entered")  # noqa: S608  # ours
        try:
            return engine.sql(query, params=values).to_arrow_table()
        except duckdb.BinderException as error:
            found = f"has other columns than it should: {str(error).partition(chr(10))[0]}"
            raise TableError(found, where=table.path, fix="put back a backup of this folder, or move it away") from None
