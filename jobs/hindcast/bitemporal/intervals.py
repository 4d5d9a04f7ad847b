"""Day-time intervals as numbers."""

from pyspark.sql import Column
from pyspark.sql import functions as F


def interval_micros(interval: Column) -> Column:
    """Return a day-time interval in microseconds."""
    return F.unix_micros(F.timestamp_micros(F.lit(0)) + interval)
