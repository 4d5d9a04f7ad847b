"""Write, audit, publish: what a step has found goes through its gates before anybody sees it, then out in one commit.

A gate that fails stops the table, holds back the whole change of the failing keys (they stay as believed before), or is
told. The other gates look at what is left then.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from pyspark.sql import DataFrame

from hindcast import telling
from hindcast.building import tally, tie_counts
from hindcast.building.changes import Found
from hindcast.contracts import Contract, Expectation
from hindcast.corrected import ties
from hindcast.delta import commits, direct, files, in_place, tables
from hindcast.delta.tables import Table
from hindcast.planning.inputs import located
from hindcast.planning.plans import Plan
from hindcast.quality import gates, holding, holds, verdicts
from hindcast.quality.candidates import Candidate
from hindcast.reports import report


def publish(contract: Contract, todo: Plan, name: str, found: Found) -> dict[str, Any]:
    """Gates a change and commits what passes; nothing is written where nothing changed. Returns what the commit notes.

    GateError if a gate stops it. What an aggregate left out goes into the note; if that alone has changed, the commit
    has no rows.
    """
    table, note = located(contract, name), nothing(todo)
    change = found.changes if found.staged else found.changes.persist()
    try:
        told = _counted(change, table, todo, found)
        closing, bytes_ = told.pop("closing", None), told.pop("bytes", None)
        note |= told
        expected = contract.expectations(name)
        settled = not note["opened"] + note["closed"] and not any(gate.beyond for gate in expected)
        if settled and not _may_hold(table):
            return _left_out_alone(contract, todo, table, change, note, found)
        candidate = Candidate(contract, todo, name, change, note["opened"], note["closed"], tied=found.ties)
        with candidate, _audited(candidate, expected, found) as passed:
            if passed is not candidate:
                found = found._replace(staged=None, ties=passed.ties)
                note.pop("ties", None)
                told = _counted(passed.change, table, todo, found)
                closing, bytes_ = told.pop("closing"), told.pop("bytes")
                note |= told
            if not note["opened"] + note["closed"]:
                return _left_out_alone(contract, todo, table, passed.change, note, found)
            if found.staged is not None:
                direct.add(found.staged.files, table, todo.run, note, after=found.after)
                return note
            met = closing if note["closed"] else None
            if met is not None:
                in_place.touch(passed.change, table)
            commits.publish(
                passed.change,
                table,
                todo.run,
                todo.known_at,
                closing=met,
                note=note,
                after=found.after,
                few=files.few(note["opened"] + note["closed"], bytes_),
            )
            return note
    finally:
        change.unpersist()


def nothing(todo: Plan) -> dict[str, Any]:
    """What a commit notes, of a run that changes nothing."""
    return {"run": todo.run, "opened": 0, "closed": 0, "corrected": 0, "ages": {}}


def _counted(change: DataFrame, table: Table, todo: Plan, found: Found) -> dict[str, Any]:
    """How many rows are opened and closed, how old past answers among these are, where they lie; what is left out."""
    if found.staged is not None:
        return found.staged.told
    counts = tally.aggregates(table, todo.known_at)
    counted = change.agg(*counts, commits.closing(table), files.weight(change).alias("bytes"))
    counted = counted if found.left_out is None else counted.crossJoin(found.left_out)
    row = (counted if found.ties is None else counted.crossJoin(ties.count_ties(found.ties))).first()
    told: dict[str, Any] = row.asDict(recursive=True) if row else {}
    if found.ties is not None and (tied := tie_counts.note(told.pop("ties"))):
        told["ties"] = tied
    if found.left_out is not None:
        told |= found.besides(told)
    return told | {"ages": {age: n for age, n in told["ages"].items() if n}}


def _left_out_alone(
    contract: Contract, todo: Plan, table: Table, change: DataFrame, note: dict[str, Any], found: Found
) -> dict[str, Any]:
    """Where no row changes: a commit of the note if what an aggregate leaves out has, or if a record lost a tie."""
    before = report.before(table.warehouse, contract.pipeline).get(table.name, {})
    if report.besides(note) != report.besides(before) or note.get("ties", {}).get("lost"):
        none = change.where("false")
        commits.publish(none, table, todo.run, todo.known_at, closing=None, note=note, after=found.after)
    return note


def _may_hold(table: Table) -> bool:
    """Whether anything was ever held back in the pipeline."""
    return tables.opened(holds.table(table.warehouse, table.pipeline)) is not None


@contextmanager
def _audited(candidate: Candidate, expected: Sequence[Expectation], found: Found) -> Iterator[Candidate]:
    """Asks the gates; gives what of a candidate may be published. GateError if one stops it."""
    contract, todo, name = candidate.contract, candidate.todo, candidate.name
    if not expected and not _may_hold(candidate.table):
        yield candidate
        return
    with holding.sifted(candidate, expected, found.after, found.judged) as (passed, held, told):
        stopped = any(v.stops for v in told)
        if told:
            verdicts.enter(candidate.table.warehouse, contract.pipeline, todo.run, name, told)
            telling.note(gates=dict(Counter(v.outcome for v in told)))
        failed = [(expected[v.gate], v) for v in told if v.outcome == "failed" and not v.holds]
        holding.enter(passed, failed, held, stopped=stopped)
        gates.refuse(contract.pipeline, name, todo.run, told)
        yield passed
