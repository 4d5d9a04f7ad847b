"""How a table is made, and which columns one that is there can take."""

from __future__ import annotations

import os
import re
import shutil
from pathlib import Path

import pyarrow as pa
from deltalake import DeltaTable, Schema
from deltalake.exceptions import DeltaError
from pyspark.sql.types import DatetimeType, NumericType, StringType, StructField, StructType

from hindcast.contracts.shapes import PERIODS
from hindcast.contracts.types import PERIOD_COLUMNS
from hindcast.delta import store_formats, tables
from hindcast.delta.columns import Difference, difference, shown
from hindcast.delta.tables import (
    CHECKPOINTS,
    EVOLUTION,
    FORMAT,
    MOMENT,
    OURS,
    STATISTICS,
    Table,
    dropped,
    marked,
    older,
    opened,
)
from hindcast.errors import HindcastError, PlatformError, TableError

LOCKED_OUT = (
    "Once it is widened, only Spark and Hindcast read the table: delta-rs refuses it (reader feature typeWidening), "
    "and with it Polars and DuckDB"
)
"""What widening a column means to readers."""
_NEEDED = 64 << 20
_RECORDS = ("topic", "partition", "offset", "timestamp", "fate", "run")
_COMPARED = (NumericType, StringType, DatetimeType)


def ensure(table: Table, schema: StructType) -> DeltaTable:
    """The table, made if it is not there; TableError where it cannot have the columns of `schema` (`fit`), and
    PlatformError where nothing can be written (`refuse_read_only`).

    A table of our own takes new columns at once, without Spark; of a topic's or view's table `evolution.ensure` sees to
    it.
    """
    found = opened(table)
    refuse_read_only(table)
    if found is None:
        _room(table)
        partitions = ["_belief"] if "_belief" in schema.names else ["bucket"] if table.kind == "kept" else None
        try:
            return DeltaTable.create(
                table.path,
                schema=Schema.from_json(schema.json()),
                partition_by=partitions,
                configuration={STATISTICS: ",".join(sought(table, schema)), CHECKPOINTS: "10"},
                name=f"{table.pipeline}.{table.name}",
                description=table.description,
            )
        except (DeltaError, OSError) as error:
            found = opened(table)
            if found is None:
                raise unwritten(error, table.path) from None
    change = fit(found, table, schema)
    return _taken(found, table, schema) if (change.added or change.dropped) and table.kind in OURS else found


def fit(found: DeltaTable, table: Table, schema: StructType) -> Difference:
    """What a table that is there has to take to have the columns of `schema` (columns.py); they are all nullable.

    TableError where it cannot: it has another kind or key, or other types; or one of our own columns is missing; or it
    would be widened and the contract does not consent to that. Logs and the quarantine have null in columns that a
    topic has no use for any more.
    """
    writable(table)
    marks, there = marked(found) or {}, tables.spark_schema(found)
    change = difference(there, schema, table.key)
    told, gone = list(change.refused.values()), dropped(found)
    own = [c for c in change.dropped if c not in gone]
    own = [c for c in own if table.kind in OURS or c.startswith("_") or c in PERIOD_COLUMNS]
    told += [f"{name} is missing" for name in own if table.kind not in ("log", "quarantine")]
    told += [f"the key column {name} is missing" for name in change.dropped if name in marks.get("key", ())]
    if table.kind in OURS:
        told += [f"{name} changed from {old} to {new}" for name, (old, new) in change.widened.items()]
    if marks.get("kind") != table.kind:
        told.append(f"it has {marks.get('kind')}, not {table.kind}")
    if tuple(marks.get("key", ())) != table.key:
        told.append(f"the key was {', '.join(marks.get('key', []))}")
    if told:
        raise TableError(
            f"cannot take the columns that it is given now: {'; '.join(told)}\n"
            f"  the table: {_shown(table, there)}\n  the contract: {_shown(table, schema)}",
            where=table.path,
            mend="put the type or key back; or give the changed column another name (the table keeps the old one), or "
            "the topic or view another name (a new table)",
        )
    if change.widened and not table.widens and not tables.is_widened(found):
        steps = ", ".join(f"{name} from {old} to {new}" for name, (old, new) in change.widened.items())
        raise TableError(
            f"would be widened ({steps}), and the contract does not say widen: spark_only. {LOCKED_OUT}",
            where=table.path,
            mend=f"write widen: spark_only under {table.name.removeprefix('emitted/')} in the contract; or cast to the "
            "type that it has, or add a column of the wider type under another name",
        )
    return change


def writable(table: Table) -> None:
    """TableError for a table that is there and that runs cannot write: not ours, or of an older store format."""
    found = opened(table)
    it = older(found) if found is not None and (marked(found) or {})["hindcast"] < FORMAT else None
    if it is not None:
        raise TableError(
            f"has the older store format {it.format}: it can be read, runs write the format {store_formats.TODAY}",
            where=table.path,
            mend=f"hindcast upgrade {table.pipeline}.{table.name} --mode in-place (or roll-over, offline)",
        )


def _taken(found: DeltaTable, table: Table, schema: StructType) -> DeltaTable:
    """A table of our own with the columns that it lacks, all nullable; its files stay as they are, and differ now."""
    names = {field.name for field in found.schema().fields}
    lacking = StructType([field for field in nullable(schema).fields if field.name not in names])
    try:
        if EVOLUTION not in found.metadata().configuration:
            found.alter.set_table_properties({EVOLUTION: "{}"}, raise_if_not_exists=False)
        if lacking.fields:
            found.alter.add_columns(Schema.from_json(lacking.json()).fields)
    except (DeltaError, OSError) as error:
        raise unwritten(error, table.path) from None
    return found


def _shown(table: Table, schema: StructType) -> str:
    """Columns as a contract has them: of a topic or view without those that we add."""
    given = [f for f in schema.fields if not f.name.startswith("_") and f.name not in PERIOD_COLUMNS]
    return shown(schema if table.kind in OURS else StructType(given))


def sought(table: Table, schema: StructType) -> list[str]:
    """The columns by which rows are found: of these alone Delta keeps statistics, which cost time."""
    names: tuple[str, ...] = _RECORDS
    if table.kind in PERIODS:
        names = *table.key, *PERIODS[table.kind], "systemFrom", "systemTo"
    elif table.kind == "emitted":
        names = *table.key, "timestamp", "_run", "systemFrom"
    types = {field.name: field.dataType for field in schema.fields}
    return [name for name in names if isinstance(types.get(name), _COMPARED)]


def nullable(schema: StructType) -> StructType:
    """The same columns, all nullable: what a table of them is made with."""
    return StructType([StructField(field.name, field.dataType, True) for field in schema.fields])


def arrow_schema(schema: StructType) -> pa.Schema:
    """A schema of our own tables as Arrow has it."""
    kinds = {"bigint": pa.int64(), "int": pa.int32(), "double": pa.float64(), "string": pa.string()}
    return pa.schema([(field.name, kinds.get(field.dataType.simpleString(), MOMENT)) for field in schema.fields])


def unwritten(error: Exception, where: str) -> HindcastError:
    """What a failed write is told as: a full disk, a file system that is read-only, and missing rights as such."""
    text = str(error)
    if "No space left on device" in text or "os error 28" in text:
        return PlatformError("the disk is full", where=where, mend="free some room and retry the run")
    if re.search(r"Permission denied|Read-only file system|os error (13|30)\b", text):
        return PlatformError(_READ_ONLY, where=where, mend=_WRITABLE)
    return TableError(f"cannot be written: {text}", where=where, mend="check the path and its rights")


def refuse_read_only(table: Table) -> None:
    """Raise PlatformError where this user cannot write into the folder of a table and its log.

    An object store is not asked.
    """
    if "://" in table.path:
        return
    folder, log = _existing(Path(table.path)), Path(table.path, "_delta_log")
    for place in (folder, *([log] if log.exists() else [])):
        if not os.access(place, os.W_OK | os.X_OK):
            raise PlatformError(_READ_ONLY, where=str(place), mend=_WRITABLE)


_READ_ONLY = "this user cannot write here: the warehouse is read-only, or belongs to another user"
_WRITABLE = (
    "give this user, and the one that Spark runs as, the right to write there, then retry the run; what was published "
    "before can be read"
)


def _existing(path: Path) -> Path:
    """Return the path, or the nearest folder above it that is there."""
    return next(p for p in [path, *path.parents] if p.exists())


def _room(table: Table) -> None:
    """A full disk is told before the first byte, where the disk is ours to ask."""
    if "://" in table.path:
        return
    free = shutil.disk_usage(_existing(Path(table.path))).free
    if free < _NEEDED:
        raise TableError(
            f"the disk has only {free >> 20} MB left", where=table.path, mend="free some room; nothing was written"
        )
