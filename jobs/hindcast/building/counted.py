"""How many rows of earlier runs a table has, since rows came or went otherwise than by a run (`hindcast verify`).

A run's report tells how many rows it opened and closed. Trimming and forgetting remove some of them, an upgrade adopts
rows and a downgrade drops some. So these note how many there are of all runs so far; of later runs reports tell it.
The note is a property of the table. It does not count what a trim removes, so it is right before and after that.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import datetime

from deltalake import DeltaTable
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from hindcast import horizon
from hindcast.contracts.shapes import PERIODS
from hindcast.delta import commits, contents
from hindcast.delta.tables import Table

PROPERTY = "hindcast.counted"
"""The table property that holds it, as JSON."""


@dataclass(frozen=True)
class Counted:
    """Of the rows that answer something from the horizon `at` on (None: of all), how many were `opened` up to
    `known_at`, and how many of these `closed` up to then.
    """

    known_at: datetime
    opened: int
    closed: int
    at: datetime | None = None

    @property
    def text(self) -> str:
        """The form in the table's property."""
        told = {"knownAt": self.known_at.isoformat(), "opened": self.opened, "closed": self.closed}
        return json.dumps(told | {"at": self.at.isoformat() if self.at else None})

    def gone(self, kind: str) -> str:
        """The condition of the rows that it does not count, as SQL for DuckDB."""
        if self.at is None:
            return "false"
        ended = "validTo <=" if kind == "versions" else f'"{PERIODS[kind][0]}" <'
        moment = f"TIMESTAMPTZ '{self.at.isoformat(' ')}'"
        return f"coalesce(systemTo <= {moment}, false) OR coalesce({ended} {moment}, false)"


def of(found: DeltaTable) -> Counted | None:
    """What a table has noted; None if its rows only came by runs."""
    told = json.loads(found.metadata().configuration.get(PROPERTY, "null"))
    if told is None:
        return None
    at = datetime.fromisoformat(told["at"]) if told["at"] else None
    return Counted(datetime.fromisoformat(told["knownAt"]), told["opened"], told["closed"], at)


def note(spark: SparkSession, table: Table, known_at: datetime) -> None:
    """Counts the rows of runs up to a known-at, and notes that; without those that its horizon has no use for."""
    at = horizon.of(table)
    rows = contents.load(spark, table)
    if at is not None:
        rows = rows.where(~F.coalesce(F.expr(horizon.gone(table.kind, at.at)), F.lit(False)))
    known = F.lit(known_at)
    counts = (F.count_if(F.col(column) <= known) for column in ("systemFrom", "systemTo"))
    opened, closed = rows.agg(*(F.coalesce(n, F.lit(0)) for n in counts)).collect()[0]
    commits.describe(spark, table, {PROPERTY: Counted(known_at, opened, closed, at.at if at else None).text})
