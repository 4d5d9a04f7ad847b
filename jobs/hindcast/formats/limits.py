"""Limits of a contract on records, whatever their format: the size of one, and how many may be malformed."""

from __future__ import annotations

from collections.abc import Callable

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from hindcast.contract import Topic

OVERSIZED = "oversized: ", " bytes, ", " may be"
"""The reason of a record with too many bytes: between these are how many it has, and how many it may have."""


def decode_within_limit(records: DataFrame, topic: Topic, decode: Callable[[DataFrame], DataFrame]) -> DataFrame:
    """Return records decoded by `decode`; those of more than `max_record_bytes` are malformed, and not decoded.

    The limit applies when a record is replayed or requeued; a new limit makes no accepted record malformed.
    """
    if topic.max_record_bytes is None:
        return decode(records)
    large = F.col("_size") > topic.max_record_bytes
    small = {part: F.when(~large, F.col(part)) for part in ("key", "value")}
    decoded = decode(records.withColumn("_size", record_size(records)).withColumns(small))
    reason = F.concat(F.lit(OVERSIZED[0]), "_size", F.lit(f"{OVERSIZED[1]}{topic.max_record_bytes}{OVERSIZED[2]}"))
    # That it has no timestamp may be due to what was not looked into.
    refused = large if topic.valid_time is not None else large & ~F.col("fate").eqNullSafe("no_timestamp")
    why = {"fate": (refused, F.lit("malformed")), "reason": (refused, reason)}
    return decoded.withColumns(
        {name: F.when(condition, value).otherwise(F.col(name)) for name, (condition, value) in why.items()}
    ).drop("_size")


def record_size(records: DataFrame) -> Column:
    """Return the size in bytes of a record's key, value and headers (names and values); null counts as 0."""
    parts = [F.coalesce(F.octet_length(part), F.lit(0)).cast("bigint") for part in ("key", "value")]
    if "headers" in records.columns:
        of_header = F.transform(
            "headers", lambda it: F.octet_length(it["key"]) + F.coalesce(F.octet_length(it["value"]), F.lit(0))
        )
        zero = F.lit(0).cast("bigint")
        parts.append(F.coalesce(F.aggregate(of_header, zero, lambda sum_, it: sum_ + it), zero))
    return sum(parts[1:], parts[0])


def malformed_limit(topic: Topic, records: int) -> int:
    """Return how many of a run's records may be malformed; a percentage is rounded down: 1% of 250 is 2."""
    allowed = topic.max_malformed
    return allowed if isinstance(allowed, int) else int(records * float(allowed.removesuffix("%")) / 100)
