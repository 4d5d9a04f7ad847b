"""The rows of a table over the dates of a pass, in memory: when each was opened and closed (docs/adr/0039).

A date opens rows and closes others, so that one costs about what it changes: rows stand in chunks, each in the order of
time with those that are current at hand, and small chunks are merged.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from operator import and_
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from hindcast.engine import integer_encoding
from hindcast.engine.increment_rows import Among
from hindcast.engine.spec import KernelInput
from hindcast.engine.sweeps import FOREVER

if TYPE_CHECKING:
    from hindcast.common.jit import Booleans, Integers

ROW = "_row"
"""The column with the numbers of rows that are read."""
STORED, NEVER = -1, np.iinfo(np.int64).max
"""The date at which a row was opened that the table had before the pass, and at which a current row is closed."""
_MERGED = 16
"""So many chunks of a size are merged."""


class DateChange(NamedTuple):
    """The rows that a date closes in a table, and those that it opens."""

    closed: pa.Table
    opened: pa.Table

    @property
    def is_empty(self) -> bool:
        """True if it changes nothing."""
        return not self.closed.num_rows + self.opened.num_rows


class TableHistory(NamedTuple):
    """The rows of a table with the numbers of the dates that `opened` and `closed` each, and its period."""

    rows: pa.Table
    opened: Integers
    closed: Integers
    start: Integers
    end: Integers

    def select(self, mask: Booleans) -> TableHistory:
        """Return some of the rows."""
        return TableHistory(self.rows.filter(pa.array(mask)), *(values[mask] for values in self[1:]))


class PassTable:
    """The rows of a table at the date that a pass has reached.

    `periods`: the columns of a row's first and last moment; for events one. `stored`: the rows before the first date.
    """

    def __init__(self, periods: Sequence[str], stored: pa.Table) -> None:
        self._periods = periods
        self._chunks: list[_Chunk] = []
        self._closed = _GrowingArray()
        self._opened = _GrowingArray()
        self._none = stored.slice(0, 0)
        if stored.num_rows:
            self._append(integer_encoding.sort_by_time(stored, periods[0]), STORED)

    def change_nothing(self) -> DateChange:
        """Return the change of a date that leaves the rows as they are."""
        return DateChange(self._none, self._none)

    def change_rows(self, date: int, opened: pa.Table, closed: pa.Table | None = None) -> DateChange:
        """Open rows at a date, and close some that `read_near` returned; return both."""
        ended = self._none
        if closed is not None and closed.num_rows:
            numbers, ended = np.sort(closed.column(ROW).to_numpy()), closed.drop_columns(ROW)
            self._closed.values[numbers] = date
            for chunk in self._chunks:
                chunk.close_rows(numbers)
        if opened.num_rows:
            opened = opened.select(self._none.column_names).cast(self._none.schema)
            opened = integer_encoding.sort_by_time(opened, self._periods[0])
            self._append(opened, date)
        return DateChange(ended, opened if opened.num_rows else self._none)

    def read_near(self, span: tuple[int, int], *among: Among) -> pa.Table:
        """Return the current rows as `increment_rows.ReadNear` does, with their numbers in the column `ROW`."""
        parts = [chunk.read_near(span, among) for chunk in self._chunks]
        parts = [part for part in parts if part.num_rows]
        if not parts:
            return self._none.append_column(ROW, pa.array([], pa.int64()))
        return integer_encoding.sort_by_time(pa.concat_tables(parts), self._periods[0])

    def list_history(self) -> TableHistory:
        """Return all rows, also those that are closed."""
        parts = [chunk.rows for chunk in self._chunks]
        rows = pa.concat_tables([self._none, *parts])
        numbers = np.concatenate([np.empty(0, np.int64), *(chunk.numbers for chunk in self._chunks)])
        start, end = (_read_moments(rows, name) for name in (self._periods[0], self._periods[-1]))
        return TableHistory(rows, self._opened.values[numbers], self._closed.values[numbers], start, end)

    def _append(self, rows: pa.Table, date: int) -> None:
        first, count = len(self._opened.values), rows.num_rows
        self._opened.extend(np.full(count, date))
        self._closed.extend(np.full(count, NEVER))
        rows = rows.unify_dictionaries().combine_chunks()
        self._chunks.append(_Chunk(rows, np.arange(first, first + count), self._periods, np.ones(count, bool)))
        while len(alike := self._list_last_alike()) >= _MERGED:
            del self._chunks[-len(alike) :]
            self._chunks.append(_merge_chunks(alike, self._periods))

    def _list_last_alike(self) -> list[_Chunk]:
        """Return the last chunks that have the same level."""
        level = self._chunks[-1].level
        others = [n for n, chunk in enumerate(self._chunks) if chunk.level != level]
        return self._chunks[max(others, default=-1) + 1 :]


class _GrowingArray:
    """Integers to which others are added."""

    def __init__(self) -> None:
        self._room = np.empty(1024, np.int64)
        self._count = 0

    @property
    def values(self) -> Integers:
        """The values so far, which may be changed."""
        return self._room[: self._count]

    def extend(self, values: Integers) -> None:
        """Add values."""
        needed = self._count + len(values)
        if needed > len(self._room):
            room = np.empty(max(needed, 2 * len(self._room)), np.int64)
            room[: self._count] = self.values
            self._room = room
        self._room[self._count : needed] = values
        self._count = needed


class _Chunk:
    """Rows in the order of their starts, with their numbers, which follow each other in another order.

    `is_current`: which of them are not closed.
    """

    def __init__(
        self, rows: pa.Table, numbers: Integers, periods: Sequence[str], is_current: Booleans, level: int = 0
    ) -> None:
        self.rows, self.numbers, self.is_current, self.level = rows, numbers, is_current, level
        self._start, self._end = (_read_moments(rows, name) for name in (periods[0], periods[-1]))
        self._is_event = len(periods) == 1
        self._first = int(numbers.min())
        self._places = np.argsort(numbers)
        self._find_current()

    def close_rows(self, numbers: Integers) -> None:
        """Leave out of the current rows those that have some of these sorted numbers."""
        first, until = np.searchsorted(numbers, [self._first, self._first + len(self.numbers)])
        if first < until:
            self.is_current[self._places[numbers[first:until] - self._first]] = False
            self._dead += until - first
            if 4 * self._dead > len(self._current):
                self._find_current()

    def _find_current(self) -> None:
        """Find the places of the current rows; of rows that are closed later only `is_current` tells."""
        self._current, self._dead = np.flatnonzero(self.is_current), 0
        self._starts, self._ends = self._start[self._current], self._end[self._current]
        self._last = int(self._ends.max()) if len(self._ends) else -FOREVER

    def read_near(self, span: tuple[int, int], among: Sequence[Among]) -> pa.Table:
        """Return the current rows that touch a span, and are among some; with their numbers."""
        low, high = span
        if not len(self._starts) or self._starts[0] > high or self._last < low:
            return self.rows.slice(0, 0)
        places = self._find_places(low, high, among)
        places = places[self.is_current[places]] if self._dead else places
        if among and len(places):
            places = places[self._find_among(places, among)]
        rows = self.rows.take(pa.array(places))
        return rows.append_column(ROW, pa.array(self.numbers[places]))

    def _find_places(self, low: int, high: int, among: Sequence[Among]) -> Integers:
        """Return the places of the current rows that touch a span, or of some that touch what is needed."""
        until = np.searchsorted(self._starts, high, "right")
        if not self._is_event:
            return self._current[:until][self._ends[:until] >= low]
        first = np.searchsorted(self._starts, low, "left")
        if len(among) == 1:
            lows, highs = np.maximum(among[0].low, low), np.minimum(among[0].high, high)
            begin, end = np.searchsorted(self._starts, lows, "left"), np.searchsorted(self._starts, highs, "right")
            counts = np.maximum(end - begin, 0)
            if 2 * counts.sum() < until - first:
                of, nth = integer_encoding.repeat_numbers(counts)
                return self._current[np.unique(begin[of] + nth)]
        return self._current[first:until]

    def _find_among(self, places: Integers, among: Sequence[Among]) -> Booleans:
        """Return which rows are among some, as far as the times of all of them tell."""
        low, high = int(self._start[places[0]]), int(self._end[places].max())
        found = np.zeros(len(places), bool)
        for some in among:
            if (values := some.list_values(low, high)) is None:
                continue
            if not values:
                return np.ones(len(places), bool)
            found |= reduce(and_, (_is_in(self._take_column(name, places), own) for name, own in values))
        return found

    def _take_column(self, name: str, places: Integers) -> pa.ChunkedArray:
        column = self.rows.column(name)
        return column if len(places) == len(column) else column.take(pa.array(places))


def _is_in(column: pa.ChunkedArray, values: pa.Array) -> Booleans:
    """Return which values of a column are among others; null is a value too."""
    if pa.types.is_dictionary(column.type):
        column = column.cast(column.type.value_type)
    if pa.types.is_dictionary(values.type):
        values = values.cast(values.type.value_type)
    found: Booleans = pc.is_in(column, values).to_numpy(zero_copy_only=False)
    return found


def _merge_chunks(chunks: Sequence[_Chunk], periods: Sequence[str]) -> _Chunk:
    """Return the rows of chunks in one."""
    rows = pa.concat_tables([chunk.rows for chunk in chunks])
    numbers, is_current = (np.concatenate([getattr(it, name) for it in chunks]) for name in ("numbers", "is_current"))
    order = np.argsort(_read_moments(rows, periods[0]), kind="stable")
    rows = rows.unify_dictionaries().combine_chunks().take(pa.array(order))
    return _Chunk(rows, numbers[order], periods, is_current[order], chunks[0].level + 1)


def _read_moments(rows: pa.Table, name: str) -> Integers:
    return integer_encoding.encode_timestamps(rows.column(name))


class PassInput(NamedTuple):
    """A table of a pass as the operator of a view reads it."""

    side: KernelInput
    table: PassTable

    def read_near(self, span: tuple[int, int], *among: Among) -> pa.Table:
        """Return current rows as `slice_reader.read_near` does."""
        from hindcast.engine import slice_reader

        stored = [some.select_columns(set(some.columns) - self.side.computed.keys()) for some in among]
        return slice_reader.add_computed_columns(self.side, self.table.read_near(span, *stored).drop_columns(ROW))

    def add_computed_columns(self, change: DateChange) -> DateChange:
        """Return a change of the table with the columns that are computed."""
        from hindcast.engine import slice_reader

        return DateChange(*(slice_reader.add_computed_columns(self.side, rows) for rows in change))
