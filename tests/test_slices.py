"""Slices of time change where rows are computed, never what they are."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import histories
from hindcast.bitemporal import aggregates, joins
from hindcast.bitemporal.measures import Measure
from hindcast.common.session import MANY_ROWS, ROWS_PER_SLICE, SLICES, override_conf, slice_large_keys
from hindcast_conformance import Vector, load_vectors, run_vectors
from hindcast_conformance.formatting import format_failure
from relations import records, rows, versions

SLICED = ("stream_table_join", "table_table_join", "foreign_key_join", "table_aggregate", "stream_aggregate")
"""Operations that are made of operators with slices, or can be."""

VECTORS = Path(__file__).parent / "conformance"


@pytest.mark.parametrize(
    ("count", "every"),
    [
        pytest.param(300, 2, marks=pytest.mark.long),
        *(pytest.param(4_000, n, marks=pytest.mark.long) for n in (1, 2, 5)),
    ],
)
def test_histories_are_the_same_in_slices(spark: SparkSession, count: int, every: int) -> None:
    judge(spark, [case for case in histories.histories(every, count) if case.operation["type"] in SLICED], every)


@pytest.mark.parametrize(
    ("step", "every"), [pytest.param(30, 1, marks=pytest.mark.long), pytest.param(1, 1, marks=pytest.mark.long)]
)
def test_vectors_are_the_same_in_slices(spark: SparkSession, step: int, every: int) -> None:
    corrected = [vector for vector in load_vectors(VECTORS) if vector.operation.get("semantics") == "corrected"]
    judge(spark, [vector for vector in corrected if vector.operation["type"] in SLICED][::step], every)


def judge(spark: SparkSession, cases: list[Vector], every: int) -> None:
    with override_conf(spark, {ROWS_PER_SLICE: str(every)}):
        wrong = next((outcome for outcome in run_vectors(spark, cases) if outcome.state != "passed"), None)
    assert wrong is None, wrong.computed if wrong.state == "declined" else format_failure(wrong)


def test_a_hot_key_lies_in_many_slices_and_a_cold_one_in_one(spark: SparkSession) -> None:
    with override_conf(spark, {ROWS_PER_SLICE: "100"}):
        orders = records(spark, [(0, "hot", 1, time) for time in range(2_000)] + [(0, "cold", 1, 1)])
        joined = joins.join_stream_table(orders, versions(spark, [("hot", 8, 0, 900), ("hot", 9, 900, None)]), "left")
        assert tasks(joined.where("key.k = 'hot'")) > 3
        assert rows(joined.groupBy("key.k", "right.v").count(), "k", "v", "count") == [
            ("cold", None, 1),
            ("hot", 8.0, 900),
            ("hot", 9.0, 1_100),
        ]


def test_a_sum_has_its_type_in_slices_too(spark: SparkSession) -> None:
    members = versions(spark, [("a", 1, 0, 9), ("b", 2, 3, None), ("c", 4, 5, 7)])
    measures = {"v": Measure("sum", F.col("value.v").cast("decimal(8,2)")), "n": Measure("count", F.lit(1))}
    whole = aggregates.aggregate_table(members, F.lit("all"), measures)
    with override_conf(spark, {ROWS_PER_SLICE: "2"}):
        sliced = aggregates.aggregate_table(members, F.lit("all"), measures)
        assert (sliced.schema, rows(sliced, *whole.columns)) == (whole.schema, rows(whole, *whole.columns))


def test_what_a_stream_adds_up_is_carried_from_slice_to_slice(spark: SparkSession) -> None:
    dice = random.Random(3)  # noqa: S311 - not secrets
    log = [(0, key, dice.choice([None, *range(9)]), dice.randrange(60)) for _ in range(300) for key in "ab"]
    number = F.col("value.v").cast("decimal(8,2)")
    adding = {f: Measure(f, number) for f in ("count", "sum", "min", "max", "avg")}
    for measures, sliced_ in ((adding, True), ({"sum": Measure("sum", F.col("value.v").cast("double"))}, False)):
        whole = aggregates.aggregate_stream(records(spark, log), measures)
        with override_conf(spark, {ROWS_PER_SLICE: "3"}):
            sliced = aggregates.aggregate_stream(records(spark, log), measures)
            assert ("_slice" in plan(sliced)) is sliced_, "sums of doubles depend on their order"
            assert (sliced.schema, rows(sliced, *whole.columns)) == (whole.schema, rows(whole, *whole.columns))


def test_few_rows_and_keys_of_few_rows_are_not_sliced(spark: SparkSession) -> None:
    hot = [("hot", n, n, n + 1) for n in range(100)]
    even = [(f"k{n}", n, 0, None) for n in range(100)]
    for rows_per_slice, kept, sliced_ in ((None, hot, False), ("10", even, False), ("10", hot, True)):
        prices = versions(spark, kept)
        with override_conf(spark, {} if rows_per_slice is None else {ROWS_PER_SLICE: rows_per_slice}):
            assert ("_slice" in plan(joins.join_table_table(prices, prices, "inner"))) is sliced_


def test_a_step_asks_for_slices_from_many_rows_on(spark: SparkSession) -> None:
    for rows_read, asked in ((MANY_ROWS - 1, None), (MANY_ROWS, str(MANY_ROWS // SLICES))):
        with slice_large_keys(spark, rows_read):
            assert spark.conf.get(ROWS_PER_SLICE, None) == asked


def tasks(frame: DataFrame) -> int:
    """How many of eight partitions hold rows."""
    with override_conf(
        frame.sparkSession, {"spark.sql.shuffle.partitions": "8", "spark.sql.adaptive.enabled": "false"}
    ):
        return sum(frame.rdd.mapPartitions(lambda rows: [any(True for _ in rows)]).collect())


def plan(frame: DataFrame) -> str:
    return str(frame._jdf.queryExecution().optimizedPlan())
