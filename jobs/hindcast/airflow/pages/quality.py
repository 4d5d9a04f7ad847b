"""Quality: the verdict of each run of a pipeline, the measures of its gates, and links to reports and Data Docs."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection
from typing import Any

from hindcast.airflow.pages import catalog, drawing, run_reports
from hindcast.common.errors import HindcastError, TableError
from hindcast.common.settings import Settings
from hindcast.contract import Contract
from hindcast.plan import journal
from hindcast.plan.journal import Run
from hindcast.quality import gate_results
from hindcast.quality.expectations import format_gate
from hindcast.report.page import OUTCOMES

MAX_RUNS = 20
"""How many runs a trend of the overview, and a page of runs, show."""

MEASURES = {"records": "records read", "late": "late", "corrected": "corrections", "held": "keys held back"}
"""The counts of each run that are drawn, with their names on the pages."""


def build_overview(settings: Settings, readable: Collection[str]) -> dict[str, Any]:
    """Return an entry for each `readable` pipeline: how its last run ended, and the trend of its last runs.

    What cannot be read of one pipeline is in the `problems` of its own entry and does not affect the others.
    """
    _, broken = catalog.load_contracts()
    return {
        "pipelines": [
            _build_overview_line(settings, name, about) for name, about in catalog.list_pipelines(readable).items()
        ],
        "broken": {name: str(error) for name, error in sorted(broken.items()) if name in readable},
    }


def _build_overview_line(settings: Settings, pipeline: str, about: str) -> dict[str, Any]:
    """Return the entry of one pipeline, with all errors of its journal and its reports."""
    runs: list[dict[str, Any]] = []
    problems: list[dict[str, str]] = []
    try:
        runs = [build_run_entry(settings, run) for run in journal.read_runs(settings.warehouse, pipeline)[-MAX_RUNS:]]
    except HindcastError as error:
        problems.append(_format_problem(error))
    except Exception as error:  # noqa: BLE001  # any error must stay within this pipeline's entry
        _LOG.exception("the runs of %s cannot be shown", pipeline)
        found = f"the runs cannot be shown: {type(error).__name__}: {error}"
        where = journal.runs_table(settings.warehouse, pipeline).path
        fix = f"hindcast verify {pipeline} --quick says what is wrong with the journal"
        problems.append(_format_problem(TableError(found, where=where, fix=fix)))
    problems += [problem for run in runs for problem in run["problems"]]
    ended = [run for run in runs if run["ended"]]
    return {
        "pipeline": pipeline,
        "description": about,
        "last": ended[-1] if ended else None,
        "runs": runs,
        "trends": build_trends(ended),
        "problems": [problem for n, problem in enumerate(problems) if problem not in problems[:n]],
    }


def build_pipeline_page(settings: Settings, contract: Contract, before: int | None = None) -> dict[str, Any]:
    """Return the runs of a pipeline, newest first (those `before` a number), and the gates of the last that ended."""
    past = journal.read_runs(settings.warehouse, contract.pipeline)
    shown = [run for run in past if before is None or run.number < before]
    entries = [build_run_entry(settings, run) for run in shown[-MAX_RUNS:]]
    ended = [run.number for run in past if run.has_report]
    return {
        "pipeline": contract.pipeline,
        "description": contract.description.strip(),
        "runs": entries[::-1],
        "trends": build_trends([run for run in entries if run["ended"]]),
        "earlier": shown[-MAX_RUNS].number if len(shown) > MAX_RUNS else None,
        "total": len(past),
        "gatesOf": ended[-1] if ended else None,
        "gates": _read_gates(settings.warehouse, contract, ended[-1]) if ended else [],
    }


def build_run_entry(settings: Settings, run: Run) -> dict[str, Any]:
    """Return the outcome of a run, and where its report is (a path below the reports' folder; None without one).

    `problems` has the errors of reading it: a report that cannot be read counts as none.
    """
    folder = settings.reports / run.plan.pipeline
    problems: list[dict[str, str]] = []

    def attempt(read: Callable[[], Any]) -> Any:
        try:
            return read()
        except HindcastError as error:
            problem = _format_problem(error)
            problems.extend([problem] if problem not in problems else [])
            return None

    summary = attempt(lambda: run_reports.summarize_run(settings, run))
    return {
        "run": run.number,
        "runId": run.run_id,
        "state": run.state,
        "ended": run.has_report,
        "found": run.stopped,
        "knownAt": run.known_at.isoformat(),
        "intervalEnd": run.plan.interval_end and run.plan.interval_end.isoformat(),
        **(summary or run_reports.summarize_unread_run(run)),
        "report": attempt(lambda: run_reports.find_file(folder, f"run-{run.number}.html")),
        "dataDocs": attempt(lambda: run_reports.find_file(folder, f"run-{run.number}/index.html")),
        "problems": problems,
    }


def _format_problem(error: HindcastError) -> dict[str, str]:
    return {"found": error.found, "where": error.where, "mend": error.fix}


def build_trends(runs: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the counts of runs, oldest first, as sparklines; counts that are 0 in all of them are left out."""
    trends = []
    for measure, words in MEASURES.items():
        values = [run[measure] for run in runs]
        if any(values):
            text = f"{words}, oldest run first: {', '.join(f'{n:,}' for n in values)}"
            trends.append({"measure": measure, "words": words, "told": text} | drawing.sparkline(values))
    return trends


def _read_gates(warehouse: str, contract: Contract, run: int) -> list[dict[str, Any]]:
    """Return the gates of a run, worst first, each with the trend of what it observed."""
    entries = []
    for table, gates in gate_results.read_results(warehouse, contract.pipeline, run).items():
        for gate in gates:
            trend = [value for value in gate.trend if value is not None]
            text = f"Observed, oldest run first: {', '.join(f'{value:g}' for value in trend)}"
            named = format_gate(gate.expectation, gate.kwargs)
            shown = {"table": table, "named": named, "told": text, "spark": drawing.sparkline(trend)}
            entries.append({**gate.as_json(), **shown})
    return sorted(entries, key=lambda gate: OUTCOMES.index(gate["outcome"]))


_LOG = logging.getLogger(__name__)
