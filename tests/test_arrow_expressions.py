"""Expressions on Arrow's columns give what Spark gives, and nothing where Spark would fail."""

from __future__ import annotations

import random
import re
from collections.abc import Iterator
from decimal import Decimal

import pyarrow as pa
import pytest
from pyspark.sql import Row, SparkSession

import expression_fuzz
from expression_fuzz import COLUMNS
from hindcast.engine import arrow_expressions, arrow_translation
from hindcast.engine.arrow_expressions import Call, ColumnReference, EvaluationError, Expression, Projection

EXAMPLES = """
a.i + a.j; a.t - a.s; a.i * 2; a.c * a.d; a.c + a.i; a.c - 1; a.f * 2; a.f / a.h; a.i / a.j; - a.b; abs(a.c)
round(a.c * 0.19, 2); round(a.e, 1); round(a.i); cast(a.c as int); cast(a.b as smallint); cast(a.d as decimal(6,1))
cast(a.i as double); cast(a.c as double); cast(a.i as string); cast(a.g as string); cast(a.u as date)
a.i = a.b; a.c <> a.e; a.f < a.h; a.f <= a.h; a.f > a.h; a.f >= a.h; a.f = a.h; a.f != a.h; a.x < a.y; a.i <=> a.j
a.c = a.d; a.g = a.k; a.m < date '2000-01-01'; a.u >= timestamp '2024-02-29 12:30:15'
a.g and a.k; a.g or a.k; not a.g; not a.g = a.k; a.i is null; a.x is not null; a.i between 0 and a.b; a.i not in (1, 12)
a.i <> 0 and a.b / a.i > 1; a.i = 0 or a.b / a.i > 1; if(a.i <> 0, a.b / a.i, 0 / a.f); coalesce(a.f, a.b / a.i)
case when a.c > 1 then a.i when a.c < 0 then a.b end; case a.i when 1 then 'one' else a.x end; if(a.g, a.c, 0)
coalesce(a.c, 0); coalesce(a.i, a.b, 0); nvl(a.x, '-'); nullif(a.i, 0); greatest(a.i, a.b, 5); least(a.x, a.y)
a.x || '-' || a.y; concat(a.x, a.y); length(a.x); trim(a.x); ltrim(a.x); rtrim(a.x); upper(a.x); lower(a.x)
substring(a.x, 2, 1); left(a.x, 2); startswith(a.x, 'a'); endswith(a.x, 'b'); contains(a.x, '%')
year(a.u); quarter(a.u); month(a.m); day(a.m); dayofmonth(a.m); dayofyear(a.u); dayofweek(a.u); weekday(a.m)
hour(a.u); minute(a.u); second(a.u); extract(year from a.u); date_trunc('month', a.u); date_trunc('HOUR', a.u)
"""
"""Expressions with each function, each operator and each kind of literal, over the columns of `expression_fuzz`."""

SPARKS = """
a.i % 2; a.c / a.d; cast(a.x as int); cast(a.f as int); cast(a.f as decimal(8,2)); round(a.f, 2); round(a.i, -1)
a.x = a.i; a.u = a.m; a.x like 'a%'; rlike(a.x, 'a'); substring(a.x, -1, 1); trim(both 'x' from a.x); md5(a.x)
a.e * a.e * a.e; try_cast(a.b as int); a.g + 1; greatest(a.f, a.h); a.u + interval 1 hour; null; 1 + 1; upper('a')
a.i in (a.j, 1); date_trunc('week', a.u); hour(a.m); cast(a.e as double); -a.x; a.g = 'true'; a.i || 'x'; 1e3 * a.i
a.g != a.x < a.y; a.g <=> a.x < a.y; a.g = a.i is null; a.i = a.j between 1 and 2; a.k = a.i in (1, 2); a.c + round(10)
"""
"""Expressions that Arrow leaves to Spark, each for a reason of its own."""


def list_texts(block: str) -> list[str]:
    return [text.strip() for text in re.split(r"[;\n]", block) if text.strip()]


def translate(text: str) -> Expression | None:
    return arrow_translation.translate_expression(text, COLUMNS)


def list_functions(it: Expression) -> Iterator[str]:
    if isinstance(it, Call):
        yield it.function
        for argument in it.arguments:
            yield from list_functions(argument)


def test_each_function_gives_what_spark_gives(spark: SparkSession) -> None:
    texts = list_texts(EXAMPLES)
    trees = [translate(text) for text in texts]
    assert [text for text, tree in zip(texts, trees, strict=True) if tree is None] == []
    known = {*arrow_expressions.FUNCTIONS, *arrow_expressions.LAZY_FUNCTIONS}
    assert {function for tree in trees if tree for function in list_functions(tree)} == known
    assert expression_fuzz.find_differences(spark, expression_fuzz.build_rows(1, 150), texts) == (len(texts), [])


def test_random_expressions_give_what_spark_gives(spark: SparkSession) -> None:
    chosen = random.Random(5)  # noqa: S311
    texts = [expression_fuzz.write_expression(chosen) for _ in range(150)]
    translated, different = expression_fuzz.find_differences(spark, expression_fuzz.build_rows(5, 48), texts)
    assert (translated > 50, different) == (True, [])


@pytest.mark.long
def test_thousands_of_random_expressions_give_what_spark_gives(spark: SparkSession) -> None:
    for seed in range(10):
        chosen = random.Random(seed)  # noqa: S311
        texts = [expression_fuzz.write_expression(chosen) for _ in range(400)]
        _, different = expression_fuzz.find_differences(spark, expression_fuzz.build_rows(seed, 48), texts)
        assert different == [], seed


def test_spark_adds_whole_numbers_in_the_order_of_the_text(spark: SparkSession) -> None:
    """As its optimizer does by default, it would overflow."""
    rows = spark.createDataFrame([(-(2**31), -32768)], "j int, s smallint")
    assert rows.selectExpr("(j + 100000) + s AS n").collect() == [Row(n=-(2**31) + 100000 - 32768)]


@pytest.mark.parametrize("text", list_texts(SPARKS))
def test_what_is_not_listed_is_sparks_to_evaluate(text: str) -> None:
    assert translate(text) is None


def nest(text: str, times: int) -> str:
    """Return a text put into itself."""
    return text.format(nest(text, times - 1)) if times else "a.i"


DOUBLING = ("nullif({}, 1)", "case {} when 0 then 0 when 1 then 1 end", "if({} between 0 and 1, 1, 0)")


@pytest.mark.parametrize(
    "text",
    [
        "+".join(["a.i"] * 60),
        f"a.i in ({', '.join(map(str, range(60)))})",
        *(nest(text, 24) for text in DOUBLING),
        nest("if({} in (1, 2, 3, 4, 5, 6), 1, 0)", 10),
    ],
)
def test_an_expression_that_is_deep_or_long_is_sparks_to_evaluate(text: str) -> None:
    assert translate(text) is None


@pytest.mark.parametrize("text", ["a.i + 1", "a.b / 0", "cast(a.b as tinyint)", "abs(a.t)", "upper(a.x)", "- a.i"])
def test_where_spark_would_fail_or_differ_there_is_no_value(text: str) -> None:
    most = {"i": 2**31 - 1, "b": 1000, "t": -128, "x": "ß"} | ({"i": -(2**31)} if text == "- a.i" else {})
    rows = pa.table({name: pa.array([value], expression_fuzz.TYPES[name]) for name, value in most.items()})
    tree = translate(text)
    assert tree is not None
    with pytest.raises(EvaluationError):
        arrow_expressions.project_rows(Projection({"it": tree}, None), rows)


def test_a_condition_keeps_rows_where_it_is_true() -> None:
    rows = pa.table({"i": pa.array([1, None, -1, 2], pa.int32())})
    where = translate("a.i > 0")
    found = arrow_expressions.project_rows(Projection({"n": ColumnReference("i", pa.int32())}, where), rows)
    assert found.to_pydict() == {"n": [1, 2]}


def evaluate(text: str, **columns: list[object]) -> list[object]:
    tree = translate(text)
    assert tree is not None, text
    kinds = expression_fuzz.TYPES
    rows = pa.table({name: pa.array(values, kinds[name]) for name, values in columns.items()})
    found: list[object] = arrow_expressions.project_rows(Projection({"it": tree}, None), rows).column("it").to_pylist()
    return found


def test_a_condition_that_is_decided_is_not_evaluated_further() -> None:
    found = evaluate("a.g and 1 / a.i < 1", g=[True, False, None, None], i=[1, 0, 1, 2])
    assert found == [False, False, False, None]
    found = evaluate("a.g or 1 / a.i < 1", g=[True, False, None, None], i=[0, 1, 1, 2])
    assert found == [True, False, None, True]


def test_doubles_are_in_the_order_of_spark() -> None:
    nan = float("nan")
    found = evaluate("a.f < a.h", f=[nan, 1.0, nan, -0.0, None], h=[1.0, nan, nan, 0.0, nan])
    assert found == [False, True, False, False, None]


def test_decimals_are_rounded_half_up_and_literals_have_their_own_digits() -> None:
    cents = [Decimal(text) for text in ("0.25", "-0.25", "0.35")]
    assert [str(it) for it in evaluate("round(a.c, 1)", c=[*cents])] == ["0.3", "-0.3", "0.4"]
    product = translate("a.c * 2")
    assert product is not None
    assert product.kind == pa.decimal128(10, 2)


def test_dictionaries_are_copied_and_decoded() -> None:
    rows = pa.table({"x": pa.array(["a", None, "b"]).dictionary_encode()})
    joined = translate("a.x || a.x")
    assert joined is not None
    found = arrow_expressions.project_rows(Projection({"x": COLUMNS["a", "x"], "xx": joined}, None), rows)
    assert pa.types.is_dictionary(found.schema.field("x").type)
    assert found.column("xx").to_pylist() == ["aa", None, "bb"]
