"""Which keys of a table are written almost as a text that is none: for a typo."""

from __future__ import annotations

import re
from datetime import datetime

import duckdb

from hindcast.bitemporal.predicates import sql_literal
from hindcast.common.column_values import ColumnValue
from hindcast.common.python_values import list_rows
from hindcast.query.cut_values import MAX_CHARACTERS, fits_condition
from hindcast.query.explain_limits import NotExplainedError, limit_explanations, open_limited_engine
from hindcast.query.key_lists import MEMORY
from hindcast.store import duckdb_reader, row_reader, tables
from hindcast.store.duckdb_reader import quote_name
from hindcast.store.tables import Table

MAX_NEAR_KEYS = 5

SECONDS = 1.5
"""How long finding them may take."""

_LEAST_SIMILARITY = 0.7
"""By Jaro and Winkler: from 0 (nothing in common) to 1 (equal)."""


def find_near_keys(table: Table, text: str, until: datetime) -> list[tuple[ColumnValue, ...]]:
    """Return the keys most like a text that a user wrote, the nearest first; none if they are not found in time.

    They were known at the moment `until`. Case, and what separates the columns or belongs to JSON, does not count; keys
    too long for a page are left out.
    """
    delta_table = tables.open_table(table)
    words = _SEPARATORS.sub(" ", _remove_names(table, text)[:MAX_CHARACTERS]).strip().lower()
    if delta_table is None or not words:
        return []
    names = [quote_name(name) for name in table.key]
    texts = [f"CAST({name} AS VARCHAR)" for name in names]
    likeness = f"jaro_winkler_similarity(lower(concat_ws(' ', {', '.join(texts)})), {sql_literal(words)})"
    columns = ", ".join(names)
    condition = f'{fits_condition(table.key)} AND "systemFrom" <= {sql_literal(until)}'
    query = (
        f"SELECT {columns} FROM (SELECT DISTINCT {columns} FROM rows WHERE {condition}) "  # noqa: S608  # literals, quoted names
        f"WHERE {likeness} >= {_LEAST_SIMILARITY} ORDER BY {likeness} DESC, {columns} LIMIT {MAX_NEAR_KEYS}"
    )
    try:
        with (
            limit_explanations(table.pipeline),
            row_reader.refuse_broken_files(table),
            open_limited_engine(delta_table, SECONDS, MEMORY) as engine,
        ):
            duckdb_reader.register_rows(engine, delta_table)
            rows = list_rows(engine.sql(query).to_arrow_table())
    except (NotExplainedError, duckdb.OutOfMemoryException):
        return []
    return [tuple(row[name] for name in table.key) for row in rows]


def _remove_names(table: Table, text: str) -> str:
    """Return the text without the names of the key's columns that JSON has."""
    for name in table.key if len(table.key) > 1 else ():
        text = re.sub(rf'"{re.escape(name)}"\s*:', " ", text)
    return text


_SEPARATORS = re.compile(r'[\s{}":,·]+')
