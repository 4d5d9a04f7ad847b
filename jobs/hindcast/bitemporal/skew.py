"""Slices of time: the rows of one key on several cores.

An operator that goes through a key's moments in order can go through slices of them side by side, if every slice is
given what lasts beyond its start. A slice begins at a *cut*: one of the key's own moments, chosen by a hash of key and
moment, so that the choice is the same however often and wherever the plan asks for it. Of so many rows about one is a
cut; a key with few rows mostly has none, and is one slice.

    cuts of a key: @4, @9    slices: 0 before 4, 1 [4, 9), 2 from 9 on    the version [2, 7) lies in 0 and 1
"""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F
from pyspark.sql.window import WindowSpec

from hindcast.common.session import ROWS_PER_SLICE


def find_cuts(*moments: DataFrame) -> DataFrame | None:
    """Return the cuts of each key; None if slicing is off in the session, or no key has many rows.

    `moments`: columns `_on` (the key) and `_at`, of all rows that are to be sliced. Returns `_on` and `_cuts`, an array
    in order, of the keys that have some: few rows, whatever the data. This reads the rows once, to see whether there is
    a key with many rows.
    """
    rows = moments[0].sparkSession.conf.get(ROWS_PER_SLICE, None)
    if rows is None:
        return None
    chosen = (some.where(F.pmod(F.xxhash64("_on", "_at"), F.lit(int(rows))) == 0) for some in moments)
    found = reduce(DataFrame.unionByName, chosen).where("_on IS NOT NULL")
    found = found.groupBy("_on").agg(F.sort_array(F.collect_set("_at")).alias("_cuts"))
    return None if found.where(F.size("_cuts") >= MANY_CUTS).isEmpty() else found


MANY_CUTS = 4
"""A key with so many cuts has more than one core should do alone."""


def add_cuts(rows: DataFrame, cuts: DataFrame | None) -> DataFrame:
    """Return `rows` with the `_cuts` of their key `_on`, null if it has none; unchanged if `cuts` is None."""
    return rows if cuts is None else rows.join(F.broadcast(cuts), "_on", "left")


def slice_number(moment: Column) -> Column:
    """Return the number of the slice that contains a moment, given `_cuts`."""
    return _count_cuts(lambda cut: cut <= moment)


def last_slice_before(end: Column) -> Column:
    """Return the number of the last slice that begins before the end of a period; null is later than any."""
    return _count_cuts(lambda cut: end.isNull() | (cut < end))  # rule: a version without an end lasts into later slices


def slice_start(number: Column) -> Column:
    """Return when a slice begins; null for the first one."""
    return F.get("_cuts", number - 1)


def earlier_slices(key: str) -> WindowSpec:
    """Return the window, over rows by key and `_slice`, of all slices of the key before the current one."""
    return Window.partitionBy(key).orderBy("_slice").rowsBetween(Window.unboundedPreceding, -1)


def slice_end(number: Column) -> Column:
    """Return when the next slice begins; null for the last one."""
    return F.get("_cuts", number)  # rule: a row ends with its slice


def _count_cuts(condition: Callable[[Column], Column]) -> Column:
    return F.coalesce(F.size(F.filter("_cuts", condition)), F.lit(0))
