"""Bytes into keys and values, and the fate of what cannot be decoded. Pure: DataFrame in, DataFrame out."""

from __future__ import annotations

import secrets
from datetime import datetime

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from hindcast.contracts import Topic

_RAW = "_raw"
_END = secrets.token_hex(16)
"""What nobody who sends a record can know."""


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
    # Exploded of one: else Spark would parse a value again for each of its columns, and for each condition on them.
    objects = [_parsed(F.col(part), kinds).alias(part) for part, kinds in _objects(topic).items()]
    parsed = records.withColumn("_parsed", F.explode(F.array(F.struct(*objects))))
    key, key_problem = _key(topic)
    value, value_problem = _json("value", topic.value)
    decided = parsed.withColumns({"_problem": F.coalesce(key_problem, value_problem), "_key": key, "_value": value})
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
        .drop("_key", "_value", "_problem", "_parsed")
    )


def _objects(topic: Topic) -> dict[str, dict[str, str]]:
    """The parts of a record that are JSON objects, with their columns."""
    return {"value": topic.value, **({"key": topic.key} if topic.keyed_as == "json" else {})}


def _parsed(raw: Column, columns: dict[str, str]) -> Column:
    """The text as one value of a JSON object, with what must follow it; so that nothing else can.

    from_json alone passes over what comes after an object:    {"n": 1}, {"n": 2}    {"n": 1}} and more
    """
    text = F.concat(F.lit(f'{{"{_END}": {{"": '), raw.cast("string"), F.lit(f', "{_END}": {{}}}}}}'))
    options = {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": _RAW, "allowSingleQuotes": "false"}
    return F.from_json(text, f"`{_END}` map<string, struct<{_typed(columns, ': ')}>>, `{_RAW}` string", options)


def _key(topic: Topic) -> tuple[Column, Column]:
    """The key as a struct, and what is wrong with it."""
    if topic.keyed_as == "json":
        return _json("key", topic.key)
    raw, (name, kind) = F.col("key"), next(iter(topic.key.items()))
    text = raw.cast("string")
    typed = text if kind == "string" else raw.cast("binary") if kind == "binary" else text.try_cast(kind)
    bad = raw.isNotNull() & (typed.isNull() | (~_utf8(raw) if kind != "binary" else F.lit(False)))
    problem = F.when(bad, F.concat(F.lit(f"the key is not {kind}: "), _shown(text)))
    return F.when(raw.isNotNull() & ~bad, F.struct(typed.alias(name))), problem


def _json(part: str, columns: dict[str, str]) -> tuple[Column, Column]:
    """A parsed JSON object as a struct, and what is wrong with it."""
    raw, parsed = F.col(part), F.col(f"_parsed.{part}")
    objects = F.map_values(parsed[_END])
    whole = parsed[_RAW].isNull() & (F.map_keys(parsed[_END]) == F.array(F.lit(""), F.lit(_END)))
    good = F.coalesce(whole & objects[0].isNotNull() & _utf8(raw), F.lit(False))
    struct = F.struct(*[objects[0][name].alias(name) for name in columns])
    told = F.concat(F.lit(f"the {part} is not a JSON object of {_typed(columns)}: "), _shown(raw.cast("string")))
    return F.when(good, struct), F.when(raw.isNotNull() & ~good, told)


def _typed(columns: dict[str, str], between: str = " ") -> str:
    return ", ".join(f"`{name}`{between}{kind}" for name, kind in columns.items())


def _utf8(raw: Column) -> Column:
    return F.is_valid_utf8(raw.cast("string"))


def _shown(text: Column) -> Column:
    """The beginning of a text, as an error may show it: valid UTF-8 whatever was sent."""
    valid = F.make_valid_utf8(text)
    return F.when(F.length(valid) > 200, F.concat(F.substring(valid, 1, 200), F.lit("..."))).otherwise(valid)
