"""The units in which quarantine gates hold a table's changes back: keys, or with `hold: row` failing rows.

| hold | table | unit |
| --- | --- | --- |
| key | any | the whole change of a key |
| row | versions, of a topic | a record (`row_holds` derives the table without it) |
| row | events | an event |
| row | windows | a window; a session with those that it takes the place of |
| row | pairs | a pair |

Of a pair that is held also what was believed stays of its events alone: (event, null) is not closed for it.
"""

from __future__ import annotations

from functools import reduce

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from hindcast.contracts import Contract
from hindcast.delta.tables import Table
from hindcast.quality import holds

RECORD = ("_partition", "_offset")
"""The columns that say which record a row of a topic's table comes from."""


def holds_rows(contract: Contract, name: str) -> bool:
    """Whether the gates of a topic or view hold single rows back."""
    return (contract.topics.get(name) or contract.views[name]).hold == "row"


def holds_records(contract: Contract, name: str) -> bool:
    """Whether they hold records, without which the table is derived."""
    return name in contract.topics and contract.topics[name].read == "table" and holds_rows(contract, name)


def with_units(change: DataFrame, contract: Contract, table: Table) -> DataFrame:
    """Add `_key` and `_unit`, both as JSON, to the rows of a change (`plane.changes`)."""
    keyed = change.withColumn("_key", holds.key_of(table.key))
    if not holds_rows(contract, table.name):
        return keyed.withColumn("_unit", F.col("_key"))
    if not _has_sessions(contract, table.name):
        return keyed.withColumn("_unit", holds.key_of(RECORD if table.kind == "versions" else table.identity))
    # Sessions that overlap are one unit: a new one takes the place of those that it joins.
    in_time = Window.partitionBy("_key").orderBy("windowStart", "windowEnd")
    reached = F.max("windowEnd").over(in_time.rowsBetween(Window.unboundedPreceding, -1))
    apart = F.when(reached.isNull() | (F.col("windowStart") > reached), 1).otherwise(0)
    numbered = keyed.withColumn("_apart", apart).withColumn("_group", F.sum("_apart").over(in_time))
    group = Window.partitionBy("_key", "_group")
    start, end = F.min("windowStart").over(group), F.max("windowEnd").over(group)
    key = [F.col(f"`{column}`") for column in table.key]
    unit = holds.keyed(*key, start.alias("windowStart"), end.alias("windowEnd"))
    return numbered.withColumn("_unit", unit).drop("_apart", "_group")


def rows_held_back(change: DataFrame, held: DataFrame, contract: Contract, table: Table) -> DataFrame:
    """Return the rows of a change (`with_units`) that are not published while the units of `held` (`_unit`) are held.

    Columns: those of the change.
    """
    held = held.select(F.col("_unit").alias("_held")).distinct()
    rows = change.join(F.broadcast(held), F.col("_unit") == F.col("_held"), "left_semi")
    if table.kind != "pairs" or not holds_rows(contract, table.name):
        return rows
    passing = change.join(F.broadcast(held), F.col("_unit") == F.col("_held"), "left_anti")
    alone = [_events_alone(change, rows, passing, side) for side in (_LEFT, _RIGHT)]
    return reduce(DataFrame.unionByName, [rows, *alone])


_LEFT, _RIGHT = ("_partition", "_offset"), ("_rightPartition", "_rightOffset")


def _events_alone(change: DataFrame, held: DataFrame, passing: DataFrame, side: tuple[str, str]) -> DataFrame:
    """Return the rows (event, null) that a change closes only because of pairs that are held."""
    other = _RIGHT if side == _LEFT else _LEFT
    closed = passing.where((F.col("change") == "close") & F.col(other[1]).isNull() & F.col(side[1]).isNotNull())

    def events(rows: DataFrame) -> DataFrame:
        opened = rows.where((F.col("change") == "open") & F.col(other[1]).isNotNull())
        return opened.select(_place(side).alias("_event")).distinct()

    kept = closed.join(events(held), _place(side) == F.col("_event"), "left_semi")
    return kept.join(events(passing), _place(side) == F.col("_event"), "left_anti").select(*change.columns)


def _place(side: tuple[str, str]) -> Column:
    return F.struct(*(F.col(column).alias(name) for column, name in zip(side, RECORD, strict=True)))


def _has_sessions(contract: Contract, name: str) -> bool:
    view = contract.views.get(name)
    return view is not None and view.window is not None and view.window.session is not None
