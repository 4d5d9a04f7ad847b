"""The first rows in an order, chosen before any of them is read whole.

Sorting takes whole rows into memory: a file of some kilobytes can have rows of gigabytes. So the order's columns alone
are sorted, and what the chosen rows take is measured before they are read.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import duckdb
import pyarrow as pa

from hindcast.query import cut_values
from hindcast.store.duckdb_reader import quote_name

MAX_WHOLE = 512 << 20
"""The most bytes of the chosen rows: each long value is read once, to be cut and hashed."""
_MAX_ORDER = 1 << 20
"""The most bytes of what one row is ordered by."""


class WideRowsError(Exception):
    """Rows take more memory, uncut, than a page may; the text says which."""


def choose_first_rows(
    engine: duckdb.DuckDBPyConnection, condition: str, order: Sequence[tuple[str, bool]], most: int, of: str = "rows"
) -> str:
    """Return the first `most` of the registered `rows` that meet a condition, as SQL after FROM; WideRowsError if they
    are too large.

    `order`: columns, and whether the greatest come first. Those that equal the last one in it are all there: sort and
    limit them again. The condition may qualify columns by `of`.
    """
    names, alias = [quote_name(name) for name, _ in order], quote_name(of)
    rows = f"rows AS {alias} WHERE {condition}"
    widest = cut_values.measure_columns(engine, [name for name, _ in order], whole=True)
    if _ask_number(engine, f"max({widest})", rows) > _MAX_ORDER:
        raise WideRowsError(f"what rows are ordered by takes more than {_MAX_ORDER >> 20} MiB")
    picked = f"SELECT {', '.join(names)} FROM {rows} ORDER BY {format_order(order)} LIMIT {most}"  # noqa: S608  # quoted names
    engine.execute(f"CREATE OR REPLACE TEMP TABLE chosen AS SELECT DISTINCT * FROM ({picked})")  # noqa: S608
    same = " AND ".join(f"{alias}.{name} IS NOT DISTINCT FROM chosen.{name}" for name in names)
    source = f"rows AS {alias} SEMI JOIN chosen ON {same} WHERE {condition}"
    size = cut_values.measure_columns(engine, engine.sql("FROM rows").columns, whole=True)
    if _ask_number(engine, f"sum({size})", source) > MAX_WHOLE:
        raise WideRowsError(f"the first {most} rows have more than {MAX_WHOLE >> 20} MiB")
    return source


def read_chosen_rows(
    engine: duckdb.DuckDBPyConnection, chosen: str, names: Sequence[str], order: Sequence[tuple[str, bool]], most: int
) -> pa.Table:
    """Return the first `most` of the `chosen` rows (`choose_first_rows`) in order, with long values of columns cut."""
    columns = cut_values.cut_columns(engine, names)
    text = f"SELECT {columns} FROM {chosen} ORDER BY {format_order(order)} LIMIT {most}"  # noqa: S608  # quoted names
    return engine.sql(text).to_arrow_table()


def format_order(columns: Iterable[tuple[str, bool]]) -> str:
    """Return an order as SQL: columns, and whether the greatest come first."""
    return ", ".join(f'"{column}" {"DESC NULLS FIRST" if down else "ASC NULLS LAST"}' for column, down in columns)


def _ask_number(engine: duckdb.DuckDBPyConnection, figure: str, source: str) -> int:
    ((number,),) = engine.sql(f"SELECT coalesce({figure}, 0) FROM {source}").fetchall()  # noqa: S608  # quoted names
    return int(number)
