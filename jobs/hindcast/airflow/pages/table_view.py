"""A table as it was known at a moment: its first rows, and the moments of knowledge that a slider goes through.

The time machine shows it where no key is chosen; `templates/machine.html` lays it out.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from functools import partial
from typing import NamedTuple

import duckdb

from hindcast.bitemporal.predicates import Question
from hindcast.common.python_values import list_rows
from hindcast.contract import Contract
from hindcast.plan import closes, journal
from hindcast.query import read
from hindcast.query.explain_limits import NotExplainedError, limit_explanations, open_limited_engine
from hindcast.query.key_history import RowSample
from hindcast.query.show import format_moment

MAX_ROWS = 50
MAX_MOMENTS = 500
"""The most moments of a slider: the latest."""
SECONDS, MEMORY, MAX_BYTES = 2.0, 320 << 20, 8 << 20
"""How long reading rows may take, how many bytes it may take, and how many the rows may have."""


class KnownMoment(NamedTuple):
    """A moment of knowledge: as a form takes it, and as a person reads it."""

    at: datetime
    text: str
    label: str


def list_moments(warehouse: str, pipeline: str, since: datetime | None) -> list[KnownMoment]:
    """Return the known-ats of a pipeline's runs and closes, the earliest first.

    `since`: the horizon of the table, before which nothing is answered but a close, if that was kept.
    """
    runs = [
        (run.known_at, f"run:{run.number}", f"run {run.number}")
        for run in journal.read_completed_runs(warehouse, pipeline)
    ]
    kept = [
        (it.known_at, f"{closes.PREFIX}{it.name}", f"close {it.name}") for it in closes.list_kept(warehouse, pipeline)
    ]
    moments = [it for it in (*runs, *kept) if since is None or it[0] >= since]
    latest = sorted(moments, key=lambda it: it[0])[-MAX_MOMENTS:]
    return [KnownMoment(at, text, f"{label}, {format_moment(at)}") for at, text, label in latest]


def find_label(moments: Sequence[KnownMoment], known_at: datetime) -> str:
    """Return what a moment is called; its own text if it is none of these."""
    return next((it.label for it in moments if it.at == known_at), format_moment(known_at))


def find_place(moments: Sequence[KnownMoment], known_at: datetime) -> int:
    """Return the number of the first moment that is this one, or else of the last before it; 0 if there is none."""
    earlier = [n for n, it in enumerate(moments) if it.at < known_at]
    same = [n for n, it in enumerate(moments) if it.at == known_at]
    return min(same, default=max(earlier, default=0))


def read_rows(warehouse: str, contract: Contract, name: str, question: Question) -> RowSample | None:
    """Return the first rows of a table that answer a question; None if reading them takes too long, or too much memory.

    Raises what `read.query` raises.
    """
    engine = partial(open_limited_engine, seconds=SECONDS, memory=MEMORY)
    try:
        with limit_explanations(contract.pipeline):
            rows, total = read.read_first_rows(warehouse, contract, name, question, MAX_ROWS, MAX_BYTES, engine)
    except (NotExplainedError, read.LargeRowsError, duckdb.OutOfMemoryException):
        return None
    return RowSample(list_rows(rows), total)
