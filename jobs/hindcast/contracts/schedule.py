"""When a pipeline's scheduled runs are: what Airflow takes as a cron expression, judged as Airflow judges it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import datetime
from typing import Any

from hindcast.contracts.model import Contract
from hindcast.contracts.views import Complaint

PRESETS = ("@hourly", "@daily", "@weekly", "@monthly", "@yearly")


def complaints(contract: Contract) -> Iterator[Complaint]:
    """Yield what is wrong with a contract's schedule."""
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
    elif any(_CHANCE.match(part) for field in schedule.split() for part in field.split(",")):
        found = f"'{schedule}' leaves times to chance (H, R), and each time it is read it would have others"
        yield Complaint(place, found, "write the times: 17 * * * *")
    elif wrong := _refusal(schedule, contract.start):
        found = f"'{schedule}' is a cron expression that Airflow refuses: {wrong}"
        yield Complaint(place, found, "write five fields (0 2 * * *): minute 0-59, hour 0-23, day 1-31, month, weekday")


_FIELDS, _LONGEST = 5, 200
_CHANCE = re.compile("[HR](/|$)")
_LETTERS = set("0123456789*/,-LW#?ABCDEFGHIJKLMNOPQRSTUVWXYZ")


def _refusal(schedule: str, start: datetime) -> str | None:
    """Return why Airflow would refuse a schedule, or find no interval of it; None if it would not."""
    from croniter import croniter  # type: ignore[import-untyped]  # Airflow's own parser, which it brings

    try:
        croniter(schedule, start).get_next(datetime)
        croniter(schedule, start).get_prev(datetime)
    except (ArithmeticError, LookupError, TypeError, ValueError) as error:
        said: Any = str(error).removeprefix(f"[{schedule}] ").removeprefix(f"{schedule} ")
        return f"it {said}" if said.startswith("is ") else str(said)
    return None
