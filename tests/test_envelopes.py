"""Change events of Debezium: what an envelope says of a row, and when."""

from __future__ import annotations

import json
from datetime import date, datetime, timedelta
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from hindcast.bitemporal.intervals import to_micros
from hindcast.common.errors import ContractError
from hindcast.contract import Topic, load
from hindcast.contract.avro_compatibility import parse_declared_type
from hindcast.formats import envelopes
from hindcast.formats.json.columns import arrow_type
from hindcast.formats.spark_decoding import decode_records
from pipelines import T0, at, pipeline
from test_spark_decoding import LATEST, NOON

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

pytestmark = pytest.mark.connect

T = 1_767_225_600_000
"""Second 0, T0, in milliseconds."""

ITEM = Topic.model_validate(
    {
        "read": "table",
        "envelope": "debezium",
        "key": {"id": "int"},
        "value": {"name": "string", "n": "int", "op": "string", "lsn": "bigint", "tx": "string", "sent": "timestamp"},
        "metadata": {"op": "op", "lsn": "source.lsn", "tx": "transaction.id", "sent": "ts_ms"},
    }
)

Row = dict[str, Any] | None


def event(op: str | None, after: Row = None, second: float = 0, **more: Any) -> dict[str, Any]:
    """A change event as Debezium for PostgreSQL 3.2 writes it, without schemas."""
    us = T * 1000 + int(second * 1_000_000)
    source = {"connector": "postgresql", "ts_ms": us // 1000, "ts_us": us, "ts_ns": us * 1000, "lsn": 7, "txId": 3}
    told = {"before": None, "after": after, "source": source, "transaction": None, "op": op, "ts_ms": us // 1000 + 500}
    return {**told, **more}


def schemed(event: dict[str, Any], fields: list[dict[str, Any]]) -> dict[str, Any]:
    """The same with its schema: `schemas.enable`."""
    parts = [{"field": part, "type": "struct", "fields": fields} for part in ("before", "after")]
    return {"schema": {"type": "struct", "fields": [*parts, {"field": "op", "type": "string"}]}, "payload": event}


def keyed(payload: dict[str, Any]) -> dict[str, Any]:
    return {"schema": {"type": "struct", "fields": [{"type": "int32", "field": "id"}]}, "payload": payload}


def decoded(spark: SparkSession, topic: Topic, records: list[tuple[Any, Any]], sent: datetime = NOON) -> list[Any]:
    """What records, all sent at one time, became: rows of `decode`."""
    rows = [(n, sent, *(part if part is None else _bytes(part) for part in record)) for n, record in enumerate(records)]
    frame = spark.createDataFrame(rows, "n int, timestamp timestamp, key binary, value binary").coalesce(1)
    return sorted(decode_records(frame, topic, LATEST).collect(), key=lambda row: row.n)


def _bytes(part: Any) -> bytes:
    return part if isinstance(part, bytes) else json.dumps(part).encode()


NOT_SENT = (
    "column name did not come: it was not changed, and the database sends only what was (REPLICA IDENTITY FULL sends "
    "all)"
)
ROW = {"id": 1, "name": "curry", "n": 5}
ONE = {"id": 1}
NO_SOURCE = {"source": None}


def test_what_an_event_says_of_its_row(spark: SparkSession) -> None:
    nulls = (None, None)
    sent = (T0 + timedelta(milliseconds=500)).replace(tzinfo=None)
    row = ("curry", 5)
    cases: dict[str, tuple[Any, Any, Any]] = {
        "c: an insert": (ONE, event("c", ROW), (*row, "c", 7, None, sent)),
        "u: an update": (ONE, event("u", ROW), (*row, "u", 7, None, sent)),
        "r: a snapshot": (ONE, event("r", ROW), (*row, "r", 7, None, sent)),
        "d: a tombstone": (ONE, event("d"), None),
        "d: what was before does not matter": (ONE, event("d", before={"id": "?"}), None),
        "with schemas": (keyed(ONE), schemed(event("c", ROW), []), (*row, "c", 7, None, sent)),
        "with schemas, d": (keyed(ONE), schemed(event("d"), []), None),
        "the key without, the value with": (ONE, schemed(event("c", ROW), []), (*row, "c", 7, None, sent)),
        "a transaction": (
            ONE,
            event("c", ROW, transaction={"id": "9:1", "total_order": 1}),
            (*row, "c", 7, "9:1", sent),
        ),
        "a field more": (ONE, event("c", {**ROW, "more": [1]}), (*row, "c", 7, None, sent)),
        "null columns": (ONE, event("c", {"id": 1, "name": None, "n": None}), (*nulls, "c", 7, None, sent)),
    }
    found = decoded(spark, ITEM, [case[:2] for case in cases.values()])
    assert {name: (row.value and tuple(row.value)) for name, row in zip(cases, found, strict=True)} == {
        name: value for name, (_, _, value) in cases.items()
    }
    assert {(tuple(row.key), row.fate, row.reason) for row in found} == {((1,), None, None)}


def test_a_value_that_is_not_as_encoded_says_is_told_with_its_column(spark: SparkSession) -> None:
    told = {
        "read": "table",
        "key": {"id": "int"},
        "value": {"price": "decimal(8,2)", "at": "timestamp", "ts": "bigint"},
    }
    of = Topic.model_validate(
        {**told, "envelope": "debezium", "encoded": {"price": "Decimal"}, "metadata": {"ts": "source.ts_ms"}}
    )
    sent = [(ONE, event("c", {"price": price})) for price in (3.5, "O5rKAA==")]  # the second: 10000000.00
    number, large = (row.reason for row in decoded(spark, of, sent))
    assert number == "the value's after.price is not a binary: 3.5"
    assert large == 'column price is no decimal(8,2) encoded as Decimal: {"price":"O5rKAA=="}'
    key, value = (row.reason for row in decoded(spark, of, [(b"{", event("c", {})), (ONE, b"{")]))
    assert key == "the key is not a JSON object of id int: {"
    what = "a change event of Debezium of a row with price decimal(8,2) encoded as Decimal, at timestamp"
    assert value == f"the value is not {what}: {{"


@pytest.mark.parametrize("far", [10**18, -(10**17), 253_402_300_800_000])
def test_a_time_of_metadata_beyond_all_tables_is_malformed(spark: SparkSession, far: int) -> None:
    (row,) = decoded(spark, ITEM, [(ONE, event("c", ROW, ts_ms=far))])
    assert (row.fate, row.reason) == ("malformed", "column sent: ts_ms is beyond the years 1 to 9999")


def test_what_is_no_change_of_a_row_is_malformed_with_the_reason(spark: SparkSession) -> None:
    late = event("c", ROW, source={"ts_ms": 253_402_300_800_000})
    cases: dict[str, tuple[Any, Any, str]] = {
        "truncate": (None, event("t"), "op t: the table was truncated, which ends every row; no key tells which"),
        "message": (ONE, event("m", message={"prefix": "p"}), "op m is no change of a row"),
        "unknown": (ONE, event("x", ROW), "op x is no change of a row"),
        "no after, c": (ONE, event("c"), "op c has no after: the row is not there"),
        "no after, u": (ONE, event("u"), "op u has no after: the row is not there"),
        "no after, r": (ONE, event("r"), "op r has no after: the row is not there"),
        "no after, schema": (ONE, schemed(event("u"), []), "op u has no after: the row is not there"),
        "no op": (ONE, event(None, ROW), "the value is no change event of Debezium: it has no op"),
        "unwrapped": (ONE, ROW, "the value is no change event of Debezium: it has no op"),
        "no payload": (ONE, {"schema": {}, "payload": None}, "the value is no change event of Debezium: it has no op"),
        "key": ({"no": 1}, event("c", ROW), "the key has not all of its columns: id"),
        "key, d": (keyed({"no": 1}), event("d"), "the key has not all of its columns: id"),
        "year 10000": (ONE, late, "the time of its source is not in the years 1 to 9999"),
        "not sent": (
            ONE,
            event("u", {**ROW, "name": "__debezium_unavailable_value"}),
            NOT_SENT,
        ),
    }
    found = decoded(spark, ITEM, [case[:2] for case in cases.values()])
    assert {name: row.reason for name, row in zip(cases, found, strict=True)} == {
        name: reason for name, (_, _, reason) in cases.items()
    }
    assert {(row.value, row.fate) for row in found} == {(None, "malformed")}
    broken = [(ONE, b"{"), (ONE, b"8"), (ONE, event("c", {"id": 1, "n": "five"})), (b"1", event("c", ROW))]
    assert [row.fate for row in decoded(spark, ITEM, broken)] == ["malformed"] * len(broken)


def test_a_record_without_a_value_is_no_change(spark: SparkSession) -> None:
    found = decoded(spark, ITEM, [(ONE, None), (None, None), (b"{", None), (keyed(ONE), None)])
    assert [row.fate for row in found] == ["no_change", "null_key", "malformed", "no_change"]


def test_a_row_is_true_from_when_its_source_says(spark: SparkSession) -> None:
    ms, us, ns = T + 1, (T + 2) * 1000 + 3, (T + 4) * 1_000_000 + 5_678
    cases: dict[str, tuple[dict[str, Any], datetime]] = {
        "microseconds": ({"source": {"ts_ms": ms, "ts_us": us, "ts_ns": ns}}, T0 + timedelta(microseconds=2003)),
        "nanoseconds": ({"source": {"ts_ms": ms, "ts_ns": ns}}, T0 + timedelta(microseconds=4005)),
        "milliseconds": ({"source": {"ts_ms": ms}}, T0 + timedelta(milliseconds=1)),
        "0 is none": ({"source": {"ts_ms": 0}, "ts_ms": ms}, T0 + timedelta(milliseconds=1)),
        "no source: when it was processed": (NO_SOURCE | {"ts_ms": ms}, T0 + timedelta(milliseconds=1)),
        "processed, microseconds": (NO_SOURCE | {"ts_ms": ms, "ts_us": us}, T0 + timedelta(microseconds=2003)),
        "neither: when it was sent": (NO_SOURCE | {"ts_ms": None}, NOON),
    }
    records = [(ONE, event("c", ROW, **more)) for more, _ in cases.values()]
    found = decoded(spark, ITEM, [*records, (ONE, event("d", second=1)), (ONE, None), (ONE, event("t"))])
    times = [*(time for _, time in cases.values()), at(1), NOON, NOON]
    assert [row.timestamp for row in found] == [time.replace(tzinfo=None) for time in times]
    kept = [None if time == NOON else NOON.replace(tzinfo=None) for time in times]
    assert [row.recordTimestamp for row in found] == kept
    assert found[0].fate is None
    late = decoded(spark, ITEM, [(ONE, event("c", ROW, second=2 * 86_400))], sent=T0)
    assert late[0].fate == "time_skew"
    timeless = decoded(spark, ITEM, [(ONE, event("c", ROW)), (ONE, event("c", ROW, ts_ms=0, **NO_SOURCE))], sent=BEFORE)
    assert [row.fate for row in timeless] == [None, "no_timestamp"]


BEFORE = T0 - timedelta(days=60 * 365)
TYPED = {"price": "decimal(8,2)", "day": "date", "at": "timestamp", "raw": "binary", "tags": "array<string>"}
PRICES = Topic.model_validate({"read": "table", "envelope": "debezium", "key": {"id": "int"}, "value": TYPED})
DECLARED = PRICES.model_copy(update={"encoded": {"price": "Decimal", "day": "Date", "at": "MicroTimestamp"}})
VARIABLE = PRICES.model_copy(update={"encoded": {"price": "VariableScaleDecimal", "at": "Timestamp"}})
NUMBERS = PRICES.model_copy(update={"encoded": {"price": "Number"}})
NANOS = PRICES.model_copy(update={"encoded": {"at": "NanoTimestamp"}})
CONNECT = "org.apache.kafka.connect.data."
BAD = object()


def field(name: str, logical: str, **parameters: str) -> list[dict[str, Any]]:
    return [{"field": name, "name": logical, **({"parameters": parameters} if parameters else {})}]


NUMERIC = field("price", f"{CONNECT}Decimal", scale="2")
Case = tuple[Any, Any]
NEW_YEAR = T0.replace(tzinfo=None)

TEXT: dict[str, list[Case]] = {
    "price": [
        (8, Decimal("8.00")),
        (12.34, Decimal("12.34")),
        ("12.34", Decimal("12.34")),
        ("-12.3", Decimal("-12.30")),
        ("1.e3", Decimal("1000.00")),
        ("123", Decimal("123.00")),
        ("1234", BAD),
        (1234, Decimal("1234.00")),
        ("1e30", BAD),
        ("12.345", BAD),
        ("1000000", BAD),
        ("AyA=", BAD),
        ("", BAD),
        ("NaN", BAD),
        ({"scale": 1, "value": "Dw=="}, BAD),
        (True, BAD),
    ],
    "day": [
        ("2026-01-01", date(2026, 1, 1)),
        ("2026-01-01Z", date(2026, 1, 1)),
        (20454, BAD),
        ("20454", BAD),
        ("2026", BAD),
        ("2026-02-30", BAD),
    ],
    "at": [
        ("2026-01-01T00:00:00Z", NEW_YEAR),
        ("2026-01-01T02:00:00.5+02:00", NEW_YEAR + timedelta(microseconds=500_000)),
        ("2026-01-01 00:00:00", NEW_YEAR),
        (T, BAD),
        (T * 1000, BAD),
        ("10:00", BAD),
        ("infinity", BAD),
        ("2026", BAD),
    ],
    "raw": [("YWI=", bytearray(b"ab")), ("X19kZWJleml1bV91bmF2YWlsYWJsZV92YWx1ZQ==", BAD)],
    "tags": [(["a", None], ["a", None]), (["__debezium_unavailable_value"], BAD)],
}
ENCODED: dict[str, list[Case]] = {
    "price": [
        ("AyA=", Decimal("8.00")),
        ("/qI=", Decimal("-3.50")),
        ("AA==", Decimal("0.00")),
        ("/w==", Decimal("-0.01")),
        ("BfXg/w==", Decimal("999999.99")),
        ("BfXhAA==", BAD),
        ("1234", Decimal("-26588.24")),
        ("AAAAAAAAAAAAAAAAAAAAAAAD", BAD),
        ("AAAAAAAAAAAAAAAAAAAB", Decimal("0.01")),
        ("gAAAAAAAAAAAAAAAAAAAAA==", BAD),
        (8, BAD),
        ("12.34", BAD),
    ],
    "day": [(20454, date(2026, 1, 1)), (-1, date(1969, 12, 31)), (-2147472692, BAD), ("2026-01-01", BAD)],
    "at": [
        (T * 1000 + 1, NEW_YEAR + timedelta(microseconds=1)),
        (-1, datetime(1969, 12, 31, 23, 59, 59, 999_999)),  # noqa: DTZ001  # Spark's Python side gives local times
        (9223372036825200000, BAD),
        ("2026-01-01T00:00:00Z", BAD),
    ],
}
SCHEMED: list[tuple[list[dict[str, Any]], str, list[Case]]] = [
    (
        NUMERIC,
        "price",
        [
            *(("AyA=", Decimal("8.00")), (8.5, Decimal("8.50")), ("-3.50", Decimal("-3.50")), ("123", BAD)),
            *(("1234", Decimal("-26588.24")), ("0E38", Decimal("-31257.64")), ("+186", Decimal("-3033.02"))),
            *((1234, Decimal("1234.00")), (-1, Decimal("-1.00")), (True, BAD), ("true", Decimal("-48016.34"))),
        ],
    ),
    (field("price", f"{CONNECT}Decimal", scale="1"), "price", [("AyA=", Decimal("80.00")), ("Dw==", Decimal("1.50"))]),
    (field("price", f"{CONNECT}Decimal", scale="3"), "price", [("AyA=", Decimal("0.80")), ("Dw==", BAD)]),
    (
        field("price", "io.debezium.data.VariableScaleDecimal"),
        "price",
        [
            *(({"scale": 1, "value": "Dw=="}, Decimal("1.50")), ({"scale": 3, "value": "Dw=="}, BAD), ("1.5", BAD)),
            ({"scale": -1, "value": "Dw=="}, Decimal("150.00")),
        ],
    ),
    (field("day", "io.debezium.time.Date"), "day", [(20454, date(2026, 1, 1)), (-2147472692, BAD)]),
    (field("day", f"{CONNECT}Date"), "day", [(20454, date(2026, 1, 1))]),
    (field("day", "io.debezium.time.IsoDate"), "day", [("2026-01-01Z", date(2026, 1, 1)), (20454, BAD)]),
    (field("at", "io.debezium.time.Timestamp"), "at", [(T, NEW_YEAR), ("2026-01-01T00:00:00Z", BAD)]),
    (field("at", f"{CONNECT}Timestamp"), "at", [(T, NEW_YEAR)]),
    (field("at", "io.debezium.time.MicroTimestamp"), "at", [(T * 1000, NEW_YEAR), (9223372036825200000, BAD)]),
    (field("at", "io.debezium.time.NanoTimestamp"), "at", [(T * 1_000_000 + 999, NEW_YEAR)]),
    (field("at", "io.debezium.time.ZonedTimestamp"), "at", [("2026-01-01T00:00:00Z", NEW_YEAR), ("infinity", BAD)]),
    (field("at", "io.debezium.time.MicroTime"), "at", [(36000000000, BAD)]),
    (field("day", "io.debezium.time.MicroTimestamp"), "day", [(20454, BAD)]),
]


def told(spark: SparkSession, topic: Topic, asked: list[tuple[str, Any, list[dict[str, Any]]]]) -> list[Any]:
    """What values of columns became, BAD for a record that is malformed for that column."""
    records = [
        (ONE, schemed(event("c", {"id": 1, column: value}), fields) if fields else event("c", {"id": 1, column: value}))
        for column, value, fields in asked
    ]
    return [
        BAD if row.fate == "malformed" else row.value[column]
        for (column, _, _), row in zip(asked, decoded(spark, topic, records), strict=True)
    ]


@pytest.mark.parametrize(
    ("topic", "cases"),
    [
        (
            PRICES,
            [
                *((c, [], case) for c, cases in TEXT.items() for case in cases),
                *((c, fields, case) for fields, c, cases in SCHEMED for case in cases),
            ],
        ),
        (
            DECLARED,
            [
                *((c, [], case) for c, cases in ENCODED.items() for case in cases),
                ("price", NUMERIC, ("AyA=", Decimal("8.00"))),
                ("price", field("price", f"{CONNECT}Decimal", scale="1"), ("AyA=", Decimal("80.00"))),
                ("at", field("at", "io.debezium.time.Timestamp"), (T, BAD)),
                ("at", field("at", "io.debezium.time.MicroTimestamp"), (T * 1000, NEW_YEAR)),
            ],
        ),
        (VARIABLE, [("price", [], ({"scale": 1, "value": "Dw=="}, Decimal("1.50"))), ("at", [], (T, NEW_YEAR))]),
        (
            NUMBERS,
            [
                *(("price", fields, (1234, Decimal("1234.00"))) for fields in ([], NUMERIC)),
                *(("price", [], (text, Decimal("1000.00"))) for text in ("1000", "1e3", "1E+3", 1000.00)),
                *(("price", [], (text, BAD)) for text in ("AyA=", "", "1e9", 0.001)),
                ("price", field("price", "io.debezium.data.VariableScaleDecimal"), (1, BAD)),
            ],
        ),
        (NANOS, [("at", [], (-1, NEW_YEAR.replace(1969, 12, 31, 23, 59, 59, 999_999)))]),
    ],
    ids=[
        "text and by the record's schema",
        "declared and by the schema",
        "variable",
        "numbers",
        "nanoseconds",
    ],
)
def test_decimals_dates_and_moments_are_read_as_they_are_encoded_or_not_at_all(
    spark: SparkSession, topic: Topic, cases: list[tuple[str, list[dict[str, Any]], Case]]
) -> None:
    found = told(spark, topic, [(column, value, fields) for column, fields, (value, _) in cases])
    named = [(column, value) for column, _, (value, _) in cases]
    assert list(zip(named, found, strict=True)) == list(zip(named, [case[1] for _, _, case in cases], strict=True))


def test_a_scale_counts_whatever_other_records_come_with_it(spark: SparkSession) -> None:
    nameless = ("price", "ZA==", [{"field": "price", "name": None, "parameters": {"scale": "1"}}])
    for others in ([], [("price", "ZA==", NUMERIC)]):
        assert told(spark, DECLARED, [nameless, *others])[0] == Decimal("10.00")


SHOP = """
pipeline: shop
start: 2026-01-01
topics:
  items:
    read: table
    envelope: debezium
    key: {id: int}
    value: {name: string, lsn: bigint}
    metadata: {lsn: source.lsn}
    max_malformed: 1
  seats:
    read: table
    envelope: debezium
    key: {row: int, place: string}
    value: {taken: boolean}
views:
  names:
    table: items
    group_by: {name: name}
    aggregate: {n: count(*)}
"""
SEAT = {"row": 1, "place": "a"}


def change(key: Any, op: str, name: str | None, second: float, sent: float | None = None) -> tuple[Any, Any, float]:
    """A record of `items`, sent half a second later or at `sent`."""
    after = None if name is None else {"id": 0, "name": name}
    return {"id": key}, event(op, after, second), second + 0.5 if sent is None else sent


STORY = [
    change(1, "r", "curry", 0),
    change(1, "u", "curries", 10),
    change(1, "d", None, 20),
    ({"id": 1}, None, 25),  # Debezium's tombstone, sent after the row was there again
    change(1, "c", "korma", 20.2),
    change(2, "r", "soup", 0),
    change(2, "d", None, 5),  # its key becomes 3
    ({"id": 2}, None, 5.5),
    change(3, "c", "soup", 5),
    change(4, "c", "naan", 7),  # three changes in one transaction
    change(4, "u", "roti", 7),
    change(4, "u", "dosa", 7),
    change(5, "c", "rice", 6),
    change(5, "d", None, 8),  # gone and there again in one transaction
    ({"id": 5}, None, 8.5),
    change(5, "c", "pilaf", 8),
    change(6, "u", "tea", 31),
    change(6, "r", "chai", 30, sent=40),  # an incremental snapshot: read before the update, sent after it
    (None, event("t", second=32), 32.5),
]


@pytest.mark.long
@pytest.mark.parametrize("again", [pytest.param(False, marks=pytest.mark.ci), True])
def test_a_table_of_change_events(spark: SparkSession, broker: str, tmp_path: Path, again: bool) -> None:
    """Again: and the same events once more, by increments and whole."""
    with pipeline(spark, broker, tmp_path, SHOP) as p:
        p.send("items", *STORY[:8])
        p.send("seats", (SEAT, event("c", {**SEAT, "taken": True}, 1), 2), (keyed(SEAT), schemed(event("d"), []), 3))
        p.run()
        p.send("items", *STORY[8:])
        report = p.run()
        believed = [
            (1, "curry", 7, 0, 10),
            (1, "curries", 7, 10, 20),
            (1, "korma", 7, 20.2, None),
            (2, "soup", 7, 0, 5),
            (3, "soup", 7, 5, None),
            (4, "dosa", 7, 7, None),
            (5, "rice", 7, 6, 8),
            (5, "pilaf", 7, 8, None),
            (6, "chai", 7, 30, 31),
            (6, "tea", 7, 31, None),
        ]
        assert p.believed("items") == believed
        assert [row for row in p.believed("names") if row[0] == "soup"] == [("soup", 1, 0, 5), ("soup", 1, 5, None)]
        assert p.believed("seats") == [(1, "a", True, 1, None)]

        nothing_said, refused = [3, 7, 14], [18]
        fates = dict(p.fates("items"))
        assert [offset for offset, fate in fates.items() if fate == "no_change"] == nothing_said
        assert [offset for offset, fate in fates.items() if fate == "malformed"] == refused
        assert [row["offset"] for row in p.raw("quarantine")] == refused
        counts = {"accepted": 9, "malformed": 1, "no_change": 1}
        assert report["topics"]["items"]["partitions"][0]["fates"] == counts
        log = sorted(p.raw("logs/items"), key=lambda row: row["offset"])
        assert [(row["timestamp"], row["recordTimestamp"]) for row in log[2:5]] == [
            (at(20), at(20.5)),
            (at(25), None),
            (at(20.2), at(20.7)),
        ]

        if not again:
            return
        p.send("items", *STORY[:18])  # Debezium begins again where it had last noted to be
        repeated = p.run()
        assert p.believed("items") == believed
        assert (repeated["tables"]["items"]["opened"], repeated["tables"]["items"]["closed"]) == (0, 0)
        whole = p.run(only="items")
        assert p.believed("items") == believed
        assert (whole["tables"]["items"]["opened"], whole["tables"]["items"]["closed"]) == (0, 0)


CONTRACT = """
pipeline: shop
start: 2026-01-01
topics:
  items:
    read: table
    envelope: debezium
    key: {id: int}
    value: {name: string, price: "decimal(8,2)", lsn: bigint}
    metadata: {lsn: source.lsn}
    encoded: {price: Decimal}
"""
REFUSED = [
    ("read: table", "read: stream", 6, "a deleted row has no value", "read: table"),
    ("debezium", "maxwell", 7, "'maxwell' is not one of the allowed values", "known here: debezium"),
    ("    envelope: debezium\n", "", 9, "metadata needs an envelope", "envelope: debezium"),
    ("envelope: debezium", "key_format: string\n    envelope: debezium", 7, "keys are objects", "remove key_format"),
    ("{id: int}", "{payload: int}", 8, "'payload' is what Kafka Connect wraps a key in", "message.key.columns"),
    ("{id: int}", "{id: date}", 8, "a key cannot have type date", "bigint or string"),
    ("name: string,", "name: 'array<struct<at: timestamp>>',", 9, "encodes its parts", "convert it in a view"),
    ('name: string, price: "decimal(8,2)", ', "", 9, "all are metadata", "columns of the table"),
    ("{lsn: source.lsn}", "{lns: source.lsn}", 10, "no column 'lns' in value", "did you mean 'lsn'?"),
    ("source.lsn", "before.lsn", 10, "'before.lsn' is not a field of an envelope", "source.<field>"),
    ("source.lsn", "source", 10, "'source' is not a field of an envelope", "source.<field>"),
    ("source.lsn", "source..lsn", 10, "'source..lsn' is not a field of an envelope", "source.<field>"),
    ("{lsn: source.lsn}", "{name: source.ts_ms}", 9, "source.ts_ms is a number of units since 1970", "timestamp"),
    ("lsn: bigint", "lsn: timestamp", 9, "source.lsn cannot be read as timestamp", "bigint or string"),
    ("{lsn: source.lsn}", "{lsn: op}", 9, "op is text, but lsn is bigint", "write string"),
    ("{lsn: source.lsn}", "{lsn: source.table}", 9, "source.table is text, but lsn is bigint", "write string"),
    ("{lsn: source.lsn}", "{lsn: source.lsn, name: source.lsn}", 9, "read as bigint and as string", "the same type"),
    ("price: Decimal", "prize: Decimal", 11, "no column 'prize' in value", "did you mean 'price'?"),
    ("price: Decimal", "price: Float", 11, "'Float' is not one of the allowed values", "known here: Date, Decimal"),
    ("price: Decimal", "price: Date", 11, "Date is for date, but price is decimal(8,2)", "write date in value"),
    ("price: Decimal", "lsn: Timestamp", 11, "lsn is read from the envelope", "remove it"),
]


@pytest.mark.parametrize(("was", "now", "line", "found", "fix"), REFUSED, ids=[case[1][:40] for case in REFUSED])
def test_a_contract_that_cannot_mean_anything_is_refused(
    tmp_path: Path, was: str, now: str, line: int, found: str, fix: str
) -> None:
    path = tmp_path / "shop.yaml"
    path.write_text(CONTRACT, encoding="utf-8")
    assert load(path).topics["items"].effective_key_format == "json"
    assert was in CONTRACT
    path.write_text(CONTRACT.replace(was, now, 1), encoding="utf-8")
    with pytest.raises(ContractError) as caught:
        load(path)
    error = caught.value
    assert (error.where, found in error.found, fix in error.fix) == (f"{path}:{line}", True, True), str(error)


def test_a_number_keeps_all_its_digits(spark: SparkSession) -> None:
    """Or is malformed: it is not rounded, though no decimal is finer than the column."""
    wide = PRICES.model_copy(update={"value": {"price": "decimal(38,10)"}})
    told = json.dumps(event("c", {"id": 1, "price": "?"}))
    sent = ["12345678901234567890.1234567891", "1.123456789012", "1.500000000000", "123e-11", "1230e-11", '"0.0"']
    found = decoded(spark, wide, [(ONE, told.replace('"?"', number).encode()) for number in sent])
    exact: list[Decimal | None] = [Decimal(number.strip('"')) for number in sent]
    exact[1] = exact[3] = None
    assert [it.value and it.value.price for it in found] == exact


def test_a_format_with_types_of_its_own_gives_decimals_and_dates_as_they_are() -> None:
    avro = DECLARED.model_copy(update={"value_format": "avro", "key_format": "avro"})
    shape = envelopes.shape_envelope(avro)
    row = (Decimal("8.00"), 20454, T * 1000, b"ab", ["a"])
    said = [("c", row), ("d", None), ("u", None), ("c", (*row[:2], 2**62, *row[3:]))]
    values = [{"op": op, "source": {"ts_ms": T}, "after": after} for op, after in said]
    fields = envelopes.value_parser_columns(shape).items()
    parsed = pa.array(values, pa.struct([(name, arrow_type(parse_declared_type(kind))) for name, kind in fields]))
    keys, none = pa.array([{"id": 1}] * 4, pa.struct([("id", pa.int32())])), pa.nulls(4, pa.string())
    key, value, problem, at = envelopes.EnvelopeReader(shape).read_changes(keys, parsed, none)
    typed = (Decimal("8.00"), date(2026, 1, 1), T0, b"ab", ["a"])
    assert [it and tuple(it.values()) for it in value.to_pylist()] == [typed, None, None, None]
    problems = problem.to_pylist()
    assert problems[:3] == [None, None, "op u has no after: the row is not there"]
    assert problems[3].startswith("column at is no timestamp")
    assert key == keys
    assert at.to_pylist() == [to_micros(T0), to_micros(T0), None, None]
