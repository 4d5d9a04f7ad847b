"""Steps: all runs of all vectors as one job, each run as an increment to the run before it.

`s` is a run, and is part of every key and position. The result of run s - 1 by definition is what was current when run
s began; run s is an increment to that. So every run takes the incremental path, and an error in a step shows in its own
run.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F

from hindcast.bitemporal import plane
from hindcast.bitemporal.affected_periods import ChangedInput

_PLACES = ("position", "left_position", "right_position")


class SteppedRelation(NamedTuple):
    """A relation for every run: `whole` by its definition, `source` by increments, with what each run changed."""

    whole: DataFrame
    source: ChangedInput

    @property
    def current(self) -> DataFrame:
        """The current rows after each run, by increments."""
        return self.source.rows_near(None)


def stream_relation(whole: DataFrame) -> SteppedRelation:
    """Return a stream for every run; its records have the `run` that ingested them, and that run opens them."""
    change = whole.where("partition.s = run").withColumn("_change", F.lit("open"))
    return SteppedRelation(whole, ChangedInput(change, lambda _: whole))


def rows_before_run(whole: DataFrame) -> DataFrame:
    """Return the rows that were current when each run began: those of the run before it."""
    for name in [name for name in _PLACES if name in whole.columns]:
        whole = whole.withColumn(name, F.col(name).withField("partition.s", F.col(f"{name}.partition.s") + 1))
    return whole.withColumn("key", F.col("key").withField("s", F.col("key.s") + 1))


def apply_increment(
    whole: DataFrame, was: DataFrame, rows: DataFrame, result: DataFrame, identity: Sequence[str]
) -> SteppedRelation:
    """Return the relation after each run replaced `rows`, the part of `was` in its scope, by `result`."""
    content = [name for name in was.columns if name not in identity]
    change = plane.diff_rows(rows, result.select(*was.columns), identity, content).localCheckpoint()
    closed = change.where("_change = 'close'").select(F.struct(*identity).alias("_closed"))
    unchanged = was.join(closed, F.struct(*identity) == F.col("_closed"), "left_anti")
    current = unchanged.unionByName(change.where("_change = 'open'").select(*was.columns)).localCheckpoint()
    return SteppedRelation(whole, ChangedInput(change, lambda _: current))


def keep_first_positions(versions: DataFrame) -> DataFrame:
    """Return versions with the position at which a run first learnt them: a repeat does not change the current rows."""
    row = Window.partitionBy("key.vector", "key.k", "value", "validFrom", "validTo")
    stretch = Window.partitionBy("key.vector", "key.k", "value", "validFrom", "validTo", "_stretch")
    first = F.first("position").over(stretch.orderBy("key.s"))
    return (
        versions.withColumn("_stretch", F.col("key.s") - F.row_number().over(row.orderBy("key.s")))
        .withColumn("position", first.withField("partition.s", F.col("key.s")))
        .drop("_stretch")
    )
