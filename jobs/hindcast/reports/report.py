"""What a run did: fates, late records, what changed, gates, and how to run it again."""

from __future__ import annotations

import shlex
from collections.abc import Collection, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

from hindcast import horizon
from hindcast.contracts import Contract, shapes
from hindcast.contracts.definition import list_fields
from hindcast.contracts.sensitive import sensitive
from hindcast.corrected import windows
from hindcast.delta import emitted, tables
from hindcast.delta.making import LOCKED_OUT
from hindcast.delta.tables import Table
from hindcast.errors import BREAKS, RunError, escape_controls
from hindcast.kafka import members
from hindcast.planning import definitions, journal
from hindcast.planning.journal import Run
from hindcast.planning.plans import Plan, Share
from hindcast.quality import holds, verdicts
from hindcast.quality.expectations import named
from hindcast.quality.overdue import read_overdue
from hindcast.replay import ledger, requeue
from hindcast.reports import given_up
from hindcast.words import counted, listed


def make(warehouse: str, contract: Contract, plan: Plan, stopped: str | None = None) -> dict[str, Any]:
    """The report of a run whose steps have all been done, or, with `stopped`, of what one did before that stopped it.

    RunError if the fates of a partition do not add up to its planned offsets (docs/guarantees.md).
    """
    topics = {}
    for name, share in plan.topics.items():
        if name not in contract.topics or name in plan.without:
            continue
        try:
            partitions = _fates(tables.log(warehouse, contract.pipeline, name), plan.run, share)
        except RunError:
            if stopped is None:
                raise
            continue  # not replayed yet
        topics[name] = {
            "topic": contract.kafka_topic(name),
            "offsets": sum(share.planned.values()),
            "late": sum(p.pop("late") for p in partitions),
            "partitions": partitions,
        }
        without = sum(p.pop("without") for p in partitions)
        if contract.topics[name].read == "stream":
            topics[name]["withoutValue"] = without
        frozen = horizon.frozen(warehouse, contract, name)
        if frozen and (n := ledger.dated_before(tables.log(warehouse, contract.pipeline, name), plan.run, frozen)):
            topics[name]["beforeHorizon"] = n
        decided = tables.fates(warehouse, contract.pipeline, name)
        anew = ledger.anew(decided, plan.run)
        counts = {fate: sum(e.became(fate) for e in anew) for fate in ledger.FATES}
        if any(counts.values()):
            topics[name]["decidedAnew"] = {f: n for f, n in counts.items() if n or f in ("accepted", "expired")}
        if plan.requeues and "requeued" in (note := tables.notes(decided).get(plan.run, {})):
            topics[name] |= {"requeued": note["requeued"], "still": note["still"]}
    earlier = before(warehouse, contract.pipeline)
    past = journal.completed(warehouse, contract.pipeline)
    last = max((run.number for run in past if run.number < plan.run), default=0)
    held = holds.counts(warehouse, contract.pipeline, plan.run, last)
    overdue = read_overdue(warehouse, contract, plan.run, plan.known_at) if held else {}
    ended = holds.count_ended(warehouse, contract.pipeline, plan.run)
    judged = _of_gates(warehouse, contract.pipeline, plan.run, released=plan.releases)
    changed = {}
    for name in (*contract.topics, *contract.views):
        # A table that the run was made without may be none of ours yet.
        notes = {} if name in plan.without else tables.notes(tables.located(warehouse, contract, name))
        changed[name] = notes.get(plan.run) or {"opened": 0, "closed": 0, "corrected": 0}
        located = tables.located(warehouse, contract, name)
        if name not in plan.without and (widened := tables.read_widening(located, plan.known_at)):
            changed[name]["widened"] = widened
        changed[name] |= {"gates": judged.get(name) or _unasked(contract, name)}
        if name in topics and (counts := changed[name].pop("ties", None)):
            topics[name]["ties"] = locate_ties(contract.kafka_topic(name), plan.topics[name], counts)
        if name in held:
            changed[name]["held"] = held[name] | ({"overdue": overdue[name]} if name in overdue else {})
        if name in ended:
            changed[name]["noLongerHeld"] = ended[name]
        if name not in contract.views:
            continue
        if contract.views[name].semantics == "kafka":
            changed[name] |= _emitted(warehouse, contract, plan.run, name)
        elif contract.views[name].aggregate is not None:
            # A journal that was made again from the tables has no reports; the tables' own notes tell the same.
            noted = (note for run, note in notes.items() if run < plan.run and "leftOut" in note)
            told = earlier.get(name) or next(noted, {})
            changed[name] |= of_aggregate(contract, plan, name, changed[name], told)
    return {
        "pipeline": contract.pipeline,
        "run": plan.run,
        "runId": plan.run_id,
        "knownAt": plan.known_at.isoformat(),
        "intervalEnd": plan.interval_end.isoformat() if plan.interval_end else None,
        **{name: told for name in ("only", "reason", "forgets") if (told := getattr(plan, name))},
        "state": "completed" if stopped is None else "stopped",
        **({} if stopped is None else {"found": stopped}),
        **({"contract": told} if (told := _describe_contract(warehouse, contract, plan)) else {}),
        **({"givenUp": left} if (left := given_up.since(warehouse, contract, plan.run)) else {}),
        "topics": topics,
        "tables": changed,
        "again": _again(contract, plan),
    }


def _describe_contract(warehouse: str, contract: Contract, plan: Plan) -> dict[str, Any] | None:
    """Return what the contract that a run was planned by says otherwise than that of the run before."""
    past = journal.runs(warehouse, contract.pipeline)
    fields = list_fields(contract) if contract.hash == plan.contract else definitions.find_fields(past, plan.contract)
    return definitions.describe_change([run for run in past if run.number < plan.run], plan.contract, fields)


def locate_ties(kafka: str, share: Share, counts: dict[str, Any]) -> dict[str, Any]:
    """Return the ties that a commit noted with their places in words."""
    places = {side: counts[side] for side in ("loser", "winner") if side in counts}
    words = {s: f"{members.place(kafka, share.members, p)}, offset {offset}" for s, (p, offset) in places.items()}
    return counts | words


def _again(contract: Contract, plan: Plan) -> str:
    """Return the commands that do what a run did, with what is there now."""
    pipeline = contract.pipeline
    if plan.releases:
        return "; ".join(_release_again(contract, name, told["keys"]) for name, told in plan.releases.items())
    if plan.requeues:
        return f"hindcast requeue {pipeline}{_requeue_options(contract, plan.requeues)}"
    until = f" --until {plan.interval_end.isoformat()}" if plan.interval_end else ""
    return f"hindcast run {pipeline}{until}" + (f" --only {plan.only}" if plan.only else "")


_FEW_KEYS = 5
"""Up to so many released keys are named in a command."""


def _release_again(contract: Contract, name: str, keys: Sequence[str]) -> str:
    """Return the command that releases the same keys of a table; of hidden or many keys, all that is held then."""
    command, known = f"hindcast release {contract.pipeline}.{name}", shapes(contract)
    if name not in known or len(keys) > _FEW_KEYS or sensitive(contract)[name] & set(known[name].key):
        return command
    return command + "".join(f" --key {shlex.quote(key)}" for key in keys)


def _requeue_options(contract: Contract, asked: Mapping[str, Any]) -> str:
    """Return the options of `hindcast requeue` that select the same records (`requeue.selection`)."""
    topics = asked["topics"]
    topic = asked.get("of") or (topics[0] if len(topics) == 1 and len(contract.topics) > 1 else None)
    options = {"topic": topic, "reason": asked.get("reason"), "partition": asked.get("partition")}
    text = "".join(f" --{name} {shlex.quote(str(value))}" for name, value in options.items() if value is not None)
    return text + "".join(f" --offset {offset}" for offset in asked.get("offsets", ()))


def of(warehouse: str, contract: Contract, run: Run) -> dict[str, Any]:
    """The report of a run that was completed or stopped; RunError for another."""
    if run.state == "completed":
        return run.detail
    if run.stopped is None:
        where, mend = f"{contract.pipeline}, run {run.number}", "wait until it has ended"
        raise RunError(f"a run that is {run.state} has no report", where=where, mend=mend)
    return make(warehouse, contract, Plan.from_json(run.plan), stopped=run.stopped)


UNASKED = "nothing changed"
"""The detail of gates that were not asked, because their table did not change."""


def _unasked(contract: Contract, name: str) -> list[dict[str, Any]]:
    """The gates of a table that were not asked in a run: none of them has passed."""
    nothing: dict[str, Any] = {"outcome": "unchecked", "checked": 0, "failing": None, "observed": None}
    return [
        {"gate": n, "expectation": gate.type, "kwargs": gate.kwargs, "on_failure": gate.on_failure}
        | {**nothing, "detail": UNASKED, "trend": []}
        for n, gate in enumerate(contract.expectations(name))
    ]


def _of_gates(
    warehouse: str, pipeline: str, run: int, released: Collection[str] = ()
) -> dict[str, list[dict[str, Any]]]:
    """The verdicts of a run by table; of those that failed row by row with `rows`, the command that lists the rows.

    `released`: tables of which the run has published rows though they fail.
    """
    told = verdicts.of_run(warehouse, pipeline, run)
    for name, gates in told.items():
        for gate in gates:
            if gate["outcome"] == "failed" and gate["failing"] is not None:
                which = " --held" if gate["on_failure"] == "quarantine" else f" --gate {gate['gate']}"
                which = "" if name in released else which
                gate["rows"] = f"hindcast failing {pipeline} --run {run} --table {name}{which}"
    return told


def before(warehouse: str, pipeline: str) -> dict[str, Any]:
    """The tables of the last completed run's report; none before the first."""
    completed = journal.completed(warehouse, pipeline)
    return dict(completed[-1].detail.get("tables", {})) if completed else {}


def besides(table: dict[str, Any]) -> tuple[dict[str, int], dict[str, str]]:
    """What a note or report tells of an aggregate beside its rows: what it left out, the stream times it reached."""
    return {kind: n for kind, n in table.get("leftOut", {}).items() if n}, table.get("streamTimes", {})


def of_aggregate(
    contract: Contract, plan: Plan, name: str, note: dict[str, Any], earlier: dict[str, Any]
) -> dict[str, Any]:
    """What an aggregate leaves out in all, and since the run before; of windows, up to where they have closed.

    A run that did not change any of it has no note of it: then what the run before told is still so.
    """
    told = note if "leftOut" in note else earlier
    counts = {kind: told.get("leftOut", {}).get(kind, 0) for kind in LEFT_OUT}
    new = {kind: n - earlier.get("leftOut", {}).get(kind, 0) for kind, n in counts.items()}
    found: dict[str, Any] = {"leftOut": counts, "newlyLeftOut": new}
    window = contract.views[name].window
    if window is not None:
        source = name
        while source in contract.views:
            source = contract.views[source].first
        times = told.get("streamTimes", {})
        # How many partitions another pipeline's stream has, a run does not know; then none of its windows is closed.
        reached = [times.get(str(p)) for p in plan.topics[source].ranges] if source in plan.topics else []
        moments = [datetime.fromisoformat(moment) for moment in reached if moment is not None]
        closed = windows.closed_up_to(window, min(moments)) if moments and len(moments) == len(reached) else None
        found |= {"streamTimes": times, "closedUpTo": closed.isoformat() if closed else None}
    return found


def _emitted(warehouse: str, contract: Contract, run: int, name: str) -> dict[str, Any]:
    """What a kafka view has emitted in a run; of one that waits, how far it has come by then."""
    log = emitted.log(warehouse, contract, name)
    told: dict[str, Any] = {"emitted": emitted.counted(log, run)}
    note = emitted.noted(log, run)
    if note is not None and note["waitsFor"] is not None:
        told["settled"] = emitted.settled(contract, note)
    return told


def text(report: dict[str, Any]) -> str:
    """The report as lines for a terminal or a task's log."""
    lines = [f"{report['pipeline']}, run {report['run']} ({report['runId']}), known at {report['knownAt']}", ""]
    lines += [f"only {report['only']} and what is made of it", ""] if "only" in report else []
    lines += [f"reason: {escape_controls(report['reason'], BREAKS)}", ""] if "reason" in report else []
    if told := report.get("forgets"):
        lines += [f"forgot of {told['topic']} what has the sha256 {told['sha256']}", ""]
    lines += [*of_contract, ""] if (of_contract := definitions.list_lines(report.get("contract"))) else []
    lines += [f"stopped: {report['found']}", ""] if "found" in report else []
    lines += [line for it in report.get("givenUp", []) for line in (given_up.text(it), "")]
    for name, topic in report["topics"].items():
        fates: dict[str, int] = {}
        for part in topic["partitions"]:
            for fate, n in part["fates"].items():
                fates[fate] = fates.get(fate, 0) + n
        told = ", ".join(f"{n:,} {fate}" for fate, n in fates.items()) or "nothing new"
        late = f"; {topic['late']:,} late" if topic["late"] else ""
        without = f"; {topic['withoutValue']:,} without a value" if topic.get("withoutValue") else ""
        if n := topic.get("beforeHorizon"):
            without += f"; {n:,} dated before the horizon, where nothing changes any more"
        anew = ", ".join(f"{n:,} {fate}" for fate, n in topic.get("decidedAnew", {}).items() if n)
        again = f"; of earlier records by the contract as it is now: {anew}" if anew else ""
        lines.append(f"  {name:<20} {topic['offsets']:>10,} offsets: {told}{late}{without}{again}")
        lines += [f"  {'':<20}   {line}" for line in of_ties(topic)]
        if "requeued" in topic:
            lines.append(f"  {'':<20}   requeued: {requeue.text(topic)}")
    lines.append("")
    for name, table in report["tables"].items():
        lines.append(f"  {name:<20} {_changed(table)}")
        lines += [f"  {'':<20}   {line}" for line in of_columns(table)]
        if held := table.get("held"):
            grown = held.get("grown", 0)
            new = f", {held['newly']:,} of them newly" if held["newly"] else ""
            new += f", {grown:,} with more than before" if grown else ""
            told = "key is" if held["keys"] == 1 else "keys are"
            again = f"hindcast release {report['pipeline']}.{name}"
            lines.append(f"  {'':<20}   {held['keys']:,} {told} held back{new}: {again}")
            if "overdue" in held:
                lines.append(f"  {'':<20}   {text_of_overdue(held['overdue'])}")
        lines += [f"  {'':<20}   {line}" for line in list_no_longer_held(table)]
        for gate in table["gates"]:
            if gate["detail"] == UNASKED:
                continue
            detail = f" ({gate['on_failure']}): {gate['detail']}" if gate["outcome"] != "passed" else ""
            lines.append(f"  {'':<20}   {gate['outcome']:<9} {named(gate['expectation'], gate['kwargs'])}{detail}")
            if "rows" in gate:
                lines.append(f"  {'':<20}             {gate['rows']}")
    return escape_controls("\n".join([*lines, "", f"  again: {report['again']}"]))


def text_of_overdue(overdue: Mapping[str, Any]) -> str:
    """Return in words for how long keys show a value that a held record would have ended."""
    lasting = timedelta(seconds=int(overdue["seconds"]))
    until = "still" if overdue["until"] is None else f"until {overdue['until']}"
    keys = "1 key shows" if overdue["keys"] == 1 else f"{overdue['keys']:,} keys show"
    longest = f"{overdue['key']} since {overdue['since']}, {until} ({lasting})"
    return f"{keys} a value that a held record would have ended; for longest {longest}"


def list_no_longer_held(table: Mapping[str, Any]) -> list[str]:
    """Return in words how many changes of a table are held no more, as lines."""
    ended = table.get("noLongerHeld")
    return [f"no longer held: {listed(ended)}"] if ended else []


LEFT_OUT = {"no_key": "without a key", "no_value": "without a value", "too_late": "too late"}
"""What an aggregate counts nowhere (derive.left_out), in words."""


def _changed(table: dict[str, Any]) -> str:
    told = {
        "{:,} rows opened" if table["opened"] != 1 else "{} row opened": table["opened"],
        "{:,} closed": table["closed"],
        "{:,} of these a past answer": table["corrected"],
    }
    changed = ", ".join(text.format(n) for text, n in told.items() if n) or "unchanged"
    new = table.get("newlyLeftOut", {})
    by = "by a kernel" if table.get("kernel") else ""
    left_out = ", ".join(f"{new[kind]:,} {words}" for kind, words in LEFT_OUT.items() if new.get(kind, 0) > 0)
    parts = [" ".join(filter(None, (changed, by))), f"left out: {left_out}" if left_out else "", *of_emitted(table)]
    return "; ".join(filter(None, parts))


def of_ties(topic: dict[str, Any]) -> list[str]:
    """Return what is to be known of ties and of keys in several partitions (corrected/ties.py), as lines."""
    counts, lines = topic.get("ties", {}), []
    if n := counts.get("scattered"):
        keys = "1 key is" if n == 1 else f"{n:,} keys are"
        lines.append(
            f"warning: {keys} in more than one partition: producers use different partitioners ({_PARTITIONS})"
        )
    if n := counts.get("lost"):
        which = "it" if n == 1 else "the first"
        lost = f"warning: {counted(n, 'record')} lost a tie to a larger partition number, whichever was sent later"
        lines.append(f"{lost}; {which}: {counts['loser']}, to {counts['winner']}")
    if n := counts.get("replaced"):
        told = "1 record was replaced" if n == 1 else f"{n:,} records were replaced"
        lines.append(f"{told} at the same timestamp by a later one of this run, and never seen")
    return lines


_PARTITIONS = "docs/howto/late-correction.md"


def of_columns(table: dict[str, Any]) -> list[str]:
    """Return what a run has widened in a table, and what that means to its readers, as lines."""
    steps = ", ".join(f"{name} from {old} to {new}" for name, (old, new) in table.get("widened", {}).items())
    return [f"widened: {steps}. {LOCKED_OUT}"] if steps else []


def of_emitted(table: dict[str, Any]) -> list[str]:
    """What a kafka view has emitted, and how far one that waits has come, in words."""
    told, settled = table.get("emitted") or {}, table.get("settled")
    found = []
    if records := told.get("records"):
        tombstones = f", {told['tombstones']:,} of them tombstones" if told.get("tombstones") else ""
        found.append(f"emitted: {records:,}{tombstones}")
    if settled:
        upto = "nothing" if settled["upTo"] is None else f"all before {settled['upTo']}"
        place = settled["waitsFor"]
        found.append(f"processed: {upto}; waits for {place['topic']}, partition {place['partition']}")
    return found


def _fates(log: Table, run: int, share: Share) -> list[dict[str, Any]]:
    """Each planned range with the counts by fate of what the log has of it."""
    found = {(piece.partition, piece.start): piece for piece in ledger.pieces(log, run)}
    told = []
    for partition, offsets in [*share.earlier.items(), *share.ranges.items()]:
        planned = offsets.end - offsets.start
        piece = found.get((partition, offsets.start)) if planned else None
        fates = piece.fates if piece else {}
        if planned and (piece is None or piece.end != offsets.end):
            raise RunError(
                f"{planned} offsets were planned ({offsets.start} to {offsets.end - 1}), "
                f"{sum(fates.values())} have a fate: {fates}",
                where=f"{log.path}, partition {partition}, run {run}",
                mend="retry the run's replay step; if that does not help, the log was changed by another hand",
            )
        late, without = (piece.late, piece.without) if piece else (0, 0)
        place = {"partition": partition, **members.told(share.members, partition)}
        place |= {"start": offsets.start, "end": offsets.end}
        told.append({**place, "fates": fates, "late": late, "without": without})
    return told
