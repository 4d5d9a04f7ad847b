"""Creation of tables, and which columns an existing table can take."""

from __future__ import annotations

import os
import re
import shutil
from datetime import datetime
from pathlib import Path

import pyarrow as pa
from deltalake import DeltaTable, Schema
from deltalake.exceptions import DeltaError
from pyspark.sql.types import DatetimeType, NumericType, StringType, StructField, StructType

from hindcast.common.errors import HindcastError, PlatformError, TableError
from hindcast.contract.shapes import PERIODS
from hindcast.contract.types import PERIOD_COLUMNS
from hindcast.store import store_formats, table_columns
from hindcast.store.columns import ColumnDifference, find_difference, format_columns
from hindcast.store.table_columns import read_dropped_columns
from hindcast.store.tables import (
    ARROW_TIMESTAMP,
    CHECKPOINTS,
    CREATED,
    EVOLUTION,
    FORMAT_NUMBER,
    INTERNAL_KINDS,
    NO_MARKS,
    STATISTICS,
    Table,
    open_latest,
    open_table,
    read_marks,
    read_older_format,
)

WIDENING_WARNING = (
    "Once widened, only Spark and Hindcast can read the table: delta-rs refuses it (reader feature typeWidening), "
    "and so do Polars and DuckDB"
)
"""What it means to readers that a column is widened and the files stay as they are."""
WIDENING_CHOICE = "widened in place, a table can be read only by Spark and Hindcast"
"""Why a contract has to say how columns are widened."""
REWRITING = "The whole table is written again, so that every reader can still read it"
"""What it means that the contract says `widen: rewrite`."""
_MIN_FREE_BYTES = 64 << 20
_RECORD_COLUMNS = ("topic", "partition", "offset", "timestamp", "fate", "run")
_COMPARABLE_TYPES = (NumericType, StringType, DatetimeType)


def ensure_table(table: Table, schema: StructType, known_at: datetime | None = None) -> DeltaTable:
    """Return the table, created if it does not exist; `known_at`: that of the run that creates a topic's or a view's.

    Raises TableError if it cannot have the columns of `schema` (`fit_columns`), and PlatformError if it cannot be
    written (`refuse_read_only`). A table of our own takes new columns at once, without Spark; those of a topic or view
    take them in `schema_evolution.ensure_columns`.
    """
    delta_table = open_latest(table)
    refuse_read_only(table)
    if delta_table is None:
        _refuse_full_disk(table)
        properties = {STATISTICS: ",".join(statistics_columns(table, schema)), CHECKPOINTS: "10"}
        properties |= {CREATED: known_at.isoformat()} if known_at is not None else {}
        partitions = ["_belief"] if "_belief" in schema.names else ["bucket"] if table.kind == "kept" else None
        try:
            return DeltaTable.create(
                table.path,
                schema=Schema.from_json(schema.json()),
                partition_by=partitions,
                configuration=properties,
                name=f"{table.pipeline}.{table.name}",
                description=table.description,
                raise_if_key_not_exists=False,
            )
        except (DeltaError, OSError) as error:
            delta_table = open_latest(table)
            if delta_table is None:
                raise explain_write_error(error, table.path) from None
    change = fit_columns(delta_table, table, schema)
    if table.kind in INTERNAL_KINDS and (change.added or change.dropped):
        return _add_columns(delta_table, table, schema)
    return delta_table


def fit_columns(delta_table: DeltaTable, table: Table, schema: StructType) -> ColumnDifference:
    """Return what has to change in a table to give it the columns of `schema` (columns.py), which are all nullable.

    Raises TableError if the table cannot take them: it has another kind, key or types, one of our own columns is
    missing, or it would be widened without the contract's consent. Logs and the quarantine keep columns that a topic no
    longer needs, with null.
    """
    refuse_older_format(table)
    marks, current = read_marks(delta_table) or NO_MARKS, table_columns.spark_schema(delta_table)
    change = find_difference(current, schema, table.key)
    problems, dropped = list(change.refused.values()), read_dropped_columns(delta_table)
    own = [c for c in change.dropped if c not in dropped]
    own = [c for c in own if table.kind in INTERNAL_KINDS or c.startswith("_") or c in PERIOD_COLUMNS]
    problems += [f"{name} is missing" for name in own if table.kind not in ("log", "quarantine")]
    problems += [f"the key column {name} is missing" for name in change.dropped if name in marks["key"]]
    if table.kind in INTERNAL_KINDS:
        problems += [f"{name} changed from {old} to {new}" for name, (old, new) in change.widened.items()]
    problems += list_other_marks(delta_table, table)
    if problems:
        raise TableError(
            f"cannot take its new columns: {'; '.join(problems)}\n"
            f"  the table: {_format_contract_columns(table, current)}\n  the contract: "
            f"{_format_contract_columns(table, schema)}",
            where=table.path,
            fix=UNFIT_FIX,
        )
    if change.widened and table.widen == "refuse" and not table_columns.is_widened(delta_table):
        steps = ", ".join(f"{name} from {old} to {new}" for name, (old, new) in change.widened.items())
        raise TableError(
            f"would be widened ({steps}), and the contract does not allow it: {WIDENING_CHOICE}",
            where=table.path,
            fix=f"write widen: rewrite under {table.name.removeprefix('emitted/')} in the contract, and the whole "
            "table is written again; or spark_only, if only Spark and Hindcast read it; or cast to the type that it "
            "has now, or add a column of the wider type under another name",
        )
    return change


def list_other_marks(delta_table: DeltaTable, table: Table) -> list[str]:
    """Return in words which marks of a stored table differ from those of its place in the contract: kind and key."""
    marks = read_marks(delta_table) or NO_MARKS
    problems = [] if marks["kind"] == table.kind else [f"its kind is {marks['kind']}, not {table.kind}"]
    return problems + ([] if tuple(marks["key"]) == table.key else [f"the key was {', '.join(marks['key'])}"])


UNFIT_FIX = (
    "restore the type or key; or give the changed column another name (the table keeps the old one), or the topic or "
    "view another name (a new table); to start over, remove the pipeline's folder of the warehouse"
)
"""What to do if a table cannot take the columns of a contract."""


def refuse_older_format(table: Table) -> None:
    """Raise TableError if runs cannot write to the table: it is not ours, or has an older store format."""
    delta_table = open_table(table)
    if delta_table is None or (read_marks(delta_table) or NO_MARKS)["hindcast"] >= FORMAT_NUMBER:
        return
    if (older := read_older_format(delta_table)) is not None:
        raise TableError(
            f"has the older store format {older.format}: it can be read, but runs write the format "
            f"{store_formats.CURRENT_FORMAT}",
            where=table.path,
            fix=f"hindcast upgrade {table.pipeline}.{table.name} --mode in-place (or roll-over, offline)",
        )


def _add_columns(delta_table: DeltaTable, table: Table, schema: StructType) -> DeltaTable:
    """Return a table of our own with the columns it lacked, all nullable; its files stay as they are."""
    names = {field.name for field in delta_table.schema().fields}
    lacking = StructType([field for field in make_nullable(schema).fields if field.name not in names])
    try:
        if EVOLUTION not in delta_table.metadata().configuration:
            delta_table.alter.set_table_properties({EVOLUTION: "{}"}, raise_if_not_exists=False)
        if lacking.fields:
            delta_table.alter.add_columns(Schema.from_json(lacking.json()).fields)
    except (DeltaError, OSError) as error:
        raise explain_write_error(error, table.path) from None
    return delta_table


def _format_contract_columns(table: Table, schema: StructType) -> str:
    """Return the columns as a contract writes them: of a topic or view without those that we add."""
    given = [f for f in schema.fields if not f.name.startswith("_") and f.name not in PERIOD_COLUMNS]
    return format_columns(schema if table.kind in INTERNAL_KINDS else StructType(given))


def statistics_columns(table: Table, schema: StructType) -> list[str]:
    """Return the columns by which rows are found: Delta keeps statistics, which cost time, of these alone."""
    names: tuple[str, ...] = _RECORD_COLUMNS
    if table.kind in PERIODS:
        names = *table.key, *PERIODS[table.kind], "systemFrom", "systemTo"
    elif table.kind == "emitted":
        names = *table.key, "timestamp", "_run", "systemFrom"
    types = {field.name: field.dataType for field in schema.fields}
    return [name for name in names if isinstance(types.get(name), _COMPARABLE_TYPES)]


def make_nullable(schema: StructType) -> StructType:
    """Return the same columns, all nullable."""
    return StructType([StructField(field.name, field.dataType, True) for field in schema.fields])


def arrow_schema(schema: StructType) -> pa.Schema:
    """Return the schema of one of our own tables as Arrow has it."""
    kinds = {"bigint": pa.int64(), "int": pa.int32(), "double": pa.float64(), "string": pa.string()}
    return pa.schema(
        [(field.name, kinds.get(field.dataType.simpleString(), ARROW_TIMESTAMP)) for field in schema.fields]
    )


def explain_write_error(error: Exception, where: str) -> HindcastError:
    """Return the error for a failed write: PlatformError for a full disk, a read-only file system or missing rights."""
    text = str(error)
    if "No space left on device" in text or "os error 28" in text:
        return PlatformError("the disk is full", where=where, fix="free some space, then repeat the command or task")
    if re.search(r"Permission denied|Read-only file system|os error (13|30)\b", text):
        return PlatformError(_READ_ONLY, where=where, fix=_WRITABLE)
    return TableError(f"cannot be written: {text}", where=where, fix="check the path and its permissions")


def refuse_read_only(table: Table) -> None:
    """Raise PlatformError if this user cannot write to the folder of a table or to its log.

    Object stores are not checked.
    """
    if "://" in table.path:
        return
    folder, log = _find_existing_folder(Path(table.path)), Path(table.path, "_delta_log")
    for place in (folder, *([log] if log.exists() else [])):
        if not os.access(place, os.W_OK | os.X_OK):
            raise PlatformError(_READ_ONLY, where=str(place), fix=_WRITABLE)


_READ_ONLY = "this user cannot write here: the warehouse is read-only, or belongs to another user"
_WRITABLE = (
    "give this user, and the one that Spark runs as, the right to write there, then repeat the command or task; what "
    "was published before can be read"
)


def _find_existing_folder(path: Path) -> Path:
    """Return the path, or the nearest folder above it that exists."""
    return next(p for p in [path, *path.parents] if p.exists())


def _refuse_full_disk(table: Table) -> None:
    """Raise TableError if a local disk is nearly full, before anything is written."""
    if "://" in table.path:
        return
    free = shutil.disk_usage(_find_existing_folder(Path(table.path))).free
    if free < _MIN_FREE_BYTES:
        raise TableError(
            f"the disk has only {free >> 20} MB left", where=table.path, fix="free some space; nothing was written"
        )
