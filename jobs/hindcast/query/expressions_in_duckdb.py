"""Expressions of contracts in DuckDB's SQL, for explanations."""

from __future__ import annotations

import sqlglot
from sqlglot import expressions as exp

from hindcast.bitemporal.predicates import sql_literal
from hindcast.common.column_values import ColumnValue
from hindcast.query.explain_limits import refuse_costly, refuse_unknown_sql


def format_literal(value: ColumnValue) -> str:
    """Return a value as an SQL literal; None is NULL."""
    return "NULL" if value is None else sql_literal(value)


def parse_expression(text: str) -> exp.Expr:
    """Return the tree of an expression of the contract."""
    return sqlglot.parse_one(text, dialect="spark")


def translate_expression(tree: exp.Expr, *, is_for_one_row: bool = False) -> str:
    """Return an expression of the contract (`input.column`) in DuckDB's SQL.

    Raise NotExplainedError if it may be costly, or if DuckDB reads more in it than an expression.
    """
    refuse_costly(tree, is_for_one_row=is_for_one_row)
    for column in tree.find_all(exp.Column):
        for part in column.parts:
            part.set("quoted", True)
    text = tree.sql(dialect="duckdb")
    refuse_unknown_sql(text)
    return text
