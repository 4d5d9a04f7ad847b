"""Failing rows, and the changes that are held back because of them. One Delta table per pipeline, `failing`.

| column | type | |
| --- | --- | --- |
| run, at | bigint, timestamp | the run that found it, and when: later than all before, by any clock |
| table, gate | string, int | whose gate, and its number under `expect`, from 0; null: held with others of its key |
| entry | string | see below |
| expectation, reason | string, string | the rule, and the gate as people write it |
| key, change, row | string | the key as JSON; open or close; the row as JSON, without sensitive columns |
| topic, partition, offset | string, int, bigint | the record that the row comes from, where there is one |
| since | bigint | of what is held: the last run whose records the key's believed rows have |
| digest | bigint | of what is held: what the whole change of the key amounts to |
| by | string | who released or rejected it |
| unit | string | with `hold: row` what is held, as JSON: a record, event, pair or window; null: all of the key |

Entries: `stopped` and `warned` are rows that a gate with that on_failure found; `held` rows are the whole change of a
key with a row that a quarantine gate found, or, with `hold: row`, that row. What became of what is held, is a row of
its own: `released` (a person approved), `rejected` (a person did not; it stays held), `mended` (a later run's change of
it passes, or nothing is left of it).
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from datetime import UTC, datetime
from functools import reduce
from operator import and_
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.compute as pc
from deltalake import write_deltalake
from deltalake.exceptions import DeltaError
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import IntegerType, LongType, StringType, StructField, StructType, TimestampType

from hindcast.contracts import Contract, shapes
from hindcast.contracts.sensitive import sensitive
from hindcast.delta import contents, making, tables
from hindcast.delta.tables import Table
from hindcast.errors import RunError
from hindcast.planning import journal, notices

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


def table(warehouse: str, pipeline: str) -> Table:
    """The failing rows of a pipeline."""
    return Table(warehouse, pipeline, "failing", "failing")


_JSON = {"ignoreNullFields": "false", "timestampFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXX"}


def keyed(*columns: Column) -> Column:
    """A key as JSON: its columns, named, nulls too."""
    return F.to_json(F.struct(*columns), _JSON)


def key_of(names: Sequence[str]) -> Column:
    """The key of a flat row as JSON, given its key columns."""
    return keyed(*(F.col(f"`{name}`") for name in names))


def concerned_by(held: DataFrame, keys: DataFrame) -> DataFrame:
    """Return what is held (`waiting`) of some keys, which may have some of the key's columns only, or none: then of all
    if there is any.
    """

    def part(key: Column, name: str) -> Column:
        return F.get_json_object(key, f"$.{name}")

    told = keys.select(*(part(keyed(F.col(f"`{name}`")), name).alias(f"_{n}") for n, name in enumerate(keys.columns)))
    same = [part(F.col("key"), name).eqNullSafe(F.col(f"_{n}")) for n, name in enumerate(keys.columns)]
    return held.join(told.distinct(), reduce(and_, same, F.lit(True)), "left_semi")


def waiting(
    spark: SparkSession, warehouse: str, pipeline: str, name: str, before: int | None = None
) -> DataFrame | None:
    """The keys of a table whose changes are held, as the runs before `before` left it; None if there are none.

    Columns: `key` (JSON), `unit` (JSON; of a whole key null), `entry` (held, rejected), `since`, `digest`, `at`, of a
    record `began` (ISO 8601), when it is true. Kept apart from the table: what a run enters does not change what it has
    found waiting.
    """
    return _frame(spark, _held_units(warehouse, pipeline, None if before is None else before - 1), name)


def read_settled_units(
    spark: SparkSession, warehouse: str, pipeline: str, name: str, before: int | None = None
) -> DataFrame | None:
    """Return what is held no more of a table with `hold: row`, in the columns of `waiting`, and `run`, which ended it;
    None if there is nothing.
    """
    upto = None if before is None else before - 1
    rows = _asked(warehouse, pipeline, _SETTLED, [_without_effect(warehouse, pipeline), upto, upto]).to_pylist()
    return _frame(spark, rows, name, f"{WAITING}, run long")


WAITING = "key string, unit string, entry string, since long, digest long, at timestamp, began string"


def _frame(
    spark: SparkSession, rows: Sequence[Mapping[str, Any]], name: str, schema: str = WAITING
) -> DataFrame | None:
    """Return the rows of one table as Spark has them; None if there are none."""
    own = [row for row in rows if row["table"] == name]
    columns = [field.partition(" ")[0] for field in schema.split(", ")]
    return spark.createDataFrame([[row[column] for column in columns] for row in own], schema) if own else None


def digest(change: DataFrame) -> DataFrame:
    """What the whole change of each unit amounts to: `key`, `unit` and `digest`; of a change with `_key`, `_unit`."""
    told = [F.col(f"`{column}`") for column in change.columns if not column.startswith("_")]
    rows = F.sort_array(F.collect_list(F.to_json(F.struct(*told), _JSON)))
    return change.groupBy(F.col("_key").alias("key"), F.col("_unit").alias("unit")).agg(
        F.xxhash64(rows).alias("digest")
    )


def entries(
    found: DataFrame,
    of: Table,
    entry: str,
    *,
    run: int,
    at: datetime,
    place: Mapping[str, Column],
    shown: Collection[str],
) -> DataFrame:
    """Rows of a table, or of a change of it, as entries.

    Columns `gate`, `expectation`, `reason`, `since`, `digest` and `unit` are taken from `found` where it has them, and
    are null where not, and so is the key. `place`: the topic and partition of the records that `_partition` and
    `_offset` name, over these; `shown`: the columns that go into `row`.
    """
    told = {
        "run": F.lit(run),
        "at": F.lit(at),
        "table": F.lit(of.name),
        "entry": F.lit(entry),
        "key": key_of(of.key) if {*of.key} <= {*found.columns} else F.lit(None),
        "change": F.col("change") if "change" in found.columns else F.lit("open"),
        "row": F.to_json(F.struct(*(F.col(f"`{c}`") for c in found.columns if c in shown)), _JSON),
    }
    if "_offset" in found.columns:
        told |= {**place, "offset": F.col("_offset")}
    told |= {name: F.col(f"_{name}") for name in _BESIDES if f"_{name}" in found.columns}
    return _filled(found, told)


def ended(keys: DataFrame, of: Table, entry: str, *, run: int, at: datetime, by: str | None) -> DataFrame:
    """What became of held keys (`waiting`), as entries."""
    told = {
        "run": F.lit(run),
        "at": F.lit(at),
        "table": F.lit(of.name),
        "entry": F.lit(entry),
        **{name: F.col(name) for name in ("key", "unit", "since", "digest")},
        "by": F.lit(by),
    }
    return _filled(keys, told)


def _filled(rows: DataFrame, told: Mapping[str, Column]) -> DataFrame:
    """Rows with all columns of `SCHEMA`, null where nothing is told."""
    return rows.select(
        *(told.get(field.name, F.lit(None)).cast(field.dataType).alias(field.name) for field in SCHEMA.fields)
    )


def listed(
    warehouse: str, pipeline: str, name: str | None = None, run: int | None = None, gate: int | None = None
) -> pa.Table:
    """The entries of a pipeline as `SCHEMA` has them, but `digest`, `unit`; of one table, run, gate if told."""
    wanted = {'"table"': name, "run": run, "gate": gate}
    asked = {column: value for column, value in wanted.items() if value is not None}
    where = " AND ".join(["true", *(f"{column} = ?" for column in asked)])
    query = f'SELECT * EXCLUDE (digest, unit) FROM failing WHERE {where} ORDER BY run, "table", key, "at", {_RECORD}'  # noqa: S608  # names of ours
    return _asked(warehouse, pipeline, query, list(asked.values()))


def held(warehouse: str, pipeline: str, upto: int | None = None) -> pa.Table:
    """The rows of all changes that are held now, or after the run `upto`, with `entry` held or rejected.

    Columns as `listed` has them, rows by table, key, run and record.
    """
    return _asked(warehouse, pipeline, _HELD, [_without_effect(warehouse, pipeline), upto, upto])


def counts(warehouse: str, pipeline: str, run: int, last: int) -> dict[str, dict[str, int]]:
    """Return, by table, how many `keys` are held after a run, and how many `rows` their changes have.

    `newly`: how many of these keys were not held after run `last`, the completed one before; `grown`: how many were,
    and have another change held since.
    """
    before = {(row["table"], row["key"]) for row in _held_units(warehouse, pipeline, last)}
    found: dict[str, dict[str, int]] = {}
    changed: dict[tuple[str, str], bool] = {}
    for row in held(warehouse, pipeline, run).to_pylist():
        count = found.setdefault(row["table"], {"keys": 0, "rows": 0, "newly": 0, "grown": 0})
        count["rows"] += 1
        key = row["table"], row["key"]
        changed[key] = changed.get(key, False) or row["run"] > last
    for key, is_changed in changed.items():
        count = found[key[0]]
        count["keys"] += 1
        count["newly"] += key not in before
        count["grown"] += key in before and is_changed
    return found


def count_ended(warehouse: str, pipeline: str, run: int) -> dict[str, dict[str, int]]:
    """Return, by table, how many keys (with `hold: row`: rows) a run has `released` and `mended`."""
    found: dict[str, dict[str, int]] = {}
    for row in _asked(warehouse, pipeline, _ENDED_BY, [run]).to_pylist():
        found.setdefault(row["table"], {})[row["entry"]] = row["units"]
    return found


def named(warehouse: str, pipeline: str, name: str, told: Sequence[str]) -> list[str]:
    """The held keys of a table (JSON) that some texts name: the text of a key's one column, or a JSON object.

    RunError if nothing is held of one of them; without texts all that are held, RunError if none is.
    """
    rows = held(warehouse, pipeline)
    there = set(rows.filter(pc.equal(rows.column("table"), name)).column("key").to_pylist())
    mend = f"hindcast failing {pipeline} --held lists what is held"
    if not there:
        raise RunError("nothing is held back", where=f"{pipeline}.{name}", mend=mend)
    texts: dict[str, list[str]] = {}
    for key in there if told else ():
        for text in _texts_of(key):
            texts.setdefault(text, []).append(key)
    found = {text: texts.get(text, []) for text in told}
    if missing := [text for text, keys in found.items() if not keys]:
        raise RunError(f"nothing is held of {', '.join(missing)}", where=f"{pipeline}.{name}", mend=mend)
    return sorted({key for keys in found.values() for key in keys} if told else there)


def last_entry(warehouse: str, pipeline: str) -> datetime:
    """Return the moment of the last entry, which says what of the entries someone sees who looks at them now."""
    return contents.last_moment(tables.opened(table(warehouse, pipeline))) or datetime.min.replace(tzinfo=UTC)


def _texts_of(key: str) -> set[str]:
    """Return the texts that name a key (JSON): itself, however it is spaced, and the text of its one column."""
    columns = json.loads(key)
    return {key, json.dumps(columns), *(str(value) for value in columns.values() if len(columns) == 1)}


def masked(contract: Contract, rows: pa.Table) -> pa.Table:
    """Entries whose keys are not shown where a column of the key is sensitive: the record's place tells which it is."""
    hidden = {name for name, columns in sensitive(contract).items() if columns & set(shapes(contract)[name].key)}
    keys = [
        "***" if table in hidden else key
        for table, key in zip(rows.column("table").to_pylist(), rows.column("key").to_pylist(), strict=True)
    ]
    return rows.set_column(rows.column_names.index("key"), "key", pa.array(keys, pa.string()))


def reject(
    warehouse: str, pipeline: str, keys: Mapping[str, Sequence[str]], by: str, until: datetime
) -> dict[str, list[str]]:
    """Note that a person has looked at the held changes of some keys (JSON) by table, and leaves them held; return
    these keys.

    `until`: when they were looked at. A key whose change is another one since, or that is not held any more, is left
    out. BusyError, before anything is read or written, while something is forgotten.
    """
    failing, wanted = table(warehouse, pipeline), {name: set(some) for name, some in keys.items()}
    try:
        with notices.post_notice(warehouse, pipeline, "a rejection"):
            now = contents.next_moment(tables.opened(failing))
            rows = [
                {**row, "at": now, "entry": "rejected", "by": by}
                for row in _held_units(warehouse, pipeline, None)
                if row["key"] in wanted.get(row["table"], ()) and row["at"] <= until
            ]
            if rows:
                told = pa.Table.from_pylist(rows, schema=making.arrow_schema(SCHEMA))
                write_deltalake(making.ensure(failing, SCHEMA), told, mode="append")
    except (DeltaError, OSError) as error:
        raise making.unwritten(error, failing.path) from None
    rejected = {name: sorted({row["key"] for row in rows if row["table"] == name}) for name in keys}
    return {name: some for name, some in rejected.items() if some}


_RECORD = 'topic, "partition", "offset", gate, "change"'
"""The order of the rows of one key: that of their records."""
_LAST = """
    SELECT "table", key, unit, max_by(entry, (run, "at")) AS entry, max_by(digest, (run, "at")) AS digest,
           max_by(since, (run, "at")) AS since, max(run) AS run, max_by("at", (run, "at")) AS "at",
           CASE WHEN unit IS NOT NULL THEN max(json_extract_string("row", '$.validFrom')) END AS began
    FROM failing
    WHERE entry NOT IN ('stopped', 'warned') AND NOT list_contains(?, concat(entry, ' ', run, ' ', "table"))
      AND (? IS NULL OR run <= ?)
    GROUP BY "table", key, unit
"""
_UNITS = f"SELECT * FROM ({_LAST}) WHERE entry IN ('held', 'rejected')"  # noqa: S608  # ours
_SETTLED = f"SELECT * FROM ({_LAST}) WHERE entry IN ('released', 'mended') AND unit IS NOT NULL"  # noqa: S608  # ours
_HELD = f"""
    WITH last AS ({_UNITS})
    SELECT r.* EXCLUDE (entry, digest, unit), last.entry
    FROM failing r JOIN last ON r."table" = last."table" AND r.key = last.key AND r.unit IS NOT DISTINCT FROM last.unit
     AND r.digest = last.digest AND r.run = last.run
    WHERE r.entry = 'held' ORDER BY "table", key, run, {_RECORD}
"""  # noqa: S608  # ours


def _held_units(warehouse: str, pipeline: str, upto: int | None) -> list[dict[str, Any]]:
    """What is held after the run `upto`, or now: table, key, unit, entry, digest, since, run, at."""
    return list(_asked(warehouse, pipeline, _UNITS, [_without_effect(warehouse, pipeline), upto, upto]).to_pylist())


def _without_effect(warehouse: str, pipeline: str) -> list[str]:
    """What runs entered that were given up before they had published the table: it has not come true."""
    if tables.opened(table(warehouse, pipeline)) is None:
        return []
    ended = _asked(warehouse, pipeline, _ENDED, []).to_pylist()
    past = journal.runs(warehouse, pipeline)
    given_up = {run.number: run.detail for run in past if run.state in ("abandoned", "stopped")}
    names = {row["table"] for row in ended if row["run"] in given_up}
    done = {name: tables.notes(Table(warehouse, pipeline, name, "versions")) for name in names}
    return [
        f"{row['entry']} {row['run']} {row['table']}"
        for row in ended
        if row["run"] in given_up
        and row["table"] not in given_up[row["run"]].get("published", ())
        and row["run"] not in done[row["table"]]
    ]


_ENDED_BY = """
    SELECT "table", entry, count(DISTINCT (key, unit)) AS units FROM failing
    WHERE entry IN ('released', 'mended') AND run = ? GROUP BY "table", entry ORDER BY "table", entry DESC
"""
_ENDED = "SELECT DISTINCT entry, run, \"table\" FROM failing WHERE entry IN ('released', 'mended')"


def _asked(warehouse: str, pipeline: str, query: str, values: list[Any]) -> pa.Table:
    found = tables.opened(table(warehouse, pipeline))
    with duckdb.connect() as engine:
        engine.execute("SET TimeZone = 'UTC'")
        rows = contents.dataset(found) if found is not None else making.arrow_schema(SCHEMA).empty_table()
        engine.register("entered", rows)
        unit = "" if "unit" in rows.schema.names else ", NULL::VARCHAR AS unit"  # a table of before has no such column
        engine.execute(f"CREATE TEMP VIEW failing AS SELECT *{unit} FROM entered")  # noqa: S608  # ours
        return engine.sql(query, params=values).to_arrow_table()


_BESIDES = ("gate", "expectation", "reason", "since", "digest", "unit")
