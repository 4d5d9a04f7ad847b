"""The horizon of a table: the moment before which its history was trimmed (upkeep/retention.py).

Answers true at the horizon or later, as known at the horizon or later, are promised. It is a property of the table
itself, never moves back, and is written before anything is removed. A log has one too: of each key it keeps the record
that was in force then, and all later ones.

What a table is made of may have been trimmed further than the table itself: before then it cannot be derived any more,
so it is *frozen*. Its rows there stay as they are; runs compare and replace what is true from then on. A row that
begins before and reaches over is split there, if it says something else since:

    frozen at 4:  8 [0, ..), and derived is 9 [3, ..)    ->    close 8 [0, ..), open 8 [0, 4), open 9 [4, ..)
                  8 [0, ..), and derived is 8 [0, 6)     ->    close 8 [0, ..), open 8 [0, 6)
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from deltalake import DeltaTable
from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from hindcast.contracts import Contract, View
from hindcast.contracts.shapes import PERIODS
from hindcast.corrected import plane
from hindcast.delta import tables
from hindcast.delta.tables import Table
from hindcast.errors import QueryError, TableError
from hindcast.planning import inputs
from hindcast.questions import BEGINNING, Question, moment

PROPERTY = "hindcast.horizon"
"""The table property that holds it, as JSON."""


@dataclass(frozen=True)
class Horizon:
    """What a table says of its horizon; of a log besides before when (known-at) refused records were trimmed, and by
    which `valid_time` its records were dated.
    """

    at: datetime
    refused: datetime | None = None
    valid_time: str | None = None

    @property
    def text(self) -> str:
        """The form in the table's property."""
        told = {"at": self.at.isoformat(), "validTime": self.valid_time}
        return json.dumps(told | {"refused": self.refused.isoformat() if self.refused else None})


def of(table: Table, found: DeltaTable | None = None) -> Horizon | None:
    """The horizon of a table; None if nothing was ever trimmed of it."""
    found = found or tables.opened(table)
    told = found.metadata().configuration.get(PROPERTY) if found is not None else None
    if told is None:
        return None
    it = json.loads(told)
    refused = datetime.fromisoformat(it["refused"]) if it["refused"] else None
    return Horizon(datetime.fromisoformat(it["at"]), refused, it["validTime"])


def frozen(warehouse: str, contract: Contract, name: str) -> datetime | None:
    """Before when the table of a topic or view cannot be derived any more; None: all of it can.

    A view from then on, and as much later as its windows look back. What a kafka view emits it keeps itself.
    """
    own = tables.located(warehouse, contract, name)
    if name in contract.topics:
        return _latest(_at(own), _at(tables.log(warehouse, contract.pipeline, name)))
    view = contract.views[name]
    if view.semantics == "kafka":
        return _at(own)
    back = looks_back(view)
    made_of = (
        inputs.table(warehouse, contract, i) if i in contract.inputs else tables.located(warehouse, contract, i)
        for i in view.inputs
    )
    found = [_at(it) for it in made_of]
    return _latest(_at(own), *(at + back for at in found if at is not None))


def looks_back(view: View) -> timedelta:
    """How much older than a row's start events can be that decide whether there is one."""
    if view.window is not None and view.window.session is not None:
        return view.window.session
    if view.window is not None and view.window.sliding is not None:
        return view.window.sliding + timedelta(milliseconds=1)
    if view.join is not None and view.join.stream is not None:
        return max(view.join.before or timedelta(0), view.join.after or timedelta(0))
    return timedelta(0)


def _reaching(kind: str, since: datetime) -> Column:
    """Whether a row of a table tells of something true at `since` or later."""
    if kind == "versions":
        return F.col("validTo").isNull() | (F.col("validTo") > F.lit(since))
    return F.col(PERIODS[kind][0]) >= F.lit(since)


def gone(kind: str, at: datetime) -> str:
    """The condition of the rows of a table that answer no question from a horizon on, on either axis (Spark SQL)."""
    ended = f"validTo <= {moment(at)}" if kind == "versions" else f"`{PERIODS[kind][0]}` < {moment(at)}"
    return f"systemTo <= {moment(at)} OR {ended}"


def begun(rows: DataFrame, kind: str, since: datetime | None) -> DataFrame:
    """Derived rows as they are from `since` on; all of them if it is None."""
    if since is None:
        return rows
    rows = rows.where(_reaching(kind, since))
    return rows.withColumn("validFrom", F.greatest("validFrom", F.lit(since))) if kind == "versions" else rows


def changes(
    believed: DataFrame,
    derived: DataFrame,
    identity: Sequence[str],
    content: Sequence[str],
    kind: str,
    since: datetime | None,
) -> DataFrame:
    """`plane.changes` of what is true from `since` on; what was before stays as it is believed."""
    if since is None:
        return plane.changes(believed, derived, identity, content)
    if kind != "versions":
        return plane.changes(begun(believed, kind, since), begun(derived, kind, since), identity, content)
    old, new = (begun(rows.withColumn("_from", F.col("validFrom")), kind, since) for rows in (believed, derived))
    # Of a key at most one row of each side reaches over: both are dated `since` here.
    alike = Window.partitionBy(*identity)
    said = F.struct("_from", F.struct(identity[0], *(c for c in content if c != "validTo")).alias("said"))
    sides = {f"_{it}": F.first(F.when(F.col("change") == it, said), True).over(alike) for it in ("close", "open")}
    found = plane.changes(old, new, identity, content).withColumns(sides)
    closed, over = F.col("change") == "close", F.col("_close._from") < F.lit(since)
    same = F.coalesce(over & F.col("_close.said").eqNullSafe(F.col("_open.said")), F.lit(False))
    split = closed & over & ~same
    parts = F.explode(F.when(split, F.array(F.lit("close"), F.lit("before"))).otherwise(F.array("change")))
    found = found.withColumn("_part", parts)
    before = F.col("_part") == "before"
    told = {
        "validFrom": F.when(closed | same, F.col("_close._from")).otherwise(F.col("validFrom")),
        "validTo": F.when(before, F.lit(since)).otherwise(F.col("validTo")),
        "change": F.when(before, "open").otherwise(F.col("change")),
    }
    return found.withColumns(told).drop("_from", "_close", "_open", "_part")


def refuse_dating(log: Table, valid_time: str | None) -> None:
    """TableError if the records of a trimmed log are to be dated anew: what was removed has no time by the new rule."""
    at = of(log)
    if at is not None and at.valid_time != valid_time:
        raise TableError(
            f"another valid_time, and the log was trimmed up to {at.at.isoformat()} by that of before",
            where=log.path,
            mend="put valid_time back, or give the topic's entry another name (a new table)",
        )


def refuse(table: Table, at: Horizon | None, question: Question, known: datetime) -> None:
    """QueryError for a question about what was true, or known, before the horizon of a table."""
    if at is None:
        return
    start = question.from_time if question.from_time and question.from_time > BEGINNING else None
    asked = {"true": (question.as_of, start, question.to_time), "known": (known,)}
    for what, when in ((what, when) for what, moments in asked.items() for when in moments):
        if when is not None and when < at.at:
            raise beyond(table, f"what was {what} at {when.isoformat()}", at)


def beyond(table: Table, asked: str, at: Horizon) -> QueryError:
    """What somebody is told who asks about the time before a horizon."""
    return QueryError(
        f"{asked} is not kept: the history of {table.name} was trimmed up to {at.at.isoformat()}",
        where=table.path,
        mend=f"ask from {at.at.isoformat()} on; `keep` in the contract says how long history is kept",
    )


def _at(table: Table) -> datetime | None:
    found = of(table)
    return found.at if found is not None else None


def _latest(*moments: datetime | None) -> datetime | None:
    return max((moment for moment in moments if moment is not None), default=None)
