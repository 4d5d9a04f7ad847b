"""Checks of what Airflow is asked for: a cron expression that it accepts, and the options of tasks."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta

from hindcast.common import cron
from hindcast.common.errors import suggest_nearest
from hindcast.contract.model import Contract
from hindcast.contract.task_options import TaskOptions
from hindcast.contract.types import format_duration
from hindcast.contract.view_checks import Complaint


def check_schedule(contract: Contract) -> Iterator[Complaint]:
    """Yield every complaint about a contract's schedule."""
    yield from _check_intervals(contract)
    schedule, place = contract.schedule, ("schedule",)
    if schedule == "inputs":
        if not contract.inputs:
            yield Complaint(place, "there are no inputs that could start a run", "name the tables under inputs:")
    elif schedule is not None and (refusal := cron.find_refusal(schedule)):
        fix = refusal.fix if " " in schedule else f"{refusal.fix}, or inputs"
        yield Complaint(place, f"the schedule '{schedule[: cron.MAX_LENGTH]}' {refusal.problem}", fix)
    elif schedule is not None and not cron.has_intervals(schedule, contract.start):
        found = f"Airflow cannot compute the intervals of '{schedule}' from {contract.start.isoformat()}"
        yield Complaint(("start",), found, "write a date that is not so near to year 1 or 9999, such as 2026-01-01")


def _check_intervals(contract: Contract) -> Iterator[Complaint]:
    """Yield every complaint about the intervals of a backfill."""
    intervals, place = contract.intervals, ("intervals",)
    if intervals is None:
        return
    if contract.schedule is not None:
        fix = "remove one of the two: a backfill runs the intervals of a schedule, too"
        yield Complaint(place, "there are intervals beside the schedule", fix)
    if contract.catchup:
        yield Complaint(("catchup",), "there is no schedule that could catch up", "remove catchup, or write schedule")
    if refusal := cron.find_refusal(intervals):
        yield Complaint(place, f"intervals '{intervals[: cron.MAX_LENGTH]}' {refusal.problem}", refusal.fix)


def check_closing(contract: Contract) -> Iterator[Complaint]:
    """Yield a complaint if periods are closed so long after their end that it may be a mistake."""
    after = contract.close.after if contract.close is not None else None
    if after is not None and after > _MOST_AFTER:
        found = f"periods would be closed {format_duration(after)} after their end"
        yield Complaint(("close", "after"), found, f"write at most {_MOST_AFTER.days} days, such as 3 days")


def check_task_options(contract: Contract) -> Iterator[Complaint]:
    """Yield a complaint about every option for a task that there is not, and what no step or database can keep."""
    tables, place = [*contract.topics, *contract.views], ("airflow", "tables")
    options: dict[tuple[str, ...], TaskOptions] = {("airflow",): contract.airflow}
    for name, its in contract.airflow.tables.items():
        options[*place, name] = its
        if name not in tables:
            found = f"'{name}' is neither a topic nor a view of this contract"
            yield Complaint((*place, name), found, suggest_nearest(name, tables))
    for location, its in options.items():
        if its.timeout is not None and not timedelta(minutes=1) <= its.timeout <= _MAX_TIMEOUT:
            fix = f"write 1 minute to {_MAX_TIMEOUT.days} days, such as 6 hours"
            yield Complaint((*location, "timeout"), "the timeout is too short or too long for a step", fix)
    owners = {contract.airflow.owner, *(contract.airflow.find_table_options(name).owner for name in tables)}
    length = len(", ".join(owner or _DEFAULT_OWNER for owner in owners))
    if length > MAX_OWNERS:
        found = (
            f"the {len(owners):,} owners of tasks have {length:,} characters together, joined by commas, and Airflow "
            f"can store {MAX_OWNERS:,}"
        )
        yield Complaint(place, found, "shorten the names of owners, or let one owner have more of the tables")


_DEFAULT_OWNER = "airflow"
"""The owner that Airflow gives a task without one."""

MAX_OWNERS = 2_000
"""The length of Airflow's column for the owners of a DAG's tasks: a longer text fails all DAGs of the file."""

_MOST_AFTER = timedelta(days=366)
_MAX_TIMEOUT = timedelta(days=30)
