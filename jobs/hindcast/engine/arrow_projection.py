"""A view's expressions over the rows of a kernel, evaluated by Arrow before the rows are written."""

from __future__ import annotations

from collections.abc import Mapping

import pyarrow as pa

from hindcast.contract import Shape, View
from hindcast.contract.expressions import resolve
from hindcast.contract.shapes import PERIODS, PLACE_COLUMNS, column_expressions, identity_columns, view_scope
from hindcast.engine.arrow_expressions import Call, ColumnReference, Expression, Projection
from hindcast.engine.arrow_translation import Columns, translate_expression
from hindcast.engine.spark_projection import FlatColumns


def plan_projection(
    it: View,
    kind: str,
    known: Mapping[str, Shape],
    columns: FlatColumns,
    sides: tuple[pa.Schema, ...],
    output: pa.Schema,
) -> Projection | None:
    """Return the columns of a view that does not aggregate over the flat `columns` (`spark_projection`).

    `kind`: of the view's rows; `sides`: the columns of its inputs; `output`: those of its table. None if Arrow cannot
    evaluate an expression, or not as one of the column's type.
    """
    flat = {place: ColumnReference(name, sides[place[0]].field(place[1]).type) for name, place in columns.items()}
    found = translate_view(it, known, {(it.inputs[side], name): flat[side, name] for side, name in flat})
    if found is None:
        return None
    own = dict(found.columns)
    if it.key is None and it.join is not None and it.join.how == "outer":
        own |= _choose_key(it, known, flat)
    if kind == "events":
        own |= {name: flat[0, name] for name in (*PERIODS[kind], *PLACE_COLUMNS)}
    else:
        own |= {name: ColumnReference(name, output.field(name).type) for name in PERIODS[kind]}
    if kind == "pairs":
        places = [(side, column) for side in range(2) for column in PLACE_COLUMNS]
        own |= {name: flat[place] for name, place in zip(identity_columns(kind, ()), places, strict=True)}
    if {*own, "systemFrom", "systemTo"} != {*output.names}:
        return None
    is_alike = all(output.field(name).type == column.kind for name, column in own.items())
    return Projection(own, found.where) if is_alike else None


def translate_view(it: View, known: Mapping[str, Shape], columns: Columns) -> Projection | None:
    """Return the columns of a view, of an aggregate the group and the measures' arguments, and its condition.

    None if Arrow cannot evaluate one of them. `columns`: those of its inputs.
    """
    every = {name: translate_expression(text, columns) for name, text in column_expressions(it, known).items()}
    found = {name: column for name, column in every.items() if column is not None}
    where = None if it.where is None else translate_expression(resolve(it.where, view_scope(it, known)), columns)
    if len(found) < len(every) or (it.where is not None and where is None):
        return None
    return None if where is not None and not pa.types.is_boolean(where.kind) else Projection(found, where)


def _choose_key(
    it: View, known: Mapping[str, Shape], flat: Mapping[tuple[int, str], ColumnReference]
) -> dict[str, Expression]:
    """Return the key of an outer join: that of its left row, or of the right one where there is none."""
    is_missing = Call("is_null", (flat[0, PERIODS[known[it.first_input].kind][0]],), pa.bool_())
    aligned = zip(known[it.inputs[1]].key, known[it.first_input].key, strict=True)
    chosen = {own: (flat[1, other], flat[0, own]) for other, own in aligned}
    return {own: Call("if", (is_missing, *sides), sides[0].kind) for own, sides in chosen.items()}
