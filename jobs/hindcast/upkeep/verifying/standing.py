"""Whether tables and the journal of runs tell of the same runs: no table has a run that the journal lacks, none lacks
what a completed run has published.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import replace
from datetime import datetime, timedelta
from typing import NamedTuple

from deltalake import DeltaTable

from hindcast.contracts import Contract
from hindcast.delta.tables import Table, notes
from hindcast.planning.journal import Run
from hindcast.planning.plans import Plan
from hindcast.upkeep.verifying.findings import Finding, restore, without_backup


class Numbers(NamedTuple):
    """The numbers of a pipeline's runs, each with those that it took before its own (`Plan.numbers`)."""

    runs: list[Run]

    @property
    def known(self) -> set[int]:
        """All numbers that a run has taken."""
        plans = (Plan.from_json(run.plan) for run in self.runs)
        return {number for plan in plans for number in range(plan.first, plan.run + 1)}


def as_of(before: list[Run], runs: list[Run]) -> list[Run]:
    """Runs as the journal has them, but as under way those that it did not have as completed `before`.

    Tables were opened between the two: they may lack what such a run has published since.
    """
    completed = {run.number for run in before if run.state == "completed"}
    since = (run.state == "completed" and run.number not in completed for run in runs)
    return [
        replace(run, state="planned", detail=run.plan) if late else run for run, late in zip(runs, since, strict=True)
    ]


def disordered(damage: list[tuple[int, str]], mend: str) -> Iterator[Finding]:
    """Return the runs whose entries in the journal contradict each other (`journal.damage`)."""
    for _, text in damage:
        found = f"{text}: an older version wrote its entries while a clock was wrong, or more than one writer ended it"
        yield Finding("journal", "runs", found, mend)


def journal(contract: Contract, runs: list[Run], missing: Mapping[int, set[str]]) -> Iterator[Finding]:
    """Runs that tables have and the journal lacks (`missed`); runs that are open though a later one was completed."""
    if missing:
        told = ", ".join(f"{number} ({', '.join(sorted(names))})" for number, names in sorted(missing.items()))
        mend = f"hindcast ledger {contract.pipeline} --rebuild (or put the journal back from a backup)"
        yield Finding("journal", "runs", f"tables have runs that the journal lacks: {told}", mend)
    last = max((run.number for run in runs if run.state == "completed"), default=0)
    for run in runs:
        if not run.finished and run.number < last:
            text = f"run {run.number} ({run.run_id}) has not ended, and run {last} after it was completed"
            yield Finding("journal", "runs", text, f"hindcast abandon {contract.pipeline} {run.number}")


def missed(runs: list[Run], found: Mapping[Table, DeltaTable], logged: Mapping[Table, set[int]]) -> dict[int, set[str]]:
    """The numbers of runs that tables have and the journal lacks, with the names of the tables.

    `logged`: of each log the runs that its rows name.
    """
    known, missing = Numbers(runs).known, dict[int, set[str]]()
    for table, delta in found.items():
        for number in _numbers(table, delta, logged) - known - {0}:
            missing.setdefault(number, set()).add(table.name)
    return missing


def _numbers(table: Table, delta: DeltaTable, logged: Mapping[Table, set[int]]) -> set[int]:
    """The runs that have left rows in a table; what a run noted without a row is gone with its entries."""
    match table.kind:
        case "log":
            return logged.get(table, set())
        case "emitted":
            return set(notes(table))
        case "versions" | "events" | "windows" | "pairs":
            wrote = {run for run, note in notes(table).items() if note.get("opened") or note.get("closed")}
            return {*wrote, delta.transaction_version(table.app()) or 0}
        case _:
            return set()


def published(runs: list[Run], table: Table, found: DeltaTable | None) -> Iterator[Finding]:
    """Whether a table lacks the last commit of a completed run: it is gone, or was put back from an old copy."""
    last = max((run.number for run in runs if run.state == "completed" and _wrote(run, table)), default=0)
    reached = (found.transaction_version(table.app()) or 0) if found is not None else 0
    if last <= reached:
        return
    if found is None:
        told, mend = f"is not there, and run {last} has published it", f"put {table.path} back from a backup"
        again = without_backup(table).replace(f"mv {table.path} {table.path}.lost && ", "")
    else:
        told = f"stands as run {reached} left it, and run {last} has published it since: an old copy"
        mend = restore(table, found) or f"put a backup made since run {last} in place of {table.path}"
        again = without_backup(table)
    yield Finding("published", table.name, told, f"{mend}; without one: {again}")


def _wrote(run: Run, table: Table) -> bool:
    """Whether a completed run tells that it has committed rows to a table."""
    told = run.detail.get("tables", {})
    kind, _, name = table.name.rpartition("/")
    if kind == "logs":
        return bool(run.detail.get("topics", {}).get(name, {}).get("offsets"))
    if kind == "base":
        return run.plan.get("upgrade", {}).get("table") == name and "version" in run.plan["upgrade"]
    if kind == "emitted":
        return bool(told.get(name, {}).get("emitted", {}).get("records"))
    return bool(told.get(table.name, {}).get("opened", 0) + told.get(table.name, {}).get("closed", 0))


def unsettled(runs: list[Run]) -> datetime | None:
    """The known-at of the last run that was to remove or adopt rows and was given up, or has not ended; or None.

    Of runs up to then nobody knows how many rows there are.
    """
    of_rows = (run for run in runs if run.state != "completed" and (run.plan.get("forgets") or run.plan.get("upgrade")))
    return max((run.known_at for run in of_rows), default=None)


class Moments(NamedTuple):
    """The known-ats of runs: `exact`, and those that are known to the millisecond (of a journal that was rebuilt).

    `gaps`: between which known-ats runs lie that the journal lacks.
    """

    exact: set[datetime]
    rebuilt: set[datetime]
    gaps: list[tuple[datetime, datetime]]

    def has(self, moment: datetime) -> bool:
        """Whether a moment is a run's known-at, or can be that of one that the journal lacks."""
        if moment in self.exact or moment.replace(microsecond=moment.microsecond // 1000 * 1000) in self.rebuilt:
            return True
        return any(before < moment < after for before, after in self.gaps)


def moments(runs: list[Run], missing: Mapping[int, set[str]]) -> Moments:
    """The known-ats of runs; `missing`: the numbers of those that the journal lacks (`missed`)."""
    exact = {run.known_at for run in runs}
    made_again = {run.known_at for run in runs if rebuilt(run)}
    gaps = []
    for number in missing:
        before = max((run.known_at for run in runs if run.number < number), default=_FIRST)
        after = min((run.known_at for run in runs if run.number > number), default=_LAST)
        gaps.append((before, after))
    return Moments(exact, made_again, gaps)


def rebuilt(run: Run) -> bool:
    """Whether a run's entries were made again from logs and tables."""
    return bool(run.detail.get("rebuilt")) or "was rebuilt" in json.dumps(run.detail.get("reason", ""))


_FIRST = datetime.fromisoformat("0001-01-02T00:00:00+00:00")
_LAST = _FIRST + timedelta(days=3_650_000)
