"""Fates: what becomes of each record and offset; here by stream time, also which records are late.

| fate | decided in |
| --- | --- |
| accepted, expired | here, `decide_fates`: docs/semantics.md, rules 17, 31 and 32 |
| malformed, null_key, no_timestamp, time_skew, no_change | formats/decoder.py, `Decoder.judge` |
| time_skew, of a topic with `arrival` | ingest/arrivals.py, `judge_arrivals` |
| gone, no_record | ingest/ingest_commits.py, of offsets without a record (kafka/gaps.py) |

The text of the reason for `expired` is `ingest/topic_log.py`, `describe_retention`.

What a run ingests is judged as it is read, in Arrow: `ingest/segment_fates.py` has the same decision once more, so a
change of meaning goes into both.
"""

from __future__ import annotations

from typing import TypeAlias, overload

import numpy as np
from numpy.typing import NDArray
from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

Micros: TypeAlias = NDArray[np.int64]
"""Numbers of microseconds."""

FATES = (
    *("accepted", "expired", "malformed", "null_key", "no_timestamp", "time_skew"),
    *("no_change", "gone", "no_record"),
)
"""Every fate that an offset can have; docs/glossary.md says what each means.

Some of them have names of their own: `decoder.DECODING_FATES`, `gaps.GAP_FATES`, `quarantine.NOT_REFUSED` (and
`segment_packing`), `emission.READ_FATES`, and those that `retimestamping` and `own_rules/base.py` leave as they are.
"""


def decide_fates(records: DataFrame, history_retention: Column, stream_time: Column | None = None) -> DataFrame:
    """Return the records of a table's log, with a fate for each undecided one.

    `records` has `partition`, `offset`, `timestamp` and `fate` (string, null = undecided). An undecided record is
    `expired` iff timestamp < T - history_retention, else `accepted`; T is the largest timestamp accepted before it in
    its partition, in offset order, of all keys. At timestamp = T - history_retention it is still accepted. Records
    whose fate is decided already keep it and move no time. The first record of a partition never expires.

    `history_retention` is a day-time interval and may differ by partition. `stream_time` is T as earlier runs left it,
    null where there was none; with it the fates do not depend on how runs cut the log. Returns the same columns and
    `streamTime`: T as it was before the record, null at first; a record dated before it is late.

        retention 10 ms    offset 0 @30 accepted    offset 1 @20 accepted    offset 2 @19 expired
    """
    # rule: stream time is the largest timestamp before a record, of its partition
    before = Window.partitionBy("partition").orderBy("offset").rowsBetween(Window.unboundedPreceding, -1)
    # Over all undecided records this is also the largest accepted timestamp: an expired one is never the largest.
    # rule: a record without a key does not move stream time
    reached = _latest_stream_time(F.max(F.when(F.col("fate").isNull(), F.col("timestamp"))).over(before), stream_time)
    return records.withColumns(
        {"fate": F.coalesce(F.col("fate"), _decide_fate(reached, history_retention)), "streamTime": reached}
    )


def redecide_fates(records: DataFrame, history_retention: Column) -> DataFrame:
    """Return records with the fates that they would have under another history retention; `decide_fates` comes first.

    No other record is needed: an expired one is never the latest, so stream time is the same under any retention.

        at streamTime 30    @19, retention 10 ms: expired    @19, retention 11 ms: accepted
    """
    fate = F.when(F.col("fate").isin("accepted", "expired"), _decide_fate(F.col("streamTime"), history_retention))
    return records.withColumn("fate", F.coalesce(fate, F.col("fate")))


def add_stream_time(events: DataFrame, stream_time: Column | None = None, *by: str) -> DataFrame:
    """Return events with `streamTime`: the largest timestamp of the events of their source partition so far.

    `events` has `key`, `value`, `timestamp` and `position`. The event itself counts, of all keys; events without key or
    value do not (docs/semantics.md, rule 17). `stream_time` is what earlier events had reached, or null; `by`: columns
    that divide a partition into parts, of each of which `stream_time` is the start.
    """
    # rule: windows have a stream time for each partition
    upto = Window.partitionBy("position.partition", *by).orderBy("position.offset")
    # rule: an event counts for its own stream time
    upto = upto.rowsBetween(Window.unboundedPreceding, Window.currentRow)
    return events.withColumn("streamTime", _latest_stream_time(F.max(_counted_timestamp()).over(upto), stream_time))


OFFSETS_PER_BLOCK = 1_000
"""The length of the blocks in which `add_stream_time_bounds` divides a partition."""


def add_stream_time_bounds(events: DataFrame) -> DataFrame:
    """Return events with `latestTime`, which their `streamTime` (`add_stream_time`) does not pass, and how to find it.

    Without a sort: a partition is divided into blocks of offsets. `source` and `block`: the event's partition and the
    number of its block; `timeBefore`: the stream time before that, null at first. So stream time is not less than this,
    nor than the event's own timestamp.
    """
    block = F.floor(F.col("position.offset") / OFFSETS_PER_BLOCK)
    placed = events.withColumns({"source": F.col("position.partition"), "block": block})
    blocks = placed.groupBy("source", "block").agg(F.max(_counted_timestamp()).alias("_reached"))
    in_order = Window.partitionBy("source").orderBy("block")
    # rule: a block begins with the stream time before it
    before = F.max("_reached").over(in_order.rowsBetween(Window.unboundedPreceding, -1))
    # rule: stream time does not pass the latest of its block
    blocks = blocks.select(
        "source",
        "block",
        before.alias("timeBefore"),
        F.max("_reached").over(in_order.rowsBetween(Window.unboundedPreceding, 0)).alias("latestTime"),
    )
    return placed.join(F.broadcast(blocks), ["source", "block"])


def _counted_timestamp() -> Column:
    """Return the timestamp of an event that counts for stream time; null of another."""
    # rule: an event without a value moves no stream time
    counts = F.col("key").isNotNull() & F.col("value").isNotNull()
    return F.when(counts, F.col("timestamp"))


@overload
def is_too_old(stream_time: Column, timestamp: Column, history_retention: Column) -> Column: ...
@overload
def is_too_old(stream_time: Micros, timestamp: Micros, history_retention: int) -> NDArray[np.bool_]: ...
def is_too_old(
    stream_time: Column | Micros, timestamp: Column | Micros, history_retention: Column | int
) -> Column | NDArray[np.bool_]:
    """Return whether records of a table are older than its history retention at their stream time."""
    # T - t > R rather than t < T - R: an unlimited retention must not overflow.
    # rule: a record at stream time - retention is taken
    return stream_time - timestamp > history_retention  # type: ignore[operator]  # of one kind


def _decide_fate(stream_time: Column, history_retention: Column) -> Column:
    too_old = F.coalesce(is_too_old(stream_time, F.col("timestamp"), history_retention), F.lit(False))
    return F.when(too_old, F.lit("expired")).otherwise(F.lit("accepted"))  # rule: a record past the retention expires


def _latest_stream_time(seen: Column, earlier: Column | None) -> Column:
    return seen if earlier is None else F.greatest(seen, earlier)
