"""Plans of increments by kernels: which views and topics have one.

Joins, and selections and aggregates over time and in windows whose expressions Arrow can evaluate. All other views have
those of `bitemporal/incremental_views.py`. Both give the same.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime
from typing import Literal, TypeAlias

import pyarrow as pa
from deltalake import DeltaTable
from pyspark.sql import DataFrame

from hindcast.bitemporal import incremental_views
from hindcast.bitemporal.intervals import count_micros
from hindcast.contract import Contract, list_shapes
from hindcast.contract.shapes import PERIODS, PLACE_COLUMNS, identity_columns
from hindcast.engine import (
    aggregate_members,
    aggregation,
    arrow_projection,
    eligibility,
    spark_projection,
    window_aggregation,
)
from hindcast.engine.spec import (
    AggregateIncrement,
    JoinIncrement,
    KernelInput,
    SelectIncrement,
    VersionIncrement,
    ViewIncrement,
    WindowIncrement,
)
from hindcast.store import tables
from hindcast.store.tables import Table

PlannedIncrement: TypeAlias = SelectIncrement | JoinIncrement | AggregateIncrement | WindowIncrement
"""The increment of a view."""


def plan_view(
    contract: Contract,
    name: str,
    inputs: Mapping[str, Table],
    current: Mapping[str, DataFrame],
    seen: Mapping[str, datetime],
    table: Table,
    known_at: datetime,
    *,
    ends: Mapping[str, Mapping[int, int]],
    by_arrow: bool = True,
) -> PlannedIncrement | None:
    """Return the specification of a view's increment by a run that is `known_at`; None if no kernel has one.

    `current`: the current rows of the inputs. `seen`: by input, the known-at at which the view has seen it last;
    `ends`: by topic, the offsets up to which it has seen its records (`TopicPlan.ends`).
    Without `by_arrow` Spark evaluates a join's expressions, even if Arrow can.
    """
    it, known = contract.views[name], list_shapes(contract)
    found = {i: tables.open_table(one) for i, one in {**inputs, name: table}.items()}
    there = {i: one for i, one in found.items() if one is not None}
    if len(there) < len(found) or (output := eligibility.describe_output(name, there, table, known_at)) is None:
        return None
    shape = known[name]
    lineage = identity_columns(shape.kind, ()) if shape.kind in ("events", "pairs") else ()
    columns = (*shape.key, *shape.value, *PERIODS[shape.kind], *lineage)
    kind: Literal["windows", "events", "versions"] = "windows" if shape.kind == "windows" else output.kind
    view = KernelInput(table.path, there[name].version(), kind, tuple(shape.key), columns, None)
    alike = ViewIncrement(
        sides=(),
        seen=tuple(seen[i] for i in it.inputs),
        view=view,
        columns=columns,
        identity=table.identity,
        output=output,
    )
    if it.join is not None:
        return _plan_join(alike, contract, name, inputs, there, by_arrow=by_arrow)
    if it.aggregate is None:
        return _plan_selection(alike, contract, name, inputs, there) if by_arrow else None
    if not by_arrow:
        return None
    if it.window is None:
        return _plan_aggregate(alike, contract, name, inputs, there, current)
    source = find_source_topic(contract, name)
    return _plan_windows(alike, contract, name, inputs, there, current, ends[source]) if source in ends else None


def find_source_topic(contract: Contract, name: str) -> str:
    """Return the topic, or the input, whose records a view's events are."""
    while name in contract.views:
        name = contract.views[name].first_input
    return name


def _plan_selection(
    alike: ViewIncrement, contract: Contract, name: str, inputs: Mapping[str, Table], found: Mapping[str, DeltaTable]
) -> SelectIncrement | None:
    it, known = contract.views[name], list_shapes(contract)
    source, kind = it.first_input, known[name].kind
    schema, columns = pa.schema(found[source].schema().to_arrow()), spark_projection.list_flat_columns(it, known)
    projection = arrow_projection.plan_projection(it, kind, known, columns, (schema,), alike.output.types)
    if projection is None:
        return None
    flat = {own: column for own, (_, column) in columns.items() if own in projection.reads}
    if not all(eligibility.is_flat(schema.field(column).type) for column in flat.values()):
        return None
    if kind == "versions" and not all(
        eligibility.is_key(alike.output.types.field(column).type) for column in known[name].key
    ):
        return None
    one = inputs[source]
    read = tuple(sorted(set(flat.values())))
    side = KernelInput(one.path, found[source].version(), alike.view.kind, (), read, one.as_of_system_time)
    return SelectIncrement(**vars(alike) | {"sides": (side,)}, flat=flat, projection=projection)


def _plan_join(
    alike: ViewIncrement,
    contract: Contract,
    name: str,
    inputs: Mapping[str, Table],
    found: Mapping[str, DeltaTable],
    *,
    by_arrow: bool,
) -> JoinIncrement | None:
    it, known = contract.views[name], list_shapes(contract)
    if it.join is None or (it.key is not None and it.join.how == "outer"):
        return None  # of an outer join a row's new key does not tell its old one
    if (join := eligibility.find_join(contract, name, inputs, found, alike.output, by_arrow=by_arrow)) is None:
        return None
    first, second = join.sides
    first = replace(first, columns=tuple(sorted({*first.columns, *known[it.first_input].key})))
    is_stream = known[name].kind != "versions"
    kept = {} if is_stream and it.key is not None else incremental_views.map_key_columns(it, name, known)
    unit = {own: column for column, own in kept.items()}
    if not is_stream and not all(eligibility.is_key(alike.output.types.field(column).type) for column in unit):
        return None
    return JoinIncrement(
        **vars(alike) | {"sides": (first, second)}, join=replace(join, sides=(first, second)), unit=unit
    )


def _plan_aggregate(
    alike: ViewIncrement,
    contract: Contract,
    name: str,
    inputs: Mapping[str, Table],
    found: Mapping[str, DeltaTable],
    current: Mapping[str, DataFrame],
) -> AggregateIncrement | None:
    it, known = contract.views[name], list_shapes(contract)
    source = it.first_input
    if (planned := aggregation.plan_aggregate(contract, name, current[source], alike.output)) is None:
        return None
    of = tuple(known[source].key) if known[source].kind == "versions" else PLACE_COLUMNS
    member = {f"_member{number}": column for number, column in enumerate(of)}
    members = aggregate_members.plan_source(contract, planned[0], name, inputs[source], found[source], member)
    if members is None:
        return None
    return AggregateIncrement(
        **vars(alike) | {"sides": (members.side,)},
        aggregate=planned[0],
        projection=members.projection,
        member=tuple(member),
    )


def _plan_windows(
    alike: ViewIncrement,
    contract: Contract,
    name: str,
    inputs: Mapping[str, Table],
    found: Mapping[str, DeltaTable],
    current: Mapping[str, DataFrame],
    ends: Mapping[int, int],
) -> WindowIncrement | None:
    source = contract.views[name].first_input
    place = inputs[source], found[source], current[source], alike.output
    form = window_aggregation.plan_windows(contract, name, *place, by_arrow=True)
    if form is None or form.projection is None:
        return None
    return WindowIncrement(**vars(alike) | {"sides": (form.side,)}, events=form, ends=ends)


def plan_topic(
    contract: Contract, name: str, table: Table, known_at: datetime, *, nested: bool = False
) -> VersionIncrement | None:
    """Return the specification of the increment of a topic read as a table; None if no kernel has one.

    `nested`: for its first versions, whose values are not compared with others: they may be nested.
    """
    found, shape, ttl = tables.open_table(table), list_shapes(contract)[name], contract.topics[name].ttl
    output = None if found is None else eligibility.describe_output(name, {name: found}, table, known_at, nested=nested)
    if found is None or output is None or tables.read_older_format(found) is not None:
        return None
    if not all(eligibility.is_key(output.types.field(column).type) for column in shape.key):
        return None
    columns = (*shape.key, *shape.value, *PERIODS["versions"], *PLACE_COLUMNS)
    return VersionIncrement(
        sides=(),
        seen=(),
        view=KernelInput(table.path, found.version(), "versions", tuple(shape.key), columns, None),
        columns=columns,
        identity=table.identity,
        output=output,
        ttl=None if ttl is None else count_micros(ttl),
    )
