"""Deliberate wrong readings of when a record is true, which test_valid_time.py must catch."""

from __future__ import annotations

from trials import Wrong

WRONG = (
    Wrong(
        "a record at the latest time that a run believes is refused",
        "bitemporal.valid_time",
        ".when(at > latest,",
        ".when(at >= latest,",
    ),
    Wrong(
        "a record at the earliest time that a run believes is refused",
        "bitemporal.valid_time",
        ".when(at < earliest,",
        ".when(at <= earliest,",
    ),
    Wrong(
        "a valid time before 1970 is none",
        "bitemporal.valid_time",
        'valid = F.col("_tried.at")',
        'valid = F.when(F.col("_tried.at") >= timestamp_literal(_EPOCH), F.col("_tried.at"))',
    ),
    Wrong(
        "a tombstone is asked for its valid time",
        "bitemporal.valid_time",
        'valid = F.when(F.col("_value").isNull(), own)',
        "valid = F.when(F.lit(False), own)",
    ),
    Wrong(
        "what valid_time is null for has Kafka's timestamp",
        "bitemporal.valid_time",
        'found = given.withColumn("_valid", valid)',
        'found = given.withColumn("_valid", F.coalesce(valid, own))',
    ),
    Wrong(
        "Kafka's -1 is a time",
        "bitemporal.valid_time",
        'kafkas = F.when(F.col("timestamp") >= timestamp_literal(_EPOCH), F.col("timestamp"))',
        'kafkas = F.col("timestamp")',
    ),
    Wrong(
        "a failing expression fails the run", "bitemporal.valid_time", "try_add({text}, INTERVAL '0' SECOND)", "{text}"
    ),
)
