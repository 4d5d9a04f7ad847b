"""The rows of an archive's file, one after the other, by the names of their fields; a file is never held whole."""

from __future__ import annotations

import io
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from pyarrow.fs import FileSystem

from hindcast.archives.avro_files import read_avro_rows
from hindcast.archives.parquet_files import WantedRows, read_parquet_rows
from hindcast.archives.row_values import JsonText, parse_text, split_fields
from hindcast.contract.archive import ArchiveFormat

LINE_BYTES = 64 << 20
"""A line of JSON has at most so many bytes."""
_BUFFER = 1 << 20
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
        rows = read_parquet_rows(file, wanted) if format_ == "parquet" else enumerate(read_avro_rows(file))
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
