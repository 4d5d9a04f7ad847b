"""What a check finds wrong with a table, where, and the command that mends it."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Any

from deltalake import DeltaTable

from hindcast.delta import tables
from hindcast.delta.tables import Table


@dataclass(frozen=True)
class Finding:
    """One thing that is wrong: `check` found it in `table` (its name in the pipeline's folder).

    The place is that of the first row, record or file concerned: a `key` (JSON), `partition` and `offset`, a `file` (in
    the table's folder).
    """

    check: str
    table: str
    found: str
    mend: str
    key: str | None = None
    partition: int | None = None
    offset: int | None = None
    file: str | None = None

    @property
    def where(self) -> str:
        """The place in words."""
        names = ("key", "partition", "offset", "file")
        told = (f"{name} {value}" for name in names if (value := getattr(self, name)) is not None)
        return ", ".join([self.table, *told])

    def as_json(self) -> dict[str, Any]:
        """All that it tells; what does not apply is null."""
        return asdict(self)


def rederive(pipeline: str, name: str) -> str:
    """The command that derives a table whole and closes and opens what differs."""
    return f"hindcast run {pipeline} --only {name}"


def restore(table: Table, found: DeltaTable) -> str | None:
    """The command that takes back what others have committed to a table last; None if we did.

    Commits of ours to it have a note; maintenance and metadata change no row.
    """
    by_hand = None
    for commit in found.history():
        if _noted(commit):
            break
        if commit["operation"] in _OF_ROWS:
            by_hand = commit["version"]
    if not by_hand:
        return None
    configuration = found.metadata().configuration
    if tables.VECTORS in configuration or tables.WIDENING in configuration:
        return f"in Spark SQL: RESTORE TABLE delta.`{table.path}` TO VERSION AS OF {by_hand - 1}"
    return f"python -c \"from deltalake import DeltaTable; DeltaTable('{table.path}').restore({by_hand - 1})\""


_OF_ROWS = ("WRITE", "UPDATE", "DELETE", "MERGE", "RESTORE", "STREAMING UPDATE", "REPLACE TABLE")


def _noted(commit: dict[str, Any]) -> bool:
    try:
        note = json.loads(commit.get("userMetadata") or "{}")
    except ValueError:
        return False
    return isinstance(note, dict) and bool(note)


def backup(table: Table) -> str:
    """The mend where nothing but a backup has what is lost, and what can be had without one."""
    return f"put {table.path} back from a backup; without one: {without_backup(table)}"


def without_backup(table: Table) -> str:
    """How a table is made again, and what of it is lost for good."""
    path, pipeline, name = table.path, table.pipeline, table.name
    kind, _, of = name.rpartition("/")
    aside = f"mv {path} {path}.lost"
    lost = "what was known before is lost"
    match kind.partition("/")[0] or name:
        case "kept":
            return f"{aside} && {rederive(pipeline, kind.partition('/')[2])} (it is computed again from the logs)"
        case "emitted":
            places = f"{table.warehouse}/{pipeline}"
            moved = " && ".join(f"mv {places}/{it} {places}/{it}.lost" for it in (name, f"kept/{of}", of))
            return f"{moved} && {rederive(pipeline, of)} (all records are processed again; what was emitted is lost)"
        case "quarantine":
            return f"{aside} && hindcast quarantine {pipeline} --rebuild (it is made again from the logs)"
        case "runs":
            return f"{aside} && hindcast ledger {pipeline} --rebuild (it is made again from logs and tables)"
        case "gates" | "failing":
            return f"{aside} (verdicts of past runs and what is held are lost)"
        case "base":
            return f"{aside} && {rederive(pipeline, of)} (rows that were adopted are closed: no log has them)"
        case "logs" | "fates" | "schemas" | "trimmed":
            folder = f"{table.warehouse}/{pipeline}"
            return f"mv {folder} {folder}.lost && hindcast run {pipeline} (replays what Kafka still has; {lost})"
        case _:
            return f"{aside} && {rederive(pipeline, name)} (it is derived again; {lost})"
