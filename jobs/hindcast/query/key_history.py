"""The history of one key in one table: every row that was ever current, and which of them answer a question.

A key's history is read once for each version of its table: moving a cursor reads nothing.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from threading import Lock
from typing import TypeVar

import duckdb
import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable

from hindcast.bitemporal import predicates
from hindcast.bitemporal.predicates import sql_literal
from hindcast.common.column_values import ColumnValue, Row
from hindcast.common.errors import QueryError, UnknownError, show_briefly
from hindcast.common.json_values import JsonValue
from hindcast.common.python_values import list_rows
from hindcast.contract import Window
from hindcast.contract.shapes import PERIODS
from hindcast.query import read
from hindcast.query.cut_values import cut_nested, fits_condition, show_bytes
from hindcast.query.explain_limits import EngineLimitError, open_limited_engine
from hindcast.query.holds import HoldFinder
from hindcast.query.show import plain_value
from hindcast.store import duckdb_reader, row_reader, table_cache, tables
from hindcast.store.table_cache import VersionIdentity
from hindcast.store.tables import Table

MASK = "***"
"""What is shown instead of the value of a sensitive column."""

MAX_SUGGESTIONS = 20
MAX_HISTORY_ROWS, MAX_HISTORY_BYTES = 200_000, 64 << 20
"""How much of a key a page reads; `hindcast history` has no limit."""
_CACHE_SIZE, _CACHE_BYTES = 32, 2 * MAX_HISTORY_BYTES

HISTORY_SECONDS, SUGGESTION_SECONDS = 10.0, 2.0
"""How long reading the rows of a key, and finding keys to suggest, may take."""


T = TypeVar("T")


@dataclass(frozen=True)
class RowSample:
    """The first rows of `total`."""

    rows: list[Row]
    total: int


@dataclass(frozen=True)
class KeyHistory:
    """Every row of a key that was ever current, with lineage; long values are cut (cut_values.py)."""

    table: Table
    rows: pa.Table

    @property
    def start_column(self) -> str:
        """The column that says from when a row is true."""
        return PERIODS[self.table.kind][0]

    def find_answer(self, as_of: datetime, known: datetime, limit: int, window: Window | None = None) -> RowSample:
        """Return what was true at `as_of`, as known at `known`, the latest first.

        These are the versions or windows that contain `as_of`, or the events up to it. `window`: what windows are; the
        end of a hopping or tumbling one is where the next begins, and not in it.
        """
        conditions = [
            predicates.known_at_condition(sql_literal(known)),
            crosshair_condition(self.table.kind, as_of),
            *([f'"windowEnd" > {sql_literal(as_of)}'] if window and (window.tumbling or window.hopping) else []),
        ]
        return self._sample_rows(" AND ".join(conditions), f'"{self.start_column}" DESC', limit)

    def find_nearest(self, as_of: datetime, limit: int) -> RowSample:
        """Return the rows nearest to a moment of valid time, at most `limit`, by valid and system time."""
        end = PERIODS[self.table.kind][-1]
        at = sql_literal(as_of)
        distance = f'abs(epoch_us("{self.start_column}") - epoch_us({at}))'
        is_away = f'CASE WHEN "{self.start_column}" <= {at} AND ("{end}" IS NULL OR "{end}" >= {at}) THEN 0 ELSE 1 END'
        near = self._sample_rows("true", f"{is_away}, {distance}", limit)
        near.rows.sort(key=lambda row: (read_moment(row, self.start_column), read_moment(row, "systemFrom")))
        return near

    def _sample_rows(self, condition: str, order: str, limit: int) -> RowSample:
        with duckdb_reader.open_arrow_engine() as engine:
            engine.register("rows", self.rows)
            return sample_rows(engine, condition, order, limit)


def sample_rows(
    engine: duckdb.DuckDBPyConnection, condition: str, order: str, limit: int, columns: str = "*"
) -> RowSample:
    """Return the first `limit` of the registered `rows` that meet a condition, in this order, and how many do.

    `columns`: their SQL (cut_values.py).
    """
    source = f"(SELECT {columns} FROM rows WHERE {condition})"  # noqa: S608  # literals, quoted names
    text = f"SELECT *, count(*) OVER () AS _total FROM {source} ORDER BY {order} LIMIT {limit}"  # noqa: S608
    found = engine.sql(text).to_arrow_table()
    total: int = found.column("_total")[0].as_py() if found.num_rows else 0
    return RowSample(list_rows(found.drop_columns("_total")), total)


def crosshair_condition(kind: str, moment: datetime) -> str:
    """Return the SQL condition of versions and windows that contain a moment, or of events up to it."""
    at = sql_literal(moment)
    return predicates.during_condition(kind, at, at) if kind == "windows" else predicates.as_of_condition(kind, at)


def read_history(
    table: Table, key: Sequence[ColumnValue], holds: HoldFinder | None = None, until: datetime | None = None
) -> KeyHistory:
    """Return every row of a key that was ever current; with `until` as known then, without what later runs did.

    Raise UnknownError if there is none, and say so if that is because all of them are held back (`holds`). QueryError
    if there are too many, or if reading them takes too long.
    """
    delta_table = tables.open_table(table)
    if delta_table is None:
        raise UnknownError("the table has not been published yet", where=table.path, fix="run the pipeline first")
    cache_key = table_cache.identify_version(table.path, delta_table), tuple(map(str, key))
    with _CACHE_LOCK:
        rows = _CACHE.get(cache_key)
        if rows is not None:
            _CACHE.move_to_end(cache_key)
    if rows is None:
        rows = read_limited_rows(table, delta_table, key)
        with _CACHE_LOCK:
            _CACHE[cache_key] = rows
            while len(_CACHE) > _CACHE_SIZE or sum(it.nbytes for it in _CACHE.values()) > _CACHE_BYTES:
                _CACHE.popitem(last=False)
    rows = rows if until is None else _leave_out_later(rows, until)
    if not rows.num_rows:
        if holds is not None and (hold := holds.find_of_key(key)) is not None:
            raise UnknownError(
                f"the table never had a row of this key: its rows have been held back since run {hold.began}",
                where=table.path,
                fix=f"hindcast failing {table.pipeline} --held lists them",
            )
        raise UnknownError("the table never had a row of this key", where=table.path, fix="pick another key")
    return KeyHistory(table, rows)


def _leave_out_later(rows: pa.Table, moment: datetime) -> pa.Table:
    """Return rows as they were known at a moment: without those opened later, and open if they were closed later."""
    known = rows.filter(pc.less_equal(rows.column("systemFrom"), moment))
    ended = known.column("systemTo")
    place = known.schema.get_field_index("systemTo")
    kept = pc.if_else(pc.fill_null(pc.less_equal(ended, moment), False), ended, pa.scalar(None, ended.type))
    return known.set_column(place, known.schema.field(place), kept)


def read_limited_rows(table: Table, delta_table: DeltaTable, key: Sequence[ColumnValue]) -> pa.Table:
    """Return the rows of a key; QueryError if there are too many, or if reading them takes too long."""
    name = f"{table.pipeline}.{table.name}"
    try:
        with open_limited_engine(delta_table, HISTORY_SECONDS) as engine:
            rows = read.read_key_rows(table, delta_table, key, engine, MAX_HISTORY_ROWS + 1, MAX_HISTORY_BYTES)
    except EngineLimitError:
        found = f"reading the rows of the key took longer than {HISTORY_SECONDS:g} s"
        raise QueryError(found, where=table.path, fix=f"hindcast history {name} --key KEY") from None
    if rows.num_rows > MAX_HISTORY_ROWS:
        found = f"the key has more than {MAX_HISTORY_ROWS:,} rows, which is more than a page reads"
        raise QueryError(found, where=table.path, fix=f"hindcast history {name} --key KEY")
    return rows


class SlowSuggestionError(QueryError):
    """Keys to suggest are not found in time."""


def suggest_keys(table: Table, beginning: str, until: datetime) -> list[str]:
    """Return at most `MAX_SUGGESTIONS` keys whose first column starts with `beginning`, as an address has them.

    They were known at the moment `until`. Keys too long for a page are left out. Raise SlowSuggestionError if they are
    not found in `SUGGESTION_SECONDS`.
    """
    delta_table = tables.open_table(table)
    if delta_table is None:
        return []
    columns = ", ".join(f'"{column}"' for column in table.key)
    begins = f'starts_with(CAST("{table.key[0]}" AS VARCHAR), {sql_literal(beginning)})'
    condition = f'{begins} AND "systemFrom" <= {sql_literal(until)}'
    text = (
        f"SELECT DISTINCT {columns} FROM rows WHERE {condition} AND {fits_condition(table.key)} LIMIT {MAX_SUGGESTIONS}"  # noqa: S608  # literals
    )
    try:
        with (
            row_reader.refuse_broken_files(table),
            open_limited_engine(delta_table, SUGGESTION_SECONDS) as engine,
        ):
            duckdb_reader.register_rows(engine, delta_table)
            rows = list_rows(engine.sql(text).to_arrow_table())
    except EngineLimitError:
        found = (
            f"finding keys that begin with {show_briefly(beginning, 50)!r} took longer than {SUGGESTION_SECONDS:g} s"
        )
        raise SlowSuggestionError(found, where=table.path, fix="write the whole key and open its page") from None
    return sorted(read.format_key(table, list(row.values())) for row in rows)


def find_cell(row: Row, name: str, kind: type[T]) -> T | None:
    """Return the value of a column; None if the row has no value of this type there."""
    value = row.get(name)
    return value if isinstance(value, kind) else None


def read_moment(row: Row, name: str) -> datetime:
    """Return the moment in a column that has one in every row; TypeError if it has none."""
    moment = row[name]
    if not isinstance(moment, datetime):
        raise TypeError(f"{name} is {moment!r}")
    return moment


def mask_row(row: Row, marked: frozenset[str]) -> dict[str, JsonValue]:
    """Return a row as JSON, with sensitive values masked and long ones cut."""

    def show_value(value: ColumnValue) -> JsonValue:
        return show_bytes(value) if isinstance(value, bytes) else cut_nested(plain_value(value))

    return {name: MASK if name in marked else show_value(value) for name, value in row.items()}


_CACHE: OrderedDict[tuple[VersionIdentity, tuple[str, ...]], pa.Table] = OrderedDict()
_CACHE_LOCK = Lock()
