"""Spark SQL queries of gates: parsed without Spark, and judged only where there is no doubt."""

from __future__ import annotations

from collections.abc import Collection, Iterator

import sqlglot
from sqlglot import expressions as exp

from hindcast.contracts import functions
from hindcast.contracts.parsing import ExpressionError, Verbatim, show, strip_comments, tokenize, tokenize_bounded

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
        if functions.is_unit(column):
            continue
        parts = [part.name for part in column.parts]
        name = parts[1] if len(parts) > 1 and parts[0].lower() in sources else parts[0]
        if name.lower() not in there and not _unclear(name):
            return name
    return None


def refuse_query(query: str) -> str | None:
    """Return why a gate must not ask a query, None if it may: it is one SELECT over tables.

    Refused is what reaches beyond tables: a program, Java, files by their path, names made of texts; and what sqlglot
    cannot read, since nobody can tell what it reaches. A gate asks it without comments, which end elsewhere to Spark.

    >>> refuse_query("DROP TABLE _batch")
    'is not one SELECT that can be read'
    """
    try:
        query = strip_comments(query)
    except ExpressionError:
        return "is not one SELECT that can be read"
    if (tree := _parsed(query)) is not None:
        return _find_reach(tree)
    words = {token.text.lower() for token in tokenize(query)}
    return "starts a program (TRANSFORM)" if {"transform", "using"} <= words else "is not one SELECT that can be read"


def refuse_condition(condition: str) -> str | None:
    """Return why a gate must not have a condition in Spark SQL on rows, None if it may: it is over one row, or tables.

    >>> refuse_condition("price !< 0")
    'is no condition that can be read'
    """
    try:
        found = refuse_query(where(strip_comments(condition)))
    except ExpressionError:
        return "is no condition that can be read"
    return "is no condition that can be read" if found and "one SELECT" in found else found


def _find_reach(tree: exp.Query) -> str | None:
    for function in tree.find_all(exp.Func):
        name = functions.find_name(function)
        if name in _CALLS_JAVA:
            return f"calls Java by '{name}'"
        if name == "identifier":
            return "makes a name of a text (IDENTIFIER)"
        sort = functions.kind(name)
        if sort == "file" or name in _OF_NAMES or (sort == "table" and name != "range"):
            return f"reads files by their path, {name}"
        if sort == "document":
            return f"fetches what a document names, by '{name}'"
        if (wrong := functions.find_open_option(function)) is not None:
            return f"has a function that may read files: {wrong[0]}"
    for table in tree.find_all(exp.Table):
        parts = [part.name for part in table.parts]
        odd = not all(part.isascii() and part.isidentifier() for part in parts[-2:])
        if len(parts) > 1 and (odd or parts[-2].lower() in _FORMATS):
            return f"reads files by their path, {show(table)}"
    return None


_OF_NAMES = frozenset(("stream", "table"))
"""What reads like a call, and is Spark's grammar for the table of a name: STREAM(text.`/etc/passwd`)."""

_CALLS_JAVA = frozenset(("reflect", "try_reflect", "java_method"))
_FORMATS = frozenset(
    (
        *("avro", "binaryfile", "csv", "delta", "deltasharing", "hudi", "iceberg", "image", "jdbc", "json", "kafka"),
        *("libsvm", "orc", "parquet", "statestore", "state-metadata", "text", "xml"),
    )
)
"""What Spark reads files by where it stands before a name, as in text.`/etc/passwd`."""


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
        trees = [tree for tree in Verbatim().parser().parse(tokenize_bounded(query), query) if tree is not None]
    except (sqlglot.errors.SqlglotError, ExpressionError, RecursionError):
        return None
    tree = trees[0] if len(trees) == 1 else None
    while isinstance(tree, exp.Subquery):
        tree = tree.this
    return tree if isinstance(tree, _Query) else None


def _closed(tree: _Query, sources: Collection[str]) -> bool:
    """Whether all columns come from the batch, or are named in the query."""
    if tree.find(exp.UDTF, exp.Pivot) or functions.generates(tree):
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
