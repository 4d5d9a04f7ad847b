"""Each form of a view from contract to rows: what its inputs hold, what it must hold. Times are minutes."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from hindcast.bitemporal import derivation
from hindcast.contract import load

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

TOPICS = """
pipeline: shop
start: 2026-01-01
topics:
  menu: {read: table, key: {item: string}, value: {price: int, dish: string}}
  dishes: {read: table, key: {dish: string}, value: {name: string}}
  stock: {read: table, key: {item: string}, value: {n: int}}
  orders: {read: stream, key: {customer: string}, value: {item: string, quantity: int}}
  payments: {read: stream, key: {customer: string}, value: {paid: int}}
views:
"""

# key, value..., validFrom, validTo; or key, value..., timestamp, _partition, _offset
MENU = [("curry", 8, "c", 0, 4), ("curry", 10, "c", 4, None), ("naan", 3, "b", 0, 6)]
DISHES = [("c", "hot", 2, None), ("b", "bread", 0, None)]
STOCK = [("curry", 5, 2, 6)]
ORDERS = [("anna", "curry", 2, 1, 0, 0), ("candace", "curry", 3, 3, 0, 1), ("bob", "naan", 1, 7, 0, 2)]
ORDERS += [("anna", "curry", 1, 5, 0, 3), (None, "naan", 4, 2, 0, 4)]
PAYMENTS = [("anna", 16, 2, 0, 0), ("bob", 3, 30, 0, 1)]

VIEWS: dict[str, list[tuple[Any, ...]]] = {
    "{stream: orders, join: {table: menu, on: item}, select: {due: quantity * price}, where: quantity > 1}": [
        (None, 12, 2, 0, 4),
        ("anna", 16, 1, 0, 0),
        ("candace", 24, 3, 0, 1),
    ],
    "{stream: orders, join: {table: menu, on: item, how: left}, select: {price: price}}": [
        (None, 3, 2, 0, 4),
        ("anna", 8, 1, 0, 0),
        ("anna", 10, 5, 0, 3),
        ("bob", None, 7, 0, 2),
        ("candace", 8, 3, 0, 1),
    ],
    "{table: menu, join: {table: stock, how: left}, select: {price: price, n: n}}": [
        ("curry", 8, None, 0, 2),
        ("curry", 8, 5, 2, 4),
        ("curry", 10, 5, 4, 6),
        ("curry", 10, None, 6, None),
        ("naan", 3, None, 0, 6),
    ],
    "{table: menu, join: {table: dishes, on: dish}, select: {price: price, name: name}}": [
        ("curry", 8, "hot", 2, 4),
        ("curry", 10, "hot", 4, None),
        ("naan", 3, "bread", 0, 6),
    ],
    "{table: menu, aggregate: {items: count(*), dearest: max(price)}, group_by: {cheap: price < 9}}": [
        (False, 1, 10, 4, None),
        (True, 2, 8, 0, 4),
        (True, 1, 3, 4, 6),
    ],
    "{stream: orders, aggregate: {n: sum(quantity)}}": [
        ("anna", 2, 1, 5),
        ("anna", 3, 5, None),
        ("bob", 1, 7, None),
        ("candace", 3, 3, None),
    ],
    "{stream: orders, aggregate: {n: count(*)}, group_by: {item: item}, window: {tumbling: 4 minutes, grace: 1 day}}": [
        ("curry", 2, 0, 4),
        ("curry", 1, 4, 8),
        ("naan", 1, 0, 4),
        ("naan", 1, 4, 8),
    ],
    "{stream: orders, join: {stream: payments, before: 1 minute, after: 10 minutes, how: left}}": [
        (None, "naan", 4, None, 2, 0, 4, None, None),
        ("anna", "curry", 1, None, 5, 0, 3, None, None),
        ("anna", "curry", 2, 16, 2, 0, 0, 0, 0),
        ("bob", "naan", 1, None, 7, 0, 2, None, None),
        ("candace", "curry", 3, None, 3, 0, 1, None, None),
    ],
    "{stream: orders, key: {item: item}, where: quantity < 3}": [
        ("curry", "anna", 2, 1, 0, 0),
        ("curry", "anna", 1, 5, 0, 3),
        ("naan", "bob", 1, 7, 0, 2),
    ],
    "{table: menu, where: price > 3, select: {twice: price * 2}}": [("curry", 16, 0, 4), ("curry", 20, 4, None)],
}


@pytest.mark.parametrize(("view", "expected"), VIEWS.items())
def test_a_view_holds_what_its_form_means(
    view: str, expected: list[tuple[Any, ...]], spark: SparkSession, tmp_path: Path
) -> None:
    assert _made(spark, tmp_path, view) == sorted(expected, key=str)


NAMES = [("key", "position"), ("right", "timestamp"), ("validfrom", "key"), ("left", "right")]
"""Columns that rows have besides; two inputs are called so."""


@pytest.mark.parametrize(
    ("view", "names"),
    [
        pytest.param(view, names, marks=() if number % len(NAMES) == place else pytest.mark.long)
        for number, view in enumerate(VIEWS)
        for place, names in enumerate(NAMES)
    ],
)
def test_inputs_are_called_as_columns_are_that_rows_have_besides(
    view: str, names: tuple[str, str], spark: SparkSession, tmp_path: Path
) -> None:
    called = dict(zip(("menu", "orders"), names, strict=True)) | {"stock": "left_position"}
    assert _made(spark, tmp_path, view, called) == sorted(VIEWS[view], key=str)


def _made(spark: SparkSession, folder: Path, view: str, called: Mapping[str, str] | None = None) -> list[Any]:
    """The rows of a view, in order; `called`: what inputs are called instead of their names."""
    path, text = folder / "shop.yaml", f"{TOPICS.lstrip()}  made: {view}\n"
    for name, other in (called or {}).items():
        text = re.sub(rf"\b{name}\b", other, text)
    path.write_text(text, encoding="utf-8")
    contract = load(path)
    inputs = {
        "menu": _rows(spark, "item string, price int, dish string", MENU, "versions"),
        "dishes": _rows(spark, "dish string, name string", DISHES, "versions"),
        "stock": _rows(spark, "item string, n int", STOCK, "versions"),
        "orders": _rows(spark, "customer string, item string, quantity int", ORDERS, "events"),
        "payments": _rows(spark, "customer string, paid int", PAYMENTS, "events"),
    }
    made = derivation.derive_view(
        contract, "made", {(called or {}).get(name, name): rows for name, rows in inputs.items()}
    )
    return sorted(map(_minutes, made.collect()), key=str)


NULLS = [
    ("anna", "curry", None, 1, 0, 0),
    ("bob", None, 1, 2, 0, 1),
    (None, "naan", 1, 3, 0, 2),
    ("bob", "naan", 2, 9, 1, 0),
]
GONE = [("curry", None, "c", 0, 4), ("curry", 10, "c", 4, None), ("naan", 3, None, 0, 6)]

LEFT_OUT: dict[str, tuple[list[tuple[Any, ...]], tuple[int, int, int]]] = {
    "{stream: orders, aggregate: {n: sum(quantity)}}": ([("bob", 1, 2, 9), ("bob", 3, 9, None)], (1, 1, 0)),
    "{stream: orders, aggregate: {n: sum(quantity), rows: count(*)}}": (
        [("anna", None, 1, 1, None), ("bob", 1, 1, 2, 9), ("bob", 3, 2, 9, None)],
        (1, 0, 0),
    ),
    "{stream: orders, aggregate: {n: max(quantity)}, group_by: {item: item}, where: quantity IS NULL OR quantity=1}": (
        [("naan", 1, 3, None)],
        (1, 1, 0),
    ),
    "{table: menu, aggregate: {dearest: max(price)}, group_by: {dish: dish}}": ([("c", 10, 4, None)], (1, 1, 0)),
    "{table: menu, aggregate: {n: count(price), dishes: count(dish)}}": (
        [("curry", 0, 1, 0, 4), ("curry", 1, 1, 4, None), ("naan", 1, 0, 0, 6)],
        (0, 0, 0),
    ),
}


@pytest.mark.parametrize("view", LEFT_OUT)
def test_a_row_without_a_group_or_a_value_to_aggregate_counts_nowhere_and_is_counted(
    view: str, spark: SparkSession, tmp_path: Path
) -> None:
    path = tmp_path / "shop.yaml"
    path.write_text(f"{TOPICS.lstrip()}  made: {view}\n", encoding="utf-8")
    contract, (expected, left_out) = load(path), LEFT_OUT[view]
    inputs = {
        "menu": _rows(spark, "item string, price int, dish string", GONE, "versions"),
        "orders": _rows(spark, "customer string, item string, quantity int", NULLS, "events"),
    }
    made = derivation.derive_view(contract, "made", inputs)
    assert sorted(map(_minutes, made.collect()), key=str) == sorted(expected, key=str)
    counted = derivation.count_left_out_of_view(contract, "made", inputs)
    assert counted is not None
    assert counted.collect() == [(left_out,)]


@pytest.mark.parametrize(
    ("window", "left_out"), [("tumbling: 2 minutes", (1, 1, 2)), ("session: 1 minute, grace: 4 minutes", (1, 1, 1))]
)
def test_windows_count_what_is_too_late_and_tell_the_stream_times(
    window: str, left_out: tuple[int, int, int], spark: SparkSession, tmp_path: Path
) -> None:
    path = tmp_path / "shop.yaml"
    view = f"{{stream: orders, aggregate: {{n: sum(quantity)}}, window: {{{window}}}}}"
    path.write_text(f"{TOPICS.lstrip()}  made: {view}\n", encoding="utf-8")
    late = [("anna", "curry", 1, 8, 1, 1), ("anna", "curry", 1, 4, 1, 2), ("dan", "curry", 1, 0, 1, 3)]
    orders = _rows(spark, "customer string, item string, quantity int", [*NULLS, *late], "events")
    contract = load(path)
    counted = derivation.count_left_out_of_view(contract, "made", {"orders": orders})
    assert counted is not None
    assert counted.collect() == [(left_out, {"0": "2026-01-01T00:02:00.000000Z", "1": "2026-01-01T00:09:00.000000Z"})]
    none = derivation.count_left_out_of_view(contract, "made", {"orders": orders.where("false")})
    assert none is not None
    assert none.collect() == [((0, 0, 0), {})]


_PERIODS = {
    "versions": "validFrom timestamp, validTo timestamp",
    "events": "timestamp timestamp, _partition int, _offset long",
}
_START = datetime(2026, 1, 1, tzinfo=UTC)


def _rows(spark: SparkSession, columns: str, rows: Sequence[tuple[Any, ...]], kind: str) -> DataFrame:
    at = slice(-2, None) if kind == "versions" else slice(-3, -2)
    timed = []
    for row in rows:
        cells = list(row)
        cells[at] = [None if t is None else _START + timedelta(minutes=t) for t in cells[at]]
        timed.append(tuple(cells))
    return spark.createDataFrame(timed, f"{columns}, {_PERIODS[kind]}")


def _minutes(row: Sequence[Any]) -> tuple[Any, ...]:
    def told(value: Any) -> Any:
        if isinstance(value, datetime):
            return (value.replace(tzinfo=UTC) - _START) // timedelta(minutes=1)
        return value

    return tuple(told(value) for value in row)


def test_a_version_ends_where_it_was_not_renewed_within_ttl(spark: SparkSession) -> None:
    columns = "key struct<item: string>, value struct<price: int>, timestamp timestamp, partition int, offset long"
    records = [("curry", 8, 0), ("curry", 10, 4), ("curry", 12, 30), ("naan", 3, 1), ("naan", None, 3)]
    log = spark.createDataFrame(
        [
            ((key,), None if price is None else (price,), _START + timedelta(minutes=t), 0, offset)
            for offset, (key, price, t) in enumerate(records)
        ],
        columns,
    )
    made = derivation.derive_topic_versions(log, ttl=timedelta(minutes=10)).drop("_partition", "_offset")
    assert sorted(map(_minutes, made.collect())) == [
        ("curry", 8, 0, 4),
        ("curry", 10, 4, 14),
        ("curry", 12, 30, 40),
        ("naan", 3, 1, 3),
    ]
