"""The records of an archive's files, as Kafka had them, in offset order, each offset once."""

from __future__ import annotations

import heapq
import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import pyarrow as pa
from pyarrow.fs import FileSystem

from hindcast.archives import file_rows, named_files, row_values
from hindcast.archives.file_rows import Row
from hindcast.archives.named_files import ArchiveFile
from hindcast.archives.parquet_files import WantedRows
from hindcast.common.errors import TopicError, show_briefly
from hindcast.contract import Topic
from hindcast.contract.archive import Archive
from hindcast.contract.formats import part_format, record_columns
from hindcast.kafka.record_batches import SCHEMA, Headers
from hindcast.kafka.topics import OffsetRange

_RECORDS, _BYTES = 2_048, 32 << 20
"""A batch has at most so many records, and about so many bytes."""
_NO_TIMESTAMP = -1_000
"""What Kafka's -1 is, in microseconds."""
_TYPES = {"CreateTime": 0, "LogAppendTime": 1}
_TEXT_FORMATS = ("json", "string")
"""Formats of keys and values whose bytes are texts; of others, only an archive's bytes are those of Kafka."""


class ArchivedRecord(NamedTuple):
    """A record; its timestamp is in microseconds since 1970."""

    offset: int
    timestamp: int | None
    key: bytes | None
    value: bytes | None
    headers: Headers | None

    @property
    def size(self) -> int:
        """How many bytes it has, about."""
        headers = sum(len(name) + len(value or b"") for name, value in self.headers or ())
        return len(self.key or b"") + len(self.value or b"") + headers


class RecordForm(NamedTuple):
    """How rows of an archive become records: the archive, and formats and key columns of the topic's contract."""

    archive: Archive
    key_format: str
    value_format: str
    key_columns: tuple[str, ...]

    @property
    def reads_fields(self) -> bool:
        """Whether single fields of a row are needed."""
        it = self.archive
        return it.rows == "record" or bool(it.offset or it.timestamp or it.key_in_value)

    @property
    def offset_field(self) -> str | None:
        """The field in which rows have their offsets; None if they have none."""
        return "offset" if self.archive.rows == "record" else self.archive.offset

    @property
    def has_sides(self) -> bool:
        """Whether files beside have keys or headers."""
        return bool(self.archive.keys or self.archive.headers)

    def read_offset(self, row: Row, first: int) -> int:
        """Return the offset of a row of a file with this first offset; raise ValueError if its field has none."""
        field = self.offset_field
        if field is None or (field not in row.fields and self.archive.rows == "record"):
            return first + row.number
        if (offset := _parse_field(row_values.parse_integer, row.fields, field)) is None:
            raise ValueError(f"it has no {field}")
        return offset

    def read_record(self, row: Row, offset: int) -> ArchivedRecord:
        """Return the record of a row; raise ValueError for what is none."""
        it, fields = self.archive, row.fields
        if it.rows == "value":
            timestamp = _parse_field(row_values.parse_timestamp, fields, it.timestamp) if it.timestamp else None
            value = row_values.encode_value(row.whole, is_base64=False, is_text=self.value_format == "string")
            key = self._make_key(fields) if it.key_in_value else self._encode(row.key, "key", self.key_format)
            return ArchivedRecord(offset, timestamp, key, value, self._read_headers(row.headers))
        if "key" not in fields and "value" not in fields:
            raise ValueError("the row has neither key nor value; if it is a value itself, write rows: value")
        timestamp = _parse_field(row_values.parse_timestamp, fields, "timestamp")
        key = self._encode(fields.get("key"), "key", self.key_format)
        value = self._encode(fields.get("value"), "value", self.value_format)
        return ArchivedRecord(offset, timestamp, key, value, self._read_headers(fields.get("headers")))

    def _read_headers(self, value: Any) -> Headers | None:
        try:
            return row_values.parse_headers(value, is_base64="headers" in self.archive.base64)
        except ValueError as error:
            raise ValueError(f"its headers cannot be read: {error}") from error

    def _encode(self, value: Any, part: str, format_: str) -> bytes | None:
        is_base64 = part in self.archive.base64
        is_bytes = value is None or isinstance(value, bytes) or (isinstance(value, str) and is_base64)
        if format_ not in _TEXT_FORMATS and not is_bytes:
            raise ValueError(f"its {part} is not bytes, and {part}_format is {format_}: archive the bytes of Kafka")
        try:
            return row_values.encode_value(value, is_base64=is_base64, is_text=format_ == "string")
        except ValueError as error:
            raise ValueError(f"its {part} cannot be read: {error}") from error

    def _make_key(self, fields: Mapping[str, Any]) -> bytes | None:
        """Return the key of a value's fields; None if it has none of them."""
        values = {name: fields.get(name) for name in self.key_columns}
        if all(value is None for value in values.values()):
            return None
        if self.key_format == "string":
            return row_values.encode_value(next(iter(values.values())), is_base64=False, is_text=True)
        return row_values.write_json(values).encode()


def build_form(topic: Topic, archive: Archive) -> RecordForm:
    """Return how rows of a topic's archive become records."""
    key, value = part_format(topic, "key"), part_format(topic, "value")
    return RecordForm(archive, key, value, tuple(record_columns(topic, "key")))


def _parse_field(parse: Callable[[Any], int | None], fields: Mapping[str, Any], name: str) -> int | None:
    try:
        return parse(fields.get(name))
    except (ValueError, OverflowError) as error:
        raise ValueError(f"its {name} cannot be read: {error}") from error


class PartitionReader(NamedTuple):
    """Reads the archived records of one partition of a topic."""

    filesystem: FileSystem
    form: RecordForm
    topic: str
    partition: int
    files: Sequence[ArchiveFile]

    def read_records(self, offsets: OffsetRange) -> Iterator[ArchivedRecord]:
        """Yield the records of these offsets, each once; raise TopicError for files that cannot be read, or that lie.

        Of records with one offset that of the file that begins first counts.
        """
        if offsets.start >= offsets.end:
            return
        waiting = named_files.select_files(self.files, *offsets)[::-1]
        heap: list[tuple[int, int, ArchivedRecord, Iterator[ArchivedRecord], ArchiveFile]] = []
        last, last_file, opened = offsets.start - 1, None, 0
        while waiting or heap:
            while waiting and (not heap or waiting[-1].first <= heap[0][0]):
                file, opened = waiting.pop(), opened + 1
                records = self._read_file(file, offsets)
                if (record := next(records, None)) is not None:
                    heapq.heappush(heap, (record.offset, opened, record, records, file))
            if not heap:
                continue
            offset, number, record, records, file = heap[0]
            if offset > last:
                yield record
            elif self.form.offset_field is None:
                found = f"offset {offset} is also in {last_file.path if last_file else 'another file'}"
                found += ", by its first offset and the number of rows before: these cannot be the offsets"
                fix = "archive the offsets too, and name their field in archive.offset (or rows: record)"
                raise TopicError(found, where=self._describe(file), fix=fix)
            last, last_file = max(last, offset), file
            if (following := next(records, None)) is None:
                heapq.heappop(heap)
            else:
                heapq.heapreplace(heap, (following.offset, number, following, records, file))

    def find_end(self, end: int) -> int:
        """Return the offset after the last record before `end`; 0 if there is none."""
        last, read = -1, Counter[str]()
        for file in reversed([file for file in self.files if file.first < end]):
            if read[file.folder] >= named_files.AGAIN:
                continue
            own = max((it.offset for it in self._read_file(file, OffsetRange(0, end))), default=-1)
            last = max(last, own)
            read[file.folder] += own >= 0
            if read.total() > named_files.REACH:
                break
        return last + 1

    def _read_file(self, file: ArchiveFile, offsets: OffsetRange) -> Iterator[ArchivedRecord]:
        """Yield the records of a file that have these offsets."""
        number, before = 0, file.first - 1
        archive = self.form.archive
        try:
            wanted = WantedRows(self.form.offset_field, file.first, 0 if self.form.has_sides else offsets.start)
            rows = file_rows.read_rows(
                self.filesystem, file.path, archive.format, with_fields=self.form.reads_fields, wanted=wanted
            )
            for row in file_rows.pair_rows(rows, self._read_sides(file)):
                number, offset = row.number, self.form.read_offset(row, file.first)
                if offset <= before:
                    found = "the row before" if number else "the first offset in the file's name, minus one,"
                    raise ValueError(f"its offset {offset} does not follow {before}, that of {found}")
                if offset >= offsets.end:
                    return
                if offset >= offsets.start:
                    yield self.form.read_record(row, offset)
                number, before = row.number + 1, offset
        except (*_UNREADABLE, RecursionError, KeyError) as error:
            found = f"the archive cannot be read: {show_briefly(str(error)) or type(error).__name__}"
            where = f"{self._describe(file)}, row {number} (the first is 0), offset {before + 1} or later"
            fix = "restore the file, or remove it: what it has is then missing (docs/topics/archives.md)"
            raise TopicError(found, where=where, fix=fix) from error

    def _read_sides(self, file: ArchiveFile) -> dict[str, Iterator[Row]]:
        """Return the rows of the files beside: with keys as `key`, with headers as `headers`."""
        archive, sides = self.form.archive, {}
        for side, format_, path in (("key", archive.keys, file.keys), ("headers", archive.headers, file.headers)):
            if format_ is not None and not path:
                raise ValueError(f"there is no file beside with its {side} in {format_}")
            if format_ is not None:
                sides[side] = file_rows.read_rows(self.filesystem, path, format_, with_fields=False)
        return sides

    def _describe(self, file: ArchiveFile) -> str:
        return f"{self.form.archive.path}, {file.path}, topic {self.topic}, partition {self.partition}"


_UNREADABLE = (OSError, ValueError, OverflowError, pa.ArrowException, json.JSONDecodeError)


def build_batches(records: Iterable[ArchivedRecord], partition: int, timestamp_type: str) -> Iterator[pa.RecordBatch]:
    """Yield records of one partition in batches (`record_batches.SCHEMA`)."""
    waiting, size = list[ArchivedRecord](), 0
    for record in records:
        waiting.append(record)
        size += record.size
        if len(waiting) >= _RECORDS or size >= _BYTES:
            yield _build_batch(waiting, partition, timestamp_type)
            waiting, size = [], 0
    if waiting:
        yield _build_batch(waiting, partition, timestamp_type)


def _build_batch(records: Sequence[ArchivedRecord], partition: int, timestamp_type: str) -> pa.RecordBatch:
    times = [_NO_TIMESTAMP if it.timestamp is None else it.timestamp for it in records]
    headers = [[{"key": name, "value": value} for name, value in it.headers or ()] or None for it in records]
    columns = [
        pa.repeat(pa.scalar(partition, pa.int32()), len(records)),
        pa.array([it.offset for it in records], pa.int64()),
        pa.array(times, pa.int64()).view(SCHEMA.field("timestamp").type),
        pa.array([-1 if it.timestamp is None else _TYPES[timestamp_type] for it in records], pa.int32()),
        pa.array([it.key for it in records], pa.binary()),
        pa.array([it.value for it in records], pa.binary()),
        pa.array(headers, SCHEMA.field("headers").type),
    ]
    return pa.RecordBatch.from_arrays(columns, schema=SCHEMA)
