"""The runs of a pipeline: what each was planned to do, and how it ended. One Delta table of appended entries.

| column | type | |
| --- | --- | --- |
| run | bigint | the run's number, from 1 |
| entry | string | planned, stopped (by a gate, the contract or records), completed, abandoned |
| at | timestamp | when the entry was written |
| runId | string | the run's name: that of Airflow's run, or one of our own |
| knownAt | timestamp | the run's moment on the system axis |
| detail | string | JSON: the plan of a planned run, the report of a completed one, the reason of another |

Entries are appended without Spark. A plan is one commit under the transaction id (pipeline, run number): of two
writers that plan the same number, one fails.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa
from deltalake import CommitProperties, Transaction, write_deltalake
from deltalake.exceptions import CommitFailedError, DeltaError
from pyspark.sql.types import LongType, StringType, StructField, StructType, TimestampType

from hindcast.delta.contents import dataset
from hindcast.delta.making import arrow_schema, ensure, unwritten
from hindcast.delta.tables import Table, opened
from hindcast.errors import BusyError

SCHEMA = StructType(
    [
        StructField("run", LongType()),
        StructField("entry", StringType()),
        StructField("at", TimestampType()),
        StructField("runId", StringType()),
        StructField("knownAt", TimestampType()),
        StructField("detail", StringType()),
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
    return f"{by}__{datetime.now(UTC).isoformat(timespec='milliseconds')}"


def runs(warehouse: str, pipeline: str) -> list[Run]:
    """All runs of a pipeline, oldest first."""
    found = opened(table(warehouse, pipeline))
    if found is None:
        return []
    entries = dataset(found).to_table().sort_by([("at", "ascending")]).to_pylist()
    told: dict[int, Run] = {}
    for entry in entries:
        detail = json.loads(entry["detail"])
        known = told.get(entry["run"])
        plan = known.plan if known else detail
        stopped = {"stopped": str(detail.get("found", "")), "abandoned": known.stopped if known else None}
        told[entry["run"]] = Run(
            entry["run"], entry["runId"], entry["knownAt"], entry["entry"], plan, detail, stopped.get(entry["entry"])
        )
    return [told[number] for number in sorted(told)]


def completed(warehouse: str, pipeline: str) -> list[Run]:
    """The runs whose results are known, oldest first."""
    return [run for run in runs(warehouse, pipeline) if run.state == "completed"]


def settled(past: Iterable[Run], published: int) -> int:
    """The last run that a table takes in: the one that has `published` it, or a later one that was completed."""
    return max([published, *(run.number for run in past if run.state == "completed")])


def write(warehouse: str, run: Run) -> None:
    """Appends one entry; BusyError if another writer planned this number at the same time."""
    pipeline = run.plan["pipeline"]
    found = ensure(table(warehouse, pipeline), SCHEMA)
    version = run.number if run.state == "planned" else None
    ids = [Transaction(_app(pipeline), version)] if version else []
    if version and (found.transaction_version(ids[0].app_id) or 0) >= version:
        raise _taken(pipeline, run)
    data = pa.Table.from_pylist([_row(run, datetime.now(UTC))], schema=_ARROW)
    try:
        write_deltalake(found, data, mode="append", commit_properties=CommitProperties(app_transactions=ids))
    except CommitFailedError:
        raise _taken(pipeline, run) from None
    except (DeltaError, OSError) as error:
        raise unwritten(error, table(warehouse, pipeline).path) from None


def replace(warehouse: str, pipeline: str, entries: list[Run]) -> None:
    """Puts entries in place of all that the journal has of their runs, in one commit; what was stays in its history."""
    found = ensure(table(warehouse, pipeline), SCHEMA)
    numbers = {run.number for run in entries}
    kept = [row for row in dataset(found).to_table().to_pylist() if row["run"] not in numbers]
    now = datetime.now(UTC)
    rows = [_row(run, now + timedelta(microseconds=n)) for n, run in enumerate(entries)]
    data = pa.Table.from_pylist([*kept, *rows], schema=_ARROW)
    last = Transaction(_app(pipeline), max(row["run"] for row in [*kept, *rows]))
    try:
        properties = CommitProperties(app_transactions=[last])
        write_deltalake(found, data, mode="overwrite", commit_properties=properties)
    except (DeltaError, OSError) as error:
        raise unwritten(error, table(warehouse, pipeline).path) from None


def _row(run: Run, at: datetime) -> dict[str, Any]:
    told = {"run": run.number, "entry": run.state, "at": at, "runId": run.run_id, "knownAt": run.known_at}
    return {**told, "detail": json.dumps(run.detail)}


def _app(pipeline: str) -> str:
    return f"hindcast/{pipeline}/plan"


def _taken(pipeline: str, run: Run) -> BusyError:
    return BusyError(
        f"another run of {pipeline} was planned as number {run.number} at the same moment",
        where=run.run_id,
        mend="run it again when that one has ended; nothing was written",
    )
