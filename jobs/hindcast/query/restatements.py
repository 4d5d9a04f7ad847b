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

from hindcast.common.errors import UnknownError, suggest_nearest
from hindcast.contract import Contract, list_shapes
from hindcast.plan import closes, definitions, journal
from hindcast.plan.closes import Close
from hindcast.plan.purposes import Erasure, Release, Requeue
from hindcast.plan.runs import Run
from hindcast.query import changes, figures
from hindcast.query.changes import ChangeQuestion
from hindcast.query.figures import Measure, Number
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

    `column`: the one that it is the sum of; None for a number of rows or periods. `group`: the value of its rows, if
    they were grouped.
    """

    table: str
    name: str
    column: str | None
    closed: Number | None
    differences: Mapping[Cause, Number]
    now: Number | None
    group: str | None = None


class Restatement(NamedTuple):
    """The figures of a close that differ from those known at a moment, and how many tables it has in all.

    `group_by`: the column by whose values they are grouped.
    """

    close: Close
    known_at: datetime
    figures: Sequence[Figure]
    tables: int
    group_by: str | None = None


def restate_close(
    warehouse: str,
    contract: Contract,
    name: str,
    known_at: datetime,
    open_engine: EngineFactory = duckdb_reader.open_engine,
    group_by: str | None = None,
) -> Restatement:
    """Return what has changed in the figures of a close between its known-at and another moment; with `group_by` of
    the tables of events and windows that have this column, by its values.

    Raises UnknownError for an unknown close or column, and QueryError for a moment that cannot be answered.
    """
    close = closes.find_close(warehouse, contract.pipeline, name)
    shapes = {table: shape for table, shape in list_shapes(contract).items() if table not in contract.inputs}
    if group_by is not None:
        shapes = {table: it for table, it in shapes.items() if it.kind != "versions"}
        columns = {column for shape in shapes.values() for column in shape.columns}
        if group_by not in columns:
            found = f"no table of events or windows has the column '{group_by}'"
            raise UnknownError(found, where=contract.pipeline, fix=suggest_nearest(group_by, columns))
        shapes = {table: shape for table, shape in shapes.items() if group_by in shape.columns}
    listed = [
        figure
        for table, shape in shapes.items()
        for figure in _list_figures(warehouse, contract, table, shape.kind, close, known_at, open_engine, group_by)
    ]
    return Restatement(close, known_at, listed, len(shapes), group_by)


def list_rows(restatement: Restatement) -> pa.Table:
    """Return a row for each figure, with a column for each cause that occurs; numbers as text, exact."""
    occurring = [cause for cause in CAUSES if any(figure.differences.get(cause) for figure in restatement.figures)]
    rows = [
        {"table": figure.table, "group": figure.group, "figure": figure.name}
        | {"closed": _format_number(figure.closed)}
        | {cause: _format_number(figure.differences.get(cause, 0)) for cause in occurring}
        | {"now": _format_number(figure.now)}
        for figure in restatement.figures
    ]
    schema = pa.schema([(name, pa.string()) for name in _list_names(occurring)])
    return _drop_empty_group(pa.Table.from_pylist(rows, schema), restatement)


def list_differences(restatement: Restatement) -> pa.Table:
    """Return a row for each figure and cause, for a table of its own.

    The columns `close`, `knownAt`, `table`, `figure`, `cause`; and `closed`, `difference` and `now`, as exact text. If
    the figures are grouped, `group` is behind `table`.
    """
    named = {"close": restatement.close.name, "knownAt": restatement.known_at}
    rows = [
        named
        | {"table": figure.table, "group": figure.group, "figure": figure.name, "cause": cause}
        | {"closed": _format_number(figure.closed)}
        | {"difference": _format_number(difference), "now": _format_number(figure.now)}
        for figure in restatement.figures
        for cause, difference in figure.differences.items()
    ]
    return _drop_empty_group(pa.Table.from_pylist(rows, schema=_DIFFERENCES), restatement)


_TEXTS = ("table", "group", "figure", "cause", "closed", "difference", "now")
_DIFFERENCES = pa.schema(
    [("close", pa.string()), ("knownAt", pa.timestamp("us", "UTC")), *((name, pa.string()) for name in _TEXTS)]
)


def _list_names(occurring: Sequence[Cause]) -> list[str]:
    return ["table", "group", "figure", "closed", *occurring, "now"]


def _drop_empty_group(rows: pa.Table, restatement: Restatement) -> pa.Table:
    """Return rows without the column `group` if nothing is grouped."""
    return rows if restatement.group_by is not None else rows.drop_columns("group")


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
    group_by: str | None,
) -> list[Figure]:
    """Return the figures of a table that differ; of events and windows also those whose differences cancel out."""
    question = ChangeQuestion(close.known_at, known_at, period=(close.start, close.end))
    causes = _find_causes(warehouse, contract, table)
    if kind == "versions":
        lines = changes.count_lines(warehouse, contract, table, question, open_engine)
        measure = Measure(PERIODS, None)
        counts = _add_by_cause({at: {measure: count} for at, count in lines.items()}, causes)
        return [Figure(table, PERIODS, None, None, found, None) for found in counts.values()]
    found = figures.sum_figures(warehouse, contract, table, question, open_engine, group_by)
    is_later = known_at >= close.known_at
    closed, now = (found.earlier, found.later) if is_later else (found.later, found.earlier)
    return [
        Figure(
            table,
            _name_figure(measure.column),
            None if measure.column == figures.ROWS else measure.column,
            closed.get(measure, 0),
            by_cause if is_later else {cause: figures.negate_number(it) for cause, it in by_cause.items()},
            now.get(measure, 0),
            measure.group,
        )
        for measure, by_cause in sorted(_add_by_cause(found.steps, causes).items(), key=lambda it: it[0].group or "")
        if any(by_cause.values())
    ]


def _name_figure(name: str) -> str:
    if name == figures.ROWS:
        return ROWS
    return f"column {name}" if name == ROWS else name


def _add_by_cause(
    steps: Mapping[datetime, Mapping[Measure, Number]], causes: Mapping[datetime, Cause]
) -> dict[Measure, dict[Cause, Number]]:
    """Return the sums of what runs, by their known-ats, have done to each figure, by cause."""
    found: dict[Measure, dict[Cause, Number]] = defaultdict(dict)
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
