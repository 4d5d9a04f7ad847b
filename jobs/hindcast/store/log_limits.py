"""How much memory a table's log may take: whoever may write to it must not fill that of others who open the table.

Readers of Delta's log take a whole checksum, and all values of a checkpoint, into memory. A file can claim to be long
and have no content; a checkpoint can have the same long text, stored once, in each of its rows.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator
from itertools import product
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from hindcast.common.errors import TableError

FIX = "remove it, or put back the table from a backup"

_MAX_SIZES = {"_last_checkpoint": 1 << 20, ".crc": 64 << 20, ".json": 256 << 20}
"""The most bytes of a file in the log, by the end of its name. A commit of 256 MB names half a million files."""

_MAX_PACKED, _MAX_RATIO = 64 << 20, 200
"""The columns of a checkpoint with more bytes are at most so many times as large as what is stored of them."""
_MAX_TEXTS = 256 << 20
"""The same where texts that occur many times are stored once: ids and partitions are short."""
_MANY_ROWS, _BYTES_PER_ROW, _MANY_VALUES = 100_000, 20, 1_000_000
"""A checkpoint with more rows stores at least so many bytes of each; one with more values in a column one of each."""
_MAX_FOOTER = 16 << 20

_NUMBERED = re.compile(r"(\d+)\..*")
_CHECKPOINT = re.compile(r"\d{20}\.checkpoint\.parquet")


class _Sizes(NamedTuple):
    """What a checkpoint has: its rows, the most values of a column, and bytes: on disk, stored, and in memory."""

    rows: int
    values: int
    size: int
    packed: int
    unpacked: int
    texts: int


def refuse_large_files(log: Path) -> None:
    """Raise TableError if a table's log has a file of those that are read that takes too much memory."""
    names = os.listdir(log)  # noqa: PTH208  # of a tenth of the cost
    numbers = {name: int(match[1][:30]) for name in names if (match := _NUMBERED.fullmatch(name))}
    last = max((number for name, number in numbers.items() if name.endswith(".json")), default=-1)
    start = max((n for name, n in numbers.items() if n <= last and _CHECKPOINT.fullmatch(name)), default=0)
    read = [log / name for name in names if numbers.get(name, start) >= start]
    for path in read:
        for end, most in _MAX_SIZES.items():
            if path.name.endswith(end) and _measure_file(path) > most:
                fix = f"rm {path}; if it is a commit, put back the table from a backup instead"
                raise TableError("is too large for what it is", where=str(path), fix=fix)
    _refuse_packed_checkpoints([*(it for it in read if it.name.endswith(".parquet")), *_list_sidecars(log)])


def _measure_file(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:  # removed meanwhile
        return 0


def _list_sidecars(log: Path) -> Iterator[Path]:
    """Return the parts of checkpoints that are in a folder of their own."""
    return (log / "_sidecars").glob("*.parquet")


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
    """Return the sizes of a checkpoint; None if it cannot be read: whoever reads it says so. Each is measured once."""
    try:
        status = path.stat()
        key = (str(path), status.st_ino, status.st_size, status.st_ctime_ns)
        if key not in _MEASURED:
            measured = _measure_parquet(path, status.st_size)
            if len(_MEASURED) >= _MAX_MEASURED:
                _MEASURED.clear()
            _MEASURED[key] = measured
        return _MEASURED[key]
    except (OSError, pa.ArrowException):
        return None


_MEASURED: dict[tuple[str, int, int, int], _Sizes] = {}
_MAX_MEASURED = 10_000


def _measure_parquet(path: Path, size: int) -> _Sizes:
    with path.open("rb") as file:
        file.seek(max(size - 8, 0))
        if int.from_bytes(file.read(4), "little") > _MAX_FOOTER:
            raise TableError("takes many times the memory of its size", where=str(path), fix=FIX)
    metadata = pq.read_metadata(path)
    groups = [metadata.row_group(n) for n in range(metadata.num_row_groups)]
    columns = [group.column(n) for group in groups for n in range(group.num_columns)]
    values, texts = dict[str, int](), dict[str, int]()
    for it in columns:
        values[it.path_in_schema] = values.get(it.path_in_schema, 0) + it.num_values
        if it.physical_type == "BYTE_ARRAY":  # no value is longer than all that is stored
            most = it.num_values * it.total_uncompressed_size if it.has_dictionary_page else it.total_uncompressed_size
            texts[it.path_in_schema] = texts.get(it.path_in_schema, 0) + most
    sizes = _Sizes(
        metadata.num_rows,
        max(values.values(), default=0),
        size,
        sum(it.total_compressed_size for it in columns),
        sum(it.total_uncompressed_size for it in columns),
        0,
    )
    large = [name for name, most in texts.items() if most > _MAX_TEXTS]
    if _is_packed(sizes) or not large:
        return sizes
    return sizes._replace(texts=_measure_texts(path, large, max(_MAX_TEXTS, _MAX_RATIO * sizes.packed)))


def _measure_texts(path: Path, columns: list[str], most: int) -> int:
    """Return the bytes of the texts in columns of a checkpoint, which are not expanded; or some number above `most`."""
    total = 0
    try:
        with pq.ParquetFile(path, read_dictionary=columns) as file:
            for group, column in product(range(file.num_row_groups), columns):  # Arrow joins no nested dictionaries
                for batch in file.iter_batches(_BATCH_ROWS, row_groups=[group], columns=[column]):
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
