"""The tables of a pass, date by date: what the records of each date change, by the increments that runs have.

A pass makes the rows of many rehearsed runs. Each date is derived from what the date before it left, by the same
functions as a run derives its change, but from rows in memory.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from hindcast.contract.shapes import PERIODS
from hindcast.engine import increments, integer_encoding, version_increments, version_ties
from hindcast.engine.increment_plans import PlannedIncrement
from hindcast.engine.increment_rows import ChangedRows, Comparison, LeftOutRows, find_differences, read_moments
from hindcast.engine.pass_tables import DateChange, PassInput, PassTable
from hindcast.engine.spec import VersionIncrement, ViewIncrement, WindowIncrement
from hindcast.engine.version_ties import TiesOfKeys

if TYPE_CHECKING:
    from hindcast.common.jit import Booleans, Integers


class DatedRecords(NamedTuple):
    """Flat records (flat_records.py) in the order of their dates, and the first of each date; one behind the last."""

    rows: pa.Table
    firsts: Integers

    @classmethod
    def sort(cls, rows: pa.Table, dates: Integers, count: int) -> DatedRecords:
        """Return records in order, given the number of each one's date, and how many dates there are."""
        order = np.argsort(dates, kind="stable")
        rows = rows.combine_chunks().take(pa.array(order))
        return cls(rows, np.searchsorted(dates[order], np.arange(count + 1)))

    def select_date(self, date: int) -> pa.Table:
        """Return the records of a date."""
        return self.rows.slice(self.firsts[date], self.firsts[date + 1] - self.firsts[date])


class EventsPass:
    """A topic that is read as a stream."""

    def __init__(self, columns: Sequence[str], records: DatedRecords, stored: pa.Table) -> None:
        self._columns, self._records = [*columns], records
        self.table = PassTable(PERIODS["events"], stored)

    def derive_date(self, date: int, changed: Mapping[str, DateChange]) -> DateChange:  # noqa: ARG002  # as views
        """Return what a date changes in the table."""
        records = self._records.select_date(date)
        events = records.filter(pc.invert(records.column("_isTombstone"))).select(self._columns)
        return self.table.change_rows(date, events)


class VersionsPass:
    """A topic that is read as a table.

    `hidden`: records of earlier runs that can matter to those of the pass (`incremental.find_hidden_records`).
    """

    def __init__(
        self, form: VersionIncrement, records: DatedRecords, hidden: pa.Table, stored: pa.Table, *, with_ties: bool
    ) -> None:
        self._form, self._records, self._with_ties = form, records, with_ties
        self.table = PassTable(PERIODS["versions"], stored)
        self.ties: dict[int, TiesOfKeys] = {}
        rows = pa.concat_tables([hidden, records.rows]).combine_chunks()
        first, key = hidden.num_rows, form.view.key
        (numbers,), count = integer_encoding.encode_keys([rows], [key], whole=None)
        is_hidden = np.append(np.ones(first, bool), _find_hidden(numbers[first:], records.rows))
        self._hidden = _HiddenRecords(rows.filter(pa.array(is_hidden)), numbers[is_hidden], count, first)
        self._numbers = numbers[first:]
        self._counts = np.append(0, np.cumsum(is_hidden[first:]))

    def derive_date(self, date: int, changed: Mapping[str, DateChange]) -> DateChange:  # noqa: ARG002  # as views
        """Return what a date changes in the table."""
        first, until = self._records.firsts[date : date + 2]
        if first == until:
            return self.table.change_nothing()
        near = self._hidden.select_earlier(int(self._counts[first]), self._numbers[first:until])
        records = pa.concat_tables([self._records.select_date(date), near])
        compared = version_increments.refresh_versions(self._form, records, self.table.read_near)
        if self._with_ties:
            self.ties[date] = version_ties.count_ties_of_increment(self._form, records, compared.current)
        return _change_rows(self._form, self.table, date, compared)


def _find_hidden(numbers: Integers, records: pa.Table) -> Booleans:
    """Return which records can be hidden to later ones, given the numbers of their keys: tombstones, and those with
    the key and the timestamp of another.
    """
    moments = read_moments(records, "timestamp")
    order = np.lexsort((moments, numbers))
    same = (np.diff(numbers[order]) == 0) & (np.diff(moments[order]) == 0)
    is_rival = np.zeros(len(numbers), bool)
    is_rival[order] = np.append(same, False)[: len(order)] | np.append(False, same)[: len(order)]
    hidden: Booleans = is_rival | records.column("_isTombstone").to_numpy(zero_copy_only=False)
    return hidden


class _HiddenRecords(NamedTuple):
    """Records that can matter to later ones, in the order of their dates; the numbers of their keys, which are less
    than `bound`; and how many are from `before` the pass.
    """

    rows: pa.Table
    numbers: Integers
    bound: int
    before: int

    def select_earlier(self, count: int, numbers: Integers) -> pa.Table:
        """Return those of keys with some numbers that are from before the pass, or among the first `count` of it."""
        is_wanted = np.zeros(self.bound, bool)
        is_wanted[numbers] = True
        rows = self.rows.take(pa.array(np.flatnonzero(is_wanted[self.numbers[: self.before + count]])))
        place = rows.schema.get_field_index("_isNew")
        return rows.set_column(place, "_isNew", pa.repeat(pa.scalar(False), rows.num_rows))


class ViewPass:
    """A view, with what it left out of each date of an aggregate.

    `ends`: by date, the offsets up to which the date before had the records that its events are.
    """

    def __init__(
        self,
        form: PlannedIncrement,
        inputs: Mapping[str, PassTable],
        stored: pa.Table,
        ends: Sequence[Mapping[int, int]],
    ) -> None:
        self.form, self._ends = form, ends
        sides = zip(inputs.items(), form.sides, strict=True)
        self._inputs = {name: PassInput(side, table) for (name, table), side in sides}
        self.table = PassTable(form.view.periods, stored)
        self.left_out: dict[int, LeftOutRows] = {}

    def derive_date(self, date: int, changed: Mapping[str, DateChange]) -> DateChange:
        """Return what a date changes in the view, given what it changes in the inputs."""
        if all(changed[name].is_empty for name in self._inputs):
            return self.table.change_nothing()
        inputs = [
            ChangedRows(*it.add_computed_columns(changed[name]), it.read_near) for name, it in self._inputs.items()
        ]
        form = self.form
        if isinstance(form, WindowIncrement):
            form = replace(form, ends=self._ends[date])
        compared = increments.refresh_view(form, inputs, self.table.read_near)
        self.left_out[date] = compared.left_out
        return _change_rows(self.form, self.table, date, compared)


def _change_rows(form: ViewIncrement, table: PassTable, date: int, compared: Comparison) -> DateChange:
    """Close and open the rows of a table in which its current and its derived rows differ."""
    closes, opened = find_differences(form, compared)
    return table.change_rows(date, opened, compared.current.filter(pa.array(closes)))
