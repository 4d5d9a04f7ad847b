"""Spark SQL expressions in contracts, parsed and resolved without Spark.

A view's expressions see the columns of its inputs by name, or by input and name where two inputs share one
(`orders.item`, `menu.item`). `resolve` rewrites each to `input.column`, the form the operators' rows have.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from functools import lru_cache

from sqlglot import expressions as exp

from hindcast.common.errors import suggest_nearest
from hindcast.contract import bounds, functions, guards, moments, query_limits
from hindcast.contract.parsing import (
    ExpressionError,
    find_columns,
    find_position,
    format_tree,
    parse_one,
    parse_resolved,
    strip_comments,
    write_column,
)
from hindcast.contract.types import format_value

Scope = Mapping[str, Sequence[str]]
ScopeColumns = tuple[tuple[str, tuple[str, ...]], ...]


def resolve(text: str, scope: Scope, places: Mapping[str, str] | None = None) -> str:
    """Return the expression with every column as `input.column`, and everything else unchanged.

    `scope`: input name -> its columns. `places`: input name -> the struct that holds its columns, where that has
    another name than the input.
    Raise ExpressionError for syntax errors, unknown and ambiguous names, functions that an expression over one row
    cannot use (functions.py), moments that depend on the current day (moments.py), patterns that can take for ever and
    for which no limit can be written (query_limits.py), and queries in expressions. In the result a text without a date
    is not a timestamp (guards.py). Comments are removed.

    >>> resolve("quantity * price", {"orders": ["quantity"], "menu": ["price"]})
    'orders.quantity * menu.price'
    """
    columns = _share_columns(tuple((name, tuple(known)) for name, known in scope.items()))
    return _resolve(text, columns, tuple((places or {}).items()))


@lru_cache(maxsize=64)
def _share_columns(columns: ScopeColumns) -> ScopeColumns:
    """Return the first tuple that was equal to `columns`: the results of `_resolve` share it."""
    return columns


@lru_cache(maxsize=bounds.ALL_TERMS)
def _resolve(text: str, columns: ScopeColumns, struct_names: tuple[tuple[str, str], ...]) -> str:
    scope, places = dict(columns), dict(struct_names)
    text = strip_comments(text)
    tree = parse_one(text)
    _refuse_unfit(text, tree)
    _refuse_capture(tree, {*scope, *places.values()})
    named = (column for column in tree.find_all(exp.Column) if not functions.is_unit(column))
    edits = [_resolve_column(column, scope, places) for column in named]
    for start, end, written in sorted(edits, reverse=True):
        text = text[:start] + written + text[end:]
    if sum(len(path) > 1 for path in find_columns(text)) < len(
        edits
    ):  # an unseen column would be ambiguous, or shown though sensitive
        raise ExpressionError(
            f"'{text}' is parsed differently from how it is written",
            "use other names for columns named like SQL keywords",
        )
    written = guards.write_guards(text)
    query_limits.limit_expression(written)
    return written


def _refuse_capture(tree: exp.Expr, inputs: Collection[str]) -> None:
    """Raise ExpressionError for a lambda's variable that Spark, or only Hindcast, reads as an input or a column."""
    taken = {name.lower() for name in inputs}
    for call in tree.find_all(exp.Lambda):
        names = {column.parts[0].name.lower() for column in call.find_all(exp.Column)}
        for variable in (part.name for part in call.expressions):
            if variable.lower() in taken | names:
                found = f"the variable '{variable}' of '{format_tree(call)}' has the name of an input or a column"
                raise ExpressionError(found, "rename the variable")


def _refuse_unfit(text: str, tree: exp.Expr) -> None:
    if tree.find(exp.Star):
        raise ExpressionError("'*' is not an expression", "name the columns")
    if tree.find(exp.Placeholder, exp.Parameter, exp.SessionParameter):
        raise ExpressionError(f"'{text}' has a placeholder", "write the value")
    if (raw := functions.find_raw_text(tree)) is not None:
        raise ExpressionError(f"{format_value(raw)} is not a unit of time, a name or a length of a type", _UNIT_FIX)
    if wrong := functions.find_misplaced(tree):
        raise ExpressionError(*wrong)
    if (part := moments.find_today(tree)) is not None:
        raise ExpressionError(f"{part} depends on the current day", WRITE_OUT_FIX)
    if (part := moments.find_hidden(tree)) is not None:
        found = f"{part} makes timestamps inside another value, even from texts without a date"
        raise ExpressionError(found, "read them as strings, and cast each to a timestamp; write a schema as a literal")
    if moments.weigh_guards(tree) > bounds.MOMENTS:
        found = f"{format_value(text)} makes too many timestamps, or timestamps of timestamps"
        raise ExpressionError(found, "cast to a timestamp once, in an earlier view")


def find_type_clash(resolved: str, types: Mapping[str, str | None]) -> str | None:
    """Return a message for the first comparison of a string with a number, as far as types are known, or None.

    Spark would cast the string to a number, and fail at the first record where it is not one.
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
        kinds = {_find_operand_sort(operand, types): operand for operand in reversed(operands)}
        if "string" in kinds and "number" in kinds:
            return f"{format_tree(kinds['string'])} is a string, {format_tree(kinds['number'])} is a number"
    return None


_UNIT_FIX = "write for example extract(year FROM at), interval 1 day, decimal(8, 2)"

WRITE_OUT_FIX = "write it out: timestamp '2026-01-31 12:30:00'"
"""The fix for a text that depends on the current day."""


def find_plain_type(resolved: str, types: Mapping[str, str | None]) -> str | None:
    """Return the type of a resolved expression that is a plain column or a cast, None if only Spark knows it."""
    if resolved in types:
        return types[resolved]
    return _find_type(parse_resolved(resolved), types)


def _find_type(node: exp.Expr, types: Mapping[str, str | None]) -> str | None:
    if isinstance(node, exp.Cast):
        text = _TYPE_WORD.sub(lambda word: word[1] or word[0].lower(), format_tree(node.to))
        return re.sub(r",\s+", ",", text)
    return types.get(".".join(part.name for part in node.parts)) if isinstance(node, exp.Column) else None


_TYPE_WORD = re.compile(r"(`[^`]*`|\w+:)|\w+")
"""A word of a type, as sqlglot writes it; group 1 if it is the name of a struct's field: `STRUCT<Street: STRING>`."""


def parse_aggregate(text: str, scope: Scope, places: Mapping[str, str] | None = None) -> tuple[str, str]:
    """Return an aggregate's function and its resolved argument; that of `count(*)` is 1.

    >>> parse_aggregate("sum(quantity * 2)", {"orders": ["quantity"]})
    ('sum', 'orders.quantity * 2')
    """
    fix = "write one aggregate function of one argument: count(*), sum(amount), avg(delay), count(distinct item)"
    match = re.fullmatch(r"([A-Za-z_][A-Za-z0-9_]*)\s*\((.*)\)", strip_comments(text), re.DOTALL)
    if match is None:
        raise ExpressionError(f"'{text}' is not an aggregate", fix)
    function, argument = match[1].lower(), match[2].strip()
    if functions.find_kind(function) != "aggregate":
        found = "is not an aggregate" if functions.find_kind(function) else "is not a function"
        raise ExpressionError(f"'{function}' {found}", f"{functions.suggest_functions(function, 'aggregate')} {fix}")
    if function in functions.ORDERED_FUNCTIONS:
        instead = "write min, max or count(distinct ...); max(struct(sent, price)) gives the price that was sent last"
        raise ExpressionError(f"'{function}' depends on the order of rows, and a table has none", instead)
    if function == "count" and argument in ("*", "1"):
        return "count", "1"
    if function == "count" and (distinct := re.fullmatch(r"distinct\s+(.+)", argument, re.IGNORECASE | re.DOTALL)):
        function, argument = "count_distinct", distinct[1]
    try:
        return function, resolve(argument, scope, places)
    except ExpressionError as error:
        raise ExpressionError(error.found, fix if "more than one" in error.found else error.fix) from None


_COMPARISONS = (exp.EQ, exp.NEQ, exp.NullSafeEQ, exp.GT, exp.GTE, exp.LT, exp.LTE)
_NUMBERS = ("tinyint", "smallint", "int", "bigint", "float", "double", "decimal")


def _find_operand_sort(operand: exp.Expr, types: Mapping[str, str | None]) -> str | None:
    """Return whether an operand is a `string` or a `number`; None if it is neither, or only Spark knows."""
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
    """Return a column's start and end in the text, and its replacement."""
    parts = [part.name for part in column.parts]
    if len(parts) > 1 and parts[0] in scope:
        inputs, count = [parts[0]], 2
        if parts[1] not in scope[parts[0]]:
            raise ExpressionError(
                f"'{parts[0]}' has no column '{parts[1]}'", suggest_nearest(parts[1], scope[parts[0]])
            )
    else:
        inputs, count = [name for name, known in scope.items() if parts[0] in known], 1
    if not inputs:
        every = {name for known in scope.values() for name in known}
        raise ExpressionError(f"no column '{parts[0]}'", suggest_nearest(parts[0], every))
    if len(inputs) > 1:
        raise ExpressionError(f"'{parts[0]}' is a column of {' and of '.join(inputs)}", f"write {inputs[0]}.{parts[0]}")
    first, last = find_position(column.parts[0]), find_position(column.parts[count - 1])
    if first is None or last is None:
        raise ExpressionError(
            f"the position of '{format_tree(column)}' is not clear", "write the column in backquotes: `name`"
        )
    return first[0], last[1], write_column([places.get(inputs[0], inputs[0]), parts[count - 1]])
