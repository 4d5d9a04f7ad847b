"""Expressions of contracts as columns, with a limit of time for their patterns (contract/query_limits.py).

Spark runs a function of Python before it runs Java's matcher, which nothing can stop: a job that is cancelled goes on
to match. Python's matcher can be stopped, and tries the ways to match in much the same order.
"""

from __future__ import annotations

import re

from pyspark.sql import Column, SparkSession
from pyspark.sql import functions as F

from hindcast.common.time_limits import limit_time
from hindcast.contract import query_limits
from hindcast.contract.java_patterns import build_compiler


def expression_column(text: str) -> Column:
    """Return the column of a resolved expression, which fails if matching one of its patterns takes too long.

    It belongs to the active session, in which the functions that the limits need are registered.
    """
    limited = query_limits.limit_expression(text)
    if limited != text:
        register_limits(SparkSession.active())
    return F.expr(limited)


def register_limits(spark: SparkSession) -> None:
    """Register the functions of a text and a pattern that return the text, or fail if matching takes too long."""
    for name, translate in ((query_limits.IN_TIME, False), (query_limits.LIKE_IN_TIME, True)):
        if not spark.catalog.functionExists(name):
            _register_limit(spark, name, is_like=translate)


def _register_limit(spark: SparkSession, name: str, *, is_like: bool) -> None:
    compile_regex = build_compiler()
    likes: dict[str, re.Pattern[str]] = {}

    # A function in a function goes to Spark's workers by value: they need not have this package.
    def compile_like(pattern: str) -> re.Pattern[str]:
        if pattern not in likes:
            parts = (".*" if c == "%" else "." if c == "_" else re.escape(c) for c in pattern)
            likes[pattern] = re.compile("".join(parts), re.DOTALL)
        return likes[pattern]

    def match_all(value: tuple[str, str]) -> None:
        text, pattern = value
        if is_like:
            compile_like(pattern).fullmatch(text)
            return
        for _ in compile_regex(pattern, text).finditer(text):
            pass

    in_time = limit_time(match_all)

    def match_in_time(text: str | None, pattern: str | None) -> str | None:
        if text is not None and pattern is not None:
            in_time((text, pattern))
        return text

    spark.udf.register(name, match_in_time, "string")
