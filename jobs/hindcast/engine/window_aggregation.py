"""Aggregates in windows and sessions by kernels: which ones, and the rows that their tasks get.

Each task takes the windows that start in a slice of time and reads the events in them; of sessions, which have no end
that is known before, all events of some groups, which takes a shuffle. The view's expressions are evaluated by Arrow in
the same task, or by Spark within the same stage. Which events came too late is found before (late_events.py): only that
depends on other events.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from functools import partial

import pyarrow as pa
from deltalake import DeltaTable
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import IntegerType, StructType

from hindcast.bitemporal import derivation
from hindcast.bitemporal.intervals import count_micros
from hindcast.contract import Contract, Shape, View, list_shapes
from hindcast.contract.shapes import PLACE_COLUMNS
from hindcast.engine import aggregate_members, aggregation, eligibility, late_events, task
from hindcast.engine.spec import SLICE, EventSpec, KernelInput, KernelOutput, SessionSpec, SlidingSpec, WindowSpec
from hindcast.store import table_columns
from hindcast.store.tables import Table

MAX_LATE = 1_000_000
"""With more events than these that may be late, of which every task gets a list, Spark's plan derives the view."""


_KEPT = {column: column for column in (*PLACE_COLUMNS, "timestamp")}


def plan_windows(
    contract: Contract,
    name: str,
    source: Table,
    found: DeltaTable,
    rows: DataFrame,
    output: KernelOutput,
    *,
    by_arrow: bool,
) -> WindowSpec | SlidingSpec | SessionSpec | None:
    """Return the specification of a view's aggregate in windows; None if no kernel can derive it.

    `found`: the opened table of its input, `source`; `rows`: the current rows of it. Late events are not yet in it
    (`find_late_events`). Without `by_arrow` Spark evaluates its expressions, even if Arrow can.
    """
    it, known = contract.views[name], list_shapes(contract)
    shape = known[it.first_input]
    if it.window is None or it.semantics == "kafka" or shape.kind != "events":
        return None
    columns = aggregate_members.list_read_columns(it, known)
    schema = pa.schema(found.schema().to_arrow())
    if not all(eligibility.is_flat(schema.field(column).type) for column in columns):
        return None
    measures = {column: measure.function for column, measure in derivation.view_measures(it, known).items()}
    key = tuple(known[name].key)
    members = select_members(rows, it, known).schema
    if not aggregation.can_aggregate(members, key, measures):
        return None
    side = KernelInput(source.path, found.version(), "events", tuple(shape.key), columns, source.as_of_system_time)
    alike = EventSpec(
        side=side,
        key=key,
        whole=it.group_by is not None,  # as `derivation.group_key` has it
        measures=measures,
        projection=aggregate_members.plan_member_projection(it, known, schema, measures, _KEPT) if by_arrow else None,
        grace=count_micros(it.window.grace),
        late=late_events.NO_LATE_EVENTS,
        output=output,
    )
    if it.window.session is not None:
        return SessionSpec(**vars(alike), gap=count_micros(it.window.session))
    if it.window.sliding is not None:
        return SlidingSpec(**vars(alike), difference=count_micros(it.window.sliding))
    size = it.window.tumbling or it.window.hopping or timedelta()
    return WindowSpec(**vars(alike), size=count_micros(size), advance=count_micros(it.window.advance or size))


def read_schema(form: EventSpec, found: DeltaTable) -> StructType:
    """Return the schema of the events that tasks read (`task.build_event_reader`)."""
    types = table_columns.spark_schema(found)
    return StructType([types[column] for column in form.side.columns]).add(SLICE, IntegerType())


def select_members(rows: DataFrame, it: View, known: dict[str, Shape]) -> DataFrame:
    """Return what the tasks aggregate (`EventSpec`) of rows of the input, whatever other columns these have.

    Columns of the input that are not read may be missing.
    """
    shape = known[it.first_input]
    there = [F.col(column) if column in rows.columns else F.lit(None).alias(column) for column in shape.columns]
    apart = [column for column in (*PLACE_COLUMNS, "timestamp", SLICE) if column in rows.columns]
    relation = derivation.as_relation(rows.select(*there, *apart), shape, *(c for c in apart if c != "timestamp"))
    members = derivation.apply_where(it, relation, known)
    return members.select(
        derivation.group_key(it, known).alias("_key"), *aggregation.list_arguments(it, known), *apart
    ).select("_key.*", *derivation.view_measures(it, known), *apart)


Run = Callable[[EventSpec, Callable[..., pa.Table], str], DataFrame]
"""Runs some work (`task.SliceWork`) on the members of all slices; its rows have a schema."""


def find_late_events(form: EventSpec, run: Run) -> pa.Table | None:
    """Return the late events of a view's input as `EventSpec` has them; None if too many may be late.

    RefusalError if a task refuses its part.
    """
    # Of a key only its nulls count here: a dictionary of its texts would take longer than it saves.
    form = replace(form, side=replace(form.side, key=()))
    with task.find_refusals():
        blocks = late_events.find_doubtful_blocks(
            form, run(form, late_events.summarize_blocks, late_events.BLOCK_SCHEMA).toArrow()
        )
        if not blocks.num_rows:
            return form.late
        pick = partial(late_events.pick_doubtful_events, blocks=blocks)
        doubtful = late_events.sort_by_place(run(form, pick, late_events.EVENT_SCHEMA).toArrow())
        if doubtful.num_rows > MAX_LATE:
            return None
        find = partial(late_events.find_latest_before, doubtful=doubtful)
        latest = run(form, find, late_events.LATEST_SCHEMA).toArrow()
    return late_events.judge_doubtful_events(form, doubtful, latest)
