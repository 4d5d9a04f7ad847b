"""Spark SQL expressions in contracts: how names are resolved, and what is refused."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest
from pyspark.errors import PySparkException

from hindcast.contract import functions
from hindcast.contract.expressions import find_plain_type, find_type_clash, parse_aggregate, resolve
from hindcast.contract.moments import find_today_beside
from hindcast.contract.parsing import (
    PREFIX,
    ExpressionError,
    Verbatim,
    _parse,
    find_columns,
    parse_resolved,
    strip_comments,
    tokenize_resolved,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SCOPE = {"orders": ["customer", "item", "quantity", "place"], "menu": ["item", "price"]}

TYPES = {"orders.quantity": "int", "orders.item": "string", "menu.price": "decimal(8,2)", "menu.since": "timestamp"}


@pytest.mark.parametrize(
    ("written", "resolved"),
    [
        ("price", "menu.price"),
        ("menu.price", "menu.price"),
        ("orders.item", "orders.item"),
        ("quantity * price", "orders.quantity * menu.price"),
        ("place.street", "orders.place.street"),
        ("orders.place.street", "orders.place.street"),
        ("`price`", "menu.price"),
        ("upper(orders.item)", "upper(orders.item)"),
        ("coalesce(price, 0)", "coalesce(menu.price, 0)"),
        ("quantity > 1 AND price IS NOT NULL", "orders.quantity > 1 AND menu.price IS NOT NULL"),
        (
            "CASE WHEN quantity = 1 THEN 'one' ELSE 'more' END",
            "CASE WHEN orders.quantity = 1 THEN 'one' ELSE 'more' END",
        ),
        ("cast(quantity AS string)", "cast(orders.quantity AS string)"),
        ("transform(place, x -> x + 1)", "transform(orders.place, x -> x + 1)"),
        ("timestampdiff(minute, place, place)", "timestampdiff(minute, orders.place, orders.place)"),
        ("try_cast(price AS int)", "try_cast(menu.price AS int)"),
        ("'price'", "'price'"),
        ("array(orders.item, 'b')[1] -- the second", "array(orders.item, 'b')[1]"),
        ("log(quantity) /* natural */ + log(2, quantity)", "log(orders.quantity) + log(2, orders.quantity)"),
        ("nvl2(price, 'it''s', r'\\n') || \"x\"", "nvl2(menu.price, 'it''s', r'\\n') || \"x\""),
        ("2.5BD * quantity % 1L", "2.5BD * orders.quantity % 1L"),
        ("quantity == 1 AND !(price <=> 2)", "orders.quantity == 1 AND !(menu.price <=> 2)"),
        ("trim(BOTH 'x' FROM customer)", "trim(BOTH 'x' FROM orders.customer)"),
        ("substring(customer FROM 2 FOR 1)", "substring(orders.customer FROM 2 FOR 1)"),
        ("place['k'].street", "orders.place['k'].street"),
        ("cast(customer AS date)", "cast(orders.customer AS date)"),
        ("1", "1"),
    ],
)
def test_columns_become_input_and_column(written: str, resolved: str) -> None:
    assert resolve(written, SCOPE) == resolved


def test_a_plain_column_is_what_the_parser_makes_of_it() -> None:
    words = {word.lower() for word in Verbatim.tokenizer_class.KEYWORDS if word.isidentifier()}
    for word in [*words, "e1", "x", "r", "null", "true", "_a9"]:
        for text in (f"{word}.x", f"x.{word}", f"{word.upper()}.{word}"):
            parsed = _parse(tokenize_resolved(PREFIX + text), text).expressions[0]
            assert (parse_resolved(text), find_columns(text)) == (parsed, [text.split(".")]), text


def test_columns_are_called_as_they_like() -> None:
    """Words of SQL too."""
    scope = {"orders": ["not", "select", "case", "cast", "timestamp", "from"]}
    for name in scope["orders"]:
        assert resolve(f"`{name}` + orders.`{name}`", scope) == f"orders.{name} + orders.{name}"
        assert find_columns(f"orders.{name}") == [["orders", name]]


@pytest.mark.parametrize("name", ["current_user", "session_user", "current_date", "current_timestamp", "values", "on"])
def test_inputs_are_called_as_they_like(name: str) -> None:
    """Words that stand for something else by themselves too, or a sensitive column would not be seen."""
    resolved = resolve("upper(email)", {name: ["email"]})
    assert (resolved, find_columns(resolved)) == (f"upper({name}.email)", [[name, "email"]])


def test_a_place_stands_for_its_input() -> None:
    assert resolve("upper(item)", {"orders": ["item"]}, {"orders": "value"}) == "upper(value.item)"


SENT = {"12:30": None, " T12:30:15": None, "+9:00Z": None, "2026-01-02": "2026-01-02 00:00:00", "soon": None} | {
    "2026-01-02T12:30": "2026-01-02 12:30:00",
    "2026": "2026-01-01 00:00:00",
    "1969-1-2 3:4:5.678 +01:00": "1969-01-02 02:04:05.678",
}


def test_a_text_without_a_date_is_no_timestamp_on_any_day(spark: SparkSession) -> None:
    written = ("try_cast(at AS timestamp)", "try_cast(try_cast(at AS timestamp) AS timestamp)", "try_to_timestamp(at)")
    sent = spark.createDataFrame([(text,) for text in SENT], "at string").alias("sent")
    columns = [f"cast({resolve(text, {'sent': ['at']})} AS string)" for text in written]
    assert [tuple(row) for row in sent.selectExpr(*columns).collect()] == [(it,) * 3 for it in SENT.values()]
    others = "1 AS n, date'2026-01-02' AS day, timestamp'2026-01-02 12:30:00' AS at"
    names = ("n", "day", "at")
    [found] = (
        spark.range(1)
        .selectExpr(*others.split(", "))
        .alias("sent")
        .selectExpr(*(resolve(f"cast(cast({name} AS timestamp) AS string)", {"sent": names}) for name in names))
        .collect()
    )
    assert tuple(found) == ("1970-01-01 00:00:01", "2026-01-02 00:00:00", "2026-01-02 12:30:00")


def test_a_cast_of_a_text_without_a_date_says_so(spark: SparkSession) -> None:
    sent = spark.createDataFrame([("12:30",)], "at string").alias("sent")
    for written in ("cast(at AS timestamp)", "to_timestamp(at)", "timestamp(at)", "at::timestamp"):
        with pytest.raises(PySparkException, match="'no date: 12:30' of the type"):
            sent.selectExpr(resolve(written, {"sent": ["at"]})).collect()


@pytest.mark.parametrize(
    ("written", "found", "fix"),
    [
        ("prise", "no column 'prise'", "did you mean 'price'? known here: customer, item, place, price, quantity"),
        ("orders.price", "'orders' has no column 'price'", "known here: customer, item, place, quantity"),
        ("item", "'item' is a column of orders and of menu", "write orders.item"),
        ("lag(quantity", "'lag(quantity' does not parse", "one Spark SQL expression"),
        ("", "'' ", "one Spark SQL expression"),
        ("quantity *", "'quantity *' does not parse", "one Spark SQL expression"),
        ("'open", "''open' does not parse", "one Spark SQL expression"),
        ("quantity, price", "'quantity, price' is more than one expression", "without AS"),
        ("quantity AS n", "'quantity AS n' is more than one expression", "without AS"),
        ("quantity FROM orders", "is more than one expression", "without AS"),
        ("1; DROP TABLE menu", "'1; DROP TABLE menu' ", "one Spark SQL expression"),
        ("(SELECT 1)", "'(SELECT 1)' contains a query", "join the table"),
        ("quantity IN (SELECT 1)", "contains a query", "join the table"),
        ("*", "'*' is not an expression", "name the columns"),
        ("uper(item)", "no function 'uper'", "did you mean upper"),
        ("zzzzzz(price)", "no function 'zzzzzz'", "see the built-in functions"),
        ("coalesce(sum(quantity), 0)", "'sum' is an aggregate", "in a view of its own"),
        ("bool_or(price > 1)", "'bool_or' is an aggregate", "in a view of its own"),
        ("sum(quantity) OVER (ORDER BY price)", "looks at other rows", "in a view of its own"),
        ("row_number()", "'row_number' is a window function", "in a view of its own"),
        ("explode(array(1, 2))", "'explode' makes several rows from one", "keep the array"),
        ("current_timestamp", "'current_timestamp' does not give the same answer every time", "records alone"),
        ("now()", "'now' does not give the same answer every time", "records alone"),
        ("price + rand()", "'rand' does not give the same answer every time", "records alone"),
        ("timestamp 'now'", "CAST('now' AS TIMESTAMP) depends on the current day", "write it out"),
        ("cast('today' AS date)", "CAST('today' AS DATE) depends on the current day", "write it out"),
        ("timestamp '12:30'", "CAST('12:30' AS TIMESTAMP) depends on the current day", "write it out"),
        ("to_date('now')", "to_date('now') depends on the current day", "write it out"),
        ("date_add('Tomorrow', 1)", "depends on the current day", "write it out"),
        ("year('today UTC')", "depends on the current day", "write it out"),
        ("last_day('yesterday')", "depends on the current day", "write it out"),
        ("date_format(' now', 'yyyy')", "depends on the current day", "write it out"),
        ("date_trunc('day', 'today')", "depends on the current day", "write it out"),
        ("to_timestamp_ntz('now')", "depends on the current day", "write it out"),
        ("to_date('to' || ('da' || 'y'))", "depends on the current day", "write it out"),
        ("cast(concat('no', 'w') AS timestamp)", "depends on the current day", "write it out"),
        ("orders.*", "'*' is not an expression", "name the columns"),
        ("struct(*)", "'*' is not an expression", "name the columns"),
        ("quantity > ?", "has a placeholder", "write the value"),
        ("quantity > :least", "has a placeholder", "write the value"),
        ("`current_user`()", "'current_user' does not give the same answer every time", "records alone"),
        ("identifier('current_user')", "no function 'identifier'", "built-in functions"),
        ("to_date('n\\ow')", "to_date('now') depends on the current day", "write it out"),
        ("to_date('\\u006eow')", "to_date('now') depends on the current day", "write it out"),
        ("to_date('\\156ow')", "to_date('now') depends on the current day", "write it out"),
        ("to_date('\\tnow')", "depends on the current day", "write it out"),
        ("cast(r'now' AS date)", "depends on the current day", "write it out"),
        ("cast('to' 'day' AS date)", "depends on the current day", "write it out"),
        ("from_json(customer, 'at timestamp')", "timestamps inside another value", "cast each to a timestamp"),
        ("from_json(customer, 'a array<timestamp_ltz>')", "timestamps inside another value", "cast each"),
        ("from_csv(customer, concat('at time', 'stamp'))", "timestamps inside another value", "as a literal"),
        ("from_csv(customer, schema_of_csv('2020-01-01 00:00:00'))", "timestamps inside another value", "as a literal"),
        ("from_json(customer, schema_of_json('{}', map('inferTimestamp', 'true')))", "inside another value", "as a"),
        ("variant_get(parse_json(customer), '$', 'timestamp')", "timestamps inside another value", "cast each"),
        ("try_variant_get(place, '$', 'struct<a: timestamp>')", "timestamps inside another value", "cast each"),
        ("transform(place, orders -> orders.x * quantity)", "the variable 'orders'", "rename"),
        ("transform(place, Menu -> Menu.x)", "the variable 'Menu'", "rename"),
        ("transform(place, Price -> price * 2)", "the variable 'Price'", "rename"),
        ("from_json(customer, 'a timestamp/**/')", "timestamps inside another value", "cast each"),
        ("from_json(customer, '`a`timestamp')", "timestamps inside another value", "cast each"),
        ("from_csv(customer, 'a timestamp--')", "timestamps inside another value", "cast each"),
        ("from_csv(customer, 'a timestamp not null')", "timestamps inside another value", "cast each"),
        ("from_json(customer, 'array<timestamp>')", "timestamps inside another value", "cast each"),
        ('from_json(customer, \'{"type": "\\\\u0074imestamp"}\')', "timestamps inside another value", "cast each"),
        ("unix_timestamp()", "'unix_timestamp' does not give the same answer every time", "records alone"),
        ("window(place, '2 hours', '1 hour').start", "'window' makes several rows from one", "keep the array"),
        ("session_window(place, '1 hour')", "'session_window' makes several rows from one", "keep the array"),
        ("cast(place AS array<timestamp>)", "timestamps inside another value", "cast each to a timestamp"),
        ("CASE WHEN true THEN customer END::timestamp", "in an unsupported way", "write cast("),
        ("builtin.to_timestamp(customer)", "in an unsupported way", "write cast("),
        (
            "from_json(customer, 'a int', map('mode', customer))",
            "the options of 'from_json' are computed",
            "write them",
        ),
        ("from_xml(customer, 'a int', map('rowValidationXSDPath', '/etc/x'))", "reads a file on the server", "remove"),
        ("from_protobuf(customer, 'A', '/etc/x')", "'from_protobuf' reads a file on the server", "declare the topic"),
        ("xpath_string(customer, 'a/b')", "'xpath_string' fetches the DTD that a document names", "write from_xml"),
        ("xpath(customer, 'a')[0]", "'xpath' fetches the DTD that a document names", "write from_xml"),
        ("extract(`YEAR FROM NOW()) --` FROM place)", "'YEAR FROM NOW()) --' is not a unit of time", "extract(year"),
        ("cast(item AS decimal(`2,1)) --`, 2))", "'2,1)) --' is not a unit of time", "decimal(8, 2)"),
        ("cast(place AS array<decimal(`2)`, 1)>)", "'2)' is not a unit of time", "decimal(8, 2)"),
        ("cast(place AS interval `day x`)", "'cast(place AS interval `day x`)' does not parse", "one Spark SQL"),
        ("mask(customer, `upperChar => 'a' --` => 'X')", "is not a unit of time, a name", "write for example"),
        (
            "from_json(customer, schema => 'a int', options => map('mode', customer))",
            "'from_json' has the named argument 'schema'",
            "write the arguments in their order",
        ),
        ("to_json(place, options => map('a', customer))", "the named argument 'options'", "without names"),
    ],
)
def test_what_is_refused(written: str, found: str, fix: str) -> None:
    with pytest.raises(ExpressionError) as caught:
        resolve(written, SCOPE)
    assert (found in caught.value.found, fix in caught.value.fix) == (True, True), vars(caught.value)


@pytest.mark.parametrize(
    "written",
    [
        "from_json(customer, 'timestamp string, b timestamp_ntz')",
        "from_json(customer, 'a struct<timestamp: string, b: int>, timestamp_ltz array<int>')",
        'from_json(customer, \'{"type": "struct", "fields": [{"name": "timestamp", "type": "string"}]}\')',
        "from_json(customer, schema_of_json('{\"a\": 1}'))",
        "from_json(customer, 'a int', map('mode', 'FAILFAST'))",
        "to_timestamp(customer, 'yyyy-MM-dd')",
        "variant_get(parse_json(customer), '$.a', 'int')",
        "transform(place, quantity -> quantity + 1)",
        "timestampadd(MONTH, 1, place)",
        "date_add(place, 1)",
        "extract(YEAR FROM place) + extract(dow FROM place) + extract(`day` FROM place) + extract(hours FROM place)",
        "place + interval 1 day + interval '1-2' year to month - interval 3 weeks 2 microseconds",
        "cast(customer AS decimal(10, 2))::array<decimal(3)>",
        "mask(customer, upperChar => 'X') collate UTF8_LCASE",
    ],
)
def test_what_is_taken_as_it_is_written(written: str) -> None:
    assert resolve(written, SCOPE) == re.sub(r"\b(customer|place)\b", r"orders.\1", written)


def test_comments_are_left_out_and_texts_that_look_like_them_are_not() -> None:
    written = "a -- first\n + /* second */ '-- no' || \"/* no */\" || `b -- no`"
    assert strip_comments(written) == "a + '-- no' || \"/* no */\" || `b -- no`"


@pytest.mark.parametrize("written", ["concat(customer, 'now')", "customer = 'today'", "if(price > 1, 'now', 'later')"])
def test_a_text_that_is_no_date_may_be_any(written: str) -> None:
    assert resolve(written, SCOPE)


@pytest.mark.parametrize(
    ("resolved", "told"),
    [
        ("menu.since > 'yesterday'", "menu.since > 'yesterday'"),
        ("menu.since IN ('2026-01-01', 'today')", "menu.since IN ('2026-01-01', 'today')"),
        ("menu.since BETWEEN '2026-01-01' AND 'now'", "menu.since BETWEEN '2026-01-01' AND 'now'"),
        ("coalesce(menu.since, 'now')", "coalesce(menu.since, 'now')"),
        ("if(orders.quantity = 1, menu.since, 'today')", "IF(orders.quantity = 1, menu.since, 'today')"),
        (
            "CASE WHEN orders.quantity = 1 THEN menu.since ELSE '12:30' END",
            "CASE WHEN orders.quantity = 1 THEN menu.since ELSE '12:30' END",
        ),
        ("if(menu.since IS NULL, 'now', 'later')", None),
        ("coalesce(orders.item, 'now')", None),
        ("orders.item = 'today'", None),
        ("menu.since > '2026-01-01'", None),
    ],
)
def test_a_date_is_not_compared_with_what_is_another_tomorrow(resolved: str, told: str | None) -> None:
    assert find_today_beside(resolved, TYPES) == told


@pytest.mark.parametrize(
    ("written", "function", "argument"),
    [
        ("count(*)", "count", "1"),
        (" SUM ( quantity * price ) ", "sum", "orders.quantity * menu.price"),
        ("count(DISTINCT menu.item)", "count_distinct", "menu.item"),
    ],
)
def test_an_aggregate_is_a_function_and_its_argument(written: str, function: str, argument: str) -> None:
    assert parse_aggregate(written, SCOPE) == (function, argument)


@pytest.mark.parametrize(
    "written", ["quantity", "sum(quantity) + 1", "max_by(price, quantity)", "sum()", "upper(price)", "sum(max(price))"]
)
def test_what_is_no_aggregate_of_one_argument_is_refused(written: str) -> None:
    with pytest.raises(ExpressionError):
        parse_aggregate(written, SCOPE)


@pytest.mark.parametrize(
    ("resolved", "kind"),
    [
        ("orders.quantity", "int"),
        ("CAST(orders.quantity AS STRING)", "string"),
        ("orders.quantity + 1", None),
        ("CAST(x AS STRUCT<Street: INT, `House No`: ARRAY<INT>>)", "struct<Street: int,`House No`: array<int>>"),
    ],
)
def test_the_type_of_a_column_and_of_a_cast_is_known_without_spark(resolved: str, kind: str | None) -> None:
    assert find_plain_type(resolved, {"orders.quantity": "int"}) == kind


@pytest.mark.parametrize(
    ("resolved", "told"),
    [
        ("orders.item = 1", "orders.item is a string, 1 is a number"),
        ("menu.price > orders.item", "orders.item is a string, menu.price is a number"),
        ("NOT (orders.quantity <> 'many')", "'many' is a string, orders.quantity is a number"),
        ("orders.quantity IN (1, 'two')", "'two' is a string, orders.quantity is a number"),
        ("orders.item BETWEEN 1 AND 2", "orders.item is a string, 1 is a number"),
        ("orders.quantity = '5'", None),
        ("orders.quantity > menu.price", None),
        ("orders.item = '1' AND orders.quantity = 1", None),
        ("CAST(orders.item AS INT) = 1", None),
        ("menu.since > '2026-01-01'", None),
        ("UPPER(orders.item) = 1", None),
    ],
)
def test_a_string_is_not_compared_with_a_number(resolved: str, told: str | None) -> None:
    assert find_type_clash(resolved, TYPES) == told


_SORTS = {"agg_funcs": "aggregate", "window_funcs": "window", "generator_funcs": "generator", "table_funcs": "table"}


def test_the_functions_are_those_of_spark(spark: SparkSession) -> None:
    made = {row[0] for row in spark.sql("SHOW USER FUNCTIONS").collect()}  # other tests' and Delta's
    found = {row[0] for row in spark.sql("SHOW FUNCTIONS").collect() if row[0].isidentifier()}
    names = sorted(name for name in found if name not in made or functions.find_kind(name) == "table")
    assert [name for name in names if functions.find_kind(name) is None] == []
    assert sorted(functions._load_kinds()) == sorted(names)
    catalog, identifier = spark._jsparkSession.sessionState().catalog(), spark._jvm.org.apache.spark.sql.catalyst
    groups = {name: catalog.lookupFunctionInfo(identifier.FunctionIdentifier(name)).getGroup() for name in names}
    told = {name: _SORTS[group] for name, group in groups.items() if group in _SORTS}
    assert {name: functions.find_kind(name) for name in told} == told
