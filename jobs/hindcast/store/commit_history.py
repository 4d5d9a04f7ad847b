"""The notes of a table's commits (commit_notes.py), by run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TypeVar

from deltalake import DeltaTable

from hindcast.common.json_values import StoredObject
from hindcast.store.commit_notes import NOTE_ERRORS, parse_note
from hindcast.store.tables import PINNED_TABLES, Table, open_table

Note = TypeVar("Note")


def read_notes(table: Table, parse: Callable[[StoredObject], Note], limit: int = 1000) -> dict[int, Note]:
    """Return the note of each run's commit (commit_notes.py), by the run's number, newest first.

    `parse` raises one of `NOTE_ERRORS` for what somebody else wrote, which is passed over.
    """
    delta_table = open_table(table)
    notes: dict[int, Note] = {}
    for commit in _read_commits(delta_table, limit) if delta_table is not None else []:
        note = parse_note(commit)
        if type(note.get("run")) is int and note["run"] not in notes:
            with suppress(*NOTE_ERRORS):  # written by somebody else
                notes[note["run"]] = parse(note)
    return notes


def _read_commits(delta_table: DeltaTable, limit: int) -> Sequence[StoredObject]:
    """Return the last commits to a table, newest first; of a pinned table none that came later.

    delta-rs lists later ones too, first, and numbers the others wrongly.
    """
    if PINNED_TABLES.get() is None:
        return delta_table.history(limit)
    while True:
        later = DeltaTable(delta_table.table_uri).version() - delta_table.version()
        commits = delta_table.history(limit)
        if DeltaTable(delta_table.table_uri).version() == delta_table.version() + later:
            return commits[later:]
