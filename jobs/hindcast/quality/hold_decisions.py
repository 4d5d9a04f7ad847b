"""Which units of a change are held back, given the rows that quarantine gates fail, and which are no longer held."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from typing import NamedTuple

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from hindcast.contract import Contract, Expectation
from hindcast.plan import horizon, journal
from hindcast.plan.plans import Plan
from hindcast.plan.runs import last_included_run, was_lost
from hindcast.quality import entry_rows, gate_evaluation, held_changes
from hindcast.quality.entry_rows import find_record_place
from hindcast.quality.expectations import format_gate
from hindcast.quality.held_records import HoldableRecords
from hindcast.quality.held_units import (
    KINDS_WITH_EVENTS,
    RECORD_COLUMNS,
    add_units,
    has_row_hold,
    select_held_rows,
)
from hindcast.quality.staged_change import StagedChange
from hindcast.store.tables import Table


class HeldChange(NamedTuple):
    """The changes that are held back: the number of `keys`, the rows of their changes, and units no longer held.

    `rows`: rows of the change, with `_key`, `_unit`, `_since`, `_digest` and, for failing ones, `_gate`, `_expectation`
    and `_reason`; `_new` is false where the same change of the unit was held before. `ended_units`: units that are no
    longer held, by entry (released, mended). `unpublished`: the rows of the change that are not published; None where
    the change was derived without what is held.
    """

    keys: int
    rows: DataFrame
    ended_units: dict[str, DataFrame]
    unpublished: DataFrame | None = None


class HoldInputs(NamedTuple):
    """The input that a step gives to the decision what is held of its table.

    `rederived`: the held units (`held_changes.read_held_units`) that the step has derived again; None: all. Others stay
    held. `records`: only for `hold: row` on a topic that is read as a table. `keeps_unchanged`: of all that was derived
    again, units whose change is the one that is held stay held, and are not judged.
    """

    rederived: DataFrame | None = None
    records: HoldableRecords | None = None
    keeps_unchanged: bool = False


def hold_changes(
    candidate: StagedChange, blamed: DataFrame | None, after: int, rederived: DataFrame | None = None
) -> HeldChange | None:
    """Return what is held back of a candidate, given the rows that quarantine gates fail (`find_failing_rows`).

    None if none fails (`blamed` is None) and nothing was held. `after`: the last run that published the table;
    `rederived`: see `HoldInputs`. A change that a person has released as it is now is not held.
    """
    spark, table = candidate.change.sparkSession, candidate.table
    waiting = read_waiting_units(candidate)
    if waiting is None and blamed is None:
        return None
    is_shared = waiting is not None and table.kind in KINDS_WITH_EVENTS
    waiting = spark.createDataFrame([], held_changes.HELD_UNIT_SCHEMA) if waiting is None else waiting
    failing_rows = find_failing_rows(candidate, []) if blamed is None else blamed
    own = add_units(candidate.change, candidate.contract, table, closes=candidate.closed > 0)
    place = F.struct(*(F.col(f"`{column}`") for column in table.identity))
    alike = failing_rows.select(F.col("_place").alias("_failed")).distinct()
    if has_row_hold(candidate.contract, candidate.name):
        failing = own.where("_change = 'open'").join(alike, place == F.col("_failed"), "left_semi").select("_unit")
    else:
        failing = failing_rows.select(F.col("_key").alias("_unit"))
    units = digest_change(candidate, own.join(failing.distinct(), "_unit", "left_semi"))
    if _has_lasting_units(candidate):
        behind = _group_by_unit(waiting)
    else:
        behind = _find_earliest_holds(candidate, own, waiting, place) if is_shared else _group_by_key(waiting)
    judged = _judge_units(candidate, units, waiting, after, behind)
    keys = judged.where("NOT passing").select(*(F.col(name).alias(f"_{name}") for name in _UNIT_COLUMNS)).drop("_key")
    unpublished = select_held_rows(own, keys, table).localCheckpoint()
    reasons = _gather_reasons(failing_rows, "_place")
    rows = (
        own.join(keys, "_unit")
        .join(reasons, (place == F.col("_place")) & (F.col("_change") == "open"), "left")
        .drop("_place")
    )
    return _build_held_change(candidate, judged, rows, waiting, rederived)._replace(unpublished=unpublished)


def digest_change(candidate: StagedChange, rows: DataFrame) -> DataFrame:
    """Return `entry_rows.digest_units` of rows of a candidate's change."""
    return entry_rows.digest_units(
        rows, horizon.find_frozen_until(candidate.table.warehouse, candidate.contract, candidate.name)
    )


def hold_records(
    candidate: StagedChange, blamed: DataFrame | None, records: HoldableRecords, after: int, rederived: DataFrame | None
) -> HeldChange | None:
    """Return which records are held back: those that gates blame (`held_records.sift_records`, None: none do).

    None if none is blamed and nothing was held. `after`, `rederived`: as for `hold_changes`.
    """
    waiting = read_waiting_units(candidate)
    if waiting is None and blamed is None:
        return None
    spark = candidate.change.sparkSession
    waiting = spark.createDataFrame([], held_changes.HELD_UNIT_SCHEMA) if waiting is None else waiting
    rows = records.rows.withColumn("_change", F.lit("open"))
    if blamed is None:
        rows = rows.where("false").withColumns({"_gate": F.lit(0), "_expectation": F.lit(""), "_reason": F.lit("")})
    else:
        place = F.struct(*RECORD_COLUMNS)
        reasons = _gather_reasons(blamed.withColumn("_place", place), "_place")
        rows = rows.join(reasons, place == F.col("_place")).drop("_place")
    units = rows.select(*(F.col(f"_{name}").alias(name) for name in ("key", "unit", "digest")))
    judged = _judge_units(candidate, units, waiting, after, _group_by_key(waiting))
    keys = judged.select(*(F.col(name).alias(f"_{name}") for name in _UNIT_COLUMNS)).drop("_key", "_digest")
    return _build_held_change(candidate, judged, rows.join(keys, "_unit"), waiting, rederived)


def _select_rederived(waiting: DataFrame, rederived: DataFrame | None) -> DataFrame:
    """Return the waiting units that were derived again: all of them if `rederived` is None."""
    if rederived is None:
        return waiting
    return waiting.join(_fill_units(rederived), ["key", "unit"], "left_semi")


def find_released_units(plan: Plan, name: str, waiting: DataFrame) -> DataFrame:
    """Return the units of `waiting` (`read_held_units`) that a plan releases and that are still as seen.

    A rejected unit is released only if nothing else of its key is held: else the person was not asked about it.
    """
    release = plan.released_keys.get(name)
    if release is None:
        return waiting.where("false")
    looked_at = F.col("at") <= F.lit(release.until)
    # Rows, not literals: a person may release very many keys.
    keys = waiting.sparkSession.createDataFrame([[key] for key in release.keys], "key string").distinct()
    asked = waiting.where("entry <> 'rejected'").select("key").distinct()
    units = waiting.where(looked_at).join(keys, "key", "left_semi")
    answered = units.where("entry = 'rejected'").join(asked, "key", "left_anti")
    return units.where("entry <> 'rejected'").unionByName(answered).select(*waiting.columns)


def find_units_of_events(
    contract: Contract, table: Table, waiting: DataFrame, rows: DataFrame, before: int
) -> DataFrame:
    """Return the units of `waiting` (`held_changes.read_held_units`, `before` a run) that hold an event of some rows.

    An event that is held under one key may be derived with another one, and may have no current row.
    """
    spark, place = waiting.sparkSession, find_record_place(contract, table.warehouse, table.name)
    held = held_changes.read_held_places(spark, table.warehouse, table.pipeline, table.name, before)
    record = F.struct(place["topic"].alias("topic"), place["partition"].alias("partition"), F.col("_offset"))
    records = rows.where("_offset IS NOT NULL").select(record.alias("_record")).distinct()
    own = F.struct("topic", "partition", F.col("offset").alias("_offset"))
    units = held.join(records, own == F.col("_record"), "left_semi").select(F.col("unit").alias("_unit")).distinct()
    return waiting.join(units, F.coalesce("unit", "key") == F.col("_unit"), "left_semi")


def read_waiting_units(candidate: StagedChange) -> DataFrame | None:
    """Return what is held of a table (`held_changes.read_held_units`); the `unit` of a whole key is the key."""
    table, spark = candidate.table, candidate.change.sparkSession
    held = held_changes.read_held_units(
        spark, table.warehouse, table.pipeline, candidate.name, before=candidate.plan.run
    )
    return None if held is None else _fill_units(held)


def _fill_units(waiting: DataFrame) -> DataFrame:
    return waiting.withColumn("unit", F.coalesce("unit", "key"))


def _group_by_key(waiting: DataFrame) -> DataFrame:
    """Return since when each key of `waiting` is held: `key`, `_before`."""
    return waiting.groupBy("key").agg(F.min("since").alias("_before"))


def _has_lasting_units(candidate: StagedChange) -> bool:
    """Return whether a unit is one row of a view, whose name stays: not that of a session, which can grow."""
    view = candidate.contract.views.get(candidate.name)
    if view is None or not has_row_hold(candidate.contract, candidate.name):
        return False
    return view.window is None or view.window.session is None


def _group_by_unit(waiting: DataFrame) -> DataFrame:
    """Return since when each unit of `waiting` is held: `unit`, `_before`. Before that its row was published, also
    while others of its key were held.
    """
    return waiting.groupBy("unit").agg(F.min("since").alias("_before"))


def _find_earliest_holds(candidate: StagedChange, own: DataFrame, waiting: DataFrame, place: Column) -> DataFrame:
    """Return since when rows of a change (`add_units`) are held, by key: `key`, `_before`.

    An event that has moved from one held key to another is held since the earlier of the two. Of a view that is then
    since before the first run (0), which derives it whole: other rows of the key were published until the later.
    """
    by_key = _group_by_key(waiting)
    rows = own.select("_key", place.alias("_place"))
    held = rows.join(by_key, F.col("_key") == F.col("key")).groupBy(F.col("_place").alias("_held"))
    connected = rows.join(held.agg(F.min("_before").alias("since")), F.col("_place") == F.col("_held"))
    moved = connected.select(F.col("_key").alias("key"), F.col("since").alias("_before"))
    every = by_key.withColumn("_own", F.col("_before")).unionByName(moved, allowMissingColumns=True)
    earliest = every.groupBy("key").agg(F.min("_before").alias("_before"), F.min("_own").alias("_own"))
    if candidate.name in candidate.contract.views:
        is_earlier = F.col("_before").isNotNull() & (F.col("_own").isNull() | (F.col("_own") > F.col("_before")))
        earliest = earliest.withColumn("_before", F.when(is_earlier, 0).otherwise(F.col("_before")))
    return earliest.select("key", "_before")


def _judge_units(
    candidate: StagedChange, units: DataFrame, waiting: DataFrame, after: int, behind: DataFrame
) -> DataFrame:
    """Return failing units (`key`, `unit`, `digest`) with `since`, `new` and `passing`.

    `new`: the same change was not held before; `passing`: a person has released the unit as it is. `behind`: since
    when the rows of a key are held (`key`, `_before`), for a unit may have another name when it fails again, like a
    session that has grown; or, of units whose names stay, each unit (`unit`, `_before`).
    """
    table = candidate.table
    before = waiting.groupBy("unit").agg(F.collect_set("digest").alias("_seen"))
    # With the digest: a unit that was held under several keys was seen as it was under the released one.
    released = find_released_units(candidate.plan, candidate.name, waiting).select(
        "unit", "digest", F.lit(True).alias("_released")
    )
    known = F.coalesce(F.array_contains("_seen", F.col("digest")), F.lit(False))
    past = journal.read_runs(table.warehouse, table.pipeline)
    settled = F.coalesce("_before", F.lit(last_included_run(past, after)))
    if was_lost(past, table.name, after):
        settled = F.lit(0)  # no row of before is there
    return (
        units.join(before, "unit", "left")
        .join(behind, behind.columns[0], "left")
        .join(released.distinct(), ["unit", "digest"], "left")
        .select(
            *("key", "unit", "digest"),
            settled.cast("long").alias("since"),
            (~known).alias("new"),
            F.coalesce("_released", F.lit(False)).alias("passing"),
        )
        .localCheckpoint()
    )


def _build_held_change(
    candidate: StagedChange, judged: DataFrame, rows: DataFrame, waiting: DataFrame, rederived: DataFrame | None
) -> HeldChange:
    """Return what is held, given the `judged` units and their `rows`. Of the `waiting` units those that are `rederived`
    (None: all) and not among them are no longer held.

    A unit may go on under another key.
    """
    failing = judged.where("NOT passing").select("unit")
    held = rows.select(F.col("_key").alias("key"), F.col("_unit").alias("unit")).join(failing, "unit", "left_semi")
    ended = _select_rederived(waiting, rederived).join(held.distinct(), ["key", "unit"], "left_anti")
    released = find_released_units(candidate.plan, candidate.name, waiting).select("key", "unit")
    return HeldChange(
        judged.where("NOT passing").select("key").distinct().count(),
        rows,
        {
            "released": ended.join(released, ["key", "unit"], "left_semi"),
            "mended": ended.join(released, ["key", "unit"], "left_anti"),
        },
    )


def _gather_reasons(failing: DataFrame, place: str) -> DataFrame:
    """Return for each failing row the first gate that it fails, and all reasons."""
    return failing.groupBy(place).agg(
        F.min("_gate").alias("_gate"),
        F.min_by("_expectation", "_gate").alias("_expectation"),
        F.array_join(F.sort_array(F.collect_set("_reason")), "; ").alias("_reason"),
    )


_UNIT_COLUMNS = ("key", "unit", "digest", "since", "new")


def find_failing_rows(candidate: StagedChange, failed: Sequence[Expectation]) -> DataFrame:
    """Return the rows that quarantine gates fail: `_key`, `_place` (identity), `_gate`, `_expectation`, `_reason`."""
    expected = candidate.contract.expectations(candidate.name)
    place = F.struct(*(F.col(f"`{column}`") for column in candidate.table.identity)).alias("_place")
    parts = [
        gate_evaluation.select_failing_rows(candidate, gate).select(
            entry_rows.format_row_key(candidate.table.key).alias("_key"),
            place,
            F.lit(expected.index(gate)).alias("_gate"),
            F.lit(gate.type).alias("_expectation"),
            F.lit(format_gate(gate.type, gate.kwargs)).alias("_reason"),
        )
        for gate in failed
    ]
    if not parts:
        none = candidate.change.select(entry_rows.format_row_key(candidate.table.key).alias("_key"), place).where(
            "false"
        )
        return none.withColumns({"_gate": F.lit(0), "_expectation": F.lit(""), "_reason": F.lit("")})
    return reduce(DataFrame.unionByName, parts).localCheckpoint()
