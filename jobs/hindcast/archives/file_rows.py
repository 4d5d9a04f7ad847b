"""The rows of an archive's file, one after the other, by the names of their fields; a file is never held whole."""

from __future__ import annotations

import io
import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow.fs import FileSystem

from hindcast.archives.avro_files import read_avro_rows
from hindcast.archives.row_values import JsonText
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


def read_rows(files: FileSystem, path: str, format_: ArchiveFormat, *, with_fields: bool) -> Iterator[Row]:
    """Yield the rows of a file. `with_fields`: whether the fields of JSON are needed.

    Raise ValueError or pyarrow's errors for a file that is none of the format.
    """
    if format_ == "json":
        with files.open_input_stream(path, compression=_COMPRESSIONS.get(path.rpartition(".")[2])) as stream:
            for number, line in enumerate(_read_lines(io.BufferedReader(stream, _BUFFER))):
                is_object = line != "null" and not line.startswith('"')
                fields = split_fields(line) if with_fields and is_object else {}
                yield Row(number, fields, JsonText(line) if is_object else json.loads(line))
        return
    with files.open_input_file(path) as file:
        for number, row in enumerate(_read_parquet(file) if format_ == "parquet" else read_avro_rows(file)):
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


def split_fields(line: str) -> dict[str, Any]:
    """Return the fields of an object in JSON: texts, None, and the `JsonText` of other values, as it is written.

    Raise ValueError for what is no object.
    """
    fields: dict[str, Any] = {}
    place = _skip_space(line, 0)
    if line[place : place + 1] != "{":
        raise ValueError("the row is not an object in JSON")
    place = _skip_space(line, place + 1)
    while line[place : place + 1] != "}":
        name, place = _DECODER.raw_decode(line, place)
        place = _skip_space(line, place)
        if not isinstance(name, str) or line[place : place + 1] != ":":
            raise ValueError(f"the row is not an object in JSON, at character {place}")
        start = _skip_space(line, place + 1)
        value, place = _DECODER.raw_decode(line, start)
        fields[name] = value if value is None or _is_text(line, start) else JsonText(line[start:place])
        place = _skip_space(line, place)
        if line[place : place + 1] == ",":
            place = _skip_space(line, place + 1)
        elif line[place : place + 1] != "}":
            raise ValueError(f"the row is not an object in JSON, at character {place}")
    if line[place + 1 :].strip():
        raise ValueError(f"the row has more than one object, at character {place + 1}")
    return fields


def _is_text(line: str, place: int) -> bool:
    return line[place] == '"'


def _skip_space(line: str, place: int) -> int:
    while line[place : place + 1] in _SPACES:
        place += 1
    return place


_SPACES = {" ", "\t", "\r", "\n"}
_DECODER = json.JSONDecoder(parse_int=str, parse_float=str, parse_constant=str)


def _read_parquet(file: pa.NativeFile) -> Iterator[dict[str, Any]]:
    metadata = parquet_footers.decode_metadata(file)
    for batch in pq.ParquetFile(file, metadata=metadata).iter_batches(_ROWS, use_threads=False):
        yield from batch.to_pylist(maps_as_pydicts="strict")
