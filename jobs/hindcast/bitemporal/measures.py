"""Measures: the aggregates of a view, and the parts of which they are made, which can be merged or not."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import (
    DataType,
    DecimalType,
    IntegralType,
    LongType,
)


@dataclass(frozen=True)
class Measure:
    """A Spark SQL aggregate function of one argument, an expression over the input's columns; `count(*)` counts 1.

    `avg` is the exact sum divided by the count, as a double. `count_distinct` counts distinct non-null values.
    """

    function: str
    argument: Column


@dataclass(frozen=True)
class PartialAggregate:
    """One Spark aggregate of a measure: the columns of its result and of its argument, and its function."""

    name: str
    function: str
    argument: str


_PARTIAL_FUNCTIONS = {"avg": ("sum", "count"), "count_distinct": ("collect_set",)}


_MERGE_FUNCTIONS = {name: name for name in ("min", "max", "sum", "bool_and", "bool_or", "bit_and", "bit_or", "bit_xor")}


def list_argument_types(rows: DataFrame, measures: Mapping[str, Measure]) -> dict[str, DataType]:
    """Return the types of the arguments of measures, by the columns of the arguments."""
    arguments = (measure.argument.alias(f"_argument{number}") for number, measure in enumerate(measures.values()))
    return {field.name: field.dataType for field in rows.select(*arguments).schema}


def name_arguments(measures: Mapping[str, Measure], types: Mapping[str, DataType]) -> dict[str, Column]:
    """Return the arguments of measures, those of sums wider than they are.

    An average is defined, and a sum may be a bigint, where a sum on the way to it is none. And what is taken back must
    have a negative: -(-2^63) is no bigint.
    """
    found = {}
    for (name, kind), measure in zip(types.items(), measures.values(), strict=True):
        is_sum = measure.function in ("sum", "avg") and isinstance(kind, IntegralType)
        wide = DecimalType(38, 0) if isinstance(kind, LongType) else LongType()
        found[name] = measure.argument.cast(wide) if is_sum else measure.argument
    return found


def list_partial_aggregates(measures: Mapping[str, Measure]) -> list[PartialAggregate]:
    return [
        PartialAggregate(f"_part{number}_{function}", function, f"_argument{number}")
        for number, measure in enumerate(measures.values())
        for function in _PARTIAL_FUNCTIONS.get(measure.function, (measure.function,))
    ]


def build_value(
    measures: Mapping[str, Measure], types: Mapping[str, DataType], compute_part: Callable[[PartialAggregate], Column]
) -> Column:
    """Return the struct `value` of measures, given the types of their arguments, and how a part is computed."""
    parts = iter(list_partial_aggregates(measures))
    fields = []
    for (name, measure), kind in zip(measures.items(), types.values(), strict=True):
        columns = [compute_part(next(parts)) for _ in _PARTIAL_FUNCTIONS.get(measure.function, (measure.function,))]
        match measure.function:
            case "avg":
                # rule: an average is a sum by its count
                whole = F.when(columns[1] != 0, columns[0].cast("double") / columns[1])
            case "count_distinct":
                whole = F.size(columns[0])
            case "sum" if isinstance(kind, IntegralType):
                whole = columns[0].cast("bigint")
            case _:
                whole = columns[0]
        fields.append(whole.alias(name))
    return F.struct(*fields).alias("value")


def choose_strategy(part: PartialAggregate, argument: DataType) -> str:
    exact = isinstance(argument, IntegralType | DecimalType)
    if part.function == "count" or (part.function == "sum" and exact):
        return "running"
    return "spans" if part.function in _MERGE_FUNCTIONS else "steps"


def is_mergeable(part: PartialAggregate, argument: DataType) -> bool:
    """Return whether a part is the same if computed from pieces; sums of doubles, for example, are not."""
    return part.function in ("min", "max") or choose_strategy(part, argument) == "running"


def merge_with_earlier(part: PartialAggregate, before: Column, own: Column) -> Column:
    """Return a part over all events up to one, from that of the earlier slices and that of its own slice."""
    match part.function:
        case "min":
            return F.least(before, own)
        case "max":
            return F.greatest(before, own)
    return F.coalesce(before + own, own, before)


def find_sum_type(argument: DataType) -> str:
    """Return the type that Spark gives a sum."""
    if isinstance(argument, DecimalType):
        return f"decimal({min(argument.precision + 10, 38)},{argument.scale})"
    return "bigint"


def call_aggregate(function: str, argument: str, part: PartialAggregate) -> Column:
    return F.call_function(function, F.col(argument)).alias(part.name)
