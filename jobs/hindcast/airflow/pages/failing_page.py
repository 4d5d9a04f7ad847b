"""Failing rows: those that gates found last, of all pipelines; templates/failing_rows.html lays the page out."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator

from hindcast.airflow.pages import catalog, marks, quality, run_reports, warned_rows
from hindcast.common.errors import HindcastError
from hindcast.common.json_values import JsonObject, JsonValue
from hindcast.common.settings import Settings
from hindcast.contract import Contract
from hindcast.plan import journal

SECONDS = 4.0
"""How long finding the rows may take; pipelines that come after that have links to their own pages."""


def build_page(settings: Settings, readable: Collection[str]) -> JsonObject:
    """Return for each `readable` pipeline the gates with failing rows: of the last run in which any failed, and of the
    last one that published some with a warning. `unread`: the pipelines for which there was no time.
    """
    until, pipelines, unread = time.monotonic() + SECONDS, list[JsonValue](), list[JsonValue]()
    for name in catalog.list_pipelines(settings, readable):
        if time.monotonic() > until:
            unread.append(name)
            continue
        try:
            contract = marks.load_marked_contract(settings, name, readable)
            runs = [*_list_runs(settings, contract)]
        except HindcastError as error:
            pipelines.append({"pipeline": name, "runs": [], "problems": [quality.format_problem(error)]})
            continue
        if runs:
            pipelines.append({"pipeline": name, "runs": runs, "problems": []})
    return {"pipelines": pipelines, "unread": unread}


def _list_runs(settings: Settings, contract: Contract) -> Iterator[JsonObject]:
    """Yield runs with gates that have failing rows to show, each `run` with its `gates`, newest first."""
    past = journal.read_runs(settings.warehouse, contract.pipeline)
    numbers = [
        run.number
        for run in reversed([run for run in past if run.has_report][-run_reports.MAX_SOUGHT :])
        if {*run_reports.summarize_run(settings, run).gates} & {"failed", "error"}
    ][:1]
    warned = {it["run"]: it["table"] for it in warned_rows.list_warned_rows(settings, contract, past)}
    numbers += [run.number for run in past if run.number in warned and run.number not in numbers]
    for number in numbers:
        gates, problems = quality.read_gates(settings, contract, number)
        is_last = number == numbers[0]
        shown: list[JsonValue] = [gate for gate in gates if gate["rows"] and (is_last or gate["on_failure"] == "warn")]
        if shown or problems:
            yield {"run": number, "gates": shown, "problems": [*problems]}
