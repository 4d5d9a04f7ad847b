"""The stream time that the partitions of a topic's log have reached before the offsets that a run ingests."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeAlias

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from hindcast.contract.bound import BoundContract
from hindcast.ingest import retimestamping
from hindcast.kafka.topics import OffsetRange
from hindcast.store import row_reader, tables

StreamTimes: TypeAlias = dict[int, int]
"""By partition, the largest timestamp accepted before an offset, in microseconds since 1970; none before the first."""

_NEAR = 10_000
"""How many offsets before a range give a lower bound of stream time."""


def read_stream_times(
    spark: SparkSession, contract: BoundContract, name: str, ranges: Mapping[int, OffsetRange]
) -> StreamTimes:
    """Return the stream time of a topic's log before each of these ranges, as `valid_time` is today."""
    log = tables.log_table(contract.warehouse, contract.pipeline, name)
    if tables.open_table(log) is None or not ranges:
        return {}

    def each(bound: Callable[[int, OffsetRange], str]) -> Column:
        # One text: Spark parses it to a balanced tree, which hundreds of partitions need.
        return F.expr(" OR ".join(f"(`partition` = {p} AND {bound(p, r)})" for p, r in ranges.items()))

    dated = retimestamping.read_stream_time_rows(spark, contract, name, ranges)
    rows = row_reader.load_rows(spark, log) if dated is None else dated
    before = rows.where((F.col("fate") == "accepted") & each(lambda _, r: f"offset < {r.start}"))
    if dated is None and tables.count_rows(log) > tables.LARGE_ROWS:
        # Earlier offsets seldom exceed the maximum of the last ones: Delta skips nearly all files.
        near = before.where(each(lambda _, r: f"offset >= {r.start - _NEAR}"))
        least = {p: f"`timestamp` >= timestamp_micros({micros})" for p, micros in _find_latest(near).items()}
        before = before.where(each(lambda p, _: least.get(p, "true")))
    return _find_latest(before)


def _find_latest(rows: DataFrame) -> StreamTimes:
    latest = rows.groupBy("partition").agg(F.unix_micros(F.max("timestamp")).alias("micros"))
    return {row["partition"]: row["micros"] for row in latest.collect()}


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
