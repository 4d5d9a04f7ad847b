"""Spark SQL's functions by name, without Spark, and those that have no place in an expression of a view."""

from __future__ import annotations

import difflib
import json
import re
from functools import cache
from pathlib import Path

from sqlglot import expressions as exp


def kind(name: str) -> str | None:
    """What sort of function Spark 4.2 has by this name, None if it has none.

    `aggregate`, `window`, `generator` (several rows of one), `table`, `unstable` (not the same each time it is asked:
    clocks, dice, the session), `scalar`: any other.
    """
    return _kinds().get(name.lower())


def misplaced(tree: exp.Expression) -> tuple[str, str] | None:
    """The first function that cannot stand in an expression over one row: what was found, what would do."""
    for node in tree.walk():
        if isinstance(node, exp.Window):
            return f"'{node.sql(dialect='spark')}' looks at other rows", "aggregate in a view of its own"
        if not isinstance(node, exp.Func):
            continue
        called = name(node)
        sort = kind(called)
        if sort is None and isinstance(node, exp.Anonymous):
            return f"no function '{called}'", near(called)
        if sort in _REFUSED:
            found, mend = _REFUSED[sort]
            return f"'{called}' {found}", mend
    return None


def generates(tree: exp.Expression) -> bool:
    """Whether a function in it makes several rows of one, and columns with names of its own."""
    return any(kind(name(function)) == "generator" for function in tree.find_all(exp.Func))


def near(name: str, wanted: str | None = None) -> str:
    """The names nearest to one that is not there, of all functions or of one kind."""
    names = [known for known, sort in _kinds().items() if sort == wanted or (not wanted and sort not in _REFUSED)]
    close = difflib.get_close_matches(name.lower(), names, n=3)
    return f"did you mean {' or '.join(close)}?" if close else "see the built-in functions of Spark SQL"


_REFUSED = {
    "aggregate": ("is an aggregate: it needs many rows", "aggregate in a view of its own: aggregate: {n: count(*)}"),
    "window": ("is a window function: it looks at other rows", "aggregate in a view of its own"),
    "generator": ("makes several rows of one", "a view has one row for a row of its inputs; keep the array"),
    "table": ("is a table, not a value", "join the table in the view instead"),
    "unstable": ("does not give the same answer again", "a table is made of its records alone: name their columns"),
}


@cache
def _kinds() -> dict[str, str]:
    told = json.loads(Path(__file__).with_name("functions.json").read_text(encoding="utf-8"))
    return {name: sort for sort, names in told.items() for name in names}


def name(function: exp.Func) -> str:
    """The name as Spark is told it; that of an operator or a special form may be none."""
    if isinstance(function, exp.Anonymous):
        return str(function.name)
    if isinstance(function, exp.Binary):
        return ""  # AND, COLLATE: to write a long chain of them for each of its parts would take for ever
    match = re.match(r"([A-Za-z_]\w*)(\(|$)", function.sql(dialect="spark"))
    return match[1].lower() if match else ""
