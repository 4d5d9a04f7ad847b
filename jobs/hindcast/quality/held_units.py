"""Hold units: what a quarantine gate holds back at once, a key or, with `hold: row`, a failing row.

| hold | table | unit |
| --- | --- | --- |
| key | any | the whole change of a key |
| row | versions, of a topic | a record (`held_records` derives the table without it) |
| row | events | an event |
| row | windows | a window; a session with those that it replaces |
| row | pairs | a pair |

An event can move from one key to another: its row under the one is closed, under the other opened. With `hold: key`
both are held if one of the keys is, and so are pairs of an event with its row alone, (event, null): `connect_keys`. So
a row of a change may be in several units.

While a pair is held, the rows of its events alone stay as they are too: (event, null) is not closed, or not opened.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from hindcast.bitemporal import plane
from hindcast.contract import Contract
from hindcast.quality import entry_rows
from hindcast.store.tables import Table

RECORD_COLUMNS = ("_partition", "_offset")
"""The columns that identify the record that a row of a topic's table comes from."""


KINDS_WITH_EVENTS = ("events", "pairs")
"""The kinds of tables whose rows an event identifies, so that its key can change."""


def has_row_hold(contract: Contract, name: str) -> bool:
    """Return whether the gates of a topic or view hold single rows back."""
    return (contract.topics.get(name) or contract.views[name]).hold == "row"


def has_record_hold(contract: Contract, name: str) -> bool:
    """Return whether they hold single records, so that the table is derived without them."""
    return name in contract.topics and contract.topics[name].read == "table" and has_row_hold(contract, name)


def add_units(change: DataFrame, contract: Contract, table: Table, *, closes: bool = True) -> DataFrame:
    """Return the rows of a change (`plane.diff_rows`) with `_key` and `_unit`, both as JSON, once for each unit.

    With `hold: key` the `_key` is the unit, also of rows of other keys that are held with it: there are none in a
    change that closes nothing (`closes`).
    """
    if can_share_units(contract, table) and closes:
        return connect_keys(change, table).withColumn("_key", F.col("_unit"))
    keyed = change.withColumn("_key", entry_rows.format_row_key(table.key))
    if not has_row_hold(contract, table.name):
        return keyed.withColumn("_unit", F.col("_key"))
    if not _has_sessions(contract, table.name):
        return keyed.withColumn(
            "_unit", entry_rows.format_row_key(RECORD_COLUMNS if table.kind == "versions" else table.identity)
        )
    # Sessions that overlap are one unit: a new one replaces those that it joins.
    in_time = Window.partitionBy("_key").orderBy("windowStart", "windowEnd")
    reached = F.max("windowEnd").over(in_time.rowsBetween(Window.unboundedPreceding, -1))
    apart = F.when(reached.isNull() | (F.col("windowStart") > reached), 1).otherwise(0)
    numbered = keyed.withColumn("_apart", apart).withColumn("_group", F.sum("_apart").over(in_time))
    group = Window.partitionBy("_key", "_group")
    start, end = F.min("windowStart").over(group), F.max("windowEnd").over(group)
    key = [F.col(f"`{column}`") for column in table.key]
    unit = entry_rows.format_key(*key, start.alias("windowStart"), end.alias("windowEnd"))
    return numbered.withColumn("_unit", unit).drop("_apart", "_group")


def can_share_units(contract: Contract, table: Table) -> bool:
    """Return whether a row of a change can be in several units."""
    return table.kind in KINDS_WITH_EVENTS and not has_row_hold(contract, table.name)


def connect_keys(rows: DataFrame, table: Table) -> DataFrame:
    """Return rows of a table with `_key`, and with `_unit` for each key that they are published with, both as JSON.

    That is their own key, and of an event or a pair also the other keys that rows of it have. A pair is published with
    the row of either event alone.
    """
    keyed = rows.withColumn("_key", entry_rows.format_row_key(table.key))
    if table.kind not in KINDS_WITH_EVENTS:
        return keyed.withColumn("_unit", F.col("_key"))
    place = F.struct(*(F.col(f"`{column}`") for column in table.identity))  # null-safe inside
    keys = keyed.select(place.alias("_place"), F.col("_key").alias("_unit")).distinct()
    connected = keyed.join(keys, place == F.col("_place")).drop("_place")
    if table.kind == "events":
        return connected.localCheckpoint()  # its readers join it with itself
    both = [connected, *(_add_keys_of_alone(keyed, side) for side in (_LEFT_PLACE, _RIGHT_PLACE))]
    alike = [*table.identity, *(["_change"] if "_change" in rows.columns else []), "_key", "_unit"]
    return reduce(DataFrame.unionByName, both).dropDuplicates(alike).localCheckpoint()


def has_moved_rows(held: DataFrame, parts: Sequence[DataFrame], table: Table) -> bool:
    """Return whether rows of a held key (`held`, `key`) are published together with rows of another key.

    `parts`: rows of a table as they are and as they would be.
    """
    if table.kind not in KINDS_WITH_EVENTS:
        return False
    names = dict.fromkeys((*table.identity, *table.key))
    rows = reduce(DataFrame.unionByName, [part.select(*(F.col(f"`{name}`") for name in names)) for part in parts])
    moved = connect_keys(rows.distinct(), table).where("_key != _unit")
    keys = moved.select(F.explode(F.array("_key", "_unit")).alias("key")).distinct()
    return bool(keys.join(held, "key", "left_semi").take(1))


def _add_keys_of_alone(keyed: DataFrame, side: tuple[str, str]) -> DataFrame:
    """Return the rows of pairs with `_unit`: the key (`_key`) of a row of the event alone on one side."""
    other = _find_other_side(side)
    alone = keyed.where(F.col(side[1]).isNotNull() & F.col(other[1]).isNull())
    keys = alone.select(_event_place(side).alias("_event"), F.col("_key").alias("_unit")).distinct()
    pairs = keyed.where(F.col(side[1]).isNotNull() & F.col(other[1]).isNotNull())
    return pairs.join(keys, _event_place(side) == F.col("_event")).drop("_event")


def select_held_rows(change: DataFrame, held: DataFrame, table: Table) -> DataFrame:
    """Return the rows of a change (`add_units`) that are not published while the units of `held` (`_unit`) are held.

    Columns: those of the change.
    """
    held = held.select(F.col("_unit").alias("_held")).distinct()
    rows = change.join(F.broadcast(held), F.col("_unit") == F.col("_held"), "left_semi")
    if table.kind != "pairs":
        return rows
    passing = plane.drop_matching_rows(change, rows, [*table.identity, "_change"])
    alone = [_find_unpaired_rows(change, rows, passing, side) for side in (_LEFT_PLACE, _RIGHT_PLACE)]
    return reduce(DataFrame.unionByName, [rows, *alone])


_LEFT_PLACE, _RIGHT_PLACE = ("_partition", "_offset"), ("_rightPartition", "_rightOffset")


def _find_unpaired_rows(change: DataFrame, held: DataFrame, passing: DataFrame, side: tuple[str, str]) -> DataFrame:
    """Return the rows (event, null) that a change closes only because of pairs that are held, or opens beside them."""
    other = _find_other_side(side)
    alone = passing.where(F.col(other[1]).isNull() & F.col(side[1]).isNotNull())

    def match_events(rows: DataFrame, pairs: DataFrame, which: str, how: str) -> DataFrame:
        chosen = pairs.where((F.col("_change") == which) & F.col(other[1]).isNotNull())
        events = chosen.select(_event_place(side).alias("_event")).distinct()
        return rows.join(events, _event_place(side) == F.col("_event"), how).select(*change.columns)

    closed = match_events(alone.where("_change = 'close'"), held, "open", "left_semi")
    closed = match_events(closed, passing, "open", "left_anti")
    return closed.unionByName(match_events(alone.where("_change = 'open'"), held, "close", "left_semi"))


def _find_other_side(side: tuple[str, str]) -> tuple[str, str]:
    return _RIGHT_PLACE if side == _LEFT_PLACE else _LEFT_PLACE


def _event_place(side: tuple[str, str]) -> Column:
    return F.struct(*(F.col(column).alias(name) for column, name in zip(side, RECORD_COLUMNS, strict=True)))


def _has_sessions(contract: Contract, name: str) -> bool:
    view = contract.views.get(name)
    return view is not None and view.window is not None and view.window.session is not None
