"""The ties of the records that a kernel derives a topic's versions from. The meaning is bitemporal/ties.py's."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import astuple, dataclass
from functools import reduce
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from hindcast.common.column_values import ColumnValue
from hindcast.contract.shapes import PLACE_COLUMNS
from hindcast.engine import integer_encoding
from hindcast.engine.increment_rows import read_moments
from hindcast.engine.spec import VersionIncrement
from hindcast.engine.version_increments import SortedRecords, sort_records
from hindcast.store.commit_notes import TieCounts

if TYPE_CHECKING:
    from hindcast.common.jit import Booleans, Integers


@dataclass(frozen=True)
class TiesOfKeys:
    """The ties of the records of some keys: counts as `TieCounts` has them, and the places of the first lost record and
    of the one that it lost to: epoch, partition and offset.
    """

    scattered: int = 0
    lost: int = 0
    replaced: int = 0
    first: tuple[list[int], list[int]] | None = None

    def __add__(self, other: TiesOfKeys) -> TiesOfKeys:
        """Return the ties of the records of all these keys; none is in both."""
        first = min((it.first for it in (self, other) if it.first is not None), default=None)
        counts = self.scattered + other.scattered, self.lost + other.lost, self.replaced + other.replaced
        return TiesOfKeys(*counts, first)

    def as_text(self) -> str:
        """Return it as a task reports it (`sum_reports`)."""
        return json.dumps(astuple(self))


def sum_reports(reports: Iterable[str]) -> TieCounts:
    """Return the counts that tasks report together."""
    every = reduce(TiesOfKeys.__add__, (TiesOfKeys(*json.loads(report)) for report in reports), TiesOfKeys())
    sides = [(partition, offset) for _, partition, offset in every.first or ()]
    return TieCounts(every.scattered, every.lost, every.replaced, *sides)


def count_ties_of_increment(form: VersionIncrement, records: pa.Table, current: pa.Table) -> TiesOfKeys:
    """Return the ties of new records among themselves and with the hidden ones near them.

    `current`: the table's rows of their keys, of which the partition matters; they do not say of which epoch they are.
    """
    key = form.view.key
    (keys, of_rows), _ = integer_encoding.encode_keys([records, current], [key, key], whole=None)
    is_new, moments = records.column("_isNew").to_numpy(), read_moments(records, "timestamp")
    is_near = is_new | (np.isin(moments, moments[is_new]) & np.isin(keys, keys[is_new]))
    near = sort_records(records.filter(pa.array(is_near)), keys[is_near])
    has_epochs = records.column("_epoch").to_numpy()[is_new].any()
    return count_ties(form, near, None if has_epochs else (of_rows, current.column("_partition").to_numpy()))


def count_ties(
    form: VersionIncrement, given: SortedRecords, others: tuple[Integers, Integers] | None = None
) -> TiesOfKeys:
    """Return the ties of records: `ties.count_ties` of `ties.find_ties`.

    `others`: keys and partitions of other rows, of epoch 0.
    """
    scattered = _count_scattered_keys(given, others)
    again = _number_equal_rows(given.keys, given.moments)
    if not len(again) or again[-1] == len(again) - 1:
        return TiesOfKeys(scattered)
    is_tied = np.bincount(again)[again] > 1
    records, times = given.records.take(pa.array(given.rows[is_tied])), _number_equal_rows(again[is_tied])
    is_new = records.column("_isNew").to_numpy()
    epoch, partition, offset = (records.column(name).to_numpy() for name in ("_epoch", *PLACE_COLUMNS))
    epochs = _number_equal_rows(times, epoch)
    partitions = _number_equal_rows(epochs, partition)
    content = _number_contents(form, records)
    is_kafka = partition >= 0  # rows of adopted tables have no partition
    last, winner = _find_last(partitions), _find_last(times)
    is_replaced = (content != content[last]) & is_kafka & is_new
    is_unordered = _find_unordered(epochs, content, (last == np.arange(len(last))) & is_kafka)
    is_beaten = (content != content[winner]) & (partition != partition[winner])
    lost = np.flatnonzero(is_unordered & is_kafka & is_new & ~is_replaced & is_beaten)
    if not len(lost):
        return TiesOfKeys(scattered, 0, int(is_replaced.sum()))
    loser = lost[np.lexsort((offset[lost], partition[lost], epoch[lost]))[0]]
    first, other = ([int(column[row]) for column in (epoch, partition, offset)] for row in (loser, winner[loser]))
    return TiesOfKeys(scattered, len(lost), int(is_replaced.sum()), (first, other))


def _count_scattered_keys(given: SortedRecords, others: tuple[Integers, Integers] | None) -> int:
    """Return the number of keys that are in more than one partition of an epoch."""
    keys, epochs, partitions = given.keys, given.read_column("_epoch"), given.read_column("_partition")
    if others is not None:
        order = np.argsort(np.concatenate([keys, others[0]]), kind="stable")
        keys = np.concatenate([keys, others[0]])[order]
        partitions = np.concatenate([partitions, others[1]])[order]
        epochs = np.concatenate([epochs, np.zeros_like(others[0])])[order]
    if not len(partitions) or partitions.min() == partitions.max():
        return 0
    own = ((partitions >= 0) & (epochs == epoch) for epoch in np.unique(epochs))
    found = [_find_scattered_keys(keys[rows], partitions[rows]) for rows in own]
    return len(np.unique(np.concatenate(found)))


def _find_scattered_keys(keys: Integers, partitions: Integers) -> Integers:
    """Return the keys that are in more than one partition; keys are in order."""
    if not len(keys):
        return keys
    starts = np.flatnonzero(np.append(True, keys[1:] != keys[:-1]))
    found: Integers = keys[starts][np.minimum.reduceat(partitions, starts) != np.maximum.reduceat(partitions, starts)]
    return found


def _number_equal_rows(*columns: Integers) -> Integers:
    """Return numbers from 0 that are equal for rows that are equal in all columns; equal rows follow each other."""
    differs = reduce(np.logical_or, (column[1:] != column[:-1] for column in columns))
    return np.append(0, np.cumsum(differs))[: len(columns[0])]


def _find_last(numbers: Integers) -> Integers:
    """Return for each row the place of the last with its number (`_number_equal_rows`)."""
    return np.flatnonzero(np.append(numbers[1:] != numbers[:-1], True))[numbers]


def _number_contents(form: VersionIncrement, records: pa.Table) -> Integers:
    """Return numbers that are equal for records with equal values; a tombstone differs from all values."""
    others = {*form.view.key, *PLACE_COLUMNS, "timestamp", "_epoch", "_isNew"}
    values = records.select([name for name in records.column_names if name not in others])
    values = pa.table({str(n): _make_comparable(column) for n, column in enumerate(values.columns)})
    (numbers,), _ = integer_encoding.encode_keys([values], [values.column_names], whole=None)
    return numbers


def _make_comparable(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return values of which Arrow makes a dictionary, equal where Spark takes the given ones for equal."""
    if pa.types.is_nested(column.type):
        texts = (None if value is None else repr(_replace_zeros(value)) for value in column.to_pylist())
        return pa.chunked_array([pa.array(texts, pa.string())])
    return pc.add(column, pa.scalar(0.0, column.type)) if pa.types.is_floating(column.type) else column


def _replace_zeros(value: ColumnValue) -> ColumnValue:
    """Return a nested value without -0.0, which equals 0.0."""
    match value:
        case dict():
            return {name: _replace_zeros(field) for name, field in value.items()}
        case list():
            return [_replace_zeros(item) for item in value]
        case float():
            return value + 0.0
    return value


def _find_unordered(epochs: Integers, content: Integers, is_last: Booleans) -> Booleans:
    """Return for each record whether the last ones of two partitions differ, of those of its time and epoch."""
    found = np.zeros(len(epochs), bool)
    if is_last.any():
        own, values = epochs[is_last], content[is_last]
        starts = np.flatnonzero(np.append(True, own[1:] != own[:-1]))
        differ = np.minimum.reduceat(values, starts) != np.maximum.reduceat(values, starts)
        found = np.isin(epochs, own[starts][differ])
    return found
