"""Vectors of one shape as relations, through the operators, and back: the adapter between vectors and operators.

Every key and partition is a struct that begins with the vector's name and a run `s`. For each run the relations hold
the records of runs up to it, so that one Spark job computes what every vector believes after each of its runs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Any, Literal, cast

from pyspark.sql import Column, DataFrame, SparkSession, Window
from pyspark.sql import functions as F

from hindcast.conformance import logs, stepwise
from hindcast.conformance.stepwise import Known
from hindcast.conformance.vectors import Shape, Table, Understood, Vector
from hindcast.corrected import aggregates, increments, joins, order, plane, windows
from hindcast.corrected.aggregates import Measure
from hindcast.corrected.islands import over_time

_NUMBER = "decimal(38,6)"
_MAPPED = ("key", "value")
_VERSION = ("key", "validFrom")
_WINDOW = ("key", "windowStart", "windowEnd")


class Batch:
    """Vectors of one shape, as relations. `rows` and `fates` are what they compute."""

    def __init__(self, spark: SparkSession, shape: Shape, vectors: Sequence[tuple[Vector, Understood]]) -> None:
        self._shape = shape
        self._aggregations = sorted({it.knobs["aggregation"] for _, it in vectors if "aggregation" in it.knobs})
        self._knobs = logs.knobs(vectors)
        self._log = logs.log(spark, vectors)

    def rows(self) -> DataFrame:
        """Every row ever believed: `vector, key, value, start, end, records, systemFrom, last`.

        `value` is JSON text; `start` and `end` are the row's period in ms, or its timestamp and null. `last` is the
        last run that believes it.
        """
        believed = _COMPUTE[self._shape.type](self).where("s <= vector.runs")
        content = [name for name in believed.columns if name != "s"]
        number = F.col("s") - F.row_number().over(Window.partitionBy(*content).orderBy("s"))
        stretches = believed.withColumn("_stretch", number).groupBy(*content, "_stretch")
        seen = stretches.agg(F.min("s").alias("systemFrom"), F.max("s").alias("last")).drop("_stretch")
        return seen.withColumn("vector", F.col("vector.name"))

    def fates(self) -> DataFrame:
        """How many records of each `vector` and `topic` had each `fate`, as known after the last run."""
        fates = self._judged
        if self._shape.window:
            taken = F.when(~F.col("taken"), F.lit("expired")).otherwise(F.col("fate"))
            fates = self._windowed.withColumn("fate", taken)
        last = fates.where("partition.s = partition.vector.runs")
        return last.groupBy(F.col("partition.vector.name").alias("vector"), "partition.topic", "fate").count()

    @cached_property
    def _judged(self) -> DataFrame:
        """The records as each run knows them, with their fates."""
        log = self._log.withColumn("s", F.explode(F.sequence("run", "vector.runs"))).select(
            F.struct("vector", "s", "topic", "number").alias("partition"),
            "offset",
            F.timestamp_millis("timestamp").alias("timestamp"),
            F.when(F.col("key").isNotNull(), F.struct("vector", "s", F.col("key").alias("k"))).alias("key"),
            F.when(F.col("value").isNotNull(), F.struct(F.col("value").alias("json"))).alias("value"),
            "fate",
            _interval("retention").alias("retention"),
            "run",
        )
        return (order.judge(log, F.col("retention")) if self._shape.tables else log).localCheckpoint()

    def _records(self, topic: str, *, refused: bool = False) -> DataFrame:
        wanted = (F.col("partition.topic") == topic) & (F.lit(refused) | (F.col("fate") == "accepted"))
        position = F.struct(F.lit(0).alias("epoch"), "partition", "offset").alias("position")
        return self._judged.where(wanted).select("key", "value", "timestamp", position, "partition", "fate", "run")

    def _table(self, table: Table) -> Known:
        """A table as versions whose value is JSON text."""
        known = self._versions(table) if table.topic else self._joined(table)
        steps = f"{table.path}.steps"
        if steps not in self._knobs:
            return known

        def transformed(rows: DataFrame) -> DataFrame:
            mapped = _with_knobs(rows, steps).withColumn("_mapped", _mapped(F.col(f"`{steps}`")))
            columns = {name: F.col(f"_mapped.{name}") for name in _MAPPED}
            return mapped.where("_mapped IS NOT NULL").withColumns(columns).select(*rows.columns)

        return Known(transformed(known.whole), known.source.mapped(transformed))

    def _versions(self, table: Table) -> Known:
        knob = f"{table.path}.ttlMs"
        knobs = [knob] if knob in self._knobs else []
        ttl = _interval(f"`{knob}`") if knobs else None
        records = self._records(table.topic)
        whole = stepwise.first_places(plane.versions(_with_knobs(records, *knobs), ttl)).localCheckpoint()
        was = stepwise.before(whole)
        new, earlier = (records.where(text) for text in ("run = partition.s", "run < partition.s"))
        near, rows = increments.versions(
            new, lambda _: was, lambda _: increments.hidden(earlier, new, ("key", "timestamp"))
        )
        versions = plane.versions(_with_knobs(near, *knobs), ttl)
        whole, was, rows, versions = (part.drop("position") for part in (whole, was, rows, versions))
        return stepwise.stepped(whole, was, rows, versions, _VERSION)

    def _joined(self, table: Table) -> Known:
        left, right = (self._table(side) for side in table.sides)
        if table.join == "table_table_join":

            def join(left: DataFrame, right: DataFrame) -> DataFrame:
                return joins.table_table(left, right, cast(Any, table.how))

            lefts, rights, learnt = increments.table_table(left.source, right.source)
        else:
            knob = f"{table.path}.foreignKeyField"
            named = _key("key", _found(F.col(f"`{knob}`")))
            left = Known(_with_knobs(left.whole, knob), left.source.mapped(lambda rows: _with_knobs(rows, knob)))

            def join(left: DataFrame, right: DataFrame) -> DataFrame:
                return joins.foreign_key(left, right, cast(Any, table.how), named)

            lefts, rights, learnt = increments.foreign_key(left.source, right.source, named)
        whole = _paired(join(left.whole, right.whole)).localCheckpoint()
        return _in_time(whole, learnt, _paired(join(lefts, rights)))

    def _measures(self, text: Column) -> dict[str, Measure]:
        return {name: Measure(name, text if name == "count" else _number(text)) for name in self._aggregations}

    def _measured(self) -> Column:
        """The measure that a vector asks for, of a value that has all that the batch asks for."""
        picked = F.lit(None).cast("string")
        for name in self._aggregations:
            picked = F.when(F.col("aggregation") == name, _text(F.col(f"value.{name}"))).otherwise(picked)
        return picked

    def table_rows(self) -> DataFrame:
        rows = self._table(self._shape.tables[0]).believed
        return rows.select(*_run("key"), F.col("value.json").alias("value"), *_period("validFrom", "validTo"))

    def stream_table_rows(self) -> DataFrame:
        records, versions, on = self._records("stream"), self._table(self._shape.tables[0]), None
        if self._shape.on_field:
            records = _with_knobs(records, "onField", of="partition")
            on = _key("partition", _found(F.col("onField")))
        events = stepwise.events(records)
        how = cast(Literal["inner", "left"], self._shape.how)

        def join(events: DataFrame, versions: DataFrame) -> DataFrame:
            joined = joins.stream_table(events, versions, how, on)
            return joined.select("key", "position", "timestamp", _pair().alias("value"))

        whole = join(events.whole, versions.whole).localCheckpoint()
        was = stepwise.before(whole)
        todo, needed, scope = increments.stream_table(events.source, versions.source, on, lambda _: was)
        known = stepwise.stepped(whole, was, scope.rows, scope.of(join(todo, needed)), ["position"])
        offsets = F.array("position.offset").alias("records")
        return known.believed.select(*_run("position.partition"), "value", *_period("timestamp"), offsets)

    def stream_stream_rows(self) -> DataFrame:
        left, right = (
            stepwise.events(_with_knobs(self._records(topic), "beforeMs", "afterMs", of="partition"))
            for topic in ("left", "right")
        )
        how = cast(Literal["inner", "left", "outer"], self._shape.how)
        window = _interval("beforeMs"), _interval("afterMs")
        places = "left_position", "right_position"

        def join(left: DataFrame, right: DataFrame) -> DataFrame:
            joined = joins.stream_stream(left, right, how, *window)
            return joined.select("key", *places, "timestamp", _pair().alias("value"))

        whole = join(left.whole, right.whole).localCheckpoint()
        was = stepwise.before(whole)
        lefts, rights, scope = increments.stream_stream(left.source, right.source, *window, lambda _: was)
        known = stepwise.stepped(whole, was, scope.rows, scope.of(join(lefts, rights)), places)
        place = F.coalesce("left_position.partition", "right_position.partition")
        records = F.array("left_position.offset", "right_position.offset").alias("records")
        return known.believed.withColumn("place", place).select(*_run("place"), "value", *_period("timestamp"), records)

    def table_aggregate_rows(self) -> DataFrame:
        named, counted = (_found(F.col(knob)) for knob in ("group", "counted"))
        group, measures = _key("key", named), self._measures(counted)

        def members(rows: DataFrame) -> DataFrame:
            return _with_knobs(rows, "group", "counted")

        table = self._table(self._shape.tables[0])
        rows, learnt = increments.of_table(table.source.mapped(members), group)
        whole, result = (aggregates.of_table(part, group, measures) for part in (members(table.whole), rows))
        return self._aggregated(_in_time(whole.localCheckpoint(), learnt, result).believed, "validFrom", "validTo")

    def stream_aggregate_rows(self) -> DataFrame:
        measures = self._measures(F.col("value.json"))
        events = stepwise.events(self._records("stream"))
        rows, learnt = increments.of_stream(events.source)
        whole, result = (aggregates.of_stream(part, measures) for part in (events.whole, rows))
        return self._aggregated(_in_time(whole.localCheckpoint(), learnt, result).believed, "validFrom", "validTo")

    def windowed_rows(self) -> DataFrame:
        measures = self._measures(F.col("value.json"))
        whole = windows.aggregate(self._windowed, self._window, measures).localCheckpoint()
        was, source = stepwise.before(whole), stepwise.events(self._windowed.drop("streamTime", "taken")).source
        judged, scope = increments.windowed(source, self._window, lambda _: was, appended=True)
        result = scope.of(windows.aggregate(judged, self._window, measures))
        known = stepwise.stepped(whole, was, scope.rows, result, _WINDOW)
        return self._aggregated(known.believed, "windowStart", "windowEnd")

    def _aggregated(self, rows: DataFrame, start: str, end: str) -> DataFrame:
        rows = _with_knobs(rows, "aggregation")
        return rows.select(*_run("key"), self._measured().alias("value"), *_period(start, end))

    @cached_property
    def _windowed(self) -> DataFrame:
        knobs = {"hopping": ("sizeMs", "advanceMs"), "sliding": ("timeDifferenceMs",), "session": ("inactivityGapMs",)}
        names = ("graceMs", *knobs[self._shape.window])
        events = _with_knobs(self._records("stream", refused=True), *names, of="partition")
        return windows.judge(order.with_stream_time(events), self._window).localCheckpoint()

    @property
    def _window(self) -> windows.Shape:
        grace = _interval("graceMs")
        match self._shape.window:
            case "hopping":
                return windows.Hopping(_interval("sizeMs"), _interval("advanceMs"), grace)
            case "sliding":
                return windows.Sliding(_interval("timeDifferenceMs"), grace)
        return windows.Session(_interval("inactivityGapMs"), grace)


_COMPUTE: Mapping[str, Callable[[Batch], DataFrame]] = {
    "table_transform": Batch.table_rows,
    "table_table_join": Batch.table_rows,
    "foreign_key_join": Batch.table_rows,
    "table_aggregate": Batch.table_aggregate_rows,
    "stream_aggregate": Batch.stream_aggregate_rows,
    "stream_table_join": Batch.stream_table_rows,
    "stream_stream_join": Batch.stream_stream_rows,
    "windowed_aggregate": Batch.windowed_rows,
}


def _in_time(whole: DataFrame, learnt: DataFrame, result: DataFrame) -> Known:
    """A result whose rows are true for a period, by increments."""
    was = stepwise.before(whole)
    scope = over_time(learnt, lambda _: was)
    return stepwise.stepped(whole, was, scope.rows, scope.of(result), _VERSION)


def _paired(joined: DataFrame) -> DataFrame:
    """A join of tables as a table whose value is JSON text."""
    return joined.select("key", F.struct(_pair().alias("json")).alias("value"), "validFrom", "validTo")


def _with_knobs(rows: DataFrame, *names: str, of: str = "key") -> DataFrame:
    """Rows with knobs of their vector as columns."""
    return rows.withColumns({name: F.col(f"{of}.vector.`{name}`") for name in names}) if names else rows


def _run(place: str) -> list[Column]:
    return [F.col(f"{place}.vector").alias("vector"), F.col(f"{place}.s").alias("s"), F.col("key.k").alias("key")]


def _period(start: str, end: str | None = None) -> list[Column]:
    last = F.unix_millis(end) if end else F.lit(None).cast("bigint")
    return [F.unix_millis(start).alias("start"), last.alias("end")]


def _pair() -> Column:
    sides = [F.coalesce(F.col(f"{side}.json"), F.lit("null")) for side in ("left", "right")]
    return F.concat(F.lit('{"left":'), sides[0], F.lit(',"right":'), sides[1], F.lit("}"))


def _interval(milliseconds: str) -> Column:
    return F.timestamp_millis(milliseconds) - F.timestamp_millis(F.lit(0))


def _found(path: Column) -> Column:
    return F.call_function("get_json_object", F.col("value.json"), path)


def _number(text: Column) -> Column:
    return text.try_cast(_NUMBER)


def _text(number: Column) -> Column:
    """A number as JSON; a decimal without the zeros that it ends with."""
    return F.regexp_replace(number.cast("string"), r"\.0*$|(\.\d*[1-9])0+$", "$1")


def _key(place: str, named: Column) -> Column:
    """The key of the same vector and run with this text; null if that is."""
    return F.when(named.isNotNull(), F.struct(f"{place}.vector", f"{place}.s", named.alias("k")))


def _mapped(steps: Column) -> Column:
    """Key and value after the transforms of a table; null where one leaves the version out."""

    def after(row: Column, step: Column) -> Column:
        value = row["value"]["json"]
        number, operand = _number(value), _number(step["operand"])
        field = F.call_function("get_json_object", value, step["operand"])
        key = F.struct(
            row["key"]["vector"].alias("vector"),
            row["key"]["s"].alias("s"),
            F.concat_ws("/", field, row["key"]["k"]).alias("k"),
        )
        product = F.struct(_text((number * operand).cast(_NUMBER)).alias("json"))
        return (
            F.when((step["op"] == "even") & (number % 2 == 0), row)
            .when((step["op"] == "gte") & (number >= operand), row)
            .when((step["op"] == "times") & number.isNotNull(), _row(row["key"], product))
            .when((step["op"] == "rekey") & field.isNotNull(), _row(key, row["value"]))
        )

    return F.aggregate(F.coalesce(steps, F.array()), _row(F.col("key"), F.col("value")), after)


def _row(key: Column, value: Column) -> Column:
    return F.struct(key.alias("key"), value.alias("value"))
