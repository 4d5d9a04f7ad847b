"""Offsets without a record: those that Kafka lost before they were replayed, and those that never had one.

| fate | offsets that |
| --- | --- |
| gone | retention, or the compaction of a compacted topic, took before they were replayed; an archive lacks |
| no_record | hold an aborted record or a transaction's marker: readers of committed records never see them |

In a compacted topic, and in an archive, nobody can tell the two apart: all are gone. Neither has bytes. A run of such
offsets is one row of the log, whose `offsets` says how many it stands for.
"""

from __future__ import annotations

from collections.abc import Mapping

from pyspark.sql import DataFrame, SparkSession, Window
from pyspark.sql import functions as F

from hindcast.common.errors import TopicError
from hindcast.contract import Contract
from hindcast.kafka.topic_patterns import MemberPartitions, describe_partition, describe_partitions
from hindcast.kafka.topics import OffsetRange

GAP_FATES = ("gone", "no_record")
"""The fates of offsets without a record."""

RETENTION = "retention took them before they were replayed"
DELETED = "their topic was deleted before they were replayed"
NOT_ARCHIVED = "neither Kafka nor the archive has them"
COMPACTION = "compaction took them before they were replayed, or they are markers of transactions and aborted records"
NO_RECORD = "an aborted record or a transaction's marker"
_COLUMNS = "partition int, offset long, offsets long"
_LOST_COLUMNS = f"{_COLUMNS}, fate string, reason string"


def find_lost_ranges(ranges: Mapping[int, OffsetRange], held: Mapping[int, OffsetRange]) -> dict[int, OffsetRange]:
    """Return the part of each range before what its partition still holds; all of it for a missing partition."""
    before = {p: OffsetRange(r.start, min(r.end, held[p].start) if p in held else r.end) for p, r in ranges.items()}
    return {p: r for p, r in before.items() if r.end > r.start}


def remaining_ranges(ranges: Mapping[int, OffsetRange], without: Mapping[int, OffsetRange]) -> dict[int, OffsetRange]:
    """Return the ranges after what was lost of them."""
    return {p: OffsetRange(without[p].end if p in without else r.start, r.end) for p, r in ranges.items()}


def split_ranges_at(
    ranges: Mapping[int, OffsetRange], archived: Mapping[int, OffsetRange]
) -> tuple[dict[int, OffsetRange], dict[int, OffsetRange]]:
    """Return the parts of ranges before the ends of the archived ones, and the rest."""
    cuts = {p: min(max(archived[p].end, r.start), r.end) if p in archived else r.start for p, r in ranges.items()}
    before = {p: OffsetRange(r.start, cuts[p]) for p, r in ranges.items() if cuts[p] > r.start}
    return before, {p: OffsetRange(cuts[p], r.end) for p, r in ranges.items() if r.end > cuts[p]}


def describe_cause(missing: Mapping[int, OffsetRange], held: Mapping[int, OffsetRange]) -> str:
    """Return what removed the first of the offsets of `find_lost_ranges`."""
    return DELETED if missing and min(missing) not in held else RETENTION


def refuse_gap(
    contract: Contract, name: str, missing: Mapping[int, OffsetRange], members: MemberPartitions, why: str
) -> None:
    """Raise TopicError if offsets of a topic are missing and its contract does not say `on_gap: record`."""
    if not missing or contract.topics[name].on_gap == "record":
        return
    partition, first = min(missing.items())
    more = f", and more in {describe_partitions(members, sorted(missing)[1:])}" if len(missing) > 1 else ""
    place = "in Kafka" if contract.topics[name].archive is None else "in Kafka or in the archive"
    raise TopicError(
        f"offsets {first.start} to {first.end - 1} are gone from Kafka{more}: {why}",
        where=describe_partition(contract.kafka_topic(name), members, partition),
        fix=f"restore them {place} if they can be; to go on without them and have the gap in the ledger: "
        f"topics.{name}.on_gap: record",
    )


def lost_rows(spark: SparkSession, missing: Mapping[int, OffsetRange], held: Mapping[int, OffsetRange]) -> DataFrame:
    """Return `find_lost_ranges` as rows: `partition`, `offset` (the first), `offsets` (how many), `fate`, `reason`."""
    rows = [(p, r.start, r.end - r.start, "gone", describe_cause({p: r}, held)) for p, r in missing.items()]
    return spark.createDataFrame(rows, _LOST_COLUMNS)


def find_missing_offsets(records: DataFrame, ranges: Mapping[int, OffsetRange]) -> DataFrame:
    """Return the offsets of `ranges` that `records` (`partition`, `offset`) lack: `partition`, `offset`, `offsets`.

    One row for each run of offsets: with records 3, 4, 9 of [3, 12) it is 5 (4 offsets) and 10 (2 offsets).
    """
    edges = [(p, o, o == r.end) for p, r in ranges.items() if r.end > r.start for o in (r.start - 1, r.end)]
    ends = records.sparkSession.createDataFrame(edges, "partition int, offset long, last boolean")
    # One text: Spark parses it to a balanced tree, which hundreds of partitions need.
    inside = " OR ".join(f"(partition = {p} AND offset BETWEEN {r.start} AND {r.end})" for p, r in ranges.items())
    present = records.where(inside or "false").select("partition", "offset", F.lit(False).alias("last"))
    following = F.lead("offset").over(Window.partitionBy("partition").orderBy("offset"))
    first = F.col("offset") + 1
    return (
        present.unionByName(ends)
        .withColumn("next", following)
        .where(~F.col("last") & (F.col("next") > first))
        .select("partition", first.alias("offset"), (F.col("next") - first).alias("offsets"))
    )
