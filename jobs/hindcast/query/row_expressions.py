"""A contract's expressions over the rows of an input, with the values that runs give them (arrow_expressions.py).

DuckDB's SQL is another dialect: it rounds where Spark truncates, and counts a week's days from another one. So DuckDB
only compares: what is more than a column is a function of ours to it, which Arrow evaluates.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import count

import duckdb
import pyarrow as pa
from duckdb.func import FunctionNullHandling, PythonUDFType
from sqlglot import expressions as exp

from hindcast.bitemporal.predicates import sql_literal
from hindcast.common.column_values import ColumnValue, Row
from hindcast.common.errors import show_briefly
from hindcast.common.python_values import list_values
from hindcast.contract.parsing import parse_resolved
from hindcast.engine.arrow_expressions import (
    Call,
    ColumnReference,
    Constant,
    EvaluationError,
    Expression,
    evaluate_column,
    list_columns,
)
from hindcast.engine.arrow_translation import translate_expression
from hindcast.engine.typed_calls import MAX_CALLS
from hindcast.query.explain_limits import NotExplainedError, refuse_unfit
from hindcast.store.duckdb_reader import quote_name

_NUMBERS = count()
"""All engines of a process share the names of functions."""


class RowExpressions:
    """Expressions (`input.column`, as `expressions.resolve` returns them) over the rows of an input of this schema."""

    def __init__(self, name: str, schema: pa.Schema) -> None:
        self._name = name
        self._columns = {(name, field.name): ColumnReference(field.name, field.type) for field in schema}
        self._functions: dict[str, Expression] = {}
        self._has_failed, self._size = False, 0

    def write_sql(self, text: str) -> str:
        """Return an expression in DuckDB's SQL, in which `register` gives its functions a meaning.

        Raise NotExplainedError if only Spark evaluates it, if its results may be much larger than the rows, or if all
        expressions together have more calls than one may have.
        """
        tree = parse_resolved(text)
        if isinstance(tree, exp.Column):
            return ".".join(quote_name(part.name) for part in tree.parts)
        expression = self._translate(text)
        if isinstance(expression, Constant):
            return sql_literal(expression.value)  # type: ignore[arg-type]  # a literal of the contract
        self._size += expression.size if isinstance(expression, Call) else 0
        if _joins_texts(expression) or self._size > MAX_CALLS:
            raise _build_refusal(text)
        function = f"hindcast_expression_{next(_NUMBERS)}"
        self._functions[function] = expression
        read = (f"{quote_name(self._name)}.{quote_name(column)}" for column in sorted(list_columns(expression)))
        return f"{function}({', '.join(read)})"

    def evaluate(self, text: str, row: Row) -> ColumnValue:
        """Return the value of an expression in one row; raise NotExplainedError as `write_sql` does."""
        tree = parse_resolved(text)
        if isinstance(tree, exp.Column):
            return _read_path(row, [part.name for part in tree.parts[1:]])
        expression = self._translate(text)
        if isinstance(expression, Constant):
            return expression.value  # type: ignore[return-value]  # a literal of the contract
        columns = {name: self._columns[self._name, name].kind for name in list_columns(expression)}
        refuse_unfit(row.get(name) for name in columns)
        values = pa.table({name: pa.array([row.get(name)], kind) for name, kind in columns.items()})
        try:
            (value,) = list_values(evaluate_column(expression, values))
        except EvaluationError:
            raise _build_refusal(text) from None
        return value

    @contextmanager
    def register(self, engine: duckdb.DuckDBPyConnection) -> Iterator[None]:
        """Let an engine call the functions in the block; raise NotExplainedError if one has no value that is known."""
        registered: list[str] = []
        own = engine.cursor()  # a query that fails leaves `engine` busy
        try:
            for function, expression in self._functions.items():
                (result,) = own.from_arrow(pa.schema({function: expression.kind}.items()).empty_table()).types
                own.create_function(
                    function,
                    self._build_function(expression),
                    None,  # as many columns as it reads
                    result,
                    type=PythonUDFType.ARROW,
                    null_handling=FunctionNullHandling.SPECIAL,
                )
                registered.append(function)
            yield
        except duckdb.Error:
            if self._has_failed:
                raise NotExplainedError("for some rows only Spark evaluates the expressions of the contract") from None
            raise
        finally:
            for function in registered:
                own.remove_function(function)
            own.close()

    def _build_function(self, expression: Expression) -> Callable[..., pa.ChunkedArray]:
        read = sorted(list_columns(expression))
        kinds = [self._columns[self._name, name].kind for name in read]

        def evaluate(*columns: pa.ChunkedArray) -> pa.ChunkedArray:
            values = [column.cast(kind) for column, kind in zip(columns, kinds, strict=True)]
            try:
                return evaluate_column(expression, pa.table(values, names=read))
            except EvaluationError:
                self._has_failed = True
                raise

        return evaluate

    def _translate(self, text: str) -> Expression:
        expression = translate_expression(text, self._columns)
        if expression is None:
            raise _build_refusal(text)
        return expression


def _read_path(row: Row, path: Sequence[str]) -> ColumnValue:
    """Return a column of a row, or a field of one, whatever its case; null if the struct is null."""
    value: ColumnValue = row
    for name in path:
        if value is None:
            return None
        fields = {it.lower(): found for it, found in value.items()} if isinstance(value, Mapping) else {}
        if name.lower() not in fields:
            raise NotExplainedError(f"it does not find {name}, which the contract uses")
        value = fields[name.lower()]
    return value


def _joins_texts(expression: Expression) -> bool:
    """Return whether an expression joins columns to texts that may be much longer than these."""
    if not isinstance(expression, Call):
        return False
    if expression.function == "concat" and sum(bool(list_columns(it)) for it in expression.arguments) > 1:
        return True
    return any(map(_joins_texts, expression.arguments))


def _build_refusal(text: str) -> NotExplainedError:
    return NotExplainedError(f"only Spark evaluates {show_briefly(text, 100)}, which the contract uses")
