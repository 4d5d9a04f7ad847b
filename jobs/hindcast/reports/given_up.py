"""What runs did that were given up: it stays, and the report of the next completed run tells it."""

from __future__ import annotations

from typing import Any

from hindcast.contracts import Contract
from hindcast.delta import tables
from hindcast.planning import journal
from hindcast.replay import ledger
from hindcast.words import counted


def since(warehouse: str, contract: Contract, number: int) -> list[dict[str, Any]]:
    """The runs given up between the last completed one and the run `number`, of which something stays.

    Of each its `run` and `runId`; by topic the `offsets` that are in its log; by table what it has published: rows
    `opened` and `closed`, and how many of these are past answers (`corrected`).
    """
    past = [run for run in journal.runs(warehouse, contract.pipeline) if run.number < number]
    last = max((run.number for run in past if run.state == "completed"), default=0)
    told = []
    for run in (run for run in past if run.number > last and run.state == "abandoned"):
        offsets = {name: _offsets(warehouse, contract, name, run.number) for name in contract.topics}
        notes = {
            name: _published(warehouse, contract, name, run.number) for name in (*contract.topics, *contract.views)
        }
        done = {
            "offsets": {name: n for name, n in offsets.items() if n},
            "tables": {name: note for name, note in notes.items() if any(note.values())},
        }
        if any(done.values()):
            told.append({"run": run.number, "runId": run.run_id, **done})
    return told


def text(told: dict[str, Any]) -> str:
    """What such a run did, in words."""
    parts = []
    for name in dict.fromkeys([*told["offsets"], *told["tables"]]):
        offsets, note = told["offsets"].get(name, 0), told["tables"].get(name, {})
        found = [counted(offsets, "offset")] if offsets else []
        found += [f"{counted(note['opened'], 'row')} opened"] if note.get("opened") else []
        found += [f"{note['closed']:,} closed"] if note.get("closed") else []
        found += [f"{note['corrected']:,} of these a past answer"] if note.get("corrected") else []
        parts.append(f"{name}: {', '.join(found)}")
    return f"run {told['run']} was given up; what it did stays: {'; '.join(parts)}"


def _offsets(warehouse: str, contract: Contract, name: str, number: int) -> int:
    pieces = ledger.pieces(tables.log(warehouse, contract.pipeline, name), number)
    return sum(piece.end - piece.start for piece in pieces)


def _published(warehouse: str, contract: Contract, name: str, number: int) -> dict[str, int]:
    note = tables.notes(tables.located(warehouse, contract, name)).get(number, {})
    return {what: note.get(what, 0) for what in ("opened", "closed", "corrected")}
