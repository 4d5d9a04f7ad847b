"""Metrics: what Great Expectations measures for the gates of one batch, in as few passes over its rows as it allows.

Great Expectations (GX) resolves a suite's metrics level by level, and bundles what it can of one level into one
aggregate. Here aggregates wait until nothing else is left to resolve, so that those of all levels are one bundle. The
number of rows is not counted where it is known. Counts for which GX starts a job of their own, although each row
decides alone, join the bundle. The meaning of a metric is that of GX's provider.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from functools import reduce
from operator import and_, or_
from typing import TypeAlias

from great_expectations.core.metric_domain_types import MetricDomainTypes
from great_expectations.core.metric_function_types import MetricPartialFunctionTypes
from great_expectations.exceptions.exceptions import MetricResolutionError
from great_expectations.execution_engine.execution_engine import MetricComputationConfiguration
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
from great_expectations.validator.computed_metric import MetricValue
from great_expectations.validator.metric_configuration import MetricConfiguration, MetricConfigurationID
from pyspark.sql import Column
from pyspark.sql import functions as F

from hindcast.common.json_values import JsonObject, JsonValue

Metrics: TypeAlias = dict[MetricConfigurationID, MetricValue]
"""Values that Great Expectations measured, by the ids of its metrics."""


class RowsWhereCount(TableMetricProvider):
    """The number of rows that meet `condition`, in SQL."""

    metric_name = "rows_where.count"
    value_keys = ("condition",)

    @staticmethod
    @metric_partial(
        engine=SparkDFExecutionEngine,
        partial_fn_type=MetricPartialFunctionTypes.AGGREGATE_FN,
        domain_type=MetricDomainTypes.TABLE,
    )
    def _spark(
        metric_domain_kwargs: JsonObject, metric_value_kwargs: Mapping[str, str], **_others: JsonValue
    ) -> tuple[Column, JsonObject, JsonObject]:
        return F.count_if(F.expr(metric_value_kwargs["condition"])), metric_domain_kwargs, {}


@contextmanager
def bundle_metrics(engine: SparkDFExecutionEngine, rows: int | None) -> Iterator[Metrics]:
    """Yield a dict that collects the metrics that an execution engine resolves during the block, by their ids.

    `rows`: the number of rows of the batch, if known.
    """
    metrics_by_id: Metrics = {}
    failed: set[MetricConfigurationID] = set()
    arrange = engine._build_direct_and_bundled_metric_computation_configurations  # noqa: SLF001  # no other way
    compute = engine._process_direct_and_bundled_metric_computation_configurations  # noqa: SLF001  # between these

    def without_failed(computations: list[MetricComputationConfiguration]) -> list[MetricComputationConfiguration]:
        """Return those that have not failed, or all: GX tries thrice, and drops what is tried along with a failure."""
        return [c for c in computations if c.metric_configuration.id not in failed] or computations

    def resolve_metrics(
        metrics_to_resolve: Iterable[MetricConfiguration],
        metrics: Metrics | None = None,
        runtime_configuration: dict[str, JsonValue] | None = None,
    ) -> Metrics:
        alone, together = arrange(metrics_to_resolve, metrics, runtime_configuration)
        known = {c.metric_configuration.id: rows for c in together if rows is not None and _is_row_count(c)}
        counts = {c.metric_configuration.id: count for c in alone if (count := _convert_to_count(c))}
        alone = [c for c in alone if c.metric_configuration.id not in counts]
        # GX asks again for what is left out now. It fixes no order; with a fixed one Spark compiles a bundle only once.
        bundle = [] if known or alone else sorted(map(_unify_domain, (*together, *counts.values())), key=_metric_order)
        try:
            resolved = {**known, **compute(*map(without_failed, (alone, bundle)))}
        except MetricResolutionError as error:
            failed.update(metric.id for metric in error.failed_metrics)
            raise
        metrics_by_id.update(resolved)
        return resolved

    vars(engine)["resolve_metrics"] = resolve_metrics  # in place of the method
    try:
        yield metrics_by_id
    finally:
        del vars(engine)["resolve_metrics"]


def _metric_order(computation: MetricComputationConfiguration) -> str:
    return str(computation.metric_configuration.id)


def _unify_domain(computation: MetricComputationConfiguration) -> MetricComputationConfiguration:
    """Return an aggregate without the nulls in its domain: GX bundles only domains that are written alike."""
    domain = {key: value for key, value in (computation.compute_domain_kwargs or {}).items() if value is not None}
    domain.pop("ignore_row_if", None)  # it concerns columns: `_convert_to_count` has applied it
    return replace(computation, compute_domain_kwargs=domain)


def _is_row_count(computation: MetricComputationConfiguration) -> bool:
    metric = computation.metric_configuration
    return metric.metric_name == "table.row_count" and not metric.metric_domain_kwargs.get("row_condition")


def _convert_to_count(computation: MetricComputationConfiguration) -> MetricComputationConfiguration | None:
    """Return a count over several columns as an aggregate that can be bundled; None if it is not such a count."""
    name = computation.metric_configuration.metric_name
    if computation.metric_fn not in _COUNT_FUNCTIONS or (
        name.endswith(_UNEXPECTED_SUFFIX) and name.removesuffix(_UNEXPECTED_SUFFIX) not in _ROW_METRICS
    ):
        return None
    condition, domain, columns = computation.metric_provider_kwargs["metrics"]["unexpected_condition"]
    looked_at = _is_looked_at(columns.get("column_list") or [columns["column_A"], columns["column_B"]], domain)
    counted = F.when(looked_at, condition) if name.endswith(_UNEXPECTED_SUFFIX) else looked_at
    return replace(
        computation, metric_fn=F.count_if(counted), compute_domain_kwargs=domain, accessor_domain_kwargs=columns
    )


def _is_looked_at(columns: Iterable[str], domain: JsonObject) -> Column:
    """Return which rows GX does not ignore for their nulls (SparkDFExecutionEngine.get_domain_records)."""
    present = [F.col(column).isNotNull() for column in columns]
    match domain.get("ignore_row_if"):
        case "either_value_is_missing" | "any_value_is_missing":
            return reduce(and_, present)
        case "both_values_are_missing" | "all_values_are_missing":
            return reduce(or_, present)
        case _:
            return F.lit(True)


_UNEXPECTED_SUFFIX = ".unexpected_count"
_COUNT_FUNCTIONS = (
    _spark_map_condition_unexpected_count_value,
    _spark_column_pair_map_condition_filtered_row_count,
    _spark_multicolumn_map_condition_filtered_row_count,
)
"""Counts for which GX starts a job of their own."""
_ROW_METRICS = (
    "column_pair_values.equal",
    "column_pair_values.a_greater_than_b",
    "column_pair_values.in_set",
    "multicolumn_sum.equal",
    "multicolumn_values.equal",
    "select_column_values.unique.within_record",
)
"""Metrics over several columns whose condition needs no window: each row is judged alone."""
