"""Keys and values in every format: bytes in, columns or a reason out."""

from __future__ import annotations

import io
import json
import re
import struct
from collections.abc import Sequence
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import fastavro
import pyarrow as pa
import pytest
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import functions as F
from pyspark.sql.avro.functions import from_avro

from hindcast.common.errors import ContractError
from hindcast.contract import Topic, avro, avro_compatibility, load
from hindcast.contract.avro_file import AvroFile
from hindcast.formats import RecordPart, decoder, headers
from hindcast.formats import avro as avro_format
from hindcast.formats.avro import _OPTIONS
from hindcast.formats.primitive import serialize_value
from hindcast.formats.spark_decoding import decode_records
from hindcast.kafka import record_batches
from hindcast.kafka.topics import RECORD_SCHEMA

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

BAD = "malformed"
NAN = float("nan")


class Case(NamedTuple):
    """Bytes, and the columns that they give; or BAD, and a part of the reason."""

    raw: bytes | None
    gives: tuple[Any, ...] | str | None
    because: str = ""


def read(
    spark: SparkSession, table: Sequence[tuple[RecordPart, Sequence[Case]]]
) -> list[tuple[RecordPart, Case, Any, Any]]:
    """What every case of every part became; those of Avro in Spark."""
    found = []
    for part, cases in table:
        if part.format != "avro":
            raw = pa.array([case.raw for case in cases], pa.binary())
            results = [_as_row(it) for it in decoder.open_reader(part).read(raw).to_pylist()]
            found += [(part, case, *result) for case, result in zip(cases, results, strict=True)]
    for part, cases in table:
        if part.format == "avro":
            sent = spark.createDataFrame([(c, it.raw) for c, it in enumerate(cases)], "c int, value binary").coalesce(1)
            rows = avro_format.read_parts(sent, [part]).select("c", "_avro.value.*").collect()
            found += [(part, cases[row["c"]], row["struct"], row["problem"]) for row in rows]
    return found


def _as_row(result: dict[str, Any]) -> tuple[Any, str | None]:
    """The struct as a row of Spark has it, and the problem."""
    return _as_tuple(result["struct"]), result["problem"]


def _as_tuple(value: Any) -> Any:
    if isinstance(value, dict):
        return tuple(map(_as_tuple, value.values()))
    if isinstance(value, list):
        return [_as_tuple(it) for it in value]
    return value.replace(tzinfo=None) if isinstance(value, datetime) else value


def check(spark: SparkSession, *table: tuple[RecordPart, Sequence[Case]]) -> None:
    wrong = []
    for part, case, value, reason in read(spark, table):
        gave = BAD if reason is not None else _plain(value)
        if repr(gave) != repr(case.gives) or case.because not in (reason or ""):
            wrong.append(f"{part.format} {dict(part.columns)} {case.raw!r}: {gave!r} {reason!r}, not {case.gives!r}")
        assert (value is None) == (case.raw is None or reason is not None)
    assert not wrong, "\n".join(wrong)


def _plain(value: Any) -> Any:
    """Rows as tuples."""
    if isinstance(value, tuple):
        return tuple(_plain(it) for it in value)
    if isinstance(value, list):
        return [_plain(it) for it in value]
    return bytes(value) if isinstance(value, bytearray) else value


def of(form: str, columns: dict[str, str], **more: Any) -> RecordPart:
    return RecordPart("value", columns, form, **more)


def test_text_and_primitives(spark: SparkSession) -> None:
    check(
        spark,
        (of("string", {"s": "string"}), [Case("Käse\n".encode(), ("Käse\n",)), Case(b"", ("",)), Case(None, None)]),
        (of("string", {"s": "string"}), [Case(b"\xff", BAD, "the value is not string: \ufffd")]),
        (
            of("string", {"n": "int"}),
            [Case(b"42", (42,)), Case(b"4x", BAD, "the value is not int: 4x"), Case(b"", BAD)],
        ),
        (of("string", {"d": "date"}), [Case(b"2026-02-28", (date(2026, 2, 28),)), Case(b"2026-02-30", BAD)]),
        (of("string", {"d": "decimal(4,2)"}), [Case(b"4.20", (Decimal("4.20"),)), Case(b"100", BAD)]),
        (of("string", {"b": "binary"}), [Case(b"\xff", (b"\xff",))]),
        (
            of("primitive", {"n": "smallint"}),
            [Case(struct.pack(">h", n), (n,)) for n in (0, 1, -1, 32767, -32768)]
            + [Case(b"", BAD, "not smallint in 2 bytes: 0x"), Case(b"\0\0\0", BAD)],
        ),
        (
            of("primitive", {"n": "int"}),
            [Case(struct.pack(">i", n), (n,)) for n in (0, 42, -42, 2**31 - 1, -(2**31))]
            + [Case(b"\0\0\0", BAD, "0x000000"), Case(b"\0" * 8, BAD), Case(b"42", BAD), Case(None, None)],
        ),
        (
            of("primitive", {"n": "bigint"}),
            [Case(struct.pack(">q", n), (n,)) for n in (0, 42, -42, 2**63 - 1, -(2**63))]
            + [Case(b"\0\0\0\x2a", BAD), Case(b"\0" * 9, BAD)],
        ),
        (
            of("primitive", {"x": "float"}),
            [Case(struct.pack(">f", x), (x,)) for x in (0.0, -0.0, 1.5, float("inf"), NAN)] + [Case(b"\0" * 8, BAD)],
        ),
        (
            of("primitive", {"x": "double"}),
            [Case(struct.pack(">d", x), (x,)) for x in (0.0, -0.0, 0.1, 5e-324, -float("inf"), NAN)]
            + [Case(b"\0" * 4, BAD, "not double in 8 bytes: 0x00000000")],
        ),
        (
            of("primitive", {"b": "boolean"}),
            [Case(b"\0", (False,)), Case(b"\1", (True,)), Case(b"\2", BAD, "in 1 byte: 0x02"), Case(b"", BAD)],
        ),
        (of("primitive", {"s": "string"}), [Case("ü".encode(), ("ü",)), Case(b"\xc3", BAD)]),
        (of("primitive", {"b": "binary"}), [Case(b"", (b"",)), Case(b"\xff\0", (b"\xff\0",))]),
    )


def test_json_strict_and_lenient(spark: SparkSession) -> None:
    columns = {"price": "decimal(8,2)", "n": "int", "x": "double", "b": "boolean", "s": "string"}
    nothing = (None,) * 4
    check(
        spark,
        (
            of("json", {"price": "decimal(8,2)", "n": "int"}, json="strict"),
            [
                Case(b'{"price": 8, "n": 1}', (Decimal("8.00"), 1)),
                Case(b'{"n": null, "price": null}', (None, None)),
                Case(b'{"price": 8}', BAD, "not a JSON object of exactly `price` decimal(8,2), `n` int: "),
                Case(b'{"price": 8, "n": 1, "more": 1}', BAD),
                Case(b'{"price": 8, "n": 1, "n": 1}', BAD),
                Case(b'{"price": 8, "more": 1}', BAD),
                Case(b'{"price": 8, "n": "1"}', BAD),
                Case(b'{"price": 8, "n": 1} more', BAD),
                Case(b"{}", BAD),
                Case(None, None),
            ],
        ),
        (
            of("json", columns, json="lenient"),
            [
                Case(b'{"n": "5"}', (None, 5, None, None, None)),
                Case(b'{"n": " 5 "}', (None, 5, None, None, None)),
                Case(b'{"x": "1.5", "b": "true"}', (None, None, 1.5, True, None)),
                Case(b'{"x": "0x1.8p1", "n": "7"}', (None, 7, 3.0, None, None)),
                Case(b'{"x": "-0X.8P+2d"}', (None, None, -2.0, None, None)),
                Case(b'{"x": "0x1p9999"}', BAD),
                Case(b'{"x": "0x18"}', BAD),
                Case(b"{'s': 'it'}", (*nothing, "it")),
                Case(b'{s: "it"}', (*nothing, "it")),
                Case(b'{"s": 8}', (*nothing, "8")),
                Case(b'{"x": NaN}', (None, None, NAN, None, None)),
                Case(b'{"x": -Infinity}', (None, None, -float("inf"), None, None)),
                Case(b'{"n": 007}', (None, 7, None, None, None)),
                Case(b'{"n": 1 /* one */} // of it', (None, 1, None, None, None)),
                Case(b'{"price": 0.12}', (Decimal("0.12"), None, None, None, None)),
                Case(b'{"n": null}', (None, None, None, None, None)),
                Case(
                    b"""{'s': '1, 2e-400', price: .12, n: 007, "more": [1234567890123456789, 12345678901234567.5]}""",
                    BAD,
                ),
                Case(
                    b"""{'s': '1, 2e-400', price: 0.12, n: 007, a-1: [1234567890123456789, NaN]} // 1e-999""",
                    (Decimal("0.12"), 7, None, None, "1, 2e-400"),
                ),
                Case(
                    b"""/* "it's" 1e-400 */ {x: -Infinity, 1e400: "it's", "n": "8", 'b': true, price: 12.5e-0001}""",
                    BAD,
                ),
                Case(
                    b"""/* "it's" 1e-400 */ {x: -Infinity, 1e400: "it's", "n": "8", 'b': true, price: 12.5}""",
                    (Decimal("12.50"), 8, -float("inf"), True, None),
                ),
                Case(b'{"x": 1e-999}', (None, None, 0.0, None, None)),
                Case(b'{"x": "-Infinity"}', (None, None, -float("inf"), None, None)),
                Case(b'{"x": 1e999}', BAD, "not a JSON object of `price`"),
                Case(b'{"x": -1e999, "s": "Infinity"}', BAD),
                Case(b'{"x": "1e999"}', BAD),
                Case(b'{"x": ' + b"9" * 400 + b"}", BAD),
                Case(b'{"n": "five"}', BAD, "not a JSON object of `price`"),
                Case(b'{"n": ""}', BAD),
                Case(b'{"n": 1.5}', BAD),
                Case(b'{"n": 3000000000}', BAD),
                Case(b'{"n": true}', BAD),
                Case(b'{"b": "maybe"}', BAD),
                Case(b'{"price": "eight"}', BAD),
                Case(b'{"n": [1]}', BAD),
                Case(b'{"n": 1} /* open', BAD),
                Case(b'{"n": 1}, {"n": 2}', BAD),
                Case(b'{"n": 1}, "more": {"n": 2}', BAD),
                Case(b'{"n": 1', BAD),
                Case(b"8", BAD),
                Case(b"", BAD),
            ],
        ),
        (
            of("json", {"price": "int", "at": "date"}, renamed={"price": ("Price", "cost")}),
            [
                Case(b'{"price": 1, "Price": 2, "cost": 3}', (1, None)),
                Case(b'{"Price": 2, "cost": 3}', (2, None)),
                Case(b'{"cost": 3, "at": "2026-01-01"}', (3, date(2026, 1, 1))),
                Case(b'{"price": null, "cost": 3}', (None, None)),
                Case(b"{}", (None, None)),
                Case(b'{"cost": "three"}', BAD),
            ],
        ),
        (
            of("json", {"n": "int"}, renamed={"n": ("old name",)}, json="strict"),
            [Case(b'{"n": 1}', (1,)), Case(b'{"old name": 1}', (1,)), Case(b'{"n": 1, "old name": 1}', BAD)],
        ),
        (
            of("json", {"n": "int"}, renamed={"n": ("m",)}, json="lenient"),
            [Case(b"{m: '1'}", (1,)), Case(b"{n: null, m: 1}", (None,))],
        ),
    )


def test_decimals_beside_numbers_of_many_digits(spark: SparkSession) -> None:
    """They are read as they were written, and what stands beside them in a struct or an array as ever."""
    columns = {"p": "struct<x: double, y: decimal(20,2), z: array<decimal(4,1)>>"}
    columns |= {"a": "array<struct<x: double, y: decimal(20,2)>>", "d": "decimal(20,2)"}
    exact, third = Decimal("123456789012345678.12"), 0.3333333333333333
    one = b'{"x": 0.3333333333333333, "y": 123456789012345678.12}'
    small = b'{"x": 0.3333333333333333, "y": 1.25e-1}'
    check(
        spark,
        (
            of("json", columns),
            [
                Case(
                    b'{"p": ' + one + b', "a": [' + one + b", null]}",
                    ((third, exact, None), [(third, exact), None], None),
                ),
                Case(
                    b'{"p": {"z": [1.0, 2.000000000000000000]}}',
                    ((None, None, [Decimal("1.0"), Decimal("2.0")]), None, None),
                ),
                Case(
                    b'{"p": {"z": [1.0, 2.000000000000000001]}}',
                    BAD,
                    "p.z[] is not a decimal(4,1): 2.000000000000000001",
                ),
                Case(b'{"a": [' + small + b"]}", BAD, "the value's a[].y is not a decimal(20,2): 1.25e-1"),
            ],
        ),
        (
            of("json", {"d": "decimal(20,2)"}, renamed={"d": ("old",)}),
            [
                Case(b'{"old": 123456789012345678.12}', (exact,)),
                Case(b'{"d": null, "old": 123456789012345678.12}', (None,)),
            ],
        ),
    )


def record(**fields: Any) -> dict[str, Any]:
    return {"type": "record", "name": "R", "fields": [{"name": name, "type": kind} for name, kind in fields.items()]}


def wrote(schema: Any, value: Any) -> bytes:
    out = io.BytesIO()
    fastavro.schemaless_writer(out, fastavro.parse_schema(schema), value)
    return out.getvalue()


def named(id_: int, schema: Any, value: Any) -> bytes:
    """A value in the schema registry's wire format."""
    return b"\0" + id_.to_bytes(4, "big") + wrote(schema, value)


def logical(kind: Any, name: str, **more: Any) -> dict[str, Any]:
    return {"type": kind, "logicalType": name, **more}


NOON = datetime(2026, 1, 1, 12, 0, 0, 123456, tzinfo=UTC)
LOCAL = datetime(2026, 1, 1, 12, 0, 0, 123456)  # noqa: DTZ001  # Spark's Python side gives local times; they are UTC
ENUM = {"type": "enum", "name": "E", "symbols": ["A", "B"]}
FIXED = {"type": "fixed", "name": "F", "size": 2}
POINT = {"type": "record", "name": "P", "fields": [{"name": "x", "type": "int"}, {"name": "y", "type": "string"}]}
PAIR = {"type": "record", "name": "Q", "fields": [{"name": "x", "type": "int"}, {"name": "y", "type": "int"}]}

TYPES: list[tuple[Any, str, Any, Any]] = [
    ("boolean", "boolean", True, True),
    ("int", "int", -5, -5),
    ("int", "bigint", 5, 5),
    ("int", "double", 5, 5.0),
    ("int", "decimal(12,2)", 5, Decimal("5.00")),
    ("long", "bigint", 2**62, 2**62),
    ("long", "decimal(19,0)", 2**62, Decimal(2**62)),
    ("float", "float", 1.5, 1.5),
    ("float", "double", 1.5, 1.5),
    ("double", "double", 0.1, 0.1),
    ("string", "string", "Käse", "Käse"),
    ("bytes", "binary", b"\xff", b"\xff"),
    (FIXED, "binary", b"ab", b"ab"),
    (ENUM, "string", "B", "B"),
    (["null", "int"], "int", None, None),
    (["null", "int"], "int", 3, 3),
    (["int", "long"], "bigint", 3, 3),
    (["float", "double"], "double", 1.5, 1.5),
    (["string"], "string", "a", "a"),
    ("null", "string", None, None),
    (logical("bytes", "decimal", precision=6, scale=2), "decimal(8,2)", Decimal("-4.20"), Decimal("-4.20")),
    (logical("bytes", "decimal", precision=6, scale=2), "decimal(8,4)", Decimal("4.20"), Decimal("4.2000")),
    (logical("int", "date"), "date", date(2026, 1, 1), date(2026, 1, 1)),
    (logical("long", "timestamp-micros"), "timestamp", NOON, LOCAL),
    (logical("long", "timestamp-millis"), "timestamp", NOON, LOCAL.replace(microsecond=123000)),
    (logical("long", "local-timestamp-micros"), "timestamp", LOCAL, LOCAL),
    (
        logical("string", "uuid"),
        "string",
        "a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11",
        "a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11",
    ),
    (POINT, "struct<y: string, x: bigint, z: int>", {"x": 1, "y": "a"}, ("a", 1, None)),
    ({"type": "array", "items": POINT}, "array<struct<x: int>>", [{"x": 1, "y": "a"}], [(1,)]),
    ({"type": "array", "items": PAIR}, "array<struct<y: int, x: int>>", [{"x": 1, "y": 2}], [(2, 1)]),
    ({"type": "array", "items": "int"}, "array<bigint>", [1, 2], [1, 2]),
    (
        {"type": "array", "items": {"type": "array", "items": {**record(p=PAIR, b="bytes", s="string"), "name": "I"}}},
        "array<array<struct<s: string, p: struct<y: int, x: int>, b: binary>>>",
        [[{"p": {"x": 1, "y": 2}, "b": b"\xff", "s": "a"}], []],
        [[("a", (2, 1), b"\xff")], []],
    ),
    (
        {"type": "array", "items": {**record(a="int", ps={"type": "array", "items": ["null", PAIR]}), "name": "I"}},
        "array<struct<a: int, ps: array<struct<y: int, x: int>>>>",
        [{"a": 3, "ps": [None, {"x": 1, "y": 2}]}],
        [(3, [None, (2, 1)])],
    ),
    (
        {"type": "map", "values": {"type": "array", "items": PAIR}},
        "array<struct<key: string, value: array<struct<y: int, x: int>>>>",
        {"a": [{"x": 1, "y": 2}]},
        [("a", [(2, 1)])],
    ),
    (
        {"type": "map", "values": "int"},
        "array<struct<key: string, value: bigint>>",
        {"b": 2, "a": 1},
        [("a", 1), ("b", 2)],
    ),
    (logical("long", "time-micros"), "bigint", 86_399_999_999, 86_399_999_999),
    (logical("int", "time-millis"), "int", 86_399_999, 86_399_999),
    (["null", "int", POINT], "struct<member_P: struct<x: int>>", {"x": 1, "y": "a"}, ((1,),)),
    (["null", "int", "string"], "struct<member_string: string, member_int: int>", "a", ("a", None)),
]


def test_avro_types(spark: SparkSession) -> None:
    """Every type of Avro, each in a record with other fields around it."""
    table = []
    for kind, column, sent, came in TYPES:
        schema = record(before="string", it=kind, after="int")
        raw = wrote(schema, {"before": "x", "it": sent, "after": 1})
        part = of("avro", {"it": column, "after": "int"}, schema=json.dumps(schema))
        assert list(avro_compatibility.check_columns(avro.parse_schema(schema), part.columns, {})) == []
        bad = [Case(raw[:-1], BAD), Case(raw + b"\0", BAD), Case(b"", BAD), Case(None, None)]
        table.append((part, [Case(raw, (came, 1)), *bad]))
    check(spark, *table)


def test_what_avro_holds_and_a_column_does_not_is_malformed(spark: SparkSession) -> None:
    """A decimal of more digits, a date or a moment beyond the years 1 to 9999; never wrapped round."""
    small, large = logical("bytes", "decimal", precision=6, scale=2), logical("bytes", "decimal", precision=20, scale=2)
    fixed = {"type": "fixed", "name": "C", "size": 9, "logicalType": "decimal", "precision": 18, "scale": 2}
    kinds: dict[str, tuple[str, Any]] = {
        "d": ("decimal(8,2)", small),
        "w": ("decimal(20,2)", large),
        "f": ("decimal(18,2)", fixed),
        "e": ("decimal(18,2)", {**fixed, "name": "E", "size": 8}),
        "day": ("date", logical("int", "date")),
        "ms": ("timestamp", logical("long", "timestamp-millis")),
        "us": ("timestamp", logical("long", "timestamp-micros")),
        "local": ("timestamp", logical("long", "local-timestamp-micros")),
        "a": ("array<decimal(8,2)>", {"type": "array", "items": small}),
        "m": ("array<struct<key: string, value: date>>", {"type": "map", "values": logical("int", "date")}),
        "r": ("struct<d: decimal(7,2)>", record(d=small, other="int")),
    }
    columns = {name: kind for name, (kind, _) in kinds.items()}
    schema = record(**{name: kind for name, (_, kind) in kinds.items()})
    schema["fields"][-1]["type"]["name"] = "Inner"
    plain = _plainly(schema)
    good: dict[str, Any] = {
        **dict.fromkeys(("day", "ms", "us", "local"), 0),
        "d": b"\1",
        "w": b"\2",
        "f": bytes(8) + b"\3",
        "e": bytes(7) + b"\6",
        "a": [b"\4"],
        "m": {"k": 1},
        "r": {"d": b"\5", "other": 1},
    }
    wrapping = (2**64 + 100).to_bytes(9, "big")  # Spark alone takes these for 1.00
    first, last = -62_135_596_800_000_000, 253_402_300_799_999_999
    bad: list[tuple[str, Any, str]] = [
        ("d", wrapping, "the value's d is not a decimal(8,2): 184467440737095517.16"),
        ("d", (-(2**64) - 1).to_bytes(9, "big", signed=True), "d is not a decimal(8,2): -184467440737095516.17"),
        ("d", (10**8).to_bytes(4, "big"), "d is not a decimal(8,2): 1000000.00"),
        ("d", (10**38).to_bytes(17, "big"), "is not Avro of"),
        ("w", (10**20).to_bytes(9, "big"), "the value's w is not a decimal(20,2): 1000000000000000000.00"),
        ("f", wrapping, "the value's f is not a decimal(18,2): 184467440737095517.16"),
        ("e", (10**18).to_bytes(8, "big"), "is not Avro of"),
        ("day", -719_163, "the value's day is not a date: 0000-12-31"),
        ("day", 2_932_897, "the value's day is not a date: +10000-01-01"),
        ("ms", first // 1000 - 1, "the value's ms is not a timestamp: 0000-12-31 23:59:59.999"),
        ("us", last + 1, "the value's us is not a timestamp: +10000-01-01 00:00:00"),
        ("us", 2**63 - 1, "the value's us is not a timestamp: +294247-01-10"),
        ("ms", 2**63 - 1, "is not Avro of"),
        ("local", first - 1, "the value's local is not a timestamp: 0000-12-31 23:59:59.999999"),
        ("a", [b"\1", wrapping], "the value's a[] is not a decimal(8,2): 184467440737095517.16"),
        ("m", {"k": 0, "l": 2_932_897}, "the value's m[] is not a date: +10000-01-01"),
        ("r", {"d": wrapping, "other": 1}, "the value's r.d is not a decimal(7,2): 184467440737095517.16"),
    ]
    epoch, cent = datetime(1970, 1, 1), Decimal("0.01")  # noqa: DTZ001  # Spark's Python side gives local times
    gives = (
        cent,
        2 * cent,
        3 * cent,
        6 * cent,
        date(1970, 1, 1),
        *[epoch] * 3,
        [4 * cent],
        [("k", date(1970, 1, 2))],
        (5 * cent,),
    )
    near = {"d": (10**8 - 1).to_bytes(4, "big"), "day": 2_932_896, "us": last}
    near_gives = (Decimal("999999.99"), *gives[1:4], date(9999, 12, 31), epoch)
    near_gives += (datetime(9999, 12, 31, 23, 59, 59, 999_999), *gives[7:])  # noqa: DTZ001
    cases = [Case(wrote(plain, good), gives), Case(wrote(plain, good | near), near_gives)]
    cases += [Case(wrote(plain, {**good, name: value}), BAD, why) for name, value, why in bad]
    registered = [Case(b"\0\0\0\0\1" + case.raw, *case[1:]) for case in cases if case.raw]
    check(
        spark,
        (of("avro", columns, schema=json.dumps(schema)), cases),
        (of("avro", columns, writers={1: json.dumps(schema), 2: '"int"'}), registered),
    )


def _plainly(schema: Any) -> Any:
    """The schema without logical types: to write whatever bytes."""
    if isinstance(schema, list):
        return [_plainly(it) for it in schema]
    if isinstance(schema, dict):
        return {name: _plainly(it) for name, it in schema.items() if name not in ("logicalType", "precision", "scale")}
    return schema


def test_avro_of_a_schema_for_java_is_read_byte_by_byte(spark: SparkSession) -> None:
    text = {"type": "string", "avro.java.string": "String"}
    schema = record(s=text, l={"type": "array", "items": text}, u=["null", text])
    part = of("avro", {"s": "string", "l": "array<string>", "u": "string"}, writers={1: json.dumps(schema)})
    head, good, bad = b"\0\0\0\0\1", b"\2a", b"\2\xff"
    check(
        spark,
        (
            part,
            [
                Case(head + good + b"\2" + good + b"\0" + b"\2" + good, ("a", ["a"], "a")),
                Case(head + bad + b"\2" + good + b"\0" + b"\2" + good, BAD, "is not Avro"),
                Case(head + good + b"\2" + bad + b"\0" + b"\2" + good, BAD, "is not Avro"),
                Case(head + good + b"\2" + good + b"\0" + b"\2" + bad, BAD, "is not Avro"),
            ],
        ),
    )


def test_avro_of_many_schemas_in_one_run(spark: SparkSession) -> None:
    one = record(n="int")
    two = record(more="string", n="long", s=["null", "string"])
    old = record(count="int")
    writers = {1: json.dumps(one), 2: json.dumps(two), 3: json.dumps(old), 9: json.dumps(one)}
    part = of("avro", {"n": "bigint", "s": "string"}, renamed={"n": ("count",)}, writers=writers)
    two_ = {"more": "", "n": 2**40, "s": "x"}
    huge = b"\0\0\0\0\2" + bytes.fromhex("FEFFFFFF0F") + b"abc"
    check(
        spark,
        (
            part,
            [
                Case(named(1, one, {"n": 1}), (1, None)),
                Case(named(9, one, {"n": 9}), (9, None)),
                Case(named(2, two, two_), (2**40, "x")),
                Case(named(3, old, {"count": 3}), (3, None)),
                Case(None, None),
                Case(named(7, one, {"n": 1}), BAD, "the value names schema 7, which the schema registry has not: 0x"),
                Case(b"\1\0\0\0\1\2", BAD, "not in the schema registry's wire format (0, schema id, Avro): 0x01000000"),
                Case(b"\0\0\0\1", BAD, "wire format"),
                Case(b"", BAD, "wire format"),
                Case(b'{"n": 1}', BAD, "wire format"),
                Case(b"\0\0\0\0\1", BAD, "the value is not Avro of schema 1: 0x0000000001"),
                Case(named(2, two, two_)[:-1], BAD, "not Avro of schema 2"),
                Case(named(2, two, two_) + b"x", BAD, "not Avro of schema 2"),
                Case(named(1, two, two_), BAD, "not Avro of schema 1"),
                Case(huge, BAD, "not Avro of schema 2"),
                Case(b"\0\0\0\0\2\0\2\2\2\xff", BAD, "not Avro of schema 2"),
                Case(b"\0\xff\xff\xff\xff\2", BAD, "schema 4294967295"),
            ],
        ),
        (of("avro", {"n": "int"}), [Case(named(1, one, {"n": 1}), BAD, "names schema 1"), Case(None, None)]),
        (
            of("avro", {"id": "bigint"}, writers={1: '"long"', 2: '["null", "int"]'}),
            [Case(named(1, "long", 5), (5,)), Case(named(2, ["null", "int"], 6), (6,))],
        ),
        (
            of("avro", {"n": "int"}, schema=json.dumps(["null", one])),
            [Case(wrote(["null", one], {"n": 1}), (1,)), Case(wrote(["null", one], None), BAD, "value_schema")],
        ),
    )


ODD = [
    logical("long", "timestamp-nanos"),
    {"type": "fixed", "name": "U", "size": 16, "logicalType": "uuid"},
    logical("int", "time-millis"),
    logical("long", "time-micros"),
    {"type": "fixed", "name": "D", "size": 12, "logicalType": "duration"},
    {"type": "fixed", "name": "C", "size": 8, "logicalType": "decimal", "precision": 9, "scale": 3},
    ["int", "string", "null", POINT],
    {"type": "map", "values": {"type": "array", "items": ["null", "long"]}},
]


def test_what_a_schema_gives_is_what_spark_makes_of_it(spark: SparkSession) -> None:
    from pyspark.sql.avro.functions import from_avro

    schema = record(**{f"f{n}": kind for n, kind in enumerate([*(row[0] for row in TYPES), *ODD])})
    text = json.dumps(avro.reader_schema(_once(schema, set())))
    none = F.lit(None).cast("binary")
    given = spark.range(0).select(from_avro(none, text, _OPTIONS).alias("it")).schema["it"].dataType
    told = str(avro.parse_schema(json.loads(text))).replace("`", "").replace(": ", ":").replace(", ", ",")
    assert told == given.simpleString()


def _once(schema: Any, known: set[str]) -> Any:
    """The schema with each named type written out once, and then named."""
    if isinstance(schema, list):
        return [_once(it, known) for it in schema]
    if not isinstance(schema, dict):
        return schema
    if "name" in schema:
        if schema["name"] in known:
            return schema["name"]
        known.add(schema["name"])
    parts = {name: _once(schema[name], known) for name in ("type", "items", "values") if name in schema}
    if "fields" in schema:
        parts["fields"] = [{**field, "type": _once(field["type"], known)} for field in schema["fields"]]
    return {**schema, **parts}


@pytest.mark.parametrize(
    ("kind", "column", "why"),
    [
        ("string", "int", "`it` is string, which is not int"),
        ("long", "int", "`it` is bigint, which is not int"),
        ("long", "double", "`it` is bigint, which is not double"),
        ("double", "float", "`it` is double, which is not float"),
        ("int", "decimal(11,2)", "`it` is int, which is not decimal(11,2)"),
        ("int", "string", "`it` is int, which is not string"),
        (logical("bytes", "decimal", precision=8, scale=2), "decimal(7,2)", "decimal(8,2), which is not decimal(7,2)"),
        (logical("bytes", "decimal", precision=8, scale=2), "decimal(9,1)", "decimal(8,2), which is not decimal(9,1)"),
        (logical("int", "date"), "timestamp", "`it` is date, which is not timestamp"),
        (POINT, "struct<x: string>", "`it`.`x` is int, which is not string"),
        (POINT, "struct<z: string>", "which is not struct<`z`: string>"),
        ({"type": "array", "items": "long"}, "array<int>", "`it`[] is bigint, which is not int"),
        ({"type": "map", "values": "int"}, "string", "`it` is map<string, int>, which is not string"),
        (["null", "int", "string"], "string", "is struct<`member_int`: int, `member_string`: string>, which is not"),
    ],
)
def test_what_a_column_cannot_take(kind: Any, column: str, why: str) -> None:
    (found,) = avro_compatibility.check_columns(avro.parse_schema(record(it=kind, other="int")), {"it": column}, {})
    assert why in found


def test_a_schema_without_any_of_the_columns_does_not_fit() -> None:
    assert list(avro_compatibility.check_columns(avro.parse_schema(record(a="int")), {"b": "int"}, {})) == [
        "it has none of the columns"
    ]
    assert list(avro_compatibility.check_columns(avro.parse_schema(record(a="int")), {"b": "int"}, {"b": ("a",)})) == []
    (found,) = avro_compatibility.check_columns(avro.parse_schema(record(b="int", B="int")), {"b": "int"}, {})
    assert found == "`b` and `B` differ only in case, which Spark cannot distinguish"
    assert list(avro_compatibility.check_columns(avro.parse_schema("string"), {"b": "string", "c": "int"}, {})) == [
        "it writes string, not a record"
    ]


@pytest.mark.parametrize(
    ("schema", "why"),
    [
        ("strin", "has no type 'strin'"),
        ({"name": "x"}, "is not an Avro schema"),
        ({"type": "record", "name": "T"}, "has a record 'T' without fields"),
        (record(next=["null", "R"]), "has the type 'R' inside itself"),
        (logical("bytes", "decimal", precision=39), "has a decimal of 39 digits"),
    ],
)
def test_a_schema_that_gives_no_columns(schema: Any, why: str) -> None:
    with pytest.raises(avro.SchemaError, match=why):
        avro.parse_schema(schema)


INNER = {"type": "record", "name": "x.I", "fields": []}
BROKEN: dict[str, Any] = {
    "has the name 'my-record'": {**record(n="int"), "name": "my-record"},
    "has the name '1st'": {**record(n="int"), "name": "1st"},
    "has the name 'a b'": {**record(n="int"), "namespace": "org.a b"},
    "has a record without a name": {"type": "record", "fields": [{"name": "n", "type": "int"}]},
    "has a fixed without a name": record(n={"type": "fixed", "name": 5, "size": 2}),
    "has the name 'a-b'": record(**{"a-b": "int"}),
    "has the field 'n' twice": {**record(), "fields": [{"name": "n", "type": "int"}] * 2},
    "has an enum 'E' without symbols": record(n={"type": "enum", "name": "E"}),
    "has the name 'b-c'": record(n={"type": "array", "items": {"type": "enum", "name": "E", "symbols": ["a", "b-c"]}}),
    "has an enum 'E' with a symbol twice": record(n={"type": "enum", "name": "E", "symbols": ["a", "a"]}),
    "has an enum 'E' whose default": record(n={"type": "enum", "name": "E", "symbols": ["a"], "default": "b"}),
    "has a fixed 'F' without a size": record(n={"type": "map", "values": {"type": "fixed", "name": "F", "size": "2"}}),
    "has a union within a union": record(n=["int", ["null", "string"]]),
    "has 'int' twice in a union": record(n=["int", {"type": "int", "logicalType": "date"}]),
    "has a type whose own type is not a name": record(n={"type": "array", "items": {"type": {"type": "int"}}}),
    "has 'x.I' twice in a union": record(n=[INNER, INNER]),
    "has 'y.I' twice in a union": record(n=[{**INNER, "name": "I", "namespace": "y"}, "y.I"]),
    "has the field 'n' whose aliases are not a list": {
        **record(),
        "fields": [{"name": "n", "type": "int", "aliases": {}}],
    },
    "has the field 'm' whose aliases are not a list": {
        **record(),
        "fields": [{"name": "m", "type": "int", "aliases": [1]}],
    },
    "has the record 'R' whose aliases are not a list": {**record(n="int"), "aliases": None},
    "has the enum 'E' whose aliases are not a list": record(
        n={"type": "enum", "name": "E", "symbols": [], "aliases": "e"}
    ),
    "has the name '1x'": {**record(n="int"), "aliases": ["a b.c", "1x"]},
    "has the name 'x-y'": record(n={"type": "fixed", "name": "F", "size": 1, "aliases": ["x-y"]}),
    "has the field 'n' whose order is none of": {
        **record(),
        "fields": [{"name": "n", "type": "int", "order": "bogus"}],
    },
    "has the field 'o' whose order is none of": {**record(), "fields": [{"name": "o", "type": "int", "order": None}]},
    "has a type named 'int'": {**record(n="int"), "name": "int"},
    "has a type named 'long'": {**record(n={"type": "enum", "name": ".long", "symbols": []}), "namespace": "x"},
    "has the name '': names": {**record(n="int"), "name": "a."},
    "has the name '': names have": {**record(n="int"), "namespace": "a..b"},
    "has the name '': names have only": {**record(n="int"), "namespace": ".a"},
    "has two types named 'E' that differ": record(
        n={"type": "enum", "name": "E", "symbols": ["a"]}, m={"type": "enum", "name": "E", "symbols": ["b"]}
    ),
    "has two types named 'x.I' that differ": record(n=INNER, m={**INNER, "fields": [{"name": "n", "type": "int"}]}),
    "has two types named 'Q' that differ": record(n=PAIR, m={**PAIR, "fields": PAIR["fields"][::-1]}),
    "has the type 'R' inside itself": record(n=record(m="int")),
}
WHOLE = (
    record(n={"type": "fixed", "name": "F", "size": 64 << 20}),
    {**record(n="int"), "name": "Größe_1", "namespace": "org.x"},
    {**record(n="int"), "name": "a.b.C", "namespace": "a b"},
    {**record(n="int"), "namespace": ""},
    record(
        n=[INNER, {**INNER, "name": "y.J"}, "null", {"type": "array", "items": "int"}, {"type": "map", "values": "int"}]
    ),
    record(n={"type": "enum", "name": "E", "symbols": ["a", "B_2"], "default": "a"}),
    record(n={"type": "fixed", "name": "F", "size": 0}),
    {**record(), "fields": [{"name": "n", "type": "int", "aliases": ["a b"], "order": "Descending"}]},
    {**record(n="int"), "aliases": ["a b.c", "x", "x"]},
    {**record(n={"type": "enum", "name": "int", "symbols": []}), "namespace": "x"},
    record(n={"type": "enum", "name": "x.int", "symbols": []}),
    {**record(n=INNER, m={**INNER, "doc": "the same"}), "name": ".R"},
)


def test_rules_of_avro_that_a_schema_breaks_are_told_where_its_parser_in_java_refuses_it(spark: SparkSession) -> None:
    def refused(schema: Any) -> bool:
        try:
            spark._jvm.org.apache.avro.Schema.Parser().parse(json.dumps(schema))
        except (Py4JJavaError, PySparkException):
            return True
        return False

    for why, schema in BROKEN.items():
        with pytest.raises(avro.SchemaError, match=re.escape(why)):
            avro.parse_schema(schema)
        assert refused(schema), why
    for schema in WHOLE:
        avro.parse_schema(schema)
        assert not refused(schema), schema


SIMILAR = {
    "has 'x.E' and 'y.E' in a union": ["null", {**INNER, "name": "x.E"}, {**INNER, "name": "y.E"}],
    "has 'x.E' and 'z.E' in a union": [{**INNER, "name": "E", "namespace": space} for space in "xz"],
    "has 'x.I' and 'x.i' in a union": [INNER, {**INNER, "name": "x.i"}],
    "has 'int' and 'x.Int' in a union": ["int", {**INNER, "name": "x.Int"}],
}


def test_types_of_a_union_that_spark_gives_one_name_are_refused_with_what_to_do(spark: SparkSession) -> None:
    """Avro tells them apart by their namespaces and their case."""
    row = spark.range(1).select(F.lit(b"").alias("raw"))
    for why, union in SIMILAR.items():
        with pytest.raises(avro.SchemaError, match=f"{why}, which Spark .*: rename one of the two"):
            avro.parse_schema(record(n=union))
        with pytest.raises(Py4JJavaError, match="name conflict of type name"):
            row.select(from_avro("raw", json.dumps(record(n=union)), _OPTIONS)).collect()
    several = ["int", INNER, {**INNER, "name": "J", "namespace": "x"}, {"type": "array", "items": "int", "name": "int"}]
    names = "`member_int`: int, `member_I`: struct<>, `member_J`: struct<>, `member_array`: array<int>"
    assert str(avro.parse_schema(several)) == f"struct<{names}>"


@pytest.mark.parametrize("size", [(64 << 20) + 1, 10**4_000], ids=["a byte more", "4,001 digits"])
def test_a_fixed_of_more_than_64_mebibytes_is_refused(size: int) -> None:
    schema = record(n=["null", {"type": "array", "items": {"type": "fixed", "name": "F", "size": size}}])
    with pytest.raises(avro.SchemaError, match="has a fixed 'F' of more than 67,108,864 bytes"):
        avro.parse_schema(schema)


@pytest.mark.parametrize(
    ("number", "found"),
    [
        ("1" * 5_000, "has a number of 5,000 digits; at most 1,000 are supported; fix the schema"),
        ("1." + "1" * 999, "has a number of 1,001 digits"),
        ("1e999", "has the number 1e999, which is too large"),
        ("NaN", "has NaN, which is not JSON"),
        ("-Infinity", "has -Infinity, which is not JSON"),
    ],
)
def test_a_number_that_the_parser_in_java_refuses_is_refused_in_a_file(tmp_path: Path, number: str, found: str) -> None:
    text = '{"type": "record", "name": "R", "fields": [{"name": "n", "type": "int", "default": %s}]}'
    contract = "{topic: t, read: table, key: {id: string}, value: {n: int}, value_format: avro, value_schema: s.avsc}"
    path = tmp_path / "one.yaml"
    path.write_text(f"pipeline: one\nstart: 2026-01-01\ntopics:\n  t: {contract}\n")
    (tmp_path / "s.avsc").write_text(text % ("1" * 1_000))
    load(path)
    (tmp_path / "s.avsc").write_text(text % number)
    with pytest.raises(ContractError, match=re.escape(f"'s.avsc' {found.partition(';')[0]}")) as refused:
        load(path)
    assert refused.value.where == f"{path}:4"
    assert "sys." not in str(refused.value)


def test_named_types_are_known_by_their_full_names() -> None:
    point = {**POINT, "namespace": "geo"}
    schema = {**record(a=point, b="geo.P", c={**POINT, "name": "other.P"}), "namespace": "app"}
    assert str(avro.parse_schema(schema)).count("`x`: int") == 3


def array(items: Any) -> dict[str, Any]:
    return {"type": "array", "items": items}


def wide(*kinds: Any, name: str = "W") -> dict[str, Any]:
    return {**record(**{f"f{n}": kind for n, kind in enumerate(kinds)}), "name": name}


NONE, EMPTY = {"type": "fixed", "name": "N", "size": 0}, {"type": "record", "name": "E", "fields": []}


@pytest.mark.parametrize(
    ("kind", "place"),
    [
        (array("null"), "array 'it'"),
        (array({"type": "null"}), "array 'it'"),
        (array(array(NONE)), "array 'it[]'"),
        (array(wide("int", array(EMPTY))), "array 'it[].f1'"),
        ({"type": "map", "values": ["null", array(EMPTY)]}, "array 'it[]'"),
        (wide(EMPTY, array("E")), "array 'it.f1'"),
        ({**wide(EMPTY, array("a.E")), "namespace": "a"}, "array 'it.f1'"),
        (array(wide(EMPTY, NONE, "null")), "array 'it'"),
        (array(wide("int", *["null"] * 70)), "array 'it'"),
        ({"type": "map", "values": wide(*["null"] * 140)}, "map 'it'"),
        (array([{**ENUM, "name": f"E{n}"} for n in range(200)]), "array 'it'"),
    ],
)
def test_items_that_take_hardly_a_byte_are_refused(kind: Any, place: str) -> None:
    """A record of a kilobyte could have as many of them as would fill the memory of any JVM."""
    with pytest.raises(avro.SchemaError, match=re.escape(f"has items that take too few bytes in the {place}: ")):
        avro.parse_schema(record(it=kind))


EVENTS = [{"type": "record", "name": f"R{n}", "fields": [{"name": "id", "type": "long"}]} for n in range(120)]
ENUMS = [{**ENUM, "name": f"E{n}"} for n in range(120)]


@pytest.mark.parametrize(
    "items",
    [["null", *EVENTS[:60]], ["null", *EVENTS[:59], EMPTY], ["null", *EVENTS], ENUMS, [*ENUMS, {"type": "null"}]],
    ids=["60 events", "60 with an empty one", "120 events", "120 enums", "120 enums and null"],
)
@pytest.mark.parametrize("kind", ["array", "map"])
def test_unions_of_many_events_are_items(kind: str, items: Any) -> None:
    """A union's branch takes a byte, and its null is one null, not one for each type."""
    avro.parse_schema(record(it={"type": kind, "items" if kind == "array" else "values": items}))


def test_arrays_in_arrays_that_each_declare_millions_are_malformed(spark: SparkSession) -> None:
    """Avro makes room for all of them before it reads an item: by its own limits for gigabytes."""
    kind: Any = "boolean"
    for _ in range(45):
        kind = array(kind)
    schema = record(n="int", it=kind)
    part = of("avro", {"n": "int"}, schema=json.dumps(schema))
    for count in (9_999_999, 1_000_000):
        claims = wrote(wide(*["long"] * 46), {f"f{n}": count if n else 1 for n in range(46)})
        check(spark, (part, [Case(wrote(schema, {"n": 1, "it": []}), (1,)), Case(claims, BAD)]))


@pytest.mark.parametrize(
    "kind",
    [
        array("int"),
        array(["null"]),
        array(["null", wide(*[["null", "string"]] * 400)]),
        array(wide("int", "null", NONE, EMPTY)),
        array([{**ENUM, "name": f"E{n}"} for n in range(40)]),
        array(array(array("boolean"))),
        {"type": "map", "values": "null"},
        {"type": "map", "values": EMPTY},
        wide(*["null"] * 500),
        {**wide({**EMPTY, "name": "a.E"}, wide("int", name="E"), array("E")), "namespace": "b"},
    ],
)
def test_items_that_take_a_byte_and_parts_outside_of_arrays_are_not(kind: Any) -> None:
    avro.parse_schema(record(it=kind))


def test_columns_of_headers() -> None:
    """The last header of a name counts; a null value stays null."""
    columns = {"source": "string", "n": "int", "trace": "binary", "hops": "int"}
    cases: list[tuple[list[tuple[str, bytes | None]] | None, bool, Any, str | None]] = [
        ([("src", b"a"), ("src", b"b"), ("id", b"\xff")], True, ("b", 1, b"\xff", None), None),
        ([("hops", b"3"), ("Src", b"a")], True, (None, 1, None, 3), None),
        (None, True, (None, 1, None, None), None),
        ([("src", None)], True, (None, 1, None, None), None),
        ([("hops", b"three")], True, (None, 1, None, None), "the header hops is not int: three"),
        ([("src", b"\xff")], True, (None, 1, None, None), "the header src is not string: \ufffd"),
        ([("hops", b"three")], False, None, None),
    ]
    named = {"source": "src", "trace": "id", "hops": "hops"}
    given = pa.array([it and [*it] for it, *_ in cases], record_batches.HEADERS)
    plain = pa.array([{"n": 1} if there else None for _, there, *_ in cases], pa.struct([("n", pa.int32())]))
    found, reasons = headers.HeaderReader(columns, named).add_columns(plain, given)
    assert reasons.to_pylist() == [reason for *_, reason in cases]
    assert [own and tuple(own.values()) for own in found.to_pylist()] == [gives for *_, gives, _ in cases]


class Unreadable(NamedTuple):
    """A message of Kafka's client, one of whose headers has a name that is not UTF-8."""

    def headers(self) -> None:
        raise SystemError

    def timestamp(self) -> tuple[int, int]:
        return 1, 0

    def topic(self) -> str:
        return "orders"

    def partition(self) -> int:
        return 3

    def offset(self) -> int:
        return 7

    def key(self) -> bytes:
        return b"k"

    def value(self) -> bytes:
        return b'{"n": 1}'

    def __len__(self) -> int:
        return 8


def test_headers_that_kafkas_client_cannot_read_make_a_record_malformed_where_they_matter(spark: SparkSession) -> None:
    message: Any = Unreadable()
    (batch,) = record_batches.build_batches([[message]])
    frame = spark.createDataFrame(pa.Table.from_batches([batch]), RECORD_SCHEMA)
    for names, fate in (({}, None), ({"by": "by"}, "malformed")):
        value = {"n": "int", **dict.fromkeys(names, "string")}
        topic = Topic.model_validate({"read": "stream", "key": {"id": "string"}, "value": value, "headers": names})
        (found,) = decode_records(frame, topic).collect()
        assert found["fate"] == fate
    assert found["reason"] == "the record's headers cannot be read: a name is not UTF-8"


def test_a_schema_file_is_part_of_what_a_topic_is() -> None:
    one, other = (AvroFile(file="a.avsc", text=json.dumps(record(n=kind))) for kind in ("int", "long"))
    assert one != other


def test_an_integer_key_is_written_as_its_serializer_writes_it(spark: SparkSession) -> None:
    numbers = [0, 1, -1, 32767, -32768]
    sent = spark.createDataFrame([(n,) for n in numbers], "n int").coalesce(1)
    forms = {"smallint": ">h", "int": ">i", "bigint": ">q"}
    told = sent.select("n", *(serialize_value(F.col("n").cast(kind), kind).alias(kind) for kind in forms)).collect()
    assert [[bytes(row[kind]) for kind in forms] for row in told] == [
        [struct.pack(form, n) for form in forms.values()] for n in numbers
    ]
