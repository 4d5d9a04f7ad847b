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

from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from sqlglot import expressions as exp

from hindcast.contracts.moments import find_constant, is_of_today
from hindcast.contracts.parsing import parse_resolved, show
from hindcast.session import temporarily


def text_of_today(
    spark: SparkSession, expression: str, over: Callable[[Column], DataFrame], call: Callable[[Column], Column]
) -> str | None:
    """Return the first text in a resolved expression that Spark would cast to a date or timestamp of today.

    `over`: the rows with one more column; `call`: what is done with the expression's column, an aggregate for example.
    """
    tree = parse_resolved(expression)
    constants = list(_constants(tree))
    for node, text in zip(constants, _evaluated(spark, constants), strict=True):
        if text is not None and is_of_today(text) and _is_cast(spark, tree, node, over, call):
            return show(node)
    return None


_MARKER = "hindcast marks this"
_CAST = re.compile(
    rf"cast\({_MARKER} as (date|timestamp)|cast\(((array|map|struct|named_struct)\([^()]*)+{_MARKER}[^()]*\)+ as "
    rf"\S*(date|timestamp)|(to|try_to)_(date|timestamp)\w*\({_MARKER}\b|"
    rf"(date|timestamp)\w*\({_MARKER}\)",
    re.IGNORECASE,
)
_REFUSED = re.compile(rf"'{_MARKER}' of the type \"STRING\" cannot be cast to \"(DATE|TIMESTAMP)")
_PLANS = {"spark.sql.maxPlanStringLength": str(1 << 24), "spark.sql.debug.maxToStringFields": "100000"}
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


def _constants(tree: exp.Expr) -> Iterator[exp.Expr]:
    """Yield the parts of an expression that may be a text, the same in every row."""
    for node in tree.walk():
        if isinstance(node, _WRITTEN):
            if find_constant(node) is not None:
                yield node
        elif isinstance(node, exp.Condition) and _may_be_text(node) and not node.find(*_VARIES):
            yield node


def _may_be_text(node: exp.Expr) -> bool:
    if isinstance(node, exp.Cast):
        return node.to.this in exp.DataType.TEXT_TYPES
    return not isinstance(node, _NO_TEXT)


def _evaluated(spark: SparkSession, constants: list[exp.Expr]) -> list[str | None]:
    """Return what each constant is, if it is a text; of one that cannot be evaluated alone nothing."""
    found: list[str | None] = [find_constant(it) if isinstance(it, _WRITTEN) else None for it in constants]
    asked = [n for n, it in enumerate(constants) if not isinstance(it, _WRITTEN)]
    texts = [show(constants[n]) for n in asked]
    try:
        computed = _asked(spark, texts)
    except PySparkException:
        computed = [_asked_alone(spark, text) for text in texts]
    for n, text in zip(asked, computed, strict=True):
        found[n] = text
    return found


def _asked(spark: SparkSession, texts: list[str]) -> list[str | None]:
    if not texts:
        return []
    columns = [F.struct(F.typeof(F.expr(text)), F.expr(text).cast("string")) for text in texts]
    (row,) = spark.range(1).select(*(column.alias(f"_{n}") for n, column in enumerate(columns))).collect()
    return [text if kind == "string" else None for kind, text in row]


def _asked_alone(spark: SparkSession, text: str) -> str | None:
    try:
        return _asked(spark, [text])[0]
    except PySparkException:
        return None


def _is_cast(
    spark: SparkSession,
    tree: exp.Expr,
    node: exp.Expr,
    over: Callable[[Column], DataFrame],
    call: Callable[[Column], Column],
) -> bool:
    """Whether Spark casts a part of an expression to a date or timestamp: with a marker in its place the plan tells."""
    place = next(n for n, it in enumerate(tree.walk()) if it is node)
    marked = tree.copy()
    part = next(it for n, it in enumerate(marked.walk()) if n == place)
    marker = exp.Literal.string(_MARKER)
    if part is marked:
        marked = marker
    else:
        part.replace(marker)
    with temporarily(spark, _PLANS), redirect_stdout(io.StringIO()) as told:
        try:
            over(call(F.expr(show(marked))).alias("_")).explain(extended=True)
        except PySparkException as error:  # Spark computes what is the same in every row to tell its plan
            return _REFUSED.search(str(error)) is not None
    return _CAST.search(told.getvalue()) is not None
