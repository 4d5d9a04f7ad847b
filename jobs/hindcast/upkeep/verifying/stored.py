"""Whether the files of Delta tables are there, whole, as the tables' own logs tell; and marked as ours."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import DeltaTable
from pyarrow.fs import FileSystem, FileType

from hindcast.delta import tables, widened
from hindcast.delta.tables import Table
from hindcast.errors import TableError
from hindcast.upkeep.verifying.findings import Finding, backup
from hindcast.words import counted


def marks(table: Table, found: DeltaTable) -> Iterator[Finding]:
    """Whether a table is marked as of its kind, with its key."""
    marked = tables.marked(found) or {}
    if marked.get("kind") != table.kind:
        yield Finding("format", table.name, f"is marked as {marked.get('kind')}, not {table.kind}", backup(table))
    elif tuple(marked.get("key", ())) != table.key:
        told = ", ".join(marked.get("key", [])) or "none"
        yield Finding("format", table.name, f"is marked with the key {told}, not {', '.join(table.key)}", backup(table))


def unopened(table: Table, error: TableError) -> Finding:
    """What is told of a table that cannot be opened."""
    return Finding("format", table.name, error.found.splitlines()[0], f"{error.mend}; or {backup(table)}")


def files(table: Table, found: DeltaTable) -> Iterator[Finding]:
    """Whether each file of the table as it stands is there, has its size, and as many rows as its statistics tell;
    every page of it is read. One finding tells the first file of those that are wrong in the same way.
    """
    place = widened.files(found)
    wrong: dict[str, list[tuple[str, str]]] = {}
    for file in pa.table(found.get_add_actions(flatten=True)).to_pylist():
        path = unquote(file["path"])
        if (how := _wrong(place, path, file)) is not None:
            wrong.setdefault(how[0], []).append((path, how[1]))
    for what, some in wrong.items():
        path, told = some[0]
        text = f"{counted(len(some), 'file')} {'is' if len(some) == 1 else 'are'} {what}: {told}"
        yield Finding("files", table.name, text, backup(table), file=path)
    if not wrong and tables.VECTORS in found.metadata().configuration:
        yield from _vectors(table, found)


def _wrong(place: FileSystem, path: str, file: dict[str, Any]) -> tuple[str, str] | None:
    """How a file is wrong, if it is, and what tells it."""
    (info,) = place.get_file_info([path])
    if info.type == FileType.NotFound:
        return "missing", f"it has {file['num_records']} rows"
    if info.size != file["size_bytes"]:
        return "cut or overwritten", f"it has {info.size:,} bytes, not {file['size_bytes']:,}"
    try:
        with place.open_input_file(path) as opened:
            rows = sum(batch.num_rows for batch in pq.ParquetFile(opened).iter_batches())
    except (OSError, pa.ArrowException) as error:
        return "unreadable", str(error).splitlines()[0]
    if file["num_records"] is not None and rows != file["num_records"]:
        return "another one", f"it has {rows:,} rows, not {file['num_records']:,}"
    return None


def _vectors(table: Table, found: DeltaTable) -> Iterator[Finding]:
    """Whether the deletion vectors of a table can be read."""
    try:
        widened.vectors(found, widened.paths(found))
    except (OSError, ValueError) as error:
        told = f"a deletion vector cannot be read: {str(error).splitlines()[0]}"
        yield Finding("files", table.name, told, backup(table))
