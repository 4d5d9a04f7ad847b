"""Commits that this process makes by delta-rs: of files that are written already, and of few rows (docs/adr/0024).

Spark takes a second for a commit, or two if it is a MERGE, however few the rows are.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from typing import TYPE_CHECKING, Any

from deltalake import CommitProperties, DeltaTable, Transaction
from deltalake.exceptions import DeltaError
from deltalake.transaction import AddAction, RemoveAction

from hindcast.delta import files, making, rewriting, tables
from hindcast.delta.attempts import once
from hindcast.delta.tables import Table
from hindcast.errors import PlatformError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from hindcast.delta.files import Written


def append(
    rows: DataFrame, table: Table, run: int, note: dict[str, Any], part: str = "", after: int | None = None
) -> bool | None:
    """`commits.append` of a few rows; None where only Spark can write into the table."""
    found = DeltaTable(table.path)
    if (found.transaction_version(table.app(part)) or 0) >= run:
        return False
    parts = files.of_rows(rows, found)
    if parts is None:
        return None
    with _told(table):
        written = list(files.write(found, parts))
    return _transact(found, lambda _: list(map(_added, written)), table, run, note, part, after)


def add(written: Sequence[Written], table: Table, run: int, note: dict[str, Any], *, after: int | None) -> bool:
    """Adds files that are written already (`files.write`), as `commits.append` adds rows."""
    found = DeltaTable(table.path)
    return _transact(found, lambda _: list(map(_added, written)), table, run, note, "", after)


class _MergeError(Exception):
    """Rows are to be closed that only a MERGE can close."""


def publish(
    rows: DataFrame, table: Table, run: int, known_at: datetime, note: dict[str, Any], after: int | None
) -> bool:
    """`commits.publish` of a few rows, some of which are closed; False where that is a MERGE's work."""
    found = DeltaTable(table.path)
    opened = files.of_rows(rows.where("change = 'open'").drop("change"), found)
    if opened is None or found.metadata().partition_columns != ["_belief"]:
        return False
    close = rows.where("change = 'close'").select(*dict.fromkeys((*table.identity, tables.period(table)[0]))).toArrow()

    def actions(now: DeltaTable) -> list[AddAction | RemoveAction]:
        some = rewriting.touched(now, table, close, known_at)
        if some is None:
            raise _MergeError
        removed = [RemoveAction(it.path, True, _now(), it.size, {"_belief": it.belief}) for it in some]
        return [*removed, *map(_added, files.write(now, rewriting.parts(some, opened)))]

    try:
        _transact(found, actions, table, run, note, "", after)
    except _MergeError:
        return False
    return True


def _transact(
    found: DeltaTable,
    actions: Callable[[DeltaTable], list[AddAction | RemoveAction]],
    table: Table,
    run: int,
    note: dict[str, Any],
    part: str,
    after: int | None,
) -> bool:
    """One commit of actions, which are made for the very version of the table that they are committed upon."""

    def published() -> int:
        found.update_incremental()
        return found.transaction_version(table.app(part)) or 0

    def commit() -> None:
        # It is made upon the very version of which `published` has told, or not at all.
        told = CommitProperties(
            custom_metadata={"userMetadata": json.dumps(note)},
            max_commit_retries=0,
            app_transactions=[Transaction(table.app(part), run)],
        )
        partitions = found.metadata().partition_columns
        with _told(table):
            found.create_write_transaction(actions(found), "append", found.schema(), partitions, commit_properties=told)

    return once(commit, published, run, after, table.path)


@contextmanager
def _told(table: Table) -> Iterator[None]:
    """A full disk, and one that is read-only, is told as what it is."""
    try:
        yield
    except (DeltaError, OSError) as error:
        if isinstance(told := making.unwritten(error, table.path), PlatformError):
            raise told from None
        raise


def _added(it: Written) -> AddAction:
    partition = {"_belief": it.belief} if it.belief else {}
    return AddAction(it.path, it.size, partition, _now(), data_change=True, stats=it.statistics)


def _now() -> int:
    return int(time.time() * 1000)
