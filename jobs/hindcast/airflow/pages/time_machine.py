"""The time machine: the plane of one key, a crosshair on it, and the answer there.

Valid time goes across, system time up. The crosshair is at (as of, known at); a second known-at gives a diff. Moments
and keys come as text from the address, which holds all of the page's state. `templates/machine.html` lays the page out.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Literal

import pyarrow.compute as pc

from hindcast.airflow.pages import (
    failing_of_key,
    freshness,
    input_planes,
    known_ats,
    marks,
    offered_keys,
    opening_causes,
    plane,
    table_view,
)
from hindcast.airflow.pages.change_lines import LineFormatter
from hindcast.airflow.pages.plane import Crosshair, PlaneSource
from hindcast.airflow.pages.row_formatter import RowFormatter
from hindcast.airflow.pages.value_turns import describe_turns
from hindcast.bitemporal.predicates import Question
from hindcast.common.column_values import Row
from hindcast.common.errors import HindcastError, QueryError, UnknownError
from hindcast.common.json_values import JsonObject, JsonValue
from hindcast.common.python_values import list_rows
from hindcast.common.settings import Settings
from hindcast.contract import Contract, Window, list_shapes
from hindcast.contract.shapes import PERIODS
from hindcast.plan import closes, horizon, journal
from hindcast.plan.runs import Run
from hindcast.quality.held_keys import HeldKeys
from hindcast.query import key_changes, key_history, read
from hindcast.query.changes import ChangeQuestion
from hindcast.query.explain import explain_row
from hindcast.query.inputs_as_of import format_row_key
from hindcast.query.key_history import KeyHistory, RowSample, SlowSuggestionError, read_moment
from hindcast.query.show import format_key_label
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
    past: list[Run] = []
    try:
        read.refuse_forgotten(warehouse, contract, name)
        past = journal.read_runs(warehouse, pipeline)
        field = "knownAt"
        last = read.read_last_known_at(warehouse, pipeline)
        known = _parse_known_at(warehouse, pipeline, request.knownAt) or last
        field = "comparedWith"
        other = _parse_known_at(warehouse, pipeline, request.comparedWith)
        field = "key"
        holds = HeldKeys(warehouse, contract, name, known)
        history = key_history.read_history(table, read.parse_key(table, request.key), holds, last)
        field = "asOf"
        trimmed = horizon.read_horizon(table)
        given = read.moment_of(warehouse, pipeline, request.asOf) if request.asOf else None
        for moment in (known, other or known):
            horizon.refuse_question(table, trimmed, Question(as_of=given), moment)
    except (QueryError, UnknownError) as error:
        failing = _find_failing_changes(settings, contract, table, request.key)
        others = (
            offered_keys.list_other_keys(table, past, request.key) if field == "key" and not failing["failing"] else {}
        )
        raise QuestionError(error, {**fields, **others, **failing}, field) from None
    latest = _latest_start(history)
    as_of = given or (max(latest, trimmed.moment) if trimmed else latest)
    crosshair = Crosshair(as_of, known, other)
    near = history.find_nearest(as_of, MAX_RECTANGLES)
    window = contract.views[name].window if name in contract.views else None
    answer = history.find_answer(as_of, known, MAX_ANSWERS, window)
    formatter = RowFormatter(warehouse, contract, name, past, marked)
    shown = [formatter.format_row(row) for row in near.rows]
    source = PlaneSource(table.kind, near.rows, shown, near.total, formatter.named_runs, table.key, marked)
    first = answer.rows[0] if answer.rows else None
    why = explain_row(settings, contract, name, first, known, readable, holds) if first else None
    answered = [formatter.format_row(row) for row in answer.rows]
    turns: list[JsonValue] = []
    if first is not None and len(answered) == 1:
        run = formatter.find_run(read_moment(first, "systemFrom"))
        turns += describe_turns(answered[0], shown, table.key, as_of, known)
        turns += opening_causes.describe_opening(settings, contract, history, first, run, as_of, marked, readable)
        turns += opening_causes.describe_approval(next((it for it in past if it.number == run), None), name)
    return fields | {
        "suggested": [],
        "key": request.key,
        **_find_failing_changes(settings, contract, table, request.key),
        "kind": table.kind,
        "horizon": trimmed.moment.isoformat() if trimmed else None,
        "asOf": as_of.isoformat(),
        "knownAt": known.isoformat(),
        "knownBy": formatter.find_run(known),
        "closedAs": [close.name for close in offered if close.known_at == known],
        "comparedWith": other.isoformat() if other else None,
        "plane": plane.build_plane(source, crosshair, offered, even=request.scale != "time"),
        "answer": {"rows": _number_rows(answer.rows, answered, near), "total": answer.total},
        "sides": _build_sides(history, crosshair, formatter, window) if other else None,
        "diff": _build_diff(history, crosshair, LineFormatter(warehouse, contract, table, marked)) if other else None,
        "why": why,
        "turns": turns,
        "inputPlanes": input_planes.build_input_planes(settings, contract, name, why, as_of, past) if why else [],
    }


def _find_failing_changes(settings: Settings, contract: Contract, table: Table, text: str) -> JsonObject:
    """Return the label of a key, and the changes of it that gates keep from being published; none if it is no key."""
    try:
        key = read.parse_key(table, text)
    except QueryError:
        return {"failing": []}
    found = failing_of_key.find_failing_of_key(settings, contract, table.name, key)
    return {"keyLabel": format_key_label(key), "failing": [*found]}


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
    keys = offered_keys.list_keys(table, past)
    fresh = freshness.find_freshness(
        settings, contract, past, freshness.list_table_changes(past, table.name), table.name
    )
    if sample is None:
        return {"suggested": [] if keys else _suggest_any(table), "keys": keys, "fresh": fresh}
    trimmed = horizon.read_horizon(table)
    kept = closes.list_kept(warehouse, pipeline)
    moments = known_ats.list_moments(past, kept, trimmed.moment if trimmed else None)
    formatter = RowFormatter(warehouse, contract, table.name, past, marked)
    place, current = known_ats.find_moment(moments, known)
    rows = [
        {
            "key": format_row_key(table, row),
            "label": format_key_label([row[name] for name in table.key]),
            **formatter.format_row(row),
        }
        for row in sample.rows
    ]
    return {
        "suggested": [],
        "keys": keys,
        "fresh": fresh,
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
    return {"keys": [*_find_known_keys(table, beginning)]}


def _find_known_keys(table: Table, beginning: str) -> list[str]:
    """Return a few keys that start with `beginning`, of those known at the last completed run."""
    completed = journal.read_completed_runs(table.warehouse, table.pipeline)
    until = max((run.known_at for run in completed), default=None)
    return [] if until is None else key_history.suggest_keys(table, beginning, until)


def _suggest_any(table: Table) -> list[JsonValue]:
    """Return a few keys of a table; none if they are not found in time: the page lets the user write one."""
    try:
        return [*_find_known_keys(table, "")]
    except SlowSuggestionError:
        return []


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


def _number_rows(rows: Sequence[Row], shown: Sequence[JsonObject], near: RowSample) -> list[JsonObject]:
    """Return rows with the `number` of their rectangle, None for those that are not drawn."""
    numbers = {repr(row): number for number, row in enumerate(near.rows)}
    return [{**fields, "number": numbers.get(repr(row))} for row, fields in zip(rows, shown, strict=True)]


def _build_sides(
    history: KeyHistory, crosshair: Crosshair, formatter: RowFormatter, window: Window | None
) -> list[JsonValue]:
    """Return the answer at each of the two known-ats, the earlier one first: its last row, and how many there are."""
    sides: list[JsonValue] = []
    for known in sorted(crosshair.known_ats):
        answer = history.find_answer(crosshair.as_of, known, 1, window)
        row = formatter.format_row(answer.rows[0]) if answer.rows else None
        moment: JsonObject = {"knownAt": known.isoformat(), "knownBy": formatter.find_run(known)}
        sides.append({**moment, "row": row, "total": answer.total})
    return sides


def _build_diff(history: KeyHistory, crosshair: Crosshair, formatter: LineFormatter) -> JsonObject:
    """Return how the answers differ between the two known-ats, as lines of changes."""
    earlier, later = sorted(crosshair.known_ats)
    question = ChangeQuestion(earlier, later, order="time", most=MAX_CHANGES)
    found = key_changes.find_key_changes(history, question)
    return {
        "earlier": question.earlier.isoformat(),
        "later": question.later.isoformat(),
        "periods": [*PERIODS[history.table.kind]],
        "lines": [formatter.format_line(line) for line in list_rows(found.lines)],
        "total": found.counts.lines,
    }
