"""Quarantine gates: which changes a run holds back, and what becomes of those that were held before.

The whole change of a key with a failing row is held: the key stays as it was. With `hold: row` less is held:
`hold_units.py` has the units of a change, `row_holds.py` the records that a topic's table is derived without. A later
run that ingests something for a held key, or has another contract, derives what was held of it again
(runs/derive_view.py) and publishes what passes then (`mended`). What a person has released is published if it is still
what the person saw.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import reduce
from typing import NamedTuple

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from hindcast.contract import Contract, Expectation
from hindcast.contract.sensitive import find_sensitive_columns
from hindcast.kafka import topic_patterns
from hindcast.plan import journal
from hindcast.plan.plans import Plan
from hindcast.plan.runs import last_included_run, was_lost
from hindcast.quality import gates, hold_store
from hindcast.quality.expectations import format_gate, is_row_by_row
from hindcast.quality.gate_results import GateResult
from hindcast.quality.hold_units import (
    KINDS_WITH_EVENTS,
    RECORD_COLUMNS,
    add_units,
    can_share_units,
    has_row_hold,
    select_held_rows,
)
from hindcast.quality.row_holds import HoldableRecords, free_change, sift_records
from hindcast.quality.staged_change import StagedChange
from hindcast.store import commits, row_reader, table_creation, tables
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

    `rederived`: the held units (`hold_store.read_held_units`) that the step has derived again; None: all. Others stay
    held. `records`: only for `hold: row` on a topic that is read as a table. `keeps_unchanged`: of all that was derived
    again, units whose change is the one that is held stay held, and are not judged.
    """

    rederived: DataFrame | None = None
    records: HoldableRecords | None = None
    keeps_unchanged: bool = False


def hold_changes(
    candidate: StagedChange, blamed: DataFrame | None, after: int, rederived: DataFrame | None = None
) -> HeldChange | None:
    """Return what is held back of a candidate, given the rows that quarantine gates fail (`_find_failing_rows`).

    None if none fails (`blamed` is None) and nothing was held. `after`: the last run that published the table;
    `rederived`: see `HoldInputs`. A change that a person has released as it is now is not held.
    """
    spark, table = candidate.change.sparkSession, candidate.table
    waiting = _read_held_units(candidate)
    if waiting is None and blamed is None:
        return None
    is_shared = waiting is not None and table.kind in KINDS_WITH_EVENTS
    waiting = spark.createDataFrame([], hold_store.HELD_UNIT_SCHEMA) if waiting is None else waiting
    failing_rows = _find_failing_rows(candidate, []) if blamed is None else blamed
    own = add_units(candidate.change, candidate.contract, table, closes=candidate.closed > 0)
    place = F.struct(*(F.col(f"`{column}`") for column in table.identity))
    alike = failing_rows.select(F.col("_place").alias("_failed")).distinct()
    if has_row_hold(candidate.contract, candidate.name):
        failing = own.where("_change = 'open'").join(alike, place == F.col("_failed"), "left_semi").select("_unit")
    else:
        failing = failing_rows.select(F.col("_key").alias("_unit"))
    units = hold_store.digest_units(own.join(failing.distinct(), "_unit", "left_semi"))
    behind = _find_earliest_holds(own, waiting, place) if is_shared else _group_by_key(waiting)
    judged = _judge_units(candidate, units, waiting, after, behind)
    keys = judged.where("NOT passing").select(*(F.col(name).alias(f"_{name}") for name in _UNIT_COLUMNS)).drop("_key")
    unpublished = select_held_rows(own, keys, table).localCheckpoint()
    reasons = _gather_reasons(failing_rows, "_place")
    rows = (
        own.join(keys, "_unit")
        .join(reasons, (place == F.col("_place")) & (F.col("_change") == "open"), "left")
        .drop("_place")
    )
    rederived_units = _select_rederived(waiting, rederived)
    return _build_held_change(candidate, judged, rows, rederived_units)._replace(unpublished=unpublished)


def hold_records(
    candidate: StagedChange, blamed: DataFrame | None, records: HoldableRecords, after: int, rederived: DataFrame | None
) -> HeldChange | None:
    """Return which records are held back: those that gates blame (`row_holds.sift_records`, None: none do).

    None if none is blamed and nothing was held. `after`, `rederived`: as for `hold_changes`.
    """
    waiting = _read_held_units(candidate)
    if waiting is None and blamed is None:
        return None
    spark = candidate.change.sparkSession
    waiting = spark.createDataFrame([], hold_store.HELD_UNIT_SCHEMA) if waiting is None else waiting
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
    return _build_held_change(candidate, judged, rows.join(keys, "_unit"), _select_rederived(waiting, rederived))


def _select_rederived(waiting: DataFrame, rederived: DataFrame | None) -> DataFrame:
    """Return the waiting units that were derived again: all of them if `rederived` is None."""
    if rederived is None:
        return waiting
    return waiting.join(_fill_units(rederived), ["key", "unit"], "left_semi")


def find_released_units(plan: Plan, name: str, waiting: DataFrame) -> DataFrame:
    """Return the units of `waiting` (`hold_store.read_held_units`) that a plan releases and that are still as seen."""
    release = plan.released_keys.get(name)
    if release is None:
        return waiting.where("false")
    looked_at = F.col("at") <= F.lit(release.until)
    # Rows, not literals: a person may release very many keys.
    keys = waiting.sparkSession.createDataFrame([[key] for key in release.keys], "key string").distinct()
    return waiting.where(looked_at).join(keys, "key", "left_semi").select(*waiting.columns)


def find_units_of_events(
    contract: Contract, table: Table, waiting: DataFrame, rows: DataFrame, before: int
) -> DataFrame:
    """Return the units of `waiting` (`hold_store.read_held_units`, `before` a run) that hold an event of some rows.

    An event that is held under one key may be derived with another one, and may have no current row.
    """
    spark, place = waiting.sparkSession, _find_record_place(contract, table.warehouse, table.name)
    held = hold_store.read_held_places(spark, table.warehouse, table.pipeline, table.name, before)
    record = F.struct(place["topic"].alias("topic"), place["partition"].alias("partition"), F.col("_offset"))
    records = rows.where("_offset IS NOT NULL").select(record.alias("_record")).distinct()
    own = F.struct("topic", "partition", F.col("offset").alias("_offset"))
    units = held.join(records, own == F.col("_record"), "left_semi").select(F.col("unit").alias("_unit")).distinct()
    return waiting.join(units, F.coalesce("unit", "key") == F.col("_unit"), "left_semi")


def _read_held_units(candidate: StagedChange) -> DataFrame | None:
    """Return what is held of a table (`hold_store.read_held_units`); the `unit` of a whole key is the key."""
    table, spark = candidate.table, candidate.change.sparkSession
    held = hold_store.read_held_units(spark, table.warehouse, table.pipeline, candidate.name, before=candidate.plan.run)
    return None if held is None else _fill_units(held)


def _fill_units(waiting: DataFrame) -> DataFrame:
    return waiting.withColumn("unit", F.coalesce("unit", "key"))


def _group_by_key(waiting: DataFrame) -> DataFrame:
    """Return since when each key of `waiting` is held: `key`, `_before`."""
    return waiting.groupBy("key").agg(F.min("since").alias("_before"))


def _find_earliest_holds(own: DataFrame, waiting: DataFrame, place: Column) -> DataFrame:
    """Return since when rows of a change (`add_units`) are held, by key: `key`, `_before`.

    An event that has moved from one held key to another is held since the earlier of the two.
    """
    by_key = _group_by_key(waiting)
    rows = own.select("_key", place.alias("_place"))
    held = rows.join(by_key, F.col("_key") == F.col("key")).groupBy(F.col("_place").alias("_held"))
    connected = rows.join(held.agg(F.min("_before").alias("since")), F.col("_place") == F.col("_held"))
    every = by_key.unionByName(connected.select(F.col("_key").alias("key"), F.col("since").alias("_before")))
    return every.groupBy("key").agg(F.min("_before").alias("_before"))


def _judge_units(
    candidate: StagedChange, units: DataFrame, waiting: DataFrame, after: int, behind: DataFrame
) -> DataFrame:
    """Return failing units (`key`, `unit`, `digest`) with `since`, `new` and `passing`.

    `new`: the same change was not held before; `passing`: a person has released the unit as it is. `behind`: since
    when the rows of a key are held. It is by key: a unit may have another name when it fails again, like a session
    that has grown.
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
        .join(behind, "key", "left")
        .join(released.distinct(), ["unit", "digest"], "left")
        .select(
            *("key", "unit", "digest"),
            settled.cast("long").alias("since"),
            (~known).alias("new"),
            F.coalesce("_released", F.lit(False)).alias("passing"),
        )
        .localCheckpoint()
    )


def _build_held_change(candidate: StagedChange, judged: DataFrame, rows: DataFrame, rederived: DataFrame) -> HeldChange:
    """Return what is held, given the `judged` units and their `rows`; what `rederived` has besides is no longer held.

    A unit may go on under another key.
    """
    failing = judged.where("NOT passing").select("unit")
    held = rows.select(F.col("_key").alias("key"), F.col("_unit").alias("unit")).join(failing, "unit", "left_semi")
    ended = rederived.join(held.distinct(), ["key", "unit"], "left_anti")
    released = find_released_units(candidate.plan, candidate.name, rederived).select("unit")
    return HeldChange(
        judged.where("NOT passing").select("key").distinct().count(),
        rows,
        {"released": ended.join(released, "unit", "left_semi"), "mended": ended.join(released, "unit", "left_anti")},
    )


def _gather_reasons(failing: DataFrame, place: str) -> DataFrame:
    """Return for each failing row the first gate that it fails, and all reasons."""
    return failing.groupBy(place).agg(
        F.min("_gate").alias("_gate"),
        F.min_by("_expectation", "_gate").alias("_expectation"),
        F.array_join(F.sort_array(F.collect_set("_reason")), "; ").alias("_reason"),
    )


@contextmanager
def sift_change(
    candidate: StagedChange, expected: Sequence[Expectation], after: int, inputs: HoldInputs | None = None
) -> Iterator[tuple[StagedChange, HeldChange | None, list[GateResult]]]:
    """Yield what quarantine gates let pass of a candidate, what they hold back, and the results of all gates.

    Gates that hold nothing are evaluated on what passes. The change that passes is freed when the block ends.
    """
    inputs = inputs or HoldInputs()
    if inputs.records is not None:
        with sift_records(candidate, expected, inputs.records) as (passed, blamed, results):
            yield passed, hold_records(candidate, blamed, inputs.records, after, inputs.rederived), results
        return
    judged, rederived = _leave_out_unchanged(candidate) if inputs.keeps_unchanged else (candidate, inputs.rederived)
    try:
        with _sift_rows(judged, expected, after, rederived) as (passed, held, results):
            yield passed, held, results
    finally:
        free_change(judged, candidate)


def _leave_out_unchanged(candidate: StagedChange) -> tuple[StagedChange, DataFrame | None]:
    """Return a candidate without the held units whose change is the one that is held, and the held units that are left:
    all of them (None) if every one has changed. A unit that a person has released is left.
    """
    waiting = _read_held_units(candidate)
    if waiting is None:
        return candidate, None
    units = F.broadcast(waiting.select(F.col("unit").alias("_unit")).distinct())
    own = add_units(candidate.change, candidate.contract, candidate.table, closes=candidate.closed > 0)
    digests = hold_store.digest_units(own.join(units, "_unit", "left_semi"))
    unchanged = waiting.join(digests, ["unit", "key", "digest"], "left_semi")
    if can_share_units(candidate.contract, candidate.table) and candidate.closed:
        # What becomes of a row in several units depends on all of them.
        row = F.struct(*(F.col(f"`{column}`") for column in candidate.table.identity), "_change")
        shared = own.groupBy(row.alias("_row")).agg(F.collect_set("_unit").alias("_units")).where("size(_units) > 1")
        unchanged = unchanged.join(shared.select(F.explode("_units").alias("unit")).distinct(), "unit", "left_anti")
    released = find_released_units(candidate.plan, candidate.name, waiting)
    unchanged = unchanged.join(released, "unit", "left_anti").select("unit").distinct().localCheckpoint()
    if not unchanged.take(1):
        return candidate, None
    units = unchanged.select(F.col("unit").alias("_unit"))
    rows = select_held_rows(own, units, candidate.table).localCheckpoint()
    return candidate.leave_out_rows(rows), waiting.join(unchanged, "unit", "left_anti")


@contextmanager
def _sift_rows(
    candidate: StagedChange, expected: Sequence[Expectation], after: int, rederived: DataFrame | None
) -> Iterator[tuple[StagedChange, HeldChange | None, list[GateResult]]]:
    """Yield what `sift_change` does, where rows of the change are held, not records."""
    results = gates.evaluate_gates(candidate, expected)
    blamed = _find_blamed_rows(candidate, results, expected)
    passed, held = candidate, hold_changes(candidate, blamed, after, rederived)
    try:
        while blamed is not None and held is not None and held.keys and held.unpublished is not None:
            # Rows that passed before may fail beside what is left: repeat until no further row does.
            free_change(passed, candidate)
            passed = candidate.leave_out_rows(held.unpublished)
            left = gates.evaluate_gates(passed, expected)
            results = [first if first.is_holding else second for first, second in zip(results, left, strict=True)]
            if (still := _find_blamed_rows(passed, left, expected)) is None:
                break
            more = still.join(blamed.select("_place", "_gate"), ["_place", "_gate"], "left_anti")
            if not more.take(1):
                break
            blamed = blamed.unionByName(more).localCheckpoint()
            held = hold_changes(candidate, blamed, after, rederived)
        yield passed, held, results
    finally:
        free_change(passed, candidate)


def _find_blamed_rows(
    candidate: StagedChange, results: Sequence[GateResult], expected: Sequence[Expectation]
) -> DataFrame | None:
    """Return the rows that quarantine gates fail (`_find_failing_rows`); None if all of them pass."""
    failed = [expected[result.gate] for result in results if result.is_holding]
    return _find_failing_rows(candidate, failed) if failed else None


def append_entries(
    passed: StagedChange, failed: Sequence[tuple[Expectation, GateResult]], held: HeldChange | None, *, stopped: bool
) -> None:
    """Commit the failing rows of the `failed` gates (stop and warn), then what is held, released or mended.

    Nothing is held or released if the table is `stopped`.
    """
    contract, plan, table = passed.contract, passed.plan, passed.table
    at = row_reader.read_next_moment(tables.open_table(hold_store.failing_table(table.warehouse, contract.pipeline)))
    place = _find_record_place(contract, table.warehouse, passed.name)
    shown = set(passed.change.columns) - find_sensitive_columns(contract)[passed.name]
    shown = {column for column in shown if not column.startswith("_")}

    def build_entries(rows: DataFrame, entry: str) -> DataFrame:
        return hold_store.build_entries(rows, table, entry, run=plan.run, at=at, place=place, shown=shown)

    entries = []
    for gate, result in failed:
        if is_row_by_row(gate.type) and result.failing:
            reason = {"_gate": result.gate, "_expectation": gate.type, "_reason": format_gate(gate.type, gate.kwargs)}
            rows = gates.find_presentable_rows(passed, gate).withColumns(
                {name: F.lit(value) for name, value in reason.items()}
            )
            entries.append(build_entries(rows, "stopped" if gate.on_failure == "stop" else "warned"))
    _commit_entries(passed, entries, passed.name)
    if held is None or stopped:
        return
    released = plan.released_keys.get(passed.name)
    by = released.by if released else None
    ended = [
        hold_store.build_end_entries(units, table, entry, run=plan.run, at=at, by=by if entry == "released" else None)
        for entry, units in held.ended_units.items()
    ]
    null_for_whole_keys = F.when(F.col("unit") != F.col("key"), F.col("unit"))
    entries = [build_entries(held.rows.where("_new"), "held"), *ended]
    _commit_entries(passed, [part.withColumn("unit", null_for_whole_keys) for part in entries], f"{passed.name}/held")


def _commit_entries(passed: StagedChange, parts: Sequence[DataFrame], name: str) -> None:
    """Commit entries to the table of failing rows, all in one commit; nothing if there are none."""
    if not parts:
        return
    entries = reduce(DataFrame.unionByName, parts).persist()
    if entries.take(1):
        failing = hold_store.failing_table(passed.table.warehouse, passed.contract.pipeline)
        table_creation.ensure_table(failing, hold_store.SCHEMA)
        commits.append_rows(entries, failing, passed.plan.run, {"run": passed.plan.run}, part=name)
    entries.unpersist()


_UNIT_COLUMNS = ("key", "unit", "digest", "since", "new")


def _find_failing_rows(candidate: StagedChange, failed: Sequence[Expectation]) -> DataFrame:
    """Return the rows that quarantine gates fail: `_key`, `_place` (identity), `_gate`, `_expectation`, `_reason`."""
    expected = candidate.contract.expectations(candidate.name)
    place = F.struct(*(F.col(f"`{column}`") for column in candidate.table.identity)).alias("_place")
    parts = [
        gates.select_failing_rows(candidate, gate).select(
            hold_store.format_row_key(candidate.table.key).alias("_key"),
            place,
            F.lit(expected.index(gate)).alias("_gate"),
            F.lit(gate.type).alias("_expectation"),
            F.lit(format_gate(gate.type, gate.kwargs)).alias("_reason"),
        )
        for gate in failed
    ]
    if not parts:
        none = candidate.change.select(hold_store.format_row_key(candidate.table.key).alias("_key"), place).where(
            "false"
        )
        return none.withColumns({"_gate": F.lit(0), "_expectation": F.lit(""), "_reason": F.lit("")})
    return reduce(DataFrame.unionByName, parts).localCheckpoint()


def _find_record_place(contract: Contract, warehouse: str, name: str) -> dict[str, Column]:
    """Return the Kafka topic and partition of a row's record as expressions over `_partition`.

    The topic is null where the table comes from another pipeline.
    """
    name = contract.find_first_source(name)
    kafka = contract.kafka_topic(name) if name in contract.topics else None
    members = journal.read_members(warehouse, contract, name) if name in contract.topics else {}
    known = topic_patterns.member_columns(members, "_partition")
    topic, partition = known.get("topic", F.lit(kafka)), known.get("topicPartition", F.col("_partition"))
    return {"topic": topic, "partition": partition}
