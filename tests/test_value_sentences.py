"""Why a value is what it is, in a sentence: only what is true, and only of what may be shown."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from decimal import Decimal
from typing import Any

import pytest
from fastapi.testclient import TestClient

from hindcast.airflow.pages.access import PageAccess
from hindcast.airflow.pages.routes import build_app
from hindcast.common.settings import Settings
from hindcast.contract import load
from hindcast.query import value_sentences
from hindcast.query.inputs_as_of import InputRows
from hindcast.store import tables
from warehouses import RUNS, at, place, shop

ORDER = {"customer": "dave", "item": "naan", "quantity": 3, "timestamp": at(2), **place(0)}
PRICE = {"item": "naan", "price": Decimal("8.00"), "validFrom": at(1), "validTo": None, **place(2)}
BILL = {"customer": "dave", "item": "naan", "amount": Decimal("24.00")}
AMOUNT = {"amount": "orders.quantity * prices.price"}
ORIGINS = (
    "quantity comes from the record of orders (orders, partition 0, offset 0); "
    "price comes from the version of prices valid from 2026-01-01 00:01 (shop.prices, partition 0, offset 2)."
)


@pytest.fixture(name="settings", scope="module")
def fill_settings(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Settings]:
    with shop(tmp_path_factory.mktemp("shop")) as found:
        yield found


def describe(
    settings: Settings,
    row: dict[str, Any],
    expressions: dict[str, str],
    masked: tuple[str, ...] = (),
    **changes: Any,
) -> list[str]:
    """`changes`: of what was read of the prices."""
    contract = load(settings.schemas / "shop.yaml")
    orders, prices = (
        InputRows(name, tables.locate_table(settings.warehouse, contract, name), RUNS[1], True, frozenset(), [of], 1)
        for name, of in (("orders", ORDER), ("prices", PRICE))
    )
    parts = [orders, replace(prices, **changes)]
    return value_sentences.describe_values(settings.warehouse, contract, row, expressions, parts, masked)


def test_an_amount_is_its_expression_with_the_values_of_its_inputs(settings: Settings) -> None:
    times = "\N{MULTIPLICATION SIGN}"
    assert describe(settings, BILL, AMOUNT) == [f"amount 24.00 = 3 {times} 8.00: quantity {times} price.", ORIGINS]


@pytest.mark.parametrize(
    ("value", "expression", "words"),
    [
        (Decimal("12.00"), "(prices.price - 2) * 2", "12.00 = (8.00 − 2) × 2: (price − 2) × 2."),  # noqa: RUF001
        (Decimal("2.67"), "prices.price / orders.quantity", "2.67 = 8.00 ÷ 3: price ÷ quantity."),
        (8 / 3, "prices.price / orders.quantity", "2.6666666666666665 = 8.00 ÷ 3: price ÷ quantity."),
        (11, "orders.quantity + prices.price", "11 = 3 + 8.00: quantity + price."),
    ],
)
def test_arithmetic_is_written_out(settings: Settings, value: Any, expression: str, words: str) -> None:
    assert describe(settings, {"x": value}, {"x": expression})[0] == f"x {words}"


@pytest.mark.parametrize(
    ("row", "expression"),
    [
        (BILL | {"amount": Decimal("25.00")}, AMOUNT["amount"]),
        (BILL | {"amount": None}, AMOUNT["amount"]),
        (BILL, "round(orders.quantity * prices.price)"),
        (BILL, "orders.quantity * prices.price / 0"),
        (BILL, "orders.item + 1"),
        (BILL, "coalesce(prices.price, 24)"),
        (BILL, "24.00"),
    ],
)
def test_nothing_is_said_that_is_not_certain(settings: Settings, row: dict[str, Any], expression: str) -> None:
    assert describe(settings, row, {"amount": expression}) == []


@pytest.mark.parametrize(
    "changes",
    [{"total": 2}, {"open": False}, {"hidden": True}, {"marked": frozenset({"price"})}, {"rows": [], "total": 0}],
    ids=lambda it: next(iter(it)),
)
def test_nothing_is_said_of_what_may_not_be_shown_or_is_not_one_row(
    settings: Settings, changes: dict[str, Any]
) -> None:
    assert describe(settings, BILL, AMOUNT, **changes) == []
    assert describe(settings, BILL | {"price": Decimal("8.00")}, {"price": "prices.price"}, **changes) == []


def test_nothing_is_said_of_a_hidden_column(settings: Settings) -> None:
    assert describe(settings, BILL, AMOUNT, ("amount",)) == []


def test_a_value_that_was_looked_up_is_that_of_its_version(settings: Settings) -> None:
    """Unless the row has another one."""
    copied = {"item": "orders.item", "price": "prices.price"}
    assert describe(settings, {"item": "naan", "price": Decimal("8.00")}, copied) == [
        "price 8.00 is price of the version of prices valid from 2026-01-01 00:01 (shop.prices, partition 0, offset 2)."
    ]
    assert describe(settings, {"item": "naan", "price": Decimal("9.00")}, copied) == []


def test_the_time_machine_says_it_first(settings: Settings) -> None:
    web = TestClient(build_app(PageAccess(lambda: None, lambda: None, lambda: frozenset({"shop"}))))
    page = web.get("/machine/shop?table=bills&key=dave").text
    first, second = (f'<p class="because">{text}' for text in ("amount 5.00 = 2", "quantity comes from the record"))
    assert 0 < page.index(first) < page.index(second) < page.index("One event of orders looked up prices")
    assert settings.schemas.exists()
