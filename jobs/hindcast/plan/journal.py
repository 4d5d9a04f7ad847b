"""The journal of a pipeline's runs: what each was planned to do, and how it ended. A Delta table of appended entries.

| column | type | |
| --- | --- | --- |
| run | bigint | the run's number, from 1 |
| entry | string | planned, stopped (by a gate, the contract or records), completed, abandoned |
| at | timestamp | what the clock showed when the entry was written |
| runId | string | the run's name: that of Airflow's run, or one that a command made |
| knownAt | timestamp | the run's moment on the system axis |
| detail | string | JSON: the plan of a planned run, the report of a completed one, the reason of another |
| sequence | bigint | the number of the entry, in the order of writing; null in entries of versions that had none |

Entries are appended without Spark. Each commit follows exactly the version of the table from which its sequence number
was taken and in which the run could get that entry (`entries.refuse_entry`). If two writers collide, the second reads
the first one's entry and tries again. Neither clocks nor Delta versions order the entries (`entries`).
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import datetime
from typing import Literal

import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake
from deltalake.exceptions import DeltaError
from pyspark.sql.types import LongType, StringType, StructField, StructType, TimestampType

from hindcast.common import clock
from hindcast.common.errors import BusyError, RunError, TableError, show_briefly
from hindcast.contract import Contract
from hindcast.kafka.topic_patterns import MemberPartitions
from hindcast.plan.entries import JournalEntry, find_contradictions, next_sequence, refuse_entry
from hindcast.plan.journal_rows import EntryRow, LargeJournalError, load_rows, parse_entry, refuse_large_entry
from hindcast.plan.parsed_journals import JournalLimits, ParsedJournals
from hindcast.plan.runs import (
    MALFORMED,
    Run,
    TableResult,
    find_last_completed,
    last_members,
    parse_outcome,
    parse_plan,
)
from hindcast.store.commit_once import commit_repeatable
from hindcast.store.delta_log import commit_actions
from hindcast.store.odd_tables import refuse_unreadable_rows
from hindcast.store.replacements import refuse_replacing
from hindcast.store.table_creation import arrow_schema, ensure_table, explain_write_error
from hindcast.store.tables import ENDED_RUNS_NUMBER, NO_MARKS, Table, open_latest, open_table, read_marks

SCHEMA = StructType(
    [
        StructField("run", LongType()),
        StructField("entry", StringType()),
        StructField("at", TimestampType()),
        StructField("runId", StringType()),
        StructField("knownAt", TimestampType()),
        StructField("detail", StringType()),
        StructField("sequence", LongType()),
    ]
)
_ARROW = arrow_schema(SCHEMA)


_PARSED = ParsedJournals()
"""What was read last of each journal."""


def _recover_after_fork() -> None:
    _PARSED.recover_after_fork()


os.register_at_fork(after_in_child=_recover_after_fork)


def runs_table(warehouse: str, pipeline: str) -> Table:
    """Return the table of the journal."""
    return Table(warehouse, pipeline, "runs", "runs")


def new_run_id(by: str) -> str:
    """Return the id of a run that a command begins now: `requeue__2026-01-01T00:00:00.000+00:00`."""
    return f"{by}__{clock.now().isoformat(timespec='milliseconds')}"


def read_runs(warehouse: str, pipeline: str) -> list[Run]:
    """Return all runs of a pipeline, oldest first; raise TableError if the journal lacks the plan of one."""
    runs, unplanned = read_planned_runs(warehouse, pipeline)
    if unplanned and not _SKIPS_UNPLANNED.get():
        raise TableError(
            f"the journal lacks a valid plan of run {show_briefly(', '.join(map(str, unplanned)))}",
            where=runs_table(warehouse, pipeline).path,
            fix=repair_command(pipeline),
        )
    return runs


@contextmanager
def skip_unplanned_runs() -> Iterator[None]:
    """Let `read_runs` in the block leave out runs without a plan, as long as the journal has these. Not in threads."""
    token = _SKIPS_UNPLANNED.set(True)
    try:
        yield
    finally:
        _SKIPS_UNPLANNED.reset(token)


_SKIPS_UNPLANNED: ContextVar[bool] = ContextVar("skips unplanned runs", default=False)


def read_planned_runs(warehouse: str, pipeline: str) -> tuple[list[Run], list[int]]:
    """Return the runs of a pipeline that have a plan, and the numbers of those without one, both oldest first.

    Of a journal that this process has read only what is new is read. Raise TableError for one that takes too much
    memory, UnreadJournalError if `limit_reading` left no time to read it to its end.
    """
    refuse_replacing(warehouse, pipeline)
    table = runs_table(warehouse, pipeline)
    if (delta_table := open_table(table)) is None:
        return [], []
    with _refuse_odd_entries(table):
        journal = _PARSED.read(table, delta_table)
    if (refusal := journal.refusal) is not None:
        raise LargeJournalError(refusal.found, where=refusal.where, fix=refusal.fix)
    return [*journal.runs], [*journal.unplanned]


@contextmanager
def _refuse_odd_entries(table: Table) -> Iterator[None]:
    """Raise TableError if a file of the journal that the block reads is broken, or has entries that are none."""
    try:
        with refuse_unreadable_rows(table):
            yield
    except MALFORMED as error:
        found = f"the journal has an entry that is none: {type(error).__name__}: {show_briefly(str(error))}"
        raise TableError(found, where=table.path, fix=repair_command(table.pipeline)) from None


def limit_reading(limits: JournalLimits) -> None:
    """Limit the memory that journals may take from now on in this process, and the time of reading them."""
    _PARSED.limits = limits


def find_damage(warehouse: str, pipeline: str) -> list[tuple[int, str]]:
    """Return the numbers of the runs whose entries contradict each other, each with a sentence that says how."""
    with _refuse_odd_entries(runs_table(warehouse, pipeline)):
        wrong = find_contradictions(map(parse_entry, _read_rows(warehouse, pipeline, _ENTRY_COLUMNS)))
    return [(run, f"run {run} was entered as {', then '.join(states)}") for run, states in wrong.items()]


def read_run_history(warehouse: str, pipeline: str, number: int) -> list[Run]:
    """Return a run as it stood after each of its entries, in order; if it ended twice, only as it ended last.

    Empty if its plan is not in the journal.
    """
    with _refuse_odd_entries(runs_table(warehouse, pipeline)):
        rows = _read_rows(warehouse, pipeline, _ARROW.names)
        own = sorted((row for row in rows if row["run"] == number), key=lambda row: parse_entry(row).order)
        if not own or own[0]["entry"] != "planned":
            return []
        if (plan := parse_plan(json.loads(own[0]["detail"]), pipeline, number)) is None:
            return []
        ends = [row for row in own if row["entry"] in _ENDS]
        later = [*(row for row in own if row["entry"] == "stopped"), *ends[-1:]]
        outcomes = (parse_outcome(row["entry"], json.loads(row["detail"]), None) for row in later)
        return [Run(plan), *(Run(plan, outcome) for outcome in outcomes)]


_ENDS = ("completed", "abandoned")


def repair_command(pipeline: str) -> str:
    """Return the command that repairs the journal."""
    return f"hindcast ledger {pipeline} --rebuild"


def read_completed_runs(warehouse: str, pipeline: str) -> list[Run]:
    """Return the completed runs, oldest first."""
    return [run for run in read_runs(warehouse, pipeline) if run.state == "completed"]


def read_last_result(warehouse: str, pipeline: str, name: str) -> TableResult:
    """Return what the last completed run did to a table; nothing if none was completed."""
    last = find_last_completed(read_runs(warehouse, pipeline))
    return last.results.get(name, TableResult()) if last else TableResult()


def append_entry(warehouse: str, run: Run, *, date: Callable[[Run], Run] = lambda run: run) -> Run:
    """Append one entry to the journal; return the run as it was entered.

    `date` gives the run its known-at, directly before each attempt to commit. Raise BusyError if another writer has
    planned this number or another run has not ended, RunError if the run can no longer get this entry; nothing is
    written then.
    """
    pipeline, dated = run.plan.pipeline, run
    table = runs_table(warehouse, pipeline)
    planned = [Transaction(_app_id(pipeline), run.number)] if run.state == "planned" else []

    def append() -> None:
        nonlocal dated
        refuse_replacing(warehouse, pipeline)
        delta_table = ensure_table(table, SCHEMA)
        past = _read_entries(table, delta_table)
        refuse_entry(past, pipeline, run.number, run.run_id, run.state, run.plan.numbers)
        dated = date(run)
        row = _entry_row(dated, clock.now(), next_sequence(past))
        refuse_large_entry(pipeline, run.number, run.state, row["detail"])
        refuse_replacing(warehouse, pipeline)  # again, as the journal was opened meanwhile: see `commit_nothing`
        _commit_rows(delta_table, [row], "append", planned)

    retry_commit(append, table.path)
    return dated


def read_entries(warehouse: str, pipeline: str) -> list[JournalEntry]:
    """Return the entries of the journal without their details, unordered; none before the first run."""
    table = runs_table(warehouse, pipeline)
    return [] if (delta_table := open_table(table)) is None else _read_entries(table, delta_table)


def append_entries(warehouse: str, runs: Sequence[Run]) -> None:
    """Append the entries of several runs to the journal in one commit: of all that they are planned, or what became of
    each. Raise as `append_entry` does; nothing is written then.
    """
    pipeline, last = runs[0].plan.pipeline, runs[-1]
    table = runs_table(warehouse, pipeline)
    are_planned = last.state == "planned"
    ids = [Transaction(_app_id(pipeline), last.number)] if are_planned else []

    def append() -> None:
        refuse_replacing(warehouse, pipeline)
        delta_table = ensure_table(table, SCHEMA)
        past = _read_entries(table, delta_table)
        for run in runs[:1] if are_planned else runs:
            refuse_entry(past, pipeline, run.number, run.run_id, run.state)
        at, first = clock.now(), next_sequence(past)
        rows = [_entry_row(run, at, first + n) for n, run in enumerate(runs)]
        for run, row in zip(runs, rows, strict=True):
            refuse_large_entry(pipeline, run.number, run.state, row["detail"])
        refuse_replacing(warehouse, pipeline)  # again, as in `append_entry`
        _commit_rows(delta_table, rows, "append", ids)

    retry_commit(append, table.path)


def replace_entries(
    warehouse: str,
    pipeline: str,
    entries: Sequence[Run],
    without: Iterable[int] = (),
    before: Sequence[JournalEntry] | None = None,
) -> None:
    """Replace all entries of the runs that `entries` are about, in one commit; old versions stay in Delta's history.

    Entries of the runs `without` are removed. `before`: the entries that the caller has read (None: not checked). Raise
    BusyError if these runs have others since: nothing is written then.
    """
    numbers, at = {*without, *(run.number for run in entries)}, clock.now()
    table = runs_table(warehouse, pipeline)

    def overwrite() -> None:
        delta_table = ensure_table(table, SCHEMA)
        with _refuse_odd_entries(table):
            kept = [row for row in load_rows(table, delta_table, _ARROW.names) if row["run"] not in numbers]
        current = _read_entries(table, delta_table)
        changes = {*current} ^ {*before} if before is not None else set()
        if changed := sorted(entry.run for entry in changes if entry.run in numbers):
            found = f"run {changed[0]} was planned or ended while the journal was rebuilt; nothing was written"
            raise BusyError(found, where=table.path, fix=f"repeat it: {repair_command(pipeline)}")
        first = next_sequence(current)
        rows = [*kept, *(_entry_row(run, at, first + n) for n, run in enumerate(entries))]
        refuse_replacing(warehouse, pipeline)
        _commit_rows(
            delta_table,
            rows,
            "overwrite",
            [Transaction(_app_id(pipeline), max(row["run"] for row in rows))] if rows else [],
        )

    retry_commit(overwrite, table.path)


def commit_nothing(warehouse: str, pipeline: str) -> None:
    """Commit to the journal, so that every commit fails that was prepared before: its writer looks at all again."""
    table = runs_table(warehouse, pipeline)

    def commit() -> None:
        if (delta_table := open_latest(table)) is not None:
            commit_actions(delta_table, [], {}, "{}")

    retry_commit(commit, table.path)


def rename_entries(path: str, former: str, pipeline: str, hashes: Mapping[str, str]) -> None:
    """Let the entries of the journal at a path, of the pipeline `former`, be of another `pipeline`, in one commit.

    `hashes`: of contracts that are renamed with it, the new hash by the old one. Numbers, times and order stay.
    """
    delta_table = DeltaTable(path)
    folder = path.rstrip("/").rpartition("/")[0]
    table = runs_table(*folder.rpartition("/")[::2])
    rows = list(load_rows(table, delta_table, _ARROW.names))
    renamed = [row | {"detail": _rename_detail(row["detail"], former, pipeline, hashes)} for row in rows]
    if renamed != rows:
        data = pa.Table.from_pylist(renamed, schema=_ARROW)
        write_deltalake(delta_table, data, mode="overwrite", commit_properties=CommitProperties(max_commit_retries=0))


def _rename_detail(text: str, former: str, pipeline: str, hashes: Mapping[str, str]) -> str:
    """Return a plan or report with another pipeline, and with the hash of its contract under that name."""
    detail = json.loads(text)
    if not isinstance(detail, dict) or detail.get("pipeline") != former:
        return text
    detail["pipeline"] = pipeline
    if isinstance(contract := detail.get("contract"), str):
        detail["contract"] = hashes.get(contract, contract)
    if isinstance(fields := detail.get("definition"), list):
        detail["definition"] = [["pipeline", pipeline] if it == ["pipeline", former] else it for it in fields]
    return json.dumps(detail)


def mark_ended_runs(warehouse: str, pipeline: str) -> None:
    """Mark the journal so that older versions of Hindcast refuse it (`tables.ENDED_RUNS_NUMBER`), once."""
    table = runs_table(warehouse, pipeline)

    def mark() -> None:
        delta_table = open_latest(table)
        if delta_table is not None and (read_marks(delta_table) or NO_MARKS)["hindcast"] < ENDED_RUNS_NUMBER:
            properties = CommitProperties(max_commit_retries=0)
            delta_table.alter.set_table_description(table.format_mark(ENDED_RUNS_NUMBER), commit_properties=properties)

    retry_commit(mark, table.path)


def retry_commit(commit: Callable[[], None], where: str) -> None:
    """Make a commit and repeat it while other writers come first; raise an error of ours for what prevents writing."""
    try:
        commit_repeatable(commit)
    except (DeltaError, OSError) as error:
        raise explain_write_error(error, where) from None


def _commit_rows(
    delta_table: DeltaTable, rows: list[EntryRow], mode: Literal["append", "overwrite"], ids: list[Transaction]
) -> None:
    """Write rows after exactly the version of the journal that was read, else raise CommitFailedError."""
    data = pa.Table.from_pylist(rows, schema=_ARROW)
    properties = CommitProperties(app_transactions=ids, max_commit_retries=0)
    write_deltalake(delta_table, data, mode=mode, commit_properties=properties)


def _read_entries(table: Table, delta_table: DeltaTable) -> list[JournalEntry]:
    """Return the entries of the journal without their details, unordered."""
    with _refuse_odd_entries(table):
        return [parse_entry(row) for row in load_rows(table, delta_table, _ENTRY_COLUMNS)]


_ENTRY_COLUMNS = ("run", "entry", "at", "sequence")


def _read_rows(warehouse: str, pipeline: str, columns: Sequence[str]) -> Iterator[EntryRow]:
    """Yield the rows of the journal, none before the first run; raise TableError if one of its files is broken."""
    table = runs_table(warehouse, pipeline)
    delta_table = open_table(table)
    with _refuse_odd_entries(table):
        yield from load_rows(table, delta_table, columns) if delta_table is not None else ()


def _entry_row(run: Run, at: datetime, sequence: int) -> EntryRow:
    return {
        "run": run.number,
        "entry": run.state,
        "at": at,
        "runId": run.run_id,
        "knownAt": run.known_at,
        "detail": json.dumps(run.detail),
        "sequence": sequence,
    }


def read_active_run(warehouse: str, pipeline: str, number: int) -> Run:
    """Return the run that a step works for; raise RunError if it has ended or was abandoned."""
    run = next((r for r in read_runs(warehouse, pipeline) if r.number == number), None)
    if run is None or run.is_finished:
        state = run.state if run else "not planned"
        is_rehearsed = (
            run is not None and run.plan.rehearsed_interval is not None
        )  # a run by the clock ends a rehearsal
        fix = "repeat the hindcast rehearse, or clear the task" if is_rehearsed else "start a new run"
        raise RunError(f"run {number} is {state}", where=pipeline, fix=fix)
    return run


def read_members(warehouse: str, contract: Contract, name: str) -> MemberPartitions:
    """Return the partitions of a topic entry with a pattern as runs numbered them (topic_patterns.py), else none."""
    return last_members(read_runs(warehouse, contract.pipeline), name) if contract.topics[name].pattern else {}


def _app_id(pipeline: str) -> str:
    return f"hindcast/{pipeline}/plan"
