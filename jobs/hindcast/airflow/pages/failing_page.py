"""Failing rows: those that gates found last, of all pipelines; templates/failing_rows.html lays the page out."""

from __future__ import annotations

import logging
import time
from collections.abc import Collection, Iterator, Sequence

from hindcast.airflow.pages import catalog, marks, quality, reading_limits, run_reports, warned_rows
from hindcast.common.errors import HindcastError, TableError
from hindcast.common.json_values import JsonObject, JsonValue
from hindcast.common.settings import Settings
from hindcast.contract import Contract
from hindcast.plan import journal
from hindcast.plan.runs import Run

SECONDS = 4.0
"""How long finding the rows may take; pipelines that come after that have links to their own pages."""


def build_page(settings: Settings, readable: Collection[str]) -> JsonObject:
    """Return for each `readable` pipeline the gates with failing rows: of the last run in which any failed, and of the
    last one that published some with a warning. `unread`: the pipelines for which there was no time.

    Those that took least time lately come first; what is wrong with one stays with it.
    """
    shown, lines, unread = catalog.list_pipelines(settings, readable), dict[str, JsonObject](), set[str]()
    until = time.monotonic() + SECONDS
    for name in sorted(shown, key=reading_limits.rank_pipeline):
        if time.monotonic() > until:
            unread.add(name)
            continue
        try:
            runs = [*_list_runs(settings, marks.load_marked_contract(settings, name, readable))]
            problems: list[JsonValue] = []
        except HindcastError as error:
            runs, problems = [], [quality.format_problem(error)]
        except Exception as error:  # noqa: BLE001  # any error must stay within this pipeline's entry
            _LOG.warning("the failing rows of %s cannot be shown: %s", name, type(error).__name__)
            _LOG.debug("the error is:", exc_info=True)
            found = TableError(
                f"its failing rows cannot be shown: {type(error).__name__}", fix=f"hindcast verify {name}"
            )
            runs, problems = [], [quality.format_problem(found)]
        if runs or problems:
            lines[name] = {"pipeline": name, "runs": [*runs], "problems": problems}
    return {
        "pipelines": [lines[name] for name in shown if name in lines],
        "unread": [name for name in shown if name in unread],
    }


_LOG = logging.getLogger(__name__)


def _list_runs(settings: Settings, contract: Contract) -> Iterator[JsonObject]:
    """Yield runs with gates that have failing rows to show, each `run` with its `gates`, newest first."""
    past = journal.read_runs(settings.warehouse, contract.pipeline)
    failed = _find_failed_run(settings, [run for run in past if run.has_report][-run_reports.MAX_SOUGHT :])
    warned = {it["run"] for it in warned_rows.list_warned_rows(settings, contract, past)}
    numbers = [run.number for run in reversed(past) if run.number == failed or run.number in warned]
    for number in numbers:
        gates, problems = quality.read_gates(settings, contract, number)
        shown: list[JsonValue] = [
            gate for gate in gates if gate["rows"] and (number == failed or gate["on_failure"] == "warn")
        ]
        if shown or problems:
            yield {"run": number, "gates": shown, "problems": [*problems]}


def _find_failed_run(settings: Settings, ended: Sequence[Run]) -> int | None:
    """Return the last run in which a gate failed; if none is found, raise the error of a report that is unreadable."""
    unread: HindcastError | None = None
    for run in reversed(ended):
        try:
            outcome = run_reports.summarize_run(settings, run)
        except HindcastError as error:
            unread = unread or error
            continue
        if {*outcome.gates} & {"failed", "error"}:
            return run.number
    if unread is not None:
        raise unread
    return None
