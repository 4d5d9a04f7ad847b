"""Operation c: versions of two tables that overlap, over the overlap."""

from __future__ import annotations

from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from bench.speed import views
from bench.speed.engines import by_duckdb, by_polars
from bench.speed.inputs import Inputs
from bench.speed.measuring import Contestant, Operation
from bench.speed.names import DUCKDB_TWO, NOT_INSTALLED, POLARS_TWO, RANGE, ZIPF

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

COLUMNS = (
    "item",
    "price::BIGINT",
    "n::BIGINT",
    "epoch_us(validFrom)",
    "epoch_us(validTo)",
    "_belief",
    "epoch_us(systemFrom)",
    "epoch_us(systemTo)",
)
ROWS = "CASE WHEN validTo IS NULL THEN 'open' ELSE 'past' END AS _belief, {system}"
BOTH = "l.item, l.price, r.n, least(l.validTo, r.validTo) AS validTo"
ASOF = f"""
SELECT *, {ROWS} FROM (
    SELECT {BOTH}, l.validFrom FROM {{prices}} l ASOF JOIN {{stock}} r ON l.item = r.item AND l.validFrom >= r.validFrom
    WHERE r.validTo IS NULL OR r.validTo > l.validFrom
    UNION ALL
    SELECT {BOTH}, r.validFrom FROM {{stock}} r ASOF JOIN {{prices}} l ON r.item = l.item AND r.validFrom > l.validFrom
    WHERE l.validTo IS NULL OR l.validTo > r.validFrom)"""  # noqa: S608  # ours
BY_RANGE = f"""
SELECT *, {ROWS} FROM (
    SELECT {BOTH}, greatest(l.validFrom, r.validFrom) AS validFrom FROM {{prices}} l JOIN {{stock}} r ON l.item = r.item
    AND (r.validTo IS NULL OR l.validFrom < r.validTo) AND (l.validTo IS NULL OR r.validFrom < l.validTo))"""  # noqa: S608


def operation(spark: SparkSession, place: Inputs, kind: str, *, full: bool) -> Operation:
    """Of uniform keys or of Zipf's."""
    inputs = views.sides(spark, place, kind, "prices", "stock")
    contestants = [views.ours(spark, place, kind, "stocked"), views.copy(spark, place, kind, "stocked")]
    absent: dict[str, str] = {}
    if full and kind == ZIPF:
        absent[RANGE] = "not run: of the most frequent key all versions with all are 10^10 pairs"
    elif full:
        contestants.append(views.on_spark(spark, RANGE, BY_RANGE, **inputs))
    contestants.append(Contestant(DUCKDB_TWO, by_duckdb(ASOF, **inputs)))
    if full and find_spec("polars"):
        contestants.append(Contestant(POLARS_TWO, by_polars(two_join_asof, **inputs)))
    elif full:
        absent[POLARS_TWO] = NOT_INSTALLED
    versions = f"{place.sizes.versions:,}"
    told = f"table-table join, {versions} versions with {versions}"
    return Operation("c", kind, told, COLUMNS, contestants, absent)


def two_join_asof(prices: Any, stock: Any) -> Any:
    """A pair begins where either side does: each start with what the other side has then."""
    import polars as pl

    def met(left: Any, right: Any, *, strict: bool) -> Any:
        """The left starts that meet a right version."""
        joined = left.sort("validFrom").join_asof(
            right.sort("validFrom"),
            on="validFrom",
            by="item",
            suffix="_right",
            allow_exact_matches=not strict,
            check_sortedness=False,
            coalesce=False,
        )
        alive = pl.col("validTo_right").is_null() | (pl.col("validTo_right") > pl.col("validFrom"))
        ends = pl.min_horizontal("validTo", "validTo_right").alias("validTo")
        rows = joined.filter(pl.col("validFrom_right").is_not_null() & alive)
        return rows.select("item", "price", "n", "validFrom", ends)

    left = prices.select("item", "price", "validFrom", "validTo")
    right = stock.select("item", "n", "validFrom", "validTo")
    rows = pl.concat([met(left, right, strict=False), met(right, left, strict=True)])
    return rows.with_columns(belief())


def belief() -> Any:
    """`_belief` in Polars."""
    import polars as pl

    return pl.when(pl.col("validTo").is_null()).then(pl.lit("open")).otherwise(pl.lit("past")).alias("_belief")
