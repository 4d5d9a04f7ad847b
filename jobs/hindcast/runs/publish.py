"""Publishing a change: it goes through its gates before anybody sees it, and is then published in one commit.

A gate that fails stops the table, holds back the whole change of the failing keys (which keep their old rows), or is
only reported. The remaining gates judge what is left. What the commit says is a `TableNote` (store/commit_notes.py).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import reduce
from typing import NamedTuple

from pyspark.sql import DataFrame

from hindcast.bitemporal import ties
from hindcast.common import step_events
from hindcast.common.errors import RunError
from hindcast.contract import Expectation
from hindcast.contract.bound import BoundContract
from hindcast.engine.staged_files import StagedFiles
from hindcast.plan import horizon, journal
from hindcast.plan.inputs import locate_own_table
from hindcast.plan.plans import Plan
from hindcast.plan.runs import was_published_late
from hindcast.quality import failing_rows, gate_evaluation, gate_results, quarantine_gates
from hindcast.quality.staged_change import StagedChange
from hindcast.runs import change_statistics, tie_counts
from hindcast.runs.derive_whole import DerivedChange
from hindcast.store import commits, delta_rs_writer, lazy_migration, tables
from hindcast.store.change_reader import PeriodSpan
from hindcast.store.commit_notes import NOTHING_LEFT_OUT, LeftOut, TableNote
from hindcast.store.commits import ClosedRows
from hindcast.store.tables import Table


def gate_and_publish_change(contract: BoundContract, plan: Plan, name: str, derived: DerivedChange) -> TableNote:
    """Gate a change and commit what passes, unless nothing changed; return the commit's note.

    Raise GateError if a gate stops it, RunError if what it was derived from was trimmed meanwhile. The note has what an
    aggregate left out; if only that has changed, the commit has no rows.
    """
    table = locate_own_table(contract, name)
    staged = derived.stage() if derived.stage is not None else None
    derived = derived if staged is not None else derived.without_kernel()
    change = derived.changes if staged is None else staged.read_change(derived.changes.sparkSession)
    if staged is None and derived.totals is None:
        change.persist()
    try:
        counted = _count_change(change, table, plan, derived, staged)
        _refuse_trimmed_sources(contract, plan, name, derived)
        expected = contract.expectations(name)
        unchanged = not counted.note.changed_rows and not any(gate.can_fail_without_change for gate in expected)
        if unchanged and not _has_quarantine(table):
            return _commit_left_out(plan, table, change, counted.note, derived)
        opened, closed = counted.note.opened, counted.note.closed
        find_ties, span = derived.find_ties, counted.span
        candidate = StagedChange(contract, plan, name, change, opened, closed, find_ties=find_ties, span=span)
        with candidate, _audit_change(candidate, expected, derived) as passed:
            if passed is not candidate:
                staged, derived = None, derived._replace(find_ties=passed.find_ties, ties=None, totals=None)
                counted = _count_change(passed.change, table, plan, derived, staged)
            note = counted.note
            if not note.changed_rows:
                return _commit_left_out(plan, table, passed.change, note, derived)
            if staged is not None:
                delta_rs_writer.add_files(staged.files, table, plan.run, note.as_json(), after=derived.after)
                return note
            closing = counted.closing if note.closed else None
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
                text_bytes=counted.bytes_ or 0,
            )
            return note
    finally:
        change.unpersist()


def _refuse_trimmed_sources(contract: BoundContract, plan: Plan, name: str, derived: DerivedChange) -> None:
    """Raise RunError if a table's sources were trimmed after its change was derived, and before it was computed.

    Rows that were removed in between would be closed. A trim sets the horizon first (ops/retention.py).
    """
    if name in contract.views and contract.views[name].semantics == "kafka":
        return
    frozen = horizon.find_frozen_until(contract.warehouse, contract, name)
    if frozen is not None and frozen != derived.frozen:
        raise RunError(
            f"what it is derived from was trimmed up to {frozen.isoformat()} while run {plan.run} was reading it",
            where=f"{contract.pipeline}.{name}",
            fix="retry the run; nothing of the table was published",
        )


class _CountedChange(NamedTuple):
    """The note of a change, and what is not known of staged files: where the rows to close are, the size of its texts,
    and the span of its rows.
    """

    note: TableNote
    closing: ClosedRows | None = None
    bytes_: int | None = None
    span: PeriodSpan | None = None


def _count_change(
    change: DataFrame, table: Table, plan: Plan, derived: DerivedChange, staged: StagedFiles | None
) -> _CountedChange:
    """Count a change in one job: rows, past answers by age, ties, and what an aggregate leaves out."""
    counts = [] if derived.left_out is None or staged is not None else [derived.left_out]
    tied = derived.ties if staged is None else staged.ties
    if derived.find_ties is not None and tied is None:
        counts.append(ties.count_ties(derived.find_ties()))
    if staged is None and derived.totals is None:
        counts.append(change.agg(*change_statistics.total_columns(table, plan.known_at, change)))
    counted = change_statistics.read_counts(reduce(DataFrame.crossJoin, counts)) if counts else {}
    fields = {**(derived.totals or {}), **counted}
    tied = tie_counts.summarize_ties(fields["ties"]) if "ties" in fields else tied
    tied = None if derived.find_ties is None or tied is None or not tied.counts else tied
    if staged is not None:
        return _CountedChange(replace(staged.build_note(plan.run), ties=tied))
    left_out = LeftOut.from_json(fields)
    if left_out is not None and derived.before is not None:
        left_out = derived.before + left_out
    rows = change_statistics.parse_statistics(fields)
    note = TableNote(plan.run, *rows, ties=tied, left_out=left_out, kernel=derived.kernel)
    span = PeriodSpan.from_micros(**fields["span"])
    return _CountedChange(note, ClosedRows(**fields["closing"]), fields["bytes"], span)


def _commit_left_out(plan: Plan, table: Table, change: DataFrame, note: TableNote, derived: DerivedChange) -> TableNote:
    """Commit only the note if what an aggregate leaves out has changed or a record lost a tie; return the note.

    Also if an abandoned run has published the table late: the note says that its rows are right.
    """
    past = journal.read_runs(table.warehouse, table.pipeline)
    is_late = was_published_late(past, table.name, derived.after)
    before = journal.read_last_result(table.warehouse, table.pipeline, table.name).left_out or NOTHING_LEFT_OUT
    has_changed = not (note.left_out or NOTHING_LEFT_OUT).says_the_same_as(before)
    if has_changed or is_late or (note.ties is not None and note.ties.lost):
        no_rows = change.where("false")
        commits.commit_change(no_rows, table, plan.run, plan.known_at, closing=None, note=note, after=derived.after)
    return note


def _has_quarantine(table: Table) -> bool:
    """Return whether anything was ever held back in the pipeline."""
    return tables.open_table(failing_rows.failing_table(table.warehouse, table.pipeline)) is not None


@contextmanager
def _audit_change(
    candidate: StagedChange, expected: Sequence[Expectation], derived: DerivedChange
) -> Iterator[StagedChange]:
    """Evaluate the gates and yield the part of a candidate that may be published; raise GateError if one stops it."""
    contract, plan, name = candidate.contract, candidate.plan, candidate.name
    if not expected and not _has_quarantine(candidate.table):
        yield candidate
        return
    with quarantine_gates.sift_change(candidate, expected, derived.after, derived.judged) as (passed, held, verdicts):
        stopped = any(v.is_stopping for v in verdicts)
        if verdicts:
            gate_results.append_results(candidate.table.warehouse, contract.pipeline, plan.run, name, verdicts)
            step_events.add_fields(gates=dict(Counter(v.outcome for v in verdicts)))
        failed = [(expected[v.gate], v) for v in verdicts if v.outcome == "failed" and not v.is_holding]
        quarantine_gates.append_entries(passed, failed, held, stopped=stopped)
        gate_evaluation.refuse_failed_gates(contract.pipeline, name, plan.run, verdicts)
        yield passed
