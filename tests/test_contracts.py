"""Contracts: what is accepted, and every refusal with its line, what was found and what would do."""

from __future__ import annotations

import re
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from decimal import InvalidOperation
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError
from sqlglot.errors import TokenError

from hindcast.common.errors import ContractError, suggest_nearest
from hindcast.common.settings import read_settings
from hindcast.contract import Contract, find, load, load_all, locate_complaint
from hindcast.contract.bound import bind_contract
from hindcast.contract.definition import list_fields
from hindcast.contract.load import format_json_schema
from hindcast.contract.parsing import Verbatim
from hindcast.contract.types import format_duration, parse_column_type, parse_duration
from hindcast.contract.view_checks import Complaint

SCHEMAS = Path(__file__).parents[1] / "schemas"

GOOD = """\
pipeline: restaurant
schedule: "@hourly"
start: 2026-01-01
topics:
  menu:
    read: table
    key: {item: string}
    value: {price: "decimal(8,2)"}
    history_retention: 30 days
  orders:
    topic: the.orders
    read: stream
    key: {customer: string}
    value: {item: string, quantity: int}
views:
  bills:
    stream: orders
    join: {table: menu, on: item, how: inner}
    select: {item: orders.item, amount: quantity * price}
    expect:
      - expect_column_values_to_be_between: {column: amount, min_value: 0}
        on_failure: warn
"""


def contract(folder: Path, text: str = GOOD, name: str = "restaurant.yaml") -> Path:
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return path


def test_a_contract_is_what_its_file_says(tmp_path: Path) -> None:
    told = load(contract(tmp_path))
    assert (told.pipeline, told.schedule, told.start) == ("restaurant", "@hourly", datetime(2026, 1, 1, tzinfo=UTC))
    assert told.topics["menu"].history_retention == timedelta(days=30)
    assert told.topics["orders"].max_time_skew == timedelta(days=1)
    assert (told.kafka_topic("menu"), told.kafka_topic("orders")) == ("menu", "the.orders")
    assert told.views["bills"].join.on == "item"  # `on` is a name, not a boolean
    assert [(g.type, g.kwargs, g.on_failure) for g in told.expectations("bills")] == [
        ("expect_column_values_to_be_between", {"column": "amount", "min_value": 0}, "warn")
    ]
    assert told.expectations("menu") == ()


PATTERN = GOOD.replace("topic: the.orders", "pattern: orders-.*")


@pytest.mark.parametrize(
    ("kafka", "matched"),
    [("orders-eu", True), ("orders-", True), ("old-orders-eu", False), ("orders", False), ("__orders-eu", False)],
)
def test_a_pattern_matches_whole_names_and_none_of_kafkas_own(tmp_path: Path, kafka: str, matched: bool) -> None:
    topics = load(contract(tmp_path, PATTERN)).topics
    assert topics["orders"].select_topics([kafka]) == [kafka] * matched
    assert (
        not load(contract(tmp_path, PATTERN.replace("orders-.*", ".*orders-.*|__.*")))
        .topics["orders"]
        .select_topics(["__orders-eu"])
    )
    assert not topics["menu"].select_topics(["menu"]), "an entry of one topic"


def test_a_pattern_that_takes_too_long_for_topics_in_kafka_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hindcast.contract.topic.MAX_RUN_SECONDS", 1.0)
    read = load(contract(tmp_path, GOOD.replace("topic: the.orders", "pattern: (o|o|.)*[^u]")))
    assert read.find_entries("orders") == ["orders"]
    with pytest.raises(ContractError, match=re.escape("pattern (o|o|.)*[^u]: takes more than 1 seconds")):
        read.find_entries("o" * 60 + "u")


def test_another_pattern_decodes_no_record_otherwise(tmp_path: Path) -> None:
    first = load(contract(tmp_path, PATTERN))
    second = load(contract(tmp_path, PATTERN.replace("orders-.*", "orders-eu.*")))
    assert first.hash != second.hash
    assert first.topics["orders"].hash_decoding == second.topics["orders"].hash_decoding


@pytest.mark.parametrize(
    ("was", "now", "line", "found", "fix"),
    [
        (
            "    pattern",
            "    topic: orders\n    pattern",
            12,
            "topic and pattern cannot both be set",
            "remove one of the two",
        ),
        (
            "orders-.*",
            "orders-(",
            11,
            "'orders-(' is not a valid regular expression: missing )",
            "write for example orders-.*",
        ),
        ("orders-.*", "men.*", 11, "the pattern matches menu, the topic of topics.menu", "remove topics.menu"),
        (
            "    stream: orders\n",
            "    stream: orders\n    semantics: kafka\n",
            17,
            "'orders' is a pattern of topics, which are not known to be co-partitioned",
            "give each topic its own entry, or write semantics: corrected",
        ),
    ],
)
def test_what_a_pattern_cannot_be(tmp_path: Path, was: str, now: str, line: int, found: str, fix: str) -> None:
    assert was in PATTERN
    path = contract(tmp_path, PATTERN.replace(was, now, 1))
    with pytest.raises(ContractError) as caught:
        load(path)
    assert caught.value.where == f"{path}:{line}"
    assert found in caught.value.found
    assert fix in caught.value.fix


def test_a_contract_cannot_be_changed(tmp_path: Path) -> None:
    with pytest.raises(ValidationError, match="frozen"):
        load(contract(tmp_path)).topics["menu"].max_malformed = 5


@pytest.mark.parametrize(
    ("change", "same"),
    [
        (("2026-01-01", "2026-01-01T00:00:00Z"), True),
        (("30 days", "720 hours"), True),
        (("quantity: int", "quantity: integer"), True),
        (("decimal(8,2)", "DECIMAL(8, 2)"), True),
        (("# ", "# a comment"), True),
        (("topics:\n", "airflow: {retries: 4, tables: {menu: {pool: large}}}\ntopics:\n"), True),
        (("    read: table\n", "    read: table\n    versioned: true\n"), True),
        (("    stream: orders\n", "    stream: orders\n    semantics: corrected\n    wait: false\n"), True),
        (("    stream: orders\n", "    stream: orders\n    semantics: kafka\n"), False),
        (("    stream: orders\n", "    stream: orders\n    semantics: kafka\n    wait: true\n"), False),
        (("30 days", "31 days"), False),
        (("how: inner", "how: left"), False),
        (("quantity * price", "price * quantity"), False),
        (("min_value: 0", "min_value: 1"), False),
    ],
)
def test_the_hash_is_that_of_the_meaning(tmp_path: Path, change: tuple[str, str], same: bool) -> None:
    first = load(contract(tmp_path)).hash
    assert (load(contract(tmp_path, GOOD.replace(*change))).hash == first) is same


def test_settings_that_a_contract_is_bound_to_are_no_part_of_it(tmp_path: Path) -> None:
    settings = read_settings({"HINDCAST_WAREHOUSE": "s3a://bucket/w"})
    free = load(contract(tmp_path))
    bound = bind_contract(free, settings)
    assert (bound.settings, bound.warehouse) == (settings, "s3a://bucket/w")
    assert (bound.hash, bound.hashed_fields) == (free.hash, free.hashed_fields)
    assert (bound.model_dump_json(), list_fields(bound)) == (free.model_dump_json(), list_fields(free))
    assert "bucket" not in repr(bound)
    assert bind_contract(bound, settings) == bound
    with pytest.raises(ValidationError, match="frozen"):
        bound.settings = read_settings({})


def test_fields_that_a_contract_does_not_use_change_no_hash(tmp_path: Path) -> None:
    assert load(contract(tmp_path)).hash == "890088ea89634cf2", "plans that are stored would not be retried"


def write_owners(folder: Path, length: int) -> Path:
    """Write a contract whose tasks have owners that are, with "airflow" and joined by commas, of this length."""
    names = [f"t{number:02}" for number in range(21)]
    lengths = [100] * 19 + [(length - len("airflow") - 20 * 2 - 19 * 100)]
    owners = {name: name.ljust(size, "o") for name, size in zip(names, lengths, strict=False)}
    topics = "".join(f"  {name}: {{read: stream, key: {{k: int}}, value: {{v: int}}}}\n" for name in names)
    tables = ", ".join(f"{name}: {{owner: {owner}}}" for name, owner in owners.items())
    text = f"pipeline: owned\nstart: 2026-01-01\nairflow:\n  tables: {{{tables}}}\ntopics:\n{topics}"
    return contract(folder, text)


def test_the_owners_of_tasks_fit_airflows_column(tmp_path: Path) -> None:
    owned = load(write_owners(tmp_path, 2_000))
    assert len({owned.airflow.find_table_options(name).owner for name in owned.topics}) == 21
    with pytest.raises(ContractError) as caught:
        load(write_owners(tmp_path, 2_001))
    assert caught.value.where.endswith(":4")
    assert "the 21 owners of tasks have 2,001 characters together" in caught.value.found
    assert "shorten the names of owners" in caught.value.fix


REFUSED = [
    ("topics:\n", "airflow: {tables: {men: {pool: p}}}\ntopics:\n", 4, "'men' is neither a topic nor a view", "'menu'"),
    ("topics:\n", "airflow: {timeout: 1 ms}\ntopics:\n", 4, "the timeout is too short", "write 1 minute to 30 days"),
    (
        "topics:\n",
        "airflow:\n  retries: '4'\ntopics:\n",
        5,
        "airflow.retries: '4' is not a number of retries",
        "write 0 to 100",
    ),
    (
        "topics:\n",
        "airflow:\n  tags: sales\ntopics:\n",
        5,
        "airflow.tags: expected a list, found 'sales'",
        "write [sales]",
    ),
    ("topics:\n", "airflow:\n  tags:\ntopics:\n", 5, "airflow.tags: expected a list", "write tags: [sales]"),
    (
        "topics:\n",
        f"airflow:\n  tags: [{', '.join('abcdefghijklmnopqrstu')}]\ntopics:\n",
        5,
        "airflow.tags: expected at most 20 entries, found 21",
        "write at most 20 tags",
    ),
    (
        "topics:\n",
        "airflow: {tables: {orders: {timout: 1 hour}}}\ntopics:\n",
        4,
        "unknown field 'airflow.tables.orders.timout'",
        "did you mean 'timeout'? known here: owner, pool, queue, retries, timeout",
    ),
    (
        "topics:\n",
        "airflow: {tag: [sales]}\ntopics:\n",
        4,
        "unknown field 'airflow.tag'",
        "did you mean 'tags'? known here: owner, pool, queue, retries, tables, tags, timeout",
    ),
    ("topics:\n", "airflow: sales\ntopics:\n", 4, "expected a mapping", "write {owner: sales, retries: 4}"),
    ("topics:\n", "airflow: {tables: orders}\ntopics:\n", 4, "expected a mapping", "write {orders: {pool: large}}"),
    ("topics:\n", "airflow: {tables: {orders: 4}}\ntopics:\n", 4, "expected a mapping", "write {pool: large}"),
    ("topics:\n", "airflow:\n  pool: ''\ntopics:\n", 5, "airflow.pool: '' is not a text", "write 1 to 100 characters"),
    # what is written instead of what, the line, what was found, what would do
    ("  bills:", "  menu:", 16, "'menu' is also a topic", "rename the view"),
    ("stream: orders", "strem: orders", 17, "unknown field 'views.bills.strem'", "did you mean 'stream'?"),
    ("read: table", "raed: table", 6, "unknown field 'topics.menu.raed'", "did you mean 'read'?"),
    ("how: inner", "hwo: inner", 18, "unknown field 'views.bills.join.hwo'", "did you mean 'how'?"),
    ("schedule:", "shedule:", 2, "unknown field 'shedule'", "did you mean 'schedule'?"),
    ("    read: table\n", "", 5, "field 'topics.menu.read' is missing", "add 'read:' here"),
    ("start: 2026-01-01\n", "", 1, "field 'start' is missing", "add 'start:' here"),
    ("start: 2026-01-01", "start: soon", 3, "start: 'soon' is not a valid timestamp", "write for example 2026-01-31"),
    ("start: 2026-01-01", "start: 2026", 3, "start: '2026' is not a valid timestamp", "2026-01-31T06:00:00Z"),
    ("start: 2026-01-01", "start:", 3, "start: nothing is not a valid timestamp", "write for example 2026-01-31"),
    (
        "start: 2026-01-01",
        "start: 0001-01-01T00:00:00+05:00",
        3,
        "is not a valid timestamp",
        "write for example 2026-01-31",
    ),
    (
        "read: table",
        "read: tabel",
        6,
        "topics.menu.read: 'tabel' is not one of the allowed values",
        "did you mean 'table'? known here: stream, table",
    ),
    ("read: table", "read: Table", 6, "'Table' is not one of the allowed values", "did you mean 'table'?"),
    (
        "read: table",
        "read: true",
        6,
        "topics.menu.read: true is not one of the allowed values",
        "known here: stream, table",
    ),
    ("    history_retention: 30 days", "    TTL: 1 day", 9, "unknown field 'topics.menu.TTL'", "did you mean 'ttl'?"),
    (
        "    history_retention: 30 days",
        "    on_gap: halt",
        9,
        "'halt' is not one of the allowed values",
        "known here: record, stop",
    ),
    (
        "    history_retention: 30 days",
        "    json: Strict",
        9,
        "'Strict' is not one of the allowed values",
        "did you mean 'strict'?",
    ),
    (
        "    history_retention: 30 days",
        "    envelope: debesium",
        9,
        "'debesium' is not one of the allowed values",
        "did you mean 'debezium'?",
    ),
    (
        "    history_retention: 30 days",
        "    versioned: 1",
        9,
        "menu.versioned: '1' is neither true nor false",
        "write true",
    ),
    ("    history_retention: 30 days", "    versioned: no", 9, "'no' is neither true nor false", "write false"),
    (
        "    history_retention: 30 days",
        "    max_record_bytes: true",
        9,
        "menu.max_record_bytes: true is not a whole number above 0",
        "write for example 1000000",
    ),
    ("    history_retention: 30 days", "    max_record_bytes: 0", 9, "'0' is not a whole number above 0", "1000000"),
    ("    history_retention: 30 days", "    sensitive: []", 9, "menu.sensitive: the list names no column", "remove"),
    (
        "    history_retention: 30 days",
        "    sensitive: price",
        9,
        "topics.menu.sensitive: 'price' is neither a list of columns nor true",
        "write [price]",
    ),
    (
        "    history_retention: 30 days",
        "    sensitive: [1]",
        9,
        "menu.sensitive: '1' is not a valid column name",
        "letters",
    ),
    (
        "    history_retention: 30 days",
        "    renamed: {price: cost}",
        9,
        "topics.menu.renamed.price: expected a list, found 'cost'",
        "write [cost]",
    ),
    (
        "    history_retention: 30 days",
        "    renamed: {price: []}",
        9,
        "expected at least one entry, found a list without any",
        "[cost]",
    ),
    (
        "    history_retention: 30 days",
        "    value_schema: 5",
        9,
        "topics.menu.value_schema: '5' is not the name of a file",
        "write for example orders.avsc",
    ),
    (
        "    history_retention: 30 days",
        "    value_schema: {a: 1}",
        9,
        "topics.menu.value_schema: a mapping is not the name of a file",
        "write for example orders.avsc",
    ),
    (
        "    history_retention: 30 days",
        "    expect: {expect_x: {}}",
        9,
        "expected a list, found a mapping",
        "- expect_",
    ),
    (
        "    history_retention: 30 days",
        "    expect: [expect_x]",
        9,
        "menu.expect.0: expected a mapping, found 'expect_x'",
        "write expect_column_values_to_not_be_null: {column: price}",
    ),
    (
        "topic: the.orders",
        'topic: "a b"',
        11,
        "topics.orders.topic: 'a b' is not a valid topic name in Kafka",
        "letters",
    ),
    ("topic: the.orders", "topic: ..", 11, "topics.orders.topic: '..' is not a valid topic name in Kafka", "letters"),
    ("topic: the.orders", 'topic: ""', 11, "topics.orders.topic: no name is given", "or remove the line"),
    ("topic: the.orders", "topic:", 11, "topics.orders.topic: no name is given", "or remove the line"),
    ("topic: the.orders", "topic: 5", 11, "topics.orders.topic: 5 is not text", 'put it in quotes: "5"'),
    ("topic: the.orders", "pattern:", 11, "topics.orders.pattern: no pattern is given", "orders-.*"),
    (
        "key: {customer: string}",
        "key: [customer]",
        13,
        "topics.orders.key: expected a mapping, found a list",
        "write {customer: string}",
    ),
    ("key: {customer: string}", "key: customer", 13, "expected a mapping, found 'customer'", "{customer: string}"),
    (
        'value: {price: "decimal(8,2)"}',
        "value: {price: decimal(8,2)}",
        8,
        "topics.menu.value.price: 'decimal(8' is an incomplete type",
        'put the type in quotes: "decimal(8,2)"',
    ),
    (
        "quantity: int",
        'quantity: "struct<a>"',
        14,
        "'struct<a>' has a struct whose fields are not all names with types",
        "",
    ),
    ("quantity: int", "quantity: array", 14, "'array' has an array without an element type", "array<string>"),
    (
        "table: menu, on: item, how: inner}",
        "table: menu, on: 5}",
        18,
        "bills.join.on: '5' is not an expression",
        "[a, b]",
    ),
    ("{table: menu, on: item, how: inner}", "menu", 18, "expected a mapping, found 'menu'", "{table: menu, on: item}"),
    (
        "    select: {item",
        "    key: {}\n    select: {item",
        19,
        "views.bills.key: expected at least one entry, found a mapping",
        "{item",
    ),
    (
        "how: inner",
        "how: full",
        18,
        "views.bills.join.how: 'full' is not one of the allowed values",
        "known here: inner, left, outer",
    ),
    ("how: inner", "how: outer", 18, "an outer join of a stream with a table", "inner or left"),
    ("@hourly", "hourly", 2, "'hourly' is not a cron expression", "@hourly"),
    ("@hourly", "inputs", 2, "there are no inputs that could start a run", "name the tables under inputs:"),
    ("@hourly", "0 25 * *", 2, "'0 25 * *' is not a cron expression", "five fields"),
    ("30 days", "30", 9, "'30' is not a duration", "30 days, 90 minutes"),
    ("30 days", "a month", 9, "'a month' is not a duration", "30 days, 90 minutes"),
    ("quantity: int", "quantity: intt", 14, "'intt' is not a Spark SQL type", "string, int, decimal(8,2)"),
    (
        "quantity: int",
        "quantity: string collate utf8_lcase",
        14,
        "has a clause, such as COLLATE",
        "only names and types",
    ),
    (
        "quantity: int",
        "quantity: array<string collate unicode_ci>",
        14,
        "has a clause, such as",
        "only names and types",
    ),
    (
        "quantity: int",
        "quantity: 'struct<comment: string, a: int not null>'",
        14,
        "has a clause, such as",
        "only names and types",
    ),
    ("quantity: int", "quantity: map<string,int>", 14, "maps cannot be compared", "array<struct<"),
    (
        "item: string}\n    value: {price",
        "validFrom: string}\n    value: {price",
        7,
        "reserved for a period column",
        "",
    ),
    ("{price:", "{pri-ce:", 8, "'pri-ce' is not a valid column name", "letters, digits and _, starting"),
    ("pipeline: restaurant", "pipeline: Restaurant!", 1, "'Restaurant!' is not a valid name", "lower-case letters"),
    ("  menu:\n", "  runs:\n", 5, "'runs' is the name of one of Hindcast's own tables", "choose another name"),
    ("{price:", "{ITEM: int, price:", 8, "column 'ITEM' is already in the key (case is ignored)", "rename"),
    (
        "key: {customer: string}",
        "key: {}",
        13,
        "topics.orders.key: expected at least one entry, found a mapping without any",
        "{id: string}",
    ),
    (
        "key: {item: string}",
        "key: {item: string, size: string}",
        18,
        "1 of the 2 columns of menu's key",
        "one expression",
    ),
    (
        "    read: stream",
        "    read: stream\n    history_retention: 1 day",
        13,
        "history_retention is for tables",
        "remove",
    ),
    (
        "  menu:\n    read",
        "  menu:\n    key_format: string\n    key: {a: int, b: int}\n    read",
        9,
        "is defined twice",
        "",
    ),
    ("stream: orders", "stream: order", 17, "no stream 'order'", "did you mean 'orders'?"),
    ("stream: orders", "stream: menu", 17, "'menu' is read as a table, not as a stream", "topics.menu.read: stream"),
    ("table: menu", "table: mneu", 18, "no table 'mneu'", "did you mean 'menu'?"),
    ("table: menu", "table: orders", 18, "'orders' is read as a stream, not as a table", "known here: menu"),
    ("on: item", "on: itme", 18, "no column 'itme'", "did you mean 'item'?"),
    ("on: item", "on: price", 18, "no column 'price'", "known here: customer, item, quantity"),
    (
        "on: item",
        "on: quantity",
        18,
        "orders.quantity is int, but the key of menu is string",
        "cast(orders.quantity AS string)",
    ),
    ("quantity * price", "quantity * prise", 19, "no column 'prise'", "did you mean 'price'?"),
    ("quantity * price", "item", 19, "'item' is a column of orders and of menu", "write orders.item"),
    ("quantity * price", "orders.price", 19, "'orders' has no column 'price'", "known here: customer, item, quantity"),
    ("quantity * price", "quantity *", 19, "'quantity *' does not parse", "one Spark SQL expression"),
    ("quantity * price", "'1e99999999991.5BD'", 19, "'1e99999999991.5BD' does not parse: the parser", "one Spark SQL"),
    ("amount: quantity", "customer: quantity", 19, "'customer' is the key and cannot be computed", "another name"),
    ("column: amount", "column: amuont", 21, "no column 'amuont' here", "did you mean 'amount'?"),
    (
        "        on_failure: warn",
        "        on_failure: explode",
        22,
        "views.bills.expect.0.on_failure: 'explode' is not one of the allowed values",
        "known here: quarantine, stop, warn",
    ),
    (
        "        on_failure: warn",
        "        on_fail: warn",
        21,
        "a gate names one expectation, found 2",
        "'on_fail': did you mean 'on_failure'?",
    ),
    (
        "expect_column_values_to_be_between",
        "assert_positive",
        21,
        "'assert_positive' is not the name of an expectation",
        "expect_",
    ),
    (
        "    select:",
        "    select: {item: orders.item}\n    select:",
        20,
        "is defined twice, first on line 19",
        "remove or rename",
    ),
    (
        "        on_failure: warn",
        "      - expect_column_values_to_be_between: {min_value: 0, column: amount}",
        22,
        "expect_column_values_to_be_between is defined twice with the same parameters",
        "remove one of the two",
    ),
    ("quantity * price", "coalesc(price)", 19, "no function 'coalesc'", "did you mean coalesce"),
    ("quantity * price", "sum(price)", 19, "'sum' is an aggregate", "in a view of its own"),
    (
        "on: item",
        "on: quantity = item",
        18,
        "orders.item is a string, orders.quantity is a number",
        "cast(orders.item AS",
    ),
    ("    select:", "    where: quantity\n    select:", 19, "orders.quantity is int, not a condition", "IS NOT NULL"),
    (
        "quantity * price",
        "'extract(`YEAR FROM NOW())::VARCHAR || (SELECT CONTENT FROM READ_TEXT(LOWER(1))) --` FROM price)'",
        19,
        "is not a unit of time, a name or a length of a type",
        "write for example extract(year FROM at)",
    ),
    ("topics:", "topics: [", 6, "is not YAML", "fix the syntax"),
    ("orders.item, amount: quantity * price}", "3}", 19, "select.item: 3 is not text", 'put it in quotes: "3"'),
]


@pytest.mark.parametrize(("was", "now", "line", "found", "fix"), REFUSED, ids=[f"{c[1].strip()[:40]}" for c in REFUSED])
def test_a_refusal_names_line_cause_and_mend(
    tmp_path: Path, was: str, now: str, line: int, found: str, fix: str
) -> None:
    assert was in GOOD
    path = contract(tmp_path, GOOD.replace(was, now, 1))
    with pytest.raises(ContractError) as caught:
        load(path)
    error = caught.value
    assert (error.where, found in error.found, fix in error.fix) == (f"{path}:{line}", True, True), str(error)
    assert error.fix
    assert "\n" not in error.found


GATES = """\
pipeline: shop
start: 2026-01-01
topics:
  payments:
    read: table
    key: {id: int}
    value: {price: "decimal(8,2)", note: string, at: timestamp, raw: binary}
    expect:
      - expect_column_values_to_not_be_null: {column: note}
      - %s
"""

UNFIT = [
    # a gate, the line, what was found, what would do
    (
        """expect_column_values_to_not_be_null:
          column: price
          row_condition: cost > 0""",
        12,
        "row_condition: no column 'cost' here",
        "known here: at, id, note, price, raw, systemFrom, validFrom, validTo",
    ),
    ("expect_column_values_to_not_be_null: {column: price, row_condition: nota = 'x', condition_parser: spark}", 10,
     "row_condition: no column 'nota' here", "did you mean 'note'?"),
    ("unexpected_rows_expectation: {unexpected_rows_query: 'SELECT * FROM {batch} WHERE prise = 0'}", 10,
     "unexpected_rows_query: no column 'prise' here", "did you mean 'price'?"),
    ("unexpected_rows_expectation:\n          unexpected_rows_query: SELECT * FROM payments WHERE price = 0", 11,
     "unexpected_rows_query does not use {batch}", "SELECT * FROM {batch} WHERE ..."),
    ("unexpected_rows_expectation: {unexpected_rows_query: 'SELECT * FROM {batch} JOIN {other}'}", 10,
     "unexpected_rows_query: nothing replaces {other}", "only {batch} is replaced"),
    (("unexpected_rows_expectation: {unexpected_rows_query: 'SELECT id, note FROM {batch}'}\n"
     "        on_failure: quarantine"), 10,
     "unexpected_rows_query does not return validFrom: on_failure: quarantine needs the key of each failing row",
     "return all columns: SELECT * FROM {batch} WHERE ..."),
    ("unexpected_rows_expectation: {unexpected_rows_query: 'DELETE FROM other -- {batch}'}", 10,
     "unexpected_rows_query is not a single SELECT that can be parsed", "write one SELECT ... FROM {batch}"),
    ("unexpected_rows_expectation: {unexpected_rows_query: 'SELECT * FROM {batch}; DROP TABLE other'}", 10,
     "is not a single SELECT that can be parsed", "write one SELECT"),
    ("unexpected_rows_expectation: {unexpected_rows_query: 'SELECT * FROM {batch} JOIN text.`/etc/passwd`'}", 10,
     "unexpected_rows_query reads files by their path, text.`/etc/passwd`", "over tables"),
    ("unexpected_rows_expectation: {unexpected_rows_query: \"SELECT * FROM identifier('a') JOIN {batch}\"}", 10,
     "makes a name from text (IDENTIFIER)", "over tables"),
    ("unexpected_rows_expectation: {unexpected_rows_query: \"SELECT TRANSFORM(id) USING 'sh' FROM {batch}\"}", 10,
     "starts a program (TRANSFORM)", "over tables"),
    ("unexpected_rows_expectation: {unexpected_rows_query: \"SELECT Reflect('a', 'b') FROM {batch}\"}", 10,
     "calls Java by 'reflect'", "over tables"),
    (("expect_column_values_to_not_be_null: {column: price, "
      "row_condition: \"exists(array(note), n -> n rlike '(a)+')\"}"), 10,
     "n RLIKE '(a)+' may be slow and is in a function's ->", "without nested repetitions"),
    ("expect_column_values_to_match_regex: {column: note, regex: '^(.*[w-z&&[^y]]){25}y$'}", 10,
     "^(.*[w-z&&[^y]]){25}y$ may be slow, and has parts that are Java's alone", "without nested repetitions"),
    ("expect_column_values_to_not_match_regex_list: {column: note, regex_list: ['x', '^(.*\\G){25}y$']}", 10,
     "y$ may be slow, and has parts that are Java's alone", "without nested repetitions"),
    ("expect_column_values_to_match_regex_list: {column: note, regex_list: ['(a|\\ba', 'a)*$']}", 10,
     "(a|\\ba|a)*$ may be slow, and has parts that are Java's alone", "without nested repetitions"),
    ("expect_column_values_to_not_be_null: {column: price, row_condition: \"java_method('a', 'b') = 'x'\"}", 10,
     "row_condition calls Java by 'java_method'", "functions of Spark SQL"),
    ("expect_column_values_to_match_like_pattern: {column: note, like_pattern: '2%%'}", 10,
     "Great Expectations has no expect_column_values_to_match_like_pattern for Spark", "match_regex"),
    ("expect_column_values_to_be_dateutil_parseable: {column: note}", 10,
     "Great Expectations has no expect_column_values_to_be_dateutil_parseable for Spark", "match_strftime_format"),
    (("expect_query_results_to_match_comparison: {base_query: SELECT 1, comparison_data_source_name: other, "
      "comparison_query: SELECT 1}"), 10, "for Spark: it compares with a query of another database",
     "use unexpected_rows_expectation"),
    ("expect_table_row_count_to_equal_other_table: {other_table_name: other}", 10,
     "for Spark: it counts the rows of a table in another database", "use unexpected_rows_expectation"),
    ("expect_column_values_to_not_be_null: {column: price, on_failure: warn}", 10,
     "expect_column_values_to_not_be_null has no parameter 'on_failure'", "it belongs beside the expectation"),
    ("expect_column_values_to_not_be_null:\n          column: price\n          rows: table", 12,
     "expect_column_values_to_not_be_null has no parameter 'rows'", "write `rows: ...` on its own line"),
    ("expect_column_values_to_not_be_null: {column: prise}", 10, "no column 'prise' here", "did you mean 'price'?"),
    ("expect_compound_columns_to_be_unique: {column_list: [id, prise]}", 10, "no column 'prise' here", "'price'?"),
    (("expect_column_values_to_not_be_null: {column: price, row_condition: {type: pass_through,\n"
     "          pass_through_filter: \"reflect('a', 'b') = 'x'\"}}"), 10,
     "row_condition is a mapping, not text", "write Spark SQL in quotes"),
    ("unexpected_rows_expectation: {unexpected_rows_query: {$PARAMETER: a, $PARAMETER.a: 'SELECT * FROM {batch}'}}", 10,
     "unexpected_rows_query is a mapping, not text", "write Spark SQL in quotes"),
    ("unexpected_rows_expectation: {unexpected_rows_query: [a]}", 10,
     "unexpected_rows_query is a list, not text", "write Spark SQL in quotes"),
    # with it quotes would stand around what is looked at as a text: 'x', reflect('a', 'b'), 'y'
    (("unexpected_rows_expectation:\n          unexpected_rows_query: >-\n"
     "            SELECT '{batch:'<50}, reflect(\"a\", \"b\"), {batch:'>50}' FROM {batch}"), 11,
     "unexpected_rows_query has a format or a conversion in {batch}", "write {batch} alone"),
    ("unexpected_rows_expectation: {unexpected_rows_query: 'SELECT * FROM {batch!r}'}", 10,
     "unexpected_rows_query has a format or a conversion in {batch}", "write {batch} alone"),
    (("expect_column_values_to_not_be_null: {column: note, condition_parser: great_expectations,\n"
     "          row_condition: 'col(\"price\") > 0 and col(\"id\") > 1'}"), 11,
     "is not a single comparison: only its first one would be used", "write it in Spark SQL"),
]  # fmt: skip


@pytest.mark.parametrize(("gate", "line", "found", "fix"), UNFIT, ids=[found for _, _, found, _ in UNFIT])
def test_a_gate_that_would_fail_in_a_run_is_refused_with_its_line_and_its_number_from_0(
    tmp_path: Path, gate: str, line: int, found: str, fix: str
) -> None:
    path = contract(tmp_path, GATES % gate)
    with pytest.raises(ContractError) as caught:
        load(path)
    error = caught.value
    assert error.where == f"{path}:{line}"
    assert error.found.startswith("payments.expect.1: "), error
    assert (found in error.found, fix in error.fix) == (True, True), error


@pytest.mark.parametrize(
    "gate",
    [
        "expect_column_values_to_match_regex: {column: price, regex: '^[0-9.]+$'}",
        r"expect_column_values_to_match_regex: {column: note, regex: '^\p{Lu}\p{L}*(?:[ -]\p{L}+)*$'}",
        r"expect_column_values_to_match_regex: {column: note, regex: '^[\p{L}\p{N}._-]+@[\p{L}.-]+[.]\p{L}{2,}$'}",
        "expect_column_values_to_match_regex: {column: note, regex: '^[a-z&&[^y]]+$'}",
        "expect_column_value_lengths_to_equal: {column: note, value: 3, row_condition: 'systemFrom > validFrom'}",
        "expect_column_values_to_not_be_null: {column: systemFrom}",
        (
            "expect_column_values_to_not_be_null: {column: note, row_condition: 'col(\"cost\").notNull()', "
            "condition_parser: great_expectations}"
        ),
        (
            "expect_column_values_to_not_be_null: {column: note, row_condition: 'col(\"price\") >= -1.5', "
            "condition_parser: great_expectations}"
        ),
        "expect_column_values_to_match_json_schema: {column: note, json_schema: {$id: a, items: {$ref: '#/$defs/b'}}}",
        "unexpected_rows_expectation: {unexpected_rows_query: 'SELECT price FROM {batch} WHERE price = 0'}",
        (
            "unexpected_rows_expectation: {unexpected_rows_query: \"SELECT * FROM {batch} WHERE note = '{{}}'\"}\n"
            "        on_failure: quarantine"
        ),
        (
            "unexpected_rows_expectation: {unexpected_rows_query: 'SELECT ID, validFrom FROM {batch}'}\n"
            "        on_failure: quarantine"
        ),
        "unexpected_rows_expectation: {unexpected_rows_query: 'SELECT { FROM'}",
        "unexpected_rows_expectation: {query: SELECT 1}",
    ],
)
def test_a_gate_is_refused_only_where_there_is_no_doubt(tmp_path: Path, gate: str) -> None:
    assert len(load(contract(tmp_path, GATES % gate)).expectations("payments")) == 2


def test_a_complaint_about_a_pipeline_is_found_in_its_own_file_beside_a_broken_one(tmp_path: Path) -> None:
    path = contract(tmp_path)
    contract(tmp_path, "topics: [", "broken.yaml")
    complaint = Complaint(("views", "bills", "expect", 0), "it is odd", "mend it")
    assert locate_complaint(tmp_path, "restaurant", complaint).where == f"{path}:21"


@pytest.mark.parametrize(
    "failure",
    [
        TokenError("odd"),
        InvalidOperation(),
        AttributeError("no attribute"),
        RecursionError(),
        IndexError(),
        KeyError("x"),
    ],
    ids=repr,
)
def test_whatever_the_parser_raises_is_about_the_expression_and_its_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failure: Exception
) -> None:
    written = f"quantity * {type(failure).__name__}"

    def parse(_: Any, __: Any, text: str) -> Any:
        if written in text:
            raise failure
        return real(_, __, text)

    real = Verbatim.Parser.parse
    monkeypatch.setattr(Verbatim.Parser, "parse", parse)
    path = contract(tmp_path, GOOD.replace("quantity * price", written))
    with pytest.raises(ContractError) as caught:
        load(path)
    assert caught.value.where == f"{path}:19"
    assert f"'{written}' " in caught.value.found
    assert caught.value.fix


def test_inputs_joined_by_their_keys_must_have_keys_of_one_type(tmp_path: Path) -> None:
    text = GOOD.replace(", on: item", "").replace("{customer: string}", "{customer: int}")
    with pytest.raises(
        ContractError, match=("the key of orders is customer int, but that of menu is item string")
    ) as caught:
        load(contract(tmp_path, text))
    assert caught.value.where.endswith(":18")


def test_a_view_without_select_needs_inputs_without_a_common_column(tmp_path: Path) -> None:
    text = re.sub(r"    select: .*", "", GOOD.replace("quantity: int", "price: int")).replace("amount", "price")
    with pytest.raises(ContractError, match="both inputs have a column price") as caught:
        load(contract(tmp_path, text))
    assert caught.value.fix == "name the view's columns with select:"


@pytest.mark.parametrize(
    ("content", "where", "found"),
    [
        (b"", ":1", "contains no contract"),
        (b"- a\n- b\n", ":1", "contains no contract"),
        (b"pipeline: \xff\n", "", "is not UTF-8 text"),
        (b"a: &x [*x]\n", "", "contains an alias of itself"),
        (b"? [a, b]\n: 1\n", ":1", "a name must be text"),
        (b"start: 2026-02-30\n", ":1", "start: '2026-02-30' is not a valid timestamp"),
        (b"a: 1\ntopics: {o: {from: 2026-13-01}}\n", ":2", "topics.o.from: '2026-13-01' is not a valid timestamp"),
        (b"from: 2026-01-01T25:00:00\n", ":1", "from: '2026-01-01T25:00:00' is not a valid timestamp"),
        (b"a: [1, 2026-02-30]\n", ":1", "a.1: '2026-02-30' is not a valid timestamp"),
        (b"a:\n  2026-02-30: 1\n", ":2", "a.2026-02-30: '2026-02-30' is not a valid timestamp"),
        (b"!!int x\n", ":1", "'x' is not a whole number"),
        (b"a: !!float --1\n", ":1", "a: '--1' is not a number"),
        (b"a: 010\n", ":1", "a: '010' is the number 8 in YAML"),
        (b"a: [1,\n 12:30]\n", ":2", "a.1: '12:30' is the number 750 in YAML"),
        (b"a: -1:30.5\n", ":1", "a: '-1:30.5' is the number -90.5 in YAML"),
        (b"a: 0.12345678901234567890\n", ":1", "has more digits than a number keeps: it would be 0.12345678901234568"),
        (b"a: !!float x\n", ":1", "a: 'x' is not a number"),
        (b"a: !!bool x\n", ":1", "a: 'x' is not a boolean"),
        (b"a: !!timestamp soon\n", ":1", "a: 'soon' is not a valid timestamp"),
        (b"!!python/object/apply:os.system ['true']\n", ":1", "is not YAML"),
        (b"a: 1\nb: {c: \x02}\n", ":2", "is not YAML: control characters are not allowed"),
        ("a: é\nb: ü\n\x02".encode(), ":3", "is not YAML: control characters are not allowed"),
        (b"a: 1\nb\n", ":2", "is not YAML: could not find expected ':'"),
        (b"a: 1\nb\n \n\n  # c\n", ":2", "is not YAML: could not find expected ':'"),
        (b"a: 1\nb\n\nc: 1\n", ":2", "is not YAML: could not find expected ':'"),
        (b"a: 1\nb: [1,\n\n# c\n", ":2", "is not YAML"),
        (None, "", "cannot be read: No such file"),
    ],
)
def test_a_file_that_holds_no_contract(tmp_path: Path, content: bytes | None, where: str, found: str) -> None:
    path = tmp_path / "odd.yaml"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(ContractError, match=found) as caught:
        load(path)
    assert caught.value.where.startswith(f"{path}{where}")
    assert caught.value.fix


def test_a_pipeline_is_found_by_its_file_or_by_its_name(tmp_path: Path) -> None:
    contract(tmp_path, name="restaurant.yaml")
    contract(tmp_path, GOOD.replace("pipeline: restaurant", "pipeline: bar"), name="other.yml")
    contract(tmp_path, "not a contract", name="notes.txt")
    assert (find(tmp_path, "restaurant").pipeline, find(tmp_path, "bar").pipeline) == ("restaurant", "bar")
    with pytest.raises(ContractError, match="no pipeline 'restarant'") as caught:
        find(tmp_path, "restarant")
    assert "did you mean 'restaurant'? known here: bar, restaurant" in caught.value.fix


def test_a_broken_neighbour_does_not_hide_a_pipeline_named_as_its_file(tmp_path: Path) -> None:
    contract(tmp_path)
    contract(tmp_path, "topics: [", name="broken.yaml")
    assert find(tmp_path, "restaurant").pipeline == "restaurant"
    with pytest.raises(ContractError, match="is not YAML"):
        find(tmp_path, "other")


def test_a_hint_looks_past_case_and_tells_the_nearest_few_of_many() -> None:
    assert suggest_nearest("TTL", ["ttl", "read"]) == "did you mean 'ttl'? known here: read, ttl"
    assert suggest_nearest("menu", ["Menu", "menu"]) == "did you mean 'menu'? known here: Menu, menu"
    runs = [str(number) for number in (10, 9, 100, 1)]
    assert suggest_nearest("x", runs) == "known here: 1, 9, 10, 100", "numbers are sorted as numbers"
    told = suggest_nearest("expect_41", [f"expect_{n}" for n in range(70)])
    assert told.startswith("did you mean 'expect_41'? nearest of the 70 known here: expect_41, ")
    assert len(told.partition("here: ")[2].split(", ")) == 5
    assert suggest_nearest("qqq", [f"expect_{n}" for n in range(70)]).startswith(
        "nearest of the 70 known here: expect_"
    )


def test_two_contracts_of_one_name_are_refused(tmp_path: Path) -> None:
    first, second = contract(tmp_path, name="a.yaml"), contract(tmp_path, name="b.yaml")
    with pytest.raises(ContractError, match=f"is already used in {first}") as caught:
        load_all(tmp_path)
    assert caught.value.where == f"{second}:1"


def test_a_folder_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(ContractError, match="is not a folder") as caught:
        load_all(tmp_path / "schemas")
    assert "HINDCAST_SCHEMAS" in caught.value.fix


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("30 days", timedelta(days=30)),
        ("1 day", timedelta(days=1)),
        ("90minutes", timedelta(minutes=90)),
        ("500 ms", timedelta(milliseconds=500)),
        ("2 weeks", timedelta(days=14)),
        ("0 seconds", timedelta()),
    ],
)
def test_durations(text: str, expected: timedelta) -> None:
    assert parse_duration(text) == parse_duration(format_duration(expected)) == expected


def test_a_duration_is_whole_milliseconds() -> None:
    assert parse_duration(timedelta(milliseconds=1)) == timedelta(milliseconds=1)
    with pytest.raises(ValueError, match="is not a whole number of milliseconds"):
        parse_duration(timedelta(microseconds=1500))


@pytest.mark.parametrize(
    "text", ["", "days", "-1 day", "1.5 days", "1 month", "1 day 2 hours", "500 us", "0.5 ms", "9999999999 weeks", None]
)
def test_what_is_no_duration(text: object) -> None:
    with pytest.raises(ValueError, match=r"is not a duration|exceeds the longest"):
        parse_duration(text)


@pytest.mark.parametrize(
    ("written", "type_"),
    [
        ("string", "string"),
        ("INTEGER", "int"),
        ("long", "bigint"),
        ("decimal( 8, 2 )", "decimal(8,2)"),
        ("array<int>", "ARRAY<INT>"),
        ("struct<aB: int, c: array<string>>", "STRUCT<aB: INT, c: ARRAY<STRING>>"),
    ],
)
def test_column_types_are_as_spark_writes_them(written: str, type_: str) -> None:
    assert parse_column_type(written) == type_


@pytest.mark.parametrize(
    "written",
    [
        "",
        "strng",
        "int, x int",
        "decimal(8",
        "struct<a>",
        "struct<a, b: int>",
        "struct<>",
        "struct",
        "struct<a: struct<b>>",
        "array<struct<b>>",
        "struct<a: int, A: string>",
        "struct<a: int",
        "array",
        "array<int, string>",
        "array<int>(3)",
        "int(10)",
        "decimal(39,2)",
        "decimal(2,8)",
        "map<string,int>",
        "varchar(3)",
        "void",
        "9",
    ],
)
def test_what_is_no_column_type(written: str) -> None:
    with pytest.raises(
        ValueError,
        match=r"incomplete type|is not a (Spark SQL|supported) type|maps cannot be compared|has (an array|a struct) w",
    ):
        parse_column_type(written)


def test_the_json_schema_is_up_to_date() -> None:
    kept = (SCHEMAS / "contract.schema.json").read_text(encoding="utf-8")
    assert kept == format_json_schema(), "write it anew: hindcast schema > schemas/contract.schema.json"


def check_jsonschema(*files: Path) -> subprocess.CompletedProcess[str]:
    schema_file = str(SCHEMAS / "contract.schema.json")
    command = [str(Path(sys.executable).with_name("check-jsonschema")), "--schemafile", schema_file, *map(str, files)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_the_json_schema_accepts_what_we_accept(tmp_path: Path) -> None:
    variants = [
        contract(tmp_path, GOOD.replace(*change), name=f"{n}.yaml")
        for n, change in enumerate(
            [
                ("", ""),
                ("2026-01-01", "2026-01-01T06:00:00+02:00"),
                ("2026-01-01", "2026-01-01 06:00"),
                ("30 days", "90minutes"),
                ("{column: amount, min_value: 0}", ""),
                ('schedule: "@hourly"\n', ""),
                ("    stream: orders\n", "    stream: orders\n    semantics: kafka\n    wait: true\n"),
            ]
        )
    ]
    assert all(isinstance(load(path), Contract) for path in variants)
    done = check_jsonschema(*variants, *sorted(SCHEMAS.glob("*.yaml")))
    assert done.returncode == 0, done.stdout


def test_the_json_schema_refuses_what_an_editor_can_see(tmp_path: Path) -> None:
    changes = [
        ("read: table", "raed: table"),
        ("how: inner", "how: full"),
        ("stream: orders", "stream: orders\n    semantics: kafak"),
        ("30 days", "a month"),
        ("2026-01-01", "soon"),
        ("  menu:", "  Menu!:"),
        ("{price:", "{pri-ce:"),
        ("on_failure: warn", "on_failure: explode"),
        ("expect_column_values_to_be_between", "assert_positive"),
    ]
    files = [contract(tmp_path, GOOD.replace(*change), name=f"{n}.yaml") for n, change in enumerate(changes)]
    done = check_jsonschema(*files)
    assert [change for change, path in zip(changes, files, strict=True) if str(path) not in done.stdout] == []
