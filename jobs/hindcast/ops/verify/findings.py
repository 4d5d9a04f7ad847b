"""What a check finds wrong with a table, where, and the command that fixes it."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import Literal, TypeAlias

from deltalake import DeltaTable
from deltalake.exceptions import DeltaError

from hindcast.common.errors import TableError
from hindcast.common.json_values import JsonValue, StoredObject
from hindcast.store import delta_log, tables
from hindcast.store.commit_notes import parse_note
from hindcast.store.tables import Table

Storage: TypeAlias = Literal["format", "files", "journal", "published"]
Content: TypeAlias = Literal[
    "tiling", "system period", "belief", "offsets", "stream time", "arrival", "quarantine", "emitted"
]
Check: TypeAlias = Storage | Content | Literal["definition"]


@dataclass(frozen=True)
class Finding:
    """One thing that is wrong: `check` found it in `table` (its name in the pipeline's folder).

    The place is that of the first row, record or file concerned: a `key` (JSON), `partition` and `offset`, or a `file`
    (in the table's folder).
    """

    check: Check
    table: str
    found: str
    fix: str
    key: str | None = None
    partition: int | None = None
    offset: int | None = None
    file: str | None = None

    @property
    def where(self) -> str:
        """The place in words."""
        names = ("key", "partition", "offset", "file")
        places = (f"{name} {value}" for name in names if (value := getattr(self, name)) is not None)
        return ", ".join([self.table, *places])

    def as_json(self) -> dict[str, JsonValue]:
        """Return all fields as data; the key of the fix is `mend`, and what does not apply is null."""
        return {"mend" if name == "fix" else name: value for name, value in asdict(self).items()}


def rederive_command(pipeline: str, name: str) -> str:
    """Return the command that derives a table whole, and closes and opens the rows that differ."""
    return f"hindcast run {pipeline} --only {name}"


def restore_command(table: Table, delta_table: DeltaTable) -> str | None:
    """Return the command that undoes what others committed to a table last; None if the last commit of rows is ours.

    Our commits have a note; maintenance and metadata change no row. None, too, if a commit cannot be read.
    """
    foreign_version = None
    commits: Sequence[StoredObject] = ()
    with suppress(DeltaError, TableError):
        commits = delta_log.list_commits(delta_table)
    for commit in commits:
        if parse_note(commit):
            break
        if commit["operation"] in _ROW_OPERATIONS:
            foreign_version = commit["version"]
    if not foreign_version:
        return None
    configuration = delta_table.metadata().configuration
    if tables.DELETION_VECTORS in configuration or tables.WIDENING in configuration:
        return f"in Spark SQL: RESTORE TABLE delta.`{table.path}` TO VERSION AS OF {foreign_version - 1}"
    return f"python -c \"from deltalake import DeltaTable; DeltaTable('{table.path}').restore({foreign_version - 1})\""


_ROW_OPERATIONS = ("WRITE", "UPDATE", "DELETE", "MERGE", "RESTORE", "STREAMING UPDATE", "REPLACE TABLE")


def backup_advice(table: Table) -> str:
    """Return the fix where only a backup has what is lost, and what can be had without one."""
    return f"put {table.path} back from a backup; without one: {rebuild_advice(table)}"


def rebuild_advice(table: Table) -> str:
    """Return how a table is made again, and what of it is lost for good."""
    path, pipeline, name = table.path, table.pipeline, table.name
    kind, _, of = name.rpartition("/")
    aside = f"mv {path} {path}.lost"
    lost = "what was known before is lost"
    match kind.partition("/")[0] or name:
        case "kept":
            return (
                f"{aside} && {rederive_command(pipeline, kind.partition('/')[2])} (it is computed again from the logs)"
            )
        case "emitted":
            places = f"{table.warehouse}/{pipeline}"
            moved = " && ".join(f"mv {places}/{it} {places}/{it}.lost" for it in (name, f"kept/{of}", of))
            return (
                f"{moved} && {rederive_command(pipeline, of)} (all records are processed again; what was "
                f"emitted is lost)"
            )
        case "quarantine":
            return f"{aside} && hindcast quarantine {pipeline} --rebuild (it is made again from the logs)"
        case "runs":
            return f"{aside} && hindcast ledger {pipeline} --rebuild (it is made again from logs and tables)"
        case "gates" | "failing":
            return f"{aside} (gate results of past runs and held rows are lost)"
        case "base":
            return f"{aside} && {rederive_command(pipeline, of)} (rows that were adopted are closed: no log has them)"
        case "logs" | "fates" | "schemas" | "trimmed":
            folder = f"{table.warehouse}/{pipeline}"
            return f"mv {folder} {folder}.lost && hindcast run {pipeline} (replays what Kafka still has; {lost})"
        case _:
            return f"{aside} && {rederive_command(pipeline, name)} (it is derived again; {lost})"
