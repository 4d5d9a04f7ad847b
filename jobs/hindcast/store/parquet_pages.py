"""What the pages of a Parquet file take in memory, measured by the pages themselves: a file's footer can say anything.

Arrow gives a page the bytes that its header names, and refuses one with more. Other readers go by what is compressed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple, Protocol, TypeAlias

import pyarrow as pa
from pyarrow.parquet import ColumnChunkMetaData, FileMetaData

_DATA_PAGE, _DICTIONARY_PAGE, _DATA_PAGE_V2 = 0, 2, 3
_DETAILS = {_DATA_PAGE: 5, _DICTIONARY_PAGE: 7, _DATA_PAGE_V2: 8}
"""The field of a page's header that has the rest of it, by the type of the page."""
_DELTA_BYTE_ARRAY = 7
"""The encoding of texts that stores of each only what the one before it does not begin with."""
_BOUNDED_CODECS = ("snappy", "zstd")
"""The codecs of which one call decompresses all that there is of a page, whoever calls."""


_Value: TypeAlias = "int | dict[int, _Value] | None"
"""A field of a page's header, by its number; None for a text."""


class _File(Protocol):
    def read_at(self, nbytes: int, offset: int) -> bytes: ...


class ColumnSizes(NamedTuple):
    """A part of a column: its values, its bytes unpacked, whether it has texts once that occur often, and its pages."""

    values: int
    unpacked: int
    is_packed: bool
    pages: int

    @property
    def most(self) -> int:
        """The most bytes of its values: none is longer than all that is stored."""
        return self.values * self.unpacked if self.is_packed else self.unpacked


class _Page(NamedTuple):
    kind: int
    size: int
    body: memoryview
    details: Mapping[int, _Value]


def refuse_overlap(metadata: FileMetaData, size: int) -> None:
    """Raise ArrowInvalid if the columns of a file have more bytes than the file, of `size`: some are the same. Or if it
    has too many parts of columns.
    """
    refuse_many_pages(metadata.num_row_groups * metadata.num_columns, size)
    groups = map(metadata.row_group, range(metadata.num_row_groups))
    sizes = [group.column(n).total_compressed_size for group in groups for n in range(group.num_columns)]
    if min(sizes, default=0) < 0 or sum(sizes) > size:
        raise pa.ArrowInvalid(f"has columns of {sum(sizes):,} bytes in a file of {size:,}")


def refuse_many_pages(count: int, size: int) -> None:
    """Raise ArrowInvalid if so many pages are more than writers make of so many bytes: each takes time to look at."""
    if count > _MANY_PAGES + size // _BYTES_PER_PAGE:
        raise pa.ArrowInvalid(f"has {count:,} pages or more in {size:,} bytes")


_MANY_PAGES, _BYTES_PER_PAGE = 20_000, 1024
"""What has more pages has so many bytes for each: writers begin another page after 1 MB or 20,000 rows."""


def measure_column(file: _File, column: ColumnChunkMetaData) -> ColumnSizes:
    """Return the sizes of a part of a column as readers will find them; ArrowInvalid if it has no pages as Parquet has.

    A text that begins as the one before it counts as if it were as long as all of them.
    """
    values = unpacked = pages = 0
    is_packed = False
    for page in _list_pages(file, column):
        pages += 1
        is_dictionary = page.kind == _DICTIONARY_PAGE
        is_packed |= is_dictionary
        unpacked += page.size
        if not is_dictionary:
            values += (count := _read_number(page.details, 1))
            if _read_number(page.details, 2 if page.kind == _DATA_PAGE else 4) == _DELTA_BYTE_ARRAY:
                unpacked += count * page.size
    return ColumnSizes(values, unpacked, is_packed, pages)


def refuse_false_sizes(file: _File, column: ColumnChunkMetaData) -> None:
    """Raise ArrowInvalid if a page has more bytes than its header says, or a codec of which that is not known.

    What the headers say has been bounded before: it is decompressed here.
    """
    name = str(column.compression).lower()
    if name == "uncompressed":
        return
    if name not in _BOUNDED_CODECS:
        raise pa.ArrowInvalid(f"is compressed by {name}, not by one of {', '.join(_BOUNDED_CODECS)}")
    codec = pa.Codec(name)
    for page in _list_pages(file, column):
        size, body = page.size, page.body
        if page.kind == _DATA_PAGE_V2:
            if page.details.get(7) is False:
                continue
            levels = _read_number(page.details, 5) + _read_number(page.details, 6)
            size, body = size - levels, body[levels:]
        if size > 0:
            codec.decompress(pa.py_buffer(body), size)
        elif len(body) > _EMPTY:
            raise pa.ArrowInvalid("has a page of nothing with bytes in it")


_EMPTY = 16
"""The most bytes of nothing, compressed."""


def _list_pages(file: _File, column: ColumnChunkMetaData) -> Iterator[_Page]:
    """Yield the pages of a part of a column; ArrowInvalid for what is none."""
    start = column.data_page_offset
    if column.has_dictionary_page:
        if not (0 < column.dictionary_page_offset < start or (start == 0 and column.num_values == 0)):
            raise pa.ArrowInvalid("has its dictionary after its values")
        start = column.dictionary_page_offset
    if (stored := column.total_compressed_size) > _MAX_STORED:
        raise pa.ArrowInvalid(f"has a column of {stored:,} bytes in one part")
    data = memoryview(file.read_at(stored, start))
    if len(data) < stored:
        raise pa.ArrowInvalid("has a column that ends after the file")
    place = count = 0
    while place < len(data):
        refuse_many_pages(count := count + 1, len(data))
        header, place = _read_header(data, place)
        size, stored = _read_number(header, 2), _read_number(header, 3)
        details = header.get(_DETAILS.get(_read_number(header, 1), 0))
        if not isinstance(details, dict) or place + stored > len(data):
            raise pa.ArrowInvalid("has a page that is none")
        yield _Page(_read_number(header, 1), size, data[place : place + stored], details)
        place += stored


_MAX_STORED = 512 << 20
"""The most bytes of a part of a column, which are read together; writers begin another part after some 128 MB."""


def _read_number(fields: Mapping[int, _Value], number: int) -> int:
    value = fields.get(number)
    if type(value) is not int or value < 0:
        raise pa.ArrowInvalid(f"has a page whose header says {value!r} in field {number}")
    return value


def _read_header(data: memoryview, place: int) -> tuple[dict[int, _Value], int]:
    """Return the fields of a page's header, a struct in Thrift's compact protocol, and its end.

    It has only kinds of fields that such headers have, and not many of them; long texts are passed over.
    """
    reader = _HeaderReader(data, place)
    try:
        fields = reader.read_struct(0)
    except IndexError:
        raise pa.ArrowInvalid("has a page whose header does not end") from None
    return fields, reader.place


class _HeaderReader:
    """Reads what is in a header from a place on."""

    def __init__(self, data: memoryview, place: int) -> None:
        self.data, self.place, self.count = data, place, 0

    def read_struct(self, depth: int) -> dict[int, _Value]:
        fields, number = dict[int, _Value](), 0
        while kind := self._read_byte():
            self.count += 1
            if self.count > _MAX_FIELDS:
                raise pa.ArrowInvalid(f"has a page whose header has more than {_MAX_FIELDS} fields")
            step = kind >> 4
            number = number + step if step else self._read_integer()
            value = self._read_value(kind & 15, depth)
            if number in fields:
                raise pa.ArrowInvalid(f"has a page whose header has field {number} twice")
            fields[number] = value
        return fields

    def _read_value(self, kind: int, depth: int) -> _Value:
        match kind:
            case 1 | 2:
                return kind == 1
            case 3:
                return self._read_byte()
            case 4 | 5 | 6:
                return self._read_integer()
            case 8:
                length = self._read_varint()
                self.place += length
                return None
            case 12 if depth < _MAX_DEPTH:
                return self.read_struct(depth + 1)
        raise pa.ArrowInvalid(f"has a page whose header has a field of kind {kind}")

    def _read_byte(self) -> int:
        byte = self.data[self.place]
        self.place += 1
        return byte

    def _read_integer(self) -> int:
        value = self._read_varint()
        return (value >> 1) ^ -(value & 1)

    def _read_varint(self) -> int:
        value = shift = 0
        while (byte := self._read_byte()) >= 128:
            value |= (byte & 127) << shift
            shift += 7
            if shift > 63:
                raise pa.ArrowInvalid("has a page whose header has a number of more than 64 bits")
        return value | byte << shift


_MAX_DEPTH, _MAX_FIELDS = 3, 40
"""How deep a header's structs are nested at most, and its fields with those in them: Parquet defines 24 of a page."""
