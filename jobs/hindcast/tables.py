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
from collections.abc import Iterable
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

from hindcast.contracts import Contract, shapes
from hindcast.contracts.shapes import PERIODS, identity
from hindcast.errors import HindcastError, PlatformError, TableError

Kind = Literal[
    "log", "events", "versions", "windows", "pairs", "emitted", "kept", "quarantine", "runs", "gates", "failing"
]
FORMAT = 1
"""The store format that this code writes."""

LARGE = 1_000_000
"""From so many rows on a table has deletion vectors."""

VECTORS = "delta.enableDeletionVectors"
"""The table property that says so."""


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
        return json.dumps({"hindcast": FORMAT, "kind": self.kind, "key": list(self.key)})


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
        raise TableError("is a Delta table that Hindcast did not make", where=table.path, mend=_ELSEWHERE)
    if marks["hindcast"] > FORMAT:
        raise TableError(
            f"has store format {marks['hindcast']}, this version knows up to {FORMAT}",
            where=table.path,
            mend="use a newer Hindcast",
        )
    return found


def columns(table: Table, found: DeltaTable | None = None) -> list[str]:
    """The columns of a table that is there without layout and lineage: the user's, then the periods."""
    found = found or opened(table)
    names = [field.name for field in found.schema().fields] if found else []
    last = [*PERIODS[table.kind], "systemFrom", "systemTo"]
    return [*(name for name in names if not name.startswith("_") and name not in last), *last]


def ensure(table: Table, schema: StructType) -> DeltaTable:
    """The table, made if it is not there; TableError where it has other columns than `schema`."""
    found = opened(table)
    if found is None:
        _room(table)
        partitions = ["_belief"] if "_belief" in schema.names else ["bucket"] if table.kind == "kept" else None
        try:
            return DeltaTable.create(
                table.path,
                schema=Schema.from_json(schema.json()),
                partition_by=partitions,
                configuration={"delta.dataSkippingStatsColumns": ",".join(_sought(table, schema))},
                name=f"{table.pipeline}.{table.name}",
                description=table.description,
            )
        except (DeltaError, OSError) as error:
            found = opened(table)
            if found is None:
                raise unwritten(error, table.path) from None
    fit(found, table, schema)
    return found


def fit(found: DeltaTable, table: Table, schema: StructType) -> None:
    """TableError where a table that is there has another key, or other columns than `schema`."""
    there, wanted = types(found), _types(schema)
    marks = marked(found) or {}
    if there != wanted or tuple(marks.get("key", ())) != table.key:
        told = _difference(there, wanted) or f"the key was {', '.join(marks.get('key', []))}"
        raise TableError(
            f"has other columns than the contract gives it now: {told}",
            where=table.path,
            mend="give the changed topic or view another name: other columns or keys make a new table",
        )


def types(found: DeltaTable) -> dict[str, str]:
    """The columns of a table with their types, as Spark writes them."""
    return _types(StructType.fromJson(json.loads(found.schema().to_json())))


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
    """All rows of a table that is there."""
    return spark.read.format("delta").load(table.path)


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


def _sought(table: Table, schema: StructType) -> list[str]:
    """The columns by which rows are found: of these alone Delta keeps statistics, which cost time."""
    names: tuple[str, ...] = _RECORDS
    if table.kind in PERIODS:
        names = *table.key, *PERIODS[table.kind], "systemFrom", "systemTo"
    elif table.kind == "emitted":
        names = *table.key, "timestamp", "_run", "systemFrom"
    types = {field.name: field.dataType for field in schema.fields}
    return [name for name in names if isinstance(types.get(name), _COMPARED)]


def _types(schema: StructType) -> dict[str, str]:
    return {field.name: field.dataType.simpleString() for field in schema.fields}


def _difference(there: dict[str, str], wanted: dict[str, str]) -> str:
    def told(names: Iterable[str], of: dict[str, str]) -> str:
        return ", ".join(f"{n} {of[n]}" for n in sorted(names))

    parts = {
        "new": told(wanted.keys() - there.keys(), wanted),
        "missing": told(there.keys() - wanted.keys(), there),
        "changed": ", ".join(
            f"{n} from {there[n]} to {wanted[n]}" for n in sorted(there.keys() & wanted.keys()) if there[n] != wanted[n]
        ),
    }
    return "; ".join(f"{word}: {names}" for word, names in parts.items() if names)


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
