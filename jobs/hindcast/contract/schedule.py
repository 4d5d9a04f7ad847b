"""Checks of a pipeline's schedule: a cron expression must be one that Airflow accepts."""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import datetime

from hindcast.contract.model import Contract
from hindcast.contract.view_checks import Complaint

PRESETS = ("@hourly", "@daily", "@weekly", "@monthly", "@yearly")


def check_schedule(contract: Contract) -> Iterator[Complaint]:
    """Yield every complaint about a contract's schedule."""
    schedule, place = contract.schedule, ("schedule",)
    if schedule == "inputs":
        if not contract.inputs:
            yield Complaint(place, "there are no inputs that could start a run", "name the tables under inputs:")
        return
    if schedule is None or schedule in PRESETS:
        return
    if len(schedule) > _LONGEST or len(schedule.split()) != _FIELDS or not set("".join(schedule.split())) <= _LETTERS:
        found = f"'{schedule[:_LONGEST]}' is not a cron expression"
        yield Complaint(place, found, f"write five fields (0 2 * * *), or {', '.join(PRESETS)}, or inputs")
    elif any(_RANDOM_FIELD.match(part) for field in schedule.split() for part in field.split(",")):
        found = f"'{schedule}' has random times (H, R), which would differ each time it is read"
        yield Complaint(place, found, "write the times: 17 * * * *")
    elif wrong := _find_refusal(schedule, contract.start):
        found = f"'{schedule}' is a cron expression that Airflow refuses: {wrong}"
        yield Complaint(place, found, "write five fields (0 2 * * *): minute 0-59, hour 0-23, day 1-31, month, weekday")


_FIELDS, _LONGEST = 5, 200
_RANDOM_FIELD = re.compile("[HR](/|$)")
_LETTERS = set("0123456789*/,-LW#?ABCDEFGHIJKLMNOPQRSTUVWXYZ")


def _find_refusal(schedule: str, start: datetime) -> str | None:
    """Return why Airflow would refuse a schedule or find no interval for it, None if it would not."""
    from croniter import croniter  # type: ignore[import-untyped]  # Airflow's own parser, installed with it

    try:
        croniter(schedule, start).get_next(datetime)
        croniter(schedule, start).get_prev(datetime)
    except (ArithmeticError, LookupError, TypeError, ValueError) as error:
        message = str(error).removeprefix(f"[{schedule}] ").removeprefix(f"{schedule} ")
        return f"it {message}" if message.startswith("is ") else message
    return None
