"""Eligibility: which views a kernel can derive. Joins are here, aggregates in aggregation.py.

Arrow must be able to evaluate a join's keys (arrow_translation.py); its other expressions may be any of Spark's over
columns of flat types, and are evaluated by Arrow if all can be. All other views, and those with few rows, are made by
Spark's plan. Both give the same.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Literal, NamedTuple

import pyarrow as pa
from deltalake import DeltaTable

from hindcast.bitemporal.intervals import count_micros
from hindcast.common.settings import Settings
from hindcast.contract import Contract, Shape, View, list_shapes
from hindcast.contract.expressions import resolve
from hindcast.engine import arrow_projection, spark_projection
from hindcast.engine.arrow_expressions import ColumnReference, Expression, list_columns
from hindcast.engine.arrow_translation import translate_expression
from hindcast.engine.spec import JoinSpec, KernelInput, KernelOutput
from hindcast.store import tables
from hindcast.store.tables import Table

MIN_ROWS = 100_000
"""From so many input rows on a kernel is faster."""


def is_worthwhile(rows: int, settings: Settings) -> bool:
    """Return whether a view with so many input rows should be derived by its kernel, if it has one."""
    return settings.kernels and rows >= MIN_ROWS


def describe_output(
    name: str, found: Mapping[str, DeltaTable], table: Table, known_at: datetime, *, nested: bool = False
) -> KernelOutput | None:
    """Return what a kernel writes for the view `name`; None if it cannot write to its table or read its inputs.

    `found`: by name, the opened tables of the inputs, at the version to read, and of the view; `known_at`: of its rows.
    `nested`: whether the kernel copies nested values, which it cannot compare.
    """
    if any(tables.read_older_format(it) is not None for i, it in found.items() if i != name):
        return None
    schema = pa.schema(found[name].schema().to_arrow())
    types = pa.schema([field.remove_metadata() for field in schema if field.name != "_belief"])
    if not nested and not all(map(is_flat, types.types)):
        return None
    return KernelOutput(table.path, row_kind(table.kind), types, known_at)


def find_join(
    contract: Contract,
    name: str,
    inputs: Mapping[str, Table],
    found: Mapping[str, DeltaTable],
    output: KernelOutput,
    *,
    by_arrow: bool = True,
) -> JoinSpec | None:
    """Return the specification of a view's join; None if no kernel can derive it.

    `found`: the opened inputs. Without `by_arrow` Spark evaluates its expressions, even if Arrow can.
    """
    it, known = contract.views[name], list_shapes(contract)
    if it.semantics == "kafka" or it.join is None:
        return None
    schemas = {i: pa.schema(found[i].schema().to_arrow()) for i in it.inputs}
    if (keys := _join_keys(it, known, schemas[it.first_input])) is None:
        return None
    sides, columns = it.inputs, spark_projection.list_flat_columns(it, known)
    types = tuple(schemas[i] for i in sides)
    projection = (
        arrow_projection.plan_projection(it, known[name].kind, known, columns, types, output.types)
        if by_arrow
        else None
    )
    if projection is not None:
        columns = {c: place for c, place in columns.items() if c in projection.reads}
    read = [schemas[sides[side]].field(of).type for side, of in columns.values()]
    read += keys[0].list_read_types(types[0])
    alike = {key.list_types(schema) for key, schema in zip(keys, types, strict=True)}
    if len(alike) > 1 or not all(map(is_flat, read)) or not all(is_key(kind) for key in alike for kind in key):
        return None
    wanted = [{of for side, of in columns.values() if side == n} for n in range(len(sides))]
    return JoinSpec(
        "table_table" if it.table else "stream_stream" if it.join.stream else "stream_table",
        tuple(
            KernelInput(
                inputs[i].path,
                found[i].version(),
                row_kind(known[i].kind),
                key.columns,
                tuple(sorted(taken)),
                inputs[i].as_of_system_time,
                key.computed,
            )
            for i, key, taken in zip(sides, keys, wanted, strict=True)
        ),
        whole=None if it.table and it.join.on is None else it.join.on is not None,
        how=it.join.how,
        columns=columns,
        projection=projection,
        output=output,
        reach=(count_micros(it.join.before), count_micros(it.join.after)),
    )


def _join_keys(it: View, known: Mapping[str, Shape], schema: pa.Schema) -> tuple[JoinKey, JoinKey] | None:
    """Return the keys by which the inputs are joined; None if the first one's has an expression that is Spark's.

    `schema`: of the first input.
    """
    first, second = (tuple(known[name].key) for name in (it.first_input, it.second_input or ""))
    if it.join is None or it.join.on is None:
        return JoinKey(first, {}), JoinKey(second, {})
    names = {it.first_input: list(known[it.first_input].columns)}
    own = {(it.first_input, field.name): ColumnReference(field.name, field.type) for field in schema}
    parts = [translate_expression(resolve(text, names), own) for text in it.join.keys]
    found = [part for part in parts if part is not None]
    columns = [part.name if isinstance(part, ColumnReference) else f"_on{n}" for n, part in enumerate(found)]
    computed = {c: part for c, part in zip(columns, found, strict=True) if not isinstance(part, ColumnReference)}
    return (JoinKey(tuple(columns), computed), JoinKey(second, {})) if len(found) == len(parts) else None


class JoinKey(NamedTuple):
    """The columns of an input by which it is joined, and those of them that are computed."""

    columns: tuple[str, ...]
    computed: Mapping[str, Expression]

    def list_types(self, schema: pa.Schema) -> tuple[pa.DataType, ...]:
        """Return the types of the columns, given those of the input."""
        return tuple(self.computed[c].kind if c in self.computed else schema.field(c).type for c in self.columns)

    def list_read_types(self, schema: pa.Schema) -> list[pa.DataType]:
        """Return the types of the columns that computed ones are computed from."""
        return [schema.field(c).type for part in self.computed.values() for c in sorted(list_columns(part))]


def row_kind(kind: str) -> Literal["events", "versions"]:
    """Return what kernels take the rows of a table of some kind for: what is no version is true at one moment."""
    return "versions" if kind == "versions" else "events"


def is_flat(kind: pa.DataType) -> bool:
    """Return whether kernels copy values of a type: all but nested ones."""
    return not pa.types.is_nested(kind)


def is_key(kind: pa.DataType) -> bool:
    """Return whether Arrow compares values of a type as Spark does; it does not for 0.0 and -0.0."""
    return any(is_type(kind) for is_type in _KEYS)


_KEYS = (
    *(pa.types.is_string, pa.types.is_integer, pa.types.is_decimal128, pa.types.is_boolean),
    *(pa.types.is_date, pa.types.is_timestamp),
)
