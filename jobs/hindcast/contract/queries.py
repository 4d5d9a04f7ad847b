"""Spark SQL queries of gates, parsed without Spark. Only certain problems are reported."""

from __future__ import annotations

from collections.abc import Collection, Iterator

from sqlglot import expressions as exp

from hindcast.contract import functions
from hindcast.contract.parsing import ExpressionError, Verbatim, format_tree, strip_comments, tokenize, tokenize_bounded
from hindcast.contract.types import PARSER_ERRORS

BATCH = "_batch"
"""The name that stands for the batch in a query while it is checked."""

_Query = exp.Select | exp.SetOperation


def wrap_condition(condition: str) -> str:
    """Return the query for the rows of the batch that meet a condition."""
    return f"SELECT * FROM {BATCH} WHERE (\n{condition}\n)"  # noqa: S608  # it is parsed, not run


def find_unknown_column(query: str, columns: Collection[str]) -> str | None:
    """Return the first column in a query over the batch that certainly does not exist, None if there is none.

    Nothing is certain of a query that does not parse, that reads other tables too, or that makes columns without naming
    them. Lineage (`_offset`) and names that the query gives itself exist.

    >>> find_unknown_column("SELECT * FROM _batch WHERE cost > 0", ["price"])
    'cost'
    """
    tree = parse_query(query)
    if tree is None:
        return None
    sources = {name.lower() for name in _list_sources(tree)}
    if not _has_known_columns(tree, sources):
        return None
    known = sources | {name.lower() for name in (*columns, *_list_own_names(tree))}
    for column in tree.find_all(exp.Column):
        if functions.is_unit(column):
            continue
        parts = [part.name for part in column.parts]
        name = parts[1] if len(parts) > 1 and parts[0].lower() in sources else parts[0]
        if name.lower() not in known and not _is_unclear(name):
            return name
    return None


def find_query_problem(query: str) -> str | None:
    """Return why a gate must not run a query, None if it may: it is a single SELECT over tables.

    Queries that reach beyond tables are refused: programs, Java, files by path, names made from text. So are those that
    sqlglot cannot parse, since nobody can tell what they reach. A gate runs the query without comments, because Spark
    ends comments elsewhere.

    >>> find_query_problem("DROP TABLE _batch")
    'is not a single SELECT that can be parsed'
    """
    try:
        query = strip_comments(query)
    except ExpressionError:
        return _NO_QUERY
    if (tree := parse_query(query)) is not None:
        return _find_reach(tree)
    words = {token.text.lower() for token in tokenize(query)}
    return "starts a program (TRANSFORM)" if {"transform", "using"} <= words else _NO_QUERY


def find_condition_problem(condition: str) -> str | None:
    """Return why a gate must not have a condition on rows in Spark SQL, None if it may.

    >>> find_condition_problem("price !< 0")
    'is not a condition that can be parsed'
    """
    try:
        query = wrap_condition(strip_comments(condition))
    except ExpressionError:
        return _NO_CONDITION
    if (tree := parse_query(query)) is not None:
        return _find_reach(tree) if _is_one_condition(tree) else _NO_CONDITION
    problem = find_query_problem(query)
    return _NO_CONDITION if problem == _NO_QUERY else problem


_NO_QUERY = "is not a single SELECT that can be parsed"
_NO_CONDITION = "is not a condition that can be parsed"


def _is_one_condition(tree: _Query) -> bool:
    """Return whether the brackets that `wrap_condition` puts around a condition are one pair."""
    clauses = {name.rstrip("_") for name, value in tree.args.items() if value}
    where = tree.args.get("where")
    return clauses == {"expressions", "from", "where"} and where is not None and isinstance(where.this, exp.Paren)


def _find_reach(tree: exp.Query) -> str | None:
    """Return how a query reaches beyond tables, None if it does not."""
    for clause in tree.find_all(exp.From, exp.Join, exp.Lateral):
        if not isinstance(clause.this, _LATERALS if isinstance(clause, exp.Lateral) else _SOURCES):
            return f"reads from what is no table, no query and no function: {format_tree(clause.this)}"
    for function in tree.find_all(exp.Func):
        name = functions.find_name(function)
        if name in _CALLS_JAVA:
            return f"calls Java by '{name}'"
        if name == "identifier":
            return "makes a name from text (IDENTIFIER)"
        sort = functions.find_kind(name)
        if sort == "file" or name in _TABLE_CALLS or (sort == "table" and name != "range"):
            return f"reads files by their path, {name}"
        if sort == "document":
            return f"fetches what a document names, with '{name}'"
        if (wrong := functions.find_open_option(function)) is not None:
            return f"has a function that may read files: {wrong[0]}"
    for table in tree.find_all(exp.Table):
        parts = [part.name for part in table.parts]
        odd = not all(part.isascii() and part.isidentifier() for part in parts[-2:])
        if len(parts) > 1 and (odd or parts[-2].lower() in _FORMATS):
            return f"reads files by their path, {format_tree(table)}"
    return None


_SOURCES, _LATERALS = (exp.Table, exp.Subquery, exp.Values, exp.Lateral), (exp.Subquery, exp.Func)
"""What may stand in FROM and JOIN, and after LATERAL: Spark also reads a file there, LATERAL text.`/etc/passwd`."""

_TABLE_CALLS = frozenset(("stream", "table"))
"""Spark's grammar for the table of a name, which looks like a call: STREAM(text.`/etc/passwd`)."""

_CALLS_JAVA = frozenset(("reflect", "try_reflect", "java_method"))
_FORMATS = frozenset(
    (
        *("avro", "binaryfile", "csv", "delta", "deltasharing", "hudi", "iceberg", "image", "jdbc", "json", "kafka"),
        *("libsvm", "orc", "parquet", "statestore", "state-metadata", "text", "xml"),
    )
)
"""Formats by which Spark reads a file if they stand before a name, as in text.`/etc/passwd`."""


def list_projected_columns(query: str) -> list[str] | None:
    """Return the columns that a query returns if it names each, None if they are not known.

    >>> list_projected_columns("SELECT id, price * 2 AS twice FROM _batch")
    ['id', 'twice']
    """
    tree = parse_query(query)
    if tree is None or not all(isinstance(part, exp.Column | exp.Alias) and not part.is_star for part in tree.selects):
        return None
    return [part.alias_or_name for part in tree.selects] or None


def parse_query(query: str) -> _Query | None:
    """Return the tree of one query, None if sqlglot cannot parse it."""
    try:
        trees = [tree for tree in Verbatim().parser().parse(tokenize_bounded(query), query) if tree is not None]
    except PARSER_ERRORS:  # an ExpressionError too
        return None
    tree = trees[0] if len(trees) == 1 else None
    while isinstance(tree, exp.Subquery):
        tree = tree.this
    return tree if isinstance(tree, _Query) else None


def _has_known_columns(tree: _Query, sources: Collection[str]) -> bool:
    """Return whether all columns come from the batch or are named in the query."""
    if tree.find(exp.UDTF, exp.Pivot) or functions.has_generator(tree):
        return False
    own = {BATCH, *(cte.alias.lower() for cte in tree.find_all(exp.CTE))}
    if any(table.name.lower() not in own or table.args.get("db") for table in tree.find_all(exp.Table)):
        return False
    # The fields of a struct become columns.
    stars = (column for column in tree.find_all(exp.Column) if isinstance(column.this, exp.Star))
    return all(star.table.lower() in sources and not star.args.get("db") for star in stars)


def _list_sources(tree: _Query) -> Iterator[str]:
    """Yield the names that can qualify columns: tables, CTEs and subqueries, by their aliases."""
    yield from (table.alias_or_name for table in tree.find_all(exp.Table))
    yield from (alias.name for alias in tree.find_all(exp.TableAlias))


def _list_own_names(tree: _Query) -> Iterator[str]:
    """Yield the columns that a query names itself: `price * 2 AS twice`, `AS t(a, b)`."""
    yield from (alias.alias for alias in tree.find_all(exp.Alias))
    for table in tree.find_all(exp.TableAlias):
        yield from (column.name for column in table.args.get("columns") or ())


def _is_unclear(name: str) -> bool:
    """Return whether a name may exist unseen: lineage, a function without brackets, Spark's `count(1)`, or `*`."""
    plain = name.isidentifier() and not name.startswith("_")
    return not plain or functions.find_kind(name) == "unstable" or name.lower() == "grouping__id"
