"""What was restated of a closed period as a page: a waterfall for each figure (query/restatements.py).

`render_page` makes a file that loads nothing else (restatement.html). Airflow's page of closes shows the same.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict

from hindcast.common.json_values import JsonObject, JsonValue
from hindcast.common.settings import Settings
from hindcast.contract import Contract
from hindcast.plan import marks
from hindcast.plan.closes import Close
from hindcast.query.cut_values import cut_text
from hindcast.query.figures import Number
from hindcast.query.restatements import CAUSES, Cause, Figure, Restatement
from hindcast.report import page, waterfalls

CAUSE_WORDS: Mapping[Cause, str] = {
    "records": "later records",
    "definition": "new definition",
    "requeue": "decoded again",
    "release": "released",
    "erasure": "erased",
    "unknown": "unknown cause",
}
MAX_FIGURES = 40
"""The most figures that a page draws."""


def render_page(settings: Settings, contract: Contract, found: Restatement) -> str:
    """Return a restatement as an HTML page."""
    style = "\n".join(map(page.read_source, ("page.css", "waterfalls.css")))
    fields = describe_restatement(settings, contract, found)
    sources = f"default-src 'none'; img-src data:; style-src {page.policy_hash(style)}"
    fields |= {"pipeline": contract.pipeline, "policy": f"{sources}; base-uri 'none'; form-action 'none'"}
    text = page.load_template("restatement.html").render(style=style, **fields)
    return text.encode("utf-8", "replace").decode("utf-8")


def describe_close(close: Close) -> JsonObject:
    """Return what a page shows of a close."""
    return {
        "name": close.name,
        "start": close.start.isoformat(),
        "end": close.end.isoformat(),
        "knownAt": close.known_at.isoformat(),
        "closedAt": close.at.isoformat(),
        "by": close.by,
    }


def describe_restatement(settings: Settings, contract: Contract, found: Restatement) -> dict[str, JsonValue]:
    """Return what a page shows of a restatement; sums of sensitive columns are left out, and counted."""
    hidden = {it.table: marks.find_hidden_columns(settings, contract, it.table) for it in found.figures}
    figures = [it for it in found.figures if hidden[it.table].isdisjoint((it.column, found.group_by))]
    return {
        "close": describe_close(found.close),
        "known": found.known_at.isoformat(),
        "tables": found.tables,
        "figures": [_describe_figure(figure, found.group_by) for figure in figures[:MAX_FIGURES]],
        "more": max(len(figures) - MAX_FIGURES, 0),
        "hidden": len(found.figures) - len(figures),
        "causes": {it: CAUSE_WORDS[it] for it in CAUSES if any(figure.differences.get(it) for figure in figures)},
    }


def _describe_figure(figure: Figure, group_by: str | None) -> JsonObject:
    differences = {cause: it for cause in CAUSES if (it := figure.differences.get(cause))}
    group = "null" if figure.group is None else cut_text(figure.group)
    return {
        "table": figure.table,
        "name": figure.name if group_by is None else f"{figure.name} of {group}",
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
    drawn = waterfalls.draw_waterfall(("as closed", float(figure.closed)), steps, ("now", float(figure.now)))
    return None if drawn is None else asdict(drawn)


def _format_number(number: Number | None) -> str | None:
    return None if number is None else f"{number:,}"


def _format_difference(number: Number) -> str:
    return f"{number:+,}"
