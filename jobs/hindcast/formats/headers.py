"""Columns of the value that are read from a record's headers, and the size that headers add to a record."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from hindcast.formats.reasons import state
from hindcast.formats.record_part import take_field
from hindcast.formats.text import TextColumn
from hindcast.kafka.topics import UNREADABLE_HEADERS

if TYPE_CHECKING:
    from numpy.typing import NDArray

_MOST_MILLIS = (1 << 63) // 1_000
UNREADABLE = "the record's headers cannot be read: a name is not UTF-8"


class HeaderReader:
    """Adds the columns of a value that are read from headers.

    Of several of one name the last counts, as in Kafka's `lastHeader`, and without one the column is null. A null value
    stays null, whatever the headers say.
    """

    def __init__(self, columns: Mapping[str, str], headers: Mapping[str, str]) -> None:
        self._columns, self._headers = columns, headers
        self._read = {
            column: TextColumn(columns[column], f"the header {name} is not {columns[column]}: ")
            for column, name in headers.items()
        }

    def add_columns(self, value: pa.StructArray, headers: pa.ListArray) -> tuple[pa.StructArray, pa.Array]:
        """Return values with the columns from headers, in the contract's order, and what is wrong with those."""
        unreadable = pa.array(_find_last(headers, UNREADABLE_HEADERS) >= 0)
        found, problems = {}, [state(unreadable, UNREADABLE)]
        for column, name in self._headers.items():
            found[column], problem = self._read[column].read(_take_values(headers, _find_last(headers, name)))
            problems.append(problem)
        fields = [found[name] if name in found else take_field(value, name) for name in self._columns]
        problem = pc.if_else(value.is_valid(), pc.coalesce(*problems), None)
        return pa.StructArray.from_arrays(fields, [*self._columns], mask=value.is_null()), problem


def read_time_header(headers: pa.ListArray, name: str) -> pa.Array:
    """Return the times in records' headers of a name, in microseconds since 1970; null for none, and for no time.

    ISO 8601, or a whole number of milliseconds since 1970, as text:

        1970-01-01T00:00:50Z and 50000: 50,000,000 us
    """
    raw = _take_values(headers, _find_last(headers, name))
    moments, numbers = (TextColumn(kind, "").read_values(raw) for kind in ("timestamp", "bigint"))
    is_held = pc.and_(pc.less(numbers, _MOST_MILLIS), pc.greater(numbers, -_MOST_MILLIS))
    millis = pc.if_else(is_held.fill_null(False), numbers, pa.scalar(None, pa.int64()))
    return pc.coalesce(pc.multiply(millis, 1_000), pc.if_else(numbers.is_null(), moments.cast(pa.int64()), None))


def measure_records(key: pa.Array, value: pa.Array, headers: pa.ListArray) -> NDArray[np.int64]:
    """Return the size in bytes of each record's key, value and headers (names and values); null counts as 0."""
    flat, parents = headers.flatten(), pc.list_parent_indices(headers).to_numpy()
    of_headers = _measure(flat.field("key")) + _measure(flat.field("value"))
    sizes = np.bincount(parents, weights=of_headers, minlength=len(headers)).astype(np.int64)
    found: NDArray[np.int64] = _measure(key) + _measure(value) + sizes
    return found


def _find_last(headers: pa.ListArray, name: str) -> NDArray[np.int64]:
    """Return where in the flat headers each record's last one with a name is; -1 without one."""
    flat, parents = headers.flatten(), pc.list_parent_indices(headers).to_numpy()
    named = np.flatnonzero(pc.equal(flat.field("key"), name).to_numpy(zero_copy_only=False))
    places = np.full(len(headers), -1)
    places[parents[named]] = named  # of several the last
    return places


def _take_values(headers: pa.ListArray, places: NDArray[np.int64]) -> pa.Array:
    return headers.flatten().field("value").take(pa.array(places, mask=places < 0))


def _measure(values: pa.Array) -> NDArray[np.int64]:
    lengths: NDArray[np.int64] = pc.binary_length(values).fill_null(0).to_numpy().astype(np.int64)
    return lengths
