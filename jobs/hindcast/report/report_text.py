"""The report of a run as text, for a terminal and for a task's log; and the phrases that the page shares."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta

from hindcast.common.errors import LINE_BREAKS, escape_controls
from hindcast.common.plurals import format_count, format_counts
from hindcast.ingest import requeue
from hindcast.plan import definitions
from hindcast.quality.expectations import format_gate
from hindcast.quality.overdue import OverdueKeys
from hindcast.report import abandoned_runs
from hindcast.report.report import LEFT_OUT, NOT_CHECKED
from hindcast.report.run_report import RunReport, TableReport, TopicReport
from hindcast.store.commit_notes import BY_SPARK
from hindcast.store.table_creation import WIDENING_WARNING


def format_report(report: RunReport) -> str:
    """Return a report as text for a terminal or a task's log."""
    known_at = report.known_at.isoformat() if report.known_at else "?"
    lines = [f"{report.pipeline}, run {report.run} ({report.run_id}), known at {known_at}", ""]
    if (interval := report.rehearsed) is not None:
        lines += [f"rehearsed: what arrived from {interval.since.isoformat()} to {interval.until.isoformat()}", ""]
    lines += [f"only {report.only} and the tables derived from it", ""] if report.only else []
    lines += [f"reason: {escape_controls(report.reason, LINE_BREAKS)}", ""] if report.reason else []
    if report.erasure:
        lines += [f"forgot everything in {report.erasure.topic} with the sha256 {report.erasure.digest}", ""]
    lines += [*changes, ""] if (changes := definitions.format_change(report.contract)) else []
    lines += [f"stopped: {report.found}", ""] if report.found is not None else []
    lines += [line for run in report.abandoned for line in (abandoned_runs.format_abandoned_run(run), "")]
    for name, topic in report.topics.items():
        lines += _format_topic(name, topic)
    lines.append("")
    for name, table in report.tables.items():
        lines += _format_table(report.pipeline, name, table)
    is_released = report.approval is not None and report.state == "completed"
    return escape_controls("\n".join(lines if is_released else [*lines, "", f"  again: {report.again}"]))


def _format_topic(name: str, topic: TopicReport) -> list[str]:
    counts = ", ".join(f"{n:,} {fate}" for fate, n in topic.fates.items()) or "nothing new"
    late = f"; {topic.late:,} late" if topic.late else ""
    without = f"; {topic.without_value:,} without a value" if topic.without_value else ""
    if n := topic.before_horizon:
        without += f"; {n:,} dated before the horizon; nothing before it changes any more"
    if n := topic.ahead:
        without += f"; {n:,} with an arrival ahead of the run, which counts as none"
    became = ", ".join(f"{n:,} {fate}" for fate, n in topic.decided_anew.items() if n)
    revised = f"; earlier records under the current contract: {became}" if became else ""
    offsets = topic.offsets or 0
    noun = "offset" if offsets == 1 else "offsets"
    lines = [f"  {name:<20} {offsets:>10,} {noun}: {counts}{late}{without}{revised}"]
    lines += [f"  {'':<20}   {line}" for line in format_ties(topic.ties)]
    if topic.requeued is not None:
        lines.append(f"  {'':<20}   requeued: {requeue.format_requeue(topic.requeued, topic.still)}")
    return lines


def _format_table(pipeline: str, name: str, table: TableReport) -> list[str]:
    details = format_widening(table)
    if held := table.held:
        new = f", {held.newly:,} of them newly" if held.newly else ""
        new += f", {held.grown:,} with more than before" if held.grown else ""
        keys = "key is" if held.keys == 1 else "keys are"
        details.append(f"{held.keys:,} {keys} held back{new}: hindcast release {pipeline}.{name}")
        details += [format_overdue(held.overdue)] if held.overdue else []
    details += format_no_longer_held(table)
    for gate in table.gates:
        result = gate.result
        if result.detail == NOT_CHECKED:
            continue
        detail = f" ({result.on_failure}): {result.detail}" if result.outcome != "passed" else ""
        details.append(f"{result.outcome:<9} {format_gate(result.expectation, result.kwargs)}{detail}")
        details += [f"          {gate.rows}"] if gate.rows else []
    return [f"  {name:<20} {_format_changes(table)}", *(f"  {'':<20}   {line}" for line in details)]


def format_overdue(overdue: OverdueKeys) -> str:
    """Return a sentence that says for how long keys have shown a value that a held record would have ended."""
    lasting = timedelta(seconds=int(overdue.seconds))
    until = "still" if overdue.until is None else f"until {overdue.until.isoformat()}"
    keys = "1 key shows" if overdue.keys == 1 else f"{overdue.keys:,} keys show"
    longest = f"{overdue.key} since {overdue.since.isoformat()}, {until} ({lasting})"
    return f"{keys} a value that a held record would have ended; longest: {longest}"


def format_no_longer_held(table: TableReport) -> list[str]:
    """Return a line that says how many changes of a table are no longer held; no line if none."""
    return [f"no longer held: {format_counts(table.ended)}"] if table.ended else []


def format_left_out(table: TableReport) -> list[str]:
    """Return a phrase that says what an aggregate newly left out; no phrase if nothing."""
    counts = [f"{n:,} {LEFT_OUT.get(kind, kind)}" for kind, n in (table.newly_left_out or {}).items() if n > 0]
    return [f"left out: {', '.join(counts)}"] if counts else []


def format_kernel(kernel: str | None) -> str:
    """Return that Spark evaluated the expressions for a kernel (`TableNote.kernel`), which takes longer, if it did."""
    return " by a kernel, expressions by Spark" if kernel is not None and kernel.endswith(BY_SPARK) else ""


def _format_changes(table: TableReport) -> str:
    counts = {
        "{:,} rows opened" if table.opened != 1 else "{} row opened": table.opened,
        "{:,} closed": table.closed,
        "{:,} of these a past answer": table.corrected,
    }
    changed = ", ".join(text.format(n) for text, n in counts.items() if n) or "unchanged"
    return "; ".join([f"{changed}{format_kernel(table.kernel)}", *format_left_out(table), *format_emission(table)])


def format_ties(ties: Mapping[str, int | str]) -> list[str]:
    """Return lines about ties and about keys that are in several partitions (bitemporal/ties.py)."""
    lines = []
    scattered, lost, replaced = (int(ties.get(what, 0)) for what in ("scattered", "lost", "replaced"))
    if n := scattered:
        keys = "1 key is" if n == 1 else f"{n:,} keys are"
        lines.append(
            f"warning: {keys} in more than one partition: producers use different partitioners ({_PARTITIONS})"
        )
    if n := lost:
        which = "namely" if n == 1 else "the first"
        text = f"warning: {format_count(n, 'record')} lost a tie to a larger partition number, whichever was sent later"
        lines.append(f"{text}; {which}: {ties['loser']}, to {ties['winner']}")
    if n := replaced:
        records = "1 record was replaced" if n == 1 else f"{n:,} records were replaced"
        lines.append(f"{records} at the same timestamp by a later one of this run, and never seen")
    return lines


_PARTITIONS = "docs/howto/late-correction.md"


def format_widening(table: TableReport) -> list[str]:
    """Return a line that says which columns of a table a run widened, and what that means for its readers."""
    steps = ", ".join(f"{name} from {old} to {new}" for name, (old, new) in table.widened.items())
    effect = "The whole table was written again" if table.is_rewritten else WIDENING_WARNING
    return [f"widened: {steps}. {effect}"] if steps else []


def format_emission(table: TableReport) -> list[str]:
    """Return phrases that say what a kafka view emitted and, if it waits, how far it got."""
    emitted, settled = table.emitted or {}, table.settled
    phrases = []
    if records := emitted.get("records"):
        tombstones = f", {emitted['tombstones']:,} of them tombstones" if emitted.get("tombstones") else ""
        phrases.append(f"emitted: {records:,}{tombstones}")
    if settled:
        up_to = "nothing" if settled.up_to is None else f"all before {settled.up_to.isoformat()}"
        phrases.append(f"processed: {up_to}; waits for {settled.topic}, partition {settled.partition}")
    return phrases
