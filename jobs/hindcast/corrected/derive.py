"""What each table of a contract is, as a function of logs and of other tables. Pure: DataFrame in, DataFrame out.

Rows of tables are flat: the user's columns beside the period columns (contracts/shapes.py). The operators take
relations, whose `key` and `value` are structs; here a `value` holds the key's columns too, so that expressions can name
them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Literal

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from hindcast.contracts import Contract, Join, Shape, View, Window, shapes
from hindcast.contracts.expressions import aggregate, resolve
from hindcast.contracts.shapes import PERIODS, resolved, scope, selected
from hindcast.corrected import aggregates, joins, order, plane, windows
from hindcast.corrected.aggregates import Measure

PLACES = {
    "position": ("_partition", "_offset"),
    "left_position": ("_partition", "_offset"),
    "right_position": ("_rightPartition", "_rightOffset"),
}


def versions(log: DataFrame, ttl: timedelta | None = None) -> DataFrame:
    """The table of a topic read as a table, whose versions last at most `ttl`.

    `log`: accepted records of the whole log with `key` and `value` decoded. Returns the flat rows: the key's and the
    value's columns, validFrom, validTo, _partition, _offset.
    """
    return rectangles(positioned(log), ttl)


def rectangles(records: DataFrame, ttl: timedelta | None = None) -> DataFrame:
    """`versions` of records that have their `position` (`positioned`)."""
    return _flat(plane.versions(records, interval(ttl) if ttl else None), PERIODS["versions"])


def events(log: DataFrame) -> DataFrame:
    """The table of a topic read as a stream: one row per accepted record that has a value.

    `log`: accepted records with `key` and `value` decoded. Returns the flat rows: the key's columns (all null for a
    record without a key) and the value's, timestamp, _partition, _offset.
    """
    return _flat(positioned(log).where("value IS NOT NULL"), PERIODS["events"])


def view(contract: Contract, name: str, inputs: Mapping[str, DataFrame]) -> DataFrame:
    """The rows of a view, whole, from the rows of its inputs that are believed at one moment.

    Returns the flat rows: the key's columns, the selected or aggregated ones, the periods of the view's kind and its
    lineage: the places of the events that a row comes from.
    """
    it, known = contract.views[name], shapes(contract)
    relations = {i: relation(inputs[i], known[i]) for i in it.inputs}
    return made(it, name, relations, known)


def made(it: View, name: str, relations: Mapping[str, DataFrame], known: Mapping[str, Shape]) -> DataFrame:
    """The rows of a view from the relations of its inputs. Those of windows may be judged already (`taken`)."""
    if it.aggregate is not None:
        return _flat(_aggregated(it, relations[it.first], known), PERIODS[known[name].kind])
    if it.join is None:
        joined, named = relations[it.first], {"value": it.first}
    else:
        joined, named = _joined(it, relations, known), {"left": it.first, "right": it.second or ""}
    apart = F.struct(*(column for column in joined.columns if column not in named)).alias(_APART)
    rows = joined.select(apart, *(F.col(column).alias(name) for column, name in named.items()))
    if it.where is not None:
        rows = rows.where(F.expr(resolve(it.where, scope(it, known))))
    periods = [f"{_APART}.{column}" for column in PERIODS[known[name].kind]]
    return rows.select(*chosen(it, known, f"{_APART}.key"), *periods, *_lineage(joined, f"{_APART}."))


_APART = "_apart"
"""What rows have besides their inputs, as one struct: inputs can be called as they like, `key` and `position` too."""


def chosen(it: View, known: Mapping[str, Shape], key: str) -> list[Column]:
    """A view's own columns over rows that have a struct for each input: its key, `key` if it has none of its own, and
    what it selects.
    """
    own = [F.expr(text).alias(column) for column, text in resolved(it.key, it, known).items()]
    return [*(own or [F.col(f"{key}.*")]), *(F.expr(text).alias(c) for c, text in selected(it, known).items())]


def left_out(contract: Contract, name: str, inputs: Mapping[str, DataFrame]) -> DataFrame | None:
    """How many rows of its input an aggregate counts nowhere; None for a view that is no aggregate.

    `inputs` as for `view`. Returns one row, `leftOut` struct<no_key, no_value, too_late> of bigint. A row that `where`
    passes is in at most one of them: without a group, else without a value to aggregate (`aggregates.measurable`), else
    taken by no window. Of windows besides `streamTimes`, map<string, string>: the stream time that each source
    partition has reached, in ISO 8601; partitions without an event that counts are not in it.
    """
    it, known = contract.views[name], shapes(contract)
    if it.aggregate is None:
        return None
    rows = grouped(it, relation(inputs[it.first], known[it.first]), known)
    if it.window is not None:
        rows = windows.judge(order.with_stream_time(rows), lengths(it.window))
    return count_left_out(it, rows)


def count_left_out(it: View, rows: DataFrame) -> DataFrame:
    """`left_out` of rows as an aggregate looks at them (`grouped`), of windows with `taken`.

    With a column `change` it is what a change makes of it: what is closed counts -1.
    """
    keyless, valueless = F.col("key").isNull(), F.col("value").isNull()
    late = F.lit(False) if it.window is None else ~F.col("taken")
    one = F.when(F.col("change") == "close", -1).otherwise(1) if "change" in rows.columns else F.lit(1)

    def counted(condition: Column) -> Column:
        return F.coalesce(F.sum(F.when(condition, one)), F.lit(0)).cast("bigint")

    counts = F.struct(
        counted(keyless).alias("no_key"),
        counted(~keyless & valueless).alias("no_value"),
        counted(late).alias("too_late"),
    ).alias("leftOut")
    if it.window is None:
        return rows.agg(counts)
    reached = F.max(F.when(~keyless & ~valueless, F.col("timestamp")))
    return _summed(rows.groupBy("position.partition").agg(counts, reached.alias("_reached")))


def relation(rows: DataFrame, shape: Shape) -> DataFrame:
    """Flat rows of a table as a relation: `key` struct or null, `value` struct, periods, and events' `position`."""
    places = [position(*PLACES["position"])] if shape.kind == "events" else []
    return rows.select(
        keyed({column: F.col(column) for column in shape.key}).alias("key"),
        F.struct(*shape.columns).alias("value"),
        *PERIODS[shape.kind],
        *places,
        *(name for name in ("change",) if name in rows.columns and name not in shape.columns),
    )


def _joined(it: View, relations: Mapping[str, DataFrame], known: Mapping[str, Shape]) -> DataFrame:
    """The operator that the view's join is: `key`, `left`, `right`, periods and positions."""
    join, on = it.join or Join(), looked_up(it, known)
    left, right = relations[it.first], relations[it.second or ""]
    if on is None:
        right = alike(right, left)
    if join.stream:
        return joins.stream_stream(left, right, join.how, interval(join.before), interval(join.after))
    if it.table and on is None:
        return joins.table_table(left, right, join.how)
    how: Literal["inner", "left"] = "inner" if join.how == "inner" else "left"
    if it.table and on is not None:
        return joins.foreign_key(left, right, how, on)
    return joins.stream_table(left, right, how, on)


def _aggregated(it: View, rows: DataFrame, known: Mapping[str, Shape]) -> DataFrame:
    """The operator that the view's aggregate is: `key`, `value` and the periods."""
    its = measures(it, known)
    if it.table:
        return aggregates.of_table(passing(it, rows, known), group(it, known), its)
    events = grouped(it, rows, known)
    if it.window is None:
        return aggregates.of_stream(events, its)
    window = lengths(it.window)
    judged = events if "taken" in rows.columns else windows.judge(order.with_stream_time(events), window)
    return windows.aggregate(judged, window, its)


def members(it: View, rows: DataFrame, known: Mapping[str, Shape]) -> DataFrame:
    """The rows that an aggregate looks at: of a table those that pass, of a stream with their group as key."""
    return passing(it, rows, known) if it.table else grouped(it, rows, known)


def passing(it: View, rows: DataFrame, known: Mapping[str, Shape]) -> DataFrame:
    """The rows that pass the aggregate's `where`."""
    if it.where is None:
        return rows
    return rows.where(F.expr(resolve(it.where, scope(it, known), {it.first: "value"})))


def group(it: View, known: Mapping[str, Shape]) -> Column:
    """The group of a row that an aggregate looks at: a struct, null where one of its expressions is."""
    if it.group_by is None:
        return F.col("key")
    texts = {c: resolve(text, scope(it, known), {it.first: "value"}) for c, text in it.group_by.items()}
    return keyed({c: F.expr(text) for c, text in texts.items()}, whole=True)


def measures(it: View, known: Mapping[str, Shape]) -> dict[str, Measure]:
    """The measures of an aggregate, over rows with `key` and `value`."""
    told = {c: aggregate(text, scope(it, known), {it.first: "value"}) for c, text in (it.aggregate or {}).items()}
    return {column: Measure(function, F.expr(argument)) for column, (function, argument) in told.items()}


def grouped(it: View, rows: DataFrame, known: Mapping[str, Shape]) -> DataFrame:
    """What an aggregate counts, and what it leaves out: `key` is the group, `value` null if none is to aggregate."""
    value = F.when(aggregates.measurable(measures(it, known)), F.col("value"))
    return passing(it, rows, known).withColumns({"key": group(it, known), "value": value})


def _summed(partitions: DataFrame) -> DataFrame:
    """What was counted by partition, in one row."""
    names = ("no_key", "no_value", "too_late")
    counts = [F.coalesce(F.sum(f"leftOut.{name}"), F.lit(0).cast("bigint")).alias(name) for name in names]
    moment = F.date_format("_reached", "yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXX")
    entry = F.when(F.col("_reached").isNotNull(), F.struct(F.col("partition").cast("string"), moment))
    times = F.map_from_entries(F.collect_list(entry)).alias("streamTimes")
    return partitions.agg(F.struct(*counts).alias("leftOut"), times)


def lengths(window: Window) -> windows.Shape:
    """The window of a view, as the operators take it."""
    grace = interval(window.grace)
    if window.sliding is not None:
        return windows.Sliding(interval(window.sliding), grace)
    if window.session is not None:
        return windows.Session(interval(window.session), grace)
    size = window.hopping or window.tumbling
    return windows.Hopping(interval(size), interval(window.advance or size), grace)


def interval(length: timedelta | None) -> Column:
    """A length of time as the operators take it; none is zero."""
    return F.lit(length or timedelta(0)).cast("interval day to second")


def alike(right: DataFrame, left: DataFrame) -> DataFrame:
    """The right side of a join on the key, with the key's columns named as on the left."""
    return right.withColumn("key", F.col("key").cast(left.schema["key"].dataType))


def looked_up(it: View, known: Mapping[str, Shape]) -> Column | None:
    """The joined table's key as a struct over the first input's rows; null where one of the expressions is."""
    if it.join is None or it.join.on is None:
        return None
    names = {it.first: list(known[it.first].columns)}
    values = [F.expr(resolve(text, names, {it.first: "value"})) for text in it.join.keys]
    return keyed(dict(zip(known[it.second or ""].key, values, strict=True)), whole=True)


def keyed(columns: Mapping[str, Column], *, whole: bool = False) -> Column:
    """A key as a struct; null if all its columns are (`whole`: if any is)."""
    there = F.lit(whole)
    for column in columns.values():
        there = there & column.isNotNull() if whole else there | column.isNotNull()
    return F.when(there, F.struct(*(column.alias(name) for name, column in columns.items())))


def positioned(log: DataFrame) -> DataFrame:
    """Records of a log with their `position`, the order that breaks ties."""
    epoch = F.col("epoch") if "epoch" in log.columns else F.lit(0)
    return log.select(
        "key", "value", "timestamp", F.struct(epoch.alias("epoch"), "partition", "offset").alias("position")
    )


def position(partition: str, offset: str) -> Column:
    """The place of a record in its topic; a change of the partition count would begin a new epoch."""
    parts = F.lit(0).alias("epoch"), F.col(partition).alias("partition"), F.col(offset).alias("offset")
    return F.struct(*parts).alias("position")


def _flat(rows: DataFrame, periods: Sequence[str]) -> DataFrame:
    return rows.select("key.*", "value.*", *periods, *_lineage(rows))


def _lineage(rows: DataFrame, within: str = "") -> list[Column]:
    """The places of the records that a row comes from, as flat columns; `within`: what stands before their names."""
    return [
        F.col(f"{within}{place}.{part}").alias(name)
        for place, names in PLACES.items()
        if place in rows.columns
        for part, name in zip(("partition", "offset"), names, strict=True)
    ]
