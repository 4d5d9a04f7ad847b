"""Tables that are about to be rewritten: only files in the table's own folder may be read for that (own_files.py).

What rewrites a table copies the rows of its files into new ones, and what purges it deletes files. So a path in a log,
or a link, could bring the rows of another's table where somebody else may read them, or take its files away.
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote

from deltalake import DeltaTable

from hindcast.common.errors import TableError, show_briefly
from hindcast.store import delta_log, own_files, own_paths, table_metadata, tables
from hindcast.store.table_metadata import RESTORE_FIX

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def open_whole(path: str) -> DeltaTable:
    """Return a table in its latest version; raise TableError if it cannot be read, or its log is odd, names a file
    twice or out of its folder, or has what Spark would run.
    """
    with tables.explain_errors(path) as folder:
        if folder is not None:
            own_files.refuse_odd_log(folder)
        delta_table = DeltaTable(path)
        table_metadata.refuse_risks(delta_table, path)
        own_files.refuse_repeated_files(path, paths := delta_log.list_paths(delta_table))
        refuse_foreign(delta_table, paths)
    return delta_table


def refuse_foreign(delta_table: DeltaTable, paths: Collection[str]) -> None:
    """Raise TableError if one of the paths of a table's files leads out of its folder, also in an object store."""
    for path in paths:
        parts = path.split("/")
        if path.startswith("/") or ":" in parts[0] or ".." in parts:
            where = f"{delta_table.table_uri}, {show_briefly(path)}"
            raise TableError("its log names a file out of its folder", where=where, fix=RESTORE_FIX)
    if (folder := delta_log.find_local_folder(delta_table)) is not None:
        own_files.refuse_foreign_files(folder, paths)


def run_statement(spark: SparkSession, path: str, statement: str) -> None:
    """Let Spark run a statement that reads the files of a table to write others; TableError if it has any of others.

    Spark is asked which files it would read only where its log has files that others may not read as it does.
    """
    folder = delta_log.find_local_folder(open_whole(path))
    if folder is not None and not all(map(_is_read_by_all, os.listdir(folder / "_delta_log"))):  # noqa: PTH208
        refuse_foreign_to_spark(spark, path)
    spark.sql(statement).collect()


def _is_read_by_all(name: str) -> bool:
    return _NUMBERED.match(name) is None or _PLAIN.fullmatch(name) is not None


_NUMBERED = re.compile(r"[0-9]+\.|_sidecars$")
_PLAIN = re.compile(r"[0-9]{20}\.(json|crc|checkpoint\.parquet)")
"""The names of commits, checksums and checkpoints, as they are in a log of ours."""


def run_upkeep(spark: SparkSession, path: str, statement: str) -> None:
    """Do as `run_statement` does, and ask Spark before which files it would read: for that it needs a second."""
    open_whole(path)
    refuse_foreign_to_spark(spark, path)
    spark.sql(statement).collect()


def refuse_foreign_to_spark(spark: SparkSession, path: str) -> None:
    """Raise TableError if Spark, by its own reading of a table's log, would read a file out of the table's folder.

    What any reader may find in the log has been looked at before (log_forms.py); this is about what that overlooks.
    """
    folder = _name_place(path if "://" in path else str(Path(path).absolute()))
    for file in spark.read.format("delta").load(path).inputFiles():
        place = _name_place(file)
        if not place.startswith(folder + "/") or own_paths.goes_up(place.removeprefix(folder + "/")):
            where = f"{path}, {show_briefly(file)}"
            raise TableError("its log names a file out of its folder, as Spark reads it", where=where, fix=RESTORE_FIX)


def _name_place(path: str) -> str:
    """Return a path or a URI without its scheme, of which Spark has other ones, and without escapes."""
    return unquote(re.sub(r"^[a-z][a-z0-9+.-]*:(//)?", "", path)).rstrip("/")
