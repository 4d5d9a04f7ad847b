"""Kafka views: what they have emitted is an output without holes, and what they keep is there. Without Spark."""

from __future__ import annotations

from collections.abc import Iterator

import duckdb
from deltalake import DeltaTable

from hindcast.building import inventory
from hindcast.contracts import Contract
from hindcast.delta import tables, widened
from hindcast.delta.tables import Table
from hindcast.planning.journal import Run
from hindcast.upkeep.verifying.findings import Finding, backup, rederive, restore
from hindcast.upkeep.verifying.standing import Moments
from hindcast.words import counted


def check(
    contract: Contract, name: str, log: Table, found: DeltaTable, runs: list[Run], moments: Moments
) -> Iterator[Finding]:
    """What is wrong with what a kafka view has emitted and what it keeps."""
    mend = restore(log, found) or backup(log)
    with duckdb.connect() as engine:
        engine.execute("SET TimeZone = 'UTC'")
        columns = ("_epoch", "_partition", "_offset", "systemFrom")
        engine.register("part", widened.rows(found, None, columns))
        engine.execute("CREATE TEMP TABLE emitted AS FROM part")
        moved = engine.execute(_MOVED).fetchall()
        known = engine.execute("SELECT DISTINCT systemFrom FROM emitted ORDER BY 1").fetchall()
    if moved:
        partition, offset, wanted = moved[0]
        what = f"offset {wanted} is missing" if offset > wanted else f"offset {offset} is there twice"
        told = f"{counted(len(moved), 'place')} where the output does not go on: {what}"
        yield Finding("emitted", log.name, told, mend, None, partition, min(offset, wanted))
    orphans = [moment for (moment,) in known if not moments.has(moment)]
    if orphans:
        told = f"systemFrom {orphans[0].isoformat()}, which is the known-at of no run"
        yield Finding("system period", log.name, told, mend)
    yield from _kept(contract, name, log, found, runs)


def _kept(contract: Contract, name: str, log: Table, found: DeltaTable, runs: list[Run]) -> Iterator[Finding]:
    """Whether a view keeps what it kept when it emitted last; a run that has not ended may be between the two."""
    its = inventory.kept(log.warehouse, contract, name)
    if its is None or not runs or runs[-1].state != "completed":
        return
    emitted_by, kept_by = found.transaction_version(log.app()) or 0, tables.published(its)
    if kept_by > emitted_by:
        told = f"stands as run {emitted_by} left it, and run {kept_by} has processed records since: an old copy"
        yield Finding("published", log.name, told, restore(log, found) or backup(log))
    if kept_by < emitted_by:
        has = f"has it as run {kept_by} left it" if kept_by else "is not there"
        told = f"what the view keeps {has}, and run {emitted_by} has emitted since"
        yield Finding("emitted", its.name, told, rederive(contract.pipeline, name))


_MOVED = """
    WITH placed AS (
        SELECT _epoch, _partition, _offset,
               lag(_offset) OVER (PARTITION BY _epoch, _partition ORDER BY _offset) AS before
        FROM emitted
    )
    SELECT _partition, _offset, coalesce(before + 1, 0) FROM placed WHERE _offset <> coalesce(before + 1, 0)
    ORDER BY _epoch, _partition, _offset
"""
"""Emitted records that do not follow the one before them, and the offset that would."""
