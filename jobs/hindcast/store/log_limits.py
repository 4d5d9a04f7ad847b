"""How much memory a table's log may take: whoever may write to it must not fill that of others who open the table.

Readers of Delta's log take a whole checksum, and all values of a checkpoint, into memory. A file can claim to be long
and have no content; a checkpoint can have the same long text, stored once, in each of its rows.
"""

from __future__ import annotations

import hashlib
import os
import re
import time
from collections.abc import Callable, Iterable
from io import BytesIO
from itertools import product
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, TypeVar

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from hindcast.common.errors import TableError, show_briefly
from hindcast.store import footer_reader, log_forms, parquet_footers, parquet_pages
from hindcast.store.own_paths import is_plain_name

FIX = "remove it, or put back the table from a backup"

_MAX_SIZES = {"_last_checkpoint": 1 << 20, ".crc": log_forms.MAX_LINE, ".json": 256 << 20}
"""The most bytes of a file in the log, by the end of its name. A commit of 256 MB names half a million files."""

_MAX_PACKED, _MAX_RATIO = 64 << 20, 200
"""The columns of a checkpoint with more bytes are at most so many times as large as what is stored of them."""
_MAX_TEXTS = 256 << 20
"""The same where texts that occur many times are stored once: ids and partitions are short."""
_MANY_ROWS, _BYTES_PER_ROW, _MANY_VALUES = 100_000, 20, 1_000_000
"""A checkpoint with more rows stores at least so many bytes of each; one with more values in a column one of each."""
_MAX_FOOTER = 16 << 20

_MAX_TOTAL = 1 << 30
"""The most bytes of commits and checksums since the last checkpoint: ten thousand commits of 100 files each."""

_VERSION, _ID = "0[0-8][0-9]{18}", "[0-9A-Fa-f-]{36}"
"""A version in the name of a file, which readers keep in 64 bits with a sign; and a UUID."""
_COMMIT = re.compile(rf"({_VERSION})\.json")
_CHECKPOINT = re.compile(rf"({_VERSION})\.checkpoint\.parquet")
_OTHER_FORM = re.compile(
    rf"({_VERSION})\.(?:crc|{_VERSION}\.compacted\.json"
    rf"|checkpoint\.(?:[0-9]{{10}}\.[0-9]{{10}}\.parquet|{_ID}\.(?:parquet|json)))"
)
_READ_ENDS = ("json", "parquet", "crc")
"""The ends of all names that a reader looks at. What writers leave behind ends otherwise, or begins with no digit."""


class _Sizes(NamedTuple):
    """What a checkpoint has: its rows, the most values of a column, and bytes: on disk, stored, and in memory."""

    rows: int
    values: int
    size: int
    packed: int
    unpacked: int
    texts: int


def refuse_odd_content(log: Path) -> None:
    """Raise TableError if a file of a table's log that is read takes too much memory, or has what is not the table's.

    What a file has is looked at once (log_forms.py).
    """
    names = os.listdir(log)  # noqa: PTH208  # of a tenth of the cost
    numbers, commits, checkpoints = dict[str, int](), [-1], [0]
    for name in names:
        if match := _COMMIT.fullmatch(name):
            commits.append(int(match[1]))
        elif match := _CHECKPOINT.fullmatch(name):
            checkpoints.append(int(match[1]))
        elif not (match := _OTHER_FORM.fullmatch(name)):
            _refuse_odd_name(log, name)
            continue
        numbers[name] = int(match[1])
    last = max(commits)
    start = max(number for number in checkpoints if number <= max(last, 0))
    read = [log / name for name in names if numbers.get(name, start) >= start]
    if (size := _measure_files(read)) > _MAX_TOTAL:
        found = f"has {size:,} bytes of commits and checksums since its last checkpoint"
        raise TableError(found, where=str(log), fix=f"let Spark write a checkpoint, or {log_forms.BACKUP_FIX}")
    _refuse_packed_checkpoints([*(it for it in read if it.name.endswith(".parquet")), *_list_sidecars(log)])
    for path in read:
        if path.name == "_last_checkpoint" or (path.name in numbers and path.name.endswith(".crc")):
            _look_once(path, log_forms.refuse_odd_object)
        elif path.name.endswith(".json"):
            _look_once(path, log_forms.refuse_odd_lines)


def _refuse_odd_name(log: Path, name: str) -> None:
    """Raise TableError for a name that is none of Delta's, but that a reader may take for one."""
    if "0" <= name[0] <= "9" and name.endswith(_READ_ENDS):
        found = "has a name that Delta's log does not have, but that some readers take for a part of it"
        raise TableError(found, where=show_briefly(str(log / name)), fix=FIX)


def refuse_large_history(log: Path, limit: int | None) -> None:
    """Raise TableError if the last commits of a table, whose notes are read, take too much memory."""
    commits = sorted(filter(_COMMIT.fullmatch, os.listdir(log)), reverse=True)[:limit]  # noqa: PTH208
    if (size := _measure_files([log / name for name in commits])) > _MAX_HISTORY:
        found = f"has {size:,} bytes of commits, whose notes are not read"
        raise TableError(found, where=str(log), fix=log_forms.BACKUP_FIX)


_MAX_HISTORY = 2 << 30
"""The most bytes of the commits that are read for their notes: each of a thousand has some kilobytes."""


def _measure_files(paths: Iterable[Path]) -> int:
    """Return the bytes of files other than checkpoints; raise TableError if one is too large for what it is."""
    total = 0
    for path in paths:
        for end, most in _MAX_SIZES.items():
            if path.name.endswith(end):
                total += (size := _measure_file(path))
                if size > most:
                    fix = f"rm {path}; if it is a commit, put back the table from a backup instead"
                    raise TableError("is too large for what it is", where=str(path), fix=fix)
    return total


def _measure_file(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:  # removed meanwhile
        return 0


def _list_sidecars(log: Path) -> list[Path]:
    """Return the parts of checkpoints that are in a folder of their own."""
    return [path for path in (log / "_sidecars").glob("*") if is_plain_name(path.name) and not path.is_dir()]


def _refuse_packed_checkpoints(paths: Iterable[Path]) -> None:
    """Raise TableError if a checkpoint, or all together, would take many times the memory of their sizes."""
    every = {path: it for path in paths if (it := _measure_checkpoint(path)) is not None}
    for path, sizes in every.items():
        if _is_packed(sizes):
            raise TableError("takes many times the memory of its size", where=str(path), fix=FIX)
    if every and _is_packed(_Sizes(*map(sum, zip(*every.values(), strict=True)))):
        found = "has checkpoints that take many times the memory of their sizes"
        raise TableError(found, where=str(next(iter(every)).parent), fix=FIX)


def _is_packed(it: _Sizes) -> bool:
    return (
        it.unpacked > max(_MAX_PACKED, _MAX_RATIO * it.packed)
        or it.texts > max(_MAX_TEXTS, _MAX_RATIO * it.packed)
        or (it.rows > _MANY_ROWS and it.size < _BYTES_PER_ROW * it.rows)
        or it.values > max(_MANY_VALUES, it.size)
    )


def _measure_checkpoint(path: Path) -> _Sizes | None:
    """Return the sizes of a checkpoint; None if it was removed meanwhile."""
    return _look_once(path, _measure_parquet)


_MAX_HASHED = 4 << 20
"""The most bytes of a file that is known by its content: looking at it takes longer than reading it."""


def _look_once(path: Path, look: Callable[[Path, BinaryIO], _Found]) -> _Found | None:
    """Return what a function returns for a file, which is called once for each state of it; None if it is gone.

    The time of the last change, which nobody can set, tells nothing of a file that was changed just now
    (parquet_footers.SETTLED): its content does, if it is small.
    """
    try:
        with path.open("rb") as file:
            status = os.fstat(file.fileno())
            if time.time_ns() - status.st_ctime_ns > parquet_footers.SETTLED:
                state = status.st_dev, status.st_ino, status.st_size, status.st_ctime_ns
                return _recall(path, state, look, file)
            if len(content := file.read(_MAX_HASHED + 1)) <= _MAX_HASHED:
                return _recall(path, (hashlib.blake2b(content).digest(),), look, BytesIO(content))
            file.seek(0)
            return look(path, file)
    except FileNotFoundError:
        return None


def _recall(path: Path, state: _State, look: Callable[[Path, BinaryIO], _Found], file: BinaryIO) -> _Found:
    """Return what a function has returned for a file in a state; call it the first time."""
    found: Any = _FOUND.get(key := (str(path), *state), _UNSEEN)
    if found is _UNSEEN:
        found = look(path, file)
        if len(_FOUND) >= _MAX_FOUND:
            _FOUND.clear()
        _FOUND[key] = found
    known: _Found = found
    return known


_State = tuple[int | bytes, ...]
_Found = TypeVar("_Found")
_FOUND: dict[tuple[str | int | bytes, ...], Any] = {}
_UNSEEN = object()
_MAX_FOUND = 100_000


def _measure_parquet(path: Path, file: BinaryIO) -> _Sizes:
    """Return the sizes of a checkpoint; raise TableError if its columns or pages are none of Delta's writers."""
    try:
        source = pa.PythonFile(file, "r")
        metadata = parquet_footers.decode_metadata(source, _MAX_FOOTER)
        sizes = _measure_columns(source, metadata)
        if not _is_packed(sizes):
            log_forms.refuse_odd_columns(path, metadata, source)
    except footer_reader.LargeFooterError:
        raise TableError("takes many times the memory of its size", where=str(path), fix=FIX) from None
    except (ValueError, OSError, pa.ArrowException) as error:
        if isinstance(error, FileNotFoundError):
            raise
        found = f"is no checkpoint as Delta's writers write it: {show_briefly(str(error))}"
        raise TableError(found, where=str(path), fix=FIX) from None
    return sizes


def _measure_columns(file: pa.NativeFile, metadata: pq.FileMetaData) -> _Sizes:
    parquet_pages.refuse_overlap(metadata, file.size())
    groups = [metadata.row_group(n) for n in range(metadata.num_row_groups)]
    columns = [group.column(n) for group in groups for n in range(group.num_columns)]
    values, texts = dict[str, int](), dict[str, int]()
    packed = unpacked = pages = 0
    for it in columns:
        found = parquet_pages.measure_column(file, it)
        pages += found.pages
        parquet_pages.refuse_many_pages(pages, file.size())
        name, packed, unpacked = it.path_in_schema, packed + it.total_compressed_size, unpacked + found.unpacked
        values[name] = values.get(name, 0) + max(found.values, it.num_values)
        if it.physical_type == "BYTE_ARRAY":
            texts[name] = texts.get(name, 0) + found.most
    sizes = _Sizes(metadata.num_rows, max(values.values(), default=0), file.size(), packed, unpacked, 0)
    if _is_packed(sizes):
        return sizes
    for it in columns:
        parquet_pages.refuse_false_sizes(file, it)
    large = [name for name, most in texts.items() if most > _MAX_TEXTS]
    if not large:
        return sizes
    return sizes._replace(texts=_measure_texts(file, large, max(_MAX_TEXTS, _MAX_RATIO * packed)))


def _measure_texts(file: pa.NativeFile, columns: list[str], most: int) -> int:
    """Return the bytes of the texts in columns of a checkpoint, which are not expanded; or some number above `most`."""
    total = 0
    try:
        with pq.ParquetFile(file, read_dictionary=columns) as parquet_file:
            # Arrow joins no nested dictionaries.
            for group, column in product(range(parquet_file.num_row_groups), columns):
                for batch in parquet_file.iter_batches(_BATCH_ROWS, row_groups=[group], columns=[column]):
                    total += sum(map(_measure_array, batch.columns))
                    if total > most:
                        return total
    except pa.ArrowException:  # no writer of checkpoints makes what Arrow does not read
        return most + 1
    return total


_BATCH_ROWS = 4096


def _measure_array(array: pa.Array) -> int:
    if pa.types.is_dictionary(array.type):
        return pc.sum(pc.binary_length(array.dictionary).cast(pa.int64()).take(array.indices)).as_py() or 0
    if pa.types.is_struct(array.type):
        return sum(map(_measure_array, array.flatten()))
    if pa.types.is_map(array.type):
        return _measure_array(array.keys) + _measure_array(array.items)
    return _measure_array(array.values) if pa.types.is_list(array.type) else array.nbytes
