"""The commits to a table, and their notes (commit_notes.py) by run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from itertools import chain
from typing import TypeVar

from deltalake import DeltaTable

from hindcast.common.json_values import StoredObject
from hindcast.store import delta_log
from hindcast.store.commit_notes import NOTE_ERRORS, parse_note, split_note
from hindcast.store.odd_tables import refuse_unreadable_rows
from hindcast.store.tables import PINNED_TABLES, Table, open_table

Note = TypeVar("Note")


def read_notes(table: Table, parse: Callable[[StoredObject], Note], limit: int = 1000) -> dict[int, Note]:
    """Return the notes of the last runs' commits (commit_notes.py), by the run's number, newest first; at least those
    of `limit` runs, if there are so many.

    `parse` raises one of `NOTE_ERRORS` for what somebody else wrote, which is passed over. TableError for a commit that
    is none.
    """
    delta_table, most = open_table(table), limit
    while delta_table is not None:
        with refuse_unreadable_rows(table):
            commits = _read_commits(delta_table, most)
        notes = dict[int, Note]()
        for note in chain.from_iterable(map(split_note, map(parse_note, commits))):
            if type(note.get("run")) is int and note["run"] not in notes:
                with suppress(*NOTE_ERRORS):  # written by somebody else
                    notes[note["run"]] = parse(note)
        if len(notes) >= limit or len(commits) < most:
            return notes
        most *= 4  # some have no note: of OPTIMIZE, or of runs that were abandoned (late_commits.py)
    return {}


def list_joined_runs(table: Table, limit: int = 1000) -> list[list[int]]:
    """Return the runs of each of the last commits that several runs have in common, as a pass makes them."""
    delta_table = open_table(table)
    if delta_table is None:
        return []
    with refuse_unreadable_rows(table):
        notes = [split_note(parse_note(commit)) for commit in _read_commits(delta_table, limit)]
    numbers = ([run for note in some if type(run := note.get("run")) is int] for some in notes)
    return [runs for runs in numbers if len(runs) > 1]


def _read_commits(delta_table: DeltaTable, limit: int) -> Sequence[StoredObject]:
    """Return the last commits to a table, newest first; of a pinned table none that came later.

    delta-rs lists later ones too, first, and numbers the others wrongly.
    """
    if PINNED_TABLES.get() is None:
        return delta_log.list_commits(delta_table, limit)
    while True:
        later = DeltaTable(delta_table.table_uri).version() - delta_table.version()
        commits = delta_log.list_commits(delta_table, limit)
        if DeltaTable(delta_table.table_uri).version() == delta_table.version() + later:
            return commits[later:]
