"""Is a table fresh? A verdict in words: when it changed last, when the next run is due, whether one is overdue.

Measured from now, by the contract's schedule.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Literal, NamedTuple

from hindcast.airflow.pages import run_reports
from hindcast.airflow.pages.reading_limits import SlowReportError, limit_report
from hindcast.common import cron
from hindcast.common.errors import HindcastError
from hindcast.common.json_values import JsonObject
from hindcast.common.lengths import format_age
from hindcast.common.settings import Settings
from hindcast.contract import Contract
from hindcast.contract.expectation import FRESHNESS_RULE
from hindcast.plan.purposes import Replay
from hindcast.plan.runs import Run, Stopped
from hindcast.query.cut_values import cut_text
from hindcast.report.run_report import RunReport

PATIENCE = timedelta(minutes=5)
"""How long after it was due a run that has not begun is not called overdue: Airflow may be about to start it."""


MAX_READ = 20
"""In how many runs a table's last change is sought."""


class Freshness(NamedTuple):
    """A verdict; `kind` as that of a run (`report.page.RunSummary`): passed, attention, stopped or unchecked."""

    kind: Literal["passed", "attention", "stopped", "unchecked"]
    words: str

    def as_json(self) -> JsonObject:
        """Return the verdict as the pages have it."""
        return self._asdict()


def find_freshness(
    settings: Settings,
    contract: Contract,
    past: Sequence[Run],
    changes: Iterable[tuple[Run, bool | None]],
    name: str | None = None,
) -> JsonObject | None:
    """Return whether a pipeline, or one table of it, is fresh; None before the first run.

    `changes`: completed runs, newest first, and whether each changed it (None: not known).
    """
    now = datetime.now(UTC)
    limits = find_limits(settings, contract, past)
    own = {table: limit for table, limit in limits.items() if name in (None, table)}
    fresh = judge_freshness(contract, past, describe_change(changes, now), now, own, name)
    return fresh and fresh.as_json()


def find_limits(settings: Settings, contract: Contract, past: Sequence[Run]) -> dict[str, tuple[str, bool]]:
    """Return what `read_limits` returns, by the last run that has a report."""
    return read_limits(contract, _read_limit_report(settings, contract, past))


def list_table_changes(past: Sequence[Run], name: str) -> Iterator[tuple[Run, bool | None]]:
    """Yield the last completed runs, newest first, and whether each changed a table (None: not known)."""
    for run in [run for run in reversed(past) if run.state == "completed"][:MAX_READ]:
        try:
            with limit_report(run.plan.pipeline):
                result = run.results.get(name)
        except (HindcastError, SlowReportError):
            yield run, None
        else:
            yield run, result is not None and result.changed_rows > 0


def judge_freshness(
    contract: Contract,
    past: Sequence[Run],
    change: str,
    now: datetime,
    limits: Mapping[str, tuple[str, bool]],
    name: str | None = None,
) -> Freshness | None:
    """Return whether what runs bring to a pipeline, or to one table of it, is up to date; None before the first run.

    `change`: what `describe_change` returns. `limits`: what `read_limits` returns.
    """
    regular = [run for run in past if isinstance(run.plan.purpose, Replay) and run.state != "abandoned"]
    if not regular:
        return None
    last = regular[-1]
    limit_texts = [
        f"{cut_text(name)} {'keeps' if is_kept else 'exceeds'} its limit of {cut_text(within)}"
        for name, (within, is_kept) in limits.items()
    ]
    is_old = not all(is_kept for _, is_kept in limits.values())
    texts = [change, *limit_texts]
    if isinstance(last.outcome, Stopped) and name is not None and name != last.outcome.table:
        if _is_waiting(contract, last, last.outcome.table, name):
            at = cut_text(last.outcome.table) or "a table"
            stopped = f"run {last.number} was stopped at {at} {format_ago(last.known_at, now)}"
            return Freshness(
                "attention", _join("Not up to date", [stopped, f"{cut_text(name)} waits for that", *texts])
            )
    elif last.state == "stopped":
        failed = f"the last run ({last.number}) failed {format_ago(last.known_at, now)}"
        return Freshness("stopped", _join("Not up to date", [failed, *texts]))
    if last.state == "planned":
        texts.insert(0, f"run {last.number} began {format_ago(last.known_at, now)} and has not ended")
    due = _find_due(contract, [run for run in regular if run is last or run.state != "stopped"])
    if due is None:
        kind: Literal["attention", "unchecked"] = "attention" if is_old else "unchecked"
        return Freshness(kind, _join("Too old" if is_old else "", [*texts, _describe_occasion(contract)]))
    often = f"runs {cron.describe_times(contract.schedule or '')}"
    if now - due > PATIENCE:
        overdue = f"a run has been overdue for {format_age(now - due)}"
        return Freshness("attention", _join("Not up to date", [overdue, often, *texts]))
    coming = f"the next run is due {f'in {format_age(due - now)}' if due > now else 'now'}"
    verdict = "Too old" if is_old else "Up to date"
    return Freshness("attention" if is_old else "passed", _join(verdict, [*texts, often, coming]))


def _is_waiting(contract: Contract, last: Run, stopped: str, name: str) -> bool:
    """Return whether a table lacks something that a run would have brought, which was stopped at another table."""
    above = {name, *contract.list_upstream(name)}
    has_new = any(any(topic.planned_counts.values()) for source, topic in last.plan.topics.items() if source in above)
    return has_new or not stopped or name in contract.list_tables_below(stopped)


def describe_change(runs: Iterable[tuple[Run, bool | None]], now: datetime) -> str:
    """Return when the last of some runs, newest first, changed something, given whether each has; None: not known."""
    count = 0
    for run, has_changed in runs:
        if has_changed is None:
            return ""
        if has_changed:
            return f"last change {format_ago(run.known_at, now)} (run {run.number})"
        count += 1
    return f"no change in the last {count:,} runs" if count > 1 else "no change so far"


def read_limits(contract: Contract, report: RunReport | None) -> dict[str, tuple[str, bool]]:
    """Return the limits of freshness that a contract sets, by table, and whether a run kept them.

    Those that the run did not check are left out.
    """
    limits: dict[str, tuple[str, bool]] = {}
    for name, table in (report.tables if report else {}).items():
        for gate in (it.result for it in table.gates):
            if gate.expectation == FRESHNESS_RULE and gate.outcome in ("passed", "failed"):
                limits[name] = str(gate.kwargs.get("within", "")), gate.outcome == "passed"
    return {name: limits[name] for name in (*contract.topics, *contract.views) if name in limits}


def _read_limit_report(settings: Settings, contract: Contract, past: Sequence[Run]) -> RunReport | None:
    """Return the report of the last run that has one, if the contract has a limit of freshness that it can have."""
    names = (*contract.topics, *contract.views)
    has_limit = any(gate.type == FRESHNESS_RULE for name in names for gate in contract.expectations(name))
    last = next((run for run in reversed(past) if run.has_report), None) if has_limit else None
    try:
        return run_reports.read_report(settings, last) if last else None
    except (HindcastError, SlowReportError):
        return None  # the line of the run says what is wrong


def _find_due(contract: Contract, regular: Sequence[Run]) -> datetime | None:
    """Return when the next run after what these runs cover is due; None without a schedule by the clock."""
    expression = contract.schedule
    covered = [run.plan.interval_end or run.known_at for run in regular if not run.plan.only]
    if expression is None or expression == "inputs" or not covered:
        return None
    return cron.find_next(expression, max(covered))


def _describe_occasion(contract: Contract) -> str:
    if contract.schedule == "inputs":
        return "runs when a table that it reads has changed, so no run is due at a set time"
    return "runs on request only, so no run is due" if contract.intervals is None else "runs by backfills only"


def format_ago(moment: datetime, now: datetime) -> str:
    """Return how long before or after now a moment is: `3 h ago`, `in 2 d`."""
    return f"{format_age(now - moment)} ago" if moment <= now else f"in {format_age(moment - now)}"


def _join(verdict: str, parts: Sequence[str]) -> str:
    text = "; ".join(filter(None, parts))
    return f"{verdict}: {text}." if verdict else f"{text[:1].upper()}{text[1:]}."
