"""Bytes into keys and values, and the fate of what cannot be decoded. Pure: DataFrame in, DataFrame out."""

from __future__ import annotations

from datetime import datetime

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from hindcast import formats
from hindcast.bitemporal import valid_time
from hindcast.contract import Topic
from hindcast.formats import WriterSchemas, envelopes, headers

FATES = ("no_timestamp", "malformed", "null_key", "no_change", "time_skew")
"""The fates that decoding decides, by precedence."""

NO_KEY = "a table's record needs a key"


def decode_records(
    records: DataFrame,
    topic: Topic,
    latest: datetime | Column | None = None,
    earliest: datetime | Column | None = None,
    writers: WriterSchemas | None = None,
) -> DataFrame:
    """Return Kafka's records with their key and value as the contract types them.

    In: `timestamp`, `key` and `value` as bytes (null allowed), `headers` if the topic has columns of them, any further
    columns. `writers`: the schemas that keys and values name by id.
    Out: the same, but `key` a struct of the contract's key columns or null, `value` a struct of its value columns or
    null, and also `fate` and `reason`: null for what is decided later (accepted, expired), otherwise

    - malformed: the key or the value is not what the contract says; `reason` says which and how
    - null_key: a record of a table without a key
    - no_timestamp: the record has none (-1, KIP-32), or `valid_time` gives none
    - no_change: Debezium's tombstone, a record of an envelope's topic that has a key and no value
    - time_skew: dated after `latest`, or before `earliest`

    and `timestamp` and `recordTimestamp` as `valid_time.add_valid_time` returns them. Without `latest` the records come
    from a log: they keep their `timestamp`, and no fate depends on time.
    """
    parts = {"key": formats.record_part(topic, "key", writers), "value": formats.record_part(topic, "value", writers)}
    read = formats.parse_parts(records, parts, "_read")
    key, value = F.col("_read.key.struct"), F.col("_read.value.struct")
    value_problem = F.col("_read.value.problem")
    if topic.headers:
        value, header_problem = headers.add_header_columns(value, topic.value, topic.headers)
        value_problem = F.coalesce(value_problem, header_problem)
    problem = F.coalesce("_read.key.problem", value_problem)
    decided = read.withColumns({"_problem": problem, "_key": key, "_value": value})
    if topic.envelope is not None:
        decided = envelopes.read_changes(decided, topic)
    problem, timeless, skewed = F.col("_problem"), F.lit(False), F.lit(None).cast("string")
    if latest is not None:
        decided = valid_time.add_valid_time(decided, topic)
        # What does not decode cannot be asked for its valid time; Kafka's own is there before it is decoded.
        timeless = F.col("_valid").isNull() & (problem.isNull() | F.lit(topic.valid_time is None))
        first = valid_time.timestamp_literal(valid_time.FIRST_MOMENT) if earliest is None else F.lit(earliest)
        skewed = valid_time.describe_skew(F.lit(latest), first)
    keyless = F.col("_key").isNull() & F.lit(topic.read == "table")
    unchanged = F.col("value").isNull() & F.lit(topic.envelope is not None)
    reasons = {
        "no_timestamp": F.when(timeless, valid_time.describe_missing_time(topic)),
        "malformed": problem,
        "null_key": F.when(keyless, NO_KEY),
        "no_change": F.when(unchanged, "Debezium's tombstone: the change event before it has ended the row"),
        "time_skew": skewed,
    }
    fate = F.coalesce(*(F.when(reasons[name].isNotNull(), name) for name in FATES))
    reason = F.coalesce(*(reasons[name] for name in FATES))
    columns = {"fate": fate, "reason": reason, "key": F.col("_key"), "value": F.col("_value")}
    return decided.withColumns(columns).drop("_key", "_value", "_problem", "_read", "_at", "_valid")
