"""Rows of Delta tables with widened types, which delta-rs knows the files of and refuses to read.

Of such a table Arrow reads the files itself, as the types that the table has now, and the rows that deletion vectors
mark are told from Delta's log (the protocol's "Deletion Vectors"; the bitmaps are Roaring's portable 64-bit form).
"""

from __future__ import annotations

import json
import re
import struct
from base64 import b85decode
from collections.abc import Container, Iterator, Sequence
from typing import Any
from urllib.parse import unquote
from uuid import UUID

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pyarrow.parquet as pq
from deltalake import DeltaTable
from deltalake.fs import DeltaStorageHandler
from numpy.typing import NDArray
from pyarrow.fs import FileSelector, FileSystem, LocalFileSystem, PyFileSystem, SubTreeFileSystem

Numbers = NDArray[np.uint64]


def files(found: DeltaTable) -> FileSystem:
    """The files of a table by their paths in it."""
    place = found.table_uri.removeprefix("file://")
    if "://" in place:
        return PyFileSystem(DeltaStorageHandler(found.table_uri, found._storage_options))  # noqa: SLF001  # as delta-rs does
    return SubTreeFileSystem(unquote(place), LocalFileSystem())


def paths(found: DeltaTable) -> list[str]:
    """The paths in a table of the files that it has."""
    return [unquote(path) for path in pa.table(found.get_add_actions(flatten=True)).column("path").to_pylist()]


def rows(
    found: DeltaTable,
    some: Sequence[str] | None = None,
    columns: Container[str] | None = None,
    where: pc.Expression | None = None,
    packed: Container[str] = (),
) -> pa.RecordBatchReader:
    """All rows as a stream, to be read once, without the partition columns.

    Only those of `some` files (by their paths in the table), only some `columns`, and only rows that pass `where` (over
    these columns), where these are given. The columns `packed` come as dictionaries.
    """
    schema, partitions = pa.schema(found.schema().to_arrow()), found.metadata().partition_columns
    fields = [f for f in schema if f.name not in partitions and (columns is None or f.name in columns)]
    kinds = {f.name: pa.dictionary(pa.int32(), f.type) if f.name in packed else f.type for f in fields}
    told = pa.schema(list(kinds.items()))
    read_from = paths(found) if some is None else some
    place, gone = files(found), vectors(found, {*read_from}) if _marks_rows(found) else {}
    own = {name for name, kind in kinds.items() if pa.types.is_dictionary(kind)}
    options = ds.ParquetFileFormat(
        read_options=ds.ParquetReadOptions(coerce_int96_timestamp_unit="us", dictionary_columns=own)
    )

    def batches() -> Iterator[pa.RecordBatch]:
        for path in read_from:
            file = ds.dataset([path], schema=told, format=options, filesystem=place)
            if path in gone:
                read = file.to_table()
                kept = np.ones(read.num_rows, dtype=bool)
                kept[gone[path]] = False
                read = read.filter(pa.array(kept))
                read = read if where is None else read.filter(where)
            else:
                read = file.to_table(filter=where)
            yield from read.to_batches()

    return pa.RecordBatchReader.from_batches(told, batches())


def _marks_rows(found: DeltaTable) -> bool:
    """Whether a file of the table can have a deletion vector."""
    return "deletionVectors" in (found.protocol().reader_features or ())


def vectors(found: DeltaTable, paths: Container[str]) -> dict[str, Numbers]:
    """The numbers of the rows that deletion vectors mark in some files of a table, by the paths of these."""
    place = files(found)
    told = {path: vector for path, vector in _latest(place, found.version()) if path in paths}
    return {path: _numbers(_bytes(place, vector)) for path, vector in told.items() if vector}


def _latest(place: FileSystem, version: int) -> Iterator[tuple[str, dict[str, Any] | None]]:
    """The deletion vector, if any, of each file that Delta's log adds up to a version; a later one takes its place."""
    names = {info.base_name for info in place.get_file_info(FileSelector("_delta_log"))}
    start, parts = _checkpoint(names, version)
    for name in parts:
        with place.open_input_file(f"_delta_log/{name}") as file:
            adds = pq.ParquetFile(file).read(columns=["add.path", "add.deletionVector"]).column("add").to_pylist()
        yield from ((unquote(add["path"]), add.get("deletionVector")) for add in adds if add and add["path"])
    for number in range(start + 1, version + 1):
        with place.open_input_stream(f"_delta_log/{number:020}.json") as file:
            lines = file.read().decode().splitlines()
        added = (action["add"] for line in lines if (action := json.loads(line)) and "add" in action)
        yield from ((unquote(add["path"]), add.get("deletionVector")) for add in added)


def _checkpoint(names: set[str], version: int) -> tuple[int, list[str]]:
    """The last complete checkpoint up to a version, and its files; -1 if there is none."""
    found: dict[int, list[str]] = {}
    for name in sorted(names):
        if (told := _CHECKPOINT.fullmatch(name)) and int(told[1]) <= version:
            whole = f"{told[1]}.checkpoint.parquet"
            parts = [whole] if whole in names else [n for n in names if n.startswith(f"{told[1]}.checkpoint.")]
            if whole in names or len(parts) == int(told[2] or 0):
                found[int(told[1])] = parts
    last = max(found, default=-1)
    return last, found.get(last, [])


def _bytes(place: FileSystem, vector: dict[str, Any]) -> bytes:
    """What a deletion vector's descriptor tells or points to."""
    told, length = vector["pathOrInlineDv"], vector["sizeInBytes"]
    match vector["storageType"]:
        case "i":
            return _z85(told)[:length]
        case "u":
            prefix, name = told[:-20], UUID(bytes=_z85(told[-20:]))
            path = f"{prefix}/deletion_vector_{name}.bin" if prefix else f"deletion_vector_{name}.bin"
        case _:
            raise NotImplementedError(f"a deletion vector at an absolute path, {told}: only cloned tables have these")
    with place.open_input_file(path) as file:
        return bytes(file.read_at(length, (vector["offset"] or 0) + 4))  # after its length


def _numbers(told: bytes) -> Numbers:
    """The numbers in a serialized array of Roaring bitmaps, each of which has the upper 32 bits in common."""
    magic, count = struct.unpack_from("<iq", told)
    if magic != _MAGIC:
        raise ValueError(f"a deletion vector begins with {magic}, not {_MAGIC}")
    at, found = 12, [np.empty(0, np.uint64)]
    for _ in range(count):
        (upper,) = struct.unpack_from("<I", told, at)
        numbers, at = _bitmap(told, at + 4)
        found.append(numbers + np.uint64(upper << 32))
    return np.concatenate(found)


def _bitmap(told: bytes, at: int) -> tuple[Numbers, int]:
    """The numbers of one 32-bit bitmap, and where it ends. Its containers hold the lower 16 bits of numbers."""
    (cookie,) = struct.unpack_from("<I", told, at)
    runs, at = b"", at + 4
    if cookie & 0xFFFF == _RUNS:
        count = (cookie >> 16) + 1
        runs, at = told[at : at + (count + 7) // 8], at + (count + 7) // 8
    else:
        (count,), at = struct.unpack_from("<I", told, at), at + 4
    heads = np.frombuffer(told, "<u2", 2 * count, at).reshape(-1, 2)
    at += 4 * count + (4 * count if not runs or count >= _OFFSETS else 0)
    found = [np.empty(0, np.uint64)]
    for number, (key, least) in enumerate(heads.astype(int).tolist()):
        if runs and runs[number // 8] >> number % 8 & 1:
            (length,) = struct.unpack_from("<H", told, at)
            pairs = np.frombuffer(told, "<u2", 2 * length, at + 2).reshape(-1, 2).astype(int).tolist()
            low, at = np.concatenate([np.arange(s, s + more + 1) for s, more in pairs]), at + 2 + 4 * length
        elif least + 1 > _DENSE:
            bits = np.frombuffer(told, np.uint8, 8192, at)
            low, at = np.flatnonzero(np.unpackbits(bits, bitorder="little")), at + 8192
        else:
            low, at = np.frombuffer(told, "<u2", least + 1, at), at + 2 * (least + 1)
        found.append(low.astype(np.uint64) + np.uint64(key << 16))
    return np.concatenate(found), at


def _z85(text: str) -> bytes:
    return b85decode(text.translate(_TO_B85))


_CHECKPOINT = re.compile(r"(\d{20})\.checkpoint(?:\.\d{10}\.(\d{10}))?\.parquet")
_MAGIC, _RUNS, _OFFSETS, _DENSE = 1681511377, 12347, 4, 4096
_DIGITS = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
_Z85 = _DIGITS + ".-:+=^!/*?&<>()[]{}@%$#"
_B85 = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz!#$%&()*+-;<=>?@^_`{|}~"
_TO_B85 = str.maketrans(_Z85, _B85)
