"""Texts that Spark would take for today's date, also where it makes the cast by itself, or computes the text.

Where a text that is the same in every row is cast to a date or timestamp, Spark puts the day at which it is asked in
the place of 'now', 'today', 'tomorrow' and 'yesterday', and before a time without a day. A table must not depend on it.
Which texts these are, and what is cast, only Spark knows: it evaluates the texts, and tells where it casts them.
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

from hindcast.contracts.moments import is_of_today
from hindcast.contracts.parsing import parse_resolved, show, tokenize
from hindcast.session import temporarily


def text_of_today(
    spark: SparkSession, expression: str, over: Callable[[Column], DataFrame], call: Callable[[Column], Column]
) -> str | None:
    """Return the first text in a resolved expression that Spark would cast to a date or timestamp of today.

    `over`: the rows with one more column; `call`: what is done with the expression's column, an aggregate for example.
    """

    def plan(text: str) -> str:
        with temporarily(spark, _PLANS), redirect_stdout(io.StringIO()) as written:
            over(call(F.expr(text)).alias("_")).explain(extended=True)
        return written.getvalue()

    for part in [*_find_strings(expression), *_find_computed(spark, expression)]:
        if is_of_today(part.value) and (_is_cast(plan, part) or _is_read_as_moment(plan, part)):
            return part.shown
    return None


class _Part(NamedTuple):
    """A part of an expression that is the same text in every row, and the expression with another one in its place."""

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


def _find_strings(expression: str) -> Iterator[_Part]:
    """Yield the strings that are written in an expression; those beside each other are one."""
    for is_string, group in groupby(tokenize(expression), lambda it: it.token_type in _STRINGS):
        if is_string:
            tokens = list(group)
            before, after = expression[: tokens[0].start], expression[tokens[-1].end + 1 :]
            value = "".join(it.text for it in tokens)
            yield _Part(f"'{value}'", value, partial(_write_between, before, after))


def _find_computed(spark: SparkSession, expression: str) -> Iterator[_Part]:
    """Yield the parts of an expression that compute the same text for every row: reverse('yadot')."""
    tree = parse_resolved(expression)
    nodes = [it for it in tree.walk() if _may_be_text(it) and not it.find(*_VARIES)]
    nodes = [it for it in nodes if not isinstance(it.parent, exp.DPipe)]  # part of a longer text
    for node, value in zip(nodes, _evaluate(spark, [show(it) for it in nodes]), strict=True):
        if value is not None:
            yield _Part(show(node), value, partial(_replace, tree, node))


def _write_between(before: str, after: str, text: str) -> str:
    return f"{before}'{text}'{after}"


def _replace(tree: exp.Expr, node: exp.Expr, text: str) -> str:
    place = next(n for n, it in enumerate(tree.walk()) if it is node)
    copy = tree.copy()
    part = next(it for n, it in enumerate(copy.walk()) if n == place)
    string = exp.Literal.string(text)
    if part is copy:
        return show(string)
    part.replace(string)
    return show(copy)


def _may_be_text(node: exp.Expr) -> bool:
    if isinstance(node, _WRITTEN) or not isinstance(node, exp.Condition):
        return False
    if isinstance(node, exp.Cast):
        return node.to.this in exp.DataType.TEXT_TYPES
    return not isinstance(node, _NO_TEXT)


def _evaluate(spark: SparkSession, texts: list[str]) -> list[str | None]:
    """Return what each constant is, if it is a text; of one that cannot be evaluated alone nothing."""
    try:
        return _ask(spark, texts)
    except _FAILURES:
        return [_ask_alone(spark, text) for text in texts]


def _ask(spark: SparkSession, texts: list[str]) -> list[str | None]:
    kinds = _ask_row(spark, [F.typeof(F.expr(text)) for text in texts])
    strings = [text for text, kind in zip(texts, kinds, strict=True) if kind == "string"]
    found = iter(_ask_row(spark, [F.substring(F.expr(text), 1, _LONGEST) for text in strings]))
    return [next(found) if kind == "string" else None for kind in kinds]


def _ask_row(spark: SparkSession, columns: list[Column]) -> list[str | None]:
    if not columns:
        return []
    (row,) = spark.range(1).select(*(column.alias(f"_{n}") for n, column in enumerate(columns))).collect()
    return list(row)


_LONGEST = 100
"""What of a text decides whether it is a day."""


def _ask_alone(spark: SparkSession, text: str) -> str | None:
    try:
        return _ask(spark, [text])[0]
    except _FAILURES:
        return None


def _is_cast(plan: Callable[[str], str], part: _Part) -> bool:
    """Whether Spark casts a part of an expression to a date or timestamp: with a marker in its place the plan tells."""
    try:
        return _CAST.search(plan(part.replace(_MARKER))) is not None
    except _FAILURES as error:  # Spark computes what is the same in every row to tell its plan
        return _REFUSED.search(str(error)) is not None


def _is_read_as_moment(plan: Callable[[str], str], part: _Part) -> bool:
    """Whether two spellings of a moment are one to an expression, and another moment is not: where no cast is shown."""
    try:
        one, same, other = (_optimize(plan, part.replace(it)) for it in (_MOMENT, _SAME_MOMENT, _OTHER_MOMENT))
    except _FAILURES:
        return False
    return one == same != other


def _optimize(plan: Callable[[str], str], expression: str) -> str:
    """Return Spark's optimized plan of an expression, without the numbers of its columns."""
    optimized = plan(expression).partition("== Optimized Logical Plan ==")[2].partition("== Physical Plan ==")[0]
    return re.sub(r"#\d+L?", "", optimized)
