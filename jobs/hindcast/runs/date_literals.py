"""Texts that Spark would read as today's date, also if it adds the cast itself or computes the text.

If a constant text is cast to a date or timestamp, Spark replaces 'now', 'today', 'tomorrow' and 'yesterday' by the
current day, and adds that day to a time without one. A table must not depend on it. Only Spark knows the value of
constant expressions and which of them are cast: it evaluates them, and its plans show the casts.
"""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Iterator
from contextlib import redirect_stdout
from functools import partial
from itertools import groupby
from typing import NamedTuple

from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]  # it has no types of its own
from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from sqlglot import expressions as exp
from sqlglot.tokenizer_core import TokenType

from hindcast.bitemporal.pattern_limits import expression_column
from hindcast.common.session import override_conf
from hindcast.contract.moments import is_of_today
from hindcast.contract.parsing import format_tree, parse_resolved, tokenize


def find_date_literal(
    spark: SparkSession, expression: str, over: Callable[[Column], DataFrame], call: Callable[[Column], Column]
) -> str | None:
    """Return the first text in a resolved expression that Spark would cast to a date or timestamp of today.

    `over`: the rows with one more column; `call`: what is done with the expression's column, an aggregate for example.
    """

    def plan(text: str) -> str:
        with override_conf(spark, _PLANS), redirect_stdout(io.StringIO()) as written:
            over(call(expression_column(text)).alias("_")).explain(extended=True)
        return written.getvalue()

    for part in [*_find_strings(expression), *_find_computed(spark, expression)]:
        if is_of_today(part.value) and (_is_cast(plan, part) or _is_read_as_moment(plan, part)):
            return part.shown
    return None


class _ConstantText(NamedTuple):
    """A part of an expression that is a constant text; `replace` returns the expression with another text instead."""

    shown: str
    value: str
    replace: Callable[[str], str]


_FAILURES = (PySparkException, Py4JJavaError)
_MARKER = "hindcast marks this"
_CAST = re.compile(
    rf"cast\({_MARKER} as (date|timestamp)|cast\(((array|map|struct|named_struct)\([^()]*)+{_MARKER}[^()]*\)+ as "
    rf"\S*(date|timestamp)|(to|try_to)_(date|timestamp)\w*\({_MARKER}\b|"
    rf"(date|timestamp)\w*\({_MARKER}\)",
    re.IGNORECASE,
)
_REFUSED = re.compile(rf"'{_MARKER}' of the type \"STRING\" cannot be cast to \"(DATE|TIMESTAMP)")
_MOMENT, _SAME_MOMENT, _OTHER_MOMENT = "4713-2-3T4:5:6Z", "4713-02-03T04:05:06Z", "1015-07-07T17:48:39Z"
_PLANS = {"spark.sql.maxPlanStringLength": str(1 << 24), "spark.sql.debug.maxToStringFields": "100000"}
_STRINGS = (TokenType.STRING, TokenType.RAW_STRING)
_WRITTEN = (exp.Literal, exp.RawString)
_VARIES = (exp.Column, exp.Lambda, exp.Star, exp.Placeholder, exp.Parameter)
_NO_TEXT = (
    exp.DataType,
    exp.Identifier,
    exp.Var,
    exp.Boolean,
    exp.Null,
    exp.Interval,
    exp.Alias,
    exp.Predicate,
    exp.Connector,
    exp.Neg,
)


def _find_strings(expression: str) -> Iterator[_ConstantText]:
    """Yield the string literals of an expression; adjacent ones are one string."""
    for is_string, group in groupby(tokenize(expression), lambda token: token.token_type in _STRINGS):
        if is_string:
            tokens = list(group)
            before, after = expression[: tokens[0].start], expression[tokens[-1].end + 1 :]
            value = "".join(token.text for token in tokens)
            yield _ConstantText(f"'{value}'", value, partial(_write_between, before, after))


def _find_computed(spark: SparkSession, expression: str) -> Iterator[_ConstantText]:
    """Yield the parts of an expression that compute a constant text: reverse('yadot')."""
    tree = parse_resolved(expression)
    nodes = [node for node in tree.walk() if _may_be_text(node) and not node.find(*_VARIES)]
    nodes = [node for node in nodes if not isinstance(node.parent, exp.DPipe)]  # part of a longer text
    for node, value in zip(nodes, _evaluate(spark, [format_tree(node) for node in nodes]), strict=True):
        if value is not None:
            yield _ConstantText(format_tree(node), value, partial(_replace_node, tree, node))


def _write_between(before: str, after: str, text: str) -> str:
    return f"{before}'{text}'{after}"


def _replace_node(tree: exp.Expr, node: exp.Expr, text: str) -> str:
    place = next(n for n, other in enumerate(tree.walk()) if other is node)
    copy = tree.copy()
    part = next(other for n, other in enumerate(copy.walk()) if n == place)
    string = exp.Literal.string(text)
    if part is copy:
        return format_tree(string)
    part.replace(string)
    return format_tree(copy)


def _may_be_text(node: exp.Expr) -> bool:
    if isinstance(node, _WRITTEN) or not isinstance(node, exp.Condition):
        return False
    if isinstance(node, exp.Cast):
        return node.to.this in exp.DataType.TEXT_TYPES
    return not isinstance(node, _NO_TEXT)


def _evaluate(spark: SparkSession, texts: list[str]) -> list[str | None]:
    """Return the value of each constant if it is a text; None if not, or if it cannot be evaluated alone."""
    try:
        return _evaluate_texts(spark, texts)
    except _FAILURES:
        return [_evaluate_alone(spark, text) for text in texts]


def _evaluate_texts(spark: SparkSession, texts: list[str]) -> list[str | None]:
    kinds = _evaluate_row(spark, [F.typeof(expression_column(text)) for text in texts])
    strings = [text for text, kind in zip(texts, kinds, strict=True) if kind == "string"]
    values = iter(_evaluate_row(spark, [F.substring(expression_column(text), 1, _LONGEST) for text in strings]))
    return [next(values) if kind == "string" else None for kind in kinds]


def _evaluate_row(spark: SparkSession, columns: list[Column]) -> list[str | None]:
    if not columns:
        return []
    (row,) = spark.range(1).select(*(column.alias(f"_{n}") for n, column in enumerate(columns))).collect()
    return list(row)


_LONGEST = 100
"""How many characters decide whether a text is a day."""


def _evaluate_alone(spark: SparkSession, text: str) -> str | None:
    try:
        return _evaluate_texts(spark, [text])[0]
    except _FAILURES:
        return None


def _is_cast(plan: Callable[[str], str], part: _ConstantText) -> bool:
    """Return whether Spark casts a part of an expression to a date or timestamp: its plan with a marker shows that."""
    try:
        return _CAST.search(plan(part.replace(_MARKER))) is not None
    except _FAILURES as error:  # Spark evaluates constants when it plans
        return _REFUSED.search(str(error)) is not None


def _is_read_as_moment(plan: Callable[[str], str], part: _ConstantText) -> bool:
    """Return whether an expression reads two spellings of a moment alike, and another moment not: a hidden cast."""
    try:
        plans = [_optimized_plan(plan, part.replace(text)) for text in (_MOMENT, _SAME_MOMENT, _OTHER_MOMENT)]
    except _FAILURES:
        return False
    return plans[0] == plans[1] != plans[2]


def _optimized_plan(plan: Callable[[str], str], expression: str) -> str:
    """Return Spark's optimized plan of an expression, without the numbers of its columns."""
    optimized = plan(expression).partition("== Optimized Logical Plan ==")[2].partition("== Physical Plan ==")[0]
    return re.sub(r"#\d+L?", "", optimized)
