"""`hindcast forecast`: how the tables of a pipeline grow, and roughly how long a first run of its contract takes.

Rows and bytes are those of Delta's logs; growth is what the runs of the last weeks have opened, by their notes. The
first run is estimated by the offsets that it would ingest, and by the times in the journals of all pipelines.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from datetime import datetime, timedelta
from statistics import quantiles
from typing import Literal, NamedTuple
from urllib.parse import unquote

import pyarrow as pa
from deltalake import DeltaTable

from hindcast.common.errors import HindcastError, escape_controls
from hindcast.common.json_values import JsonValue
from hindcast.common.plurals import format_count
from hindcast.contract.bound import BoundContract
from hindcast.contract.types import format_duration
from hindcast.plan import journal, journal_rows, planner
from hindcast.plan.runs import Completed, Run
from hindcast.query import show
from hindcast.store import commit_history, delta_log, odd_tables, tables
from hindcast.store.commit_notes import TableNote

WEEK = timedelta(weeks=1)
GROWTH_SPAN = 8 * WEEK
"""Growth is that of the runs of so long a time before the last one."""

MIN_SPAN = timedelta(hours=1)

Certainty = Literal["measured", "extrapolated", "guessed"]
"""Measured: by several runs of at least a third of the size; guessed: by none of at least a hundredth."""


class RunTime(NamedTuple):
    """How many offsets a run has ingested, and how many seconds lie between its plan and its end."""

    offsets: int
    seconds: float


@dataclass(frozen=True)
class TableGrowth:
    """The rows and bytes of a table, how many rows are superseded, and what a week adds; None if that is unknown."""

    table: str
    rows: int
    superseded: int
    bytes: int
    rows_a_week: float | None
    bytes_a_week: float | None


@dataclass(frozen=True)
class FirstRun:
    """How many offsets a first run would ingest, and between how many seconds it would take.

    `runs`: how many runs the estimate is by; `largest`: the most offsets of one of them.
    """

    offsets: int
    seconds: tuple[float, float]
    certainty: Certainty
    runs: int
    largest: int


@dataclass(frozen=True)
class Forecast:
    """The growth of each table, by how many `runs` in how many `days` (0: too few); the first run, or why not."""

    pipeline: str
    tables: Sequence[TableGrowth]
    runs: int
    days: float
    first_run: FirstRun | None
    unknown: str | None

    def as_json(self) -> dict[str, JsonValue]:
        """Return the forecast as data."""
        growth: list[JsonValue] = [
            {
                "table": it.table,
                "rows": it.rows,
                "superseded": it.superseded,
                "bytes": it.bytes,
                "rowsAWeek": it.rows_a_week,
                "bytesAWeek": it.bytes_a_week,
            }
            for it in self.tables
        ]
        first: JsonValue = asdict(self.first_run) | {"seconds": [*self.first_run.seconds]} if self.first_run else None
        head: dict[str, JsonValue] = {"pipeline": self.pipeline, "runs": self.runs, "days": self.days}
        return head | {"tables": growth, "firstRun": first, "unknown": self.unknown}


def forecast_pipeline(contract: BoundContract, pipelines: Iterable[str]) -> Forecast:
    """Return the forecast for a pipeline; the run times are those in the journals of `pipelines`."""
    past = journal.read_runs(contract.warehouse, contract.pipeline)
    runs, span = _choose_runs(past)
    growth = [*_measure_tables(contract, runs, span)]
    first_run, unknown = None, None
    try:
        plan = planner.propose_plan(contract, "forecast", None, [])
    except HindcastError as error:
        unknown = str(error)
    else:
        offsets = sum(sum(topic.planned_counts.values()) for topic in plan.topics.values())
        times = [time for name in pipelines for time in _read_run_times(contract.warehouse, name)]
        first_run = estimate_first_run(offsets, times, os.cpu_count() or 1)
    return Forecast(contract.pipeline, growth, len(runs), span / timedelta(days=1), first_run, unknown)


def _choose_runs(past: Sequence[Run]) -> tuple[list[Run], timedelta]:
    """Return the runs whose rows count as growth, and the time in which they came.

    The first is left out, as it took what had gathered before; so are runs of rehearsals, which are known at old dates.
    """
    done = [run for run in past if isinstance(run.outcome, Completed) and run.plan.rehearsed_interval is None]
    recent = [run for run in done if run.known_at >= done[-1].known_at - GROWTH_SPAN]
    span = recent[-1].known_at - recent[0].known_at if recent else timedelta()
    return (recent[1:], span) if span >= MIN_SPAN else ([], timedelta())


def _measure_tables(contract: BoundContract, runs: Sequence[Run], span: timedelta) -> Iterator[TableGrowth]:
    numbers = {run.number for run in runs}
    for name in (*contract.topics, *contract.views):
        table = tables.locate_table(contract.warehouse, contract, name)
        notes = commit_history.read_notes(table, TableNote.from_json)
        opened = sum(note.opened for number, note in notes.items() if number in numbers)
        if (delta_table := tables.open_table(table)) is not None:
            yield _measure_table(table.name, delta_table, opened, span)
    for name in contract.topics:
        log = tables.log_table(contract.warehouse, contract.pipeline, name)
        ingested = sum(run.offsets.get(name, 0) for run in runs)
        if (delta_table := tables.open_table(log)) is not None:
            yield _measure_table(log.name, delta_table, ingested, span)


def _measure_table(name: str, delta_table: DeltaTable, added: int, span: timedelta) -> TableGrowth:
    """Return the growth of a table to which `added` rows came in a time."""
    files = pa.table(delta_table.get_add_actions(flatten=True)).to_pylist()
    marked = _count_marked(delta_table, [unquote(file["path"]) for file in files])
    rows, superseded = sum(file["num_records"] or 0 for file in files) - sum(marked.values()), 0
    for file in files:
        if file.get("partition._belief") == "superseded":
            superseded += (file["num_records"] or 0) - marked.get(unquote(file["path"]), 0)
    size = sum(file["size_bytes"] for file in files)
    weekly = added * (WEEK / span) if span else None
    weekly_size = weekly * size / rows if weekly is not None and rows else None
    return TableGrowth(name, rows, superseded, size, weekly, weekly_size)


def _count_marked(delta_table: DeltaTable, paths: Sequence[str]) -> Mapping[str, int]:
    """Return how many rows of files are marked as deleted, by path."""
    entries = delta_log.read_file_entries(delta_table, {*paths}, ("deletionVector",))
    vectors = ((path, entry.get("deletionVector")) for path, entry in entries.items())
    return {path: int(str(vector["cardinality"])) for path, vector in vectors if isinstance(vector, dict)}


def _read_run_times(warehouse: str, pipeline: str) -> Iterator[RunTime]:
    """Yield the times of a pipeline's completed runs that ingested something; none of a journal that is damaged."""
    table = journal.runs_table(warehouse, pipeline)
    with suppress(HindcastError):
        if (delta_table := tables.open_table(table)) is None:
            return
        spans: dict[int, list[datetime]] = {}
        with odd_tables.refuse_unreadable_rows(table):
            for row in journal_rows.load_rows(table, delta_table, ("run", "entry", "at")):
                if row["entry"] in ("planned", "completed"):
                    spans.setdefault(row["run"], []).append(row["at"])
        for run in journal.read_completed_runs(warehouse, pipeline):
            offsets = sum(run.offsets.values())
            moments = spans.get(run.number, [])
            if offsets and len(moments) > 1:
                yield RunTime(offsets, (max(moments) - min(moments)).total_seconds())


def estimate_first_run(offsets: int, times: Sequence[RunTime], cores: int) -> FirstRun:
    """Return how long a run of so many offsets takes, by the times of other runs; without any, by our benchmarks.

    The longer time is by the slower of the largest runs, with all that they took beside their records; the shorter one
    by the faster ones, whose records alone are scaled up.
    """
    measured = [time for time in times if time.seconds > 0]
    largest = max((time.offsets for time in measured), default=0)
    if not measured or largest * _LEAST_SHARE < offsets:
        slow, fast = (rate * cores for rate in _BENCHMARKED)
        fixed = min((time.seconds for time in measured), default=_START)
        return FirstRun(offsets, (fixed + offsets / fast, fixed + offsets / slow), "guessed", len(measured), largest)
    fixed = min(time.seconds for time in measured)
    large = [time for time in measured if time.offsets * _LARGE >= largest]
    slow, _ = _spread([time.offsets / time.seconds for time in large])
    _, fast = _spread([time.offsets / max(time.seconds - fixed, time.seconds / 2) for time in large])
    certainty: Certainty = "measured" if len(large) >= _SEVERAL and largest * _SEVERAL >= offsets else "extrapolated"
    longer = max(offsets / slow, fixed)
    return FirstRun(offsets, (min(fixed + offsets / fast, longer), longer), certainty, len(large), largest)


_LEAST_SHARE, _LARGE, _SEVERAL = 100, 10, 3
_BENCHMARKED = (20_000.0, 120_000.0)
"""Records a second and core: what a replay alone reaches (docs/deploy.md), and a sixth of it, which nobody measured."""
_START = 10.0
"""Seconds that a run takes beside its records."""


def _spread(values: Sequence[float]) -> tuple[float, float]:
    """Return the quartiles of some numbers."""
    lower, _, upper = quantiles(values, method="inclusive") if len(values) > 1 else (values[0],) * 3
    return lower, upper


def format_forecast(forecast: Forecast) -> str:
    """Return the forecast as lines for a terminal."""
    rows = [
        {
            "table": it.table,
            "rows": it.rows,
            "superseded": f"{it.superseded / it.rows:.0%}" if it.rows else "-",
            "MB": f"{it.bytes / 1e6:,.1f}",
            "rows a week": "-" if it.rows_a_week is None else f"{it.rows_a_week:,.0f}",
            "GB a week": "-" if it.bytes_a_week is None else f"{it.bytes_a_week / 1e9:,.3f}",
        }
        for it in forecast.tables
    ]
    lines = [show.format_aligned(pa.Table.from_pylist(rows))] if rows else ["there are no tables yet"]
    if forecast.runs:
        whole = sum(it.bytes_a_week or 0 for it in forecast.tables) / 1e9
        by = f"by {format_count(forecast.runs, 'run')} in {forecast.days:.1f} days"
        lines.append(f"growth: {whole:,.3f} GB a week, {by}; files that maintenance removes later are not counted")
    else:
        lines.append("growth: unknown until runs lie an hour apart")
    if (first := forecast.first_run) is not None:
        low, high = map(_format_seconds, first.seconds)
        lines.append(f"a first run: {format_count(first.offsets, 'offset')}, about {low} to {high}; {_explain(first)}")
    else:
        lines.append(f"a first run: unknown: {forecast.unknown}")
    return escape_controls("\n".join(lines))


def _format_seconds(seconds: float) -> str:
    """Return a time in seconds, minutes or hours."""
    unit = next((unit for unit in (3600, 60) if seconds >= 2 * unit), 1)
    return format_duration(timedelta(seconds=max(1, round(seconds / unit)) * unit))


def _explain(first: FirstRun) -> str:
    by = f"{format_count(first.runs, 'run')} of up to {format_count(first.largest, 'offset')}"
    match first.certainty:
        case "measured":
            return f"measured by {by}"
        case "extrapolated":
            return f"extrapolated from {by}"
        case _:
            return "a guess by our benchmarks, as no run here was large enough"
