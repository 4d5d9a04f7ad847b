"""Checks of a pipeline's schedule: a cron expression must be one that Airflow accepts."""

from __future__ import annotations

from collections.abc import Iterator

from hindcast.common import cron
from hindcast.contract.model import Contract
from hindcast.contract.view_checks import Complaint


def check_schedule(contract: Contract) -> Iterator[Complaint]:
    """Yield every complaint about a contract's schedule."""
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
