"""The runs of a pipeline: what each was planned to do, and how it ended. One Delta table of appended entries.

| column | type | |
| --- | --- | --- |
| run | bigint | the run's number, from 1 |
| entry | string | planned, stopped (by a gate, the contract or records), completed, abandoned |
| at | timestamp | what the clock showed when the entry was written |
| runId | string | the run's name: that of Airflow's run, or one of our own |
| knownAt | timestamp | the run's moment on the system axis |
| detail | string | JSON: the plan of a planned run, the report of a completed one, the reason of another |
| sequence | bigint | the number of the entry, in the order of writing; null in entries of versions that had none |

Entries are appended without Spark, each by a commit upon the very version of the table from which its sequence number
was taken and in which the run could get that entry (`entries.refuse_entry`). Of two writers at once the second one
reads the first one's entry and tries again. No clock and no Delta version takes part in their order (`entries`).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal

import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake
from deltalake.exceptions import DeltaError
from pyspark.sql.types import LongType, StringType, StructField, StructType, TimestampType

from hindcast import clock
from hindcast.delta.attempts import repeatable
from hindcast.delta.contents import dataset, refusing_broken_files
from hindcast.delta.making import arrow_schema, ensure, unwritten
from hindcast.delta.tables import Table, opened
from hindcast.errors import TableError
from hindcast.planning.entries import Entry, contradictions, next_sequence, refuse_entry

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


@dataclass(frozen=True)
class Run:
    """A run as its entries tell it; `state` is the last of them, and `detail` what it tells.

    `stopped`: what stopped a run that has not been completed since, though it may be given up; null for another.
    """

    number: int
    run_id: str
    known_at: datetime
    state: str
    plan: dict[str, Any]
    detail: dict[str, Any]
    stopped: str | None = None

    @property
    def reported(self) -> bool:
        """Whether it has a report: of what it did, or of what stopped it."""
        return self.state == "completed" or self.stopped is not None

    @property
    def finished(self) -> bool:
        """Whether nothing more will come of it: completed, or given up."""
        return self.state in ("completed", "abandoned")


def table(warehouse: str, pipeline: str) -> Table:
    """The journal's own table."""
    return Table(warehouse, pipeline, "runs", "runs")


def run_id(by: str) -> str:
    """The id of a run that a command begins now: `requeue__2026-01-01T00:00:00.000+00:00`."""
    return f"{by}__{clock.now().isoformat(timespec='milliseconds')}"


def runs(warehouse: str, pipeline: str) -> list[Run]:
    """All runs of a pipeline, oldest first; TableError if the plan of one is not in the journal."""
    told, unplanned = planned_runs(warehouse, pipeline)
    if unplanned:
        raise TableError(
            f"the journal lacks the plan of run {', '.join(map(str, unplanned))}",
            where=table(warehouse, pipeline).path,
            mend=repair(pipeline),
        )
    return told


def planned_runs(warehouse: str, pipeline: str) -> tuple[list[Run], list[int]]:
    """Return the runs of a pipeline that have a plan, and the numbers of those that have none, both oldest first."""
    rows = _read(warehouse, pipeline, _ARROW.names)
    told: dict[int, Run] = {}
    unplanned = []
    for row in sorted(rows, key=lambda row: _entry(row).order):
        number, state, detail = row["run"], row["entry"], json.loads(row["detail"])
        known = told.get(number)
        if known is None and state != "planned":
            unplanned.append(number)
            continue
        plan = known.plan if known else detail
        stopped = {"stopped": str(detail.get("found", "")), "abandoned": known.stopped if known else None}
        told[number] = Run(number, row["runId"], row["knownAt"], state, plan, detail, stopped.get(state))
    return list(told.values()), list(dict.fromkeys(unplanned))


def damage(warehouse: str, pipeline: str) -> list[tuple[int, str]]:
    """Return the numbers of the runs whose entries contradict each other, each with what is wrong, in words."""
    wrong = contradictions(map(_entry, _read(warehouse, pipeline, _OF_ENTRIES)))
    return [(run, f"run {run} was entered as {', then '.join(states)}") for run, states in wrong.items()]


def history(warehouse: str, pipeline: str, number: int) -> list[Run]:
    """Return a run as it stood after each of its entries, in their order; of a run that ended twice, as it ended last.

    Empty if its plan is not in the journal.
    """
    rows = _read(warehouse, pipeline, _ARROW.names)
    own = sorted((row for row in rows if row["run"] == number), key=lambda row: _entry(row).order)
    if not own or own[0]["entry"] != "planned":
        return []
    plan, ends = json.loads(own[0]["detail"]), [row for row in own if row["entry"] in _ENDS]
    kept = [own[0], *(row for row in own if row["entry"] == "stopped"), *ends[-1:]]
    return [Run(number, row["runId"], row["knownAt"], row["entry"], plan, json.loads(row["detail"])) for row in kept]


_ENDS = ("completed", "abandoned")


def repair(pipeline: str) -> str:
    """Return the command that puts the journal in order."""
    return f"hindcast ledger {pipeline} --rebuild"


def completed(warehouse: str, pipeline: str) -> list[Run]:
    """The runs whose results are known, oldest first."""
    return [run for run in runs(warehouse, pipeline) if run.state == "completed"]


def settled(past: Iterable[Run], published: int) -> int:
    """The last run that a table takes in: the one that has `published` it, or a later one that was completed."""
    return max([published, *(run.number for run in past if run.state == "completed")])


def write(warehouse: str, run: Run) -> None:
    """Append one entry; nothing if it raises.

    BusyError if another writer has planned this number, or another run has not ended; RunError if the run cannot get
    this entry any more.
    """
    pipeline, at = run.plan["pipeline"], clock.now()
    planned = [Transaction(_app(pipeline), run.number)] if run.state == "planned" else []

    def append() -> None:
        found = ensure(table(warehouse, pipeline), SCHEMA)
        past = _entries(found)
        refuse_entry(past, pipeline, run.number, run.run_id, run.state, run.plan.get("numbers", 1))
        row = _row(run, at, next_sequence(past))
        _commit(found, [row], "append", planned)

    _written(append, table(warehouse, pipeline).path)


def replace(warehouse: str, pipeline: str, entries: Sequence[Run], without: Iterable[int] = ()) -> None:
    """Puts entries in place of all that the journal has of their runs, in one commit; what was stays in its history.

    Entries of the runs `without` are removed.
    """
    numbers, at = {*without, *(run.number for run in entries)}, clock.now()

    def overwrite() -> None:
        found = ensure(table(warehouse, pipeline), SCHEMA)
        kept = [row for row in _rows(found, _ARROW.names) if row["run"] not in numbers]
        first = next_sequence(_entries(found))
        rows = [*kept, *(_row(run, at, first + n) for n, run in enumerate(entries))]
        _commit(
            found, rows, "overwrite", [Transaction(_app(pipeline), max(row["run"] for row in rows))] if rows else []
        )

    _written(overwrite, table(warehouse, pipeline).path)


def _written(commit: Callable[[], None], where: str) -> None:
    """Makes a commit, again while others come first; what refuses a write is told as what it is."""
    try:
        repeatable(commit)
    except (DeltaError, OSError) as error:
        raise unwritten(error, where) from None


def _commit(
    found: DeltaTable, rows: list[dict[str, Any]], mode: Literal["append", "overwrite"], ids: list[Transaction]
) -> None:
    """Writes rows upon the very version of the journal that was read, or raises CommitFailedError."""
    data = pa.Table.from_pylist(rows, schema=_ARROW)
    properties = CommitProperties(app_transactions=ids, max_commit_retries=0)
    write_deltalake(found, data, mode=mode, commit_properties=properties)


def _entries(found: DeltaTable) -> list[Entry]:
    """The entries of the journal without their details, in no order."""
    return [_entry(row) for row in _rows(found, _OF_ENTRIES)]


_OF_ENTRIES = ("run", "entry", "at", "sequence")


def _entry(row: Mapping[str, Any]) -> Entry:
    return Entry(row["run"], row["entry"], row["sequence"] or 0, row["at"])


def _read(warehouse: str, pipeline: str, columns: Sequence[str]) -> list[dict[str, Any]]:
    """The rows of the journal, none where there is no journal yet; TableError where a file of it is broken."""
    place = table(warehouse, pipeline)
    found = opened(place)
    with refusing_broken_files(place):
        return _rows(found, columns) if found is not None else []


def _rows(found: DeltaTable, columns: Sequence[str]) -> list[dict[str, Any]]:
    """The rows of the journal; `sequence` is null where an older version wrote all of them."""
    there = {field.name for field in found.schema().fields}
    rows = dataset(found).to_table(columns=[name for name in columns if name in there]).to_pylist()
    return [dict.fromkeys(columns) | row for row in rows]


def _row(run: Run, at: datetime, sequence: int) -> dict[str, Any]:
    told = {"run": run.number, "entry": run.state, "at": at, "runId": run.run_id, "knownAt": run.known_at}
    return {**told, "detail": json.dumps(run.detail), "sequence": sequence}


def _app(pipeline: str) -> str:
    return f"hindcast/{pipeline}/plan"
