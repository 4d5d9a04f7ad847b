"""Explanations evaluate a contract's expressions as runs do, and nothing that would come out otherwise."""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import ExitStack

import duckdb
import pyarrow as pa
import pytest

import expression_fuzz
from hindcast.contract.expressions import resolve
from hindcast.engine import arrow_expressions
from hindcast.engine.typed_calls import MAX_CALLS
from hindcast.query.explain_limits import NotExplainedError
from hindcast.query.row_expressions import RowExpressions
from hindcast.store import duckdb_reader
from test_arrow_expressions import EXAMPLES, SPARKS, list_texts, translate

NAMES = {"a": list(expression_fuzz.TYPES)}
SCHEMA = pa.schema(expression_fuzz.TYPES.items())


def read_in_duckdb(texts: Sequence[str], rows: pa.Table) -> list[list[object]]:
    """Return the values of each expression in all rows, as DuckDB gets them."""
    expressions = RowExpressions("a", rows.schema)
    columns = ", ".join(f"{expressions.write_sql(text)} AS c{n}" for n, text in enumerate(texts))
    with duckdb_reader.open_arrow_engine() as engine, expressions.register(engine):
        engine.register("rows", rows)
        found = engine.sql(f"SELECT {columns} FROM rows AS a ORDER BY row").to_arrow_table()
    return [column.to_pylist() for column in found.columns]


def write_comparable(values: Sequence[object]) -> list[object]:
    return ["NaN" if isinstance(value, float) and math.isnan(value) else value for value in values]


def test_duckdb_gets_the_values_that_runs_evaluate() -> None:
    texts = [text for text in list_texts(EXAMPLES) if "||" not in text and "concat" not in text]
    rows = expression_fuzz.build_rows(3, 200)
    expected, right = [], []
    for text in texts:
        tree = translate(text)
        assert tree is not None
        try:
            expected.append(arrow_expressions.evaluate_column(tree, rows).to_pylist())
            right.append(text)
        except arrow_expressions.EvaluationError:
            continue
    assert len(right) > len(texts) / 2
    found = read_in_duckdb(right, rows)
    for text, one, other in zip(right, found, expected, strict=True):
        assert write_comparable(one) == write_comparable(other), text


UNLIKE_SPARK = """
cast(a.f as int); substring(a.x, 0, 2); left(a.x, -1); right(a.x, -1); extract(dayofweek from a.u)
extract(second from a.u); cast(a.u as string); cast(a.u as bigint); cast(a.f as string); a.c / 3; floor(a.f); ceil(a.f)
sign(a.f); trunc(a.u, 'MM'); a.c div 1; try_cast(a.x as int); try_cast(a.x as date); try_cast(a.x as timestamp)
trunc(a.m, 'q'); a.e * a.e; cast(a.i as float) / 3; cast(a.i / 3 as int)
"""
"""What DuckDB's own SQL evaluates to something else than Spark's."""


@pytest.mark.parametrize("text", [*list_texts(UNLIKE_SPARK), *list_texts(SPARKS)])
def test_what_only_spark_evaluates_is_refused(text: str) -> None:
    with pytest.raises(NotExplainedError, match="only Spark evaluates "):
        RowExpressions("a", SCHEMA).write_sql(resolve(text, NAMES))


def test_a_decimal_is_truncated_to_an_integer_and_capitals_beyond_ascii_are_not_guessed() -> None:
    rows = expression_fuzz.build_rows(3, 200)
    (found,) = read_in_duckdb(["cast(a.c as int)"], rows)
    assert found == [None if value is None else int(value) for value in rows.column("c").to_pylist()]
    with pytest.raises(NotExplainedError, match="for some rows only Spark evaluates"):
        read_in_duckdb(["upper(a.x)"], rows)


def test_a_field_of_a_column_is_read_by_duckdb() -> None:
    rows = pa.table({"place": [{"city": "Rome"}, None, {"city": None}], "row": [0, 1, 2]})
    assert read_in_duckdb(["a.place.city", "a.row", "7"], rows) == [["Rome", None, None], [0, 1, 2], [7, 7, 7]]


def test_functions_of_one_explanation_do_not_meet_those_of_another_and_end_with_it() -> None:
    rows = expression_fuzz.build_rows(3, 4)
    both = [RowExpressions("a", SCHEMA) for _ in range(2)]
    one, other = (it.write_sql(text) for it, text in zip(both, ("a.i is null", "a.i is not null"), strict=True))
    with duckdb_reader.open_arrow_engine() as engine, ExitStack() as stack:
        engine.register("rows", rows)
        for it in both:
            stack.enter_context(it.register(engine))
        assert engine.execute(f"SELECT count(*) FROM rows AS a WHERE {one} = {other}").fetchall() == [(0,)]
        stack.close()
        with pytest.raises(duckdb.CatalogException):
            engine.execute(f"SELECT {one} FROM rows AS a")


def test_a_field_of_a_row_is_found_whatever_its_case() -> None:
    expressions = RowExpressions("a", pa.schema([("place", pa.struct([("city", pa.string())]))]))
    rows = ({"place": {"city": "Rome"}}, {"place": None}, {"place": {"city": None}})
    assert [expressions.evaluate("a.place.City", row) for row in rows] == ["Rome", None, None]
    with pytest.raises(NotExplainedError, match="does not find town"):
        expressions.evaluate("a.place.town", rows[0])


def test_the_expressions_of_an_explanation_have_no_more_calls_together_than_one_may_have() -> None:
    expressions = RowExpressions("a", SCHEMA)
    for _ in range(MAX_CALLS):
        expressions.write_sql("a.j + a.i")
    with pytest.raises(NotExplainedError, match=r"only Spark evaluates a\.j \+ a\.i"):
        expressions.write_sql("a.j + a.i")
