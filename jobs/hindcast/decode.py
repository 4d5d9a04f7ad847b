"""Bytes into keys and values, and the fate of what cannot be decoded. Pure: DataFrame in, DataFrame out."""

from __future__ import annotations

from datetime import datetime

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from hindcast.contracts import Topic

_RAW = "_raw"


def decode(records: DataFrame, topic: Topic, latest: datetime) -> DataFrame:
    """Records as Kafka has them, with their key and value as the contract types them.

    In: `timestamp`, `key` and `value` as bytes (null allowed), any further columns.
    Out: the same, but `key` a struct of the contract's key columns or null, `value` a struct of its value columns or
    null, and besides `fate` and `reason`: null for what is decided later (accepted, expired), otherwise

    - malformed: the key or the value is not what the contract says; `reason` says which and how
    - null_key: a record of a table without a key
    - no_timestamp: the record has none (-1, KIP-32)
    - time_skew: dated after `latest`
    """
    key, key_problem = _key(F.col("key"), topic)
    value, value_problem = _json(F.col("value"), topic.value, "value")
    decided = records.withColumns({"_key": key, "_value": value, "_problem": F.coalesce(key_problem, value_problem)})
    timeless = F.unix_millis("timestamp") < 0
    skewed = F.col("timestamp") > F.lit(latest)
    keyless = F.col("_key").isNull() & F.lit(topic.read == "table")
    fate = (
        F.when(timeless, "no_timestamp")
        .when(F.col("_problem").isNotNull(), "malformed")
        .when(keyless, "null_key")
        .when(skewed, "time_skew")
    )
    reason = (
        F.when(timeless, "the record has no timestamp")
        .when(F.col("_problem").isNotNull(), F.col("_problem"))
        .when(keyless, "a table's record needs a key")
        .when(skewed, F.lit(f"dated after {latest.isoformat()}, the run's known-at plus max_time_skew"))
    )
    return (
        decided.withColumns({"fate": fate, "reason": reason})
        .withColumns({"key": F.col("_key"), "value": F.col("_value")})
        .drop("_key", "_value", "_problem")
    )


def _key(raw: Column, topic: Topic) -> tuple[Column, Column]:
    """The key as a struct, and what is wrong with it."""
    if topic.keyed_as == "json":
        return _json(raw, topic.key, "key")
    name, kind = next(iter(topic.key.items()))
    text = raw.cast("string")
    typed = text if kind == "string" else raw.cast("binary") if kind == "binary" else text.try_cast(kind)
    bad = raw.isNotNull() & (typed.isNull() | (~_utf8(raw) if kind != "binary" else F.lit(False)))
    problem = F.when(bad, F.concat(F.lit(f"the key is not {kind}: "), _shown(text)))
    return F.when(raw.isNotNull() & ~bad, F.struct(typed.alias(name))), problem


def _json(raw: Column, columns: dict[str, str], part: str) -> tuple[Column, Column]:
    """A JSON object as a struct, and what is wrong with it."""
    text = raw.cast("string")
    schema = ", ".join(f"`{name}` {kind}" for name, kind in columns.items())
    options = {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": _RAW, "allowSingleQuotes": "false"}
    parsed = F.from_json(text, f"{schema}, `{_RAW}` string", options)
    bad = raw.isNotNull() & (~_utf8(raw) | ~_one_object(text) | parsed.isNull() | parsed[_RAW].isNotNull())
    struct = F.struct(*[parsed[name].alias(name) for name in columns])
    problem = F.when(bad, F.concat(F.lit(f"the {part} is not a JSON object of {schema}: "), _shown(text)))
    return F.when(raw.isNotNull() & ~bad, struct), problem


def _one_object(text: Column) -> Column:
    """Whether a text is one JSON object and nothing after it, which from_json alone would pass over."""
    objects = F.from_json(F.concat(F.lit("["), text, F.lit("]")), f"array<struct<`{_RAW}`: string>>")
    return F.coalesce(text.rlike(r"(?s)\A\s*\{.*\}\s*\z") & (F.size(objects) == 1), F.lit(False))


def _utf8(raw: Column) -> Column:
    return F.is_valid_utf8(raw.cast("string"))


def _shown(text: Column) -> Column:
    """The beginning of a text, as an error may show it: valid UTF-8 whatever was sent."""
    valid = F.make_valid_utf8(text)
    return F.when(F.length(valid) > 200, F.concat(F.substring(valid, 1, 200), F.lit("..."))).otherwise(valid)
