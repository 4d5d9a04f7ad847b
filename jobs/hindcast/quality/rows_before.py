"""What a table had before a run where its failing rows would stand: for rows that a run stopped at, or warned of.

A held change has the rows that it would close as entries of its own (failing_rows.py); other failing rows have none.
"""

from __future__ import annotations

import json
from base64 import b64encode
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, date, datetime
from decimal import Decimal, InvalidOperation
from typing import NamedTuple

import pyarrow as pa
from deltalake import DeltaTable
from duckdb import DuckDBPyConnection

from hindcast.bitemporal.predicates import ColumnBound, Question, as_of_condition, sql_literal
from hindcast.common.column_values import ColumnValue, Row
from hindcast.common.errors import QueryError
from hindcast.common.json_values import JsonObject, JsonValue
from hindcast.common.python_values import list_rows
from hindcast.contract import Contract
from hindcast.contract.shapes import PERIODS
from hindcast.plan import journal
from hindcast.quality import failing_rows, held_change
from hindcast.quality.entry_masks import parse_object
from hindcast.query import cut_values, read, show
from hindcast.query.explain_limits import EngineLimitError, open_limited_engine
from hindcast.store import duckdb_reader, row_reader, tables
from hindcast.store.duckdb_reader import quote_name
from hindcast.store.tables import Table

MAX_BYTES = 8 << 20
"""The most that all rows of one table may take, with long texts cut."""


def find_rows_before(
    warehouse: str,
    contract: Contract,
    name: str,
    number: int,
    entries: Sequence[Mapping[str, ColumnValue]],
    seconds: float,
) -> dict[int, str | None]:
    """Return by the place of each failing row of a run what the table had there before the run, as JSON with the
    columns of the failing row; None if it had nothing.

    `entries`: of one table, with `key`, `row` (JSON objects) and `offset`. Those of which this is not known are left
    out: rows were trimmed, the key has changed, several rows are alike, reading takes longer than `seconds`.
    """
    past = journal.read_runs(warehouse, contract.pipeline)
    run = next((run for run in past if run.number == number), None)
    if run is None or name not in (*contract.topics, *contract.views):
        return {}
    earlier = [other.known_at for other in past if other.number < number and other.is_finished]
    if not earlier or tables.open_table(read.locate_table(warehouse, contract, name)) is None:
        return dict.fromkeys(range(len(entries)))
    path = failing_rows.failing_table(warehouse, contract.pipeline).path
    rows = [_ProposedRow.from_entry(entry, path) for entry in entries]
    question = Question(from_time=min((row.begin for row in rows if row.begin), default=None), known_at=max(earlier))
    try:
        table, delta_table = read.open_answerable(warehouse, contract, name, question)
        found = _read_rows(table, delta_table, run.known_at, rows, seconds)
    except (QueryError, EngineLimitError):
        return {}
    return {n: _format_row(of_place[0], rows[n].columns) if of_place else None for n, of_place in found.items()}


class _ProposedRow(NamedTuple):
    """A failing row: its key, its columns, when it begins to be true, and the offset of its record."""

    key: JsonObject
    columns: JsonObject
    begin: datetime | None
    offset: int | None

    @classmethod
    def from_entry(cls, entry: Mapping[str, ColumnValue], path: str) -> _ProposedRow:
        row, offset = str(entry["row"]), entry["offset"]
        try:
            begin = datetime.fromisoformat(held_change.find_period(row)[0])
        except ValueError:
            begin = None
        return cls(
            parse_object(str(entry["key"]), path, str),
            parse_object(row, path, str),
            begin.replace(tzinfo=UTC) if begin is not None and begin.tzinfo is None else begin,
            offset if isinstance(offset, int) else None,
        )


def _read_rows(
    table: Table, delta_table: DeltaTable, known_at: datetime, proposed: Sequence[_ProposedRow], seconds: float
) -> dict[int, list[Row]]:
    """Return the rows that were current before a known-at where rows are proposed, by the places of these: at most one
    of each. Places of several rows are left out; all are if they are too large, or if the key has bytes.
    """
    schema = pa.schema(delta_table.schema().to_arrow())
    if any(pa.types.is_binary(kind := schema.field(column).type) or pa.types.is_nested(kind) for column in table.key):
        return {}
    names = [name for name in schema.names if any(name in row.columns for row in proposed)]
    bounds = [ColumnBound("systemFrom", most=known_at), ColumnBound("systemTo", least=known_at, or_null=True)]
    found: dict[int, list[Row]] = {n: [] for n, row in enumerate(proposed) if row.begin is not None}
    with row_reader.refuse_broken_files(table), open_limited_engine(delta_table, seconds) as engine:
        duckdb_reader.register_rows(engine, delta_table, [*bounds, *_bound_keys(table, schema, proposed)])
        engine.register("proposed", _list_proposed(table, proposed))
        source = f"rows JOIN proposed ON {_match_rows(engine, table, known_at)}"
        if cut_values.measure_rows(engine, names, source) > MAX_BYTES:
            return {}
        text = f'SELECT "_n", {cut_values.cut_columns(engine, names)} FROM {source}'  # noqa: S608  # quoted names
        for row in list_rows(engine.sql(text).to_arrow_table()):
            if isinstance(n := row["_n"], int):
                found[n].append(row)
    return {n: rows for n, rows in found.items() if len(rows) <= 1}


def _bound_keys(table: Table, schema: pa.Schema, proposed: Sequence[_ProposedRow]) -> Iterator[ColumnBound]:
    """Yield bounds of the key's columns, as far as files are sorted by them."""
    for column in table.key:
        kind, values = schema.field(column).type, [row.key.get(column) for row in proposed]
        texts, numbers = ([value for value in values if type(value) is it] for it in (str, int))
        if pa.types.is_string(kind) and len(texts) == len(values):
            yield ColumnBound(column, min(texts), max(texts))
        elif pa.types.is_integer(kind) and len(numbers) == len(values):
            yield ColumnBound(column, min(numbers), max(numbers))


def _list_proposed(table: Table, proposed: Sequence[_ProposedRow]) -> pa.Table:
    """Return what of proposed rows DuckDB compares: keys as texts that it casts."""
    keys = [[row.key.get(column) for row in proposed] for column in table.key]
    columns = {
        "_n": pa.array(range(len(proposed)), pa.int32()),
        "_begin": pa.array([row.begin for row in proposed], pa.timestamp("us", "UTC")),
        "_at": pa.array([row.offset for row in proposed], pa.int64()),
    }
    for n, values in enumerate(keys):
        texts = [value if value is None or isinstance(value, str) else json.dumps(value) for value in values]
        columns[f"_k{n}"] = pa.array(texts, pa.string())
    return pa.table(columns)


def _match_rows(engine: DuckDBPyConnection, table: Table, known_at: datetime) -> str:
    """Return the SQL condition of a row that was current before a known-at where a row is proposed.

    The run of that known-at itself may have published part of the table.
    """
    stored, begin = engine.sql("FROM rows"), '"_begin"'
    kinds, start = dict(zip(stored.columns, stored.types, strict=True)), quote_name(PERIODS[table.kind][0])
    conditions = [
        f'rows.{quote_name(column)} IS NOT DISTINCT FROM TRY_CAST("_k{n}" AS {kinds[column]})'
        for n, column in enumerate(table.key)
    ]
    conditions.append(as_of_condition(table.kind, begin) if table.kind == "versions" else f"{start} = {begin}")
    if "timestamp" in PERIODS[table.kind] and "_offset" in kinds:
        conditions.append('("_at" IS NULL OR "_offset" = "_at")')
    known = sql_literal(known_at)
    return " AND ".join([*conditions, f"systemFrom < {known}", f"(systemTo IS NULL OR systemTo >= {known})"])


def _format_row(row: Row, proposed: JsonObject) -> str:
    """Return a row as JSON with the columns of another; equal values are written as there."""
    return json.dumps(
        {
            name: value if _is_same(row[name], value) else _write_value(row[name])
            for name, value in proposed.items()
            if name in row
        }
    )


def _write_value(value: ColumnValue) -> JsonValue:
    if isinstance(value, datetime) and value.tzinfo is not None:
        return value.astimezone(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")
    return show.plain_value(value)


def _is_same(value: ColumnValue, written: JsonValue) -> bool:
    """Return whether a value of a column is what the JSON of an entry has, whose numbers with a point are texts."""
    match value:
        case None | bool() | str():
            return value == written
        case int() | float() | Decimal():
            try:
                return not isinstance(written, bool) and Decimal(str(written)) == Decimal(str(value))
            except InvalidOperation:
                return False
        case datetime():
            try:
                moment = datetime.fromisoformat(str(written))
            except ValueError:
                return False
            return moment.replace(tzinfo=None) == value.replace(tzinfo=None)
        case date():
            return str(value) == written
        case bytes():
            return b64encode(value).decode() == written
        case Mapping():
            return isinstance(written, dict) and all(_is_same(part, written.get(name)) for name, part in value.items())
        case _:
            parts = written if isinstance(written, list) else []
            return len(parts) == len(value) and all(map(_is_same, value, parts))
