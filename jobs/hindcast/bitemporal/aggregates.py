"""Aggregates in the `corrected` reading: step functions of valid time, one row per change.

Source: docs/semantics.md, rules 12-15.

A measure is made of parts that Spark computes (an average: a sum and a count). The parts of a table's aggregate:

- *running*: what can be taken back exactly (counts, sums of integers and decimals) is a running sum over time;
- *by spans*: what can be combined from pieces (min, max, sums of doubles) is computed for spans of 1, 2, 4, 8 ...
  steps, of which any stretch of n steps needs at most 2 log2 n;
- *by steps*: any other Spark aggregate is computed over the members of each step, at the cost of what they amount to.

`engine/operators.py` has the aggregate of a table with running parts once more, as a compiled loop for the first build
of a large view; both give the same rows.
"""

from collections.abc import Mapping, Sequence
from functools import reduce
from operator import or_

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F
from pyspark.sql.types import (
    ArrayType,
    DataType,
    DecimalType,
    DoubleType,
    FloatType,
    StructType,
)
from pyspark.sql.window import WindowSpec

from hindcast.bitemporal import skew
from hindcast.bitemporal.measures import (
    _MERGE_FUNCTIONS,
    Measure,
    PartialAggregate,
    build_value,
    call_aggregate,
    choose_strategy,
    find_sum_type,
    is_mergeable,
    list_argument_types,
    list_partial_aggregates,
    merge_with_earlier,
    name_arguments,
)


def aggregate_table(versions: DataFrame, group: Column, measures: Mapping[str, Measure]) -> DataFrame:
    """Return aggregates over the keys that are present, by group, at every valid time.

    `versions` has `key`, `value`, `validFrom`, `validTo`; `group` is an expression over them. A version whose group is
    null, or without a value to aggregate (`has_value_to_aggregate`), is not a member of any group. Returns `key`
    (the group), `value` (struct, one field per measure), `validFrom`, `validTo`: a new row wherever the set of a
    group's members changes, also if the value does not. No members, no row.

        count: k in x [0, 10), m in x [4, ..)    ->    x: 1 [0, 4), 2 [4, 10), 1 [10, ..)
    """
    types = list_argument_types(versions, measures)
    # rule: a version without a value to aggregate is no member
    members = (
        versions.where(has_value_to_aggregate(measures))
        .select(
            group.alias("_group"),
            F.struct("key").alias("_member"),  # not null itself, whatever the key
            "validFrom",
            "validTo",
            *(argument.alias(name) for name, argument in name_arguments(measures, types).items()),
        )
        .where(F.col("_group").isNotNull())
    )
    members = _normalize_zeros(members, "_group")
    parts = list_partial_aggregates(measures)
    kinds = {part: members.schema[part.argument].dataType for part in parts}
    ways = {part: choose_strategy(part, kinds[part]) for part in parts}
    running, *others = ([part for part in parts if ways[part] == way] for way in ("running", "spans", "steps"))
    edges = _number_edges(members, running)
    steps = _running_steps(edges, {part: kinds[part] for part in running})
    for chosen, compute in zip(others, (_aggregate_by_spans, _aggregate_by_steps), strict=True):
        if chosen:
            steps = steps.join(compute(edges, chosen), ["_group", "_step"], "left")
    value = build_value(measures, types, lambda part: F.col(part.name))
    return steps.select(F.col("_group").alias("key"), value, "validFrom", "validTo")


def aggregate_stream(events: DataFrame, measures: Mapping[str, Measure]) -> DataFrame:
    """Return aggregates over all events of a key up to an instant: a table that changes at each event.

    `events` has `key`, `value`, `timestamp`; those without key, value or a value to aggregate
    (`has_value_to_aggregate`) are left out. Returns `key`, `value` (struct, one field per measure), `validFrom`,
    `validTo`: a row from each distinct timestamp of a key's events to the next.

        sum: 5 @10, 3 @20, 4 @15    ->    5 [10, 15), 9 [15, 20), 12 [20, ..)
    """
    types = list_argument_types(events, measures)
    arguments = (argument.alias(name) for name, argument in name_arguments(measures, types).items())
    members = events.where(
        F.col("key").isNotNull() & F.col("value").isNotNull() & has_value_to_aggregate(measures)
    ).select("key", "timestamp", *arguments)
    members = _normalize_zeros(members, "key")
    parts = list_partial_aggregates(measures)
    exact = all(is_mergeable(part, members.schema[part.argument].dataType) for part in parts)
    cuts = skew.find_cuts(members.select(F.col("key").alias("_on"), F.col("timestamp").alias("_at"))) if exact else None
    following: list[Column] = []
    if cuts is not None:
        members = _carry_earlier_slices(skew.add_cuts(members.withColumn("_on", F.col("key")), cuts).drop("_on"), parts)
        following = [F.col("_stop")]  # a cut is a moment of an event
    upto = Window.partitionBy("key", *(["_slice"] if cuts is not None else [])).orderBy("timestamp")

    def compute_part(part: PartialAggregate) -> Column:
        own = F.call_function(part.function, F.col(part.argument)).over(upto)
        return (
            own
            if cuts is None
            else merge_with_earlier(part, F.col(part.name), own).cast(members.schema[part.name].dataType)
        )

    # rule: events of one timestamp give one row
    return members.select(
        "key",
        build_value(measures, types, compute_part),
        F.col("timestamp").alias("validFrom"),
        F.coalesce(F.lead("timestamp").over(upto), *following).alias("validTo"),
    ).where(~F.col("validTo").eqNullSafe(F.col("validFrom")))


def aggregate_rows(rows: DataFrame, by: Sequence[str], measures: Mapping[str, Measure]) -> DataFrame:
    """Return plain aggregates by columns: `by` and `value` (struct, one field per measure)."""
    types = list_argument_types(rows, measures)
    arguments = name_arguments(measures, types)
    value = build_value(measures, types, lambda part: F.call_function(part.function, arguments[part.argument]))
    return rows.groupBy(*by).agg(value)


def has_value_to_aggregate(measures: Mapping[str, Measure]) -> Column:
    """Return whether a row has a value to aggregate: the argument of at least one measure. `count(*)` always has one.

    sum(a), max(b):    a 1, b null -> yes    a null, b null -> no
    """
    return reduce(or_, (measure.argument.isNotNull() for measure in measures.values()))


def _normalize_zeros(rows: DataFrame, group: str) -> DataFrame:
    """Return rows with 0.0 for each -0.0 in the column of their group, also inside structs and arrays.

    Both are one group. Spark's GROUP BY shows it as 0.0 (its rule NormalizeFloatingNumbers), but a window, which
    groups alike, leaves each row its own zero: the group would show the one of an arbitrary member.
    """
    kind = rows.schema[group].dataType
    return rows.withColumn(group, _without_negative_zero(F.col(group), kind)) if _has_fractions(kind) else rows


def _without_negative_zero(column: Column, kind: DataType) -> Column:
    match kind:
        case FloatType() | DoubleType():
            return F.when(column == 0, F.lit(0).cast(kind)).otherwise(column)
        case ArrayType():
            return F.transform(column, lambda element: _without_negative_zero(element, kind.elementType))
        case StructType():
            fields = (_without_negative_zero(column[f.name], f.dataType).alias(f.name) for f in kind.fields)
            return F.when(column.isNotNull(), F.struct(*fields))
    return column


def _has_fractions(kind: DataType) -> bool:
    if isinstance(kind, StructType):
        return any(_has_fractions(field.dataType) for field in kind.fields)
    return isinstance(kind, FloatType | DoubleType) or (
        isinstance(kind, ArrayType) and _has_fractions(kind.elementType)
    )


def _carry_earlier_slices(members: DataFrame, parts: Sequence[PartialAggregate]) -> DataFrame:
    """Return events with `_cuts` as events with their `_slice`, its `_stop`, and each part of the slices before it."""
    members = members.withColumn("_slice", skew.slice_number(F.col("timestamp")))
    cut = members.where("_cuts IS NOT NULL").groupBy("key", "_slice")
    totals = cut.agg(*(call_aggregate(part.function, part.argument, part) for part in parts))
    earlier = skew.earlier_slices("key")
    kinds = {part: totals.schema[part.name].dataType for part in parts}
    before = totals.select(
        F.col("key").alias("_on"),
        F.col("_slice").alias("_number"),
        *(
            F.call_function(_MERGE_FUNCTIONS.get(part.function, "sum"), F.col(part.name))
            .over(earlier)
            .cast(kinds[part])
            .alias(part.name)
            for part in parts
        ),
    )
    here = (F.col("key") == F.col("_on")) & (F.col("_slice") == F.col("_number"))
    known = members.join(F.broadcast(before), here, "left").withColumn("_stop", skew.slice_end(F.col("_slice")))
    return known.drop("_on", "_number", "_cuts")


def _number_edges(members: DataFrame, running: Sequence[PartialAggregate]) -> DataFrame:
    """Return the start (`_sign` 1) and the end, if any (-1), of each member, with the number `_step` that it begins.

    Edges at one moment begin one step together. With each edge comes what it adds to the running parts. Where the time
    of a group is sliced, each later slice begins with an edge of no member, which adds what is true at its start.
    """
    start = F.struct(F.col("validFrom").alias("_at"), F.lit(1).alias("_sign"))
    # rule: a member that ends leaves its group
    end = F.when(F.col("validTo").isNotNull(), F.struct(F.col("validTo").alias("_at"), F.lit(-1).alias("_sign")))
    edges = members.withColumn("_edge", F.explode(F.array(start, end))).where(F.col("_edge").isNotNull())
    edges = edges.select("*", "_edge.*").drop("_edge")
    contributions = _running_contributions(running, members.schema)
    edges = edges.select("*", *(column.alias(name) for name, column in contributions.items()))
    cuts = skew.find_cuts(edges.select(F.col("_group").alias("_on"), "_at"))
    if cuts is None:
        return edges.withColumn("_step", F.dense_rank().over(_edge_window(edges)).cast("long"))
    edges = skew.add_cuts(edges.withColumn("_on", F.col("_group")), cuts).drop("_on")
    edges = edges.withColumn("_slice", skew.slice_number(F.col("_at")))
    sums = {name: F.sum(name) for name in ("_sign", *contributions)}
    totals = edges.where("_cuts IS NOT NULL").groupBy("_group", "_slice", "_cuts")
    earlier = skew.earlier_slices("_group")
    carried = totals.agg(F.count("*").alias("_edges"), *(total.alias(name) for name, total in sums.items())).select(
        "_group",
        "_slice",
        "_cuts",
        skew.slice_start(F.col("_slice")).alias("_at"),
        F.sum("_edges").over(earlier).alias("_before"),
        *(F.sum(name).over(earlier).alias(name) for name in sums),
    )
    # rule: a slice begins with the members of the one before
    edges = edges.unionByName(carried.where("_slice > 0"), allowMissingColumns=True)
    edges = edges.withColumn("_stop", skew.slice_end(F.col("_slice"))).drop("_cuts")
    # Numbers of steps grow from slice to slice; that some are left out does no harm.
    before = F.coalesce(F.sum("_before").over(_edge_window(edges)), F.lit(0))
    return edges.withColumn("_step", F.dense_rank().over(_edge_window(edges)).cast("long") + before)


def _edge_window(edges: DataFrame) -> WindowSpec:
    """Return the window up to an edge and its peers, within its slice if there are slices."""
    return Window.partitionBy("_group", *(["_slice"] if "_slice" in edges.columns else [])).orderBy("_at")


def _running_contributions(running: Sequence[PartialAggregate], types: StructType) -> dict[str, Column]:
    """Return what an edge adds to each running part, and to the count of non-null values."""
    found = {}
    for part in running:
        argument, starts = F.col(part.argument), F.col("_sign") == 1
        found[f"{part.argument}_counted"] = F.when(argument.isNull(), 0).otherwise(F.col("_sign"))
        if part.function == "sum":
            # rule: a sum subtracts what ends
            found[f"{part.argument}_summed"] = F.when(starts, argument).otherwise(
                _negate(argument, types[part.argument].dataType)
            )
    return found


def _negate(column: Column, kind: DataType) -> Column:
    """Return the negative of a number, of a long decimal by its text: Spark's own minus rounds that to 34 digits."""
    if not isinstance(kind, DecimalType) or kind.precision <= _MAX_EXACT_DIGITS:
        return -column
    text = column.cast("string")
    return F.when(text.startswith("-"), F.substring(text, 2, 99)).otherwise(F.concat(F.lit("-"), text)).cast(kind)


_MAX_EXACT_DIGITS = 34


def _running_steps(edges: DataFrame, running: Mapping[PartialAggregate, DataType]) -> DataFrame:
    """Return the steps of each group that has members: `_group, _step, validFrom, validTo` and the running parts."""
    upto = _edge_window(edges)
    following = F.coalesce(F.lead("_at").over(upto), *([F.col("_stop")] if "_stop" in edges.columns else []))

    def total(part: PartialAggregate) -> Column:
        counted = F.sum(f"{part.argument}_counted").over(upto)
        if part.function == "count":
            return counted
        return F.when(counted > 0, F.sum(f"{part.argument}_summed").over(upto)).cast(find_sum_type(running[part]))

    # rule: a group without members has no row
    return (
        edges.select(
            "_group",
            "_step",
            F.col("_at").alias("validFrom"),
            following.alias("validTo"),
            F.sum("_sign").over(upto).alias("_members"),
            *(total(part).alias(part.name) for part in running),
        )
        # Of edges at one moment the last one stands for all: each has seen its peers.
        .where(~F.col("validTo").eqNullSafe(F.col("validFrom")) & (F.col("_members") > 0))
        .drop("_members")
    )


def _member_stretches(edges: DataFrame, parts: Sequence[PartialAggregate]) -> DataFrame:
    """Return members with the steps in which they are present: from `_first` to before `_end`."""
    steps = edges.where("_member IS NOT NULL").withColumn("_last", F.max("_step").over(Window.partitionBy("_group")))
    ended = F.min("_sign") < 0
    # rule: an extreme lasts to its last step
    return steps.groupBy("_group", "_member", steps["validFrom"]).agg(
        F.min("_step").alias("_first"),
        F.when(ended, F.max("_step")).otherwise(F.max("_last") + 1).alias("_end"),
        F.max("_last").alias("_last"),
        *(F.first(name).alias(name) for name in dict.fromkeys(part.argument for part in parts)),
    )


def _aggregate_by_steps(edges: DataFrame, parts: Sequence[PartialAggregate]) -> DataFrame:
    each = _member_stretches(edges, parts).withColumn("_step", F.explode(F.sequence("_first", F.col("_end") - 1)))
    return each.groupBy("_group", "_step").agg(*(call_aggregate(part.function, part.argument, part) for part in parts))


def _aggregate_by_spans(edges: DataFrame, parts: Sequence[PartialAggregate]) -> DataFrame:
    """Return aggregates by spans of steps: span (level, number) is [number * 2^level, (number + 1) * 2^level)."""
    stretches = _member_stretches(edges, parts)
    # Of each level a stretch takes at most the span at its left end, if odd, and the one at its right end, if even.
    # rule: a stretch has its left end
    covering = F.expr("""
        filter(flatten(transform(
            transform(sequence(0, cast(log2(_end - _first) as int) + 1), level -> struct(
                level,
                shiftright(_first + shiftleft(1L, level) - 1, level) AS low,
                shiftright(_end, level) AS high)),
            x -> array(
                if(x.low < x.high AND x.low % 2 = 1, struct(x.level AS level, x.low AS number), null),
                if(x.low < x.high AND x.high % 2 = 1, struct(x.level AS level, x.high - 1 AS number), null))
        )), span -> span IS NOT NULL)""")
    around = F.expr(
        "transform(sequence(0, cast(log2(_last + 1) as int) + 1), "
        "level -> struct(level AS level, shiftright(_step, level) AS number))"
    )
    spans = stretches.withColumn("_span", F.explode(covering)).groupBy("_group", "_span")
    pieces = spans.agg(*(call_aggregate(part.function, part.argument, part) for part in parts))
    steps = edges.groupBy("_group").agg(F.max("_step").alias("_last"))
    steps = steps.withColumn("_step", F.explode(F.sequence(F.lit(1).cast("long"), "_last")))
    return (
        steps.withColumn("_span", F.explode(around))
        .join(pieces, ["_group", "_span"])
        .groupBy("_group", "_step")
        .agg(*(call_aggregate(_MERGE_FUNCTIONS[part.function], part.name, part) for part in parts))
    )
