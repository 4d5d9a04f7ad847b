"""Views in contracts: what each form makes, and what is refused where and why. Rows: the view, what comes of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from hindcast.common.errors import ContractError
from hindcast.contract import list_shapes, load

TOPICS = """
pipeline: shop
start: 2026-01-01
topics:
  menu: {read: table, key: {item: string}, value: {price: "decimal(8,2)", dish: string}, history_retention: 30 days}
  dishes: {read: table, key: {dish: string}, value: {name: string}}
  stock: {read: table, key: {item: string}, value: {n: int}}
  orders: {read: stream, key: {customer: string}, value: {item: string, quantity: int}}
  payments: {read: stream, key: {customer: string}, value: {paid: double}}
views:
"""

MADE = {
    "b: {stream: orders, join: {table: menu, on: item}}": "events customer | item quantity price dish",
    "b: {stream: orders, join: {table: menu, on: cast(quantity as string)}, select: {p: price}}": "events customer | p",
    "b: {table: menu, join: {table: stock}}": "versions item | price dish n",
    "b: {table: menu, join: {table: stock, how: outer}, select: {a: price}}": "versions item | a",
    "b: {table: menu, join: {table: dishes, on: dish, how: left}}": "versions item | price dish name",
    "b: {stream: orders, join: {stream: payments, before: 5 minutes}}": "pairs customer | item quantity paid",
    "b: {table: menu, aggregate: {n: count(*)}, group_by: {dish: dish}}": "versions dish | n",
    "b: {stream: orders, aggregate: {n: sum(quantity), d: count(distinct item)}}": "versions customer | n d",
    "b: {stream: orders, aggregate: {n: count(*)}, window: {tumbling: 1 hour}}": "windows customer | n",
    "b: {stream: orders, aggregate: {n: count(*)}, window: {hopping: 1 hour, advance: 1 hour}}": "windows customer | n",
    "b: {stream: orders, key: {item: item}, where: quantity > 1}": "events item | customer quantity",
    "b: {table: menu, key: {dish: dish, item: item}}": "versions dish item | price",
    "a: {stream: orders, key: {item: item}}\n  b: {stream: a, join: {table: menu}}": (
        "events item | customer quantity price dish"
    ),
    "b: {table: a}\n  a: {table: menu, where: price > 1}": "versions item | price dish",
}

REFUSED = {
    "b: {stream: orders, table: menu}": ("must start from one input", "either stream: or table:"),
    "b: {join: {table: menu}}": ("must start from one input", "either stream: or table:"),
    "b: {stream: ordres}": ("no stream 'ordres'", "did you mean 'orders'?"),
    "b: {stream: menu}": ("'menu' is read as a table, not as a stream", "known here: orders, payments"),
    "b: {table: menu, join: {stream: orders}}": ("a stream cannot be joined to a table", "start from the stream"),
    "b: {table: menu, join: {table: menu}}": ("menu is joined to itself", "make a view of it first"),
    "b: {table: menu, join: {table: dishes, on: dish, how: outer}}": ("outer join on a foreign key", "inner or left"),
    "b: {stream: orders, join: {table: menu, on: item, how: outer}}": (
        "outer join of a stream with a table",
        "inner or",
    ),
    "b: {stream: orders, join: {stream: payments}}": ("needs a window", "before: and after:"),
    "b: {stream: orders, join: {stream: payments, on: item, before: 1 hour}}": (
        "on cannot be used in a join of two",
        "re-key",
    ),
    "b: {stream: orders, join: {table: menu, on: item, grace: 60 days}}": ("grace is longer", "at least grace"),
    "b: {stream: orders, join: {table: menu, on: quantity}}": ("orders.quantity is int", "cast(orders.quantity AS"),
    "b: {table: menu, join: {table: dishes}, aggregate: {n: count(*)}}": (
        "cannot both join and aggregate",
        "a separate view",
    ),
    "b: {stream: orders, window: {tumbling: 1 hour}}": ("window needs an aggregate", "add aggregate:"),
    "b: {stream: orders, aggregate: {n: count(*)}, window: {tumbling: 1 hour, session: 1 hour}}": (
        "exactly one type, found tumbling and session",
        "one of tumbling",
    ),
    "b: {stream: orders, aggregate: {n: count(*)}, window: {hopping: 1 hour}}": ("hopping and advance", "advance:"),
    "b: {stream: orders, aggregate: {n: count(*)}, window: {tumbling: 0 days}}": ("longer than zero", "1 hour"),
    "b: {table: menu, aggregate: {n: count(*)}, window: {tumbling: 1 hour}}": (
        "a table cannot have windows",
        "its own period",
    ),
    "b: {stream: orders, aggregate: {n: quantity}}": ("'quantity' is not an aggregate", "sum(amount)"),
    "b: {stream: orders, aggregate: {n: collect_list(item)}}": ("depends on the order of rows", "max(struct("),
    "b: {stream: orders, aggregate: {n: FIRST(item)}}": ("'first' depends on the order of rows", "min, max"),
    "b: {stream: orders, aggregate: {n: upper(item)}}": ("'upper' is not an aggregate", "sum(amount)"),
    "b: {stream: orders, aggregate: {n: summ(quantity)}}": ("'summ' is not a function", "did you mean sum?"),
    "b: {stream: orders, aggregate: {n: sum(item)}}": (
        "sum of orders.item, which is a string",
        "cast(orders.item AS double)",
    ),
    "b: {stream: orders, aggregate: {n: max(quantity > item)}}": ("orders.item is a string", "cast(orders.item AS"),
    "b: {stream: orders, aggregate: {customer: count(*)}}": ("'customer' is also a group", "another name"),
    "b: {stream: orders, aggregate: {n: sum(quantty)}}": ("no column 'quantty'", "did you mean 'quantity'?"),
    "b: {table: menu, key: {dish: dish}}": ("leaves out item: two rows could have the same key", "keep the old key"),
    "b: {stream: orders, select: {Item: item, item: quantity}}": (
        "'item' and 'Item' differ only in case: Spark treats them as one column",
        "rename one of them",
    ),
    "b: {stream: orders, group_by: {item: item}, aggregate: {ITEM: count(*)}}": (
        "'ITEM' and 'item' differ only in case",
        "rename one of them",
    ),
    "b: {stream: orders, select: {customer: item}}": ("'customer' is the key and cannot be computed", "another name"),
    "a: {stream: b}\n  b: {stream: a}": ("a and b are derived from each other", "break the cycle"),
    "b: {table: b}": ("b is derived from itself", "break the cycle"),
    "a: {stream: orders, aggregate: {n: count(*)}, window: {session: 1 hour}}\n  b: {table: a}": (
        "'a' holds windows, which cannot be an input yet",
        "known here: dishes, menu, stock",
    ),
    "b: {stream: orders, where: item like}": ("does not parse", "one Spark SQL expression"),
}


@pytest.mark.parametrize(("view", "made"), MADE.items())
def test_a_view_has_the_kind_key_and_columns_of_its_form(view: str, made: str, tmp_path: Path) -> None:
    shape = list_shapes(load(_file(tmp_path, view)))["b"]
    assert f"{shape.kind} {' '.join(shape.key)} | {' '.join(shape.value)}" == made


@pytest.mark.parametrize(("view", "told"), REFUSED.items())
def test_what_a_view_cannot_be_is_refused_with_its_line_and_the_mend(
    view: str, told: tuple[str, str], tmp_path: Path
) -> None:
    path = _file(tmp_path, view)
    with pytest.raises(ContractError) as refused:
        load(path)
    assert told[0] in refused.value.found
    assert told[1] in refused.value.fix
    assert refused.value.where in (f"{path}:10", f"{path}:11")


def test_views_come_after_what_they_are_made_of(tmp_path: Path) -> None:
    contract = load(_file(tmp_path, "c: {table: b}\n  b: {table: a}\n  a: {table: menu}"))
    assert contract.ordered_views == ("a", "b", "c")


def _file(folder: Path, view: str) -> Path:
    path = folder / "shop.yaml"
    path.write_text(f"{TOPICS.lstrip()}  {view}\n", encoding="utf-8")
    return path
