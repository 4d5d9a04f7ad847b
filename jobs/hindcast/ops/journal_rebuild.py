"""Rebuild the journal of runs from the logs and the transaction identifiers of the tables: it is a view of them.

What only the journal knew is lost: the names of runs whose commits are too old to be read, the bounds of intervals, and
whether the last run was completed. That run is abandoned, and the next run derives what it left; so is a rehearsed run
whose interval a later one has rehearsed again. What a run was for is known of requeues, of releases, and of erasures
from the proofs beside the reports (rebuilt_runs.py).
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from dataclasses import replace
from datetime import datetime, timedelta

from hindcast.common import clock
from hindcast.common.errors import TableError
from hindcast.contract import Contract
from hindcast.contract.bound import BoundContract
from hindcast.ingest import ledger
from hindcast.ingest.ledger import IngestedRange
from hindcast.kafka.topic_patterns import MemberPartition
from hindcast.kafka.topics import OffsetRange
from hindcast.ops import rebuilt_runs
from hindcast.plan import committed_runs, journal
from hindcast.plan.plans import Plan, TopicPlan
from hindcast.plan.purposes import ArrivalInterval, Replay
from hindcast.plan.rehearsals import MICROSECOND
from hindcast.plan.runs import MALFORMED, Abandoned, Completed, Run
from hindcast.report import report
from hindcast.report.run_report import RunReport
from hindcast.store import commit_history, commit_ids, tables
from hindcast.store.commit_notes import IdlePartition, LogNote

_REASON = "its journal was rebuilt"
"""Why a run is abandoned that may have been completed, or certainly was not."""


def rebuild_journal(warehouse: str, contract: BoundContract) -> list[int]:
    """Make a pipeline's journal agree with its logs and tables; return the numbers of the runs that it wrote again.

    Runs of which the journal says the same as the logs stay as they are; entries that contradict each other
    (`journal.find_damage`) are put in order. If all agree, nothing is written. Runs without a plan are removed by the
    commit that writes the others again: until then no other run can take their numbers, since none can be planned.
    Raise BusyError if one of the runs was planned or has ended meanwhile.
    """
    before = journal.read_entries(warehouse, contract.pipeline)
    planned, unplanned = journal.read_planned_runs(warehouse, contract.pipeline)
    known = {run.number: run for run in planned}
    ingested = {
        name: ledger.read_ingested_ranges(tables.log_table(warehouse, contract.pipeline, name))
        for name in contract.topics
    }
    ingesting = {piece.run for pieces in ingested.values() for piece in pieces}
    known_ats = rebuilt_runs.read_known_ats(warehouse, contract, ingested)
    planned_ats = {run.number: run.known_at for run in planned}
    removing = rebuilt_runs.find_removals(warehouse, contract)
    proofs = rebuilt_runs.find_own_proofs(contract, planned_ats | known_ats, removing - ingesting)
    known_ats |= {run: proof.known_at for run, proof in proofs.items() if run not in known_ats}
    published = rebuilt_runs.find_published_runs(warehouse, contract, planned_ats | known_ats)
    known_ats |= published
    known_ats |= rebuilt_runs.date_last_commits(warehouse, contract, planned_ats | known_ats)
    purposes = rebuilt_runs.find_purposes(warehouse, contract, proofs, ingesting)
    numbers = sorted({*known_ats, *known})
    uncertain, ended = max(numbers, default=0), _find_ended_runs(contract)
    committed = committed_runs.find_last_commit(contract).run
    last = max([committed, *ended, *removing, rebuilt_runs.find_last_entry(warehouse, contract.pipeline)])
    if last > uncertain:  # no other run can have its number
        moments = [*known_ats.values(), *(run.known_at for run in planned)]
        known_ats[last] = max(moments, default=clock.now()) + MICROSECOND
        numbers.append(last)
    rebuilt = [
        n
        for n in numbers
        if n not in known or not _has_planned_offsets(known[n], ingested) or has_malformed_report(known[n])
    ]
    disordered = [n for n, _ in journal.find_damage(warehouse, contract.pipeline) if n in known and n not in rebuilt]
    entries = [
        entry for number in disordered for entry in journal.read_run_history(warehouse, contract.pipeline, number)
    ]
    plans = {number: run.plan for number, run in known.items()}
    for number in rebuilt:
        known_at = known_ats.get(number) or known[number].known_at
        plan = _derive_plan(warehouse, contract, number, known_at, ingested)
        plans[number] = replace(plan, purpose=purposes.get(number, plan.purpose))
    writing = published.keys() & {*rebuilt} - removing
    for number, interval in rebuilt_runs.find_repeated_intervals(plans, writing).items():
        plans[number] = replace(plans[number], purpose=Replay(arrival=interval))
    rehearsed = {n: it for n, plan in plans.items() if (it := plan.rehearsed_interval) is not None}
    unfinished = rebuilt_runs.find_unfinished(rehearsed, ended)
    unfinished |= rebuilt_runs.find_unfinished_passes(warehouse, contract)
    for number in rebuilt:
        outcome: Completed | Abandoned
        if number >= uncertain or number not in known_ats:
            outcome = Abandoned(_REASON)
        elif number in unfinished:
            outcome = Abandoned(_REASON, rebuilt_runs.list_published_tables(warehouse, contract, number))
        else:
            with journal.skip_unplanned_runs():
                outcome = _rebuild_report(warehouse, contract, plans[number])
        entries += [Run(plans[number]), Run(plans[number], outcome)]
    if entries or unplanned:
        journal.replace_entries(warehouse, contract.pipeline, entries, unplanned, before)
    return sorted([*rebuilt, *disordered])


def _has_planned_offsets(run: Run, ingested: dict[str, list[IngestedRange]]) -> bool:
    """Return True if the logs have what a run planned to ingest; of an unfinished run, chunks may be missing."""
    planned = run.plan.topics
    for name, ranges in ingested.items():
        own = {(piece.partition, piece.start, piece.end) for piece in ranges if piece.run == run.number}
        topic_plan = planned.get(name)
        if run.state == "completed" or topic_plan is None:
            possible = [topic_plan] if topic_plan else []
        else:
            possible = [topic_plan.cut_after_chunks(count) for count in range(1, len(topic_plan.chunks) + 1)]
        expected = [{(p, r.start, r.end) for part in taken.parts for p, r in part.items()} for taken in possible]
        if own not in (expected or [set()]) and (own or run.state == "completed"):
            return False
    return True


def has_malformed_report(run: Run) -> bool:
    """Return whether a completed run has a report that cannot be read, or is of another run."""
    if isinstance(run.outcome, Completed):
        try:
            report, _ = RunReport.from_json(run.outcome.report), run.counts
        except (TableError, *MALFORMED):
            return True
        return (report.pipeline, report.run) != (run.plan.pipeline, run.number)
    return False


def _find_ended_runs(contract: BoundContract) -> set[int]:
    """Return the last run whose commits each table of a contract refuses (`commit_ids.end_run`)."""
    opened = ((table, tables.open_table(table)) for table in committed_runs.list_run_tables(contract))
    return {commit_ids.read_ended_run(it, table.app_id()) for table, it in opened if it is not None}


def _rebuild_report(warehouse: str, contract: Contract, plan: Plan) -> Completed:
    """Return a completed run's outcome, with a report from logs, tables and gate results."""
    return Completed(replace(report.build_report(warehouse, contract, plan), rebuilt=True).as_json())


_UNKNOWN_VALID_TIME = "?"
"""Not an expression: records are dated again where nobody knows what `valid_time` dated them."""


def _derive_plan(
    warehouse: str, contract: Contract, number: int, known_at: datetime, ingested: dict[str, list[IngestedRange]]
) -> Plan:
    """Return the plan that a run must have had to ingest what the logs have of it; of no known contract."""
    topic_plans, run_id, first, arrival = {}, f"rebuilt__{number}", number, None
    for name, ranges in ingested.items():
        topic_plan = _derive_topic_plan([piece for piece in ranges if piece.run <= number], number)
        log = tables.log_table(warehouse, contract.pipeline, name)
        if topic_plan and (members := ledger.read_members(log)):
            topic_plan = replace(topic_plan, topic_id="", members=members)
        notes = commit_history.read_notes(log, LogNote.from_json)
        if topic_plan and (last := max((run for run in notes if run <= number), default=None)) is not None:
            topic_plan = _add_idle_partitions(topic_plan, notes[last].idle)
        note = notes.get(number)
        if topic_plan:
            topic_plans[name] = replace(topic_plan, valid_time=note.valid_time if note else _UNKNOWN_VALID_TIME)
        run_id = note.run_id if note else run_id
        arrival = _read_interval(note, known_at) if note and note.rehearses else arrival
        if ranges and ranges[-1].run == number:  # it may have been abandoned between two chunks
            first = min(first, tables.read_last_run(log))
    numbers = number + 1 - first
    purpose = Replay(arrival=arrival)
    return Plan(contract.pipeline, number, run_id, known_at, None, "", topic_plans, purpose=purpose, numbers=numbers)


def _read_interval(note: LogNote, known_at: datetime) -> ArrivalInterval | None:
    """Return the interval of arrival in the note of a run with this known-at; None if it cannot be that."""
    with suppress(*MALFORMED):
        interval = ArrivalInterval.from_json(note.rehearses)
        return interval if interval.since < interval.until <= known_at + timedelta(milliseconds=1) else None
    return None


def _add_idle_partitions(topic_plan: TopicPlan, idle: Iterable[IdlePartition]) -> TopicPlan:
    """Return a plan with the partitions too of which the log has nothing, as its last note has them."""
    new = [it for it in idle if it.partition not in topic_plan.ranges]
    starts = {it.partition: it.start_offset for it in new if it.start_offset is not None}
    ranges = {it.partition: OffsetRange(it.end, it.end) for it in new}
    members = {it.partition: MemberPartition(*it.member) for it in new if it.member is not None}
    return replace(
        topic_plan,
        start_offsets=topic_plan.start_offsets | starts,
        ranges=topic_plan.ranges | ranges,
        members=topic_plan.members | members,
    )


def _derive_topic_plan(pieces: list[IngestedRange], number: int) -> TopicPlan | None:
    """Return what a run took of a topic whose log has these ranges of it and of earlier runs; None without any."""
    if not pieces:
        return None
    starts: dict[int, int] = {}
    ends: dict[int, int] = {}
    base: dict[int, int] = {}  # the offset from which on none is missing
    own: dict[bool, dict[int, OffsetRange]] = {True: {}, False: {}}
    left: dict[int, OffsetRange] = {}
    for piece in pieces:
        p = piece.partition
        before = p in ends and piece.end <= ends[p]
        if piece.run == number:
            own[before][p] = OffsetRange(piece.start, piece.end)
        starts[p] = min(piece.start, starts.get(p, piece.start))
        ends[p] = max(piece.end, ends.get(p, piece.end))
        base.setdefault(p, piece.start)
        if before:
            left[p] = OffsetRange(piece.end, base[p])
            base[p] = starts[p] if piece.end == base[p] else base[p]
    ranges = {p: own[False].get(p, OffsetRange(end, end)) for p, end in ends.items()}
    left = {p: r for p, r in left.items() if r.start < r.end}
    after = max((piece.run for piece in pieces if piece.run < number), default=0)
    return TopicPlan(pieces[-1].topic_id, pieces[-1].epoch, after, starts, ranges, own[True], abandoned_ranges=left)
