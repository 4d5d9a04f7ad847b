"""Stream time and acceptance: which records of a log a table takes, and their processing order.

docs/semantics.md, rules 17, 31 and 32.
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
    before = Window.partitionBy("partition").orderBy("offset").rowsBetween(Window.unboundedPreceding, -1)
    # Over all undecided records this is also the largest accepted timestamp: an expired one is never the largest.
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
    upto = Window.partitionBy("position.partition").orderBy("position.offset")
    upto = upto.rowsBetween(Window.unboundedPreceding, Window.currentRow)
    counts = F.col("key").isNotNull() & F.col("value").isNotNull()
    seen = F.max(F.when(counts, F.col("timestamp"))).over(upto)
    return events.withColumn("streamTime", _latest_stream_time(seen, stream_time))


def add_processing_order(
    records: DataFrame, topic: int, *, waits: bool = False, turn: Column | None = None
) -> DataFrame:
    """Return records of one topic with `order`: their place in processing order, over all topics and partitions.

    `records` has `run`, `partition`, `offset` and `timestamp`; `topic` is the topic's number in its contract. Runs come
    one after the other. Within a run each partition is in offset order, and the partition whose next record has the
    smallest timestamp goes first, ties by topic and partition, as in a Kafka Streams task that never runs out of
    buffered input (KIP-353). That is the order of `reached`, the largest timestamp of the partition so far.
    `waits`: all runs count as one, so that the order does not depend on where runs cut the log (`settled`). `turn`:
    sorts before the offset within a partition: a requeued record comes after the records ingested before it
    (ingest/requeued_records.py).

    Returns the same columns and `order`: struct<run, reached (ms), topic, partition, offset, turn>; `turn` is empty: it
    orders the results of one record.

        partition 0: @1, @9, @2    partition 1: @3    ->    @1, @3, @9, @2
    """
    run = F.lit(0).cast("long") if waits else F.col("run")
    so_far = Window.partitionBy("partition", run).orderBy(*([] if turn is None else [turn]), "offset")
    so_far = so_far.rowsBetween(Window.unboundedPreceding, 0)
    return records.withColumn(
        "order",
        F.struct(
            run.alias("run"),
            F.max(F.unix_millis("timestamp")).over(so_far).alias("reached"),
            F.lit(topic).alias("topic"),
            F.col("partition"),
            F.col("offset"),
            F.array().cast("array<int>").alias("turn"),
        ),
    )


def interval_micros(interval: Column) -> Column:
    """Return a day-time interval in microseconds."""
    return F.unix_micros(F.timestamp_micros(F.lit(0)) + interval)


def _decide_fate(stream_time: Column, history_retention: Column) -> Column:
    # T - t > R rather than t < T - R: an unlimited retention must not overflow.
    too_old = F.coalesce(stream_time - F.col("timestamp") > history_retention, F.lit(False))
    return F.when(too_old, F.lit("expired")).otherwise(F.lit("accepted"))


def _latest_stream_time(seen: Column, earlier: Column | None) -> Column:
    return seen if earlier is None else F.greatest(seen, earlier)
