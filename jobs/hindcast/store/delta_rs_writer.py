"""Commits that this process makes with delta-rs: of files already written, and of few rows (docs/adr/0024).

Spark takes a second for a commit, two for a MERGE, however few the rows are.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from typing import TYPE_CHECKING

from deltalake import CommitProperties, DeltaTable, Transaction
from deltalake.exceptions import DeltaError
from deltalake.transaction import AddAction, RemoveAction

from hindcast.common.errors import PlatformError
from hindcast.common.json_values import JsonObject
from hindcast.store import files, rewriting, table_creation, tables
from hindcast.store.commit_once import commit_once
from hindcast.store.tables import Table

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from hindcast.store.files import DataFile


def append_rows(
    rows: DataFrame, table: Table, run: int, note: JsonObject, part: str = "", after: int | None = None
) -> bool | None:
    """Append a few rows as `commits.append_rows` does; return None if only Spark can write to the table."""
    delta_table = DeltaTable(table.path)
    if (delta_table.transaction_version(table.app_id(part)) or 0) >= run:
        return False
    parts = files.collect_rows(rows, delta_table)
    if parts is None:
        return None
    with _explain_write_errors(table):
        written = list(files.write_files(delta_table, parts))
    return _commit_actions(delta_table, lambda _: list(map(_build_add_action, written)), table, run, note, part, after)


def add_files(written: Sequence[DataFile], table: Table, run: int, note: JsonObject, *, after: int | None) -> bool:
    """Add files that are written already (`files.write_files`), as `commits.append_rows` appends rows."""
    delta_table = DeltaTable(table.path)
    return _commit_actions(delta_table, lambda _: list(map(_build_add_action, written)), table, run, note, "", after)


class _MergeNeededError(Exception):
    """Rows are to be closed that only a MERGE can close."""


def try_commit_change(
    rows: DataFrame, table: Table, run: int, known_at: datetime, note: JsonObject, after: int | None
) -> bool:
    """Commit a few rows, some of them closed, as `commits.commit_change` does; return False if that needs a MERGE."""
    delta_table = DeltaTable(table.path)
    opened = files.collect_rows(rows.where("change = 'open'").drop("change"), delta_table)
    if opened is None or delta_table.metadata().partition_columns != ["_belief"]:
        return False
    close = (
        rows.where("change = 'close'")
        .select(*dict.fromkeys((*table.identity, tables.period_columns(table)[0])))
        .toArrow()
    )

    def actions(current: DeltaTable) -> list[AddAction | RemoveAction]:
        rewritten = rewriting.find_files_to_rewrite(current, table, close, known_at)
        if rewritten is None:
            raise _MergeNeededError
        now = _current_millis()
        removed = [RemoveAction(file.path, True, now, file.size, {"_belief": file.belief}) for file in rewritten]
        written = files.write_files(current, rewriting.combine_parts(rewritten, opened))
        return [*removed, *map(_build_add_action, written)]

    try:
        _commit_actions(delta_table, actions, table, run, note, "", after)
    except _MergeNeededError:
        return False
    return True


def _commit_actions(
    delta_table: DeltaTable,
    actions: Callable[[DeltaTable], list[AddAction | RemoveAction]],
    table: Table,
    run: int,
    note: JsonObject,
    part: str,
    after: int | None,
) -> bool:
    """Commit actions upon the very version of the table that they were computed from; return whether this call did."""

    def read_last_run() -> int:
        delta_table.update_incremental()
        return delta_table.transaction_version(table.app_id(part)) or 0

    def commit() -> None:
        # No retries: it is made upon the very version that `read_last_run` has read, or not at all.
        properties = CommitProperties(
            custom_metadata={"userMetadata": json.dumps(note)},
            max_commit_retries=0,
            app_transactions=[Transaction(table.app_id(part), run)],
        )
        partitions = delta_table.metadata().partition_columns
        with _explain_write_errors(table):
            delta_table.create_write_transaction(
                actions(delta_table), "append", delta_table.schema(), partitions, commit_properties=properties
            )

    return commit_once(commit, read_last_run, run, after, table.path)


@contextmanager
def _explain_write_errors(table: Table) -> Iterator[None]:
    """Raise PlatformError if the block fails because a disk is full or read-only."""
    try:
        yield
    except (DeltaError, OSError) as error:
        if isinstance(explained := table_creation.explain_write_error(error, table.path), PlatformError):
            raise explained from None
        raise


def _build_add_action(file: DataFile) -> AddAction:
    partition = {"_belief": file.belief} if file.belief else {}
    return AddAction(file.path, file.size, partition, _current_millis(), data_change=True, stats=file.statistics)


def _current_millis() -> int:
    return int(time.time() * 1000)
