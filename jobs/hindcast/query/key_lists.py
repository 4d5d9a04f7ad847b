"""Which keys of a table to look at: those that a run changed, those corrected most often, and the first ones.

They are looked for once for each version of a table and run, also where that takes too long.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from datetime import datetime
from threading import Lock

import duckdb

from hindcast.bitemporal.predicates import sql_literal
from hindcast.common.column_values import ColumnValue
from hindcast.common.python_values import list_rows
from hindcast.query.cut_values import fits_condition
from hindcast.query.explain_limits import (
    EngineLimitError,
    NotExplainedError,
    limit_explanations,
    open_limited_engine,
)
from hindcast.store import duckdb_reader, row_reader, table_cache, tables
from hindcast.store.duckdb_reader import quote_name
from hindcast.store.table_cache import VersionIdentity
from hindcast.store.tables import Table

MAX_KEYS = 6
"""How many keys a list has, at most."""

SECONDS, MEMORY = 1.5, 320 << 20
"""How long finding them may take, and how many bytes."""

_CACHE_SIZE = 64


@dataclass(frozen=True)
class ListedKey:
    """The values of a key, and how often a past answer about it was corrected."""

    values: tuple[ColumnValue, ...]
    corrections: int


@dataclass(frozen=True)
class KeyLists:
    """How many keys a table ever had, `total`, and a run changed, `changed_total`; and a few of each list."""

    total: int
    changed_total: int
    changed: list[ListedKey]
    corrected: list[ListedKey]
    first: list[ListedKey]


def read_key_lists(table: Table, last: datetime) -> KeyLists | None:
    """Return the keys known up to the known-at of a run, which is the one that `changed` some of them.

    Keys with a null or a value too long for a page are left out. None if the table does not exist, or if finding them
    takes too long.
    """
    delta_table = tables.open_table(table)
    if delta_table is None:
        return None
    cache_key = table_cache.identify_version(table.path, delta_table), last
    with _CACHE_LOCK:
        if cache_key in _CACHE:
            _CACHE.move_to_end(cache_key)
            return _CACHE[cache_key]
    try:
        with (
            limit_explanations(table.pipeline),
            row_reader.refuse_broken_files(table),
            open_limited_engine(delta_table, SECONDS, MEMORY) as engine,
        ):
            duckdb_reader.register_rows(engine, delta_table)
            engine.execute(_group_rows(table, last))
            found: KeyLists | None = _read_lists(engine, table)
    except (EngineLimitError, duckdb.OutOfMemoryException):
        found = None
    except NotExplainedError:  # others have the turns at this moment
        return None
    with _CACHE_LOCK:
        _CACHE[cache_key] = found
        while len(_CACHE) > _CACHE_SIZE:
            _CACHE.popitem(last=False)
    return found


def _group_rows(table: Table, last: datetime) -> str:
    """Return the SQL of the table `keys`: each key once."""
    names, moment = [quote_name(name) for name in table.key], sql_literal(last)
    ended = '"validTo" IS NOT NULL' if table.kind == "versions" else "true"
    return (
        f"CREATE TEMP TABLE keys AS SELECT {', '.join(names)}, "  # noqa: S608  # literals, quoted names
        f'count(*) FILTER ("systemTo" <= {moment} AND {ended}) AS _corrections, '
        f'bool_or("systemFrom" = {moment} OR coalesce("systemTo" = {moment}, false)) AS _changed '
        f'FROM rows WHERE "systemFrom" <= {moment} AND {fits_condition(table.key)} GROUP BY ALL'
    )


def _read_lists(engine: duckdb.DuckDBPyConnection, table: Table) -> KeyLists:
    names = ", ".join(map(quote_name, table.key))

    def read_list(condition: str, order: str) -> list[ListedKey]:
        text = f"SELECT {names}, _corrections FROM keys WHERE {condition} ORDER BY {order}{names} LIMIT {MAX_KEYS}"  # noqa: S608
        rows = list_rows(engine.sql(text).to_arrow_table())
        return [ListedKey(tuple(row[name] for name in table.key), int(str(row["_corrections"]))) for row in rows]

    ((total, changed),) = engine.sql("SELECT count(*), count(*) FILTER (_changed) FROM keys").fetchall()
    most = read_list("_corrections > 0", "_corrections DESC, ")
    return KeyLists(total, changed, read_list("_changed", "_corrections DESC, "), most, read_list("true", ""))


_CACHE: OrderedDict[tuple[VersionIdentity, datetime], KeyLists | None] = OrderedDict()
_CACHE_LOCK = Lock()
