"""Quality: the verdict of each run of a pipeline, the measures of its gates, and links to reports and Data Docs.

For templates/quality.html, the overview of all pipelines, and pipeline_quality.html.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import TypeAlias, TypeVar

from hindcast.airflow.pages import (
    catalog,
    drawing,
    failing_changes,
    fresh_tables,
    freshness,
    quality_pictures,
    reading_limits,
    run_reports,
    waiting_keys,
    warned_rows,
)
from hindcast.airflow.pages.failing_changes import FailingRows
from hindcast.airflow.pages.run_reports import RunOutcome
from hindcast.common.errors import HindcastError, TableError
from hindcast.common.json_values import JsonObject, JsonValue
from hindcast.common.settings import Settings
from hindcast.contract import Contract
from hindcast.contract.bound import BoundContract, bind_contract
from hindcast.contract.description import split_paragraphs
from hindcast.contract.sensitive import REDACTED
from hindcast.plan import journal, marks
from hindcast.plan.runs import Run
from hindcast.quality import gate_results, gate_words
from hindcast.quality.expectations import format_gate
from hindcast.quality.gate_results import GateResult
from hindcast.query.cut_values import cut_nested, cut_text
from hindcast.report.run_report import RunReport
from hindcast.report.summaries import OUTCOMES

MAX_RUNS = 20
"""How many runs a trend of the overview, and a page of runs, show."""

MAX_ERROR_CHARACTERS = 4_000
"""How many characters of the error that stopped a run they show."""

MEASURES = {"records": "records read", "late": "late records", "corrected": "corrected rows", "held": "keys held back"}
"""The counts of each run that are drawn, with their names on the pages."""


Problem: TypeAlias = dict[str, str]
"""An error as the pages show it: `found`, `where`, and `mend`, what to do."""

T = TypeVar("T")


@dataclass(frozen=True)
class RunEntry:
    """A run with its outcome, and where its report and Data Docs are (below the reports' folder; None without one).

    `problems` has the errors of reading these: a report that cannot be read counts as none. `found`: what stopped it,
    of gates in sentences.
    """

    run: Run
    outcome: RunOutcome
    report: str | None
    data_docs: str | None
    problems: list[Problem]
    found: str | None = None

    def as_json(self) -> JsonObject:
        """Return the entry as the pages have it."""
        return {
            "run": self.run.number,
            "runId": cut_text(self.run.run_id),
            "state": self.run.state,
            "ended": self.run.has_report,
            "found": self.found and _cut_error(self.found),
            "knownAt": self.run.known_at.isoformat(),
            "intervalEnd": end.isoformat() if (end := self.run.plan.interval_end) else None,
            **self.outcome.as_json(),
            "release": run_reports.describe_release(self.run),
            "report": self.report,
            "dataDocs": self.data_docs,
            "problems": self.problems,
        }


def _cut_error(text: str) -> str:
    most = MAX_ERROR_CHARACTERS
    return text if len(text) <= most else f"{text[:most]}… ({len(text):,} characters)"


def build_overview(settings: Settings, readable: Collection[str]) -> JsonObject:
    """Return an entry for each `readable` pipeline: how its last run ended, and the trend of its last runs.

    What cannot be read of one pipeline is in the `problems` of its own entry and does not affect the others. Those that
    took least time lately come first (`reading_limits.rank_pipeline`), and each may take its part of what is left, so
    that one that takes long is read in several requests. One whose journal is not opened and read in its part is tried
    again with what the others leave.
    """
    contracts, broken = catalog.load_contracts(settings)
    shown = catalog.list_pipelines(settings, readable)
    order = sorted(shown, key=reading_limits.rank_pipeline)
    lines, left, unread = dict[str, JsonObject](), reading_limits.OVERVIEW_SECONDS, list[str]()
    for n, name in enumerate(order):
        with reading_limits.limit_page(max(left, 0.0) / (len(order) - n)) as allowance:
            seconds = max(allowance.most, reading_limits.QUICK_SECONDS)
            lines[name] = _build_overview_line(settings, contracts[name], shown[name], seconds)
        left -= allowance.spent
        if allowance.has_unread:
            unread.append(name)
    for name in unread:
        with reading_limits.limit_page(max(left, 0.0)) as allowance:
            if not allowance.is_spent:
                lines[name] = _build_overview_line(settings, contracts[name], shown[name])
        left -= allowance.spent
    return {
        "pipelines": [lines[name] for name in shown],
        "broken": {name: str(error) for name, error in sorted(broken.items()) if name in readable},
    }


def _build_overview_line(
    settings: Settings, contract: Contract, about: str, seconds: float | None = None
) -> JsonObject:
    """Return the entry of one pipeline, with all errors of its journal and its reports.

    `seconds`: how long opening the journal may take at most (`reading_limits.limit_opening`).
    """
    try:
        with reading_limits.limit_opening(contract.pipeline, seconds):
            past = journal.read_runs(settings.warehouse, contract.pipeline)
        has_new_marks = build_mark_check(settings, contract, past)
        entries = [build_run_entry(settings, run, has_new_marks) for run in past[-MAX_RUNS:]]
        return _format_line(contract, about, entries, fresh=_judge_freshness(settings, contract, past, entries))
    except HindcastError as error:
        return _format_line(contract, about, [], error)
    except Exception as error:  # noqa: BLE001  # any error must stay within this pipeline's entry
        kind = type(error).__name__
        _LOG.warning("the runs of %s cannot be shown: %s", contract.pipeline, kind)
        _LOG.debug("the error is:", exc_info=True)
        where = journal.runs_table(settings.warehouse, contract.pipeline).path
        fix = f"hindcast verify {contract.pipeline} --quick says what is wrong with the journal"
        return _format_line(contract, about, [], TableError(f"the runs cannot be shown: {kind}", where=where, fix=fix))


def _format_line(
    contract: Contract,
    about: str,
    runs: Sequence[RunEntry],
    error: HindcastError | None = None,
    fresh: JsonObject | None = None,
) -> JsonObject:
    """Return an entry of the overview; `error`: why the pipeline's runs are not known. `fresh`: whether it is."""
    problems = [format_problem(error)] if error else [problem for run in runs for problem in run.problems]
    ended = [run for run in runs if run.run.has_report]
    return {
        "pipeline": contract.pipeline,
        "description": about,
        "last": ended[-1].as_json() if ended else None,
        "fresh": fresh,
        "runs": [run.as_json() for run in runs],
        "trends": build_trends(ended),
        "answers": find_answers(runs),
        "waiting": count_waiting(runs),
        "problems": [problem for n, problem in enumerate(problems) if problem not in problems[:n]],
    }


def build_pipeline_page(settings: Settings, contract: Contract, before: int | None = None) -> JsonObject:
    """Return the runs of a pipeline, newest first (those `before` a number), and the gates of the last that ended."""
    past = journal.read_runs(settings.warehouse, contract.pipeline)
    shown = [run for run in past if before is None or run.number < before]
    has_new_marks = build_mark_check(settings, contract, past)
    entries = [build_run_entry(settings, run, has_new_marks) for run in shown[-MAX_RUNS:]]
    ended = [run.number for run in past if run.has_report]
    gates, problems = read_gates(settings, contract, ended[-1]) if ended else ([], [])
    names = (*contract.topics, *contract.views)
    waiting = count_waiting(entries) if before is None else None
    return {
        "pipeline": contract.pipeline,
        "description": split_paragraphs(contract.description),
        "runs": [entry.as_json() for entry in reversed(entries)],
        "trends": build_trends([entry for entry in entries if entry.run.has_report]),
        "pictures": quality_pictures.build_pictures(settings, shown[-MAX_RUNS:]),
        "earlier": shown[-MAX_RUNS].number if len(shown) > MAX_RUNS else None,
        "total": len(past),
        "answers": find_answers(entries),
        "waiting": waiting,
        "waitingKeys": [*waiting_keys.list_waiting_keys(settings, contract)] if waiting else [],
        "holds": any(gate.on_failure == "quarantine" for name in names for gate in contract.expectations(name)),
        "warned": [*warned_rows.list_warned_rows(settings, contract, past)] if before is None else [],
        "fresh": _judge_freshness(settings, contract, past, entries) if before is None else None,
        "freshTables": [*fresh_tables.list_fresh_tables(settings, contract, past)] if before is None else [],
        "gatesOf": ended[-1] if ended else None,
        "gates": gates,
        "problems": problems,
    }


def _judge_freshness(
    settings: Settings, contract: Contract, past: Sequence[Run], entries: Sequence[RunEntry]
) -> JsonObject | None:
    """Return whether a pipeline is fresh, given the entries of its last runs; None before the first run."""
    completed = [entry for entry in reversed(entries) if entry.run.state == "completed"]
    changes = [(entry.run, entry.outcome.has_changed) for entry in completed]
    return freshness.find_freshness(settings, contract, past, changes)


def build_mark_check(settings: Settings, contract: Contract, past: Sequence[Run]) -> Callable[[Run], bool]:
    """Return a function that does what `marks.has_new_marks` does; it finds what other pipelines mark once."""
    find_other = catalog.build_catalog_finder(settings)

    @cache
    def find_marked() -> BoundContract:
        return bind_contract(marks.add_marks_of_others(settings, contract, find_other), settings)

    return lambda run: marks.has_new_marks(find_marked(), past, run, find_other)


def build_run_entry(settings: Settings, run: Run, has_new_marks: Callable[[Run], bool]) -> RunEntry:
    """Return the outcome of a run and the paths of its report and Data Docs.

    `has_new_marks` (`build_mark_check`) is called for runs that were stopped.
    """
    folder = settings.reports / run.plan.pipeline
    problems: list[Problem] = []

    def attempt(read: Callable[[], T]) -> T | None:
        try:
            return read()
        except HindcastError as error:
            problem = format_problem(error)
            problems.extend([problem] if problem not in problems else [])
            return None

    outcome = attempt(lambda: run_reports.summarize_run(settings, run)) or run_reports.describe_unread_report(run)

    def link_file(name: str) -> str | None:
        """Return a file of the run; one of a run under way is of a lost run that had its number (docs/backup.md)."""
        return attempt(lambda: run_reports.find_file(folder, name)) if run.has_report else None

    report, data_docs = link_file(f"run-{run.number}.html"), link_file(f"run-{run.number}/index.html")
    found = " ".join(outcome.stops) or run.stop_error
    is_hidden = run.stop_error is not None and has_new_marks(run)
    return RunEntry(run, outcome, report, data_docs, problems, REDACTED if is_hidden else found)


def format_problem(error: HindcastError) -> Problem:
    """Return an error as pages show it."""
    return {"found": error.found, "where": error.where, "mend": error.fix}


def count_waiting(runs: Sequence[RunEntry]) -> int | None:
    """Return how many keys are held back since the last of these runs that was completed; None if that is not known."""
    completed = [run for run in runs if run.run.state == "completed"]
    if not completed:
        return 0
    return completed[-1].outcome.counts["held"] if completed[-1].outcome.has_counts else None


def find_answers(runs: Sequence[RunEntry]) -> JsonObject:
    """Return which of some runs answer what people ask: the last that changed anything (`changed`), the last in which a
    gate failed (`failed`) and the last release (`approved`; `hasReason`: it says why): its number and report; None for
    what none of them answers.
    """

    def find_last(is_answer: Callable[[RunEntry], bool]) -> JsonObject | None:
        last = next((entry for entry in reversed(runs) if entry.report and is_answer(entry)), None)
        return {"run": last.run.number, "report": last.report} if last else None

    approved = find_last(lambda it: it.run.plan.approval is not None)
    has_reason = any(approved and it.run.number == approved["run"] and it.run.plan.reason for it in runs)
    return {
        "changed": find_last(lambda it: it.run.state == "completed" and bool(it.outcome.has_changed)),
        "failed": find_last(lambda it: bool({*it.outcome.gates} & {"failed", "error"})),
        "approved": approved and {**approved, "hasReason": has_reason},
    }


def build_trends(runs: Sequence[RunEntry]) -> list[JsonObject]:
    """Return the counts of runs, oldest first, as sparklines; counts that are 0 in all of them are left out.

    So are runs whose counts are not known.
    """
    trends: list[JsonObject] = []
    for measure, words in MEASURES.items():
        values = [run.outcome.counts[measure] for run in runs if run.outcome.has_counts]
        if any(values):
            text = f"{words}, oldest run first: {', '.join(f'{n:,}' for n in values)}"
            trends.append({"measure": measure, "words": words, "told": text, **drawing.sparkline(values)})
    return trends


def read_gates(settings: Settings, contract: Contract, run: int) -> tuple[list[JsonObject], list[Problem]]:
    """Return the gates of a run, worst first, each with the trend of what it observed and the first rows that fail, and
    what cannot be read of them.
    """
    try:
        results = gate_results.read_results(settings.warehouse, contract.pipeline, run)
    except TableError as error:
        return [], [format_problem(error)]
    hidden = marks.find_marked_columns(settings, contract, (*contract.topics, *contract.views))
    mask = gate_results.build_masker(contract, hidden)
    failing: FailingRows = {}
    problems: list[Problem] = []
    try:
        failing = failing_changes.read_failing_rows(settings, contract, run)
    except TableError as error:
        problems.append(format_problem(error))
    pairs = [(table, mask(table, gate)) for table, gates in results.items() for gate in gates]
    entries: list[JsonObject] = []
    lines = gate_words.locate_gates(settings.schemas, contract) if failing else {}
    for table, gate in sorted(pairs, key=lambda pair: OUTCOMES.index(pair[1].outcome)):
        trend = [value for value in gate.trend if value is not None]
        text = f"Observed, oldest run first: {', '.join(f'{value:g}' for value in trend)}"
        named = cut_text(format_gate(gate.expectation, gate.kwargs))
        in_words = cut_text(gate_words.describe_rule(gate.expectation, gate.kwargs))
        shown: JsonObject = {"named": named, "rule": in_words, "told": text, "kwargs": cut_nested(gate.kwargs)}
        rows: list[JsonValue] = [*failing.get((table, gate.gate), [])]
        rule = describe_failing_gate(contract, table, gate, lines) if rows else {}
        entries.append(
            {**gate.as_json(), "table": table, **shown, "spark": drawing.sparkline(trend), "rows": rows, **rule}
        )
    return entries, problems


def describe_failing_gate(
    contract: Contract, table: str, gate: GateResult, lines: Mapping[tuple[str, int], str]
) -> JsonObject:
    """Return a gate in `words`, and its `line` in the contract: None if the contract has another gate by now."""
    known = contract.expectations(table) if table in (*contract.topics, *contract.views) else ()
    is_same = gate.gate < len(known) and known[gate.gate].type == gate.expectation
    line = lines.get((table, gate.gate)) if is_same else None
    return {"words": cut_text(gate_words.describe_rule(gate.expectation, gate.kwargs)), "line": line}


def list_failing_gates(settings: Settings, contract: Contract, report: RunReport) -> list[JsonObject]:
    """Return the gates of a report (masked) that have failing rows to show, each with the first of them."""
    gates = [(name, gate.result) for name, table in report.tables.items() for gate in table.gates if gate.rows]
    try:
        failing = failing_changes.read_failing_rows(settings, contract, report.run) if gates else {}
    except TableError:
        return []  # the page has the command that lists them, which says what is wrong
    lines = gate_words.locate_gates(settings.schemas, contract) if failing else {}
    return list_gates_with_rows(contract, gates, failing, lines)


def list_gates_with_rows(
    contract: Contract,
    gates: Sequence[tuple[str, GateResult]],
    failing: FailingRows,
    lines: Mapping[tuple[str, int], str],
) -> list[JsonObject]:
    """Return those of some gates, with their tables, that have failing rows, as failing.html asks for them."""
    return [
        {
            "table": name,
            "failing": gate.failing,
            "on_failure": gate.on_failure,
            "rows": [*failing[name, gate.gate]],
            **describe_failing_gate(contract, name, gate, lines),
        }
        for name, gate in gates
        if (name, gate.gate) in failing
    ]


_LOG = logging.getLogger(__name__)
