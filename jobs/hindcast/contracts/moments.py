"""Texts as timestamps that are the same on every day. Pure, without Spark.

Spark takes the text "12:30" for that time of today, and 'now' for the moment at which it is asked. Where an expression
makes a timestamp of a text, one without a date is no timestamp here: a cast fails on it, try_cast gives null.

Only what is written is looked at: a cast, or to_timestamp and its like without a format. Where Spark makes the cast by
itself, as in `hour(name)`, it is Spark's.
"""

from __future__ import annotations

import re

from sqlglot import expressions as exp

_KIND = exp.DataType.Type
_MOMENTS = (_KIND.TIMESTAMP, _KIND.TIMESTAMPTZ, _KIND.TIMESTAMPLTZ)
_FUNCTIONS = ("to_timestamp_ltz", "try_to_timestamp")
_DATELESS = "^[^0-9]*(T|[0-9]*:)"
"""How a text begins that has a time of day and no date."""
_TODAYS = re.compile(rf"\s*(now|today|tomorrow|yesterday)\b|{_DATELESS}", re.IGNORECASE)


def of_today(tree: exp.Expression) -> str | None:
    """The first literal that is another moment tomorrow: timestamp 'now', date 'today', timestamp '12:30'."""
    for cast in tree.find_all(exp.Cast):
        text = cast.this
        dated = cast.to.this in (*_MOMENTS, _KIND.TIMESTAMPNTZ, _KIND.DATE)
        if dated and isinstance(text, exp.Literal) and text.is_string and _TODAYS.match(text.name):
            return str(cast.sql(dialect="spark"))
    return None


def nesting(tree: exp.Expr) -> int:
    """Return how many makings of a moment lie in each other at most: each makes the text of `dated` three times as long."""
    deepest, todo = 0, [(tree, 0)]
    while todo:
        node, depth = todo.pop()
        depth += _makes_a_moment(node) and not _is_dated(node)
        deepest = max(deepest, depth)
        todo += [(child, depth) for child in node.iter_expressions()]
    return deepest


def dated(tree: exp.Expr) -> exp.Expr:
    """The expression, in which a text without a date is no timestamp. Doing so twice changes nothing."""
    for node in reversed(list(tree.find_all(exp.Cast, exp.Anonymous))):  # what is within first
        if _makes_a_moment(node) and not _is_dated(node):
            whole = _dated(node)
            tree = whole if node is tree else tree
            node.replace(whole)
    return tree


def _makes_a_moment(node: exp.Expr) -> bool:
    if isinstance(node, exp.Cast):
        return node.to.this in _MOMENTS and not isinstance(node.this, exp.Literal)
    return isinstance(node, exp.Anonymous) and node.name.lower() in _FUNCTIONS and len(node.expressions) == 1


def _dated(node: exp.Expr) -> exp.Expr:
    """Of cast(x AS timestamp): cast(if(x begins without a date, cast('no date: ' || x AS timestamp), itself) AS ...).

    Each cast is one of any type, so that nobody has to know that of x.
    """
    text = exp.cast(_argument(node), "string", dialect="spark")
    wrong = node.copy()
    _argument(wrong).replace(exp.func("CONCAT", exp.Literal.string("no date: "), text.copy()))
    found = exp.If(
        this=exp.RegexpLike(this=text, expression=exp.Literal.string(_DATELESS)), true=wrong, false=node.copy()
    )
    if not isinstance(node, exp.Cast):
        return found
    whole = node.copy()
    whole.set("this", found)
    return whole


def _is_dated(node: exp.Expr) -> bool:
    """Whether it is what `_dated` gives, or within it."""
    around = (node.this, node.parent)
    return any(
        isinstance(it, exp.If) and isinstance(it.this, exp.RegexpLike) and it.this.expression.name == _DATELESS
        for it in around
    )


def _argument(node: exp.Expr) -> exp.Expr:
    argument: exp.Expr = node.this if isinstance(node, exp.Cast) else node.expressions[0]
    return argument
