"""Fresh runs go before backfills, both for Airflow's slots and for their pipeline, whose runs are serialised.

A release that a person has approved goes before both. While a pipeline can still be rehearsed, backfills go before
fresh runs, since no run by the clock may come before a rehearsed one.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from airflow.task.priority_strategy import PriorityWeightStrategy

if TYPE_CHECKING:
    from airflow.models.taskinstance import TaskInstance

BACKFILL_PREFIX = "backfill__"
"""The prefix of a backfill's run ids in Airflow; the moment follows, as in ids of other runs."""

WAITING_STATES = ("scheduled", "queued", "running", "up_for_reschedule", "up_for_retry")
"""The states of a task that will start by itself or has not ended."""


class FreshFirst(PriorityWeightStrategy):
    """The priority by which tasks of backfills come last when slots are scarce."""

    def get_weight(self, ti: TaskInstance) -> int:
        """Return 10 for a task of a fresh run, 1 for one of a backfill."""
        return 1 if ti.run_id.startswith(BACKFILL_PREFIX) else 10


def find_fresh_run(run_id: str, waiting: Mapping[str, str | None]) -> str | None:
    """Return the fresh run that goes before a backfill's run, given the states of their plan tasks; None if none waits.

    It is one with a later moment whose id is not a backfill's. A backfill can take over scheduled runs, which keep
    their ids: comparing moments ensures that no two of them wait for each other.
    """
    own = parse_moment(run_id)
    fresh = (
        other
        for other, state in waiting.items()
        if state in WAITING_STATES
        and not other.startswith(BACKFILL_PREFIX)
        and own
        and (parse_moment(other) or own) > own
    )
    return next(fresh, None)


def find_waiting_run(states: Mapping[str, str | None]) -> str | None:
    """Return the first run whose task will start by itself or has not ended, given the task's states; None if none."""
    return next((run for run, state in states.items() if state in WAITING_STATES), None)


def parse_moment(run_id: str) -> datetime | None:
    """Return the moment in a run's id; None if a person chose the id."""
    match = re.search(r"__(\d{4}-\d\d-\d\dT[\d:.]+(?:\+00:00|Z)?)", run_id)
    try:
        return datetime.fromisoformat(match[1]).replace(tzinfo=UTC) if match else None
    except ValueError:
        return None
