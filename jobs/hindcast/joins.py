"""Joins in the `corrected` reading (design.md 4): what was valid at an event, and versions that overlap."""

from typing import Literal

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F


def stream_table(
    events: DataFrame, versions: DataFrame, how: Literal["inner", "left"], on: Column | None = None
) -> DataFrame:
    """Each event with the version of key `on` that is valid at the event's timestamp, however old the event is.

    `events` has `key`, `value`, `timestamp`, `position`; `versions` has `key`, `value`, `validFrom`, `validTo`,
    maybe `position`, and no two versions of a key overlap. `on` is an expression over the event (default: its key) of the
    type of the versions' key; null matches nothing (a null inside a struct is a value like any other). `inner` drops
    an event without a version, `left` keeps it with a null.
    Returns `key, timestamp, position` of the event, `left` (its value), `right` (the version's value or null) and the
    lineage `right_from` and, if the versions have positions, `right_position`.

        curry 8 [0, 4), 10 [4, ..)    event @4 -> 10    event @3 -> 8    event before 0 -> null
    """
    kept = ["value", "validFrom", "validTo", *(["position"] if "position" in versions.columns else [])]
    points = events.select(
        (F.col("key") if on is None else on).alias("_on"),
        F.col("timestamp").alias("_at"),
        F.lit(1).alias("_turn"),
        F.struct("key", "value", "timestamp", "position").alias("_event"),
    )
    starts = versions.select(
        F.col("key").alias("_on"),
        F.col("validFrom").alias("_at"),
        F.lit(0).alias("_turn"),
        F.struct(*kept).alias("_version"),
    )
    sweep = Window.partitionBy("_on").orderBy("_at", "_turn")
    latest = F.last("_version", ignorenulls=True).over(sweep.rowsBetween(Window.unboundedPreceding, 0))
    met = (
        points.unionByName(starts, allowMissingColumns=True)
        .withColumn("_version", F.when(F.col("_on").isNotNull(), latest))
        .where(F.col("_event").isNotNull())
        .withColumn("_version", F.when(_lasts(F.col("_version.validTo"), F.col("_at")), F.col("_version")))
    )
    if how == "inner":
        met = met.where(F.col("_version").isNotNull())
    lineage = [F.col("_version.position").alias("right_position")] if "position" in kept else []
    return met.select(
        F.col("_event.key").alias("key"),
        F.col("_event.timestamp").alias("timestamp"),
        F.col("_event.position").alias("position"),
        F.col("_event.value").alias("left"),
        F.col("_version.value").alias("right"),
        F.col("_version.validFrom").alias("right_from"),
        *lineage,
    )


def _lasts(end: Column, moment: Column) -> Column:
    return end.isNull() | (end > moment)
