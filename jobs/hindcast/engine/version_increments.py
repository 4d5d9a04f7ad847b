"""Increments of a topic's versions: what new records change in the table of a topic read as a table.

The meaning is `plane.derive_versions`. Of a key only what is valid after its earliest new record can change.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pandas as pd
import pyarrow as pa

from hindcast.bitemporal.intervals import LAST_MICROS
from hindcast.contract.shapes import PERIODS
from hindcast.engine import hulls, integer_encoding
from hindcast.engine.hulls import Periods
from hindcast.engine.increment_rows import Comparison, Needs, ReadNear, compare_nothing, list_among, read_moments
from hindcast.engine.spec import VersionIncrement
from hindcast.engine.sweeps import FOREVER
from hindcast.store.tables import ARROW_TIMESTAMP

if TYPE_CHECKING:
    from hindcast.common.jit import Booleans, Integers


def refresh_versions(form: VersionIncrement, records: pa.Table, read_view: ReadNear) -> Comparison:
    """Return the affected rows of a topic's table, given its new records and the hidden ones near them.

    Hidden records (`incremental.find_hidden_records`) are those that are no current rows but can matter. Records have
    the table's columns, `timestamp`, `_epoch`, `_isTombstone` and `_isNew`.
    """
    is_new, moments = records.column("_isNew").to_numpy(), read_moments(records, "timestamp")
    if not is_new.any():
        return compare_nothing(form)
    span, key = (int(moments[is_new].min()), FOREVER), form.view.key
    (numbers,), count = integer_encoding.encode_keys([records], [key], whole=None)
    since, _ = hulls.build_hulls(count, Periods(numbers, moments, moments).select(is_new))
    needed = list_among(key, Needs(records, key, since[numbers], np.full(len(numbers), FOREVER)))
    current = integer_encoding.decode_dictionaries(read_view(span, needed), key)
    (numbers, units), count = integer_encoding.encode_keys([records, current], [key, key], whole=None)
    since, _ = hulls.build_hulls(count, Periods(numbers, moments, moments).select(is_new))
    # rule: a late record splits every row that it is in
    is_reached = read_moments(current, "validTo") > since[units]
    current, units = current.filter(pa.array(is_reached)), units[is_reached]
    is_settled = _find_settled_records(
        numbers, moments, is_new, Periods(units, read_moments(current, "validFrom"), units)
    )
    is_needed = is_new | ((moments >= since[numbers]) & ~is_settled)
    columns = [name for name in form.columns if name not in PERIODS["versions"]]
    given = records.filter(pa.array(is_needed)).select([*columns, "timestamp", "_epoch", "_isTombstone"])
    rows = pa.concat_tables([given, _list_records(current, columns)], promote_options="default")
    return Comparison(current, derive_versions(form, sort_records(rows, np.concatenate([numbers[is_needed], units]))))


def _find_latest_ends(at: Integers, ttl: int) -> Integers:
    """Return when versions end at the latest; FOREVER if that is after all time."""
    return np.where(at + ttl <= LAST_MICROS, at + ttl, FOREVER)


def _find_settled_records(keys: Integers, moments: Integers, is_new: Booleans, current: Periods) -> Booleans:
    """Return which records have lost against a current row that begins at their moment, where no new one is.

    The row has the place of the first of equal records, and not the epoch: that does not tell who won.
    """
    starts, places = (pd.MultiIndex.from_arrays(pair) for pair in ((current.key, current.start), (keys, moments)))
    # rule: what a current row begins with has won
    settled: Booleans = places.isin(starts) & ~places.isin(places[is_new])
    return settled


def _list_records(current: pa.Table, columns: Sequence[str]) -> pa.Table:
    """Return current rows as the records that they come from; rows do not say the epoch of these."""
    rows = current.select(columns).append_column("timestamp", current.column("validFrom"))
    for name, value in {"_epoch": pa.scalar(0, pa.int32()), "_isTombstone": pa.scalar(False)}.items():
        rows = rows.append_column(name, pa.repeat(value, rows.num_rows))
    return rows


class SortedRecords(NamedTuple):
    """Records, and by key, timestamp and place: their rows, the numbers of their keys, timestamps in microseconds."""

    records: pa.Table
    rows: Integers
    keys: Integers
    moments: Integers

    def read_column(self, name: str) -> Integers:
        """Return a column of numbers or booleans in order."""
        values: Integers = self.records.column(name).to_numpy()[self.rows]
        return values


def sort_records(records: pa.Table, keys: Integers) -> SortedRecords:
    """Return records in order, given the numbers of their keys."""
    at = read_moments(records, "timestamp")
    place = (records.column(name).to_numpy() for name in ("_offset", "_partition", "_epoch"))
    rows = np.lexsort((*place, at, keys))
    return SortedRecords(records, rows, keys[rows], at[rows])


def derive_versions(form: VersionIncrement, given: SortedRecords, *, by_start: bool = False) -> pa.Table:
    """Return `plane.derive_versions` of records; in the order of their starts if asked for."""
    keys, at = given.keys, given.moments
    has_next = np.append(keys[1:] == keys[:-1], False)[: len(keys)]
    following = np.where(has_next, np.append(at[1:], FOREVER)[: len(at)], FOREVER)
    # rule: ttl shortens versions
    end = following if form.ttl is None else np.minimum(following, _find_latest_ends(at, form.ttl))
    # rule: of equal timestamps the last to arrive wins, and a tombstone gives no row
    kept = np.flatnonzero((following != at) & ~given.read_column("_isTombstone"))
    kept = kept[np.argsort(at[kept], kind="stable")] if by_start else kept
    versions = given.records.take(pa.array(given.rows[kept]))
    for name, moments in zip(PERIODS["versions"], (at[kept], end[kept]), strict=True):
        versions = versions.append_column(name, integer_encoding.decode_timestamps(moments, ARROW_TIMESTAMP))
    return versions
