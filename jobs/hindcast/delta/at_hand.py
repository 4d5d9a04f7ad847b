"""Tables that questions ask of, kept open from one to the next for as long as nobody commits to them.

To open a table reads its log, which takes longer than to find a key in it. Whether there is a newer commit is asked
each time: by the names and the state of files in a local log. A table in an object store is opened each time.
"""

from __future__ import annotations

import os
from collections import OrderedDict
from pathlib import Path
from threading import Lock
from typing import NamedTuple

from deltalake import DeltaTable

from hindcast.delta import tables
from hindcast.delta.tables import Table

MOST = 64
"""So many tables are kept."""


def opened(table: Table) -> DeltaTable | None:
    """`tables.opened`, to be read only: others may be given the same."""
    log = None if "://" in table.path else Path(table.path, "_delta_log")
    if log is None:
        return tables.opened(table)
    with _LOCK:
        kept = _KEPT.get(table.path)
    if kept is not None and kept.state == _state(log, kept.version) and not _commit(log, kept.version + 1).exists():
        return kept.found
    before = _identity(log)
    found = tables.opened(table)
    with _LOCK:
        _KEPT.pop(table.path, None)
        if found is not None and (state := _state(log, found.version())) is not None and state[0] == before:
            _KEPT[table.path] = _Kept(found, found.version(), state)
            while len(_KEPT) > MOST:
                _KEPT.popitem(last=False)
    return found


State = tuple[tuple[int, int], int, int, int]


class _Kept(NamedTuple):
    """A table, its version and the state of its log then: a table made anew in its place has another."""

    found: DeltaTable
    version: int
    state: State


_KEPT: OrderedDict[str, _Kept] = OrderedDict()
_LOCK = Lock()


def _commit(log: Path, version: int) -> Path:
    return log / f"{version:020}.json"


def _identity(log: Path) -> tuple[int, int] | None:
    try:
        told = os.stat(log)  # noqa: PTH116  # of half the cost
    except OSError:
        return None
    return told.st_dev, told.st_ino


def _state(log: Path, version: int) -> State | None:
    """The folder of the log, and its commit of a version; None if it is not there."""
    folder = _identity(log)
    try:
        told = _commit(log, version).stat()
    except OSError:
        return None
    return None if folder is None else (folder, told.st_ino, told.st_mtime_ns, told.st_size)
