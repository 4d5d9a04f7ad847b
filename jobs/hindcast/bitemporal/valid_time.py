"""Valid time: when a record is true, and which times a run accepts (KIP-32). Pure: DataFrame in, DataFrame out.

A record is dated by its topic's `valid_time`, else by Kafka's own timestamp; Kafka's negative ones are none. A record
without a value, of which the expression names a column, is dated by Kafka's own.

    valid_time: timestamp_millis(ts)    {"ts": 1000} sent @9: @1    {"ts": null} @9: none    null @9: @9
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import NamedTuple

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from hindcast.bitemporal.intervals import ALL_TIME, LAST_MOMENT, to_micros
from hindcast.bitemporal.pattern_limits import expression_column
from hindcast.contract import Topic
from hindcast.contract import valid_time as expression

FIRST_MOMENT = datetime(1, 1, 2, tzinfo=UTC)
"""The first moment at which records are true, as `LAST_MOMENT` is the last."""

NO_TIMESTAMP = "the record has no timestamp"
AFTER_LAST_DAY = f"dated after {LAST_MOMENT.date()}, the last day that tables hold"
BEFORE_FIRST_DAY = f"dated before {FIRST_MOMENT.date()}, the first day that tables hold"
AFTER_LATEST = "dated after ", "+00:00, the run's known-at plus max_time_skew"
BEFORE_EARLIEST = "dated before ", "+00:00, the run's known-at less max_time_skew's before"
"""The reasons of records without a valid time, or with one that is not accepted; the moment is between the last two."""

LATEST_CLAMPED = datetime(9999, 12, 31, 23, 59, 59, 999_000, tzinfo=UTC)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class SkewBounds(NamedTuple):
    """The times that a run accepts, both included."""

    latest: Column
    earliest: Column


def skew_bounds(topic: Topic, known_at: datetime | Column) -> SkewBounds:
    """Return the bounds of `max_time_skew` around a run's known-at, within `FIRST_MOMENT` and `LAST_MOMENT`."""
    now, skew = F.lit(known_at), topic.time_skew
    latest = F.least(now + F.lit(min(skew.after, ALL_TIME)), timestamp_literal(LAST_MOMENT))
    if skew.before is None:
        return SkewBounds(latest, timestamp_literal(FIRST_MOMENT))
    return SkewBounds(latest, F.greatest(now - F.lit(min(skew.before, ALL_TIME)), timestamp_literal(FIRST_MOMENT)))


def latest_within_skew(topic: Topic, known_at: datetime) -> datetime:
    """Return the `latest` of `skew_bounds` as a moment."""
    return known_at + topic.time_skew.after if topic.time_skew.after < LAST_MOMENT - known_at else LAST_MOMENT


def earliest_within_skew(topic: Topic, known_at: datetime) -> datetime:
    """Return the `earliest` of `skew_bounds` as a moment."""
    before = topic.time_skew.before
    return FIRST_MOMENT if before is None or before > known_at - FIRST_MOMENT else known_at - before


def timestamp_literal(at: datetime) -> Column:
    """Return a moment as a literal; `F.lit` reads a moment before 1582 as a date of the Julian calendar."""
    return F.lit(at) if at >= _EPOCH else F.timestamp_micros(F.lit(to_micros(at)))


def add_valid_time(records: DataFrame, topic: Topic) -> DataFrame:
    """Return records with the time at which they are true.

    In: `timestamp` (Kafka's), `_key` and `_value` as the contract types them (null: none, or malformed); of a topic
    with envelopes also `_at`, the time of the change (null: unknown), which then replaces Kafka's timestamp.
    Out: the same, but `timestamp` is the valid time, or Kafka's if there is none; and also `recordTimestamp`, Kafka's
    timestamp if it differs, else null, and `_valid`, the valid time, null for none. The first two are clipped to what
    tables can hold (years 1 to 9999), `_valid` is not.
    """
    kafkas = F.when(F.col("timestamp") >= timestamp_literal(_EPOCH), F.col("timestamp"))  # rule: Kafka's -1 is no time
    own = F.coalesce("_at", kafkas) if "_at" in records.columns else kafkas
    text = expression.resolve_valid_time(topic)
    if text is None:
        found = records.withColumn("_valid", own)
    else:
        parts = [F.col(f"_{part}")[name].alias(name) for part in ("key", "value") for name in getattr(topic, part)]
        record = F.struct(*parts, kafkas.alias(expression.RECORD_TIMESTAMP))
        # try_add makes a failure of what it adds to null. Exploded, so that Spark computes no part of it outside.
        # rule: a failing expression is no time
        tried = F.explode(F.array(F.struct(expression_column(f"try_add({text}, INTERVAL '0' SECOND)").alias("at"))))
        given = records.withColumn(expression.RECORD, record).withColumn("_tried", tried)
        valid = F.col("_tried.at")  # rule: a valid time may be before 1970
        if expression.needs_value(topic):
            valid = F.when(F.col("_value").isNull(), own).otherwise(valid)  # rule: a tombstone has Kafka's timestamp
        # rule: a record whose valid_time is null has no time
        found = given.withColumn("_valid", valid).drop(expression.RECORD, "_tried")
    at, sent = _clamp_moment(F.coalesce("_valid", "timestamp")), _clamp_moment(F.col("timestamp"))
    return found.withColumns({"timestamp": at, "recordTimestamp": F.when(at != sent, sent)})


def describe_missing_time(topic: Topic) -> Column:
    """Return the reason why a record of `add_valid_time` has no valid time."""
    sent = F.lit(NO_TIMESTAMP)
    if topic.valid_time is None:
        return sent
    invalid = F.lit(describe_no_time(topic))
    return F.when(F.col("_value").isNull(), sent).otherwise(invalid) if expression.needs_value(topic) else invalid


def describe_no_time(topic: Topic) -> str:
    """Return the reason why `valid_time` does not date a record that has what it needs."""
    return f"valid_time gives none for the record: {topic.valid_time} is null or fails"


def describe_skew(latest: Column, earliest: Column) -> Column:
    """Return the reason why the time of a record of `add_valid_time` is not accepted; null if it is."""
    at = F.col("_valid")
    # rule: both bounds of the time skew are taken
    return (
        F.when(at > timestamp_literal(LAST_MOMENT), F.lit(AFTER_LAST_DAY))
        .when(at < timestamp_literal(FIRST_MOMENT), F.lit(BEFORE_FIRST_DAY))
        .when(at > latest, _describe_bound(latest, AFTER_LATEST))
        .when(at < earliest, _describe_bound(earliest, BEFORE_EARLIEST))
    )


def _clamp_moment(at: Column) -> Column:
    """Return a moment, moved to the bounds of what tables hold."""
    return (
        F.when(at > timestamp_literal(LATEST_CLAMPED), timestamp_literal(LATEST_CLAMPED))
        .when(at < timestamp_literal(FIRST_MOMENT), timestamp_literal(FIRST_MOMENT))
        .otherwise(at)
    )


def _describe_bound(bound: Column, words: tuple[str, str]) -> Column:
    iso = F.replace(bound.cast("string"), F.lit(" "), F.lit("T"))
    return F.concat(F.lit(words[0]), iso, F.lit(words[1]))
