"""The report of one run as a page: a single HTML file that loads nothing else.

The HTML has the verdict, offsets, past answers and the first gates that did not pass. It also embeds the whole report,
compressed: from that page.js shows all gates, a hundred at a time, and offers the report as JSON.

Text of a report is not trusted. Jinja escapes it here; page.js writes it as text only; and the page's own
Content-Security-Policy lets the browser run and load only the script and the style in the file.
"""

from __future__ import annotations

import json
import zlib
from base64 import b64encode
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from hashlib import sha256
from importlib.resources import files
from pathlib import Path
from secrets import token_hex
from typing import Literal, NamedTuple

from jinja2 import Environment, Template

from hindcast.common.json_values import JsonObject
from hindcast.common.plurals import format_count
from hindcast.plan import definitions
from hindcast.quality.expectations import format_gate
from hindcast.report import abandoned_runs
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

MAX_GATES_WITHOUT_SCRIPT = 100  # the HTML has at most this many failed gates


class RunSummary(NamedTuple):
    """The outcome of a run in a sentence."""

    kind: Literal["passed", "attention", "unchecked", "stopped"]
    sentence: str


def write_page(folder: Path, report: RunReport) -> Path:
    """Write a report as a page and as JSON, for people and for programs; return the path of the page.

    Each file is written under another name and renamed, so a reader sees the whole new file or the whole old one.
    """
    path = page_path(folder, report.pipeline, report.run)
    path.parent.mkdir(parents=True, exist_ok=True)
    _replace_file(path.with_suffix(".json"), json.dumps(report.as_json(), indent=2))
    _replace_file(path, render_page(report))
    return path


def page_path(folder: Path, pipeline: str, run: int) -> Path:
    """Return the path of a run's page in the folder of reports."""
    return folder / pipeline / f"run-{run}.html"


def remove_unfinished_files(folder: Path) -> None:
    """Remove the files that killed writers left in a pipeline's folder of reports."""
    for path in folder.glob(".run-*"):
        path.unlink(missing_ok=True)


def _replace_file(path: Path, text: str) -> None:
    """Write a file under another name, then rename it; if that fails, the old file stays."""
    temporary = path.with_name(f".{path.name}.{token_hex(4)}")
    try:
        temporary.write_text(text, encoding="utf-8")
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def render_page(report: RunReport) -> str:
    """Return the HTML page of a report (`report.build_report`), also of a stopped run.

    JSON has no NaN and no infinity: the page and the JSON that it offers have them as strings, as in show.as_json.
    """
    plain = json.loads(json.dumps(report.as_json()), parse_constant=str)
    report = RunReport.from_json(plain)
    gates, topics, tables = _summarize_gates(report), _summarize_topics(report), _summarize_tables(report)
    style, script = _read_source("page.css"), _read_source("page.js")
    counts, failing = Counter(gate.outcome for gate in gates), [gate for gate in gates if gate.has_failed]
    unpublished = {gate.table for gate in gates if gate.is_stopping}
    others = [table for table in tables if not table.has_news and table.name not in unpublished]
    page = _load_template().render(
        report=plain,
        contract=definitions.format_change(report.contract),
        abandoned=[abandoned_runs.format_abandoned_run(run) for run in report.abandoned],
        verdict=summarize_outcome(report),
        topics=[topic for topic in topics if topic.has_news],
        quiet=[topic.name for topic in topics if not topic.has_news],
        read=sum(topic.read for topic in topics),
        wrong=[topic.name for topic in topics if not topic.is_balanced],
        tables=[table for table in tables if table.has_news],
        unpublished=sorted(unpublished),
        grown=[table for table in others if table.opened or table.closed],
        unchanged=[table.name for table in others if not (table.opened or table.closed)],
        corrected=sum(table.corrected for table in tables),
        ages=list(dict.fromkeys(age for table in tables for age in table.ages)),
        most=max((n for table in tables for n in table.ages.values()), default=0),
        held=report.held_keys,
        gates=len(gates),
        outcomes=[(outcome, counts[outcome]) for outcome in OUTCOMES],
        failing=failing[:MAX_GATES_WITHOUT_SCRIPT],
        more=len(failing) - MAX_GATES_WITHOUT_SCRIPT,
        policy=f"default-src 'none'; img-src data:; style-src {_policy_hash(style)}; "
        f"script-src {_policy_hash(script)}; base-uri 'none'; form-action 'none'",
        style=style,
        script=script,
        embedded=_embed_report(plain, gates),
    )
    return page.encode("utf-8", "replace").decode("utf-8")


def summarize_outcome(report: RunReport) -> RunSummary:
    """Return what a person on call wants to know first: the outcome of the run and the numbers behind it."""
    run = f"Run {report.run} of {report.pipeline}"
    gates, held = _summarize_gates(report), report.held_keys
    wrong, clauses = [topic.name for topic in _summarize_topics(report) if not topic.is_balanced], []
    if held:
        keys = sum(table.keys for table in held.values())
        place = next(iter(held)) if len(held) == 1 else f"{len(held)} tables"
        clauses.append(f"{format_count(keys, 'key')} of {place} {'is' if keys == 1 else 'are'} held back")
    if wrong:
        clauses.append(f"the offsets and fates of {_join_names(wrong)} do not add up")
    if report.state == "stopped":
        stopping = [gate.table for gate in gates if gate.is_stopping]
        names, by = _join_names(list(dict.fromkeys(stopping))), f"{len(stopping):,} gates" if stopping[1:] else "a gate"
        why = f" by {by} of {names}: nothing of {names} was published, nor of what depends on it" if stopping else ""
        return RunSummary("stopped", f"{'; '.join([f'{run} was stopped{why}', *clauses])}.")
    changed = any(table.opened or table.closed for table in report.tables.values()) or not report.tables
    sentence = f"{run} {'was published' if changed else 'changed nothing'}; {_describe_gates(gates)}"
    if clauses:
        because = held and sentence.endswith("(quarantine)")
        sentence += (": " if because else "; ") + "; ".join(clauses)
    if clauses or any(gate.has_failed for gate in gates):
        return RunSummary("attention", f"{sentence}.")
    checked = not gates or any(gate.outcome == "passed" for gate in gates)
    return RunSummary("passed" if checked else "unchecked", f"{sentence}.")


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


class GateSummary(NamedTuple):
    """A gate with its result as the page lists it; `place` is its position among the gates of its table."""

    table: str
    place: int
    outcome: str
    on_failure: str
    expectation: str
    parameters: str
    result: JsonObject

    @property
    def has_failed(self) -> bool:
        """True if it failed or could not be evaluated."""
        return self.outcome not in ("passed", "unchecked")

    @property
    def is_stopping(self) -> bool:
        """True if it stopped its table from being published."""
        return self.has_failed and self.on_failure == "stop"


def _summarize_topics(report: RunReport) -> list[TopicSummary]:
    summaries = []
    for name, topic in report.topics.items():
        partitions = []
        for part in topic.partitions:
            range_ = f"{part.start:,} to {part.end - 1:,}" if part.end > part.start else f"none at {part.start:,}"
            partitions.append(PartitionSummary(part.name, range_, part.end - part.start, part.fates))
        news = [part for part in partitions if part.read or part.fates]
        quiet = len(partitions) - len(news) if news else 0
        read = sum(part.read for part in news)
        offsets = read if topic.offsets is None else topic.offsets
        revised = ", ".join(f"{n:,} {fate}" for fate, n in topic.decided_anew.items() if n)
        requeued = ", ".join(f"{n:,} {fate}" for fate, n in (topic.requeued or {}).items())
        still = topic.still.get("records") or 0
        notes = {
            f"{topic.late:,} late": topic.late,
            f"{topic.without_value or 0:,} without a value": topic.without_value,
            f"{topic.before_horizon:,} dated before the horizon": topic.before_horizon,
            f"earlier records under the current contract: {revised}": revised,
            **dict.fromkeys(format_ties(topic.ties), True),
            f"requeued: {requeued or 'none'}": topic.requeued is not None,
            f"{still:,} still malformed": still,
            f"{format_count(quiet, 'partition')} had nothing new": quiet,
            f"✗ {offsets:,} offsets in all, {read:,} in its partitions: does not add up": offsets != read,
        }
        summaries.append(TopicSummary(name, topic.topic, offsets, news, [note for note, n in notes.items() if n]))
    return summaries


def _summarize_tables(report: RunReport) -> list[TableSummary]:
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


def _summarize_gates(report: RunReport) -> list[GateSummary]:
    """Return all gates, failed ones first."""
    summaries = []
    for name, table in report.tables.items():
        for place, gate in enumerate(table.gates):
            result = gate.result
            parameters = format_gate(result.expectation, result.kwargs).removeprefix(result.expectation)
            kind = result.outcome, result.on_failure, result.expectation
            summaries.append(GateSummary(name, place, *kind, parameters, gate.as_json()))
    ranks = {name: n for n, name in enumerate((*OUTCOMES, "stop", "quarantine", "warn"))}
    return sorted(summaries, key=lambda gate: (ranks.get(gate.outcome, 0), ranks.get(gate.on_failure, 0)))


def _describe_gates(gates: Sequence[GateSummary]) -> str:
    total, counts = len(gates), Counter(gate.outcome for gate in gates)
    if not total:
        return "it has no gates"
    if counts["passed"] == total:
        return f"all {total:,} gates passed" if total > 1 else "its gate passed"
    failed = Counter(gate.on_failure for gate in gates if gate.outcome == "failed")
    how = ", ".join(f"{n:,} {kind}" if len(failed) > 1 else kind for kind, n in failed.items())
    parts = [
        (counts["failed"], f"failed ({how})"),
        (sum(gate.has_failed for gate in gates) - counts["failed"], "could not be evaluated"),
        (counts["unchecked"], f"{'was' if counts['unchecked'] == 1 else 'were'} not checked"),
    ]
    (first, words), *rest = [(n, words) for n, words in parts if n]
    return ", ".join([f"{first:,} of {format_count(total, 'gate')} {words}", *(f"{n:,} {words}" for n, words in rest)])


def format_timestamp(iso: str) -> str:
    """Return an ISO 8601 timestamp in UTC for people: `2026-01-01 00:00:00 UTC`."""
    return iso.replace("T", " ").replace("+00:00", " UTC")


def _embed_report(report: JsonObject, gates: Iterable[GateSummary]) -> str:
    """Return the report and, on a second line, its gates in page order, as JSON; zlib-compressed, then in base64."""
    listed = [(gate.table, gate.place, gate.outcome, gate.parameters) for gate in gates]
    lines = "\n".join(json.dumps(part, separators=(",", ":")) for part in (report, listed))
    return b64encode(zlib.compress(lines.encode(), 9)).decode()


def _load_template() -> Template:
    environment = Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True)
    environment.filters |= {"moment": format_timestamp, "counted": format_count, "number": "{:,}".format}
    environment.filters["sign"] = lambda kind: SIGNS.get(kind, "!")
    return environment.from_string(_read_source("page.html"))


def _read_source(name: str) -> str:
    return files("hindcast.report").joinpath(name).read_text(encoding="utf-8")


def read_fixed_text() -> str:
    """Return what every page contains, whatever its report says: its template, style and script."""
    return "\n".join(map(_read_source, ("page.html", "page.css", "page.js")))


def _policy_hash(text: str) -> str:
    """Return the source expression by which a Content-Security-Policy allows exactly this style or script."""
    return f"'sha256-{b64encode(sha256(text.encode()).digest()).decode()}'"


def _join_names(names: Sequence[str]) -> str:
    shown = [*names[:2], f"{len(names) - 2:,} more"] if len(names) > 3 else names
    return " and ".join(filter(None, [", ".join(shown[:-1]), *shown[-1:]]))
