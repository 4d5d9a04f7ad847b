"""The rows of a table, read by Spark or, without it, by Arrow."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta
from pathlib import Path

import duckdb
import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable, QueryBuilder
from pyarrow.dataset import Dataset
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from hindcast.common import clock, permissions
from hindcast.common.errors import TableError
from hindcast.store import arrow_reader, delta_log, file_listing, store_formats
from hindcast.store.store_formats import OlderFormat
from hindcast.store.table_columns import spark_schema
from hindcast.store.tables import (
    DELETION_VECTORS,
    PINNED_TABLES,
    WIDENING,
    Table,
    open_latest,
    open_table,
    read_older_format,
)


def load_current_rows(spark: SparkSession, table: Table) -> DataFrame:
    """Return the rows current now, or at the table's `as_of_system_time`, with all their columns."""
    if table.as_of_system_time is not None:
        moment, ended = F.lit(table.as_of_system_time), F.col("systemTo")
        return load_rows(spark, table).where((F.col("systemFrom") <= moment) & (ended.isNull() | (ended > moment)))
    return load_rows(spark, table).where("systemTo IS NULL AND _belief <> 'superseded'")


def load_rows(spark: SparkSession, table: Table) -> DataFrame:
    """Return all rows of a table, which exists; those of an older store format through the proxy view."""
    delta_table = open_table(table)
    older = read_older_format(delta_table) if delta_table is not None and table.kind == "versions" else None
    rows = load_stored_rows(spark, table, delta_table)
    return rows if older is None else convert_older_rows(rows, older)


def load_stored_rows(spark: SparkSession, table: Table, delta_table: DeltaTable | None = None) -> DataFrame:
    """Return all rows of a table, which exists, as its files have them.

    Spark is given the files of a small table: asking Delta's log takes it half a second for each table.
    """
    if delta_table is None:
        delta_table = open_table(table)
    else:
        delta_log.refuse_foreign_files(delta_table)
    paths = file_listing.list_small_table_files(delta_table) if delta_table is not None else None
    if delta_table is None or paths is None:
        reader = spark.read.format("delta")
        if delta_table is not None and PINNED_TABLES.get() is not None:
            reader = reader.option("versionAsOf", delta_table.version())
        return reader.load(table.path)
    return file_listing.load_files(spark, delta_table, spark_schema(delta_table), paths)


def convert_older_rows(rows: DataFrame, older: OlderFormat) -> DataFrame:
    """Return rows of an older store format as rows of today's."""
    shown = store_formats.proxy_columns(older, rows.columns, "spark")
    own = [F.col(f"`{name}`") for name in store_formats.user_columns(rows.columns)]
    return rows.select(*own, *(F.expr(text).alias(name) for name, text in shown.items()))


def open_dataset(delta_table: DeltaTable) -> Dataset:
    """Return all rows of a table without deletion vectors.

    Arrow reads local files itself. delta-rs would have them read through Python in Arrow's threads, and such a thread
    aborts a process that ends meanwhile.
    """
    if not delta_log.is_on_disk(delta_table):
        return delta_table.to_pyarrow_dataset()
    delta_log.refuse_foreign_files(delta_table)
    return delta_table.to_pyarrow_dataset(filesystem=delta_log.open_filesystem(delta_table))


def read_last_moment(delta_table: DeltaTable | None) -> datetime | None:
    """Return the latest moment in the column `at` of a table without deletion vectors; None if it has no rows."""
    if delta_table is None:
        return None
    moment: datetime | None = pc.max(open_dataset(delta_table).to_table(columns=["at"])["at"]).as_py()
    return moment


def read_next_moment(delta_table: DeltaTable | None) -> datetime:
    """Return the time for the next row's column `at`: the clock's, but later than all that the table has.

    So rows are in the order of these moments, whatever the clocks of the writing machines show.
    """
    last = read_last_moment(delta_table)
    return max(clock.now(), last + timedelta(microseconds=1)) if last else clock.now()


_ABOUT_FILES = re.compile("file|Parquet|schema", re.IGNORECASE)
_DUCKDB_ERRORS = (duckdb.InvalidInputException, duckdb.IOException, duckdb.PermissionException)
_OF_A_COLUMN = "while reading file"
"""What DuckDB says of a column of a file that does not fit that of the others; a value may say anything else."""
_DAMAGE_ERRORS = (duckdb.InternalException, duckdb.FatalException)
"""What DuckDB raises of damage that it does not foresee, and then, of the same database, in other threads."""
_QUOTED_PATH = re.compile(r"[\"'](/[^\"']+)[\"']")
"""The path of a file in errors of Arrow and DuckDB."""


@contextmanager
def refuse_broken_files(table: Table) -> Iterator[None]:
    """Raise TableError if a data file that the block reads is missing or damaged.

    One that others have removed since the table was opened is no damage: then the error says to read it again.
    """
    try:
        yield
    except (duckdb.Error, pa.ArrowInvalid, OSError) as error:
        text = str(error).partition("\n")[0]
        if isinstance(error, duckdb.Error) and not _is_about_files(error, text):
            raise
        path = _find_path(table, error, text)
        if "://" not in table.path and (isinstance(error, PermissionError) or permissions.DENIED_MESSAGE in text):
            raise TableError(**permissions.explain_error(PermissionError(error), path)) from None
        if _was_removed(table, path):
            found = f"a data file was removed before it was read: {path.name}"
            raise TableError(found, where=table.path, fix="repeat this: the table has a newer version now") from None
        fix = f"hindcast verify {table.pipeline} --quick names every broken file, and says what to do"
        raise TableError(f"a data file cannot be read: {text}", where=table.path, fix=fix) from None


def _find_path(table: Table, error: Exception, text: str) -> Path:
    """Return the file that an error with a text is about; the table's folder if it does not name one."""
    if (named := _QUOTED_PATH.search(text)) is not None:
        return Path(named[1])
    is_bare = type(error) is FileNotFoundError  # Arrow's, of a file that is gone: it says nothing but its path
    return Path(table.path, text) if is_bare else Path(table.path)


def _was_removed(table: Table, path: Path) -> bool:
    """Return whether a data file is gone that the table no longer has in its latest version."""
    if path.suffix != ".parquet" or path.exists():
        return False
    try:
        delta_table = open_latest(table)
    except TableError:
        return False
    return delta_table is not None and path.name not in {Path(it).name for it in delta_log.list_paths(delta_table)}


def _is_about_files(error: duckdb.Error, text: str) -> bool:
    """Return whether a file may be why DuckDB raises an error: of some damage it says no more than the base class."""
    if type(error) is duckdb.Error or isinstance(error, _DAMAGE_ERRORS):
        return True
    if isinstance(error, duckdb.ConversionException):
        return _OF_A_COLUMN in text
    return isinstance(error, _DUCKDB_ERRORS) and _ABOUT_FILES.search(text) is not None


def open_arrow_rows(delta_table: DeltaTable) -> Dataset | pa.RecordBatchReader:
    """Return all rows of a table for DuckDB, without Spark; with deletion vectors as a stream, to be read once."""
    configuration = delta_table.metadata().configuration
    if WIDENING in configuration or (DELETION_VECTORS in configuration and delta_log.is_on_disk(delta_table)):
        return arrow_reader.read_rows(delta_table)
    if DELETION_VECTORS not in configuration:
        return open_dataset(delta_table)
    return pa.RecordBatchReader.from_stream(QueryBuilder().register("rows", delta_table).execute("SELECT * FROM rows"))
