"""Derivation: each table of a contract as a function of logs and other tables. Pure: DataFrame in, DataFrame out.

Rows of tables are flat: the user's columns beside the period columns (contract/shapes.py). The operators take
relations, whose `key` and `value` are structs; here a `value` holds the key's columns too, so that expressions can name
them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Literal

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from hindcast.bitemporal import aggregates, joins, plane, windows
from hindcast.bitemporal.intervals import ALL_TIME
from hindcast.bitemporal.measures import Measure
from hindcast.bitemporal.pattern_limits import expression_column
from hindcast.contract import Contract, Join, Shape, View, Window, list_shapes
from hindcast.contract.expressions import parse_aggregate, resolve
from hindcast.contract.shapes import PERIODS, resolve_all, selected_columns, view_scope

POSITION_COLUMNS = {
    "position": ("_partition", "_offset"),
    "left_position": ("_partition", "_offset"),
    "right_position": ("_rightPartition", "_rightOffset"),
}


def derive_topic_versions(log: DataFrame, ttl: timedelta | None = None) -> DataFrame:
    """Return the table of a topic read as a table; with `ttl`, its versions last at most so long.

    `log`: accepted records of the whole log with `key` and `value` decoded. Returns the flat rows: the key's and the
    value's columns, validFrom, validTo, _partition, _offset.
    """
    return rectangles(add_position(log), ttl)


def rectangles(records: DataFrame, ttl: timedelta | None = None) -> DataFrame:
    """Return `derive_topic_versions` of records that have their `position` (`add_position`)."""
    return _flatten_rows(plane.derive_versions(records, interval_literal(ttl) if ttl else None), PERIODS["versions"])


def derive_topic_events(log: DataFrame) -> DataFrame:
    """Return the table of a topic read as a stream: one row per accepted record that has a value.

    `log`: accepted records with `key` and `value` decoded. Returns the flat rows: the key's columns (all null for a
    record without a key) and the value's, timestamp, _partition, _offset.
    """
    return _flatten_rows(add_position(log).where("value IS NOT NULL"), PERIODS["events"])


def derive_view(contract: Contract, name: str, inputs: Mapping[str, DataFrame]) -> DataFrame:
    """Return all rows of a view, given the flat rows of its inputs that are current at one moment.

    Returns the flat rows: the key's columns, the selected or aggregated ones, the periods of the view's kind and its
    lineage: the places of the events that a row comes from.
    """
    it, known = contract.views[name], list_shapes(contract)
    relations = {i: as_relation(inputs[i], known[i]) for i in it.inputs}
    return derive_from_relations(it, name, relations, known)


def derive_from_relations(
    it: View, name: str, relations: Mapping[str, DataFrame], known: Mapping[str, Shape]
) -> DataFrame:
    """Return the flat rows of a view, given its inputs as relations (`as_relation`).

    The input of a windowed aggregate may already have `taken` (`windows.mark_taken_events`).
    """
    if it.aggregate is not None:
        return _flatten_rows(_apply_aggregate(it, relations[it.first_input], known), PERIODS[known[name].kind])
    if it.join is None:
        return project_joined(it, name, relations[it.first_input].withColumnRenamed("value", "left"), known)
    return project_joined(it, name, _apply_join(it, relations, known), known)


def project_joined(it: View, name: str, joined: DataFrame, known: Mapping[str, Shape]) -> DataFrame:
    """Return the flat rows of a view that does not aggregate: those of `joined` that pass `where`, with its columns.

    `joined`: what the operators in `joins` return: `key`, a struct for each input (`left` and, for a join, `right`),
    the periods of the view's kind and positions. The structs need only the columns that the view's expressions name.
    """
    inputs = dict(zip(("left", "right"), it.inputs, strict=False))
    apart = F.struct(*(column for column in joined.columns if column not in inputs)).alias(_OTHER_COLUMNS)
    rows = joined.select(apart, *(F.col(column).alias(i) for column, i in inputs.items()))
    if it.where is not None:
        rows = rows.where(expression_column(resolve(it.where, view_scope(it, known))))
    periods = [f"{_OTHER_COLUMNS}.{column}" for column in PERIODS[known[name].kind]]
    return rows.select(
        *output_columns(it, known, f"{_OTHER_COLUMNS}.key"), *periods, *_lineage_columns(joined, f"{_OTHER_COLUMNS}.")
    )


_OTHER_COLUMNS = "_apart"
"""A struct of the columns that rows have beside their inputs, so that an input may have any name, also `key`."""


def output_columns(it: View, known: Mapping[str, Shape], key: str) -> list[Column]:
    """Return a view's columns over rows with a struct for each input: its key columns, and those that it selects.

    `key`: the struct that its key is taken from if the view does not define one.
    """
    own = [expression_column(text).alias(column) for column, text in resolve_all(it.key, it, known).items()]
    return [
        *(own or [F.col(f"{key}.*")]),
        *(expression_column(text).alias(c) for c, text in selected_columns(it, known).items()),
    ]


def count_left_out_of_view(contract: Contract, name: str, inputs: Mapping[str, DataFrame]) -> DataFrame | None:
    """Return how many rows of its input an aggregate leaves out; None if the view is not an aggregate.

    `inputs` as for `derive_view`. Returns one row, `leftOut` struct<no_key, no_value, too_late> of bigint. A row that
    `where` passes is in at most one of them: without a group, else without a value to aggregate
    (`aggregates.has_value_to_aggregate`), else taken by no window. A windowed aggregate also has `streamTimes`,
    map<string, string>: the stream time of each source partition, in ISO 8601; partitions without an event that counts
    are not in it.
    """
    it, known = contract.views[name], list_shapes(contract)
    if it.aggregate is None:
        return None
    rows = group_rows(it, as_relation(inputs[it.first_input], known[it.first_input]), known)
    if it.window is not None:
        rows = windows.judge_events(rows, window_definition(it.window))
    return count_left_out(it, rows)


def count_left_out(it: View, rows: DataFrame) -> DataFrame:
    """Return `count_left_out_of_view` for an aggregate's rows (`group_rows`); rows for windows have `taken`.

    If the rows have a column `_change`, return the difference that it makes: closed rows count -1.
    """
    keyless, valueless = F.col("key").isNull(), F.col("value").isNull()
    late = F.lit(False) if it.window is None else ~F.col("taken")
    one = F.when(F.col("_change") == "close", -1).otherwise(1) if "_change" in rows.columns else F.lit(1)

    def count_where(condition: Column) -> Column:
        return F.coalesce(F.sum(F.when(condition, one)), F.lit(0)).cast("bigint")

    counts = F.struct(
        count_where(keyless).alias("no_key"),
        count_where(~keyless & valueless).alias("no_value"),
        count_where(late).alias("too_late"),
    ).alias("leftOut")
    if it.window is None:
        return rows.agg(counts)
    reached = F.max(F.when(~keyless & ~valueless, F.col("timestamp")))
    return _sum_partitions(rows.groupBy("position.partition").agg(counts, reached.alias("_reached")))


def as_relation(rows: DataFrame, shape: Shape, *others: str) -> DataFrame:
    """Return flat rows as a relation: structs `key` (or null) and `value`, the periods; of events also `position`.

    `others`: columns that stay as they are.
    """
    places = [position_struct(*POSITION_COLUMNS["position"])] if shape.kind == "events" else []
    return rows.select(
        key_struct({column: F.col(column) for column in shape.key}).alias("key"),
        F.struct(*shape.columns).alias("value"),
        *PERIODS[shape.kind],
        *places,
        *others,
        *(["_change"] if "_change" in rows.columns else []),
    )


def _apply_join(it: View, relations: Mapping[str, DataFrame], known: Mapping[str, Shape]) -> DataFrame:
    """Return the result of the view's join: `key`, `left`, `right`, periods and positions."""
    join, on = it.join or Join(), lookup_key(it, known)
    left, right = relations[it.first_input], relations[it.second_input or ""]
    if on is None:
        right = align_join_key(right, left)
    if join.stream:
        return joins.join_stream_stream(
            left, right, join.how, interval_literal(join.before), interval_literal(join.after)
        )
    if it.table and on is None:
        return joins.join_table_table(left, right, join.how)
    how: Literal["inner", "left"] = "inner" if join.how == "inner" else "left"
    if it.table and on is not None:
        return joins.join_foreign_key(left, right, how, on)
    return joins.join_stream_table(left, right, how, on)


def _apply_aggregate(it: View, rows: DataFrame, known: Mapping[str, Shape]) -> DataFrame:
    """Return the result of the view's aggregate: `key`, `value` and the periods."""
    its = view_measures(it, known)
    if it.table:
        return aggregates.aggregate_table(apply_where(it, rows, known), group_key(it, known), its)
    events = group_rows(it, rows, known)
    if it.window is None:
        return aggregates.aggregate_stream(events, its)
    window = window_definition(it.window)
    judged = events if "taken" in rows.columns else windows.judge_events(events, window)
    return windows.aggregate_windows(judged, window, its)


def select_members(it: View, rows: DataFrame, known: Mapping[str, Shape]) -> DataFrame:
    """Return the rows that an aggregate reads: those that pass its `where`; of a stream, with their group as `key`."""
    return apply_where(it, rows, known) if it.table else group_rows(it, rows, known)


def apply_where(it: View, rows: DataFrame, known: Mapping[str, Shape]) -> DataFrame:
    """Return the rows that pass the aggregate's `where`."""
    if it.where is None:
        return rows
    return rows.where(expression_column(resolve(it.where, view_scope(it, known), {it.first_input: "value"})))


def group_key(it: View, known: Mapping[str, Shape]) -> Column:
    """Return the group of an aggregate's row: a struct, null if one of its expressions is null."""
    if it.group_by is None:
        return F.col("key")
    texts = {c: resolve(text, view_scope(it, known), {it.first_input: "value"}) for c, text in it.group_by.items()}
    return key_struct({c: expression_column(text) for c, text in texts.items()}, whole=True)


def view_measures(it: View, known: Mapping[str, Shape]) -> dict[str, Measure]:
    """Return the measures of an aggregate by column, over rows with `key` and `value`."""
    parsed = {
        c: parse_aggregate(text, view_scope(it, known), {it.first_input: "value"})
        for c, text in (it.aggregate or {}).items()
    }
    return {column: Measure(function, expression_column(argument)) for column, (function, argument) in parsed.items()}


def group_rows(it: View, rows: DataFrame, known: Mapping[str, Shape]) -> DataFrame:
    """Return the rows that an aggregate counts or leaves out: `key` is the group, `value` null if there is none."""
    value = F.when(aggregates.has_value_to_aggregate(view_measures(it, known)), F.col("value"))
    return apply_where(it, rows, known).withColumns({"key": group_key(it, known), "value": value})


def _sum_partitions(partitions: DataFrame) -> DataFrame:
    """Return counts by partition summed up in one row."""
    names = ("no_key", "no_value", "too_late")
    counts = [F.coalesce(F.sum(f"leftOut.{name}"), F.lit(0).cast("bigint")).alias(name) for name in names]
    reached = F.col("_reached")
    entry = F.when(reached.isNotNull(), F.struct(F.col("partition").cast("string"), format_moment(reached)))
    times = F.map_from_entries(F.collect_list(entry)).alias("streamTimes")
    return partitions.agg(F.struct(*counts).alias("leftOut"), times)


def format_moment(moment: Column) -> Column:
    """Return a moment as ISO 8601 in microseconds, as stream times are noted."""
    return F.date_format(moment, "yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXX")


def window_definition(window: Window) -> windows.WindowDefinition:
    """Return the window of a view as the operators take it."""
    grace = interval_literal(window.grace)
    if window.sliding is not None:
        return windows.SlidingWindow(interval_literal(window.sliding), grace)
    if window.session is not None:
        return windows.SessionWindow(interval_literal(window.session), grace)
    size = window.hopping or window.tumbling
    return windows.HoppingWindow(interval_literal(size), interval_literal(window.advance or size), grace)


def interval_literal(length: timedelta | None) -> Column:
    """Return a length of time, at most `ALL_TIME`, as a day-time interval literal; None becomes zero."""
    return F.lit(min(length or timedelta(0), ALL_TIME)).cast("interval day to second")


def align_join_key(right: DataFrame, left: DataFrame) -> DataFrame:
    """Return the right side of a join on the key, with its key columns named as on the left."""
    return right.withColumn("key", F.col("key").cast(left.schema["key"].dataType))


def lookup_key(it: View, known: Mapping[str, Shape]) -> Column | None:
    """Return the joined table's key as a struct over the first input's rows, null if one of its expressions is null.

    None if the view does not join by expressions (`on`).
    """
    if it.join is None or it.join.on is None:
        return None
    names = {it.first_input: list(known[it.first_input].columns)}
    values = [expression_column(resolve(text, names, {it.first_input: "value"})) for text in it.join.keys]
    return key_struct(dict(zip(known[it.second_input or ""].key, values, strict=True)), whole=True)


def key_struct(columns: Mapping[str, Column], *, whole: bool = False) -> Column:
    """Return a key as a struct; null if all its columns are null (`whole`: if any is)."""
    there = F.lit(whole)
    for column in columns.values():
        there = there & column.isNotNull() if whole else there | column.isNotNull()
    return F.when(there, F.struct(*(column.alias(name) for name, column in columns.items())))


def add_position(log: DataFrame) -> DataFrame:
    """Return `key`, `value`, `timestamp` and `position` (which breaks ties) of a log's records."""
    epoch = F.col("epoch") if "epoch" in log.columns else F.lit(0)
    return log.select(
        "key", "value", "timestamp", F.struct(epoch.alias("epoch"), "partition", "offset").alias("position")
    )


def position_struct(partition: str, offset: str) -> Column:
    """Return the column `position` of a record, given the names of its partition and offset columns; the epoch is 0."""
    parts = F.lit(0).alias("epoch"), F.col(partition).alias("partition"), F.col(offset).alias("offset")
    return F.struct(*parts).alias("position")


def _flatten_rows(rows: DataFrame, periods: Sequence[str]) -> DataFrame:
    return rows.select("key.*", "value.*", *periods, *_lineage_columns(rows))


def _lineage_columns(rows: DataFrame, prefix: str = "") -> list[Column]:
    """Return the places of the records that a row comes from, as flat columns; `prefix` stands before their names."""
    return [
        F.col(f"{prefix}{place}.{part}").alias(name)
        for place, names in POSITION_COLUMNS.items()
        if place in rows.columns
        for part, name in zip(("partition", "offset"), names, strict=True)
    ]
