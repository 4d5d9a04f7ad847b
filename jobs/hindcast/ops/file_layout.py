"""The files of a table: those of its latest version, how much they overlap, and those that nothing needs."""

from __future__ import annotations

import os
import stat
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa
from deltalake import DeltaTable
from pyarrow.fs import FileSelector, FileType

from hindcast.store import delta_log

SMALL_FILE_BYTES, LARGE_FILE_BYTES = 16 << 20, 64 << 20
"""Files below the first size are joined into files of at most the second. A merge rewrites whole files where the table
has no deletion vectors, so larger ones would cost runs more than small ones cost readers.
"""


MIN_FILES = 8
"""The number of files of a partition from which it pays to join or sort them."""


class LiveFile(NamedTuple):
    """A file that readers see: its bytes, and the first and last period start in it, if Delta has statistics of it."""

    size: int
    first: datetime | None
    last: datetime | None


def list_live_files(delta_table: DeltaTable, by: str | None) -> dict[str | None, list[LiveFile]]:
    """Return the files that readers see, by belief (None: the table is not partitioned); `by`: the period's start."""
    partitions: dict[str | None, list[LiveFile]] = {}
    for file in pa.table(delta_table.get_add_actions(flatten=True)).to_pylist():
        live = LiveFile(file["size_bytes"], file.get(f"min.{by}"), file.get(f"max.{by}"))
        partitions.setdefault(file.get("partition._belief"), []).append(live)
    return partitions


def overlap_depth(files: Iterable[LiveFile]) -> float:
    """Return how many others, on average, a file overlaps, by Delta's statistics; small files do not count.

    [0, 4] [5, 9]: 0    [0, 9] [0, 9]: 1
    """
    spans = [(file.first, file.last) for file in files if file.size >= SMALL_FILE_BYTES]
    known = sorted((least, most) for least, most in spans if least is not None and most is not None)
    if len(known) < MIN_FILES:
        return 0
    # For each file: those that begin before it ends, less those that end before it begins, less itself.
    ends = sorted(most for _, most in known)
    starts = [least for least, _ in known]
    overlaps = sum(bisect_right(starts, most) - bisect_left(ends, least) - 1 for least, most in known)
    return overlaps / len(known)


def count_live_files(delta_table: DeltaTable) -> tuple[int, int]:
    """Return the number and bytes of the files that readers see."""
    sizes = pa.table(delta_table.get_add_actions(flatten=True)).column("size_bytes").to_pylist()
    return len(sizes), sum(sizes)


def list_stored_files(delta_table: DeltaTable) -> Iterator[tuple[str, int, datetime | None]]:
    """Yield the data files in a table's folder: path, size, time of writing."""
    if (folder := delta_log.find_local_folder(delta_table)) is not None:
        yield from _list_local_files(folder)
        return
    for info in delta_log.open_filesystem(delta_table).get_file_info(FileSelector("", recursive=True)):
        if info.type == FileType.File and not any(part.startswith("_delta_log") for part in info.path.split("/")):
            yield info.path, info.size, info.mtime


def _list_local_files(folder: Path) -> Iterator[tuple[str, int, datetime | None]]:
    """Yield the same of a folder on a disk. No link is followed: two of them can make a way without end."""
    for place, folders, names in os.walk(folder):
        folders[:] = [name for name in folders if not name.startswith("_delta_log")]
        for path in (Path(place, name) for name in names):
            try:
                status = path.lstat()
            except FileNotFoundError:
                continue  # removed meanwhile
            if stat.S_ISREG(status.st_mode):
                yield str(path.relative_to(folder)), status.st_size, datetime.fromtimestamp(status.st_mtime, UTC)


def count_stored_files(delta_table: DeltaTable) -> tuple[int, int]:
    """Return the number and bytes of the data files in the table's folder."""
    sizes = [size for _, size, _ in list_stored_files(delta_table)]
    return len(sizes), sum(sizes)


def count_unneeded_files(delta_table: DeltaTable, retention: timedelta) -> int:
    """Return how many files older than the retention the latest version does not have; VACUUM decides."""
    live = set(delta_log.list_paths(delta_table))
    since = datetime.now(UTC) - retention
    stored = list_stored_files(delta_table)
    return sum(path not in live and at is not None and at < since for path, _, at in stored)
