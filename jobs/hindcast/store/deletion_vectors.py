"""Deletion vectors: which rows of a file no longer count, read and written without Spark.

They are those of Delta's protocol ("Deletion Vectors"): Roaring bitmaps of the numbers of rows, in a file of their own
beside the table's or in its log.
"""

from __future__ import annotations

import json
import struct
import zlib
from base64 import b85decode, b85encode
from collections.abc import Container, Mapping
from decimal import Decimal
from urllib.parse import unquote
from uuid import UUID, uuid4

import numpy as np
import pyarrow.parquet as pq
from deltalake import DeltaTable
from numpy.typing import NDArray
from pyarrow.fs import FileSystem
from pyroaring import BitMap64

from hindcast.common.errors import TableError, show_briefly
from hindcast.common.json_values import JsonObject, JsonValue, parse_object
from hindcast.store import delta_log

RowNumbers = NDArray[np.uint64]
"""Numbers of rows in a file, from 0, ascending."""

DeletionVector = JsonObject
"""The descriptor of a deletion vector in Delta's log: storageType, pathOrInlineDv, offset, sizeInBytes, cardinality."""


def read_deletion_vectors(delta_table: DeltaTable, paths: Container[str]) -> dict[str, RowNumbers]:
    """Return the numbers of the rows that deletion vectors mark in some files of a table, by the path of the file."""
    if "deletionVectors" not in (delta_table.protocol().reader_features or ()):
        return {}
    return _read_vectors(delta_table, delta_log.read_file_entries(delta_table, paths, ("deletionVector",)))


def _read_vectors(delta_table: DeltaTable, entries: Mapping[str, delta_log.FileEntry]) -> dict[str, RowNumbers]:
    """Return the numbers of the rows that are marked in files, by path.

    Raise TableError for a vector that is none or damaged, that marks other rows than its file has or another number
    than the log says, or if all mark so many that their numbers would fill the memory: the vectors themselves take
    next to nothing.
    """
    described = {path: vector for path, it in entries.items() if (vector := parse_object(it.get("deletionVector")))}
    if not described:
        return {}
    filesystem = delta_log.open_filesystem(delta_table)
    counts, marked, total = delta_log.count_rows(delta_table), dict[str, BitMap64](), 0
    path = ""
    try:
        for path, vector in described.items():
            marked[path] = parse_vector(_read_bytes(delta_table, filesystem, vector))
            if len(marked[path]) != (cardinality := int(str(vector["cardinality"]))):
                raise ValueError(f"it marks {len(marked[path]):,} rows, not {cardinality:,} as the log says")  # noqa: TRY301
            if (count := counts.get(path)) is None:
                count = _count_rows(filesystem, path)
            if marked[path] and marked[path].max() >= count:
                raise ValueError(f"it marks row {marked[path].max():,}, of {count:,} rows")  # noqa: TRY301
            total += len(marked[path])
            if total > _MAX_MARKED:
                raise ValueError(f"with those before it, it marks more than {_MAX_MARKED:,} rows")  # noqa: TRY301
    except (ArithmeticError, LookupError, NotImplementedError, OSError, ValueError, struct.error) as error:
        raise TableError(
            f"a deletion vector cannot be read: {show_briefly(str(error))}",
            where=f"{delta_table.table_uri}, {path}",
            fix=f"{_REMOVED_FIX if isinstance(error, FileNotFoundError) else ''}put back the table from a backup",
        ) from None
    return {path: list_numbers(it) for path, it in marked.items()}


def write_deletion_vectors(filesystem: FileSystem, rows: Mapping[str, RowNumbers]) -> dict[str, DeletionVector]:
    """Write one file of deletion vectors that mark these rows, by path; return their descriptors for Delta's log."""
    name, content, vectors = uuid4(), bytearray(_FILE_VERSION), dict[str, DeletionVector]()
    for path, numbers in rows.items():
        data = format_vector(numbers)
        vectors[path] = {
            "storageType": "u",
            "pathOrInlineDv": b85encode(name.bytes).decode().translate(_FROM_B85),
            "offset": len(content),
            "sizeInBytes": len(data),
            "cardinality": len(numbers),
        }
        content += struct.pack(">i", len(data)) + data + struct.pack(">I", zlib.crc32(data))
    with filesystem.open_output_stream(_file_name(name)) as file:
        file.write(bytes(content))
    return vectors


def mark_rows(delta_table: DeltaTable, rows: Mapping[str, RowNumbers]) -> list[JsonObject]:
    """Write deletion vectors that mark more rows of some files, by path in Delta's log; return the actions of a commit.

    A file whose rows are all marked is removed.
    """
    by_path = {unquote(path): numbers for path, numbers in rows.items()}
    filesystem = delta_log.open_filesystem(delta_table)
    entries = delta_log.read_file_entries(delta_table, by_path, _ADDED)
    marked = _read_vectors(delta_table, entries)
    every = {path: np.union1d(numbers, marked.get(path, numbers[:0])) for path, numbers in by_path.items()}
    statistics = {path: _read_statistics(filesystem, path, entry) for path, entry in entries.items()}
    counts = {path: int(str(it["numRecords"])) for path, it in statistics.items()}
    some = {path: numbers for path, numbers in every.items() if len(numbers) < counts[path]}
    vectors = write_deletion_vectors(filesystem, some) if some else {}
    now, actions = delta_log.current_millis(), list[JsonObject]()
    for path, entry in entries.items():
        there: dict[str, JsonValue] = {name: entry[name] for name in _ADDED if entry.get(name) is not None}
        removed: dict[str, JsonValue] = {name: there[name] for name in _REMOVED if name in there}
        removed |= {"deletionTimestamp": now, "dataChange": True, "extendedFileMetadata": True}
        actions.append({"remove": removed})
        if path in vectors:
            loose = _format_statistics({**statistics[path], "tightBounds": False})
            actions.append({"add": {**there, "dataChange": True, "stats": loose, "deletionVector": vectors[path]}})
    return actions


def _read_statistics(filesystem: FileSystem, path: str, entry: delta_log.FileEntry) -> Statistics:
    """Return the statistics of a file that the log has; of one without them, the number of its rows alone."""
    statistics: Statistics = parse_object(json.loads(str(entry.get("stats") or "{}"), parse_float=Decimal))
    if "numRecords" in statistics:
        return statistics
    return {**statistics, "numRecords": _count_rows(filesystem, path)}


def _count_rows(filesystem: FileSystem, path: str) -> int:
    """Return the number of rows of a data file, marked ones too."""
    with filesystem.open_input_file(path) as file:
        return int(pq.ParquetFile(file).metadata.num_rows)


def _format_statistics(part: object) -> str:
    """Return statistics, or a part of them, as JSON."""
    match part:
        case Decimal():
            return str(part)
        case Mapping():
            members = (f"{json.dumps(name, ensure_ascii=False)}: {_format_statistics(it)}" for name, it in part.items())
            return f"{{{', '.join(members)}}}"
    return json.dumps(part, ensure_ascii=False)


Statistics = Mapping[str, object]
"""The statistics of a file in Delta's log. Fractions are decimals: as doubles, they would bound other values."""


_ADDED = (
    "path",
    "partitionValues",
    "size",
    "modificationTime",
    "stats",
    "tags",
    "deletionVector",
    "baseRowId",
    "defaultRowCommitVersion",
    "clusteringProvider",
)
"""The fields that the protocol gives the action which adds a file; checkpoints can have more of it."""

_REMOVED = ("path", "partitionValues", "size", "deletionVector")
"""The fields of a file's entry in the log that the action which removes it has too."""


def format_vector(numbers: RowNumbers) -> bytes:
    """Return the numbers of rows as Delta's bytes of a deletion vector."""
    return struct.pack("<i", _MAGIC) + BitMap64(numbers.astype(np.uint64)).serialize()


def parse_vector(data: bytes) -> BitMap64:
    """Return the set of the numbers of rows in the bytes of a deletion vector."""
    (magic,) = struct.unpack_from("<i", data)
    if magic != _MAGIC:
        raise ValueError(f"it begins with {magic}, not {_MAGIC}")
    return BitMap64.deserialize(data[4:])


def list_numbers(numbers: BitMap64) -> RowNumbers:
    """Return the numbers in a set, ascending."""
    return np.fromiter(numbers, np.uint64, len(numbers))


def _read_bytes(delta_table: DeltaTable, filesystem: FileSystem, vector: DeletionVector) -> bytes:
    """Return the bytes that a deletion vector's descriptor contains or points to; ValueError if they are damaged."""
    location, length = str(vector["pathOrInlineDv"]), int(str(vector["sizeInBytes"]))
    if not 0 <= length <= _MAX_BYTES:
        raise ValueError(f"it has {length:,} bytes")
    match vector["storageType"]:
        case "i":
            data = _decode_z85(location)
            if len(data) < length:
                raise ValueError(f"it has {len(data):,} bytes, not {length:,} as the log says")
            return data[:length]
        case "u":
            prefix, name = location[:-20], _file_name(UUID(bytes=_decode_z85(location[-20:])))
            path = f"{prefix}/{name}" if prefix else name
        case _:
            raise NotImplementedError(f"it is at an absolute path, {location}: only cloned tables have them")
    delta_log.refuse_foreign_files(delta_table, [path])
    with filesystem.open_input_file(path) as file:
        stored = bytes(file.read_at(length + 8, int(str(vector.get("offset") or 0))))
    return _unpack_stored(stored, length)


def _unpack_stored(stored: bytes, length: int) -> bytes:
    """Return a vector of which a file has the length, the bytes and their checksum; ValueError if these disagree."""
    if len(stored) < length + 8:
        raise ValueError(f"its file ends before its {length:,} bytes and their checksum do")
    (stored_length,), data = struct.unpack_from(">i", stored), stored[4 : length + 4]
    if stored_length != length:
        raise ValueError(f"its file has {stored_length:,} bytes of it, not {length:,} as the log says")
    if struct.unpack_from(">I", stored, length + 4) != (zlib.crc32(data),):
        raise ValueError("its bytes are not those of its checksum")
    return data


def _file_name(name: UUID) -> str:
    return f"deletion_vector_{name}.bin"


def _decode_z85(text: str) -> bytes:
    return b85decode(text.translate(_TO_B85))


_REMOVED_FIX = "repeat this, if the table was rewritten meanwhile; else "
_MAGIC = 1681511377
_MAX_MARKED = 100_000_000
"""The most rows of a table that are marked where they are read: as numbers they take eight bytes each."""
_MAX_BYTES = 64 << 20
"""The most bytes of a vector: a bit for each of 500 million rows."""
_FILE_VERSION = b"\x01"
_DIGITS = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
_Z85 = _DIGITS + ".-:+=^!/*?&<>()[]{}@%$#"
_B85 = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz!#$%&()*+-;<=>?@^_`{|}~"
_TO_B85, _FROM_B85 = str.maketrans(_Z85, _B85), str.maketrans(_B85, _Z85)
