"""The report of one run as a page: a single HTML file that loads nothing else.

The HTML has the verdict, offsets, past answers and the first gates that did not pass. It also embeds the whole report,
compressed: from that page.js shows all gates, a hundred at a time, and offers the report as JSON.

Text of a report is not trusted. Jinja escapes it here; page.js writes it as text only; and the page's own
Content-Security-Policy lets the browser run and load only the script and the style in the file.
"""

from __future__ import annotations

import json
import os
import re
import zlib
from base64 import b64encode
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from datetime import datetime
from hashlib import sha256
from importlib.resources import files
from pathlib import Path
from secrets import token_hex
from typing import Literal, NamedTuple
from urllib.parse import urlencode

from jinja2 import Environment, FunctionLoader, Template

from hindcast.common.errors import PlatformError, TableError, show_briefly
from hindcast.common.json_values import JsonObject
from hindcast.common.plurals import format_count
from hindcast.plan import definitions
from hindcast.query.show import format_moment
from hindcast.report import abandoned_runs, report_size
from hindcast.report.run_report import RunReport
from hindcast.report.summaries import (
    OUTCOMES,
    SIGNS,
    GateSummary,
    describe_gates,
    describe_stops,
    format_timestamp,
    join_names,
    summarize_gates,
    summarize_tables,
    summarize_topics,
)

MAX_GATES_WITHOUT_SCRIPT = 100  # the HTML has at most this many failed gates


class RunSummary(NamedTuple):
    """The outcome of a run in a sentence; `brief`: what is left of it beside the name of the run: `published`."""

    kind: Literal["passed", "attention", "unchecked", "stopped"]
    sentence: str
    brief: str


def write_page(folder: Path, pipeline: str, run: int, report: RunReport) -> Path:
    """Write the report of a run as a page and as JSON, for people and for programs; return the path of the page.

    Each file is written under another name and renamed, so a reader sees the whole new file or the whole old one.
    TableError for a stored report that names another pipeline or run: somebody else has written it.
    """
    if (report.pipeline, report.run) != (pipeline, run):
        named = show_briefly(f"{report.pipeline!r}, run {report.run!r}")
        fix = f"hindcast ledger {pipeline} --rebuild"
        raise TableError(f"the report in the journal is of {named}", where=f"{pipeline}, run {run}", fix=fix)
    path = open_folder(folder, pipeline) / f"run-{run}.html"
    path.parent.mkdir(parents=True, exist_ok=True)
    replace_file(path.with_suffix(".json"), report_size.format_report_json(report))
    replace_file(path, render_page(report))
    return path


def page_path(folder: Path, pipeline: str, run: int) -> Path:
    """Return the path of a run's page in the folder of reports."""
    return folder / pipeline / f"run-{run}.html"


def open_folder(folder: Path, pipeline: str) -> Path:
    """Return the folder of a pipeline's reports, which need not exist; raise PlatformError if it is a link."""
    refuse_linked_folder(own := folder / pipeline)
    return own


def refuse_linked_folder(folder: Path) -> None:
    """Raise PlatformError if the folder of a pipeline's reports is a link: it can lead to those of another pipeline."""
    if os.path.islink(folder):  # noqa: PTH114  # false, and no error, where nobody may look
        fix = "remove the link, and put the folder itself there"
        raise PlatformError("is a link, which can lead to the reports of others", where=str(folder), fix=fix)


def remove_unfinished_files(folder: Path) -> None:
    """Remove the files that killed writers left in a pipeline's folder of reports."""
    for path in folder.glob(".run-*"):
        path.unlink(missing_ok=True)


def replace_file(path: Path, text: str) -> None:
    """Write a file under another name, then rename it; if that fails, the old file stays."""
    temporary = path.with_name(f".{path.name}.{token_hex(4)}")
    try:
        temporary.write_text(text, encoding="utf-8")
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def render_page(
    report: RunReport,
    failing_rows: Sequence[JsonObject] = (),
    root: str = "",
    release: JsonObject | None = None,
    near: JsonObject | None = None,
) -> str:
    """Return the HTML page of a report (`report.build_report`), also of a stopped run.

    With `failing_rows` (gates with their rows, for failing.html) it leads to the pages in Airflow, which are at `root`.
    `release`: who approved the held changes that the run releases, when and why (run_reports.describe_release), if an
    older report does not say so. `near`: the runs before and after, to which a page that a server shows leads; a file
    leads nowhere.

    JSON has no NaN and no infinity: the page and the JSON that it offers have them as strings, as in show.as_json.
    """
    plain = json.loads(json.dumps(report.as_json()), parse_constant=str)
    report = RunReport.from_json(plain)
    if report.approval is not None:
        release = {**report.approval.as_json(), "reason": report.reason}
    gates, topics, tables = summarize_gates(report), summarize_topics(report), summarize_tables(report)
    style, theme, script = map(read_source, ("page.css", "theme.js", "page.js"))
    counts, failing = Counter(gate.outcome for gate in gates), [gate for gate in gates if gate.has_failed]
    unpublished = {gate.table for gate in gates if gate.is_stopping}
    others = [table for table in tables if not table.has_news and table.name not in unpublished]
    page = load_template("page.html").render(
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
        stops=describe_stops(gates)[:MAX_GATES_WITHOUT_SCRIPT],
        failing_rows=failing_rows,
        root=root,
        release=release,
        near=near,
        policy=f"default-src 'none'; img-src data:; style-src {policy_hash(style)}; "
        f"script-src {policy_hash(theme)} {policy_hash(script)}; base-uri 'none'; form-action 'none'",
        style=style,
        theme=theme,
        script=script,
        embedded=_embed_report(plain, gates),
    )
    return page.encode("utf-8", "replace").decode("utf-8")


def summarize_outcome(report: RunReport) -> RunSummary:
    """Return what a person on call wants to know first: the outcome of the run and the numbers behind it.

    What was held back before, and waits for approval, needs attention in the run that held it only.
    """
    run = f"Run {report.run} of {report.pipeline}"
    gates, held = summarize_gates(report), report.held_keys
    newly = {name: keys for name, keys in held.items() if keys.newly or keys.grown}
    released = {name: n for name, table in report.tables.items() if (n := table.ended.get("released"))}
    wrong, clauses = [topic.name for topic in summarize_topics(report) if not topic.is_balanced], []
    if held:
        keys = sum(table.keys for table in held.values())
        waits = (
            f"{'is' if keys == 1 else 'are'} held back"
            if newly
            else f"still {'waits' if keys == 1 else 'wait'} for approval"
        )
        clauses.append(f"{format_count(keys, 'key')} of {_name_tables(held)} {waits}")
    if released:
        keys = sum(released.values())
        clauses.append(
            f"{format_count(keys, 'held key')} of {_name_tables(released)} {'was' if keys == 1 else 'were'} released"
        )
    if wrong:
        clauses.append(f"the offsets and fates of {join_names(wrong)} do not add up")
    if report.state == "stopped":
        stopping = [gate.table for gate in gates if gate.is_stopping]
        names, by = join_names(list(dict.fromkeys(stopping))), f"{len(stopping):,} gates" if stopping[1:] else "a gate"
        why = f" by {by} of {names}: nothing of {names} was published, nor of what depends on it" if stopping else ""
        brief = "; ".join([f"stopped{why.partition(':')[0]}", *clauses])
        return RunSummary("stopped", f"{'; '.join([f'{run} was stopped{why}', *clauses])}.", brief)
    changed = any(table.opened or table.closed for table in report.tables.values()) or not report.tables
    verdict = describe_gates(gates, released.keys() - held.keys())
    sentence = f"{run} {'was published' if changed else 'changed nothing'}; {verdict}"
    has_passed = all(gate.outcome == "passed" for gate in gates)
    state = ("published" if changed else "changed nothing") if has_passed else verdict
    brief = "; ".join([state, *clauses])
    if clauses:
        because = newly and sentence.endswith("(quarantine)")
        sentence += (": " if because else "; ") + "; ".join(clauses)
    if newly or wrong or any(gate.has_failed and not gate.is_holding for gate in gates):
        return RunSummary("attention", f"{sentence}.", brief)
    checked = not gates or any(gate.outcome == "passed" for gate in gates)
    return RunSummary("passed" if checked or released else "unchecked", f"{sentence}.", brief)


def _name_tables(tables: Collection[str]) -> str:
    """Return the name of the only table, or how many there are."""
    return next(iter(tables)) if len(tables) == 1 else f"{len(tables)} tables"


def _embed_report(report: JsonObject, gates: Iterable[GateSummary]) -> str:
    """Return the report and, on a second line, its gates in page order, as JSON; zlib-compressed, then in base64."""
    listed = [(gate.table, gate.place, gate.outcome, gate.parameters, gate.rule) for gate in gates]
    lines = "\n".join(json.dumps(part, separators=(",", ":")) for part in (report, listed))
    return b64encode(zlib.compress(lines.encode(), 9)).decode()


def load_template(name: str) -> Template:
    """Return a template of this package."""
    loader = FunctionLoader(read_source)
    environment = Environment(loader=loader, autoescape=True, trim_blocks=True, lstrip_blocks=True)
    environment.filters |= {"moment": format_timestamp, "counted": format_count, "number": "{:,}".format}
    environment.filters["sign"] = lambda kind: SIGNS.get(kind, "!")
    environment.filters["short"] = lambda iso: format_moment(datetime.fromisoformat(iso))
    environment.filters["second"] = lambda iso: format_timestamp(re.sub(r"\.\d+", "", iso))
    environment.filters["query"] = urlencode
    environment.filters["age_words"] = lambda age: "older than 30 days" if age == "older" else age
    return environment.get_template(name)


def read_source(name: str) -> str:
    """Return the text of a template, style or script of this package."""
    return files("hindcast.report").joinpath(name).read_text(encoding="utf-8")


def read_fixed_text() -> str:
    """Return what every page contains, whatever its report says: its template, style and script."""
    return "\n".join(map(read_source, ("page.html", "head.html", "approval.html", "page.css", "theme.js", "page.js")))


def policy_hash(text: str) -> str:
    """Return the source expression by which a Content-Security-Policy allows exactly this style or script."""
    return f"'sha256-{b64encode(sha256(text.encode()).digest()).decode()}'"
