"""Cron expressions that Airflow accepts: when it runs pipelines, and maintains tables."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from functools import lru_cache
from typing import NamedTuple

PRESETS = ("@hourly", "@daily", "@weekly", "@monthly", "@yearly")
MAX_LENGTH = 200


class Refusal(NamedTuple):
    """Why an expression is refused, to be read after it, and the fix."""

    problem: str
    fix: str


@lru_cache(maxsize=64)
def find_refusal(expression: str) -> Refusal | None:
    """Return why an expression is refused, None if Airflow accepts it.

    >>> find_refusal("60 * * * *").problem
    'is a cron expression that Airflow refuses: it is not acceptable, out of range'
    """
    if expression in PRESETS:
        return None
    fields = expression.split()
    if len(expression) > MAX_LENGTH or len(fields) != _FIELDS or not set("".join(fields).upper()) <= _LETTERS:
        return Refusal("is not a cron expression", f"write five fields (0 2 * * *), or {', '.join(PRESETS)}")
    if any(_RANDOM_FIELD.match(part) for field in fields for part in field.split(",")):
        return Refusal(
            "has random times (H, R), which would differ each time it is read", "write the times: 17 * * * *"
        )
    if problem := _find_problem(expression, _EXAMPLE):
        fix = "write five fields (0 2 * * *): minute 0-59, hour 0-23, day 1-31, month, weekday"
        return Refusal(f"is a cron expression that Airflow refuses: {problem}", fix)
    return None


def has_intervals(expression: str, start: datetime) -> bool:
    """Return whether Airflow can compute the first interval of an accepted expression from a start on.

    It looks before and after the start, so neither may lie before year 1 or after year 9999.
    """
    return _find_problem(expression, start) is None


def find_next(expression: str, after: datetime) -> datetime | None:
    """Return the first moment of an expression after another one; None if there is none.

    >>> find_next("@daily", datetime(2026, 1, 1, 3, tzinfo=UTC)).isoformat()
    '2026-01-02T00:00:00+00:00'
    """
    from croniter import croniter  # type: ignore[import-untyped]  # as in `_find_problem`

    try:
        found: datetime = croniter(expression, after).get_next(datetime)
    except (ArithmeticError, LookupError, TypeError, ValueError):
        return None
    return found


def describe_times(expression: str) -> str:
    """Return how often an expression means, in words.

    >>> describe_times("@daily"), describe_times("17 * * * *")
    ('every day', 'at 17 * * * *')
    """
    return _PRESET_WORDS.get(expression, f"at {expression}")


_PRESET_WORDS = dict(zip(PRESETS, ("every hour", "every day", "every week", "every month", "every year"), strict=True))
_FIELDS = 5
_EXAMPLE = datetime(2026, 1, 1, tzinfo=UTC)
_RANDOM_FIELD = re.compile("[HR](/|$)", re.IGNORECASE)
_LETTERS = set("0123456789*/,-LW#?ABCDEFGHIJKLMNOPQRSTUVWXYZ")


def _find_problem(expression: str, start: datetime) -> str | None:
    """Return why Airflow would refuse an expression or find no interval from a start on, None if it would not."""
    from croniter import croniter  # Airflow's own parser, installed with it

    try:
        first = croniter(expression, start).get_next(datetime)
        croniter(expression, start).get_prev(datetime)
        croniter(expression, first).get_next(datetime)
    except (ArithmeticError, LookupError, TypeError, ValueError) as error:
        message = str(error).removeprefix(f"[{expression}] ").removeprefix(f"{expression} ")
        return f"it {message}" if message.startswith("is ") else message
    return None
