"""Texts that Spark reads as a different date or timestamp every day, found without Spark. Pure.

Spark reads the text "12:30" as that time of today, and 'now' as the moment of evaluation. A table must not depend on
the day on which it is derived.

- Texts in records are guarded where they are cast to timestamps (guards.py).
- A constant text, 'now' or 'to' || 'day', depends on the current day wherever Spark casts it to a date or timestamp.
  `find_today` finds it as an argument of a cast or of a function of dates, `find_today_beside` beside a column that is
  a date. Where only Spark knows of the cast or the text, runs/date_literals.py finds it.
- A timestamp inside another value, as in from_json(at, 'at timestamp'), cannot be guarded: `find_hidden`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping

from sqlglot import expressions as exp
from sqlglot.tokenizer_core import TokenType

from hindcast.contract.functions import find_name
from hindcast.contract.parsing import ExpressionError, format_tree, parse_resolved, tokenize

_KIND = exp.DataType.Type
_DATES = (_KIND.TIMESTAMP, _KIND.TIMESTAMPTZ, _KIND.TIMESTAMPLTZ, _KIND.TIMESTAMPNTZ, _KIND.DATE)
TIMESTAMPS = (_KIND.TIMESTAMP, _KIND.TIMESTAMPTZ, _KIND.TIMESTAMPLTZ)
TIMESTAMP_FUNCTIONS = ("timestamp", "to_timestamp", "to_timestamp_ltz", "try_to_timestamp")
"""Functions that make a timestamp from one argument, including a text."""

DATELESS_PATTERN = "^[^0-9]*(T|[0-9]*:)"
"""The start of a text that has a time of day and no date."""

_WORDS = re.compile(r"[\x00-\x20\x7f]*(now|today|tomorrow|yesterday)\b", re.IGNORECASE)
_DATE_FUNCTIONS = frozenset(
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
"""Functions of Spark that take dates or timestamps, including as texts."""

_SAME_TYPE_FUNCTIONS = frozenset(("array", "coalesce", "greatest", "if", "ifnull", "least", "nullif", "nvl", "nvl2"))
"""Functions that cast their arguments to one type: a text beside a date becomes a date."""

_READERS = {"from_csv": 1, "from_json": 1, "from_xml": 1, "variant_get": 2, "try_variant_get": 2}
"""Functions that parse values of a type given as a text, and the place of that argument."""


def is_of_today(text: str) -> bool:
    """Return whether a text, cast to a timestamp, depends on the current day: 'now', 'yesterday UTC', '12:30'."""
    return _WORDS.match(text) is not None or re.match(DATELESS_PATTERN, text) is not None


def find_today(tree: exp.Expr) -> str | None:
    """Return the first part that depends on the current day: timestamp 'now', date '12:30', to_date('to' || 'day')."""
    for node in tree.walk():
        if isinstance(node, exp.Cast):
            text = find_constant(node.this) if node.to.this in _DATES else None
            if text is not None and is_of_today(text):
                return format_tree(node)
        elif isinstance(node, exp.Func) and find_name(node) in _DATE_FUNCTIONS:
            for argument in node.iter_expressions():
                text = find_constant(argument)
                if text is not None and _WORDS.match(text):
                    return format_tree(node)
    return None


def find_today_beside(resolved: str, types: Mapping[str, str | None]) -> str | None:
    """Return the first part where a date or timestamp, as far as types are known, stands beside a text of today.

    `resolved`: an expression over `input.column`; `types`: these columns' types.
    """
    for node in parse_resolved(resolved).walk():
        operands = _find_alike(node)
        if any(_is_date(part, types) for part in operands) and any(_is_text_of_today(part) for part in operands):
            return format_tree(node)
    return None


def find_hidden(tree: exp.Expr) -> str | None:
    """Return the first part that makes timestamps inside other values, from texts that no guard can see."""
    for node in tree.walk():
        if isinstance(node, exp.Cast):
            if node.to.this not in TIMESTAMPS and any(
                part.this in TIMESTAMPS for part in node.to.find_all(exp.DataType)
            ):
                return format_tree(node)
        elif isinstance(node, exp.Func) and find_name(node) in _READERS:
            place = _READERS[find_name(node)]
            if not all(_is_plain_schema(part) for part in node.expressions[place : place + 1]):
                return format_tree(node)
    return None


def is_guarded(node: exp.Expr) -> bool:
    """Return whether a node makes a timestamp from what may be a text, so that it gets a guard."""
    if isinstance(node, exp.Cast):
        return node.to.this in TIMESTAMPS and not isinstance(node.this, exp.Literal)
    if not isinstance(node, exp.Anonymous) or find_name(node) not in TIMESTAMP_FUNCTIONS or len(node.expressions) != 1:
        return False
    return not isinstance(node.expressions[0], exp.Literal)


def weigh_guards(tree: exp.Expr) -> int:
    """Return the weight of an expression's guards: each one repeats its argument three times."""
    weight, plan = 0, [(tree, 1)]
    while plan:
        node, times = plan.pop()
        if is_guarded(node):
            times *= 3
            weight += times
        plan += [(child, times) for child in node.iter_expressions()]
    return weight


def find_constant(node: exp.Expr) -> str | None:
    """Return the text of an expression that is plainly constant ('now', 'to' || 'day'), else None."""
    pieces, plan = [], [node]
    while plan:
        part = plan.pop()
        joined = isinstance(part, exp.Anonymous) and find_name(part) == "concat"
        if isinstance(part, exp.RawString) or (isinstance(part, exp.Literal) and part.is_string):
            pieces.append(str(part.this))
        elif joined or isinstance(part, exp.DPipe | exp.Concat | exp.Paren):
            plan += reversed(list(part.iter_expressions()))
        else:
            return None
    return "".join(pieces)


_COMPARISONS = (exp.EQ, exp.NEQ, exp.NullSafeEQ, exp.NullSafeNEQ, exp.GT, exp.GTE, exp.LT, exp.LTE, exp.In, exp.Between)


def _find_alike(node: exp.Expr) -> list[exp.Expr]:
    """Return the parts of an expression that Spark casts to one type."""
    if isinstance(node, exp.Case):
        return [*(part.args["true"] for part in node.args["ifs"]), *filter(None, [node.args.get("default")])]
    if isinstance(node, exp.If):
        return [part for part in (node.args.get("true"), node.args.get("false")) if part is not None]
    if isinstance(node, _COMPARISONS) or (isinstance(node, exp.Anonymous) and find_name(node) in _SAME_TYPE_FUNCTIONS):
        return list(node.iter_expressions())
    return []


def _is_date(node: exp.Expr, types: Mapping[str, str | None]) -> bool:
    if isinstance(node, exp.Cast):
        return node.to.this in _DATES
    return isinstance(node, exp.Column) and types.get(".".join(p.name for p in node.parts)) in ("date", "timestamp")


def _is_text_of_today(node: exp.Expr) -> bool:
    text = find_constant(node)
    return text is not None and is_of_today(text)


def _is_plain_schema(schema: exp.Expr) -> bool:
    """Return whether a schema is a literal without timestamps, or that of an example in JSON, which has none."""
    if isinstance(schema, exp.Literal):
        text = schema.name.strip()
        return not (_has_timestamp_as_json(text) if text.startswith(("{", "[", '"')) else _has_timestamp(text))
    return isinstance(schema, exp.Anonymous) and find_name(schema) == "schema_of_json" and len(schema.expressions) == 1


_TIMESTAMP_TYPES = ("timestamp", "timestamp_ltz")
_AFTER_A_TYPE = ("not", "comment", "default", "collate", "generated")


def _has_timestamp(schema: str) -> bool:
    """Return whether a SQL type, or a list of columns, has a timestamp; True for one that cannot be parsed.

    A column can have the name timestamp: then its type follows.
    """
    try:
        tokens = tokenize(schema)
    except ExpressionError:
        return True
    words = [(None if token.token_type == TokenType.IDENTIFIER else token.text.lower()) for token in tokens]
    for before, word, after in zip(["", *words], words, [*words[1:], ""], strict=False):
        begins = before in ("", ",", "<")
        goes_on = after is None or (after not in _AFTER_A_TYPE and (after == ":" or after[:1].isalpha()))
        if word in _TIMESTAMP_TYPES and not (begins and goes_on):
            return True
    return False


def _has_timestamp_as_json(schema: str) -> bool:
    """Return whether a type in Spark's JSON has a timestamp; True for one that cannot be parsed."""
    try:
        plan = [json.loads(schema)]
    except ValueError:
        return True
    while plan:
        part = plan.pop()
        if isinstance(part, str) and part.strip().lower() in _TIMESTAMP_TYPES:
            return True
        plan += part if isinstance(part, list) else []
        plan += [value for name, value in part.items() if name != "name"] if isinstance(part, dict) else []
    return False
