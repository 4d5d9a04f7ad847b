"""Texts as timestamps that are the same on every day. Pure, without Spark.

Spark takes the text "12:30" for that time of today, and 'now' for the moment at which it is asked. Where an expression
makes a timestamp of a text, one without a date is no timestamp here: a cast fails on it, try_cast gives null.

Only what is written is looked at: a cast, or to_timestamp and its like without a format. Where Spark makes the cast by
itself, as in `hour(name)`, it is Spark's.

A text that is the same in every row, 'now' or 'to' || 'day', Spark takes for that day wherever it casts it to a date or
timestamp. Where such a text is written as an argument of a function of dates, or compared with a date, `of_today` finds
it without Spark. Where only Spark knows that it makes a cast, or what the text is, building/todays.py finds it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from sqlglot import expressions as exp

from hindcast.contracts import functions

_KIND = exp.DataType.Type
_ANY_MOMENT = (_KIND.TIMESTAMP, _KIND.TIMESTAMPTZ, _KIND.TIMESTAMPLTZ, _KIND.TIMESTAMPNTZ, _KIND.DATE)
_MOMENTS = (_KIND.TIMESTAMP, _KIND.TIMESTAMPTZ, _KIND.TIMESTAMPLTZ)
_FUNCTIONS = ("to_timestamp_ltz", "try_to_timestamp")
_DATELESS = "^[^0-9]*(T|[0-9]*:)"
"""How a text begins that has a time of day and no date."""
_WORDS = re.compile(r"[\x00-\x20\x7f]*(now|today|tomorrow|yesterday)\b", re.IGNORECASE)
_OF_DATES = frozenset(
    (
        *("add_months", "convert_timezone", "date", "date_add", "date_diff", "date_format", "date_part", "date_sub"),
        *("date_trunc", "dateadd", "datediff", "datepart", "day", "dayname", "dayofmonth", "dayofweek", "dayofyear"),
        *("extract", "from_utc_timestamp", "hour", "last_day", "minute", "month", "monthname", "months_between"),
        *("next_day", "quarter", "second", "sequence", "timestamp", "timestampadd", "timestampdiff", "to_date"),
        *("to_timestamp", "to_timestamp_ltz", "to_timestamp_ntz", "to_unix_timestamp", "to_utc_timestamp", "trunc"),
        *("try_to_date", "try_to_timestamp", "unix_date", "unix_micros", "unix_millis", "unix_seconds"),
        *("unix_timestamp", "weekday", "weekofyear", "year"),
    )
)
"""Functions of Spark that take dates or timestamps, also as texts."""

_COMPARED = (exp.EQ, exp.NEQ, exp.NullSafeEQ, exp.GT, exp.GTE, exp.LT, exp.LTE, exp.In, exp.Between)


def is_of_today(text: str) -> bool:
    """Whether a text, made a timestamp, is another one tomorrow: 'now', ' Today', 'yesterday UTC', '12:30'."""
    return _WORDS.match(text) is not None or re.match(_DATELESS, text) is not None


def of_today(tree: exp.Expr) -> str | None:
    """The first part that is another moment tomorrow: timestamp 'now', date '12:30', to_date('to' || 'day')."""
    for node in tree.walk():
        if isinstance(node, exp.Cast):
            text = _constant(node.this) if node.to.this in _ANY_MOMENT else None
            if text is not None and is_of_today(text):
                return str(node.sql(dialect="spark"))
        elif isinstance(node, exp.Func) and functions.name(node) in _OF_DATES:
            for argument in node.iter_expressions():
                text = _constant(argument.this if isinstance(argument, exp.TimeStrToTime) else argument)
                if text is not None and _WORDS.match(text):
                    return str(node.sql(dialect="spark"))
    return None


def compared(resolved: exp.Expr, types: Mapping[str, str | None]) -> str | None:
    """The first comparison of a date or timestamp, as far as types are known, with a text that is of today."""
    for node in resolved.find_all(*_COMPARED):
        operands = list(node.iter_expressions())
        dated = any(types.get(it.sql(dialect="spark")) in ("date", "timestamp") for it in operands)
        if dated and any((text := _constant(it)) is not None and is_of_today(text) for it in operands):
            return str(node.sql(dialect="spark"))
    return None


def _constant(node: exp.Expr) -> str | None:
    """The text that an expression is in every row, of what is plainly one: 'now', 'to' || 'day'; else None."""
    if isinstance(node, exp.Literal):
        return str(node.name) if node.is_string else None
    if isinstance(node, exp.Paren):
        return _constant(node.this)
    if isinstance(node, exp.DPipe | exp.Concat):
        parts = [_constant(it) for it in node.iter_expressions()]
        return None if None in parts else "".join(part or "" for part in parts)
    return None


def weight(tree: exp.Expr) -> int:
    """Return how much the makings of a moment in an expression weigh: `dated` writes what is in each three times."""
    heavy, todo = 0, [(tree, 1)]
    while todo:
        node, times = todo.pop()
        if _makes_a_moment(node) and not _is_dated(node):
            times *= 3
            heavy += times
        todo += [(child, times) for child in node.iter_expressions()]
    return heavy


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
