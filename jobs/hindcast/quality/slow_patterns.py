"""Gates in SQL whose patterns are matched within a limit of time (contract/query_limits.py)."""

from __future__ import annotations

from pyspark.sql import SparkSession

from hindcast.bitemporal.pattern_limits import register_limits
from hindcast.contract import Expectation, query_limits


def limit_gate(spark: SparkSession, gate: Expectation) -> Expectation:
    """Return a gate whose SQL has limits of time, and register the functions that they need; the same gate without any.

    Raise ExpressionError for a pattern where no limit can be written.
    """
    limited = query_limits.limit_gate(gate)
    if limited:
        register_limits(spark)
    return gate.model_copy(update={"kwargs": {**gate.kwargs, **limited}}) if limited else gate
