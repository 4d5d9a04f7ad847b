"""Aggregates by kernels: which ones, and the rows that their tasks get.

Spark reads the input, evaluates the view's expressions as its own plan does, and brings the rows of each group to one
task. There a sweep (`operators.aggregate_rows`) takes the place of Spark's sorts and windows, and writes the files.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import (
    BooleanType,
    DataType,
    DateType,
    DecimalType,
    IntegralType,
    StringType,
    StructType,
    TimestampType,
)

from hindcast.bitemporal import derivation
from hindcast.bitemporal.measures import Measure
from hindcast.contract import Contract, Shape, View, list_shapes
from hindcast.contract.shapes import PERIODS
from hindcast.engine.spec import AggregateSpec, KernelOutput


def plan_aggregate(
    contract: Contract, name: str, rows: DataFrame, output: KernelOutput
) -> tuple[AggregateSpec, DataFrame] | None:
    """Return the specification of a view's aggregate and the rows that it is about; None if no kernel can derive it.

    `rows`: the current rows of the input. The result has the columns that `AggregateSpec` names.
    """
    it, known = contract.views[name], list_shapes(contract)
    shape = known[it.first_input]
    if it.window is not None or it.semantics == "kafka" or shape.kind not in _OPERATORS:
        return None
    measures = derivation.view_measures(it, known)
    relation = derivation.apply_where(it, derivation.as_relation(rows, shape), known)
    periods = match_periods(shape)
    members = relation.select(
        derivation.group_key(it, known).alias("_key"),
        *list_arguments(it, known),
        *(F.col(own).alias(column) for column, own in periods.items()),
    )
    flat = members.select("_key.*", *measures, *periods)
    key, functions = tuple(known[name].key), {column: measure.function for column, measure in measures.items()}
    if not can_aggregate(flat.schema, key, functions):
        return None
    whole = it.group_by is not None  # as `derivation.group_key` has it
    return AggregateSpec(_OPERATORS[shape.kind], key, whole, functions, output), flat


def match_periods(shape: Shape) -> dict[str, str]:
    """Return the periods of an aggregate's rows by the input's columns; an event counts from its moment on."""
    return dict(zip(PERIODS["versions"], PERIODS[shape.kind], strict=False))


def can_aggregate(schema: StructType, key: Sequence[str], functions: Mapping[str, str]) -> bool:
    """Return whether kernels compute functions of columns of a schema, by groups of others, as Spark does."""
    wanted = dict.fromkeys(key, _KEYS) | {column: _FUNCTIONS.get(it, ()) for column, it in functions.items()}
    return all(_is_able(schema[column].dataType, kinds) for column, kinds in wanted.items())


def list_arguments(it: View, known: Mapping[str, Shape]) -> list[Column]:
    """Return what kernels need of the arguments of a view's measures, by the measures' names."""
    return [_argument(measure).alias(column) for column, measure in derivation.view_measures(it, known).items()]


def _is_able(kind: DataType, kinds: tuple[type[DataType], ...]) -> bool:
    """Return whether a type is one of those. A text with another collation is not: Arrow compares bytes."""
    return isinstance(kind, kinds) and (not isinstance(kind, StringType) or kind == StringType())


def spread_groups(rows: DataFrame, key: Sequence[str], at: str, parts: int) -> DataFrame:
    """Return the rows in partitions, each group in one; those without a group anywhere, by their times `at`."""
    there = [F.col(column).isNotNull() for column in key]
    group = F.coalesce(*(F.when(it, F.hash(*key)) for it in there), F.hash(at))
    return rows.repartition(parts, group)


def _argument(measure: Measure) -> Column:
    """Return what a kernel needs of a measure's argument: of one that is counted, whether it is there."""
    if measure.function == "count":
        return F.when(measure.argument.isNotNull(), F.lit(1))
    return measure.argument


_OPERATORS: dict[str, Literal["of_table", "of_stream"]] = {"versions": "of_table", "events": "of_stream"}

_KEYS = (StringType, IntegralType, DecimalType, BooleanType, DateType, TimestampType)
"""Types whose values Arrow compares as Spark does. It does not for 0.0 and -0.0."""

_FUNCTIONS: dict[str, tuple[type[DataType], ...]] = {
    "count": (IntegralType,),
    "sum": (IntegralType, DecimalType),
    "avg": (IntegralType,),
    "min": _KEYS,
    "max": _KEYS,
}
"""By function, the types of arguments of which a kernel computes what Spark does."""
