"""The operators of `corrected` done by kernels: for the vectors and histories that those are held to.

Relations are written to Delta tables with rows that nobody believes among them; keys become texts, values the numbers
of rows. A kernel does its parts one after the other, in slices that begin at the relations' own moments, and its
numbers become rows again.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from deltalake import DeltaTable, write_deltalake
from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from hindcast.bitemporal import aggregates, joins, windows
from hindcast.bitemporal.intervals import interval_micros
from hindcast.bitemporal.measures import Measure
from hindcast.bitemporal.windows import HoppingWindow, SessionWindow, SlidingWindow, WindowDefinition
from hindcast.engine import operators as kernel_operators
from hindcast.engine import session_operator, slice_reader, task, window_operator
from hindcast.engine.arrow_expressions import ColumnReference, Projection
from hindcast.engine.spec import (
    AggregateSpec,
    EventSpec,
    JoinSpec,
    KernelInput,
    KernelOutput,
    SessionSpec,
    SlidingSpec,
    TimeSlice,
    WindowSpec,
)

NOW = datetime(2026, 1, 1, tzinfo=UTC)
MOMENT = pa.timestamp("us", "UTC")
SYSTEM = [("systemFrom", MOMENT), ("systemTo", MOMENT)]
SLICES = 3
done: list[str] = []
"""The operators that kernels have done."""


@contextmanager
def instead() -> Iterator[list[str]]:
    """Kernels in place of the operators, where there is one; gives the names of those that were done."""
    done.clear()
    with (
        patch.object(joins, "join_stream_table", stream_table),
        patch.object(joins, "join_table_table", table_table),
        patch.object(joins, "join_foreign_key", foreign_key),
        patch.object(joins, "join_stream_stream", stream_stream),
        patch.object(aggregates, "aggregate_table", of_table),
        patch.object(aggregates, "aggregate_stream", of_stream),
        patch.object(windows, "aggregate_windows", in_windows),
    ):
        yield done


def stream_table(events: DataFrame, versions: DataFrame, how: str, on: Column | None = None) -> DataFrame:
    """`joins.join_stream_table`."""
    left = _kept(events.where("value IS NOT NULL"), F.col("key") if on is None else on)
    right = _kept(versions, F.col("key"))
    columns = {"event": (0, "_id"), "version": (1, "_id"), "timestamp": (0, "timestamp")}
    types = [("event", pa.int64()), ("version", pa.int64()), ("timestamp", MOMENT), *SYSTEM]
    sides = [(left, "events", ("timestamp",)), (right, "versions", ("validFrom", "validTo"))]
    met = _made("stream_table", sides, columns, types, "events", how=how)
    lineage = [F.col("_v.position").alias("right_position")] if "position" in versions.columns else []
    return _back(events, met, left, right).select(
        "_e.key",
        "_e.timestamp",
        "_e.position",
        F.col("_e.value").alias("left"),
        F.col("_v.value").alias("right"),
        F.col("_v.validFrom").alias("right_from"),
        *lineage,
    )


def table_table(left: DataFrame, right: DataFrame, how: str) -> DataFrame:
    """`joins.join_table_table`."""
    return _joined(left, right, how, F.col("key"))


def foreign_key(left: DataFrame, right: DataFrame, how: str, on: Column) -> DataFrame:
    """`joins.join_foreign_key`."""
    return _joined(left, right, how, on)


def _joined(left: DataFrame, right: DataFrame, how: str, on: Column) -> DataFrame:
    one, other = _kept(left, on), _kept(right, F.col("key"))
    columns = {"event": (0, "_id"), "version": (1, "_id")}
    types = [("event", pa.int64()), ("version", pa.int64()), ("validFrom", MOMENT), ("validTo", MOMENT), *SYSTEM]
    sides = [(side, "versions", ("validFrom", "validTo")) for side in (one, other)]
    met = _made("table_table", sides, columns, types, "versions", how=how)
    both = F.col("_e.value").alias("left"), F.col("_v.value").alias("right")
    key = F.coalesce("_e.key", "_v.key").alias("key")
    return _back(left, met, one, other).select(key, *both, "validFrom", "validTo")


def stream_stream(left: DataFrame, right: DataFrame, how: str, before: Column, after: Column) -> DataFrame:
    """`joins.join_stream_stream`, each reach apart."""
    reach = {"_before": interval_micros(before), "_after": interval_micros(after)}
    sides = [_kept(side.where("value IS NOT NULL").withColumns(reach), F.col("key")) for side in (left, right)]
    columns = {"event": (0, "_id"), "version": (1, "_id")}
    types = [("event", pa.int64()), ("version", pa.int64()), ("timestamp", MOMENT), *SYSTEM]
    reaches = {tuple(row) for side in sides for row in side.select(*reach).distinct().collect()}
    found = []
    for least, most in sorted(reaches):
        near = (F.col("_before") == least) & (F.col("_after") == most)
        own = [(side.where(near), "events", ("timestamp",)) for side in sides]
        found.append(_made("stream_stream", own, columns, types, "events", how=how, reach=(least, most)))
    met = pa.concat_tables(found).combine_chunks() if found else pa.schema(types).empty_table()
    return _back(left, met, *sides).select(
        F.coalesce("_e.key", "_v.key").alias("key"),
        F.col("_e.value").alias("left"),
        F.col("_v.value").alias("right"),
        F.col("_at").alias("timestamp"),
        F.col("_e.position").alias("left_position"),
        F.col("_v.position").alias("right_position"),
    )


def of_table(versions: DataFrame, group: Column, measures: Mapping[str, Measure]) -> DataFrame:
    """`aggregates.aggregate_table`: what a kernel computes by a kernel, other measures as they are."""
    return _aggregated("of_table", versions, group, measures, _OF_TABLE(versions, group, measures))


def of_stream(events: DataFrame, measures: Mapping[str, Measure]) -> DataFrame:
    """`aggregates.aggregate_stream`."""
    lasting = events.where("value IS NOT NULL").withColumn("validFrom", F.col("timestamp"))
    lasting = lasting.withColumn("validTo", F.lit(None).cast("timestamp"))
    return _aggregated("of_stream", lasting, F.col("key"), measures, _OF_STREAM(events, measures))


def _aggregated(
    operator: Any, members: DataFrame, group: Column, measures: Mapping[str, Measure], right: DataFrame
) -> DataFrame:
    """What a kernel makes of members, with the measures of `right` that it does not compute."""
    members = members.where(aggregates.has_value_to_aggregate(measures))

    def make(form: Mapping[str, str], schema: pa.Schema, rows: DataFrame) -> pa.Table:
        spec = AggregateSpec(operator, ("_key",), False, form, KernelOutput("", "versions", schema, NOW))
        return kernel_operators.aggregate_rows(spec, rows.drop("_group", "_id").toArrow()).rows

    return _with_computed(operator, members, group, measures, right, ("validFrom", "validTo"), make)


def in_windows(events: DataFrame, window: WindowDefinition, measures: Mapping[str, Measure]) -> DataFrame:
    """`windows.aggregate_windows` by a kernel: hopping ones each size apart, others each length and grace apart."""
    right = _IN_WINDOWS(events, window, measures)
    if not isinstance(window, HoppingWindow):
        return in_lengths(events, window, measures, right)
    possible, first = windows._first_possible_start(window), windows._first_start(window, F.col("streamTime"))
    members = events.where(F.col("taken").isNotNull()).select(
        "*",
        F.when(F.col("taken"), first).alias("_first"),
        (~F.col("taken") | (first != possible)).alias("_late"),
        interval_micros(window.size).alias("_size"),
        interval_micros(window.advance).alias("_advance"),
    )

    def make(form: Mapping[str, str], schema: pa.Schema, rows: DataFrame) -> pa.Table:
        found, every = [], rows.drop("_group").withColumnRenamed("_id", "_offset").toArrow()
        every = every.append_column("_partition", pa.array([0] * every.num_rows, pa.int32()))
        for size, advance in sorted({(row["_size"], row["_advance"]) for row in every.to_pylist()}):
            own = every.filter((pc.field("_size") == size) & (pc.field("_advance") == advance))
            late = own.filter(pc.field("_late")).select(["_partition", "_offset", "_first"])
            output = KernelOutput("", "events", schema, NOW)
            late = late.rename_columns(["partition", "offset", "first"])
            alike = event_spec(form, late, output)
            spec = WindowSpec(**vars(alike), size=size, advance=advance)
            for span in _slices(sorted({*own.column("timestamp").to_pylist()})):
                wide = slice_reader.widen_slice(span, 0, size)
                since, until = kernel_operators.slice_bounds(wide)
                at = own.column("timestamp").cast(pa.int64())
                part = own.filter(pc.and_(pc.greater_equal(at, since), pc.less(at, until)))
                found.append(window_operator.aggregate_windows(spec, span, part).rows.cast(schema))
        return pa.concat_tables(found).combine_chunks() if found else schema.empty_table()

    periods = ("windowStart", "windowEnd")
    others = ("_first", "_late", "_size", "_advance", "timestamp")
    return _with_computed("in_windows", members, F.col("key"), measures, right, periods, make, others)


def in_lengths(
    events: DataFrame, window: SessionWindow | SlidingWindow, measures: Mapping[str, Measure], right: DataFrame
) -> DataFrame:
    """`windows.aggregate_windows` of sessions and sliding windows by a kernel, each length and grace apart."""
    is_sliding = isinstance(window, SlidingWindow)
    members = events.where(F.col("taken").isNotNull()).select(
        "*",
        F.dense_rank().over(Window.orderBy("position.partition")).alias("_partition"),
        F.row_number()
        .over(Window.partitionBy("position.partition").orderBy("position"))
        .cast("bigint")
        .alias("_offset"),
        F.unix_micros("streamTime").alias("_reached"),
        interval_micros(window.difference if isinstance(window, SlidingWindow) else window.gap).alias("_length"),
        interval_micros(window.grace).alias("_grace"),
    )

    def make(form: Mapping[str, str], schema: pa.Schema, rows: DataFrame) -> pa.Table:
        found, every = [], rows.drop("_group", "_id").toArrow()
        output = KernelOutput("", "events", schema, NOW)
        for length, grace in sorted({(row["_length"], row["_grace"]) for row in every.to_pylist()}):
            own = every.filter((pc.field("_length") == length) & (pc.field("_grace") == grace))
            at = own.column("timestamp").cast(pa.int64())
            is_late = pc.greater(pc.subtract(own.column("_reached"), at), length + grace)
            late = own.filter(is_late).select(["_partition", "_offset", "_reached"])
            alike = vars(event_spec(form, late.rename_columns(["partition", "offset", "reached"]), output))
            alike["grace"] = grace
            if not is_sliding:
                found.append(session_operator.aggregate_sessions(SessionSpec(**alike, gap=length), own).rows)
                continue
            spec = SlidingSpec(**alike, difference=length)
            for span in _slices(sorted({*own.column("timestamp").to_pylist()})):
                since, until = kernel_operators.slice_bounds(slice_reader.widen_slice(span, *spec.reach))
                part = own.filter(pc.and_(pc.greater_equal(at, since), pc.less(at, until)))
                found.append(window_operator.aggregate_windows(spec, span, part).rows)
        return pa.concat_tables([rows.cast(schema) for rows in found]) if found else schema.empty_table()

    operator = "in_sliding_windows" if is_sliding else "in_sessions"
    others = ("_partition", "_offset", "_reached", "_length", "_grace", "timestamp")
    return _with_computed(operator, members, F.col("key"), measures, right, ("windowStart", "windowEnd"), make, others)


def event_spec(form: Mapping[str, str], late: pa.Table, output: KernelOutput) -> EventSpec:
    """What windows and sessions have alike."""
    side = KernelInput("", 0, "events", (), (), None)
    return EventSpec(
        side=side,
        key=("_key",),
        whole=False,
        measures=form,
        projection=None,
        grace=0,
        late=late,
        output=output,
    )


def _with_computed(
    operator: str,
    members: DataFrame,
    group: Column,
    measures: Mapping[str, Measure],
    right: DataFrame,
    periods: tuple[str, str],
    make: Callable[[Mapping[str, str], pa.Schema, DataFrame], pa.Table],
    others: tuple[str, ...] | None = None,
) -> DataFrame:
    """`right` with the measures that a kernel can `make` of the members, its rows and its periods."""
    arguments = [measure.argument.alias(name) for name, measure in measures.items()]
    kept = others or periods
    rows = _kept(members.select(*kept, group.alias("_group"), *arguments), "_group")
    computed = {n: it.function for n, it in measures.items() if it.function == "count" or _is_whole(rows, n)}
    computed = {n: function for n, function in computed.items() if function in COMPUTED}
    if not computed:
        return right
    done.append(operator)
    kinds = {n: pa.float64() if function == "avg" else pa.int64() for n, function in computed.items()}
    schema = pa.schema(
        [("_key", pa.string()), *kinds.items(), ("_members", pa.int64()), *((period, MOMENT) for period in periods)]
    )
    given = [F.col(n).cast("bigint") if function != "count" else F.col(n) for n, function in computed.items()]
    named_arguments = (c.alias(n) for c, n in zip(given, computed, strict=True))
    table = rows.select("_key", "_id", "_group", *named_arguments, *kept).withColumn("_members", F.lit(1))
    made = make({**computed, "_members": "count"}, schema, table)
    steps = members.sparkSession.createDataFrame(made.cast(schema) if made.num_rows else schema.empty_table())
    named = rows.where("_key IS NOT NULL").groupBy("_key").agg(F.first("_group").alias("key"))
    steps = steps.join(named, "_key", "left").alias("made")
    same = [F.col(f"made.{c}").eqNullSafe(F.col(f"plan.{c}")) for c in ("key", *periods)]
    both = steps.join(right.alias("plan"), same[0] & same[1] & same[2], "full_outer")
    kind = right.schema["value"].dataType
    value = [
        F.col(f"made.{n}" if n in computed else f"plan.value.{n}").cast(kind[n].dataType).alias(n) for n in measures
    ]
    key, own = F.coalesce("made.key", "plan.key").alias("key"), [F.col(f"made.{c}") for c in periods]
    whole = both.where("made._members IS NOT NULL").select(key, F.struct(*value).alias("value"), *own)
    return whole.select(*right.columns)


COMPUTED = ("count", "sum", "avg", "min", "max")


def _is_whole(rows: DataFrame, name: str) -> bool:
    kind = rows.schema[name].dataType.simpleString()
    if kind == "double":
        return rows.where(F.col(name) != F.floor(name)).isEmpty()
    return kind in ("int", "bigint")


_IN_WINDOWS = windows.aggregate_windows
_OF_TABLE, _OF_STREAM = aggregates.aggregate_table, aggregates.aggregate_stream


def _kept(rows: DataFrame, key: Column | str) -> DataFrame:
    return rows.select(
        "*", F.to_json(key).alias("_key"), F.monotonically_increasing_id().alias("_id")
    ).localCheckpoint()


def _whole(rows: DataFrame) -> Column:
    return F.struct(*(F.col(f"`{name}`") for name in rows.columns))


def _back(like: DataFrame, met: pa.Table, left: DataFrame, right: DataFrame) -> DataFrame:
    """Numbers as rows again: structs `_e` and `_v`."""
    numbers = like.sparkSession.createDataFrame(met.select([c for c in met.column_names if not c.startswith("system")]))
    numbers = numbers.withColumnRenamed("timestamp", "_at")
    events = left.select(F.col("_id").alias("event"), _whole(left).alias("_e"))
    versions = right.select(F.col("_id").alias("version"), _whole(right).alias("_v"))
    return numbers.join(events, "event", "left").join(versions, "version", "left")


def _made(
    operator: Any,
    relations: Sequence[tuple[DataFrame, str, tuple[str, ...]]],
    columns: Mapping[str, tuple[int, str]],
    types: Sequence[tuple[str, pa.DataType]],
    kind: Any,
    *,
    how: Any,
    reach: tuple[int, int] = (0, 0),
) -> pa.Table:
    """What the files have that a kernel writes."""
    done.append(operator)
    with tempfile.TemporaryDirectory() as folder:
        sides, moments = [], set()
        for n, (rows, of, periods) in enumerate(relations):
            table = rows.select("_key", "_id", *periods).toArrow()
            moments |= {at for period in periods for at in table.column(period).to_pylist() if at is not None}
            uri = f"{folder}/{n}"
            _store(uri, table, of)
            sides.append(KernelInput(uri, DeltaTable(uri).version(), of, ("_key",), ("_key", "_id"), None))  # type: ignore[arg-type]
        schema = pa.schema(list(types))
        out = Path(folder, "out")
        DeltaTable.create(str(out), schema=pa.schema([*schema, ("_belief", pa.string())]), partition_by=["_belief"])
        output = KernelOutput(str(out), kind, schema, NOW)
        copied = {name: ColumnReference(name, of) for name, of in types if not name.startswith("system")}
        form = JoinSpec(operator, tuple(sides), False, how, columns, Projection(copied, None), output, reach)
        told = [
            row
            for span in _slices(sorted(moments))
            for batch in task.write_slice(form, span)
            for row in batch.to_pylist()
        ]
        files = [pq.ParquetFile(out / row["path"]).read() for row in told if row["path"]]
        return pa.concat_tables(files) if files else schema.empty_table()


def _store(uri: str, rows: pa.Table, kind: str) -> None:
    """The rows as a table's, with their doubles as superseded ones, whose numbers are wrong."""
    belief = (
        ["open" if end is None else "past" for end in rows.column("validTo").to_pylist()] if kind == "versions" else []
    )
    belief = belief or ["past"] * rows.num_rows
    known, gone = pa.scalar(NOW - timedelta(days=2), MOMENT), pa.scalar(NOW - timedelta(days=1), MOMENT)
    stored = rows.append_column("systemFrom", pa.repeat(known, rows.num_rows))
    own = stored.append_column("systemTo", pa.nulls(rows.num_rows, MOMENT)).append_column("_belief", [belief])
    other = stored.set_column(1, "_id", [[-7] * rows.num_rows]).append_column(
        "systemTo", pa.repeat(gone, rows.num_rows)
    )
    other = other.append_column("_belief", [["superseded"] * rows.num_rows])
    write_deltalake(uri, pa.concat_tables([own, other.cast(own.schema)]), partition_by=["_belief"])


def _slices(moments: Sequence[datetime]) -> list[TimeSlice]:
    cuts = sorted({moments[len(moments) * n // SLICES] for n in range(1, SLICES)}) if moments else []
    return [TimeSlice(start, end) for start, end in zip([None, *cuts], [*cuts, None], strict=True)]
