"""Runs that have ended without being completed: no step of theirs may commit anything more."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import NamedTuple

from hindcast.plan import definitions, journal
from hindcast.plan.runs import Run
from hindcast.store import commit_ids, late_commits, tables
from hindcast.store.commit_once import guard_commits
from hindcast.store.tables import Table


def refuse_late_commits(warehouse: str, past: list[Run], run: Run) -> None:
    """Refuse the commits that steps of a run, which the journal calls abandoned, may still make.

    `past`: the runs of the pipeline. Raises nothing for tables that cannot be opened or written to. The journal is
    marked first: older versions take what this commits for commits of the run.
    """
    with guard_commits(lambda: None):  # by now it refuses those of the run
        journal.mark_ended_runs(warehouse, run.plan.pipeline)
    names = definitions.list_tables(past, run.plan.contract)
    for written in _list_written_tables(warehouse, run.plan.pipeline, names):
        late_commits.refuse_late_commits(written.table, run.number, written.parts, written.repeated)


def free_moments(warehouse: str, past: Sequence[Run], ended: Sequence[Run]) -> None:
    """Let the dates of an abandoned pass be rehearsed again, each known at its own moment, if it has committed nothing:
    its runs are known directly after the run before them from now on.

    `past`: all runs before those. To be called when the runs can commit nothing more (`refuse_late_commits`).
    """
    first, pipeline = ended[0], ended[0].plan.pipeline
    names = definitions.list_tables([*past, *ended], first.plan.contract)
    written = (Table(warehouse, pipeline, place, "log") for name in names for place in (name, f"logs/{name}"))
    since = max((run.known_at for run in past), default=None)
    if since is None or any(tables.read_last_run(table) >= first.number for table in written):
        return
    moments = [since + timedelta(microseconds=n) for n in range(1, len(ended) + 1)]
    if moments[-1] < first.known_at:
        moved = [replace(it, plan=replace(it.plan, known_at=at)) for it, at in zip(ended, moments, strict=True)]
        journal.replace_entries(warehouse, pipeline, [entry for it in moved for entry in (Run(it.plan), it)])


class _WrittenTable(NamedTuple):
    """A table to which a run may commit, and the `parts` of these commits (`late_commits.refuse_late_commits`)."""

    table: Table
    parts: Sequence[str] = ("",)
    repeated: Sequence[str] = ()


def _list_written_tables(warehouse: str, pipeline: str, names: list[str]) -> Iterator[_WrittenTable]:
    """Yield the tables to which a run may commit once, whether they exist or not."""
    for name in names:
        for table in (name, f"logs/{name}", f"fates/{name}", f"base/{name}", f"emitted/{name}"):
            yield _WrittenTable(Table(warehouse, pipeline, table, "log"), commit_ids.PARTS)
    held, decided = ([*names, *(form.format(name) for name in names)] for form in ("{}/held", "fates/{}"))
    yield _WrittenTable(Table(warehouse, pipeline, "failing", "failing"), repeated=held)
    yield _WrittenTable(Table(warehouse, pipeline, "quarantine", "quarantine"), repeated=decided)
