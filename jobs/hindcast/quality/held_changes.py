"""What is held back of a pipeline's tables, now or after a run, as the entries of failing_rows.py say."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from datetime import datetime
from functools import reduce
from operator import and_
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import write_deltalake
from deltalake.exceptions import DeltaError
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from hindcast.bitemporal.predicates import sql_literal
from hindcast.common.errors import BusyError, RunError
from hindcast.plan import journal, notices
from hindcast.quality import entry_masks
from hindcast.quality.entry_rows import format_key
from hindcast.quality.failing_rows import RECORD_ORDER, SCHEMA, Parameter, failing_table, query_entries
from hindcast.store import commit_history, duckdb_reader, row_reader, table_creation, tables
from hindcast.store.commit_notes import TableNote
from hindcast.store.duckdb_reader import EngineFactory
from hindcast.store.tables import Table


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


def read_held_rows(warehouse: str, pipeline: str, upto: int | None = None) -> pa.Table:
    """Return the rows of all changes that are held now, or after the run `upto`, with `entry` held or rejected.

    Columns: those of `list_entries`; ordered by table, key, run and record.
    """
    return query_entries(warehouse, pipeline, _HELD_ROWS_QUERY, [_list_void_entries(warehouse, pipeline), upto, upto])


def list_first_keys(warehouse: str, pipeline: str, most: int, open_engine: EngineFactory) -> pa.Table:
    """Return the first keys whose changes wait for a decision now, with the first row of each that fails a gate.

    Columns: `table, key, run, reason, topic, partition, offset`. `open_engine` opens what reads the table.
    """
    query = f"""
        SELECT "table", key, run, reason, topic, "partition", "offset" FROM ({_HELD_ROWS_QUERY})
        WHERE entry = 'held' AND expectation IS NOT NULL
        QUALIFY row_number() OVER (PARTITION BY "table", key ORDER BY run, gate, "offset") = 1
        ORDER BY "table", key LIMIT {most:d}
    """  # noqa: S608  # ours
    void = _list_void_entries(warehouse, pipeline, None, open_engine)
    return query_entries(warehouse, pipeline, query, [void, None, None], open_engine)


def find_beginning(
    warehouse: str, pipeline: str, name: str, condition: str, upto: int, open_engine: EngineFactory
) -> tuple[int, int] | None:
    """Return the run that began to hold back rows of a table, and `since` (failing_rows.py); None if none is held.

    `condition`: SQL over the columns of the held rows; `upto`: as of `read_held_rows`. Of several holds the first.
    `open_engine` opens what reads the table.
    """
    query = f"""
        WITH held AS (SELECT DISTINCT key, unit, since FROM ({_HELD_CHANGES_QUERY}) WHERE {condition})
        SELECT min(entered.run) AS began, min(held.since) AS since
        FROM held JOIN failing entered ON entered.key = held.key AND entered.unit IS NOT DISTINCT FROM held.unit
        WHERE entered."table" = {sql_literal(name)} AND entered.entry = 'held' AND entered.run > held.since
    """  # noqa: S608  # ours
    values: list[Parameter] = [_list_void_entries(warehouse, pipeline, name, open_engine), upto, upto, name]
    (found,) = query_entries(warehouse, pipeline, query, values, open_engine).to_pylist()
    return None if found["began"] is None else (found["began"], found["since"])


def find_failing_runs(
    warehouse: str, pipeline: str, name: str, condition: str, after: int, open_engine: EngineFactory
) -> list[tuple[int, str]]:
    """Return the runs that found rows of a table which are not published, the last first, each with a key (JSON).

    These held back what is held now, or were stopped by a gate after the run `after`. `condition` and `open_engine`: as
    of `find_beginning`.
    """
    query = f"""
        SELECT run, key FROM ({_HELD_CHANGES_QUERY}) WHERE {condition}
        UNION
        SELECT run, key FROM failing
        WHERE "table" = ? AND entry = 'stopped' AND gate IS NOT NULL AND run > ? AND {condition}
        ORDER BY run DESC, key
    """  # noqa: S608  # ours
    void = _list_void_entries(warehouse, pipeline, name, open_engine)
    values: list[Parameter] = [void, None, None, name, name, after]
    found = query_entries(warehouse, pipeline, query, values, open_engine).to_pylist()
    return [(row["run"], row["key"]) for row in found]


def read_held_places(spark: SparkSession, warehouse: str, pipeline: str, name: str, before: int) -> DataFrame:
    """Return the records of the held rows of a table, as the runs before `before` left them.

    Columns: `unit` (JSON; the key if it is held whole), `topic`, `partition`, `offset`.
    """
    values: list[Parameter] = [_list_void_entries(warehouse, pipeline), before - 1, before - 1, name]
    rows = query_entries(warehouse, pipeline, _HELD_PLACES_QUERY, values).to_pylist()
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
    for row in query_entries(warehouse, pipeline, _ENDED_COUNTS_QUERY, [run]).to_pylist():
        counts.setdefault(row["table"], {})[row["entry"]] = row["units"]
    return counts


def find_held_keys(warehouse: str, pipeline: str, name: str, texts: Sequence[str]) -> list[str]:
    """Return the held keys of a table (JSON) that the texts name; without texts those of which not all is rejected.

    A text is the value of a key's only column, or a JSON object. RunError if nothing is held, or nothing of one text.
    """
    rows = read_held_rows(warehouse, pipeline)
    rows = rows.filter(pc.equal(rows.column("table"), name))
    held = set((rows if texts else rows.filter(pc.equal(rows.column("entry"), "held"))).column("key").to_pylist())
    fix = f"hindcast failing {pipeline} --held lists what is held"
    if not held:
        raise RunError("nothing is held back", where=f"{pipeline}.{name}", fix=fix)
    if not texts:
        return sorted(held)
    named: dict[str, list[str]] = {}
    for key in held:
        for text in list_key_texts(key):
            named.setdefault(text, []).append(key)
    if missing := [text for text in dict.fromkeys(texts) if text not in named]:
        raise RunError(f"nothing is held of {', '.join(missing)}", where=f"{pipeline}.{name}", fix=fix)
    return sorted({key for text in texts for key in named[text]})


def list_key_texts(key: str) -> set[str]:
    """Return the texts that name a key (JSON): itself, in two spacings, and the value of its only column.

    A number is named with and without zeros at its end.

    >>> sorted(list_key_texts('{"size":1.10}'))
    ['1.1', '1.10', '{"size": 1.10}', '{"size":1.10}']
    """
    columns = json.loads(key, parse_float=entry_masks.mark_digits)
    texts = {key, *(entry_masks.dump_digits(columns, is_ascii=is_ascii) for is_ascii in (True, False))}
    for value in columns.values() if len(columns) == 1 else ():
        text = value if isinstance(value, str) else json.dumps(value)
        if text.startswith("\0"):
            text = text.strip("\0")
            texts.add(re.sub(r"\.?0+$", "", text) if "e" not in text.lower() else text)
        texts.add(text)
    return texts


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
    ORDER BY "table", key, run, {RECORD_ORDER}
"""
_HELD_PLACES_QUERY = f"""
    SELECT DISTINCT coalesce(r.unit, r.key) AS unit, topic, "partition", "offset" {_FROM_HELD_ROWS}
       AND r."table" = ? AND "offset" IS NOT NULL
"""
_HELD_CHANGES_QUERY = f"""
    SELECT r.run, r.key, r.unit, coalesce(r.since, 0) AS since, r."change", r."row", r."offset" {_FROM_HELD_ROWS}
       AND r."table" = ?
"""


def _list_units(warehouse: str, pipeline: str, query: str, upto: int | None) -> list[_Unit]:
    """Return the units that a query selects, as they are now, or were after the run `upto`."""
    rows = query_entries(warehouse, pipeline, query, [_list_void_entries(warehouse, pipeline), upto, upto])
    return [_Unit(**row) for row in rows.to_pylist()]


def _list_void_entries(
    warehouse: str, pipeline: str, name: str | None = None, open_engine: EngineFactory = duckdb_reader.open_engine
) -> list[str]:
    """Return the entries of runs that ended before they published the table, as "entry run table": they are void.

    Of the table `name` or of all. `open_engine` opens what reads them.
    """
    if tables.open_table(failing_table(warehouse, pipeline)) is None:
        return []
    past = journal.read_runs(warehouse, pipeline)
    unfinished = {run.number: run for run in past if run.state in ("stopped", "abandoned")}
    if not unfinished:
        return []
    ended = query_entries(warehouse, pipeline, _ENDED_QUERY, [[*unfinished], name, name], open_engine).to_pylist()
    names = {row["table"] for row in ended}
    done = {n: commit_history.read_notes(Table(warehouse, pipeline, n, "versions"), TableNote.from_json) for n in names}
    return [
        f"{row['entry']} {row['run']} {row['table']}"
        for row in ended
        if not unfinished[row["run"]].had_published(row["table"]) and row["run"] not in done[row["table"]]
    ]


_ENDED_COUNTS_QUERY = """
    SELECT "table", entry, count(DISTINCT (key, unit)) AS units FROM failing
    WHERE entry IN ('released', 'mended') AND run = ? GROUP BY "table", entry ORDER BY "table", entry DESC
"""
_ENDED_QUERY = """
    SELECT DISTINCT entry, run, "table" FROM failing
    WHERE entry IN ('released', 'mended') AND list_contains(?, run) AND (? IS NULL OR "table" = ?)
"""


def reject_keys(
    warehouse: str,
    pipeline: str,
    keys: Mapping[str, Sequence[str]],
    by: str,
    until: datetime,
    reason: str | None = None,
) -> dict[str, list[str]]:
    """Write that a person looked at the held changes of some keys (JSON) by table and rejected them; return these keys.

    `reason`: why; `until`: when they were looked at. A key whose change has changed since, or that is no longer held,
    is left out. BusyError, before anything is written, while something is being forgotten, or a release of one of the
    keys has not ended.
    """
    failing, chosen = failing_table(warehouse, pipeline), {name: set(some) for name, some in keys.items()}
    try:
        with notices.post_notice(warehouse, pipeline, "a rejection"):
            _refuse_open_release(warehouse, pipeline, chosen)
            now = row_reader.read_next_moment(tables.open_table(failing))
            rows = [
                {**unit._asdict(), "at": now, "entry": "rejected", "by": by, "reason": reason}
                for unit in _list_units(warehouse, pipeline, _HELD_UNITS_QUERY, None)
                if unit.key in chosen.get(unit.table, ()) and unit.at <= until
            ]
            if rows:
                entries = pa.Table.from_pylist(rows, schema=table_creation.arrow_schema(SCHEMA))
                delta_table = table_creation.ensure_table(failing, SCHEMA)
                notices.refuse_lost_notice()
                write_deltalake(delta_table, entries, mode="append")
    except (DeltaError, OSError) as error:
        raise table_creation.explain_write_error(error, failing.path) from None
    rejected = {name: sorted({row["key"] for row in rows if row["table"] == name}) for name in keys}
    return {name: some for name, some in rejected.items() if some}


def _refuse_open_release(warehouse: str, pipeline: str, keys: Mapping[str, set[str]]) -> None:
    """Raise BusyError if a release of one of these keys (JSON, by table) is planned and has not ended."""
    for run in journal.read_runs(warehouse, pipeline):
        released = run.plan.released_keys.items() if run.state == "planned" else ()
        if any(not keys.get(name, set()).isdisjoint(some.keys) for name, some in released):
            raise BusyError(
                f"run {run.number} ({run.run_id}) publishes what was approved before of these keys, and has not ended",
                where=pipeline,
                fix=f"hindcast release {pipeline}, or retry its task release; or hindcast abandon {pipeline}",
            )
