"""Tables that are kept open for reading, as long as nobody commits to them.

Opening a table reads its log, which takes longer than finding a key, and a step looks at the same tables again and
again. Each time the names and the state of files in a local log tell whether there is a newer commit. A table in an
object store is opened each time.
"""

from __future__ import annotations

import os
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar
from pathlib import Path
from threading import Lock
from typing import NamedTuple

import pyarrow as pa
from deltalake import DeltaTable

from hindcast.common.errors import TableError

MAX_MEMORY = 1 << 30
"""Roughly the most bytes of memory of all tables kept open; the last one is kept if it alone takes more. 2,000 journals
of 40 entries take 110 MB, of 400 entries 310 MB.
"""

MAX_REFUSED = 1_000
"""The most tables of which it is kept why they were not opened."""


def open_cached(path: str, open_latest: Callable[[], DeltaTable | None]) -> DeltaTable | None:
    """Return what `open_latest` returns for the table at a path, for reading only: others are given the same object."""
    if "://" in path:
        return open_latest()
    log = Path(path, "_delta_log")
    with _LOCK:
        cached = _CACHE.get(path)
    if (
        cached is not None
        and cached.state == read_log_state(path, cached.version)
        and not _commit_file(log, cached.version + 1).exists()
    ):
        return cached.delta_table
    before = _find_folder_identity(log)
    delta_table = _open_or_refuse(path, log, open_latest)
    size = _measure_table(delta_table) if delta_table else 0
    with _LOCK:
        _CACHE.pop(path, None)
        state = read_log_state(path, delta_table.version()) if delta_table else None
        if delta_table and state and state[0] == before:
            for other in list_excess({other: it.size for other, it in _CACHE.items()}, MAX_MEMORY - size):
                del _CACHE[other]
            _CACHE[path] = _CachedTable(delta_table, delta_table.version(), state, size)
    return delta_table


def _measure_table(delta_table: DeltaTable) -> int:
    """Return roughly how many bytes of memory an open table takes."""
    files = pa.table(delta_table.get_add_actions())
    return _TABLE_BYTES + _LIST_COPIES * int(files.nbytes)


_TABLE_BYTES, _LIST_COPIES = 45_000, 3
"""What a table takes besides the list of its files, and how many times the bytes of that list."""


def list_excess(sizes: Mapping[str, int], most: int) -> list[str]:
    """Return which of some things go, the largest first, until the others take no more than `most` together."""
    total, excess = sum(sizes.values()), list[str]()
    for size, name in sorted(((size, name) for name, size in sizes.items()), reverse=True) if total > most else ():
        if total > most:
            excess.append(name)
            total -= size
    return excess


Watch = Callable[[str], AbstractContextManager[None]]
"""Returns what a table, or a folder of one, is opened within."""


@contextmanager
def watch_opening(watch: Watch) -> Iterator[None]:
    """Open each table that the block opens, and that is not kept open, within what `watch` returns for its path; list
    its folders there, too, for theirs.
    """
    token = _WATCH.set(watch)
    try:
        yield
    finally:
        _WATCH.reset(token)


@contextmanager
def count_opening(place: str) -> Iterator[None]:
    """Do the block within what `watch_opening` says, as a part of opening a table; parts of the block are not counted
    again.
    """
    with _WATCH.get()(place), watch_opening(_watch_nothing):
        yield


def _watch_nothing(_: str) -> AbstractContextManager[None]:
    return nullcontext()


_WATCH: ContextVar[Watch] = ContextVar("watch of opening", default=_watch_nothing)


def _open_or_refuse(path: str, log: Path, open_latest: Callable[[], DeltaTable | None]) -> DeltaTable | None:
    """Return what `open_latest` returns. What took it long to refuse is refused again for a while, without a look."""
    state = _read_folder_state(log)
    with _LOCK:
        refused = _REFUSED.get(path)
    if refused is not None and refused.state == state and time.monotonic() < refused.until:
        raise TableError(refused.error.found, where=refused.error.where, fix=refused.error.fix)
    start = time.monotonic()
    try:
        with count_opening(path):
            return open_latest()
    except TableError as error:
        if time.monotonic() - start > SLOW_SECONDS and state is not None:
            with _LOCK:
                _REFUSED[path] = _RefusedTable(error, state, time.monotonic() + REFUSED_SECONDS)
                while len(_REFUSED) > MAX_REFUSED:
                    _REFUSED.popitem(last=False)
        raise


SLOW_SECONDS, REFUSED_SECONDS = 0.2, 30.0
"""How long a refusal takes that is kept, and how long it is: a file that is mended in its place leaves no trace."""

FolderState = tuple[int, int, int]


class _RefusedTable(NamedTuple):
    """Why a table was not opened, the state of its log's folder at that time, and until when that counts."""

    error: TableError
    state: FolderState
    until: float


_REFUSED: OrderedDict[str, _RefusedTable] = OrderedDict()


def _read_folder_state(log: Path) -> FolderState | None:
    """Return the identity of a folder and when something in it was created or removed; None without a folder."""
    try:
        status = log.stat()
    except OSError:
        return None
    return status.st_dev, status.st_ino, status.st_ctime_ns


LogState = tuple[tuple[int, int], int, int, int, int]


class _CachedTable(NamedTuple):
    """A table, its version and the state of its log at that time; a table recreated in its place has another state.

    `size`: roughly the bytes of memory that it takes.
    """

    delta_table: DeltaTable
    version: int
    state: LogState
    size: int


_CACHE: dict[str, _CachedTable] = {}
_LOCK = Lock()


def _commit_file(log: Path, version: int) -> Path:
    return log / f"{version:020}.json"


def _find_folder_identity(log: Path) -> tuple[int, int] | None:
    try:
        status = os.stat(log)  # noqa: PTH116  # of half the cost
    except OSError:
        return None
    return status.st_dev, status.st_ino


VersionIdentity = tuple[str, str, int, LogState | frozenset[str] | None]


def identify_version(path: str, delta_table: DeltaTable) -> VersionIdentity:
    """Return what tells the version of an open table from others, also from one with its number in a restored copy.

    It has the path, as the log of another table may have the same id. In an object store the names of files tell.
    """
    version = delta_table.version()
    state = frozenset(delta_table.file_uris()) if "://" in path else read_log_state(path, version)
    return path, str(delta_table.metadata().id), version, state


def read_log_state(path: str, version: int) -> LogState | None:
    """Return the identity of a table's log folder, of its commit of a version and of the hint to its last checkpoint;
    None if there is no such commit, or not in a local folder.
    """
    log = Path(path, "_delta_log")
    folder = _find_folder_identity(log)
    try:
        status = _commit_file(log, version).stat()
    except OSError:
        return None
    try:
        hint = (log / "_last_checkpoint").stat().st_mtime_ns
    except OSError:
        hint = 0
    return None if folder is None else (folder, status.st_ino, status.st_mtime_ns, status.st_size, hint)
