"""The report of a run: fates, late records, changed rows, gates, and how to run it again."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from typing import NamedTuple, TypeVar

from hindcast.bitemporal import windows
from hindcast.bitemporal.fates import FATES
from hindcast.common.errors import RunError
from hindcast.contract import Contract, list_shapes
from hindcast.contract.bound import BoundContract
from hindcast.contract.definition import list_fields
from hindcast.contract.sensitive import REDACTED, find_sensitive_columns
from hindcast.contract.types import format_duration
from hindcast.ingest import late_delays, ledger
from hindcast.ingest.late_delays import LateDelays
from hindcast.ingest.ledger import FateRevision, IngestedRange
from hindcast.kafka import topic_patterns
from hindcast.plan import definitions, horizon, journal, marks
from hindcast.plan.definitions import ContractChange
from hindcast.plan.plans import Plan, TopicPlan
from hindcast.plan.purposes import Replay, Requeue
from hindcast.plan.runs import Completed, Run
from hindcast.quality import gate_results, held_changes
from hindcast.quality.gate_results import TrackedResult
from hindcast.quality.overdue import read_overdue
from hindcast.report import abandoned_runs, refused_records, report_size
from hindcast.report.run_report import GateReport, HeldKeys, PartitionReport, RunReport, TableReport, TopicReport
from hindcast.store import commit_history, emitted_log, table_columns, tables
from hindcast.store.commit_notes import NOTHING_LEFT_OUT, FatesNote, LeftOut, LogNote, TableNote, TieCounts
from hindcast.store.tables import Table

Variables = Sequence[tuple[str, str]]
"""The names and texts of variables that the command line gives (--var)."""


def build_report(
    warehouse: str, contract: Contract, plan: Plan, stopped: str | None = None, variables: Variables = ()
) -> RunReport:
    """Return the report of a run that has done all steps, or with `stopped` of one that this error message stopped.

    `variables`: those of the contract that a command gave. Raise RunError if the fates of a partition do not add up to
    its planned offsets (docs/guarantees.md).
    """
    (report,) = build_reports(warehouse, contract, [plan], stopped, variables)
    return report


def build_reports(
    warehouse: str, contract: Contract, plans: Sequence[Plan], stopped: str | None = None, variables: Variables = ()
) -> list[RunReport]:
    """Return the reports of a run, or of the runs of a pass, as `build_report` does; what they read is read once."""
    runs, names = [plan.run for plan in plans], (*contract.topics, *contract.views)
    # A skipped table may not be a table of Hindcast yet.
    located = {
        name: tables.locate_table(warehouse, contract, name) for name in names if name not in plans[0].skipped_tables
    }
    notes = {name: commit_history.read_notes(table, TableNote.from_json) for name, table in located.items()}
    topics = {
        name: _TopicFacts.read(warehouse, contract, plans, name)
        for name in plans[0].topics
        if name in contract.topics and name in located
    }
    completed = journal.read_completed_runs(warehouse, contract.pipeline)
    gates = gate_results.read_all_results(warehouse, contract.pipeline, runs)
    hidden = find_sensitive_columns(contract)
    left_out = {name: it.left_out for name, it in (completed[-1].results if completed else {}).items()}
    found = []
    for plan in plans:
        last = max((run.number for run in completed if run.number < plans[0].run), default=0)
        own_topics = {}
        for name, facts in topics.items():
            try:
                own_topics[name] = _report_topic(contract, plan, name, notes[name].get(plan.run), facts)
            except RunError:
                if stopped is None:
                    raise  # else it was not replayed yet
        place = warehouse, contract.pipeline, plan.run
        held, ended = {}, {}
        if plan.pass_numbers is None:  # a pass is made only where nothing is held, and holds nothing
            held, ended = held_changes.count_held(*place, last), held_changes.count_ended(*place)
        overdue = read_overdue(warehouse, contract, plan.run, plan.known_at) if held else {}
        reports = {}
        for name in names:
            table = _report_changes(contract, plan, name, located.get(name), notes.get(name, {}), left_out)
            judged = gates[plan.run].get(name) or _list_unchecked_gates(contract, name)
            held_keys = HeldKeys(**held[name], overdue=overdue.get(name)) if name in held else None
            own_gates = tuple(_report_gate(contract, plan, name, gate) for gate in judged)
            reports[name] = replace(table, gates=own_gates, held=held_keys, ended=ended.get(name, {}))
        left_out |= {name: table.left_out for name, table in reports.items()}
        report = RunReport(
            contract.pipeline,
            plan.run,
            plan.run_id,
            plan.known_at,
            plan.interval_end,
            plan.only,
            plan.reason,
            plan.erasure,
            "completed" if stopped is None else "stopped",
            stopped,
            _describe_contract(warehouse, contract, plan) if plan is plans[0] else None,
            abandoned_runs.find_abandoned_runs(warehouse, contract, plan.run) if plan is plans[0] else [],
            own_topics,
            reports,
            _rerun_commands(contract, plan, hidden, variables),
            rehearsed=plan.rehearsed_interval,
            approval=plan.approval,
        )
        found.append(report_size.cut_report(report))
    return found


class _TopicFacts(NamedTuple):
    """What the log of a topic, and what stands beside it, say of some runs."""

    log: Table
    pieces: Mapping[int, Sequence[IngestedRange]]
    revisions: Mapping[int, Sequence[FateRevision]]
    requeues: Mapping[int, FatesNote]
    log_notes: Mapping[int, LogNote]
    frozen: datetime | None
    delays: Mapping[int, LateDelays]

    @classmethod
    def read(cls, warehouse: str, contract: Contract, plans: Sequence[Plan], name: str) -> _TopicFacts:
        """Return what is known of the runs of these plans."""
        place, first, last = (warehouse, contract.pipeline, name), plans[0].run, plans[-1].run
        log, fates = tables.log_table(*place), tables.fates_table(*place)
        pieces = _group_by_run(ledger.read_ingested_ranges(log, first, until=last))
        revisions = _group_by_run(ledger.read_fate_revisions(fates, first if first == last else None))
        has_arrival, is_requeue = contract.topics[name].arrival is not None, any(plan.requeue for plan in plans)
        requeues = commit_history.read_notes(fates, FatesNote.from_json) if is_requeue else {}
        log_notes = commit_history.read_notes(log, LogNote.from_json) if has_arrival else {}
        frozen = horizon.find_frozen_until(warehouse, contract, name)
        is_late = any(piece.late for own in pieces.values() for piece in own)
        delays = late_delays.measure_delays(log, first, last) if is_late else {}
        return cls(log, pieces, revisions, requeues, log_notes, frozen, delays)


def _group_by_run(found: Sequence[OfRun]) -> dict[int, list[OfRun]]:
    by_run: dict[int, list[OfRun]] = {}
    for one in found:
        by_run.setdefault(one.run, []).append(one)
    return by_run


OfRun = TypeVar("OfRun", IngestedRange, FateRevision)


def _report_topic(contract: Contract, plan: Plan, name: str, note: TableNote | None, facts: _TopicFacts) -> TopicReport:
    """Return what a run did with a topic; `note`: that of its commit to the topic's table."""
    topic_plan, is_stream = plan.topics[name], contract.topics[name].read == "stream"
    partitions, late, without = _read_fates(facts, plan.run, topic_plan)
    revisions = facts.revisions.get(plan.run, ())
    counts = {fate: sum(revision.count_became(fate) for revision in revisions) for fate in FATES}
    revised = {fate: n for fate, n in counts.items() if n or fate in ("accepted", "expired")}
    requeue_note = facts.requeues.get(plan.run) if plan.requeue else None
    kafka, tied = contract.kafka_topic(name), note.ties if note else None
    log_note = facts.log_notes.get(plan.run)
    return TopicReport(
        kafka,
        sum(topic_plan.planned_counts.values()),
        late,
        partitions,
        without if is_stream else None,
        ledger.count_dated_before(facts.log, plan.run, facts.frozen) if facts.frozen else 0,
        revised if any(counts.values()) else {},
        requeue_note.requeued if requeue_note else None,
        requeue_note.still if requeue_note else {},
        locate_ties(kafka, topic_plan, tied) if tied else {},
        ahead=log_note.ahead if log_note else 0,
        delays=facts.delays.get(plan.run),
    )


def _report_changes(
    contract: Contract,
    plan: Plan,
    name: str,
    table: Table | None,
    notes: Mapping[int, TableNote],
    left_out: Mapping[str, LeftOut | None],
) -> TableReport:
    """Return what a run changed in a table (None: it skipped it); `notes`: of its commits, newest first. `left_out`: by
    table, what aggregates had left out before, as the journal says.
    """
    note = notes.get(plan.run)
    report = TableReport()
    if note is not None:
        counts = note.opened, note.closed, note.corrected, note.ages
        report = TableReport(*counts, plan.run, note.kernel, note.left_out)
    if table is not None:
        widened, is_rewritten = table_columns.read_widening(table, plan.known_at)
        report = replace(report, widened=widened, is_rewritten=is_rewritten)
    view = contract.views.get(name)
    if view is None or table is None:
        return report
    if view.semantics == "kafka":
        log = emitted_log.emitted_table(table.warehouse, contract, name)
        last = emitted_log.read_last_note(log, plan.run)
        progress = emitted_log.find_progress(contract, last) if last is not None else None
        return replace(report, emitted=emitted_log.count_records(log, plan.run), settled=progress)
    if view.aggregate is None:
        return report
    # A journal rebuilt from the tables has no reports; the notes of the tables' commits say the same.
    noted = (note.left_out for run, note in notes.items() if run < plan.run and note.left_out)
    previous = left_out[name] if name in left_out else next(noted, None)
    return summarize_aggregate(contract, plan, name, report, previous or NOTHING_LEFT_OUT)


def _describe_contract(warehouse: str, contract: Contract, plan: Plan) -> ContractChange | None:
    """Return how the contract of a run differs from that of the last completed run before it; None if it does not."""
    past = journal.read_runs(warehouse, contract.pipeline)
    fields = list_fields(contract) if contract.hash == plan.contract else definitions.find_fields(past, plan.contract)
    return definitions.describe_change([run for run in past if run.number < plan.run], plan.contract, fields)


def locate_ties(kafka: str, topic_plan: TopicPlan, counts: TieCounts) -> Mapping[str, int | str]:
    """Return the tie counts of a commit's note, with `loser` and `winner` as text instead of [partition, offset]."""
    places = {side: place for side, place in (("loser", counts.loser), ("winner", counts.winner)) if place}
    texts = {
        side: f"{topic_patterns.describe_partition(kafka, topic_plan.members, partition)}, offset {offset}"
        for side, (partition, offset) in places.items()
    }
    return counts.counts | texts


def _rerun_commands(contract: Contract, plan: Plan, hidden: Mapping[str, frozenset[str]], variables: Variables) -> str:
    """Return the commands that repeat what a run did, on current data, without keys that have `hidden` columns."""
    pipeline, chosen = contract.pipeline, "".join(f" --var {shlex.quote(f'{name}={text}')}" for name, text in variables)
    if plan.released_keys:
        commands = (_release_command(contract, name, of.keys, hidden) for name, of in plan.released_keys.items())
        return "; ".join(f"{command}{chosen}" for command in commands)
    if plan.requeue:
        return f"hindcast requeue {pipeline}{_requeue_options(contract, plan.requeue)}{chosen}"
    if (interval := plan.rehearsed_interval) is not None:
        since, until = (moment.isoformat() for moment in (interval.since, interval.until))
        length = format_duration(-(-(interval.until - interval.since) // _MILLISECOND) * _MILLISECOND)  # as one run
        logs = plan.purpose.logs if isinstance(plan.purpose, Replay) else None
        names = f"{logs} --into {pipeline}" if logs else pipeline
        return f"hindcast rehearse {names} --from {since} --to {until} --every '{length}'{chosen}"
    until = f" --until {plan.interval_end.isoformat()}" if plan.interval_end else ""
    return f"hindcast run {pipeline}{until}" + (f" --only {plan.only}" if plan.only else "") + chosen


_MILLISECOND = timedelta(milliseconds=1)
_FEW_KEYS = 5
"""A command names at most this many released keys."""


def _release_command(contract: Contract, name: str, keys: Sequence[str], hidden: Mapping[str, frozenset[str]]) -> str:
    """Return the command that releases the same keys of a table; for sensitive or many keys, all held ones."""
    command, known = f"hindcast release {contract.pipeline}.{name}", list_shapes(contract)
    if name not in known or len(keys) > _FEW_KEYS or hidden[name] & {*known[name].key}:
        return command
    return command + "".join(f" --key {shlex.quote(key)}" for key in keys)


def _requeue_options(contract: Contract, request: Requeue) -> str:
    """Return the options of `hindcast requeue` that select the same records (`requeue.build_request`)."""
    topics = request.topics
    topic = request.kafka_topic or (topics[0] if len(topics) == 1 and len(contract.topics) > 1 else None)
    options = {"topic": topic, "reason": request.reason, "partition": request.partition}
    text = "".join(f" --{name} {shlex.quote(str(value))}" for name, value in options.items() if value is not None)
    return text + "".join(f" --offset {offset}" for offset in request.offsets)


def read_report(contract: BoundContract, run: Run) -> RunReport:
    """Return the report of a completed or stopped run; raise RunError for any other run, TableError for a
    malformed report.
    """
    past = journal.read_runs(contract.warehouse, contract.pipeline)
    if isinstance(run.outcome, Completed):
        with run.refuse_malformed_report():
            return mask_report(RunReport.from_json(run.outcome.report), contract, run, past)
    if run.stop_error is None:
        where, fix = f"{contract.pipeline}, run {run.number}", "wait until it has ended"
        raise RunError(f"a run that is {run.state} has no report", where=where, fix=fix)
    stopped = build_report(
        contract.warehouse, contract, run.plan, stopped=run.stop_error, variables=contract.settings.variables
    )
    return mask_report(stopped, contract, run, past)


def mask_report(report: RunReport, contract: BoundContract, run: Run, past: Sequence[Run]) -> RunReport:
    """Return the report of one of the `past` runs without values and keys that are sensitive today.

    Those of columns that have left their tables count as sensitive, and what former contracts hide (former_marks.py).
    """
    known, names = list_shapes(contract), (*contract.topics, *contract.views)
    hidden = marks.find_marked_columns(contract.settings, contract, names)
    mask = gate_results.build_masker(contract, hidden)

    def mask_table(name: str, table: TableReport) -> TableReport:
        gates = tuple(replace(gate, result=mask(name, gate.result)) for gate in table.gates)
        held = table.held
        if held is not None and held.overdue is not None and (name not in known or hidden[name] & {*known[name].key}):
            held = replace(held, overdue=held.overdue._replace(key="***"))
        return replace(table, gates=gates, held=held)

    tables = {name: mask_table(name, table) for name, table in report.tables.items()}
    topics = {name: refused_records.mask_reasons(topic, contract, past, run) for name, topic in report.topics.items()}
    stopped = REDACTED if report.found and marks.has_new_marks(contract, past, run) else report.found
    again = report.again
    if run.plan.released_keys:
        again = _rerun_commands(contract, run.plan, hidden, contract.settings.variables)
    return replace(report, topics=topics, tables=tables, found=stopped, again=again)


LEFT_OUT = {"no_key": "without a key", "no_value": "without a value", "too_late": "too late"}
"""The kinds of records that an aggregate leaves out (derivation.count_left_out_of_view), as text."""

NOT_CHECKED = "nothing changed"
"""The detail of gates that were not evaluated because their table did not change."""


def _list_unchecked_gates(contract: Contract, name: str) -> list[TrackedResult]:
    """Return the gates of a table that a run did not evaluate, as unchecked."""
    return [
        TrackedResult(n, gate.type, gate.kwargs, gate.on_failure, "unchecked", 0, None, None, NOT_CHECKED, [])
        for n, gate in enumerate(contract.expectations(name))
    ]


def _report_gate(contract: Contract, plan: Plan, name: str, gate: TrackedResult) -> GateReport:
    """Return a gate's result; if it failed row by row, with the command that lists the rows."""
    if gate.outcome != "failed" or gate.failing is None:
        return GateReport(gate)
    which = " --held" if gate.on_failure == "quarantine" else f" --gate {gate.gate}"
    which = "" if name in plan.released_keys else which
    return GateReport(gate, f"hindcast failing {contract.pipeline} --run {plan.run} --table {name}{which}")


def summarize_aggregate(
    contract: Contract, plan: Plan, name: str, report: TableReport, earlier: LeftOut
) -> TableReport:
    """Return an aggregate's report with what it left out in total and since the run before (`earlier`), and of windows
    up to when they are closed.

    A run that changed none of this has no note of it; then the values of the run before still hold.
    """
    counted = report.left_out or earlier
    counts = {kind: counted.counts.get(kind, 0) for kind in LEFT_OUT}
    new = {kind: n - earlier.counts.get(kind, 0) for kind, n in counts.items()}
    window = contract.views[name].window
    if window is None:
        return replace(report, left_out=LeftOut(counts), newly_left_out=new)
    source = name
    while source in contract.views:
        source = contract.views[source].first_input
    times = counted.stream_times or {}
    # A run does not know the partition count of another pipeline's stream, so none of its windows is closed.
    reached = [times.get(str(p)) for p in plan.topics[source].ranges] if source in plan.topics else []
    moments = [datetime.fromisoformat(moment) for moment in reached if moment is not None]
    closed = windows.latest_closed_end(window, min(moments)) if moments and len(moments) == len(reached) else None
    left_out = LeftOut(counts, times)
    return replace(report, left_out=left_out, newly_left_out=new, has_windows=True, closed_up_to=closed)


def _read_fates(facts: _TopicFacts, run: int, topic_plan: TopicPlan) -> tuple[tuple[PartitionReport, ...], int, int]:
    """Return each planned range with the number of its offsets by fate, as the log has them.

    Also how many records were late, and how many had no value.
    """
    pieces = {(piece.partition, piece.start): piece for piece in facts.pieces.get(run, ())}
    partitions, late, without = [], 0, 0
    for partition, offsets in [*topic_plan.earlier.items(), *topic_plan.ranges.items()]:
        planned = offsets.end - offsets.start
        piece = pieces.get((partition, offsets.start)) if planned else None
        fates = piece.fates if piece else {}
        if planned and (piece is None or piece.end != offsets.end):
            raise RunError(
                f"{planned} offsets were planned ({offsets.start} to {offsets.end - 1}), but "
                f"{sum(fates.values())} have a fate: {fates}",
                where=f"{facts.log.path}, partition {partition}, run {run}",
                fix="retry the run's replay step; if that does not help, something else changed the log",
            )
        if piece is not None:
            late, without = late + piece.late, without + piece.without_value
        member = topic_patterns.find_member(topic_plan.members, partition)
        partitions.append(PartitionReport(partition, offsets.start, offsets.end, fates, *member))
    return tuple(partitions), late, without
