"""Islands: the periods in which a table's truth differs from its current rows; and where its results may differ.

Periods are rows `key, start, end`, half-open, `end` never null (`end_of_time`). *Islands* are the periods, by unit (the
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

NearbyRows = Callable[[DataFrame | None], DataFrame]
"""Returns the current rows of a table that touch one of some periods (`start`, `end`, of any key), maybe others too;
for None all current rows.
"""


RowCache = Callable[[DataFrame], DataFrame]
"""Returns rows that a plan reads more than once, cached in memory if that pays."""


def leave_uncached(rows: DataFrame) -> DataFrame:
    """Return a DataFrame as it is: the default that caches nothing."""
    return rows


class ChangedInput(NamedTuple):
    """A table that has changed since the known-at that was read before.

    `change`: the rows closed and opened since, with a column `_change`, 'close' or 'open'; a row that was opened and
    closed in between is not among them. `rows_near`: returns its current rows.
    """

    change: DataFrame
    rows_near: NearbyRows

    def map_rows(self, function: Callable[[DataFrame], DataFrame]) -> ChangedInput:
        """Return this input with a row-by-row function applied; the function must keep a column `_change`."""
        return ChangedInput(function(self.change), lambda periods: function(self.rows_near(periods)))


class AffectedScope(NamedTuple):
    """Where a result may differ: `rows` are the current rows there, `restrict` clips a result to it."""

    rows: DataFrame
    restrict: Callable[[DataFrame], DataFrame]


def find_changed_periods(change: DataFrame, *by: str) -> DataFrame:
    """Return the periods `key, start, end` in which the content of a key (and `by`) differs, not yet merged.

    `change` has versions: `key`, `value`, `validFrom`, `validTo`, `_change` ('open' or 'close'). A version of which
    only the end has changed differs between its two ends:

        close 8 [0, ..), open 8 [0, 4), open 10 [4, ..)    ->    [4, ..), [4, ..)
    """

    def side(which: str) -> Column:
        row = F.struct(end_moment("validTo").alias("until"), "value")
        return F.first(F.when(F.col("_change") == which, row), ignorenulls=True).alias(f"_{which}")

    sides = change.groupBy("key", *by, "validFrom").agg(side("open"), side("close"))
    same = F.col("_open.value").eqNullSafe(F.col("_close.value"))
    ends = F.col("_open.until"), F.col("_close.until")
    # rule: a version that only ends elsewhere changes what is between
    start = F.when(same, F.least(*ends)).otherwise(F.col("validFrom"))
    # rule: a period lasts from the change to the later end
    return sides.select("key", start.alias("start"), F.greatest(*ends).alias("end")).where("start < end")


def merge_periods(periods: DataFrame) -> DataFrame:
    """Return periods `key, start, end`, with those of a key that overlap or touch merged into one."""
    in_time = Window.partitionBy("key").orderBy("start", "end")
    # rule: a period is merged with all before it
    reached = F.max("end").over(in_time.rowsBetween(Window.unboundedPreceding, -1))
    apart = F.when(reached.isNull() | (F.col("start") > reached), 1).otherwise(0)  # rule: periods that touch are one
    number = F.sum("_apart").over(in_time.rowsBetween(Window.unboundedPreceding, Window.currentRow))
    return (
        periods.withColumn("_apart", apart)
        .withColumn("_number", number)
        .groupBy("key", "_number")
        .agg(F.min("start").alias("start"), F.max("end").alias("end"))
        .drop("_number")
    )


def build_scope(learnt: DataFrame, believed: NearbyRows, keep: RowCache = leave_uncached) -> AffectedScope:
    """Return the scope of a result whose rows are true for a period: the islands, and the current rows that touch them.

    `learnt`: the islands, periods `key, start, end`. The current rows (`believed`) and results have `key` (the unit),
    `validFrom`, `validTo`, and other columns. `keep` caches the rows of the scope.
    """
    rows = keep(select_touching_rows(believed(learnt), learnt))
    met = rows.select("key", F.col("validFrom").alias("start"), end_moment("validTo").alias("end"))
    # rule: the scope grows by the rows that it touches
    there = rename_period_columns(merge_periods(learnt.unionByName(met)))

    def clip_rows(result: DataFrame) -> DataFrame:
        start, end = F.greatest("validFrom", "_start"), F.least(end_moment("validTo"), F.col("_end"))
        overlap = (F.col("validFrom") < F.col("_end")) & (F.col("_start") < end_moment("validTo"))
        # rule: results are clipped to the scope
        return (
            result.join(there, F.col("key").eqNullSafe(F.col("_on")) & overlap)
            .withColumns({"validFrom": start, "validTo": F.when(end < end_of_time(), end)})
            .drop("_on", "_start", "_end")
        )

    return AffectedScope(rows, clip_rows)


def select_touching_rows(rows: DataFrame, periods: DataFrame, on: Column | None = None) -> DataFrame:
    """Return the rows whose valid period touches one of the periods of the key `on` (default: the row's `key`)."""
    # rule: rows that only touch a period count
    touch = (F.col("validFrom") <= F.col("_end")) & (F.col("_start") <= end_moment("validTo"))
    same = F.col("key").eqNullSafe(F.col("_on")) if on is None else on == F.col("_on")
    return rows.join(rename_period_columns(periods), same & touch, "left_semi")


def intersect_periods(rows: DataFrame, periods: DataFrame, on: Column, unit: str) -> DataFrame:
    """Return what the valid periods of rows share with the periods of the key `on`, even a single moment.

    The result has `key` (the column `unit` of the rows), `start`, `end`.
    """
    met = rows.join(rename_period_columns(periods), on == F.col("_on")).select(
        F.col(unit).alias("key"),
        F.greatest("validFrom", "_start").alias("start"),
        F.least(end_moment("validTo"), F.col("_end")).alias("end"),
    )
    return met.where("start <= end")


def select_events_in_periods(events: DataFrame, periods: DataFrame) -> DataFrame:
    """Return the events within one of the periods of their key, both ends included; null is a key like any other."""
    inside = F.col("key").eqNullSafe(F.col("_on")) & F.col("timestamp").between(F.col("_start"), F.col("_end"))
    return events.join(rename_period_columns(periods), inside, "left_semi")


def select_rows_at_positions(rows: DataFrame, places: DataFrame) -> DataFrame:
    """Return the rows whose `position` is among those of `places`."""
    there = places.select(F.col("position").alias("_there"))
    return rows.join(there, F.col("position") == F.col("_there"), "left_semi")


def periods_around(events: DataFrame, before: Column, after: Column) -> DataFrame:
    """Return the period `key, start, end` around each event, both ends included; `before` and `after` are intervals."""
    moment = F.col("timestamp")
    return events.select("key", (moment - before).alias("start"), (moment + after).alias("end"))


def rename_period_columns(periods: DataFrame) -> DataFrame:
    """Return periods with their columns renamed to `_on, _start, _end`, which no other rows have."""
    return periods.select(F.col("key").alias("_on"), F.col("start").alias("_start"), F.col("end").alias("_end"))


def end_moment(end: str) -> Column:
    """Return a period's end as a moment; null (until changed) becomes `end_of_time`."""
    return F.coalesce(F.col(end), end_of_time())


def end_of_time() -> Column:
    """Return a moment later than any other."""
    return F.timestamp_micros(F.lit(2**63 - 1))
