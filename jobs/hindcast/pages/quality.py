"""Quality: the verdict of every run of a pipeline, what its gates measure, and where reports and Data Docs are."""

from __future__ import annotations

import json
from collections.abc import Collection
from pathlib import Path
from typing import Any

from hindcast.contracts import Contract
from hindcast.pages import catalog, drawing
from hindcast.planning import journal
from hindcast.planning.journal import Run
from hindcast.quality import verdicts
from hindcast.quality.expectations import named
from hindcast.reports.page import OUTCOMES, verdict
from hindcast.settings import Settings

RUNS = 20
"""Of so many runs an overview shows the trend; so many are on a page of them."""

MEASURES = {"records": "records read", "late": "late", "corrected": "past answers changed", "held": "keys held back"}
"""What is drawn of each run."""


def overview(now: Settings, readable: Collection[str]) -> dict[str, Any]:
    """All pipelines that may be read: how each one's last run ended, and what the last ones brought."""
    _, broken = catalog.known()
    pipelines = []
    for name, about in catalog.listed(readable).items():
        told = [of_run(now, run) for run in journal.runs(now.warehouse, name)[-RUNS:]]
        ended = [run for run in told if run["ended"]]
        last = ended[-1] if ended else None
        pipelines.append({"pipeline": name, "description": about, "last": last, "runs": told, "trends": trends(ended)})
    return {
        "pipelines": pipelines,
        "broken": {name: str(error) for name, error in sorted(broken.items()) if name in readable},
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
    """What a run came to, and where its report is (paths below the reports' folder; None where there is none)."""
    pipeline, report = str(run.plan["pipeline"]), _report(now, run)
    place = now.reports / pipeline
    ended = run.reported
    judged = verdict(report) if ended else None
    tables, topics = (list((report.get(part) or {}).values()) for part in ("tables", "topics"))
    gates = [gate.get("outcome", "error") for table in tables for gate in table.get("gates") or []]
    return {
        "run": run.number,
        "runId": run.run_id,
        "state": run.state,
        "ended": ended,
        "kind": judged.kind if judged else run.state,
        "sentence": judged.sentence if judged else _WORDS.get(run.state, run.state),
        "found": run.stopped,
        "knownAt": run.known_at.isoformat(),
        "intervalEnd": run.plan.get("intervalEnd"),
        "records": sum(topic.get("offsets") or 0 for topic in topics),
        "late": sum(topic.get("late") or 0 for topic in topics),
        "corrected": sum(table.get("corrected") or 0 for table in tables),
        "held": sum((table.get("held") or {}).get("keys") or 0 for table in tables),
        "gates": {outcome: gates.count(outcome) for outcome in OUTCOMES if outcome in gates},
        "report": _there(place, f"run-{run.number}.html"),
        "dataDocs": _there(place, f"run-{run.number}/index.html"),
    }


def trends(runs: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """What runs brought, oldest first, as small plots; of what none of them brought, none."""
    found = []
    for measure, words in MEASURES.items():
        values = [run[measure] for run in runs]
        if any(values):
            told = f"{words}, oldest run first: {', '.join(f'{n:,}' for n in values)}"
            found.append({"measure": measure, "words": words, "told": told} | drawing.spark(values))
    return found


_WORDS = {"planned": "It has not ended.", "abandoned": "It was given up."}


def _report(now: Settings, run: Run) -> dict[str, Any]:
    """A run's report; of one that was stopped as it was written down, or that it was stopped."""
    if run.state == "completed":
        return run.detail
    state = run.state if run.stopped is None else "stopped"
    name = {"pipeline": run.plan["pipeline"], "run": run.number, "state": state}
    written = now.reports / str(run.plan["pipeline"]) / f"run-{run.number}.json"
    if run.stopped is None or not written.is_file():
        return name
    told: dict[str, Any] = json.loads(written.read_text(encoding="utf-8"))
    return told if told.get("runId") == run.run_id else name


def _there(folder: Path, name: str) -> str | None:
    return name if (folder / name).is_file() else None


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
