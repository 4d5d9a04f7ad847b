"""Files of a table that Hindcast has not written: their columns, or the table's protocol, are none that it can read."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import duckdb
import pyarrow as pa
import pyarrow.compute as pc
from deltalake.exceptions import DeltaError

from hindcast.common.errors import TableError, show_briefly
from hindcast.store.row_reader import refuse_broken_files
from hindcast.store.table_metadata import RESTORE_FIX
from hindcast.store.tables import Table


@contextmanager
def refuse_unreadable_rows(table: Table) -> Iterator[None]:
    """Raise TableError if a file that the block reads is missing or damaged, or has what Hindcast cannot read."""
    try:
        with refuse_broken_files(table):
            yield
    except _ERRORS as error:
        if isinstance(error, duckdb.InvalidInputException) and _ABOUT_ROWS not in str(error):
            raise
        text = show_briefly(str(error).partition("\n")[0])
        found = f"has what Hindcast does not write and cannot read: {type(error).__name__}: {text}"
        raise TableError(found, where=table.path, fix=RESTORE_FIX) from None


_ERRORS = (
    DeltaError,
    OverflowError,
    duckdb.BinderException,
    duckdb.DataError,
    duckdb.InvalidInputException,
    duckdb.NotSupportedError,
    pa.ArrowException,
)
_ABOUT_ROWS = "reading the stream"
"""In DuckDB's error for rows that Arrow cannot give it; others of this kind are about the query."""


def refuse_odd_moments(rows: pa.Table) -> None:
    """Raise OverflowError for a moment before the year 1 or after 9999: Python has none, and so no row with it."""
    for column in rows.columns:
        if pa.types.is_timestamp(column.type):
            pc.min_max(column).as_py()
