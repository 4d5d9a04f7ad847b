"""Why a run opened the row that a question finds, in sentences: late records, or a release of what was held back."""

from __future__ import annotations

from collections.abc import Collection
from datetime import datetime, timedelta

from hindcast.common.column_values import Row
from hindcast.common.errors import HindcastError
from hindcast.common.lengths import format_length
from hindcast.common.python_values import list_rows
from hindcast.common.settings import Settings
from hindcast.contract import Contract
from hindcast.contract.shapes import PERIODS
from hindcast.plan.runs import Run
from hindcast.query import key_changes
from hindcast.query.change_causes import CauseFinder
from hindcast.query.changes import ChangeQuestion
from hindcast.query.cut_values import cut_text
from hindcast.query.key_history import KeyHistory, read_moment

MAX_LINES = 200
"""How many changes of the key by one run are looked at."""


def describe_opening(
    settings: Settings,
    contract: Contract,
    history: KeyHistory,
    row: Row,
    run: int | None,
    as_of: datetime,
    hidden: Collection[str],
    readable: Collection[str],
) -> list[str]:
    """Return a sentence about the late records by which a `run` opened a row; none if none was late, or none is found.

    Run 2 changed it: restaurant.menu, partition 0, offset 4, came 3 min late.
    """
    opened = read_moment(row, "systemFrom")
    question = ChangeQuestion(opened - timedelta(microseconds=1), opened, order="time", most=MAX_LINES, hidden=hidden)
    try:
        lines = list_rows(key_changes.find_key_changes(history, question).lines)
    except HindcastError:
        return []
    lines = [line for line in lines if line["after"] is not None and _is_of(line, row, history.table.kind, as_of)]
    causes = CauseFinder(settings, contract, history.table, question, readable).find_causes(lines[:1])
    late = [
        f"{cause.format_place()}, came {format_length(cause.late)} late"
        for found in causes
        for cause in found
        if cause.late
    ]
    if not late or run is None:
        return []
    verb = "added" if lines[0]["before"] is None else "changed"
    return [f"Run {run} {verb} it: {'; '.join(late)}."]


def describe_approval(run: Run | None, table: str) -> list[str]:
    """Return a sentence about who let a held change through with which a `run` opened a row; none for another run."""
    if run is None or table not in run.plan.released_keys or (approval := run.plan.approval) is None:
        return []
    by = f" by {approval.by}" if approval.by else ""
    reason = f": {run.plan.reason.rstrip('.')}" if run.plan.reason else ""
    return [cut_text(f"Run {run.number} published it: it had been held back, and was approved{by}{reason}.")]


def _is_of(line: Row, row: Row, kind: str, as_of: datetime) -> bool:
    """Return whether a line of changes is about a row, of a version `as_of` a moment."""
    periods = PERIODS[kind]
    if kind != "versions":
        return all(line[name] == row[name] for name in periods)
    since, until = line["validFrom"], line["validTo"]
    is_begun = not isinstance(since, datetime) or since <= as_of
    return is_begun and (not isinstance(until, datetime) or as_of < until)
