"""Delta tables as sources of increments: what changed in one since a known-at, and the believed rows near a change.

Both are read without going through the table: what was opened and closed is found by the statistics that Delta keeps of
each file's system period, what is near by those of its valid period.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from types import TracebackType
from typing import NamedTuple

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from hindcast.corrected import valid_time
from hindcast.corrected.islands import Near, Source
from hindcast.delta import contents, tables
from hindcast.delta.tables import Table


class Sources:
    """Tables as sources, as long as the block lasts: what is read to find out more is kept until then."""

    def __init__(self, spark: SparkSession) -> None:
        self._spark = spark
        self._spans: dict[int, _Span | None] = {}
        self._kept: list[DataFrame] = []

    def __enter__(self) -> Sources:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Frees what was kept."""
        for rows in self._kept:
            rows.unpersist()

    def source(self, table: Table, seen: datetime) -> Source:
        """The flat rows of a table, and what changed in them after the known-at `seen`."""
        return Source(self.keep(_change(self._spark, table, seen)), self.near(table))

    def near(self, table: Table) -> Near:
        """The flat believed rows of a table that lie within the span of some periods."""
        start, end = tables.period(table)

        def rows(periods: DataFrame | None) -> DataFrame:
            believed = contents.believed(self._spark, table)
            return believed if periods is None else self.within(believed, periods, start, end)

        return rows

    def within(self, rows: DataFrame, periods: DataFrame, start: str, end: str) -> DataFrame:
        """The rows whose period, from column `start` to column `end`, touches the span of some periods."""
        span = self._span(periods)
        if span is None:
            return rows.where("false")
        if span.high is not None:
            rows = rows.where(F.col(start) <= valid_time.moment(span.high))
        return rows.where(F.col(end).isNull() | (F.col(end) >= valid_time.moment(span.low)))

    def _span(self, periods: DataFrame) -> _Span | None:
        """From the earliest start to the latest end; asked once of the same periods."""
        if id(periods) not in self._spans:
            kept = self.keep(periods)  # also keeps the id from being another's
            ends = kept.agg(F.unix_micros(F.min("start")), F.unix_micros(F.max("end"))).first()
            found = None if ends is None or ends[0] is None else _Span(_moment(ends[0]) or _EARLIEST, _moment(ends[1]))
            self._spans[id(periods)] = found
        return self._spans[id(periods)]

    def keep(self, rows: DataFrame) -> DataFrame:
        """The same rows, in memory from when they are first asked for."""
        self._kept.append(rows.persist())
        return rows


class _Span(NamedTuple):
    low: datetime
    high: datetime | None


_EARLIEST = datetime(1, 1, 2, tzinfo=UTC)


def _change(spark: SparkSession, table: Table, seen: datetime) -> DataFrame:
    """The rows believed now that were not at `seen`, and those believed then that are not now."""
    rows, moment = contents.load(spark, table), F.lit(seen)
    opened = contents.believed(spark, table).where(F.col("systemFrom") > moment)
    closed = rows.where(
        (F.col("_belief") == "superseded") & (F.col("systemTo") > moment) & (F.col("systemFrom") <= moment)
    )
    if table.pin is not None:
        closed = closed.where(F.col("systemTo") <= F.lit(table.pin))
    return opened.withColumn("change", F.lit("open")).unionByName(closed.withColumn("change", F.lit("close")))


def _moment(micros: int) -> datetime | None:
    """Null where Python has no such moment: it is later than any that bounds a file."""
    try:
        return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=micros)
    except OverflowError:
        return None
