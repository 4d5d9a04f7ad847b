"""The last run that committed to a table of a pipeline: the journal must have it before another is planned.

A run whose number a table has already makes no commit of its own to it: that counts as made before.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import NamedTuple

from hindcast.common.errors import TableError
from hindcast.contract.bound import BoundContract
from hindcast.plan import journal
from hindcast.plan.runs import Run
from hindcast.store import emitted_log, tables
from hindcast.store.tables import Table


class LastCommit(NamedTuple):
    """The last `run` that committed to any table, and the path of one to which it did; 0 and "" without any."""

    run: int
    path: str


def find_last_commit(contract: BoundContract) -> LastCommit:
    """Return the last run that committed to a table of the contract; one that cannot be read does not count."""
    last = LastCommit(0, "")
    for table in list_run_tables(contract):
        with suppress(TableError):  # the step that needs the table says what is wrong with it
            last = max(last, LastCommit(tables.read_last_run(table), table.path))
    return last


def list_run_tables(contract: BoundContract) -> Iterator[Table]:
    """Yield the tables of a contract whose commits have the numbers of runs, whether they exist or not: those of topics
    and views, and their logs.
    """
    warehouse, pipeline = contract.warehouse, contract.pipeline
    for name in (*contract.topics, *contract.views):
        yield tables.locate_table(warehouse, contract, name)
    for name in contract.topics:
        yield tables.log_table(warehouse, pipeline, name)
        yield tables.fates_table(warehouse, pipeline, name)
        yield Table(warehouse, pipeline, f"base/{name}", "base")
    for name, view in contract.views.items():
        if view.semantics == "kafka":
            yield emitted_log.emitted_table(warehouse, contract, name)


def refuse_unknown_runs(contract: BoundContract, past: Sequence[Run]) -> None:
    """Raise TableError if a run committed to a table that is not among the `past` ones, nor planned since."""
    last, known = find_last_commit(contract), max((run.number for run in past), default=0)
    if last.run <= known:
        return
    later = journal.read_runs(contract.warehouse, contract.pipeline)
    if last.run > max((run.number for run in later), default=0):
        found = f"run {last.run} committed to {last.path}, but the last run of the journal is {known}"
        raise TableError(
            found,
            where=journal.runs_table(contract.warehouse, contract.pipeline).path,
            fix=journal.repair_command(contract.pipeline),
        )
