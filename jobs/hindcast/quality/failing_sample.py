"""The failing rows of a run that pages show: a few of each gate, with what they would replace, in bounded texts.

A few kilobytes of a Parquet file can hold texts of gigabytes, and the API server reads these tables of all pipelines.
So texts are read as dictionaries, which have each text once, and only those of the chosen rows are expanded.
"""

from __future__ import annotations

from collections.abc import Callable

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable

from hindcast.common.errors import TableError
from hindcast.contract import bounds
from hindcast.quality import gate_result_rows
from hindcast.quality.failing_rows import RECORD_ORDER, SCHEMA, build_columns_error, failing_table
from hindcast.store import arrow_reader, duckdb_reader, row_reader, table_creation, tables
from hindcast.store.tables import Table

MAX_STORED_ROWS, MAX_STORED_BYTES = 300_000, 512 << 20
"""The most rows, and bytes of texts, in the parts of files that a page reads: it takes about a second."""

MAX_SHOWN = 2_000
"""The number of characters of a key or a row that pages show."""

_MAX_NAME = 250
"""The most characters of the name of a table or topic: Kafka's have 249."""

_TEXTS = ("table", "entry", "expectation", "key", "change", "row", "topic")
_SHOWN = ("run", "table", "gate", "entry", "expectation", "key", "change", "row", "topic", "partition", "offset")
_KINDS = {name: table_creation.arrow_schema(SCHEMA).field(name).type for name in (*_SHOWN, "at", "since", "digest")}


def sample_entries(warehouse: str, pipeline: str, run: int, most: int, key: tuple[str, str] | None = None) -> pa.Table:
    """Return for each gate of a run the first rows that it found, at most `most`: what pages show of them.

    `key`: only those of this table and key (JSON).

    Those that it released are among them, as the run that held them back entered them (`run`).

    After these come rows without a `gate`: what the held changes of the same keys would close. A row of more than
    `MAX_SHOWN` characters is null; entries with such a key are left out, also those of gates beyond the most that a
    contract has. Other long texts are cut, since no run writes them. Raise TableError if the files with the rows take
    too much memory.
    """
    table = failing_table(warehouse, pipeline)
    delta_table = tables.open_table(table)
    if delta_table is None:
        return pa.schema([(name, _KINDS[name]) for name in _SHOWN]).empty_table()
    rows = _load_run(table, delta_table, run)
    for name, text in zip(("table", "key"), key or (), strict=False):
        rows = rows.filter(_is_text(rows, name, text))
    released = rows.filter(_is_text(rows, "entry", "released"))
    if released.num_rows:
        rows = _load_run(table, delta_table, run, released)
    chosen = rows.take(_choose_rows(rows, run, most))
    return pa.table({name: _cut_texts(chosen[name], name) if name in _TEXTS else chosen[name] for name in _SHOWN})


def _load_run(table: Table, delta_table: DeltaTable, run: int, released: pa.Table | None = None) -> pa.Table:
    """Return a run's entries, with texts as dictionaries; with those of earlier runs that held back what is `released`.

    What was held by a hash that is also that of another key is among them.
    """
    first, wanted = run, pc.field("run") == run
    if released is not None:
        first = min(run, (pc.min(released["since"]).as_py() or 0) + 1)
        is_held = (pc.field("entry") == "held") & pc.field("digest").isin(released["digest"].unique())
        wanted = wanted | ((pc.field("run") < run) & (pc.field("run") >= first) & is_held)
    stored = {field.name: field.type for field in pa.schema(delta_table.schema().to_arrow())}
    if other := sorted(name for name, kind in _KINDS.items() if stored.get(name) != kind):
        raise build_columns_error(table, ", ".join(other))
    paths = gate_result_rows.list_files(delta_table, first, run)
    with row_reader.refuse_broken_files(table):
        count, size = gate_result_rows.measure_files(delta_table, paths, first, run, _TEXTS)
        if count > MAX_STORED_ROWS or size > MAX_STORED_BYTES:
            found = (
                f"the failing rows of run {run} are not shown: their files have {count:,} rows, {size:,} bytes of text"
            )
            fix = f"hindcast failing {table.pipeline} --run {run} lists them"
            raise TableError(found, where=table.path, fix=fix)
        read = arrow_reader.read_rows(delta_table, paths, _KINDS, wanted, _TEXTS)
        return read.read_all().unify_dictionaries()


def _choose_rows(rows: pa.Table, run: int, most: int) -> pa.Array:
    """Return the places of the first rows of each gate, in order, by numbers that stand for their texts."""
    is_found = pc.is_in(_map_column(rows["entry"], lambda texts: texts), pa.array(["stopped", "warned", "held"]))
    is_short = pc.and_(_is_short(rows, "key", MAX_SHOWN), _is_short(rows, "table", _MAX_NAME))
    ranks = {name: _map_column(rows[name], _rank_texts) for name in ("table", "key", "topic", "change")}
    numbers = {name: rows[name] for name in ("run", "gate", "at", "partition", "offset", "digest")} | ranks
    is_closed = pc.and_(_is_text(rows, "entry", "held"), _is_text(rows, "change", "close"))
    all_entries = pa.table({**numbers, "closes": is_closed, "place": pa.array(range(rows.num_rows), pa.int64())})
    released = all_entries.filter(_is_text(rows, "entry", "released"))
    found = all_entries.filter(pc.and_(is_found, is_short))
    order = f'"table", gate, key, "at", {RECORD_ORDER}'
    with duckdb_reader.open_arrow_engine() as engine:
        engine.register("found", found)
        engine.register("released", released)
        text = f"""
            WITH held AS (
                SELECT "table", key, digest, max(run) AS run FROM found
                SEMI JOIN released USING ("table", key, digest) WHERE run < $run GROUP BY ALL
            ), entries AS (
                SELECT * FROM found WHERE run = $run
                UNION ALL
                SELECT * FROM found SEMI JOIN held USING ("table", key, digest, run)
            ), first AS (
                SELECT * FROM entries WHERE gate IS NOT NULL
                QUALIFY row_number() OVER (PARTITION BY "table", gate ORDER BY {order}) <= $most
                ORDER BY {order} LIMIT {bounds.GATES * most}
            ), closed AS (
                SELECT * FROM entries SEMI JOIN first USING ("table", key) WHERE gate IS NULL AND closes
                QUALIFY row_number() OVER (PARTITION BY "table", key ORDER BY {order}) <= $most
                ORDER BY {order} LIMIT {bounds.GATES * most}
            )
            SELECT place FROM (SELECT *, 0 AS part FROM first UNION ALL SELECT *, 1 FROM closed) ORDER BY part, {order}
        """  # noqa: S608  # names and numbers of ours
        return engine.sql(text, params={"run": run, "most": most}).to_arrow_table()["place"].combine_chunks()


def _is_text(rows: pa.Table, name: str, text: str) -> pa.Array:
    return pc.fill_null(_map_column(rows[name], lambda texts: pc.equal(texts, text)), False)


def _is_short(rows: pa.Table, name: str, most: int) -> pa.Array:
    return pc.fill_null(_map_column(rows[name], lambda texts: pc.less_equal(pc.utf8_length(texts), most)), False)


def _rank_texts(texts: pa.Array) -> pa.Array:
    return pc.rank(texts, tiebreaker="dense")


def _cut_texts(column: pa.ChunkedArray, name: str) -> pa.Array:
    """Return a column of texts that pages show, expanded."""
    match name:
        case "row":
            return _map_column(column, _leave_out_long)
        case "topic" | "change" | "expectation":
            return _map_column(column, lambda texts: pc.utf8_slice_codeunits(texts, 0, _MAX_NAME))
    return _map_column(column, lambda texts: texts)


def _leave_out_long(texts: pa.Array) -> pa.Array:
    return pc.if_else(pc.greater(pc.utf8_length(texts), MAX_SHOWN), None, texts)


def _map_column(column: pa.ChunkedArray, function: Callable[[pa.Array], pa.Array]) -> pa.Array:
    """Return what a function gives for each text of a dictionary column; it is called for each text once."""
    packed = column.combine_chunks()
    return function(packed.dictionary).take(packed.indices)
