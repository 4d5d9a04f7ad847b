"""Spark SQL queries of gates: parsed without Spark, and judged only where there is no doubt."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator

import sqlglot
from sqlglot import expressions as exp

from hindcast.contracts import bounds, functions

BATCH = "_batch"
"""The name of the batch in a query that is looked at here."""

_Query = exp.Select | exp.SetOperation


def where(condition: str) -> str:
    """The query of the batch's rows that meet a condition."""
    return f"SELECT * FROM {BATCH} WHERE (\n{condition}\n)"  # noqa: S608  # it is looked at, not run


def unknown(query: str, columns: Collection[str]) -> str | None:
    """The first column that a query over the batch names and that is certainly not there; None if there may be none.

    A query that does not parse, that is over anything else too, or that makes columns without naming them, may name
    anything. Lineage (`_offset`), and what the query names itself, is there.

    >>> unknown("SELECT * FROM _batch WHERE cost > 0", ["price"])
    'cost'
    """
    tree = _parsed(query)
    if tree is None:
        return None
    sources = {name.lower() for name in _sources(tree)}
    if not _closed(tree, sources):
        return None
    there = sources | {name.lower() for name in (*columns, *_names(tree))}
    for column in tree.find_all(exp.Column):
        parts = [part.name for part in column.parts]
        name = parts[1] if len(parts) > 1 and parts[0].lower() in sources else parts[0]
        if name.lower() not in there and not _unclear(name):
            return name
    return None


def refuse_query(query: str) -> str | None:
    """Return why a gate must not ask a query, None if it may: it is one SELECT, and `refuse_reach` has nothing to say.

    >>> refuse_query("DROP TABLE _batch")
    'is not one SELECT that can be read'
    """
    tree = _parsed(query)
    return "is not one SELECT that can be read" if tree is None else refuse_reach(tree)


def refuse_condition(condition: str) -> str | None:
    """Return why a gate must not have a condition on rows, None if it may.

    One that sqlglot cannot read may be in Great Expectations' own language.
    """
    tree = _parsed(where(condition))
    if tree is None:
        called = _CALLS_JAVA.search(condition)
        return f"calls Java by '{called[1]}'" if called else None
    return refuse_reach(tree)


def refuse_reach(tree: exp.Query) -> str | None:
    """Return what in a query reaches beyond tables: a program, Java, or files by their path; None if nothing does."""
    if tree.find(exp.QueryTransform):
        return "starts a program (TRANSFORM)"
    for function in tree.find_all(exp.Anonymous):
        if _CALLS_JAVA.match(f"{function.name}("):
            return f"calls Java by '{function.name}'"
        if function.name.lower() == "identifier":
            return "makes a name of a text (IDENTIFIER)"
    for table in tree.find_all(exp.Table):
        if table.args.get("db") and (table.text("db").lower() in _FORMATS or "/" in table.name):
            return f"reads files by their path, {table.sql(dialect='spark')}"
    return None


_CALLS_JAVA = re.compile(r"\b(reflect|try_reflect|java_method)\s*\(", re.IGNORECASE)
_FORMATS = frozenset(
    ("avro", "binaryfile", "csv", "delta", "iceberg", "jdbc", "json", "kafka", "orc", "parquet", "text", "xml")
)


def projected(query: str) -> list[str] | None:
    """The columns that a query gives, if it names each; None if that cannot be told.

    >>> projected("SELECT id, price * 2 AS twice FROM _batch")
    ['id', 'twice']
    """
    tree = _parsed(query)
    if tree is None or not all(isinstance(it, exp.Column | exp.Alias) and not it.is_star for it in tree.selects):
        return None
    return [it.alias_or_name for it in tree.selects] or None


def _parsed(query: str) -> _Query | None:
    """One query, if sqlglot can read it."""
    try:
        bounds.refuse_deep_brackets(query, "([{", ")]}", bounds.BRACKETS, "brackets")
        if len(query) > bounds.TERMS and len(sqlglot.tokenize(query, dialect="spark")) > bounds.TERMS:
            return None
        trees = [tree for tree in sqlglot.parse(query, dialect="spark") if tree is not None]
    except (sqlglot.errors.SqlglotError, bounds.ExcessError, RecursionError):
        return None
    tree = trees[0] if len(trees) == 1 else None
    while isinstance(tree, exp.Subquery):
        tree = tree.this
    return tree if isinstance(tree, _Query) else None


def _closed(tree: _Query, sources: Collection[str]) -> bool:
    """Whether all columns come from the batch, or are named in the query."""
    if tree.find(exp.UDTF, exp.Pivot, exp.QueryTransform) or functions.generates(tree):
        return False
    own = {BATCH, *(cte.alias.lower() for cte in tree.find_all(exp.CTE))}
    if any(table.name.lower() not in own or table.args.get("db") for table in tree.find_all(exp.Table)):
        return False
    # The fields of a struct become columns.
    stars = (column for column in tree.find_all(exp.Column) if isinstance(column.this, exp.Star))
    return all(star.table.lower() in sources and not star.args.get("db") for star in stars)


def _sources(tree: _Query) -> Iterator[str]:
    """What columns can be qualified with: tables, CTEs, subqueries, by their aliases."""
    yield from (table.alias_or_name for table in tree.find_all(exp.Table))
    yield from (alias.name for alias in tree.find_all(exp.TableAlias))


def _names(tree: _Query) -> Iterator[str]:
    """The columns that a query names itself: `price * 2 AS twice`, `AS t(a, b)`."""
    yield from (alias.alias for alias in tree.find_all(exp.Alias))
    for table in tree.find_all(exp.TableAlias):
        yield from (column.name for column in table.args.get("columns") or ())


def _unclear(name: str) -> bool:
    """Lineage, a function that needs no brackets, a name that Spark makes (`count(1)`), or `*`."""
    plain = name.isidentifier() and not name.startswith("_")
    return not plain or functions.kind(name) == "unstable" or name.lower() == "grouping__id"
