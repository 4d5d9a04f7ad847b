"""How many rows of earlier runs a table has after anything but a run has changed its rows (for `hindcast verify`).

A run's report says how many rows it opened and closed. Trimming and forgetting remove some of them, an upgrade adopts
rows and a downgrade drops some. So these count the rows of all runs so far; reports count those of later runs.
The counts are stored as a property of the table. They exclude what a trim removes, so they hold before and after it.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from deltalake import DeltaTable
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from hindcast.bitemporal.predicates import translate_to_spark
from hindcast.common.errors import RunError
from hindcast.plan import closes, horizon
from hindcast.plan.closes import Close
from hindcast.store import commit_once, commits, row_reader
from hindcast.store.tables import Table

PROPERTY = "hindcast.counted"
"""The table property that stores the counts, as JSON."""


@dataclass(frozen=True)
class RowCounts:
    """The number of rows `opened` up to `known_at`, and of these `closed` up to then.

    Only rows that answer a question from the horizon `at` on (None: all rows), or about the closes `kept`, are counted.
    """

    known_at: datetime
    opened: int
    closed: int
    at: datetime | None = None
    kept: tuple[Close, ...] = ()

    @property
    def text(self) -> str:
        """The form in the table's property."""
        fields = {"knownAt": self.known_at.isoformat(), "opened": self.opened, "closed": self.closed}
        kept = {"closes": [close.without_names().as_json() for close in self.kept]} if self.kept else {}
        return json.dumps(fields | {"at": self.at.isoformat() if self.at else None} | kept)

    def uncounted_condition(self, kind: str) -> str:
        """Return a DuckDB SQL condition for the rows of a table of this kind that are not counted."""
        return "false" if self.at is None else _is_uncounted(kind, self.at, self.kept)


def _is_uncounted(kind: str, at: datetime, kept: Sequence[Close]) -> str:
    return f"coalesce({horizon.trimmed_condition(kind, at, kept)}, false)"


def read_row_counts(delta_table: DeltaTable) -> RowCounts | None:
    """Return the stored counts of a table; None if only runs have changed its rows."""
    fields = json.loads(delta_table.metadata().configuration.get(PROPERTY, "null"))
    if fields is None:
        return None
    at = datetime.fromisoformat(fields["at"]) if fields["at"] else None
    kept = tuple(map(closes.parse_close, fields.get("closes", ())))
    return RowCounts(datetime.fromisoformat(fields["knownAt"]), fields["opened"], fields["closed"], at, kept)


def write_row_counts(spark: SparkSession, table: Table, known_at: datetime) -> None:
    """Count a table's rows of runs up to a known-at, except those that trims remove, and store the counts.

    Raise RunError if others have trimmed the table since, or counted the rows of later runs.
    """
    at = horizon.read_horizon(table)
    rows = row_reader.load_rows(spark, table)
    kept = at.removal.kept if at is not None else ()
    if at is not None:
        rows = rows.where(~F.expr(translate_to_spark(_is_uncounted(table.kind, at.moment, kept))))
    known = F.lit(known_at)
    counts = (F.count_if(F.col(column) <= known) for column in ("systemFrom", "systemTo"))
    opened, closed = rows.agg(*(F.coalesce(n, F.lit(0)) for n in counts)).collect()[0]
    counted = RowCounts(known_at, opened, closed, at.moment if at else None, kept)

    def refuse_outdated() -> None:
        delta_table = DeltaTable(table.path)
        stored = read_row_counts(delta_table)
        if horizon.read_horizon(table, delta_table) != at or (stored is not None and stored.known_at > known_at):
            found = "others have trimmed the table, or counted its rows, since this process read it"
            raise RunError(found, where=table.path, fix="start it again")

    with commit_once.add_commit_guard(refuse_outdated):
        commits.set_properties(spark, table, {PROPERTY: counted.text})
