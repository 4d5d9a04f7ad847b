"""Reports of runs for the pages: their files may be anything, gone, or closed to the user that serves the pages."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from hindcast import rights
from hindcast.errors import PlatformError, TableError
from hindcast.planning import journal
from hindcast.planning.journal import Run
from hindcast.reports.page import OUTCOMES, verdict
from hindcast.settings import Settings

_NOT_ENDED = {"planned": "It has not ended.", "abandoned": "It was given up."}


def summarize(now: Settings, run: Run) -> dict[str, Any]:
    """Return the verdict of a run, and what its report counts.

    PlatformError if the report is in a file that cannot be read or is no report; TableError if the journal has it, and
    it is none.
    """
    if run.state == "completed":
        try:
            return _summarize(run, run.detail)
        except _MALFORMED as error:
            found = f"the report of run {run.number} is malformed: {type(error).__name__}: {error}"
            pipeline = str(run.plan["pipeline"])
            mend = f"hindcast verify {pipeline} --quick says what is wrong with the journal"
            raise TableError(found, where=journal.table(now.warehouse, pipeline).path, mend=mend) from None
    folder = now.reports / str(run.plan["pipeline"])
    name = find_file(folder, f"run-{run.number}.json") if run.stopped is not None else None
    return summarize_unread(run) if name is None else _summarize_file(run, folder / name)


def summarize_unread(run: Run) -> dict[str, Any]:
    """Return the same of a run whose report cannot be read, or that has none."""
    return _summarize(run, _outline(run))


def find_file(folder: Path, name: str) -> str | None:
    """Return the name of a file in a folder, None if it is not there; PlatformError if that cannot be found out."""
    try:
        return name if (folder / name).stat() and (folder / name).is_file() else None
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise PlatformError(**rights.explain(error, folder / name)) from None


def _summarize_file(run: Run, path: Path) -> dict[str, Any]:
    """Return the same of a run that was stopped, by the report that was written then."""
    mend = f"hindcast report {run.plan['pipeline']} {run.number} --format json > {path}"
    try:
        report = json.loads(path.read_text(encoding="utf-8"))
        own = report if report.get("runId") == run.run_id else _outline(run)
        return _summarize(run, own)
    except OSError as error:
        raise PlatformError(**rights.explain(error, path)) from None
    except _MALFORMED as error:
        found = f"is not a report: {type(error).__name__}: {str(error)[:_LONG]}"
        raise PlatformError(found, where=str(path), mend=f"write it again: {mend}") from None


def _outline(run: Run) -> dict[str, Any]:
    """Return what a report would say first, of a run that has none."""
    state = run.state if run.stopped is None else "stopped"
    return {"pipeline": run.plan["pipeline"], "run": run.number, "state": state}


def _summarize(run: Run, report: dict[str, Any]) -> dict[str, Any]:
    judged = verdict(report) if run.reported else None
    tables, topics = (list((report.get(part) or {}).values()) for part in ("tables", "topics"))
    gates = [gate.get("outcome", "error") for table in tables for gate in table.get("gates") or []]
    return {
        "kind": judged.kind if judged else run.state,
        "sentence": judged.sentence if judged else _NOT_ENDED.get(run.state, run.state),
        "records": _add(topic.get("offsets") for topic in topics),
        "late": _add(topic.get("late") for topic in topics),
        "corrected": _add(table.get("corrected") for table in tables),
        "held": _add((table.get("held") or {}).get("keys") for table in tables),
        "gates": {outcome: gates.count(outcome) for outcome in OUTCOMES if outcome in gates},
    }


def _add(counts: Iterable[Any]) -> int:
    """Return the sum of counts, of which some may be missing; TypeError or ValueError for what is no count."""
    total = 0
    for count in counts:
        if not isinstance(count, int | None):
            raise TypeError(f"{str(count)[:_LONG]!r} is not a count")
        total += count or 0
    if not 0 <= total < 1 << 63:
        raise ValueError("a count is out of range")
    return total


_MALFORMED = (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError)
"""What reading a report raises that is none."""

_LONG = 200
