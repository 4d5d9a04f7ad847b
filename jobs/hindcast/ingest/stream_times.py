"""The stream time, and the arrival, that the partitions of a topic's log have reached before what a run ingests."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import TypeAlias
from urllib.parse import unquote

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from hindcast.bitemporal.intervals import to_micros
from hindcast.contract.bound import BoundContract
from hindcast.ingest import arrivals, retimestamping, trim_ledger
from hindcast.kafka.topics import OffsetRange
from hindcast.store import arrow_reader, tables

StreamTimes: TypeAlias = dict[int, int]
"""By partition, the largest timestamp accepted before an offset, in microseconds since 1970; none before the first."""

_PLACE = ("partition", "offset")
_NEVER, _ALWAYS = -(1 << 63), (1 << 63) - 1


def read_stream_times(
    spark: SparkSession, contract: BoundContract, name: str, ranges: Mapping[int, OffsetRange]
) -> StreamTimes:
    """Return the stream time of a topic's log before each of these ranges, as `valid_time` is today."""
    log = tables.open_table(tables.log_table(contract.warehouse, contract.pipeline, name))
    if log is None or not ranges:
        return {}
    dated = retimestamping.read_stream_time_rows(spark, contract, name, ranges)
    return _find_latest_in_files(log, ranges, "timestamp") if dated is None else _find_latest(dated, ranges)


def read_arrivals(contract: BoundContract, name: str, ranges: Mapping[int, OffsetRange]) -> StreamTimes:
    """Return the latest arrival in a topic's log before each of these ranges, also of records that were trimmed; none
    for a topic without `arrival`.
    """
    table = tables.log_table(contract.warehouse, contract.pipeline, name)
    log = tables.open_table(table)
    if contract.topics[name].arrival is None or log is None or not ranges:
        return {}
    if arrivals.COLUMN not in {field.name for field in log.schema().fields}:
        return {}
    found = _find_latest_in_files(log, ranges, arrivals.COLUMN)
    for partition, micros in trim_ledger.read_trimmed_arrivals(table, ranges).items():
        found[partition] = max(micros, found.get(partition, micros))
    return found


def _find_latest(rows: DataFrame, ranges: Mapping[int, OffsetRange]) -> StreamTimes:
    # One text: Spark parses it to a balanced tree, which hundreds of partitions need.
    is_before = F.expr(" OR ".join(f"(`partition` = {p} AND offset < {r.start})" for p, r in ranges.items()))
    before = rows.where((F.col("fate") == "accepted") & is_before)
    latest = before.groupBy("partition").agg(F.unix_micros(F.max("timestamp")).alias("micros"))
    return {row["partition"]: row["micros"] for row in latest.collect()}


def _find_latest_in_files(log: DeltaTable, ranges: Mapping[int, OffsetRange], column: str = "timestamp") -> StreamTimes:
    """Return the same of `timestamp`, or of the `arrival` of all records, from the files of a log, the latest first.

    Of most files their statistics tell that they have none.
    """
    where = pc.field("fate") == "accepted" if column == "timestamp" else pc.field(column).is_valid()
    found: StreamTimes = {}
    files = pa.table(log.get_add_actions(flatten=True)).to_pylist()
    moments = [_last_moment(file.get(f"max.{column}")) for file in files]
    for place in sorted(range(len(files)), key=moments.__getitem__, reverse=True):
        file, latest = files[place], moments[place]
        low, high = (file.get(f"{end}.partition") for end in ("min", "max"))
        wanted = any(
            (low is None or low <= p) and (high is None or p <= high) and found.get(p, _NEVER) < latest
            for p, offsets in ranges.items()
            if offsets.start
        )
        if wanted:
            rows = arrow_reader.read_rows(log, [unquote(file["path"])], (*_PLACE, column, "fate"), where)
            for partition, micros in _list_latest(rows.read_all(), ranges, column).items():
                found[partition] = max(micros, found.get(partition, _NEVER))
    return found


def _last_moment(last: datetime | None) -> int:
    """Return a moment, in microseconds since 1970, after which no record is dated in a file whose statistics say this.

    Without statistics it is the end of time.
    """
    # Statistics may have milliseconds, rounded down.
    return _ALWAYS if last is None else to_micros(last) + 999


def _list_latest(records: pa.Table, ranges: Mapping[int, OffsetRange], column: str) -> StreamTimes:
    """Return the largest timestamp of each partition among the records before its range."""
    columns = {name: records.column(name).to_numpy() for name in _PLACE}
    micros, found = records.column(column).cast(pa.int64()).to_numpy(), StreamTimes()
    for partition in np.unique(columns["partition"]).tolist():
        if partition in ranges:
            own = (columns["partition"] == partition) & (columns["offset"] < ranges[partition].start)
            if own.any():
                found[partition] = int(micros[own].max())
    return found


class ReachedOffsets:
    """The stream times and arrivals that a run's commits have left: none reads the log for what the last one wrote."""

    def __init__(self) -> None:
        self._ends: dict[int, int] = {}
        self._times: StreamTimes = {}
        self._arrivals: StreamTimes = {}

    def read_stream_times(
        self, spark: SparkSession, contract: BoundContract, name: str, ranges: Mapping[int, OffsetRange]
    ) -> StreamTimes:
        """Return the stream time before each range; the log is read for those that do not continue the last ones."""
        unknown = self._list_unknown(ranges)
        known = {p: self._times[p] for p in ranges.keys() - unknown.keys() if p in self._times}
        return known | read_stream_times(spark, contract, name, unknown)

    def read_arrivals(self, contract: BoundContract, name: str, ranges: Mapping[int, OffsetRange]) -> StreamTimes:
        """Return the latest arrival before each range, in the same way."""
        unknown = self._list_unknown(ranges)
        known = {p: self._arrivals[p] for p in ranges.keys() - unknown.keys() if p in self._arrivals}
        return known | read_arrivals(contract, name, unknown)

    def advance(
        self, ranges: Mapping[int, OffsetRange], *reached: StreamTimes, arrivals: Sequence[StreamTimes] = ()
    ) -> None:
        """Go on to the ends of ranges with the stream times `reached` before and within them, and with the arrivals."""
        for partition, offsets in ranges.items():
            self._ends[partition] = offsets.end
            for kept, found in ((self._times, reached), (self._arrivals, arrivals)):
                kept.pop(partition, None)
                if times := [it[partition] for it in found if partition in it]:
                    kept[partition] = max(times)

    def _list_unknown(self, ranges: Mapping[int, OffsetRange]) -> dict[int, OffsetRange]:
        """Return the ranges that do not begin where the last ones ended."""
        return {p: r for p, r in ranges.items() if self._ends.get(p) != r.start}
