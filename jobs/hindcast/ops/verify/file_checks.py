"""Check the files of Delta tables against the tables' own logs, and the marks of tables. Without Spark."""

from __future__ import annotations

from collections.abc import Iterator
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import DeltaTable
from pyarrow.fs import FileSystem, FileType

from hindcast.common.errors import TableError, show_briefly
from hindcast.common.plurals import format_count
from hindcast.ops.verify.findings import Finding, backup_advice
from hindcast.store import deletion_vectors, delta_log, tables
from hindcast.store.tables import Table


def check_marks(table: Table, delta_table: DeltaTable) -> Iterator[Finding]:
    """Yield a finding if a table is not marked as of its kind, with its key."""
    marked = tables.read_marks(delta_table) or tables.NO_MARKS
    if marked["kind"] != table.kind:
        yield Finding("format", table.name, f"is marked as {marked['kind']}, not {table.kind}", backup_advice(table))
    elif tuple(marked["key"]) != table.key:
        key = ", ".join(marked["key"]) or "none"
        yield Finding(
            "format", table.name, f"is marked with the key {key}, not {', '.join(table.key)}", backup_advice(table)
        )


def describe_unopened(table: Table, error: TableError) -> Finding:
    """Return the finding for a table that cannot be opened."""
    return Finding("format", table.name, error.found.splitlines()[0], f"{error.fix}; or {backup_advice(table)}")


def check_files(table: Table, delta_table: DeltaTable) -> Iterator[Finding]:
    """Yield a finding for each way in which files of the latest version are wrong, with the first such file.

    A file must be there, with its size and as many rows as its statistics say; every page of it is read.
    """
    place = delta_log.open_filesystem(delta_table)
    wrong: dict[str, list[tuple[str, str]]] = {}
    for file in pa.table(delta_table.get_add_actions(flatten=True)).to_pylist():
        path = unquote(file["path"])
        if (how := _describe_damage(place, path, file["size_bytes"], file["num_records"])) is not None:
            wrong.setdefault(how[0], []).append((path, how[1]))
    for what, some in wrong.items():
        path, detail = some[0]
        text = f"{format_count(len(some), 'file')} {'is' if len(some) == 1 else 'are'} {what}: {detail}"
        yield Finding("files", table.name, text, backup_advice(table), file=path)
    if not wrong and tables.DELETION_VECTORS in delta_table.metadata().configuration:
        yield from _check_deletion_vectors(table, delta_table)


def _describe_damage(place: FileSystem, path: str, size: int, rows: int | None) -> tuple[str, str] | None:
    """Return how a file that has so many bytes and `rows` is damaged, and what shows it; None if it is not."""
    try:
        (info,) = place.get_file_info([path])
        if info.type == FileType.NotFound:
            return "missing", f"it has {rows} rows"
        if info.type != FileType.File:
            return "no file", "it is a folder"
        if info.size != size:
            return "cut or overwritten", f"it has {info.size:,} bytes, not {size:,}"
        with place.open_input_file(path) as opened:
            stored = sum(batch.num_rows for batch in pq.ParquetFile(opened).iter_batches())
    except (OSError, pa.ArrowException) as error:
        return "unreadable", show_briefly(str(error).partition("\n")[0])
    if rows is not None and stored != rows:
        return "another one", f"it has {stored:,} rows, not {rows:,}"
    return None


def _check_deletion_vectors(table: Table, delta_table: DeltaTable) -> Iterator[Finding]:
    """Yield a finding if the deletion vectors of a table cannot be read."""
    try:
        deletion_vectors.read_deletion_vectors(delta_table, delta_log.list_paths(delta_table))
    except (OSError, ValueError) as error:
        text = f"a deletion vector cannot be read: {str(error).splitlines()[0]}"
        yield Finding("files", table.name, text, backup_advice(table))
    except TableError as error:
        yield Finding("files", table.name, error.found, backup_advice(table))
