"""The rows of an archive's file, one after the other, by the names of their fields; a file is never held whole."""

from __future__ import annotations

import io
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow.fs import FileSystem

from hindcast.archives.avro_files import read_avro_rows
from hindcast.archives.row_values import JsonText, parse_text, split_fields
from hindcast.contract.archive import ArchiveFormat
from hindcast.store import parquet_footers

LINE_BYTES = 64 << 20
"""A line of JSON has at most so many bytes."""
_ROWS, _BUFFER = 1_024, 1 << 20
_COMPRESSIONS = {"gz": "gzip", "zst": "zstd"}


class Row(NamedTuple):
    """A row: its fields, if they were asked for, and the whole of it as a value. `number` of the first is 0.

    `key` and `headers`: the rows of the files beside, if there are any.
    """

    number: int
    fields: Mapping[str, Any]
    whole: Any
    key: Any = None
    headers: Any = None


class WantedRows(NamedTuple):
    """The rows from an offset on, of a file with this first offset; their own are in a field, or follow the first."""

    field: str | None
    first: int
    start: int

    def has_any(self, group: pq.RowGroupMetaData, end: int) -> bool:
        """Return whether a row group of Parquet may have some, whose last row has the number `end` - 1."""
        if self.field is None:
            return self.first + end > self.start
        columns = (group.column(n) for n in range(group.num_columns))
        found = next((it.statistics for it in columns if it.path_in_schema == self.field), None)
        greatest = found.max if found is not None and found.has_min_max else None
        return not isinstance(greatest, int) or greatest >= self.start


def read_rows(
    files: FileSystem, path: str, format_: ArchiveFormat, *, with_fields: bool, wanted: WantedRows | None = None
) -> Iterator[Row]:
    """Yield the rows of a file; row groups of Parquet only if they have `wanted` ones.

    `with_fields`: whether the fields of JSON are needed. Raise ValueError or pyarrow's errors for a file that is none
    of the format.
    """
    if format_ == "json":
        with files.open_input_stream(path, compression=_COMPRESSIONS.get(path.rpartition(".")[2])) as stream:
            for number, line in enumerate(_read_lines(io.BufferedReader(stream, _BUFFER))):
                whole = parse_text(line)
                fields = split_fields(line) if with_fields and isinstance(whole, JsonText) else {}
                yield Row(number, fields, whole)
        return
    with files.open_input_file(path) as file:
        rows = _read_parquet(file, wanted) if format_ == "parquet" else enumerate(read_avro_rows(file))
        for number, row in rows:
            yield Row(number, row if isinstance(row, dict) else {}, row)


def pair_rows(rows: Iterable[Row], sides: Mapping[str, Iterator[Row]]) -> Iterator[Row]:
    """Yield the rows of a file with those of the files beside, by `key` and `headers`; raise ValueError if these have
    more or fewer.
    """
    for row in rows:
        beside = {side: next(own, None) for side, own in sides.items()}
        for side, own in beside.items():
            if own is None:
                raise ValueError(f"the file beside with its {side} has no such row")
        yield row._replace(**{side: own.whole for side, own in beside.items() if own is not None})
    for side, left in sides.items():
        if next(left, None) is not None:
            raise ValueError(f"the file beside with its {side} has more rows")


def _read_lines(stream: io.BufferedReader) -> Iterator[str]:
    """Yield the lines that have an object: also of a list of objects, each on a line of its own."""
    while line := stream.readline(LINE_BYTES + 1):
        if len(line) > LINE_BYTES:
            raise ValueError(f"a line has more than {LINE_BYTES:,} bytes")
        text = line.decode().strip()
        if text not in ("", "[", "]"):
            yield text.removesuffix(",")


def _read_parquet(file: pa.NativeFile, wanted: WantedRows | None) -> Iterator[tuple[int, Mapping[str, Any]]]:
    """Yield rows with their numbers."""
    metadata = parquet_footers.decode_metadata(file)
    opened, end = pq.ParquetFile(file, metadata=metadata), 0
    for group in range(metadata.num_row_groups):
        number, end = end, end + metadata.row_group(group).num_rows
        if wanted is not None and not wanted.has_any(metadata.row_group(group), end):
            continue
        for batch in opened.iter_batches(_ROWS, row_groups=[group], use_threads=False):
            yield from enumerate(batch.to_pylist(maps_as_pydicts="strict"), number)
            number += batch.num_rows
