"""The answer of a preview as a file, for the report tab of its run in Airflow."""

from __future__ import annotations

import json
from hashlib import sha256
from pathlib import Path

from hindcast.common.bounded_files import ExcessError
from hindcast.common.json_values import JsonObject
from hindcast.common.settings import Settings
from hindcast.contract import Contract, bounds
from hindcast.plan import journal, marks
from hindcast.plan.purposes import Erasure
from hindcast.report import page, report_size

_FORM = 2
"""The number of the form in which answers are stored; a page cannot show another."""

MAX_FILES = 20
"""How many previews of a pipeline are kept, the newest."""


def write_preview(settings: Settings, contract: Contract, run_id: str, answer: JsonObject) -> None:
    """Write what a preview answered (`RunPreview.as_json`), and remove the oldest answers.

    Not if a key has been erased since the preview began: it may have shown the key.
    """
    began = str(answer["knownAt"])
    past = journal.read_runs(settings.warehouse, contract.pipeline)
    if any(isinstance(run.plan.purpose, Erasure) and run.known_at.isoformat() >= began for run in past):
        return
    folder = page.open_folder(settings.reports, contract.pipeline)
    folder.mkdir(parents=True, exist_ok=True)
    text = json.dumps({"seal": _seal(settings, contract), "answer": answer})
    page.replace_file(folder / _name_file(run_id), text)
    files = sorted(folder.glob("preview-*.json"), key=lambda path: path.stat().st_mtime)
    for path in files[:-MAX_FILES]:
        path.unlink(missing_ok=True)


def read_preview(settings: Settings, contract: Contract, run_id: str) -> JsonObject | None:
    """Return what a preview answered; None if that is unknown, or if other columns are sensitive by now."""
    path = page.open_folder(settings.reports, contract.pipeline) / _name_file(run_id)
    try:
        stored = report_size.parse_report_json(bounds.read_text(path, report_size.MAX_BYTES))
    except (OSError, ValueError, ExcessError):
        return None
    answer = stored.get("answer")
    return answer if isinstance(answer, dict) and stored.get("seal") == _seal(settings, contract) else None


def remove_previews(folder: Path) -> None:
    """Remove all answers from a pipeline's folder of reports: they have values of records."""
    for path in (*folder.glob("preview-*"), *folder.glob(".preview-*")):
        path.unlink(missing_ok=True)


def _name_file(run_id: str) -> Path:
    """Return a name that any run's id has, whatever its characters and length."""
    return Path(f"preview-{sha256(run_id.encode()).hexdigest()[:32]}.json")


def _seal(settings: Settings, contract: Contract) -> JsonObject:
    """Return the contract's hash, its sensitive columns and the form of answers: only while these stay the same is the
    answer shown.
    """
    hidden = marks.find_marked_columns(settings, contract, (*contract.topics, *contract.views))
    return {
        "form": _FORM,
        "contract": contract.hash,
        "hidden": {name: sorted(columns) for name, columns in sorted(hidden.items())},
    }
