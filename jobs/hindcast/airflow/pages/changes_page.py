"""Changes: what a run, or all runs between two moments of knowledge, have changed in a table's answers.

One line for each key and period: the old values and the new, with the record that the new ones come from
(query/changes.py). The columns of the lines are in templates/change_lines.html, their values in change_lines.py;
templates/changes.html has what stands around them.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from typing import Annotated, Literal

import duckdb
from fastapi import Query

from hindcast.airflow.pages import known_ats, marks, run_reports
from hindcast.airflow.pages.change_lines import LineFormatter
from hindcast.airflow.pages.likely_causes import describe_likely_cause
from hindcast.airflow.pages.reading_limits import SlowReportError, limit_report
from hindcast.airflow.pages.time_machine import QuestionError
from hindcast.common.errors import PlatformError, QueryError, UnknownError
from hindcast.common.json_values import JsonObject, JsonValue
from hindcast.common.lengths import format_length
from hindcast.common.python_values import list_rows
from hindcast.common.settings import Settings
from hindcast.contract import Contract
from hindcast.contract.shapes import PERIODS
from hindcast.plan import journal
from hindcast.plan.runs import Completed, Run, find_last_completed
from hindcast.query import changes, read, show
from hindcast.query.change_causes import Cause, CauseFinder
from hindcast.query.changes import ChangeQuestion, Changes, SideLimit
from hindcast.query.explain_limits import EngineLimitError, open_limited_engine
from hindcast.query.turns import TurnError, Turns
from hindcast.store.duckdb_reader import EngineFactory
from hindcast.store.tables import Table

LINES_PER_PAGE = 50
MAX_TOGETHER, TOGETHER_SECONDS = 60, 2.0
"""If so few rows of a pipeline changed, the page has those of all tables, of as many as it can begin in this time."""
MAX_EXPORTED = 20_000
"""The most lines of a CSV file."""
LIMIT = SideLimit(rows=1_200_000, bytes_=256 << 20, line_bytes=8 << 20)
SECONDS, MEMORY = 8.0, 320 << 20
"""How much a page reads, and how long and how many bytes comparing may take; `hindcast diff` has no limit."""

MAX_PAGES, WAIT_SECONDS = 2, 5.0
"""How many pages read changes at the same time, one of each pipeline, and how long others wait for their turn."""


@dataclass(frozen=True)
class ChangesRequest:
    """The query of the address; None for what it leaves out. `knownAt` and `comparedWith` as in the time machine."""

    table: str | None = None
    knownAt: str | None = None  # noqa: N815  # as the address has it
    comparedWith: str | None = None  # noqa: N815
    only: Literal["corrections", ""] | None = None
    order: Literal["size", "time"] | None = None
    page: Annotated[int, Query(ge=1, le=1_000_000)] = 1


@dataclass(frozen=True)
class RowCounts:
    """How many rows of a table some runs added and removed, and how many of these were past answers."""

    added: int = 0
    removed: int = 0
    corrections: int = 0

    @property
    def rows(self) -> int:
        """The number of rows added and removed."""
        return self.added + self.removed


@dataclass(frozen=True)
class _Answer:
    """The changes that a request asks for: of a table, by the runs between two moments, from a line on.

    `past`: all completed runs.
    """

    table: Table
    past: Sequence[Run]
    runs: Sequence[Run]
    question: ChangeQuestion
    found: Changes
    is_one_run: bool
    counts: Mapping[str, RowCounts | None]


def build_page(
    settings: Settings, contract: Contract, readable: Collection[str], request: ChangesRequest
) -> JsonObject:
    """Return the fields of a pipeline's page; QuestionError for a question that cannot be answered."""
    fields = _list_fields(settings, contract, request)
    answer = _find_answer(settings, contract, request, (request.page - 1) * LINES_PER_PAGE, LINES_PER_PAGE)
    if answer is None:
        return fields
    question, (table, lines, counts) = answer.question, answer.found
    shown, are_known = _format_lines(settings, contract, readable, answer)
    return (
        fields
        | _list_tables(answer.counts)
        | {
            "table": table.name,
            "kind": table.kind,
            "periods": [*PERIODS[table.kind]],
            "runs": [run.number for run in answer.runs],
            "alone": answer.is_one_run,
            "release": run_reports.describe_release(answer.runs[0]) if answer.is_one_run else None,
            "stopped": _find_stopped_run(settings, contract, request),
            "likelyCause": describe_likely_cause(settings, contract, table.name, answer.runs)
            if not are_known
            else None,
            "abandoned": _find_abandoned_runs(settings, contract, answer) if answer.is_one_run else [],
            "earlier": question.earlier.isoformat(),
            "later": question.later.isoformat(),
            "period": [moment.isoformat() for moment in question.period or ()],
            "lines": shown,
            "others": [*_list_others(settings, contract, readable, request, answer)],
            "near": run_reports.find_neighbours(answer.past, answer.runs[0].number) if answer.is_one_run else {},
            "first": question.first,
            "total": counts.lines,
            "keys": counts.keys,
            "corrections": counts.corrections,
            "more": question.first + lines.num_rows < counts.lines,
        }
    )


def _format_lines(
    settings: Settings, contract: Contract, readable: Collection[str], answer: _Answer
) -> tuple[list[JsonValue], bool]:
    """Return the lines of an answer as the page has them, and whether the causes of all are known."""
    table, rows = answer.table, list_rows(answer.found.lines)
    formatter = LineFormatter(settings.warehouse, contract, table, frozenset(answer.question.hidden))
    causes = CauseFinder(settings, contract, table, answer.question, readable).find_causes(rows)
    return [
        {**formatter.format_line(line), "causes": [_format_cause(cause) for cause in found]}
        for line, found in zip(rows, causes, strict=True)
    ], all(causes)


def _list_others(
    settings: Settings, contract: Contract, readable: Collection[str], request: ChangesRequest, answer: _Answer
) -> Iterator[JsonObject]:
    """Yield the other tables with their lines if no table was asked for and few rows have changed (`MAX_TOGETHER`).

    For which there is no time, the page has links.
    """
    counts = {name: it.rows for name, it in answer.counts.items() if it is not None}
    if request.table or request.page > 1 or len(counts) < len(answer.counts) or sum(counts.values()) > MAX_TOGETHER:
        return
    until = time.monotonic() + TOGETHER_SECONDS
    for name in (it for it, rows in counts.items() if rows and it != answer.table.name):
        if time.monotonic() > until:
            return
        try:
            question = replace(answer.question, hidden=marks.refuse_hidden_key(settings, contract, name))
            found = _read_changes(settings.warehouse, contract, name, question)
        except (QueryError, UnknownError):
            continue  # its own page says why
        if found.counts.lines:
            other = replace(answer, table=found.table, question=question, found=found)
            lines, _ = _format_lines(settings, contract, readable, other)
            yield {
                "table": name,
                "periods": [*PERIODS[found.table.kind]],
                "lines": lines,
                "total": found.counts.lines,
            }


def _format_cause(cause: Cause) -> JsonObject:
    """Return the record that caused a change as JSON; `late`: by how much, in words (None: not known)."""
    late = None if cause.late is None else format_length(cause.late) + " late" if cause.late else "not late"
    return {**cause.place, "name": cause.name, "late": late}


def _find_stopped_run(settings: Settings, contract: Contract, request: ChangesRequest) -> int | None:
    """Return the number of the last run if it was stopped and the request asks for what the last run changed."""
    if request.knownAt or request.comparedWith:
        return None
    last = journal.read_runs(settings.warehouse, contract.pipeline)[-1]
    return last.number if last.state == "stopped" else None


def _find_abandoned_runs(settings: Settings, contract: Contract, answer: _Answer) -> list[JsonValue]:
    """Return the numbers of the runs between a run and the completed one before it that published the table and were
    abandoned: what they changed is not among the changes of that run.
    """
    (run,) = answer.runs
    earlier = [it for it in journal.read_runs(settings.warehouse, contract.pipeline) if it.known_at < run.known_at]
    last = find_last_completed(earlier)
    since = [it for it in earlier if last is None or it.known_at > last.known_at]
    return [it.number for it in since if it.had_published(answer.table.name)]


def build_csv(settings: Settings, contract: Contract, request: ChangesRequest) -> str:
    """Return all changes that a page of the same request pages through, as CSV for spreadsheets.

    Values of more than `cut_values.MAX_CHARACTERS` are cut, as on the page; `hindcast diff --format csv` has them
    whole. QueryError if the changes are too many, UnknownError before the first run.
    """
    answer = _find_answer(settings, contract, request, 0, MAX_EXPORTED)
    if answer is None:
        raise UnknownError(
            "no run has been completed yet",
            where=contract.pipeline,
            fix=f"hindcast run {contract.pipeline}, or wait for its DAG's first run",
        )
    if answer.found.counts.lines > MAX_EXPORTED:
        where = f"{contract.pipeline}.{answer.table.name}"
        found = f"{answer.found.counts.lines:,} changes are more than the {MAX_EXPORTED:,} of a file"
        raise QueryError(found, where=where, fix=f"hindcast diff {where} --format csv has no limit")
    return show.as_csv(changes.flatten_lines(answer.found.lines, answer.question.hidden), for_spreadsheets=True)


def _list_fields(settings: Settings, contract: Contract, request: ChangesRequest) -> dict[str, JsonValue]:
    place = settings.warehouse, contract.pipeline
    offered = known_ats.list_known_ats(*place, known_ats.list_closes(*place))
    return {"pipeline": contract.pipeline, "asked": asdict(request), "knownAts": [*offered], "tables": []}


def _find_answer(
    settings: Settings, contract: Contract, request: ChangesRequest, first: int, most: int
) -> _Answer | None:
    """Return what a request asks for; None before the first run, QuestionError for what cannot be answered."""
    pipeline, warehouse = contract.pipeline, settings.warehouse
    past, names = journal.read_completed_runs(warehouse, pipeline), [*contract.topics, *contract.views]
    if not past:
        return None
    counts: Mapping[str, RowCounts | None] = dict.fromkeys(names, RowCounts())
    is_only = request.only == "corrections"
    field = "knownAt"
    try:
        later = read.moment_of(warehouse, pipeline, request.knownAt) if request.knownAt else past[-1].known_at
        field = "comparedWith"
        before = changes.find_moment_before(warehouse, pipeline, later)
        earlier = read.moment_of(warehouse, pipeline, request.comparedWith) if request.comparedWith else before
        earlier, later = sorted((earlier, later))
        between = [run for run in past if earlier < run.known_at <= later]
        counts = _count_rows(between, names)
        name = request.table or _choose_table(settings, contract, counts, is_only)
        field = "table"
        table = read.locate_table(warehouse, contract, name)
        hidden = marks.refuse_hidden_key(settings, contract, name)
        field = "knownAt"
        period = read.find_period(warehouse, pipeline, request.comparedWith, request.knownAt)
        question = ChangeQuestion(earlier, later, is_only, request.order or "size", first, most, hidden, period)
        found = _read_changes(warehouse, contract, name, question)
    except (QueryError, UnknownError) as error:
        fields = _list_fields(settings, contract, request) | _list_tables(counts)
        raise QuestionError(error, fields, field, "changes.html") from None
    return _Answer(table, past, between, question, found, len(between) == 1 and earlier == before, counts)


def _choose_table(settings: Settings, contract: Contract, counts: Mapping[str, RowCounts | None], is_only: bool) -> str:
    """Return the first table with corrections, if only they are asked for, or changed rows; without any the first.

    One that may not be shown, as its key is sensitive, only if there is no other.
    """
    changed = [name for name, it in counts.items() if it and it.rows]
    corrected = [name for name in changed if is_only and (it := counts[name]) and it.corrections]
    for name in (offered := [*corrected, *changed, *counts]):
        with suppress(QueryError):
            marks.refuse_hidden_key(settings, contract, name)
            return name
    return offered[0]


def _list_tables(counts: Mapping[str, RowCounts | None]) -> dict[str, JsonValue]:
    unknown: dict[str, JsonValue] = {"rows": None, "added": None, "removed": None, "corrections": None}
    return {
        "tables": [
            {"name": name, **({"rows": it.rows, **asdict(it)} if it else unknown)} for name, it in counts.items()
        ]
    }


def _read_changes(warehouse: str, contract: Contract, name: str, question: ChangeQuestion) -> Changes:
    """Return some changes of a table; QueryError if they are too many, or comparing takes too long."""
    where = f"{contract.pipeline}.{name}"
    with limit_comparison(contract.pipeline, where, changes.describe_less(where)) as open_engine:
        return changes.read_changes(warehouse, contract, name, question, open_engine, LIMIT)


@contextmanager
def limit_comparison(pipeline: str, where: str, fix: str) -> Iterator[EngineFactory]:
    """Yield what opens engines to compare two states of a pipeline, which together have `SECONDS`; QueryError with
    `fix` if that takes longer, or too much memory.
    """
    try:
        with _TURNS.take(pipeline, WAIT_SECONDS):
            until = time.monotonic() + SECONDS
            yield lambda delta_table: open_limited_engine(delta_table, max(until - time.monotonic(), 0), MEMORY)
    except EngineLimitError:
        raise QueryError(f"comparing the two states took longer than {SECONDS:g} s", where=where, fix=fix) from None
    except duckdb.OutOfMemoryException:
        found = "comparing the two states takes more memory than a page may use"
        raise QueryError(found, where=where, fix=fix) from None
    except TurnError:
        raise QueryError("other changes are being read at this moment", where=where, fix="try again") from None


_TURNS = Turns(MAX_PAGES)


def _count_rows(between: Sequence[Run], names: Sequence[str]) -> Mapping[str, RowCounts | None]:
    """Return how many rows of each table some runs have changed; None if not all reports were read in time.

    What was read is kept, so that the next request counts more.
    """
    counts = dict.fromkeys(names, RowCounts())
    for run in reversed(between):
        if isinstance(run.outcome, Completed) and not run.outcome.has_read_tables:
            try:
                with limit_report(run.plan.pipeline):
                    results = run.results
            except (PlatformError, SlowReportError):
                return dict.fromkeys(names)
        else:
            results = run.results
        for name in names:
            if (result := results.get(name)) is not None:
                so_far = counts[name]
                counts[name] = RowCounts(
                    so_far.added + result.opened,
                    so_far.removed + result.closed,
                    so_far.corrections + result.corrected,
                )
    return counts
