"""The order of the journal's entries, and which entry may follow which. Pure.

A run is planned, perhaps stopped once or several times, and then either completed or abandoned. Its entries are ordered
by the rank of their state, and those of one state by their sequence numbers, not by clocks. Only stops of one run that
were written by a version without sequence numbers are ordered by clock: that decides which of their reasons is shown.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import groupby, pairwise

from hindcast.common.errors import BusyError, RunError

RANKS: Mapping[str, int] = {"planned": 0, "stopped": 1, "abandoned": 2, "completed": 3}
"""The states of a run in order. A run that was both abandoned and completed counts as completed
(`find_contradictions`).
"""

_MAY_FOLLOW: Mapping[str | None, frozenset[str]] = {
    None: frozenset({"planned"}),
    "planned": frozenset({"stopped", "completed", "abandoned"}),
    "stopped": frozenset({"stopped", "completed", "abandoned"}),
    "completed": frozenset(),
    "abandoned": frozenset(),
}


@dataclass(frozen=True)
class JournalEntry:
    """An entry without its detail. `sequence`: 0 if a version that had no sequence numbers wrote it."""

    run: int
    state: str
    sequence: int
    at: datetime

    @property
    def order(self) -> tuple[int, int, int, datetime]:
        """The place of the entry in the journal."""
        return self.run, RANKS[self.state], self.sequence, self.at


def next_sequence(past: Iterable[JournalEntry]) -> int:
    """Return the sequence number of the next entry."""
    return max((entry.sequence for entry in past), default=0) + 1


def refuse_entry(
    past: Sequence[JournalEntry], pipeline: str, run: int, run_id: str, state: str, numbers: int = 1
) -> None:
    """Raise an error if a run cannot get an entry with this state after the entries `past` of the journal.

    A plan takes `numbers` numbers, the last of which is `run`. Raise BusyError if one of them is taken or another run
    has not ended, RunError if the run was not planned or has ended.
    """
    states = {entry.run: entry.state for entry in sorted(past, key=lambda entry: entry.order)}
    if state == "planned":
        if run - numbers < max(states, default=0):
            raise BusyError(
                f"another run of {pipeline} was planned as number {run} at the same moment",
                where=run_id,
                fix="run it again when that one has ended; nothing was written",
            )
        unfinished = [number for number, last in states.items() if _MAY_FOLLOW[last]]
        if unfinished:
            raise BusyError(
                f"run {unfinished[-1]} has not ended",
                where=pipeline,
                fix=f"wait for it or, if it cannot be finished: hindcast abandon {pipeline}; nothing was written",
            )
    elif state not in _MAY_FOLLOW[states.get(run)]:
        raise RunError(f"run {run} is {states.get(run, 'not planned')}", where=pipeline, fix="start a new run")


def find_contradictions(past: Iterable[JournalEntry]) -> dict[int, list[str]]:
    """Return the runs whose entries contradict each other, each with its states in the order of writing.

    Versions without sequence numbers ordered entries by clocks, so they could write and read them in a wrong order.
    """
    written = sorted(past, key=lambda entry: (entry.run, entry.sequence, entry.at, RANKS[entry.state]))
    of_runs = {run: [entry.state for entry in own] for run, own in groupby(written, key=lambda entry: entry.run)}
    return {run: states for run, states in of_runs.items() if not _can_follow([None, *states])}


def _can_follow(states: Sequence[str | None]) -> bool:
    """Return whether each state may follow the one before it."""
    return all(after in _MAY_FOLLOW[before] for before, after in pairwise(states))
