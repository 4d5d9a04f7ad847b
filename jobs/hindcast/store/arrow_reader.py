"""Rows of Delta tables that Arrow reads from their files itself, with the table's current types.

So it reads those of tables with widened types too, which delta-rs refuses to read.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator, Mapping, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
from deltalake import DeltaTable
from pyarrow.fs import FileSystem

from hindcast.store import deletion_vectors, delta_log


def read_rows(
    delta_table: DeltaTable,
    paths: Sequence[str] | None = None,
    columns: Container[str] | None = None,
    where: pc.Expression | Mapping[str, Callable[[], pc.Expression]] | None = None,
    packed: Container[str] = (),
) -> pa.RecordBatchReader:
    """Return the rows of a table as a stream, to be read once, without the partition columns.

    Reads all rows, unless limited to `paths` (of files, in the table), `columns` or rows that pass `where` (over these
    columns; one condition, or what makes one for each path). The columns `packed` come as dictionaries.
    """
    schema, partitions = pa.schema(delta_table.schema().to_arrow()), delta_table.metadata().partition_columns
    fields = [f for f in schema if f.name not in partitions and (columns is None or f.name in columns)]
    kinds = {f.name: pa.dictionary(pa.int32(), f.type) if f.name in packed else f.type for f in fields}
    read_schema = pa.schema(list(kinds.items()))
    read_from = delta_log.list_paths(delta_table) if paths is None else paths
    filesystem = delta_log.open_filesystem(delta_table)
    delta_log.refuse_foreign_files(delta_table, read_from)
    deleted = deletion_vectors.read_deletion_vectors(delta_table, {*read_from})

    def batches() -> Iterator[pa.RecordBatch]:
        for path in read_from:
            file = _open_as_stored(filesystem, path, read_schema)
            condition = where[path]() if isinstance(where, Mapping) else where
            if path in deleted:
                read = file.to_table()
                remaining = np.ones(read.num_rows, dtype=bool)
                remaining[deleted[path]] = False
                read = read.filter(pa.array(remaining))
                read = read if condition is None else read.filter(condition)
            else:
                read = file.to_table(filter=condition)
            yield from read.cast(read_schema).to_batches()

    return pa.RecordBatchReader.from_batches(read_schema, batches())


def _open_as_stored(filesystem: FileSystem, path: str, schema: pa.Schema) -> ds.Dataset:
    """Return all rows of a data file; of the texts that are dictionaries in `schema`, those that it stores as such are.

    Of the others it is quicker to make dictionaries of the wanted rows only.
    """
    packed = {field.name for field in schema if pa.types.is_dictionary(field.type)}
    plain = [field.with_type(field.type.value_type) if field.name in packed else field for field in schema]
    file = open_file(filesystem, path, pa.schema(plain))
    if not packed or not (stored := packed & _list_stored_dictionaries(file)):
        return file
    fields = [field if field.name in stored else other for field, other in zip(schema, plain, strict=True)]
    return open_file(filesystem, path, pa.schema(fields), stored)


def _list_stored_dictionaries(file: ds.Dataset) -> set[str]:
    """Return the columns of which the first row group of a data file has a dictionary."""
    (fragment,) = file.get_fragments()
    if not fragment.metadata.num_row_groups:
        return set()
    group = fragment.metadata.row_group(0)
    columns = (group.column(number) for number in range(group.num_columns))
    return {column.path_in_schema for column in columns if column.has_dictionary_page}


def open_file(filesystem: FileSystem, path: str, schema: pa.Schema, packed: Container[str] = ()) -> ds.Dataset:
    """Return all rows of a data file, marked ones too, with the columns and types of `schema`; null where it has none.

    The columns `packed`, texts, come as dictionaries.
    """
    reading = ds.ParquetReadOptions(coerce_int96_timestamp_unit="us", dictionary_columns=packed)
    options = ds.ParquetFileFormat(read_options=reading)
    return ds.dataset([path], schema=schema, format=options, filesystem=filesystem)
