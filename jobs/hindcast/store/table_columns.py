"""The columns of Delta tables: their types, those that the contract has dropped, those that a run has widened."""

from __future__ import annotations

import json
from datetime import datetime

from deltalake import DeltaTable
from pyspark.sql.types import StructType

from hindcast.bitemporal.intervals import parse_utc
from hindcast.contract.shapes import PERIODS
from hindcast.store import delta_log, store_formats
from hindcast.store.commit_notes import parse_note
from hindcast.store.tables import EVOLUTION, WIDENING, Table, open_table, parse_property, read_older_format


def list_columns(table: Table, delta_table: DeltaTable | None = None, known_at: datetime | None = None) -> list[str]:
    """Return the columns of a table without layout and lineage: the user's, then the periods.

    Leaves out those that the contract had dropped by `known_at` (None: now).
    """
    last = [*PERIODS[table.kind], "systemFrom", "systemTo"]
    delta_table = delta_table or open_table(table)
    if delta_table is None:
        return last
    names = [field.name for field in delta_table.schema().fields]
    if read_older_format(delta_table) is not None:
        names = store_formats.user_columns(names)
    dropped = _list_dropped_columns(delta_table, known_at)
    return [*(name for name in names if not name.startswith("_") and name not in {*last, *dropped}), *last]


def _list_dropped_columns(delta_table: DeltaTable, known_at: datetime | None) -> set[str]:
    return {name for name, at in read_dropped_columns(delta_table).items() if known_at is None or at <= known_at}


def read_dropped_columns(delta_table: DeltaTable) -> dict[str, datetime]:
    """Return the columns that a table keeps and the contract no longer names, each with the known-at of the drop."""

    def parse(text: str) -> dict[str, datetime]:
        return {name: parse_utc(at) for name, at in json.loads(text).get("dropped", {}).items()}

    return parse_property(delta_table, EVOLUTION, parse) or {}


def is_widened(delta_table: DeltaTable) -> bool:
    """Return whether a column of the table was widened, so that delta-rs refuses to read its rows."""
    return WIDENING in delta_table.metadata().configuration


def read_widening(table: Table, known_at: datetime) -> tuple[dict[str, list[str]], bool]:
    """Return the columns that the run with this known-at widened, each with its types before and after; and whether the
    run wrote all rows again for that.
    """
    delta_table = open_table(table)
    if delta_table is None or EVOLUTION not in delta_table.metadata().configuration:
        return {}, False
    notes = map(parse_note, delta_log.list_commits(delta_table, 1000))
    own = (note for note in notes if note.get("knownAt") == known_at.isoformat() and "widened" in note)
    note = next(own, {})
    return dict(note.get("widened", {})), "rewritten" in note


def spark_schema(delta_table: DeltaTable) -> StructType:
    """Return the columns of a table as Spark's schema."""
    return StructType.fromJson(json.loads(delta_table.schema().to_json()))


def column_types(delta_table: DeltaTable, known_at: datetime | None = None) -> dict[str, str]:
    """Return the columns of a table with their Spark types, without those that the contract had dropped by `known_at`
    (None: now).
    """
    dropped = _list_dropped_columns(delta_table, known_at)
    return {f.name: f.dataType.simpleString() for f in spark_schema(delta_table).fields if f.name not in dropped}
