"""A rehearsal beside a pipeline: from its logs, which have what Kafka has lost, into the tables of another name."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient

from hindcast.cli.main import main
from hindcast.common.errors import RequestError
from hindcast.ingest import logged_topics, record_tasks
from hindcast.kafka import produce
from hindcast.kafka.cluster import Cluster
from hindcast.kafka.produce import ProducerRecord
from hindcast.kafka.topics import OffsetRange
from hindcast.ops import retention
from hindcast.ops.erase import forget, records
from hindcast.plan import journal
from hindcast.store import commits, files
from hindcast.store.tables import Table
from pipelines import Pipeline, at, pipeline, wrong
from test_rehearsal import CONTRACT, define_bills, known_bills, rehearse, send, sent

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.connect

MOMENTS = ["--from", at(0).isoformat(), "--to", at(30).isoformat(), "--every", "10 seconds"]


@pytest.fixture(autouse=True)
def _one_session(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hindcast.cli.commands.running.open_session", lambda *_: spark)


def beside(p: Pipeline, name: str) -> Pipeline:
    """The pipeline of another name over the same topics and the same warehouse; its contract may not be there yet."""
    other = Pipeline(p.spark, p.servers, p.folder, p.path.read_text(encoding="utf-8"))
    other.name = name
    return other


def rows_of(p: Pipeline, table: str) -> list[tuple[Any, ...]]:
    """What a table has ever said, and when, whatever its runs are called."""
    return sorted((tuple(sorted(row.items())) for row in p.raw(table)), key=str)


def lose(p: Pipeline, **before: int) -> None:
    places = [TopicPartition(p.kafka(topic), 0, offset) for topic, offset in before.items()]
    admin = AdminClient({"bootstrap.servers": p.servers, "log_level": 0})
    for removed in admin.delete_records(places).values():
        removed.result(20)


def test_what_kafka_lost_is_rehearsed_from_the_logs_and_goes_on_in_kafka(
    spark: SparkSession, broker: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pipeline(
        spark, broker, tmp_path, CONTRACT.replace("    arrival: header sent\n", "    max_malformed: 9\n")
    ) as p:
        twin = beside(p, "twin")
        twin.path.write_text(arriving(p).replace("pipeline: hindsight", "pipeline: twin"), encoding="utf-8")
        send(p)
        p.send("menu", ("curry", b"{", 28, sent(28)))
        p.run()
        p.send("orders", ("ida", {"item": "curry", "quantity": 2}, 2, sent(29)))
        p.run()
        rehearse(twin, 0, 30)
        lose(p, menu=4, orders=5)

        assert main(["rehearse", p.name, "--into", "then", *MOMENTS]) == 1
        assert "does not say when its records arrived" in capsys.readouterr().err
        assert not beside(p, "then").path.exists(), "nothing is written"
        p.path.write_text(arriving(p), encoding="utf-8")
        assert main(["rehearse", p.name, "--into", "then", *MOMENTS]) == 0
        shown = capsys.readouterr()
        assert f"then: its contract is that of hindsight, in {beside(p, 'then').path}" in shown.err
        assert "then, run 1 (rehearse__" in shown.out
        assert f"again: hindcast rehearse hindsight --into then --from {at(0).isoformat()} " in shown.out
        then = beside(p, "then")
        for table in ("menu", "orders", "bills"):
            assert rows_of(then, table) == rows_of(twin, table), table
        assert [row[:3] for row in then.fates("menu")] == twin.fates("menu")
        for second in (10, 20, 30):
            assert [bill for bill in known_bills(then, at(second)) if bill[0] != "ida"] == define_bills(second)
        assert wrong(then) == []
        assert [state for _, state in p.states()] == ["completed", "completed"], "the pipeline itself is as it was"

        assert main(["rehearse", p.name, "--into", "then", *MOMENTS]) == 0
        assert "was rehearsed before; nothing was done" in capsys.readouterr().out
        p.send("orders", ("gus", {"item": "curry", "quantity": 2}, 7, sent(31)))
        then.run()
        assert ("gus", 20) in known_bills(then, None), "by the clock it reads Kafka"
        assert wrong(then) == []


def arriving(p: Pipeline) -> str:
    """The contract, with arrivals."""
    return p.path.read_text(encoding="utf-8").replace(
        "    max_malformed: 9\n", "    max_malformed: 9\n    arrival: header sent\n"
    )


def test_a_forgotten_key_stays_forgotten_under_the_other_name_and_a_view_may_be_defined_anew(
    spark: SparkSession, broker: str, tmp_path: Path
) -> None:
    with pipeline(spark, broker, tmp_path, CONTRACT) as p:
        send(p)
        p.run()
        forget.forget_records(spark, p.contract, records.parse_request(p.contract, "orders", "bob", ()))
        then = beside(p, "then")
        text = p.path.read_text(encoding="utf-8").replace("pipeline: hindsight", "pipeline: then")
        then.path.write_text(text.replace("quantity * price", "quantity * price * 10"), encoding="utf-8")
        assert main(["rehearse", p.name, "--into", "then", *MOMENTS]) == 0
        expected = [(who, 10 * amount) for who, amount in define_bills(30) if who != "bob"]
        assert known_bills(then, at(30)) == expected
        (gone,) = (row for row in then.raw("logs/orders") if row["fate"] == "gone")
        assert (gone["offset"], gone["value"]) == (1, None)
        assert gone["reason"] == (
            "not in the log of hindsight: Kafka had no record there, or hindcast forget removed it"
        )
        assert wrong(then) == []


def test_what_makes_no_sense_is_refused_before_anything_is_written(
    spark: SparkSession, broker: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    keeping = CONTRACT.replace("header sent", "header sent\n    keep: {table: 2 seconds, log: 2 seconds}", 1)
    with pipeline(spark, broker, tmp_path, keeping) as p:
        send(p)

        def refusal(*options: str) -> str:
            before = sorted(p.folder.rglob("*"))
            assert main(["rehearse", p.name, *options]) == 1
            assert sorted(p.folder.rglob("*")) == before
            return capsys.readouterr().err

        assert "its logs have no records yet" in refusal("--into", "then", *MOMENTS)
        p.run()
        assert "--into names the pipeline itself" in refusal("--into", p.name, *MOMENTS)
        for odd in ("../then", "then.yaml", "", "hindcast_maintenance", "then__release", "x" * 300):
            assert "rehearse" not in refusal("--into", odd, *MOMENTS), odd
        assert "--end goes alone" in refusal("--into", "then", "--end")
        assert "but it is" in refusal("--into", "then", "--from", "2026-01-01", "--to", "2999-01-01", "--every", "year")
        beside(p, "then").path.write_text(keeping.replace("hindsight", "other"), encoding="utf-8")
        assert "exists, and is not the contract of then" in refusal("--into", "then", *MOMENTS)
        changed = p.path.read_text(encoding="utf-8").replace("pipeline: hindsight", "pipeline: then")
        beside(p, "then").path.write_text(changed.replace(p.kafka("menu"), "elsewhere"), encoding="utf-8")
        found = refusal("--into", "then", *MOMENTS)
        assert "hindsight, topic elsewhere: has no log of this topic" in found
        assert f"it has {p.kafka('menu')}, {p.kafka('orders')}; rehearse other topics from Kafka" in found
        logs = logged_topics.open_logged_topics(p.contract, journal.read_runs(p.warehouse, p.name))
        retention.trim_pipeline(spark, p.contract)
        with pytest.raises(RequestError, match="the log was trimmed during the rehearsal"):
            list(logs.read_batches(p.kafka("menu"), logs.read_offset_ranges(p.kafka("menu"))))
        assert "the log was trimmed up to" in refusal("--into", "then", *MOMENTS)


@pytest.mark.parametrize("topic", ["topic: {prefix}.some-0", "pattern: {prefix}.some-.*"])
def test_tasks_read_of_a_log_what_kafka_has_in_every_partition(
    spark: SparkSession, broker: str, tmp_path: Path, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pipeline(spark, broker, tmp_path, SOME.format(topic="topic: x")) as p:
        topics = [p.kafka(f"some-{n}") for n in range(3)]
        produce.create_topics(broker, *topics, partitions=2)
        p.path.write_text(SOME.format(topic=topic.format(prefix=p.prefix)), encoding="utf-8")
        read_topics = topics if "pattern" in topic else topics[:1]
        for number in range(2):  # two runs: several files
            for n, name in enumerate(topics):
                by_partition: dict[int, list[ProducerRecord]] = {0: [], 1: []}
                for i, headers in enumerate([(), (("a", b"1"), ("a", None)), ()] * (8 + n)):
                    value = None if i % 9 == 8 else b'{"n": %d}' % i
                    record = ProducerRecord(f"k{i}".encode(), value, at(i + number), headers)
                    by_partition[i % 2].append(record)
                for partition, own in by_partition.items():
                    produce.send_records(broker, name, own, partition=partition)
            p.run()
        logs = logged_topics.open_logged_topics(p.contract, journal.read_runs(p.warehouse, p.name))
        assert logs.list_topics() == {name: [0, 1] for name in read_topics}
        with Cluster(broker) as cluster:
            order = [("partition", "ascending"), ("offset", "ascending")]
            for name in read_topics:
                ranges = cluster.read_offset_ranges(name)
                assert logs.read_offset_ranges(name) == ranges
                assert logs.topic_id(name) == cluster.topic_id(name)
                for some in (ranges, {1: OffsetRange(3, 7)}):
                    found, expected = (
                        pa.Table.from_batches([*it.read_batches(name, some, 20)]).sort_by(order).to_pylist()
                        for it in (logs, cluster)
                    )
                    assert found == expected != []
                for second in (0, 5, 500):
                    moments = at(second), at(900)
                    assert logs.find_offsets_for_time(name, *moments) == cluster.find_offsets_for_time(name, *moments)
        if "pattern" not in topic:  # a rehearsal needs arrivals; the tasks are the same
            return
        alone = dict(enumerate([OffsetRange(0, 5)] * 6))
        place = (p.contract.kafka_topic("some"), journal.read_runs(p.warehouse, p.name)[0].plan.topics["some"].members)
        few = record_tasks.read_records(spark, logs, p.settings, place, alone).collect()
        monkeypatch.setattr(files, "is_small", lambda *_: False)
        in_tasks = record_tasks.read_records(spark, logs, p.settings, place, alone).collect()
        assert sorted(in_tasks, key=str) == sorted(few, key=str)
        assert len(few) == 30


SOME = """
pipeline: some
start: 2026-01-01
topics:
  some:
    {topic}
    read: table
    key: {{k: string}}
    value: {{n: int}}
"""


TWO = """
pipeline: two
start: 2026-01-01
topics:
  late: {read: stream, topic: SAME, from: FROM, key: {k: string}, value: {n: int}, arrival: header sent}
  every: {read: table, topic: SAME, key: {k: string}, value: {n: int}, arrival: header sent}
"""


def test_of_several_entries_of_a_topic_the_log_that_has_all_of_it_is_read(
    spark: SparkSession, broker: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pipeline(
        spark,
        broker,
        tmp_path,
        "pipeline: x\nstart: 2026-01-01\ntopics: {t: {read: table, key: {k: string}, value: {n: int}}}",
    ) as x:
        text = TWO.replace("SAME", x.kafka("t")).replace("FROM", at(10).isoformat())
        p = Pipeline(spark, broker, tmp_path, text)
        x.send("t", *((f"k{n % 3}", {"n": n}, n, sent(n)) for n in range(30)))
        p.run()
        assert main(["rehearse", "two", "--into", "then", *MOMENTS]) == 0
        then = beside(p, "then")
        assert [len(then.fates(name)) for name in ("late", "every")] == [20, 30]
        assert len(known_rows(then, "every")) == 30
        capsys.readouterr()

        changed = then.path.read_text(encoding="utf-8").replace("then", "earlier")
        beside(p, "earlier").path.write_text(changed.replace("00:00:10", "00:00:04"), encoding="utf-8")
        assert main(["rehearse", "two", "--into", "earlier", *MOMENTS]) == 0, "the other entry's log has it"
        x.send("t", ("k0", {"n": 30}, 30, sent(29)))
        p.run(only="late")
        assert main(["rehearse", "two", "--into", "more", *MOMENTS]) == 1
        assert f"none of late, every has all offsets of the topic {x.kafka('t')}" in capsys.readouterr().err
        alone = p.path.read_text(encoding="utf-8").replace("two", "one")
        one = beside(p, "one")
        one.path.write_text(alone[: alone.index("  every:")], encoding="utf-8")
        one.run()
        begun = one.path.read_text(encoding="utf-8").replace("pipeline: one", "pipeline: begun")
        beside(p, "begun").path.write_text(begun.replace("00:00:10", "00:00:09"), encoding="utf-8")
        assert main(["rehearse", "one", "--into", "begun", *MOMENTS]) == 1
        found = capsys.readouterr().err
        assert f"the log of one has the topic {x.kafka('t')} from {at(10).isoformat()} on" in found
        shutil.rmtree(Path(one.warehouse) / "one" / "runs")
        assert main(["ledger", "one", "--rebuild"]) == 0
        assert main(["rehearse", "one", "--into", "begun", *MOMENTS]) == 1
        assert "the journal was rebuilt, and does not say from when on the log has" in capsys.readouterr().err
        one.run()
        assert main(["rehearse", "one", "--into", "begun", *MOMENTS]) == 1
        assert f"from {at(10).isoformat()} on" in capsys.readouterr().err


def known_rows(p: Pipeline, table: str) -> list[dict[str, Any]]:
    return [row for row in p.raw(table) if row["systemTo"] is None]


LATER = """
pipeline: some
start: 2026-01-01
topics:
  t: {read: stream, from: FROM, key: {k: string}, value: {n: int}, arrival: header sent}
"""


@pytest.mark.parametrize(("made", "missing"), [(0, 4), (1, 2)])
def test_earlier_offsets_that_a_killed_run_left_are_ingested_before_a_rehearsal(
    spark: SparkSession,
    broker: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    made: int,
    missing: int,
) -> None:
    with pipeline(spark, broker, tmp_path, LATER.replace("FROM", at(4).isoformat())) as p:
        p.send("t", *((f"k{n}", {"n": n}, n, sent(n)) for n in range(6)))
        p.run()
        p.path.write_text(p.path.read_text(encoding="utf-8").replace("00:00:04", "00:00:00"), encoding="utf-8")
        with monkeypatch.context() as patch:
            patch.setenv("HINDCAST_CHUNK", "2")
            kill_after_commits(patch, made)
            with pytest.raises(KilledError):
                p.run("killed")
        into = ["rehearse", p.name, "--into", "then", "--from", at(0).isoformat(), "--to", at(30).isoformat()]
        into += ["--every", "30 seconds"]

        def refusal() -> str:
            assert main(into) == 1
            assert not beside(p, "then").path.exists(), "nothing is written"
            return capsys.readouterr().err

        assert f"was to ingest earlier offsets of the topic, and {missing} of them are not in the log" in refusal()
        assert main(["abandon", p.name]) == 0
        assert f"hindcast run {p.name}, then repeat this" in refusal()
        p.run()
        assert main(into) == 0
        assert beside(p, "then").fates("t") == [(n, "accepted") for n in range(6)]


class KilledError(BaseException):
    """Stands for the death of the process: nothing of ours handles it."""


def kill_after_commits(patch: pytest.MonkeyPatch, count: int) -> None:
    """Let a run die when it has made so many commits to logs."""
    append_rows, written = commits.append_rows, list[Table]()

    def append(rows: Any, table: Table, *others: Any, **more: Any) -> Any:
        if table.kind == "log":
            if len(written) == count:
                raise KilledError
            written.append(table)
        return append_rows(rows, table, *others, **more)

    patch.setattr(commits, "append_rows", append)
