"""What a contract allows of records, whatever their format: how large one may be, how many may be malformed."""

from __future__ import annotations

from collections.abc import Callable

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from hindcast.contracts import Topic


def within(records: DataFrame, topic: Topic, decode: Callable[[DataFrame], DataFrame]) -> DataFrame:
    """Records as `decode` decodes them, but for those of more than `max_record_bytes`: malformed, and not looked into.

    It is asked once, when a record is replayed or requeued: another limit makes no accepted record malformed.
    """
    if topic.max_record_bytes is None:
        return decode(records)
    large = F.col("_size") > topic.max_record_bytes
    small = {part: F.when(~large, F.col(part)) for part in ("key", "value")}
    decoded = decode(records.withColumn("_size", size(records)).withColumns(small))
    told = F.concat(F.lit("oversized: "), "_size", F.lit(f" bytes, {topic.max_record_bytes} may be"))
    # That it has no timestamp may be due to what was not looked into.
    refused = large if topic.valid_time is not None else large & ~F.col("fate").eqNullSafe("no_timestamp")
    why = {"fate": (refused, F.lit("malformed")), "reason": (refused, told)}
    return decoded.withColumns(
        {name: F.when(condition, value).otherwise(F.col(name)) for name, (condition, value) in why.items()}
    ).drop("_size")


def size(records: DataFrame) -> Column:
    """The bytes of a record's key, value and headers, names and values; null is none."""
    parts = [F.coalesce(F.octet_length(part), F.lit(0)).cast("bigint") for part in ("key", "value")]
    if "headers" in records.columns:
        of_header = F.transform(
            "headers", lambda it: F.octet_length(it["key"]) + F.coalesce(F.octet_length(it["value"]), F.lit(0))
        )
        zero = F.lit(0).cast("bigint")
        parts.append(F.coalesce(F.aggregate(of_header, zero, lambda sum_, it: sum_ + it), zero))
    return sum(parts[1:], parts[0])


def malformed(topic: Topic, records: int) -> int:
    """How many of so many records of a run may be malformed: of a share, what is whole of it. 1% of 250 is 2."""
    allowed = topic.max_malformed
    return allowed if isinstance(allowed, int) else int(records * float(allowed.removesuffix("%")) / 100)
