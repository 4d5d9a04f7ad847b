"""Poison: records that are made to hurt. Each has a fate, its bytes are kept, and what is taken is what was sent."""

from __future__ import annotations

from collections import Counter
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.sql import functions as F

import fuzz
from hindcast.common.errors import RecordError
from hindcast.contract import Topic
from hindcast.formats import limits
from hindcast.formats.spark_decoding import decode_records
from hindcast.ingest import quarantine, record_counts, segment_packing, segments
from hindcast.ingest.segment_fates import FateRule
from hindcast.ingest.segments import Origin
from hindcast.kafka.topics import HEADERS_SCHEMA, OffsetRange
from hindcast.plan import journal
from hindcast.report import report
from pipelines import pipeline

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
COLUMNS = {
    **fuzz.COLUMNS,
    "s": "smallint",
    "tags": "array<decimal(4,1)>",
    "p": "struct<x: tinyint, at: timestamp, in: array<struct<y: double>>>",
}
EVENTS = Topic.model_validate({"read": "stream", "key": {"id": "string"}, "value": COLUMNS})
DEEP = 100_000
NINES = b"9" * 2_000
BAD = object()
"""The record is malformed."""


def moment(year: int, month: int, day: int, *parts: int) -> datetime:
    return datetime(year, month, day, *parts)  # noqa: DTZ001  # Spark's Python side gives local times; they are UTC


CASES: dict[bytes, Any] = {
    # a decimal is exactly what was sent, or malformed
    b'{"d": 8.5}': {"d": Decimal("8.50")},
    b'{"d": "8.50"}': {"d": Decimal("8.50")},
    b'{"d": 8.500}': {"d": Decimal("8.50")},
    b'{"d": 1e3}': {"d": Decimal("1000.00")},
    b'{"d": 1500e-2}': {"d": Decimal("15.00")},
    b'{"d": -0.0}': {"d": Decimal("0.00")},
    b'{"d": 0e-5}': {"d": Decimal("0.00")},
    b'{"d": 1.' + b"0" * 60 + b"}": {"d": Decimal("1.00")},
    b'{"d": 8.005}': BAD,
    b'{"d": "8.005"}': BAD,
    b'{"d": 15e-3}': BAD,
    b'{"d": 1e-50}': BAD,
    b'{"d": "1e-50"}': BAD,
    b'{"d": 1e-400}': BAD,
    b'{"d":1E-0400}': BAD,
    b'{"text": "1e4123-e-4123", "d": 0.0}': {"text": "1e4123-e-4123", "d": Decimal("0.00")},
    b'{"text": "table-100, item1e-4123", "d":0.00}': {"text": "table-100, item1e-4123", "d": Decimal("0.00")},
    b'{"d": 0.0, "text": "zero, 2e-100"}': {"d": Decimal("0.00"), "text": "zero, 2e-100"},
    b'{"d": 0.0, "x": 2e-100}': {"d": Decimal("0.00"), "x": 2e-100},
    b'{"x": 2e-100, "\\u0064": 1e-400}': BAD,
    b'{"d": 1000000}': BAD,
    b'{"d": 1e999999999}': BAD,
    b'{"d": "1e999999999"}': BAD,
    b'{"d": -1e-999999999}': BAD,
    b'{"d": ' + NINES + b"}": BAD,
    b'{"d": "' + NINES * 500 + b'"}': BAD,
    b'{"d": "1,000"}': BAD,
    b'{"d": ""}': BAD,
    b'{"d": "NaN"}': BAD,
    b'{"d": true}': BAD,
    b'{"d": "8."}': BAD,
    b'{"d": "8.5\\n"}': BAD,
    b'{"d": "0x10"}': BAD,
    b'{"e": 1234567890123456789012345678.0123456789}': {"e": Decimal("1234567890123456789012345678.0123456789")},
    b'{"e": 0.30000000000000004}': BAD,
    b'{"e": 1.00000000000000000000000000001}': BAD,
    b'{"e": 1.' + b"0" * 45 + b"1}": BAD,
    b'{"e": 0.0000000001, "l": 1234567890123456789}': {"e": Decimal("0.0000000001"), "l": 1234567890123456789},
    b'{"\\u0065": 1.' + b"0" * 45 + b"1}": BAD,
    b'{"e": 1.23456789012345678e10}': {"e": Decimal("12345678901.2345678")},
    b'{"e": 1.5, "e": 2.5, "l": 1234567890123456789}': {"e": Decimal("2.5"), "l": 1234567890123456789},
    b'{"text": "\\\\\\": 1", "e": 0.1234567891, "l": -1234567890123456789}': {
        "text": '\\": 1',
        "e": Decimal("0.1234567891"),
        "l": -1234567890123456789,
    },
    b'{"text": "' + b"a\\n" * 300_000 + b'", "e": 12345678901234567.5}': {
        "text": "a\n" * 300_000,
        "e": Decimal("12345678901234567.5"),
    },
    b'{"d": 1.5, "d": 2.5}': {"d": Decimal("2.50")},
    b'{"tags": [1.5, null, "2"]}': {"tags": [Decimal("1.5"), None, Decimal("2.0")]},
    b'{"tags": [1, 1.25]}': BAD,
    b'{"tags": [1.25, 12345678901234567890]}': BAD,
    # numbers that do not fit
    b'{"f": 1e39}': BAD,
    b'{"x": 1e999}': BAD,
    b'{"x": -1e309}': BAD,
    b'{"x": 1e308}': {"x": 1e308},
    b'{"x": 1e-999}': {"x": 0.0},
    b'{"x": NaN}': BAD,
    b'{"x": "NaN"}': BAD,
    b'{"x": Infinity}': BAD,
    b'{"x": -INF}': BAD,
    b'{"unknown": NaN}': BAD,
    b'{"x": ' + NINES + b"}": BAD,
    b'{"t": 127}': {"t": 127},
    b'{"t": 200}': BAD,
    b'{"t": -129}': BAD,
    b'{"s": 32768}': BAD,
    b'{"i": 2147483648}': BAD,
    b'{"l": 9223372036854775808}': BAD,
    b'{"i": 1.0}': BAD,
    b'{"i": 1e2}': BAD,
    b'{"i": 01}': BAD,
    b'{"p": {"x": 200}}': BAD,
    b'{"p": {"x": 1, "in": [{"y": 1}, {"y": 1e999}]}}': BAD,
    b'{"p": {"x": 1, "in": [{"y": 1}, null]}}': {"p": (1, None, [(1.0,), None])},
    b'{"unknown": 1e999999999, "i": 1}': {"i": 1},
    # dates and timestamps, and nothing like them
    b'{"day": "0001-01-01"}': {"day": date(1, 1, 1)},
    b'{"day": "9999-12-31"}': {"day": date(9999, 12, 31)},
    b'{"day": "0000-01-01"}': BAD,
    b'{"day": "-0001-01-01"}': BAD,
    b'{"day": "10000-01-01"}': BAD,
    b'{"day": "2026-02-30"}': BAD,
    b'{"day": "2026-01-01 and more"}': BAD,
    b'{"day": "2026"}': BAD,
    b'{"day": 18000}': BAD,
    b'{"day": "2026-01-01\\n"}': BAD,
    b'{"at": "2026-01-01T12:00:00.123456789+02:00"}': {"at": moment(2026, 1, 1, 10, 0, 0, 123456)},
    b'{"at": 1700000000}': {"at": moment(2023, 11, 14, 22, 13, 20)},
    b'{"at": -62135510400}': {"at": moment(1, 1, 2)},  # a day before PySpark's side has trouble
    b'{"at": "9999-12-31T23:59:59.999999Z"}': {"at": moment(9999, 12, 31, 23, 59, 59, 999999)},
    b'{"at": "12:30"}': BAD,  # of today
    b'{"at": "2026"}': BAD,
    b'{"at": 17000000000000000}': BAD,
    b'{"at": 1e300}': BAD,
    b'{"at": "0000-01-01T00:00:00Z"}': BAD,
    b'{"at": "0001-01-01T00:00:00+10:00"}': BAD,
    b'{"at": "10000-01-01T00:00:00Z"}': BAD,
    b'{"at": "2026-01-01T24:00:00Z"}': BAD,
    b'{"at": "2026-01-01T23:59:60Z"}': BAD,
    # text
    b'{"text": "\\u0000"}': {"text": "\0"},
    b'{"text": "a\x00b"}': BAD,
    b'{"text": "\\ud83d\\ude00"}': {"text": "\U0001f600"},
    b'{"text": "\\\\ud83d"}': {"text": "\\ud83d"},
    b'{"text": "\\ud83d"}': BAD,
    b'{"text": "\\ude00\\ud83d"}': BAD,
    b'{"text": "\\\\ud83d\\ude00"}': BAD,
    b'{"unknown": "\\ud83d", "i": 1}': BAD,
    b'{"text": "\xed\xa0\x80"}': BAD,
    b'{"text": "\xff"}': BAD,
    b'{"text": "\xc0\x80"}': BAD,
    b'{"text": 5}': {"text": "5"},
    b'{"text": {"a": [1 , 2]}}': {"text": '{"a":[1,2]}'},
    b'{"text": 1e400}': BAD,
    b'{"bin": "AAE="}': {"bin": b"\0\1"},
    b'{"bin": "AAE"}': BAD,
    b'{"bin": "AA E="}': BAD,
    b'{"bin": "\\u0000"}': BAD,
    b'{"bin": 1234}': BAD,
    b'{"text": "\\ud83d\\\\\\ude00"}': BAD,
    b'{"text": "' + b"a" * 1_000_000 + b'"}': {"text": "a" * 1_000_000},
    # what is no object, or too much of one
    b"": BAD,
    b"\x00": BAD,
    b'\xef\xbb\xbf{"i": 1}': BAD,
    b'{"i": 1}\x00': BAD,
    b'{"i": 1, "i": 2}': {"i": 2},
    b'{"i": 1, "i": null}': {},
    b'{"i": 1, "i": "x"}': BAD,
    b'{"I": 1}': {},
    b'{"\\u0069": 1}': {"i": 1},
    b'{"unknown": ' + b"[" * DEEP + b"]" * DEEP + b"}": BAD,
    b'{"unknown": ' + b'{"a":' * DEEP + b"1" + b"}" * DEEP + b"}": BAD,
    b'{"text": ' + b"[" * DEEP + b"]" * DEEP + b"}": BAD,
    b'{"text": ' + b"[" * 900 + b"]" * 900 + b"}": {"text": "[" * 900 + "]" * 900},
    b'{"tags": ' + b"[" * DEEP: BAD,
    b'{"e": 1.5, "l": 1234567890123456789, "unknown": ' + b"[" * DEEP + b"]" * DEEP + b"}": BAD,
    b"{" + b", ".join(b'"k%d": 1' % n for n in range(20_000)) + b', "i": 1}': {"i": 1},
    b'{"' + b"k" * 100_000 + b'": 1}': BAD,
}


def decoded(spark: SparkSession, topic: Topic, records: list[tuple[bytes | None, bytes | None]]) -> list[Any]:
    rows = [(n, NOON, *record) for n, record in enumerate(records)]
    sent = spark.createDataFrame(rows, "n int, timestamp timestamp, key binary, value binary").coalesce(1)
    read = decode_records(sent, topic, NOON)
    return sorted(read.collect(), key=lambda row: int(row.n))


def plain(value: Any) -> Any:
    if isinstance(value, tuple):
        return tuple(map(plain, value))
    return bytes(value) if isinstance(value, bytearray) else value


def test_what_is_taken_is_what_was_sent(spark: SparkSession) -> None:
    found = {}
    for sent, row in zip(CASES, decoded(spark, EVENTS, [(b"k", sent) for sent in CASES]), strict=True):
        told = row.value and {c: plain(row.value[c]) for c in COLUMNS if row.value[c] is not None}
        found[sent] = BAD if row.fate == "malformed" else told
        assert row.fate in (None, "malformed")
        assert (row.value is None) == (row.fate == "malformed") == (row.reason is not None)
    short = {sent[:80]: (found[sent], wanted) for sent, wanted in CASES.items() if found[sent] != wanted}
    assert short == {}


def test_the_reason_names_the_place(spark: SparkSession) -> None:
    cases = {
        b'{"d": 8.005}': "the value's d is not a decimal(8,2): 8.005",
        b'{"t": 200}': "the value's t is not a tinyint: 200",
        b'{"p": {"at": "12:30"}}': "the value's p.at is not a timestamp: 12:30",
        b'{"tags": [1, 1.25]}': "the value's tags[] is not a decimal(4,1): 1.25",
        b'{"p": {"in": [{"y": 1e999}]}}': "the value's p.in[].y is not a double: infinite",
        b'{"e": 1.' + b"0" * 45 + b"1}": f"the value's e is not a decimal(38,10): 1.{'0' * 45}1",
    }
    rows = decoded(spark, EVENTS, [(None, sent) for sent in cases])
    assert {sent: row.reason for sent, row in zip(cases, rows, strict=True)} == cases


def test_a_key_is_exactly_one_value(spark: SparkSession) -> None:
    kinds: dict[str, dict[bytes, Any]] = {
        "int": {
            b"42": 42,
            b"-1": -1,
            b" 42": BAD,
            b"42\n": BAD,
            b"4e1": BAD,
            b"2147483648": BAD,
            b"4.0": BAD,
            b"\xc3": BAD,
        },
        "decimal(4,1)": {b"1.5": Decimal("1.5"), b"1.25": BAD, b"1e999999999": BAD, NINES * 500: BAD},
        "boolean": {b"true": True, b"yes": BAD, b"1": BAD},
        "double": {b"1.5": 1.5, b"1e999": BAD, b"NaN": BAD, b"Infinity": BAD},
        "timestamp": {b"2026-01-01": moment(2026, 1, 1), b"12:30": BAD},
        "date": {b"2026-01-01": date(2026, 1, 1), b"2026": BAD},
        "string": {b"k" * 1_000_000: "k" * 1_000_000, b"\x00": "\0", b"\xed\xa0\x80": BAD},
    }
    for kind, cases in kinds.items():
        topic = Topic.model_validate({"read": "table", "key": {"id": kind}, "value": {"n": "int"}})
        rows = decoded(spark, topic, [(key, b"{}") for key in cases])
        assert [BAD if row.fate == "malformed" else row.key[0] for row in rows] == list(cases.values()), kind


def test_a_record_has_at_most_so_many_bytes(spark: SparkSession) -> None:
    told = {"read": "table", "key": {"id": "string"}, "value": {"n": "int"}}
    topic = Topic.model_validate(told | {"max_record_bytes": 12})
    rows = [
        (0, NOON, b"k", b'{"n": 1234}', []),  # 12
        (1, NOON, b"kk", b'{"n": 1234}', []),
        (2, NOON, b"k", b'{"n": 123}', [("h", None)]),
        (3, NOON, b"k", b'{"n": 123}', [("h", b"1")]),
        (4, NOON, b"k" * 13, None, None),
        (5, NOON, None, b'{"n": 1234567}', None),
        (6, datetime(1969, 12, 31, tzinfo=UTC), b"k" * 13, None, None),
        (7, NOON, b"k", None, None),
    ]
    schema = "n int, timestamp timestamp, key binary, value binary, headers array<struct<key: string, value: binary>>"
    records = spark.createDataFrame(rows, schema)
    read = decode_records(records, topic, NOON, within_limit=True)
    found = read.sort("n").collect()
    assert [row.fate for row in found] == [
        *[None, "malformed", None, "malformed", "malformed", "malformed", "no_timestamp", None]
    ]
    assert found[1].reason == "oversized: 13 bytes, 12 may be"
    assert [found[n].key and found[n].key.id for n in (0, 7)] == ["k", "k"]


def test_what_is_too_large_is_so_whatever_its_valid_time(spark: SparkSession) -> None:
    """It is asked of nothing that was not looked into."""
    told = {"read": "stream", "key": {"day": "string"}, "value": {"n": "int"}, "max_record_bytes": 20}
    for valid_time in ("cast(day AS timestamp)", "timestamp_millis(n)"):
        _refuse_oversized(spark, Topic.model_validate(told | {"valid_time": valid_time}))


def _refuse_oversized(spark: SparkSession, topic: Topic) -> None:
    rows = [(n, NOON, b"2026-01-01", value) for n, value in enumerate([b'{"n": 1}', b'{"n": 1, "text": "x"}'])]
    records = spark.createDataFrame(rows, "n int, timestamp timestamp, key binary, value binary")
    read = decode_records(records, topic, NOON, within_limit=True)
    found = read.sort("n").collect()
    assert [row.fate for row in found] == [None, "malformed"]
    assert found[1].reason == "oversized: 31 bytes, 20 may be"


def test_how_many_may_be_malformed() -> None:
    told = {"read": "stream", "key": {"id": "string"}, "value": {"n": "int"}}
    cases = {(3, 10): 3, ("1%", 250): 2, ("0.5%", 199): 0, ("0.5%", 200): 1, ("100%", 7): 7, ("0%", 7): 0}
    for (allowed, records), most in cases.items():
        topic = Topic.model_validate(told | {"max_malformed": allowed})
        assert limits.malformed_limit(topic, records) == most, (allowed, records)
    for wrong in (-1, "101%", "1", "many", "-1%", 1.5):
        with pytest.raises(ValueError, match="max_malformed"):
            Topic.model_validate(told | {"max_malformed": wrong})


def test_a_share_is_one_of_the_whole_run(spark: SparkSession) -> None:
    """Of a run's two commits of 4 and 6 records."""
    told = {"read": "stream", "key": {"id": "string"}, "value": {"n": "int"}}
    rows = [(0, n, None, "malformed" if n == 0 else None, "no", b"k", b"v", None) for n in range(10)]
    place = "partition int, offset long, timestamp timestamp"
    schema = f"{place}, fate string, reason string, key binary, value binary, {HEADERS_SCHEMA}"
    first, second = (spark.createDataFrame(some, schema) for some in (rows[:4], rows[4:]))

    def account(share: str, commit: DataFrame, before: Counter[str], to_come: int) -> dict[int, int]:
        topic = Topic.model_validate(told | {"max_malformed": share})
        rule, origin = FateRule(None, ""), Origin([{0: OffsetRange(0, 10)}], [{}])
        packed = segment_packing.pack_records(commit, rule).localCheckpoint()
        read = segments.read_segments(packed, commit.schema, rule, origin, few=True)
        return record_counts.count_records(
            read, "partition {}".format, topic, "max_malformed", before, to_come, "nothing", hidden=False
        )

    before = Counter[str]()
    assert account("10%", first, before, to_come=6) == {0: 4}
    assert account("10%", second, before, to_come=0) == {0: 6}
    assert before == Counter({"records": 10, "refused": 1, "malformed": 1})
    with pytest.raises(RecordError, match="1 of the run's records do not decode, and the limit is 0; the first: no"):
        account("9%", first, Counter(), to_come=6)
    early = Counter({"records": 10, "malformed": 1})
    with pytest.raises(RecordError, match=r"2 of the run's .* the limit is 1; the first of this chunk: no"):
        account("10%", first, early.copy(), to_come=0)
    with pytest.raises(RecordError, match=r"1 of the run's .* the limit is 0: all are in its earlier chunks"):
        account("6%", second, early.copy(), to_come=0)  # the offsets that were to come have no record
    assert account("6%", second, early.copy(), to_come=1) == {0: 6}
    with pytest.raises(RecordError) as refused:
        account("9%", first.withColumn("key", F.lit(None).cast("binary")), Counter(), to_come=6)
    assert refused.value.where == "partition 0, offset 0, no key"
    assert refused.value.fix == (
        "fix the columns in the contract, or let them into quarantine with max_malformed: 1; nothing"
    )
    with pytest.raises(RecordError) as refused:
        account("9%", first.withColumn("reason", F.lit("op t: the table was truncated")), Counter(), to_come=6)
    assert refused.value.fix == "let them into quarantine with max_malformed: 1; nothing"
    with pytest.raises(RecordError) as refused:
        account(
            "9%", first.withColumn("reason", F.lit("no number: 1\nhindcast: all is well" + "x" * 9999)), Counter(), 6
        )
    assert r"no number: 1\nhindcast: all is well" in refused.value.found
    assert len(refused.value.found) < 1500


CONTRACT = """
pipeline: poison
start: 2026-01-01
topics:
  events:
    read: table
    key: {id: string}
    value: {d: "decimal(8,2)", n: int, text: string, at: timestamp}
    max_malformed: ALLOWED
    max_record_bytes: 700000
"""


@pytest.mark.slow
def test_a_run_takes_all_of_them(spark: SparkSession, broker: str, tmp_path: Path) -> None:
    few = [sent for sent in CASES if len(sent) < 600_000]
    with pipeline(spark, broker, tmp_path, CONTRACT.replace("ALLOWED", "3")) as p:
        p.send("events", ("good", {"d": 1, "n": 1}, 0))
        p.send("events", *((f"k{n}", sent, n) for n, sent in enumerate(few)))
        p.send("events", (b"\xff", b"{}", 1), (None, b"{}", 1), ("k" * 600_000, {"n": 2}, 1))
        p.send("events", ("headers", {"n": 3}, 1, ("h", b"x" * 500_000)), ("large", b"\0" * 700_000, 1))
        p.send("events", ("last", {"n": 4}, 500), ("2099", {"n": 5}, datetime(2099, 1, 1, tzinfo=UTC)))
        before = p.versions()
        with pytest.raises(RecordError, match="nothing was written"):
            p.run("one")
        assert p.versions() == before == dict.fromkeys(before)
        assert p.states() == [(1, "stopped")]
        told = report.read_report(p.contract, journal.read_active_run(p.warehouse, p.name, 1)).as_json()
        assert (told["state"], "nothing was written" in told["found"]) == ("stopped", True)

        p.write(CONTRACT.replace("ALLOWED", "90%"))
        told = p.run("one")
        assert p.states() == [(1, "abandoned"), (2, "completed")], "planned anew"
        offsets = told["topics"]["events"]["offsets"]
        assert offsets == len(few) + 8
        fates = told["topics"]["events"]["partitions"][0]["fates"]
        assert sum(fates.values()) == offsets
        assert (fates["null_key"], fates["time_skew"]) == (1, 1)
        log = {row["offset"]: row for row in p.raw("logs/events")}
        assert [log[n + 1]["value"] for n in range(len(few))] == few, "the log keeps the bytes"
        refused = {row["offset"]: row["value"] for row in p.raw("quarantine")}
        assert refused == {n: row["value"] for n, row in log.items() if row["fate"] != "accepted"}
        assert len(quarantine.list_refused(p.warehouse, p.contract)) == len(refused)
        there = {row[0]: row[2] for row in p.believed("events")}
        assert (there["good"], there["k" * 600_000], there["headers"], there["last"]) == (1, 2, 3, 4)
        assert "large" not in there
