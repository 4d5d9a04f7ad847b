"""Closes: names for what was believed of a period at a moment, so that it can be asked for later.

    hindcast close shop 2026-Q3 --from 2026-07-01 --to 2026-10-01
    hindcast query shop.bills --known-at close:2026-Q3

A close is of all tables of a pipeline. It copies nothing: a property of the journal has its period and its known-at,
and a trim leaves the rows that answer questions about it. Each table says of which closes it has them (horizon.py). A
name is used once, also after its close was dropped.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from deltalake import CommitProperties, DeltaTable

from hindcast.bitemporal.intervals import parse_utc
from hindcast.bitemporal.predicates import Question, during_condition, known_at_condition, sql_literal
from hindcast.common import clock
from hindcast.common.errors import (
    LINE_BREAKS,
    QueryError,
    RequestError,
    UnknownError,
    escape_controls,
    show_briefly,
    suggest_nearest,
)
from hindcast.common.json_values import JsonValue
from hindcast.plan import journal
from hindcast.store import tables
from hindcast.store.replacements import refuse_replacing

PROPERTY = "hindcast.closes"
"""The property of the journal that stores closes: a list in JSON, oldest first."""
PREFIX = "close:"
"""What a name begins with where a moment is written."""
MOST = 1_000
"""So many closes a pipeline may have: each opened journal brings all of them."""
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
_LONGEST_REASON = 1_000
_LONGEST_NAME = 200
_MOST_BYTES = 4 << 20
"""The most bytes of all closes of a pipeline, as a commit to its journal has them."""
_INSTANT = timedelta(microseconds=1)


@dataclass(frozen=True)
class Drop:
    """That a close was dropped: when, by whom, and why."""

    at: datetime
    by: str
    reason: str


@dataclass(frozen=True)
class Close:
    """A name for what was believed at `known_at` of the period [start, end): of versions that were valid in it, of
    events dated in it, of windows that it touches. `at`, `by`: when, and by whom, it was closed.
    """

    name: str
    start: datetime
    end: datetime
    known_at: datetime
    at: datetime
    by: str
    drop: Drop | None = None

    @property
    def question(self) -> Question:
        """The question about the whole period."""
        return Question(from_time=self.start, to_time=self.end - _INSTANT, known_at=self.known_at)

    def kept_condition(self, kind: str, since: datetime) -> str:
        """Return the condition of rows that answer questions about the close, and about what has been known of its
        period `since` some moment: what has changed in it is asked for. DuckDB SQL; it is never null.

        Of versions also of those that are valid at its end: that moment may be asked for.
        """
        end = self.end if kind == "versions" else self.end - _INSTANT
        start, last, known = sql_literal(self.start), sql_literal(end), known_at_condition(sql_literal(self.known_at))
        known = f"({known} OR systemTo IS NULL OR systemTo > {sql_literal(since)})"
        return f"({known} AND {during_condition(kind, start, last)})"

    def begins_since(self, moment: datetime) -> bool:
        """Return whether the close is about nothing before a moment, on either axis."""
        return self.start >= moment and self.known_at >= moment

    def covers(self, kind: str, question: Question, known_at: datetime, since: datetime) -> bool:
        """Return whether a question to a table of this kind is about nothing but the close: as known then or `since`
        some moment, and of times in its period. Of events and windows one moment is all of the time before it.
        """
        if known_at != self.known_at and known_at < since:
            return False
        if question.as_of is not None:
            return kind == "versions" and self.start <= question.as_of <= self.end
        start, end = question.from_time, question.to_time
        return start is not None and end is not None and self.start <= start and end < self.end

    def without_names(self) -> Close:
        """Return the close as tables store it: what it is about; only the journal says who it was."""
        return replace(self, by="", drop=None)

    def as_json(self) -> dict[str, JsonValue]:
        """Return the close as it is stored."""
        moments = {"from": self.start, "to": self.end, "knownAt": self.known_at, "at": self.at}
        fields: dict[str, JsonValue] = {key: moment.isoformat() for key, moment in moments.items()}
        fields |= {"name": self.name, "by": self.by}
        if self.drop is not None:
            fields["dropped"] = {"at": self.drop.at.isoformat(), "by": self.drop.by, "reason": self.drop.reason}
        return fields


def read_closes(warehouse: str, pipeline: str) -> list[Close]:
    """Return the closes of a pipeline, oldest first, also those that were dropped; TableError if they are no closes."""
    delta_table = tables.open_table(journal.runs_table(warehouse, pipeline))
    return [] if delta_table is None else _parse_closes(delta_table)


def list_kept(warehouse: str, pipeline: str) -> tuple[Close, ...]:
    """Return the closes of a pipeline that were not dropped."""
    return tuple(it for it in read_closes(warehouse, pipeline) if it.drop is None)


def has_changed_since(warehouse: str, pipeline: str, moment: datetime) -> bool:
    """Return whether a period was closed, or a close dropped, at a moment or later."""
    found = read_closes(warehouse, pipeline)
    return any(it.at >= moment or (it.drop is not None and it.drop.at >= moment) for it in found)


def find_close(warehouse: str, pipeline: str, name: str) -> Close:
    """Return the close of this name; UnknownError if there is none, QueryError if it was dropped."""
    return _select_close(read_closes(warehouse, pipeline), pipeline, name)


def _select_close(past: list[Close], pipeline: str, name: str) -> Close:
    found = {it.name: it for it in past}
    if name not in found:
        raise UnknownError(f"no close '{name}'", where=pipeline, fix=suggest_nearest(name, found))
    if (drop := found[name].drop) is not None:
        raise QueryError(
            f"the close '{name}' was dropped at {drop.at.isoformat()} {_describe_drop(drop)}",
            where=pipeline,
            fix="give its known-at as a moment, if the table still has it: hindcast closes lists it",
        )
    return found[name]


def add_close(warehouse: str, pipeline: str, close: Close) -> Close:
    """Add a close, and return it as it is stored: to add it once more changes nothing.

    RequestError for a name that is none or was used for another close, for a period that ends before it begins, for a
    `by` that is too long, and if there are too many closes.
    """
    _refuse_long_text(pipeline, "name of who closes it", close.by, _LONGEST_NAME)
    if _NAME.fullmatch(close.name) is None:
        fix = "use up to 100 letters, digits, dots, underscores and hyphens, the first a letter or a digit"
        raise RequestError(f"'{show_briefly(close.name)}' is no name of a close", where=pipeline, fix=fix)
    if close.start >= close.end:
        found = f"the times are reversed: from {close.start.isoformat()} to {close.end.isoformat()}"
        raise RequestError(found, where=pipeline, fix="close from the earlier to the later one")
    stored = close

    def add(closes: list[Close]) -> list[Close]:
        nonlocal stored
        same = next((it for it in closes if it.name == close.name), None)
        if same is not None:
            if same.drop is not None or same.question != close.question:
                found = f"the name '{close.name}' is used: {describe_close(same)}"
                raise RequestError(found, where=pipeline, fix="choose another name: a name is used once")
            stored = same
            return closes
        if len(closes) >= MOST:
            raise RequestError(f"the pipeline has {MOST:,} closes", where=pipeline, fix="it takes no more of them")
        return [*closes, close]

    _change_closes(warehouse, pipeline, add)
    return stored


def take_back_close(warehouse: str, pipeline: str, close: Close) -> None:
    """Remove a close that was just added, as if it had never been."""
    _change_closes(warehouse, pipeline, lambda closes: [it for it in closes if it != close])


def drop_close(warehouse: str, pipeline: str, name: str, by: str, reason: str) -> Close:
    """Drop a close, and return it: its name can no longer be asked for, and a trim may remove its rows.

    Raise what `find_close` raises; RequestError for a reason or a `by` that is too long.
    """
    _refuse_long_text(pipeline, "reason", reason, _LONGEST_REASON)
    _refuse_long_text(pipeline, "name of who drops it", by, _LONGEST_NAME)
    dropped = Drop(clock.now(), by, reason)
    stored: list[Close] = []

    def drop(past: list[Close]) -> list[Close]:
        close = replace(_select_close(past, pipeline, name), drop=dropped)
        stored[:] = [close]
        return [close if it.name == name else it for it in past]

    _change_closes(warehouse, pipeline, drop)
    return stored[0]


def _refuse_long_text(pipeline: str, what: str, text: str, most: int) -> None:
    if len(text) > most:
        raise RequestError(f"the {what} has {len(text):,} characters", where=pipeline, fix=f"write at most {most:,}")


def describe_close(close: Close) -> str:
    """Return what a close is of, as a person says it."""
    period = f"{close.start.isoformat()} to {close.end.isoformat()}, as known at {close.known_at.isoformat()}"
    return period if close.drop is None else f"{period}; dropped {_describe_drop(close.drop)}"


def _describe_drop(drop: Drop) -> str:
    by, reason = (escape_controls(text, LINE_BREAKS) for text in (drop.by, drop.reason))
    return f"by {by}: {reason}"


def _change_closes(warehouse: str, pipeline: str, change: Callable[[list[Close]], list[Close]]) -> None:
    """Store what a function makes of the closes of a pipeline, if no other writer of the journal comes between."""
    table = journal.runs_table(warehouse, pipeline)

    def commit() -> None:
        delta_table = tables.open_latest(table)
        if delta_table is None:
            raise QueryError("no run has been completed yet", where=table.path, fix=f"hindcast run {pipeline}")
        refuse_replacing(warehouse, pipeline)  # after the journal was opened: see `journal.commit_nothing`
        closes = _parse_closes(delta_table)
        if (changed := change(closes)) != closes:
            text, alone = json.dumps([it.as_json() for it in changed]), CommitProperties(max_commit_retries=0)
            if (size := len(json.dumps(text))) > _MOST_BYTES:
                fix = "shorten reasons and names: what was dropped is kept too"
                raise RequestError(f"all closes together would have {size:,} bytes", where=pipeline, fix=fix)
            delta_table.alter.set_table_properties({PROPERTY: text}, raise_if_not_exists=False, commit_properties=alone)

    journal.retry_commit(commit, table.path)


def _parse_closes(delta_table: DeltaTable) -> list[Close]:
    def parse(text: str) -> list[Close]:
        return [parse_close(fields) for fields in json.loads(text)]

    return tables.parse_property(delta_table, PROPERTY, parse) or []


def parse_close(fields: dict[str, str | dict[str, str]]) -> Close:
    """Return a close that was stored (`Close.as_json`)."""
    start, end, known_at, at = (parse_utc(str(fields[key])) for key in ("from", "to", "knownAt", "at"))
    drop, name = fields.get("dropped"), str(fields["name"])
    if _NAME.fullmatch(name) is None:  # it becomes part of SQL
        raise ValueError(f"'{name}' is no name of a close")
    dropped = Drop(parse_utc(drop["at"]), str(drop["by"]), str(drop["reason"])) if isinstance(drop, dict) else None
    return Close(name, start, end, known_at, at, str(fields["by"]), dropped)
