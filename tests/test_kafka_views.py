"""Views of the kafka reading in contracts: which tables are versioned for it, and what is refused where and why.

A view without `semantics` is a kafka view here.
"""

from __future__ import annotations

import re
import textwrap
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml

from hindcast.common.errors import ContractError
from hindcast.contract import load

TOPICS = """
pipeline: shop
start: 2026-01-01
topics:
  menu: {read: table, key: {item: string}, value: {price: int, dish: string}, history_retention: 30 days}
  recipes: {read: table, key: {item: string}, value: {minutes: int}}
  stock: {read: table, key: {item: string}, value: {n: int}, versioned: false, history_retention: 1 day}
  offers: {read: table, key: {item: string}, value: {cut: int}, ttl: 1 day}
  orders: {read: stream, key: {customer: string}, value: {item: string, quantity: int}}
  payments: {read: stream, key: {customer: string}, value: {paid: double}}
inputs:
  rates: {table: bank.rates, key: {item: string}, value: {rate: double}}
  clicks: {table: web.clicks, read: stream, key: {customer: string}, value: {page: string}}
"""
STOCK = "s: {table: stock}"

TAKEN = [
    "b: {stream: orders, join: {table: menu, on: item}}",
    "b: {stream: orders, join: {table: menu, on: item, how: left, grace: 30 days}, where: price > 1}",
    "b: {stream: orders, join: {table: recipes, on: item, grace: 300 days}, wait: true}",
    "b: {stream: orders, join: {stream: payments, after: 1 hour, grace: 1 minute, how: outer}}",
    "b: {table: menu, join: {table: stock}, history_retention: 1 day}",
    "a: {table: menu, wait: true}\nb: {table: menu}",
    "b: {table: stock, where: n > 1, suppress: 1 hour}",
    "b: {table: menu, group_by: {dish: dish}, aggregate: {n: count(*), a: avg(price)}, history_retention: 1 hour}",
    "b: {stream: orders, aggregate: {n: min(quantity), x: max(quantity)}, history_retention: 0 ms}",
    ("b: {stream: orders, aggregate: {n: count(*)}, window: {sliding: 1 minute, grace: 1 minute, "
     "store_retention: 3 minutes, emit: on_window_close}}"),
    "b: {table: menu, expect: [{expect_column_values_to_not_be_null: {column: price}}]}",
    ("b: {stream: orders, semantics: corrected, wait: false, aggregate: {n: count(*)}, "
     "window: {tumbling: 1 hour, emit: update}}"),
    "b: {stream: orders, join: {table: offers, on: item}, semantics: corrected}",
]  # fmt: skip

REFUSED = [
    # the view; the line that is named; what was found, what would do
    ("b: {table: menu, wait: true, semantics: corrected}", "wait:",
     "wait has no use in a corrected view", "semantics: kafka"),
    ("b: {table: menu, aggregate: {n: count(*)}, history_retention: 1 day, semantics: corrected}", "history_retention:",
     "history_retention has no use in a corrected view",
     "a corrected table has all its versions; or write semantics: kafka"),
    ("b: {table: menu, suppress: 1 day, semantics: corrected}",
     "suppress:", "suppress has no use in a corrected view", "semantics: kafka"),
    (("b: {stream: orders, aggregate: {n: count(*)}, window: {tumbling: 1 hour, "
      "emit: on_window_close}, semantics: corrected}"),
     "emit:",
     "emit has no use in a corrected view", "windowClosed tells whether it still can be; or write semantics: kafka"),
    (("b: {stream: orders, aggregate: {n: count(*)}, window: {tumbling: 1 hour, "
      "store_retention: 1 day}, semantics: corrected}"),
     "store_retention:", "store_retention has no use in a corrected view", "semantics: kafka"),
    ("b: {stream: orders, join: {stream: payments, after: 1 hour, grace: 1 minute}, semantics: corrected}", "grace:",
     "grace cannot be used in a corrected join of two streams",
     "no event of a corrected join is too late; or write semantics: kafka"),
    ("a: {table: menu}\nb: {table: a, semantics: corrected}", "table: a",
     "'a' is a kafka view", "semantics: kafka here too, or in views.a semantics: corrected"),
    ("a: {table: menu, semantics: corrected}\nb: {stream: orders, join: {table: a, on: item}}", "table: a",
     "'a' is a corrected view", "write semantics: kafka in views.a too"),
    ("b: {table: menu, select: {Headers: price}}", "b:",
     "a kafka view cannot have a column 'Headers'", "rename the column"),
    ("b: {table: rates}", "table: rates", "'rates' is another pipeline's table", "under topics:"),
    ("b: {stream: clicks}", "stream: clicks", "'clicks' is another pipeline's table", "topics:"),
    ("b: {stream: orders, join: {table: offers, on: item}}", "table: offers",
     "'offers' has a ttl", "remove topics.offers.ttl"),
    ("a: {table: menu, wait: true}\nb: {table: a}", "b:",
     "a waits for every input partition, b does not", "one application, with one processing order"),
    ("a: {table: menu}\nb: {table: recipes, join: {table: a}, wait: true}", "wait:",
     "b waits for every input partition, a does not", "write the same in both"),
    ("b: {table: menu, join: {table: recipes}, where: price > 1}", "where:",
     "where cannot be used in a join of two tables", "in a separate view"),
    ("b: {table: menu, key: {dish: dish}}", "key:", "the new key leaves out item", "keep the old key"),
    ("b: {stream: orders, aggregate: {n: count(distinct item)}}", "n:",
     "count_distinct is not available in a kafka view", "write count, sum, min, max or avg, or semantics: corrected"),
    ("b: {stream: orders, aggregate: {n: count(*), m: median(quantity)}}", "m:",
     "median is not available in a kafka view", "count, sum, min, max or avg"),
    ("b: {table: menu, aggregate: {n: max(price)}}", "n:",
     "max of a table: Kafka Streams subtracts the old value", "count, sum or avg"),
    ("b: {table: stock, aggregate: {n: min(n)}}", "n:", "min of a table", "count, sum or avg"),
    ("b: {table: menu, where: price > 1, history_retention: 1 day}", "history_retention:",
     "history_retention is not for transformations", "a look-up goes on to menu"),
    ("b: {stream: orders, join: {table: menu, on: item}, history_retention: 1 day}",
     "history_retention:", "history_retention is not for streams", "it is for tables"),
    ("b: {stream: orders, aggregate: {n: count(*)}, window: {session: 1 hour}, history_retention: 1 day}",
     "history_retention:", "history_retention is not for windows", "window.store_retention"),
    ("b: {table: menu, suppress: 1 hour}", "suppress:",
     "suppress is not for versioned tables: menu",
     "versioned: false in topics.menu, or remove suppress: Kafka Streams"),
    ("a: {table: recipes, where: minutes > 1}\nb: {table: a, suppress: 1 hour}",
     "suppress:", "suppress is not for versioned tables: a (looked up in recipes)",
     "versioned: false in topics.recipes"),
    ("a: {table: menu, aggregate: {n: count(*)}, history_retention: 1 day}\nb: {table: a, suppress: 1 hour}",
     "suppress:",
     "suppress is not for versioned tables: a", "remove history_retention in views.a, or remove suppress"),
    ("b: {table: stock, aggregate: {m: sum(n)}, suppress: 1 hour, history_retention: 1 day}",
     "suppress:", "suppress is not for aggregates and joins", "in a separate view"),
    ("b: {table: menu, key: {dish: dish, item: item}}", "key:", "a table cannot get a new key", "group_by"),
    ("b: {stream: orders, suppress: 1 hour}", "suppress:", "suppress is not for streams", "it is for tables"),
    ("b: {stream: orders, join: {stream: payments, after: 1 hour}, suppress: 1 hour}", "suppress:",
     "suppress is not for streams", "it is for tables"),
    ("b: {stream: orders, aggregate: {n: count(*)}, window: {tumbling: 1 hour}, suppress: 1 hour}",
     "suppress:", "suppress is not for windows", "window.emit: suppress_until_window_closes"),
    ("b: {stream: orders, join: {table: stock, on: item, grace: 0 ms}}", "grace:",
     "grace needs a versioned table: stock", "write versioned: true in topics.stock, or remove grace"),
    ("a: {table: stock, where: n > 1}\nb: {stream: orders, join: {table: a, on: item, grace: 1 ms}}", "grace:",
     "grace needs a versioned table: a (looked up in stock)", "versioned: true in topics.stock"),
    ("a: {table: menu, join: {table: recipes}}\nb: {stream: orders, join: {table: a, on: item, grace: 1 ms}}", "grace:",
     "grace needs a versioned table: a", "write history_retention: in views.a"),
    ("a: {table: stock, suppress: 1 hour}\nb: {stream: orders, join: {table: a, on: item, grace: 1 ms}}", "grace:",
     "grace needs a versioned table: a", "join what a is made of"),
    ("b: {stream: orders, join: {table: menu, on: item, grace: 721 hours}}", "grace:",
     "grace is longer than the history retention of menu, 30 days", "history retention must be at least grace"),
    ("b: {stream: orders, join: {table: menu, on: item, grace: 721 hours}, semantics: corrected}", "grace:",
     "grace is longer than the history retention of menu, 30 days", "history retention must be at least grace"),
    ("a: {table: menu, where: price > 1}\nb: {stream: orders, join: {table: a, on: item, grace: 31 days}}", "grace:",
     "grace is longer than the history retention of a (looked up in menu), 30 days", "at least grace"),
    (("a: {table: menu, join: {table: recipes}, history_retention: 90 minutes}\n"
      "b: {stream: orders, join: {table: a, on: item, grace: 2 hours}}"),
     "grace:",
     "grace is longer than the history retention of a, 90 minutes", "at least grace"),
    (("b: {stream: orders, aggregate: {n: count(*)}, window: {hopping: 1 hour, advance: 1 minute, "
      "grace: 1 minute, store_retention: 1 hour}}"),
     "store_retention:", "windows need, 61 minutes", "size + grace"),
    ("b: {stream: orders, aggregate: {n: count(*)}, window: {sliding: 1 hour, store_retention: 119 minutes}}",
     "store_retention:", "windows need, 2 hours", "2 x sliding + grace"),
    ("b: {stream: orders, aggregate: {n: count(*)}, window: {session: 1 hour, grace: 1 ms, store_retention: 1 hour}}",
     "store_retention:", "windows need, 3600001 ms", "gap + grace"),
    (("b: {table: menu, expect: [{expect_column_values_to_not_be_null: {column: price}}, "
      "{expect_column_values_to_be_unique: {column: dish}, on_failure: quarantine}]}"),
     "on_failure:",
     "b.expect.1: on_failure: quarantine cannot be used in a kafka view", "write stop or warn"),
]  # fmt: skip


@pytest.mark.parametrize("view", TAKEN)
def test_a_view_that_kafka_streams_has_is_taken(view: str, tmp_path: Path) -> None:
    assert "b" in load(_file(tmp_path, view)).views


@pytest.mark.parametrize(("view", "line", "found", "fix"), REFUSED, ids=[found for _, _, found, _ in REFUSED])
def test_what_kafka_streams_or_the_other_reading_refuses_is_refused_with_its_line_and_the_mend(
    view: str, line: str, found: str, fix: str, tmp_path: Path
) -> None:
    path = _file(tmp_path, view)
    with pytest.raises(ContractError) as caught:
        load(path)
    error = caught.value
    assert (found in error.found, fix in error.fix) == (True, True), str(error)
    number = int(error.where.removeprefix(f"{path}:"))
    lines = path.read_text(encoding="utf-8").splitlines()
    assert lines[number - 1].strip().startswith(line)
    assert number > lines.index("  b:")


def test_a_table_is_versioned_for_a_kafka_view_by_its_own_store_or_as_what_it_is_of(tmp_path: Path) -> None:
    views = """
      cheap: {table: menu, where: price < 9, select: {p: price}}
      cheaper: {table: cheap, where: p < 5}
      few: {table: stock, where: n < 9}
      held: {table: few, suppress: 1 hour}
      later: {table: held, where: n < 5}
      both: {table: menu, join: {table: recipes}}
      stored: {table: menu, join: {table: recipes}, history_retention: 1 hour}
      quick: {table: stored, where: minutes < 5}
      spent: {stream: orders, aggregate: {n: count(*)}}
      counted: {table: stock, aggregate: {m: sum(n)}, history_retention: 2 hours}
    """
    contract = load(_file(tmp_path, views))
    names = ["menu", "recipes", "stock", *(name for name in contract.views if name != "s")]
    hour, month = timedelta(hours=1), timedelta(days=30)
    assert {name: contract.find_versioning(name) for name in names} == {
        "menu": (True, month),
        "recipes": (True, None),
        "stock": (False, None),
        "cheap": (True, month),
        "cheaper": (True, month),
        "few": (False, None),
        "held": (False, None),
        "later": (False, None),
        "both": (False, None),
        "stored": (True, hour),
        "quick": (True, hour),
        "spent": (False, None),
        "counted": (True, 2 * hour),
    }


@pytest.mark.parametrize(
    ("topics", "line", "found"),
    [
        (TOPICS, "versioned:", "no kafka view reads stock, and it changes no corrected answer"),
        (TOPICS.replace("quantity: int}", "quantity: int}, versioned: false"), "versioned:", "this topic is a stream"),
    ],
)
def test_that_a_topic_is_not_versioned_is_said_only_where_it_matters(
    topics: str, line: str, found: str, tmp_path: Path
) -> None:
    path = _file(tmp_path, "b: {stream: orders}", topics, stock="s: {table: menu}" if topics is TOPICS else STOCK)
    with pytest.raises(ContractError, match=found) as caught:
        load(path)
    number = int(caught.value.where.removeprefix(f"{path}:"))
    assert path.read_text(encoding="utf-8").splitlines()[number - 1].strip().startswith(line)
    assert "remove it" in caught.value.fix


def test_the_example_of_the_docs_is_taken(tmp_path: Path) -> None:
    page = (Path(__file__).resolve().parent.parent / "docs/contract.md").read_text(encoding="utf-8")
    example = re.search(r"## The kafka reading.*?```yaml\nviews:\n(.*?)```", page, re.DOTALL)
    assert example
    contract = load(_file(tmp_path, example[1]))
    assert {view.semantics for view in contract.views.values()} == {"kafka"}


def _file(folder: Path, views: str, topics: str = TOPICS, stock: str = STOCK) -> Path:
    """A contract of these views, a line for each field; one reads the topic that is not versioned."""
    data: dict[str, Any] = yaml.safe_load(topics)
    views = re.sub(r"\bon:", "'on':", f"{stock}\n{textwrap.dedent(views).strip()}")
    data["views"] = {name: {"semantics": "kafka", **view} for name, view in yaml.safe_load(views).items()}
    path = folder / "shop.yaml"
    path.write_text(yaml.safe_dump(data, sort_keys=False), encoding="utf-8")
    return path


def test_a_table_joined_to_itself_is_told_that_a_view_of_it_makes_each_record_come_out_twice(tmp_path: Path) -> None:
    path = _file(tmp_path, "b: {table: menu, join: {table: menu}}")
    with pytest.raises(ContractError, match="menu is joined to itself") as caught:
        load(path)
    assert "each record then comes out twice" in caught.value.fix
