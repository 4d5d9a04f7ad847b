"""Spark SQL expressions in contracts: parsed without Spark, and their names resolved.

A view's expressions see the columns of its inputs by name, or by input and name where two inputs share one
(`orders.item`, `menu.item`). `resolve` rewrites each to `input.column`, the form the operators' rows have.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import lru_cache

import sqlglot
from sqlglot import expressions as exp

from hindcast.contracts import bounds, functions, moments
from hindcast.contracts.types import shown
from hindcast.errors import nearest

Scope = Mapping[str, Sequence[str]]


class ExpressionError(ValueError):
    """An expression that does not parse, or that names what is not there or has no place there: `found` and `mend`."""

    def __init__(self, found: str, mend: str) -> None:
        self.found, self.mend = found, mend
        super().__init__(found)


def resolve(text: str, scope: Scope, places: Mapping[str, str] | None = None) -> str:
    """The expression with every column as `input.column`.

    `scope`: input name -> its columns. `places`: input name -> the struct that holds its columns, where that has
    another name than the input.
    Raises ExpressionError for syntax, unknown and ambiguous names, functions that have no place in an expression over
    one row (functions.py), moments that are others tomorrow (moments.py), and for queries within expressions. A text
    without a date is no timestamp in what it gives (moments.py).

    >>> resolve("quantity * price", {"orders": ["quantity"], "menu": ["price"]})
    'orders.quantity * menu.price'
    """
    columns = tuple((name, tuple(known)) for name, known in scope.items()) if len(text) > _LONG else ()
    if columns:  # it is asked for more than once
        return _resolved_once(text, columns, tuple((places or {}).items()))
    return _resolved_text(text, scope, places or {})


_LONG = 200


@lru_cache(maxsize=1024)
def _resolved_once(
    text: str, columns: tuple[tuple[str, tuple[str, ...]], ...], places: tuple[tuple[str, str], ...]
) -> str:
    return _resolved_text(text, dict(columns), dict(places))


def _resolved_text(text: str, scope: Scope, places: Mapping[str, str]) -> str:
    tree = _parsed(text)
    whole = isinstance(tree, exp.Select) and len(tree.expressions) == 1 and {k for k, v in tree.args.items() if v}
    if not isinstance(tree, exp.Select) or whole != {"expressions"} or isinstance(tree.expressions[0], exp.Alias):
        raise ExpressionError(f"'{text}' is more than one expression", "write one Spark SQL expression without AS")
    if tree.expressions[0].find(exp.Query):
        raise ExpressionError(f"'{text}' holds a query", "join the table in the view instead")
    if isinstance(tree.expressions[0], exp.Star):
        raise ExpressionError("'*' is not an expression", "name the columns")
    if wrong := functions.misplaced(tree.expressions[0]):
        raise ExpressionError(*wrong)
    if (told := moments.of_today(tree)) is not None:
        raise ExpressionError(f"{told} is another moment every day", WRITTEN_OUT)
    if moments.weight(tree) > bounds.MOMENTS:
        found = f"{shown(text)} makes too many timestamps, or timestamps of timestamps"
        raise ExpressionError(found, "cast to a timestamp once, in a view before")
    for column in list(tree.find_all(exp.Column)):
        column.replace(_resolved(column, scope, places))
    return str(moments.dated(tree.expressions[0]).sql(dialect="spark"))


def _parsed(text: str) -> exp.Expr:
    """Return an expression as the tree of `SELECT <text>`, bounded (bounds.py); ExpressionError if there is none."""
    mend = "write it in several views, each made of the one before"
    if len(text) > bounds.EXPRESSION:
        raise ExpressionError(f"an expression of more than {bounds.EXPRESSION:,} characters", mend)
    try:
        bounds.refuse_deep_brackets(text, "([{", ")]}", bounds.BRACKETS, "brackets")
        if len(text) > bounds.TERMS and len(sqlglot.tokenize(text, dialect="spark")) > bounds.TERMS:
            raise ExpressionError(f"{shown(text)} has more than {bounds.TERMS:,} terms", mend)
        tree = sqlglot.parse_one(f"SELECT {text}", dialect="spark")
        deep = _depth(tree) > bounds.NESTED
    except bounds.ExcessError as error:
        raise ExpressionError(f"{shown(text)} {error.found}", mend) from None
    except RecursionError:
        deep = True
    except sqlglot.errors.ParseError as error:
        detail = error.errors[0]["description"].rstrip(".") if error.errors else str(error)
        detail = "an operand is missing" if detail.startswith("Required keyword") else detail
        raise ExpressionError(f"'{text}' does not parse: {detail}", "write one Spark SQL expression") from None
    except sqlglot.errors.SqlglotError as error:
        raise ExpressionError(f"'{text}' does not parse: {error}", "write one Spark SQL expression") from None
    if deep:
        raise ExpressionError(f"{shown(text)} is nested too deeply", mend)
    return tree


def _depth(tree: exp.Expr) -> int:
    """Return how many steps it is from the top of a tree to its last part; `a + b + c` and its like are one step."""
    deepest, todo = 0, [(tree, 0)]
    while todo:
        node, depth = todo.pop()
        deepest = max(deepest, depth)
        chained = node.this if isinstance(node, exp.Binary) and not isinstance(node, exp.Dot) else None
        todo += [(child, depth if child is chained else depth + 1) for child in node.iter_expressions()]
    return deepest


def clash(resolved: str, types: Mapping[str, str | None]) -> str | None:
    """The first comparison of a string with a number, as far as their types are known.

    Spark would make the string a number, and fail at the first record where it is none.
    """
    for node in sqlglot.parse_one(resolved, dialect="spark").walk():
        if isinstance(node, exp.Between):
            operands = [node.this, node.args["low"], node.args["high"]]
        elif isinstance(node, exp.In):
            operands = [node.this, *node.expressions]
        elif isinstance(node, _COMPARISONS):
            operands = [node.this, node.expression]
        else:
            continue
        kinds = {_sort(operand, types): operand.sql(dialect="spark") for operand in reversed(operands)}
        if "string" in kinds and "number" in kinds:
            return f"{kinds['string']} is a string, {kinds['number']} a number"
    return None


def of_today(resolved: str, types: Mapping[str, str | None]) -> str | None:
    """Return the first comparison of a date or timestamp with a text as 'today', as far as their types are known."""
    return moments.compared(sqlglot.parse_one(resolved, dialect="spark"), types)


WRITTEN_OUT = "write it out: timestamp '2026-01-31 12:30:00'"
"""What to write in the place of a text that is another moment every day."""


def plain_type(resolved: str, types: Mapping[str, str | None]) -> str | None:
    """The type of a resolved expression where no Spark is needed to tell: of a plain column, or of a cast."""
    if resolved in types:
        return types[resolved]
    tree = sqlglot.parse_one(resolved, dialect="spark")
    return tree.to.sql(dialect="spark").lower() if isinstance(tree, exp.Cast) else None


def aggregate(text: str, scope: Scope, places: Mapping[str, str] | None = None) -> tuple[str, str]:
    """An aggregate's function and its argument, resolved; `count(*)` counts 1.

    >>> aggregate("sum(quantity * 2)", {"orders": ["quantity"]})
    ('sum', 'orders.quantity * 2')
    """
    mend = "write one aggregate function of one argument: count(*), sum(amount), avg(delay), count(distinct item)"
    match = re.fullmatch(r"\s*([A-Za-z_][A-Za-z0-9_]*)\s*\((.*)\)\s*", text, re.DOTALL)
    if match is None:
        raise ExpressionError(f"'{text}' is not an aggregate", mend)
    function, argument = match[1].lower(), match[2].strip()
    if functions.kind(function) != "aggregate":
        found = "is not an aggregate" if functions.kind(function) else "is no function"
        raise ExpressionError(f"'{function}' {found}", f"{functions.near(function, 'aggregate')} {mend}")
    if function == "count" and argument in ("*", "1"):
        return "count", "1"
    if function == "count" and (distinct := re.fullmatch(r"distinct\s+(.+)", argument, re.IGNORECASE | re.DOTALL)):
        function, argument = "count_distinct", distinct[1]
    try:
        return function, resolve(argument, scope, places)
    except ExpressionError as error:
        raise ExpressionError(error.found, mend if "more than one" in error.found else error.mend) from None


_COMPARISONS = (exp.EQ, exp.NEQ, exp.NullSafeEQ, exp.GT, exp.GTE, exp.LT, exp.LTE)
_NUMBERS = ("tinyint", "smallint", "int", "bigint", "float", "double", "decimal")


def _sort(operand: exp.Expr, types: Mapping[str, str | None]) -> str | None:
    """Whether an operand is a string or a number; None if it is neither, or only Spark can tell."""
    if isinstance(operand, exp.Literal):
        return "number" if not operand.is_string else None if _is_number(operand.name) else "string"
    kind = plain_type(operand.sql(dialect="spark"), types) or ""
    return "number" if kind.startswith(_NUMBERS) else "string" if kind == "string" else None


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _resolved(column: exp.Column, scope: Scope, places: Mapping[str, str]) -> exp.Expr:
    parts = [part.name for part in column.parts]
    if isinstance(column.this, exp.Star):
        raise ExpressionError("'*' is not an expression", "name the columns")
    if len(parts) > 1 and parts[0] in scope:
        inputs, path = [parts[0]], parts[1:]
        if path[0] not in scope[parts[0]]:
            raise ExpressionError(f"'{parts[0]}' has no column '{path[0]}'", nearest(path[0], scope[parts[0]]))
    else:
        inputs, path = [name for name, known in scope.items() if parts[0] in known], parts
    if not inputs:
        every = {name for known in scope.values() for name in known}
        raise ExpressionError(f"no column '{parts[0]}'", nearest(parts[0], every))
    if len(inputs) > 1:
        raise ExpressionError(f"'{parts[0]}' is a column of {' and of '.join(inputs)}", f"write {inputs[0]}.{parts[0]}")
    return exp.Dot.build([exp.to_identifier(name) for name in [places.get(inputs[0], inputs[0]), *path]])
