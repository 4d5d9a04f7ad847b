"""The members of aggregates: rows of the input, as their group, the arguments of the measures, and their times.

Arrow evaluates the expressions of both over the columns that are read, if it can.
"""

from __future__ import annotations

from collections.abc import Mapping

import pyarrow as pa
from deltalake import DeltaTable

from hindcast.contract import Contract, Shape, View, list_shapes
from hindcast.engine import aggregation, arrow_projection, eligibility, spark_projection
from hindcast.engine.arrow_expressions import Call, ColumnReference, Constant, Expression, Projection
from hindcast.engine.spec import AggregateSpec, KernelInput, MemberSource
from hindcast.store.tables import Table


def plan_source(
    contract: Contract, form: AggregateSpec, name: str, source: Table, found: DeltaTable, kept: Mapping[str, str]
) -> MemberSource | None:
    """Return where a view's aggregate gets its members; None if Arrow cannot make them.

    `found`: the opened table of its input, `source`. `kept`: as `plan_member_projection` has it, besides the periods.
    """
    it, known = contract.views[name], list_shapes(contract)
    schema, shape, read = pa.schema(found.schema().to_arrow()), known[it.first_input], list_read_columns(it, known)
    if not all(eligibility.is_flat(schema.field(column).type) for column in read):
        return None
    periods = aggregation.match_periods(shape)
    projection = plan_member_projection(it, known, schema, form.measures, periods | dict(kept))
    if projection is None or not _has_types(projection, form):
        return None
    kind = eligibility.row_kind(shape.kind)
    side = KernelInput(source.path, found.version(), kind, tuple(shape.key), read, source.as_of_system_time)
    return MemberSource(side, projection)


def _has_types(projection: Projection, form: AggregateSpec) -> bool:
    """Return whether groups, and values that are taken as they are, have the types of the table's columns."""
    taken = [*form.key, *(column for column, function in form.measures.items() if function in ("min", "max"))]
    return all(projection.columns[column].kind == form.output.types.field(column).type for column in taken)


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
