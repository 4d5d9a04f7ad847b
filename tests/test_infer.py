"""`hindcast infer`: a contract that reads what a topic has, with its reasons, and without its secrets."""

from __future__ import annotations

import ctypes
import io
import json
import time
from collections.abc import Iterable, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any
from zlib import crc32

import confluent_kafka
import fastavro
import pyarrow as pa
import pytest
import yaml

from hindcast.cli.main import main
from hindcast.common.errors import RecordError
from hindcast.contract import Contract, load
from hindcast.kafka import produce
from hindcast.kafka.produce import ProducerRecord
from hindcast.kafka.topics import OffsetRange
from hindcast.ops.infer import contract_text, infer_contract, sensitive_values, topic_facts
from hindcast.ops.infer.avro_bytes import AvroDecoder
from hindcast.ops.infer.contract_text import choose_names
from hindcast.ops.infer.field_types import choose_type
from hindcast.ops.infer.fields import MAX_FIELDS, FieldStats
from hindcast.ops.infer.json_text import parse_json
from hindcast.ops.infer.part_formats import FormReader, find_form
from hindcast.ops.infer.sample import SampledRecord, TopicSample, plan_sample
from hindcast.ops.infer.sensitive_values import find_sensitive_text, looks_sensitive
from hindcast.streams.murmur2 import assign_partitions
from registries import peer, register

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

NOW = datetime(2026, 11, 27, 12, tzinfo=UTC)
BEGIN = datetime(2026, 1, 1, tzinfo=UTC)


def encode(payload: Any) -> bytes | None:
    """The bytes of a payload: text and bytes as they are, anything else as JSON."""
    if payload is None or isinstance(payload, bytes):
        return payload
    return payload.encode() if isinstance(payload, str) else json.dumps(payload).encode()


def sample(
    topic: str, records: Iterable[tuple[Any, Any]], *, compacted: bool = False, times: Sequence[int] = (), **more: Any
) -> TopicSample:
    """A topic of one partition that was read whole: keys and values, a second apart unless `times` (ms) says so."""
    begin = int(BEGIN.timestamp() * 1000)
    read = tuple(
        SampledRecord(0, n, times[n] if times else begin + 1000 * n, "CreateTime", encode(key), encode(value))
        for n, (key, value) in enumerate(records)
    )
    return TopicSample(topic, {0: OffsetRange(0, len(read))}, compacted, read, **more)


def infer(folder: Path, *samples: TopicSample, pipeline: str | None = None) -> tuple[Contract, str]:
    """The contract of these topics, as `hindcast check` reads it, and its text."""
    text = infer_contract(samples, pipeline, NOW)
    path = folder / "draft.yaml"
    path.write_text(text, encoding="utf-8")
    return load(path), text


def wire(schema: Any, id_: int, value: Any) -> bytes:
    """A value in the wire format of a schema registry."""
    out = io.BytesIO()
    fastavro.schemaless_writer(out, fastavro.parse_schema(json.loads(json.dumps(schema))), value)
    return b"\0" + id_.to_bytes(4) + out.getvalue()


TYPES = [
    ("quantity", ["1", "12345"], "int", "whole numbers 1 to 12,345"),
    ("quantity", ["2147483647"], "bigint", "close to the end of int"),
    ("quantity", ["2147483648"], "bigint", "too large for int"),
    ("quantity", ["-9223372036854775809"], "decimal(38,0)", "too large for bigint"),
    ("quantity", ["1" * 39], "string", "too large for any number"),
    ("price", ["8", "8.50", "1.25"], "decimal(10,2)", "up to 2 digits after the point"),
    ("price", ["123456789012.5"], "decimal(16,1)", "of up to 12 digits"),
    ("price", ['"12.50"', '"3"'], "decimal(10,2)", "numbers as text"),
    ("price", ['"12"'], "decimal(10,0)", "numbers as text"),
    ("price", ['"12.50"', "3"], "decimal(10,2)", "some of them as text"),
    ("price", ['"12.50"', "1e-300"], "string", "too long for a decimal"),
    ("price", ["0.30000000000000004"], "double", "the name sounds like money"),
    ("price", ["1.5e300"], "double", "written with exponents"),
    ("weight", ["1e999999999"], "double", "written with exponents"),
    ("weight", ["0.3333333333333333"], "double", "as floating-point numbers have"),
    ("zip", ['"01234"'], "string", "text"),
    ("code", ['"1234"'], "string", "text, always of whole numbers"),
    ("at", ['"2026-01-01T10:00:00Z"', '"2026-01-01"'], "timestamp", "ISO 8601 as text"),
    ("at", ['"2026-01-01 10:00"'], "timestamp", "1 without a zone are read as UTC"),
    ("at", ['"12:30"'], "string", "text"),
    ("at", ['"0001-01-01T00:00:00+01:00"'], "string", "text"),
    ("until", ['"2026-01-01T00:00:00Z"', '"9999-12-31T23:59:59-05:00"'], "string", "text"),
    ("days", ['["2026-01-01", "9999-12-31T23:59:59-00:01"]'], "array<string>", "lists of text"),
    ("day", ['"2026-01-31"'], "date", "ISO 8601 as text"),
    ("day", ['"2026-02-30"'], "string", "text"),
    ("id", ['"6fa459ea-ee8a-3ca4-894e-db77e160355e"'], "string", "UUIDs as text"),
    ("fine", ["true", "false", "null"], "boolean", "true and false"),
    ("note", ["null"], "string", "the type is a guess"),
    ("tags", ['["a"]', "[]"], "array<string>", "lists of text"),
    ("tags", ["[]"], "array<string>", "a guess"),
    ("sizes", ["[1, 2.5]"], "array<decimal(10,1)>", "lists of numbers"),
    (
        "place",
        ['{"city": "x", "at": {"lat": 1}}', "{}"],
        "struct<city: string, at: struct<lat: int>>",
        "2 fields, 2 of",
    ),
    ("place", ['{"a": 1, "A": 2}'], "string", "kept as their JSON text"),
    ("place", ["{}"], "string", "kept as their JSON text"),
    ("both", ["1", '"x"', "{}"], "string", "1 number (the first at place 0), 1 text (the first at place 1)"),
]


@pytest.mark.parametrize(("name", "values", "kind", "reason"), TYPES)
def test_a_column_has_a_type_that_takes_all_values(name: str, values: list[str], kind: str, reason: str) -> None:
    stats = FieldStats()
    for place, value in enumerate(values):
        stats.observe(parse_json(value.encode()), f"place {place}")
    choice = choose_type(stats, name)
    assert choice.kind == kind
    assert reason in choice.reason


def test_an_object_with_ever_other_fields_is_a_map() -> None:
    stats = FieldStats()
    for n in range(MAX_FIELDS + 1):
        stats.observe({f"user{n}": None}, "place")
    choice = choose_type(stats, "votes")
    assert choice.kind == "string"
    assert "user" not in choice.reason


def test_names_that_are_data_are_not_shown(tmp_path: Path) -> None:
    rows = [{"votes": {f"ann{n}@x.org": 1}, f"bob{n}@x.org": 1, "by": {f"u{n}": 1}} for n in range(40)]
    contract, text = infer(tmp_path, sample("t", [("k", row) for row in rows]))
    assert contract.topics["t"].value == {"votes": "string", "by": "string"}
    assert contract.topics["t"].sensitive == ("votes",)
    assert "x.org" not in text
    assert "u7" not in text


def test_names_of_headers_that_are_secrets_are_not_shown(tmp_path: Path) -> None:
    secrets = ("ann@example.com", "Bearer abcdefghijk12345", "AKIAABCDEFGHIJKLMNOP", "x" * 300, "bell\a")
    read = sample("t", [("k", {"a": 1})] * 3)
    records = tuple(record._replace(headers=("trace", *secrets)) for record in read.records)
    _, text = infer(tmp_path, replace(read, records=records))
    assert "can read: trace in 3; 5 more names left out: not printable, too long, or like secrets" in text
    assert not [secret for secret in ("ann@", "abcdefghijk", "AKIA", "xxx", "bell") if secret in text]
    many = tuple(record._replace(headers=tuple(f"h{n}" for n in range(12))) for record in read.records)
    assert "; 2 more names are in fewer records" in infer(tmp_path, replace(read, records=many))[1]
    hidden = tuple(record._replace(headers=secrets[:1]) for record in read.records)
    assert "headers: 1 name left out: not printable" in infer(tmp_path, replace(read, records=hidden))[1]


PAYLOADS = [
    ([{"a": 1}], "JSON object", "json", ""),
    (["curry", "[1]", "12"], "text", "string", ""),
    ([b"\0\0\0\x2a"], "bytes", "primitive", "int"),
    ([(1_767_225_600_000).to_bytes(8)], "bytes", "primitive", "bigint"),
    ([b"\x3f\xc0\0\0", b"\x41\x20\0\0"], "bytes", "primitive", "float"),
    ([b"\x3f\xf8\0\0\0\0\0\0"], "bytes", "primitive", "double"),
    ([b"\1", b"\0"], "bytes", "primitive", "boolean"),
    ([b"\xff\xfe\xfd", b"\x01"], "bytes", "string", "binary"),
    ([{"op": "c", "after": {"a": 1}, "source": {}}], "change event", "json", ""),
    ([{"op": "c", "name": "no envelope"}], "JSON object", "json", ""),
    ([b'{"a": NaN}'] + [{"a": 1}] * 99, "JSON object", "json", ""),
]


@pytest.mark.parametrize(("values", "form", "format_", "kind"), PAYLOADS)
def test_bytes_have_a_format(values: list[Any], form: str, format_: str, kind: str) -> None:
    found = find_form("t", "value", sample("t", [("k", value) for value in values]).records, FormReader({}))
    assert (found.form, found.format, found.kind) == (form, format_, kind)


@pytest.mark.parametrize(
    "name",
    [
        "password",
        "userPassword",
        "API_KEY",
        "authToken",
        "iban",
        "credit-card",
        "e-mail",
        "Email",
        "ssn",
        "phoneNumber",
    ],
)
def test_a_name_gives_a_secret_away(name: str) -> None:
    assert looks_sensitive(name)


@pytest.mark.parametrize("name", ["item", "discard", "keyboard", "tokyo", "cardinality", "panel", "quantity", "pinned"])
def test_other_names_do_not(name: str) -> None:
    assert not looks_sensitive(name)


SECRETS = [
    ("eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0.c2lnbmF0dXJl", "JSON Web Tokens"),
    ("4111 1111 1111 1111", "card numbers"),
    ("paid with 4111111111111111", "card numbers within text"),
    ("DE89 3704 0044 0532 0130 00", "IBANs"),
    ("write to ann.smith@example.org", "e-mail addresses"),
    ("078-05-1120", "social security numbers"),
    ("+49 170 1234567", "phone numbers"),
    ("-----BEGIN RSA PRIVATE KEY-----", "private keys"),
    ("AKIAIOSFODNN7EXAMPLE", "access keys"),
    ("postgres://ann:hunter2@db/x", "URLs with passwords"),
    ("2026-01-01T10:00:00+02:00", None),
    ("1767225600000000", None),
    ("DE00 3704 0044 0532 0130 00", None),
    ("curry", None),
]


@pytest.mark.parametrize(("text", "found"), SECRETS)
def test_a_value_gives_a_secret_away(text: str, found: str | None) -> None:
    assert find_sensitive_text(text) == found


SLOW = [
    *(
        "eyJ",
        "eyJaaaa.",
        "-----BEGIN ",
        "A ",
        "AKIA",
        "ghp_",
        "xoxa-",
        "sk_live_",
        "$argon2",
        "://a",
        "://a:",
        "://a:b",
    ),
    *(
        "Bearer ",
        "bearer a",
        "a@",
        "a@a",
        "a-.",
        "a.",
        "123-45-",
        "+1",
        "+1 ",
        "+1(",
        "DE89 3704 ",
        "AA11",
        "AA11 AAAA ",
    ),
    *("4111 ", "4-1", "4", "A", "a", " ", "-", "1"),
]


@pytest.mark.parametrize("part", SLOW)
def test_long_texts_are_searched_in_no_time(part: str) -> None:
    text = part * (1_000_000 // len(part))
    whole = (*sensitive_values._PATTERNS.values(), sensitive_values._IBAN, sensitive_values._CARD)
    for head in ("", "eyJaaaa.", "-----BEGIN ", "$argon2", "://a:", "a@", "+1", "4111"):
        begin = time.process_time()
        find_sensitive_text(head + text)
        assert time.process_time() - begin < 0.1
    begin = time.process_time()
    for pattern in whole:
        pattern.search(text[:60_000])
    assert time.process_time() - begin < 0.5, "each is linear by itself"


def test_a_token_is_found_wherever_it_begins() -> None:
    text = "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0.c2lnbmF0dXJl"
    for before in ("", "20", "x_eyJ-", "eyJa.", "eyJ", "a" * 5_000, "eyJ" * 1_000):
        assert find_sensitive_text(before + text) == "JSON Web Tokens"


def test_fields_whose_names_are_secrets_are_not_shown(tmp_path: Path) -> None:
    key = "AKIAABCDEFGHIJKLMNOP"
    rows = [(f"k{n}", {key: f"k{n}", "a": n, "-": {"a" * 30_000: "ann@example.com"}}) for n in range(9)]
    _, text = infer(tmp_path, sample("t", rows))
    assert (key in text, len(text) < 3_000) == (False, True), "also if the key is named after it"
    events = [({"id": n}, change(n, name="x", **{"ann@example.com": 1, key: 2, "a-b": 3})) for n in range(9)]
    _, text = infer(tmp_path, sample("item", events))
    assert (key in text, "ann@" in text, "the field a-b is left out" in text) == (False, False, True)


def test_no_value_of_a_sensitive_column_is_shown(tmp_path: Path) -> None:
    rows = [
        {
            "item": "curry",
            "pin": 4711 + n,
            "note": "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0.c2ln",
            "paid": 4111111111111111,
            "user": {"email": f"a{n}@x.org"},
        }
        for n in range(5)
    ]
    contract, text = infer(tmp_path, sample("shop.orders", [(f"ann{n}@x.org", row) for n, row in enumerate(rows)]))
    topic = contract.topics["orders"]
    assert topic.sensitive == ("key", "pin", "note", "paid", "user")
    assert not [secret for secret in ("471", "eyJ", "4111", "x.org", "curry") if secret in text]


def test_a_table_and_a_stream_are_joined_where_the_values_meet(tmp_path: Path) -> None:
    customers = sample(
        "shop.customers",
        [(f"c{n}", {"name": f"n{n}", "id": f"c{n}", "joined": "2026-01-01"}) for n in range(30)] + [("c1", None)],
        compacted=True,
    )
    orders = sample(
        "shop.orders",
        [(f"o{n}", {"customerId": f"c{n % 40}", "amount": 1.25, "order-id": n, "timestamp": 5}) for n in range(80)],
    )
    contract, text = infer(tmp_path, orders, customers)
    assert contract.pipeline == "shop"
    assert {name: (topic.topic, topic.read) for name, topic in contract.topics.items()} == {
        "orders": ("shop.orders", "stream"),
        "customers": ("shop.customers", "table"),
    }
    assert contract.topics["customers"].key == {"id": "string"}, "named after the field of the value that repeats it"
    assert contract.topics["orders"].renamed == {"order_id": ("order-id",), "timestamp_value": ("timestamp",)}
    (view,) = contract.views.values()
    assert (view.stream, view.join and (view.join.table, view.join.on, view.join.how)) == (
        "orders",
        ("customers", "customerId", "left"),
    )
    assert "30 of the 40 values seen of customerId are keys seen of customers" in text
    assert 'amount: "decimal(10,2)" # in 80 of 80; numbers, all the same, up to 2 digits after the point' in text
    assert "expect_column_values_to_not_be_null: {column: amount}" in text


def test_fields_that_lack_in_some_records_are_counted(tmp_path: Path) -> None:
    rows = [{"a": 1}, {"a": None}, {"a": 3, "b": "x"}]
    _, text = infer(tmp_path, sample("t", [("k", row) for row in rows]))
    assert "a: int # in 2 of 3, null in 1; whole numbers 1 to 3" in text
    assert "b: string # in 1 of 3, absent in 2; text" in text
    assert "not_be_null" not in text


@pytest.mark.parametrize(
    ("fields", "renamed"),
    [
        (["_id", "id"], {"id_value": ("_id",)}),
        (["id", "_id"], {"id_value": ("_id",)}),
        (["_id", "id_value", "id"], {"id_2": ("_id",)}),
        (["a-b", "A_b", "a b", "a_b"], {"a_b_value": ("a-b",), "a_b_2": ("a b",), "a_b_3": ("a_b",)}),
        (["0x", "x", "timestamp"], {"x_value": ("0x",), "timestamp_value": ("timestamp",)}),
    ],
)
@pytest.mark.parametrize("part", ["key", "value"])
def test_a_renamed_field_does_not_take_the_name_of_another_one(
    tmp_path: Path, part: str, fields: list[str], renamed: dict[str, tuple[str, ...]]
) -> None:
    rows = [{name: f"{name}{n}" for name in fields} for n in range(5)]
    records = [(row, {"n": 1}) if part == "key" else (f"k{n}", row) for n, row in enumerate(rows)]
    contract, _ = infer(tmp_path, sample("orders", records))
    assert {name: tuple(of) for name, of in contract.topics["orders"].renamed.items()} == renamed
    assert len(getattr(contract.topics["orders"], part)) == len(fields)


def test_long_names_of_joined_columns_are_cut(tmp_path: Path) -> None:
    names = ["x" * 190, "y" * 183 + "1234567", "y" * 190]
    samples = [
        sample(
            f"{'topic' * 17}{n}", [(str(k), {**dict.fromkeys(names, k), f"{'topic' * 17}0": str(k)}) for k in range(30)]
        )
        for n in range(3)
    ]
    contract, text = infer(tmp_path, *(replace(one, compacted=True) for one in samples))
    assert len(contract.views) == 2
    assert [len(view.select) for view in contract.views.values()] == [6, 6]
    assert "Left out" not in text


def test_joins_beyond_the_size_of_a_contract_are_left_out(tmp_path: Path) -> None:
    def rows(more: str) -> Iterable[tuple[str, dict[str, int]]]:
        return (
            (str(k), {f"c{j}": k for j in range(150)} | {f"t{n}_id": k for n in range(12)} | {more: k}) for k in (1, 2)
        )

    contract, text = infer(tmp_path, *(sample(f"t{n}", rows("x"), compacted=True) for n in range(12)))
    assert len(contract.topics) == 12
    assert 0 < len(contract.views) < 132
    (left_out,) = [line for line in text.splitlines() if line.startswith("# Left out")]
    assert left_out.startswith("# Left out, as the contract would be too large or invalid, joins of t1 with t")
    assert left_out.endswith(f", {132 - len(contract.views) - 20} more.")


def test_a_draft_that_is_invalid_with_its_joins_has_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever we did not foresee of joins."""
    monkeypatch.setattr(contract_text, "_list_selected_names", lambda _, column: iter([column, "no name"]))
    records = [(str(k), {"n": k, "t0_id": str(k)}) for k in range(30)]
    contract, text = infer(tmp_path, *(sample(f"t{n}", records, compacted=True) for n in range(2)))
    assert (len(contract.topics), len(contract.views)) == (2, 0)
    assert text.endswith(
        "# Left out, as the contract would be too large or invalid, joins of t0 with t1, t1 with t0.\n"
    )


def test_nested_types_beyond_the_size_of_a_contract_are_text(tmp_path: Path) -> None:
    records = [("k", {"n": 1} | {f"c{j}": {f"f{n}": n for n in range(60)} for j in range(200)})]
    contract, text = infer(tmp_path, sample("wide", records))
    assert {name for name, kind in contract.topics["wide"].value.items() if kind != "string"} == {"n"}
    assert text.count("; kept as their JSON text, as the contract would be too large\n") == 200


def test_topics_that_are_too_large_for_one_contract_are_inferred_one_at_a_time() -> None:
    records = [("k", {f"column_{j}": j for j in range(450)})]
    with pytest.raises(RecordError, match="infer wrote an invalid contract: has more than 1,048,576 bytes") as refused:
        infer_contract([sample(f"t{n}", records) for n in range(40)], None, NOW)
    assert refused.value.fix == "infer the topics one at a time, and put those together that you need"


def test_numbers_are_cast_to_the_table_key(tmp_path: Path) -> None:
    items = sample("items", [(str(n), {"price": n}) for n in range(30)], compacted=True)
    sold = sample("sold", [(f"s{n}", {"item": n, "price": 2}) for n in range(30)])
    contract, _ = infer(tmp_path, items, sold, pipeline="shop")
    view = contract.views["sold_items"]
    assert view.join is not None
    assert view.join.on == "cast(item AS string)"
    assert view.select == {"item": "sold.item", "price": "sold.price", "items_price": "items.price"}


def change(n: int, op: str = "c", **row: Any) -> dict[str, Any]:
    after = None if op == "d" else {"id": n, **row}
    return {"op": op, "before": None, "after": after, "source": {"ts_ms": 1_767_225_600_000 - n}, "ts_ms": 1}


def test_change_events_are_a_table_of_rows(tmp_path: Path) -> None:
    events = [({"id": n}, change(n, price=8.5, at="2026-01-01T00:00:00Z", note="x")) for n in range(9)]
    contract, text = infer(
        tmp_path, sample("shop.public.item", [*events, ({"id": 1}, change(1, "d")), ({"id": 1}, None)])
    )
    topic = contract.topics["item"]
    assert (topic.envelope, topic.read, topic.key) == ("debezium", "table", {"id": "int"})
    assert topic.value == {"price": "decimal(10,1)", "at": "timestamp", "note": "string"}
    assert topic.encoded == {"price": "Number"}
    assert "9 rows, 1 delete" in text
    assert "9 of 10 records are dated before one" in text, "by the time of the change"


def test_a_schema_in_the_records_gives_the_types_of_rows(tmp_path: Path) -> None:
    decimal = {"scale": "2", "connect.decimal.precision": "8"}
    fields = [
        {"field": "id", "type": "int64"},
        {"field": "price", "type": "bytes", "name": "org.apache.kafka.connect.data.Decimal", "parameters": decimal},
        {"field": "at", "type": "int64", "name": "io.debezium.time.MicroTimestamp"},
        {"field": "day", "type": "int32", "name": "io.debezium.time.Date"},
        {"field": "tags", "type": "array", "items": {"type": "string"}},
    ]
    schema = {"type": "struct", "fields": [{"field": "after", "type": "struct", "fields": fields}]}
    row = {"price": "AyA=", "at": 1_767_225_600_000_000, "day": 20_454, "tags": []}
    key = {"schema": {"type": "struct", "fields": [{"field": "id", "type": "int64"}]}, "payload": {"id": 1}}
    contract, _ = infer(tmp_path, sample("item", [(key, {"schema": schema, "payload": change(1, **row)})]))
    topic = contract.topics["item"]
    assert topic.key == {"id": "bigint"}
    assert topic.value == {"price": "decimal(8,2)", "at": "timestamp", "day": "date", "tags": "ARRAY<STRING>"}


def with_schema(*fields: dict[str, Any], **row: Any) -> dict[str, Any]:
    """A change event with Connect's schema around it, whose rows have these fields."""
    after = [{"field": "id", "type": "int64"}, {"field": "name", "type": "string"}, *fields]
    schema = {"type": "struct", "fields": [{"field": "after", "type": "struct", "fields": after}]}
    return {"schema": schema, "payload": change(1, name="x", **row)}


def nested(depth: int) -> str:
    return '{"a": ' * depth + "1" + "}" * depth


INNER = [
    ({"field": "ann@example.com` x", "type": "string"}, "string"),
    ({"field": "ann@example.com", "type": "string"}, "string"),
    ({"field": "AKIAABCDEFGHIJKLMNOP", "type": "string"}, "string"),
    ({"field": "a\nb", "type": "string"}, "string"),
    ({"field": "x" * 101, "type": "string"}, "string"),
    ({"field": "CITY", "type": "string"}, "string"),
    ({"field": ["ann@example.com"], "type": "string"}, "string"),
    ({"type": "string"}, "string"),
    ({"field": "zip", "type": {"ann@example.com": 1}}, "STRUCT<city: STRING, zip: STRING>"),
]


@pytest.mark.parametrize(("inner", "kind"), INNER)
def test_names_within_the_schema_of_records_are_checked(tmp_path: Path, inner: dict[str, Any], kind: str) -> None:
    place = {"field": "place", "type": "struct", "fields": [{"field": "city", "type": "string"}, inner]}
    many = {"field": "places", "type": "array", "items": place}
    event = with_schema(place, many, place={}, places=[])
    contract, text = infer(tmp_path, sample("item", [({"id": 1}, event)]))
    value = contract.topics["item"].value
    assert (value["place"], value["places"]) == (kind, f"ARRAY<{kind if '<' in kind else kind.upper()}>")
    assert not [secret for secret in ("ann@", "AKIA", "xxx") if secret in text]


def test_a_schema_that_is_too_deep_for_a_type_gives_none(tmp_path: Path) -> None:
    kind: dict[str, Any] = {"type": "string"}
    for _ in range(30):
        kind = {"type": "array", "items": kind}
    contract, _ = infer(tmp_path, sample("item", [({"id": 1}, with_schema({**kind, "field": "deep"}, deep=[]))]))
    assert contract.topics["item"].value["deep"] == "string"


@pytest.mark.parametrize(
    ("parameters", "kind"),
    [
        ({"scale": "ann@example.com"}, "string"),
        ({"scale": "2", "connect.decimal.precision": "ann@example.com"}, "string"),
        ({"scale": "1" * 5_000}, "string"),
        ({"scale": True}, "string"),
        ({"scale": ["ann@example.com"]}, "string"),
        ({"scale": "-2"}, "decimal(38,0)"),
        ({"scale": "0", "connect.decimal.precision": "0"}, "string"),
        ({"scale": "99"}, "string"),
        ("ann@example.com", "string"),
    ],
)
def test_a_decimal_whose_schema_says_nonsense_is_what_its_values_are(
    tmp_path: Path, parameters: Any, kind: str
) -> None:
    price = {"field": "price", "type": "bytes", "name": "org.apache.kafka.connect.data.Decimal"}
    event = with_schema({**price, "parameters": parameters}, price="A+g=")
    contract, text = infer(tmp_path, sample("item", [({"id": 1}, event)]))
    assert contract.topics["item"].value["price"] == kind
    assert "ann@" not in text


@pytest.mark.parametrize("time", ["1" * 5_000, "1" * 20, "9223372036854775807", "1e5000", "-1", '"ann@example.com"'])
@pytest.mark.parametrize("unit", ["ts_ms", "ts_us", "ts_ns"])
def test_a_change_at_an_impossible_time_stops_nothing(tmp_path: Path, time: str, unit: str) -> None:
    event = json.dumps(change(1, name="x")).replace('"ts_ms": 1767225599999', f'"{unit}": {time}')
    assert time in event
    contract, _ = infer(tmp_path, sample("item", [({"id": 1}, event), ({"id": 2}, change(2, name="y"))]))
    assert contract.topics["item"].value == {"name": "string"}


def test_records_dated_at_impossible_times_stop_nothing(tmp_path: Path) -> None:
    _, text = infer(tmp_path, sample("t", [("k", {"a": 1})] * 3, times=[2**63 - 1, 0, -(2**63)]))
    assert "1 of 2 records are dated before one" in text


ODD = [
    nested(101),
    nested(900),
    nested(100_000),
    '{"a": ' + "[" * 900 + "]" * 900 + "}",
    '{"a": "\\u00e9", "b": ' + nested(900) + "}",
    json.dumps(with_schema(deep="DEEP")).replace('"DEEP"', nested(900)),
    json.dumps(with_schema({"field": "DEEP", "type": "struct"})).replace('"DEEP"', nested(900)),
]


@pytest.mark.parametrize("odd", ODD)
def test_a_record_that_is_nested_too_deeply_is_malformed(tmp_path: Path, odd: str) -> None:
    contract, text = infer(
        tmp_path, sample("t", [({"id": n}, change(n, name="x")) for n in range(99)] + [({"id": 0}, odd)])
    )
    assert contract.topics["t"].value == {"name": "string"}
    assert "1 texts that are not JSON objects (the first at partition 0, offset 99) would be malformed" in text
    assert find_form("t", "value", sample("t", [("k", nested(100))]).records, FormReader({})).form == "JSON object"


def test_avro_that_is_nested_too_deeply_is_malformed() -> None:
    node: Any = {"type": "record", "name": "Node", "fields": [{"name": "next", "type": ["null", "Node"]}]}
    assert AvroDecoder(node).decode(b"\2" * 50 + b"\0")
    with pytest.raises(ValueError, match="nested too deeply"):
        AvroDecoder(node).decode(b"\2" * 200 + b"\0")
    large = {"type": "bytes", "logicalType": "decimal", "precision": 8, "scale": 2}
    with pytest.raises(ValueError, match="is not Avro"):
        AvroDecoder(large).decode(wire(large | {"logicalType": "none"}, 1, b"\1" * 500_000)[5:])
    for scale in (-1, 10**9):
        with pytest.raises(ValueError, match=f"decimal of scale {scale:,}"):
            AvroDecoder(large | {"scale": scale})


def test_avro_with_more_items_than_bytes_is_not_read() -> None:
    nulls = AvroDecoder({"type": "array", "items": {"type": "array", "items": "null"}})
    assert nulls.decode(b"\2\x06\0\0") == [[None] * 3]
    with pytest.raises(ValueError, match="is not Avro"):
        nulls.decode(b"\xd0\x0f" + b"\xd0\x0f\0" * 1_000 + b"\0")


def test_a_number_of_a_million_digits_stops_nothing(tmp_path: Path) -> None:
    rows = ["1" * 1_010_000, "0." + "0" * 5_000 + "1", "-" + "1" * 5_000]
    for row in rows:
        contract, text = infer(tmp_path, sample("t", [("k", f'{{"a": {row}}}')]))
        assert contract.topics["t"].value["a"] in ("string", "double")
        assert len(text) < 2_000


def test_odd_records_stop_nothing_and_show_no_secret() -> None:
    """Change events in which any part is replaced by something odd: a contract, or an error of ours."""
    random = Random(6)  # noqa: S311  # a test's
    name = "ann@example.com` x"
    odd: list[Any] = [
        *(None, True, 0, -1, 10**19, 1.5, 1e300, "", name, "x" * 300, "2", "9" * 5_000, [], {}, [name]),
        *({name: 1}, {"a": {name: {}}}, {"fields": name}, [[[]]], [{"field": name}], [None], "struct", "array"),
    ]
    fields = [
        {
            "field": "price",
            "type": "bytes",
            "name": "org.apache.kafka.connect.data.Decimal",
            "parameters": {"scale": 2},
        },
        {"field": "at", "type": "int64", "name": "io.debezium.time.MicroTimestamp"},
        {"field": "place", "type": "struct", "fields": [{"field": "city", "type": "string"}]},
        {"field": "tags", "type": "array", "items": {"type": "struct", "fields": [{"field": "n", "type": "int32"}]}},
    ]
    row = {"price": "A+g=", "at": 5, "place": {"city": "x"}, "tags": [{"n": 1}]}

    def change_part(part: Any) -> Any:
        if random.random() < 0.04:
            return random.choice(odd)
        if isinstance(part, dict):
            return {(name if random.random() < 0.02 else n): change_part(it) for n, it in part.items()}
        return [change_part(it) for it in part] if isinstance(part, list) else part

    read = 0
    for _ in range(120):
        key = {"schema": {"type": "struct", "fields": [{"field": "id", "type": "int64"}]}, "payload": {"id": 1}}
        event = with_schema(*fields, **row)
        event["payload"]["source"]["ts_us"] = 5
        records = [(change_part(key), change_part(event)) for _ in range(2)]
        try:
            text = infer_contract([sample("item", records)], None, NOW)
        except RecordError as error:
            text = str(error)
        else:
            read += 1
        assert "ann@" not in text
        assert "xxx" not in text
    assert read > 40


ORDER = [{"name": "item", "type": "string"}, {"name": "quantity", "type": "int"}]
MORE = [
    {"name": "item", "type": "string"},
    {"name": "quantity", "type": "long"},
    {"name": "price", "type": {"type": "bytes", "logicalType": "decimal", "precision": 8, "scale": 2}},
    {"name": "sizes", "type": {"type": "map", "values": ["null", "double"]}},
]


def test_schemas_of_the_registry_give_exact_types(tmp_path: Path) -> None:
    first, second = ({"type": "record", "name": "Order", "fields": fields} for fields in (ORDER, MORE))
    more = {"item": "naan", "quantity": 2, "price": Decimal("1.25"), "sizes": {"s": 0.5}}
    records = [(wire("long", 3, n), wire(first, 1, {"item": "curry", "quantity": n})) for n in range(5)]
    records += [(wire("long", 3, n), wire(second, 2, more)) for n in range(5)]
    writers = {1: json.dumps(first), 2: json.dumps(second), 3: '"long"'}
    contract, text = infer(tmp_path, sample("orders", records, writers=writers))
    topic = contract.topics["orders"]
    assert (topic.key_format, topic.value_format, topic.key) == ("avro", "avro", {"key": "bigint"})
    assert topic.value == {
        "item": "string",
        "quantity": "bigint",
        "price": "decimal(8,2)",
        "sizes": "ARRAY<STRUCT<key: STRING, value: DOUBLE>>",
    }
    assert "in 5 of 10, absent in 5; by schema 2; not in 1 of 2 schemas" in text


def test_names_within_schemas_of_the_registry_are_checked(tmp_path: Path) -> None:
    inner = {"type": "record", "name": "Inner", "fields": [{"name": "AKIAABCDEFGHIJKLMNOP", "type": "int"}]}
    fields = [
        {"name": "a", "type": "int"},
        {"name": "place", "type": inner},
        {"name": "places", "type": {"type": "array", "items": "Inner"}},
    ]
    schema = json.dumps({"type": "record", "name": "Order", "fields": fields})
    read = sample("orders", [("k", b"\0\0\0\0\1" + b"\2\2\0")] * 3, writers={1: schema})
    contract, text = infer(tmp_path, read)
    assert contract.topics["orders"].value == {"a": "int"}
    assert "the field places is left out: a name within it" in text
    assert "AKIA" not in text


def test_avro_is_decoded_as_it_was_written() -> None:
    point = {"type": "record", "name": "Point", "namespace": "geo", "fields": [{"name": "x", "type": "float"}]}
    schema = {
        "type": "record",
        "name": "All",
        "namespace": "geo",
        "fields": [
            {"name": "long", "type": ["null", "long"]},
            {"name": "first", "type": point},
            {"name": "others", "type": {"type": "array", "items": "Point"}},
            {"name": "kind", "type": {"type": "enum", "name": "Kind", "symbols": ["A", "B"]}},
            {"name": "raw", "type": {"type": "fixed", "name": "Raw", "size": 2}},
            {"name": "fine", "type": "boolean"},
        ],
    }
    value = {"long": -(1 << 40), "first": {"x": 1.5}, "others": [{"x": 2.0}], "kind": "B", "raw": b"ab", "fine": True}
    raw = wire(schema, 1, value)[5:]
    expected = {**value, "long": str(-(1 << 40)), "first": {"x": "1.5"}, "others": [{"x": "2.0"}]}
    assert AvroDecoder(schema).decode(raw) == expected
    for wrong in (raw[:-1], raw + b"x", b""):
        with pytest.raises(ValueError, match="is not Avro of this schema"):
            AvroDecoder(schema).decode(wrong)


def test_a_few_records_of_another_format_may_be_malformed(tmp_path: Path) -> None:
    records: list[tuple[Any, Any]] = [("k", {"a": 1})] * 98
    contract, text = infer(tmp_path, sample("t", [*records[:50], ("k", "curry"), *records[50:], ("k", b"\xff")]))
    assert contract.topics["t"].max_malformed == "4%"
    assert "1 texts that are not JSON objects (the first at partition 0, offset 50)" in text
    assert "1 byte strings that are not text (the first at partition 0, offset 99) would be malformed" in text
    assert "curry" not in text


LARGE = ["1e400", "1" * 1_001, "0." + "1" * 1_001, f'1, "{"x" * 50_001}": 1']


@pytest.mark.parametrize("number", LARGE)
def test_records_with_what_no_column_takes_may_be_malformed(tmp_path: Path, number: str) -> None:
    rows = [{"a": 1, "b": n} for n in range(97)]
    odd = [("k", f'{{"b": 1, "a": {number}}}'), ("k", "curry"), ("k", f'{{"a": {number}}}')]
    contract, text = infer(tmp_path, sample("t", [*(("k", row) for row in rows), *odd]))
    topic = contract.topics["t"]
    assert (topic.value["b"], topic.max_malformed) == ("int", "6%")
    assert "; 2 records with what no type of a column takes (the first at partition 0, offset 97) would be" in text


@pytest.mark.parametrize("place", [0, 150])
def test_a_column_that_some_values_do_not_fit_has_a_type_that_takes_them(tmp_path: Path, place: int) -> None:
    logical = {"at": ("int64", "MicroTimestamp", 9_223_372_036_825_200_000), "day": ("int32", "Date", 2_147_483_647)}
    fields = [
        {"field": it, "type": kind, "name": f"io.debezium.time.{name}"} for it, (kind, name, _) in logical.items()
    ]
    fields.append({**fields[0], "field": "since"})
    rows = [{"at": 1, "day": 1, "since": 1} for _ in range(200)]
    rows[place] |= {name: odd for name, (*_, odd) in logical.items()}
    records = [({"id": n}, with_schema(*fields, **row)) for n, row in enumerate(rows)]
    contract, text = infer(tmp_path, sample("t", records))
    topic = contract.topics["t"]
    assert topic.value == {"name": "string", "at": "bigint", "day": "bigint", "since": "timestamp"}
    assert topic.max_malformed == 0
    assert "MicroTimestamp; bigint, as not all values fit timestamp" in text


@pytest.mark.parametrize(
    ("odd", "found"),
    [
        ({"type": "record", "name": "Heartbeat", "fields": []}, "it has none of the columns"),
        ("int", "it writes int, not a record"),
    ],
)
def test_a_schema_that_fits_no_contract_with_the_others_is_refused(tmp_path: Path, odd: Any, found: str) -> None:
    schema = {"type": "record", "name": "Order", "fields": ORDER}
    records = [("k", wire(schema, 1, {"item": "curry", "quantity": n})) for n in range(9)]
    records.append(("k", wire(odd, 2, 5 if odd == "int" else {})))
    with pytest.raises(RecordError, match=f"schema 2 of the value does not fit the columns of the others: {found}"):
        infer(tmp_path, sample("orders", records, writers={1: json.dumps(schema), 2: json.dumps(odd)}))


@pytest.mark.parametrize(
    ("key", "form"),
    [
        (lambda n: f"k{n}", "text"),
        (lambda n: f'"{n}"', "text"),
        (lambda n: n.to_bytes(8), "bigint"),
        (lambda n: {"schema": {"type": "int32"}, "payload": n}, "single values"),
    ],
)
def test_change_events_whose_keys_are_no_objects_are_refused(tmp_path: Path, key: Any, form: str) -> None:
    records = [(key(n), change(n, name="x")) for n in range(9)]
    with pytest.raises(RecordError, match=f"the keys of the change events are {form}, not objects") as error:
        infer(tmp_path, sample("t", records))
    assert "remove ExtractField$Key" in str(error.value)


REFUSED = [
    (
        [("k", {"a": 1})] * 9 + [("k", "curry")],
        "9 JSON objects (the first at partition 0, offset 0), 1 texts that are not JSON objects (the first at partit",
    ),
    ([("k", None)] * 3, "all 3 records read are tombstones"),
    ([({"id": 1}, change(1, "d"))], "the change events have no row"),
    ([("k", {})], "no value has a field for a column"),
]


@pytest.mark.parametrize(("records", "found"), REFUSED)
def test_what_no_contract_can_read_is_refused(tmp_path: Path, records: list[tuple[Any, Any]], found: str) -> None:
    with pytest.raises(RecordError) as error:
        infer(tmp_path, sample("t", records))
    assert found in str(error.value)
    assert "what to do: " in str(error.value)


def test_records_without_keys_are_a_stream(tmp_path: Path) -> None:
    contract, text = infer(tmp_path, sample("t", [(None, {"a": 1})] * 3))
    assert (contract.topics["t"].read, contract.topics["t"].key) == ("stream", {"key": "string"})
    assert "null in all of 3 records" in text


def test_a_table_names_its_records_without_keys(tmp_path: Path) -> None:
    _, text = infer(tmp_path, sample("t", [(None, {"a": 1}), ("k", {"a": 1}), ("k", None)]))
    assert "1 record without a key would be refused (null_key)" in text


def test_lateness_gives_a_retention(tmp_path: Path) -> None:
    hour = 3_600_000
    times = [1000 * hour + n * 60_000 for n in range(100)] + [972 * hour]
    table = sample("t", [("k", {"a": n}) for n in range(101)], compacted=True, times=times)
    contract, text = infer(tmp_path, table)
    assert contract.topics["t"].history_retention is None, "proposed, not in force"
    assert "# history_retention: 3 days" in text
    lateness = topic_facts.measure_lateness((0, at) for at in times)
    assert (lateness.late, lateness.p99, lateness.most) == (1, timedelta(0), timedelta(hours=29, minutes=39))


def test_a_column_dates_records_that_kafka_does_not(tmp_path: Path) -> None:
    rows = [("k", {"created_at": 1_767_225_600_000 + n}) for n in range(3)]
    contract, _ = infer(tmp_path, sample("t", rows, times=[-1, -1, -1]))
    assert contract.topics["t"].valid_time == "timestamp_millis(created_at)"
    contract, text = infer(tmp_path, sample("t", rows))
    assert contract.topics["t"].valid_time is None
    assert "# valid_time: timestamp_millis(created_at)" in text


def test_the_partitioner_is_recognised() -> None:
    def place(n: int, partition: int) -> SampledRecord:
        return SampledRecord(partition, n, 0, "CreateTime", b"k%d" % n, b"{}")

    ranges = dict.fromkeys(range(4), OffsetRange(0, 100))
    by_murmur2 = assign_partitions(pa.array([b"k%d" % n for n in range(50)]), 4).to_pylist()
    placed = {
        "murmur2": by_murmur2,
        "crc32": [crc32(b"k%d" % n) % 4 for n in range(50)],
        "": [n % 4 for n in range(50)],
    }
    for name, partitions in placed.items():
        records = tuple(place(n, partition) for n, partition in enumerate(partitions))
        assert topic_facts.find_partitioner(TopicSample("t", ranges, False, records)) == name
        assert topic_facts.find_partitioner(TopicSample("t", ranges, False, records[:5])) is None


def test_names_of_persons_are_sensitive(tmp_path: Path) -> None:
    rows = [("k", {"name": "Ann", "city": "Bonn"})] * 3
    assert infer(tmp_path, sample("shop.user-events", rows))[0].topics["user_events"].sensitive == ("name",)
    assert infer(tmp_path, sample("shop.items", rows))[0].topics["items"].sensitive is False


WORDS = [
    *("null", "NULL", "Null", "true", "True", "false", "yes", "No", "on", "OFF", "y", "N", "12", "1.5", "1e3", "0x1f"),
    *("2026-01-01", ".nan", ".inf", "-1", "_", "shop.orders-v2"),
]


@pytest.mark.parametrize("topic", WORDS)
def test_names_that_are_words_of_yaml_stay_names(tmp_path: Path, topic: str) -> None:
    field = f"-{topic}"
    contract, _ = infer(tmp_path, sample(topic, [("k", {field: 1, "a": 1})]))
    (entry,) = contract.topics.values()
    assert entry.topic == topic
    (name,) = {*entry.value} - {"a"}
    assert entry.renamed == {name: (field,)}
    day = {"field": topic, "type": "int32", "name": "io.debezium.time.Date"}
    schema = {"type": "struct", "fields": [{"field": "after", "type": "struct", "fields": [day]}]}
    event = {"schema": schema, "payload": change(1, **{topic: 9, "b": 1})}
    contract, text = infer(tmp_path, sample(topic, [({"id": 1}, event)]))
    (entry,) = contract.topics.values()
    assert (entry.topic, entry.value.get(topic, "date")) == (topic, "date")
    assert [it["topic"] for it in yaml.safe_load(text)["topics"].values()] == [topic], "also to YAML 1.1"


def test_names_come_from_topics() -> None:
    assert choose_names(["shop.orders"], None) == ("shop", {"shop.orders": "orders"})
    assert choose_names(["a.logs", "b.logs"], None) == ("logs_topic", {"a.logs": "logs_topic", "b.logs": "b_logs"})
    assert choose_names(["4711"], None) == ("topic", {"4711": "topic"})
    assert choose_names(["OrderEvents"], "mine") == ("mine", {"OrderEvents": "order_events"})


def test_a_sample_is_spread_over_partitions() -> None:
    ranges = {0: OffsetRange(0, 1_000_000), 1: OffsetRange(10, 20), 2: OffsetRange(5, 5), 3: OffsetRange(0, 5_000)}
    parts = plan_sample(ranges, 10_000)
    read = [r for part in parts for r in part.values()]
    assert sum(r.end - r.start for r in read) <= 10_000
    assert parts[0][1] == (10, 20)
    assert [part[0] for part in parts] == [(0, 1665), (499_167, 500_832), (998_335, 1_000_000)]
    assert plan_sample({n: OffsetRange(0, 100) for n in range(50)}, 50)[0] == dict.fromkeys(range(50), (0, 1))


def send(servers: str, topic: str, records: Iterable[tuple[Any, Any]], partitions: int = 1, **config: str) -> None:
    produce.create_topics(servers, topic, partitions=partitions, config=config)
    timed = (
        ProducerRecord(encode(key), encode(value), BEGIN + timedelta(seconds=n), (("trace", b"1"),))
        for n, (key, value) in enumerate(records)
    )
    produce.send_records(servers, topic, timed)


@pytest.fixture
def kafka(broker: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> str:
    monkeypatch.setenv("HINDCAST_KAFKA", broker)
    monkeypatch.setenv("HINDCAST_VAR", str(tmp_path / "var"))
    return broker


def test_topics_in_kafka_become_a_contract(kafka: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    send(
        kafka,
        "infer.items",
        [(f"i{n % 40}", {"price": n / 4} if n % 9 else None) for n in range(200)],
        3,
        **{"cleanup.policy": "compact"},
    )
    send(kafka, "infer.sold", [(f"o{n}", {"item": f"i{n % 50}", "email": "ann@x.org"}) for n in range(200)])
    path = tmp_path / "infer.yaml"
    assert main(["infer", "infer.items", "infer.sold", "--out", str(path)]) == 0
    assert main(["check", str(path)]) == 0
    assert "2 topics, 1 view, fine" in capsys.readouterr().out
    contract = load(path)
    assert {name: topic.read for name, topic in contract.topics.items()} == {"items": "table", "sold": "stream"}
    assert contract.topics["sold"].sensitive == ("email",)
    assert contract.views["sold_items"].join is not None
    text = path.read_text()
    assert "ann@" not in text
    assert "infer.items: all 200 records of 3 partitions" in text
    assert "the producer's (CreateTime) in 200; 2026-01-01 00:00:00 to 2026-01-01 00:03:19" in text
    assert "trace in 200" in text
    assert main(["infer", "infer.sold", "--out", str(path)]) == 1, "nothing is overwritten"
    assert path.read_text() == text


def test_names_of_headers_that_are_no_text_stop_nothing(kafka: str, capsys: pytest.CaptureFixture[str]) -> None:
    send(kafka, "infer_headers", [("k", {"n": 1})])
    send_with_header(kafka, "infer_headers", b"\xff\xfeabc")
    send_with_header(kafka, "infer_headers", b"origin")
    assert main(["infer", "infer_headers"]) == 0
    printed = capsys.readouterr().out
    assert "# headers, which the columns in `headers:` can read: trace in 1, origin in 1\n" in printed
    assert "# 1 record has headers whose names are not UTF-8 text; they were not read\n" in printed
    assert '"n": int # in 3 of 3' in printed


def send_with_header(servers: str, topic: str, name: bytes) -> None:
    """Send a record with a header of this name, which Python's client takes only as text: with the C library in it."""
    (path,) = Path(confluent_kafka.__file__).parents[1].glob("confluent_kafka.libs/librdkafka*")
    library = ctypes.CDLL(str(path))
    for function in (library.rd_kafka_conf_new, library.rd_kafka_new, library.rd_kafka_topic_new):
        function.restype = ctypes.c_void_p
    library.rd_kafka_headers_new.restype = ctypes.c_void_p
    conf = ctypes.c_void_p(library.rd_kafka_conf_new())
    error = ctypes.create_string_buffer(512)
    assert library.rd_kafka_conf_set(conf, b"bootstrap.servers", servers.encode(), error, len(error)) == 0, error.value
    producer = ctypes.c_void_p(library.rd_kafka_new(_PRODUCER, conf, error, len(error)))
    headers = ctypes.c_void_p(library.rd_kafka_headers_new(1))
    library.rd_kafka_header_add(headers, name, len(name), b"v", 1)
    value = b'{"n": 2}'
    of_topic, of_value = (_TOPIC, topic.encode()), (_VALUE, value, ctypes.c_size_t(len(value)))
    assert library.rd_kafka_producev(producer, *of_topic, *of_value, _COPY, _COPIED, _HEADERS, headers, 0) == 0
    assert library.rd_kafka_flush(producer, 30_000) == 0
    library.rd_kafka_destroy(producer)


_PRODUCER, _TOPIC, _VALUE, _COPY, _COPIED, _HEADERS = 0, 1, 4, 7, 2, 10
"""Numbers of the C library: of a producer, and of the arguments of rd_kafka_producev."""


def test_change_events_in_kafka_become_a_table(kafka: str, capsys: pytest.CaptureFixture[str]) -> None:
    events = [({"id": n}, change(n, name=f"item {n}", token=f"t{n}")) for n in range(9)]
    send(kafka, "infer.public.item", [*events, ({"id": 1}, change(1, "d")), ({"id": 1}, None)])
    assert main(["infer", "infer.public.item"]) == 0
    text = capsys.readouterr().out
    assert "read: table # change events of a database's table" in text
    assert "envelope: debezium # in 10 values" in text
    assert "9 rows, 1 delete" in text
    assert "sensitive: [token] # token: by name" in text


def test_a_large_topic_is_read_at_three_places(kafka: str, capsys: pytest.CaptureFixture[str]) -> None:
    send(kafka, "infer.large", ((str(n), {"n": n}) for n in range(30_000)))
    assert main(["infer", "infer.large", "--records", "300"]) == 0
    text = capsys.readouterr().out
    assert "300 records of 30,000 offsets in 1 partition, at the beginning, the middle and the end" in text
    assert "whole numbers 0 to 29,999" in text or "the field n of the value is left out: it is the key's" in text


BAD = [
    ("infer.empty", [], "the topic has no records", "hindcast produce infer.empty FILE"),
    ("infer.mixed", [("k", {"a": 1}), ("k", "curry")], "different formats: 1 JSON objects", "to a topic of its own"),
    ("infer.tombs", [("k", None)], "tombstones: they have no value", "infer it again"),
    (
        "infer.avro",
        [("k", b"\0\0\0\0\7\2a")] * 3,
        "names schema 7, and there is no schema registry",
        "HINDCAST_SCHEMA_",
    ),
]


@pytest.mark.parametrize(("topic", "records", "found", "fix"), BAD)
def test_bad_input_gets_a_clear_answer(
    kafka: str, capsys: pytest.CaptureFixture[str], topic: str, records: list[tuple[Any, Any]], found: str, fix: str
) -> None:
    send(kafka, topic, records)
    assert main(["infer", topic]) == 1
    shown = capsys.readouterr()
    assert found in shown.err
    assert fix in shown.err
    assert not shown.out
    assert "curry" not in shown.err


def test_an_unknown_topic_names_its_like(kafka: str, capsys: pytest.CaptureFixture[str]) -> None:
    send(kafka, "infer.known", [("k", {"a": 1})])
    assert main(["infer", "infer.knwon"]) == 1
    shown = capsys.readouterr().err
    assert "infer.knwon: the topic does not exist" in shown
    assert "did you mean 'infer.known'?" in shown


@pytest.mark.usefixtures("kafka")
@pytest.mark.parametrize("name", ["Shop", "1x", ""])
def test_a_pipeline_has_a_valid_name(capsys: pytest.CaptureFixture[str], name: str) -> None:
    assert main(["infer", "infer.any", "--pipeline", name]) == 1
    assert "is not a valid name of a pipeline" in capsys.readouterr().err


def test_avro_is_read_with_the_registry(
    kafka: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    schema = {"type": "record", "name": "Order", "fields": ORDER}
    with peer() as url:
        id_ = register(url, "orders-value", schema)
        send(kafka, "infer.wire", [("k", wire(schema, id_, {"item": "curry", "quantity": 2}))] * 3)
        monkeypatch.setenv("HINDCAST_SCHEMA_REGISTRY", url)
        assert main(["infer", "infer.wire"]) == 0
    text = capsys.readouterr().out
    assert "value_format: avro" in text
    assert "quantity: int # in 3 of 3; by schema 1" in text


MOMENTS = [
    *("2026-01-01", "2026-01-01T10:00", "2026-01-01 10:00:00", "2026-01-01T10:00:00.123456789Z"),
    *("2026-01-01T10:00:00+17:59", "2026-01-01T10:00:00-08:30", "2026-01-01T10:00Z", "2026-01-01T10:00:00+18:30"),
    *("2026-01-01T24:00:00Z", "2026-01-01T23:59:60Z", "2026-02-30T10:00:00Z", "0000-01-01T00:00:00Z", "12:30"),
    *("2026-01-01T10", "20260101T100000Z", "2026-01-01T10:00:00 Z", "0001-01-01T00:00:00Z", "9999-12-31T23:59:59Z"),
]

DECODED: list[list[tuple[Any, Any]]] = [
    [
        (
            "k",
            '{"price": 8.50, "at": "2026-01-01T10:00:00Z", "both": 1, "o-id": 1, "a.b": 2, "deep": {"x": 1}}',
        ),
        ("k", '{"price": "12.5", "at": "2026-01-01", "tags": ["a", null], "both": {"y": [1]}, "deep": {"z y": "q"}}'),
        ("k", '{"price": null, "big": 2147483648, "huge": 99999999999999999999, "tiny": 1e-300, "timestamp": true}'),
    ],
    [("k", {f"t{n}": text for n, text in enumerate(MOMENTS)})],
    [(b"\0\0\0\7", (5).to_bytes(8)), (b"\0\0\0\7", (1 << 40).to_bytes(8))],
    [('{"id": 1, "b": "x"}', "curry"), ('{"id": 2, "b": "y"}', "[1]")],
    [({"id": n}, change(n, price=8.5 if n else 1000, note="x", deep={"date": "2026-01-01"})) for n in range(3)],
]


WRITERS = [
    {"type": "record", "name": "Order", "fields": ORDER},
    {"type": "record", "name": "Order", "fields": [*MORE, {"name": "_id", "type": ["null", "string"]}]},
    "long",
]
DECODED_AVRO = [
    (wire("long", 2, 5), wire(WRITERS[0], 0x100, {"item": "curry", "quantity": 1})),
    (
        wire("long", 2, 6),
        wire(WRITERS[1], 1, {"item": "naan", "quantity": 2, "price": Decimal(8), "sizes": {"s": None}}),
    ),
]


@pytest.mark.parametrize("records", [*DECODED, DECODED_AVRO])
def test_spark_decodes_every_record_that_was_seen(
    spark: SparkSession, tmp_path: Path, records: list[tuple[Any, Any]]
) -> None:
    from hindcast.formats import spark_decoding
    from hindcast.kafka.topics import RECORD_SCHEMA

    schemas = dict(zip((0x100, 1, 2), map(json.dumps, WRITERS), strict=True))
    read = sample("t", records, writers=schemas if records is DECODED_AVRO else {})
    contract, text = infer(tmp_path, read)
    rows = [
        (0, r.offset, BEGIN, 0, r.key and bytearray(r.key), r.value and bytearray(r.value), []) for r in read.records
    ]
    frame = spark.createDataFrame(rows, RECORD_SCHEMA)
    writers: Any = {"key": schemas, "value": schemas}
    decoded = spark_decoding.decode_records(frame, contract.topics["t"], NOW, writers=writers)
    found = decoded.select("fate", "reason").collect()
    assert [tuple(row) for row in found] == [(None, None)] * len(records), text
