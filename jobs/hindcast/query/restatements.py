"""Restatements: how the figures of a closed period differ from what was believed at its close, and why.

    table    figure  closed  records  requeue  now
    revenue  rows         2        1        0    3
    revenue  price       40        4       24   68

A figure of events or windows is their number in the period, or the sum of a column of numbers; of versions it is the
number of the periods of keys that say something else now.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Literal, NamedTuple, get_args

import pyarrow as pa

from hindcast.contract import Contract, list_shapes
from hindcast.plan import closes, definitions, journal
from hindcast.plan.closes import Close
from hindcast.plan.purposes import Erasure, Release, Requeue
from hindcast.plan.runs import Run
from hindcast.query import changes, figures
from hindcast.query.changes import ChangeQuestion
from hindcast.query.figures import Number
from hindcast.store import duckdb_reader
from hindcast.store.duckdb_reader import EngineFactory

Cause = Literal["records", "definition", "requeue", "release", "erasure", "unknown"]
"""What made an answer another one: records that came later, another definition of the table, malformed records that
were decoded again, held changes that a person released, or an erasure. Unknown: records or another definition, if the
journal was rebuilt, since it does not have the contracts of its runs then.
"""
CAUSES: tuple[Cause, ...] = get_args(Cause)
ROWS, PERIODS = "rows", "changed periods"


class Figure(NamedTuple):
    """A figure of a table as it was `closed` and is `now`, None for one of versions, and the differences by cause.

    `column`: the one that it is the sum of; None for a number of rows or periods.
    """

    table: str
    name: str
    column: str | None
    closed: Number | None
    differences: Mapping[Cause, Number]
    now: Number | None


class Restatement(NamedTuple):
    """The figures of a close that differ from those known at a moment, and how many tables it has in all."""

    close: Close
    known_at: datetime
    figures: Sequence[Figure]
    tables: int


def restate_close(
    warehouse: str,
    contract: Contract,
    name: str,
    known_at: datetime,
    open_engine: EngineFactory = duckdb_reader.open_engine,
) -> Restatement:
    """Return what has changed in the figures of a close between its known-at and another moment.

    Raises UnknownError for an unknown close, and QueryError for a moment that cannot be answered.
    """
    close = closes.find_close(warehouse, contract.pipeline, name)
    found = [
        figure
        for table, shape in list_shapes(contract).items()
        if table not in contract.inputs
        for figure in _list_figures(warehouse, contract, table, shape.kind, close, known_at, open_engine)
    ]
    return Restatement(close, known_at, found, len(contract.topics) + len(contract.views))


def list_rows(restatement: Restatement) -> pa.Table:
    """Return a row for each figure, with a column for each cause that occurs; numbers as text, exact."""
    occurring = [cause for cause in CAUSES if any(figure.differences.get(cause) for figure in restatement.figures)]
    rows = [
        {"table": figure.table, "figure": figure.name, "closed": _format_number(figure.closed)}
        | {cause: _format_number(figure.differences.get(cause, 0)) for cause in occurring}
        | {"now": _format_number(figure.now)}
        for figure in restatement.figures
    ]
    return pa.Table.from_pylist(rows, pa.schema([(name, pa.string()) for name in _list_names(occurring)]))


def list_differences(restatement: Restatement) -> pa.Table:
    """Return a row for each figure and cause, for a table of its own.

    The columns `close`, `knownAt`, `table`, `figure`, `cause`; and `closed`, `difference` and `now`, as exact text.
    """
    named = {"close": restatement.close.name, "knownAt": restatement.known_at}
    rows = [
        named
        | {"table": figure.table, "figure": figure.name, "cause": cause, "closed": _format_number(figure.closed)}
        | {"difference": _format_number(difference), "now": _format_number(figure.now)}
        for figure in restatement.figures
        for cause, difference in figure.differences.items()
    ]
    return pa.Table.from_pylist(rows, schema=_DIFFERENCES)


_TEXTS = ("table", "figure", "cause", "closed", "difference", "now")
_DIFFERENCES = pa.schema(
    [("close", pa.string()), ("knownAt", pa.timestamp("us", "UTC")), *((name, pa.string()) for name in _TEXTS)]
)


def _list_names(occurring: Sequence[Cause]) -> list[str]:
    return ["table", "figure", "closed", *occurring, "now"]


def _format_number(number: Number | None) -> str | None:
    return None if number is None else str(number)


def _list_figures(
    warehouse: str,
    contract: Contract,
    table: str,
    kind: str,
    close: Close,
    known_at: datetime,
    open_engine: EngineFactory,
) -> list[Figure]:
    """Return the figures of a table that differ; of events and windows also those whose differences cancel out."""
    question = ChangeQuestion(close.known_at, known_at, period=(close.start, close.end))
    causes = _find_causes(warehouse, contract, table)
    if kind == "versions":
        lines = changes.count_lines(warehouse, contract, table, question, open_engine)
        counts = _add_by_cause({at: {PERIODS: count} for at, count in lines.items()}, causes)
        return [Figure(table, name, None, None, found, None) for name, found in counts.items()]
    found = figures.sum_figures(warehouse, contract, table, question, open_engine)
    is_later = known_at >= close.known_at
    closed, now = (found.earlier, found.later) if is_later else (found.later, found.earlier)
    return [
        Figure(
            table,
            _name_figure(name),
            None if name == figures.ROWS else name,
            closed.get(name, 0),
            by_cause if is_later else {cause: figures.negate_number(it) for cause, it in by_cause.items()},
            now.get(name, 0),
        )
        for name, by_cause in _add_by_cause(found.steps, causes).items()
        if any(by_cause.values())
    ]


def _name_figure(name: str) -> str:
    if name == figures.ROWS:
        return ROWS
    return f"column {name}" if name == ROWS else name


def _add_by_cause(
    steps: Mapping[datetime, Mapping[str, Number]], causes: Mapping[datetime, Cause]
) -> dict[str, dict[Cause, Number]]:
    """Return the sums of what runs, by their known-ats, have done to each figure, by cause."""
    found: dict[str, dict[Cause, Number]] = defaultdict(dict)
    for at, numbers in steps.items():
        cause = causes.get(at, "unknown")
        for name, number in numbers.items():
            found[name][cause] = figures.add_numbers(found[name].get(cause, 0), number)
    return found


def _find_causes(warehouse: str, contract: Contract, table: str) -> dict[datetime, Cause]:
    """Return by the known-at of a run why it changed a table."""
    past = journal.read_runs(warehouse, contract.pipeline)
    found: dict[datetime, Cause] = {}
    before: Run | None = None
    for run in past:
        match run.plan.purpose:
            case Erasure():
                found[run.known_at] = "erasure"
            case Release():
                found[run.known_at] = "release"
            case Requeue():
                found[run.known_at] = "requeue"
            case _:
                found[run.known_at] = _find_cause_of_replay(past, before, run, table)
        if run.state == "completed" or run.plan.is_rebuilt:
            before = run
    return found


def _find_cause_of_replay(past: Sequence[Run], before: Run | None, run: Run, table: str) -> Cause:
    """Return why a run that replays topics changed a table; `before`: the last run that made it before."""
    if before is not None and (before.plan.is_rebuilt or run.plan.is_rebuilt):
        return "unknown"
    if before is None or before.plan.contract == run.plan.contract:
        return "records"
    contracts = [definitions.find_contract(past, it.plan.contract) for it in (before, run)]
    hashes = {_hash_table(contract, table) for contract in contracts if contract is not None}
    return "definition" if len(hashes) > 1 else "records"


def _hash_table(contract: Contract, table: str) -> str | None:
    if table in contract.topics:
        return contract.topics[table].hash_decoding
    return contract.hash_definition(table) if table in contract.views else None
