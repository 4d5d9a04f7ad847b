"""What a report says of topics, tables and gates, as its page shows it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

from hindcast.common.errors import show_briefly
from hindcast.common.json_values import JsonObject
from hindcast.common.plurals import format_count
from hindcast.quality import gate_words
from hindcast.quality.expectations import format_gate
from hindcast.report.report_text import (
    format_emission,
    format_kernel,
    format_left_out,
    format_no_longer_held,
    format_overdue,
    format_ties,
    format_widening,
)
from hindcast.report.run_report import RunReport

OUTCOMES = ("failed", "error", "unchecked", "passed")
"""The outcomes of a gate, in the order in which the page lists them."""


SIGNS = {"passed": "✓", "unchecked": "\N{EN DASH}", "failed": "✗", "stopped": "✗"}
"""The sign of an outcome or a verdict, so that colour is not the only cue; `!` for all others."""


class PartitionSummary(NamedTuple):
    """A planned range of one partition and the fates of its offsets; a pattern's partition is named with its topic."""

    name: str
    offsets: str
    read: int
    fates: Mapping[str, int]

    @property
    def is_balanced(self) -> bool:
        """True if each of its offsets has exactly one fate."""
        return self.read == sum(self.fates.values())

    @property
    def sum_text(self) -> str:
        """The sum, written out: `3 = 2 accepted + 1 expired`."""
        parts = " + ".join(f"{n:,} {fate}" for fate, n in self.fates.items()) or "0"
        return (
            f"{self.read:,} = {parts}"
            if self.is_balanced
            else f"{self.read:,} ≠ {sum(self.fates.values()):,} = {parts}"
        )


class TopicSummary(NamedTuple):
    """The offsets that a run read of one topic, with the partitions that had new ones."""

    name: str
    kafka: str
    read: int
    partitions: list[PartitionSummary]
    notes: list[str]

    @property
    def has_news(self) -> bool:
        """True if there is anything to report about it."""
        return bool(self.read or self.partitions or self.notes)

    @property
    def is_balanced(self) -> bool:
        """True if its offsets are those of its partitions, and each has exactly one fate."""
        return self.read == sum(part.read for part in self.partitions) and all(p.is_balanced for p in self.partitions)


class TableSummary(NamedTuple):
    """The rows that a run changed in one table; `by` says what computed them, if not a Spark plan."""

    name: str
    opened: int
    closed: int
    corrected: int
    ages: Mapping[str, int]
    notes: list[str]
    by: str

    @property
    def has_news(self) -> bool:
        """True if it has more than opened and closed rows."""
        return bool(self.corrected or self.notes)


MAX_RULE = 300
"""How many characters of a gate as a sentence are shown."""


class GateSummary(NamedTuple):
    """A gate with its result as the page lists it, its `rule` as a sentence; `place` is its position among the gates of
    its table.
    """

    table: str
    place: int
    outcome: str
    on_failure: str
    expectation: str
    parameters: str
    rule: str
    result: JsonObject

    @property
    def has_failed(self) -> bool:
        """True if it failed or could not be evaluated."""
        return self.outcome not in ("passed", "unchecked")

    @property
    def is_holding(self) -> bool:
        """True if it held back the keys that fail."""
        return self.outcome == "failed" and self.on_failure == "quarantine"

    @property
    def is_stopping(self) -> bool:
        """True if it stopped its table from being published."""
        return self.has_failed and self.on_failure == "stop"


def summarize_topics(report: RunReport) -> list[TopicSummary]:
    summaries = []
    for name, topic in report.topics.items():
        partitions = []
        for part in topic.partitions:
            range_ = f"{part.start:,} to {part.end - 1:,}" if part.end > part.start else f"none at {part.start:,}"
            partitions.append(PartitionSummary(part.name, range_, part.end - part.start, part.fates))
        if topic.partitions_left_out:
            ranges = f"{format_count(topic.partitions_left_out, 'range')}, not listed"
            partitions.append(PartitionSummary("all", ranges, topic.offsets or 0, topic.fates))
        news = [part for part in partitions if part.read or part.fates]
        quiet = len(partitions) - len(news) if news else 0
        read = sum(part.read for part in news)
        offsets = read if topic.offsets is None else topic.offsets
        revised = ", ".join(f"{n:,} {fate}" for fate, n in topic.decided_anew.items() if n)
        requeued = ", ".join(f"{n:,} {fate}" for fate, n in (topic.requeued or {}).items())
        still = topic.still.get("records") or 0
        notes = {
            f"{topic.late:,} late{f': {topic.delays.describe()}' if topic.delays else ''}": topic.late,
            f"{topic.without_value or 0:,} without a value": topic.without_value,
            f"{topic.before_horizon:,} dated before the horizon": topic.before_horizon,
            f"{topic.ahead:,} with an arrival ahead of the run": topic.ahead,
            f"earlier records under the current contract: {revised}": revised,
            **dict.fromkeys(format_ties(topic.ties), True),
            f"requeued: {requeued or 'none'}": topic.requeued is not None,
            f"{still:,} still malformed": still,
            f"{format_count(quiet, 'partition')} had nothing new": quiet,
            f"✗ {offsets:,} offsets in all, {read:,} in its partitions: does not add up": offsets != read,
        }
        summaries.append(TopicSummary(name, topic.topic, offsets, news, [note for note, n in notes.items() if n]))
    return summaries


def summarize_tables(report: RunReport) -> list[TableSummary]:
    summaries = []
    for name, table in report.tables.items():
        notes = format_left_out(table)
        if held := table.held:
            new = f", {format_count(held.newly, 'key')} newly" if held.newly else ""
            count = f"{format_count(held.keys, 'key')} with {format_count(held.rows, 'row')}{new}"
            overdue = [format_overdue(held.overdue)] if held.overdue else []
            notes = [f"held back: {count}", *overdue, *notes]
        notes += format_no_longer_held(table)
        if table.closed_up_to and (table.opened or table.closed or notes):
            notes.append(f"windows closed up to {format_timestamp(table.closed_up_to.isoformat())}")
        notes += [*format_emission(table), *format_widening(table)]
        counts = table.opened, table.closed, table.corrected
        summaries.append(TableSummary(name, *counts, table.ages or {}, notes, format_kernel(table.kernel)))
    return summaries


def summarize_gates(report: RunReport) -> list[GateSummary]:
    """Return all gates, failed ones first."""
    summaries = []
    for name, table in report.tables.items():
        for place, gate in enumerate(table.gates):
            result = gate.result
            parameters = format_gate(result.expectation, result.kwargs).removeprefix(result.expectation)
            kind = result.outcome, result.on_failure, result.expectation
            rule = show_briefly(gate_words.describe_rule(result.expectation, result.kwargs), MAX_RULE)
            summaries.append(GateSummary(name, place, *kind, parameters, rule, gate.as_json()))
    ranks = {name: n for n, name in enumerate((*OUTCOMES, "stop", "quarantine", "warn"))}
    return sorted(summaries, key=lambda gate: (ranks.get(gate.outcome, 0), ranks.get(gate.on_failure, 0)))


def describe_stops(gates: Sequence[GateSummary]) -> list[str]:
    """Return for each gate that stopped its table a sentence that says which, and how many rows fail it."""
    return [
        f"{gate.table} was not published: {gate.rule}. {_describe_failing(gate)}." for gate in gates if gate.is_stopping
    ]


def _describe_failing(gate: GateSummary) -> str:
    """Return how far a gate fails: in how many rows, or what was observed."""
    checked, failing, observed = (gate.result.get(name) for name in ("checked", "failing", "observed"))
    if isinstance(checked, int) and isinstance(failing, int) and failing:
        return f"{failing:,} of {format_count(checked, 'row')} {'fails' if failing == 1 else 'fail'}"
    if gate.outcome == "error":
        return "This could not be evaluated"
    return f"Observed was {observed}" if observed is not None else "It does not"


def describe_gates(gates: Sequence[GateSummary], released: Collection[str] = ()) -> str:
    """Return how many gates did not pass, and why.

    `released`: the tables whose rows that fail quarantine gates are all rows that a person released.
    """
    total, counts = len(gates), Counter(gate.outcome for gate in gates)
    if not total:
        return "it has no gates"
    if counts["passed"] == total:
        return f"all {total:,} gates passed" if total > 1 else "its gate passed"
    failed = Counter(gate.on_failure for gate in gates if gate.outcome == "failed")
    how = ", ".join(f"{n:,} {kind}" if len(failed) > 1 else kind for kind, n in failed.items())
    holding = {gate.table for gate in gates if gate.is_holding}
    is_released = {*failed} == {"quarantine"} and holding <= {*released}
    parts = [
        (counts["failed"], "failed on released rows" if is_released else f"failed ({how})"),
        (sum(gate.has_failed for gate in gates) - counts["failed"], "could not be evaluated"),
        (counts["unchecked"], f"{'was' if counts['unchecked'] == 1 else 'were'} not checked"),
    ]
    (first, words), *rest = [(n, words) for n, words in parts if n]
    return ", ".join([f"{first:,} of {format_count(total, 'gate')} {words}", *(f"{n:,} {words}" for n, words in rest)])


def format_timestamp(iso: str) -> str:
    """Return an ISO 8601 timestamp in UTC for people: `2026-01-01 00:00:00 UTC`."""
    return iso.replace("T", " ").replace("+00:00", " UTC")


def join_names(names: Sequence[str]) -> str:
    shown = [*names[:2], f"{len(names) - 2:,} more"] if len(names) > 3 else names
    return " and ".join(filter(None, [", ".join(shown[:-1]), *shown[-1:]]))
