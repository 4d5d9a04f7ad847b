"""Commits that this process makes with delta-rs: of files already written, and of few rows (docs/adr/0024).

Spark takes a second for a commit, two for a MERGE, however few the rows are.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from typing import TYPE_CHECKING

from deltalake import CommitProperties, DeltaTable, Transaction
from deltalake.exceptions import DeltaError
from deltalake.transaction import AddAction, RemoveAction

from hindcast.common.errors import PlatformError
from hindcast.common.json_values import JsonObject
from hindcast.store import files, rewriting, table_creation, tables
from hindcast.store.commit_once import commit_once, commit_repeatable
from hindcast.store.rewriting import Rewriter, RewrittenFile
from hindcast.store.tables import Table

if TYPE_CHECKING:
    import pyarrow as pa
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
        return _replace_files(current, rewritten, opened)

    try:
        _commit_actions(delta_table, actions, table, run, note, "", after)
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
        if rewritten:
            with _explain_write_errors(table):
                _commit_upon(delta_table, _replace_files(delta_table, rewritten, []), note, [])

    try:
        commit_repeatable(commit)
    except _MergeNeededError:
        return False
    return True


def try_set_properties(table: Table, properties: Mapping[str, str]) -> bool:
    """Set properties of our own in one commit; return False if only Spark can, as those that Delta itself reads."""
    if not all(name.startswith(_OWN_PROPERTIES) for name in properties) or not files.is_plain(DeltaTable(table.path)):
        return False

    def commit() -> None:
        with _explain_write_errors(table):
            DeltaTable(table.path).alter.set_table_properties(dict(properties), raise_if_not_exists=False)

    commit_repeatable(commit)
    return True


_OWN_PROPERTIES = "hindcast."


def _can_rewrite(delta_table: DeltaTable) -> bool:
    """Return whether any rows of a table can be rewritten without Spark: it is plain, and of today's store format."""
    metadata = delta_table.metadata()
    is_fixed = metadata.configuration.get("delta.appendOnly", "false") == "true"
    is_old = tables.read_older_format(delta_table) is not None
    return files.is_plain(delta_table) and metadata.partition_columns in ([], ["_belief"]) and not (is_fixed or is_old)


def _replace_files(
    delta_table: DeltaTable, rewritten: list[RewrittenFile], opened: list[tuple[str | None, pa.Table]]
) -> list[AddAction | RemoveAction]:
    """Return the actions that replace files by what their rows become, and by rows that are `opened`."""
    now = _current_millis()
    removed = [RemoveAction(file.path, True, now, file.size, _partition(file.belief)) for file in rewritten]
    written = files.write_files(delta_table, rewriting.combine_parts(rewritten, opened))
    return [*removed, *map(_build_add_action, written)]


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
        with _explain_write_errors(table):
            _commit_upon(delta_table, actions(delta_table), note, [Transaction(table.app_id(part), run)])

    return commit_once(commit, read_last_run, run, after, table.path)


def _commit_upon(
    delta_table: DeltaTable,
    actions: list[AddAction | RemoveAction],
    note: JsonObject,
    transactions: list[Transaction],
) -> None:
    """Commit actions upon the very version of a table that `delta_table` is, or not at all."""
    properties = CommitProperties(
        custom_metadata={"userMetadata": json.dumps(note)}, max_commit_retries=0, app_transactions=transactions
    )
    partitions = delta_table.metadata().partition_columns
    delta_table.create_write_transaction(
        actions, "append", delta_table.schema(), partitions, commit_properties=properties
    )


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
    partition = _partition(file.belief)
    return AddAction(file.path, file.size, partition, _current_millis(), data_change=True, stats=file.statistics)


def _partition(belief: str | None) -> dict[str, str | None]:
    return {"_belief": belief} if belief else {}


def _current_millis() -> int:
    return int(time.time() * 1000)
