"""The files of an archive: their topic, partition and first offset by the names that Kafka Connect's sinks give them.

topics/orders/partition=0/orders+0+0000000100.json            Confluent's
topics/orders/year=2026/month=01/orders+0+0000000100.parquet  the same with a time partitioner
orders+0+0000000100+0000000199.avro                           Confluent's for HDFS, with the last offset
orders-0-100.gz                                               Aiven's
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterator, Sequence
from typing import NamedTuple
from urllib.parse import unquote

from deltalake.exceptions import DeltaError
from deltalake.fs import DeltaStorageHandler
from pyarrow.fs import FileSelector, FileSystem, FileType, LocalFileSystem, PyFileSystem, SubTreeFileSystem

from hindcast.common.errors import TopicError
from hindcast.contract.archive import Archive, ArchiveFormat

_ENDINGS = {
    "json": r"(?:\.jsonl?)?(?:\.gz|\.zst)?",
    "parquet": r"(?:\.(?:gz|snappy|zstd|zst|lz4|brotli))?(?:\.parquet)?",
    "avro": r"(?:\.avro)?",
}
_MOST_OFFSET = (1 << 63) - 1
AGAIN, REACH = 4, 64
"""Offsets of a file may reach over the beginnings of so many files after it: of its own folder, and of all."""


SIDES = ("keys", "headers")
"""What a sink may write into files of their own: `orders+0+0000000100.keys.json`."""


class ArchiveFile(NamedTuple):
    """A file by its path in the archive, with the partition and the first offset that its name says; and the paths of
    the files with the keys and headers of its rows, empty if there are none.
    """

    partition: int
    first: int
    path: str
    keys: str = ""
    headers: str = ""

    @property
    def folder(self) -> str:
        """The folder that it is in."""
        return self.path.rpartition("/")[0]


def open_filesystem(archive: Archive) -> FileSystem:
    """Return a file system with an archive's files by their paths in it; in an object store as for the warehouse."""
    if "://" in archive.path:
        return PyFileSystem(DeltaStorageHandler(archive.path))
    return SubTreeFileSystem(archive.path, LocalFileSystem())


def list_files(archive: Archive, topic: str) -> dict[int, list[ArchiveFile]]:
    """Return the files of a topic in Kafka by partition, in the order of their first offsets.

    Raise TopicError if the folder cannot be listed or has no file of the topic.
    """
    where = f"archive {archive.path}, topic {topic}"
    named = _compile_name(topic, archive.format)
    formats = {side: getattr(archive, side) for side in SIDES}
    beside = {side: _compile_name(topic, format_, rf"\.{side}") for side, format_ in formats.items() if format_}
    try:
        paths = list_paths(archive.path)
    except (OSError, ValueError, DeltaError) as error:
        found = f"the archive cannot be listed: {type(error).__name__}: {error}"
        raise TopicError(found, where=where, fix=f"check topics.{topic}.archive.path, and our rights there") from error
    files: dict[int, list[ArchiveFile]] = {}
    sides: dict[str, dict[str, str]] = {}
    for path in paths:
        for side, name in beside.items():
            if match := name.fullmatch(path.rpartition("/")[2]):
                sides.setdefault(_find_stem(path, match), {})[side] = path
    for path in paths:
        if (match := named.fullmatch(path.rpartition("/")[2])) is None:
            continue
        if re.search("[\ud800-\udfff]", path):
            shown = os.fsencode(path).decode(errors="backslashreplace")
            found = "the file is in a folder whose name is not UTF-8 text"
            raise TopicError(found, where=f"{archive.path}, {shown}", fix="rename the folder, or move it out")
        partition, first = int(match[1] or match[2]), int(match[3])
        if first > _MOST_OFFSET:
            found = f"the file's first offset {first} is beyond all offsets of Kafka"
            raise TopicError(found, where=f"{archive.path}, {path}", fix="remove the file, or give it its name")
        own = sides.get(_find_stem(path, match), {})
        files.setdefault(partition, []).append(ArchiveFile(partition, first, path, **own))
    if not files:
        found = f"the archive has no file of the topic in {archive.format}"
        fix = f"files are named {topic}+0+0000000000.{archive.format}; check the archive's path and format"
        raise TopicError(found, where=where, fix=fix)
    return {partition: sorted(own) for partition, own in sorted(files.items())}


def list_paths(place: str) -> list[str]:
    """Return the paths of all files below a place, in it."""
    scheme, _, folder = place.rpartition("://")
    if scheme in ("", "file"):
        return [*_walk_folder(unquote(folder) if scheme else folder)]
    return list_store_paths(place)


def list_store_paths(place: str) -> list[str]:
    """Return the paths of all files below a place in a store."""
    entries = PyFileSystem(DeltaStorageHandler(place)).get_file_info(FileSelector("", recursive=True))
    return [it.path for it in entries if it.type == FileType.File]


def _walk_folder(root: str) -> Iterator[str]:
    """Yield the paths of all files below a folder; links are not followed, as they may lead out of it, or around."""

    def refuse(error: OSError) -> None:
        raise error

    for folder, _, names in os.walk(root, onerror=refuse):
        inner = os.path.relpath(folder, root)
        for name in names:
            if stat.S_ISREG(os.lstat(f"{folder}/{name}").st_mode):
                yield name if inner == "." else f"{inner}/{name}"


def _compile_name(topic: str, format_: ArchiveFormat, side: str = "") -> re.Pattern[str]:
    """Return what matches the names of a topic's files, with their partitions and first offsets."""
    return re.compile(rf"{re.escape(topic)}(?:\+([0-9]+)\+|-([0-9]+)-)([0-9]+)(?:\+[0-9]+)?{side}{_ENDINGS[format_]}")


def _find_stem(path: str, name: re.Match[str]) -> str:
    """Return a file's path up to its first offset: files of the same rows have the same."""
    return path[: len(path) - len(name.string) + name.end(3)]


def select_files(files: Sequence[ArchiveFile], start: int, end: int) -> list[ArchiveFile]:
    """Return those files of a partition that may have offsets of [start, end), in order.

    Of a folder the files follow each other, but that a sink which was started again may have written some records
    again. Those of several folders, as a partitioner by time or field makes, may interleave.
    """
    following: dict[str, list[int]] = {}
    chosen: list[ArchiveFile] = []
    for file in reversed(files):
        after = following.setdefault(file.folder, [])
        if file.first < end and (len(after) < AGAIN or after[-AGAIN] > start):
            chosen.append(file)
        after.append(file.first)
    chosen.reverse()
    before = sum(file.first <= start for file in chosen)
    return chosen[max(0, before - 1 - REACH) :]
