"""Operation d: how many versions a category has and what they are worth, over time: a row for each change."""

from __future__ import annotations

from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from bench.speed import views
from bench.speed.data import CATEGORIES
from bench.speed.engines import by_duckdb, by_polars
from bench.speed.inputs import Inputs
from bench.speed.measuring import Contestant, Operation
from bench.speed.names import DUCKDB_SUMS, NOT_INSTALLED, POLARS_SUMS, SPARK_SUMS
from bench.speed.table_table import ROWS, belief

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

COLUMNS = (
    "category::BIGINT",
    "items::BIGINT",
    "worth::BIGINT",
    "epoch_us(validFrom)",
    "epoch_us(validTo)",
    "_belief",
    "epoch_us(systemFrom)",
    "epoch_us(systemTo)",
)
RUNNING = f"""
SELECT category, CAST(items AS BIGINT) AS items, CAST(worth AS BIGINT) AS worth, validFrom, validTo, {ROWS} FROM (
    SELECT category, edge AS validFrom, sum(n) OVER w AS items, sum(v) OVER w AS worth, lead(edge) OVER w AS validTo
    FROM (
        SELECT category, edge, sum(n) AS n, sum(v) AS v FROM (
            SELECT category, validFrom AS edge, 1 AS n, price AS v FROM {{prices}}
            UNION ALL
            SELECT category, validTo AS edge, -1 AS n, -price AS v FROM {{prices}} WHERE validTo IS NOT NULL)
        GROUP BY category, edge)
    WINDOW w AS (PARTITION BY category ORDER BY edge))
WHERE items > 0"""  # noqa: S608  # ours


def operation(spark: SparkSession, place: Inputs, kind: str, *, full: bool) -> Operation:
    """Of uniform keys or of Zipf's."""
    inputs = views.sides(spark, place, kind, "prices")
    contestants = [views.ours(spark, place, kind, "categories"), views.copy(spark, place, kind, "categories")]
    absent: dict[str, str] = {}
    if full:
        contestants.append(views.on_spark(spark, SPARK_SUMS, RUNNING, **inputs))
    contestants.append(Contestant(DUCKDB_SUMS, by_duckdb(RUNNING, **inputs)))
    if full and find_spec("polars"):
        contestants.append(Contestant(POLARS_SUMS, by_polars(running_sums, **inputs)))
    elif full:
        absent[POLARS_SUMS] = NOT_INSTALLED
    told = f"aggregate of a table over time, {place.sizes.versions:,} versions, {CATEGORIES:,} groups"
    return Operation("d", kind, told, COLUMNS, contestants, absent)


def running_sums(prices: Any) -> Any:
    """The same in Polars."""
    import polars as pl

    def edges(at: str, sign: int) -> Any:
        signed = pl.lit(sign, pl.Int64).alias("items"), (pl.col("price").cast(pl.Int64) * sign).alias("worth")
        return prices.select("category", pl.col(at).alias("validFrom"), *signed)

    both = pl.concat([edges("validFrom", 1), edges("validTo", -1).filter(pl.col("validFrom").is_not_null())])
    steps = both.group_by("category", "validFrom").agg(pl.sum("items"), pl.sum("worth")).sort("category", "validFrom")
    totals = steps.with_columns(
        pl.col("items").cum_sum().over("category"),
        pl.col("worth").cum_sum().over("category"),
        pl.col("validFrom").shift(-1).over("category").alias("validTo"),
    )
    return totals.filter(pl.col("items") > 0).with_columns(belief())
