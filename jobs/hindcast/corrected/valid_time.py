"""When a record is true, and which times a run believes (KIP-32). Pure: DataFrame in, DataFrame out.

A record is dated by its topic's `valid_time`, else by Kafka's own timestamp; Kafka's negative ones are none. A record
without a value, of which the expression names a column, is dated by Kafka's own.

    valid_time: timestamp_millis(ts)    {"ts": 1000} sent @9: @1    {"ts": null} @9: none    null @9: @9
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import NamedTuple

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from hindcast.contracts import Topic
from hindcast.contracts import valid_time as expression

FIRST, LAST = datetime(1, 1, 2, tzinfo=UTC), datetime(9999, 12, 30, tzinfo=UTC)
"""The moments between which records are true. Beyond them Python has no dates, in one time zone or another."""

_END = datetime(9999, 12, 31, 23, 59, 59, 999_000, tzinfo=UTC)
_AGES = timedelta(days=4_000_000)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class Span(NamedTuple):
    """The times that a run believes, both included."""

    latest: Column
    earliest: Column


def span(topic: Topic, known_at: datetime | Column) -> Span:
    """What `max_time_skew` makes of a run's known-at, within `FIRST` and `LAST`."""
    now, skew = F.lit(known_at), topic.time_skew
    latest = F.least(now + F.lit(min(skew.after, _AGES)), moment(LAST))
    if skew.before is None:
        return Span(latest, moment(FIRST))
    return Span(latest, F.greatest(now - F.lit(min(skew.before, _AGES)), moment(FIRST)))


def latest(topic: Topic, known_at: datetime) -> datetime:
    """`span`'s latest as a moment."""
    return known_at + topic.time_skew.after if topic.time_skew.after < LAST - known_at else LAST


def moment(at: datetime) -> Column:
    """A moment as a literal; `F.lit` takes one before 1582 for a date of the Julian calendar."""
    return F.lit(at) if at >= _EPOCH else F.timestamp_micros(F.lit((at - _EPOCH) // timedelta(microseconds=1)))


def dated(records: DataFrame, topic: Topic) -> DataFrame:
    """Records with the time at which they are true.

    In: `timestamp` as Kafka has it, `_key` and `_value` as the contract types them (null: none, or malformed), of an
    envelope's topic `_at`, when the row was changed, null where nothing says it: it stands for Kafka's own then.
    Out: the same, but `timestamp` the valid time, or Kafka's own where there is none; besides `recordTimestamp`,
    Kafka's own where that is another, else null, and `_valid`: the valid time, null for none. The first two are moved
    to the bounds of what tables hold (year 1 to 9999), `_valid` is not.
    """
    kafkas = F.when(F.col("timestamp") >= moment(_EPOCH), F.col("timestamp"))
    own = F.coalesce("_at", kafkas) if "_at" in records.columns else kafkas
    text = expression.resolved(topic)
    if text is None:
        found = records.withColumn("_valid", own)
    else:
        parts = [F.col(f"_{part}")[name].alias(name) for part in ("key", "value") for name in getattr(topic, part)]
        record = F.struct(*parts, kafkas.alias(expression.RECORD_TIMESTAMP))
        # try_add makes a failure of what it adds to null. Exploded, so that Spark computes no part of it outside.
        tried = F.explode(F.array(F.struct(F.expr(f"try_add({text}, INTERVAL '0' SECOND)").alias("at"))))
        given = records.withColumn(expression.RECORD, record).withColumn("_tried", tried)
        valid = F.col("_tried.at")
        if expression.needs_value(topic):
            valid = F.when(F.col("_value").isNull(), own).otherwise(valid)
        found = given.withColumn("_valid", valid).drop(expression.RECORD, "_tried")
    at, sent = _held(F.coalesce("_valid", "timestamp")), _held(F.col("timestamp"))
    return found.withColumns({"timestamp": at, "recordTimestamp": F.when(at != sent, sent)})


def why_none(topic: Topic) -> Column:
    """Why a record of `dated` has no valid time."""
    sent = F.lit("the record has no timestamp")
    if topic.valid_time is None:
        return sent
    told = F.lit(f"valid_time gives none for the record: {topic.valid_time} is null or fails")
    return F.when(F.col("_value").isNull(), sent).otherwise(told) if expression.needs_value(topic) else told


def why_skewed(latest: Column, earliest: Column) -> Column:
    """Why the time of a record of `dated` is not believed; null if it is."""
    at = F.col("_valid")
    return (
        F.when(at > moment(LAST), F.lit(f"dated after {LAST.date()}, the last day that tables hold"))
        .when(at < moment(FIRST), F.lit(f"dated before {FIRST.date()}, the first day that tables hold"))
        .when(at > latest, _told("dated after", latest, "plus max_time_skew"))
        .when(at < earliest, _told("dated before", earliest, "less max_time_skew's before"))
    )


def _held(at: Column) -> Column:
    """A moment, moved to the bounds of what tables hold."""
    return F.when(at > moment(_END), moment(_END)).when(at < moment(FIRST), moment(FIRST)).otherwise(at)


def _told(words: str, bound: Column, skew: str) -> Column:
    iso = F.replace(bound.cast("string"), F.lit(" "), F.lit("T"))
    return F.concat(F.lit(f"{words} "), iso, F.lit(f"+00:00, the run's known-at {skew}"))
