"""The rows of Parquet files, a few at a time: a row group is never held whole.

A batch has as many rows as about `BATCH_BYTES` have room for, also if each has the largest value of its dictionaries.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from hindcast.archives.avro_files import AvroBytes
from hindcast.archives.row_values import write_millis
from hindcast.store import parquet_footers

ROW_BYTES, BATCH_BYTES = 64 << 20, 32 << 20
"""A row has at most so many bytes, and a batch about so many."""
_MOST_ROWS, _SMALL, _HEAD = 1_024, 256 << 10, 32
_TEXTS = ("BYTE_ARRAY", "FIXED_LEN_BYTE_ARRAY")


class WantedRows(NamedTuple):
    """The rows from an offset on, of a file with this first offset; their own are in a field, or follow the first."""

    field: str | None
    first: int
    start: int

    def has_any(self, group: pq.RowGroupMetaData, end: int) -> bool:
        """Return whether a row group may have some, whose last row has the number `end` - 1."""
        if self.field is None:
            return self.first + end > self.start
        columns = (group.column(n) for n in range(group.num_columns))
        found = next((it.statistics for it in columns if it.path_in_schema == self.field), None)
        greatest = found.max if found is not None and found.has_min_max else None
        return not isinstance(greatest, int) or greatest >= self.start


def read_parquet_rows(file: pa.NativeFile, wanted: WantedRows | None) -> Iterator[tuple[int, Mapping[str, Any]]]:
    """Yield rows with their numbers, of row groups that have `wanted` ones."""
    metadata = parquet_footers.decode_metadata(file)
    opened, end = pq.ParquetFile(file, metadata=metadata), 0
    doubles, texts = (_replace_types(opened.schema_arrow, kind) for kind in (pa.float64(), pa.string()))
    for index in range(metadata.num_row_groups):
        group = metadata.row_group(index)
        number, end = end, end + group.num_rows
        if wanted is not None and not wanted.has_any(group, end):
            continue
        for batch in opened.iter_batches(_count_rows(file, group), row_groups=[index], use_threads=False):
            # By its shortest text, a float of 32 bits becomes the one of 64 bits with the same digits.
            read = batch if doubles == batch.schema else batch.cast(texts).cast(doubles)
            yield from enumerate(_convert_batch(read), number)
            number += batch.num_rows


def _replace_types(schema: pa.Schema, floats: pa.DataType) -> pa.Schema:
    """Return a schema with another type instead of floats of 32 bits, and without dictionaries."""

    def replace(kind: pa.DataType) -> pa.DataType:
        if pa.types.is_float32(kind):
            return floats
        if pa.types.is_dictionary(kind):
            return replace(kind.value_type)
        if pa.types.is_struct(kind):
            return pa.struct([it.with_type(replace(it.type)) for it in kind])
        if pa.types.is_list(kind):
            return pa.list_(kind.value_field.with_type(replace(kind.value_type)))
        if pa.types.is_map(kind):
            return pa.map_(kind.key_field, kind.item_field.with_type(replace(kind.item_type)))
        return kind

    return pa.schema([it.with_type(replace(it.type)) for it in schema])


def _count_rows(file: pa.NativeFile, group: pq.RowGroupMetaData) -> int:
    """Return how many rows of a group a batch may have; raise ValueError if some row is too large."""
    mean: int = group.total_byte_size // max(group.num_rows, 1)
    _refuse_large_row(mean)
    most = mean
    for column in (group.column(n) for n in range(group.num_columns)):
        if column.physical_type in _TEXTS:
            most += _measure_dictionary(file, column) * -(-int(column.num_values) // max(group.num_rows, 1))
    return min(max(BATCH_BYTES // max(most, 1), 1), _MOST_ROWS)


def _measure_dictionary(file: pa.NativeFile, column: pq.ColumnChunkMetaData) -> int:
    """Return how many bytes the dictionary of a column has: no value in it has more; 0 if there is none."""
    size = int(column.total_uncompressed_size)
    if size <= _SMALL:
        return size
    first = min(column.dictionary_page_offset or column.data_page_offset, column.data_page_offset)
    # Thrift: field 1 is the page's type, of which 2 is a dictionary, field 2 is its size without compression.
    head = AvroBytes(file.read_at(_HEAD, first))
    if head.read(1) != b"\x15":
        return size
    kind = head.read_long()
    if head.read(1) != b"\x15":
        return size
    return head.read_long() if kind == 2 else 0


def _convert_batch(batch: pa.RecordBatch) -> Iterator[Mapping[str, Any]]:
    """Yield the rows of a batch, one by one if it is large or has values that Python has no form for."""
    if batch.nbytes <= BATCH_BYTES:
        try:
            rows = batch.to_pylist(maps_as_pydicts="strict")
        except (ValueError, OverflowError, KeyError, pa.ArrowException):
            pass
        else:
            yield from rows
            return
    for number in range(batch.num_rows):
        row = batch.slice(number, 1)
        _refuse_large_row(row.nbytes)
        yield _convert_value(row.to_struct_array()[0])


def _refuse_large_row(size: int) -> None:
    if size > ROW_BYTES:
        raise ValueError(f"a row has {size:,} bytes; one has at most {ROW_BYTES:,}")


def _convert_value(value: pa.Scalar) -> Any:
    """Return a value for Python; dates and timestamps that it has no form for as texts (`row_values.write_millis`)."""
    try:
        return value.as_py(maps_as_pydicts="strict")
    except (ValueError, OverflowError, pa.ArrowException):
        if isinstance(value, pa.TimestampScalar):
            return write_millis(value.value, _UNITS[value.type.unit])
        if isinstance(value, pa.Date32Scalar):
            return str(value.value)
        if isinstance(value, pa.StructScalar):
            return {name: _convert_value(it) for name, it in value.items()}
        if isinstance(value, pa.MapScalar):
            return {it[0].as_py(): _convert_value(it[1]) for it in value.values}
        if isinstance(value, pa.ListScalar):
            return [_convert_value(it) for it in value.values]
        raise


_UNITS = {"s": 1, "ms": 1_000, "us": 1_000_000, "ns": 1_000_000_000}
