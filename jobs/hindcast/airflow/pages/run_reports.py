"""Reports of runs for the pages; a report file may be malformed, missing or unreadable.

The page of a run itself is written when the run ends (report/page.py), and only served here (`routes`).
"""

from __future__ import annotations

import re
import weakref
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from threading import Lock
from typing import Literal, NamedTuple

from hindcast.airflow.pages.kept_results import KeptResults
from hindcast.airflow.pages.reading_limits import limit_report
from hindcast.common import bounded_files, permissions
from hindcast.common.errors import HindcastError, PlatformError, TableError, UnknownError
from hindcast.common.json_values import JsonObject, JsonValue
from hindcast.common.settings import Settings
from hindcast.contract import Contract, bounds
from hindcast.contract.bound import BoundContract, bind_contract
from hindcast.contract.sensitive import REDACTED
from hindcast.plan import journal, marks
from hindcast.plan.runs import MALFORMED as _MALFORMED
from hindcast.plan.runs import Completed, Run
from hindcast.query.cut_values import cut_text
from hindcast.report import report_size
from hindcast.report.page import refuse_linked_folder, summarize_outcome
from hindcast.report.report import mask_report
from hindcast.report.run_report import RunReport
from hindcast.report.summaries import OUTCOMES, describe_stops, summarize_gates

MAX_KEPT = 20_000
"""How many outcomes are kept."""

MAX_SOUGHT = 20
"""In how many of the last reports something is sought."""

MAX_STOPS = 3
"""How many of the gates that stopped a run have a sentence."""

_NOT_ENDED = {"planned": "has not ended", "abandoned": "was abandoned"}


@dataclass(frozen=True)
class RunOutcome:
    """The verdict of a run, and from its report the `counts` (quality.MEASURES, and rows opened and closed) and the
    number of gates by outcome.

    `brief`: the sentence without the run's name and what is well, for a line. `has_counts`: false if the report was not
    read, so that the counts are not known. `stops`: sentences about the gates that stopped it (`describe_stops`).
    """

    kind: str
    sentence: str
    brief: str
    counts: dict[str, int]
    gates: dict[str, int]
    has_counts: bool = True
    stops: tuple[str, ...] = ()

    @property
    def has_changed(self) -> bool | None:
        """Whether the run changed any row; None if that is not known."""
        return bool(self.counts["opened"] or self.counts["closed"]) if self.has_counts else None

    def as_json(self) -> JsonObject:
        """Return the outcome as the pages have it."""
        return {"kind": self.kind, "sentence": self.sentence, "brief": self.brief, **self.counts, "gates": self.gates}


def summarize_run(settings: Settings, run: Run) -> RunOutcome:
    """Return the outcome of a run, which is kept until the journal or the report's file changes; so is what is wrong.

    PlatformError if the report's file is unreadable or malformed, or if the reports of the pipeline took too long to
    read (reading_limits.py); TableError if the journal's report is malformed.
    """
    path = settings.reports / run.plan.pipeline / f"run-{run.number}.json"
    state = None if isinstance(run.outcome, Completed) else bounded_files.find_state(path)
    known = _KEPT.get(path)
    if known is None or known.run() is not run or known.state != state:
        known = _KeptOutcome(weakref.ref(run), state, _read_outcome(run, path))
        with _LOCK:
            _KEPT.pop(path, None)
            _KEPT[path] = known
            while len(_KEPT) > MAX_KEPT:
                del _KEPT[next(iter(_KEPT))]
    if isinstance(known.outcome, RunOutcome):
        return known.outcome
    raise known.outcome()


class _KeptOutcome(NamedTuple):
    """The outcome of a run that the journal's reader keeps, and the state of the report's file if it was read.

    Of a malformed report: a function that returns the error.
    """

    run: weakref.ref[Run]
    state: bounded_files.FileState
    outcome: RunOutcome | Callable[[], HindcastError]


_KEPT: dict[Path, _KeptOutcome] = {}
_LOCK = Lock()


def _read_outcome(run: Run, path: Path) -> RunOutcome | Callable[[], HindcastError]:
    if isinstance(run.outcome, Completed):
        try:
            with run.refuse_malformed_report(), limit_report(run.plan.pipeline):
                return _summarize_report(run, RunReport.from_json(run.outcome.report))
        except TableError as error:
            return partial(TableError, error.found, where=error.where, fix=error.fix)
    is_there = run.stop_error is not None and find_file(path.parent, path.name)
    return _summarize_file(run, path) if is_there else _summarize_report(run, None)


def find_masked_report(settings: Settings, contract: Contract, name: str) -> RunReport | None:
    """Return the report that a file below the reports' folder is of, if it may show what is sensitive today, masked.

    `name`: `run-3.html`, `run-3.json`, or a file of the run's Data Docs. Raise UnknownError for any other, and, if
    anything is sensitive, for one of a run that the journal does not know as ended.
    """
    number = _REPORT_FILE.fullmatch(name)
    if number is None:
        raise UnknownError(f"no file '{name}'", fix="open a report from the list of the pipeline's runs")
    past = journal.read_runs(settings.warehouse, contract.pipeline)
    run = next((run for run in past if str(run.number) == number[1]), None)
    if run is None or not run.has_report:
        if marks.has_any_marks(settings, contract, past):
            found = f"'{name}' is not shown: the journal knows no run {number[1]} that has ended, so nothing says what "
            fix = "open a report from the list of the pipeline's runs; wait for the end of a run that is under way"
            raise UnknownError(f"{found}of it is sensitive", where=contract.pipeline, fix=fix)
        return None
    path = settings.reports / run.plan.pipeline / f"run-{run.number}.json"
    state = None if isinstance(run.outcome, Completed) else bounded_files.find_state(path)
    bound = bind_contract(contract, settings)
    hidden = marks.find_marked_columns(settings, contract, (*contract.topics, *contract.views))
    is_hidden = marks.has_new_marks(bound, past, run)  # of what stopped it
    key = path, state, contract.hash, frozenset(contract.marks_of_others.items()), frozenset(hidden.items()), is_hidden
    return _MASKED.find(run, key, lambda: _mask_report(path, bound, run, past), _count_objects)


def read_written_report(settings: Settings, contract: Contract, name: str) -> RunReport | None:
    """Return the report that a page of this name shows, as written; None for other files, and if it is unreadable."""
    number = _REPORT_FILE.fullmatch(name)
    past = journal.read_runs(settings.warehouse, contract.pipeline)
    run = next((run for run in past if number and name.endswith(".html") and str(run.number) == number[1]), None)
    if run is None or not run.has_report or "/" in name:
        return None
    return _read_written_report(settings.reports / run.plan.pipeline / f"run-{run.number}.json", run)


def find_release(settings: Settings, contract: Contract, number: int) -> JsonObject | None:
    """Return who approved what a run releases, as `describe_release` does."""
    past = journal.read_runs(settings.warehouse, contract.pipeline)
    return next((describe_release(run) for run in past if run.number == number), None)


def find_neighbours(runs: Iterable[Run], number: int) -> JsonObject:
    """Return the numbers of the runs `previous` and `next` to a run among some; None where there is none."""
    numbers = [run.number for run in runs]
    return {
        "previous": max((it for it in numbers if it < number), default=None),
        "next": min((it for it in numbers if it > number), default=None),
    }


def describe_release(run: Run) -> JsonObject | None:
    """Return who approved what a run releases (`by`: None if nobody was named), when and why; None for another run."""
    if (approval := run.plan.approval) is None:
        return None
    texts = {"by": approval.by, "reason": run.plan.reason}
    return {**approval.as_json(), **{name: text and cut_text(text) for name, text in texts.items()}}


def read_report(settings: Settings, run: Run) -> RunReport | None:
    """Return the report of a run as it was written, which is kept; None if it is unreadable or malformed."""
    path = settings.reports / run.plan.pipeline / f"run-{run.number}.json"
    state = None if isinstance(run.outcome, Completed) else bounded_files.find_state(path)
    return _WRITTEN.find(run, (path, state), lambda: _read_written_report(path, run), _count_objects)


def _mask_report(path: Path, contract: BoundContract, run: Run, past: Sequence[Run]) -> RunReport | None:
    """Return the report of a run masked; None if that hides nothing."""
    written = _read_written_report(path, run)
    if written is None:
        unread = RunReport(contract.pipeline, run.number, run.run_id, run.known_at, state="stopped", found=REDACTED)
        return unread if marks.has_any_marks(contract.settings, contract, past) else None
    masked = mask_report(written, contract, run, past)
    return None if masked == written else masked


_REPORT_FILE = re.compile(r"run-([0-9]{1,18})(?:\.html|\.json|(?:/(?!\.)[^/]+)+)")
"""The files that are served: no name in an address leads elsewhere, whatever a file system makes of it."""


def _count_objects(report: RunReport | None) -> int:
    """Return roughly how many objects a masked report has; None, if nothing of it is hidden, counts as one."""
    if report is None:
        return 1
    tables, topics = report.tables.values(), report.topics.values()
    return 1 + sum(1 + len(table.gates) for table in tables) + sum(1 + len(topic.partitions) for topic in topics)


MAX_MASKED = 20_000
"""Roughly how many objects all masked reports that are kept have, and as many those as they were written: a gate or a
range of offsets takes 2 KB.
"""

_MASKED = KeptResults[RunReport | None](MAX_MASKED)
_WRITTEN = KeptResults[RunReport | None](MAX_MASKED)


def _read_written_report(path: Path, run: Run) -> RunReport | None:
    """Return the report of a run as it was written; None if it cannot be read."""
    try:
        with limit_report(run.plan.pipeline):
            if isinstance(run.outcome, Completed):
                return RunReport.from_json(run.outcome.report)
            return _read_file(run, path)
    except (OSError, *_MALFORMED):
        return None


def describe_unread_report(run: Run) -> RunOutcome:
    """Return the outcome of a run whose report cannot be read, or was not read yet: nothing is known of its gates."""
    sentence = f"Run {run.number} of {run.plan.pipeline} was {run.state}; its report was not read."
    kind = "unread" if run.state == "completed" else "stopped"
    brief = f"{run.state}; its report was not read"
    return replace(_summarize_report(run, None), kind=kind, sentence=sentence, brief=brief, has_counts=False)


def find_file(folder: Path, name: str) -> str | None:
    """Return `name` if the folder has such a file, else None; PlatformError if that cannot be checked."""
    refuse_linked_folder(folder)
    try:
        return name if (folder / name).stat() and (folder / name).is_file() else None
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise PlatformError(**permissions.explain_error(error, folder / name)) from None


def _summarize_file(run: Run, path: Path) -> RunOutcome | Callable[[], HindcastError]:
    """Return the same for a stopped run, from the report file that was written then."""
    fix = f"hindcast report {run.plan.pipeline} {run.number} --format json > {path}"
    try:
        with limit_report(run.plan.pipeline):
            return _summarize_report(run, _read_file(run, path))
    except OSError as error:
        raise PlatformError(**permissions.explain_error(error, path)) from None
    except _MALFORMED as error:
        what = error.found if isinstance(error, bounded_files.ExcessError) else f"{type(error).__name__}: {error}"
        found = f"is not a report: {what[:_MAX_ERROR_LENGTH]}"
        return partial(PlatformError, found, where=str(path), fix=f"write it again: {fix}")


def _read_file(run: Run, path: Path) -> RunReport | None:
    """Return the report in a file; None if it is of another run with this number."""
    refuse_linked_folder(path.parent)
    report = report_size.parse_report_json(bounds.read_text(path, report_size.MAX_BYTES))
    return RunReport.from_json(report) if report.get("runId") == run.run_id else None


def _summarize_report(run: Run, report: RunReport | None) -> RunOutcome:
    if report is None:
        state: Literal["completed", "stopped"] = "completed" if run.state == "completed" else "stopped"
        report = RunReport(run.plan.pipeline, run.number, run.run_id, run.known_at, state=state)
    summary = summarize_outcome(report) if run.has_report else None
    tables, topics = report.tables.values(), report.topics.values()
    gates = [gate.result.outcome for table in tables for gate in table.gates]
    counts = {
        "records": _sum_counts(topic.offsets for topic in topics),
        "late": _sum_counts(topic.late for topic in topics),
        "corrected": _sum_counts(table.corrected for table in tables),
        "held": _sum_counts(held.keys for held in report.held_keys.values()),
        "opened": _sum_counts(table.opened for table in tables),
        "closed": _sum_counts(table.closed for table in tables),
    }
    waiting = _NOT_ENDED.get(run.state, run.state)
    return RunOutcome(
        summary.kind if summary else run.state,
        cut_text(summary.sentence) if summary else f"It {waiting}.",
        cut_text(summary.brief) if summary else waiting,
        counts,
        {outcome: gates.count(outcome) for outcome in OUTCOMES if outcome in gates},
        stops=tuple(map(cut_text, describe_stops(summarize_gates(report))[:MAX_STOPS])) if run.stop_error else (),
    )


def _sum_counts(counts: Iterable[JsonValue]) -> int:
    """Return the sum of counts, some of which may be None; TypeError or ValueError for an invalid count."""
    total = 0
    for count in counts:
        if not isinstance(count, int | None):
            raise TypeError(f"{str(count)[:_MAX_ERROR_LENGTH]!r} is not a count")
        total += count or 0
    if not 0 <= total < 1 << 63:
        raise ValueError("a count is out of range")
    return total


_MAX_ERROR_LENGTH = 200
