"""Rows of a Delta table in DuckDB, without Spark: of the files only those that can hold what is asked for.

Local files are read by DuckDB itself: it takes of each column what the rows that are asked for need. Arrow would read
all columns of all rows first.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import duckdb
import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable

from hindcast.delta import contents, store_formats, tables, widened
from hindcast.questions import END, Bound


def engine() -> duckdb.DuckDBPyConnection:
    """A connection to the DuckDB of this process, in UTC; what is registered with it is its own."""
    made = _database(os.getpid()).cursor()
    made.execute("SET TimeZone = 'UTC'")
    return made


def register(engine: duckdb.DuckDBPyConnection, found: DeltaTable, bounds: Sequence[Bound] = ()) -> None:
    """Makes `rows` of a table: those that all `bounds` allow, and maybe others; without its partition columns.

    Rows of an older store format are those of its proxy view.
    """
    older = tables.older(found)
    if older is None:
        _register(engine, "rows", found, bounds)
        return
    # What the files have of today's columns is null in rows of an older format: it does not bound them.
    _register(engine, "stored", found, [bound for bound in bounds if bound.column not in store_formats.OURS])
    there = [field.name for field in found.schema().fields if field.name not in found.metadata().partition_columns]
    shown = [quoted(name) for name in store_formats.users(there)]
    shown += [f"{text} AS {quoted(name)}" for name, text in store_formats.proxy(older, there, "duckdb").items()]
    engine.execute(f"CREATE TEMP VIEW rows AS SELECT {', '.join(shown)} FROM stored")  # noqa: S608  # names are quoted


def _register(engine: duckdb.DuckDBPyConnection, name: str, found: DeltaTable, bounds: Sequence[Bound]) -> None:
    """A table's rows as its files have them, under a name."""
    schema, partitions = pa.schema(found.schema().to_arrow()), found.metadata().partition_columns
    fields = [field for field in schema if field.name not in partitions]
    folder, evolved = found.table_uri.removeprefix("file://"), tables.EVOLUTION in found.metadata().configuration
    nested = any(_holds_moments(field.type) for field in fields)
    if "://" in folder or _GLOB & set(folder) or (nested and not evolved):
        engine.register(name, contents.arrow(found))
        return
    files = [str(Path(unquote(folder), unquote(name))) for name in holding(found, bounds)]
    if not files:
        engine.register(name, schema.empty_table())
        return
    # Spark writes moments as INT96, which Parquet readers take for ones without a zone.
    shown = ", ".join(
        f"CAST({quoted(f.name)} AS TIMESTAMPTZ) AS {quoted(f.name)}"
        if pa.types.is_timestamp(f.type) and f.type.tz
        else quoted(f.name)
        for f in fields
    )
    listed = ", ".join(_literal(file) for file in files)
    options = "hive_partitioning = false" + (", union_by_name = true" if evolved else "")
    gone = _gone(found, files) if tables.VECTORS in found.metadata().configuration else None
    if gone is None:
        read = f"read_parquet([{listed}], {options})"
    else:
        engine.register("gone", gone)
        options += ", filename = '_file', file_row_number = true"
        read = f"(FROM read_parquet([{listed}], {options}) ANTI JOIN gone USING (_file, file_row_number))"
    if evolved:  # a column is of the table's type, the widest of all, and null where no file has it
        engine.register("form", pa.schema([field.remove_metadata() for field in fields]).empty_table())
        read = f"(FROM form UNION ALL BY NAME FROM {read})"
    engine.execute(f"CREATE TEMP VIEW {name} AS SELECT {shown} FROM {read}")  # noqa: S608  # names are quoted


def holding(found: DeltaTable, bounds: Iterable[Bound]) -> list[str]:
    """The files of a table that can hold rows within all bounds, by the statistics that Delta keeps of each file."""
    added = pa.table(found.get_add_actions(flatten=True))
    kept = [True] * added.num_rows
    for bound in bounds:
        least, most, nulls = (_column(added, f"{of}.{bound.column}") for of in ("min", "max", "null_count"))
        told = zip(kept, least, most, nulls, strict=True)
        kept = [it and _can_hold(bound, low, high, n) for it, low, high, n in told]
    return [path for path, it in zip(added.column("path").to_pylist(), kept, strict=True) if it]


def latest(found: DeltaTable, column: str) -> datetime | None:
    """The latest moment in a column of a table, by the same statistics, which have milliseconds; None without one."""
    added = pa.table(found.get_add_actions(flatten=True))
    moments = [moment for moment in _column(added, f"max.{column}") if moment is not None]
    return max((it if it.tzinfo else it.replace(tzinfo=UTC) for it in moments), default=None)


@cache
def _database(_process: int) -> duckdb.DuckDBPyConnection:
    """To start one takes longer than most questions; its threads do not come along into a forked process."""
    return duckdb.connect()


_GLOB = set("*?[")
_MILLISECOND = timedelta(milliseconds=1)


def _column(added: pa.Table, name: str) -> list[Any]:
    return added.column(name).to_pylist() if name in added.column_names else [None] * added.num_rows


def _can_hold(bound: Bound, least: Any, most: Any, nulls: int | None) -> bool:
    """Whether a file with these statistics can hold a row within the bound."""
    if bound.or_null and nulls != 0:
        return True
    if least is None or most is None:
        return True
    if isinstance(most, datetime):  # the statistics of moments end at the millisecond
        most = END if most > END - _MILLISECOND else most + _MILLISECOND
    try:
        return (bound.least is None or most >= bound.least) and (bound.most is None or least <= bound.most)
    except TypeError:  # of a type that Delta writes in another form
        return True


def _gone(found: DeltaTable, files: Sequence[str]) -> pa.Table:
    """The rows that deletion vectors mark, by file and number."""
    wanted, names, numbers = set(files), [], []
    if tables.WIDENING in found.metadata().configuration:
        folder = unquote(found.table_uri.removeprefix("file://"))
        paths = {str(Path(path).relative_to(folder)) for path in files}
        for path, rows in widened.vectors(found, paths).items():
            names.append(pa.repeat(str(Path(folder, path)), len(rows)))
            numbers.append(pa.array(rows, pa.int64()))
        return _as_gone(names, numbers)
    for batch in pa.RecordBatchReader.from_stream(found.deletion_vectors()):
        for uri, vector in zip(batch.column(0).to_pylist(), list(batch.column(1)), strict=True):
            file = str(Path(unquote(uri.removeprefix("file://"))))
            if file in wanted:
                marked = pc.indices_nonzero(pc.invert(vector.values)).cast(pa.int64())
                names.append(pa.repeat(file, len(marked)))
                numbers.append(marked)
    return _as_gone(names, numbers)


def _as_gone(names: Sequence[pa.Array], numbers: Sequence[pa.Array]) -> pa.Table:
    return pa.table(
        {"_file": pa.chunked_array(names, pa.string()), "file_row_number": pa.chunked_array(numbers, pa.int64())}
    )


def _holds_moments(kind: pa.DataType) -> bool:
    """Whether a nested type has moments in it."""
    return any(pa.types.is_timestamp(f.type) or _holds_moments(f.type) for f in map(kind.field, range(kind.num_fields)))


def quoted(name: str) -> str:
    return '"{}"'.format(name.replace('"', '""'))


def _literal(text: str) -> str:
    return "'{}'".format(text.replace("'", "''"))
