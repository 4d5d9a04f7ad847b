"""Delta's log as its protocol says it: what it has of files, and commits that delta-rs cannot make.

delta-rs commits no deletion vectors. A commit here is made as delta-rs makes its own on a disk: a file that must not
exist before, complete from its first moment on.
"""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from urllib.parse import unquote
from uuid import uuid4

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import DeltaTable
from deltalake.exceptions import CommitFailedError
from deltalake.fs import DeltaStorageHandler
from pyarrow.fs import FileSelector, FileSystem, LocalFileSystem, PyFileSystem, SubTreeFileSystem

from hindcast.common.json_values import JsonObject, StoredObject
from hindcast.store import log_limits, own_files, tables

FileEntry = JsonObject
"""What Delta's log says of a file: the fields of its last `add` action; `path` as it is written there."""


def find_local_folder(delta_table: DeltaTable) -> Path | None:
    """Return the folder of a table; None of one in an object store."""
    folder = delta_table.table_uri.removeprefix("file://")
    return None if "://" in folder else Path(unquote(folder))


def is_on_disk(delta_table: DeltaTable) -> bool:
    """Return whether a table is on a disk, not in an object store."""
    return find_local_folder(delta_table) is not None


def open_filesystem(delta_table: DeltaTable) -> FileSystem:
    """Return a file system with the files of a table by their paths in it."""
    if (folder := find_local_folder(delta_table)) is None:
        return PyFileSystem(DeltaStorageHandler(delta_table.table_uri, delta_table._storage_options))  # noqa: SLF001  # as delta-rs does
    return SubTreeFileSystem(str(folder), LocalFileSystem())


def list_paths(delta_table: DeltaTable) -> list[str]:
    """Return the paths of a table's files in it."""
    return [unquote(path) for path in pa.table(delta_table.get_add_actions(flatten=True)).column("path").to_pylist()]


def list_commits(delta_table: DeltaTable, limit: int | None = None) -> Sequence[StoredObject]:
    """Return what the last commits to a table say of themselves, newest first, up to `limit` of them.

    Raise TableError if they take too much memory: delta-rs reads them whole, also those that opening a table does not.
    """
    if (folder := find_local_folder(delta_table)) is not None:
        log_limits.refuse_large_history(folder / "_delta_log", limit)
    return delta_table.history(limit)


def refuse_foreign_files(delta_table: DeltaTable, paths: Iterable[str] | None = None) -> None:
    """Raise TableError if a table on a disk has files out of its folder, or no files in it; or if these `paths` are."""
    if (folder := find_local_folder(delta_table)) is not None:
        own_files.refuse_foreign_files(folder, list_paths(delta_table) if paths is None else paths)


def count_rows(delta_table: DeltaTable) -> dict[str, int | None]:
    """Return the numbers of rows of a table's files by its log, marked ones too, by path; None where it has none."""
    added = pa.table(delta_table.get_add_actions())
    paths, counts = (added.column(name).to_pylist() for name in ("path", "num_records"))
    return dict(zip(map(unquote, paths), counts, strict=True))


def read_file_entries(delta_table: DeltaTable, paths: Container[str], fields: Sequence[str]) -> dict[str, FileEntry]:
    """Return what the log says of some files of a table, by their paths in it; only some `fields`, and others maybe."""
    entries: dict[str, FileEntry] = {}
    for entry in _read_entries(open_filesystem(delta_table), delta_table.version(), fields):
        if (path := unquote(str(entry["path"]))) in paths:
            entries[path] = entry
    return entries


def _read_entries(filesystem: FileSystem, version: int, fields: Sequence[str]) -> Iterator[FileEntry]:
    """Yield the entries of files in Delta's log up to a version; of a file the last one counts."""
    columns = [f"add.{name}" for name in dict.fromkeys(("path", *fields))]
    yield from (add for _, add in _read_actions(filesystem, version, columns) if add["path"])


def read_actions(delta_table: DeltaTable, kinds: Sequence[str]) -> Iterator[tuple[str, JsonObject]]:
    """Yield the actions of these kinds in Delta's log up to the version of a table, oldest first; with their kind.

    Of what they say last nothing is left out: a checkpoint has it.
    """
    yield from _read_actions(open_filesystem(delta_table), delta_table.version(), kinds)


def _read_actions(filesystem: FileSystem, version: int, columns: Sequence[str]) -> Iterator[tuple[str, JsonObject]]:
    """Yield actions in Delta's log up to a version with their kind; of those in a checkpoint only some `columns`."""
    names = {info.base_name for info in filesystem.get_file_info(FileSelector("_delta_log"))}
    start, parts = _find_checkpoint(names, version)
    kinds = dict.fromkeys(column.partition(".")[0] for column in columns)
    for name in parts:
        with filesystem.open_input_file(f"_delta_log/{name}") as file:
            rows = pq.ParquetFile(file).read(columns=list(columns))
        for kind in kinds.keys() & {*rows.column_names}:
            actions = rows.column(kind).to_pylist(maps_as_pydicts="strict")
            yield from ((kind, action) for action in actions if action)
    for number in range(start + 1, version + 1):
        with filesystem.open_input_stream(f"_delta_log/{number:020}.json") as file:
            lines = file.read().decode().split("\n")  # other ends of lines are parts of texts
        for action in (json.loads(line) for line in lines if line):
            yield from ((kind, action[kind]) for kind in kinds if kind in action)


def _find_checkpoint(names: set[str], version: int) -> tuple[int, list[str]]:
    """Return the version of the last complete checkpoint up to a version, and its files; -1 if there is none."""
    checkpoints: dict[int, list[str]] = {}
    for name in sorted(names):
        if (match := _CHECKPOINT.fullmatch(name)) and int(match[1]) <= version:
            single = f"{match[1]}.checkpoint.parquet"
            parts = [single] if single in names else [n for n in names if n.startswith(f"{match[1]}.checkpoint.")]
            if single in names or len(parts) == int(match[2] or 0):
                checkpoints[int(match[1])] = parts
    last = max(checkpoints, default=-1)
    return last, checkpoints.get(last, [])


_CHECKPOINT = re.compile(r"([0-9]{20})\.checkpoint(?:\.[0-9]{10}\.([0-9]{10}))?\.parquet")


def commit_actions(
    delta_table: DeltaTable,
    actions: Sequence[JsonObject],
    transactions: Mapping[str, int],
    note: str,
    *,
    checkpoint: bool = True,
) -> None:
    """Commit actions of Delta's protocol as the version after the one of `delta_table`.

    The table is on a disk. `transactions`: the transaction identifiers, versions by application id; `note`: the
    commit's userMetadata; `checkpoint`: delta-rs writes a checkpoint if one is due. Raise CommitFailedError if another
    commit came first; then nothing is written.
    """
    folder = find_local_folder(delta_table)
    if folder is None:
        raise ValueError(f"{delta_table.table_uri} is not on a disk")
    version, now = delta_table.version() + 1, current_millis()
    information: JsonObject = {
        "timestamp": now,
        "operation": "WRITE",
        "operationParameters": {"mode": "Append"},
        "readVersion": version - 1,
        "isBlindAppend": False,
        "txnId": str(uuid4()),
        "userMetadata": note,
    }
    ids = [{"txn": {"appId": app_id, "version": number, "lastUpdated": now}} for app_id, number in transactions.items()]
    every = [{"commitInfo": information}, *ids, *actions]
    text = "".join(json.dumps(action, ensure_ascii=False) + "\n" for action in every)
    log = folder / "_delta_log"
    written, place = log / f".{version:020}.json.{uuid4()}.tmp", log / f"{version:020}.json"
    try:
        written.write_text(text, encoding="utf-8")
        os.link(written, place)
    except FileExistsError:
        raise CommitFailedError(f"version {version} of {delta_table.table_uri} was committed by another") from None
    finally:
        written.unlink(missing_ok=True)
    interval = int(delta_table.metadata().configuration.get(tables.CHECKPOINTS, _SPARKS_INTERVAL))
    if checkpoint and version % interval == 0:
        DeltaTable(delta_table.table_uri).create_checkpoint()


_SPARKS_INTERVAL = 10


def takes_bare_commits(delta_table: DeltaTable) -> bool:
    """Return whether a commit without rows, files and metadata needs nothing by a table's features."""
    protocol = delta_table.protocol()
    is_legacy = protocol.min_writer_version < _FEATURES_VERSION
    return is_legacy or {*(protocol.writer_features or ())} <= _FEATURES_OF_ROWS


_FEATURES_VERSION = 7
_FEATURES_OF_ROWS = {
    "allowColumnDefaults",
    "appendOnly",
    "changeDataFeed",
    "checkConstraints",
    "clustering",
    "columnMapping",
    "deletionVectors",
    "domainMetadata",
    "generatedColumns",
    "identityColumns",
    "invariants",
    "rowTracking",
    "timestampNtz",
    "typeWidening",
    "typeWidening-preview",
    "v2Checkpoint",
    "vacuumProtocolCheck",
}
"""The features that say something only of rows, files, metadata or checkpoints."""


def current_millis() -> int:
    """Return the clock's time as Delta's log has it."""
    return int(time.time() * 1000)
