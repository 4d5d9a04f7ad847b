"""Valid time and KIP-32 in whole runs: on the real broker, with records as only raw producers send them."""

from __future__ import annotations

import shutil
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource

from hindcast.bitemporal.fates import FATES
from hindcast.common.errors import GateError
from hindcast.common.settings import read_settings
from hindcast.ingest import ledger, requeue, requeued_records
from hindcast.kafka.cluster import millis
from hindcast.ops import journal_rebuild
from hindcast.plan import journal
from hindcast.plan.runs import Run
from hindcast.runs import special_runs
from pipelines import T0, Pipeline, at, pipeline, tuples, wrong

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.connect

CONTRACT = """
pipeline: dated
start: 2026-01-01
topics:
  menu:
    read: table
    key: {item: string}
    value: {price: int, ts: bigint}
    history_retention: 20 seconds
    MENU
  orders:
    read: stream
    key: {customer: string}
    value: {item: string, at: timestamp}
    ORDERS
views:
  seen:
    stream: orders
    where: item IS NOT NULL
    select: {item: item}
    semantics: kafka
"""
GIVEN = CONTRACT.replace("MENU", "valid_time: timestamp_millis(ts)").replace("ORDERS", "valid_time: at")
SENT = CONTRACT.replace("    MENU\n", "").replace("ORDERS", "valid_time: coalesce(at, record_timestamp)")
MICRO = timedelta(microseconds=1)


def ts(second: float) -> int:
    return millis(at(second))


def order(moment: datetime | None) -> dict[str, Any]:
    return {"item": "tea", "at": moment and moment.isoformat()}


def menu(p: Pipeline) -> list[tuple[Any, ...]]:
    return tuples([row for row in p.raw("menu") if row["systemTo"] is None], "item", "price", "validFrom", "validTo")


def orders(p: Pipeline, name: str = "orders") -> list[tuple[Any, ...]]:
    return tuples([row for row in p.raw(name) if row["systemTo"] is None], "customer", "timestamp")


def counted(p: Pipeline, topic: str) -> dict[str, int]:
    """The fates of a topic by the ledger: the sums over all runs."""
    rows = [row for row in ledger.read_ledger(p.warehouse, p.name).to_pylist() if row["topic"] == topic]
    sums = {fate: sum(row[fate] for row in rows) for fate in FATES}
    return {fate: n for fate, n in sums.items() if n}


MENU = (
    ("tea", {"price": 1, "ts": ts(0)}, 100),
    ("tea", {"price": 2, "ts": ts(10)}, 101),
    ("soup", {"price": 5}, 102),  # 2: no valid time
    ("tea", {"price": 3, "ts": ts(5)}, 103),  # out of order by its value, not in Kafka
    ("cake", {"price": 7, "ts": ts(-30)}, 103.5),  # 4: expired at stream time 10
    ("tea", None, 104),  # a tombstone is dated by Kafka
)
LOGGED = [
    (0, 0, 100, "accepted"),
    (1, 10, 101, "accepted"),
    (2, 102, None, "no_timestamp"),
    (3, 5, 103, "accepted"),
    (4, -30, 103.5, "expired"),
    (5, 104, None, "accepted"),
]
BY_VALUE = [("tea", 1, 0, 5), ("tea", 2, 10, 104), ("tea", 3, 5, 10)]
TEA = [("tea", 1, 100, 101), ("tea", 2, 101, 103), ("tea", 3, 103, 104)]
BY_KAFKA = [("cake", 7, 103.5, None), ("soup", 5, 102, None), ("soup", 6, 90, 102), *TEA]


@pytest.mark.long
@pytest.mark.ci
@pytest.mark.slow
def test_another_valid_time_dates_a_table_anew(spark: SparkSession, broker: str, tmp_path: Path) -> None:
    """The menu of the story below, alone, up to its second run."""
    with pipeline(spark, broker, tmp_path, GIVEN.partition("  orders:")[0]) as p:
        p.send("menu", *MENU)
        p.run()
        assert menu(p) == BY_VALUE
        assert tuples(p.raw("logs/menu"), "offset", "timestamp", "recordTimestamp", "fate") == LOGGED
        p.write(SENT.partition("  orders:")[0])
        p.send("menu", ("soup", {"price": 6, "ts": ts(90)}, 90))
        told = p.run()
        assert menu(p) == BY_KAFKA
        assert told["topics"]["menu"]["decidedAnew"] == {"accepted": 2, "expired": 0}
        assert counted(p, "menu") == {"accepted": 7}
        assert {row[:2] for row in p.history("menu") if row[-2:] == (1, 2)} == {("tea", 1), ("tea", 2), ("tea", 3)}


@pytest.mark.long
def test_another_valid_time_dates_the_log_anew_and_old_answers_stay(
    spark: SparkSession, broker: str, tmp_path: Path
) -> None:
    long_ago, sharp = datetime(1500, 1, 1, tzinfo=UTC), at(5) + MICRO
    with pipeline(spark, broker, tmp_path, GIVEN) as p:
        p.send("menu", *MENU)
        p.send("orders", ("anna", order(sharp), 200), ("bob", order(long_ago), 201), ("carl", order(None), 202))
        p.run()
        of_orders = [("anna", 5.000001), ("bob", (long_ago - T0).total_seconds())]
        assert menu(p) == BY_VALUE
        assert orders(p) == of_orders
        assert orders(p, "seen") == [("anna", 5)], "Kafka Streams has milliseconds, and skips what is before 1970"
        assert tuples(p.raw("logs/menu"), "offset", "timestamp", "recordTimestamp", "fate") == LOGGED
        assert counted(p, "orders") == {"accepted": 2, "no_timestamp": 1}

        # stream time before the new record is that of the log dated anew: 104
        p.write(SENT)
        p.send("menu", ("soup", {"price": 6, "ts": ts(90)}, 90))
        told = p.run()
        assert menu(p) == BY_KAFKA
        assert orders(p) == [*of_orders, ("carl", 202)]
        assert orders(p, "seen") == [("anna", 5), ("carl", 202)]
        assert told["topics"]["menu"]["decidedAnew"] == {"accepted": 2, "expired": 0}
        assert counted(p, "menu") == {"accepted": 7}
        assert counted(p, "orders") == {"accepted": 3}
        assert {row[:2] for row in p.history("menu") if row[-2:] == (1, 2)} == {("tea", 1), ("tea", 2), ("tea", 3)}

        # and of the next: 104 less 20 is later than 83
        p.send("menu", ("soup", {"price": 8, "ts": ts(91)}, 83))
        p.send("orders", ("dora", order(None), 203))
        p.run()
        assert menu(p) == BY_KAFKA
        assert orders(p) == [*of_orders, ("carl", 202), ("dora", 203)]
        assert orders(p, "seen") == [("anna", 5), ("carl", 202), ("dora", 203)]
        assert counted(p, "menu") == {"accepted": 7, "expired": 1}

        # the journal, made again from the logs, knows what they were dated by
        dated = [share(run) for run in journal.read_runs(p.warehouse, p.name)]
        (Path(p.warehouse) / p.name / "runs").rename(tmp_path / "lost")
        assert journal_rebuild.rebuild_journal(p.warehouse, p.contract) == [1, 2, 3]
        assert dated == [("timestamp_millis(ts)", "at"), *2 * [(None, "coalesce(at, record_timestamp)")]]
        dated[1] = (None, "?")  # it brought no order that could tell
        assert [share(run) for run in journal.read_runs(p.warehouse, p.name)] == dated

        # put back, it gives what it gave
        p.write(GIVEN)
        p.run()
        assert menu(p) == [("soup", 6, 90, 91), ("soup", 8, 91, None), *BY_VALUE]
        assert counted(p, "menu") == {"accepted": 6, "expired": 1, "no_timestamp": 1}
        assert orders(p) == of_orders


def share(run: Run) -> tuple[str | None, ...]:
    told = run.plan.topics
    return told["menu"].valid_time, told["orders"].valid_time


REQUEUED = """
pipeline: again
start: 2026-01-01
topics:
  menu:
    read: table
    key: {item: string}
    value: {price: int, note: string}
    history_retention: 20 seconds
    max_malformed: 9
    max_record_bytes: 60
"""
LONG = "x" * 100


@pytest.mark.long
def test_what_is_requeued_is_dated_anew_too_and_moves_no_stream_time(
    spark: SparkSession, broker: str, tmp_path: Path
) -> None:
    with pipeline(spark, broker, tmp_path, REQUEUED) as p:

        def requeued(**asked: Any) -> dict[str, Any]:
            told = special_runs.run_requeue(
                spark, read_settings(), p.name, f"requeue-{len(p.states())}", requeue.build_request(p.contract, **asked)
            )
            return dict(told.topics["menu"].requeued or {})

        p.send(
            "menu",
            ("tea", {"price": 1, "at": ts(0)}, 100),
            ("tea", {"price": 2, "at": ts(90), "note": LONG}, 101),  # 1: oversized
            ("soup", {"price": 5, "at": ts(10)}, 102),
            ("cake", {"price": 7, "at": ts(5), "note": LONG}, 50),  # 3: oversized; expired at stream time 102
        )
        raw = Producer({"bootstrap.servers": p.servers, "log_level": 0})
        raw.produce(p.kafka("menu"), key=b"pie", value=b'{"price": 9, "at": "%d"}' % ts(11), timestamp=NONE)
        assert raw.flush(20) == 0
        p.run()
        assert p.fates("menu")[4] == (4, "no_timestamp")
        larger = REQUEUED.replace("60", "500")
        p.write(larger)
        assert requeued(partition=0, offsets=[1]) == {"accepted": 1}
        assert menu(p) == [("soup", 5, 102, None), ("tea", 1, 100, 101), ("tea", 2, 101, None)]

        dated = larger.replace("note: string}", "note: string, at: bigint}\n    valid_time: timestamp_millis(at)")
        p.write(dated)
        p.send("menu", ("soup", {"price": 6, "at": ts(12)}, 103))
        p.run()
        by_value = [("soup", 5, 10, 12), ("soup", 6, 12, None), ("tea", 1, 0, 90), ("tea", 2, 90, None)]
        assert menu(p) == by_value
        assert counted(p, "menu") == {"accepted": 4, "malformed": 2}, "the pie's time is a text"
        assert requeue.count_waiting(p.warehouse, p.contract, requeue.build_request(p.contract)) == {"menu": 2}
        for back in (larger, dated):  # no requeue: the pie is without a time, and malformed again
            p.write(back)
            p.run()

        p.write(dated.replace("    valid_time", "    json: lenient\n    valid_time"))
        assert requeued() == {"accepted": 1}, "the cake"
        rows = requeued_records.read_records(spark, p.warehouse, p.name, "menu").collect()
        runs = {row["offset"]: row["run"] for row in rows}
        assert (runs[1], runs[3], runs[4]) == (2, 6, 1), "by this contract the pie was never malformed"
        assert len(rows) == len(runs)
        p.send("menu", ("tea", {"price": 3, "at": ts(-9)}, 104), ("tea", {"price": 4, "at": ts(-8)}, 105))
        p.run()
        more = [("cake", 7, 5, None), ("pie", 9, 11, None), ("tea", 4, -8, 0)]
        assert menu(p) == sorted([*by_value, *more], key=str)
        assert counted(p, "menu") == {"accepted": 7, "expired": 1}
        told = p.run(only="menu")
        assert told["tables"]["menu"]["opened"] == 0, "whole the same"
        assert requeue.count_waiting(p.warehouse, p.contract, requeue.build_request(p.contract)) == {}


@pytest.mark.long
def test_what_was_requeued_is_dated_anew_also_if_the_journal_was_rebuilt(
    spark: SparkSession, broker: str, tmp_path: Path
) -> None:
    with pipeline(spark, broker, tmp_path, REQUEUED) as p:
        p.send("menu", ("tea", {"price": 1, "at": ts(0)}, 100), ("tea", {"price": 2, "at": ts(9), "note": LONG}, 101))
        p.run()
        larger = REQUEUED.replace("60", "500")
        p.write(larger)
        special_runs.run_requeue(spark, read_settings(), p.name, "requeue", requeue.build_request(p.contract))
        assert menu(p) == [("tea", 1, 100, 101), ("tea", 2, 101, None)]
        shutil.rmtree(Path(p.warehouse, p.name, "runs"))
        assert journal_rebuild.rebuild_journal(p.warehouse, p.contract) == [1, 2]
        p.write(larger.replace("note: string}", "note: string, at: bigint}\n    valid_time: timestamp_millis(at)"))
        p.run()
        assert menu(p) == [("tea", 1, 0, 9), ("tea", 2, 9, None)]


SKEWED = """
pipeline: skewed
start: 2026-01-01
topics:
  menu: {read: table, key: {item: string}, value: {at: timestamp}}
  orders: {read: stream, key: {customer: string}, value: {at: timestamp}}
"""


def with_each(text: str, fields: str) -> str:
    """A contract with more fields in each topic."""
    return text.replace("at: timestamp}", f"at: timestamp}}, {fields}")


@pytest.mark.long
def test_a_max_time_skew_changed_later_leaves_the_fates_that_another_valid_time_gave(
    spark: SparkSession, broker: str, tmp_path: Path
) -> None:
    now = datetime.now(UTC)
    moments = {"past": now - timedelta(hours=1), "soon": now, "future": now + timedelta(days=2)}

    def send(p: Pipeline, mark: str) -> None:
        for name in p.contract.topics:
            records = ((f"{mark} {when}", {"at": moment.isoformat()}, now) for when, moment in moments.items())
            p.send(name, *records)

    def keys(p: Pipeline) -> list[set[str]]:
        return [{row[0] for row in p.believed(name)} for name in p.contract.topics]

    with pipeline(spark, broker, tmp_path, SKEWED) as p:
        send(p, "a")
        p.run()
        p.write(with_each(SKEWED, "valid_time: at"))
        told = p.run()
        assert told["topics"]["orders"]["decidedAnew"]["time_skew"] == 1
        expected = {"a past", "a soon"}
        assert keys(p) == 2 * [expected]

        # a later bound is for later records: too far ahead then stays so, and an hour ago stays taken
        p.write(with_each(SKEWED, "valid_time: at, max_time_skew: {before: 10 minutes, after: 9 days}"))
        send(p, "b")
        p.run()
        expected |= {"b soon", "b future"}
        assert keys(p) == 2 * [expected]
        assert wrong(p) == []

        # and if all is derived again
        p.write(with_each(SKEWED, "valid_time: at, max_record_bytes: 9000, max_time_skew: 9 days"))
        p.run()
        assert keys(p) == 2 * [expected]
        assert [counted(p, name) for name in p.contract.topics] == 2 * [{"accepted": 4, "time_skew": 2}]
        assert wrong(p) == []


STOPPED = """
pipeline: stopped
start: 2026-01-01
topics:
  orders: {read: stream, key: {customer: string}, value: {at: timestamp}}
  menu: {read: table, key: {item: string}, value: {price: int}}
"""
GATED = STOPPED.replace("int}", "int}, expect: [{expect_column_values_to_be_between: {column: price, max_value: 5}}]")


@pytest.mark.long
def test_a_max_time_skew_put_right_after_a_gate_stopped_a_new_valid_time_reaches_a_stream_that_was_published(
    spark: SparkSession, broker: str, tmp_path: Path
) -> None:
    now = datetime.now(UTC)
    with pipeline(spark, broker, tmp_path, STOPPED) as p:
        p.send("orders", ("anna", {"at": (now + timedelta(days=2)).isoformat()}, now))
        p.run()
        p.send("menu", ("curry", {"price": 8}, now))
        p.write(with_each(GATED, "valid_time: at"))
        with pytest.raises(GateError):
            p.run()
        assert p.believed("orders") == []
        p.write(with_each(STOPPED, "valid_time: at, max_time_skew: 9 days"))
        p.run()
        assert [row[0] for row in p.believed("orders")] == ["anna"]
        assert wrong(p) == []


RAW = """
pipeline: raw
start: 2026-01-01
topics:
  clicks:
    read: stream
    key: {who: string}
    value: {n: int}
    from: 2026-01-01T00:00:10Z
"""
NOW = "LogAppendTime"
NONE, NANOSECONDS = -1, millis(T0) * 1_000_000


class Raw:
    """A producer that sends any timestamp, in milliseconds since 1970."""

    def __init__(self, p: Pipeline, topic: str) -> None:
        self.servers, self.topic = p.servers, p.kafka(topic)
        self._producer = Producer({"bootstrap.servers": p.servers, "log_level": 0, "linger.ms": 0})
        self._sent = 0

    def send(self, stamp: int) -> None:
        self._producer.produce(self.topic, key=b"k", value=b'{"n": %d}' % self._sent, timestamp=stamp)
        self._sent += 1
        assert self._producer.flush(20) == 0

    def stamped(self, kind: str) -> None:
        """Alters the topic's message.timestamp.type."""
        entry = ConfigEntry("message.timestamp.type", kind, incremental_operation=AlterConfigOpType.SET)
        changed = ConfigResource(ConfigResource.Type.TOPIC, self.topic, incremental_configs=[entry])
        admin = AdminClient({"bootstrap.servers": self.servers, "log_level": 0})
        admin.incremental_alter_configs([changed])[changed].result()
        wanted = ConfigResource(ConfigResource.Type.TOPIC, self.topic)
        until = time.monotonic() + 20
        while admin.describe_configs([wanted])[wanted].result()["message.timestamp.type"].value != kind:
            assert time.monotonic() < until
            time.sleep(0.05)


@pytest.mark.long
@pytest.mark.ci
@pytest.mark.slow
def test_a_topic_whose_timestamps_are_of_both_types_of_none_and_of_no_time(
    spark: SparkSession, broker: str, tmp_path: Path
) -> None:
    with pipeline(spark, broker, tmp_path, RAW) as p:
        raw, began = Raw(p, "clicks"), datetime.now(UTC)
        for second in (5, 20, 3, 15):  # KIP-32: all from the first that reaches 10 on, the third though it is older
            raw.send(ts(second))
        raw.stamped(NOW)
        raw.send(ts(1))
        raw.stamped("CreateTime")
        for stamp in (ts(12), NONE, NONE - 1, NANOSECONDS, ts(13), 1 - 2**63, ts(14), 253_402_300_800_000):
            raw.send(stamp)
        told = p.run()

        log = {row["offset"]: row for row in p.raw("logs/clicks")}
        assert min(log) == 1, "the first record dated 10 or later, whatever lies before"
        assert [(offset, log[offset]["fate"]) for offset in sorted(log)] == [
            *((offset, "accepted") for offset in (1, 2, 3, 4, 5)),
            (6, "no_timestamp"),
            (7, "no_timestamp"),
            (8, "time_skew"),
            (9, "accepted"),
            (10, "no_timestamp"),
            (11, "accepted"),
            (12, "time_skew"),
        ]
        assert {offset for offset, row in log.items() if row["timestampType"] == 1} == {4}
        assert {row["timestampType"] for offset, row in log.items() if offset != 4} == {0}
        assert began < log[4]["timestamp"] < datetime.now(UTC)
        assert log[6]["timestamp"] == datetime(1970, 1, 1, tzinfo=UTC) - timedelta(milliseconds=1)
        assert {log[8]["timestamp"].year, log[12]["timestamp"].year} == {9999}
        assert log[8]["value"] == b'{"n": 8}'
        seen = [row for row in tuples(p.raw("clicks"), "n", "timestamp") if row[0] != 4]
        assert seen == [(1, 20), (11, 14), (2, 3), (3, 15), (5, 12), (9, 13)]
        [partition] = told["topics"]["clicks"]["partitions"]
        assert partition["fates"] == {"accepted": 7, "no_timestamp": 3, "time_skew": 2}

        # a from that moves back brings what lies between; to a search, -1 ms would mean the end
        p.write(RAW.replace("2026-01-01T00:00:10Z", "1969-12-31T23:59:59.999Z"))
        p.run()
        assert tuples(p.raw("clicks"), "n", "timestamp")[0] == (0, 5)
        before = p.versions()
        p.run()
        assert p.versions() == before
