"""How old a past answer is that changes: how long before the run it began to be true."""

from __future__ import annotations

from datetime import datetime, timedelta

from pyspark.sql import Column
from pyspark.sql import functions as F

AGES = {
    "under an hour": timedelta(hours=1),
    "under a day": timedelta(days=1),
    "under a week": timedelta(weeks=1),
    "under 30 days": timedelta(days=30),
    "older": None,
}


def counted(past: Column, began: Column, known_at: datetime) -> Column:
    """How many rows that are `past` answers have each age: an aggregate, a struct with a bigint for each of `AGES`.

    `began`: when a row began to be true; `known_at`: the run's.
    """
    found, since = [], past
    for age, bound in AGES.items():
        younger = began > F.lit(known_at - bound) if bound else F.lit(True)
        found.append(F.count_if(since & younger).alias(age))
        since = since & ~younger
    return F.struct(*found)
