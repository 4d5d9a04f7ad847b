"""The report of one run as a page: a single HTML file that asks for nothing else.

Verdict, offsets, past answers and the first gates that did not pass are in its HTML. The whole report is in it once
more, compressed: page.js shows all gates from there, a hundred at a time, and gives the report back as JSON.

Text of a report may be anything. Jinja escapes it here; page.js writes it as text only; and the page's own policy lets
the browser run and load nothing but the script and the style that are in the file.
"""

from __future__ import annotations

import json
import zlib
from base64 import b64encode
from collections import Counter
from collections.abc import Iterable, Sequence
from hashlib import sha256
from importlib.resources import files
from pathlib import Path
from secrets import token_hex
from typing import Any, Literal, NamedTuple

from jinja2 import Environment, Template

from hindcast.planning import definitions
from hindcast.quality.expectations import named
from hindcast.reports import given_up
from hindcast.reports.report import LEFT_OUT, list_no_longer_held, of_columns, of_emitted, of_ties, text_of_overdue

OUTCOMES = ("failed", "error", "unchecked", "passed")
"""What can become of a gate, in the order in which the page lists them."""

SIGNS = {"passed": "✓", "unchecked": "\N{EN DASH}", "failed": "✗", "stopped": "✗"}
"""The sign of an outcome or a verdict, because colour alone tells nothing; of all others `!`."""

WITHOUT_SCRIPT = 100  # so many of the gates that failed are in the HTML


class Verdict(NamedTuple):
    """What the run came to, in a sentence."""

    kind: Literal["passed", "attention", "unchecked", "stopped"]
    sentence: str


def write(folder: Path, told: dict[str, Any]) -> Path:
    """Write a report as a page and as JSON, for people and for programs; return the page.

    Each file is written beside and renamed: whoever reads it meanwhile has all of it, or all of the one before.
    """
    place = folder / str(told["pipeline"])
    place.mkdir(parents=True, exist_ok=True)
    name = place / f"run-{told['run']}.html"
    _replace(name.with_suffix(".json"), json.dumps(told, indent=2))
    _replace(name, html(told))
    return name


def remove_unfinished(folder: Path) -> None:
    """Remove what is left in a pipeline's folder of reports by writers that were killed."""
    for path in folder.glob(".run-*"):
        path.unlink(missing_ok=True)


def _replace(path: Path, text: str) -> None:
    """Write a file beside, then rename it; the one before stays if that fails."""
    new = path.with_name(f".{path.name}.{token_hex(4)}")
    try:
        new.write_text(text, encoding="utf-8")
        new.replace(path)
    finally:
        new.unlink(missing_ok=True)


def html(report: dict[str, Any]) -> str:
    """The page of a report (report.make, also of a run that was stopped); what the report lacks, the page leaves out.

    JSON has no NaN and no infinity: in the page and in what it gives back they are texts, as in show.as_json.
    """
    told = json.loads(json.dumps(report), parse_constant=str)
    gates, topics, tables = _gates(told), _topics(told), _tables(told)
    style, script = (
        files("hindcast.reports").joinpath(name).read_text(encoding="utf-8") for name in ("page.css", "page.js")
    )
    counts, failing = Counter(gate.outcome for gate in gates), [gate for gate in gates if gate.failing]
    unpublished = {gate.table for gate in gates if gate.stops}
    others = [table for table in tables if not table.news and table.name not in unpublished]
    page = _template().render(
        report=told,
        contract=definitions.list_lines(told.get("contract")),
        given_up=[given_up.text(it) for it in told.get("givenUp", [])],
        verdict=verdict(told),
        topics=[topic for topic in topics if topic.news],
        quiet=[topic.name for topic in topics if not topic.news],
        read=sum(topic.read for topic in topics),
        wrong=[topic.name for topic in topics if not topic.adds_up],
        tables=[table for table in tables if table.news],
        unpublished=sorted(unpublished),
        grown=[table for table in others if table.opened or table.closed],
        unchanged=[table.name for table in others if not (table.opened or table.closed)],
        corrected=sum(table.corrected for table in tables),
        ages=list(dict.fromkeys(age for table in tables for age in table.ages)),
        most=max((n for table in tables for n in table.ages.values()), default=0),
        held=_held(told),
        gates=len(gates),
        outcomes=[(outcome, counts[outcome]) for outcome in OUTCOMES],
        failing=failing[:WITHOUT_SCRIPT],
        more=len(failing) - WITHOUT_SCRIPT,
        policy=f"default-src 'none'; img-src data:; style-src {_hash(style)}; script-src {_hash(script)}; "
        "base-uri 'none'; form-action 'none'",
        style=style,
        script=script,
        embedded=_embedded(told, gates),
    )
    return page.encode("utf-8", "replace").decode("utf-8")


def verdict(report: dict[str, Any]) -> Verdict:
    """What a person on call wants to know first."""
    run = f"Run {report.get('run', '?')} of {report.get('pipeline', '?')}"
    gates, held = _gates(report), _held(report)
    wrong, clauses = [topic.name for topic in _topics(report) if not topic.adds_up], []
    if held:
        keys = sum(table["keys"] for table in held.values())
        place = next(iter(held)) if len(held) == 1 else f"{len(held)} tables"
        clauses.append(f"{counted(keys, 'key')} of {place} {'is' if keys == 1 else 'are'} held back")
    if wrong:
        clauses.append(f"the offsets and fates of {_listed(wrong)} do not add up")
    if report.get("state") == "stopped":
        stopping = [gate.table for gate in gates if gate.stops]
        names, by = _listed(list(dict.fromkeys(stopping))), f"{len(stopping):,} gates" if stopping[1:] else "a gate"
        why = f" by {by} of {names}: nothing of {names} was published, nor of what depends on it" if stopping else ""
        return Verdict("stopped", f"{'; '.join([f'{run} was stopped{why}', *clauses])}.")
    tables = _parts(report, "tables").values()
    changed = any(table.get("opened") or table.get("closed") for table in tables) or not tables
    sentence = f"{run} {'was published' if changed else 'changed nothing'}; {_of_gates(gates)}"
    if clauses:
        because = held and sentence.endswith("(quarantine)")
        sentence += (": " if because else "; ") + "; ".join(clauses)
    if clauses or any(gate.failing for gate in gates):
        return Verdict("attention", f"{sentence}.")
    checked = not gates or any(gate.outcome == "passed" for gate in gates)
    return Verdict("passed" if checked else "unchecked", f"{sentence}.")


class Partition(NamedTuple):
    """A planned range of one partition, and the fates of its offsets; of a topic by pattern it has its topic's name."""

    name: str
    offsets: str
    read: int
    fates: dict[str, int]

    @property
    def adds_up(self) -> bool:
        """Whether each of its offsets has exactly one fate."""
        return self.read == sum(self.fates.values())

    @property
    def told(self) -> str:
        """The sum, written out."""
        parts = " + ".join(f"{n:,} {fate}" for fate, n in self.fates.items()) or "0"
        return f"{self.read:,} = {parts}" if self.adds_up else f"{self.read:,} ≠ {sum(self.fates.values()):,} = {parts}"


class Topic(NamedTuple):
    """What a run read of one topic; of its partitions those that brought offsets."""

    name: str
    kafka: str
    read: int
    partitions: list[Partition]
    notes: list[str]

    @property
    def news(self) -> bool:
        """Whether there is anything to tell of it."""
        return bool(self.read or self.partitions or self.notes)

    @property
    def adds_up(self) -> bool:
        """Whether its offsets are those of its partitions, and each has exactly one fate."""
        return self.read == sum(part.read for part in self.partitions) and all(p.adds_up for p in self.partitions)


class Changed(NamedTuple):
    """What a run changed in one table, and `by` what, where that was no Spark plan."""

    name: str
    opened: int
    closed: int
    corrected: int
    ages: dict[str, int]
    notes: list[str]
    by: str

    @property
    def news(self) -> bool:
        """Whether it is more than rows that were opened and closed."""
        return bool(self.corrected or self.notes)


class Gate(NamedTuple):
    """A gate with its verdict as the page lists it; `place` is its place among the gates of its table."""

    table: str
    place: int
    outcome: str
    on_failure: str
    expectation: str
    parameters: str
    result: dict[str, Any]

    @property
    def failing(self) -> bool:
        """Whether it failed or could not be evaluated."""
        return self.outcome not in ("passed", "unchecked")

    @property
    def stops(self) -> bool:
        """Whether nothing of its table was published because of it."""
        return self.failing and self.on_failure == "stop"


def _topics(report: dict[str, Any]) -> list[Topic]:
    found = []
    for name, topic in _parts(report, "topics").items():
        partitions = []
        for part in topic.get("partitions") or []:
            start, end = part.get("start", 0), part.get("end", 0)
            range_ = f"{start:,} to {end - 1:,}" if end > start else f"none at {start:,}"
            place = f"{part['topic']}-{part['topicPartition']}" if "topic" in part else str(part.get("partition", 0))
            partitions.append(Partition(place, range_, end - start, _parts(part, "fates")))
        news = [part for part in partitions if part.read or part.fates]
        quiet = len(partitions) - len(news) if news else 0
        offsets = topic.get("offsets", read := sum(part.read for part in news))
        anew = ", ".join(f"{n:,} {fate}" for fate, n in _parts(topic, "decidedAnew").items() if n)
        again = ", ".join(f"{n:,} {fate}" for fate, n in _parts(topic, "requeued").items())
        still = _parts(topic, "still").get("records") or 0
        notes = {
            f"{topic.get('late') or 0:,} late": topic.get("late"),
            f"{topic.get('withoutValue') or 0:,} without a value": topic.get("withoutValue"),
            f"{topic.get('beforeHorizon') or 0:,} dated before the horizon": topic.get("beforeHorizon"),
            f"of earlier records by the contract as it is now: {anew}": anew,
            **dict.fromkeys(of_ties(topic), True),
            f"requeued: {again or 'none'}": "requeued" in topic,
            f"{still:,} still malformed": still,
            f"{counted(quiet, 'partition')} brought nothing new": quiet,
            f"✗ {offsets:,} offsets in all, {read:,} in its partitions: does not add up": offsets != read,
        }
        found.append(Topic(name, topic.get("topic", name), offsets, news, [note for note, n in notes.items() if n]))
    return found


def _tables(report: dict[str, Any]) -> list[Changed]:
    found, held = [], _held(report)
    for name, table in _parts(report, "tables").items():
        left_out = [f"{n:,} {LEFT_OUT.get(kind, kind)}" for kind, n in _parts(table, "newlyLeftOut").items() if n > 0]
        notes = [f"left out: {', '.join(left_out)}"] if left_out else []
        if name in held:
            keys, rows, newly = (held[name].get(count) or 0 for count in ("keys", "rows", "newly"))
            new = f", {counted(newly, 'key')} newly" if newly else ""
            notes.insert(0, f"held back: {counted(keys, 'key')} with {counted(rows, 'row')}{new}")
            if overdue := held[name].get("overdue"):
                notes.insert(1, text_of_overdue(overdue))
        notes += list_no_longer_held(table)
        opened, closed, corrected = (table.get(count) or 0 for count in ("opened", "closed", "corrected"))
        if table.get("closedUpTo") and (opened or closed or notes):
            notes.append(f"windows closed up to {moment(table['closedUpTo'])}")
        notes += [*of_emitted(table), *of_columns(table)]
        by = " by a kernel" if table.get("kernel") else ""
        found.append(Changed(name, opened, closed, corrected, _parts(table, "ages"), notes, by))
    return found


def _gates(report: dict[str, Any]) -> list[Gate]:
    """All gates, what failed first."""
    found = []
    for table, told in _parts(report, "tables").items():
        for place, gate in enumerate(told.get("gates") or []):
            name = gate.get("expectation", "?")
            parameters = named(name, _parts(gate, "kwargs")).removeprefix(name)
            outcome, on_failure = gate.get("outcome", "error"), gate.get("on_failure", "")
            found.append(Gate(table, place, outcome, on_failure, name, parameters, gate))
    ranks = {name: n for n, name in enumerate((*OUTCOMES, "stop", "quarantine", "warn"))}
    return sorted(found, key=lambda gate: (ranks.get(gate.outcome, 0), ranks.get(gate.on_failure, 0)))


def _held(report: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """What each table holds back, of those that do."""
    return {
        name: table["held"] for name, table in _parts(report, "tables").items() if _parts(table, "held").get("keys")
    }


def _of_gates(gates: Sequence[Gate]) -> str:
    total, counts = len(gates), Counter(gate.outcome for gate in gates)
    if not total:
        return "it has no gates"
    if counts["passed"] == total:
        return f"all {total:,} gates passed" if total > 1 else "its gate passed"
    failed = Counter(gate.on_failure for gate in gates if gate.outcome == "failed")
    how = ", ".join(f"{n:,} {kind}" if len(failed) > 1 else kind for kind, n in failed.items())
    told = [
        (counts["failed"], f"failed ({how})"),
        (sum(gate.failing for gate in gates) - counts["failed"], "could not be evaluated"),
        (counts["unchecked"], f"{'was' if counts['unchecked'] == 1 else 'were'} not checked"),
    ]
    (first, words), *rest = [(n, words) for n, words in told if n]
    return ", ".join([f"{first:,} of {counted(total, 'gate')} {words}", *(f"{n:,} {words}" for n, words in rest)])


def moment(iso: str) -> str:
    """A moment as people read it: `2026-01-01 00:00:00 UTC`."""
    return iso.replace("T", " ").replace("+00:00", " UTC")


def _embedded(report: dict[str, Any], gates: Iterable[Gate]) -> str:
    """The report, and on a second line how its gates are listed and written; compressed, then in base64."""
    listed = [(gate.table, gate.place, gate.outcome, gate.parameters) for gate in gates]
    lines = "\n".join(json.dumps(part, separators=(",", ":")) for part in (report, listed))
    return b64encode(zlib.compress(lines.encode(), 9)).decode()


def _template() -> Template:
    source = files("hindcast.reports").joinpath("page.html").read_text(encoding="utf-8")
    surroundings = Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True)
    surroundings.filters |= {"moment": moment, "counted": counted, "number": "{:,}".format}
    surroundings.filters["sign"] = lambda kind: SIGNS.get(kind, "!")
    return surroundings.from_string(source)


def _hash(text: str) -> str:
    """What a policy allows of style or script: exactly this text."""
    return f"'sha256-{b64encode(sha256(text.encode()).digest()).decode()}'"


def _parts(told: dict[str, Any], name: str) -> dict[str, Any]:
    """What a report has under a name; empty if it lacks it."""
    return told.get(name) or {}


def counted(n: int, word: str) -> str:
    """A number of things: `1 key`, `1,200 keys`."""
    return f"{n:,} {word}" if n == 1 else f"{n:,} {word}s"


def _listed(names: Sequence[str]) -> str:
    shown = [*names[:2], f"{len(names) - 2:,} more"] if len(names) > 3 else names
    return " and ".join(filter(None, [", ".join(shown[:-1]), *shown[-1:]]))
