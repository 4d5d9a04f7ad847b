"""What abandoned runs wrote: it stays, and the report of the next completed run lists it."""

from __future__ import annotations

from typing import Any

from hindcast.common.plurals import format_count
from hindcast.contract import Contract
from hindcast.ingest import ledger
from hindcast.plan import journal
from hindcast.store import tables
from hindcast.store.commit_notes import TableNote


def find_abandoned_runs(warehouse: str, contract: Contract, number: int) -> list[dict[str, Any]]:
    """Return the runs between the last completed one and the run `number` that were abandoned but wrote something.

    Each has its `run` and `runId`; by topic the number of `offsets` that it appended to the log; under `tables` the
    rows that it `opened` and `closed`, and how many of these are past answers (`corrected`).
    """
    earlier = [run for run in journal.read_runs(warehouse, contract.pipeline) if run.number < number]
    last = max((run.number for run in earlier if run.state == "completed"), default=0)
    abandoned = []
    for run in (run for run in earlier if run.number > last and run.state == "abandoned"):
        offsets = {name: _count_offsets(warehouse, contract, name, run.number) for name in contract.topics}
        notes = {
            name: _read_published_counts(warehouse, contract, name, run.number)
            for name in (*contract.topics, *contract.views)
        }
        written = {
            "offsets": {name: n for name, n in offsets.items() if n},
            "tables": {name: note for name, note in notes.items() if any(note.values())},
        }
        if any(written.values()):
            abandoned.append({"run": run.number, "runId": run.run_id, **written})
    return abandoned


def format_abandoned_run(run: dict[str, Any]) -> str:
    """Return a sentence that says what an abandoned run did."""
    parts = []
    for name in dict.fromkeys([*run["offsets"], *run["tables"]]):
        offsets, note = run["offsets"].get(name, 0), run["tables"].get(name, {})
        counts = [format_count(offsets, "offset")] if offsets else []
        counts += [f"{format_count(note['opened'], 'row')} opened"] if note.get("opened") else []
        counts += [f"{note['closed']:,} closed"] if note.get("closed") else []
        counts += [f"{note['corrected']:,} of these a past answer"] if note.get("corrected") else []
        parts.append(f"{name}: {', '.join(counts)}")
    return f"run {run['run']} was abandoned; what it did stays: {'; '.join(parts)}"


def _count_offsets(warehouse: str, contract: Contract, name: str, number: int) -> int:
    pieces = ledger.read_ingested_ranges(tables.log_table(warehouse, contract.pipeline, name), number)
    return sum(piece.end - piece.start for piece in pieces)


def _read_published_counts(warehouse: str, contract: Contract, name: str, number: int) -> dict[str, int]:
    notes = tables.read_notes(tables.locate_table(warehouse, contract, name), TableNote.from_json)
    note = notes.get(number, TableNote(number))
    return {"opened": note.opened, "closed": note.closed, "corrected": note.corrected}
