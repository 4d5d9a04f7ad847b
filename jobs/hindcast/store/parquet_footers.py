"""How much memory the footer of a Parquet file may take: whoever may write a file must not fill that of its readers.

A footer can claim a list of millions in a few bytes, for which DuckDB takes memory before it reads on. And it can have
columns of three bytes, each of which takes hundreds in memory. What writers make of a column has dozens.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, nullcontext
from contextvars import ContextVar
from pathlib import Path
from threading import Lock

import pyarrow as pa
import pyarrow.parquet as pq

from hindcast.common.errors import show_briefly
from hindcast.store.footer_reader import (
    BYTES_PER_COLUMN,
    BYTES_PER_ITEM,
    FEW_ITEMS,
    LargeFooterError,
    refuse_many,
    refuse_odd_footer,
)

MAX_FOOTER = 64 << 20
"""The most bytes of a data file's footer: one of 5,000 columns in 100 row groups has 50 MB."""

_MAX_ITEMS = 100_000
"""The most items of a list: columns, or row groups."""
_SMALL = 64 << 10
"""A footer with more bytes is decoded alone."""


def read_metadata(path: Path, most: int = MAX_FOOTER) -> pq.FileMetaData:
    """Return what the footer of a file says, which has at most so many bytes.

    Raise LargeFooterError if it takes too much memory; ArrowInvalid or OSError if it is not a footer, or has a column
    that Arrow does not read (footer_reader.py).
    """
    with pa.OSFile(str(path)) as file:
        return decode_metadata(file, most)


def decode_metadata(file: pa.NativeFile, most: int = MAX_FOOTER) -> pq.FileMetaData:
    """Do as `read_metadata` with an open file, which stays open."""
    size = file.size()
    end = file.read_at(8, max(size - 8, 0))
    length = int.from_bytes(end[:4], "little")
    if end[4:] != b"PAR1" or length > size - 8:
        raise pa.ArrowInvalid("has no footer of a Parquet file")
    if length > most:
        raise LargeFooterError(f"takes many times the memory of its size: it has a footer of {length:,} bytes")
    with nullcontext() if length <= _SMALL else _ONE_AT_A_TIME:
        refuse_odd_footer(file.read_at(length, size - 8 - length))
        return _decode(file, length)


_ONE_AT_A_TIME = Lock()


def decode_table_file(file: pa.NativeFile, path: str) -> pq.FileMetaData:
    """Do as `decode_metadata` with a data file of a table; its errors are ArrowInvalid, and name the file."""
    try:
        return decode_metadata(file)
    except (ValueError, OSError, pa.ArrowException) as error:
        raise _name_file(path, error) from None


def _name_file(path: str, error: Exception) -> pa.ArrowInvalid:
    return pa.ArrowInvalid(f"'{path}' {show_briefly(str(error).strip())}")


def _decode(file: pa.NativeFile, length: int) -> pq.FileMetaData:
    """Return a footer of so many bytes, of which no list can claim many more items than it has."""
    items = min(max(length // BYTES_PER_ITEM, FEW_ITEMS), _MAX_ITEMS)
    limits = {"thrift_string_size_limit": max(length, 1), "thrift_container_size_limit": items}
    with pq.ParquetFile(file, **limits) as parquet_file:
        metadata = parquet_file.metadata
    groups = [metadata.row_group(n) for n in range(metadata.num_row_groups)]
    if any(group.num_columns != metadata.num_columns for group in groups):
        raise pa.ArrowInvalid("has other columns in a row group than in its schema")
    refuse_many(len(groups) * max(metadata.num_columns, 1), BYTES_PER_COLUMN, length)
    sizes = [group.column(n).total_compressed_size for group in groups for n in range(metadata.num_columns)]
    if min(sizes, default=0) < 0 or sum(sizes) > file.size():
        raise pa.ArrowInvalid(f"has columns of {sum(sizes):,} bytes in a file of {file.size():,}")
    return metadata


class SlowLookError(Exception):
    """Looking at the footers of data files takes longer than it may."""


_UNTIL: ContextVar[float] = ContextVar("moment until which footers are looked at", default=math.inf)


@contextmanager
def limit_looks(seconds: float) -> Iterator[None]:
    """Look at no data file in the block (`refuse_broken_footers`) after so many seconds."""
    token = _UNTIL.set(time.monotonic() + seconds)
    try:
        yield
    finally:
        _UNTIL.reset(token)


def refuse_broken_footers(folder: Path, paths: Iterable[str]) -> None:
    """Raise ArrowInvalid, with its path, if one of a table's data files has a footer that takes too much memory, or
    none.

    Each file is looked at once, until it changes. One that is missing, or may not be read, is left to whoever reads it.
    Raise SlowLookError if that takes longer than it may (`limit_looks`); what was looked at counts.
    """
    until = _UNTIL.get()
    for path in paths:
        place = f"{folder}/{path}"
        try:
            status = os.stat(place)  # noqa: PTH116  # of half the cost
            state = (status.st_ino, status.st_size, status.st_ctime_ns)
            if _SOUND.get(place) == state:
                continue
            if time.monotonic() > until:
                raise SlowLookError("looking at the footers of data files takes too long")
            read_metadata(Path(place))
        except (FileNotFoundError, PermissionError):
            continue
        except (ValueError, OSError, pa.ArrowException) as error:
            raise _name_file(place, error) from None
        if time.time_ns() - status.st_ctime_ns > SETTLED:
            if len(_SOUND) >= _MAX_SOUND:
                _SOUND.clear()
            _SOUND[place] = state


_SOUND: dict[str, tuple[int, int, int]] = {}
"""The states of data files whose footers were looked at: nobody can set the time of the last change (ctime)."""
_MAX_SOUND = 300_000
SETTLED = 120_000_000_000
"""The nanoseconds after a change in which another one may have the same time: one through memory that the file is
mapped to gets a time of its own only after the one before was written to the disk, which takes up to a minute.
"""
