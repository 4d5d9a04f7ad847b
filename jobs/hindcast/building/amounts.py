"""The table that emitted records amount to: as a reader of the output topic would have it (emitting.py).

Events and pairs are there from when they were emitted. Records of a table are its versions, each valid from its own
timestamp to that of the key's next one (plane.versions). Of a window the record that came last is right.
"""

from __future__ import annotations

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F

from hindcast.contracts import Shape
from hindcast.contracts.shapes import PERIODS, identity
from hindcast.corrected import derive, refresh
from hindcast.corrected.plane import matching
from hindcast.corrected.refresh import Refreshed
from hindcast.delta.emitted import PLACES
from hindcast.delta.sources import Sources
from hindcast.delta.tables import Table


def whole(emitted: DataFrame, shape: Shape) -> DataFrame:
    """The flat rows that all records of a kafka view amount to. `emitted`: rows of its log, of one epoch."""
    match shape.kind:
        case "versions":
            return derive.versions(_as_log(emitted, shape))
        case "windows":
            return _windows(emitted, shape)
        case _:
            return _events(emitted, shape)


def refreshed(new: DataFrame, earlier: DataFrame, shape: Shape, sources: Sources, table: Table) -> Refreshed:
    """What new records make of the table that earlier ones amount to."""
    near = sources.near(table)
    match shape.kind:
        case "versions":

            def log(periods: DataFrame | None) -> DataFrame:
                some = earlier if periods is None else sources.within(earlier, periods, "timestamp", "timestamp")
                return _as_log(some, shape)

            return refresh.topic(shape, None, _as_log(new, shape), near, log, sources.keep)
        case "windows":
            right, window = _windows(new, shape), [*shape.key, *PERIODS["windows"]]
            touched = sources.keep(new.select(*window).distinct())
            periods = touched.select(F.col(window[-2]).alias("start"), F.col(window[-1]).alias("end"))
            return Refreshed(matching(near(periods), touched, window), right)
        case _:
            rows = _events(new, shape)
            return Refreshed(near(None).where("false"), rows)


def _as_log(emitted: DataFrame, shape: Shape) -> DataFrame:
    """Emitted records as those of a topic that is read as a table."""
    value = F.struct(*shape.value)
    return emitted.select(
        derive.keyed({column: F.col(column) for column in shape.key}).alias("key"),
        F.when(~F.col("_tombstone"), value).alias("value"),
        "timestamp",
        F.col("_epoch").alias("epoch"),
        F.col("_partition").alias("partition"),
        F.col("_offset").alias("offset"),
    )


def _windows(emitted: DataFrame, shape: Shape) -> DataFrame:
    """Of each window what came last; nothing if that is a tombstone."""
    window = [*shape.key, *PERIODS["windows"]]
    later = Window.partitionBy(*window).orderBy(F.desc("_offset"))
    last = emitted.withColumn("_n", F.row_number().over(later)).where("_n = 1 AND NOT _tombstone")
    return last.select(*shape.columns, *PERIODS["windows"])


def _events(emitted: DataFrame, shape: Shape) -> DataFrame:
    carried = [column for place in PLACES[shape.kind] for column in place]
    places = zip(carried, identity(shape.kind, shape.key), strict=True)
    told = (F.col(column).alias(its) for column, its in places)
    return emitted.where("NOT _tombstone").select(*shape.columns, *PERIODS[shape.kind], *told)
