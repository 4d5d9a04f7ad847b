"""Limit what explanations take of the API server: the expressions that they evaluate, their time, how many run at once.

Whoever may read a pipeline asks for them; whoever writes its contract wrote the expressions.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from threading import BoundedSemaphore, Event, Thread

import duckdb
from deltalake import DeltaTable
from sqlglot import expressions as exp

from hindcast.common.column_values import ColumnValue
from hindcast.common.errors import show_briefly
from hindcast.common.json_values import JsonObject, JsonValue
from hindcast.contract import functions
from hindcast.contract.moments import DATELESS_PATTERN
from hindcast.query.cut_values import MAX_CHARACTERS, is_cut
from hindcast.store import duckdb_reader

MAX_EXPLANATIONS = 2
MAX_SECONDS = 2.0
"""How long an engine may run, and an explanation may wait for its turn."""


class NotExplainedError(Exception):
    """Why a page explains no row, in words without values of the row."""


class EngineLimitError(NotExplainedError):
    """An engine ran longer than it may."""


@contextmanager
def limit_explanations() -> Iterator[None]:
    """Wait for a turn to explain a row; raise NotExplainedError if others take too long."""
    if not _TURNS.acquire(timeout=MAX_SECONDS):
        raise NotExplainedError("too many rows are being explained at this moment; try again")
    try:
        yield
    finally:
        _TURNS.release()


_TURNS = BoundedSemaphore(MAX_EXPLANATIONS)


@contextmanager
def open_limited_engine(
    delta_table: DeltaTable | None = None, seconds: float | None = None, memory: int | None = None
) -> Iterator[duckdb.DuckDBPyConnection]:
    """Return an engine that is interrupted after `seconds` (default: `MAX_SECONDS`); raise EngineLimitError then.

    It can open only the files of a table, or none. `memory` as for `duckdb_reader.open_engine`.
    """
    limit, ended = MAX_SECONDS if seconds is None else seconds, Event()

    def watch() -> None:
        wait = limit
        while not ended.wait(wait):  # an engine that computes nothing at the moment is not interrupted
            engine.interrupt()
            wait = 0.1

    opened = (
        duckdb_reader.open_arrow_engine() if delta_table is None else duckdb_reader.open_engine(delta_table, memory)
    )
    with opened as engine:
        watcher = Thread(target=watch, daemon=True)
        watcher.start()
        try:
            yield engine
        except duckdb.InterruptException:
            raise EngineLimitError(f"finding its input rows took longer than {limit:g} seconds") from None
        finally:
            ended.set()
            watcher.join()


def refuse_costly(tree: exp.Expr, *, is_for_one_row: bool = False) -> None:
    """Raise NotExplainedError for an expression whose result, or the work for it, is not bounded by its input.

    For one row, whose values are cut, texts may be concatenated.
    """
    if (raw := functions.find_raw_text(tree)) is not None:
        raise NotExplainedError(f"it does not evaluate {show_briefly(raw, 50)}, which the contract uses")
    for node in tree.walk():
        if isinstance(node, exp.Concat | exp.DPipe | exp.ConcatWs):
            is_cheap = is_for_one_row or _count_values(node) <= 1
        elif isinstance(node, exp.RegexpLike):
            is_cheap = node.expression == exp.Literal.string(DATELESS_PATTERN)  # a guard of guards.py
        elif isinstance(node, exp.DataType):
            is_cheap = not node.is_type(*exp.DataType.NESTED_TYPES)
        else:
            is_cheap = isinstance(node, _CHEAP)
        if not is_cheap:
            name, bracket, _ = (text := node.sql(dialect="spark")).partition("(")
            words = f"{name.lower()}()" if bracket and name.isidentifier() else show_briefly(text, 50)
            raise NotExplainedError(f"it does not evaluate {words}, which the contract uses")


def refuse_unknown_sql(text: str) -> None:
    """Raise NotExplainedError for an expression that DuckDB does not read as one expression of what is cheap.

    DuckDB itself says what it reads: an error of the translation must not become a query, or a statement.
    """
    alone, in_brackets = _parse_in_duckdb(text), _parse_in_duckdb(f"({text})")
    if alone != in_brackets or not _is_known(alone):
        raise NotExplainedError("it does not evaluate an expression that the contract uses")


def _parse_in_duckdb(text: str) -> JsonValue:
    """Return DuckDB's tree of `SELECT <text>` without the places in the text."""

    def leave_out_places(fields: JsonObject) -> JsonObject:
        return {name: value for name, value in fields.items() if not name.startswith("query_location")}

    with duckdb_reader.open_arrow_engine() as engine:
        ((tree,),) = engine.execute("SELECT json_serialize_sql($1)", [f"SELECT {text}"]).fetchall()
    parsed: JsonObject = json.loads(tree, object_hook=leave_out_places)
    if parsed["error"]:
        raise NotExplainedError("it does not evaluate an expression that the contract uses")
    return parsed["statements"]


def _is_known(tree: JsonValue) -> bool:
    """Return whether DuckDB's tree has no parts but columns, constants, operators and functions that are known."""
    if isinstance(tree, list):
        return all(map(_is_known, tree))
    if not isinstance(tree, dict):
        return True
    kind = tree.get("class")
    if kind is not None and kind not in _KNOWN_CLASSES:
        return False
    if kind == "FUNCTION" and str(tree["function_name"]).lower() not in _KNOWN_FUNCTIONS:
        return False
    return all(map(_is_known, tree.values()))


_KNOWN_CLASSES = frozenset(
    (
        *("COLUMN_REF", "CONSTANT", "CAST", "TYPE", "FUNCTION", "OPERATOR"),
        *("COMPARISON", "CONJUNCTION", "BETWEEN", "CASE"),
    )
)
_KNOWN_FUNCTIONS = frozenset(
    (
        *("+", "-", "*", "/", "//", "%", "||", "concat", "concat_ws", "nullif", "regexp_matches"),
        *("lower", "upper", "trim", "ltrim", "rtrim", "substring", "left", "right", "length", "starts_with"),
        *("abs", "round", "floor", "ceil", "sign", "power", "greatest", "least"),
        *("year", "quarter", "month", "week", "weekofyear", "day", "dayofmonth", "dayofyear"),
        *("hour", "minute", "second", "date_part", "date_trunc"),
    )
)
"""What `_CHEAP` becomes in DuckDB."""


def refuse_cut(values: Iterable[ColumnValue]) -> None:
    """Raise NotExplainedError if rows would be looked up by a value that is cut."""
    if any(map(is_cut, values)):
        raise NotExplainedError(f"it does not look up values of more than {MAX_CHARACTERS:,} characters")


def _count_values(concatenation: exp.Expr) -> int:
    """Return how many values are concatenated, besides constants."""
    return sum(part.find(exp.Column) is not None for part in concatenation.iter_expressions())


_CHEAP = (
    *(exp.Column, exp.Identifier, exp.Literal, exp.Boolean, exp.Null, exp.Paren, exp.Var, exp.DataTypeParam),
    *(exp.And, exp.Or, exp.Not, exp.Is, exp.In, exp.Between),
    *(exp.EQ, exp.NEQ, exp.LT, exp.LTE, exp.GT, exp.GTE, exp.NullSafeEQ, exp.NullSafeNEQ),
    *(exp.Add, exp.Sub, exp.Mul, exp.Div, exp.IntDiv, exp.Mod, exp.Neg),
    *(exp.Cast, exp.TryCast, exp.Case, exp.If, exp.Coalesce, exp.Nullif),
    *(exp.Lower, exp.Upper, exp.Trim, exp.Substring, exp.Left, exp.Right, exp.Length, exp.StartsWith),
    *(exp.Abs, exp.Round, exp.Floor, exp.Ceil, exp.Sign, exp.Greatest, exp.Least),
    *(exp.Year, exp.Quarter, exp.Month, exp.WeekOfYear, exp.Day, exp.DayOfMonth, exp.DayOfYear),
    *(exp.Hour, exp.Minute, exp.Second, exp.Extract, exp.TimestampTrunc, exp.DateTrunc, exp.TsOrDsToDate),
)
"""The nodes whose results are bounded by their inputs, in size and work."""
