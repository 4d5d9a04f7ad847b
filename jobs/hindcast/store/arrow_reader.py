"""Rows of Delta tables with widened types, which delta-rs knows the files of and refuses to read.

Arrow reads the files of such a table itself, with the table's current types, and finds the rows that deletion vectors
mark in Delta's log (the protocol's "Deletion Vectors"; the bitmaps are Roaring's portable 64-bit form).
"""

from __future__ import annotations

import json
import re
import struct
from base64 import b85decode
from collections.abc import Container, Iterator, Sequence
from typing import TypedDict
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

RowNumbers = NDArray[np.uint64]


def open_filesystem(delta_table: DeltaTable) -> FileSystem:
    """Return a file system with the files of a table by their paths in it."""
    folder = delta_table.table_uri.removeprefix("file://")
    if "://" in folder:
        return PyFileSystem(DeltaStorageHandler(delta_table.table_uri, delta_table._storage_options))  # noqa: SLF001  # as delta-rs does
    return SubTreeFileSystem(unquote(folder), LocalFileSystem())


def list_paths(delta_table: DeltaTable) -> list[str]:
    """Return the paths of a table's files in it."""
    return [unquote(path) for path in pa.table(delta_table.get_add_actions(flatten=True)).column("path").to_pylist()]


def read_rows(
    delta_table: DeltaTable,
    paths: Sequence[str] | None = None,
    columns: Container[str] | None = None,
    where: pc.Expression | None = None,
    packed: Container[str] = (),
) -> pa.RecordBatchReader:
    """Return the rows of a table as a stream, to be read once, without the partition columns.

    Reads all rows, unless limited to `paths` (of files, in the table), `columns` or rows that pass `where` (over these
    columns). The columns `packed` come as dictionaries.
    """
    schema, partitions = pa.schema(delta_table.schema().to_arrow()), delta_table.metadata().partition_columns
    fields = [f for f in schema if f.name not in partitions and (columns is None or f.name in columns)]
    kinds = {f.name: pa.dictionary(pa.int32(), f.type) if f.name in packed else f.type for f in fields}
    read_schema = pa.schema(list(kinds.items()))
    read_from = list_paths(delta_table) if paths is None else paths
    filesystem = open_filesystem(delta_table)
    deleted = read_deletion_vectors(delta_table, {*read_from}) if _can_mark_rows(delta_table) else {}
    own = {name for name, kind in kinds.items() if pa.types.is_dictionary(kind)}
    options = ds.ParquetFileFormat(
        read_options=ds.ParquetReadOptions(coerce_int96_timestamp_unit="us", dictionary_columns=own)
    )

    def batches() -> Iterator[pa.RecordBatch]:
        for path in read_from:
            file = ds.dataset([path], schema=read_schema, format=options, filesystem=filesystem)
            if path in deleted:
                read = file.to_table()
                remaining = np.ones(read.num_rows, dtype=bool)
                remaining[deleted[path]] = False
                read = read.filter(pa.array(remaining))
                read = read if where is None else read.filter(where)
            else:
                read = file.to_table(filter=where)
            yield from read.to_batches()

    return pa.RecordBatchReader.from_batches(read_schema, batches())


def _can_mark_rows(delta_table: DeltaTable) -> bool:
    """Return whether a file of the table can have a deletion vector."""
    return "deletionVectors" in (delta_table.protocol().reader_features or ())


def read_deletion_vectors(delta_table: DeltaTable, paths: Container[str]) -> dict[str, RowNumbers]:
    """Return the numbers of the rows that deletion vectors mark in some files of a table, by the path of the file."""
    filesystem = open_filesystem(delta_table)
    latest = dict(_read_latest_vectors(filesystem, delta_table.version()))
    vectors = {path: vector for path, vector in latest.items() if vector and path in paths}
    return {path: _parse_roaring_array(_read_vector_bytes(filesystem, vector)) for path, vector in vectors.items()}


_Vector = TypedDict("_Vector", {"storageType": str, "pathOrInlineDv": str, "sizeInBytes": int, "offset": int | None})  # noqa: UP013  # Delta's names
"""The descriptor of a deletion vector in Delta's log."""


def _read_latest_vectors(filesystem: FileSystem, version: int) -> Iterator[tuple[str, _Vector | None]]:
    """Yield the files of Delta's log up to a version with their deletion vectors, if any; the last entry counts."""
    names = {info.base_name for info in filesystem.get_file_info(FileSelector("_delta_log"))}
    start, parts = _find_checkpoint(names, version)
    for name in parts:
        with filesystem.open_input_file(f"_delta_log/{name}") as file:
            adds = pq.ParquetFile(file).read(columns=["add.path", "add.deletionVector"]).column("add").to_pylist()
        yield from ((unquote(add["path"]), add.get("deletionVector")) for add in adds if add and add["path"])
    for number in range(start + 1, version + 1):
        with filesystem.open_input_stream(f"_delta_log/{number:020}.json") as file:
            lines = file.read().decode().splitlines()
        added = (action["add"] for line in lines if (action := json.loads(line)) and "add" in action)
        yield from ((unquote(add["path"]), add.get("deletionVector")) for add in added)


def _find_checkpoint(names: set[str], version: int) -> tuple[int, list[str]]:
    """Return the version of the last complete checkpoint up to a version, and its files; -1 if there is none."""
    checkpoints: dict[int, list[str]] = {}
    for name in sorted(names):
        if (match := _CHECKPOINT.fullmatch(name)) and int(match[1]) <= version:
            single = f"{match[1]}.checkpoint.parquet"
            parts = [single] if single in names else [n for n in names if n.startswith(f"{match[1]}.checkpoint.")]
            if single in names or len(parts) == int(match[2] or 0):
                checkpoints[int(match[1])] = parts
    last = max(checkpoints, default=-1)
    return last, checkpoints.get(last, [])


def _read_vector_bytes(filesystem: FileSystem, vector: _Vector) -> bytes:
    """Return the bytes that a deletion vector's descriptor contains or points to."""
    location, length = vector["pathOrInlineDv"], vector["sizeInBytes"]
    match vector["storageType"]:
        case "i":
            return _decode_z85(location)[:length]
        case "u":
            prefix, name = location[:-20], UUID(bytes=_decode_z85(location[-20:]))
            path = f"{prefix}/deletion_vector_{name}.bin" if prefix else f"deletion_vector_{name}.bin"
        case _:
            raise NotImplementedError(f"deletion vector at an absolute path, {location}: only cloned tables have them")
    with filesystem.open_input_file(path) as file:
        return bytes(file.read_at(length, (vector["offset"] or 0) + 4))  # after its length


def _parse_roaring_array(data: bytes) -> RowNumbers:
    """Return the numbers in a serialized array of Roaring bitmaps, each of which shares the upper 32 bits."""
    magic, count = struct.unpack_from("<iq", data)
    if magic != _MAGIC:
        raise ValueError(f"a deletion vector begins with {magic}, not {_MAGIC}")
    at, parts = 12, [np.empty(0, np.uint64)]
    for _ in range(count):
        (upper,) = struct.unpack_from("<I", data, at)
        numbers, at = _parse_bitmap(data, at + 4)
        parts.append(numbers + np.uint64(upper << 32))
    return np.concatenate(parts)


def _parse_bitmap(data: bytes, at: int) -> tuple[RowNumbers, int]:
    """Return the numbers of one 32-bit bitmap, and where it ends. Its containers hold the lower 16 bits of numbers."""
    (cookie,) = struct.unpack_from("<I", data, at)
    runs, at = b"", at + 4
    if cookie & 0xFFFF == _RUNS:
        count = (cookie >> 16) + 1
        runs, at = data[at : at + (count + 7) // 8], at + (count + 7) // 8
    else:
        (count,), at = struct.unpack_from("<I", data, at), at + 4
    heads = np.frombuffer(data, "<u2", 2 * count, at).reshape(-1, 2)
    at += 4 * count + (4 * count if not runs or count >= _OFFSETS else 0)
    parts = [np.empty(0, np.uint64)]
    for number, (key, least) in enumerate(heads.astype(int).tolist()):
        if runs and runs[number // 8] >> number % 8 & 1:
            (length,) = struct.unpack_from("<H", data, at)
            pairs = np.frombuffer(data, "<u2", 2 * length, at + 2).reshape(-1, 2).astype(int).tolist()
            low, at = np.concatenate([np.arange(s, s + more + 1) for s, more in pairs]), at + 2 + 4 * length
        elif least + 1 > _DENSE:
            bits = np.frombuffer(data, np.uint8, 8192, at)
            low, at = np.flatnonzero(np.unpackbits(bits, bitorder="little")), at + 8192
        else:
            low, at = np.frombuffer(data, "<u2", least + 1, at), at + 2 * (least + 1)
        parts.append(low.astype(np.uint64) + np.uint64(key << 16))
    return np.concatenate(parts), at


def _decode_z85(text: str) -> bytes:
    return b85decode(text.translate(_TO_B85))


_CHECKPOINT = re.compile(r"(\d{20})\.checkpoint(?:\.\d{10}\.(\d{10}))?\.parquet")
_MAGIC, _RUNS, _OFFSETS, _DENSE = 1681511377, 12347, 4, 4096
_DIGITS = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
_Z85 = _DIGITS + ".-:+=^!/*?&<>()[]{}@%$#"
_B85 = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz!#$%&()*+-;<=>?@^_`{|}~"
_TO_B85 = str.maketrans(_Z85, _B85)
