"""Valid time as Spark computes it, and the bounds of what a run accepts; `formats.dating` dates records by it."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from datetime import UTC, datetime
from typing import NamedTuple

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from hindcast.bitemporal.intervals import ALL_TIME, LAST_MOMENT, to_micros
from hindcast.bitemporal.pattern_limits import expression_column
from hindcast.contract import Topic
from hindcast.contract import valid_time as expression
from hindcast.contract.topic import TimeSkew
from hindcast.contract.valid_time import TimeField

FIRST_MOMENT = datetime(1, 1, 2, tzinfo=UTC)
"""The first moment at which records are true, as `LAST_MOMENT` is the last."""

NO_TIMESTAMP = "the record has no timestamp"
AFTER_LAST_DAY = f"dated after {LAST_MOMENT.date()}, the last day that tables hold"
BEFORE_FIRST_DAY = f"dated before {FIRST_MOMENT.date()}, the first day that tables hold"
AFTER_LATEST = "dated after ", "+00:00, {} plus max_time_skew"
BEFORE_EARLIEST = "dated before ", "+00:00, {} less max_time_skew's before"
"""The reasons of records without a valid time, or with one that is not accepted; the moment is between the last two,
and `{}` stands for what it is reckoned from.
"""
KNOWN_AT, ARRIVAL = "the run's known-at", "the record's arrival"
"""What `max_time_skew` is reckoned from: the latter of a topic with `arrival`."""

LATEST_CLAMPED = datetime(9999, 12, 31, 23, 59, 59, 999_000, tzinfo=UTC)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class SkewBounds(NamedTuple):
    """The times that a run accepts, both included."""

    latest: datetime
    earliest: datetime


def skew_bounds(topic: Topic, known_at: datetime) -> SkewBounds:
    """Return the bounds of `max_time_skew` around a run's known-at, within `FIRST_MOMENT` and `LAST_MOMENT`."""
    after, before = topic.time_skew.after, topic.time_skew.before
    latest = known_at + after if after < LAST_MOMENT - known_at else LAST_MOMENT
    if before is None or before > known_at - FIRST_MOMENT:
        return SkewBounds(latest, FIRST_MOMENT)
    return SkewBounds(latest, known_at - before)


def skew_columns(skew: TimeSkew, known: Column) -> tuple[Column, Column]:
    """Return the latest and the earliest time of records by `max_time_skew`, given when they could be `known`.

    Of one of which that is `FIRST_MOMENT`, which stands for no arrival, these are the bounds of what tables hold.
    """
    first, last = map(timestamp_literal, (FIRST_MOMENT, LAST_MOMENT))
    after = F.least(known + F.lit(min(skew.after, ALL_TIME)), last)
    before = first if skew.before is None else F.greatest(known - F.lit(min(skew.before, ALL_TIME)), first)
    is_unknown = known <= first
    return F.when(is_unknown, last).otherwise(after), F.when(is_unknown, first).otherwise(before)


def timestamp_literal(at: datetime) -> Column:
    """Return a moment as a literal; `F.lit` reads a moment before 1582 as a date of the Julian calendar."""
    return F.lit(at) if at >= _EPOCH else F.timestamp_micros(F.lit(to_micros(at)))


def add_computed_times(
    records: DataFrame, topic: Topic, parts: Mapping[str, str], fields: Collection[TimeField]
) -> DataFrame:
    """Return records with a column `_` and the name of each of `fields`: their times by it; null for none.

    In: `timestamp` (Kafka's), and the columns in which `parts` says that key and value are, as the contract types them.
    """
    kafkas = F.when(F.col("timestamp") >= timestamp_literal(_EPOCH), F.col("timestamp"))  # rule: Kafka's -1 is no time
    columns = [F.col(place)[name].alias(name) for part, place in parts.items() for name in getattr(topic, part)]
    record = F.struct(*columns, kafkas.alias(expression.RECORD_TIMESTAMP))
    texts = {field: expression.resolve_time(topic, field) for field in fields}
    # try_add makes a failure of what it adds to null. Exploded, so that Spark computes no part of it outside.
    # rule: a failing expression is no time
    tried = [expression_column(f"try_add({text}, INTERVAL '0' SECOND)").alias(field) for field, text in texts.items()]
    given = records.withColumn(expression.RECORD, record).withColumn("_tried", F.explode(F.array(F.struct(*tried))))
    times = {f"_{field}": F.col(f"_tried.{field}") for field in fields}
    return given.withColumns(times).drop(expression.RECORD, "_tried")


def describe_no_time(topic: Topic) -> str:
    """Return the reason why `valid_time` does not date a record that has what it needs."""
    return f"valid_time gives none for the record: {topic.valid_time} is null or fails"
