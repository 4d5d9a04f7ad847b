"""One run after the other, all at once: what every run makes of what was known before it.

`s` is a run, and stands in every key and position. What the definition says of run s - 1 is what was believed when run
s came; run s is an increment to that. So all runs of all vectors are steps of one job, each by the incremental path,
and a step that goes wrong shows in its own run.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F

from hindcast.corrected import plane
from hindcast.corrected.islands import Source

_PLACES = ("position", "left_position", "right_position")


class Known(NamedTuple):
    """A relation for every run: by its definition, `whole`, and by increments, with what each run changed, `source`."""

    whole: DataFrame
    source: Source

    @property
    def believed(self) -> DataFrame:
        """What each run believes, by increments."""
        return self.source.near(None)


def events(whole: DataFrame) -> Known:
    """A stream, whose records have the `run` that brought them: each run opens its own."""
    change = whole.where("partition.s = run").withColumn("change", F.lit("open"))
    return Known(whole, Source(change, lambda _: whole))


def before(whole: DataFrame) -> DataFrame:
    """What was believed when a run came: what the run before it knew."""
    following = F.col("key.s") + 1
    for name in (name for name in _PLACES if name in whole.columns):
        whole = whole.withColumn(name, F.col(name).withField("partition.s", F.col(f"{name}.partition.s") + 1))
    return whole.withColumn("key", F.col("key").withField("s", following))


def stepped(whole: DataFrame, was: DataFrame, rows: DataFrame, result: DataFrame, identity: Sequence[str]) -> Known:
    """What each run believes after it compared `rows` of what it found, `was`, with a result, both within a scope."""
    content = [name for name in was.columns if name not in identity]
    change = plane.changes(rows, result.select(*was.columns), identity, content).localCheckpoint()
    closed = change.where("change = 'close'").select(F.struct(*identity).alias("_closed"))
    kept = was.join(closed, F.struct(*identity) == F.col("_closed"), "left_anti")
    now = kept.unionByName(change.where("change = 'open'").select(*was.columns)).localCheckpoint()
    return Known(whole, Source(change, lambda _: now))


def first_places(versions: DataFrame) -> DataFrame:
    """Versions with the position under which a run first learnt them: a repeat does not change what is believed."""
    row = Window.partitionBy("key.vector", "key.k", "value", "validFrom", "validTo")
    stretch = Window.partitionBy("key.vector", "key.k", "value", "validFrom", "validTo", "_stretch")
    first = F.first("position").over(stretch.orderBy("key.s"))
    return (
        versions.withColumn("_stretch", F.col("key.s") - F.row_number().over(row.orderBy("key.s")))
        .withColumn("position", first.withField("partition.s", F.col("key.s")))
        .drop("_stretch")
    )
