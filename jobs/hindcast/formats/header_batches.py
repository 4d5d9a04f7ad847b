"""Headers of many records at once: what `headers` and `limits` read as Spark expressions, in Arrow's batches."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from hindcast.formats.text_batches import TextColumn

if TYPE_CHECKING:
    from numpy.typing import NDArray


class HeaderReader:
    """Adds the columns of a value that are read from headers (`headers.add_header_columns`)."""

    def __init__(self, columns: Mapping[str, str], headers: Mapping[str, str]) -> None:
        self._columns, self._headers = columns, headers
        self._read = {
            column: TextColumn(columns[column], f"the header {name} is not {columns[column]}: ")
            for column, name in headers.items()
        }

    def add_columns(self, value: pa.StructArray, headers: pa.ListArray) -> tuple[pa.StructArray, pa.Array]:
        """Return values with the columns from headers, in the contract's order, and what is wrong with those."""
        found, problems = {}, [pa.nulls(len(value), pa.string())]
        for column, name in self._headers.items():
            found[column], problem = self._read[column].read(_find_last(headers, name))
            problems.append(pc.if_else(value.is_valid(), problem, None))
        fields = [
            found[name] if name in found else pc.struct_field(value, value.type.get_field_index(name))
            for name in self._columns
        ]
        return pa.StructArray.from_arrays(fields, [*self._columns], mask=value.is_null()), pc.coalesce(*problems)


def _find_last(headers: pa.ListArray, name: str) -> pa.Array:
    """Return the value of each record's last header with a name; null without one."""
    flat, parents = headers.flatten(), pc.list_parent_indices(headers).to_numpy()
    named = np.flatnonzero(pc.equal(flat.field("key"), name).to_numpy(zero_copy_only=False))
    places = np.full(len(headers), -1)
    places[parents[named]] = named  # of several the last
    return flat.field("value").take(pa.array(places, mask=places < 0))


def measure_records(records: pa.RecordBatch) -> NDArray[np.int64]:
    """Return the size in bytes of each record's key, value and headers (`limits.record_size`)."""
    headers = records.column("headers")
    flat, parents = headers.flatten(), pc.list_parent_indices(headers).to_numpy()
    of_headers = _measure(flat.field("key")) + _measure(flat.field("value"))
    sizes = np.bincount(parents, weights=of_headers, minlength=len(headers)).astype(np.int64)
    found: NDArray[np.int64] = _measure(records.column("key")) + _measure(records.column("value")) + sizes
    return found


def _measure(values: pa.Array) -> NDArray[np.int64]:
    lengths: NDArray[np.int64] = pc.binary_length(values).fill_null(0).to_numpy().astype(np.int64)
    return lengths
