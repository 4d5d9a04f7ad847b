"""Operations a and b: each event with the version of its key that was valid at its timestamp, or with none."""

from __future__ import annotations

from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F

from bench.speed import views
from bench.speed.data import KNOWN
from bench.speed.engines import by_duckdb, by_polars
from bench.speed.inputs import Inputs, marked
from bench.speed.measuring import Contestant, Operation
from bench.speed.names import DUCKDB_ASOF, EQUI, HOT, NOT_INSTALLED, POLARS_ASOF, RANGE, TEMPO, WINDOW, ZIPF

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

COLUMNS = (
    "item",
    "quantity::BIGINT",
    "price::BIGINT",
    'epoch_us("timestamp")',
    "_partition::BIGINT",
    "_offset::BIGINT",
    "_belief",
    "epoch_us(systemFrom)",
    "epoch_us(systemTo)",
)
OF_EVENT = "e.item, e.quantity, e.timestamp, e._partition, e._offset, 'past' AS _belief, {system}"
CURRENT = "CASE WHEN v.validTo IS NULL OR e.timestamp < v.validTo THEN v.price END AS price"
ASOF = (
    f"SELECT {OF_EVENT}, {CURRENT} FROM {{events}} e "  # noqa: S608  # ours
    "ASOF LEFT JOIN {prices} v ON e.item = v.item AND e.timestamp >= v.validFrom"
)
BY_RANGE = (
    f"SELECT {OF_EVENT}, v.price FROM {{events}} e LEFT JOIN {{prices}} v ON e.item = v.item "  # noqa: S608
    "AND v.validFrom <= e.timestamp AND (v.validTo IS NULL OR e.timestamp < v.validTo)"
)
BY_START = (
    f"SELECT {OF_EVENT}, v.price FROM {{marked}} e LEFT JOIN {{prices}} v "  # noqa: S608
    "ON e.item = v.item AND e.validFrom = v.validFrom"
)
"""The plain equi-join: the events of `marked` know the start of their version already."""


def operation(spark: SparkSession, place: Inputs, kind: str, *, full: bool) -> Operation:
    """Of uniform keys or of Zipf's (a), or with one hot key (b)."""
    inputs = views.sides(spark, place, kind, "events", "prices")
    both = views.ours(spark, place, kind, "priced"), views.copy(spark, place, kind, "priced")
    peers, absent = _peers(spark, place, kind, inputs) if full else ([], {})
    peers.append(Contestant(DUCKDB_ASOF, by_duckdb(ASOF, **inputs)))
    told = f"{place.sizes.events:,} events with {place.sizes.versions:,} versions of {place.sizes.keys:,} keys"
    return Operation("b" if kind == HOT else "a", kind, f"stream-table join, {told}", COLUMNS, [*both, *peers], absent)


def _peers(
    spark: SparkSession, place: Inputs, kind: str, inputs: dict[str, Any]
) -> tuple[list[Contestant], dict[str, str]]:
    known = {"marked": marked(spark, place, kind), "prices": inputs["prices"]}
    peers = [
        views.on_spark(spark, EQUI, BY_START, **known),
        views.on_spark(spark, WINDOW, union_and_window, **inputs),
    ]
    absent: dict[str, str] = {}
    if kind == ZIPF:
        absent[RANGE] = "not run: of the most frequent key all versions with all events are 10^11 pairs"
    else:
        peers.append(views.on_spark(spark, RANGE, BY_RANGE, **inputs))
    if find_spec("tempo"):
        peers.append(views.on_spark(spark, TEMPO, by_tempo, **inputs))
    else:
        absent[TEMPO] = NOT_INSTALLED
    if find_spec("polars"):
        peers.append(Contestant(POLARS_ASOF, by_polars(join_asof, **inputs)))
    else:
        absent[POLARS_ASOF] = NOT_INSTALLED
    return peers, absent


def union_and_window(events: DataFrame, prices: DataFrame) -> DataFrame:
    """Both sides in one order of time, and at each event the last version seen."""
    points = events.select("item", F.col("timestamp").alias("at"), F.lit(1).alias("turn"), "quantity", *_PLACE)
    version = F.struct("price", "validTo").alias("version")
    starts = prices.select("item", F.col("validFrom").alias("at"), F.lit(0).alias("turn"), version)
    past = Window.partitionBy("item").orderBy("at", "turn").rowsBetween(Window.unboundedPreceding, 0)
    met = (
        points.unionByName(starts, allowMissingColumns=True)
        .withColumn("version", F.last("version", ignorenulls=True).over(past))
        .where("turn = 1")
    )
    return _whole(met, F.col("at"), F.col("version.price"), F.col("version.validTo"))


def by_tempo(events: DataFrame, prices: DataFrame) -> DataFrame:
    """The library's own as-of join; `skipNulls` off, or it would put columns of several versions together."""
    from tempo import TSDF

    left = TSDF(events.select("item", "timestamp", "quantity", *_PLACE), "timestamp", ["item"])
    starts = F.col("validFrom").alias("timestamp")  # tempo wants one name
    right = TSDF(prices.select("item", starts, "validTo", "price"), "timestamp", ["item"])
    met = left.asofJoin(right, right_prefix="v", skipNulls=False).df
    return _whole(met, F.col("timestamp"), F.col("v_price"), F.col("v_validTo"))


def join_asof(events: Any, prices: Any) -> Any:
    """Polars' own."""
    import polars as pl

    left = events.select("item", "timestamp", "quantity", *_PLACE).sort("timestamp")
    right = prices.select("item", "validFrom", "validTo", "price").sort("validFrom")
    met = left.join_asof(right, left_on="timestamp", right_on="validFrom", by="item", check_sortedness=False)
    current = pl.col("validTo").is_null() | (pl.col("timestamp") < pl.col("validTo"))
    price = pl.when(current).then("price").alias("price")
    return met.select("item", "quantity", price, "timestamp", *_PLACE, pl.lit("past").alias("_belief"))


_PLACE = ("_partition", "_offset")


def _whole(met: DataFrame, at: Any, price: Any, until: Any) -> DataFrame:
    """The columns of the view, of events that have met versions."""
    return met.select(
        "item",
        "quantity",
        F.when(until.isNull() | (at < until), price).alias("price"),
        at.alias("timestamp"),
        *_PLACE,
        F.lit("past").alias("_belief"),
        F.lit(KNOWN).alias("systemFrom"),
        F.lit(None).cast("timestamp").alias("systemTo"),
    )
