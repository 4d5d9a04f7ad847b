"""The stream time that the partitions of a topic's log have reached before the offsets that a run ingests."""

from __future__ import annotations

from collections.abc import Mapping
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
from hindcast.ingest import retimestamping
from hindcast.kafka.topics import OffsetRange
from hindcast.store import arrow_reader, tables

StreamTimes: TypeAlias = dict[int, int]
"""By partition, the largest timestamp accepted before an offset, in microseconds since 1970; none before the first."""

_COLUMNS = ("partition", "offset", "timestamp", "fate")
_NEVER, _ALWAYS = -(1 << 63), (1 << 63) - 1


def read_stream_times(
    spark: SparkSession, contract: BoundContract, name: str, ranges: Mapping[int, OffsetRange]
) -> StreamTimes:
    """Return the stream time of a topic's log before each of these ranges, as `valid_time` is today."""
    log = tables.open_table(tables.log_table(contract.warehouse, contract.pipeline, name))
    if log is None or not ranges:
        return {}
    dated = retimestamping.read_stream_time_rows(spark, contract, name, ranges)
    return _find_latest_in_files(log, ranges) if dated is None else _find_latest(dated, ranges)


def _find_latest(rows: DataFrame, ranges: Mapping[int, OffsetRange]) -> StreamTimes:
    # One text: Spark parses it to a balanced tree, which hundreds of partitions need.
    is_before = F.expr(" OR ".join(f"(`partition` = {p} AND offset < {r.start})" for p, r in ranges.items()))
    before = rows.where((F.col("fate") == "accepted") & is_before)
    latest = before.groupBy("partition").agg(F.unix_micros(F.max("timestamp")).alias("micros"))
    return {row["partition"]: row["micros"] for row in latest.collect()}


def _find_latest_in_files(log: DeltaTable, ranges: Mapping[int, OffsetRange]) -> StreamTimes:
    """Return the same from the files of a log, the latest first: of most their statistics tell that they have none."""
    found: StreamTimes = {}
    files = pa.table(log.get_add_actions(flatten=True)).to_pylist()
    moments = [_last_moment(file.get("max.timestamp")) for file in files]
    for place in sorted(range(len(files)), key=moments.__getitem__, reverse=True):
        file, latest = files[place], moments[place]
        low, high = (file.get(f"{end}.partition") for end in ("min", "max"))
        wanted = any(
            (low is None or low <= p) and (high is None or p <= high) and found.get(p, _NEVER) < latest
            for p, offsets in ranges.items()
            if offsets.start
        )
        if wanted:
            rows = arrow_reader.read_rows(log, [unquote(file["path"])], _COLUMNS, pc.field("fate") == "accepted")
            for partition, micros in _list_latest(rows.read_all(), ranges).items():
                found[partition] = max(micros, found.get(partition, _NEVER))
    return found


def _last_moment(last: datetime | None) -> int:
    """Return a moment, in microseconds since 1970, after which no record is dated in a file whose statistics say this.

    Without statistics it is the end of time.
    """
    # Statistics may have milliseconds, rounded down.
    return _ALWAYS if last is None else to_micros(last) + 999


def _list_latest(records: pa.Table, ranges: Mapping[int, OffsetRange]) -> StreamTimes:
    """Return the largest timestamp of each partition among the records before its range."""
    columns = {name: records.column(name).to_numpy() for name in ("partition", "offset")}
    micros, found = records.column("timestamp").cast(pa.int64()).to_numpy(), StreamTimes()
    for partition in np.unique(columns["partition"]).tolist():
        if partition in ranges:
            own = (columns["partition"] == partition) & (columns["offset"] < ranges[partition].start)
            if own.any():
                found[partition] = int(micros[own].max())
    return found


class ReachedOffsets:
    """The stream times that the commits of a run have left, so that none reads the log for what the last one wrote."""

    def __init__(self) -> None:
        self._ends: dict[int, int] = {}
        self._times: StreamTimes = {}

    def read_stream_times(
        self, spark: SparkSession, contract: BoundContract, name: str, ranges: Mapping[int, OffsetRange]
    ) -> StreamTimes:
        """Return the stream time before each range; the log is read for those that do not continue the last ones."""
        unknown = {p: r for p, r in ranges.items() if self._ends.get(p) != r.start}
        known = {p: self._times[p] for p in ranges.keys() - unknown.keys() if p in self._times}
        return known | read_stream_times(spark, contract, name, unknown)

    def advance(self, ranges: Mapping[int, OffsetRange], before: StreamTimes, latest: StreamTimes) -> None:
        """Go on to the ends of ranges with the stream times `before` them and their `latest` accepted timestamps."""
        for partition, offsets in ranges.items():
            self._ends[partition] = offsets.end
            self._times.pop(partition, None)
            if reached := [it[partition] for it in (before, latest) if partition in it]:
                self._times[partition] = max(reached)
