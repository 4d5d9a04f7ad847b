"""Hold units: what a quarantine gate holds back at once, a key or, with `hold: row`, a failing row.

| hold | table | unit |
| --- | --- | --- |
| key | any | the whole change of a key |
| row | versions, of a topic | a record (`row_holds` derives the table without it) |
| row | events | an event |
| row | windows | a window; a session with those that it replaces |
| row | pairs | a pair |

While a pair is held, the current rows of its events alone stay too: (event, null) is not closed.
"""

from __future__ import annotations

from functools import reduce

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from hindcast.contract import Contract
from hindcast.quality import hold_store
from hindcast.store.tables import Table

RECORD_COLUMNS = ("_partition", "_offset")
"""The columns that identify the record that a row of a topic's table comes from."""


def has_row_hold(contract: Contract, name: str) -> bool:
    """Return whether the gates of a topic or view hold single rows back."""
    return (contract.topics.get(name) or contract.views[name]).hold == "row"


def has_record_hold(contract: Contract, name: str) -> bool:
    """Return whether they hold single records, so that the table is derived without them."""
    return name in contract.topics and contract.topics[name].read == "table" and has_row_hold(contract, name)


def add_units(change: DataFrame, contract: Contract, table: Table) -> DataFrame:
    """Return the rows of a change (`plane.diff_rows`) with `_key` and `_unit`, both as JSON."""
    keyed = change.withColumn("_key", hold_store.format_row_key(table.key))
    if not has_row_hold(contract, table.name):
        return keyed.withColumn("_unit", F.col("_key"))
    if not _has_sessions(contract, table.name):
        return keyed.withColumn(
            "_unit", hold_store.format_row_key(RECORD_COLUMNS if table.kind == "versions" else table.identity)
        )
    # Sessions that overlap are one unit: a new one replaces those that it joins.
    in_time = Window.partitionBy("_key").orderBy("windowStart", "windowEnd")
    reached = F.max("windowEnd").over(in_time.rowsBetween(Window.unboundedPreceding, -1))
    apart = F.when(reached.isNull() | (F.col("windowStart") > reached), 1).otherwise(0)
    numbered = keyed.withColumn("_apart", apart).withColumn("_group", F.sum("_apart").over(in_time))
    group = Window.partitionBy("_key", "_group")
    start, end = F.min("windowStart").over(group), F.max("windowEnd").over(group)
    key = [F.col(f"`{column}`") for column in table.key]
    unit = hold_store.format_key(*key, start.alias("windowStart"), end.alias("windowEnd"))
    return numbered.withColumn("_unit", unit).drop("_apart", "_group")


def select_held_rows(change: DataFrame, held: DataFrame, contract: Contract, table: Table) -> DataFrame:
    """Return the rows of a change (`add_units`) that are not published while the units of `held` (`_unit`) are held.

    Columns: those of the change.
    """
    held = held.select(F.col("_unit").alias("_held")).distinct()
    rows = change.join(F.broadcast(held), F.col("_unit") == F.col("_held"), "left_semi")
    if table.kind != "pairs" or not has_row_hold(contract, table.name):
        return rows
    passing = change.join(F.broadcast(held), F.col("_unit") == F.col("_held"), "left_anti")
    alone = [_find_unpaired_rows(change, rows, passing, side) for side in (_LEFT_PLACE, _RIGHT_PLACE)]
    return reduce(DataFrame.unionByName, [rows, *alone])


_LEFT_PLACE, _RIGHT_PLACE = ("_partition", "_offset"), ("_rightPartition", "_rightOffset")


def _find_unpaired_rows(change: DataFrame, held: DataFrame, passing: DataFrame, side: tuple[str, str]) -> DataFrame:
    """Return the rows (event, null) that a change closes only because of pairs that are held."""
    other = _RIGHT_PLACE if side == _LEFT_PLACE else _LEFT_PLACE
    closed = passing.where((F.col("_change") == "close") & F.col(other[1]).isNull() & F.col(side[1]).isNotNull())

    def events(rows: DataFrame) -> DataFrame:
        opened = rows.where((F.col("_change") == "open") & F.col(other[1]).isNotNull())
        return opened.select(_event_place(side).alias("_event")).distinct()

    unpaired = closed.join(events(held), _event_place(side) == F.col("_event"), "left_semi")
    return unpaired.join(events(passing), _event_place(side) == F.col("_event"), "left_anti").select(*change.columns)


def _event_place(side: tuple[str, str]) -> Column:
    return F.struct(*(F.col(column).alias(name) for column, name in zip(side, RECORD_COLUMNS, strict=True)))


def _has_sessions(contract: Contract, name: str) -> bool:
    view = contract.views.get(name)
    return view is not None and view.window is not None and view.window.session is not None
