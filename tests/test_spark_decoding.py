"""Bytes into keys and values, and the fate of what cannot be decoded."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import TYPE_CHECKING, Any

from hindcast.contract import Topic
from hindcast.formats.spark_decoding import decode_records

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
LATEST = datetime(2026, 1, 2, tzinfo=UTC)

MENU = Topic.model_validate(
    {"read": "table", "key": {"item": "string"}, "value": {"price": "decimal(8,2)", "n": "int"}}
)
ORDERS = Topic.model_validate({"read": "stream", "key": {"customer": "string"}, "value": {"item": "string"}})
SEATS = Topic.model_validate({"read": "table", "key": {"row": "int", "seat": "string"}, "value": {"free": "boolean"}})
COUNTERS = Topic.model_validate({"read": "table", "key": {"id": "bigint"}, "value": {"n": "int"}})
READINGS = Topic.model_validate(
    {
        "read": "stream",
        "key": {"id": "binary"},
        "value": {
            "at": "timestamp",
            "day": "date",
            "temp": "double",
            "tags": "array<string>",
            "place": "struct<x: int>",
        },
    }
)

Record = tuple[str, datetime, bytes | None, bytes | None]
"""The rule, the timestamp, key and value as sent."""
Outcome = tuple[Any, Any, str | None]
"""Key and value as tuples, the fate."""

NULLS = (None, None)


def decoded(spark: SparkSession, topic: Topic, records: list[Record]) -> dict[Record, tuple[Outcome, str | None]]:
    """What each record became, and the reason."""
    rows = [(n, *record[1:]) for n, record in enumerate(records)]
    sent = spark.createDataFrame(rows, "n int, timestamp timestamp, key binary, value binary").coalesce(1)
    read = decode_records(sent, topic, LATEST)
    found = sorted(read.collect(), key=lambda row: row.n)
    told = [((r.key and tuple(r.key), r.value and tuple(r.value), r.fate), r.reason) for r in found]
    return dict(zip(records, told, strict=True))


def outcomes(spark: SparkSession, topic: Topic, cases: dict[Record, Outcome]) -> dict[Record, Outcome]:
    return {record: outcome for record, (outcome, _) in decoded(spark, topic, list(cases)).items()}


EIGHT = (Decimal("8.00"), None)
MINUTE = timedelta(minutes=1)
OBJECT = "a value is a JSON object of the contract's columns"
ELSE = "anything else is malformed"
SKEW = "a record dated after the latest moment is time_skew, one at it is not"
TIMELESS = "a record without a timestamp is no_timestamp, whatever else is wrong"
MINUS_ONE = datetime(1970, 1, 1, tzinfo=UTC) - timedelta(milliseconds=1)


def test_values_and_fates_of_a_table(spark: SparkSession) -> None:
    bad = (("curry",), None, "malformed")
    cases: dict[Record, Outcome] = {
        (OBJECT, NOON, b"curry", b'{"price": 8}'): (("curry",), EIGHT, None),
        (OBJECT, NOON, b"curry", b'{"price": "8"}'): (("curry",), EIGHT, None),
        (OBJECT, NOON, b"curry", b' \t{"price": 8}\r\n'): (("curry",), EIGHT, None),
        (OBJECT, NOON, b"curry", b'{"price": 8, "n": 3}'): (("curry",), (Decimal("8.00"), 3), None),
        (OBJECT, NOON, b"curry", b'{"price": 8, "unknown": [1]}'): (("curry",), EIGHT, None),
        (OBJECT, NOON, b"curry", b'{"n": null}'): (("curry",), NULLS, None),
        (OBJECT, NOON, b"curry", b"{}"): (("curry",), NULLS, None),
        (ELSE, NOON, b"curry", b""): bad,
        (ELSE, NOON, b"curry", b"8"): bad,
        (ELSE, NOON, b"curry", b"null"): bad,
        (ELSE, NOON, b"curry", b'"price"'): bad,
        (ELSE, NOON, b"curry", b"[]"): bad,
        (ELSE, NOON, b"curry", b'[{"price": 8}]'): bad,
        (ELSE, NOON, b"curry", b"{"): bad,
        (ELSE, NOON, b"curry", b'{"price": 8'): bad,
        (ELSE, NOON, b"curry", b"{'price': 8}"): bad,
        (ELSE, NOON, b"curry", b'{"price": 8,}'): bad,
        (ELSE, NOON, b"curry", b'{"price": "eight"}'): bad,
        (ELSE, NOON, b"curry", b'{"price": 1000000}'): bad,
        (ELSE, NOON, b"curry", b'{"price": [8]}'): bad,
        (ELSE, NOON, b"curry", b'{"n": 1.5}'): bad,
        (ELSE, NOON, b"curry", b'{"n": 3000000000}'): bad,
        (ELSE, NOON, b"curry", b'{"n": true}'): bad,
        (ELSE, NOON, b"curry", b'{"price": 8} and more'): bad,
        (ELSE, NOON, b"curry", b'{"price": 8}{"price": 9}'): bad,
        (ELSE, NOON, b"curry", b'{"price": 8},{"price": 9}'): bad,
        (ELSE, NOON, b"curry", b'{"price": 8}, "more": {"price": 9}'): bad,
        (ELSE, NOON, b"curry", b'{"price": 8}, "": {"price": 9}'): bad,
        (ELSE, NOON, b"curry", b'{"price": 8}], [{}'): bad,
        (ELSE, NOON, b"curry", b'{"price": 8}}, "_": {"": {"price": 9}'): bad,
        (ELSE, NOON, b"curry", b'{"price": 8}}} {"more": {"": {}'): bad,
        (ELSE, NOON, b"curry", b'{"price": "\xff"}'): bad,
        (ELSE, NOON, b"curry", b'\x00\x00\x00\x00\x01{"price": 8}'): bad,
        ("a null value stays null", NOON, b"curry", None): (("curry",), None, None),
        ("a string key is its text", NOON, "Käse\n".encode(), b"{}"): (("Käse\n",), NULLS, None),
        ("an empty key is a key", NOON, b"", b"{}"): (("",), NULLS, None),
        ("a key that is not UTF-8 is malformed", NOON, b"\xff", b"{}"): (None, NULLS, "malformed"),
        ("a table's record needs a key", NOON, None, b"{}"): (None, NULLS, "null_key"),
        (SKEW, LATEST, b"curry", b"{}"): (("curry",), NULLS, None),
        (SKEW, LATEST + MINUTE, b"curry", b"{}"): (("curry",), NULLS, "time_skew"),
        ("malformed goes before time_skew", LATEST + MINUTE, b"curry", b"{"): bad,
        ("null_key goes before time_skew", LATEST + MINUTE, None, b"{}"): (None, NULLS, "null_key"),
        (TIMELESS, MINUS_ONE, b"curry", b"{}"): (("curry",), NULLS, "no_timestamp"),
        (TIMELESS, MINUS_ONE, None, b"{"): (None, None, "no_timestamp"),
        ("the epoch is a timestamp", MINUS_ONE + timedelta(milliseconds=1), b"curry", b"{}"): (("curry",), NULLS, None),
    }
    assert outcomes(spark, MENU, cases) == cases


def test_an_event_needs_no_key(spark: SparkSession) -> None:
    cases: dict[Record, Outcome] = {("", NOON, None, b'{"item": "curry"}'): (None, ("curry",), None)}
    assert outcomes(spark, ORDERS, cases) == cases


def test_a_typed_key(spark: SparkSession) -> None:
    cases: dict[Record, Outcome] = {
        ("", NOON, b"42", b"{}"): ((42,), (None,), None),
        ("", NOON, b"4x", b"{}"): (None, (None,), "malformed"),
        ("", NOON, b"", b"{}"): (None, (None,), "malformed"),
    }
    assert outcomes(spark, COUNTERS, cases) == cases


def test_a_key_of_several_columns_is_a_json_object(spark: SparkSession) -> None:
    cases: dict[Record, Outcome] = {
        ("", NOON, b'{"row": 1, "seat": "b"}', b"{}"): ((1, "b"), (None,), None),
        ("", NOON, b'{"row": "one", "seat": "b"}', b"{}"): (None, (None,), "malformed"),
        ("", NOON, b"1b", b"{}"): (None, (None,), "malformed"),
    }
    assert outcomes(spark, SEATS, cases) == cases


def test_times_lists_and_structs_are_typed_as_the_contract_says(spark: SparkSession) -> None:
    id_ = (bytearray(b"\xff"),)
    four = datetime(2026, 1, 1, 4)  # noqa: DTZ001  # Spark's Python side gives local times; they are UTC
    bad = (id_, None, "malformed")
    cases: dict[Record, Outcome] = {
        ("", NOON, b"\xff", b'{"at": "2026-01-01T06:00:00+02:00"}'): (id_, (four, None, None, None, None), None),
        ("", NOON, b"\xff", b'{"day": "2026-01-01"}'): (id_, (None, date(2026, 1, 1), None, None, None), None),
        ("", NOON, b"\xff", b'{"temp": 1e3}'): (id_, (None, None, 1000.0, None, None), None),
        ("", NOON, b"\xff", b'{"tags": ["a", null]}'): (id_, (None, None, None, ["a", None], None), None),
        ("", NOON, b"\xff", b'{"place": {"x": 1}}'): (id_, (None, None, None, None, (1,)), None),
        ("", NOON, b"\xff", b'{"at": "yesterday"}'): bad,
        ("", NOON, b"\xff", b'{"day": "2026-02-30"}'): bad,
        ("", NOON, b"\xff", b'{"tags": "a"}'): bad,
        ("", NOON, b"\xff", b'{"tags": [{}, 1'): bad,
        ("", NOON, b"\xff", b'{"place": {"x": "east"}}'): bad,
    }
    assert outcomes(spark, READINGS, cases) == cases


def test_the_reason_says_what_was_expected_and_shows_what_was_found(spark: SparkSession) -> None:
    cases: dict[Record, str | None] = {
        ("", NOON, b"42", b'{"n": "x"}'): 'the value is not a JSON object of `n` int: {"n": "x"}',
        ("", NOON, b"42", b"x" * 201): f"the value is not a JSON object of `n` int: {'x' * 200}...",
        ("", NOON, b"4x", b"{}"): "the key is not bigint: 4x",
        ("a reason is UTF-8", NOON, b"\xff", b"{}"): "the key is not bigint: \ufffd",
        ("", NOON, None, b"{}"): "a table's record needs a key",
        (
            "",
            LATEST + MINUTE,
            b"42",
            b"{}",
        ): "dated after 2026-01-02T00:00:00+00:00, the run's known-at plus max_time_skew",
        ("", MINUS_ONE, b"42", b"{}"): "the record has no timestamp",
        ("", NOON, b"42", b"{}"): None,
    }
    assert {record: reason for record, (_, reason) in decoded(spark, COUNTERS, list(cases)).items()} == cases
