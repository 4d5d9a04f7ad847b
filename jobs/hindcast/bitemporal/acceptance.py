"""Acceptance: which records of a log are accepted, which are late and which expire, by stream time.

Here fates are decided; docs/semantics.md, rules 17, 31 and 32. That bytes are malformed is found in formats/decode.py.
"""

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F


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


def add_stream_time(events: DataFrame, stream_time: Column | None = None) -> DataFrame:
    """Return events with `streamTime`: the largest timestamp of the events of their source partition so far.

    `events` has `key`, `value`, `timestamp` and `position`. The event itself counts, of all keys; events without key or
    value do not (docs/semantics.md, rule 17). `stream_time` is what earlier runs had reached, or null.
    """
    # rule: windows have a stream time for each partition
    upto = Window.partitionBy("position.partition").orderBy("position.offset")
    # rule: an event counts for its own stream time
    upto = upto.rowsBetween(Window.unboundedPreceding, Window.currentRow)
    # rule: an event without a value moves no stream time
    counts = F.col("key").isNotNull() & F.col("value").isNotNull()
    seen = F.max(F.when(counts, F.col("timestamp"))).over(upto)
    return events.withColumn("streamTime", _latest_stream_time(seen, stream_time))


def _decide_fate(stream_time: Column, history_retention: Column) -> Column:
    # T - t > R rather than t < T - R: an unlimited retention must not overflow.
    # rule: a record at stream time - retention is taken
    too_old = F.coalesce(stream_time - F.col("timestamp") > history_retention, F.lit(False))
    return F.when(too_old, F.lit("expired")).otherwise(F.lit("accepted"))  # rule: a record past the retention expires


def _latest_stream_time(seen: Column, earlier: Column | None) -> Column:
    return seen if earlier is None else F.greatest(seen, earlier)
