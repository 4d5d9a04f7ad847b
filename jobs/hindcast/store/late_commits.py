"""Commits that are on their way when their run ends: they must not arrive after the next run has looked at the tables.

A step asks whether its run goes on before each commit (`commit_once.guard_commits`), but a process may stand still
between the answer and the commit, even before Spark begins the transaction.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import suppress

from deltalake import DeltaTable, Transaction
from deltalake.exceptions import DeltaError

from hindcast.common.errors import HindcastError
from hindcast.store import commit_ids, delta_log, delta_rs_writer, files, tables
from hindcast.store.commit_once import commit_repeatable, guard_commits
from hindcast.store.files import FileChange
from hindcast.store.tables import Table


def refuse_late_commits(table: Table, run: int, parts: Sequence[str] = ("",), repeated: Sequence[str] = ()) -> None:
    """Refuse the commits to a table that steps of `run`, which has ended, may still make in these parts of its commits.

    Commits the identifiers of `commit_ids.end_run`, once. In the parts `repeated`, where a later run may commit what
    the ended run left in its name, only the commits fail that are begun: Delta refuses a commit if its identifier was
    committed since. Nothing is done for a table that is not there or cannot be opened or written to, where no step can
    commit either; nor for one with features of Delta that we do not know.
    """
    with suppress(HindcastError, DeltaError, OSError), guard_commits(lambda: None):
        if tables.open_table(table) is not None:
            commit_repeatable(lambda: _commit_end(table, run, parts, repeated))


def _commit_end(table: Table, run: int, parts: Sequence[str], repeated: Sequence[str]) -> None:
    delta_table = DeltaTable(table.path)
    ids = commit_ids.end_run(delta_table, [table.app_id(part) for part in parts], run)
    if not ids:
        return
    ids |= {app_id: delta_table.transaction_version(app_id) or 0 for app_id in map(table.app_id, repeated)}
    note, has_known_features = {"ended": run}, files.has_known_features(delta_table)
    if delta_log.is_on_disk(delta_table):
        if has_known_features or delta_log.takes_bare_commits(delta_table):
            delta_log.commit_actions(delta_table, [], ids, json.dumps(note), checkpoint=has_known_features)
    elif has_known_features:
        transactions = [Transaction(app_id, version) for app_id, version in ids.items()]
        delta_rs_writer.commit_upon(delta_table, FileChange(()), note, transactions)
