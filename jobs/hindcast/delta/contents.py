"""The rows of a table: as Spark reads them, and as Arrow does without it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta
from pathlib import Path
from urllib.parse import unquote

import duckdb
import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable, QueryBuilder
from pyarrow.dataset import Dataset
from pyarrow.fs import LocalFileSystem, SubTreeFileSystem
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from hindcast import clock, rights
from hindcast.delta import listing, store_formats, widened
from hindcast.delta.store_formats import Older
from hindcast.delta.tables import PINNED, VECTORS, WIDENING, Table, older, opened, spark_schema
from hindcast.errors import TableError


def believed(spark: SparkSession, table: Table) -> DataFrame:
    """The rows believed now, or at the table's pin, with all their columns."""
    if table.pin is not None:
        pin, ended = F.lit(table.pin), F.col("systemTo")
        return load(spark, table).where((F.col("systemFrom") <= pin) & (ended.isNull() | (ended > pin)))
    return load(spark, table).where("systemTo IS NULL AND _belief <> 'superseded'")


def load(spark: SparkSession, table: Table) -> DataFrame:
    """All rows of a table that is there; those of an older store format through the proxy view."""
    found = opened(table)
    it = older(found) if found is not None and table.kind == "versions" else None
    rows = stored(spark, table, found)
    return rows if it is None else proxied(rows, it)


def stored(spark: SparkSession, table: Table, found: DeltaTable | None = None) -> DataFrame:
    """All rows of a table that is there, as its files have them.

    Of a small one Spark is told which files these are: to ask Delta's log takes it half a second for each table.
    """
    found = found or opened(table)
    paths = listing.small(found) if found is not None else None
    if found is None or paths is None:
        reader = spark.read.format("delta")
        if found is not None and PINNED.get() is not None:
            reader = reader.option("versionAsOf", found.version())
        return reader.load(table.path)
    return listing.rows(spark, found, spark_schema(found), paths)


def proxied(rows: DataFrame, it: Older) -> DataFrame:
    """Rows of a table of an older store format as those of one of today's."""
    shown = store_formats.proxy(it, rows.columns, "spark")
    own = [F.col(f"`{name}`") for name in store_formats.users(rows.columns)]
    return rows.select(*own, *(F.expr(text).alias(name) for name, text in shown.items()))


def dataset(found: DeltaTable) -> Dataset:
    """All rows of a table without deletion vectors.

    Local files are read by Arrow itself. By delta-rs they would be read through Python, from threads of Arrow's: one
    that is still at it when a process ends, aborts that process.
    """
    place = found.table_uri.removeprefix("file://")
    own = None if "://" in place else SubTreeFileSystem(unquote(place), LocalFileSystem())
    return found.to_pyarrow_dataset(filesystem=own)


def last_moment(found: DeltaTable | None) -> datetime | None:
    """Return the latest moment in the column `at` of a table without deletion vectors; None if it has no rows."""
    moment: datetime | None = pc.max(dataset(found).to_table(columns=["at"])["at"]).as_py() if found else None
    return moment


def next_moment(found: DeltaTable | None) -> datetime:
    """Return what the clock shows, but a moment later than all in the column `at`: the one of the rows that come next.

    So rows are in the order of these moments, whatever the clocks show on the machines that write them.
    """
    last = last_moment(found)
    return max(clock.now(), last + timedelta(microseconds=1)) if last else clock.now()


_NAMED = re.compile(r"[\"'](/[^\"']+)[\"']")
"""How Arrow and DuckDB name a file in an error."""


@contextmanager
def refusing_broken_files(table: Table) -> Iterator[None]:
    """Raise TableError where a data file that the block reads is gone, or is not as it was written."""
    try:
        yield
    except (duckdb.InvalidInputException, duckdb.IOException, pa.ArrowInvalid, OSError) as error:
        text = str(error).partition("\n")[0]
        if isinstance(error, duckdb.Error) and "file" not in text.lower():
            raise
        if "://" not in table.path and (isinstance(error, PermissionError) or rights.DENIED in text):
            named = _NAMED.search(text)
            path = Path(named[1] if named else table.path)
            raise TableError(**rights.explain(PermissionError(error), path)) from None
        mend = f"hindcast verify {table.pipeline} --quick names every broken file, and says what to do"
        raise TableError(f"a data file cannot be read: {text}", where=table.path, mend=mend) from None


def arrow(found: DeltaTable) -> Dataset | pa.RecordBatchReader:
    """All rows of a table for DuckDB, without Spark; of one with deletion vectors as a stream, to be read once."""
    if WIDENING in found.metadata().configuration:
        return widened.rows(found)
    if VECTORS not in found.metadata().configuration:
        return dataset(found)
    return pa.RecordBatchReader.from_stream(QueryBuilder().register("rows", found).execute("SELECT * FROM rows"))
