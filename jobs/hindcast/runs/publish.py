"""Write, audit, publish: a change goes through its gates before anybody sees it, and is then published in one commit.

A gate that fails stops the table, holds back the whole change of the failing keys (which keep their old rows), or is
only reported. The remaining gates judge what is left.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from pyspark.sql import DataFrame

from hindcast.bitemporal import ties
from hindcast.common import step_events
from hindcast.contract import Contract, Expectation
from hindcast.plan.inputs import locate_own_table
from hindcast.plan.plans import Plan
from hindcast.quality import gate_results, gates, hold_back, hold_store
from hindcast.quality.staged_change import StagedChange
from hindcast.report import report
from hindcast.runs import change_statistics, tie_counts
from hindcast.runs.changes import DerivedChange
from hindcast.store import commits, delta_rs_writer, files, lazy_migration, tables
from hindcast.store.tables import Table


def gate_and_publish_change(contract: Contract, plan: Plan, name: str, derived: DerivedChange) -> dict[str, Any]:
    """Gate a change and commit what passes, unless nothing changed; return the commit's note.

    Raise GateError if a gate stops it. The note has what an aggregate left out; if only that has changed, the commit
    has no rows.
    """
    table, note = locate_own_table(contract, name), empty_note(plan)
    change = derived.changes if derived.staged else derived.changes.persist()
    try:
        counts = _count_change(change, table, plan, derived)
        closing, bytes_ = counts.pop("closing", None), counts.pop("bytes", None)
        note |= counts
        expected = contract.expectations(name)
        unchanged = not note["opened"] + note["closed"] and not any(gate.can_fail_without_change for gate in expected)
        if unchanged and not _has_quarantine(table):
            return _commit_left_out(contract, plan, table, change, note, derived)
        candidate = StagedChange(contract, plan, name, change, note["opened"], note["closed"], tied=derived.ties)
        with candidate, _audit_change(candidate, expected, derived) as passed:
            if passed is not candidate:
                derived = derived._replace(staged=None, ties=passed.ties)
                note.pop("ties", None)
                counts = _count_change(passed.change, table, plan, derived)
                closing, bytes_ = counts.pop("closing"), counts.pop("bytes")
                note |= counts
            if not note["opened"] + note["closed"]:
                return _commit_left_out(contract, plan, table, passed.change, note, derived)
            if derived.staged is not None:
                delta_rs_writer.add_files(derived.staged.files, table, plan.run, note, after=derived.after)
                return note
            closing = closing if note["closed"] else None
            if closing is not None:
                lazy_migration.migrate_changed_keys(passed.change, table)
            commits.commit_change(
                passed.change,
                table,
                plan.run,
                plan.known_at,
                closing=closing,
                note=note,
                after=derived.after,
                few=files.is_small(note["opened"] + note["closed"], bytes_),
            )
            return note
    finally:
        change.unpersist()


def empty_note(plan: Plan) -> dict[str, Any]:
    """Return the note of a commit of a run that changes nothing."""
    return {"run": plan.run, "opened": 0, "closed": 0, "corrected": 0, "ages": {}}


def _count_change(change: DataFrame, table: Table, plan: Plan, derived: DerivedChange) -> dict[str, Any]:
    """Return the counts of a change for the commit's note: rows, past answers by age, ties, and what is left out.

    Also `closing`, where the rows to close are, and `bytes`, the size of texts; not for staged files.
    """
    if derived.staged is not None:
        return derived.staged.commit_note
    counts = change_statistics.statistics_columns(table, plan.known_at)
    totals = change.agg(*counts, commits.closing_summary(table), files.text_size_column(change).alias("bytes"))
    totals = totals if derived.left_out is None else totals.crossJoin(derived.left_out)
    row = (totals if derived.ties is None else totals.crossJoin(ties.count_ties(derived.ties))).first()
    fields: dict[str, Any] = row.asDict(recursive=True) if row else {}
    if derived.ties is not None and (tied := tie_counts.tie_note(fields.pop("ties"))):
        fields["ties"] = tied
    if derived.left_out is not None:
        fields |= derived.merge_left_out(fields)
    return fields | {"ages": {age: n for age, n in fields["ages"].items() if n}}


def _commit_left_out(
    contract: Contract, plan: Plan, table: Table, change: DataFrame, note: dict[str, Any], derived: DerivedChange
) -> dict[str, Any]:
    """Commit only the note if what an aggregate leaves out has changed or a record lost a tie; return the note."""
    before = report.read_previous_tables(table.warehouse, contract.pipeline).get(table.name, {})
    if report.aggregate_extras(note) != report.aggregate_extras(before) or note.get("ties", {}).get("lost"):
        no_rows = change.where("false")
        commits.commit_change(no_rows, table, plan.run, plan.known_at, closing=None, note=note, after=derived.after)
    return note


def _has_quarantine(table: Table) -> bool:
    """Return whether anything was ever held back in the pipeline."""
    return tables.open_table(hold_store.failing_table(table.warehouse, table.pipeline)) is not None


@contextmanager
def _audit_change(
    candidate: StagedChange, expected: Sequence[Expectation], derived: DerivedChange
) -> Iterator[StagedChange]:
    """Evaluate the gates and yield the part of a candidate that may be published; raise GateError if one stops it."""
    contract, plan, name = candidate.contract, candidate.plan, candidate.name
    if not expected and not _has_quarantine(candidate.table):
        yield candidate
        return
    with hold_back.sift_change(candidate, expected, derived.after, derived.judged) as (passed, held, verdicts):
        stopped = any(v.is_stopping for v in verdicts)
        if verdicts:
            gate_results.append_results(candidate.table.warehouse, contract.pipeline, plan.run, name, verdicts)
            step_events.add_fields(gates=dict(Counter(v.outcome for v in verdicts)))
        failed = [(expected[v.gate], v) for v in verdicts if v.outcome == "failed" and not v.is_holding]
        hold_back.append_entries(passed, failed, held, stopped=stopped)
        gates.refuse_failed_gates(contract.pipeline, name, plan.run, verdicts)
        yield passed
