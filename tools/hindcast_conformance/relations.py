"""Relations: the adapter between vectors of one shape and the operators of the `corrected` reading.

Every key and partition is a struct that begins with the vector's name and a run `s`. For each run the relations hold
the records of runs up to it, so that one Spark job computes the current rows of every vector after each of its runs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Any, Literal, cast

from pyspark.sql import Column, DataFrame, SparkSession, Window
from pyspark.sql import functions as F

from hindcast.bitemporal import aggregates, fates, incremental, joins, plane, windows
from hindcast.bitemporal.affected_periods import build_scope
from hindcast.bitemporal.measures import Measure
from hindcast_conformance import logs, stepwise
from hindcast_conformance.stepwise import SteppedRelation
from hindcast_conformance.vectors import OperationShape, ParsedOperation, TableSpec, Vector

_NUMBER = "decimal(38,6)"
_MAPPED = ("key", "value")
_VERSION = ("key", "validFrom")
_WINDOW = ("key", "windowStart", "windowEnd")


class VectorBatch:
    """Vectors of one shape, as relations. `derive_rows` and `count_fates` return their results."""

    def __init__(
        self, spark: SparkSession, shape: OperationShape, vectors: Sequence[tuple[Vector, ParsedOperation]]
    ) -> None:
        self._shape = shape
        knobs = (operation.knobs for _, operation in vectors)
        self._aggregations = sorted({names["aggregation"] for names in knobs if "aggregation" in names})
        self._knobs = logs.list_knobs(vectors)
        self._read_log = logs.build_log(spark, vectors)

    def derive_rows(self) -> DataFrame:
        """Return every row that was ever current: `vector, key, value, start, end, records, systemFrom, last`.

        `value` is JSON text; `start` and `end` are the row's period in ms, or its timestamp and null; `records` only
        exists for joins of streams. `last` is the last run in which the row is current.
        """
        current = _COMPUTE[self._shape.type](self).where("s <= vector.runs")
        content = [name for name in current.columns if name != "s"]
        number = F.col("s") - F.row_number().over(Window.partitionBy(*content).orderBy("s"))
        stretches = current.withColumn("_stretch", number).groupBy(*content, "_stretch")
        rows = stretches.agg(F.min("s").alias("systemFrom"), F.max("s").alias("last")).drop("_stretch")
        return rows.withColumn("vector", F.col("vector.name"))

    def count_fates(self) -> DataFrame:
        """Return the `count` of records by `vector`, `topic` and `fate`, as known after the last run."""
        fates = self._decided_records
        if self._shape.window:
            fate = F.when(~F.col("taken"), F.lit("expired")).otherwise(F.col("fate"))
            fates = self._windowed_events.withColumn("fate", fate)
        last = fates.where("partition.s = partition.vector.runs")
        return last.groupBy(F.col("partition.vector.name").alias("vector"), "partition.topic", "fate").count()

    @cached_property
    def _decided_records(self) -> DataFrame:
        """The records as each run knows them, with their fates."""
        log = self._read_log.withColumn("s", F.explode(F.sequence("run", "vector.runs"))).select(
            F.struct("vector", "s", "topic", "number").alias("partition"),
            "offset",
            F.timestamp_millis("timestamp").alias("timestamp"),
            F.when(F.col("key").isNotNull(), F.struct("vector", "s", F.col("key").alias("k"))).alias("key"),
            F.when(F.col("value").isNotNull(), F.struct(F.col("value").alias("json"))).alias("value"),
            "fate",
            _interval_literal("retention").alias("retention"),
            "run",
        )
        return (fates.decide_fates(log, F.col("retention")) if self._shape.tables else log).localCheckpoint()

    def _records(self, topic: str, *, refused: bool = False) -> DataFrame:
        is_read = (F.col("partition.topic") == topic) & (F.lit(refused) | (F.col("fate") == "accepted"))
        position = F.struct(F.lit(0).alias("epoch"), "partition", "offset").alias("position")
        return self._decided_records.where(is_read).select(
            "key", "value", "timestamp", position, "partition", "fate", "run"
        )

    def _table(self, table: TableSpec) -> SteppedRelation:
        """Return a table, its transforms applied, as versions whose value is JSON text."""
        relation = self._versions(table) if table.topic else self._join_tables(table)
        steps = f"{table.path}.steps"
        if steps not in self._knobs:
            return relation

        def transform(rows: DataFrame) -> DataFrame:
            mapped = _add_knobs(rows, steps).withColumn("_mapped", _apply_transforms(F.col(f"`{steps}`")))
            columns = {name: F.col(f"_mapped.{name}") for name in _MAPPED}
            return mapped.where("_mapped IS NOT NULL").withColumns(columns).select(*rows.columns)

        return SteppedRelation(transform(relation.whole), relation.source.map_rows(transform))

    def _versions(self, table: TableSpec) -> SteppedRelation:
        knob = f"{table.path}.ttlMs"
        knobs = [knob] if knob in self._knobs else []
        ttl = _interval_literal(f"`{knob}`") if knobs else None
        records = self._records(table.topic)
        whole = stepwise.keep_first_positions(plane.derive_versions(_add_knobs(records, *knobs), ttl)).localCheckpoint()
        was = stepwise.rows_before_run(whole)
        new, earlier = (records.where(text) for text in ("run = partition.s", "run < partition.s"))
        near, rows = incremental.restrict_versions(
            new, lambda _: was, lambda _: incremental.find_hidden_records(earlier, new, ("key", "timestamp"))
        )
        versions = plane.derive_versions(_add_knobs(near, *knobs), ttl)
        whole, was, rows, versions = (part.drop("position") for part in (whole, was, rows, versions))
        return stepwise.apply_increment(whole, was, rows, versions, _VERSION)

    def _join_tables(self, table: TableSpec) -> SteppedRelation:
        left, right = (self._table(side) for side in table.sides)
        if table.join == "table_table_join":

            def join(left: DataFrame, right: DataFrame) -> DataFrame:
                return joins.join_table_table(left, right, cast(Any, table.how))

            lefts, rights, learnt = incremental.restrict_table_table_join(left.source, right.source)
        else:
            knob = f"{table.path}.foreignKeyField"
            foreign_key = _key_struct("key", _json_field(F.col(f"`{knob}`")))
            left = SteppedRelation(
                _add_knobs(left.whole, knob), left.source.map_rows(lambda rows: _add_knobs(rows, knob))
            )

            def join(left: DataFrame, right: DataFrame) -> DataFrame:
                return joins.join_foreign_key(left, right, cast(Any, table.how), foreign_key)

            lefts, rights, learnt = incremental.restrict_foreign_key_join(left.source, right.source, foreign_key)
        whole = _pair_values(join(left.whole, right.whole)).localCheckpoint()
        return _step_versions(whole, learnt, _pair_values(join(lefts, rights)))

    def _measures(self, text: Column) -> dict[str, Measure]:
        return {name: Measure(name, text if name == "count" else _parse_number(text)) for name in self._aggregations}

    def _measured_value(self) -> Column:
        """Return the vector's own measure, as text, from a value with all measures of the batch."""
        measure = F.lit(None).cast("string")
        for name in self._aggregations:
            measure = F.when(F.col("aggregation") == name, _format_number(F.col(f"value.{name}"))).otherwise(measure)
        return measure

    def table_rows(self) -> DataFrame:
        rows = self._table(self._shape.tables[0]).current
        return rows.select(
            *_run_columns("key"), F.col("value.json").alias("value"), *_period_columns("validFrom", "validTo")
        )

    def stream_table_rows(self) -> DataFrame:
        records, versions, on = self._records("stream"), self._table(self._shape.tables[0]), None
        if self._shape.on_field:
            records = _add_knobs(records, "onField", of="partition")
            on = _key_struct("partition", _json_field(F.col("onField")))
        events = stepwise.stream_relation(records)
        how = cast(Literal["inner", "left"], self._shape.how)

        def join(events: DataFrame, versions: DataFrame) -> DataFrame:
            joined = joins.join_stream_table(events, versions, how, on)
            return joined.select("key", "position", "timestamp", _pair_json().alias("value"))

        whole = join(events.whole, versions.whole).localCheckpoint()
        was = stepwise.rows_before_run(whole)
        lefts, rights, scope = incremental.restrict_stream_table_join(events.source, versions.source, on, lambda _: was)
        stepped = stepwise.apply_increment(whole, was, scope.rows, scope.restrict(join(lefts, rights)), ["position"])
        offsets = F.array("position.offset").alias("records")
        return stepped.current.select(
            *_run_columns("position.partition"), "value", *_period_columns("timestamp"), offsets
        )

    def stream_stream_rows(self) -> DataFrame:
        left, right = (
            stepwise.stream_relation(_add_knobs(self._records(topic), "beforeMs", "afterMs", of="partition"))
            for topic in ("left", "right")
        )
        how = cast(Literal["inner", "left", "outer"], self._shape.how)
        window = _interval_literal("beforeMs"), _interval_literal("afterMs")
        places = "left_position", "right_position"

        def join(left: DataFrame, right: DataFrame) -> DataFrame:
            joined = joins.join_stream_stream(left, right, how, *window)
            return joined.select("key", *places, "timestamp", _pair_json().alias("value"))

        whole = join(left.whole, right.whole).localCheckpoint()
        was = stepwise.rows_before_run(whole)
        lefts, rights, scope = incremental.restrict_stream_stream_join(
            left.source, right.source, *window, lambda _: was
        )
        stepped = stepwise.apply_increment(whole, was, scope.rows, scope.restrict(join(lefts, rights)), places)
        place = F.coalesce("left_position.partition", "right_position.partition")
        records = F.array("left_position.offset", "right_position.offset").alias("records")
        return stepped.current.withColumn("place", place).select(
            *_run_columns("place"), "value", *_period_columns("timestamp"), records
        )

    def table_aggregate_rows(self) -> DataFrame:
        group_field, value_field = (_json_field(F.col(knob)) for knob in ("group", "counted"))
        group, measures = _key_struct("key", group_field), self._measures(value_field)

        def members(rows: DataFrame) -> DataFrame:
            return _add_knobs(rows, "group", "counted")

        table = self._table(self._shape.tables[0])
        rows, learnt = incremental.restrict_table_aggregate(table.source.map_rows(members), group)
        whole, result = (aggregates.aggregate_table(part, group, measures) for part in (members(table.whole), rows))
        return self._select_aggregated(
            _step_versions(whole.localCheckpoint(), learnt, result).current, "validFrom", "validTo"
        )

    def stream_aggregate_rows(self) -> DataFrame:
        measures = self._measures(F.col("value.json"))
        events = stepwise.stream_relation(self._records("stream"))
        rows, learnt = incremental.restrict_stream_aggregate(events.source)
        whole, result = (aggregates.aggregate_stream(part, measures) for part in (events.whole, rows))
        return self._select_aggregated(
            _step_versions(whole.localCheckpoint(), learnt, result).current, "validFrom", "validTo"
        )

    def windowed_rows(self) -> DataFrame:
        measures = self._measures(F.col("value.json"))
        whole = windows.aggregate_windows(self._windowed_events, self._window, measures).localCheckpoint()
        was = stepwise.rows_before_run(whole)
        source = stepwise.stream_relation(self._windowed_events.drop("streamTime", "taken")).source
        judged, scope = incremental.restrict_windowed_aggregate(source, self._window, lambda _: was, appended=True)
        result = scope.restrict(windows.aggregate_windows(judged, self._window, measures))
        stepped = stepwise.apply_increment(whole, was, scope.rows, result, _WINDOW)
        return self._select_aggregated(stepped.current, "windowStart", "windowEnd")

    def _select_aggregated(self, rows: DataFrame, start: str, end: str) -> DataFrame:
        rows = _add_knobs(rows, "aggregation")
        return rows.select(*_run_columns("key"), self._measured_value().alias("value"), *_period_columns(start, end))

    @cached_property
    def _windowed_events(self) -> DataFrame:
        knobs = {"hopping": ("sizeMs", "advanceMs"), "sliding": ("timeDifferenceMs",), "session": ("inactivityGapMs",)}
        names = ("graceMs", *knobs[self._shape.window])
        events = _add_knobs(self._records("stream", refused=True), *names, of="partition")
        return windows.judge_events(events, self._window).localCheckpoint()

    @property
    def _window(self) -> windows.WindowDefinition:
        grace = _interval_literal("graceMs")
        match self._shape.window:
            case "hopping":
                return windows.HoppingWindow(_interval_literal("sizeMs"), _interval_literal("advanceMs"), grace)
            case "sliding":
                return windows.SlidingWindow(_interval_literal("timeDifferenceMs"), grace)
        return windows.SessionWindow(_interval_literal("inactivityGapMs"), grace)


_COMPUTE: Mapping[str, Callable[[VectorBatch], DataFrame]] = {
    "table_transform": VectorBatch.table_rows,
    "table_table_join": VectorBatch.table_rows,
    "foreign_key_join": VectorBatch.table_rows,
    "table_aggregate": VectorBatch.table_aggregate_rows,
    "stream_aggregate": VectorBatch.stream_aggregate_rows,
    "stream_table_join": VectorBatch.stream_table_rows,
    "stream_stream_join": VectorBatch.stream_stream_rows,
    "windowed_aggregate": VectorBatch.windowed_rows,
}


def _step_versions(whole: DataFrame, learnt: DataFrame, result: DataFrame) -> SteppedRelation:
    """Return a relation whose rows are versions: `whole`, and by increments `result` within the scope of `learnt`."""
    was = stepwise.rows_before_run(whole)
    scope = build_scope(learnt, lambda _: was)
    return stepwise.apply_increment(whole, was, scope.rows, scope.restrict(result), _VERSION)


def _pair_values(joined: DataFrame) -> DataFrame:
    """Return a join of tables as a table whose value is JSON text."""
    return joined.select("key", F.struct(_pair_json().alias("json")).alias("value"), "validFrom", "validTo")


def _add_knobs(rows: DataFrame, *names: str, of: str = "key") -> DataFrame:
    """Return rows with knobs of their vector as columns."""
    return rows.withColumns({name: F.col(f"{of}.vector.`{name}`") for name in names}) if names else rows


def _run_columns(place: str) -> list[Column]:
    return [F.col(f"{place}.vector").alias("vector"), F.col(f"{place}.s").alias("s"), F.col("key.k").alias("key")]


def _period_columns(start: str, end: str | None = None) -> list[Column]:
    last = F.unix_millis(end) if end else F.lit(None).cast("bigint")
    return [F.unix_millis(start).alias("start"), last.alias("end")]


def _pair_json() -> Column:
    sides = [F.coalesce(F.col(f"{side}.json"), F.lit("null")) for side in ("left", "right")]
    return F.concat(F.lit('{"left":'), sides[0], F.lit(',"right":'), sides[1], F.lit("}"))


def _interval_literal(milliseconds: str) -> Column:
    return F.timestamp_millis(milliseconds) - F.timestamp_millis(F.lit(0))


def _json_field(path: Column) -> Column:
    return F.call_function("get_json_object", F.col("value.json"), path)


def _parse_number(text: Column) -> Column:
    return text.try_cast(_NUMBER)


def _format_number(number: Column) -> Column:
    """Return a number as JSON text, without trailing zeros of a fraction."""
    return F.regexp_replace(number.cast("string"), r"\.0*$|(\.\d*[1-9])0+$", "$1")


def _key_struct(place: str, text: Column) -> Column:
    """Return the key with this text in the same vector and run; null if the text is null."""
    return F.when(text.isNotNull(), F.struct(f"{place}.vector", f"{place}.s", text.alias("k")))


def _apply_transforms(steps: Column) -> Column:
    """Return key and value after the transforms of a table; null if a transform drops the version."""

    def after(row: Column, step: Column) -> Column:
        value = row["value"]["json"]
        number, operand = _parse_number(value), _parse_number(step["operand"])
        field = F.call_function("get_json_object", value, step["operand"])
        key = F.struct(
            row["key"]["vector"].alias("vector"),
            row["key"]["s"].alias("s"),
            F.concat_ws("/", field, row["key"]["k"]).alias("k"),
        )
        product = F.struct(_format_number((number * operand).cast(_NUMBER)).alias("json"))
        return (
            F.when((step["op"] == "even") & (number % 2 == 0), row)
            .when((step["op"] == "gte") & (number >= operand), row)
            .when((step["op"] == "times") & number.isNotNull(), _row_struct(row["key"], product))
            .when((step["op"] == "rekey") & field.isNotNull(), _row_struct(key, row["value"]))
        )

    return F.aggregate(F.coalesce(steps, F.array()), _row_struct(F.col("key"), F.col("value")), after)


def _row_struct(key: Column, value: Column) -> Column:
    return F.struct(key.alias("key"), value.alias("value"))
