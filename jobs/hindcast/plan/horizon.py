"""The horizon of a table: the moment before which its history was trimmed (ops/retention.py).

Questions about the horizon or later, as known at the horizon or later, have full answers. The horizon is a property of
the table itself, never moves back, and is written before anything is removed. A log has one too: for each key it keeps
the record that was in force then, and all later ones.

So have questions about a close (closes.py) of which no trim has removed a row. The journal cannot tell which those are:
it may be an older copy, and a table may have been trimmed while it was in no contract. So the same property of a table
says up to when its rows were really removed, and of which closes all were left (`Removal`).

The sources of a table may have been trimmed further than the table itself. Before that moment it can no longer be
derived, so it is *frozen* there: its rows stay as they are, and runs compare and replace what is true from then on. A
row that begins before that moment and lasts beyond it is split there if its later part changes:

    frozen at 4:  8 [0, ..), and derived is 9 [3, ..)    ->    close 8 [0, ..), open 8 [0, 4), open 9 [4, ..)
                  8 [0, ..), and derived is 8 [0, 6)     ->    close 8 [0, ..), open 8 [0, 6)
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from deltalake import DeltaTable
from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from hindcast.bitemporal import plane
from hindcast.bitemporal.intervals import parse_utc
from hindcast.bitemporal.predicates import FIRST_MOMENT, Question, sql_literal
from hindcast.common.errors import QueryError, TableError
from hindcast.common.json_values import JsonValue
from hindcast.contract import Contract, View
from hindcast.contract.shapes import PERIODS
from hindcast.plan import inputs
from hindcast.plan.closes import Close, list_kept, parse_close
from hindcast.store import store_formats, tables
from hindcast.store.tables import Table

PROPERTY = "hindcast.horizon"
"""The table property that stores the horizon, as JSON."""


@dataclass(frozen=True)
class Removal:
    """What trims may have removed of a table: the rows before a horizon, `upto` (None: none yet), but for those that
    answer questions about the closes `kept`.
    """

    upto: datetime | None
    kept: tuple[Close, ...] = ()

    def lists(self, close: Close) -> bool:
        """Return whether the rows of the close, or of one that is about the same, were kept."""
        return any(it.question == close.question for it in self.kept)

    def select_kept(self, closes: Iterable[Close]) -> tuple[Close, ...]:
        """Return those of some closes of which no row was removed."""
        listed = {it.question for it in self.kept}
        return tuple(it for it in closes if self.upto is None or it.begins_since(self.upto) or it.question in listed)

    def as_json(self) -> dict[str, JsonValue]:
        """Return the fields of the property that are of it."""
        upto = self.upto.isoformat() if self.upto else None
        return {"removed": upto, "closes": [close.without_names().as_json() for close in self.kept]}


@dataclass(frozen=True)
class Horizon:
    """The horizon of a table; that of a log also has the known-at before which refused records were trimmed, and the
    `valid_time` by which its records were dated. `stored_removal`: what was removed, if the property says it.
    """

    moment: datetime
    refused_before: datetime | None = None
    valid_time: str | None = None
    stored_removal: Removal | None = field(default=None, compare=False)

    @property
    def removal(self) -> Removal:
        """What was removed: up to the horizon if an older release has written the property."""
        return self.stored_removal or Removal(self.moment)

    @property
    def text(self) -> str:
        """The form in the table's property."""
        fields: dict[str, JsonValue] = {"at": self.moment.isoformat(), "validTime": self.valid_time}
        fields["refused"] = self.refused_before.isoformat() if self.refused_before else None
        return json.dumps(fields | (self.stored_removal.as_json() if self.stored_removal else {}))

    def is_beyond(self, other: Horizon) -> bool:
        """Return whether more was trimmed up to this horizon than up to another one of the table."""
        if self.refused_before is None:
            return self.moment > other.moment
        return self.moment > other.moment or other.refused_before is None or self.refused_before > other.refused_before


def read_horizon(table: Table, delta_table: DeltaTable | None = None) -> Horizon | None:
    """Return the horizon of a table; None if it was never trimmed."""
    delta_table = delta_table or tables.open_table(table)
    if delta_table is None:
        return None
    return tables.parse_property(delta_table, PROPERTY, _parse_horizon)


def _parse_horizon(text: str) -> Horizon:
    fields = json.loads(text)
    refused, removed = (parse_utc(it) if it else None for it in (fields["refused"], fields.get("removed")))
    removal = Removal(removed, tuple(map(parse_close, fields["closes"]))) if "closes" in fields else None
    rule = fields["validTime"]
    return Horizon(parse_utc(fields["at"]), refused, None if rule is None else str(rule), removal)


def find_quarantine_horizon(contract: Contract, kafka: str, horizons: Mapping[str, Horizon | None]) -> datetime | None:
    """Return the known-at before which the quarantine of a topic in Kafka is trimmed: that of the entry which keeps
    refused records longest; None if one keeps them for ever. `horizons`: those of the logs, by entry.
    """
    found = (horizons.get(name) for name in contract.find_entries(kafka))
    moments = [at.refused_before if at is not None else None for at in found]
    return min((moment for moment in moments if moment is not None), default=None) if None not in moments else None


def find_frozen_until(warehouse: str, contract: Contract, name: str) -> datetime | None:
    """Return the moment before which the table of a topic or view can no longer be derived; None if all of it can.

    For a view that is later than the horizon of its inputs by as much as its windows look back. A kafka view has only
    its own horizon, because it stores what it emits.
    """
    own = tables.locate_table(warehouse, contract, name)
    if name in contract.topics:
        return _latest(_read_moment(own), _read_moment(tables.log_table(warehouse, contract.pipeline, name)))
    view = contract.views[name]
    if view.semantics == "kafka":
        return _read_moment(own)
    back = lookback_period(view)
    sources = (
        inputs.locate_input_table(warehouse, contract, i)
        if i in contract.inputs
        else tables.locate_table(warehouse, contract, i)
        for i in view.inputs
    )
    horizons = [_read_moment(source) for source in sources]
    return _latest(_read_moment(own), *(at + back for at in horizons if at is not None))


def lookback_period(view: View) -> timedelta:
    """Return how much older than a row's start the events can be that decide whether the row exists."""
    if view.window is not None and view.window.session is not None:
        return view.window.session
    if view.window is not None and view.window.sliding is not None:
        return view.window.sliding + timedelta(milliseconds=1)
    if view.join is not None and view.join.stream is not None:
        return max(view.join.before or timedelta(0), view.join.after or timedelta(0))
    return timedelta(0)


def _is_true_since(kind: str, since: datetime) -> Column:
    """Return a condition: the row is about something true at `since` or later."""
    if kind == "versions":
        return F.col("validTo").isNull() | (F.col("validTo") > F.lit(since))
    return F.col(PERIODS[kind][0]) >= F.lit(since)


def trimmed_condition(kind: str, at: datetime, kept: Sequence[Close] = ()) -> str:
    """Return a condition (DuckDB SQL): the row answers no question from a horizon on, on either axis, and none about
    one of the closes that are `kept`. A window that reaches over the horizon does, though it is frozen.
    """
    moment = sql_literal(at)
    ended = f"validTo <= {moment}" if kind == "versions" else f'"{PERIODS[kind][-1]}" < {moment}'
    return " AND NOT ".join([f"(systemTo <= {moment} OR {ended})", *(close.kept_condition(kind, at) for close in kept)])


def clip_rows(rows: DataFrame, kind: str, since: datetime | None) -> DataFrame:
    """Return derived rows as they are from `since` on; all of them if it is None."""
    if since is None:
        return rows
    rows = rows.where(_is_true_since(kind, since))
    return rows.withColumn("validFrom", F.greatest("validFrom", F.lit(since))) if kind == "versions" else rows


def diff_rows_since(
    current: DataFrame,
    derived: DataFrame,
    identity: Sequence[str],
    content: Sequence[str],
    kind: str,
    since: datetime | None,
) -> DataFrame:
    """Return `plane.diff_rows` of what is true from `since` on; what was true before stays as it is."""
    if since is None:
        return plane.diff_rows(current, derived, identity, content)
    if kind != "versions":
        return plane.diff_rows(clip_rows(current, kind, since), clip_rows(derived, kind, since), identity, content)
    old, new = (clip_rows(rows.withColumn("_from", F.col("validFrom")), kind, since) for rows in (current, derived))
    # At most one row of a key and side lasts beyond `since`; both sides are dated `since` here.
    alike = Window.partitionBy(*identity)
    side = F.struct("_from", F.struct(identity[0], *(c for c in content if c != "validTo")).alias("said"))
    sides = {
        f"_{change}": F.first(F.when(F.col("_change") == change, side), True).over(alike)
        for change in ("close", "open")
    }
    changes = plane.diff_rows(old, new, identity, content).withColumns(sides)
    closed, over = F.col("_change") == "close", F.col("_close._from") < F.lit(since)
    same = F.coalesce(over & F.col("_close.said").eqNullSafe(F.col("_open.said")), F.lit(False))
    split = closed & over & ~same
    parts = F.explode(F.when(split, F.array(F.lit("close"), F.lit("before"))).otherwise(F.array("_change")))
    changes = changes.withColumn("_part", parts)
    before = F.col("_part") == "before"
    columns = {
        "validFrom": F.when(closed | same, F.col("_close._from")).otherwise(F.col("validFrom")),
        "validTo": F.when(before, F.lit(since)).otherwise(F.col("validTo")),
        "_change": F.when(before, "open").otherwise(F.col("_change")),
    }
    return changes.withColumns(columns).drop("_from", "_close", "_open", "_part")


def refuse_dating(log: Table, valid_time: str | None) -> None:
    """Raise TableError if a trimmed log is to be dated by another rule: removed records have no time by the new one."""
    at = read_horizon(log)
    if at is not None and at.valid_time != valid_time:
        raise TableError(
            f"valid_time was changed, but the log was trimmed up to {at.moment.isoformat()} by the former one",
            where=log.path,
            fix="put valid_time back, or give the topic's entry another name (a new table)",
        )


def refuse_question(table: Table, at: Horizon | None, question: Question, known: datetime) -> None:
    """Raise QueryError for a question about what was true, or known, before the horizon of a table, unless it is about
    a close of which no row was removed.
    """
    if at is None:
        return
    start = question.from_time if question.from_time and question.from_time > FIRST_MOMENT else None
    moments_by_axis = {"true": (question.as_of, start, question.to_time), "known": (known,)}
    for axis, when in ((axis, when) for axis, moments in moments_by_axis.items() for when in moments):
        if when is not None and when < at.moment:
            kept = at.removal.select_kept(list_kept(table.warehouse, table.pipeline))
            if any(close.covers(table.kind, question, known, at.moment) for close in kept):
                return
            raise beyond_horizon_error(table, f"what was {axis} at {when.isoformat()}", at)


def refuse_trimmed_close(table: Table, at: Horizon | None, close: Close, *, is_stored: bool) -> None:
    """Raise QueryError for a close that reaches back before the horizon of a table, unless it is stored and its rows
    were kept.
    """
    if at is None or close.begins_since(at.moment) or (is_stored and close in at.removal.select_kept([close])):
        return
    if is_stored:
        raise lost_close_error(table, close, at)
    axis, when = ("true", close.start) if close.start < at.moment else ("known", close.known_at)
    raise beyond_horizon_error(table, f"what was {axis} at {when.isoformat()}", at)


def find_first_known(delta_table: DeltaTable) -> datetime | None:
    """Return since when a table can be asked what was known, if a downgrade dropped what was known before; else None.

    Once it has today's format again, that is after the last known-at before the downgrade: its rows say less.
    """
    is_upgraded = tables.read_older_format(delta_table) is None
    later = timedelta(microseconds=1) if is_upgraded else timedelta(0)
    return tables.parse_property(delta_table, store_formats.DOWNGRADE_PROPERTY, lambda text: parse_utc(text) + later)


def refuse_dropped(table: Table, delta_table: DeltaTable, known_at: datetime) -> None:
    """Raise QueryError for a known-at of which a downgrade dropped what was known then."""
    first = find_first_known(delta_table)
    if first is not None and known_at < first:
        raise QueryError(
            f"a downgrade dropped what was known before {first.isoformat()}",
            where=table.path,
            fix="use a known-at from then on; or read an older Delta version of the table, if there still is one",
        )


def lost_close_error(table: Table, close: Close, at: Horizon) -> QueryError:
    """Return the error for a close that a table cannot answer."""
    found = (
        f"the close '{close.name}' cannot be answered: the table was trimmed up to {at.moment.isoformat()} without it"
    )
    return QueryError(found, where=table.path, fix=advise_drop(table, close))


def advise_drop(table: Table, close: Close) -> str:
    """Return what to do about a close that a table cannot answer."""
    drop = f"hindcast closes {table.pipeline} --drop {close.name} --reason TEXT"
    return f"ask the tables that have it; or give it up in all of them: {drop}"


def beyond_horizon_error(table: Table, subject: str, at: Horizon) -> QueryError:
    """Return the error for a question about the time before a horizon; `subject` is what it asks for."""
    return QueryError(
        f"{subject} is not kept: the history of {table.name} was trimmed up to {at.moment.isoformat()}",
        where=table.path,
        fix=f"ask from {at.moment.isoformat()} on; `keep` in the contract says how long history is kept",
    )


def _read_moment(table: Table) -> datetime | None:
    at = read_horizon(table)
    return at.moment if at is not None else None


def _latest(*moments: datetime | None) -> datetime | None:
    return max((moment for moment in moments if moment is not None), default=None)
