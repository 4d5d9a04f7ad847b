"""Processing order: the order in which a Kafka Streams task takes the records of several topics and partitions.

docs/kafka-parity.md (several interleavings of partitions).
"""

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F


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
    run = F.lit(0).cast("long") if waits else F.col("run")  # rule: a task that waits goes on over runs
    # rule: a partition has its own largest timestamp
    so_far = Window.partitionBy("partition", run).orderBy(*([] if turn is None else [turn]), "offset")
    so_far = so_far.rowsBetween(Window.unboundedPreceding, 0)
    # rule: records are ordered by what was reached, ties by topic
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
