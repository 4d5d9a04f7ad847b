"""Commits that this process makes with delta-rs, of files that it or Spark's tasks have written (docs/adr/0024).

Spark takes a second for a commit, two for a MERGE, however few the rows are.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import CommitProperties, DeltaTable, Transaction
from deltalake.exceptions import DeltaError
from deltalake.transaction import AddAction, RemoveAction

from hindcast.common.errors import PlatformError, TableError
from hindcast.common.json_values import JsonObject
from hindcast.store import (
    change_tasks,
    closing,
    commit_ids,
    deletion_vectors,
    delta_log,
    files,
    rewriting,
    table_creation,
    tables,
)
from hindcast.store.commit_once import check_guard, commit_once, commit_repeatable
from hindcast.store.files import DataFile, FileChange, TableFile
from hindcast.store.rewriting import Rewriter
from hindcast.store.tables import Table
from hindcast.store.task_rows import TaskRows

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def append_rows(
    rows: DataFrame | TaskRows, table: Table, run: int, note: JsonObject, part: str, after: int | None, *, few: bool
) -> bool | None:
    """Append rows as `commits.append_rows` does; return None if only Spark can write to the table."""
    delta_table = DeltaTable(table.path)
    if commit_ids.read_last_run(delta_table, table.app_id(part)) >= run:
        return False
    if not change_tasks.can_write(rows, delta_table):
        return None
    with _explain_write_errors(table):
        if few:
            written = list(files.write_files(delta_table, files.collect_rows(rows, delta_table)))
        else:
            written = change_tasks.write_rows(rows, table, delta_table)
    return _commit_files(delta_table, lambda _: FileChange(written), table, run, note, part, after)


def add_files(written: Sequence[DataFile], table: Table, run: int, note: JsonObject, *, after: int | None) -> bool:
    """Add files that are written already (`files.write_files`), as `commits.append_rows` appends rows."""
    delta_table = DeltaTable(table.path)
    return _commit_files(delta_table, lambda _: FileChange(written), table, run, note, "", after)


def commit_history(
    written: Sequence[DataFile], close: pa.Table, table: Table, run: int, note: JsonObject, after: int
) -> None:
    """Commit files with rows that have both of their system periods, and close current rows, each at a moment of its
    own: `close` has their identity, their start and `systemTo`, in the order of the starts.

    The runs up to `run` are in one commit, which is made once. Raise TableError if a row to close is not there.
    """
    delta_table = DeltaTable(table.path)

    def close_rows(current: DeltaTable) -> FileChange:
        if not close.num_rows:
            return FileChange(written)
        candidates = closing.find_candidate_files(current, table, close)
        closed = closing.write_closed_rows(current, table, close, None, candidates)
        if closed.count_rows() != close.num_rows:
            found = f"{close.num_rows - closed.count_rows()} of {close.num_rows} rows to close are not in the table"
            raise TableError(found, where=table.path, fix=f"hindcast verify {table.pipeline}")
        touched = [it for it in candidates if it.path in closed.numbers]
        return FileChange([*written, *closed.written], touched, closed.numbers)

    _commit_files(delta_table, close_rows, table, run, note, "", after)


def can_commit_history(table: Table) -> bool:
    """Return whether this process can write to a table by `commit_history`."""
    delta_table = DeltaTable(table.path)
    is_here = not tables.marks_rows(delta_table) or delta_log.is_on_disk(delta_table)
    return files.is_plain(delta_table) and is_here and bool(delta_table.metadata().partition_columns)


class _MergeNeededError(Exception):
    """Rows are to be closed that are not found."""


def try_commit_change(
    rows: DataFrame, table: Table, run: int, known_at: datetime, note: JsonObject, after: int | None, *, few: bool
) -> bool:
    """Commit rows, some of them closed, as `commits.commit_change` does; return False if that needs a MERGE.

    `few`: this process writes the opened rows, else Spark's tasks do.
    """
    delta_table = DeltaTable(table.path)
    opened_rows, start = rows.where("_change = 'open'").drop("_change"), tables.period_columns(table)[0]
    if not change_tasks.can_write(opened_rows, delta_table) or not delta_table.metadata().partition_columns:
        return False
    if tables.marks_rows(delta_table) and not delta_log.is_on_disk(delta_table):
        return False
    columns = list(dict.fromkeys((*table.closing_columns, start)))
    if few:
        here, written = rows.toArrow(), list[DataFile]()  # in one job
        new = here.filter(pc.equal(here["_change"], "open")).drop_columns("_change")
        opened = files.split_rows(new, pa.schema(delta_table.schema().to_arrow()))
        close = here.filter(pc.equal(here["_change"], "close")).select(columns).sort_by(start)
    else:
        opened, written = [], change_tasks.write_rows(opened_rows, table, delta_table)
        close = rows.where("_change = 'close'").select(*columns).toArrow().sort_by(start)

    def close_rows(current: DeltaTable) -> FileChange:
        candidates = closing.find_candidate_files(current, table, close)
        if sum(file.size for file in candidates) > files.SMALL_BYTES:
            closed = change_tasks.close_rows(rows.sparkSession, current, table, close, known_at, candidates)
            closed.written.extend(files.write_files(current, opened))
        else:
            closed = closing.write_closed_rows(current, table, close, known_at, candidates, opened)
        if closed.count_rows() != close.num_rows:
            raise _MergeNeededError
        return FileChange(
            [*written, *closed.written], [it for it in candidates if it.path in closed.numbers], closed.numbers
        )

    try:
        _commit_files(delta_table, close_rows, table, run, note, "", after)
    except _MergeNeededError:
        return False
    return True


def try_rewrite_rows(table: Table, rewrite: Rewriter, note: JsonObject) -> bool:
    """Commit what the rows of a small table become, unless they stay as they are; False if that needs Spark.

    The commit may be made twice: what is rewritten already has to stay as it is.
    """

    def commit() -> None:
        delta_table = DeltaTable(table.path)
        rewritten = rewriting.rewrite_small_table(delta_table, rewrite) if _can_rewrite(delta_table) else None
        if rewritten is None:
            raise _MergeNeededError
        if rewritten.touched:
            check_guard()
            with _explain_write_errors(table):
                commit_upon(delta_table, rewritten, note, [])

    try:
        commit_repeatable(commit)
    except _MergeNeededError:
        return False
    return True


def try_set_properties(table: Table, properties: Mapping[str, str]) -> bool:
    """Set properties of our own in one commit; return False if only Spark can, as those that Delta itself reads."""
    if not all(name.startswith(_OWN_PROPERTIES) for name in properties) or not files.has_known_features(
        DeltaTable(table.path)
    ):
        return False

    def commit() -> None:
        delta_table, alone = DeltaTable(table.path), CommitProperties(max_commit_retries=0)
        check_guard()
        with _explain_write_errors(table):
            delta_table.alter.set_table_properties(dict(properties), raise_if_not_exists=False, commit_properties=alone)

    commit_repeatable(commit)
    return True


_OWN_PROPERTIES = "hindcast."


def _can_rewrite(delta_table: DeltaTable) -> bool:
    """Return whether any rows of a table can be rewritten without Spark: it is plain, and of today's store format."""
    metadata = delta_table.metadata()
    is_fixed = metadata.configuration.get("delta.appendOnly", "false") == "true"
    is_old = tables.read_older_format(delta_table) is not None
    return files.is_plain(delta_table) and not (is_fixed or is_old or tables.marks_rows(delta_table))


def _commit_files(
    delta_table: DeltaTable,
    build: Callable[[DeltaTable], FileChange],
    table: Table,
    run: int,
    note: JsonObject,
    part: str,
    after: int | None,
) -> bool:
    """Commit a change upon the very version of the table that it was built from; return whether this call did."""
    app_id = table.app_id(part)

    def read_last_run() -> int:
        delta_table.update_incremental()
        commit_ids.refuse_ended_run(delta_table, app_id, run)
        return commit_ids.read_last_run(delta_table, app_id)

    def commit() -> None:
        with _explain_write_errors(table):
            change = build(delta_table)
            check_guard()
            if change.touched and tables.marks_rows(delta_table):
                marks = deletion_vectors.mark_rows(delta_table, change.numbers)
                actions = [*marks, *map(_format_add_action, change.added)]
                delta_log.commit_actions(delta_table, actions, {app_id: run}, json.dumps(note))
                return
            commit_upon(delta_table, change, note, [Transaction(app_id, run)])

    return commit_once(commit, read_last_run, run, after, table.path)


def commit_upon(delta_table: DeltaTable, change: FileChange, note: JsonObject, transactions: list[Transaction]) -> None:
    """Commit a change upon the very version of a table that `delta_table` is, or not at all."""
    properties = CommitProperties(
        custom_metadata={"userMetadata": json.dumps(note)}, max_commit_retries=0, app_transactions=transactions
    )
    removed, added = map(_build_remove_action, change.touched), map(_build_add_action, change.added)
    schema, partitions = delta_table.schema(), delta_table.metadata().partition_columns
    delta_table.create_write_transaction([*removed, *added], "append", schema, partitions, commit_properties=properties)


@contextmanager
def _explain_write_errors(table: Table) -> Iterator[None]:
    """Raise PlatformError if the block fails because a disk is full or read-only."""
    try:
        yield
    except (DeltaError, OSError) as error:
        if isinstance(explained := table_creation.explain_write_error(error, table.path), PlatformError):
            raise explained from None
        raise


def _build_remove_action(file: TableFile) -> RemoveAction:
    return RemoveAction(file.path, True, delta_log.current_millis(), file.size, _partition(file.belief))


def _build_add_action(file: DataFile) -> AddAction:
    now = delta_log.current_millis()
    return AddAction(file.path, file.size, _partition(file.belief), now, data_change=True, stats=file.statistics)


def _format_add_action(file: DataFile) -> JsonObject:
    """Return the action that adds a file as Delta's log has it."""
    return {
        "add": {
            "path": file.path,
            "partitionValues": _partition(file.belief),
            "size": file.size,
            "modificationTime": delta_log.current_millis(),
            "dataChange": True,
            "stats": file.statistics,
        }
    }


def _partition(belief: str | None) -> dict[str, str | None]:
    return {"_belief": belief} if belief else {}
