"""The journal of runs, made again from the logs and the transaction identifiers of the tables: it is a view of them.

What only the journal knew is lost where it was: the names of runs whose commits are too old to be told, the moments of
intervals, and whether the last run was completed. It is given up then; the next run derives what it left.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa

from hindcast.contracts import Contract
from hindcast.delta import emitted, tables
from hindcast.kafka.topics import Offsets
from hindcast.planning import journal
from hindcast.planning.journal import Run
from hindcast.planning.plans import Plan, Share
from hindcast.replay import ledger
from hindcast.replay.ledger import Piece
from hindcast.reports import report


def rebuild(warehouse: str, contract: Contract) -> list[int]:
    """Makes a pipeline's journal agree with its logs and tables; returns the numbers of the runs that it wrote anew.

    Runs that the journal tells as the logs do are left as they are; where their entries contradict each other
    (`journal.damage`), these are put in order. Nothing is written if that is true of all. A run without a plan is taken
    out first: nothing can be read beside it.
    """
    planned, unplanned = journal.planned_runs(warehouse, contract.pipeline)
    if unplanned:
        journal.replace(warehouse, contract.pipeline, [], without=unplanned)
    known = {run.number: run for run in planned}
    brought = {name: ledger.pieces(tables.log(warehouse, contract.pipeline, name)) for name in contract.topics}
    decided = [e for name in contract.topics for e in ledger.anew(tables.fates(warehouse, contract.pipeline, name))]
    moments = {entry.run: entry.known_at for entry in decided}
    moments |= {piece.run: piece.known_at for pieces in brought.values() for piece in pieces}
    moments |= {n: at for n, at in _published(warehouse, contract).items() if n not in moments}
    every = sorted({*moments, *known})
    anew = [n for n in every if n not in known or not _agrees(known[n], brought)]
    disordered = [n for n, _ in journal.damage(warehouse, contract.pipeline) if n in known and n not in anew]
    written = [entry for number in disordered for entry in journal.history(warehouse, contract.pipeline, number)]
    for number in anew:
        plan = _plan(warehouse, contract, number, moments.get(number) or known[number].known_at, brought)
        written.append(Run(number, plan.run_id, plan.known_at, "planned", plan.as_json(), plan.as_json()))
        given_up = number == every[-1] or number not in moments
        detail = {"reason": "its journal was rebuilt"} if given_up else _report(warehouse, contract, plan)
        state = "abandoned" if given_up else "completed"
        written.append(Run(number, plan.run_id, plan.known_at, state, plan.as_json(), detail))
    if written:
        journal.replace(warehouse, contract.pipeline, written)
    return sorted([*anew, *disordered])


def _agrees(run: Run, brought: dict[str, list[Piece]]) -> bool:
    """Whether the logs have of a run what it was planned to bring; what has not been completed may be missing."""
    planned = Plan.from_json(run.plan).topics
    for name, pieces in brought.items():
        own = {(piece.partition, piece.start, piece.end) for piece in pieces if piece.run == run.number}
        share = planned.get(name)
        if run.state == "completed" or share is None:
            taken = [share] if share else []
        else:
            taken = [share.upto(count) for count in range(1, len(share.chunks) + 1)]
        wanted = [{(p, r.start, r.end) for part in it.parts for p, r in part.items()} for it in taken]
        if own not in (wanted or [set()]) and (own or run.state == "completed"):
            return False
    return True


def _report(warehouse: str, contract: Contract, plan: Plan) -> dict[str, Any]:
    """The report of a run that was completed once, as logs, tables and verdicts tell it."""
    return {**report.make(warehouse, contract, plan), "rebuilt": True}


def _published(warehouse: str, contract: Contract) -> dict[int, datetime]:
    """The last run that committed to each table, and its known-at: the latest moment of the table's system axis.

    Taken from the statistics of Delta's log, which have milliseconds. And the runs that kafka views have emitted in.
    """
    found = {}
    for name in (*contract.topics, *contract.views):
        table = tables.located(warehouse, contract, name)
        number, delta = tables.published(table), tables.opened(table)
        if number and delta:
            files = pa.table(delta.get_add_actions(flatten=True))
            moments = [m for c in _LATEST if c in files.column_names for m in files.column(c).to_pylist() if m]
            if moments:
                found[number] = max(m if m.tzinfo else m.replace(tzinfo=UTC) for m in moments)
    for name in (name for name, it in contract.views.items() if it.semantics == "kafka"):
        notes = tables.notes(emitted.log(warehouse, contract, name))
        found |= {run: datetime.fromisoformat(note["knownAt"]) for run, note in notes.items()}
    return found


_LATEST = ("max.systemFrom", "max.systemTo")
_UNKNOWN = "?"
"""No expression: a log is dated anew where nobody knows any more what dated it."""


def _plan(warehouse: str, contract: Contract, number: int, known_at: datetime, brought: dict[str, list[Piece]]) -> Plan:
    """The plan that a run must have had to bring what the logs have of it; of no known contract."""
    shares, run_id, first = {}, f"rebuilt__{number}", number
    for name, pieces in brought.items():
        share = _share([piece for piece in pieces if piece.run <= number], number)
        log = tables.log(warehouse, contract.pipeline, name)
        if share and (members := ledger.members(log)):
            share = replace(share, topic_id="", members=members)
        note: dict[str, Any] = tables.notes(log).get(number, {})
        if share:
            shares[name] = replace(share, valid_time=note.get("validTime") if note else _UNKNOWN)
        run_id = note.get("runId", run_id)
        if pieces and pieces[-1].run == number:  # it may have been given up amid its chunks
            first = min(first, tables.published(log))
    numbers = number + 1 - first
    return Plan(contract.pipeline, number, run_id, known_at, None, "", shares, numbers=numbers)


def _share(pieces: list[Piece], number: int) -> Share | None:
    """What a run took of a topic whose log has these pieces of it and of the runs before; None if none has any."""
    if not pieces:
        return None
    anchors: dict[int, int] = {}
    ends: dict[int, int] = {}
    base: dict[int, int] = {}  # from where on all is there
    own: dict[bool, dict[int, Offsets]] = {True: {}, False: {}}
    left: dict[int, Offsets] = {}
    for piece in pieces:
        p = piece.partition
        before = p in ends and piece.end <= ends[p]
        if piece.run == number:
            own[before][p] = Offsets(piece.start, piece.end)
        anchors[p] = min(piece.start, anchors.get(p, piece.start))
        ends[p] = max(piece.end, ends.get(p, piece.end))
        base.setdefault(p, piece.start)
        if before:
            left[p] = Offsets(piece.end, base[p])
            base[p] = anchors[p] if piece.end == base[p] else base[p]
    ranges = {p: own[False].get(p, Offsets(end, end)) for p, end in ends.items()}
    left = {p: r for p, r in left.items() if r.start < r.end}
    after = max((piece.run for piece in pieces if piece.run < number), default=0)
    return Share(pieces[-1].topic_id, pieces[-1].epoch, after, anchors, ranges, own[True], left=left)
