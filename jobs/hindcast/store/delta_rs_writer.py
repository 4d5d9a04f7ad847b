"""Commits that this process makes with delta-rs: of files already written, and of few rows (docs/adr/0024).

Spark takes a second for a commit, two for a MERGE, however few the rows are.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple

from deltalake import CommitProperties, DeltaTable, Transaction
from deltalake.exceptions import DeltaError
from deltalake.transaction import AddAction, RemoveAction

from hindcast.common.errors import PlatformError
from hindcast.common.json_values import JsonObject
from hindcast.store import change_tasks, closing, deletion_vectors, delta_log, files, table_creation, tables
from hindcast.store.commit_once import commit_once
from hindcast.store.tables import Table

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from hindcast.store.closing import CandidateFile
    from hindcast.store.deletion_vectors import RowNumbers
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
    return _commit_files(delta_table, lambda _: _FileChange(written), table, run, note, part, after)


def add_files(written: Sequence[DataFile], table: Table, run: int, note: JsonObject, *, after: int | None) -> bool:
    """Add files that are written already (`files.write_files`), as `commits.append_rows` appends rows."""
    delta_table = DeltaTable(table.path)
    return _commit_files(delta_table, lambda _: _FileChange(written), table, run, note, "", after)


class _MergeNeededError(Exception):
    """Rows are to be closed that are not found by their identity."""


def try_commit_change(
    rows: DataFrame, table: Table, run: int, known_at: datetime, note: JsonObject, after: int | None, *, few: bool
) -> bool:
    """Commit rows, some of them closed, as `commits.commit_change` does; return False if that needs a MERGE.

    `few`: this process writes the opened rows, else Spark's tasks do.
    """
    delta_table = DeltaTable(table.path)
    opened_rows, start = rows.where("change = 'open'").drop("change"), tables.period_columns(table)[0]
    if not change_tasks.can_write(opened_rows, delta_table) or not delta_table.metadata().partition_columns:
        return False
    if tables.DELETION_VECTORS in delta_table.metadata().configuration and not delta_log.is_on_disk(delta_table):
        return False
    opened = files.collect_rows(opened_rows, delta_table) if few else []
    if opened is None:
        return False
    written = [] if few else change_tasks.write_rows(opened_rows, table, delta_table)
    close = rows.where("change = 'close'").select(*dict.fromkeys((*table.identity, start))).toArrow().sort_by(start)

    def close_rows(current: DeltaTable) -> _FileChange:
        candidates = closing.find_candidate_files(current, table, close)
        if sum(file.size for file in candidates) > files.SMALL_BYTES:
            closed = change_tasks.close_rows(rows.sparkSession, current, table, close, known_at, candidates)
            closed.written.extend(files.write_files(current, opened))
        else:
            closed = closing.write_closed_rows(current, table, close, known_at, candidates, opened)
        if closed.count_rows() != close.num_rows:
            raise _MergeNeededError
        return _FileChange(
            [*written, *closed.written], [it for it in candidates if it.path in closed.numbers], closed.numbers
        )

    try:
        _commit_files(delta_table, close_rows, table, run, note, "", after)
    except _MergeNeededError:
        return False
    return True


class _FileChange(NamedTuple):
    """What a commit changes: the files that it adds, and those that rows are closed in, with the numbers of these."""

    added: Sequence[DataFile]
    touched: Sequence[CandidateFile] = ()
    numbers: Mapping[str, RowNumbers] = MappingProxyType({})


def _commit_files(
    delta_table: DeltaTable,
    build: Callable[[DeltaTable], _FileChange],
    table: Table,
    run: int,
    note: JsonObject,
    part: str,
    after: int | None,
) -> bool:
    """Commit a change upon the very version of the table that it was built from; return whether this call did."""
    app_id, partitions = table.app_id(part), delta_table.metadata().partition_columns

    def read_last_run() -> int:
        delta_table.update_incremental()
        return delta_table.transaction_version(app_id) or 0

    def commit() -> None:
        with _explain_write_errors(table):
            change = build(delta_table)
            if change.touched and tables.DELETION_VECTORS in delta_table.metadata().configuration:
                marks = deletion_vectors.mark_rows(delta_table, change.numbers)
                actions = [*marks, *map(_format_add_action, change.added)]
                delta_log.commit_actions(delta_table, actions, app_id, run, json.dumps(note))
                return
            # No retries: it is made upon the very version that `read_last_run` has read, or not at all.
            properties = CommitProperties(
                custom_metadata={"userMetadata": json.dumps(note)},
                max_commit_retries=0,
                app_transactions=[Transaction(app_id, run)],
            )
            delta_table.create_write_transaction(
                [*map(_build_remove_action, change.touched), *map(_build_add_action, change.added)],
                "append",
                delta_table.schema(),
                partitions,
                commit_properties=properties,
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


def _build_remove_action(file: CandidateFile) -> RemoveAction:
    return RemoveAction(file.path, True, delta_log.current_millis(), file.size, {"_belief": file.belief})


def _build_add_action(file: DataFile) -> AddAction:
    now = delta_log.current_millis()
    return AddAction(file.path, file.size, _partition(file), now, data_change=True, stats=file.statistics)


def _format_add_action(file: DataFile) -> JsonObject:
    """Return the action that adds a file as Delta's log has it."""
    return {
        "add": {
            "path": file.path,
            "partitionValues": _partition(file),
            "size": file.size,
            "modificationTime": delta_log.current_millis(),
            "dataChange": True,
            "stats": file.statistics,
        }
    }


def _partition(file: DataFile) -> dict[str, str]:
    return {"_belief": file.belief} if file.belief else {}
