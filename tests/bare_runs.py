"""Runs for tests that only need a journal: plans without topics, and outcomes that say nothing."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from hindcast.plan.plans import Plan
from hindcast.plan.runs import Abandoned, Completed, Outcome, Planned, Run, Stopped

OUTCOMES: dict[str, Outcome] = {
    "planned": Planned(),
    "stopped": Stopped("", ""),
    "completed": Completed({}),
    "abandoned": Abandoned(""),
}


def bare_run(
    pipeline: str, number: int, known_at: datetime, state: str = "planned", *, contract: str = "", **fields: Any
) -> Run:
    """Return a run of no topics in this state; `fields`: others of its plan."""
    run_id, topics = fields.pop("run_id", f"run-{number}"), fields.pop("topics", {})
    return Run(Plan(pipeline, number, run_id, known_at, None, contract, topics, **fields), OUTCOMES[state])
