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

import json
from collections.abc import Collection, Mapping, Sequence
from datetime import UTC, datetime
from functools import reduce
from operator import and_
from typing import NamedTuple, TypeAlias

import duckdb
import pyarrow as pa
import pyarrow.compute as pc
from deltalake import write_deltalake
from deltalake.exceptions import DeltaError
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import IntegerType, LongType, StringType, StructField, StructType, TimestampType

from hindcast.common.errors import RunError
from hindcast.plan import journal, notices
from hindcast.store import row_reader, table_creation, tables
from hindcast.store.commit_notes import TableNote
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


_JSON_OPTIONS = {"ignoreNullFields": "false", "timestampFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXX"}


def format_key(*columns: Column) -> Column:
    """Return a key as JSON text: an object with all of its columns, nulls included; -0.0 is 0.0, as in tables."""
    text = F.to_json(F.struct(*columns), _JSON_OPTIONS)
    return F.regexp_replace(text, r'(?<!\\)":-0\.0(?=[,}])', '":0.0')  # an unescaped quote and a colon: after a name


def format_row_key(names: Sequence[str]) -> Column:
    """Return the key of a flat row as JSON text, given the names of its key columns."""
    return format_key(*(F.col(f"`{name}`") for name in names))


def filter_concerned(held: DataFrame, keys: DataFrame) -> DataFrame:
    """Return the rows of `held` (`read_held_units`) whose key is among `keys`.

    `keys` may have only some of the key's columns. Without columns it stands for all keys, unless it is empty.
    """

    def field(key: Column, name: str) -> Column:
        return F.get_json_object(key, f"$.{name}")

    fields = keys.select(
        *(field(format_key(F.col(f"`{name}`")), name).alias(f"_{n}") for n, name in enumerate(keys.columns))
    )
    same = [field(F.col("key"), name).eqNullSafe(F.col(f"_{n}")) for n, name in enumerate(keys.columns)]
    return held.join(fields.distinct(), reduce(and_, same, F.lit(True)), "left_semi")


def read_held_units(
    spark: SparkSession, warehouse: str, pipeline: str, name: str, before: int | None = None
) -> DataFrame | None:
    """Return what is held of a table, as the runs before `before` left it (None: now); None if nothing is held.

    Columns: `key` (JSON), `unit` (JSON; null for a whole key), `entry` (held, rejected), `since`, `digest`, `at`, and
    for a record `began` (ISO 8601), when it becomes true. The result does not change with what a run enters later.
    """
    units = _list_units(warehouse, pipeline, _HELD_UNITS_QUERY, None if before is None else before - 1)
    return _build_frame(spark, units, name)


def read_settled_units(
    spark: SparkSession, warehouse: str, pipeline: str, name: str, before: int | None = None
) -> DataFrame | None:
    """Return what is no longer held of a table with `hold: row`; None if there is nothing.

    Columns: those of `read_held_units`, and `run`, the run that ended the hold. `before`: as in `read_held_units`.
    """
    units = _list_units(warehouse, pipeline, _SETTLED_UNITS_QUERY, None if before is None else before - 1)
    return _build_frame(spark, units, name, f"{HELD_UNIT_SCHEMA}, run long")


HELD_UNIT_SCHEMA = "key string, unit string, entry string, since long, digest long, at timestamp, began string"


class _Unit(NamedTuple):
    """A unit that is or was held, as its last entry says: the columns of `_LAST_ENTRIES_QUERY`."""

    table: str
    key: str
    unit: str | None
    entry: str
    digest: int | None
    since: int | None
    run: int
    at: datetime
    began: str | None


def _build_frame(
    spark: SparkSession, units: Sequence[_Unit], name: str, schema: str = HELD_UNIT_SCHEMA
) -> DataFrame | None:
    """Return the units of the table `name` as a DataFrame; None if there are none."""
    columns = [field.partition(" ")[0] for field in schema.split(", ")]
    rows = [[getattr(unit, column) for column in columns] for unit in units if unit.table == name]
    return spark.createDataFrame(rows, schema) if rows else None


def digest_units(change: DataFrame) -> DataFrame:
    """Return a hash of the whole change of each unit: `key`, `unit`, `digest`. `change` has `_key` and `_unit`.

    A unit has one key: that of its opened row, if the change moves an event from one key to another.
    """
    content = [F.col(f"`{column}`") for column in change.columns if not column.startswith("_")]
    content.append(F.col("_change").alias("change"))
    rows = F.sort_array(F.collect_list(F.to_json(F.struct(*content), _JSON_OPTIONS)))
    opened = F.max(F.when(F.col("_change") == "open", F.col("_key")))
    return change.groupBy(F.col("_unit").alias("unit")).agg(
        F.coalesce(opened, F.max("_key")).alias("key"), F.xxhash64(rows).alias("digest")
    )


def build_entries(
    rows: DataFrame,
    table: Table,
    entry: str,
    *,
    run: int,
    at: datetime,
    place: Mapping[str, Column],
    shown: Collection[str],
) -> DataFrame:
    """Return rows of a table, or of a change of it, as entries with the columns of `SCHEMA`.

    `gate`, `expectation`, `reason`, `since`, `digest` and `unit` come from the columns `_gate`, `_expectation`, ... of
    `rows`; they are null where `rows` lacks them. `key` comes from `_key`, else from the key columns, or is null.
    `place`: the topic and partition of a record, as expressions over `_partition`; `shown`: the columns that go into
    `row`.
    """
    columns = {
        "run": F.lit(run),
        "at": F.lit(at),
        "table": F.lit(table.name),
        "entry": F.lit(entry),
        "key": _find_entry_key(rows, table),
        "change": F.col("_change") if "_change" in rows.columns else F.lit("open"),
        "row": F.to_json(F.struct(*(F.col(f"`{c}`") for c in rows.columns if c in shown)), _JSON_OPTIONS),
    }
    if "_offset" in rows.columns:
        columns |= {**place, "offset": F.col("_offset")}
    columns |= {name: F.col(f"_{name}") for name in _OPTIONAL_COLUMNS if f"_{name}" in rows.columns}
    return _fill_columns(rows, columns)


def _find_entry_key(rows: DataFrame, table: Table) -> Column:
    if "_key" in rows.columns:  # the key that they are held with
        return F.col("_key")
    return format_row_key(table.key) if {*table.key} <= {*rows.columns} else F.lit(None)


def build_end_entries(
    units: DataFrame, table: Table, entry: str, *, run: int, at: datetime, by: str | None
) -> DataFrame:
    """Return an entry (`SCHEMA`) for each unit that is no longer held (rows of `read_held_units`)."""
    columns = {
        "run": F.lit(run),
        "at": F.lit(at),
        "table": F.lit(table.name),
        "entry": F.lit(entry),
        **{name: F.col(name) for name in ("key", "unit", "since", "digest")},
        "by": F.lit(by),
    }
    return _fill_columns(units, columns)


def _fill_columns(rows: DataFrame, columns: Mapping[str, Column]) -> DataFrame:
    """Return rows with all columns of `SCHEMA`; those that `columns` lacks are null."""
    return rows.select(
        *(columns.get(field.name, F.lit(None)).cast(field.dataType).alias(field.name) for field in SCHEMA.fields)
    )


def list_entries(
    warehouse: str, pipeline: str, name: str | None = None, run: int | None = None, gate: int | None = None
) -> pa.Table:
    """Return the entries of a pipeline, of one table, run or gate if given: `SCHEMA` without `digest` and `unit`."""
    filters = {'"table"': name, "run": run, "gate": gate}
    filters = {column: value for column, value in filters.items() if value is not None}
    where = " AND ".join(["true", *(f"{column} = ?" for column in filters)])
    query = (
        f'SELECT * EXCLUDE (digest, unit) FROM failing WHERE {where} ORDER BY run, "table", key, "at", {_RECORD_ORDER}'  # noqa: S608  # names of ours
    )
    return _run_query(warehouse, pipeline, query, list(filters.values()))


def read_held_rows(warehouse: str, pipeline: str, upto: int | None = None) -> pa.Table:
    """Return the rows of all changes that are held now, or after the run `upto`, with `entry` held or rejected.

    Columns: those of `list_entries`; ordered by table, key, run and record.
    """
    return _run_query(warehouse, pipeline, _HELD_ROWS_QUERY, [_list_void_entries(warehouse, pipeline), upto, upto])


def read_held_places(spark: SparkSession, warehouse: str, pipeline: str, name: str, before: int) -> DataFrame:
    """Return the records of the held rows of a table, as the runs before `before` left them.

    Columns: `unit` (JSON; the key if it is held whole), `topic`, `partition`, `offset`.
    """
    values: list[_Parameter] = [_list_void_entries(warehouse, pipeline), before - 1, before - 1, name]
    rows = _run_query(warehouse, pipeline, _HELD_PLACES_QUERY, values).to_pylist()
    schema = "unit string, topic string, partition int, offset long"
    return spark.createDataFrame([tuple(row.values()) for row in rows], schema)


def count_held(warehouse: str, pipeline: str, run: int, last: int) -> dict[str, dict[str, int]]:
    """Return, by table, how many `keys` are held after a run, and how many `rows` their changes have.

    `newly`: how many of these keys were not held after run `last`, the previous completed run; `grown`: how many were
    held already and have more held since.
    """
    before = {(unit.table, unit.key) for unit in _list_units(warehouse, pipeline, _HELD_UNITS_QUERY, last)}
    counts: dict[str, dict[str, int]] = {}
    changed: dict[tuple[str, str], bool] = {}
    for row in read_held_rows(warehouse, pipeline, run).to_pylist():
        count = counts.setdefault(row["table"], {"keys": 0, "rows": 0, "newly": 0, "grown": 0})
        count["rows"] += 1
        key = row["table"], row["key"]
        changed[key] = changed.get(key, False) or row["run"] > last
    for key, is_changed in changed.items():
        count = counts[key[0]]
        count["keys"] += 1
        count["newly"] += key not in before
        count["grown"] += key in before and is_changed
    return counts


def count_ended(warehouse: str, pipeline: str, run: int) -> dict[str, dict[str, int]]:
    """Return, by table, how many keys (with `hold: row`: rows) a run has `released` and `mended`."""
    counts: dict[str, dict[str, int]] = {}
    for row in _run_query(warehouse, pipeline, _ENDED_COUNTS_QUERY, [run]).to_pylist():
        counts.setdefault(row["table"], {})[row["entry"]] = row["units"]
    return counts


def find_held_keys(warehouse: str, pipeline: str, name: str, texts: Sequence[str]) -> list[str]:
    """Return the held keys of a table (JSON) that the texts name, or all of them without texts.

    A text is the value of a key's only column, or a JSON object. RunError if nothing is held, or nothing of one text.
    """
    rows = read_held_rows(warehouse, pipeline)
    held = set(rows.filter(pc.equal(rows.column("table"), name)).column("key").to_pylist())
    fix = f"hindcast failing {pipeline} --held lists what is held"
    if not held:
        raise RunError("nothing is held back", where=f"{pipeline}.{name}", fix=fix)
    if not texts:
        return sorted(held)
    named: dict[str, list[str]] = {}
    for key in held:
        for text in _list_key_texts(key):
            named.setdefault(text, []).append(key)
    if missing := [text for text in dict.fromkeys(texts) if text not in named]:
        raise RunError(f"nothing is held of {', '.join(missing)}", where=f"{pipeline}.{name}", fix=fix)
    return sorted({key for text in texts for key in named[text]})


def read_last_entry_time(warehouse: str, pipeline: str) -> datetime:
    """Return the moment of the last entry: a reader has seen the entries up to it. The earliest moment if none."""
    return row_reader.read_last_moment(tables.open_table(failing_table(warehouse, pipeline))) or datetime.min.replace(
        tzinfo=UTC
    )


def _list_key_texts(key: str) -> set[str]:
    """Return the texts that name a key (JSON): itself, in two spacings, and the value of its only column."""
    columns = json.loads(key)
    return {key, json.dumps(columns), *(str(value) for value in columns.values() if len(columns) == 1)}


def reject_keys(
    warehouse: str, pipeline: str, keys: Mapping[str, Sequence[str]], by: str, until: datetime
) -> dict[str, list[str]]:
    """Write that a person looked at the held changes of some keys (JSON) by table and rejected them; return these keys.

    `until`: when they were looked at. A key whose change has changed since, or that is no longer held, is left out.
    BusyError, before anything is read or written, while something is being forgotten.
    """
    failing, chosen = failing_table(warehouse, pipeline), {name: set(some) for name, some in keys.items()}
    try:
        with notices.post_notice(warehouse, pipeline, "a rejection"):
            now = row_reader.read_next_moment(tables.open_table(failing))
            rows = [
                {**unit._asdict(), "at": now, "entry": "rejected", "by": by}
                for unit in _list_units(warehouse, pipeline, _HELD_UNITS_QUERY, None)
                if unit.key in chosen.get(unit.table, ()) and unit.at <= until
            ]
            if rows:
                entries = pa.Table.from_pylist(rows, schema=table_creation.arrow_schema(SCHEMA))
                write_deltalake(table_creation.ensure_table(failing, SCHEMA), entries, mode="append")
    except (DeltaError, OSError) as error:
        raise table_creation.explain_write_error(error, failing.path) from None
    rejected = {name: sorted({row["key"] for row in rows if row["table"] == name}) for name in keys}
    return {name: some for name, some in rejected.items() if some}


_RECORD_ORDER = 'topic, "partition", "offset", gate, "change"'
"""Orders the rows of one key by their records."""
_LAST_ENTRIES_QUERY = """
    SELECT "table", key, unit, max_by(entry, (run, "at")) AS entry, max_by(digest, (run, "at")) AS digest,
           max_by(since, (run, "at")) AS since, max(run) AS run, max_by("at", (run, "at")) AS "at",
           CASE WHEN unit IS NOT NULL THEN max(json_extract_string("row", '$.validFrom')) END AS began
    FROM failing
    WHERE entry NOT IN ('stopped', 'warned') AND NOT list_contains(?, concat(entry, ' ', run, ' ', "table"))
      AND (? IS NULL OR run <= ?)
    GROUP BY "table", key, unit
"""
_HELD_UNITS_QUERY = f"SELECT * FROM ({_LAST_ENTRIES_QUERY}) WHERE entry IN ('held', 'rejected')"  # noqa: S608  # ours
_SETTLED_UNITS_QUERY = (
    f"SELECT * FROM ({_LAST_ENTRIES_QUERY}) WHERE entry IN ('released', 'mended') AND unit IS NOT NULL"  # noqa: S608  # ours
)
_FROM_HELD_ROWS = f"""
    FROM failing r JOIN ({_HELD_UNITS_QUERY}) last
      ON r."table" = last."table" AND r.key = last.key AND r.unit IS NOT DISTINCT FROM last.unit
     AND r.digest = last.digest AND r.run = last.run
    WHERE r.entry = 'held'
"""
_HELD_ROWS_QUERY = f"""
    SELECT r.* EXCLUDE (entry, digest, unit), last.entry {_FROM_HELD_ROWS}
    ORDER BY "table", key, run, {_RECORD_ORDER}
"""
_HELD_PLACES_QUERY = f"""
    SELECT DISTINCT coalesce(r.unit, r.key) AS unit, topic, "partition", "offset" {_FROM_HELD_ROWS}
       AND r."table" = ? AND "offset" IS NOT NULL
"""


def _list_units(warehouse: str, pipeline: str, query: str, upto: int | None) -> list[_Unit]:
    """Return the units that a query selects, as they are now, or were after the run `upto`."""
    rows = _run_query(warehouse, pipeline, query, [_list_void_entries(warehouse, pipeline), upto, upto])
    return [_Unit(**row) for row in rows.to_pylist()]


def _list_void_entries(warehouse: str, pipeline: str) -> list[str]:
    """Return the entries of runs that ended before they published the table, as "entry run table": they are void."""
    if tables.open_table(failing_table(warehouse, pipeline)) is None:
        return []
    ended = _run_query(warehouse, pipeline, _ENDED_QUERY, []).to_pylist()
    past = journal.read_runs(warehouse, pipeline)
    unfinished = {run.number: run for run in past if run.state in ("stopped", "abandoned")}
    names = {row["table"] for row in ended if row["run"] in unfinished}
    done = {n: tables.read_notes(Table(warehouse, pipeline, n, "versions"), TableNote.from_json) for n in names}
    return [
        f"{row['entry']} {row['run']} {row['table']}"
        for row in ended
        if row["run"] in unfinished
        and not unfinished[row["run"]].had_published(row["table"])
        and row["run"] not in done[row["table"]]
    ]


_ENDED_COUNTS_QUERY = """
    SELECT "table", entry, count(DISTINCT (key, unit)) AS units FROM failing
    WHERE entry IN ('released', 'mended') AND run = ? GROUP BY "table", entry ORDER BY "table", entry DESC
"""
_Parameter: TypeAlias = int | str | list[str] | None
_ENDED_QUERY = "SELECT DISTINCT entry, run, \"table\" FROM failing WHERE entry IN ('released', 'mended')"


def _run_query(warehouse: str, pipeline: str, query: str, values: Sequence[_Parameter]) -> pa.Table:
    delta_table = tables.open_table(failing_table(warehouse, pipeline))
    with duckdb.connect() as engine:
        engine.execute("SET TimeZone = 'UTC'")
        empty = table_creation.arrow_schema(SCHEMA).empty_table()
        rows = empty if delta_table is None else row_reader.open_dataset(delta_table)
        engine.register("entered", rows)
        unit = "" if "unit" in rows.schema.names else ", NULL::VARCHAR AS unit"  # older tables lack the column
        engine.execute(f"CREATE TEMP VIEW failing AS SELECT *{unit} FROM entered")  # noqa: S608  # ours
        return engine.sql(query, params=values).to_arrow_table()


_OPTIONAL_COLUMNS = ("gate", "expectation", "reason", "since", "digest", "unit")
