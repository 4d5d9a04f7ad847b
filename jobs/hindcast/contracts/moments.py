"""Texts that Spark takes for another date or timestamp every day, found without Spark. Pure.

Spark takes the text "12:30" for that time of today, and 'now' for the moment at which it is asked. A table must not
depend on the day on which it is made.

- What stands in the records is guarded where a timestamp is made of it (guards.py).
- A text that is the same in every row, 'now' or 'to' || 'day', Spark takes for that day wherever it casts it to a date
  or timestamp. `find_today` finds it as an argument of a cast or of a function of dates, `find_today_beside` beside a
  column that is a date. Where only Spark knows that it makes a cast, or what the text is, building/todays.py does.
- A timestamp within another value, as in from_json(at, 'at timestamp'), cannot be guarded: `find_hidden`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping

from sqlglot import expressions as exp
from sqlglot.tokenizer_core import TokenType

from hindcast.contracts.functions import find_name
from hindcast.contracts.parsing import ExpressionError, parse_resolved, show, tokenize

_KIND = exp.DataType.Type
_DATES = (_KIND.TIMESTAMP, _KIND.TIMESTAMPTZ, _KIND.TIMESTAMPLTZ, _KIND.TIMESTAMPNTZ, _KIND.DATE)
TIMESTAMPS = (_KIND.TIMESTAMP, _KIND.TIMESTAMPTZ, _KIND.TIMESTAMPLTZ)
MAKERS = ("timestamp", "to_timestamp", "to_timestamp_ltz", "try_to_timestamp")
"""Functions that make a timestamp of one argument, also of a text."""

DATELESS = "^[^0-9]*(T|[0-9]*:)"
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

_ALIKE = frozenset(("array", "coalesce", "greatest", "if", "ifnull", "least", "nullif", "nvl", "nvl2"))
"""Functions that make their arguments alike: a text beside a date becomes a date."""

_READERS = {"from_csv": 1, "from_json": 1, "from_xml": 1, "variant_get": 2, "try_variant_get": 2}
"""Functions that read values of a type that a text says, and which argument that text is."""


def is_of_today(text: str) -> bool:
    """Whether a text, made a timestamp, is another one tomorrow: 'now', ' Today', 'yesterday UTC', '12:30'."""
    return _WORDS.match(text) is not None or re.match(DATELESS, text) is not None


def find_today(tree: exp.Expr) -> str | None:
    """Return the first part that is another moment tomorrow: timestamp 'now', date '12:30', to_date('to' || 'day')."""
    for node in tree.walk():
        if isinstance(node, exp.Cast):
            text = find_constant(node.this) if node.to.this in _DATES else None
            if text is not None and is_of_today(text):
                return show(node)
        elif isinstance(node, exp.Func) and find_name(node) in _OF_DATES:
            for argument in node.iter_expressions():
                text = find_constant(argument)
                if text is not None and _WORDS.match(text):
                    return show(node)
    return None


def find_today_beside(resolved: str, types: Mapping[str, str | None]) -> str | None:
    """Return the first part where a date or timestamp, as far as types are known, stands beside a text of today.

    `resolved`: an expression over `input.column`; `types`: these columns' types.
    """
    for node in parse_resolved(resolved).walk():
        beside = _find_alike(node)
        if any(_is_date(it, types) for it in beside) and any(_is_text_of_today(it) for it in beside):
            return show(node)
    return None


def find_hidden(tree: exp.Expr) -> str | None:
    """Return the first part that makes timestamps within other values, of texts that no guard can see."""
    for node in tree.walk():
        if isinstance(node, exp.Cast):
            if node.to.this not in TIMESTAMPS and any(it.this in TIMESTAMPS for it in node.to.find_all(exp.DataType)):
                return show(node)
        elif isinstance(node, exp.Func) and find_name(node) in _READERS:
            place = _READERS[find_name(node)]
            if not all(_is_plain_schema(it) for it in node.expressions[place : place + 1]):
                return show(node)
    return None


def is_guarded(node: exp.Expr) -> bool:
    """Whether a timestamp is made here, of what may be a text: where a guard is written."""
    if isinstance(node, exp.Cast):
        return node.to.this in TIMESTAMPS and not isinstance(node.this, exp.Literal)
    if not isinstance(node, exp.Anonymous) or find_name(node) not in MAKERS or len(node.expressions) != 1:
        return False
    return not isinstance(node.expressions[0], exp.Literal)


def weigh(tree: exp.Expr) -> int:
    """Return how much the guards of an expression weigh: each writes three times what is in it."""
    heavy, todo = 0, [(tree, 1)]
    while todo:
        node, times = todo.pop()
        if is_guarded(node):
            times *= 3
            heavy += times
        todo += [(child, times) for child in node.iter_expressions()]
    return heavy


def find_constant(node: exp.Expr) -> str | None:
    """Return the text that an expression is in every row, of what is plainly one: 'now', 'to' || 'day'; else None."""
    pieces, todo = [], [node]
    while todo:
        part = todo.pop()
        joined = isinstance(part, exp.Anonymous) and find_name(part) == "concat"
        if isinstance(part, exp.RawString) or (isinstance(part, exp.Literal) and part.is_string):
            pieces.append(str(part.this))
        elif joined or isinstance(part, exp.DPipe | exp.Concat | exp.Paren):
            todo += reversed(list(part.iter_expressions()))
        else:
            return None
    return "".join(pieces)


_COMPARED = (exp.EQ, exp.NEQ, exp.NullSafeEQ, exp.NullSafeNEQ, exp.GT, exp.GTE, exp.LT, exp.LTE, exp.In, exp.Between)


def _find_alike(node: exp.Expr) -> list[exp.Expr]:
    """Return the parts of an expression that Spark makes alike in type."""
    if isinstance(node, exp.Case):
        return [*(it.args["true"] for it in node.args["ifs"]), *filter(None, [node.args.get("default")])]
    if isinstance(node, exp.If):
        return [it for it in (node.args.get("true"), node.args.get("false")) if it is not None]
    if isinstance(node, _COMPARED) or (isinstance(node, exp.Anonymous) and find_name(node) in _ALIKE):
        return list(node.iter_expressions())
    return []


def _is_date(node: exp.Expr, types: Mapping[str, str | None]) -> bool:
    if isinstance(node, exp.Cast):
        return node.to.this in _DATES
    return isinstance(node, exp.Column) and types.get(".".join(it.name for it in node.parts)) in ("date", "timestamp")


def _is_text_of_today(node: exp.Expr) -> bool:
    text = find_constant(node)
    return text is not None and is_of_today(text)


def _is_plain_schema(schema: exp.Expr) -> bool:
    """Whether a type is written out without a timestamp, or is that of an example in JSON, which has none."""
    if isinstance(schema, exp.Literal):
        text = schema.name.strip()
        return not (_has_timestamp_as_json(text) if text.startswith(("{", "[", '"')) else _has_timestamp(text))
    return isinstance(schema, exp.Anonymous) and find_name(schema) == "schema_of_json" and len(schema.expressions) == 1


_TIMESTAMP_TYPES = ("timestamp", "timestamp_ltz")
_AFTER_A_TYPE = ("not", "comment", "default", "collate", "generated")


def _has_timestamp(schema: str) -> bool:
    """Whether a type of SQL, or columns with theirs, has a timestamp; one that cannot be read may have.

    A column can be called timestamp: then its type follows.
    """
    try:
        tokens = tokenize(schema)
    except ExpressionError:
        return True
    words = [(None if it.token_type == TokenType.IDENTIFIER else it.text.lower()) for it in tokens]
    for before, word, after in zip(["", *words], words, [*words[1:], ""], strict=False):
        begins = before in ("", ",", "<")
        goes_on = after is None or (after not in _AFTER_A_TYPE and (after == ":" or after[:1].isalpha()))
        if word in _TIMESTAMP_TYPES and not (begins and goes_on):
            return True
    return False


def _has_timestamp_as_json(schema: str) -> bool:
    """Whether a type in Spark's JSON has a timestamp; one that cannot be read may have."""
    try:
        todo = [json.loads(schema)]
    except ValueError:
        return True
    while todo:
        part = todo.pop()
        if isinstance(part, str) and part.strip().lower() in _TIMESTAMP_TYPES:
            return True
        todo += part if isinstance(part, list) else []
        todo += [it for name, it in part.items() if name != "name"] if isinstance(part, dict) else []
    return False
