"""The moments of knowledge that the pages offer: the last runs of a pipeline, and its closes."""

from __future__ import annotations

from collections.abc import Sequence

from hindcast.plan import closes, journal
from hindcast.plan.closes import Close

MOST_OFFERED = 20
"""So many of each at most are offered."""


def list_closes(warehouse: str, pipeline: str) -> list[Close]:
    """Return the closes of a pipeline that were known last, the latest first; none that was dropped."""
    kept = closes.list_kept(warehouse, pipeline)
    return sorted(kept, key=lambda close: (close.known_at, close.name), reverse=True)[:MOST_OFFERED]


def list_known_ats(warehouse: str, pipeline: str, offered: Sequence[Close]) -> list[str]:
    """Return moments as a form takes them: `run:2` for each of the last completed runs, `close:NAME` for closes."""
    runs = [run.number for run in journal.read_completed_runs(warehouse, pipeline)][-MOST_OFFERED:]
    return [*(f"run:{number}" for number in reversed(runs)), *(f"{closes.PREFIX}{close.name}" for close in offered)]
