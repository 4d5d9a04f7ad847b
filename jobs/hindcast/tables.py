"""Delta tables: where they lie, what form they have, and what they say of themselves.

Every table is plain Delta. Beside the user's columns:

| kind | columns |
| --- | --- |
| versions | `validFrom`, `validTo`, `systemFrom`, `systemTo` |
| events | `timestamp`, `systemFrom`, `systemTo`, `_partition`, `_offset` |
| windows | `windowStart`, `windowEnd`, `systemFrom`, `systemTo` |
| pairs | `timestamp`, `systemFrom`, `systemTo`, `_partition`, `_offset`, `_rightPartition`, `_rightOffset` |

`_partition` and `_offset` are those of the record that a row comes from: of a topic's table the version's own record,
of a joined stream the event's. All tables have `_belief`, the partition column of a layout that keeps a run's cost near
its change: `open` (believed, validTo null), `past` (believed, ended; all that is not a version) and `superseded`.
Columns that begin with _ are lineage and layout: they are not part of what a row says.
"""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, Literal
from urllib.parse import unquote

import pyarrow as pa
from deltalake import DeltaTable, QueryBuilder, Schema
from deltalake.exceptions import DeltaError, TableNotFoundError
from pyarrow.dataset import Dataset
from pyarrow.fs import LocalFileSystem, SubTreeFileSystem
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import DatetimeType, NumericType, StringType, StructField, StructType

from hindcast import listing, store_formats, widened
from hindcast.columns import Difference, difference, shown
from hindcast.contracts import Contract, shapes
from hindcast.contracts.shapes import PERIODS, identity
from hindcast.contracts.types import PERIOD_COLUMNS
from hindcast.errors import HindcastError, PlatformError, TableError
from hindcast.store_formats import Older

Kind = Literal[
    "log",
    "events",
    "versions",
    "windows",
    "pairs",
    "emitted",
    "kept",
    "quarantine",
    "runs",
    "gates",
    "failing",
    "schemas",
    "trimmed",
    "base",
]
FORMAT = 1
"""The number of the store format that this code writes. A table of an older one has 0; its property tells which."""

LARGE = 1_000_000
"""From so many rows on a table has deletion vectors."""

VECTORS = "delta.enableDeletionVectors"
"""The table property that says so."""

STATISTICS = "delta.dataSkippingStatsColumns"
"""The table property that names the columns that Delta keeps statistics of."""

CHECKPOINTS = "delta.checkpointInterval"
"""The table property that says for how many commits there is a checkpoint: Spark's default is 10, delta-rs's 100."""

WIDENING = "delta.enableTypeWidening"
"""The table property of one that has files with a narrower type of a column. delta-rs reads no rows of it, we do."""

EVOLUTION = "hindcast.evolution"
"""The table property of one whose columns have changed: its files differ in theirs. JSON: the `dropped` ones, when."""

_OURS: frozenset[Kind] = frozenset({"log", "kept", "quarantine", "runs", "gates", "failing", "trimmed", "base"})
"""The kinds whose columns are ours alone."""


@dataclass(frozen=True)
class Table:
    """One table of a pipeline: `<warehouse>/<pipeline>/<name>`; `key` names its key columns.

    `pin`: the known-at that it is read at; null for what is believed now.
    """

    warehouse: str
    pipeline: str
    name: str
    kind: Kind
    key: tuple[str, ...] = ()
    pin: datetime | None = None

    @property
    def path(self) -> str:
        """Where the table lies: a folder or the URI of one."""
        return f"{self.warehouse.rstrip('/')}/{self.pipeline}/{self.name}"

    def app(self, part: str = "") -> str:
        """The application id of its commits (Delta transaction identifiers); the version is the run's number.

        `part` names one commit among several that a run makes to the table.
        """
        return "/".join(filter(None, ("hindcast", self.pipeline, self.name, part)))

    @property
    def identity(self) -> tuple[str, ...]:
        """The columns that no two believed rows share."""
        return identity(self.kind, self.key)

    @property
    def description(self) -> str:
        """What marks the table as ours, in Delta's own metadata."""
        return self.mark(FORMAT)

    def mark(self, number: int) -> str:
        """The same of a store format: `FORMAT`, or 0 for an older one."""
        return json.dumps({"hindcast": number, "kind": self.kind, "key": list(self.key)})


def located(warehouse: str, contract: Contract, name: str) -> Table:
    """The table of a topic or view of a contract."""
    shape = shapes(contract)[name]
    return Table(warehouse, contract.pipeline, name, shape.kind, tuple(shape.key))


def opened(table: Table) -> DeltaTable | None:
    """The table as it stands, None where there is none yet.

    Raises TableError for a folder that is not ours: no Delta table, another's, or of another store format.
    """
    folder = None if "://" in table.path else Path(table.path)
    if folder and folder.exists() and not folder.is_dir():
        raise TableError("is a file, not a Delta table", where=table.path, mend=_ELSEWHERE)
    try:
        found = DeltaTable(table.path)
    except TableNotFoundError:
        if folder and folder.exists() and any(folder.iterdir()):
            raise TableError("is not a Delta table", where=table.path, mend=_ELSEWHERE) from None
        return None
    except (DeltaError, OSError) as error:
        raise TableError(f"cannot be read: {error}", where=table.path, mend="check the path and its rights") from None
    marks = marked(found)
    if marks is None or found.metadata().name != f"{table.pipeline}.{table.name}":
        adopted = f"; or adopt it, if it is the table of a topic: hindcast upgrade {table.pipeline}.{table.name}"
        mend = _ELSEWHERE + (adopted if table.kind == "versions" else "")
        raise TableError("is a Delta table that Hindcast did not make", where=table.path, mend=mend)
    if marks["hindcast"] > FORMAT:
        raise TableError(
            f"has store format {marks['hindcast']}, this version knows up to {FORMAT}",
            where=table.path,
            mend="use a newer Hindcast",
        )
    return found


def columns(table: Table, found: DeltaTable | None = None, known: datetime | None = None) -> list[str]:
    """The columns of a table that is there without layout and lineage: the user's, then the periods.

    Without those that the contract had dropped by the known-at that is asked for (None: now).
    """
    found = found or opened(table)
    names = [field.name for field in found.schema().fields] if found else []
    if found and older(found) is not None:
        names = store_formats.users(names)
    last = [*PERIODS[table.kind], "systemFrom", "systemTo"]
    gone = {name for name, at in dropped(found).items() if known is None or at <= known} if found else set()
    return [*(name for name in names if not name.startswith("_") and name not in {*last, *gone}), *last]


def dropped(found: DeltaTable) -> dict[str, datetime]:
    """The columns that a table keeps and the contract does not name any more, each with the known-at since when."""
    told = json.loads(found.metadata().configuration.get(EVOLUTION, "{}"))
    return {name: datetime.fromisoformat(at) for name, at in told.get("dropped", {}).items()}


def ensure(table: Table, schema: StructType) -> DeltaTable:
    """The table, made if it is not there; TableError where it cannot have the columns of `schema` (`fit`).

    A table of our own takes new columns at once, without Spark; of a topic's or view's table `evolution.ensure` sees to
    it.
    """
    found = opened(table)
    if found is None:
        _room(table)
        partitions = ["_belief"] if "_belief" in schema.names else ["bucket"] if table.kind == "kept" else None
        try:
            return DeltaTable.create(
                table.path,
                schema=Schema.from_json(schema.json()),
                partition_by=partitions,
                configuration={STATISTICS: ",".join(sought(table, schema))},
                name=f"{table.pipeline}.{table.name}",
                description=table.description,
            )
        except (DeltaError, OSError) as error:
            found = opened(table)
            if found is None:
                raise unwritten(error, table.path) from None
    change = fit(found, table, schema)
    return _taken(found, table, schema) if (change.added or change.dropped) and table.kind in _OURS else found


def fit(found: DeltaTable, table: Table, schema: StructType) -> Difference:
    """What a table that is there has to take to have the columns of `schema` (columns.py); they are all nullable.

    TableError where it cannot: it has another kind or key, or other types; or one of our own columns is missing. Logs
    and the quarantine have null in columns that a topic has no use for any more.
    """
    writable(table)
    marks, there = marked(found) or {}, spark_schema(found)
    change = difference(there, schema, table.key)
    told, gone = list(change.refused.values()), dropped(found)
    own = [c for c in change.dropped if c not in gone]
    own = [c for c in own if table.kind in _OURS or c.startswith("_") or c in PERIOD_COLUMNS]
    told += [f"{name} is missing" for name in own if table.kind not in ("log", "quarantine")]
    told += [f"the key column {name} is missing" for name in change.dropped if name in marks.get("key", ())]
    if table.kind in _OURS:
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
    return change


def _shown(table: Table, schema: StructType) -> str:
    """Columns as a contract has them: of a topic or view without those that we add."""
    given = [f for f in schema.fields if not f.name.startswith("_") and f.name not in PERIOD_COLUMNS]
    return shown(schema if table.kind in _OURS else StructType(given))


def spark_schema(found: DeltaTable) -> StructType:
    """The columns of a table as Spark has them."""
    return StructType.fromJson(json.loads(found.schema().to_json()))


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


def older(found: DeltaTable) -> Older | None:
    """What a table says that has rows of an older store format; None for another."""
    return Older.of(found.metadata().configuration)


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


def types(found: DeltaTable) -> dict[str, str]:
    """The columns of a table with their types, as Spark writes them; without those that the contract has dropped."""
    gone = dropped(found)
    return {f.name: f.dataType.simpleString() for f in spark_schema(found).fields if f.name not in gone}


def marked(found: DeltaTable) -> dict[str, Any] | None:
    """What marks a table as ours: its store format, kind and key (`Table.description`); None if nothing does."""
    try:
        marks = json.loads(found.metadata().description or "{}")
    except ValueError:
        return None
    return marks if isinstance(marks, dict) and isinstance(marks.get("hindcast"), int) else None


def published(table: Table, part: str = "") -> int:
    """The number of the last run that committed to the table (this part of its commits), 0 before the first."""
    found = opened(table)
    return (found.transaction_version(table.app(part)) or 0) if found is not None else 0


def size(table: Table) -> int:
    """How many rows a table has, believed or not, as its log counts them; 0 if there is none."""
    found = opened(table)
    if found is None:
        return 0
    counts = pa.table(found.get_add_actions(flatten=True)).column("num_records").to_pylist()
    return sum(count or 0 for count in counts)


def believed(spark: SparkSession, table: Table) -> DataFrame:
    """The rows believed now, or at the table's pin, with all their columns."""
    if table.pin is not None:
        pin, ended = F.lit(table.pin), F.col("systemTo")
        return load(spark, table).where((F.col("systemFrom") <= pin) & (ended.isNull() | (ended > pin)))
    return load(spark, table).where("systemTo IS NULL AND _belief <> 'superseded'")


def load(spark: SparkSession, table: Table) -> DataFrame:
    """All rows of a table that is there; those of an older store format through the proxy view."""
    found = opened(table)
    it = older(found) if found is not None and table.kind == "versions" else None
    rows = stored(spark, table, found)
    return rows if it is None else proxied(rows, it)


def stored(spark: SparkSession, table: Table, found: DeltaTable | None = None) -> DataFrame:
    """All rows of a table that is there, as its files have them.

    Of a small one Spark is told which files these are: to ask Delta's log takes it half a second for each table.
    """
    found = found or opened(table)
    paths = listing.small(found) if found is not None else None
    if found is None or paths is None:
        return spark.read.format("delta").load(table.path)
    return listing.rows(spark, found, spark_schema(found), paths)


def proxied(rows: DataFrame, it: Older) -> DataFrame:
    """Rows of a table of an older store format as those of one of today's."""
    shown = store_formats.proxy(it, rows.columns, "spark")
    own = [F.col(f"`{name}`") for name in store_formats.users(rows.columns)]
    return rows.select(*own, *(F.expr(text).alias(name) for name, text in shown.items()))


def dataset(found: DeltaTable) -> Dataset:
    """All rows of a table without deletion vectors.

    Local files are read by Arrow itself. By delta-rs they would be read through Python, from threads of Arrow's: one
    that is still at it when a process ends, aborts that process.
    """
    place = found.table_uri.removeprefix("file://")
    own = None if "://" in place else SubTreeFileSystem(unquote(place), LocalFileSystem())
    return found.to_pyarrow_dataset(filesystem=own)


def arrow(found: DeltaTable) -> Dataset | pa.RecordBatchReader:
    """All rows of a table for DuckDB, without Spark; of one with deletion vectors as a stream, to be read once."""
    if WIDENING in found.metadata().configuration:
        return widened.rows(found)
    if VECTORS not in found.metadata().configuration:
        return dataset(found)
    return pa.RecordBatchReader.from_stream(QueryBuilder().register("rows", found).execute("SELECT * FROM rows"))


def belief(table: Table) -> Column:
    """`_belief` of a believed row."""
    ended = F.col("validTo").isNotNull() if table.kind == "versions" else F.lit(True)
    return F.when(ended, "past").otherwise("open")


def period(table: Table) -> tuple[str, str]:
    """The columns from which and to which a row is true."""
    match table.kind:
        case "versions":
            return "validFrom", "validTo"
        case "windows":
            return "windowStart", "windowEnd"
        case _:
            return "timestamp", "timestamp"


def notes(table: Table, limit: int = 1000) -> dict[int, dict[str, Any]]:
    """What each run's commit noted, by the run's number, newest first."""
    found = opened(table)
    kept: dict[int, dict[str, Any]] = {}
    for commit in found.history(limit) if found is not None else []:
        note = json.loads(commit.get("userMetadata") or "{}")
        if "run" in note:
            kept.setdefault(note["run"], note)
    return kept


def unwritten(error: Exception, where: str) -> HindcastError:
    """What a failed write is told as: a full disk as what it is."""
    text = str(error)
    if "No space left on device" in text or "os error 28" in text:
        return PlatformError("the disk is full", where=where, mend="free some room and retry the run")
    return TableError(f"cannot be written: {text}", where=where, mend="check the path and its rights")


def arrow_schema(schema: StructType) -> pa.Schema:
    """A schema of our own tables as Arrow has it."""
    kinds = {"bigint": pa.int64(), "int": pa.int32(), "double": pa.float64(), "string": pa.string()}
    moment = pa.timestamp("us", "UTC")
    return pa.schema([(field.name, kinds.get(field.dataType.simpleString(), moment)) for field in schema.fields])


def nullable(schema: StructType) -> StructType:
    """The same columns, all nullable: what a table of them is made with."""
    return StructType([StructField(field.name, field.dataType, True) for field in schema.fields])


_ELSEWHERE = "set HINDCAST_WAREHOUSE to another folder, or move what lies there; nothing was written"
_NEEDED = 64 << 20
_RECORDS = ("topic", "partition", "offset", "timestamp", "fate", "run")
_COMPARED = (NumericType, StringType, DatetimeType)


def sought(table: Table, schema: StructType) -> list[str]:
    """The columns by which rows are found: of these alone Delta keeps statistics, which cost time."""
    names: tuple[str, ...] = _RECORDS
    if table.kind in PERIODS:
        names = *table.key, *PERIODS[table.kind], "systemFrom", "systemTo"
    elif table.kind == "emitted":
        names = *table.key, "timestamp", "_run", "systemFrom"
    types = {field.name: field.dataType for field in schema.fields}
    return [name for name in names if isinstance(types.get(name), _COMPARED)]


def _room(table: Table) -> None:
    """A full disk is told before the first byte, where the disk is ours to ask."""
    if "://" in table.path:
        return
    folder = next(p for p in [Path(table.path), *Path(table.path).parents] if p.exists())
    free = shutil.disk_usage(folder).free
    if free < _NEEDED:
        raise TableError(
            f"the disk has only {free >> 20} MB left", where=table.path, mend="free some room; nothing was written"
        )
