"""Operation k: pairs of events of two streams that are at most an hour apart."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bench.speed import views
from bench.speed.engines import by_duckdb
from bench.speed.inputs import Inputs
from bench.speed.measuring import Contestant, Operation
from bench.speed.names import DUCKDB_PAIRS

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

COLUMNS = (
    "item",
    "quantity::BIGINT",
    "shipped::BIGINT",
    "epoch_us(timestamp)",
    "epoch_us(systemFrom)",
    "epoch_us(systemTo)",
)
PAIRS = """
SELECT e.item, e.quantity, s.quantity AS shipped, greatest(e.timestamp, s.timestamp) AS timestamp, {system}
FROM {events} e JOIN {shipped} s ON e.item = s.item
    AND s.timestamp BETWEEN e.timestamp - INTERVAL 1 HOUR AND e.timestamp + INTERVAL 1 HOUR"""


def operation(spark: SparkSession, place: Inputs, kind: str, *, full: bool) -> Operation:  # noqa: ARG001  # as the others
    """Of uniform keys or of Zipf's."""
    inputs = views.sides(spark, place, kind, "events", "shipped")
    contestants = [views.ours(spark, place, kind, "paired"), views.copy(spark, place, kind, "paired")]
    contestants.append(Contestant(DUCKDB_PAIRS, by_duckdb(PAIRS, **inputs)))
    events = f"{place.sizes.events:,}"
    return Operation("k", kind, f"stream-stream join, {events} events with {events}", COLUMNS, contestants)
