"""Commits that are on their way when their run ends: they must not arrive after the next run has looked at the tables.

A step asks whether its run goes on before each commit (`commit_once.guard_commits`), but a process may stand still
between the answer and the commit.
"""

from __future__ import annotations

import json
from collections.abc import Sequence

from deltalake import CommitProperties, DeltaTable, Transaction

from hindcast.store import delta_log, files, tables
from hindcast.store.commit_once import commit_repeatable
from hindcast.store.tables import Table


def refuse_late_commits(table: Table, run: int, parts: Sequence[str] = ("",)) -> None:
    """Let each commit fail that a step of `run` has begun upon a table as it is, in these parts of its commits.

    Commits nothing but the transaction identifiers that the table has: Delta refuses a commit if one of its identifiers
    was committed since it was begun, and delta-rs any commit upon an older version. The refused step asks again whether
    its run goes on. Does nothing for a table that is not there; nor for one in an object store that only Spark can
    write to, where a step commits within the second.
    """
    if tables.open_table(table) is None:
        return

    def commit() -> None:
        delta_table = DeltaTable(table.path)
        ids = {app_id: delta_table.transaction_version(app_id) or 0 for app_id in map(table.app_id, parts)}
        note = json.dumps({"ended": run})
        if delta_log.is_on_disk(delta_table):
            delta_log.commit_actions(delta_table, [], ids, note)
        elif files.is_plain(delta_table) and not tables.marks_rows(delta_table):
            properties = CommitProperties(
                custom_metadata={"userMetadata": note},
                max_commit_retries=0,
                app_transactions=[Transaction(app_id, version) for app_id, version in ids.items()],
            )
            schema, partitions = delta_table.schema(), delta_table.metadata().partition_columns
            delta_table.create_write_transaction([], "append", schema, partitions, commit_properties=properties)

    commit_repeatable(commit)
