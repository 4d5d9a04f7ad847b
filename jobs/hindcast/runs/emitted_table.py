"""The table that follows from emitted records, as a reader of the output topic would build it (emission.py).

Events and pairs are rows of their own. Records of a table are its versions, each valid from its own timestamp to that
of the key's next one (`plane.derive_versions`). For a window the last record holds.
"""

from __future__ import annotations

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F

from hindcast.bitemporal import derivation, incremental_views
from hindcast.bitemporal.incremental_views import AffectedRows
from hindcast.bitemporal.plane import keep_matching_rows
from hindcast.contract import Shape
from hindcast.contract.shapes import PERIODS, SOURCE_PLACES, identity_columns
from hindcast.store.change_reader import ChangeReader
from hindcast.store.tables import Table


def derive_table(emitted: DataFrame, shape: Shape) -> DataFrame:
    """Return the flat rows of a kafka view's table. `emitted`: rows of its log, of one epoch."""
    match shape.kind:
        case "versions":
            return derivation.derive_topic_versions(_as_topic_records(emitted, shape))
        case "windows":
            return _derive_windows(emitted, shape)
        case _:
            return _derive_events(emitted, shape)


def derive_increment(
    new: DataFrame, earlier: DataFrame, shape: Shape, sources: ChangeReader, table: Table
) -> AffectedRows:
    """Return the rows of the table that `new` emitted records affect, as they are and as they become."""
    near = sources.read_near(table)
    match shape.kind:
        case "versions":

            def log(periods: DataFrame | None) -> DataFrame:
                some = earlier if periods is None else sources.filter_within(earlier, periods, "timestamp", "timestamp")
                return _as_topic_records(some, shape)

            return incremental_views.refresh_topic(
                shape, None, _as_topic_records(new, shape), near, log, sources.cache_rows
            )
        case "windows":
            derived, window = _derive_windows(new, shape), [*shape.key, *PERIODS["windows"]]
            touched = sources.cache_rows(new.select(*window).distinct())
            periods = touched.select(F.col(window[-2]).alias("start"), F.col(window[-1]).alias("end"))
            return AffectedRows(keep_matching_rows(near(periods), touched, window), derived)
        case _:
            rows = _derive_events(new, shape)
            return AffectedRows(near(None).where("false"), rows)


def _as_topic_records(emitted: DataFrame, shape: Shape) -> DataFrame:
    """Return emitted records in the form of a topic that is read as a table."""
    value = F.struct(*shape.value)
    return emitted.select(
        derivation.key_struct({column: F.col(column) for column in shape.key}).alias("key"),
        F.when(~F.col("_tombstone"), value).alias("value"),
        "timestamp",
        F.col("_epoch").alias("epoch"),
        F.col("_partition").alias("partition"),
        F.col("_offset").alias("offset"),
    )


def _derive_windows(emitted: DataFrame, shape: Shape) -> DataFrame:
    """Return the last record of each window, unless it is a tombstone."""
    window = [*shape.key, *PERIODS["windows"]]
    later = Window.partitionBy(*window).orderBy(F.desc("_offset"))
    last = emitted.withColumn("_n", F.row_number().over(later)).where("_n = 1 AND NOT _tombstone")
    return last.select(*shape.columns, *PERIODS["windows"])


def _derive_events(emitted: DataFrame, shape: Shape) -> DataFrame:
    """Return a row for each emitted event or pair."""
    carried = [column for place in SOURCE_PLACES[shape.kind] for column in place]
    places = zip(carried, identity_columns(shape.kind, shape.key), strict=True)
    identity = (F.col(column).alias(name) for column, name in places)
    return emitted.where("NOT _tombstone").select(*shape.columns, *PERIODS[shape.kind], *identity)
