"""When a record is true: `valid_time`, Kafka's own timestamp (KIP-32), and which times a run believes."""

from __future__ import annotations

import logging
from datetime import UTC, datetime, timedelta
from functools import reduce
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from hindcast.bitemporal import valid_time
from hindcast.common.errors import ContractError
from hindcast.contract import Topic, load
from hindcast.formats.spark_decoding import decode_records
from hindcast.ingest import retimestamping
from hindcast.runs import expression_checks
from hindcast.store import commits, row_reader, table_creation
from hindcast.store.tables import Table

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
MS, MICRO, DAY = timedelta(milliseconds=1), timedelta(microseconds=1), timedelta(days=1)
END = datetime(9999, 12, 31, 23, 59, 59, 999000, tzinfo=UTC)

KINDS = {"key": {"id": "string"}, "value": {"ts": "bigint", "at": "timestamp"}}

Case = tuple[str, datetime | int, bytes | None, bytes | None]
"""The rule; Kafka's timestamp (or microseconds, where Python has no such moment); key and value as sent."""
Dated = tuple[Any, Any, str | None]
"""Valid time, Kafka's own where that is another, fate."""


def topic(valid: str | None = None, read: str = "table", **more: Any) -> Topic:
    return Topic.model_validate({"read": read, **KINDS, "valid_time": valid, **more})


def judged(spark: SparkSession, given: list[tuple[Topic, list[Case]]]) -> list[dict[Case, tuple[Dated, str | None]]]:
    """What each record became, as a run of `NOON` judges it, and the reason; all in one job."""
    frames = []
    for of, cases in given:
        rows = [(len(frames), n, _micros(sent), key, value) for n, (_, sent, key, value) in enumerate(cases)]
        records = spark.createDataFrame(rows, "t int, n int, sent long, key binary, value binary").coalesce(1)
        records = records.selectExpr("t", "n", "timestamp_micros(sent) AS timestamp", "key", "value")
        decoded = decode_records(records, of, *valid_time.skew_bounds(of, NOON))
        frames.append(decoded.select("t", "n", "timestamp", "recordTimestamp", "fate", "reason"))
    found = sorted(reduce(DataFrame.unionByName, frames).collect())
    told = [((_utc(r.timestamp), _utc(r.recordTimestamp), r.fate), r.reason) for r in found]
    return [dict(zip(cases, [told.pop(0) for _ in cases], strict=True)) for _, cases in given]


def _utc(moment: datetime | None) -> datetime | None:
    return moment and moment.replace(tzinfo=UTC)


def _micros(sent: datetime | int) -> int:
    return sent if isinstance(sent, int) else (sent - EPOCH) // MICRO


def millis(moment: datetime) -> int:
    return (moment - EPOCH) // MS


OWN = "without valid_time a record is true at Kafka's timestamp"
NONE = "Kafka's negative timestamps are none"
FAR = "what no table can hold is refused, and dated at its bounds"
AFTER = "up to max_time_skew after known-at a record is believed, itself included"
GIVEN = "a record is true when valid_time says"
FAILS = "no_timestamp where valid_time is null or fails"
TOMBSTONE = "a tombstone has no value to ask: Kafka's own timestamp"
BEFORE_1970 = "valid times before 1970 are times"
UNKNOWN = "what does not decode cannot be asked: malformed"
SIDES = "max_time_skew has two sides, each included"

HOUR, LONG_AGO, SHARP = timedelta(hours=1), datetime(1900, 5, 1, tzinfo=UTC), NOON + MICRO
FIRST, LAST = valid_time.FIRST_MOMENT, valid_time.LAST_MOMENT
MOST = 2**63 - 1

OF_KAFKA: dict[Case, Dated] = {
    (OWN, NOON, b"a", b"{}"): (NOON, None, None),
    (OWN, EPOCH, b"a", b"{}"): (EPOCH, None, None),
    (NONE, EPOCH - MS, b"a", b"{}"): (EPOCH - MS, None, "no_timestamp"),
    (NONE, EPOCH - 2 * MS, b"a", b"{}"): (EPOCH - 2 * MS, None, "no_timestamp"),
    (NONE, EPOCH - 10_000 * DAY, b"a", None): (EPOCH - 10_000 * DAY, None, "no_timestamp"),
    ("whatever else is wrong", EPOCH - MS, None, b"{"): (EPOCH - MS, None, "no_timestamp"),
    (AFTER, NOON + DAY, b"a", b"{}"): (NOON + DAY, None, None),
    (AFTER, NOON + DAY + MS, b"a", b"{}"): (NOON + DAY + MS, None, "time_skew"),
    (FAR, END, b"a", b"{}"): (END, None, "time_skew"),
    (FAR, _micros(END) + 1000, b"a", b"{}"): (END, None, "time_skew"),
    (FAR, MOST, b"a", b"{}"): (END, None, "time_skew"),
    (FAR, -MOST, b"a", b"{}"): (FIRST, None, "no_timestamp"),
}
OF_VALUE: dict[Case, Dated] = {
    (GIVEN, NOON, b"a", b'{"ts": 1000}'): (EPOCH + 1000 * MS, NOON, None),
    ("equal times stand once", NOON, b"a", b'{"ts": %d}' % millis(NOON)): (NOON, None, None),
    ("none of Kafka's is no loss", EPOCH - MS, b"a", b'{"ts": 5}'): (EPOCH + 5 * MS, EPOCH - MS, None),
    (BEFORE_1970, NOON, b"a", b'{"ts": -1}'): (EPOCH - MS, NOON, None),
    (BEFORE_1970, NOON, b"a", b'{"ts": %d}' % millis(LONG_AGO)): (LONG_AGO, NOON, None),
    (FAILS, NOON, b"a", b"{}"): (NOON, None, "no_timestamp"),
    (FAILS, NOON, b"a", b'{"ts": 9223372036854775807}'): (NOON, None, "no_timestamp"),
    (FAILS, NOON, None, b"{}"): (NOON, None, "no_timestamp"),
    (TOMBSTONE, NOON, b"a", None): (NOON, None, None),
    (TOMBSTONE, EPOCH - MS, b"a", None): (EPOCH - MS, None, "no_timestamp"),
    (UNKNOWN, NOON, b"a", b'{"ts": "x"}'): (NOON, None, "malformed"),
    (UNKNOWN, EPOCH - MS, b"a", b'{"ts": "x"}'): (EPOCH - MS, None, "malformed"),
    ("null_key has its time", NOON, None, b'{"ts": 7}'): (EPOCH + 7 * MS, NOON, "null_key"),
    (AFTER, NOON, b"a", b'{"ts": %d}' % millis(NOON + DAY)): (NOON + DAY, NOON, None),
    (AFTER, NOON, b"a", b'{"ts": %d}' % (millis(NOON + DAY) + 1)): (NOON + DAY + MS, NOON, "time_skew"),
    (FAR, NOON, b"a", b'{"ts": %d}' % millis(LAST)): (LAST, NOON, "time_skew"),
    (FAR, NOON, b"a", b'{"ts": %d}' % (millis(END) + 1)): (END, NOON, "time_skew"),
    (FAR, NOON, b"a", b'{"ts": 9223372036854775}'): (END, NOON, "time_skew"),
    (FAR, NOON, b"a", b'{"ts": %d}' % millis(FIRST)): (FIRST, NOON, None),
    (FAR, NOON, b"a", b'{"ts": %d}' % (millis(FIRST) - 1)): (FIRST, NOON, "time_skew"),
    (FAR, NOON, b"a", b'{"ts": -9223372036854775}'): (FIRST, NOON, "time_skew"),
    (FAR, MOST, b"a", b'{"ts": 0}'): (EPOCH, END, None),
}
SHARP_VALUE = b'{"at": "2026-01-01T12:00:00.000001Z"}'
OF_A_TIMESTAMP: dict[Case, Dated] = {("it has microseconds", NOON, b"a", SHARP_VALUE): (SHARP, NOON, None)}
OF_EITHER: dict[Case, Dated] = {
    ("record_timestamp", NOON, b"a", b'{"at": null}'): (NOON, None, None),
    ("the value's goes before", NOON, b"a", SHARP_VALUE): (SHARP, NOON, None),
    ("none is null", EPOCH - MS, b"a", b'{"at": null}'): (EPOCH - MS, None, "no_timestamp"),
}
OF_KEY: dict[Case, Dated] = {
    ("a tombstone has its key's", NOON, b"2026-01-01T12:00:00.000001Z", None): (SHARP, NOON, None),
    ("which must give one", NOON, b"soon", None): (NOON, None, "no_timestamp"),
    ("with its date", NOON, b"12:30", None): (NOON, None, "no_timestamp"),
}
OF_TWO_SIDES: dict[Case, Dated] = {
    (SIDES, NOON - 30 * DAY, b"a", b"{}"): (NOON - 30 * DAY, None, None),
    (SIDES, NOON - 30 * DAY - MS, b"a", b"{}"): (NOON - 30 * DAY - MS, None, "time_skew"),
    (SIDES, NOON + HOUR, b"a", b"{}"): (NOON + HOUR, None, None),
    (SIDES, NOON + HOUR + MS, b"a", b"{}"): (NOON + HOUR + MS, None, "time_skew"),
}
WITHOUT_LIMIT: dict[Case, Dated] = {
    (FAR, NOON, b"a", b'{"ts": %d}' % millis(LAST)): (LAST, NOON, None),
    (FAR, NOON, b"a", b'{"ts": %d}' % (millis(LAST) + 1)): (LAST + MS, NOON, "time_skew"),
}
MILLIS = "timestamp_millis(ts)"
SIDED = {"before": "30 days", "after": "1 hour"}
WIDE = topic(MILLIS, max_time_skew={"before": "999999999 days", "after": "999999999 days"})


def test_every_record_is_dated_or_refused(spark: SparkSession) -> None:
    given = [
        (topic(), OF_KAFKA),
        (topic(MILLIS), OF_VALUE),
        (topic("at"), OF_A_TIMESTAMP),
        (topic("coalesce(at, record_timestamp)"), OF_EITHER),
        (topic("cast(id AS timestamp)"), OF_KEY),
        (topic(max_time_skew=SIDED), OF_TWO_SIDES),
        (WIDE, WITHOUT_LIMIT),
    ]
    for (_, wanted), found in zip(given, judged(spark, [(of, list(cases)) for of, cases in given]), strict=True):
        assert {case: dated for case, (dated, _) in found.items()} == wanted


def test_the_latest_time_that_a_plan_believes_has_a_bound() -> None:
    assert valid_time.skew_bounds(WIDE, NOON).latest == LAST
    assert valid_time.skew_bounds(topic(), NOON).latest == NOON + DAY


def test_the_reason_says_which(spark: SparkSession) -> None:
    of = topic("timestamp_millis(ts)", max_time_skew={"before": "30 days", "after": "1 hour"})
    cases: dict[Case, str] = {
        ("", NOON, b"a", b"{}"): "valid_time gives none for the record: timestamp_millis(ts) is null or fails",
        ("", EPOCH - MS, b"a", None): "the record has no timestamp",
        ("", NOON, b"a", b'{"ts": 0}'): (
            "dated before 2025-12-02T12:00:00+00:00, the run's known-at less max_time_skew's before"
        ),
        ("", NOON, b"a", b'{"ts": %d}' % millis(NOON + DAY)): (
            "dated after 2026-01-01T13:00:00+00:00, the run's known-at plus max_time_skew"
        ),
        ("", NOON, b"a", b'{"ts": 9223372036854775}'): "dated after 9999-12-30, the last day that tables hold",
        ("", NOON, b"a", b'{"ts": -9223372036854775}'): "dated before 0001-01-02, the first day that tables hold",
    }
    [found] = judged(spark, [(of, list(cases))])
    assert {case: why for case, (_, why) in found.items()} == cases


def test_records_of_a_log_are_dated_already(spark: SparkSession) -> None:
    rows = spark.createDataFrame([(EPOCH - DAY, b"a", b'{"ts": 1}')], "timestamp timestamp, key binary, value binary")
    [row] = decode_records(rows, topic("timestamp_millis(ts)")).collect()
    assert (_utc(row.timestamp), row.fate) == (EPOCH - DAY, None)


def test_a_log_of_an_earlier_version_gets_the_new_column(spark: SparkSession, tmp_path: Path) -> None:
    log = Table(str(tmp_path), "dated", "logs/menu", "log")
    rows = spark.range(1).selectExpr("id AS offset", "'accepted' AS fate")
    for run, some in enumerate([rows, rows.selectExpr("*", "timestamp_micros(0) AS recordTimestamp")], 1):
        table_creation.ensure_table(log, table_creation.make_nullable(some.schema))
        assert commits.append_rows(some, log, run, {"run": run})
    assert [
        _utc(row.recordTimestamp) for row in row_reader.load_rows(spark, log).sort("recordTimestamp").collect()
    ] == [
        None,
        EPOCH,
    ]


CONTRACT = """\
pipeline: dated
start: 2026-01-01
topics:
  menu:
    read: table
    key: {item: string}
    value: {ts: bigint, day: date, at: timestamp, name: string}
"""


@pytest.mark.parametrize(
    ("lines", "line", "found", "fix"),
    [
        ("valid_time: ts", 8, "ts is bigint, not a timestamp", "timestamp_millis(ts)"),
        ("valid_time: day", 8, "day is date, not a timestamp", "cast(day AS timestamp)"),
        ("valid_time: cast(at AS date)", 8, "is date, not a timestamp", "cast(cast(at AS date) AS timestamp)"),
        (
            "valid_time: timestamp_millis(name)",
            8,
            "timestamp_millis takes a number, but name is string",
            "cast(name AS bigint)",
        ),
        (
            "valid_time: timestamp_seconds(day)",
            8,
            "timestamp_seconds takes a number, but day is date",
            "cast(day AS timestamp)",
        ),
        ("valid_time: timestamp_micros(at)", 8, "timestamp_micros takes a number, but at is timestamp", "write at"),
        ("valid_time: att", 8, "no column 'att'", "at"),
        ("valid_time: timestamp_millis(", 8, "does not parse", "write one Spark SQL expression"),
        ("valid_time: max(at)", 8, "'max' is an aggregate", ""),
        ("valid_time: current_timestamp()", 8, "does not give the same answer every time", ""),
        ("valid_time: if(name > 5, at, at)", 8, "name is a string, 5 is a number", "cast"),
        ("valid_time: at\n    sensitive: true", 8, "valid_time uses at, which is sensitive", "sensitive:"),
        ("valid_time: at\n    sensitive: [name, at]", 8, "valid_time uses at, which is sensitive", "sensitive:"),
        ("max_time_skew: 1 dya", 8, "'1 dya' is not a duration", "30 days"),
        ("max_time_skew: {befor: 1 day}", 8, "unknown field 'topics.menu.max_time_skew.befor'", "before"),
        ("max_time_skew:\n      after: 1 hour\n      before: soon", 10, "'soon' is not a duration", "30 days"),
    ],
)
def test_what_cannot_be_is_refused_with_its_line(tmp_path: Path, lines: str, line: int, found: str, fix: str) -> None:
    path = tmp_path / "dated.yaml"
    path.write_text(f"{CONTRACT}    {lines}\n", encoding="utf-8")
    with pytest.raises(ContractError) as error:
        load(path)
    assert f"{path}:{line}" in str(error.value)
    assert found in str(error.value)
    assert fix in str(error.value)


class Heard(logging.Handler):
    """What a logger says."""

    def __init__(self) -> None:
        super().__init__()
        self.records: list[logging.LogRecord] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.records.append(record)


def test_what_spark_refuses_is_told_by_the_contracts_names_alone(spark: SparkSession, tmp_path: Path) -> None:
    path = tmp_path / "dated.yaml"
    path.write_text(f"{CONTRACT}    valid_time: timestamp_millis(concat(name, 'x'))\n", encoding="utf-8")
    logger, heard = logging.getLogger("SQLQueryContextLogger"), Heard()
    logger.addHandler(heard)
    with pytest.raises(ContractError) as caught:
        expression_checks.refuse_unfit_times(spark, tmp_path, load(path), "menu")
    assert caught.value.where == f"{path}:8"
    assert "concat(name, x)" in caught.value.found
    assert "_record" not in str(caught.value)
    logger.removeHandler(heard)
    assert heard.records == [], "Spark's own log of it is long, and tells no more"


def test_a_column_named_as_kafkas_own_is_refused_where_that_can_be_named(tmp_path: Path) -> None:
    path = tmp_path / "dated.yaml"
    text = CONTRACT.replace("ts: bigint", "record_timestamp: bigint")
    path.write_text(text, encoding="utf-8")
    assert "record_timestamp" in load(path).topics["menu"].value
    path.write_text(text + "    valid_time: at\n", encoding="utf-8")
    with pytest.raises(ContractError, match=r"dated\.yaml:7.*is the name of Kafka's own timestamp in valid_time"):
        load(path)


def test_a_duration_is_what_may_lie_after_and_hashes_as_ever(tmp_path: Path) -> None:
    path = tmp_path / "dated.yaml"
    hashes = set()
    for text in ("", "    max_time_skew: 1 day\n", "    max_time_skew: 24 hours\n"):
        path.write_text(CONTRACT + text, encoding="utf-8")
        hashes.add(load(path).hash)
    assert len(hashes) == 1
    assert topic(max_time_skew="2 hours").time_skew.after == timedelta(hours=2)
    assert topic(max_time_skew={"before": "2 hours"}).time_skew.after == DAY


def test_dating_anew_accepts_nothing_that_does_not_decode(spark: SparkSession) -> None:
    """What had no timestamp may have one now, if it can be read; a tombstone of Debezium's ends no row."""
    told = {"read": "table", "key": {"item": "string"}, "value": {"ts": "bigint"}, "valid_time": "timestamp_millis(ts)"}
    known_at = datetime(2026, 1, 1, tzinfo=UTC)
    sent = [
        (b"a", b'{"ts": 1000}', "no_timestamp", "accepted"),
        (b"a", b"{", "no_timestamp", "malformed"),
        (None, b'{"ts": 1000}', "no_timestamp", "null_key"),
        (b"a", b'{"ts": null}', "no_timestamp", "no_timestamp"),
        (b"a", None, "no_change", "no_change"),
    ]
    rows = [
        (0, n, known_at, key, value, fate, "why", None, 1, known_at) for n, (key, value, fate, _) in enumerate(sent)
    ]
    columns = "partition int, offset long, timestamp timestamp, key binary, value binary, fate string, reason string"
    log = spark.createDataFrame(rows, f"{columns}, streamTime timestamp, run long, systemFrom timestamp")
    dated = Topic.model_validate(told)
    again = retimestamping._retimestamp_rows(log, dated, {}, F.lit(False), {1: dated.time_skew})
    found = again.sort("offset").collect()
    assert [row.fate for row in found] == [fate for *_, fate in sent]
