"""Expressions that only Spark can refuse, and those that fail on a record: the contract's line, cause and mend."""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pytest

from hindcast.bitemporal import derivation
from hindcast.common.errors import ContractError
from hindcast.common.jit import NOTHING
from hindcast.contract import list_shapes, load, load_all
from hindcast.contract.shapes import PERIODS
from hindcast.runs import expression_checks, expression_errors
from hindcast.streams.aggregation_tree import ADD
from hindcast.streams.measures import evaluate_part, measure_parts
from pipelines import pipeline
from relations import list_types

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

SCHEMAS = Path(__file__).parents[1] / "schemas"

SHOP = """\
pipeline: shop
start: 2026-01-01
topics:
  menu: {read: table, key: {item: string}, value: {price: int, pieces: int}}
  orders: {read: stream, key: {customer: string}, value: {item: string, quantity: int, tags: array<string>}}
views:
  made:
"""
MENU = "    table: menu\n"
ORDERS = "    stream: orders\n"

REFUSED = [
    # the view from its second line on, the line, what was found, what would do
    (ORDERS, "where: upper(item)", 9, "upper(orders.item) is string, not a condition", "a comparison"),
    (ORDERS, "select: {n: quantity + tags}", 9, 'Cannot resolve "(orders.quantity + orders.tags)"', "accepts there"),
    (ORDERS, "select: {a: quantity, n: substring(item)}", 9, "requires", "refer to"),
    (ORDERS, "key: {n: tags.x.y}", 9, "Can't extract a value from", "Need a complex type"),
    (ORDERS, "group_by: {i: item}\n    aggregate: {n: max_by(item)}", 10, "max_by", "refer to"),
    (ORDERS, "aggregate: {n: count(*), m: sum(tags)}", 9, "Cannot resolve", "accepts there"),
    (
        ORDERS,
        "select: {n: item COLLATE UTF8_LCASE}",
        9,
        "string collate UTF8_LCASE cannot be distinguished",
        "without COLLATE",
    ),
    (
        ORDERS,
        "key: {n: array(struct(item COLLATE UNICODE_CI))}",
        9,
        "collate UNICODE_CI cannot be distinguished",
        "without COLLATE",
    ),
    (ORDERS, "select: {n: 'struct(map(item, 1))'}", 9, "map<string,int> cannot be distinguished", "map_entries"),
    (ORDERS, "select: {n: parse_json(item)}", 9, "it is variant, and values of variant cannot be", "to_json"),
    (
        ORDERS,
        "aggregate: {n: max(item COLLATE UTF8_LCASE)}",
        9,
        "collate UTF8_LCASE cannot be distinguished",
        "without COLLATE",
    ),
    (
        ORDERS,
        "select: {n: array()}",
        9,
        "it is array<void>, and no table can store array<void>",
        "cast(array() AS array<",
    ),
    (ORDERS, "select: {n: struct(array(null))}", 9, "no table can store array<void>", "cast(array() AS array<"),
    (ORDERS, "select: {n: interval 1 day}", 9, "it is interval day, and no table can store interval day", "a string"),
    (
        ORDERS,
        "select: {n: array(struct(make_interval(quantity) AS i))}",
        9,
        "it is array<struct<i:interval>>, and no table can store interval",
        "timestampdiff(SECOND",
    ),
    (ORDERS, "join: {table: menu, on: length(item)}", 9, "length(orders.item) is int, menu.item is string", "cast(len"),
]


@pytest.mark.parametrize(("start", "rest", "line", "found", "fix"), REFUSED, ids=[case[1] for case in REFUSED])
def test_what_spark_refuses_is_told_with_its_line(
    spark: SparkSession, tmp_path: Path, start: str, rest: str, line: int, found: str, fix: str
) -> None:
    path = _file(tmp_path, f"{start}    {rest}\n")
    contract = load(path)
    with (
        pytest.raises(ContractError) as caught,
        expression_errors.explain_expression_errors(tmp_path, contract, "made"),
    ):
        expression_checks.refuse_unfit_expressions(spark, contract, "made", list_types(_inputs(spark)))
    error = caught.value
    assert (error.where, found in error.found, fix in error.fix) == (f"{path}:{line}", True, True), str(error)
    assert "[" not in error.found.partition(" ")[0]
    assert "SQLSTATE" not in str(error)


def test_an_error_that_quotes_many_spaces_is_parsed_at_once() -> None:
    before = time.process_time()
    message = expression_errors.parse_message(
        ValueError(f"[CAST] Cannot read 'a{' ' * 20_000}b'. Cast it. SQLSTATE: 1")
    )
    assert (len(message[0]), message[1], time.process_time() - before < 0.1) == (20_016, "Cast it", True)


UNSEEN = [
    # an input, the view from its second line on
    ("all", "select: {n: to_json(all)}"),
    ("all", "select: {n: 'concat(to_json(ALL), all.email)'}"),
    ("distinct", "where: struct(DISTINCT) IS NOT NULL"),
    ("as", "aggregate: {n: max(struct(as))}"),
]


@pytest.mark.parametrize(("name", "rest"), UNSEEN, ids=[rest for _, rest in UNSEEN])
def test_an_input_is_no_value_also_where_its_name_is_a_word_of_sql(
    spark: SparkSession, tmp_path: Path, name: str, rest: str
) -> None:
    """It would tell what is sensitive by a column that is not known to."""
    topic = f"  {name}: {{read: table, key: {{id: int}}, value: {{email: string}}, sensitive: [email]}}\n"
    views = f"views:\n  made:\n    table: {name}\n    {rest}\n"
    path = tmp_path / "shop.yaml"
    path.write_text(f"pipeline: shop\nstart: 2026-01-01\ntopics:\n{topic}{views}", encoding="utf-8")
    with pytest.raises(ContractError, match="Spark reads a word of SQL as the name of an input") as caught:
        expression_checks.refuse_unfit_contract(spark, tmp_path, load(path))
    assert caught.value.where == f"{path}:8"


FAILING = [
    (
        MENU,
        "select: {a: price, each: price / pieces}",
        "menu.price / menu.pieces fails: Division by zero",
        "try_divide",
    ),
    (ORDERS, "where: cast(item AS int) > quantity", "cast(orders.item AS int) > orders.quantity fails: ", "try_cast"),
    (ORDERS, "aggregate: {n: max(cast(item AS int))}", "cast(orders.item AS int) fails: The value 'curry'", "try_cast"),
    (
        ORDERS,
        "join: {table: menu, on: 'if(cast(item AS int) = 1, item, null)'}",
        "fails: The value 'curry' of the type",
        "try_cast",
    ),
    (ORDERS, f"aggregate: {{n: sum(quantity + {2**63 - 2})}}", "exceeds its type: ", "decimal(38,2)"),
]


@pytest.mark.parametrize(("start", "rest", "found", "fix"), FAILING, ids=[case[1] for case in FAILING])
def test_what_fails_on_a_record_is_told_with_its_line(
    spark: SparkSession, tmp_path: Path, start: str, rest: str, found: str, fix: str
) -> None:
    path = _file(tmp_path, f"{start}    {rest}\n")
    contract, inputs = load(path), _inputs(spark)
    expression_checks.refuse_unfit_expressions(spark, contract, "made", list_types(inputs))
    with (
        pytest.raises(ContractError) as caught,
        expression_errors.explain_expression_errors(tmp_path, contract, "made"),
    ):
        derivation.derive_view(contract, "made", inputs).collect()
    error = caught.value
    assert (error.where, "shop.made" in error.found) == (f"{path}:9", True)
    assert (found in error.found, fix in error.fix) == (True, True), str(error)


@pytest.mark.parametrize("function", ["sum", "avg"])
def test_a_sum_that_overflows_in_the_kafka_reading_is_reported_with_its_line(
    spark: SparkSession, tmp_path: Path, function: str
) -> None:
    path = _file(tmp_path, f"{ORDERS}    semantics: kafka\n    aggregate: {{n: {function}(quantity)}}\n")

    def overflow(_: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        nodes = np.array([(ADD, NOTHING, 0), (ADD, 0, 0)], np.int64)
        [part, *_] = measure_parts([function])
        evaluate_part(part, nodes, pa.array([2**62 + 2**61]), pa.array([], pa.int64()))
        yield from ()

    with (
        pytest.raises(ContractError) as caught,
        expression_errors.explain_expression_errors(tmp_path, load(path), "made"),
    ):
        spark.range(1).mapInArrow(overflow, "id bigint").collect()
    assert (caught.value.where, caught.value.fix) == (f"{path}:10", "cast the summed expression to double")
    assert "the sum of orders.quantity exceeds its type in the kafka reading: a sum of integers" in caught.value.found


@pytest.mark.long
@pytest.mark.ci
def test_a_run_tells_it_publishes_nothing_and_gives_way_when_it_is_mended(
    spark: SparkSession, broker: str, tmp_path: Path
) -> None:
    with pipeline(spark, broker, tmp_path, f"{SHOP}{MENU}    select: {{each: price / pieces}}\n") as p:
        p.send("menu", ("curry", {"price": 8, "pieces": 0}, 0))
        with pytest.raises(ContractError, match=r"made has a record on which menu\.price / menu\.pieces fails") as told:
            p.run()
        assert (told.value.where.startswith(f"{p.path}:"), p.versions()["made"]) == (True, 0)
        p.write(f"{SHOP}{MENU}    select: {{each: 'try_divide(price, pieces)'}}\n")
        p.run()
        assert p.believed("made") == [("curry", None, 0, None)]


def test_the_example_pipelines_are_fit(spark: SparkSession) -> None:
    for contract in load_all(SCHEMAS).values():
        inputs = {}
        for name, shape in list_shapes(contract).items():
            if name in contract.topics:
                columns = [f"{c} {kind}" for c, kind in shape.columns.items()]
                lineage = ["_partition int", "_offset long"] if shape.kind == "events" else []
                periods = [f"{column} timestamp" for column in PERIODS[shape.kind]]
                inputs[name] = spark.createDataFrame([], ", ".join([*columns, *periods, *lineage]))
            else:
                expression_checks.refuse_unfit_expressions(spark, contract, name, list_types(inputs))
                inputs[name] = derivation.derive_view(contract, name, inputs)


def _file(folder: Path, view: str) -> Path:
    path = folder / "shop.yaml"
    path.write_text(f"{SHOP}{view}", encoding="utf-8")
    return path


def _inputs(spark: SparkSession) -> dict[str, DataFrame]:
    menu = "item string, price int, pieces int, validFrom timestamp, validTo timestamp"
    orders = "customer string, item string, quantity int, tags array<string>, timestamp timestamp"
    start = datetime(2026, 1, 1)  # noqa: DTZ001 - local time is UTC
    events = [("anna", "curry", 1, ["x"], start, 0, offset) for offset in range(2)]
    return {
        "menu": spark.createDataFrame([("curry", 8, 0, start, None)], menu),
        "orders": spark.createDataFrame(events, f"{orders}, _partition int, _offset long"),
    }
