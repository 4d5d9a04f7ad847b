"""The moments of knowledge that the pages offer: the last runs of a pipeline, and its closes."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from datetime import datetime
from typing import NamedTuple

from hindcast.plan import closes, journal
from hindcast.plan.closes import Close
from hindcast.plan.runs import Run
from hindcast.query.show import format_moment

MOST_OFFERED = 20
"""So many of each at most are offered."""
MAX_MOMENTS = 500
"""The most moments of a slider: the latest."""


class KnownMoment(NamedTuple):
    """A moment of knowledge: as a form takes it, and as a person reads it."""

    at: datetime
    text: str
    label: str


def list_closes(warehouse: str, pipeline: str) -> list[Close]:
    """Return the closes of a pipeline that were known last, the latest first; none that was dropped."""
    kept = closes.list_kept(warehouse, pipeline)
    return sorted(kept, key=lambda close: (close.known_at, close.name), reverse=True)[:MOST_OFFERED]


def list_known_ats(warehouse: str, pipeline: str, offered: Sequence[Close]) -> list[str]:
    """Return moments as a form takes them: `run:2` for each of the last completed runs, `close:NAME` for closes."""
    runs = [run.number for run in journal.read_completed_runs(warehouse, pipeline)][-MOST_OFFERED:]
    return [*(f"run:{number}" for number in reversed(runs)), *(f"{closes.PREFIX}{close.name}" for close in offered)]


def list_moments(past: Sequence[Run], kept: Sequence[Close], since: datetime | None) -> list[KnownMoment]:
    """Return the known-ats of completed runs and of closes for a slider, the earliest first.

    `since`: the horizon of the table, before which nothing is answered but a close, if that was kept.
    """
    runs = [(run.known_at, f"run:{run.number}", f"run {run.number}") for run in past if run.state == "completed"]
    named = [(close.known_at, f"{closes.PREFIX}{close.name}", f"close {close.name}") for close in kept]
    moments = [it for it in (*runs, *named) if since is None or it[0] >= since]
    latest = sorted(moments, key=lambda it: it[0])[-MAX_MOMENTS:]
    return [KnownMoment(at, text, f"{label}, {format_moment(at.replace(microsecond=0))}") for at, text, label in latest]


def find_moment(moments: Sequence[KnownMoment], known_at: datetime) -> tuple[int, str]:
    """Return the number and the label of a moment; of one that is not offered that of the last before it (0 without
    one), and its own text.
    """
    place = bisect_left(moments, known_at, key=lambda it: it.at)
    if place < len(moments) and moments[place].at == known_at:
        return place, moments[place].label
    return max(place - 1, 0), format_moment(known_at)
