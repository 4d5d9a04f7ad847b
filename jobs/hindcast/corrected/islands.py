"""Islands: the periods in which the truth of a table differs from what was believed; and where its results may.

Periods are rows `key, start, end`, half-open, `end` never null (`forever`). *Islands* are the periods, by unit (the
key of a row of the result), in which an input's truth differs. A row of a result is a maximal interval over which it is
made of the same, so one that touches an island may begin or end elsewhere now: the scope is the islands and the
believed rows that touch them. Where such a row reaches beyond an island it is made of what touches the island there. So
the rows of the inputs that touch islands are all that an operator has to see, and what it makes of them is clipped to
the scope.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

Near = Callable[[DataFrame | None], DataFrame]
"""The believed rows of a table that touch one of some periods (`start`, `end`, whatever their keys), and maybe others;
all of them for None.
"""


Keep = Callable[[DataFrame], DataFrame]
"""Rows that a plan asks for more than once, kept in memory where that is worth it."""


def as_is(rows: DataFrame) -> DataFrame:
    """Keeps nothing."""
    return rows


class Source(NamedTuple):
    """A table as it is believed now, and what was closed and opened in it since the known-at that was seen before.

    `change`: its rows with `change`, 'open' or 'close'. A row that was opened and closed in between is not in it.
    """

    change: DataFrame
    near: Near

    def mapped(self, function: Callable[[DataFrame], DataFrame]) -> Source:
        """The source of what a function of single rows makes of these; the function keeps a column `change`."""
        return Source(function(self.change), lambda periods: function(self.near(periods)))


class Scope(NamedTuple):
    """Where a result may differ: `rows` are the believed rows there, `of` takes what is there from a result."""

    rows: DataFrame
    of: Callable[[DataFrame], DataFrame]


def islands(change: DataFrame, *by: str) -> DataFrame:
    """The periods `key, start, end` in which what a key (and `by`) holds differs, not yet merged.

    `change` has versions: `key`, `value`, `validFrom`, `validTo`, `change`. A version that only ends elsewhere now
    differs between its two ends:

        close 8 [0, ..), open 8 [0, 4), open 10 [4, ..)    ->    [4, ..), [4, ..)
    """

    def side(which: str) -> Column:
        row = F.struct(until("validTo").alias("until"), "value")
        return F.first(F.when(F.col("change") == which, row), ignorenulls=True).alias(f"_{which}")

    sides = change.groupBy("key", *by, "validFrom").agg(side("open"), side("close"))
    same = F.col("_open.value").eqNullSafe(F.col("_close.value"))
    ends = F.col("_open.until"), F.col("_close.until")
    start = F.when(same, F.least(*ends)).otherwise(F.col("validFrom"))
    return sides.select("key", start.alias("start"), F.greatest(*ends).alias("end")).where("start < end")


def merged(periods: DataFrame) -> DataFrame:
    """Periods of a key that overlap or touch as one."""
    in_time = Window.partitionBy("key").orderBy("start", "end")
    reached = F.max("end").over(in_time.rowsBetween(Window.unboundedPreceding, -1))
    apart = F.when(reached.isNull() | (F.col("start") > reached), 1).otherwise(0)
    number = F.sum("_apart").over(in_time.rowsBetween(Window.unboundedPreceding, Window.currentRow))
    return (
        periods.withColumn("_apart", apart)
        .withColumn("_number", number)
        .groupBy("key", "_number")
        .agg(F.min("start").alias("start"), F.max("end").alias("end"))
        .drop("_number")
    )


def over_time(learnt: DataFrame, believed: Near, keep: Keep = as_is) -> Scope:
    """The scope of a result whose rows are true for a period: the islands, and the believed rows that touch them.

    Believed rows and results have `key` (the unit), `validFrom`, `validTo`, and other columns.
    """
    rows = keep(touching(believed(learnt), learnt))
    met = rows.select("key", F.col("validFrom").alias("start"), until("validTo").alias("end"))
    there = renamed(merged(learnt.unionByName(met)))

    def clipped(result: DataFrame) -> DataFrame:
        start, end = F.greatest("validFrom", "_start"), F.least(until("validTo"), F.col("_end"))
        overlap = (F.col("validFrom") < F.col("_end")) & (F.col("_start") < until("validTo"))
        return (
            result.join(there, F.col("key").eqNullSafe(F.col("_on")) & overlap)
            .withColumns({"validFrom": start, "validTo": F.when(end < forever(), end)})
            .drop("_on", "_start", "_end")
        )

    return Scope(rows, clipped)


def touching(rows: DataFrame, periods: DataFrame, on: Column | None = None) -> DataFrame:
    """Rows whose valid period touches one of the periods of the key `on` (default: their own)."""
    touch = (F.col("validFrom") <= F.col("_end")) & (F.col("_start") <= until("validTo"))
    same = F.col("key").eqNullSafe(F.col("_on")) if on is None else on == F.col("_on")
    return rows.join(renamed(periods), same & touch, "left_semi")


def shared(rows: DataFrame, periods: DataFrame, on: Column, unit: str) -> DataFrame:
    """What rows share with the periods of `on`, be it a single moment, as periods of `unit`."""
    met = rows.join(renamed(periods), on == F.col("_on")).select(
        F.col(unit).alias("key"),
        F.greatest("validFrom", "_start").alias("start"),
        F.least(until("validTo"), F.col("_end")).alias("end"),
    )
    return met.where("start <= end")


def during(events: DataFrame, periods: DataFrame) -> DataFrame:
    """Events within one of the periods of their key, both ends included; null is a key like any other."""
    inside = F.col("key").eqNullSafe(F.col("_on")) & F.col("timestamp").between(F.col("_start"), F.col("_end"))
    return events.join(renamed(periods), inside, "left_semi")


def at(rows: DataFrame, places: DataFrame) -> DataFrame:
    """Rows whose `position` is one of these."""
    there = places.select(F.col("position").alias("_there"))
    return rows.join(there, F.col("position") == F.col("_there"), "left_semi")


def around(events: DataFrame, before: Column, after: Column) -> DataFrame:
    """The period around each event, both ends included; `before` and `after` are intervals."""
    moment = F.col("timestamp")
    return events.select("key", (moment - before).alias("start"), (moment + after).alias("end"))


def renamed(periods: DataFrame) -> DataFrame:
    """Periods under names that no other rows have: `_on, _start, _end`."""
    return periods.select(F.col("key").alias("_on"), F.col("start").alias("_start"), F.col("end").alias("_end"))


def until(end: str) -> Column:
    """The end of a period as a moment."""
    return F.coalesce(F.col(end), forever())


def forever() -> Column:
    """Later than any moment."""
    return F.timestamp_micros(F.lit(2**63 - 1))
