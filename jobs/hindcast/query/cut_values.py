"""Cut long values, for pages and forms: their first characters, how long they are, and a hash that tells them apart."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from typing import cast

import duckdb
from duckdb.sqltypes import DuckDBPyType

from hindcast.bitemporal.predicates import sql_literal
from hindcast.common.column_values import ColumnValue
from hindcast.common.json_values import JsonValue
from hindcast.store.duckdb_reader import quote_name

MAX_CHARACTERS = 1_000
"""How many characters of a value a page shows; `hindcast query` shows all."""

_DIGITS = 32


def cut_text(text: str, most: int = MAX_CHARACTERS) -> str:
    """Return a text as it is, or its first `most` characters and what it was.

    >>> cut_text("naan", 4), cut_text("naan and curry", 4)
    ('naan', 'naan… (14 characters, sha256 beddd07903eaa1361786c4b79e303f2b)')
    """
    if len(text) <= most:
        return text
    digest = hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:_DIGITS]
    return f"{text[:most]}… ({len(text):,} characters, sha256 {digest})"


def cut_nested(value: JsonValue) -> JsonValue:
    """Return a list or an object as it is, or its cut JSON text; other values, which DuckDB has cut, as they are."""
    text = json.dumps(value, ensure_ascii=False) if isinstance(value, list | dict) else ""
    return cut_text(text) if len(text) > MAX_CHARACTERS else value


def fits_condition(names: Sequence[str]) -> str:
    """Return the SQL condition of rows whose values in some columns a page shows whole; false where one is null."""
    return " AND ".join(f"length(CAST({quote_name(name)} AS VARCHAR)) <= {MAX_CHARACTERS}" for name in names)


def cut_columns(engine: duckdb.DuckDBPyConnection, names: Sequence[str] | None = None) -> str:
    """Return the SQL of columns of the registered `rows`, all without `names`, that cuts texts as `cut_text` does.

    Of bytes half as many are left, since a page shows them as hexadecimal digits (`show_bytes`).
    """
    rows = engine.sql("FROM rows")
    kinds = dict(zip(rows.columns, map(str, rows.types), strict=True))
    return ", ".join(_cut_column(quote_name(name), kinds[name]) for name in names or kinds)


def measure_rows(engine: duckdb.DuckDBPyConnection, names: Sequence[str], rows: str = "rows") -> int:
    """Return about how many bytes these columns of some of the registered `rows` take, with long texts cut.

    `rows`: which, as SQL after FROM.
    """
    size = measure_columns(engine, names)
    text = f"SELECT coalesce(sum(size), 0) FROM (SELECT {size} AS size FROM {rows})"  # noqa: S608  # names are quoted
    ((bytes_,),) = engine.sql(text).fetchall()
    return int(bytes_)


def measure_columns(engine: duckdb.DuckDBPyConnection, names: Sequence[str], *, whole: bool = False) -> str:
    """Return the SQL of about how many bytes these columns of a row of `rows` take, with long texts cut or `whole`."""
    rows = engine.sql("FROM rows")
    kinds = dict(zip(rows.columns, rows.types, strict=True))
    sizes = [_measure_value(quote_name(name), kinds[name]) for name in names]
    lengths = [
        f"least({size}, {4 * MAX_CHARACTERS})" if kinds[name].id in ("varchar", "blob") and not whole else size
        for name, size in zip(names, sizes, strict=True)
    ]
    return " + ".join(lengths)


def _measure_value(value: str, kind: DuckDBPyType, depth: int = 0) -> str:
    """Return the SQL of how many bytes a value takes; null takes none, and a list or map 16 more for each element."""
    if kind.id in ("varchar", "blob"):
        return f"coalesce({'strlen' if kind.id == 'varchar' else 'octet_length'}({value}), 0)"
    if kind.id not in ("struct", "list", "map"):
        return "16"
    parts = cast("dict[str, DuckDBPyType]", dict(kind.children))

    def measure_fields(of: str, depth: int) -> str:
        return " + ".join(_measure_value(f"({of})[{sql_literal(name)}]", it, depth) for name, it in parts.items())

    if kind.id == "struct":
        return measure_fields(value, depth)
    item = f"x{depth}"
    is_list = kind.id == "list"
    elements = value if is_list else f"map_entries({value})"
    inner = _measure_value(item, parts["child"], depth + 1) if is_list else measure_fields(item, depth + 1)
    return f"coalesce(list_sum(list_transform({elements}, lambda {item}: 16 + {inner})), 0)"


def is_cut(value: ColumnValue) -> bool:
    """Return True for a value of `cut_text` or `cut_columns` that was cut."""
    return (isinstance(value, str) and len(value) > MAX_CHARACTERS) or (
        isinstance(value, bytes) and len(value) > _BYTES
    )


def show_bytes(value: bytes) -> str:
    """Return bytes of `cut_columns` as hexadecimal digits, and what was cut in words."""
    return value[:_BYTES].hex() + value[_BYTES:].decode()


def _cut_column(name: str, kind: str) -> str:
    """Return the SQL of one column, under its name; it keeps its type."""
    if kind not in ("VARCHAR", "BLOB"):
        return name
    if kind == "VARCHAR":
        length, unit, start, most, close = f"length({name})", "characters", f"left({name}, {MAX_CHARACTERS})", *_TEXT
    else:
        length, unit, start, most, close = f"octet_length({name})", "bytes", f"{name}[1:{_BYTES}]", *_BLOB
    note = f"format('… ({{:,}} {unit}, sha256 {{}})', {length}, left(sha256({name}), {_DIGITS}))"
    return f"CASE WHEN {length} > {most} THEN {start} || {close.format(note)} ELSE {name} END AS {name}"


_BYTES = MAX_CHARACTERS // 2
_TEXT, _BLOB = (MAX_CHARACTERS, "{}"), (_BYTES, "encode({})")
