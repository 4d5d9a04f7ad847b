"""Operation j: how many events of an item there are in windows, and what was sold; with an expression and a filter."""

from __future__ import annotations

from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from bench.speed import views
from bench.speed.engines import by_duckdb, by_polars
from bench.speed.inputs import Inputs
from bench.speed.measuring import Contestant, Operation
from bench.speed.names import DUCKDB_WINDOWS, HOPPING, NOT_INSTALLED, POLARS_WINDOWS, SESSION, TUMBLING, UNIFORM

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

VIEWS = {TUMBLING: "hourly", HOPPING: "half_hourly", SESSION: "sittings"}
"""By form of the windows. No session is closed when an event comes: SQL cannot tell which ones would be."""
COLUMNS = (
    "item",
    "many::BIGINT",
    "sold::BIGINT",
    "epoch_us(windowStart)",
    "epoch_us(windowEnd)",
    "epoch_us(systemFrom)",
    "epoch_us(systemTo)",
)
SUMS = "count(*) AS many, CAST(sum(quantity * 2) AS BIGINT) AS sold"
IN_WINDOWS = """
SELECT item, {sums}, windowStart, windowStart + INTERVAL 1 HOUR AS windowEnd, {{system}} FROM (
    SELECT *, time_bucket(INTERVAL 1 HOUR, timestamp - INTERVAL '{later} minutes') + INTERVAL '{later} minutes'
        AS windowStart
    FROM (SELECT item, quantity, timestamp, max(timestamp) OVER (ORDER BY _offset) AS reached
        FROM {{events}} WHERE quantity > 1))
WHERE reached < windowStart + INTERVAL 2 HOURS GROUP BY item, windowStart"""
QUERIES = {
    TUMBLING: IN_WINDOWS.format(sums=SUMS, later=0),
    HOPPING: " UNION ALL ".join(IN_WINDOWS.format(sums=SUMS, later=later) for later in (0, 30)),
    SESSION: f"""
SELECT item, {SUMS}, min(timestamp) AS windowStart, max(timestamp) AS windowEnd, {{system}} FROM (
    SELECT *, sum(starts) OVER (PARTITION BY item ORDER BY timestamp ROWS UNBOUNDED PRECEDING) AS session FROM (
        SELECT item, quantity, timestamp, CAST(timestamp - lag(timestamp) OVER (PARTITION BY item ORDER BY timestamp)
            <= INTERVAL 30 MINUTES AS INTEGER) IS DISTINCT FROM 1 AS starts FROM {{events}} WHERE quantity > 1))
GROUP BY item, session""",  # noqa: S608  # ours
}


def operation(spark: SparkSession, place: Inputs, form: str, *, full: bool) -> Operation:
    """Of a form of windows."""
    inputs, view = views.sides(spark, place, UNIFORM, "events"), VIEWS[form]
    contestants = [views.ours(spark, place, UNIFORM, view), views.copy(spark, place, UNIFORM, view)]
    contestants.append(Contestant(DUCKDB_WINDOWS, by_duckdb(QUERIES[form], **inputs)))
    absent: dict[str, str] = {}
    if full and find_spec("polars"):
        of = count_in_sessions if form == SESSION else count_in_hours if form == TUMBLING else count_in_hopping_hours
        contestants.append(Contestant(POLARS_WINDOWS, by_polars(of, **inputs)))
    elif full:
        absent[POLARS_WINDOWS] = NOT_INSTALLED
    told = f"{form} windows of {place.sizes.events:,} events"
    return Operation("j", form, told, COLUMNS, contestants, absent)


def count_in_hours(events: Any) -> Any:
    """The tumbling ones in Polars."""
    return _count_from(events, "0m")


def count_in_hopping_hours(events: Any) -> Any:
    """The hopping ones in Polars."""
    import polars as pl

    return pl.concat([_count_from(events, "0m"), _count_from(events, "30m")])


def _count_from(events: Any, later: str) -> Any:
    import polars as pl

    taken = _select_events(events).sort("_offset").with_columns(pl.col("timestamp").cum_max().alias("reached"))
    start = pl.col("timestamp").dt.offset_by(f"-{later}").dt.truncate("1h").dt.offset_by(later)
    opened = taken.with_columns(start.alias("windowStart"))
    open_ = opened.filter(pl.col("reached") < pl.col("windowStart").dt.offset_by("2h"))
    counted = open_.group_by("item", "windowStart").agg(*_sums())
    return counted.with_columns(pl.col("windowStart").dt.offset_by("1h").alias("windowEnd"))


def count_in_sessions(events: Any) -> Any:
    """The sessions in Polars."""
    import polars as pl

    ordered = _select_events(events).sort("item", "timestamp")
    is_first = pl.col("item") != pl.col("item").shift()
    is_far = pl.col("timestamp") - pl.col("timestamp").shift() > pl.duration(minutes=30)
    numbered = ordered.with_columns((is_first | is_far).fill_null(value=True).cum_sum().alias("session"))
    ends = pl.min("timestamp").alias("windowStart"), pl.max("timestamp").alias("windowEnd")
    return numbered.group_by("session").agg(pl.first("item"), *_sums(), *ends).drop("session")


def _select_events(events: Any) -> Any:
    import polars as pl

    return events.filter(pl.col("quantity") > 1).select("item", "quantity", "timestamp", "_offset")


def _sums() -> tuple[Any, Any]:
    import polars as pl

    return pl.len().cast(pl.Int64).alias("many"), (pl.col("quantity").cast(pl.Int64) * 2).sum().alias("sold")
