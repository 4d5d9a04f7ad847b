"""What a pass changes in the tables of a pipeline, derived date by date in memory (engine/passes.py)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import cached_property
from typing import NamedTuple, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from hindcast.bitemporal.intervals import to_micros
from hindcast.contract import list_shapes
from hindcast.contract.bound import BoundContract
from hindcast.contract.shapes import PERIODS, PLACE_COLUMNS
from hindcast.engine import flat_records, increment_plans, slice_reader, version_ties
from hindcast.engine.increment_plans import PlannedIncrement
from hindcast.engine.increment_rows import LeftOutRows
from hindcast.engine.pass_tables import NEVER, STORED, DateChange, TableHistory
from hindcast.engine.passes import DatedRecords, EventsPass, VersionsPass, ViewPass
from hindcast.engine.spec import KernelInput, VersionIncrement
from hindcast.engine.sweeps import FOREVER
from hindcast.engine.version_ties import TiesOfKeys
from hindcast.ingest.ingest_commits import IngestedRecords
from hindcast.ingest.run_division import RunDivision
from hindcast.plan import passes
from hindcast.plan.inputs import locate_own_table
from hindcast.plan.plans import Plan
from hindcast.plan.runs import Run
from hindcast.runs import derive_topic, derive_view, tie_counts
from hindcast.runs.topic_records import TopicRecords
from hindcast.store import commit_notes, table_columns, tables
from hindcast.store.commit_notes import AGES, NOTHING_LEFT_OUT, LeftOut, TableNote
from hindcast.store.tables import Table
from hindcast.store.task_rows import TaskRows, collect_table


class NoPassError(Exception):
    """The tables of a pipeline have no increments that a pass could make."""


class RefusedDateError(Exception):
    """A date of a pass that a kernel cannot derive: its rows are too many, or Spark must evaluate an expression."""

    def __init__(self, date: int, reason: str) -> None:
        super().__init__(reason)
        self.date = date


@dataclass(frozen=True)
class Pass:
    """A pass: the plans of its runs, and the run before them (`seen`), which all tables include."""

    spark: SparkSession
    contract: BoundContract
    plans: Sequence[Plan]
    seen: Run

    @cached_property
    def whole_plan(self) -> Plan:
        """The plan of one run with the offsets of all."""
        return passes.join_plans(self.plans)


PassRecords: TypeAlias = Mapping[str, TaskRows | DataFrame]
"""By topic, the accepted records of all runs of a pass, decoded."""


class TableChange(NamedTuple):
    """What a pass changes in a table: all its rows, the `notes` of the runs, and what it had `left_out` before."""

    table: Table
    history: TableHistory
    notes: Sequence[TableNote]
    left_out: LeftOut | None = None

    @property
    def committed_notes(self) -> list[TableNote]:
        """The notes of the runs that would commit something by themselves."""
        found, before = [], self.left_out or NOTHING_LEFT_OUT
        for note in self.notes:
            left_out = note.left_out or NOTHING_LEFT_OUT
            has_news = note.changed_rows or (note.ties is not None and note.ties.lost)
            if has_news or not left_out.says_the_same_as(before):
                found.append(note)
            before = left_out
        return found

    @property
    def closed_rows(self) -> TableHistory:
        """The rows that the table had before, and that the pass has closed."""
        return self.history.select((self.history.opened == STORED) & (self.history.closed != NEVER))


def derive_changes(of: Pass, records: PassRecords) -> dict[str, TableChange]:
    """Return what a pass changes in each table. NoPassError if one has no increments by a kernel, RefusedDateError for
    the first date that one of them refuses.
    """
    from hindcast.engine import task

    date = 0
    try:
        with task.refuse_too_large():
            opened = _open_passes(of, records)
            for date in range(len(of.plans)):
                changed: dict[str, DateChange] = {}
                for name, one in opened.items():
                    changed[name] = one.derive_date(date, changed)
    except task.RefusalError as error:
        raise RefusedDateError(date, f"no kernel derives it: {error}") from error
    return {name: _summarize_pass(of, name, one) for name, one in opened.items()}


def plan_views(of: Pass) -> dict[str, PlannedIncrement]:
    """Return the increments of all views, in the order in which they need each other; NoPassError if one has none."""
    for name, topic in of.contract.topics.items():
        table = locate_own_table(of.contract, name)
        if (
            topic.read == "table"
            and increment_plans.plan_topic(of.contract, name, table, of.whole_plan.known_at) is None
        ):
            raise NoPassError(f"no kernel derives {name} from new records")
    forms = {name: _plan_view(of, name) for name in of.contract.ordered_views}
    for name, form in forms.items():
        is_known = not form.leaves_rows_out or derive_view.read_left_out(locate_own_table(of.contract, name), of.seen)
        if not is_known:
            raise NoPassError(f"what {name} has left out before is not known")
    return forms


def _open_passes(of: Pass, records: PassRecords) -> dict[str, EventsPass | VersionsPass | ViewPass]:
    """Return the tables of a pipeline before the first date, in the order in which they need each other."""
    opened: dict[str, EventsPass | VersionsPass | ViewPass] = {}
    for name in of.contract.topics:
        opened[name] = _open_topic(of, name, records[name])
    for name, form in plan_views(of).items():
        inputs = {i: opened[i].table for i in of.contract.views[name].inputs}
        source = increment_plans.find_source_topic(of.contract, name)
        ends = [run.ends.get(source, {}) for run in (of.seen.plan, *of.plans[:-1])]
        opened[name] = ViewPass(form, inputs, _read_stored(of, form.view), ends)
    return opened


def _read_stored(of: Pass, side: KernelInput) -> pa.Table:
    """Return the rows of a table that were current before the pass, whatever it has committed already."""
    before = of.plans[0].known_at - timedelta(microseconds=1)
    return slice_reader.read_current(replace(side, as_of=before))


def _open_topic(of: Pass, name: str, records: TaskRows | DataFrame) -> EventsPass | VersionsPass:
    contract, shape, table = of.contract, list_shapes(of.contract)[name], locate_own_table(of.contract, name)
    found = tables.open_table(table)
    if found is None:
        raise NoPassError(f"{name} has no table")
    types, division = table_columns.spark_schema(found), RunDivision.from_plans(of.plans, name)
    given = [records] if isinstance(records, TaskRows) else records
    flat = flat_records.flatten_new_records(shape, types, given)
    rows = pa.concat_tables(map(collect_table, [flat] if isinstance(flat, DataFrame) else flat)).combine_chunks()
    rows = rows.cast(pa.schema([field.with_nullable(True) for field in rows.schema]))
    places = (rows.column(column).to_numpy() for column in PLACE_COLUMNS)
    dated = DatedRecords.sort(rows, division.find_all_dates(*places), len(of.plans))
    columns = (*shape.key, *shape.value, *PERIODS[table.kind], *PLACE_COLUMNS)
    if contract.topics[name].read == "stream":
        side = KernelInput(table.path, found.version(), "events", tuple(shape.key), columns, None)
        return EventsPass(columns, dated, _read_stored(of, side))
    form = increment_plans.plan_topic(contract, name, table, of.whole_plan.known_at)
    if form is None:
        raise NoPassError(f"no kernel derives {name} from new records")
    hidden = _read_hidden(of, name, types, records, rows)
    with_ties = tie_counts.needs_tie_counts(contract, of.whole_plan, name)
    return VersionsPass(form, dated, hidden, _read_stored(of, form.view), with_ties=with_ties)


def _read_hidden(of: Pass, name: str, types: StructType, records: TaskRows | DataFrame, rows: pa.Table) -> pa.Table:
    """Return the records of runs before the pass that are hidden to those of it, flat."""
    if not rows.num_rows:
        return rows
    new = records.as_frame() if isinstance(records, TaskRows) else records
    moments = rows.column("timestamp").combine_chunks()
    chunks = (records,) if isinstance(records, TaskRows) else ()
    ingested = IngestedRecords(of.whole_plan.topics[name].after, chunks) if chunks else None
    known = TopicRecords(of.spark, of.contract, of.whole_plan, name, ingested)
    earlier = derive_topic.EarlierRecords(of.spark, of.contract, name, known, of.seen.number)
    first = pc.min(moments).cast(pa.int64()).as_py()
    hidden = earlier.find_hidden_since(first, new, moments)
    if hidden is None:
        return rows.slice(0, 0)
    flat = collect_table(flat_records.flatten_records(list_shapes(of.contract)[name], types, hidden, is_new=False))
    return flat.select(rows.column_names).cast(rows.schema)


def _plan_view(of: Pass, name: str) -> PlannedIncrement:
    contract, table = of.contract, locate_own_table(of.contract, name)
    inputs = {i: locate_own_table(contract, i) for i in contract.views[name].inputs}
    current = derive_view.InputRows(of.spark, inputs)
    seen = dict.fromkeys(inputs, of.seen.known_at)
    form = increment_plans.plan_view(
        contract, name, inputs, current, seen, table, of.whole_plan.known_at, ends=of.seen.plan.ends
    )
    if form is None or not form.is_by_arrow:
        raise NoPassError(f"no kernel derives {name} from what has changed")
    return form


def _summarize_pass(of: Pass, name: str, one: EventsPass | VersionsPass | ViewPass) -> TableChange:
    table, history = locate_own_table(of.contract, name), one.table.list_history()
    left_out = _sum_left_out(of, table, one) if isinstance(one, ViewPass) else {}
    ties = one.ties if isinstance(one, VersionsPass) else {}
    notes = _build_notes(of, table, history, ties, left_out, _name_kernel(one))
    before = derive_view.read_left_out(table, of.seen) if left_out else None
    return TableChange(table, history, notes, before)


def _name_kernel(one: EventsPass | VersionsPass | ViewPass) -> str | None:
    match one:
        case ViewPass():
            return one.form.operator
        case VersionsPass():
            return VersionIncrement.operator
    return None


def _sum_left_out(of: Pass, table: Table, one: ViewPass) -> dict[int, LeftOut]:
    """Return by date what an aggregate had left out in all runs by then."""
    if not one.form.leaves_rows_out:
        return {}
    total = derive_view.read_left_out(table, of.seen)
    total = total or NOTHING_LEFT_OUT
    found = {}
    for date in range(len(of.plans)):
        new = one.left_out.get(date, LeftOutRows())
        counts = {kind: getattr(new, kind) for kind in ("no_key", "no_value", "too_late")}
        reached = {str(partition): at for partition, at in (new.reached or {}).items()}
        total += LeftOut(counts, commit_notes.format_stream_times(reached) if table.kind == "windows" else None)
        found[date] = total
    return found


def _build_notes(
    of: Pass,
    table: Table,
    history: TableHistory,
    ties: Mapping[int, TiesOfKeys],
    left_out: Mapping[int, LeftOut],
    kernel: str | None,
) -> list[TableNote]:
    """Return the note of each run, as `change_statistics` counts what it changes."""
    count = len(of.plans)
    opened = np.bincount(history.opened[history.opened != STORED], minlength=count)
    is_closed = history.closed != NEVER
    closed = np.bincount(history.closed[is_closed], minlength=count)
    is_past = is_closed & (history.end != FOREVER if table.kind == "versions" else True)
    dates, starts = history.closed[is_past], history.start[is_past]
    corrected = np.bincount(dates, minlength=count)
    known_ats = np.array([to_micros(plan.known_at) for plan in of.plans])
    lengths = [length // timedelta(microseconds=1) for length in AGES.values() if length is not None]
    # An age goes up to its bound; the next one begins there.
    ages = np.searchsorted(lengths, known_ats[dates] - starts, side="right")
    by_age = np.bincount(dates * len(AGES) + ages, minlength=count * len(AGES)).reshape(count, len(AGES))
    notes = []
    for date, plan in enumerate(of.plans):
        tied = version_ties.sum_reports([ties[date].as_text()]) if date in ties else None
        counted = {age: int(n) for age, n in zip(AGES, by_age[date], strict=True) if n}
        tied = tied if tied is not None and tied.counts else None
        changed = int(opened[date]), int(closed[date]), int(corrected[date])
        notes.append(TableNote(plan.run, *changed, counted, tied, left_out.get(date), kernel))
    return notes
