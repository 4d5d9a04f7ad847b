"""Patterns in views and valid times that would keep a core of Spark busy for ever: refused, or stopped by a limit."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from pyspark.sql.types import StructType

from hindcast.bitemporal import derivation
from hindcast.common import time_limits
from hindcast.common.errors import ContractError
from hindcast.contract import load, query_limits
from hindcast.contract.expressions import resolve
from hindcast.contract.parsing import ExpressionError
from hindcast.contract.query_limits import limit_expression
from hindcast.contract.shapes import list_shapes
from hindcast.runs import expression_checks, expression_errors
from pipelines import at, pipeline
from relations import list_types

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

SHOP = """
pipeline: shop
start: 2026-01-01
topics:
  menu: {read: table, key: {item: string}, value: {note: string}}
  orders: {read: stream, key: {customer: string}, value: {item: string, note: string}}
views:
  made:
    {stream: orders, %s}
"""
SLOW, TEXT = "^(.*x){25}y$", "x" * 60
WITH_MENU = "join: {table: menu, on: item}"


@pytest.fixture(autouse=True)
def a_limit_of_a_second(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Functions of other names: Spark's session, which tests share, keeps those that it has."""
    monkeypatch.setattr(time_limits, "MAX_SECONDS", 1.0)
    monkeypatch.setattr(expression_errors, "MAX_SECONDS", 1.0)
    monkeypatch.setattr(query_limits, "IN_TIME", "match_in_a_second")
    monkeypatch.setattr(query_limits, "LIKE_IN_TIME", "like_in_a_second")
    limit_expression.cache_clear()
    yield
    limit_expression.cache_clear()


def rows_of_inputs(spark: SparkSession, path: Path) -> dict[str, DataFrame]:
    """Return one row of each input with a text that is slow to match."""
    shapes = list_shapes(load(path))
    values = {"item": TEXT, "note": TEXT, "customer": "anna", "timestamp": at(1), "validFrom": at(0), "validTo": None}
    inputs = {}
    for name, periods in (("menu", "validFrom timestamp, validTo timestamp"), ("orders", "timestamp timestamp")):
        columns = ", ".join(f"{column} {kind}" for column, kind in shapes[name].columns.items())
        schema = StructType.fromDDL(f"{columns}, {periods}, _partition int, _offset long")
        row = tuple({**values, "_partition": 0, "_offset": 0}[column] for column in schema.names)
        inputs[name] = spark.createDataFrame([row], schema)
    return inputs


PLACES = [
    (f"where: \"note rlike '{SLOW}'\"", "orders.note rlike"),
    ("where: \"note rlike '^(.*\\\\\\\\p{Lower}){25}y$'\"", "orders.note rlike"),
    (f"where: \"note like '{'%x' * 12}%y'\"", "orders.note like"),
    (f"where: \"note not ilike '{'%X' * 12}%y'\"", "orders.note not ilike"),
    (f"select: {{a: \"regexp_replace(note, '{SLOW}', '')\"}}", "regexp_replace(orders.note"),
    (f"{WITH_MENU}, select: {{a: \"split(menu.note, '{SLOW}')\"}}", "split(menu.note"),
    ("select: {a: \"note rlike concat('^(.*', substring(note, 1, 1), '){25}y$')\"}", "orders.note rlike concat"),
    (
        f"join: {{table: menu, on: \"regexp_extract(note, '{SLOW}', 0)\"}}, select: {{a: menu.note}}",
        "regexp_extract(orders.note",
    ),
    (f"key: {{a: \"regexp_substr(note, '{SLOW}')\"}}", "regexp_substr(orders.note"),
    (f"group_by: {{a: \"regexp_count(note, '{SLOW}')\"}}, aggregate: {{n: count(*)}}", "regexp_count(orders.note"),
    (f"aggregate: {{n: \"count_if(note rlike '{SLOW}')\"}}", "orders.note rlike"),
    (f"aggregate: {{n: \"max(case when item = 'x' then 1 when note rlike '{SLOW}' then 2 end)\"}}", "case when"),
]


@pytest.mark.parametrize(("rest", "shown"), PLACES, ids=[rest for rest, _ in PLACES])
def test_a_pattern_that_takes_too_long_stops_its_view(
    spark: SparkSession, tmp_path: Path, rest: str, shown: str
) -> None:
    path = tmp_path / "shop.yaml"
    path.write_text(SHOP % rest, encoding="utf-8")
    contract, inputs = load(path), rows_of_inputs(spark, path)
    expression_checks.refuse_unfit_expressions(spark, contract, "made", list_types(inputs))
    with (
        pytest.raises(ContractError) as caught,
        expression_errors.explain_expression_errors(tmp_path, contract, "made"),
    ):
        derivation.derive_view(contract, "made", inputs).collect()
    error = caught.value
    assert f"shop.made has a record on which {shown}" in error.found, str(error)
    assert "takes more than 1 seconds" in error.found
    assert ("without nested repetitions" in error.fix, error.where.startswith(str(path))) == (True, True), str(error)
    assert spark.sparkContext.statusTracker().getActiveJobsIds() == []  # type: ignore[no-untyped-call]


@pytest.mark.long
@pytest.mark.parametrize("semantics", ["corrected", "kafka"])
def test_a_run_says_which_view_and_goes_on_when_it_is_fixed(
    spark: SparkSession, broker: str, tmp_path: Path, semantics: str
) -> None:
    contract = SHOP % f"semantics: {semantics}, where: \"note rlike '{SLOW}'\""
    with pipeline(spark, broker, tmp_path, contract) as p:
        p.send("menu", ("a", {"note": "b"}, 0))
        p.send("orders", ("anna", {"item": "a", "note": TEXT}, 1))
        with pytest.raises(ContractError, match=r"shop\.made has a record on which orders\.note rlike .* takes more"):
            p.run("stopped")
        p.write(contract.replace(SLOW, "^x+$"))
        p.run("stopped")
        assert len(p.raw("made")) == 1


def test_a_slow_valid_time_stops_its_topic(spark: SparkSession, broker: str, tmp_path: Path) -> None:
    slow = f"valid_time: \"if(note rlike '{SLOW}', null, record_timestamp)\""
    contract = (SHOP % "where: note is null").replace("value: {note: string}", f"value: {{note: string}}, {slow}")
    with pipeline(spark, broker, tmp_path, contract) as p:
        p.send("menu", ("a", {"note": TEXT}, 0))
        with pytest.raises(ContractError, match=r"shop\.menu has a record on which if\(.* takes more than 1 seconds"):
            p.run()


def test_a_constant_that_is_slow_does_not_stop_the_planner(spark: SparkSession, tmp_path: Path) -> None:
    """Spark evaluates constants when it plans, for example to look for texts like 'today'."""
    path = tmp_path / "shop.yaml"
    path.write_text(SHOP % f"where: \"regexp_replace('{TEXT}', '{SLOW}', '') = note\"", encoding="utf-8")
    expression_checks.refuse_unfit_expressions(spark, load(path), "made", list_types(rows_of_inputs(spark, path)))


def test_a_pattern_is_limited_only_where_a_text_can_make_it_slow() -> None:
    for text in (
        "a.b rlike '^[a-z]+-[0-9]+$'",
        "a.b like '%x%'",
        "a.b like any ('x%', '%y')",
        "regexp_replace(a.b, '[^0-9]+', '')",
        "str_to_map(a.b, ',', ':')",
        "a.b = 'x rlike y'",
    ):
        assert limit_expression(text) == text
    assert limit_expression("a.b ilike '%x%y%z' or a.c") == (
        "like_in_a_second(lower(cast(a.b AS string)), lower('%x%y%z')) ilike '%x%y%z' or a.c"
    )


@pytest.mark.parametrize(
    ("written", "found"),
    [
        ("exists(array(note), n -> n rlike '(a+)+')", "is in a function's ->"),
        ("note like '%a%b%c/%' escape '/'", "has ESCAPE"),
        ("like(note, item, '/')", "has ESCAPE"),
        ("note like any ('%a%b%c%d', 'e')", "is of several patterns"),
        ("str_to_map(note, '(,+)+')", "Spark reads it as a regular expression"),
        ("parse_url(note, 'QUERY', item)", "Spark reads it as a regular expression"),
        ("try_parse_url(note, 'QUERY', item)", "Spark reads it as a regular expression"),
        (r"note rlike '^(.*\\G){25}y$'", "has parts that are Java's alone"),
        ("note rlike '^(.*[w-z&&[^y]]){25}y$'", "has parts that are Java's alone"),
        (r"note rlike '^(.*x)\\Q\\E{25}y$'", "has parts that are Java's alone"),
        ("if(item > 'a', cast(1 / length(item) AS string) rlike '(a+)+', true)", "only evaluated on a condition"),
        ("note collate utf8_lcase rlike '(a+)+'", "beside COLLATE"),
    ],
)
def test_a_pattern_for_which_there_is_no_limit_is_refused(written: str, found: str) -> None:
    with pytest.raises(ExpressionError) as caught:
        resolve(written, {"orders": ["item", "note"]})
    assert found in caught.value.found, caught.value.found
