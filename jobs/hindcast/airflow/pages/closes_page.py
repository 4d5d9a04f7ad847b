"""Closes: what was reported of a period, and how it has been restated since, as a waterfall for each figure.

From the figure as closed over what each cause has added to the figure as it is now (query/restatements.py).
templates/closes.html lays the page out.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass

from hindcast.airflow.pages import changes_page, drawing, known_ats
from hindcast.airflow.pages.time_machine import QuestionError
from hindcast.common.errors import QueryError, UnknownError
from hindcast.common.json_values import JsonObject, JsonValue
from hindcast.common.settings import Settings
from hindcast.contract import Contract
from hindcast.plan import journal, marks
from hindcast.plan.closes import PREFIX, Close
from hindcast.query import read, restatements
from hindcast.query.changes import Figure as Number
from hindcast.query.restatements import CAUSES, Cause, Figure, Restatement

CAUSE_WORDS: Mapping[Cause, str] = {
    "records": "later records",
    "definition": "new definition",
    "requeue": "decoded again",
    "release": "released",
    "erasure": "erased",
}
MAX_FIGURES = 40
"""The most figures that a page draws."""


@dataclass(frozen=True)
class ClosesRequest:
    """The query of the address; None for what it leaves out. `knownAt` as in the time machine."""

    close: str | None = None
    knownAt: str | None = None  # noqa: N815  # as the address has it


def build_page(settings: Settings, contract: Contract, request: ClosesRequest) -> JsonObject:
    """Return the fields of a pipeline's page; QuestionError for a question that cannot be answered."""
    place = settings.warehouse, contract.pipeline
    offered = known_ats.list_closes(*place)
    name = (request.close or "").removeprefix(PREFIX) or (offered[0].name if offered else None)
    fields: dict[str, JsonValue] = {
        "pipeline": contract.pipeline,
        "asked": asdict(request) | {"close": name},
        "knownAts": [*known_ats.list_known_ats(*place, offered)],
        "closes": [_describe_close(close) for close in offered],
    }
    if name is None:
        return fields
    field = "knownAt"
    try:
        past = journal.read_completed_runs(*place)
        known_at = read.moment_of(*place, request.knownAt) if request.knownAt else past[-1].known_at
        field = "close"
        fix = f"hindcast restate {contract.pipeline} {name} has no limit"
        with changes_page.limit_comparison(contract.pipeline, contract.pipeline, fix) as open_engine:
            found = restatements.restate_close(*place[:1], contract, name, known_at, open_engine)
    except (QueryError, UnknownError) as error:
        raise QuestionError(error, fields, field, "closes.html") from None
    return fields | _describe_restatement(settings, contract, found)


def _describe_close(close: Close) -> JsonObject:
    return {
        "name": close.name,
        "start": close.start.isoformat(),
        "end": close.end.isoformat(),
        "knownAt": close.known_at.isoformat(),
        "closedAt": close.at.isoformat(),
        "by": close.by,
    }


def _describe_restatement(settings: Settings, contract: Contract, found: Restatement) -> dict[str, JsonValue]:
    hidden = {it.table: marks.find_hidden_columns(settings, contract, it.table) for it in found.figures}
    figures = [it for it in found.figures if it.name not in hidden[it.table]]
    return {
        "close": _describe_close(found.close),
        "known": found.known_at.isoformat(),
        "tables": found.tables,
        "figures": [_describe_figure(figure) for figure in figures[:MAX_FIGURES]],
        "more": max(len(figures) - MAX_FIGURES, 0),
        "hidden": len(found.figures) - len(figures),
        "causes": {it: CAUSE_WORDS[it] for it in CAUSES if any(figure.differences.get(it) for figure in figures)},
    }


def _describe_figure(figure: Figure) -> JsonObject:
    differences = {cause: it for cause in CAUSES if (it := figure.differences.get(cause))}
    return {
        "table": figure.table,
        "name": figure.name,
        "closed": _format_number(figure.closed),
        "now": _format_number(figure.now),
        "differences": {cause: _format_difference(it) for cause, it in differences.items()},
        "waterfall": _draw_waterfall(figure, differences),
    }


def _draw_waterfall(figure: Figure, differences: Mapping[Cause, Number]) -> JsonObject | None:
    """Return the bars of a figure; None for one that has no level, or numbers that cannot be drawn."""
    if figure.closed is None or figure.now is None:
        return None
    steps = [(CAUSE_WORDS[cause], float(it)) for cause, it in differences.items()]
    drawn = drawing.draw_waterfall(("as closed", float(figure.closed)), steps, ("now", float(figure.now)))
    return None if drawn is None else asdict(drawn)


def _format_number(number: Number | None) -> str | None:
    return None if number is None else f"{number:,}"


def _format_difference(number: Number) -> str:
    return f"{number:+,}"
