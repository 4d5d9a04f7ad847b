"""Each way of computing an aggregate of a table agrees with computing it from scratch."""

from __future__ import annotations

import random
import statistics
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyspark.errors import ArithmeticException
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from hindcast.bitemporal import aggregates
from hindcast.bitemporal.measures import Measure
from hindcast.common.session import ROWS_PER_SLICE, override_conf
from hindcast.engine import integer_encoding, operators, sweeps
from relations import at, records, rows, versions

FROM_SCRATCH: dict[str, Any] = {
    "count": len,
    "sum": sum,
    "min": min,
    "max": max,
    "avg": lambda values: sum(values) / len(values),
    "count_distinct": lambda values: len(set(values)),
    "var_pop": statistics.pvariance,
}


@pytest.mark.parametrize("kind", ["double", "bigint"])
def test_every_measure_is_what_it_would_be_from_scratch_at_every_instant(spark: SparkSession, kind: str) -> None:
    """One of the members is the key of which all columns are null."""
    dice = random.Random(7)  # noqa: S311 - not secrets
    held = []
    for number in range(60):
        start = dice.randrange(100)
        held.append(
            (
                str(number) if number else None,
                float(dice.randrange(6)),
                start,
                dice.choice([None, start + 1, start + dice.randrange(1, 70)]),
            )
        )
    measures = {name: Measure(name, F.col("value.v").cast(kind)) for name in FROM_SCRATCH}
    found = aggregates.aggregate_table(versions(spark, held), F.lit(1), measures)
    moments = sorted({moment for _, _, start, end in held for moment in (start, end) if moment is not None})
    expected = []
    for start, end in zip(moments, [*moments[1:], None], strict=True):
        members = [value for _, value, begin, until in held if begin <= start and (until is None or until > start)]
        if members:
            expected.append((start, end, *(compute(members) for compute in FROM_SCRATCH.values())))
    computed = rows(found, "validFrom", "validTo", "value.*")
    assert [row[:2] for row in computed] == [row[:2] for row in expected]
    for one, other in zip(computed, expected, strict=True):
        assert one == pytest.approx(other), (one, other)


@pytest.mark.parametrize(
    ("group", "shown"),
    [
        ("value.v", "key"),
        ("cast(value.v AS float)", "key"),
        ("struct(value.v AS v, 1 AS n)", "key.v"),
        ("struct(array(struct(value.v AS v)) AS a)", "key.a[0].v"),
    ],
)
def test_negative_zero_and_zero_are_one_group_that_shows_zero(spark: SparkSession, group: str, shown: str) -> None:
    measures = {"n": Measure("count", F.col("value.v")), "most": Measure("max", F.col("value.v"))}
    held = versions(spark, [("a", -0.0, 0, 20), ("b", 0.0, 10, None), ("c", 2.5, 0, None)])
    found = aggregates.aggregate_table(held, F.expr(group), measures)
    assert rows(found, F.expr(f"string({shown}) AS shown"), "validFrom", "validTo", "value.n") == [
        ("0.0", 0, 10, 1),
        ("0.0", 10, 20, 2),
        ("0.0", 20, None, 1),
        ("2.5", 0, None, 1),
    ]
    events = records(spark, [(0, "a", -0.0, 10), (0, "b", 0.0, 20), (0, "c", None, 20)])
    found = aggregates.aggregate_stream(events.withColumn("key", F.expr(group)), measures)
    assert rows(found, F.expr(f"string({shown}) AS shown"), "validFrom", "validTo", "value.n") == [
        ("0.0", 10, 20, 1),
        ("0.0", 20, None, 2),
    ]


def test_a_stream_is_aggregated_from_each_timestamp_to_the_next(spark: SparkSession) -> None:
    log = [(0, "a", 5, 10), (0, "a", 3, 20), (1, "a", 4, 15), (0, "a", 1, 15), (0, None, 9, 1), (0, "a", None, 16)]
    measures = {"total": Measure("sum", F.col("value.v")), "different": Measure("count_distinct", F.col("value.v"))}
    assert rows(aggregates.aggregate_stream(records(spark, log), measures), "validFrom", "validTo", "value.*") == [
        (10, 15, 5.0, 1),
        (15, 20, 10.0, 3),
        (20, None, 13.0, 4),
    ]


def test_the_least_int_is_taken_back(spark: SparkSession) -> None:
    held = versions(spark, [("k", -(2**31), 0, 4), ("m", 1, 0, None)])
    found = aggregates.aggregate_table(held, F.lit(1), {"total": Measure("sum", F.col("value.v").cast("int"))})
    assert rows(found, "validFrom", "validTo", "value.total") == [(0, 4, 1 - 2**31), (4, None, 1)]


def test_the_longest_decimals_are_taken_back(spark: SparkSession) -> None:
    """Spark's minus rounds what has more than 34 digits."""
    most = "9" * 27 + ".9999999999"
    held = versions(spark, [("k", 1, 0, 4), ("l", -1, 1, 4), ("m", 0, 2, None)])
    sign, least = F.when(F.col("value.v") < 0, "-").otherwise(""), F.lit("0.0000000001")
    value = F.when(F.col("value.v") == 0, least).otherwise(F.concat(sign, F.lit(most))).cast("decimal(38,10)")
    found = aggregates.aggregate_table(held, F.lit(1), {"total": Measure("sum", value)})
    expected = [(0, 1, Decimal(most)), (1, 2, Decimal(0)), (2, 4, Decimal("1E-10")), (4, None, Decimal("1E-10"))]
    assert rows(found, "validFrom", "validTo", "value.total") == expected


MOST, LEAST, LARGE = 2**63 - 1, -(2**63), 1_700_000_000_000_000_000


def test_an_average_of_bigints_is_defined_where_their_sum_is_no_bigint(spark: SparkSession) -> None:
    measures = {"avg": Measure("avg", F.lit(LARGE) + F.col("value.v").cast("bigint"))}
    moments = range(6)
    held = versions(spark, [(str(moment), 0, moment, 50) for moment in moments])
    events = records(spark, [(0, "k", 0, moment) for moment in moments])
    whole = aggregates.aggregate_rows(events, ["key"], measures)
    expected = [(start, 50 if start == 5 else start + 1, float(LARGE)) for start in moments]
    for sliced in ({}, {ROWS_PER_SLICE: "2"}):
        with override_conf(spark, sliced):
            of_table = aggregates.aggregate_table(held, F.lit("x"), measures)
            of_stream = aggregates.aggregate_stream(events, measures)
            made = of_table.select("validFrom", "validTo", "value").unionAll(
                of_stream.select("validFrom", F.coalesce("validTo", at(50)), "value")
            )
            found = rows(made, "validFrom", "validTo", "value.avg")
        assert found == sorted(expected * 2), sliced
    assert rows(whole, "value.avg") == [(float(LARGE),)]


def test_averages_are_the_doubles_that_kernels_compute(spark: SparkSession) -> None:
    dice = random.Random(11)  # noqa: S311 - not secrets
    groups = [[dice.randrange(LEAST, MOST) for _ in range(dice.randrange(1, 9))] for _ in range(200)]
    groups += [[MOST, 1025, -(2**62)], [2**53, 1], [2**53, 3], [LEAST, LEAST, -1], [MOST, MOST]]
    plain = [(number, value) for number, values in enumerate(groups) for value in values]
    found = aggregates.aggregate_rows(
        spark.createDataFrame(plain, "key int, v bigint"), ["key"], {"avg": Measure("avg", F.col("v"))}
    )
    numbers, values = (np.array(column) for column in zip(*plain, strict=True))
    halves = integer_encoding.split_halves(pa.chunked_array([pa.array(values)]))
    kernel = operators.compute_measure("avg", *sweeps.sum_groups(numbers, *halves, len(groups)), pa.float64())
    expected = [float(sum(values)) / len(values) for values in groups]
    assert [average for _, average in rows(found, "key", "value.avg")] == expected == kernel.to_pylist()


SUMS = [
    ("replaced", MOST, 0, 5),
    ("replaced", MOST - 1, 5, 9),
    ("least", LEAST, 0, 4),
    ("least", 1, 0, None),
    *(("at once", value, 0, None) for value in (MOST, 1, -5, MOST, LEAST)),
]
"""Versions of groups, with values whose sum is a bigint at each moment, though not in each order."""


@pytest.mark.parametrize("sliced", [{}, {ROWS_PER_SLICE: "2"}], ids=["whole", "sliced"])
def test_a_sum_of_bigints_fails_only_where_it_is_no_bigint(spark: SparkSession, sliced: dict[str, str]) -> None:
    number = F.element_at(F.array(*(F.lit(value) for _, value, _, _ in SUMS)), F.col("value.v").cast("int") + 1)
    measures = {"sum": Measure("sum", number)}
    group = F.split("key.k", "/")[0]
    held = versions(spark, [(f"{name}/{n}", n, start, end) for n, (name, _, start, end) in enumerate(SUMS)])
    events = records(spark, [(0, "k", n, 0) for n, (name, *_) in enumerate(SUMS) if name == "at once"])
    with override_conf(spark, sliced):
        found = rows(aggregates.aggregate_table(held, group, measures), "key", "validFrom", "validTo", "value.sum")
        assert found == [
            ("at once", 0, None, 2 * MOST - 4 + LEAST),
            ("least", 0, 4, LEAST + 1),
            ("least", 4, None, 1),
            ("replaced", 0, 5, MOST),
            ("replaced", 5, 9, MOST - 1),
        ]
        of_events = [
            aggregates.aggregate_stream(events, measures),
            aggregates.aggregate_rows(events, ["key"], measures),
        ]
        for relation in of_events:
            assert rows(relation, "value.sum") == [(2 * MOST - 4 + LEAST,)]
        too_many = {"sum": Measure("sum", F.lit(MOST) + F.col("value.v").cast("bigint") * 0)}
        for relation in (
            aggregates.aggregate_table(held, group, too_many),
            aggregates.aggregate_stream(events, too_many),
            aggregates.aggregate_rows(events, ["key"], too_many),
        ):
            with pytest.raises(ArithmeticException, match="OVERFLOW"):
                relation.collect()


def test_sums_have_the_types_that_spark_gives_them(spark: SparkSession) -> None:
    held = versions(spark, [("a", 1, 0, None)])
    kinds = ("tinyint", "int", "bigint", "decimal(8,2)", "decimal(38,2)", "double")
    functions = ("sum", "avg")
    measures = {f"{f}({kind})": Measure(f, F.col("value.v").cast(kind)) for kind in kinds for f in functions}
    found = aggregates.aggregate_table(held, F.lit("x"), measures).select("value.*").dtypes
    summed = held.select(*(F.sum(F.col("value.v").cast(kind)) for kind in kinds)).dtypes
    assert [kind for name, kind in found if name.startswith("sum")] == [kind for _, kind in summed]
    assert {kind for name, kind in found if name.startswith("avg")} == {"double"}
