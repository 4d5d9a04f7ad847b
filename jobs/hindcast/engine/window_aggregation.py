"""Aggregates in windows and sessions by kernels: which ones, and the rows that their tasks get.

Each task takes the windows that start in a slice of time and reads the events in them; of sessions, which have no end
that is known before, all events of some groups, which takes a shuffle. The view's expressions are evaluated by Arrow in
the same task, or by Spark within the same stage. Which events came too late is found before (late_events.py): only that
depends on other events.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import timedelta
from functools import partial

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import IntegerType, StructType

from hindcast.bitemporal import derivation
from hindcast.bitemporal.intervals import count_micros
from hindcast.contract import Contract, Shape, View, list_shapes
from hindcast.contract.shapes import PLACE_COLUMNS
from hindcast.engine import aggregation, arrow_projection, eligibility, late_events, spark_projection, task
from hindcast.engine.arrow_expressions import Call, ColumnReference, Constant, Expression, Projection
from hindcast.engine.spec import SLICE, EventSpec, KernelInput, KernelOutput, SessionSpec, SlidingSpec, WindowSpec
from hindcast.store import table_columns
from hindcast.store.tables import Table

MAX_LATE, MAX_DOUBTFUL = 1_000_000, 10_000_000
"""With more late events than these, which every task gets, or more that may be late, Spark's plan derives the view."""


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
    columns = list_read_columns(it, known)
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
        projection=plan_member_projection(it, known, schema, measures, _KEPT) if by_arrow else None,
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


def plan_member_projection(
    it: View, known: dict[str, Shape], schema: pa.Schema, functions: Mapping[str, str], kept: Mapping[str, str]
) -> Projection | None:
    """Return an aggregate's group and arguments over the input's columns; None if they are Spark's to evaluate.

    `schema`: of the input. `kept`: columns of it that are kept, by their names in the result.
    """
    own = {field.name: ColumnReference(field.name, field.type) for field in schema}
    found = arrow_projection.translate_view(it, known, {(it.first_input, column): own[column] for column in own})
    if found is None:
        return None
    places = {name: own[column] for name, column in kept.items()}
    counted = {column: _mark_there(found.columns[column]) for column, it in functions.items() if it == "count"}
    return Projection({**found.columns, **counted, **places}, found.where)


def _mark_there(argument: Expression) -> Expression:
    """Return 1 where the argument of a count is there, as `aggregation.list_arguments` does."""
    one, none = Constant(1, pa.int32()), Constant(None, pa.int32())
    return (
        one
        if isinstance(argument, Constant)
        else Call("if", (Call("is_null", (argument,), pa.bool_()), none, one), pa.int32())
    )


def list_read_columns(it: View, known: dict[str, Shape]) -> tuple[str, ...]:
    """Return the columns of its input that a view's aggregate reads, those of its place and time too."""
    return tuple(sorted({column for _, column in spark_projection.list_flat_columns(it, known).values()}))


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
    with task.find_refusals():
        blocks = run(form, late_events.summarize_blocks, late_events.BLOCK_SCHEMA).toArrow()
        doubtful = late_events.find_doubtful_blocks(form, blocks)
        if (pc.sum(doubtful.column("events")).as_py() or 0) > MAX_DOUBTFUL:
            return None
        if not doubtful.num_rows:
            return form.late
        pick = partial(late_events.pick_events, blocks=doubtful)
        late = late_events.find_late_events(form, run(form, pick, late_events.EVENT_SCHEMA).toArrow(), doubtful)
    return late if late.num_rows <= MAX_LATE else None
