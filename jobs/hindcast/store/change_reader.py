"""Delta tables as sources of increments: what changed since a known-at, and the current rows near a change.

Neither needs a scan of the table: Delta's statistics of each file's system period find what was opened and closed,
those of its valid period what is near.
"""

from __future__ import annotations

from datetime import UTC, datetime
from types import TracebackType
from typing import NamedTuple

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from hindcast.bitemporal import valid_time
from hindcast.bitemporal.affected_periods import ChangedInput, NearbyRows
from hindcast.bitemporal.predicates import parse_micros
from hindcast.store import row_reader, tables
from hindcast.store.tables import Table


class PeriodSpan(NamedTuple):
    """A span of valid time from `low` to `high`, both within it; without an end if `high` is None."""

    low: datetime
    high: datetime | None

    @classmethod
    def from_micros(cls, low: int | None, high: int | None) -> PeriodSpan | None:
        """Return the span between two moments in microseconds; None if there is no `low`, for there are no periods."""
        return None if low is None else cls(parse_micros(low) or _EARLIEST_MOMENT, parse_micros(high))


_EARLIEST_MOMENT = datetime(1, 1, 2, tzinfo=UTC)
LAST_MOMENT = "timestamp_micros(253402300799999999)"
"""The last moment that a timestamp has, as SQL: the end of a row that has none."""


def filter_touching(rows: DataFrame, span: PeriodSpan | None, start: str, end: str) -> DataFrame:
    """Return the rows whose period, from column `start` to column `end`, touches a span; none without a span."""
    if span is None:
        return rows.where("false")
    if span.high is not None:
        rows = rows.where(F.col(start) <= valid_time.timestamp_literal(span.high))
    return rows.where(F.col(end).isNull() | (F.col(end) >= valid_time.timestamp_literal(span.low)))


class ChangeReader:
    """A reader of changes, used as a context manager: what it caches is kept until the block ends."""

    def __init__(self, spark: SparkSession) -> None:
        self.spark = spark
        self._spans_query: dict[int, PeriodSpan | None] = {}
        self._kept: list[DataFrame] = []

    def __enter__(self) -> ChangeReader:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Free the cached rows."""
        for rows in self._kept:
            rows.unpersist()

    def read_source(self, table: Table, seen: datetime) -> ChangedInput:
        """Return the flat rows of a table, and what changed in them after the known-at `seen`."""
        return ChangedInput(self.cache_rows(_read_change(self.spark, table, seen)), self.read_near(table))

    def read_near(self, table: Table) -> NearbyRows:
        """Return a function that reads the flat current rows of a table within the span of some periods."""
        start, end = tables.period_columns(table)

        def rows(periods: DataFrame | None) -> DataFrame:
            believed = row_reader.load_current_rows(self.spark, table)
            return believed if periods is None else self.filter_within(believed, periods, start, end)

        return rows

    def filter_within(self, rows: DataFrame, periods: DataFrame, start: str, end: str) -> DataFrame:
        """Return the rows whose period, from column `start` to column `end`, touches the span of some periods."""
        return filter_touching(rows, self.find_span(periods), start, end)

    def find_span(self, periods: DataFrame) -> PeriodSpan | None:
        """Return the span from the earliest start to the latest end; computed once for the same periods."""
        if id(periods) not in self._spans_query:
            cached = self.cache_rows(periods)  # also keeps the id from being another's
            ends = cached.agg(F.unix_micros(F.min("start")), F.unix_micros(F.max("end"))).first()
            self._spans_query[id(periods)] = None if ends is None else PeriodSpan.from_micros(*ends)
        return self._spans_query[id(periods)]

    def cache_rows(self, rows: DataFrame) -> DataFrame:
        """Return the same rows, cached from their first use on."""
        self._kept.append(rows.persist())
        return rows


def _read_change(spark: SparkSession, table: Table, seen: datetime) -> DataFrame:
    """Return the rows current now that were not at `seen`, and those current then that are not now."""
    rows, moment = row_reader.load_rows(spark, table), F.lit(seen)
    opened = row_reader.load_current_rows(spark, table).where(F.col("systemFrom") > moment)
    closed = rows.where(
        (F.col("_belief") == "superseded") & (F.col("systemTo") > moment) & (F.col("systemFrom") <= moment)
    )
    if table.as_of_system_time is not None:
        closed = closed.where(F.col("systemTo") <= F.lit(table.as_of_system_time))
    return opened.withColumn("_change", F.lit("open")).unionByName(closed.withColumn("_change", F.lit("close")))
