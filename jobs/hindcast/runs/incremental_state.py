"""The run in which a table last saw its inputs, and changes since then that cannot be derived incrementally."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime

from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from hindcast.contract import Contract
from hindcast.contract.bound import BoundContract
from hindcast.contract.expectation import RESTATEMENT_RULE
from hindcast.ingest import erasure_marks
from hindcast.ingest.requeued_records import requeued_sql
from hindcast.plan import closes, horizon, journal
from hindcast.plan.inputs import locate_input_table, locate_own_table
from hindcast.plan.plans import Plan
from hindcast.plan.runs import Run, has_unknown_rows, last_included_run, was_ingested_late
from hindcast.store import row_reader, tables
from hindcast.store.tables import Table

MAX_WHOLE_ROWS = 500_000
"""Up to this many rows of its inputs a table is derived whole if Spark's plan would find its increments."""


def find_last_run(contract: Contract, table: Table, *inputs: Table, by_kernel: bool = False) -> Run | None:
    """Return the last run that brought a table up to date with its inputs; None if it must be derived whole.

    That is the last run that published it or was completed, if it had the same contract and nothing of the inputs was
    forgotten since. `by_kernel`: a kernel is to find the increment, however few rows the inputs have.
    """
    if tables.open_table(table) is None or (is_quicker_whole(*inputs) and not by_kernel):
        return None
    return find_last_run_of_any_size(contract, table)


def is_quicker_whole(*inputs: Table) -> bool:
    """Return whether inputs have so few rows that deriving a table whole takes less time than Spark's increment."""
    return sum(map(tables.count_rows, inputs)) <= MAX_WHOLE_ROWS


def find_last_run_of_any_size(contract: Contract, table: Table, since: int | None = None) -> Run | None:
    """Return what `find_last_run` does, however few rows the inputs have; or the run `since` if that is earlier."""
    past, published = journal.read_runs(table.warehouse, table.pipeline), tables.read_last_run(table)
    if has_unknown_rows(past, table.name, published) or has_late_records(past, contract, table):
        return None
    last = last_included_run(past, published)
    return _find_comparable_run(past, contract, table, last if since is None else min(last, since))


def has_late_records(past: list[Run], contract: Contract, table: Table) -> bool:
    """Return whether the table is a topic's whose records came to its log late (`was_ingested_late`)."""
    if table.name not in contract.topics:
        return False
    log = tables.log_table(table.warehouse, table.pipeline, table.name)
    return was_ingested_late(past, table.name, tables.read_last_run(log))


def is_unknown(table: Table) -> bool:
    """Return whether no run can tell which rows a table has (`has_unknown_rows`)."""
    past = journal.read_runs(table.warehouse, table.pipeline)
    return has_unknown_rows(past, table.name, tables.read_last_run(table))


def _find_comparable_run(past: list[Run], contract: Contract, table: Table, number: int) -> Run | None:
    """Return a run if it had the same contract, and no input was created or had anything forgotten since; else None.

    That leaves no trace on the system axis, so that the changes since that run do not show it.
    """
    run = next((run for run in past if run.number == number), None)
    if run is None or run.plan.contract != contract.hash:
        return None
    if erasure_marks.has_forgotten_since(past, contract, table.name, number):
        return None
    return None if _has_forgotten_input(run, contract, table) or _has_new_input(run, contract, table) else run


def _has_new_input(seen: Run, contract: Contract, table: Table) -> bool:
    """Return whether an input of a view was created since a run read it, because its folder had been removed, or its
    pipeline was begun again: the new table does not say which rows the old one had.
    """
    view = contract.views.get(table.name)
    for name in view.inputs if view is not None else ():
        pin = seen.plan.as_of_system_times.get(name)
        if name in contract.inputs:
            source = locate_input_table(table.warehouse, contract, name, pin)
            if all(run.known_at != pin for run in journal.read_runs(table.warehouse, source.pipeline)):
                return True
        else:
            source = tables.locate_table(table.warehouse, contract, name)
        delta_table = tables.open_table(source)
        beginning = tables.read_beginning(delta_table) if delta_table is not None else None
        if beginning is not None and beginning > (pin or seen.known_at):
            return True
    return False


def _has_forgotten_input(seen: Run, contract: Contract, table: Table) -> bool:
    """Return whether another pipeline has forgotten anything since a run read the input behind a table from it."""
    behind = contract.list_upstream(table.name)
    pins = {name: at for name, at in seen.plan.as_of_system_times.items() if name in behind}
    return any(
        run.plan.erasure and run.known_at > at
        for name, at in pins.items()
        for run in journal.read_runs(table.warehouse, contract.inputs[name].table.partition(".")[0])
    )


def has_changed_for_gates(contract: BoundContract, plan: Plan, table: Table, settled: int) -> bool:
    """Return whether gates can have other results for what they judged up to the run `settled`: by another contract,
    with another version of a table that they read, after something was forgotten, or with other closed periods. Or if a
    later run, which was not completed, had another contract: it may have held what it never published.
    """
    past = journal.read_runs(table.warehouse, table.pipeline)
    run = _find_comparable_run(past, contract, table, settled)
    if run is None or any(run.plan.contract != contract.hash for run in past if run.number > settled):
        return True
    if has_other_closes(contract, table.name, run.known_at):
        return True
    others = {gate.other_table for gate in contract.expectations(table.name) if gate.other_table}
    return any(
        plan.as_of_system_times[other] != run.plan.as_of_system_times.get(other)
        if other in plan.as_of_system_times
        else tables.read_last_run(locate_own_table(contract, other)) > settled
        for other in others
    )


def has_other_closes(contract: BoundContract, name: str, since: datetime) -> bool:
    """Return whether a table has a gate that goes by closed periods, and these have changed since a moment."""
    is_judged = any(gate.type == RESTATEMENT_RULE for gate in contract.expectations(name))
    return is_judged and closes.has_changed_since(contract.warehouse, contract.pipeline, since)


def needs_all_held(contract: BoundContract, plan: Plan, table: Table) -> bool:
    """Return whether all that is held of a table is judged again, even what nothing has changed for."""
    settled = last_included_run(journal.read_runs(table.warehouse, table.pipeline), tables.read_last_run(table))
    is_about_table = table.name in (plan.only, plan.upgraded_table)
    return is_about_table or is_unknown(table) or has_changed_for_gates(contract, plan, table, settled)


def has_new_decoding(contract: Contract, table: Table, name: str, since: int | None = None) -> bool:
    """Return whether the records of a stream's table were ingested under a contract that decodes them differently, now
    or (`since`) up to an earlier run.
    """
    past, last = _read_runs_until(table, since)
    run = next((run for run in past if run.number == last), None)
    if run is None or run.plan.contract == contract.hash:
        return False
    return run.plan.decodings.get(name) != contract.topics[name].hash_decoding


def has_forgotten_events(contract: Contract, table: Table, name: str, since: int | None = None) -> bool:
    """Return whether something of a stream was forgotten since the last run that its table includes, or a run `since`.

    With an event go the entries of its key in `failing`: what was held of the key has to be found and judged again.
    """
    past, last = _read_runs_until(table, since)
    return erasure_marks.has_forgotten_since(past, contract, name, last)


def has_revised_fates(spark: SparkSession, table: Table, name: str) -> bool:
    """Return whether the contract has changed fates of a stream's records since the last run that its table includes.

    A requeue does not count: what it accepts is new (`topic_log.read_accepted`).
    """
    _, last = _read_runs_until(table, None)
    entered = tables.fates_table(table.warehouse, table.pipeline, name)
    if tables.read_last_run(entered) <= last:
        return False
    rows = row_reader.load_rows(spark, entered).where(F.col("run") > last)
    return bool(rows.where(f"NOT ({requeued_sql(rows.columns)})").take(1))


def _read_runs_until(table: Table, since: int | None) -> tuple[list[Run], int]:
    """Return all runs, and the number of the last one that a table includes, or the run `since`."""
    past = journal.read_runs(table.warehouse, table.pipeline)
    return past, last_included_run(past, tables.read_last_run(table)) if since is None else since


def was_redefined(contract: Contract, table: Table, name: str, since: int) -> bool:
    """Whether more than the records that came since the run `since` can have changed rows of a topic's table: another
    definition, or something that was forgotten. Before the first run (0) there are no rows.
    """
    if contract.topics[name].read == "stream":
        return has_new_decoding(contract, table, name, since) or has_forgotten_events(contract, table, name, since)
    return since > 0 and find_last_run_of_any_size(contract, table, since) is None


def has_inserted_records(contract: BoundContract, name: str, since: int) -> bool:
    """Return whether, after a run, a stream behind a view got records at offsets before others that it had: they were
    requeued, or are from before the offset at which its replay had begun.
    """
    streams = [n for n in contract.list_upstream(name) if n in contract.topics and contract.topics[n].read == "stream"]
    place = contract.warehouse, contract.pipeline
    later = [run.plan for run in journal.read_runs(*place) if run.number > since]
    if any(plan.topics[n].earlier for plan in later for n in streams if n in plan.topics):
        return True
    return any(tables.read_last_run(tables.fates_table(*place, n)) > since for n in streams)


def has_trimmed_input(seen: Run, inputs: Mapping[str, Table]) -> bool:
    """Return whether an input was trimmed so far that its rows as of a run are no longer known."""
    pins = seen.plan.as_of_system_times
    horizons = {i: horizon.read_horizon(table) for i, table in inputs.items()}
    return any(at is not None and pins.get(i, seen.known_at) < at.moment for i, at in horizons.items())
