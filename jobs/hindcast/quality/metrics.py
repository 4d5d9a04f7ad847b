"""Metrics: what Great Expectations measures for the gates of one batch, in as few passes over its rows as it allows.

Great Expectations (GX) resolves a suite's metrics level by level, and bundles what it can of a level into one
aggregate. Here aggregates wait until nothing else is left to resolve, so that they are one bundle whatever level they
are of; how many rows there are need not be counted where it is known; and what GX counts in jobs of their own, though
rows alone decide it, joins the bundle. What a metric means, GX's provider of it says.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from functools import reduce
from operator import and_, or_
from typing import Any

from great_expectations.core.metric_domain_types import MetricDomainTypes
from great_expectations.core.metric_function_types import MetricPartialFunctionTypes
from great_expectations.exceptions.exceptions import MetricResolutionError
from great_expectations.execution_engine.sparkdf_execution_engine import SparkDFExecutionEngine
from great_expectations.expectations.metrics.map_metric_provider.column_pair_map_condition_auxilliary_methods import (
    _spark_column_pair_map_condition_filtered_row_count,
)
from great_expectations.expectations.metrics.map_metric_provider.map_condition_auxilliary_methods import (
    _spark_map_condition_unexpected_count_value,
)
from great_expectations.expectations.metrics.map_metric_provider.multicolumn_map_condition_auxilliary_methods import (
    _spark_multicolumn_map_condition_filtered_row_count,
)
from great_expectations.expectations.metrics.metric_provider import metric_partial
from great_expectations.expectations.metrics.table_metric_provider import TableMetricProvider
from pyspark.sql import Column
from pyspark.sql import functions as F


class RowsWhere(TableMetricProvider):
    """How many rows meet `condition`, in SQL."""

    metric_name = "rows_where.count"
    value_keys = ("condition",)

    @staticmethod
    @metric_partial(
        engine=SparkDFExecutionEngine,
        partial_fn_type=MetricPartialFunctionTypes.AGGREGATE_FN,
        domain_type=MetricDomainTypes.TABLE,
    )
    def _spark(
        metric_domain_kwargs: dict[str, Any], metric_value_kwargs: dict[str, Any], **_others: object
    ) -> tuple[Column, dict[str, Any], dict[str, Any]]:
        return F.count_if(F.expr(metric_value_kwargs["condition"])), metric_domain_kwargs, {}


@contextmanager
def bundled(engine: Any, rows: int | None) -> Iterator[dict[Any, Any]]:
    """The metrics that an execution engine resolves meanwhile, by their ids.

    `rows`: how many the batch has, if that is known.
    """
    kept: dict[Any, Any] = {}
    failed: set[Any] = set()
    arranged = engine._build_direct_and_bundled_metric_computation_configurations  # noqa: SLF001  # no other way
    computed = engine._process_direct_and_bundled_metric_computation_configurations  # noqa: SLF001  # between these

    def sound(some: list[Any]) -> list[Any]:
        """Those that have not failed yet, or all: GX asks thrice, and gives up what is asked with one that fails."""
        return [it for it in some if it.metric_configuration.id not in failed] or some

    def resolved(
        metrics_to_resolve: Iterable[Any],
        metrics: Mapping[Any, Any] | None = None,
        runtime_configuration: Mapping[str, Any] | None = None,
    ) -> dict[Any, Any]:
        alone, together = arranged(metrics_to_resolve, metrics, runtime_configuration)
        known = {it.metric_configuration.id: rows for it in together if rows is not None and _of_all_rows(it)}
        counts = {it.metric_configuration.id: count for it in alone if (count := _counted(it))}
        alone = [it for it in alone if it.metric_configuration.id not in counts]
        # What is left out now GX asks for again. It tells no order: in a fixed one Spark compiles a bundle only once.
        bundle = [] if known or alone else sorted(map(_alike, (*together, *counts.values())), key=_order)
        try:
            found = {**known, **computed(*map(sound, (alone, bundle)))}
        except MetricResolutionError as error:
            failed.update(metric.id for metric in error.failed_metrics)
            raise
        kept.update(found)
        return found

    engine.resolve_metrics = resolved
    try:
        yield kept
    finally:
        del engine.resolve_metrics


def _order(it: Any) -> str:
    return str(it.metric_configuration.id)


def _alike(it: Any) -> Any:
    """An aggregate, its domain told as others tell the same rows: GX bundles by what is told, null or not."""
    domain = {key: told for key, told in it.compute_domain_kwargs.items() if told is not None}
    domain.pop("ignore_row_if", None)  # of no columns: `_counted` has done it
    return replace(it, compute_domain_kwargs=domain)


def _of_all_rows(it: Any) -> bool:
    metric = it.metric_configuration
    return metric.metric_name == "table.row_count" and not metric.metric_domain_kwargs.get("row_condition")


def _counted(it: Any) -> Any:
    """The count of a pair of columns, or of several, as part of a bundle; None if it is not one that can be."""
    name = it.metric_configuration.metric_name
    if it.metric_fn not in _COUNTS or (name.endswith(_UNEXPECTED) and name.removesuffix(_UNEXPECTED) not in _OF_ROWS):
        return None
    condition, domain, columns = it.metric_provider_kwargs["metrics"]["unexpected_condition"]
    looked_at = _looked_at(columns.get("column_list") or [columns["column_A"], columns["column_B"]], domain)
    counted = F.when(looked_at, condition) if name.endswith(_UNEXPECTED) else looked_at
    return replace(it, metric_fn=F.count_if(counted), compute_domain_kwargs=domain, accessor_domain_kwargs=columns)


def _looked_at(columns: Iterable[str], domain: Mapping[str, Any]) -> Column:
    """Which rows are not passed over for their nulls (GX: SparkDFExecutionEngine.get_domain_records)."""
    told = [F.col(column).isNotNull() for column in columns]
    match domain.get("ignore_row_if"):
        case "either_value_is_missing" | "any_value_is_missing":
            return reduce(and_, told)
        case "both_values_are_missing" | "all_values_are_missing":
            return reduce(or_, told)
        case _:
            return F.lit(True)


_UNEXPECTED = ".unexpected_count"
_COUNTS = (
    _spark_map_condition_unexpected_count_value,
    _spark_column_pair_map_condition_filtered_row_count,
    _spark_multicolumn_map_condition_filtered_row_count,
)
"""GX's counts in a job of their own."""
_OF_ROWS = (
    "column_pair_values.equal",
    "column_pair_values.a_greater_than_b",
    "column_pair_values.in_set",
    "multicolumn_sum.equal",
    "multicolumn_values.equal",
    "select_column_values.unique.within_record",
)
"""Metrics over several columns whose condition needs no window: each row is judged alone."""
