"""The time machine: the plane of one key, a crosshair on it, and the answer there.

Valid time goes across, system time up. The crosshair is at (as of, known at); a second known-at gives a diff. Moments
and keys come as text from the address, which holds all of the page's state. `templates/machine.html` lays the page out.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from functools import cached_property
from typing import Literal

import pyarrow.compute as pc

from hindcast.airflow.pages import drawing, known_ats, marks, table_view
from hindcast.airflow.pages.drawing import Axis
from hindcast.bitemporal.predicates import Question
from hindcast.common.column_values import Row
from hindcast.common.errors import HindcastError, QueryError, UnknownError
from hindcast.common.json_values import JsonObject, JsonValue
from hindcast.common.settings import Settings
from hindcast.contract import Contract, list_shapes
from hindcast.contract.shapes import PERIODS
from hindcast.plan import closes, horizon, journal
from hindcast.plan.closes import Close
from hindcast.plan.runs import Run
from hindcast.quality.held_keys import HeldKeys
from hindcast.query import key_history, read
from hindcast.query.explain import explain_row
from hindcast.query.inputs_as_of import find_records, format_row_key
from hindcast.query.key_history import KeyHistory, RowSample, SlowSuggestionError, find_cell, read_moment
from hindcast.query.show import format_moment, plain_value
from hindcast.store import tables
from hindcast.store.tables import Table

MAX_RECTANGLES = 300
"""How many rectangles of a key are drawn: those nearest to the crosshair."""

MAX_ANSWERS = 10
MAX_CHANGES = 100


@dataclass(frozen=True)
class MachineRequest:
    """The query of the address, as text; None for what it leaves out."""

    table: str | None = None
    key: str | None = None
    asOf: str | None = None  # noqa: N815  # as the address has it
    knownAt: str | None = None  # noqa: N815
    comparedWith: str | None = None  # noqa: N815
    scale: Literal["even", "time"] | None = None


class QuestionError(QueryError):
    """A question that cannot be answered; `fields` are those of the page without an answer, `field` the one to change,
    `is_unknown` whether something that it names does not exist, `template` that of the page.
    """

    def __init__(self, error: HindcastError, fields: JsonObject, field: str, template: str = "machine.html") -> None:
        super().__init__(error.found, where=error.where, fix=error.fix)
        self.fields, self.field, self.template = fields, field, template
        self.is_unknown = isinstance(error, UnknownError)


def build_page(
    settings: Settings, contract: Contract, readable: Collection[str], request: MachineRequest
) -> JsonObject:
    """Return the fields of a pipeline's page; QuestionError for a question that cannot be answered."""
    pipeline, warehouse = contract.pipeline, settings.warehouse
    names = [*contract.topics, *contract.views]
    name = request.table or names[0]
    table = read.locate_table(warehouse, contract, name)
    marked = marks.refuse_hidden_key(settings, contract, name)
    offered = known_ats.list_closes(warehouse, pipeline)
    fields: dict[str, JsonValue] = {
        "pipeline": pipeline,
        "tables": {n: shape.kind for n, shape in list_shapes(contract).items() if n in names},
        "readings": {n: view.semantics for n, view in contract.views.items()},
        "table": name,
        "keyColumns": list(table.key),
        "asked": asdict(request) | {"table": name},
        "knownAts": [*known_ats.list_known_ats(warehouse, pipeline, offered)],
    }
    if request.key is None:
        return {**fields, **_build_table(settings, contract, table, request, fields, marked)}
    field = "table"
    try:
        read.refuse_forgotten(warehouse, contract, name)
        past = journal.read_runs(warehouse, pipeline)
        field = "knownAt"
        known = _parse_known_at(warehouse, pipeline, request.knownAt) or read.read_last_known_at(warehouse, pipeline)
        field = "comparedWith"
        other = _parse_known_at(warehouse, pipeline, request.comparedWith)
        field = "key"
        holds = HeldKeys(warehouse, contract, name, known)
        history = key_history.read_history(table, read.parse_key(table, request.key), holds)
        field = "asOf"
        trimmed = horizon.read_horizon(table)
        given = read.moment_of(warehouse, pipeline, request.asOf) if request.asOf else None
        cursors = [known, other] if other else [known]
        for moment in cursors:
            horizon.refuse_question(table, trimmed, Question(as_of=given), moment)
    except (QueryError, UnknownError) as error:
        raise QuestionError(error, fields, field) from None
    latest = _latest_start(history)
    as_of = given or (max(latest, trimmed.moment) if trimmed else latest)
    near = history.find_nearest(as_of, MAX_RECTANGLES)
    window = contract.views[name].window if name in contract.views else None
    answer = history.find_answer(as_of, known, MAX_ANSWERS, window)
    formatter = _RowFormatter(warehouse, contract, name, past, marked)
    first = answer.rows[0] if answer.rows else None
    return fields | {
        "suggested": [],
        "key": request.key,
        "kind": table.kind,
        "horizon": trimmed.moment.isoformat() if trimmed else None,
        "asOf": as_of.isoformat(),
        "knownAt": known.isoformat(),
        "knownBy": formatter.find_run(known),
        "closedAs": [close.name for close in offered if close.known_at == known],
        "comparedWith": other.isoformat() if other else None,
        "plane": _build_plane(table.kind, near, as_of, cursors, offered, formatter, even=request.scale != "time"),
        "answer": formatter.format_sample(answer),
        "diff": _build_diff(history, known, other, formatter) if other else None,
        "why": explain_row(settings, contract, name, first, known, readable, holds) if first else None,
    }


def _build_table(
    settings: Settings,
    contract: Contract,
    table: Table,
    request: MachineRequest,
    fields: JsonObject,
    marked: frozenset[str],
) -> JsonObject:
    """Return the fields of the page without a key: the table as known at a moment, or keys if that takes too long."""
    warehouse, pipeline = settings.warehouse, contract.pipeline
    past = journal.read_runs(warehouse, pipeline)
    if tables.open_table(table) is None or not any(run.state == "completed" for run in past):
        return {"suggested": []}
    field = "knownAt"
    try:
        known = _parse_known_at(warehouse, pipeline, request.knownAt) or read.read_last_known_at(warehouse, pipeline)
        field = "asOf"
        given = read.moment_of(warehouse, pipeline, request.asOf) if request.asOf else None
        sample = table_view.read_rows(warehouse, contract, table.name, Question(as_of=given, known_at=known))
    except (QueryError, UnknownError) as error:
        raise QuestionError(error, fields, field) from None
    if sample is None:
        return {"suggested": _suggest_any(table)}
    trimmed = horizon.read_horizon(table)
    kept = closes.list_kept(warehouse, pipeline)
    moments = known_ats.list_moments(past, kept, trimmed.moment if trimmed else None)
    formatter = _RowFormatter(warehouse, contract, table.name, past, marked)
    place, current = known_ats.find_moment(moments, known)
    rows = [{"key": format_row_key(table, row), **formatter.format_row(row)} for row in sample.rows]
    return {
        "suggested": [],
        "kind": table.kind,
        "knownAt": known.isoformat(),
        "knownBy": formatter.find_run(known),
        "moments": [[it.text, it.label] for it in moments],
        "place": place,
        "current": current,
        "sample": {"rows": rows, "total": sample.total},
    }


def suggest_keys(settings: Settings, contract: Contract, name: str, beginning: str) -> JsonObject:
    """Return a few keys of a table that start with `beginning`."""
    table = read.locate_table(settings.warehouse, contract, name)
    marks.refuse_hidden_key(settings, contract, name)
    return {"keys": key_history.suggest_keys(table, beginning)}


def _suggest_any(table: Table) -> list[JsonValue]:
    """Return a few keys of a table; none if they are not found in time: the page lets the user write one."""
    try:
        return [*key_history.suggest_keys(table, "")]
    except SlowSuggestionError:
        return []


@dataclass(frozen=True)
class _RowFormatter:
    """Formats rows of one table: values, records, and the `past` runs that opened and closed them."""

    warehouse: str
    contract: Contract
    table: str
    past: Sequence[Run]
    marked: frozenset[str]

    @cached_property
    def runs(self) -> Mapping[datetime, int]:
        """The numbers of runs, by their known-ats."""
        return {run.known_at: run.number for run in self.past}

    @cached_property
    def labels(self) -> Mapping[datetime, str]:
        """What the axis of knowledge calls runs, by their known-ats; the date of a rehearsed run says more."""
        return {run.known_at: f"run {run.number}" for run in self.past if run.plan.rehearsed_interval is None}

    def find_run(self, moment: datetime | None) -> int | None:
        """Return the number of the run whose known-at this is, if any."""
        return self.runs.get(moment) if moment else None

    def format_sample(self, sample: RowSample) -> JsonObject:
        """Return rows, and how many there are in all, as JSON."""
        return {"rows": [self.format_row(row) for row in sample.rows], "total": sample.total}

    def format_row(self, row: Row) -> dict[str, JsonValue]:
        """Return a row as JSON: `values`, its periods, `records` (topic, partition, offset), `openedBy`, `closedBy`."""
        lineage = {name: value for name, value in row.items() if name.startswith("_")}
        periods = [name for name in (*_PERIODS, "systemFrom", "systemTo") if name in row]
        values = {name: v for name, v in row.items() if name not in lineage and name not in periods}
        return {
            "values": key_history.mask_row(values, self.marked),
            **{name: plain_value(row[name]) for name in periods},
            "records": find_records(self.warehouse, self.contract, self.table, lineage),
            "openedBy": self.find_run(find_cell(row, "systemFrom", datetime)),
            "closedBy": self.find_run(find_cell(row, "systemTo", datetime)),
        }


_PERIODS = tuple(dict.fromkeys(name for names in PERIODS.values() for name in names))


def _parse_known_at(warehouse: str, pipeline: str, text: str | None) -> datetime | None:
    """Return a known-at of the address; QueryError if no question can be answered as known then."""
    if not text:
        return None
    moment = read.moment_of(warehouse, pipeline, text)
    read.refuse_unanswerable(warehouse, pipeline, moment)
    return moment


def _latest_start(history: KeyHistory) -> datetime:
    """Return the last moment at which a row of the key begins to be true."""
    latest: datetime = pc.max(history.rows.column(history.start_column)).as_py()
    return latest


def _build_plane(
    kind: str,
    near: RowSample,
    as_of: datetime,
    cursors: Sequence[datetime],
    offered: Sequence[Close],
    formatter: _RowFormatter,
    *,
    even: bool,
) -> JsonObject:
    """Return the rows near the crosshair as rectangles, closes as lines, and the axes.

    Positions are 0 to 1 from the lower left.
    """
    start, end = PERIODS[kind][0], PERIODS[kind][-1]
    across = drawing.build_axis(_list_moments(near.rows, start, end), even=even)
    up = drawing.build_axis(_list_moments(near.rows, "systemFrom", "systemTo"), even=even)
    rectangles: list[JsonValue] = []
    for row in sorted(near.rows, key=lambda row: (read_moment(row, start), read_moment(row, "systemFrom"))):
        left, right = (across.place(find_cell(row, name, datetime)) for name in (start, end))
        bottom, top = (up.place(find_cell(row, name, datetime)) for name in ("systemFrom", "systemTo"))
        rectangle = {"x": left, "y": bottom, "width": right - left, "height": top - bottom}
        period = {"start": plain_value(row[start]), "end": plain_value(row[end])}
        rectangles.append({**rectangle, **period, **formatter.format_row(row)})
    return {
        "rectangles": rectangles,
        "total": near.total,
        "across": _format_axis(across, {}),
        "up": _format_axis(up, formatter.labels),
        "asOf": across.place(as_of),
        "knownAt": [up.place(moment) for moment in cursors],
        "closes": [_place_close(close, across, up) for close in offered],
    }


def _place_close(close: Close, across: Axis, up: Axis) -> JsonObject:
    """Return a close as a line: over its period, at the height of its known-at."""
    left, right = across.place(close.start), across.place(close.end)
    period = {"start": close.start.isoformat(), "end": close.end.isoformat()}
    line = {"x": left, "width": right - left, "y": up.place(close.known_at)}
    return {"name": close.name, **period, "knownAt": close.known_at.isoformat(), **line}


def _list_moments(rows: Sequence[Row], start: str, end: str) -> list[datetime]:
    moments = (find_cell(row, name, datetime) for row in rows for name in (start, end))
    return [moment for moment in moments if moment is not None]


def _format_axis(axis: Axis, labels: Mapping[datetime, str]) -> JsonObject:
    """Return an axis as JSON: labelled ticks, and the knots by which a position becomes a moment again."""
    ticks: list[JsonValue] = [
        {"at": place, "label": labels.get(moment) or format_moment(moment)} for place, moment in axis.ticks
    ]
    return {"ticks": ticks, "knots": [[place, moment.isoformat()] for place, moment in axis.knots]}


def _build_diff(history: KeyHistory, known: datetime, other: datetime, formatter: _RowFormatter) -> JsonObject:
    """Return the rows current at the later known-at and not at the earlier (`gained`), and the reverse (`lost`)."""
    earlier, later = sorted((known, other))
    gained, lost = history.find_changes(later, earlier, MAX_CHANGES), history.find_changes(earlier, later, MAX_CHANGES)
    return {
        "earlier": earlier.isoformat(),
        "later": later.isoformat(),
        "gained": formatter.format_sample(gained),
        "lost": formatter.format_sample(lost),
    }
