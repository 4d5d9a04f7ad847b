"""Check that tables and the journal have the same runs, and that tables have what completed runs published."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from typing import NamedTuple

from deltalake import DeltaTable

from hindcast.contract import Contract
from hindcast.ops.verify.findings import Finding, rebuild_advice, restore_command
from hindcast.plan import horizon
from hindcast.plan.closes import Close
from hindcast.plan.purposes import Erasure, Upgrade
from hindcast.plan.runs import Abandoned, Completed, Run
from hindcast.store import commit_ids
from hindcast.store.commit_history import read_notes
from hindcast.store.commit_notes import EmissionNote, TableNote
from hindcast.store.tables import Table


class RunNumbers(NamedTuple):
    """The numbers of a pipeline's runs, with those that each took before its own (`Plan.numbers`)."""

    runs: list[Run]

    @property
    def taken_numbers(self) -> set[int]:
        """All numbers that runs have taken."""
        plans = (run.plan for run in self.runs)
        return {number for plan in plans for number in range(plan.first_number, plan.run + 1)}


def reopen_late_runs(before: list[Run], runs: list[Run]) -> list[Run]:
    """Return the runs of the journal, with those that were not yet completed `before` as still under way.

    Tables were opened between the two readings: they may lack what such a run has published since.
    """
    completed = {run.number for run in before if run.state == "completed"}
    is_late = (run.state == "completed" and run.number not in completed for run in runs)
    return [Run(run.plan) if late else run for run, late in zip(runs, is_late, strict=True)]


def check_entry_order(damage: list[tuple[int, str]], fix: str) -> Iterator[Finding]:
    """Yield the runs whose entries in the journal contradict each other (`journal.find_damage`)."""
    for _, text in damage:
        found = f"{text}: an older version wrote its entries while a clock was wrong, or more than one writer ended it"
        yield Finding("journal", "runs", found, fix)


def check_journal(contract: Contract, runs: list[Run], missing: Mapping[int, set[str]]) -> Iterator[Finding]:
    """Yield runs that the journal lacks (`find_missing_runs`), and open runs before a completed one."""
    if missing:
        runs_missing = ", ".join(f"{number} ({', '.join(sorted(names))})" for number, names in sorted(missing.items()))
        fix = f"hindcast ledger {contract.pipeline} --rebuild (or put the journal back from a backup)"
        yield Finding("journal", "runs", f"tables have runs that the journal lacks: {runs_missing}", fix)
    last = max((run.number for run in runs if run.state == "completed"), default=0)
    for run in runs:
        if not run.is_finished and run.number < last:
            text = f"run {run.number} ({run.run_id}) has not ended, and run {last} after it was completed"
            yield Finding("journal", "runs", text, f"hindcast abandon {contract.pipeline} {run.number}")


def check_closes(closed: Sequence[Close], table: Table, delta_table: DeltaTable) -> Iterator[Finding]:
    """Yield the closes of which a trim of a table may have removed rows: those that it does not say it has kept."""
    first = horizon.find_first_known(delta_table)
    for close in (close for close in closed if first is not None and close.known_at < first):
        found = f"the close '{close.name}' cannot be answered: a downgrade dropped what was known then"
        yield Finding("published", table.name, found, horizon.advise_drop(table, close))
    if (at := horizon.read_horizon(table, delta_table)) is None:
        return
    kept = set(at.removal.select_kept(closed))
    for close in closed:
        if close not in kept:
            error = horizon.lost_close_error(table, close, at)
            yield Finding("published", table.name, error.found, error.fix)


def find_missing_runs(
    runs: list[Run], delta_tables: Mapping[Table, DeltaTable], logged: Mapping[Table, set[int]]
) -> dict[int, set[str]]:
    """Return the numbers of runs that tables have and the journal lacks, with the names of the tables.

    `logged`: the runs in the rows of each log.
    """
    known, missing = RunNumbers(runs).taken_numbers, dict[int, set[str]]()
    for table, delta_table in delta_tables.items():
        for number in _read_run_numbers(table, delta_table, logged) - known - {0}:
            missing.setdefault(number, set()).add(table.name)
    return missing


def _read_run_numbers(table: Table, delta_table: DeltaTable, logged: Mapping[Table, set[int]]) -> set[int]:
    """Return the runs that have left rows in a table; what a run noted without a row is gone with its entries."""
    match table.kind:
        case "log":
            return logged.get(table, set())
        case "emitted":
            return set(read_notes(table, EmissionNote.from_json))
        case "versions" | "events" | "windows" | "pairs":
            writers = {run for run, note in read_notes(table, TableNote.from_json).items() if note.changed_rows}
            return {*writers, commit_ids.read_last_run(delta_table, table.app_id())}
        case _:
            return set()


def check_published(runs: list[Run], table: Table, delta_table: DeltaTable | None) -> Iterator[Finding]:
    """Yield a finding if a table lacks the last commit of a completed run: it is gone, or an old copy."""
    last = max((run.number for run in runs if run.state == "completed" and _has_written(run, table)), default=0)
    reached = commit_ids.read_last_run(delta_table, table.app_id()) if delta_table is not None else 0
    if last <= reached:
        return
    if delta_table is None:
        text, fix = f"is not there, and run {last} has published it", f"put {table.path} back from a backup"
        rebuild = rebuild_advice(table).replace(f"mv {table.path} {table.path}.lost && ", "")
    else:
        text = f"stands as run {reached} left it, and run {last} has published it since: an old copy"
        fix = restore_command(table, delta_table) or f"put a backup made since run {last} in place of {table.path}"
        rebuild = rebuild_advice(table)
    yield Finding("published", table.name, text, f"{fix}; without one: {rebuild}")


def _has_written(run: Run, table: Table) -> bool:
    """Return True if a completed run reports that it committed rows to a table."""
    if not isinstance(run.outcome, Completed):
        return False
    kind, _, name = table.name.rpartition("/")
    if kind == "logs":
        with run.refuse_malformed_report():
            return bool(run.outcome.offsets.get(name))
    if kind == "base":
        upgrade = run.plan.upgrade
        return upgrade is not None and upgrade.table == name and upgrade.version is not None
    if kind == "emitted":
        return name in run.results and bool(run.results[name].emitted)
    return table.name in run.results and bool(run.results[table.name].changed_rows)


def find_unsettled_moment(runs: list[Run]) -> datetime | None:
    """Return the known-at of the last run that was to remove or adopt rows and was abandoned or is open; or None.

    Of runs up to then nobody knows how many rows there are.
    """
    of_rows = (run for run in runs if run.state != "completed" and isinstance(run.plan.purpose, Erasure | Upgrade))
    return max((run.known_at for run in of_rows), default=None)


class RunMoments(NamedTuple):
    """The known-ats of runs: `exact`, and those known to the millisecond (`rebuilt`: the journal was rebuilt).

    `gaps`: known-ats between which runs lie that the journal lacks.
    """

    exact: set[datetime]
    rebuilt: set[datetime]
    gaps: list[tuple[datetime, datetime]]

    def has(self, moment: datetime) -> bool:
        """Return True if a moment is a run's known-at, or can be that of a run that the journal lacks."""
        if moment in self.exact or moment.replace(microsecond=moment.microsecond // 1000 * 1000) in self.rebuilt:
            return True
        return any(before < moment < after for before, after in self.gaps)


def collect_run_moments(runs: list[Run], missing: Mapping[int, set[str]]) -> RunMoments:
    """Return the known-ats of runs; `missing`: the numbers of runs that the journal lacks (`find_missing_runs`)."""
    exact = {run.known_at for run in runs}
    rebuilt = {run.known_at for run in runs if is_rebuilt(run)}
    gaps = []
    for number in missing:
        before = max((run.known_at for run in runs if run.number < number), default=_FIRST)
        after = min((run.known_at for run in runs if run.number > number), default=_LAST)
        gaps.append((before, after))
    return RunMoments(exact, rebuilt, gaps)


def is_rebuilt(run: Run) -> bool:
    """Return True if a run's entries were rebuilt from logs and tables."""
    match run.outcome:
        case Completed() as completed:
            return completed.rebuilt
        case Abandoned(reason=reason):
            return "was rebuilt" in reason
        case _:
            return False


_FIRST = datetime.fromisoformat("0001-01-02T00:00:00+00:00")
_LAST = _FIRST + timedelta(days=3_650_000)
