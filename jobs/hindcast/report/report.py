"""The report of a run: fates, late records, changed rows, gates, and how to run it again."""

from __future__ import annotations

import shlex
from collections.abc import Collection, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

from hindcast.bitemporal import windows
from hindcast.common.errors import LINE_BREAKS, RunError, escape_controls
from hindcast.common.plurals import format_count, format_counts
from hindcast.contract import Contract, list_shapes
from hindcast.contract.definition import list_fields
from hindcast.contract.sensitive import find_sensitive_columns
from hindcast.ingest import ledger, requeue
from hindcast.kafka import topic_patterns
from hindcast.plan import definitions, horizon, journal
from hindcast.plan.journal import Completed, Run
from hindcast.plan.plans import Plan, TopicPlan
from hindcast.plan.purposes import Requeue
from hindcast.quality import gate_results, hold_store
from hindcast.quality.expectations import format_gate
from hindcast.quality.overdue import read_overdue
from hindcast.report import abandoned_runs
from hindcast.store import emitted_log, tables
from hindcast.store.commit_notes import NOTHING_LEFT_OUT, FatesNote, LeftOut, TableNote, TieCounts
from hindcast.store.table_creation import WIDENING_WARNING
from hindcast.store.tables import Table


def build_report(warehouse: str, contract: Contract, plan: Plan, stopped: str | None = None) -> dict[str, Any]:
    """Return the report of a run that has done all steps, or with `stopped` of one that this error message stopped.

    Raise RunError if the fates of a partition do not add up to its planned offsets (docs/guarantees.md).
    """
    topics = {}
    for name, topic_plan in plan.topics.items():
        if name not in contract.topics or name in plan.skipped_tables:
            continue
        try:
            partitions = _read_fates(tables.log_table(warehouse, contract.pipeline, name), plan.run, topic_plan)
        except RunError:
            if stopped is None:
                raise
            continue  # not replayed yet
        topics[name] = {
            "topic": contract.kafka_topic(name),
            "offsets": sum(topic_plan.planned_counts.values()),
            "late": sum(p.pop("late") for p in partitions),
            "partitions": partitions,
        }
        without = sum(p.pop("without") for p in partitions)
        if contract.topics[name].read == "stream":
            topics[name]["withoutValue"] = without
        frozen = horizon.find_frozen_until(warehouse, contract, name)
        if frozen and (
            n := ledger.count_dated_before(tables.log_table(warehouse, contract.pipeline, name), plan.run, frozen)
        ):
            topics[name]["beforeHorizon"] = n
        fates_table = tables.fates_table(warehouse, contract.pipeline, name)
        revisions = ledger.read_fate_revisions(fates_table, plan.run)
        counts = {fate: sum(e.count_became(fate) for e in revisions) for fate in ledger.FATES}
        if any(counts.values()):
            topics[name]["decidedAnew"] = {f: n for f, n in counts.items() if n or f in ("accepted", "expired")}
        fates_note = tables.read_notes(fates_table, FatesNote.from_json).get(plan.run) if plan.requeue else None
        if fates_note is not None and fates_note.requeued is not None:
            topics[name] |= {"requeued": fates_note.requeued, "still": fates_note.still}
    completed = journal.read_completed_runs(warehouse, contract.pipeline)
    earlier = completed[-1].results if completed else {}
    last = max((run.number for run in completed if run.number < plan.run), default=0)
    held = hold_store.count_held(warehouse, contract.pipeline, plan.run, last)
    overdue = read_overdue(warehouse, contract, plan.run, plan.known_at) if held else {}
    ended = hold_store.count_ended(warehouse, contract.pipeline, plan.run)
    gates = _read_gates(warehouse, contract.pipeline, plan.run, released=plan.released)
    changed = {}
    for name in (*contract.topics, *contract.views):
        # A skipped table may not be a table of Hindcast yet.
        located = tables.locate_table(warehouse, contract, name)
        notes = {} if name in plan.skipped_tables else tables.read_notes(located, TableNote.from_json)
        note = notes.get(plan.run)
        changed[name] = {**(note.as_json() if note else {"opened": 0, "closed": 0, "corrected": 0})}
        changed[name].pop("ties", None)
        if name not in plan.skipped_tables and (widened := tables.read_widening(located, plan.known_at)):
            changed[name]["widened"] = widened
        changed[name] |= {"gates": gates.get(name) or _list_unchecked_gates(contract, name)}
        if name in topics and note is not None and note.ties is not None:
            topics[name]["ties"] = locate_ties(contract.kafka_topic(name), plan.topics[name], note.ties)
        if name in held:
            changed[name]["held"] = held[name] | ({"overdue": overdue[name].as_json()} if name in overdue else {})
        if name in ended:
            changed[name]["noLongerHeld"] = ended[name]
        if name not in contract.views:
            continue
        if contract.views[name].semantics == "kafka":
            changed[name] |= _read_emission(warehouse, contract, plan.run, name)
        elif contract.views[name].aggregate is not None:
            # A journal rebuilt from the tables has no reports; the notes of the tables' commits say the same.
            noted = (note.left_out for run, note in notes.items() if run < plan.run and note.left_out)
            previous = earlier[name].left_out if name in earlier else next(noted, None)
            current = note.left_out if note is not None else None
            changed[name] |= summarize_aggregate(contract, plan, name, current, previous or NOTHING_LEFT_OUT)
    return {
        "pipeline": contract.pipeline,
        "run": plan.run,
        "runId": plan.run_id,
        "knownAt": plan.known_at.isoformat(),
        "intervalEnd": plan.interval_end.isoformat() if plan.interval_end else None,
        **({"only": plan.only} if plan.only else {}),
        **({"reason": plan.reason} if plan.reason else {}),
        **(plan.erasure.as_json() if plan.erasure else {}),
        "state": "completed" if stopped is None else "stopped",
        **({} if stopped is None else {"found": stopped}),
        **({"contract": change} if (change := _describe_contract(warehouse, contract, plan)) else {}),
        **({"givenUp": runs} if (runs := abandoned_runs.find_abandoned_runs(warehouse, contract, plan.run)) else {}),
        "topics": topics,
        "tables": changed,
        "again": _rerun_commands(contract, plan),
    }


def _describe_contract(warehouse: str, contract: Contract, plan: Plan) -> dict[str, Any] | None:
    """Return how the contract of a run differs from that of the last completed run before it; None if it does not."""
    past = journal.read_runs(warehouse, contract.pipeline)
    fields = list_fields(contract) if contract.hash == plan.contract else definitions.find_fields(past, plan.contract)
    return definitions.describe_change([run for run in past if run.number < plan.run], plan.contract, fields)


def locate_ties(kafka: str, topic_plan: TopicPlan, counts: TieCounts) -> dict[str, Any]:
    """Return the tie counts of a commit's note, with `loser` and `winner` as text instead of [partition, offset]."""
    places = {side: place for side, place in (("loser", counts.loser), ("winner", counts.winner)) if place}
    texts = {
        side: f"{topic_patterns.describe_partition(kafka, topic_plan.members, partition)}, offset {offset}"
        for side, (partition, offset) in places.items()
    }
    return counts.as_json() | texts


def _rerun_commands(contract: Contract, plan: Plan) -> str:
    """Return the commands that repeat what a run did, on current data."""
    pipeline = contract.pipeline
    if plan.released:
        return "; ".join(_release_command(contract, name, of.keys) for name, of in plan.released.items())
    if plan.requeue:
        return f"hindcast requeue {pipeline}{_requeue_options(contract, plan.requeue)}"
    until = f" --until {plan.interval_end.isoformat()}" if plan.interval_end else ""
    return f"hindcast run {pipeline}{until}" + (f" --only {plan.only}" if plan.only else "")


_FEW_KEYS = 5
"""A command names at most this many released keys."""


def _release_command(contract: Contract, name: str, keys: Sequence[str]) -> str:
    """Return the command that releases the same keys of a table; for sensitive or many keys, all held ones."""
    command, known = f"hindcast release {contract.pipeline}.{name}", list_shapes(contract)
    if name not in known or len(keys) > _FEW_KEYS or find_sensitive_columns(contract)[name] & set(known[name].key):
        return command
    return command + "".join(f" --key {shlex.quote(key)}" for key in keys)


def _requeue_options(contract: Contract, request: Requeue) -> str:
    """Return the options of `hindcast requeue` that select the same records (`requeue.build_request`)."""
    topics = request.topics
    topic = request.kafka_topic or (topics[0] if len(topics) == 1 and len(contract.topics) > 1 else None)
    options = {"topic": topic, "reason": request.reason, "partition": request.partition}
    text = "".join(f" --{name} {shlex.quote(str(value))}" for name, value in options.items() if value is not None)
    return text + "".join(f" --offset {offset}" for offset in request.offsets)


def read_report(warehouse: str, contract: Contract, run: Run) -> dict[str, Any]:
    """Return the report of a completed or stopped run; raise RunError for any other run."""
    if isinstance(run.outcome, Completed):
        return {**run.outcome.report}
    if run.stopped is None:
        where, fix = f"{contract.pipeline}, run {run.number}", "wait until it has ended"
        raise RunError(f"a run that is {run.state} has no report", where=where, fix=fix)
    return build_report(warehouse, contract, run.plan, stopped=run.stopped)


NOT_CHECKED = "nothing changed"
"""The detail of gates that were not evaluated because their table did not change."""


def _list_unchecked_gates(contract: Contract, name: str) -> list[dict[str, Any]]:
    """Return the gates of a table that a run did not evaluate, as unchecked."""
    nothing: dict[str, Any] = {"outcome": "unchecked", "checked": 0, "failing": None, "observed": None}
    return [
        {"gate": n, "expectation": gate.type, "kwargs": gate.kwargs, "on_failure": gate.on_failure}
        | {**nothing, "detail": NOT_CHECKED, "trend": []}
        for n, gate in enumerate(contract.expectations(name))
    ]


def _read_gates(
    warehouse: str, pipeline: str, run: int, released: Collection[str] = ()
) -> dict[str, list[dict[str, Any]]]:
    """Return the gate results of a run by table; those that failed row by row have `rows`, the command to list them.

    `released`: tables of which the run published failing rows because a person released them.
    """
    recorded = gate_results.read_results(warehouse, pipeline, run)
    results = {name: [gate.as_json() for gate in gates] for name, gates in recorded.items()}
    for name, gates in results.items():
        for gate in gates:
            if gate["outcome"] == "failed" and gate["failing"] is not None:
                which = " --held" if gate["on_failure"] == "quarantine" else f" --gate {gate['gate']}"
                which = "" if name in released else which
                gate["rows"] = f"hindcast failing {pipeline} --run {run} --table {name}{which}"
    return results


def summarize_aggregate(
    contract: Contract, plan: Plan, name: str, current: LeftOut | None, earlier: LeftOut
) -> dict[str, Any]:
    """Return what an aggregate left out in total and since the run before; of windows also up to when they closed.

    A run that changed none of this has no note of it (None); then the values of the run before still hold.
    """
    counted = current or earlier
    counts = {kind: counted.counts.get(kind, 0) for kind in LEFT_OUT}
    new = {kind: n - earlier.counts.get(kind, 0) for kind, n in counts.items()}
    summary: dict[str, Any] = {"leftOut": counts, "newlyLeftOut": new}
    window = contract.views[name].window
    if window is not None:
        source = name
        while source in contract.views:
            source = contract.views[source].first_input
        times = counted.stream_times or {}
        # A run does not know the partition count of another pipeline's stream, so none of its windows is closed.
        reached = [times.get(str(p)) for p in plan.topics[source].ranges] if source in plan.topics else []
        moments = [datetime.fromisoformat(moment) for moment in reached if moment is not None]
        closed = windows.latest_closed_end(window, min(moments)) if moments and len(moments) == len(reached) else None
        summary |= {"streamTimes": times, "closedUpTo": closed.isoformat() if closed else None}
    return summary


def _read_emission(warehouse: str, contract: Contract, run: int, name: str) -> dict[str, Any]:
    """Return what a kafka view emitted in a run; of a view with `wait` also how far it got."""
    log = emitted_log.emitted_table(warehouse, contract, name)
    emission: dict[str, Any] = {"emitted": emitted_log.count_records(log, run)}
    note = emitted_log.read_last_note(log, run)
    if note is not None and (progress := emitted_log.describe_progress(contract, note)) is not None:
        emission["settled"] = progress
    return emission


def format_report(report: dict[str, Any]) -> str:
    """Return a report as text for a terminal or a task's log."""
    lines = [f"{report['pipeline']}, run {report['run']} ({report['runId']}), known at {report['knownAt']}", ""]
    lines += [f"only {report['only']} and the tables derived from it", ""] if "only" in report else []
    lines += [f"reason: {escape_controls(report['reason'], LINE_BREAKS)}", ""] if "reason" in report else []
    if forgotten := report.get("forgets"):
        lines += [f"forgot everything in {forgotten['topic']} with the sha256 {forgotten['sha256']}", ""]
    lines += [*changes, ""] if (changes := definitions.format_change(report.get("contract"))) else []
    lines += [f"stopped: {report['found']}", ""] if "found" in report else []
    lines += [line for run in report.get("givenUp", []) for line in (abandoned_runs.format_abandoned_run(run), "")]
    for name, topic in report["topics"].items():
        fates: dict[str, int] = {}
        for part in topic["partitions"]:
            for fate, n in part["fates"].items():
                fates[fate] = fates.get(fate, 0) + n
        counts = ", ".join(f"{n:,} {fate}" for fate, n in fates.items()) or "nothing new"
        late = f"; {topic['late']:,} late" if topic["late"] else ""
        without = f"; {topic['withoutValue']:,} without a value" if topic.get("withoutValue") else ""
        if n := topic.get("beforeHorizon"):
            without += f"; {n:,} dated before the horizon; nothing before it changes any more"
        became = ", ".join(f"{n:,} {fate}" for fate, n in topic.get("decidedAnew", {}).items() if n)
        revised = f"; earlier records under the current contract: {became}" if became else ""
        lines.append(f"  {name:<20} {topic['offsets']:>10,} offsets: {counts}{late}{without}{revised}")
        lines += [f"  {'':<20}   {line}" for line in format_ties(topic)]
        if "requeued" in topic:
            lines.append(f"  {'':<20}   requeued: {requeue.format_requeue(topic)}")
    lines.append("")
    for name, table in report["tables"].items():
        lines.append(f"  {name:<20} {_format_changes(table)}")
        lines += [f"  {'':<20}   {line}" for line in format_widening(table)]
        if held := table.get("held"):
            grown = held.get("grown", 0)
            new = f", {held['newly']:,} of them newly" if held["newly"] else ""
            new += f", {grown:,} with more than before" if grown else ""
            keys = "key is" if held["keys"] == 1 else "keys are"
            command = f"hindcast release {report['pipeline']}.{name}"
            lines.append(f"  {'':<20}   {held['keys']:,} {keys} held back{new}: {command}")
            if "overdue" in held:
                lines.append(f"  {'':<20}   {format_overdue(held['overdue'])}")
        lines += [f"  {'':<20}   {line}" for line in format_no_longer_held(table)]
        for gate in table["gates"]:
            if gate["detail"] == NOT_CHECKED:
                continue
            detail = f" ({gate['on_failure']}): {gate['detail']}" if gate["outcome"] != "passed" else ""
            lines.append(
                f"  {'':<20}   {gate['outcome']:<9} {format_gate(gate['expectation'], gate['kwargs'])}{detail}"
            )
            if "rows" in gate:
                lines.append(f"  {'':<20}             {gate['rows']}")
    return escape_controls("\n".join([*lines, "", f"  again: {report['again']}"]))


def format_overdue(overdue: Mapping[str, Any]) -> str:
    """Return a sentence that says for how long keys have shown a value that a held record would have ended."""
    lasting = timedelta(seconds=int(overdue["seconds"]))
    until = "still" if overdue["until"] is None else f"until {overdue['until']}"
    keys = "1 key shows" if overdue["keys"] == 1 else f"{overdue['keys']:,} keys show"
    longest = f"{overdue['key']} since {overdue['since']}, {until} ({lasting})"
    return f"{keys} a value that a held record would have ended; longest: {longest}"


def format_no_longer_held(table: Mapping[str, Any]) -> list[str]:
    """Return a line that says how many changes of a table are no longer held; no line if none."""
    ended = table.get("noLongerHeld")
    return [f"no longer held: {format_counts(ended)}"] if ended else []


LEFT_OUT = {"no_key": "without a key", "no_value": "without a value", "too_late": "too late"}
"""The kinds of records that an aggregate leaves out (derivation.count_left_out_of_view), as text."""


def _format_changes(table: dict[str, Any]) -> str:
    counts = {
        "{:,} rows opened" if table["opened"] != 1 else "{} row opened": table["opened"],
        "{:,} closed": table["closed"],
        "{:,} of these a past answer": table["corrected"],
    }
    changed = ", ".join(text.format(n) for text, n in counts.items() if n) or "unchanged"
    new = table.get("newlyLeftOut", {})
    by = "by a kernel" if table.get("kernel") else ""
    left_out = ", ".join(f"{new[kind]:,} {words}" for kind, words in LEFT_OUT.items() if new.get(kind, 0) > 0)
    parts = [
        " ".join(filter(None, (changed, by))),
        f"left out: {left_out}" if left_out else "",
        *format_emission(table),
    ]
    return "; ".join(filter(None, parts))


def format_ties(topic: dict[str, Any]) -> list[str]:
    """Return lines about ties and about keys that are in several partitions (bitemporal/ties.py)."""
    counts, lines = topic.get("ties", {}), []
    if n := counts.get("scattered"):
        keys = "1 key is" if n == 1 else f"{n:,} keys are"
        lines.append(
            f"warning: {keys} in more than one partition: producers use different partitioners ({_PARTITIONS})"
        )
    if n := counts.get("lost"):
        which = "namely" if n == 1 else "the first"
        lost = f"warning: {format_count(n, 'record')} lost a tie to a larger partition number, whichever was sent later"
        lines.append(f"{lost}; {which}: {counts['loser']}, to {counts['winner']}")
    if n := counts.get("replaced"):
        records = "1 record was replaced" if n == 1 else f"{n:,} records were replaced"
        lines.append(f"{records} at the same timestamp by a later one of this run, and never seen")
    return lines


_PARTITIONS = "docs/howto/late-correction.md"


def format_widening(table: dict[str, Any]) -> list[str]:
    """Return a line that says which columns of a table a run widened, and what that means for its readers."""
    steps = ", ".join(f"{name} from {old} to {new}" for name, (old, new) in table.get("widened", {}).items())
    return [f"widened: {steps}. {WIDENING_WARNING}"] if steps else []


def format_emission(table: dict[str, Any]) -> list[str]:
    """Return phrases that say what a kafka view emitted and, if it waits, how far it got."""
    emitted, settled = table.get("emitted") or {}, table.get("settled")
    phrases = []
    if records := emitted.get("records"):
        tombstones = f", {emitted['tombstones']:,} of them tombstones" if emitted.get("tombstones") else ""
        phrases.append(f"emitted: {records:,}{tombstones}")
    if settled:
        upto = "nothing" if settled["upTo"] is None else f"all before {settled['upTo']}"
        place = settled["waitsFor"]
        phrases.append(f"processed: {upto}; waits for {place['topic']}, partition {place['partition']}")
    return phrases


def _read_fates(log: Table, run: int, topic_plan: TopicPlan) -> list[dict[str, Any]]:
    """Return each planned range with the number of its offsets by fate, as the log has them."""
    pieces = {(piece.partition, piece.start): piece for piece in ledger.read_ingested_ranges(log, run)}
    partitions = []
    for partition, offsets in [*topic_plan.earlier.items(), *topic_plan.ranges.items()]:
        planned = offsets.end - offsets.start
        piece = pieces.get((partition, offsets.start)) if planned else None
        fates = piece.fates if piece else {}
        if planned and (piece is None or piece.end != offsets.end):
            raise RunError(
                f"{planned} offsets were planned ({offsets.start} to {offsets.end - 1}), but "
                f"{sum(fates.values())} have a fate: {fates}",
                where=f"{log.path}, partition {partition}, run {run}",
                fix="retry the run's replay step; if that does not help, something else changed the log",
            )
        late, without = (piece.late, piece.without_value) if piece else (0, 0)
        place = {"partition": partition, **topic_patterns.member_fields(topic_plan.members, partition)}
        place |= {"start": offsets.start, "end": offsets.end}
        partitions.append({**place, "fates": fates, "late": late, "without": without})
    return partitions
