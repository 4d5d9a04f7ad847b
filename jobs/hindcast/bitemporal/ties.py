"""Ties: records of one key and one timestamp with different content. Pure: DataFrame in, DataFrame out.

Of such records the one with the largest position holds (`plane.derive_versions`). Within a partition that is the later
one. Of two partitions it is the one of the larger number, whichever was sent later: such a tie has no order. It comes
about where producers send one key to several partitions, because their partitioners differ.

    key a @5:  8 at 0/3, 9 at 0/4    ->    9 holds: it came later
    key a @5:  8 at 1/3, 9 at 0/7    ->    8 holds: 1 is more than 0
"""

from __future__ import annotations

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F
from pyspark.sql.window import WindowSpec

from hindcast.bitemporal import plane


def find_ties(new: DataFrame, earlier: DataFrame | None = None, neighbours: DataFrame | None = None) -> DataFrame:
    """Return the new and the other given records with columns that describe their ties.

    `new`: accepted records with `key`, `value`, `timestamp` and `position`. `earlier`: records accepted before, at
    least those of a key and timestamp of new ones. `neighbours`: other rows of these keys, of which only key and
    position matter. Records of different epochs of the partition count do not tie: the later epoch is the later record.

    The columns added are `new`; `unordered`: at this timestamp another partition's last value of the key differs from
    that of this record's partition; `replaced`: a later new record of its partition has another value at this
    timestamp; `winner`: the position of the record that holds if its value differs, else null.
    """
    columns = "key", "value", "timestamp", "position"
    rows = new.select(*columns, F.lit(True).alias("new"))
    if earlier is not None:
        rows = rows.unionByName(earlier.select(*columns, F.lit(False).alias("new")))
    if neighbours is not None:
        # Without a timestamp they tie with nothing.
        nothing = F.lit(None).cast(new.schema["value"].dataType).alias("value")
        timeless = F.lit(None).cast("timestamp").alias("timestamp")
        rows = rows.unionByName(neighbours.select("key", nothing, timeless, "position", F.lit(False).alias("new")))
    # One shuffle and one sort for all windows, whose rows are in the order of positions.
    place = "_epoch", "_partition", "_offset"
    of_time, of_all, of_partition = (
        Window.partitionBy("key", "timestamp", *place[:n])
        .orderBy(*place[n:])
        .rowsBetween(Window.unboundedPreceding, Window.unboundedFollowing)
        for n in range(3)
    )
    said = F.struct("value")  # a tombstone's null is a value too
    of_kafka = F.col("_partition") >= 0  # rows of adopted tables have no partition, and come before all records
    last_said = F.when((F.col("position") == F.col("_last")) & of_kafka, F.struct("_said"))
    differ = F.min(last_said).over(of_all) != F.max(last_said).over(of_all)
    return (
        rows.repartition("key")
        .withColumns({name: F.col(f"position.{name[1:]}") for name in place})
        .withColumn("_said", said)
        .withColumns(
            {
                "_last": F.last("position").over(of_partition),
                "_lasts": F.last("_said").over(of_partition),
                "_first": F.last("position").over(of_time),
                "_holds": F.last("_said").over(of_time),
            }
        )
        .withColumn("_spread", _has_several_values(F.when(of_kafka, F.col("_partition")), of_all) & differ)
        .select(
            *columns,
            "new",
            (of_kafka & F.coalesce("_spread", F.lit(False))).alias("unordered"),
            (F.col("new") & ~F.col("_said").eqNullSafe(F.col("_lasts"))).alias("replaced"),
            F.when(~F.col("_said").eqNullSafe(F.col("_holds")), F.col("_first")).alias("winner"),
        )
    )


def _has_several_values(value: Column, rows: WindowSpec) -> Column:
    return F.min(value).over(rows) != F.max(value).over(rows)


def exclude_held_records(rows: DataFrame, held: DataFrame) -> DataFrame:
    """Return the ties (`find_ties`) of the records that are left without the held ones.

    A record is held if it equals a row of `held` in all its columns: the key's, or `_partition` and `_offset`.
    """
    place = F.col("position.partition").alias("_partition"), F.col("position.offset").alias("_offset")
    flat = rows.select(F.struct("*").alias("_row"), "key.*", *place)
    left = plane.drop_matching_rows(flat, held, held.columns).select("_row.*")
    return find_ties(left.where("new"), left.where("NOT new"))


def flatten_ties(rows: DataFrame) -> DataFrame:
    """Return the new records of `find_ties` as gates read them: flat rows with `_unordered` and `_replaced`."""
    place = (F.col("position.partition").alias("_partition"), F.col("position.offset").alias("_offset"))
    marks = (F.col(name).alias(f"_{name}") for name in ("unordered", "replaced"))
    period = (F.col("timestamp").alias("validFrom"), F.lit(None).cast("timestamp").alias("validTo"))
    return rows.where("new").select("key.*", "value.*", *period, *place, *marks)


def count_ties(rows: DataFrame) -> DataFrame:
    """Return one row with a struct `ties`, the counts of `find_ties`.

    scattered: keys that are in more than one partition of one epoch; lost: new records that lost to another partition,
    with the places of the first, `loser` and `winner`; replaced: new records that were replaced within their partition.
    """
    elsewhere = F.col("winner.partition") != F.col("position.partition")
    lost = F.col("new") & F.col("unordered") & ~F.col("replaced") & F.col("winner").isNotNull() & elsewhere
    of_kafka, several = (
        rows.where("position.partition >= 0"),
        F.min("position.partition") != F.max("position.partition"),
    )
    scattered = of_kafka.groupBy("key", "position.epoch").agg(several.alias("scattered")).where("scattered")
    counted = of_kafka.agg(
        F.count_if(lost).alias("lost"),
        F.count_if("replaced").alias("replaced"),
        F.min(F.when(lost, F.struct(F.col("position").alias("loser"), "winner"))).alias("first"),
    )
    counts = F.struct("scattered", "lost", "replaced", "first.loser", "first.winner")
    keys = scattered.agg(F.count_distinct("key").alias("scattered"))
    return keys.crossJoin(counted).select(counts.alias("ties"))
