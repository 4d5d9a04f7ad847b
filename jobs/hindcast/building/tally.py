"""What a change of a table comes to: rows opened and closed, past answers corrected, and how old these are."""

from __future__ import annotations

from datetime import datetime, timedelta

from pyspark.sql import Column
from pyspark.sql import functions as F

from hindcast.delta import tables
from hindcast.delta.tables import Table

AGES = {
    "under an hour": timedelta(hours=1),
    "under a day": timedelta(days=1),
    "under a week": timedelta(weeks=1),
    "under 30 days": timedelta(days=30),
    "older": None,
}


def aggregates(table: Table, known_at: datetime) -> tuple[Column, ...]:
    """What a change of `table` by a run that is `known_at` comes to, as aggregates over its rows (comparing.compared).

    Rows `opened`, `closed`, and how many of these are past answers: `corrected`, by age in `ages`, a struct.
    """
    past = tables.corrects(table)
    return (
        F.count_if(F.col("change") == "open").alias("opened"),
        F.count_if(F.col("change") == "close").alias("closed"),
        F.count_if(past).alias("corrected"),
        _ages(past, F.col(tables.period(table)[0]), known_at).alias("ages"),
    )


def _ages(past: Column, began: Column, known_at: datetime) -> Column:
    """How many rows that are `past` answers have each age: a struct with a bigint for each of `AGES`.

    An age is how long before the run a row `began` to be true.
    """
    found, since = [], past
    for age, bound in AGES.items():
        younger = began > F.lit(known_at - bound) if bound else F.lit(True)
        found.append(F.count_if(since & younger).alias(age))
        since = since & ~younger
    return F.struct(*found)
