"""Spark SQL expressions in contracts: how names are resolved, and what is refused."""

from __future__ import annotations

import pytest

from hindcast.contracts.expressions import ExpressionError, aggregate, plain_type, resolve

SCOPE = {"orders": ["customer", "item", "quantity", "place"], "menu": ["item", "price"]}


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
        ("upper(orders.item)", "UPPER(orders.item)"),
        ("coalesce(price, 0)", "COALESCE(menu.price, 0)"),
        ("quantity > 1 AND price IS NOT NULL", "orders.quantity > 1 AND NOT menu.price IS NULL"),
        (
            "CASE WHEN quantity = 1 THEN 'one' ELSE 'more' END",
            "CASE WHEN orders.quantity = 1 THEN 'one' ELSE 'more' END",
        ),
        ("cast(quantity AS string)", "CAST(orders.quantity AS STRING)"),
        ("'price'", "'price'"),
        ("1", "1"),
    ],
)
def test_columns_become_input_and_column(written: str, resolved: str) -> None:
    assert resolve(written, SCOPE) == resolved


def test_a_place_stands_for_its_input() -> None:
    assert resolve("upper(item)", {"orders": ["item"]}, {"orders": "value"}) == "UPPER(value.item)"


def test_resolving_twice_changes_nothing() -> None:
    once = resolve("quantity * price", SCOPE)
    assert resolve(once, SCOPE) == once


@pytest.mark.parametrize(
    ("written", "found", "mend"),
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
        ("(SELECT 1)", "'(SELECT 1)' holds a query", "join the table"),
        ("quantity IN (SELECT 1)", "holds a query", "join the table"),
        ("*", "'*' is not an expression", "name the columns"),
        ("orders.*", "'*' is not an expression", "name the columns"),
    ],
)
def test_what_is_refused(written: str, found: str, mend: str) -> None:
    with pytest.raises(ExpressionError) as caught:
        resolve(written, SCOPE)
    assert (found in caught.value.found, mend in caught.value.mend) == (True, True), vars(caught.value)


@pytest.mark.parametrize(
    ("written", "function", "argument"),
    [
        ("count(*)", "count", "1"),
        (" SUM ( quantity * price ) ", "sum", "orders.quantity * menu.price"),
        ("count(DISTINCT menu.item)", "count_distinct", "menu.item"),
    ],
)
def test_an_aggregate_is_a_function_and_its_argument(written: str, function: str, argument: str) -> None:
    assert aggregate(written, SCOPE) == (function, argument)


@pytest.mark.parametrize("written", ["quantity", "sum(quantity) + 1", "max_by(price, quantity)", "sum()"])
def test_what_is_no_aggregate_of_one_argument_is_refused(written: str) -> None:
    with pytest.raises(ExpressionError):
        aggregate(written, SCOPE)


@pytest.mark.parametrize(
    ("resolved", "kind"),
    [("orders.quantity", "int"), ("CAST(orders.quantity AS STRING)", "string"), ("orders.quantity + 1", None)],
)
def test_the_type_of_a_column_and_of_a_cast_is_known_without_spark(resolved: str, kind: str | None) -> None:
    assert plain_type(resolved, {"orders.quantity": "int"}) == kind
