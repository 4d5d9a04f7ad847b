"""Deliberate wrong readings of when a record is true, which test_valid_time.py must catch."""

from __future__ import annotations

from trials import Wrong

WRONG = (
    Wrong(
        "a record at the latest time that a run believes is refused",
        "corrected.valid_time",
        ".when(at > latest,",
        ".when(at >= latest,",
    ),
    Wrong(
        "a record at the earliest time that a run believes is refused",
        "corrected.valid_time",
        ".when(at < earliest,",
        ".when(at <= earliest,",
    ),
    Wrong(
        "a valid time before 1970 is none",
        "corrected.valid_time",
        'valid = F.col("_tried.at")',
        'valid = F.when(F.col("_tried.at") >= moment(_EPOCH), F.col("_tried.at"))',
    ),
    Wrong(
        "a tombstone is asked for its valid time",
        "corrected.valid_time",
        'valid = F.when(F.col("_value").isNull(), own)',
        "valid = F.when(F.lit(False), own)",
    ),
    Wrong(
        "what valid_time is null for has Kafka's timestamp",
        "corrected.valid_time",
        'found = given.withColumn("_valid", valid)',
        'found = given.withColumn("_valid", F.coalesce(valid, own))',
    ),
    Wrong(
        "Kafka's -1 is a time",
        "corrected.valid_time",
        'kafkas = F.when(F.col("timestamp") >= moment(_EPOCH), F.col("timestamp"))',
        'kafkas = F.col("timestamp")',
    ),
    Wrong(
        "a failing expression fails the run", "corrected.valid_time", "try_add({text}, INTERVAL '0' SECOND)", "{text}"
    ),
)
