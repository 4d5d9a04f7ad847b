"""The metrics behind Great Expectations' gates by regular expressions: matched by Java, within a limit of time.

Java's matcher cannot be stopped: a pattern like `^(.*x){25}y$` keeps a core busy for ever on a value that is made for
it, even if the job is cancelled. Python's can, and tries the ways to match in much the same order. So where a text can
be slow to match, Python matches each value first, and the gate fails to run (TimeoutError) after
`time_limits.MAX_SECONDS`. What matches is Java's word all the same. `hindcast check` refuses a pattern that may be slow
and that Python cannot read.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from operator import and_

from great_expectations.execution_engine.sparkdf_execution_engine import SparkDFExecutionEngine
from great_expectations.expectations.metrics.map_metric_provider.column_condition_partial import (
    column_condition_partial,
)
from great_expectations.expectations.metrics.map_metric_provider.column_map_metric_provider import (
    ColumnMapMetricProvider,
)
from pyspark.sql import Column
from pyspark.sql import functions as F
from pyspark.sql.types import StringType

from hindcast.common.json_values import JsonValue
from hindcast.common.time_limits import limit_time
from hindcast.contract.java_patterns import build_compiler
from hindcast.contract.patterns import combine_patterns, may_be_slow


def limit_matching(column: Column, patterns: Sequence[str]) -> Column:
    """Return a column with the same texts, which fails if one of the patterns takes too long for one of them."""
    risky = [pattern for pattern in patterns if may_be_slow(pattern)]
    if not risky:
        return column
    compile_regex = build_compiler()

    def match_all(text: str) -> str:
        for pattern in risky:
            compile_regex(pattern, text).search(text)
        return text

    in_time = limit_time(match_all)
    return F.udf(lambda text: None if text is None else in_time(text), StringType())(column)


class ColumnValuesMatchRegex(ColumnMapMetricProvider):
    """Replaces Great Expectations' metric of this name, in Spark, as do those below."""

    condition_metric_name = "column_values.match_regex"
    condition_value_keys = ("regex",)

    @column_condition_partial(engine=SparkDFExecutionEngine)
    def _spark(cls, column: Column, regex: str, **_others: JsonValue) -> Column:  # noqa: N805  # as GX wants it
        return limit_matching(column, [regex]).rlike(regex)


class ColumnValuesNotMatchRegex(ColumnMapMetricProvider):
    """No value matches."""

    condition_metric_name = "column_values.not_match_regex"
    condition_value_keys = ("regex",)

    @column_condition_partial(engine=SparkDFExecutionEngine)
    def _spark(cls, column: Column, regex: str, **_others: JsonValue) -> Column:  # noqa: N805
        return ~limit_matching(column, [regex]).rlike(regex)


class ColumnValuesMatchRegexList(ColumnMapMetricProvider):
    """Each value matches any, or all, of several."""

    condition_metric_name = "column_values.match_regex_list"
    condition_value_keys = ("regex_list", "match_on")

    @column_condition_partial(engine=SparkDFExecutionEngine)
    def _spark(cls, column: Column, regex_list: list[str], match_on: str, **_others: JsonValue) -> Column:  # noqa: N805
        patterns = combine_patterns(regex_list, any_may_match=match_on == "any")
        texts = limit_matching(column, patterns)
        return reduce(and_, (texts.rlike(regex) for regex in patterns))


class ColumnValuesNotMatchRegexList(ColumnMapMetricProvider):
    """Each value matches none of several."""

    condition_metric_name = "column_values.not_match_regex_list"
    condition_value_keys = ("regex_list",)

    @column_condition_partial(engine=SparkDFExecutionEngine)
    def _spark(cls, column: Column, regex_list: list[str], **_others: JsonValue) -> Column:  # noqa: N805
        texts = limit_matching(column, regex_list)
        return reduce(and_, (~texts.rlike(regex) for regex in regex_list))
