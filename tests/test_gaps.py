"""Kafka as it really is: offsets without a record, partitions added, topics made anew, brokers restarted."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewPartitions

from hindcast.cli.main import main
from hindcast.common.errors import TopicError
from hindcast.common.settings import read_settings
from hindcast.ingest import ingest_commits, record_tasks, topic_segments
from hindcast.kafka import gaps, produce
from hindcast.kafka.cluster import Cluster, millis
from hindcast.kafka.topics import OffsetRange
from hindcast.ops import journal_rebuild
from hindcast.plan import journal, planner
from hindcast.runs import run_steps
from hindcast.store.tables import Table
from hindcast_local import broker as brokers
from hindcast_local import ports, process
from pipelines import Pipeline, at, pipeline, tuples, until, wrong

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

MENU = """
pipeline: gaps
start: 2026-01-01
topics:
  menu:
    read: table
    key: {item: string}
    value: {price: int}
"""
RECORD = MENU + "    on_gap: record\n"
ORDERS = """
pipeline: gaps
start: 2026-01-01
topics:
  orders:
    read: stream
    key: {customer: string}
    value: {n: int}
    from: 2026-01-01T00:00:10
"""


@contextmanager
def transactions(p: Pipeline) -> Iterator[Any]:
    """`send(commit, (key, value, second)...)`: each call is a transaction; its marker takes an offset too."""
    quiet = {"bootstrap.servers": p.servers, "log_level": 0}
    producer = Producer({**quiet, "transactional.id": p.prefix})
    producer.init_transactions(20)

    def send(commit: bool, *records: tuple[str, str, float]) -> None:
        producer.begin_transaction()
        for key, value, second in records:
            producer.produce(p.kafka("menu"), value, key, timestamp=millis(at(second)))
        producer.flush(20)
        end = available(p).end + len(records) + 1
        (producer.commit_transaction if commit else producer.abort_transaction)(20)
        reaches(p, end)

    yield send


READERS = pytest.mark.parametrize("decodes", ["arrow", "spark"])


@contextmanager
def before_reading(decodes: str, work: Callable[[], Any]) -> Iterator[None]:
    """Something happens between the plan and the reading of records, which are decoded where they are read, or not."""
    read = record_tasks.read_few

    def read_after(*arguments: Any) -> Any:
        work()
        return read(*arguments)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(record_tasks, "read_few", read_after)
        if decodes == "spark":
            patch.setattr(topic_segments, "_has_forgotten", lambda *_: True)
        yield


def available(p: Pipeline) -> OffsetRange:
    """What there is to read of the menu's first partition."""
    with Cluster(p.servers) as cluster:
        return cluster.read_offset_ranges(p.kafka("menu"))[0]


def reaches(p: Pipeline, end: int) -> None:
    """Waits for the end of a transaction: the broker writes its marker after it has answered."""
    until(lambda: available(p).end == end)


def retain_from(p: Pipeline, topic: str, offset: int, partition: int = 0) -> None:
    """What retention does: everything before an offset is deleted."""
    place = TopicPartition(p.kafka(topic), partition, offset)
    admin = AdminClient({"bootstrap.servers": p.servers, "log_level": 0})
    admin.delete_records([place])[place].result(20)


def ranges(p: Pipeline, topic: str, run: int) -> list[tuple[int, int, dict[str, int]]]:
    """Partition, planned range and fates of a run's report."""
    report = {r.number: r.detail for r in journal.read_runs(p.warehouse, p.name)}[run]
    return [(t["start"], t["end"], t["fates"]) for t in report["topics"][topic]["partitions"]]


def test_gaps_between_records(spark: SparkSession) -> None:
    found = spark.createDataFrame([(0, 3), (0, 4), (0, 9), (1, 0), (1, 20), (2, 5)], "partition int, offset long")
    gap = gaps.find_missing_offsets(
        found, {0: OffsetRange(3, 12), 1: OffsetRange(0, 1), 3: OffsetRange(7, 9), 4: OffsetRange(2, 2)}
    )
    assert sorted(tuple(row) for row in gap.collect()) == [(0, 5, 4), (0, 10, 2), (3, 7, 2)]


@pytest.mark.long
def test_aborted_records_and_markers_are_accounted_for_and_bring_nothing(
    spark: SparkSession, broker: str, tmp_path: Path
) -> None:
    with pipeline(spark, broker, tmp_path, MENU) as p, transactions(p) as send:
        send(True, ("curry", '{"price": 8}', 0), ("soup", '{"price": 5}', 0))  # 0, 1; marker 2
        send(False, ("curry", '{"price": 1}', 1), ("soup", '{"price": 1}', 1))  # 3, 4; marker 5
        send(True, ("curry", '{"price": 9}', 2))  # 6; marker 7
        told = p.run("first")
        assert told["topics"]["menu"]["partitions"] == [
            {"partition": 0, "start": 0, "end": 8, "fates": {"accepted": 3, "no_record": 5}}
        ]
        assert p.believed("menu") == [("curry", 8, 0, 2), ("curry", 9, 2, None), ("soup", 5, 0, None)]
        send(False, ("curry", '{"price": 1}', 3))  # a run of nothing but gaps: 8, 9
        before = p.versions()
        told = p.run("second", until=60)
        assert ranges(p, "menu", 2) == [(8, 10, {"no_record": 2})]
        assert p.versions() == {**before, "logs/menu": 2}
        assert p.raw("quarantine") == []
        empty = [row for row in p.raw("logs/menu") if row["fate"] == "no_record"]
        assert tuples(empty, "offset", "offsets") == [(2, 4), (7, 1), (8, 2)]


def test_offsets_without_a_record_have_a_fate_in_earlier_and_in_new_parts(
    spark: SparkSession, broker: str, tmp_path: Path
) -> None:
    """`from` moves back over markers of transactions, while new ones have come."""
    later = MENU.replace("read: table", "read: stream") + "    from: 2026-01-01T00:00:10\n"
    with pipeline(spark, broker, tmp_path, later) as p, transactions(p) as send:
        for second in (1, 2, 3, 11, 12):  # 0, 2, 4, 6, 8, with markers at 1, 3, 5, 7, 9
            send(True, ("curry", '{"price": 1}', second))
        p.run("first")
        send(True, ("soup", '{"price": 6}', 13))  # 10, and 11
        p.write(later.replace("00:00:10", "00:00:00"))
        p.run("second")
        rows = p.raw("logs/menu")
        assert sorted(tuples(rows, "offset", "offsets", "fate")) == [
            (n, 1, "no_record" if n % 2 else "accepted") for n in range(12)
        ]


def test_an_open_transaction_ends_the_log(broker: str, tmp_path: Path) -> None:
    with pipeline(None, broker, tmp_path, MENU) as p:
        p.send("menu", ("curry", {"price": 8}, 0))
        producer = Producer({"bootstrap.servers": broker, "log_level": 0, "transactional.id": p.prefix})
        producer.init_transactions(20)
        producer.begin_transaction()
        producer.produce(p.kafka("menu"), b"{}", b"curry")
        producer.flush(20)
        p.send("menu", ("curry", {"price": 9}, 1))
        assert available(p) == OffsetRange(0, 1)
        producer.abort_transaction(20)
        reaches(p, 4)


@pytest.mark.long
def test_what_retention_took_stops_the_run_until_the_contract_goes_on_without_it(
    spark: SparkSession, broker: str, tmp_path: Path
) -> None:
    with pipeline(spark, broker, tmp_path, MENU) as p:
        p.send("menu", *(("curry", {"price": n}, n) for n in range(4)))
        p.run("first")
        p.send("menu", *(("curry", {"price": n}, n) for n in range(4, 10)))
        retain_from(p, "menu", 6)  # before the plan
        before = p.versions()
        with pytest.raises(TopicError, match="offsets 4 to 5 are gone from Kafka: retention") as refused:
            p.run("second")
        assert refused.value.where == f"topic {p.kafka('menu')}, partition 0"
        assert "topics.menu.on_gap: record" in refused.value.fix
        assert p.versions() == before

        p.write(RECORD)
        run_steps.plan_run(read_settings(), p.name, "second")
        retain_from(p, "menu", 8)  # after the plan, before the read
        p.run("second")
        assert ranges(p, "menu", 2) == [(4, 10, {"accepted": 2, "gone": 4})]
        assert [row[1] for row in p.believed("menu")] == [0, 1, 2, 3, 8, 9]
        [gap] = [row for row in p.raw("logs/menu") if row["fate"] == "gone"]
        assert (gap["offset"], gap["offsets"], gap["reason"]) == (4, 4, gaps.RETENTION)
        assert p.raw("quarantine") == []

        p.send("menu", ("curry", {"price": 10}, 10), ("curry", {"price": 11}, 11))
        retain_from(p, "menu", 12)  # everything there was to come
        p.run("third")
        assert ranges(p, "menu", 3) == [(10, 12, {"gone": 2})]


@pytest.mark.long
def test_what_retention_takes_after_a_run_over_an_empty_topic_is_a_gap(
    spark: SparkSession, broker: str, tmp_path: Path
) -> None:
    with pipeline(spark, broker, tmp_path, MENU) as p:
        p.run("empty")
        p.send("menu", *(("curry", {"price": n}, n) for n in range(6)))
        retain_from(p, "menu", 4)
        with pytest.raises(TopicError, match="offsets 0 to 3 are gone from Kafka: retention"):
            p.run("second")
        p.write(RECORD)
        p.run("second")
        assert ranges(p, "menu", 2) == [(0, 6, {"accepted": 2, "gone": 4})]
        assert wrong(p) == []


@pytest.mark.long
def test_a_key_is_forgotten_and_records_are_requeued_whatever_became_of_the_topic(
    spark: SparkSession, broker: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pipeline(spark, broker, tmp_path, MENU + "    max_malformed: 1\n") as p:
        p.send("menu", ("curry", {"price": 8}, 0), ("soup", {"price": 5}, 0), ("rice", b"{", 3))
        p.run("first")
        name, admin = p.kafka("menu"), AdminClient({"bootstrap.servers": broker, "log_level": 0})
        admin.delete_topics([name])[name].result(20)
        assert main(["forget", f"{p.name}.menu", "--key", "curry"]) == 0, capsys.readouterr().err
        assert main(["requeue", p.name]) == 0, capsys.readouterr().err
        assert [row[0] for row in p.believed("menu")] == ["soup"]
        assert p.states() == [(1, "completed"), (2, "completed"), (3, "completed")]
        assert wrong(p) == []


@READERS
@pytest.mark.long
def test_what_retention_takes_while_it_is_read_fails_the_step_and_a_retry_says_which(
    spark: SparkSession, broker: str, tmp_path: Path, decodes: str
) -> None:
    with pipeline(spark, broker, tmp_path, MENU) as p, before_reading(decodes, lambda: retain_from(p, "menu", 3)):
        p.send("menu", *(("curry", {"price": n}, n) for n in range(6)))
        with pytest.raises(TopicError, match="Kafka lost offsets while they were read") as failed:
            p.run("first")
        assert "retry" in failed.value.fix
        with pytest.raises(TopicError, match="offsets 0 to 2 are gone from Kafka"):
            p.run("first")
        assert p.raw("logs/menu") == []


@pytest.mark.slow
@pytest.mark.parametrize("read", ["table", pytest.param("stream", marks=pytest.mark.long)])
def test_what_kafka_loses_after_the_log_has_it_does_not_matter(
    spark: SparkSession, broker: str, tmp_path: Path, read: str
) -> None:
    menu = MENU.replace("read: table", f"read: {read}")
    with pipeline(spark, broker, tmp_path, menu) as p, pytest.MonkeyPatch.context() as patch:
        p.send("menu", ("curry", {"price": 1}, 1))
        p.run("first")
        p.send("menu", ("curry", {"price": 2}, 2), ("soup", {"price": 3}, 3))
        claim = ingest_commits.ingest_topic

        def claimed(*arguments: Any) -> Any:
            found = claim(*arguments)
            retain_from(p, "menu", 3)
            return found

        patch.setattr(ingest_commits, "ingest_topic", claimed)
        p.run("second")
        assert len(p.believed("menu")) == 3


@pytest.mark.long
def test_what_compaction_took_is_gone_too(spark: SparkSession, broker: str, tmp_path: Path) -> None:
    compact = {"cleanup.policy": "compact", "segment.ms": "100", "min.cleanable.dirty.ratio": "0.01"}
    with pipeline(spark, broker, tmp_path, MENU) as p:
        name = p.kafka("menu")
        admin = AdminClient({"bootstrap.servers": broker, "log_level": 0})
        admin.delete_topics([name])[name].result(20)
        time.sleep(0.5)
        produce.create_topics(
            broker, name, config={**compact, "min.compaction.lag.ms": "0", "max.compaction.lag.ms": "200"}
        )
        for n in range(5):
            p.send("menu", ("curry", {"price": n}, n), (f"dish{n}", {"price": n}, n))
            time.sleep(0.15)  # a segment of its own
        end = time.monotonic() + 60
        with Cluster(broker) as cluster:
            assert cluster.is_compacted(name)
        while compacted_away(p) == 0 and time.monotonic() < end:
            time.sleep(1)
        with pytest.raises(
            TopicError, match=r"offsets 0 to \d are gone from Kafka: compaction took them.*, or they are markers"
        ):
            p.run("first")
        p.write(RECORD)
        p.run("first")
        [(start, end, fates)] = ranges(p, "menu", 2)
        assert (start, end) == (0, 10)
        assert fates["gone"] + fates["accepted"] == 10
        assert fates["gone"] > 0


def compacted_away(p: Pipeline) -> int:
    """How many of the ten records are not there any more."""
    from confluent_kafka import Consumer

    consumer = Consumer({"bootstrap.servers": p.servers, "group.id": "g", "log_level": 0, "enable.partition.eof": True})
    consumer.assign([TopicPartition(p.kafka("menu"), 0, 0)])
    seen = 0
    while (message := consumer.poll(5)) is not None and not message.error():
        seen += 1
    consumer.close()
    return 10 - seen


@pytest.mark.long
def test_added_partitions_begin_an_epoch_that_breaks_ties(spark: SparkSession, broker: str, tmp_path: Path) -> None:
    with pipeline(spark, broker, tmp_path, MENU, partitions=2) as p:
        send(p, 1, ("curry", 8, 0))
        p.run("first")
        new = NewPartitions(p.kafka("menu"), 3)
        admin = AdminClient({"bootstrap.servers": broker, "log_level": 0})
        admin.create_partitions([new])[p.kafka("menu")].result(20)
        with Cluster(broker) as cluster:
            while len(cluster.read_offset_ranges(p.kafka("menu"))) < 3:
                time.sleep(0.1)
        send(p, 0, ("curry", 9, 0))  # the key has moved to a lower partition; the later record wins
        send(p, 2, ("soup", 5, 1))
        p.run("second")
        assert ranges(p, "menu", 2) == [(0, 1, {"accepted": 1}), (1, 1, {}), (0, 1, {"accepted": 1})]
        assert p.believed("menu") == [("curry", 9, 0, None), ("soup", 5, 1, None)]
        assert sorted((row["partition"], row["epoch"]) for row in p.raw("logs/menu")) == [(0, 1), (1, 0), (2, 1)]


def send(p: Pipeline, partition: int, *records: tuple[str, int, float]) -> None:
    """To a partition of one's choice."""
    producer = Producer({"bootstrap.servers": p.servers, "log_level": 0})
    for key, price, second in records:
        value = f'{{"price": {price}}}'
        producer.produce(p.kafka("menu"), value, key, partition=partition, timestamp=millis(at(second)))
    assert producer.flush(20) == 0


@pytest.mark.long
def test_partitions_without_a_record_in_the_log_outlast_the_journal(
    spark: SparkSession, broker: str, tmp_path: Path
) -> None:
    with pipeline(spark, broker, tmp_path, MENU, partitions=3) as p:
        send(p, 0, ("curry", 1, 0))
        send(p, 1, ("soup", 1, 0), ("soup", 2, 0))
        retain_from(p, "menu", 2, 1)
        p.run("first")
        Path(Table(p.warehouse, p.name, "runs", "runs").path).rename(tmp_path / "lost")
        assert journal_rebuild.rebuild_journal(p.warehouse, p.contract) == [1]
        send(p, 0, ("curry", 2, 5))
        p.run("second")
        assert ranges(p, "menu", 2) == [(1, 2, {"accepted": 1}), (2, 2, {}), (0, 0, {})]
        assert {row["epoch"] for row in p.raw("logs/menu")} == {0}
        assert wrong(p) == []


@pytest.mark.long
def test_a_topic_made_anew_is_refused_between_runs_and_under_a_run(
    spark: SparkSession, broker: str, tmp_path: Path
) -> None:
    with pipeline(spark, broker, tmp_path, MENU) as p:

        def anew() -> None:
            name = p.kafka("menu")
            with Cluster(broker) as cluster:
                before = cluster.topic_id(name)
                admin = AdminClient({"bootstrap.servers": broker, "log_level": 0})
                admin.delete_topics([name])[name].result(20)
                time.sleep(0.5)
                produce.create_topics(broker, name)
                while cluster.topic_id(name) == before:
                    time.sleep(0.1)
            p.send("menu", ("curry", {"price": 1}, 0))

        p.send("menu", ("curry", {"price": 8}, 0))
        run_steps.plan_run(read_settings(), p.name, "first")
        anew()
        with pytest.raises(TopicError, match="was deleted and recreated since run 1"):
            p.run("first")
        assert p.raw("logs/menu") == []
        planner.abandon_run(p.warehouse, journal.read_active_run(p.warehouse, p.name, 1), "by a test")
        with pytest.raises(TopicError, match="was deleted and recreated since run 1") as refused:
            p.run("second")
        assert "into a new pipeline" in refused.value.fix


@READERS
@pytest.mark.long
def test_a_broker_that_restarts_while_it_is_read_costs_nothing(
    spark: SparkSession, tmp_path: Path, decodes: str
) -> None:
    port = ports.find_free_port()
    started = brokers.start_broker(tmp_path / "kafka", port, tmp_path / "broker.log")
    brokers.wait_for_broker(started)
    again: list[process.Process] = []

    def restart() -> None:
        process.stop_processes([started])
        again.append(brokers.start_broker(tmp_path / "kafka", port, tmp_path / "broker.log"))
        brokers.wait_for_broker(again[0])

    try:
        with pipeline(spark, f"127.0.0.1:{port}", tmp_path, MENU) as p:
            p.send("menu", *(("curry", {"price": n}, n) for n in range(2000)))
            restarting = threading.Thread(target=restart)

            def begin_restart() -> None:
                restarting.start()
                time.sleep(0.3)

            with before_reading(decodes, begin_restart):
                told = p.run("first")
            restarting.join()
            assert told["topics"]["menu"]["partitions"][0]["fates"] == {"accepted": 2000}
    finally:
        process.stop_processes(again or [started])


@READERS
@pytest.mark.long
def test_a_topic_that_grows_while_it_is_read_gives_what_was_planned(
    spark: SparkSession, broker: str, tmp_path: Path, decodes: str
) -> None:
    with pipeline(spark, broker, tmp_path, MENU) as p:
        p.send("menu", ("curry", {"price": 8}, 0))
        with before_reading(decodes, lambda: p.send("menu", ("curry", {"price": 9}, 1))):
            p.run("first")
        assert p.fates("menu") == [(0, "accepted")]
        p.run("second")
        assert p.believed("menu") == [("curry", 8, 0, 1), ("curry", 9, 1, None)]


@pytest.mark.long
def test_a_stream_begins_at_its_from_and_one_moved_back_replays_what_lies_before(
    spark: SparkSession, broker: str, tmp_path: Path
) -> None:
    with pipeline(spark, broker, tmp_path, ORDERS) as p:
        told = p.run("nothing yet")
        assert told["topics"]["orders"]["partitions"] == [{"partition": 0, "start": 0, "end": 0, "fates": {}}]
        p.send("orders", *((str(n), {"n": n}, n) for n in range(20)))
        p.run("first")
        assert ranges(p, "orders", 2) == [(10, 20, {"accepted": 10})]
        p.send("orders", ("late", {"n": 3}, 3), ("on time", {"n": 20}, 20))
        p.write(ORDERS.replace("00:00:10", "00:00:04"))
        p.run("moved back")
        assert ranges(p, "orders", 3) == [(4, 10, {"accepted": 6}), (20, 22, {"accepted": 2})]
        p.write(ORDERS.replace("00:00:10", "00:00:15"))
        p.run("moved on")
        assert ranges(p, "orders", 4) == [(22, 22, {})]
        p.write("\n".join(line for line in ORDERS.splitlines() if "from:" not in line))
        p.run("from the beginning")
        assert ranges(p, "orders", 5) == [(0, 4, {"accepted": 4}), (22, 22, {})]
        assert sorted(row[1] for row in p.believed("orders")) == sorted([*range(21), 3])
