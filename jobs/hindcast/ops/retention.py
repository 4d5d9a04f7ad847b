"""Retention: trim what `keep` in the contract does not retain, from tables, logs and quarantine.

A table's horizon (plan/horizon.py) is written first, then what answers no question from the horizon on is removed:

- from a table the rows that had ended or were superseded by then; a row that reaches over the horizon stays, and so
  does what a close is of (plan/closes.py), which is written beside the horizon before
- from a log the records dated before, but for the one of each key that was in force at the horizon; what was refused
- from the quarantine, and from revised fates, the bytes of what was refused longer ago

Where the horizons are: trim_horizons.py. Each commit can be repeated: the next trim finishes one that was killed.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import NamedTuple

from deltalake import DeltaTable
from pyspark.sql import SparkSession

from hindcast.bitemporal.predicates import translate_to_spark
from hindcast.common import clock
from hindcast.common.errors import BusyError, RequestError, RunError
from hindcast.common.json_values import JsonValue
from hindcast.contract import Contract
from hindcast.contract.bound import BoundContract
from hindcast.ops import trim_horizons, trim_records
from hindcast.ops.trim_horizons import PartitionProgress
from hindcast.plan import closes, horizon, journal, notices, rehearsals
from hindcast.plan.closes import Close
from hindcast.plan.horizon import Horizon, Removal
from hindcast.plan.runs import Run
from hindcast.runs import row_counts
from hindcast.store import commit_once, commits, row_reader
from hindcast.store.tables import Table


class Trimmed(NamedTuple):
    """What was trimmed of a table or log: how many rows or records were removed, and its horizon (None: none yet).

    `slowest`: the partition that holds the horizon back, if one does. `undecided`: the tables that do, because they
    have held changes that nobody has decided about; `unready`: the views that do, because they have not processed what
    they need (`trim_horizons.WaitingViews`).
    """

    removed: int
    horizon: Horizon | None
    slowest: PartitionProgress | None
    undecided: tuple[str, ...] = ()
    unready: tuple[str, ...] = ()

    def as_json(self, what: str) -> dict[str, JsonValue]:
        """Return the part of the report; `what`: the name of what is counted."""
        fields: dict[str, JsonValue] = {"horizon": self.horizon.moment.isoformat() if self.horizon else None}
        if self.slowest is not None:
            fields["slowest"] = self.slowest._asdict() | {"reached": self.slowest.reached.isoformat()}
        fields |= {name: list(views) for name in ("undecided", "unready") if (views := getattr(self, name))}
        return fields | {what: self.removed}


@dataclass(frozen=True)
class TrimReport:
    """What was trimmed of a pipeline, or with `dry_run` would be, as of its last completed run.

    `tables`, `logs`: by name, of those that are not kept forever; `quarantine`: how many refused records by topic.
    """

    pipeline: str
    known_at: datetime | None
    dry_run: bool
    tables: dict[str, Trimmed] = field(default_factory=dict)
    logs: dict[str, Trimmed] = field(default_factory=dict)
    quarantine: dict[str, int] = field(default_factory=dict)

    def as_json(self) -> dict[str, JsonValue]:
        """Return the report as data."""
        return {
            "pipeline": self.pipeline,
            "knownAt": self.known_at.isoformat() if self.known_at else None,
            "tables": {name: trimmed.as_json("rows") for name, trimmed in self.tables.items()},
            "logs": {name: trimmed.as_json("records") for name, trimmed in self.logs.items()},
            "quarantine": self.quarantine,
            **({"dryRun": True} if self.dry_run else {}),
        }


def trim_pipeline(spark: SparkSession, contract: BoundContract, *, dry_run: bool = False) -> TrimReport:
    """Trim a pipeline and return a report; with `dry_run` write nothing.

    Raises BusyError while a run is under way, or another trim; RequestError if the contract was changed since the last
    run, or if no run has derived again what a forgetting removed; RunError if another trim took this one for dead.
    """
    with nullcontext() if dry_run else notices.post_alone(contract.warehouse, contract.pipeline, "trimming"):
        return _trim_pipeline(spark, contract, dry_run=dry_run)


def _trim_pipeline(spark: SparkSession, contract: BoundContract, *, dry_run: bool) -> TrimReport:
    """Do what `trim_pipeline` says."""
    warehouse, pipeline = contract.warehouse, contract.pipeline
    last = _find_last_run(warehouse, contract)
    report = TrimReport(pipeline, last.known_at if last else None, dry_run)
    if last is None:
        return report
    progress = {name: trim_horizons.read_topic_progress(spark, contract, name, last.number) for name in contract.topics}
    until = min(last.known_at, clock.now())  # a known-at may be ahead of the clock: nothing is trimmed for that
    undecided = trim_horizons.find_undecided_tables(contract)
    views = {name: trim_horizons.read_waiting_views(contract, name, last.number) for name in contract.topics}
    table_horizons = trim_horizons.find_table_horizons(spark, contract, progress, undecided, until, last)
    log_horizons = trim_horizons.find_log_horizons(contract, progress, views, undecided, until)
    if not dry_run:
        # What is to be forgotten may need records, and it may have been planned meanwhile.
        notices.refuse_forgetting(warehouse, pipeline, "trimming")
        for trimmed in (*table_horizons.values(), *log_horizons.values()):
            if trimmed.horizon is not None:
                _write_horizon(spark, trimmed.table, trimmed.horizon)
    # After the horizons: whoever adds a close then looks at these, and takes it back.
    closed = closes.list_kept(warehouse, pipeline)
    for name, it in table_horizons.items():
        rows = _trim_table(spark, it.table, it.horizon, closed, last.known_at, dry_run=dry_run) if it.horizon else 0
        report.tables[name] = Trimmed(rows, it.horizon, it.slowest, it.undecided)
    horizons = {name: it.horizon for name, it in log_horizons.items()}
    for name, it in log_horizons.items():
        at, records = it.horizon, 0
        if at is not None and not it.unready:
            records = trim_records.trim_log(spark, contract, name, at, last.number, views[name], dry_run=dry_run)
        report.logs[name] = Trimmed(records, at, it.slowest, it.undecided, it.unready)
        if at is not None and at.refused_before is not None:
            if not dry_run:
                trim_records.clear_revisions(spark, contract, name, at)
            report.quarantine[name] = trim_records.trim_refused(spark, contract, name, horizons, at, dry_run=dry_run)
    return report


def _write_horizon(spark: SparkSession, table: Table, at: Horizon, removal: Removal | None = None) -> None:
    """Commit the horizon of a table, and what is then removed up to it; by default that stays as it is.

    Raise RunError if by then another trim has written a later one, or has removed something else.
    """
    before = _read_removal(table)
    if table.kind != "log":
        at = replace(at, stored_removal=removal or before)

    def refuse_later() -> None:
        current = horizon.read_horizon(table, DeltaTable(table.path))
        if current is not None and (current.is_beyond(at) or current.removal not in (before, at.removal)):
            raise RunError("another trim has gone further", where=table.path, fix="start the trim again")

    with commit_once.add_commit_guard(refuse_later):
        commits.set_properties(spark, table, {horizon.PROPERTY: at.text})


def _read_removal(table: Table) -> Removal:
    current = horizon.read_horizon(table, DeltaTable(table.path))
    return current.removal if current is not None else Removal(None)


def format_report(report: TrimReport) -> str:
    """Return the report of a trim as lines for a terminal or a task's log."""
    if report.known_at is None:
        done = "nothing to trim: no run of all tables has been completed yet"
    elif not report.tables and not report.logs:
        done = "nothing to trim: everything is kept forever"
    else:
        done = "what would be trimmed; nothing was written" if report.dry_run else "trimmed"
    lines = [f"{report.pipeline}: {done}"]
    for part, trimmed_parts, what in (("table", report.tables, "rows"), ("log", report.logs, "records")):
        for name, trimmed in trimmed_parts.items():
            until = f"horizon {trimmed.horizon.moment.isoformat()}" if trimmed.horizon else "no horizon yet"
            lines.append(f"  {part} {name}: {trimmed.removed:,} {what}; {until}")
            if slowest := trimmed.slowest:
                held_back = f"held back by partition {slowest.partition} of {slowest.topic}"
                lines.append(f"    {held_back}, which has reached {slowest.reached.isoformat()}")
            if trimmed.undecided:
                names = " and ".join(trimmed.undecided)
                held = "of which changes are held, or may be: hindcast failing PIPELINE --held"
                lines.append(f"    held back by {names}, {held}, then release or reject them")
            if trimmed.unready:
                names = " and ".join(trimmed.unready)
                lines.append(f"    held back by {names}, which may need all of it: run the pipeline")
    lines += [f"  quarantine, {name}: {n:,} records" for name, n in report.quarantine.items()]
    return "\n".join(lines)


def _find_last_run(warehouse: str, contract: Contract) -> Run | None:
    """Return the last completed run; raise if another run is open or the contract was changed since."""
    past = journal.read_runs(warehouse, contract.pipeline)
    for run in past:
        if not run.is_finished and run.state != "stopped":
            found, fix = f"run {run.number} ({run.run_id}) has not ended", "trim when it has ended"
            raise BusyError(found, where=contract.pipeline, fix=fix)
    completed = [run for run in past if run.has_done_all_tables]
    if completed and completed[-1].plan.contract != contract.hash:
        found = f"the contract, or a variable of it (--var), was changed since run {completed[-1].number}"
        fix = (
            "rehearse the next interval, or put the contract back, then trim"
            if rehearsals.is_open(past)
            else "run the pipeline first"
        )
        raise RequestError(found, where=contract.pipeline, fix=fix)
    for run in past:
        if completed and run.number > completed[-1].number and run.plan.erasure:
            found = f"the forgetting of run {run.number} has ended before all tables were derived again"
            fix = "rehearse the next interval first" if rehearsals.is_open(past) else "run the pipeline first"
            raise RequestError(found, where=contract.pipeline, fix=fix)
    return completed[-1] if completed else None


def _trim_table(
    spark: SparkSession, table: Table, at: Horizon, closed: Sequence[Close], known_at: datetime, *, dry_run: bool
) -> int:
    """Remove the rows of a table that answer nothing from its horizon on, nor about a close, in one commit; return how
    many.

    Of the closes `closed` only those count of which no earlier trim can have removed a row; those from the horizon on
    need no mention. The number of rows left of runs up to `known_at` is noted first (row_counts.py).
    """
    kept = tuple(it for it in _read_removal(table).select_kept(closed) if not it.begins_since(at.moment))
    if not dry_run:
        _write_horizon(spark, table, at, Removal(at.moment, kept))
    trimmed = translate_to_spark(horizon.trimmed_condition(table.kind, at.moment, kept))
    rows = row_reader.load_rows(spark, table).where(trimmed).count()
    if rows and not dry_run:
        row_counts.write_row_counts(spark, table, known_at)
        commits.delete_rows(spark, table, trimmed, trim_records.build_note(at))
    return rows
