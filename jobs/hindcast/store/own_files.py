"""What must be in a table's folder by itself: files, and no link or path that leads out of it.

Whoever may write to one table must not have the files of another read, or removed, by a process that may.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from hindcast.common.errors import TableError

_FIX = "remove it, or put back the table from a backup"
_MAX_HINT = 1 << 20
_MAX_PACKED, _MAX_RATIO = 64 << 20, 200
"""A column of a checkpoint with more bytes is at most so many times as large as what is stored of it."""
_MANY_ROWS, _BYTES_PER_ROW = 100_000, 20
"""A checkpoint with more rows stores at least so many bytes of each."""


def refuse_odd_log(folder: Path) -> None:
    """Raise TableError if a table's log has what is no file, or what takes many times the memory of its size."""
    checkpoints = []
    try:
        with os.scandir(folder / "_delta_log") as entries:
            for entry in entries:
                if entry.is_symlink() or not (entry.is_file() or entry.is_dir()):
                    raise TableError("is no file, but a link or a pipe", where=entry.path, fix=_FIX)
                if entry.name == "_last_checkpoint" and entry.stat().st_size > _MAX_HINT:
                    raise TableError("is too large for what it is", where=entry.path, fix=f"rm {entry.path}")
                if ".checkpoint." in entry.name and entry.name.endswith(".parquet"):
                    checkpoints.append(entry.path)
    except OSError:
        return  # whoever opens it says so
    if checkpoints:
        _refuse_packed_checkpoint(Path(max(checkpoints)))


def _refuse_packed_checkpoint(path: Path) -> None:
    try:
        metadata, size = pq.read_metadata(path), path.stat().st_size
    except (OSError, pa.ArrowInvalid):
        return  # whoever reads it says so
    columns = (
        metadata.row_group(g).column(n) for g in range(metadata.num_row_groups) for n in range(metadata.num_columns)
    )
    packed = any(it.total_uncompressed_size > max(_MAX_PACKED, _MAX_RATIO * it.total_compressed_size) for it in columns)
    if packed or (metadata.num_rows > _MANY_ROWS and size < _BYTES_PER_ROW * metadata.num_rows):
        raise TableError("takes many times the memory of its size", where=str(path), fix=_FIX)


def refuse_foreign_files(folder: Path, paths: Iterable[str]) -> None:
    """Raise TableError if one of the paths of a table's data files is none of a file in its folder.

    One that is missing, absolute or of a store is left to whoever reads it.
    """
    names: dict[str, set[str]] = {}
    for path in paths:
        parent, _, name = path.rpartition("/")
        names.setdefault(parent, set()).add(name)
    for parent, own in names.items():
        parts = parent.split("/")
        if ".." in (*parts, *own):
            raise TableError("its log names a file out of its folder", where=f"{folder}, {parent}", fix=_FIX)
        if parent.startswith("/") or ":" in parts[0]:
            continue
        for end in range(1, len(parts) + 1):
            if parent and (place := folder.joinpath(*parts[:end])).is_symlink():
                raise TableError("is a link", where=str(place), fix=_FIX)
        try:
            with os.scandir(folder / parent) as entries:
                for entry in entries:
                    if entry.name in own and (entry.is_symlink() or not entry.is_file()):
                        raise TableError("is no file, but a link or a pipe", where=entry.path, fix=_FIX)
        except OSError:
            continue  # whoever reads it says so


def refuse_links(folder: Path) -> None:
    """Raise TableError if there is a link in a table's folder: what removes old files would follow it."""
    for link in find_links(folder):
        raise TableError(f"is a link to {link.resolve()}", where=str(link), fix="remove it")


def find_links(folder: Path) -> Iterator[Path]:
    """Yield the symbolic links in a folder, which are not followed."""
    for place, folders, files in os.walk(folder):
        yield from (link for name in (*folders, *files) if (link := Path(place, name)).is_symlink())
