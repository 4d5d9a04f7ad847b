"""Commits that are on their way when their run ends: they must not arrive after the next run has looked at the tables.

A step asks whether its run goes on before each commit (`commit_once.guard_commits`), but a process may stand still
between the answer and the commit.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import suppress

from deltalake import DeltaTable, Transaction
from deltalake.exceptions import DeltaError

from hindcast.common.errors import HindcastError
from hindcast.store import delta_log, delta_rs_writer, files, tables
from hindcast.store.commit_once import commit_repeatable
from hindcast.store.files import FileChange
from hindcast.store.tables import Table

ENDED = "ended"
"""The part of a table's commits that refuses those of ended runs; the version is the last of these runs."""


ADDING, REWRITING = "added", "columns"
"""The parts of a run's commits that add columns to a table, and that write all its rows again with others."""


def refuse_late_commits(table: Table, run: int, parts: Sequence[str] = ("",)) -> None:
    """Let each commit fail that a step of `run` has begun upon a table as it is, in these parts of its commits.

    Commits nothing but the transaction identifiers that the table has, once: Delta refuses a commit if one of its
    identifiers was committed since it was begun, and ours by delta-rs are refused upon an older version. The refused
    step asks again whether its run goes on. Nothing is done for a table that is not there or cannot be opened or
    written to, where no step can commit either; nor for one that only Spark can write to (`files.is_plain`).
    """
    with suppress(HindcastError, DeltaError, OSError):
        if tables.open_table(table) is not None:
            commit_repeatable(lambda: _repeat_identifiers(table, run, parts))


def _repeat_identifiers(table: Table, run: int, parts: Sequence[str]) -> None:
    delta_table, ended = DeltaTable(table.path), table.app_id(ENDED)
    if (delta_table.transaction_version(ended) or 0) >= run or not files.is_plain(delta_table):
        return
    ids = {app_id: delta_table.transaction_version(app_id) or 0 for app_id in map(table.app_id, parts)}
    ids, note = {**ids, ended: run}, {"ended": run}
    if delta_log.is_on_disk(delta_table):
        delta_log.commit_actions(delta_table, [], ids, json.dumps(note))
    elif not tables.marks_rows(delta_table):
        repeated = [Transaction(app_id, version) for app_id, version in ids.items()]
        delta_rs_writer.commit_upon(delta_table, FileChange(()), note, repeated)
