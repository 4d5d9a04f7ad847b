"""Runs: what each was planned to do, and what became of it. Pure; `journal` stores them.

A run is planned, perhaps stopped, and then either completed or abandoned (entries.py).
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property
from typing import Any, ClassVar, TypeAlias

from hindcast.common.errors import TableError, show_briefly
from hindcast.common.json_values import JsonObject, StoredObject
from hindcast.kafka.topic_patterns import MemberPartitions
from hindcast.plan.plans import Plan
from hindcast.store.commit_notes import LeftOut

MALFORMED = (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError)
"""The exceptions that reading a malformed report raises."""


def refuse_odd_counts(counts: Iterable[Any]) -> None:
    """Raise TypeError if a count of a report is none."""
    for count in counts:
        if not isinstance(count, int) or not 0 <= count < 1 << 63:
            raise TypeError(f"{show_briefly(repr(count))} is not a count")


@dataclass(frozen=True)
class TableResult:
    """What a completed run did to a table, as later runs and queries need it.

    `opened`, `closed`: rows; `corrected`: of the closed ones, past answers; `emitted`: records of a kafka view. Of an
    aggregate, `left_out`: by kind, how many rows or records it left out in total; `stream_times`: by partition, the
    stream time that its windows have reached; `closed_up_to`: the moment up to which its windows are closed.
    """

    opened: int = 0
    closed: int = 0
    emitted: int = 0
    left_out: LeftOut | None = None
    closed_up_to: datetime | None = None
    corrected: int = 0

    @property
    def changed_rows(self) -> int:
        """The number of rows opened and closed."""
        return self.opened + self.closed

    @classmethod
    def from_json(cls, document: StoredObject) -> TableResult:
        """Return the result from a table's part of the report of a run."""
        closed_up_to = document.get("closedUpTo")
        counts = document.get("opened", 0), document.get("closed", 0), (document.get("emitted") or {}).get("records", 0)
        corrected = document.get("corrected") or 0
        refuse_odd_counts((*counts, corrected))
        return cls(
            *counts,
            LeftOut.from_json(document),
            datetime.fromisoformat(closed_up_to) if closed_up_to else None,
            corrected,
        )


@dataclass(frozen=True)
class Planned:
    """A run that has not ended."""

    state: ClassVar = "planned"


@dataclass(frozen=True)
class Stopped:
    """A run that a gate, the contract or records stopped at a table; `found` is the error's text."""

    table: str
    found: str
    state: ClassVar = "stopped"

    def as_json(self) -> JsonObject:
        """Return the detail of the entry."""
        return {"table": self.table, "found": self.found}


@dataclass(frozen=True)
class StoredReport:
    """The report of a run as the journal has it: it is parsed each time it is read, since a process keeps thousands."""

    compressed: bytes

    @classmethod
    def from_text(cls, text: str) -> StoredReport:
        """Return the report in the detail of an entry."""
        return cls(zlib.compress(text.encode("utf-8", "surrogatepass"), 1))

    def parse(self) -> JsonObject:
        """Return the report; ValueError if it is no JSON."""
        report: JsonObject = json.loads(zlib.decompress(self.compressed).decode("utf-8", "surrogatepass"))
        return report


@dataclass(frozen=True)
class Completed:
    """A run that was completed, with its report (report/run_report.py)."""

    stored: JsonObject | StoredReport
    state: ClassVar = "completed"

    @property
    def report(self) -> JsonObject:
        """The report of the run; ValueError if the journal's is no JSON."""
        return self.stored.parse() if isinstance(self.stored, StoredReport) else self.stored

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Completed) and self.report == other.report

    __hash__ = None  # type: ignore[assignment]  # a report is no key

    @cached_property
    def tables(self) -> Mapping[str, TableResult]:
        """By name, what the run did to each table."""
        return {name: TableResult.from_json(table) for name, table in self._section("tables")}

    @property
    def has_read_tables(self) -> bool:
        """True if `tables` is known without parsing the report."""
        return "tables" in self.__dict__

    @cached_property
    def offsets(self) -> Mapping[str, int]:
        """By name, how many offsets the run ingested of each topic."""
        counts = {name: topic.get("offsets") or 0 for name, topic in self._section("topics")}
        refuse_odd_counts(counts.values())
        return counts

    @cached_property
    def rebuilt(self) -> bool:
        """True if the report was made from logs and tables after the journal was lost."""
        return bool(self.report.get("rebuilt"))

    def as_json(self) -> JsonObject:
        """Return the detail of the entry."""
        return self.report

    def _section(self, name: str) -> Iterator[tuple[str, Any]]:
        section: Any = self.report.get(name) or {}
        yield from section.items()


@dataclass(frozen=True)
class Abandoned:
    """A run that was abandoned, the tables that it had `published`, and the error that stopped it, if one did."""

    reason: str
    published: tuple[str, ...] = ()
    stop_error: str | None = None
    state: ClassVar = "abandoned"

    def as_json(self) -> JsonObject:
        """Return the detail of the entry."""
        return {"reason": self.reason, "published": self.published}


Outcome: TypeAlias = Planned | Stopped | Completed | Abandoned


@dataclass(frozen=True)
class Run:
    """A run: its plan, and what became of it so far."""

    plan: Plan
    outcome: Outcome = Planned()

    @property
    def number(self) -> int:
        """The run's number, from 1."""
        return self.plan.run

    @property
    def run_id(self) -> str:
        """The run's name: that of Airflow's run, or one that a command made."""
        return self.plan.run_id

    @property
    def known_at(self) -> datetime:
        """The run's moment on the system axis."""
        return self.plan.known_at

    @property
    def state(self) -> str:
        """Planned, stopped, completed or abandoned."""
        return self.outcome.state

    @property
    def detail(self) -> JsonObject:
        """The detail of the run's last entry in the journal."""
        return self.plan.as_json() if isinstance(self.outcome, Planned) else self.outcome.as_json()

    @property
    def has_done_all_tables(self) -> bool:
        """True if the run was completed and skipped no table."""
        return self.state == "completed" and not self.plan.skipped_tables

    @property
    def results(self) -> Mapping[str, TableResult]:
        """By table, what the run did if it was completed; empty otherwise. TableError if its report is malformed."""
        with self.refuse_malformed_report():
            return self.outcome.tables if isinstance(self.outcome, Completed) else {}

    @property
    def offsets(self) -> Mapping[str, int]:
        """By topic, how many offsets the run ingested if it was completed; empty otherwise. TableError if its report is
        malformed.
        """
        with self.refuse_malformed_report():
            return self.outcome.offsets if isinstance(self.outcome, Completed) else {}

    @property
    def counts(self) -> dict[str, int]:
        """How many `offsets` the run ingested, and how many rows it `opened` and `closed` in all tables, if it was
        completed; empty otherwise. TableError if its report is malformed.
        """
        if not isinstance(self.outcome, Completed):
            return {}
        opened, closed = (sum(getattr(it, name) for it in self.results.values()) for name in ("opened", "closed"))
        with self.refuse_malformed_report():
            counts = {"offsets": sum(self.offsets.values()), "opened": opened, "closed": closed}
            refuse_odd_counts(counts.values())
        return counts

    @contextmanager
    def refuse_malformed_report(self) -> Iterator[None]:
        """Raise TableError for what reading the malformed report of a completed run raises."""
        try:
            yield
        except MALFORMED as error:
            if not isinstance(self.outcome, Completed):
                raise  # the journal has no report of it
            pipeline = self.plan.pipeline
            found = f"the report in the journal is malformed: {type(error).__name__}: {show_briefly(str(error))}"
            fix = f"hindcast ledger {pipeline} --rebuild"
            raise TableError(found, where=f"{pipeline}, run {self.number}", fix=fix) from None

    @property
    def stop_error(self) -> str | None:
        """The error that stopped the run, if it was not completed since; it may be abandoned."""
        match self.outcome:
            case Stopped(found=found):
                return found
            case Abandoned(stop_error=found):
                return found
            case _:
                return None

    @property
    def has_report(self) -> bool:
        """True if it has a report, of what it did or of what stopped it."""
        return self.state == "completed" or self.stop_error is not None

    @property
    def is_finished(self) -> bool:
        """True if it was completed or abandoned, so that nothing more will come of it."""
        return self.state in ("completed", "abandoned")

    def had_published(self, table: str) -> bool:
        """Return whether the run was abandoned after it had published a table."""
        return isinstance(self.outcome, Abandoned) and table in self.outcome.published


def parse_plan(detail: StoredObject, pipeline: str, number: int) -> Plan | None:
    """Return the plan in the entry of a run in the journal of a pipeline; None if it is malformed, or of another run.

    Whoever may write a journal must not have others read what the plan names of another pipeline.
    """
    try:
        plan = Plan.from_json(detail)
    except MALFORMED:
        return None
    return plan if (plan.pipeline, plan.run) == (pipeline, number) else None


def parse_outcome(state: str, detail: StoredObject | StoredReport, stop_error: str | None) -> Outcome:
    """Return the outcome that an entry after the plan records; `stop_error`: what stopped the run before."""
    if isinstance(detail, StoredReport):
        return Completed(detail)
    match state:
        case "stopped":
            return Stopped(str(detail.get("table", "")), str(detail.get("found", "")))
        case "completed":
            return Completed(detail)
        case _:
            return Abandoned(str(detail.get("reason", "")), tuple(detail.get("published", ())), stop_error)


def find_last_completed(past: Sequence[Run]) -> Run | None:
    """Return the last of these runs that was completed; None if none was."""
    return next((run for run in reversed(past) if run.state == "completed"), None)


def last_included_run(past: Iterable[Run], published: int) -> int:
    """Return the last run that a table includes: the one that `published` it, or a later completed one.

    Not one that skipped tables: of those it includes nothing.
    """
    return max([published, *(run.number for run in past if run.has_done_all_tables)])


def was_lost(past: Iterable[Run], name: str, published: int) -> bool:
    """Return whether runs have opened rows in a table that none has `published`: its folder was removed."""
    return not published and any(
        (name in run.results and run.results[name].opened > 0) or run.had_published(name) for run in past
    )


def was_derived_since(past: Iterable[Run], name: str, moment: datetime | None) -> bool:
    """Return whether a run of all tables, known at a moment or later (None: at any), was completed with a table, even
    if it found no rows for it.
    """
    runs = (run for run in past if moment is None or run.known_at >= moment)
    return any(run.has_done_all_tables and name in run.results for run in runs)


def find_last_derived(past: Sequence[Run], name: str, known_at: datetime) -> Run | None:
    """Return the last run known at a moment that made a table's rows what they were; None if there was none.

    It was completed, or abandoned once it had published the table.
    """
    known = (run for run in reversed(past) if run.known_at <= known_at)
    return next((run for run in known if run.state == "completed" or run.had_published(name)), None)


def was_published_late(past: Iterable[Run], name: str, published: int) -> bool:
    """Return whether the run that `published` a table last did so after it was abandoned.

    Runs that were completed meanwhile have not seen it.
    """
    last = next((run for run in past if run.plan.first_number <= published <= run.number), None)
    return last is not None and last.state == "abandoned" and not last.had_published(name)


def has_unknown_rows(past: Sequence[Run], name: str, published: int) -> bool:
    """Return whether no run can tell which rows a table has, so that it is derived whole: its folder was removed, or
    an abandoned run published it late.
    """
    return was_lost(past, name, published) or was_published_late(past, name, published)


def was_ingested_late(past: Sequence[Run], name: str, ingested: int) -> bool:
    """Return whether an abandoned run ingested records of a topic after the last completed run was planned, which has
    not seen them. `ingested`: the last run that committed to the log.
    """
    last = next((run.plan for run in reversed(past) if run.has_done_all_tables), None)
    if last is None or name not in last.topics:
        return False
    later = [run.plan.topics[name].after for run in past if run.number > last.run and name in run.plan.topics]
    return any(last.topics[name].after < number < last.first_number for number in (*later, ingested))


def last_members(past: list[Run], name: str) -> MemberPartitions:
    """Return the partitions of a topic entry with a pattern as the last of these runs numbered them."""
    members = (run.plan.topics[name].members for run in reversed(past) if name in run.plan.topics)
    return next((known for known in members if known), {})
