"""Offsets without a record: what Kafka lost before it was replayed, and what never was a record for a reader.

| fate | offsets that |
| --- | --- |
| gone | retention, or the compaction of a compacted topic, took before they were replayed |
| no_record | hold an aborted record or a transaction's marker: readers of committed records never see them |

Neither has bytes. A run of such offsets is one row of the log, whose `offsets` says how many it stands for.
"""

from __future__ import annotations

from collections.abc import Mapping

from pyspark.sql import DataFrame, SparkSession, Window
from pyspark.sql import functions as F

from hindcast.contracts import Contract
from hindcast.errors import TopicError
from hindcast.kafka.members import Members, place, several
from hindcast.kafka.topics import Offsets

FATES = ("gone", "no_record")
"""The fates of offsets without a record."""

RETENTION = "retention took them before they were replayed"
DELETED = "their topic was deleted before they were replayed"
COMPACTION = "compaction took them before they were replayed"
NO_RECORD = "an aborted record or a transaction's marker"
LOST = "Some data may have been lost because they are not available in Kafka any more"
"""What Spark's connector says when offsets disappear under its reader."""
LOST_MEND = "retry the run: it will say which, and go on without them if the contract has on_gap: record"
_COLUMNS = "partition int, offset long, offsets long"
_LOST = f"{_COLUMNS}, fate string, reason string"


def lost(ranges: Mapping[int, Offsets], held: Mapping[int, Offsets]) -> dict[int, Offsets]:
    """The part of each range that lies before what its partition still holds; all of it where that is not there."""
    before = {p: Offsets(r.start, min(r.end, held[p].start) if p in held else r.end) for p, r in ranges.items()}
    return {p: r for p, r in before.items() if r.end > r.start}


def left(ranges: Mapping[int, Offsets], without: Mapping[int, Offsets]) -> dict[int, Offsets]:
    """The ranges after what was lost of them."""
    return {p: Offsets(without[p].end if p in without else r.start, r.end) for p, r in ranges.items()}


def why(missing: Mapping[int, Offsets], held: Mapping[int, Offsets]) -> str:
    """What took the first of the offsets that are `lost`."""
    return DELETED if missing and min(missing) not in held else RETENTION


def refuse(contract: Contract, name: str, missing: Mapping[int, Offsets], members: Members, why: str) -> None:
    """Raises TopicError if offsets of a topic are missing and its contract does not say `on_gap: record`."""
    if not missing or contract.topics[name].on_gap == "record":
        return
    partition, first = min(missing.items())
    more = f", and more in {several(members, sorted(missing)[1:])}" if len(missing) > 1 else ""
    raise TopicError(
        f"offsets {first.start} to {first.end - 1} are gone from Kafka{more}: {why}",
        where=place(contract.kafka_topic(name), members, partition),
        mend="restore them in Kafka if they can be; to go on without them and have the gap in the ledger: "
        f"topics.{name}.on_gap: record",
    )


def rows(spark: SparkSession, missing: Mapping[int, Offsets], held: Mapping[int, Offsets]) -> DataFrame:
    """What is `lost`, as rows of `partition`, `offset` (the first), `offsets` (how many), `fate` and `reason`."""
    told = [(p, r.start, r.end - r.start, "gone", why({p: r}, held)) for p, r in missing.items()]
    return spark.createDataFrame(told, _LOST)


def between(found: DataFrame, ranges: Mapping[int, Offsets]) -> DataFrame:
    """The offsets of `ranges` that `found` (`partition`, `offset`) has no record of: `partition`, `offset`, `offsets`.

    One row for each run of offsets: found 3, 4, 9 of [3, 12) gives 5 (4 offsets) and 10 (2 offsets).
    """
    edges = [(p, o, o == r.end) for p, r in ranges.items() if r.end > r.start for o in (r.start - 1, r.end)]
    ends = found.sparkSession.createDataFrame(edges, "partition int, offset long, last boolean")
    # One text: Spark makes a balanced tree of it, which hundreds of partitions need.
    inside = " OR ".join(f"(partition = {p} AND offset BETWEEN {r.start} AND {r.end})" for p, r in ranges.items())
    every = found.where(inside or "false").select("partition", "offset", F.lit(False).alias("last")).unionByName(ends)
    following = F.lead("offset").over(Window.partitionBy("partition").orderBy("offset"))
    first = F.col("offset") + 1
    return (
        every.withColumn("next", following)
        .where(~F.col("last") & (F.col("next") > first))
        .select("partition", first.alias("offset"), (F.col("next") - first).alias("offsets"))
    )
