"""Delta tables: their places, kinds, and metadata.

Every table is plain Delta. Beside the user's columns:

| kind | columns |
| --- | --- |
| versions | `validFrom`, `validTo`, `systemFrom`, `systemTo` |
| events | `timestamp`, `systemFrom`, `systemTo`, `_partition`, `_offset` |
| windows | `windowStart`, `windowEnd`, `systemFrom`, `systemTo` |
| pairs | `timestamp`, `systemFrom`, `systemTo`, `_partition`, `_offset`, `_rightPartition`, `_rightOffset` |

`_partition` and `_offset` are those of the record that a row comes from: of a topic's table the version's own record,
of a joined stream the event's. All tables have `_belief`, the partition column of a layout that keeps a run's cost near
its change: `open` (current, validTo null), `past` (current, ended; all that is not a version) and `superseded`.
Columns that begin with _ are lineage and layout: they are not part of what a row says.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Literal, TypedDict, TypeVar
from urllib.parse import unquote

import pyarrow as pa
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError, TableNotFoundError
from pyspark.sql import Column
from pyspark.sql import functions as F

from hindcast.bitemporal.intervals import parse_utc
from hindcast.common import permissions
from hindcast.common.errors import TableError, show_briefly
from hindcast.contract import Contract, list_shapes
from hindcast.contract.field_types import Widen
from hindcast.contract.shapes import PERIODS, identity_columns
from hindcast.store import commit_ids, own_files, store_formats, table_cache, table_metadata
from hindcast.store.replacements import find_replacement
from hindcast.store.store_formats import OlderFormat

TableKind = Literal[
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
FORMAT_NUMBER = 1
"""The number of the store format that this code writes. An older table has 0; its property says which format it is."""

ENDED_RUNS_NUMBER = 2
"""That of a journal with runs that ended without a commit: versions that know only 1 took these for commits of the run
(commit_ids.py), and must not go on.
"""

LARGE_ROWS = 1_000_000
"""The number of rows from which a table has deletion vectors."""

DELETION_VECTORS = "delta.enableDeletionVectors"
"""The table property that turns them on."""

STATISTICS = "delta.dataSkippingStatsColumns"
"""The table property that names the columns that Delta keeps statistics of."""

CHECKPOINTS = "delta.checkpointInterval"
"""The table property with the number of commits between checkpoints: Spark's default is 10, delta-rs's 100."""

WIDENING = "delta.enableTypeWidening"
"""The table property of a table with files whose column has a narrower type. delta-rs refuses to read it; we do not."""

EVOLUTION = "hindcast.evolution"
"""The property of a table whose columns have changed, so that its files differ. JSON: dropped columns, and when."""

CREATED = "hindcast.created"
"""The property of the table of a topic or view with the known-at of the run that created it."""

INTERNAL_KINDS: frozenset[TableKind] = frozenset(
    {"log", "kept", "quarantine", "runs", "gates", "failing", "trimmed", "base"}
)
"""The kinds of tables that have only our own columns."""


@dataclass(frozen=True)
class Table:
    """One table of a pipeline: `<warehouse>/<pipeline>/<name>`; `key` names its key columns.

    `as_of_system_time`: the known-at that it is read at; None for the current rows. `widen`: what a run does if it
    has to widen its columns.
    """

    warehouse: str
    pipeline: str
    name: str
    kind: TableKind
    key: tuple[str, ...] = ()
    as_of_system_time: datetime | None = None
    widen: Widen = "refuse"

    @property
    def path(self) -> str:
        """The folder of the table, or its URI."""
        return f"{self.warehouse.rstrip('/')}/{self.pipeline}/{self.name}"

    def app_id(self, part: str = "") -> str:
        """Return the application id of the table's commits (Delta transaction identifiers); their version is the run.

        `part` names one commit among several that a run makes to the table.
        """
        return "/".join(filter(None, ("hindcast", self.pipeline, self.name, part)))

    @property
    def identity(self) -> tuple[str, ...]:
        """The columns that no two current rows share."""
        return identity_columns(self.kind, self.key)

    @property
    def closing_columns(self) -> tuple[str, ...]:
        """The columns that a row to close is found by: an event that stands under two keys is closed under one."""
        return tuple(dict.fromkeys((*self.identity, *self.key)))

    @property
    def description(self) -> str:
        """The JSON in Delta's own metadata that marks the table as ours."""
        return self.format_mark(FORMAT_NUMBER)

    def format_mark(self, number: int) -> str:
        """Return the `description` of a table of a store format: `FORMAT_NUMBER`, or 0 for an older one."""
        return json.dumps({"hindcast": number, "kind": self.kind, "key": list(self.key)})


def locate_table(warehouse: str, contract: Contract, name: str) -> Table:
    """Return the table of a topic or view of a contract."""
    shape = list_shapes(contract)[name]
    return Table(warehouse, contract.pipeline, name, shape.kind, tuple(shape.key), widen=contract.find_widen(name))


def log_table(warehouse: str, pipeline: str, topic: str) -> Table:
    """Return the log table of a topic: its records as Kafka had them, with their fates."""
    return Table(warehouse, pipeline, f"logs/{topic}", "log")


def fates_table(warehouse: str, pipeline: str, topic: str) -> Table:
    """Return the table of the fates of a topic's records that were decided again (fate_revisions.py)."""
    return Table(warehouse, pipeline, f"fates/{topic}", "log")


PINNED_TABLES: ContextVar[dict[str, DeltaTable | None] | None] = ContextVar("PINNED", default=None)
"""Inside a block that reads every table in one version (pinning.py): each table as first opened, by path."""


def open_table(table: Table) -> DeltaTable | None:
    """Return the table in its latest version, or in the version that is pinned; None if it does not exist yet.

    It is for reading only, because others get the same object (table_cache.py); `open_latest` is for those who write.

    Raises TableError for a folder that is not ours: not a Delta table, somebody else's, or of a newer store format. A
    folder with a log that has no commits belongs to a table that is being created: it does not exist yet.
    """
    pinned = PINNED_TABLES.get()
    if pinned is None:
        delta_table = table_cache.open_cached(table.path, lambda: open_latest(table))
    else:
        if table.path not in pinned:
            pinned[table.path] = open_latest(table)
        delta_table = pinned[table.path]
    with explain_errors(table.path) as folder:
        if delta_table is not None and folder is not None:
            own_files.refuse_odd_files(folder)  # others may have come since it was opened
    return delta_table


def open_latest(table: Table) -> DeltaTable | None:
    """Return the table in its latest version as an object of its own; None if it does not exist yet."""
    with explain_errors(table.path) as folder:
        return _open_in(table, folder)


@contextmanager
def explain_errors(place: str) -> Iterator[Path | None]:
    """Yield the folder of a table, None in an object store; raise TableError for what opening the table raises."""
    local = place.removeprefix("file://")
    folder = None if "://" in local else Path(local)
    try:
        yield folder
    except (DeltaError, OSError) as error:
        if folder and (isinstance(error, PermissionError) or permissions.DENIED_MESSAGE in str(error)):
            raise TableError(**permissions.explain_error(PermissionError(error), folder / "_delta_log")) from None
        text = str(error).partition("\n")[0]  # a Rust backtrace may follow
        fix = "check the path and its permissions"
        if _HINT in text:
            text, hint = f"{_HINT} names a checkpoint that is not there", f"{place}/_delta_log/{_HINT}"
            fix = f"rm {hint} (readers find checkpoints without it); if the log lacks others too, put back a backup"
        raise TableError(f"cannot be read: {text}", where=place, fix=fix) from None


_HINT = "_last_checkpoint"
"""The file in Delta's log that says where readers begin."""


def _open_in(table: Table, folder: Path | None, *, again: bool = True) -> DeltaTable | None:
    if folder and folder.exists() and not folder.is_dir():
        raise TableError("is a file, not a Delta table", where=table.path, fix=own_files.ELSEWHERE_FIX)
    if folder is not None:
        own_files.refuse_odd_log(folder)
    try:
        delta_table = DeltaTable(table.path)
    except TableNotFoundError:
        if folder is not None:
            try:
                own_files.refuse_other_content(folder)
            except TableError:
                if again:  # another writer may have created it after we looked
                    return _open_in(table, folder, again=False)
                raise
        return None
    marks = read_marks(delta_table)
    if marks is None or delta_table.metadata().name != f"{table.pipeline}.{table.name}":
        if (replacement := find_replacement(table.warehouse, table.pipeline)) is not None:
            raise TableError(replacement.sentence, where=table.path, fix=replacement.fix)
        adopted = f"; or adopt it, if it is the table of a topic: hindcast upgrade {table.pipeline}.{table.name}"
        fix = own_files.ELSEWHERE_FIX + (adopted if table.kind == "versions" else "")
        raise TableError("is a Delta table that Hindcast did not make", where=table.path, fix=fix)
    if marks["hindcast"] > ENDED_RUNS_NUMBER:
        raise TableError(
            f"has store format {marks['hindcast']}, this version knows up to {ENDED_RUNS_NUMBER}",
            where=table.path,
            fix="use a newer Hindcast",
        )
    table_metadata.refuse_risks(delta_table, table.path)
    paths = pa.table(delta_table.get_add_actions()).column("path").to_pylist()
    own_files.refuse_repeated_files(table.path, [unquote(path) for path in paths])
    if folder is not None:
        own_files.refuse_foreign_files(folder, paths)
    return delta_table


def read_beginning(delta_table: DeltaTable) -> datetime | None:
    """Return the known-at before which a table has no rows, because a run created it then, perhaps again after its
    folder was removed, or a downgrade lost the earlier ones. None for a table that is older than this property.
    """
    names = CREATED, store_formats.DOWNGRADE_PROPERTY
    moments = (parse_property(delta_table, name, parse_utc) for name in names)
    return max((moment for moment in moments if moment is not None), default=None)


def parse_property(delta_table: DeltaTable, name: str, parse: Callable[[str], Value]) -> Value | None:
    """Return what a function reads in a property of a table; None if it is not there. TableError for what it cannot
    read.
    """
    text = delta_table.metadata().configuration.get(name)
    try:
        return None if text is None else parse(text)
    except (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError) as error:
        found = f"its property {name} cannot be read: {type(error).__name__}: {show_briefly(str(error))}"
        fix = "put back the table from a backup, or an older version of it (Delta's RESTORE)"
        raise TableError(found, where=delta_table.table_uri, fix=fix) from None


Value = TypeVar("Value")


def read_older_format(delta_table: DeltaTable) -> OlderFormat | None:
    """Return the older store format that a table still has rows of; None if it has none."""
    return OlderFormat.from_properties(delta_table.metadata().configuration)


class Marks(TypedDict):
    """What the description of our own table says: its store format, kind and key (`Table.description`)."""

    hindcast: int
    kind: str
    key: list[str]


NO_MARKS: Marks = {"hindcast": 0, "kind": "", "key": []}


def read_marks(delta_table: DeltaTable) -> Marks | None:
    """Return the marks of our own table; None without them."""
    try:
        marks = json.loads(delta_table.metadata().description or "{}")
    except (RecursionError, ValueError):
        return None
    if not isinstance(marks, dict) or not isinstance(marks.get("hindcast"), int):
        return None
    return {"hindcast": marks["hindcast"], "kind": marks.get("kind", ""), "key": marks.get("key", [])}


def read_last_run(table: Table, part: str = "") -> int:
    """Return the number of the last run that committed to the table (this part of its commits); 0 before the first."""
    delta_table = open_table(table)
    return commit_ids.read_last_run(delta_table, table.app_id(part)) if delta_table is not None else 0


def marks_rows(delta_table: DeltaTable) -> bool:
    """Return whether rows of a table that no longer count are marked by deletion vectors."""
    return delta_table.metadata().configuration.get(DELETION_VECTORS) == "true"


def count_rows(table: Table) -> int:
    """Return the number of rows of a table, current or not, by Delta's log; 0 if it does not exist."""
    delta_table = open_table(table)
    if delta_table is None:
        return 0
    counts = pa.table(delta_table.get_add_actions(flatten=True)).column("num_records").to_pylist()
    return sum(count or 0 for count in counts)


def belief_column(table: Table) -> Column:
    """Return `_belief` of a current row."""
    return F.expr(f"IF({_past_sql(table)}, 'past', 'open')")


def is_correction(table: Table) -> Column:
    """Return whether a row of a change (column `_change`) closes a past answer."""
    return F.expr(correction_sql(table))


def correction_sql(table: Table) -> str:
    """Return the condition of `is_correction`."""
    return f"(_change = 'close' AND {_past_sql(table)})"


def _past_sql(table: Table) -> str:
    """Return the condition of a current row being a past answer: an event is one at once, a version once it ends."""
    return "validTo IS NOT NULL" if table.kind == "versions" else "true"


def period_columns(table: Table) -> tuple[str, str]:
    """Return the names of the columns from which and to which a row is true."""
    columns = PERIODS[table.kind]
    return columns[0], columns[-1]


ARROW_TIMESTAMP = pa.timestamp("us", "UTC")
"""The Arrow type of moments in tables."""
