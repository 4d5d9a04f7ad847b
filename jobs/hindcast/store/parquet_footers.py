"""How much memory the footer of a Parquet file may take: whoever may write a file must not fill that of its readers.

A footer can claim a list of millions in a few bytes, for which DuckDB takes memory before it reads on. And it can have
columns of three bytes, each of which takes hundreds in memory. What writers make of a column has dozens.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from threading import Lock

import pyarrow as pa
import pyarrow.parquet as pq

from hindcast.common.errors import show_briefly

MAX_FOOTER = 64 << 20
"""The most bytes of a data file's footer: one of 5,000 columns in 100 row groups has 50 MB."""

_MAX_ITEMS, _FEW_ITEMS = 100_000, 1_000
"""The most items of a list: columns, or row groups. A small footer may claim the few, whatever its size."""
_BYTES_PER_ITEM, _BYTES_PER_COLUMN = 4, 32
"""A footer has at least so many bytes for each item of its lists, and for each column of each row group."""
_SMALL, _MODERATE = 64 << 10, 1 << 20
"""A footer with more bytes is decoded alone; one with more than `_MODERATE` is looked at before, which takes longer."""


class LargeFooterError(ValueError):
    """A footer takes many times the memory of its size."""


def read_metadata(path: Path, most: int = MAX_FOOTER) -> pq.FileMetaData:
    """Return what the footer of a file says, which has at most so many bytes.

    Raise LargeFooterError if it takes too much memory; ArrowInvalid or OSError if it is not a footer.
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
    if length <= _SMALL:
        return _decode(file, length)
    with _ONE_AT_A_TIME:
        if length > _MODERATE:
            _FooterReader(file.read_at(length, size - 8 - length)).refuse_small_items()
        return _decode(file, length)


_ONE_AT_A_TIME = Lock()


def _decode(file: pa.NativeFile, length: int) -> pq.FileMetaData:
    """Return a footer of so many bytes, of which no list can claim many more items than it has."""
    items = min(max(length // _BYTES_PER_ITEM, _FEW_ITEMS), _MAX_ITEMS)
    limits = {"thrift_string_size_limit": max(length, 1), "thrift_container_size_limit": items}
    with pq.ParquetFile(file, **limits) as parquet_file:
        metadata = parquet_file.metadata
    groups = [metadata.row_group(n) for n in range(metadata.num_row_groups)]
    if any(group.num_columns != metadata.num_columns for group in groups):
        raise pa.ArrowInvalid("has other columns in a row group than in its schema")
    _refuse_many(len(groups) * max(metadata.num_columns, 1), _BYTES_PER_COLUMN, length)
    sizes = [group.column(n).total_compressed_size for group in groups for n in range(metadata.num_columns)]
    if min(sizes, default=0) < 0 or sum(sizes) > file.size():
        raise pa.ArrowInvalid(f"has columns of {sum(sizes):,} bytes in a file of {file.size():,}")
    return metadata


def _refuse_many(count: int, least: int, length: int) -> None:
    if count > _FEW_ITEMS and count * least > length:
        found = f"takes many times the memory of its size: it has {count:,} items in a footer of {length:,} bytes"
        raise LargeFooterError(found)


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
            raise pa.ArrowInvalid(f"'{place}' {show_briefly(str(error).strip())}") from None
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


class _FooterReader:
    """Counts the items of a footer's lists, a struct in Thrift's compact protocol, without keeping any."""

    def __init__(self, data: bytes) -> None:
        self._data, self._items, self._columns = data, 0, 0

    def refuse_small_items(self) -> None:
        """Raise LargeFooterError if it has too many structs in lists, or columns, for its size; ArrowInvalid if it does
        not end.
        """
        try:
            self._pass_struct(0, 0, "")
        except IndexError:
            raise pa.ArrowInvalid("has a footer that does not end") from None

    def _pass_struct(self, place: int, depth: int, path: str) -> int:
        """Return the end of a struct. `path`: the numbers of the fields that led to it, down to the columns."""
        if depth > _MAX_DEPTH:
            raise pa.ArrowInvalid("has a footer that is nested too deeply")
        data, number = self._data, 0
        while head := data[place]:
            place += 1
            if step := head >> 4:
                number += step
            else:
                zigzag, place = self._read_varint(place)
                number = (zigzag >> 1) ^ -(zigzag & 1)
            kind = head & 15
            if 4 <= kind <= 6:
                while data[place] > 127:
                    place += 1
                place += 1
            elif kind > 2:
                within = f"{path}.{number}" if kind == _LIST and depth < 2 else ""
                place = self._pass_value(kind, place, depth + 1, within)
        return place + 1

    def _pass_value(self, kind: int, place: int, depth: int, path: str) -> int:
        match kind:
            case 1 | 2 | 3:
                return place + 1
            case 4 | 5 | 6:
                return self._read_varint(place)[1]
            case 7:
                return place + 8
            case 8:
                length, place = self._read_varint(place)
                return place + length
            case 9 | 10:
                return self._pass_list(place, depth, path)
            case 12:
                return self._pass_struct(place, depth, "")
        raise pa.ArrowInvalid(f"has a footer with a field of kind {kind}")

    def _pass_list(self, place: int, depth: int, path: str) -> int:
        kind, count = self._data[place] & 15, self._data[place] >> 4
        place += 1
        if count == 15:
            count, place = self._read_varint(place)
        if count > len(self._data) - place:
            raise pa.ArrowInvalid("has a footer that does not end")
        if kind == _STRUCT:
            self._items += count
            _refuse_many(self._items, _BYTES_PER_ITEM, len(self._data))
        if path == _COLUMNS:
            self._columns += count
            _refuse_many(self._columns, _BYTES_PER_COLUMN, len(self._data))
        for _ in range(count):
            place = (
                self._pass_struct(place, depth, path) if kind == _STRUCT else self._pass_value(kind, place, depth, "")
            )
        return place

    def _read_varint(self, place: int) -> tuple[int, int]:
        """Return a number, and its end."""
        value = shift = 0
        while (byte := self._data[place]) > 127:
            value |= (byte & 127) << shift
            shift += 7
            place += 1
            if shift > _MAX_SHIFT:
                raise pa.ArrowInvalid("has a footer with a number of more than 64 bits")
        return value | byte << shift, place + 1


_LIST, _STRUCT, _COLUMNS = 9, 12, ".4.1"
"""Types of Thrift, and the fields that lead to the columns of a row group."""
_MAX_DEPTH, _MAX_SHIFT = 32, 63
