"""Metrics: bundled, they are what Great Expectations measures on its own, and cost one pass."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest

from hindcast.common.session import SMALL_STEP_SETTINGS, override_conf
from hindcast.quality import expectations
from pipelines import T0

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Validate = Callable[..., tuple[list[dict[str, Any]], dict[Any, Any]]]

SCHEMA = "a int, b int, c bigint, note string, validFrom timestamp, validTo timestamp"
FROM, TO = T0, T0 + timedelta(days=1)
ROWS: dict[str, tuple[list[tuple[Any, ...]], bool]] = {
    "some of each": (
        [
            (1, 2, 3, "x1", FROM, TO),
            (5, 2, None, "y22", FROM, None),
            (5, None, 7, None, FROM, FROM),
            (None, None, None, None, None, None),
            (None, 9, 9, "", TO, FROM),
            (3, 3, 3, "x1", FROM, TO),
        ],
        True,
    ),
    "all right": ([(2, 1, 3, "x1", FROM, TO), (4, 3, 5, "x2", FROM, None)], False),
    "nothing but nulls": ([(None,) * 6] * 2, True),
    "no rows": ([], False),
}
"""Rows, and whether it is told how many they are."""
A_AND_B = {"column_A": "a", "column_B": "b"}
FEW = {"row_condition": "b > 2", "condition_parser": "spark"}
NONE = {"row_condition": "b > 99", "condition_parser": "spark"}
SUITE: list[tuple[str, dict[str, Any]]] = [
    ("expect_column_values_to_not_be_null", {"column": "a"}),
    ("expect_column_values_to_not_be_null", {"column": "a", "mostly": 0.6}),
    ("expect_column_values_to_be_null", {"column": "b"}),
    ("expect_column_values_to_be_between", {"column": "a", "min_value": 2}),
    ("expect_column_values_to_be_between", {"column": "a", "min_value": 2, "mostly": 0.75}),
    ("expect_column_values_to_be_between", {"column": "a", "min_value": 4, **FEW}),
    ("expect_column_values_to_be_between", {"column": "a", "min_value": 4, **NONE}),
    ("expect_column_values_to_be_in_set", {"column": "note", "value_set": ["x1", "x2"]}),
    ("expect_column_values_to_not_be_in_set", {"column": "note", "value_set": [""]}),
    ("expect_column_values_to_match_regex", {"column": "note", "regex": "^x"}),
    ("expect_column_values_to_match_like_pattern", {"column": "note", "like_pattern": "x%"}),
    ("expect_column_value_lengths_to_be_between", {"column": "note", "min_value": 1, "max_value": 2}),
    ("expect_column_value_lengths_to_equal", {"column": "note", "value": 2}),
    ("expect_column_values_to_be_unique", {"column": "c"}),
    ("expect_column_value_z_scores_to_be_less_than", {"column": "a", "threshold": 1, "double_sided": True}),
    *[
        (f"expect_column_pair_values_{name}", {**A_AND_B, **more})
        for name, more in [
            ("to_be_equal", {}),
            ("to_be_equal", {"ignore_row_if": "neither"}),
            ("to_be_equal", {"ignore_row_if": "either_value_is_missing", **NONE}),
            ("a_to_be_greater_than_b", {"ignore_row_if": "both_values_are_missing"}),
            ("a_to_be_greater_than_b", {"ignore_row_if": "either_value_is_missing", "or_equal": True}),
            ("a_to_be_greater_than_b", {"ignore_row_if": "neither", "mostly": 0.5}),
            ("to_be_in_set", {"value_pairs_set": [(5, 2), (2, 1), (None, 9)], "ignore_row_if": "neither", **FEW}),
        ]
    ],
    *[
        (name, {"column_list": ["a", "b", "c"], **more})
        for name, more in [
            ("expect_multicolumn_sum_to_equal", {"sum_total": 6}),
            ("expect_multicolumn_sum_to_equal", {"sum_total": 6, "ignore_row_if": "any_value_is_missing"}),
            ("expect_multicolumn_values_to_be_equal", {"ignore_row_if": "all_values_are_missing"}),
            ("expect_select_column_values_to_be_unique_within_record", {"ignore_row_if": "never", **FEW}),
            ("expect_compound_columns_to_be_unique", {"ignore_row_if": "any_value_is_missing"}),
        ]
    ],
    ("expect_column_min_to_be_between", {"column": "a", "min_value": 2}),
    ("expect_column_max_to_be_between", {"column": "a", "max_value": 5}),
    ("expect_column_max_to_be_between", {"column": "a", "max_value": 5, **FEW}),
    ("expect_column_mean_to_be_between", {"column": "a", "max_value": 3}),
    ("expect_column_sum_to_be_between", {"column": "c", "min_value": 1}),
    ("expect_column_stdev_to_be_between", {"column": "c", "min_value": 1}),
    ("expect_column_median_to_be_between", {"column": "a", "min_value": 2}),
    ("expect_column_quantile_values_to_be_between", {"column": "a", "quantile_ranges": {"quantiles": [0.5],
      "value_ranges": [[1, 4]]}}),
    ("expect_column_unique_value_count_to_be_between", {"column": "a", "max_value": 2}),
    ("expect_column_proportion_of_unique_values_to_be_between", {"column": "a", "min_value": 0.5}),
    ("expect_column_proportion_of_non_null_values_to_be_between", {"column": "a", "min_value": 0.5}),
    ("expect_column_distinct_values_to_be_in_set", {"column": "a", "value_set": [1, 3, 5]}),
    ("expect_column_most_common_value_to_be_in_set", {"column": "a", "value_set": [5]}),
    ("expect_column_values_to_be_of_type", {"column": "a", "type_": "IntegerType"}),
    ("expect_table_row_count_to_be_between", {"min_value": 1}),
    ("expect_table_row_count_to_equal", {"value": 2, **FEW}),
    ("expect_table_column_count_to_equal", {"value": 6}),
    ("unexpected_rows_expectation", {"unexpected_rows_query": "SELECT * FROM {batch} WHERE a = 1"}),
    ("expect_periods_to_not_be_empty", {}),
]  # fmt: skip


@pytest.fixture(scope="module")
def validate(spark: SparkSession) -> Iterator[Validate]:
    """What Great Expectations says of rows, expectation by expectation, and the metrics that it resolved."""
    gx = expectations.import_gx()
    context = gx.get_context(mode="ephemeral")
    context.variables.progress_bars = {"globally": False}
    source = context.data_sources.add_spark("metrics", persist=False)
    definition = source.add_dataframe_asset("rows").add_batch_definition_whole_dataframe("all")

    def validated(rows: DataFrame, suite: list[tuple[str, dict[str, Any]]], metrics: Any) -> Any:
        batch = definition.get_batch({"dataframe": rows})
        asked = []
        for number, (name, kwargs) in enumerate(suite):
            asked.append(gx.expectations.registry.get_expectation_impl(name)(**kwargs, meta={"gate": number}))
        with metrics(batch.data.execution_engine) as kept:
            found = batch.validate(
                gx.ExpectationSuite(name="gates", expectations=asked), result_format={"result_format": "BOOLEAN_ONLY"}
            )
        told = [it.to_json_dict() for it in sorted(found.results, key=lambda it: it.expectation_config.meta["gate"])]
        for result in told:  # where the exception came from, and of which row it tells, is left to chance
            result["exception_info"] = "raised_exception': True" in str(result["exception_info"])
        return told, {key: value for key, value in kept.items() if isinstance(value, int | float | str | list | None)}

    with override_conf(spark, SMALL_STEP_SETTINGS):
        yield validated


@contextmanager
def alone(engine: Any) -> Iterator[dict[Any, Any]]:
    """As Great Expectations resolves them."""
    kept: dict[Any, Any] = {}
    resolve = engine.resolve_metrics
    engine.resolve_metrics = lambda **asked: (found := resolve(**asked), kept.update(found))[0]
    try:
        yield kept
    finally:
        del engine.resolve_metrics


def bundled(rows: int | None) -> Any:
    from hindcast.quality import metrics

    return lambda engine: metrics.bundle_metrics(engine, rows)


@pytest.mark.filterwarnings("ignore:The condition_parser", "ignore:Passing a string to the row_condition")
@pytest.mark.parametrize(
    ("rows", "counted"),
    [
        pytest.param(*case, id=name.replace(" ", "-"), marks=[pytest.mark.long] if number else [])
        for number, (name, case) in enumerate(ROWS.items())
    ],
)
def test_bundled_metrics_are_what_great_expectations_measures_alone(
    spark: SparkSession, validate: Validate, rows: list[tuple[Any, ...]], counted: bool
) -> None:
    frame = spark.createDataFrame(rows, SCHEMA)
    results, metrics = validate(frame, SUITE, alone)
    told, resolved = validate(frame, SUITE, bundled(len(rows) if counted else None))
    for asked, mine, theirs in zip(SUITE, told, results, strict=True):
        assert mine == theirs, asked
    assert resolved == metrics


@pytest.mark.long
@pytest.mark.ci
def test_what_cannot_be_measured_takes_nothing_with_it(spark: SparkSession, validate: Validate) -> None:
    suite: list[tuple[str, dict[str, Any]]] = [
        ("expect_column_values_to_not_be_null", {"column": "a"}),
        ("expect_column_values_to_be_in_set", {"column": "note", "value_set": [1, 2]}),
        ("expect_column_values_to_not_be_null", {"column": "nobody"}),
        ("expect_column_pair_values_to_be_equal", {"column_A": "a", "column_B": "note"}),
        ("unexpected_rows_expectation", {"unexpected_rows_query": "SELECT * FROM {batch} WHERE nobody = 1"}),
        ("unexpected_rows_expectation", {"unexpected_rows_query": "SELECT * FROM {batch} WHERE a = 99"}),
        ("expect_column_max_to_be_between", {"column": "a", "max_value": 5}),
        ("expect_column_pair_values_to_be_equal", {"column_A": "a", "column_B": "a"}),
    ]
    frame = spark.createDataFrame(ROWS["some of each"][0], SCHEMA)
    told, resolved = validate(frame, suite, bundled(None))
    assert [(it["success"], it["exception_info"]) for it in told] == [
        *[(False, False), *[(False, True)] * 4],
        *[(True, False)] * 3,
    ]
    counts = {name: told for (name, *_), told in resolved.items() if name.endswith("unexpected_count")}
    assert counts == {"column_values.nonnull.unexpected_count": 2, "column_pair_values.equal.unexpected_count": 0}


def test_what_is_asked_of_all_rows_is_one_job(spark: SparkSession, validate: Validate) -> None:
    others = "unique|z_score|median|quantile|distinct|most_common|proportion|unexpected_rows"
    suite = [asked for asked in SUITE if not re.search(others, asked[0]) and "row_condition" not in asked[1]]
    rows, _ = ROWS["all right"]
    frame = spark.createDataFrame(rows, SCHEMA)
    context = spark.sparkContext

    def jobs(asked: str, ask: Callable[[], object]) -> int:
        context.setJobGroup(asked, asked)
        ask()
        context.setLocalProperty("spark.jobGroup.id", None)
        return len(context.statusTracker().getJobIdsForGroup(asked))

    one = jobs("one aggregate", lambda: frame.groupBy().count().collect())
    assert jobs("all gates", lambda: validate(frame, suite, bundled(len(rows)))) == one
    assert len(suite) > 20
