"""Quality: the verdict of every run of a pipeline, what its gates measure, and where reports and Data Docs are."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection
from typing import Any

from hindcast.contracts import Contract
from hindcast.errors import HindcastError, TableError
from hindcast.pages import catalog, drawing, run_reports
from hindcast.planning import journal
from hindcast.planning.journal import Run
from hindcast.quality import verdicts
from hindcast.quality.expectations import named
from hindcast.reports.page import OUTCOMES
from hindcast.settings import Settings

RUNS = 20
"""Of so many runs an overview shows the trend; so many are on a page of them."""

MEASURES = {"records": "records read", "late": "late", "corrected": "past answers changed", "held": "keys held back"}
"""What is drawn of each run."""


def overview(now: Settings, readable: Collection[str]) -> dict[str, Any]:
    """Return of all pipelines that may be read how each one's last run ended, and what the last ones brought.

    What cannot be read of one pipeline is told in its own line, its `problems`: all others are as they are.
    """
    _, broken = catalog.known()
    return {
        "pipelines": [_in_overview(now, name, about) for name, about in catalog.listed(readable).items()],
        "broken": {name: str(error) for name, error in sorted(broken.items()) if name in readable},
    }


def _in_overview(now: Settings, pipeline: str, about: str) -> dict[str, Any]:
    """Return the line of one pipeline; whatever is wrong with its journal or its reports is in the line."""
    runs: list[dict[str, Any]] = []
    problems: list[dict[str, str]] = []
    try:
        runs = [of_run(now, run) for run in journal.runs(now.warehouse, pipeline)[-RUNS:]]
    except HindcastError as error:
        problems.append(_problem(error))
    except Exception as error:  # noqa: BLE001  # whatever it is, it is this pipeline's alone
        _LOG.exception("the runs of %s cannot be shown", pipeline)
        found = f"the runs cannot be shown: {type(error).__name__}: {error}"
        where = journal.table(now.warehouse, pipeline).path
        mend = f"hindcast verify {pipeline} --quick says what is wrong with the journal"
        problems.append(_problem(TableError(found, where=where, mend=mend)))
    problems += [problem for run in runs for problem in run["problems"]]
    ended = [run for run in runs if run["ended"]]
    return {
        "pipeline": pipeline,
        "description": about,
        "last": ended[-1] if ended else None,
        "runs": runs,
        "trends": trends(ended),
        "problems": [problem for n, problem in enumerate(problems) if problem not in problems[:n]],
    }


def of_pipeline(now: Settings, contract: Contract, before: int | None = None) -> dict[str, Any]:
    """The runs of a pipeline, newest first (of those `before` a number), and the gates of the last one that ended."""
    past = journal.runs(now.warehouse, contract.pipeline)
    shown = [run for run in past if before is None or run.number < before]
    told = [of_run(now, run) for run in shown[-RUNS:]]
    ended = [run.number for run in past if run.reported]
    return {
        "pipeline": contract.pipeline,
        "description": contract.description.strip(),
        "runs": told[::-1],
        "trends": trends([run for run in told if run["ended"]]),
        "earlier": shown[-RUNS].number if len(shown) > RUNS else None,
        "total": len(past),
        "gatesOf": ended[-1] if ended else None,
        "gates": _gates(now.warehouse, contract, ended[-1]) if ended else [],
    }


def of_run(now: Settings, run: Run) -> dict[str, Any]:
    """Return what a run came to, and where its report is (paths below the reports' folder; None where there is none).

    `problems` has what cannot be read of it: a report that cannot be read counts as none.
    """
    folder = now.reports / str(run.plan["pipeline"])
    problems: list[dict[str, str]] = []

    def attempt(read: Callable[[], Any]) -> Any:
        try:
            return read()
        except HindcastError as error:
            problem = _problem(error)
            problems.extend([problem] if problem not in problems else [])
            return None

    summary = attempt(lambda: run_reports.summarize(now, run))
    return {
        "run": run.number,
        "runId": run.run_id,
        "state": run.state,
        "ended": run.reported,
        "found": run.stopped,
        "knownAt": run.known_at.isoformat(),
        "intervalEnd": run.plan.get("intervalEnd"),
        **(summary or run_reports.summarize_unread(run)),
        "report": attempt(lambda: run_reports.find_file(folder, f"run-{run.number}.html")),
        "dataDocs": attempt(lambda: run_reports.find_file(folder, f"run-{run.number}/index.html")),
        "problems": problems,
    }


def _problem(error: HindcastError) -> dict[str, str]:
    return {"found": error.found, "where": error.where, "mend": error.mend}


def trends(runs: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """What runs brought, oldest first, as small plots; of what none of them brought, none."""
    found = []
    for measure, words in MEASURES.items():
        values = [run[measure] for run in runs]
        if any(values):
            told = f"{words}, oldest run first: {', '.join(f'{n:,}' for n in values)}"
            found.append({"measure": measure, "words": words, "told": told} | drawing.spark(values))
    return found


def _gates(warehouse: str, contract: Contract, run: int) -> list[dict[str, Any]]:
    """The gates of a run, worst first, each with what it measured in the runs before."""
    found = []
    for table, gates in verdicts.of_run(warehouse, contract.pipeline, run).items():
        for gate in gates:
            trend = [value for value in gate["trend"] if value is not None]
            words = f"Observed, oldest run first: {', '.join(f'{value:g}' for value in trend)}"
            told = {"table": table, "named": named(gate["expectation"], gate["kwargs"]), "told": words}
            found.append(gate | told | {"spark": drawing.spark(trend)})
    return sorted(found, key=lambda gate: OUTCOMES.index(gate["outcome"]))


_LOG = logging.getLogger(__name__)
