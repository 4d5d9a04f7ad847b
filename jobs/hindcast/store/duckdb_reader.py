"""Rows of a Delta table in DuckDB, without Spark, from only those files that can hold them.

DuckDB reads local files itself, and of each column only what the selected rows need. Arrow would first read all columns
of all rows.
"""

from __future__ import annotations

import ctypes
import os
import re
import secrets
import threading
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.dataset as ds
from deltalake import DeltaTable

from hindcast.bitemporal.predicates import LAST_MOMENT, ColumnBound
from hindcast.common import private_folders
from hindcast.store import deletion_vectors, delta_log, parquet_footers, row_reader, store_formats, tables

EngineFactory = Callable[[DeltaTable], AbstractContextManager[duckdb.DuckDBPyConnection]]
"""Opens an engine that can open the files of a table, as `open_engine` does."""


def open_engine(delta_table: DeltaTable | None = None, memory: int | None = None) -> duckdb.DuckDBPyConnection:
    """Return a connection to a DuckDB of this process, in UTC; what is registered with it is its own.

    With a table it can read and write no files but those in the table's folder, and nobody can change that. Without
    one it can open any file: only for SQL without a part that a user wrote. `memory`: the most bytes that such engines
    of a table take together; what does not fit is spilled, or raises OutOfMemoryException.
    """
    if delta_table is not None:
        folder = delta_log.find_local_folder(delta_table)
        return _DATABASES.open_limited(str(folder) if folder else None, memory)
    engine = _DATABASES.open_unlimited()
    engine.execute("SET TimeZone = 'UTC'")
    return engine


def open_arrow_engine() -> duckdb.DuckDBPyConnection:
    """Return a connection, as `open_engine` does, that can open no file: all rows are registered with it."""
    return _DATABASES.open_limited(None)


def register_rows(
    engine: duckdb.DuckDBPyConnection, delta_table: DeltaTable, bounds: Sequence[ColumnBound] = ()
) -> None:
    """Create the view `rows` of a table: all rows within the `bounds`, and maybe others, without its partition columns.

    It replaces that of an earlier call. Rows of an older store format are those of its proxy view.
    """
    older = tables.read_older_format(delta_table)
    if older is None:
        _register_stored_rows(engine, "rows", delta_table, bounds)
        return
    # Today's columns are null in rows of an older format: statistics of them bound nothing.
    _register_stored_rows(
        engine, "stored", delta_table, [bound for bound in bounds if bound.column not in store_formats.ADDED_COLUMNS]
    )
    partitions = delta_table.metadata().partition_columns
    stored = [field.name for field in delta_table.schema().fields if field.name not in partitions]
    proxies = store_formats.proxy_columns(older, stored, "duckdb").items()
    expressions = [quote_name(name) for name in store_formats.user_columns(stored)]
    expressions += [f"{text} AS {quote_name(name)}" for name, text in proxies]
    engine.execute(f"CREATE OR REPLACE TEMP VIEW rows AS SELECT {', '.join(expressions)} FROM stored")  # noqa: S608  # names are quoted


def _register_stored_rows(
    engine: duckdb.DuckDBPyConnection, name: str, delta_table: DeltaTable, bounds: Sequence[ColumnBound]
) -> None:
    """Register a table's rows under a name, as its files have them."""
    schema, partitions = pa.schema(delta_table.schema().to_arrow()), delta_table.metadata().partition_columns
    fields = [field for field in schema if field.name not in partitions]
    folder, configuration = delta_log.find_local_folder(delta_table), delta_table.metadata().configuration
    if folder is None:
        _replace_view(engine, name, row_reader.open_arrow_rows(delta_table))
        return
    paths = [unquote(path) for path in find_candidate_files(delta_table, bounds)]
    delta_log.refuse_foreign_files(delta_table, paths)
    parquet_footers.refuse_broken_footers(folder, paths)
    if not paths:
        _replace_view(engine, name, schema.empty_table())
        return
    # Spark writes moments as INT96, which Parquet readers take for timestamps without a zone.
    expressions = ", ".join(
        f"CAST({quote_name(f.name)} AS TIMESTAMPTZ) AS {quote_name(f.name)}"
        if pa.types.is_timestamp(f.type) and f.type.tz
        else quote_name(f.name)
        for f in fields
    )
    listed = ", ".join(_quote_text(_escape_pattern(str(folder / path))) for path in paths)
    options = "hive_partitioning = false, union_by_name = true"
    features = delta_table.protocol().reader_features or ()
    if tables.DELETION_VECTORS not in configuration and "deletionVectors" not in features:
        read = f"read_parquet([{listed}], {options})"
    else:
        engine.register("deleted", _read_deleted_rows(delta_table, folder, paths))
        options += ", filename = '_file', file_row_number = true"
        read = f"(FROM read_parquet([{listed}], {options}) ANTI JOIN deleted USING (_file, file_row_number))"
    # A column has the table's type, whatever a file has, and is null where no file has it.
    engine.register("form", pa.schema([field.remove_metadata() for field in fields]).empty_table())
    read = f"(FROM form UNION ALL BY NAME FROM {read})"
    engine.execute(f"CREATE OR REPLACE TEMP VIEW {name} AS SELECT {expressions} FROM {read}")  # noqa: S608  # names are quoted


def _replace_view(
    engine: duckdb.DuckDBPyConnection, name: str, rows: pa.Table | pa.RecordBatchReader | ds.Dataset
) -> None:
    engine.execute(f"DROP VIEW IF EXISTS {quote_name(name)}")
    engine.register(name, rows)


def find_candidate_files(delta_table: DeltaTable, bounds: Iterable[ColumnBound]) -> list[str]:
    """Return the files of a table that can hold rows within all bounds, by Delta's statistics of each file."""
    added = pa.table(delta_table.get_add_actions(flatten=True))
    candidates = [True] * added.num_rows
    for bound in bounds:
        least, most, nulls = (_statistics_column(added, f"{of}.{bound.column}") for of in ("min", "max", "null_count"))
        statistics = zip(candidates, least, most, nulls, strict=True)
        candidates = [candidate and _can_match(bound, low, high, n) for candidate, low, high, n in statistics]
    return [path for path, candidate in zip(added.column("path").to_pylist(), candidates, strict=True) if candidate]


def read_time_spans(delta_table: DeltaTable, start: str, end: str) -> dict[str, tuple[int | None, int | None]]:
    """Return the first start and the last end of the rows of each file, by its path, from Delta's statistics.

    In microseconds; None where that is not known, or where an end is null.
    """
    added = pa.table(delta_table.get_add_actions(flatten=True))
    least, most, nulls = (
        _statistics_column(added, name) for name in (f"min.{start}", f"max.{end}", f"null_count.{end}")
    )
    starts = map(_count_micros, least)
    ends = (None if n != 0 else _count_micros(_round_up(last)) for last, n in zip(most, nulls, strict=True))
    return dict(zip(added.column("path").to_pylist(), zip(starts, ends, strict=True), strict=True))


def _count_micros(moment: datetime | None) -> int | None:
    """Return the microseconds from 1970 to a moment."""
    if moment is None:
        return None
    known = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
    return (known - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1)


def find_latest_moment(delta_table: DeltaTable, column: str) -> datetime | None:
    """Return the latest moment in a column of a table by Delta's statistics, in milliseconds; None without one."""
    added = pa.table(delta_table.get_add_actions(flatten=True))
    moments = [moment for moment in _statistics_column(added, f"max.{column}") if moment is not None]
    return max((moment if moment.tzinfo else moment.replace(tzinfo=UTC) for moment in moments), default=None)


class _Databases:
    """The databases of this process. They are slow to open, and their threads do not survive a fork."""

    def __init__(self) -> None:
        self.unlimited: duckdb.DuckDBPyConnection | None = None
        self.limited: dict[tuple[str | None, int | None], duckdb.DuckDBPyConnection] = {}
        self.lock = threading.Lock()

    def open_unlimited(self) -> duckdb.DuckDBPyConnection:
        """Return a connection to a database that can open any file."""
        with self.lock:
            if self.unlimited is None or (cursor := _connect_if_sound(self.unlimited)) is None:
                self.unlimited = connect_alone()
                cursor = self.unlimited.cursor()
            return cursor

    def open_limited(self, folder: str | None, memory: int | None = None) -> duckdb.DuckDBPyConnection:
        """Return a connection to a database that can open files in one folder only, or none.

        The last few databases that were used are kept.
        """
        with self.lock:
            database = self.limited.pop((folder, memory), None)
            if database is None or (cursor := _connect_if_sound(database)) is None:
                database = _create_limited_database(folder, memory)
                cursor = database.cursor()
            self.limited[folder, memory] = database
            while len(self.limited) > _MOST_LIMITED:
                del self.limited[next(iter(self.limited))]
            return cursor


def _connect_if_sound(database: duckdb.DuckDBPyConnection) -> duckdb.DuckDBPyConnection | None:
    """Return a connection to a database; None if an internal error has made it unusable for ever."""
    try:
        cursor = database.cursor()
        cursor.execute("SELECT 1").fetchall()
    except duckdb.FatalException:
        return None
    except duckdb.OutOfMemoryException:  # others take all of it at the moment
        pass
    return cursor


_MOST_LIMITED = 8
_LIMITED_THREADS = 4

_DATABASES = _Databases()


def _replace_databases() -> None:
    """Begin with no databases in a forked process.

    Those that it inherits are never freed, not even when it ends: that would wait for ever for their threads, or crash.
    """
    global _DATABASES  # noqa: PLW0603
    inherited = [it for it in (_DATABASES.unlimited, *_DATABASES.limited.values()) if it is not None]
    for database in inherited:
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(database))
    _DATABASES = _Databases()


os.register_at_fork(after_in_child=_replace_databases)


def _create_limited_database(folder: str | None, most: int | None) -> duckdb.DuckDBPyConnection:
    """Return a database that can open files in one folder only, or none; its settings are locked."""
    database = connect_alone()
    database.execute("SET GLOBAL TimeZone = 'UTC'")
    defaults = database.execute("SELECT current_setting('memory_limit'), current_setting('threads')").fetchall()
    memory, unit = defaults[0][0].split()
    limit = f"{float(memory) / 4:.1f} {unit}" if most is None else f"{most} B"  # there are several
    database.execute(f"SET memory_limit = '{limit}'")
    database.execute(f"SET threads = {min(_LIMITED_THREADS, defaults[0][1])}")
    places = [f"{folder}/", f"{_escape_pattern(folder)}/"] if folder else []
    database.execute(f"SET allowed_directories = [{', '.join(map(_quote_text, places))}]")
    database.execute("SET enable_external_access = false")
    database.execute("SET lock_configuration = true")
    return database


def connect_alone() -> duckdb.DuckDBPyConnection:
    """Return a new database, which can open any file, for work that may take much memory.

    What does not fit into memory goes to a private folder, which the database creates, and removes at its end. DuckDB's
    own choice is the working directory, which may be read-only or somebody's checkout. A database can read its folder,
    so each has its own.
    """
    with _SPILL_LOCK:
        if _SPILL_FOLDERS and not _is_private(_SPILL_FOLDERS[-1]):
            _SPILL_FOLDERS.clear()
        if not _SPILL_FOLDERS and (folder := private_folders.find_temporary()) is not None:
            _SPILL_FOLDERS.append(folder)
        place = str(_SPILL_FOLDERS[-1] / f"duckdb-{secrets.token_hex(8)}") if _SPILL_FOLDERS else ""
    return duckdb.connect(":memory:", config={"temp_directory": place})  # "": it spills nothing


def _is_private(folder: Path) -> bool:
    """Return whether a folder is still private; one that was removed is created again."""
    try:
        return private_folders.make_private(folder)
    except OSError:
        return False


_SPILL_FOLDERS: list[Path] = []
"""The folder of this process for what databases spill, once there is one."""
_SPILL_LOCK = threading.Lock()


_MILLISECOND = timedelta(milliseconds=1)


def _statistics_column(added: pa.Table, name: str) -> list[Any]:
    return added.column(name).to_pylist() if name in added.column_names else [None] * added.num_rows


def _round_up(most: datetime | None) -> datetime | None:
    """Return the moment up to which there can be values: statistics of moments end at the millisecond."""
    if most is None:
        return None
    most = most if most.tzinfo else most.replace(tzinfo=UTC)
    return LAST_MOMENT if most > LAST_MOMENT - _MILLISECOND else most + _MILLISECOND


def _can_match(bound: ColumnBound, least: Any, most: Any, nulls: int | None) -> bool:
    """Return whether a file with these statistics can hold a row within the bound."""
    if bound.or_null and nulls != 0:
        return True
    if least is None or most is None:
        return True
    if isinstance(most, datetime):
        most = _round_up(most)
    try:
        return (bound.least is None or most >= bound.least) and (bound.most is None or least <= bound.most)
    except TypeError:  # of a type that Delta writes in another form
        return True


def _read_deleted_rows(delta_table: DeltaTable, folder: Path, paths: Sequence[str]) -> pa.Table:
    """Return the rows that deletion vectors mark, by file and number; the name of each file is there once."""
    marked = deletion_vectors.read_deletion_vectors(delta_table, {*paths})
    names = pa.array([str(folder / path) for path in marked], pa.string())
    of_file = np.repeat(np.arange(len(marked), dtype=np.int32), [len(numbers) for numbers in marked.values()])
    numbers = [pa.array(numbers.view(np.int64)) for numbers in marked.values()]
    return pa.table(
        {
            "_file": pa.DictionaryArray.from_arrays(pa.array(of_file), names),
            "file_row_number": pa.chunked_array(numbers, pa.int64()),
        }
    )


def quote_name(name: str) -> str:
    return '"{}"'.format(name.replace('"', '""'))


def _escape_pattern(path: str) -> str:
    """Return the pattern that only a path itself meets, as DuckDB takes each path for one."""
    return re.sub(r"[*?\[]", r"[\g<0>]", path)


def _quote_text(text: str) -> str:
    return "'{}'".format(text.replace("'", "''"))
