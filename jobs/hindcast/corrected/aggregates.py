"""Aggregates in the `corrected` reading (docs/semantics.md): step functions of valid time, one row per change.

A measure is made of parts that Spark computes (an average: a sum and a count). The parts of a table's aggregate:

- *running*: what can be taken back exactly (counts, sums of integers and decimals) is a running sum over time;
- *by spans*: what can be combined from pieces (min, max, sums of doubles) is computed for spans of 1, 2, 4, 8 ...
steps,
  of which any stretch of n steps needs at most 2 log2 n;
- *by steps*: any other Spark aggregate is computed over the members of each step, at the cost of what they amount to.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from operator import or_

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F
from pyspark.sql.types import DataType, DecimalType, IntegralType
from pyspark.sql.window import WindowSpec

from hindcast.corrected import slices


@dataclass(frozen=True)
class Measure:
    """A Spark SQL aggregate function of one argument, an expression over the input's columns; `count(*)` counts 1.

    `avg` is the exact sum divided by the count, as a double. `count_distinct` counts different values that are not
    null.
    """

    function: str
    argument: Column


def of_table(versions: DataFrame, group: Column, measures: Mapping[str, Measure]) -> DataFrame:
    """Aggregates over the keys that are present, by group, at every valid time.

    `versions` has `key`, `value`, `validFrom`, `validTo`; `group` is an expression over them. A version whose group is
    null, or that no measure has an argument from (`measurable`), is no member of any group. Returns `key` (the group),
    `value` (struct, one field per measure), `validFrom`, `validTo`: a new row wherever the set of a group's members
    changes, also if the value does not. No members, no row.

        count: k in x [0, 10), m in x [4, ..)    ->    x: 1 [0, 4), 2 [4, 10), 1 [10, ..)
    """
    members = (
        versions.where(measurable(measures))
        .select(
            group.alias("_group"),
            F.col("key").alias("_member"),
            "validFrom",
            "validTo",
            *(argument.alias(name) for name, argument in _arguments(measures).items()),
        )
        .where(F.col("_group").isNotNull())
    )
    parts = _parts(measures)
    types = {part: members.schema[part.argument].dataType for part in parts}
    ways = {part: _way(part, types[part]) for part in parts}
    running, *others = ([part for part in parts if ways[part] == way] for way in ("running", "spans", "steps"))
    edges = _edges(members, running)
    steps = _steps(edges, {part: types[part] for part in running})
    for chosen, compute in zip(others, (_by_spans, _by_steps), strict=True):
        if chosen:
            steps = steps.join(compute(edges, chosen), ["_group", "_step"], "left")
    return steps.select(
        F.col("_group").alias("key"), _whole(measures, lambda part: F.col(part.name)), "validFrom", "validTo"
    )


def of_stream(events: DataFrame, measures: Mapping[str, Measure]) -> DataFrame:
    """Aggregates over all events of a key up to an instant: a table that changes at each event.

    `events` has `key`, `value`, `timestamp`; those without key or value, or that no measure has an argument from
    (`measurable`), count nowhere. Returns `key`, `value` (struct, one field per measure), `validFrom`, `validTo`: a row
    from each distinct timestamp of a key's events to the next.

        sum: 5 @10, 3 @20, 4 @15    ->    5 [10, 15), 9 [15, 20), 12 [20, ..)
    """
    members = events.where(F.col("key").isNotNull() & F.col("value").isNotNull() & measurable(measures)).select(
        "key", "timestamp", *(argument.alias(name) for name, argument in _arguments(measures).items())
    )
    parts = _parts(measures)
    exact = all(_adds_up(part, members.schema[part.argument].dataType) for part in parts)
    cuts = slices.cuts(members.select(F.col("key").alias("_on"), F.col("timestamp").alias("_at"))) if exact else None
    following: list[Column] = []
    if cuts is not None:
        members = _carried(slices.with_cuts(members.withColumn("_on", F.col("key")), cuts).drop("_on"), parts)
        following = [F.col("_stop")]  # a cut is a moment of an event
    upto = Window.partitionBy("key", *(["_slice"] if cuts is not None else [])).orderBy("timestamp")

    def computed(part: _Part) -> Column:
        own = F.call_function(part.function, F.col(part.argument)).over(upto)
        return own if cuts is None else _together(part, F.col(part.name), own).cast(members.schema[part.name].dataType)

    return members.select(
        "key",
        _whole(measures, computed),
        F.col("timestamp").alias("validFrom"),
        F.coalesce(F.lead("timestamp").over(upto), *following).alias("validTo"),
    ).where(~F.col("validTo").eqNullSafe(F.col("validFrom")))


def of_rows(rows: DataFrame, by: Sequence[str], measures: Mapping[str, Measure]) -> DataFrame:
    """Plain aggregates by columns: returns `by` and `value` (struct, one field per measure)."""
    arguments = _arguments(measures)
    value = _whole(measures, lambda part: F.call_function(part.function, arguments[part.argument]))
    return rows.groupBy(*by).agg(value)


def measurable(measures: Mapping[str, Measure]) -> Column:
    """Whether a row has a value to aggregate: the argument of at least one measure. `count(*)` has one from any row.

    sum(a), max(b):    a 1, b null -> yes    a null, b null -> no
    """
    return reduce(or_, (measure.argument.isNotNull() for measure in measures.values()))


@dataclass(frozen=True)
class _Part:
    """One Spark aggregate that a measure is made of: the columns of its result and of its argument, and its
    function.
    """

    name: str
    function: str
    argument: str


_MADE_OF = {"avg": ("sum", "count"), "count_distinct": ("collect_set",)}
_COMBINED_BY = {name: name for name in ("min", "max", "sum", "bool_and", "bool_or", "bit_and", "bit_or", "bit_xor")}


def _arguments(measures: Mapping[str, Measure]) -> dict[str, Column]:
    return {f"_argument{number}": measure.argument for number, measure in enumerate(measures.values())}


def _parts(measures: Mapping[str, Measure]) -> list[_Part]:
    return [
        _Part(f"_part{number}_{function}", function, f"_argument{number}")
        for number, measure in enumerate(measures.values())
        for function in _MADE_OF.get(measure.function, (measure.function,))
    ]


def _whole(measures: Mapping[str, Measure], computed: Callable[[_Part], Column]) -> Column:
    """The struct `value` of measures, given how a part is computed."""
    parts = iter(_parts(measures))
    fields = []
    for name, measure in measures.items():
        columns = [computed(next(parts)) for _ in _MADE_OF.get(measure.function, (measure.function,))]
        match measure.function:
            case "avg":
                whole = F.when(columns[1] != 0, columns[0].cast("double") / columns[1])
            case "count_distinct":
                whole = F.size(columns[0])
            case _:
                whole = columns[0]
        fields.append(whole.alias(name))
    return F.struct(*fields).alias("value")


def _way(part: _Part, argument: DataType) -> str:
    exact = isinstance(argument, IntegralType | DecimalType)
    if part.function == "count" or (part.function == "sum" and exact):
        return "running"
    return "spans" if part.function in _COMBINED_BY else "steps"


def _adds_up(part: _Part, argument: DataType) -> bool:
    """Whether a part is the same, computed at once or from pieces: sums of doubles, for one, are not."""
    return part.function in ("min", "max") or _way(part, argument) == "running"


def _together(part: _Part, before: Column, own: Column) -> Column:
    """A part of all events up to one, of what came before its slice and what its slice has."""
    match part.function:
        case "min":
            return F.least(before, own)
        case "max":
            return F.greatest(before, own)
    return F.coalesce(before + own, own, before)


def _carried(members: DataFrame, parts: Sequence[_Part]) -> DataFrame:
    """Events with `_cuts` as events with their `_slice`, its `_stop`, and each part of the slices before it."""
    members = members.withColumn("_slice", slices.holding(F.col("timestamp")))
    cut = members.where("_cuts IS NOT NULL").groupBy("key", "_slice")
    totals = cut.agg(*(_call(part.function, part.argument, part) for part in parts))
    earlier = slices.earlier("key")
    kinds = {part: totals.schema[part.name].dataType for part in parts}
    before = totals.select(
        F.col("key").alias("_on"),
        F.col("_slice").alias("_number"),
        *(
            F.call_function(_COMBINED_BY.get(part.function, "sum"), F.col(part.name))
            .over(earlier)
            .cast(kinds[part])
            .alias(part.name)
            for part in parts
        ),
    )
    here = (F.col("key") == F.col("_on")) & (F.col("_slice") == F.col("_number"))
    known = members.join(F.broadcast(before), here, "left").withColumn("_stop", slices.stop(F.col("_slice")))
    return known.drop("_on", "_number", "_cuts")


def _edges(members: DataFrame, running: Sequence[_Part]) -> DataFrame:
    """The start (`_sign` 1) and the end, if any (-1), of each member, and the number `_step` of the step it begins.

    Edges at one moment begin one step together. With each edge comes what it adds to the running parts. Where the time
    of a group is sliced, each later slice begins with an edge of no member, which adds what is true at its start.
    """
    start = F.struct(F.col("validFrom").alias("_at"), F.lit(1).alias("_sign"))
    end = F.when(F.col("validTo").isNotNull(), F.struct(F.col("validTo").alias("_at"), F.lit(-1).alias("_sign")))
    edges = members.withColumn("_edge", F.explode(F.array(start, end))).where(F.col("_edge").isNotNull())
    types = {part.argument: members.schema[part.argument].dataType for part in running}
    edges = edges.select("*", "_edge.*").drop("_edge").withColumns(_added(running, types))
    cuts = slices.cuts(edges.select(F.col("_group").alias("_on"), "_at"))
    if cuts is None:
        return edges.withColumn("_step", F.dense_rank().over(_in_time(edges)).cast("long"))
    edges = slices.with_cuts(edges.withColumn("_on", F.col("_group")), cuts).drop("_on")
    edges = edges.withColumn("_slice", slices.holding(F.col("_at")))
    sums = {name: F.sum(name) for name in ("_sign", *_added(running, types))}
    totals = edges.where("_cuts IS NOT NULL").groupBy("_group", "_slice", "_cuts")
    earlier = slices.earlier("_group")
    carried = totals.agg(F.count("*").alias("_edges"), *(total.alias(name) for name, total in sums.items())).select(
        "_group",
        "_slice",
        "_cuts",
        slices.start(F.col("_slice")).alias("_at"),
        F.sum("_edges").over(earlier).alias("_before"),
        *(F.sum(name).over(earlier).alias(name) for name in sums),
    )
    edges = edges.unionByName(carried.where("_slice > 0"), allowMissingColumns=True)
    edges = edges.withColumn("_stop", slices.stop(F.col("_slice"))).drop("_cuts")
    # Numbers of steps grow from slice to slice; that some are left out does no harm.
    before = F.coalesce(F.sum("_before").over(_in_time(edges)), F.lit(0))
    return edges.withColumn("_step", F.dense_rank().over(_in_time(edges)).cast("long") + before)


def _in_time(edges: DataFrame) -> WindowSpec:
    """Up to an edge and its peers, within its slice if there are some."""
    return Window.partitionBy("_group", *(["_slice"] if "_slice" in edges.columns else [])).orderBy("_at")


def _added(running: Sequence[_Part], types: Mapping[str, DataType]) -> dict[str, Column]:
    """What an edge adds to each running part, and to the count of values that are not null; `types`: of arguments.

    What is taken back is wider than the argument: -(-2^31) is no int.
    """
    found = {}
    for part in running:
        whole = isinstance(types[part.argument], IntegralType)
        argument = F.col(part.argument).cast("bigint") if whole else F.col(part.argument)
        starts = F.col("_sign") == 1
        found[f"{part.argument}_counted"] = F.when(argument.isNull(), 0).otherwise(F.col("_sign"))
        if part.function == "sum":
            found[f"{part.argument}_summed"] = F.when(starts, argument).otherwise(-argument)
    return found


def _steps(edges: DataFrame, running: Mapping[_Part, DataType]) -> DataFrame:
    """The steps of each group that has members: `_group, _step, validFrom, validTo` and the running parts."""
    upto = _in_time(edges)
    following = F.coalesce(F.lead("_at").over(upto), *([F.col("_stop")] if "_stop" in edges.columns else []))

    def total(part: _Part) -> Column:
        counted = F.sum(f"{part.argument}_counted").over(upto)
        if part.function == "count":
            return counted
        return F.when(counted > 0, F.sum(f"{part.argument}_summed").over(upto)).cast(_sum_type(running[part]))

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


def _sum_type(argument: DataType) -> str:
    """The type that Spark gives a sum."""
    if isinstance(argument, DecimalType):
        return f"decimal({min(argument.precision + 10, 38)},{argument.scale})"
    return "bigint"


def _stretches(edges: DataFrame, parts: Sequence[_Part]) -> DataFrame:
    """Members with the steps they last for: `_first` and `_end`, exclusive."""
    steps = edges.where("_member IS NOT NULL").withColumn("_last", F.max("_step").over(Window.partitionBy("_group")))
    ended = F.min("_sign") < 0
    return steps.groupBy("_group", "_member", steps["validFrom"]).agg(
        F.min("_step").alias("_first"),
        F.when(ended, F.max("_step")).otherwise(F.max("_last") + 1).alias("_end"),
        F.max("_last").alias("_last"),
        *(F.first(name).alias(name) for name in dict.fromkeys(part.argument for part in parts)),
    )


def _by_steps(edges: DataFrame, parts: Sequence[_Part]) -> DataFrame:
    each = _stretches(edges, parts).withColumn("_step", F.explode(F.sequence("_first", F.col("_end") - 1)))
    return each.groupBy("_group", "_step").agg(*(_call(part.function, part.argument, part) for part in parts))


def _by_spans(edges: DataFrame, parts: Sequence[_Part]) -> DataFrame:
    """Span (level, number) is the steps from number * 2^level up to, not including, (number + 1) * 2^level."""
    stretches = _stretches(edges, parts)
    # Of each level a stretch takes at most the span at its left end, if odd, and the one at its right end, if even.
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
    pieces = spans.agg(*(_call(part.function, part.argument, part) for part in parts))
    steps = edges.groupBy("_group").agg(F.max("_step").alias("_last"))
    steps = steps.withColumn("_step", F.explode(F.sequence(F.lit(1).cast("long"), "_last")))
    return (
        steps.withColumn("_span", F.explode(around))
        .join(pieces, ["_group", "_span"])
        .groupBy("_group", "_step")
        .agg(*(_call(_COMBINED_BY[part.function], part.name, part) for part in parts))
    )


def _call(function: str, argument: str, part: _Part) -> Column:
    return F.call_function(function, F.col(argument)).alias(part.name)
