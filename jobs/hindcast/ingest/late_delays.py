"""By how much the late records of a run were late: each by how far it is dated before the stream time that it met."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import NamedTuple

from hindcast.bitemporal.predicates import ColumnBound
from hindcast.common.json_values import JsonObject, StoredObject
from hindcast.common.lengths import format_length
from hindcast.store import duckdb_reader, odd_tables, tables
from hindcast.store.tables import Table


class LateDelays(NamedTuple):
    """The median delay of the late records of a run, the delay that 95 % of them do not exceed, and the largest."""

    median: timedelta
    p95: timedelta
    largest: timedelta

    def as_json(self) -> JsonObject:
        """Return the form in reports: in seconds."""
        return {name: length.total_seconds() for name, length in self._asdict().items()}

    @classmethod
    def from_json(cls, delays: StoredObject) -> LateDelays:
        """Return the delays from their form in reports; ValueError for those that are not in order."""
        lengths = cls(*(timedelta(seconds=delays[name]) for name in cls._fields))
        if not timedelta(0) <= lengths.median <= lengths.p95 <= lengths.largest:
            raise ValueError("the delays of late records are not in order")
        return lengths

    def describe(self) -> str:
        """Return the delays in words: `median 5 min, 95 % at most 2 h, largest 3 h`."""
        median, p95, largest = map(format_length, self)
        return f"by {largest}" if median == largest else f"median {median}, 95 % at most {p95}, largest {largest}"


def describe_ranges(delays: Sequence[LateDelays]) -> str:
    """Return what the delays of several runs say of all their late records together: between the least and the greatest
    median lies their median, and so does what 95 % of them do not exceed; the largest is known.
    """
    if len({*delays}) == 1:
        return delays[0].describe()
    texts = []
    for words, lengths in (("median", [it.median for it in delays]), ("95 % at most", [it.p95 for it in delays])):
        ends = [*dict.fromkeys(map(format_length, (min(lengths), max(lengths))))]
        texts.append(f"{words} {' to '.join(ends)}")
    return ", ".join([*texts, f"largest {format_length(max(it.largest for it in delays))}"])


FEW = 5
"""Fewer late records than these are listed one by one, as far as they are known."""


def list_delays(runs: Sequence[tuple[int, LateDelays | None]]) -> list[str] | None:
    """Return by how much each late record was late, given of each run their number and delays; None if they are many,
    or not all known: of two the median is the lesser, of three or more some are known only together.
    """
    if sum(count for count, _ in runs) >= FEW:
        return None
    lengths: list[timedelta] = []
    for count, delays in runs:
        if delays is None or count > 2:
            return None
        lengths += [delays.median, delays.largest][2 - count :]
    return [format_length(length) for length in sorted(lengths)]


def measure_delays(log: Table, first: int, last: int) -> Mapping[int, LateDelays]:
    """Return the delays of the late records of a topic that runs from `first` to `last` ingested, by run; none of a run
    without.
    """
    if (delta_table := tables.open_table(log)) is None:
        return {}
    with odd_tables.refuse_unreadable_rows(log), duckdb_reader.open_engine(delta_table) as engine:
        duckdb_reader.register_rows(engine, delta_table, [ColumnBound("run", first, last)])
        found = engine.execute(_DELAYS, [first, last]).fetchall()
    return {run: LateDelays(*(timedelta(microseconds=n) for n in (*shares, largest))) for run, shares, largest in found}


_DELAYS = """
    SELECT run, quantile_disc(delay, [0.5, 0.95]), max(delay) FROM (
        SELECT run, date_diff('microsecond', "timestamp", streamTime) AS delay FROM rows
        WHERE run BETWEEN ? AND ? AND "timestamp" < streamTime
    ) GROUP BY run
"""
