"""Quarantine gates: which changes a run holds back, and what becomes of those that were held before.

The whole change of a key with a failing row is held: the key stays as it was. With `hold: row` less is held:
`held_units.py` has the units of a change, `held_records.py` the records that a topic's table is derived without;
`hold_decisions.py` decides what is held. A later run that ingests something for a held key, or has another contract,
derives what was held of it again (runs/derive_view.py) and publishes what passes then (`mended`). What a person has
released is published if it is still what the person saw.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import reduce

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from hindcast.contract import Expectation
from hindcast.contract.sensitive import find_sensitive_columns
from hindcast.quality import entry_rows, failing_rows, gate_evaluation
from hindcast.quality.entry_rows import find_record_place
from hindcast.quality.expectations import format_gate, is_row_by_row
from hindcast.quality.gate_results import GateResult
from hindcast.quality.held_records import free_change, sift_records
from hindcast.quality.held_units import (
    add_units,
    can_share_units,
    select_held_rows,
)
from hindcast.quality.hold_decisions import (
    HeldChange,
    HoldInputs,
    digest_change,
    find_failing_rows,
    find_released_units,
    hold_changes,
    hold_records,
    read_waiting_units,
)
from hindcast.quality.staged_change import StagedChange
from hindcast.store import commits, row_reader, table_creation, tables


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
    waiting = read_waiting_units(candidate)
    if waiting is None:
        return candidate, None
    units = F.broadcast(waiting.select(F.col("unit").alias("_unit")).distinct())
    own = add_units(candidate.change, candidate.contract, candidate.table, closes=candidate.closed > 0)
    digests = digest_change(candidate, own.join(units, "_unit", "left_semi"))
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
    results = gate_evaluation.evaluate_gates(candidate, expected)
    blamed = _find_blamed_rows(candidate, results, expected)
    passed, held = candidate, hold_changes(candidate, blamed, after, rederived)
    try:
        while blamed is not None and held is not None and held.keys and held.unpublished is not None:
            # Rows that passed before may fail beside what is left: repeat until no further row does.
            free_change(passed, candidate)
            passed = candidate.leave_out_rows(held.unpublished)
            left = gate_evaluation.evaluate_gates(passed, expected)
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
    """Return the rows that quarantine gates fail (`find_failing_rows`); None if all of them pass."""
    failed = [expected[result.gate] for result in results if result.is_holding]
    return find_failing_rows(candidate, failed) if failed else None


def append_entries(
    passed: StagedChange, failed: Sequence[tuple[Expectation, GateResult]], held: HeldChange | None, *, stopped: bool
) -> None:
    """Commit the failing rows of the `failed` gates (stop and warn), then what is held, released or mended.

    Nothing is held or released if the table is `stopped`.
    """
    contract, plan, table = passed.contract, passed.plan, passed.table
    at = row_reader.read_next_moment(tables.open_table(failing_rows.failing_table(table.warehouse, contract.pipeline)))
    place = find_record_place(contract, table.warehouse, passed.name)
    shown = set(passed.change.columns) - find_sensitive_columns(contract)[passed.name]
    shown = {column for column in shown if not column.startswith("_")}

    def build_entries(rows: DataFrame, entry: str) -> DataFrame:
        return entry_rows.build_entries(rows, table, entry, run=plan.run, at=at, place=place, shown=shown)

    entries = []
    for gate, result in failed:
        if is_row_by_row(gate.type) and result.failing:
            reason = {"_gate": result.gate, "_expectation": gate.type, "_reason": format_gate(gate.type, gate.kwargs)}
            rows = gate_evaluation.find_presentable_rows(passed, gate).withColumns(
                {name: F.lit(value) for name, value in reason.items()}
            )
            entries.append(build_entries(rows, "stopped" if gate.on_failure == "stop" else "warned"))
    _commit_entries(passed, entries, passed.name)
    if held is None or stopped:
        return
    released = plan.released_keys.get(passed.name)
    by = released.by if released else None
    ended = [
        entry_rows.build_end_entries(units, table, entry, run=plan.run, at=at, by=by if entry == "released" else None)
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
        failing = failing_rows.failing_table(passed.table.warehouse, passed.contract.pipeline)
        table_creation.ensure_table(failing, failing_rows.SCHEMA)
        commits.append_rows(entries, failing, passed.plan.run, {"run": passed.plan.run}, part=name)
    entries.unpersist()
