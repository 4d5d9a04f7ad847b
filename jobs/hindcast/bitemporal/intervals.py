"""Day-time intervals as numbers, and the last moment to which they lead."""

from datetime import UTC, datetime, timedelta

import numpy as np
from pyspark.sql import Column
from pyspark.sql import functions as F

LAST_MOMENT = datetime(9999, 12, 30, tzinfo=UTC)
"""The last moment of tables. Beyond it Python has no dates, in one time zone or another."""


def to_micros(moment: datetime) -> int:
    """Return a moment in microseconds since 1970."""
    return (moment - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1)


LAST_MICROS = to_micros(LAST_MOMENT)
"""`LAST_MOMENT` in microseconds since 1970."""

ALL_TIME = timedelta(days=4_000_000)
"""A length beyond which lengths make no difference: it leads out of all time from any moment."""


def count_micros(length: timedelta | None) -> int:
    """Return a length of time, at most `ALL_TIME`, in microseconds; None becomes zero."""
    return min(length or timedelta(0), ALL_TIME) // timedelta(microseconds=1)


def format_micros(micros: int) -> str:
    """Return a moment in microseconds since 1970 as Spark casts it to text."""
    text = str(np.datetime64(micros, "us")).replace("T", " ").rstrip("0").rstrip(".")
    year = text.split("-", 1)[0]
    return f"+{text}" if len(year) > 4 and not text.startswith("-") else text  # digits of a year


def interval_micros(interval: Column) -> Column:
    """Return a day-time interval in microseconds."""
    return F.unix_micros(F.timestamp_micros(F.lit(0)) + interval)


def parse_utc(text: str) -> datetime:
    """Return a moment in UTC from ISO 8601; raise ValueError without a zone, OverflowError where UTC has no such year.

    2026-01-01T01:00:00+01:00 -> 2026-01-01 00:00 UTC
    """
    moment = datetime.fromisoformat(text)
    if moment.tzinfo is None:
        raise ValueError(f"'{text}' has no offset from UTC")
    return moment.astimezone(UTC)
