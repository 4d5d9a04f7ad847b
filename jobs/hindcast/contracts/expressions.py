"""Spark SQL expressions in contracts: parsed without Spark, and their names resolved.

A view's expressions see the columns of its inputs by name, or by input and name where two inputs share one
(`orders.item`, `menu.item`). `resolve` rewrites each to `input.column`, the form the operators' rows have.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from functools import lru_cache

from sqlglot import expressions as exp

from hindcast.contracts import bounds, functions, guards, moments
from hindcast.contracts.parsing import (
    ExpressionError,
    find_columns,
    find_position,
    parse_one,
    parse_resolved,
    show,
    strip_comments,
    write_column,
)
from hindcast.contracts.types import shown
from hindcast.errors import nearest

Scope = Mapping[str, Sequence[str]]


def resolve(text: str, scope: Scope, places: Mapping[str, str] | None = None) -> str:
    """Return the expression with every column as `input.column`, and all else as it was written.

    `scope`: input name -> its columns. `places`: input name -> the struct that holds its columns, where that has
    another name than the input.
    Raises ExpressionError for syntax, unknown and ambiguous names, functions that have no place in an expression over
    one row (functions.py), moments that are others tomorrow (moments.py), and for queries within expressions. A text
    without a date is no timestamp in what it gives (guards.py). Comments are left out.

    >>> resolve("quantity * price", {"orders": ["quantity"], "menu": ["price"]})
    'orders.quantity * menu.price'
    """
    columns = tuple((name, tuple(known)) for name, known in scope.items()) if len(text) > _LONG else ()
    if columns:  # it is asked for more than once
        return _resolve_once(text, columns, tuple((places or {}).items()))
    return _resolve(text, scope, places or {})


_LONG = 200


@lru_cache(maxsize=1024)
def _resolve_once(
    text: str, columns: tuple[tuple[str, tuple[str, ...]], ...], places: tuple[tuple[str, str], ...]
) -> str:
    return _resolve(text, dict(columns), dict(places))


def _resolve(text: str, scope: Scope, places: Mapping[str, str]) -> str:
    text = strip_comments(text)
    tree = parse_one(text)
    _refuse_unfit(text, tree)
    _refuse_capture(tree, {*scope, *places.values()})
    columns = [column for column in tree.find_all(exp.Column) if not functions.is_unit(column)]
    edits = [_resolve_column(column, scope, places) for column in columns]
    for start, end, written in sorted(edits, reverse=True):
        text = text[:start] + written + text[end:]
    if sum(len(path) > 1 for path in find_columns(text)) < len(edits):  # what is not seen would be shown, or be a guess
        raise ExpressionError(
            f"'{text}' does not read as it was written", "write names that are words of SQL otherwise"
        )
    return guards.write_guards(text)


def _refuse_capture(tree: exp.Expr, inputs: Collection[str]) -> None:
    """Raise ExpressionError for a lambda's variable that stands for an input or a column, to Spark or to us alone."""
    taken = {name.lower() for name in inputs}
    for call in tree.find_all(exp.Lambda):
        for variable in (it.name for it in call.expressions):
            beside = {column.parts[0].name for column in call.find_all(exp.Column)}
            if variable.lower() in taken or variable.lower() in {name.lower() for name in beside}:
                found = f"the variable '{variable}' of '{show(call)}' is called as an input or a column"
                raise ExpressionError(found, "give the variable another name")


def _refuse_unfit(text: str, tree: exp.Expr) -> None:
    if tree.find(exp.Star):
        raise ExpressionError("'*' is not an expression", "name the columns")
    if tree.find(exp.Placeholder, exp.Parameter, exp.SessionParameter):
        raise ExpressionError(f"'{text}' has a placeholder", "write the value")
    if wrong := functions.find_misplaced(tree):
        raise ExpressionError(*wrong)
    if (part := moments.find_today(tree)) is not None:
        raise ExpressionError(f"{part} is another moment every day", WRITTEN_OUT)
    if (part := moments.find_hidden(tree)) is not None:
        found = f"{part} makes timestamps within another value, also of texts without a date"
        raise ExpressionError(found, "make strings of them, and cast each to a timestamp; write a schema as a text")
    if moments.weigh(tree) > bounds.MOMENTS:
        found = f"{shown(text)} makes too many timestamps, or timestamps of timestamps"
        raise ExpressionError(found, "cast to a timestamp once, in a view before")


def clash(resolved: str, types: Mapping[str, str | None]) -> str | None:
    """The first comparison of a string with a number, as far as their types are known.

    Spark would make the string a number, and fail at the first record where it is none.
    """
    for node in parse_resolved(resolved).walk():
        if isinstance(node, exp.Between):
            operands = [node.this, node.args["low"], node.args["high"]]
        elif isinstance(node, exp.In):
            operands = [node.this, *node.expressions]
        elif isinstance(node, _COMPARISONS):
            operands = [node.this, node.expression]
        else:
            continue
        kinds = {_sort(operand, types): operand for operand in reversed(operands)}
        if "string" in kinds and "number" in kinds:
            return f"{show(kinds['string'])} is a string, {show(kinds['number'])} a number"
    return None


WRITTEN_OUT = "write it out: timestamp '2026-01-31 12:30:00'"
"""What to write in the place of a text that is another moment every day."""


def plain_type(resolved: str, types: Mapping[str, str | None]) -> str | None:
    """The type of a resolved expression where no Spark is needed to tell: of a plain column, or of a cast."""
    if resolved in types:
        return types[resolved]
    return _find_type(parse_resolved(resolved), types)


def _find_type(node: exp.Expr, types: Mapping[str, str | None]) -> str | None:
    if isinstance(node, exp.Cast):
        return show(node.to).lower()
    return types.get(".".join(it.name for it in node.parts)) if isinstance(node, exp.Column) else None


def aggregate(text: str, scope: Scope, places: Mapping[str, str] | None = None) -> tuple[str, str]:
    """An aggregate's function and its argument, resolved; `count(*)` counts 1.

    >>> aggregate("sum(quantity * 2)", {"orders": ["quantity"]})
    ('sum', 'orders.quantity * 2')
    """
    mend = "write one aggregate function of one argument: count(*), sum(amount), avg(delay), count(distinct item)"
    match = re.fullmatch(r"([A-Za-z_][A-Za-z0-9_]*)\s*\((.*)\)", strip_comments(text), re.DOTALL)
    if match is None:
        raise ExpressionError(f"'{text}' is not an aggregate", mend)
    function, argument = match[1].lower(), match[2].strip()
    if functions.kind(function) != "aggregate":
        found = "is not an aggregate" if functions.kind(function) else "is no function"
        raise ExpressionError(f"'{function}' {found}", f"{functions.near(function, 'aggregate')} {mend}")
    if function in functions.ORDERED:
        instead = "write min, max or count(distinct ...); max(struct(sent, price)) gives the price that was sent last"
        raise ExpressionError(f"'{function}' depends on the order of rows, and a table has none", instead)
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
    kind = _find_type(operand, types) or ""
    return "number" if kind.startswith(_NUMBERS) else "string" if kind == "string" else None


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _resolve_column(column: exp.Column, scope: Scope, places: Mapping[str, str]) -> tuple[int, int, str]:
    """Return where a column stands in the text, from and to, and what is to stand there."""
    parts = [part.name for part in column.parts]
    if len(parts) > 1 and parts[0] in scope:
        inputs, named = [parts[0]], 2
        if parts[1] not in scope[parts[0]]:
            raise ExpressionError(f"'{parts[0]}' has no column '{parts[1]}'", nearest(parts[1], scope[parts[0]]))
    else:
        inputs, named = [name for name, known in scope.items() if parts[0] in known], 1
    if not inputs:
        every = {name for known in scope.values() for name in known}
        raise ExpressionError(f"no column '{parts[0]}'", nearest(parts[0], every))
    if len(inputs) > 1:
        raise ExpressionError(f"'{parts[0]}' is a column of {' and of '.join(inputs)}", f"write {inputs[0]}.{parts[0]}")
    first, last = find_position(column.parts[0]), find_position(column.parts[named - 1])
    if first is None or last is None:
        raise ExpressionError(f"it is not clear where '{show(column)}' stands", "write the column in quotes: `name`")
    return first[0], last[1], write_column([places.get(inputs[0], inputs[0]), parts[named - 1]])
