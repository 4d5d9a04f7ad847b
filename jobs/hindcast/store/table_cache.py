"""Tables that queries read, kept open between queries for as long as nobody commits to them.

Opening a table reads its log, which takes longer than finding a key. Each query checks for a newer commit by the names
and the state of files in a local log. A table in an object store is opened each time.
"""

from __future__ import annotations

import os
from collections import OrderedDict
from pathlib import Path
from threading import Lock
from typing import NamedTuple

from deltalake import DeltaTable

from hindcast.store import tables
from hindcast.store.tables import Table

MAX_TABLES = 64
"""The maximum number of tables kept open."""


def open_cached(table: Table) -> DeltaTable | None:
    """Return `tables.open_table` for reading only: others may be given the same object."""
    if "://" in table.path:
        return tables.open_table(table)
    log = Path(table.path, "_delta_log")
    with _LOCK:
        cached = _CACHE.get(table.path)
    if (
        cached is not None
        and cached.state == _read_log_state(log, cached.version)
        and not _commit_file(log, cached.version + 1).exists()
    ):
        return cached.delta_table
    before = _find_folder_identity(log)
    delta_table = tables.open_table(table)
    with _LOCK:
        _CACHE.pop(table.path, None)
        state = _read_log_state(log, delta_table.version()) if delta_table else None
        if delta_table and state and state[0] == before:
            _CACHE[table.path] = _CachedTable(delta_table, delta_table.version(), state)
            while len(_CACHE) > MAX_TABLES:
                _CACHE.popitem(last=False)
    return delta_table


LogState = tuple[tuple[int, int], int, int, int]


class _CachedTable(NamedTuple):
    """A table, its version and the state of its log at that time; a table recreated in its place has another state."""

    delta_table: DeltaTable
    version: int
    state: LogState


_CACHE: OrderedDict[str, _CachedTable] = OrderedDict()
_LOCK = Lock()


def _commit_file(log: Path, version: int) -> Path:
    return log / f"{version:020}.json"


def _find_folder_identity(log: Path) -> tuple[int, int] | None:
    try:
        status = os.stat(log)  # noqa: PTH116  # of half the cost
    except OSError:
        return None
    return status.st_dev, status.st_ino


def _read_log_state(log: Path, version: int) -> LogState | None:
    """Return the identity of the log folder and of its commit of a version; None if that does not exist."""
    folder = _find_folder_identity(log)
    try:
        status = _commit_file(log, version).stat()
    except OSError:
        return None
    return None if folder is None else (folder, status.st_ino, status.st_mtime_ns, status.st_size)
