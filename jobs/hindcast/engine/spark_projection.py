"""A view's expressions over the joined rows of a kernel, evaluated by Spark before the rows are written.

A kernel's tasks give the joined rows as flat columns, one for each column that an expression reads. Spark makes the
structs of them that the operators in `joins` return, and evaluates the view's expressions as for its own plan
(`derivation.project_joined`), within the same stage: no row goes to another task.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import StructField, StructType

from hindcast.bitemporal import derivation
from hindcast.contract import Shape, View
from hindcast.contract.expressions import resolve
from hindcast.contract.parsing import find_columns
from hindcast.contract.shapes import PERIODS, PLACE_COLUMNS, column_expressions, view_scope

FlatColumns = Mapping[str, tuple[int, str]]
"""Names of flat columns, each with the number of its input and its name there."""


def list_flat_columns(it: View, known: Mapping[str, Shape]) -> dict[str, tuple[int, str]]:
    """Return the flat columns that a view needs: keys, what its expressions read, and whether a side is there."""
    read: dict[tuple[int, str], None] = {}
    for number, name in enumerate(it.inputs):
        read |= dict.fromkeys((number, column) for column in known[name].key)
    texts = [*column_expressions(it, known).values()]
    texts += [resolve(it.where, view_scope(it, known))] if it.where is not None else []
    for path in (path for text in texts for path in find_columns(text) if len(path) > 1):
        read[it.inputs.index(path[0]), path[1]] = None
    events = [number for number, name in enumerate(it.inputs) if known[name].kind == "events"]
    read |= dict.fromkeys((number, column) for number in events for column in PLACE_COLUMNS)
    read |= {(number, PERIODS[known[name].kind][0]): None for number, name in enumerate(it.inputs)}
    return {f"c{number}": place for number, place in enumerate(read)}


def flat_schema(columns: FlatColumns, types: tuple[StructType, ...], periods: tuple[str, ...]) -> StructType:
    """Return the flat columns with Spark's types, given those of the inputs' tables; and the joined rows' periods."""
    fields = [StructField(name, types[side][column].dataType) for name, (side, column) in columns.items()]
    return StructType([*fields, *(StructField(name, types[0][name].dataType) for name in periods)])


def project_flat_rows(
    flat: DataFrame, it: View, name: str, columns: FlatColumns, known: Mapping[str, Shape]
) -> DataFrame:
    """Return the view's rows (`derivation.project_joined`) of flat ones."""
    kind, first, flat_names = known[name].kind, known[it.first_input], {place: c for c, place in columns.items()}

    def is_there(side: int) -> Column:
        return F.col(flat_names[side, PERIODS[known[it.inputs[side]].kind][0]]).isNotNull()

    def build_position(side: int) -> Column:
        return derivation.position_struct(*(flat_names[side, column] for column in PLACE_COLUMNS))

    def build_struct(side: int, names: Mapping[str, str]) -> Column:
        return F.struct(*(F.col(flat_names[side, column]).alias(alias) for column, alias in names.items()))

    def values() -> Iterator[Column]:
        for side, as_ in enumerate(("left", "right")):
            taken = {column: column for of, column in columns.values() if of == side}
            yield F.when(is_there(side), build_struct(side, taken)).alias(as_)

    key = build_struct(0, {column: column for column in first.key})
    if it.join is not None and it.join.how == "outer":
        aligned = zip(known[it.inputs[1]].key, first.key, strict=True)
        key = F.when(is_there(0), key).otherwise(build_struct(1, dict(aligned)))
    periods = [F.col(column) for column in PERIODS[kind]]
    if kind == "events":
        periods = [F.col(flat_names[0, "timestamp"]).alias("timestamp"), build_position(0)]
    if kind == "pairs":
        places = enumerate(("left_position", "right_position"))
        periods += [F.when(is_there(side), build_position(side)).alias(name) for side, name in places]
    return derivation.project_joined(it, name, flat.select(key.alias("key"), *values(), *periods), known)
