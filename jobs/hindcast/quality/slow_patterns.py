"""Gates in SQL whose regular expressions are matched within a limit of time (contract/query_limits.py).

Spark runs a function of Python before it runs Java's matcher, which nothing can stop (regex_gates.py).
"""

from __future__ import annotations

import re

from pyspark.sql import SparkSession

from hindcast.contract import Expectation, query_limits
from hindcast.quality.time_limits import limit_time


def limit_gate(spark: SparkSession, gate: Expectation) -> Expectation:
    """Return a gate whose SQL has limits of time, and register the function that they need; the same gate without any.

    Raise ExpressionError for a pattern where no limit can be written.
    """
    limited = query_limits.limit_gate(gate)
    if limited and not spark.catalog.functionExists(query_limits.IN_TIME):
        _register_function(spark)
    return gate.model_copy(update={"kwargs": {**gate.kwargs, **limited}}) if limited else gate


def _register_function(spark: SparkSession) -> None:
    """Register the function of a text and a pattern that returns the text, or fails if matching takes too long."""
    compiled: dict[str, re.Pattern[str] | None] = {}

    # A function in a function goes to Spark's workers by value: they need not have this package.
    def match_all(value: tuple[str, str]) -> None:
        text, pattern = value
        if pattern not in compiled:
            try:
                compiled[pattern] = re.compile(pattern)
            except (re.error, RecursionError, OverflowError):
                compiled[pattern] = None  # only Java can read it, or nobody
        if (readable := compiled[pattern]) is not None:
            for _ in readable.finditer(text):
                pass

    in_time = limit_time(match_all)

    def match_in_time(text: str | None, pattern: str | None) -> str | None:
        if text is not None and pattern is not None:
            in_time((text, pattern))
        return text

    spark.udf.register(query_limits.IN_TIME, match_in_time, "string")
