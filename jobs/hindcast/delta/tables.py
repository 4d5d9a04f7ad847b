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
import re
from contextvars import ContextVar
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, Literal

import pyarrow as pa
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError, TableNotFoundError
from pyspark.sql import Column
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from hindcast import rights
from hindcast.contracts import Contract, shapes
from hindcast.contracts.shapes import PERIODS, identity
from hindcast.delta import store_formats
from hindcast.delta.store_formats import Older
from hindcast.errors import TableError

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

OURS: frozenset[Kind] = frozenset({"log", "kept", "quarantine", "runs", "gates", "failing", "trimmed", "base"})
"""The kinds whose columns are ours alone."""


@dataclass(frozen=True)
class Table:
    """One table of a pipeline: `<warehouse>/<pipeline>/<name>`; `key` names its key columns.

    `pin`: the known-at that it is read at; null for what is believed now. `widens`: whether its contract lets a run
    widen its columns.
    """

    warehouse: str
    pipeline: str
    name: str
    kind: Kind
    key: tuple[str, ...] = ()
    pin: datetime | None = None
    widens: bool = False

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
    return Table(warehouse, contract.pipeline, name, shape.kind, tuple(shape.key), widens=contract.can_widen(name))


def log(warehouse: str, pipeline: str, topic: str) -> Table:
    """The log table of a topic: its records as Kafka had them, with their fates."""
    return Table(warehouse, pipeline, f"logs/{topic}", "log")


def fates(warehouse: str, pipeline: str, topic: str) -> Table:
    """Where the fates of a topic's records stand that were decided anew (fates.py)."""
    return Table(warehouse, pipeline, f"fates/{topic}", "log")


PINNED: ContextVar[dict[str, DeltaTable | None] | None] = ContextVar("PINNED", default=None)
"""Inside a block that reads every table in one version (pinning.py): by path, each table as it was opened first."""


def opened(table: Table) -> DeltaTable | None:
    """The table as it stands, or in the version that is pinned; None where there is none yet.

    Raises TableError for a folder that is not ours: no Delta table, another's, or of another store format. A folder
    with nothing but a log without commits is of a table that is being made: it is not there yet.
    """
    pinned = PINNED.get()
    if pinned is None:
        return _open_latest(table)
    if table.path not in pinned:
        pinned[table.path] = _open_latest(table)
    return pinned[table.path]


def _open_latest(table: Table) -> DeltaTable | None:
    folder = None if "://" in table.path else Path(table.path)
    try:
        return _open_in(table, folder)
    except (DeltaError, OSError) as error:
        if folder and (isinstance(error, PermissionError) or rights.DENIED in str(error)):
            raise TableError(**rights.explain(PermissionError(error), folder / "_delta_log")) from None
        text = str(error).partition("\n")[0]  # a backtrace of Rust's may follow
        raise TableError(f"cannot be read: {text}", where=table.path, mend="check the path and its rights") from None


def _open_in(table: Table, folder: Path | None, *, again: bool = True) -> DeltaTable | None:
    if folder and folder.exists() and not folder.is_dir():
        raise TableError("is a file, not a Delta table", where=table.path, mend=_ELSEWHERE)
    try:
        found = DeltaTable(table.path)
    except TableNotFoundError:
        if folder is not None:
            try:
                _refuse_other_content(folder)
            except TableError:
                if again:  # another writer may have made it after we looked
                    return _open_in(table, folder, again=False)
                raise
        return None
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


def _refuse_other_content(folder: Path) -> None:
    """Raise TableError for a place without a Delta table in which none can be made: a file, or a folder of others."""
    place = next(path for path in (folder, *folder.parents) if path.exists())
    if not place.is_dir():
        raise TableError("is not a folder, so there can be no table in it", where=str(place), mend=_ELSEWHERE)
    inside = {path.name for path in folder.iterdir()} if place == folder else set()
    log = {path.name for path in (folder / "_delta_log").iterdir()} if "_delta_log" in inside else set()
    if inside - {"_delta_log"} or any(map(_COMMITTED.fullmatch, log)):
        raise TableError("is not a Delta table", where=str(folder), mend=_ELSEWHERE)


_COMMITTED = re.compile(r"[0-9]{20}\.json|.*checkpoint.*")
"""Files in Delta's log that there are since a commit. One that is being made has another name."""


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


def is_widened(found: DeltaTable) -> bool:
    """Return whether a column of the table has been widened, so that delta-rs refuses to read its rows."""
    return WIDENING in found.metadata().configuration


def read_widening(table: Table, known_at: datetime) -> dict[str, list[str]]:
    """Return the columns that the run of this known-at has widened, each with its type before and since."""
    found = opened(table)
    if found is None or not is_widened(found):
        return {}
    notes = (json.loads(commit.get("userMetadata") or "{}") for commit in found.history(1000))
    own = (note["widened"] for note in notes if note.get("knownAt") == known_at.isoformat() and "widened" in note)
    return dict(next(own, {}))


def spark_schema(found: DeltaTable) -> StructType:
    """The columns of a table as Spark has them."""
    return StructType.fromJson(json.loads(found.schema().to_json()))


def older(found: DeltaTable) -> Older | None:
    """What a table says that has rows of an older store format; None for another."""
    return Older.of(found.metadata().configuration)


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


def belief(table: Table) -> Column:
    """`_belief` of a believed row."""
    ended = F.col("validTo").isNotNull() if table.kind == "versions" else F.lit(True)
    return F.when(ended, "past").otherwise("open")


def corrects(table: Table) -> Column:
    """Whether a row of a change (column `change`) closes a past answer."""
    return (F.col("change") == "close") & (belief(table) == "past")


def period(table: Table) -> tuple[str, str]:
    """The columns from which and to which a row is true."""
    columns = PERIODS[table.kind]
    return columns[0], columns[-1]


def notes(table: Table, limit: int = 1000) -> dict[int, dict[str, Any]]:
    """What each run's commit noted, by the run's number, newest first."""
    found = opened(table)
    kept: dict[int, dict[str, Any]] = {}
    for commit in _read_commits(found, limit) if found is not None else []:
        note = json.loads(commit.get("userMetadata") or "{}")
        if "run" in note:
            kept.setdefault(note["run"], note)
    return kept


def _read_commits(found: DeltaTable, limit: int) -> list[dict[str, Any]]:
    """Return the last commits to a table, newest first; of a pinned one none that came later.

    delta-rs has these besides, first, and gives them the numbers of others.
    """
    if PINNED.get() is None:
        return found.history(limit)
    while True:
        later = DeltaTable(found.table_uri).version() - found.version()
        commits = found.history(limit)
        if DeltaTable(found.table_uri).version() == found.version() + later:
            return commits[later:]


MOMENT = pa.timestamp("us", "UTC")
"""A moment in Arrow, as tables have it."""

_ELSEWHERE = "set HINDCAST_WAREHOUSE to another folder, or move what lies there; nothing was written"
