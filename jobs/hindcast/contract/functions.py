"""Spark SQL's functions by name, without Spark, and those that a view's expressions cannot use."""

from __future__ import annotations

import difflib
import json
import re
from functools import cache
from pathlib import Path

from sqlglot import expressions as exp


def find_kind(name: str) -> str | None:
    """Return the kind of the function that Spark 4.2 has by this name, None if it has none.

    `aggregate`, `window`, `generator` (several rows from one, or none), `table`, `unstable` (not the same at each call:
    clocks, random numbers, the session), `file` (reads a file on the server), `document` (fetches what a document
    names), `scalar`: any other.
    """
    return _load_kinds().get(name.lower())


def find_misplaced(tree: exp.Expr) -> tuple[str, str] | None:
    """Return what is wrong with the first function that an expression over one row cannot use: found, and fix."""
    for node in tree.walk():
        if isinstance(node, exp.Window):
            return f"'{node.sql(dialect='spark')}' looks at other rows", "aggregate in a view of its own"
        if not isinstance(node, exp.Func):
            continue
        called = find_name(node)
        sort = "unstable" if called == "unix_timestamp" and not node.expressions else find_kind(called)
        if sort is None and isinstance(node, exp.Anonymous) and called not in _GRAMMAR_FUNCTIONS:
            return f"no function '{called}'", suggest_functions(called)
        if sort in _REFUSED:
            found, fix = _REFUSED[sort]
            return f"'{called}' {found}", fix
        if (wrong := find_open_option(node)) is not None:
            return wrong
    return None


def find_open_option(call: exp.Func) -> tuple[str, str] | None:
    """Return what is wrong with the options of a call: they must be literals, and none may name a file."""
    name = find_name(call)
    if name not in _OPTIONS:
        return None
    if named := next((each for each in call.expressions if isinstance(each, exp.Kwarg)), None):
        return f"'{name}' has the named argument '{named.name}'", "write the arguments in their order, without names"
    if len(call.expressions) <= _OPTIONS[name]:
        return None
    options = call.expressions[_OPTIONS[name]]
    written = options.expressions if isinstance(options, exp.Anonymous) and find_name(options) == "map" else None
    if written is None or not all(isinstance(option, exp.Literal) for option in written):
        return f"the options of '{name}' are computed", "write them as literals: map('mode', 'FAILFAST')"
    if files := [option.name for option in written[::2] if option.name.lower() in _FILE_OPTIONS]:
        return f"'{name}' reads a file on the server by '{files[0]}'", "remove the option"
    return None


def find_raw_text(tree: exp.Expr) -> str | None:
    """Return the first part of a tree that stands for a unit, a name or a number and is none; None if all are.

    sqlglot reads any word in backquotes as such a part, and writes it as it stands, without quotes: in another
    dialect it would become SQL.
    """
    for node in tree.find_all(exp.Var, exp.DataTypeParam):
        if isinstance(node, exp.DataTypeParam):
            is_plain = _NUMBER.fullmatch(node.name) is not None
        elif isinstance(node.parent, exp.Kwarg | exp.Collate):
            is_plain = _WORD.fullmatch(node.name) is not None
        else:
            is_plain = node.name.upper() in _FIELDS
        if not is_plain:
            return str(node.name)
    return None


_NUMBER, _WORD = re.compile("[0-9]{1,9}"), re.compile("[A-Za-z_][A-Za-z0-9_]*")


def has_generator(tree: exp.Expr) -> bool:
    """Return whether a tree calls a function that makes several rows from one, and columns with names of its own."""
    return any(find_kind(find_name(function)) == "generator" for function in tree.find_all(exp.Func))


def suggest_functions(name: str, kind: str | None = None) -> str:
    """Return a fix that names the functions nearest to an unknown one, of all kinds or of one."""
    names = [known for known, sort in _load_kinds().items() if sort == kind or (not kind and sort not in _REFUSED)]
    close = difflib.get_close_matches(name.lower(), names, n=3)
    return f"did you mean {' or '.join(close)}?" if close else "see the built-in functions of Spark SQL"


def is_unit(column: exp.Column) -> bool:
    """Return whether what looks like a column is a unit of time: the `minute` of `timestampdiff(minute, at, until)`."""
    call = column.parent
    return (
        isinstance(call, exp.Anonymous)
        and find_name(call) in _WITH_UNIT
        and len(call.expressions) == 3
        and call.expressions[0] is column
        and len(column.parts) == 1
        and column.name.upper() in _UNITS
    )


def find_name(function: exp.Func) -> str:
    """Return the name of a function in lower case; that of an operator is empty."""
    if isinstance(function, exp.Anonymous):
        return str(function.name).lower()
    if isinstance(function, exp.Binary):
        return ""
    if isinstance(function, exp.Cast):
        return "cast"
    return str(_OTHER_SPELLINGS.get(type(function)) or function.sql_name()).lower()


ORDERED_FUNCTIONS = frozenset(
    (
        *("any_value", "approx_percentile", "approx_top_k", "approx_top_k_accumulate", "approx_top_k_combine"),
        *("array_agg", "collect_list", "collect_set", "first", "first_value", "histogram_numeric", "hll_sketch_agg"),
        *("hll_union_agg", "kll_merge_agg_bigint", "kll_merge_agg_double", "kll_merge_agg_float"),
        *("kll_sketch_agg_bigint", "kll_sketch_agg_double", "kll_sketch_agg_float", "last", "last_value", "listagg"),
        *("mode", "percentile_approx", "schema_of_variant_agg", "string_agg"),
        *("theta_intersection_agg", "theta_sketch_agg", "theta_union_agg", "tuple_intersection_agg_double"),
        *("tuple_intersection_agg_integer", "tuple_sketch_agg_double", "tuple_sketch_agg_integer"),
        *("tuple_union_agg_double", "tuple_union_agg_integer"),
    )
)
"""Aggregates whose answer depends on the order of rows, which a table does not have."""

_OTHER_SPELLINGS = {exp.StrPosition: "position", exp.Substring: "substring"}
_GRAMMAR_FUNCTIONS = frozenset(("timestampadd", "timestampdiff"))
"""Functions of Spark's grammar that its catalog does not list."""

_WITH_UNIT = frozenset(("date_add", "date_diff", "dateadd", "datediff", "timestampadd", "timestampdiff"))
_UNITS = frozenset(
    ("YEAR", "QUARTER", "MONTH", "WEEK", "DAY", "DAYOFYEAR", "HOUR", "MINUTE", "SECOND", "MILLISECOND", "MICROSECOND")
)
_FIELDS = _UNITS | {f"{unit}S" for unit in _UNITS}
_FIELDS |= frozenset(
    (
        *(
            "Y",
            "YR",
            "YRS",
            "YEAROFWEEK",
            "QTR",
            "MON",
            "MONS",
            "W",
            "D",
            "DAYOFWEEK",
            "DOW",
            "DAYOFWEEK_ISO",
            "DOW_ISO",
        ),
        *("DAYOFWEEKISO", "DOY", "H", "HR", "HRS", "M", "MIN", "MINS", "S", "SEC", "SECS", "NANOSECOND", "NANOSECONDS"),
    )
)
"""The parts of a moment that Spark knows, for extract and intervals, and sqlglot's own names for them."""

_REFUSED = {
    "aggregate": ("is an aggregate: it needs many rows", "aggregate in a view of its own: aggregate: {n: count(*)}"),
    "window": ("is a window function: it looks at other rows", "aggregate in a view of its own"),
    "generator": ("makes several rows from one", "a view has one row for each row of its inputs; keep the array"),
    "table": ("is a table, not a value", "join the table in the view instead"),
    "unstable": (
        "does not give the same answer every time",
        "a table is derived from its records alone: use their columns",
    ),
    "file": (
        "reads a file on the server",
        "declare the topic's format, with its schema in the contract",
    ),
    "document": (
        "fetches the DTD that a document names, from the network or the server's files",
        "write from_xml(text, 'a string').a",
    ),
}

_OPTIONS = {
    **dict.fromkeys(("from_csv", "from_json", "from_xml", "from_avro"), 2),
    **dict.fromkeys(("schema_of_csv", "schema_of_json", "schema_of_xml", "to_csv", "to_json", "to_xml"), 1),
}
"""Functions that take options, and the place of that argument."""

_FILE_OPTIONS = frozenset(("rowvalidationxsdpath", "avroschemaurl"))


@cache
def _load_kinds() -> dict[str, str]:
    sorts = json.loads(Path(__file__).with_name("functions.json").read_text(encoding="utf-8"))
    return {name: sort for sort, names in sorts.items() for name in names}
