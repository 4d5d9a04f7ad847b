"""Fresh runs go ahead of backfills: for a slot of Airflow's, and for their pipeline, whose runs are serialised.

What a person has approved goes ahead of both.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from airflow.task.priority_strategy import PriorityWeightStrategy

if TYPE_CHECKING:
    from airflow.models.taskinstance import TaskInstance

BACKFILL = "backfill__"
"""What Airflow begins the id of a run with that a backfill has made; the moment follows, as in ids of other runs."""

WAITING = ("scheduled", "queued", "running", "up_for_reschedule", "up_for_retry")
"""The states of a task that will begin by itself, or has not ended."""


class FreshFirst(PriorityWeightStrategy):
    """Where slots are scarce, the tasks of backfills come last."""

    def get_weight(self, ti: TaskInstance) -> int:
        """10 for a task of a fresh run, 1 for one of a backfill."""
        return 1 if ti.run_id.startswith(BACKFILL) else 10


def gives_way(run_id: str, waiting: Mapping[str, str | None]) -> str | None:
    """The fresh run that a run of a backfill lets go first, given the states of their plan tasks; None if none waits.

    That is one of a later moment, and not of its own kind by name. A backfill can take up the runs of a schedule, under
    their own ids: moments see to it that no two of them wait for each other.
    """
    own = _moment(run_id)
    fresh = (
        other
        for other, state in waiting.items()
        if state in WAITING and not other.startswith(BACKFILL) and own and (_moment(other) or own) > own
    )
    return next(fresh, None)


def find_waiting(states: Mapping[str, str | None]) -> str | None:
    """Return the first run whose task will begin by itself or has not ended, given the task's states; None if none."""
    return next((run for run, state in states.items() if state in WAITING), None)


def _moment(run_id: str) -> datetime | None:
    """The moment in a run's id; None in one that a person has named."""
    found = re.search(r"__(\d{4}-\d\d-\d\dT[\d:.]+(?:\+00:00|Z)?)", run_id)
    return datetime.fromisoformat(found[1]).replace(tzinfo=UTC) if found else None
