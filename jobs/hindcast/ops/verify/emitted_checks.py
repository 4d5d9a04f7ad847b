"""Check kafka views: their emitted output has no holes, and their state is there. Without Spark."""

from __future__ import annotations

from collections.abc import Iterator

from deltalake import DeltaTable

from hindcast.common.json_values import StoredObject
from hindcast.common.plurals import format_count
from hindcast.contract import Contract
from hindcast.ops.verify.findings import (
    Finding,
    backup_advice,
    rebuild_advice,
    rederive_command,
    restore_command,
)
from hindcast.ops.verify.journal_checks import RunMoments
from hindcast.plan.runs import Run
from hindcast.runs import inventory
from hindcast.store import arrow_reader, commit_ids, delta_log, duckdb_reader, tables
from hindcast.store.commit_notes import parse_note
from hindcast.store.odd_tables import refuse_unreadable_rows
from hindcast.store.tables import Table


def check_emptied(log: Table, delta_table: DeltaTable) -> Iterator[Finding]:
    """Yield a finding if a forget run emptied the output of a kafka view, and its state, after it had emitted.

    Repeats of killed forget runs did so in earlier versions.
    """
    with refuse_unreadable_rows(log):
        commits = delta_log.list_commits(delta_table, 1000)
    notes = [note for note in map(parse_note, commits) if _is_numbered(note)]
    epoch = next((note["epoch"] for note in notes if "epoch" in note), None)
    emptied = set()
    for note in notes:
        if "forgets" in note:
            emptied.add(note["forgets"])
        elif note["epoch"] == epoch and note["run"] in emptied:
            text = f"forget run {note['run']}, which was killed and repeated, removed the records that it had emitted"
            yield Finding("emitted", log.name, text, rebuild_advice(log))


def _is_numbered(note: StoredObject) -> bool:
    """Return whether a note is of a forget run, or of a run that emitted; not if somebody else wrote it."""
    numbers = [note["forgets"]] if "forgets" in note else [note.get("run"), note.get("epoch")]
    return all(type(number) is int for number in numbers)


def check_output(
    contract: Contract, name: str, log: Table, delta_table: DeltaTable, runs: list[Run], moments: RunMoments
) -> Iterator[Finding]:
    """Yield what is wrong with the emitted log of a kafka view, and with its state."""
    fix = restore_command(log, delta_table) or backup_advice(log)
    with duckdb_reader.connect_alone() as engine:
        engine.execute("SET TimeZone = 'UTC'")
        columns = ("_epoch", "_partition", "_offset", "systemFrom")
        engine.register("part", arrow_reader.read_rows(delta_table, None, columns))
        engine.execute("CREATE TEMP TABLE emitted AS FROM part")
        gaps = engine.execute(_DISCONTINUITIES).fetchall()
        known = engine.execute("SELECT DISTINCT systemFrom FROM emitted ORDER BY 1").fetchall()
    if gaps:
        partition, offset, expected = gaps[0]
        what = f"offset {expected} is missing" if offset > expected else f"offset {offset} is there twice"
        text = f"{format_count(len(gaps), 'place')} where the output is not continuous: {what}"
        yield Finding("emitted", log.name, text, fix, None, partition, min(offset, expected))
    orphans = [moment for (moment,) in known if not moments.has(moment)]
    if orphans:
        text = f"systemFrom {orphans[0].isoformat()}, which is the known-at of no run"
        yield Finding("system period", log.name, text, fix)
    yield from _check_state(contract, name, log, delta_table, runs)


def _check_state(
    contract: Contract, name: str, log: Table, delta_table: DeltaTable, runs: list[Run]
) -> Iterator[Finding]:
    """Yield a finding if the state of a view is not of the run that emitted last; an open run may be between."""
    state = inventory.find_state_table(log.warehouse, contract, name)
    if state is None or not runs or runs[-1].state != "completed":
        return
    emitted_by, kept_by = commit_ids.read_last_run(delta_table, log.app_id()), tables.read_last_run(state)
    if kept_by > emitted_by:
        text = f"stands as run {emitted_by} left it, and run {kept_by} has processed records since: an old copy"
        yield Finding("published", log.name, text, restore_command(log, delta_table) or backup_advice(log))
    if kept_by < emitted_by:
        has = f"is of run {kept_by}" if kept_by else "is missing"
        text = f"the state of the view {has}, and run {emitted_by} has emitted since"
        yield Finding("emitted", state.name, text, rederive_command(contract.pipeline, name))


_DISCONTINUITIES = """
    WITH placed AS (
        SELECT _epoch, _partition, _offset,
               lag(_offset) OVER (PARTITION BY _epoch, _partition ORDER BY _offset) AS before
        FROM emitted
    )
    SELECT _partition, _offset, coalesce(before + 1, 0) FROM placed WHERE _offset <> coalesce(before + 1, 0)
    ORDER BY _epoch, _partition, _offset
"""
"""Emitted records that do not follow the one before them, with the offset that would."""
