"""Topics by pattern on the real broker: all that match are one log and one table, and each record keeps its place."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient

from hindcast.airflow.pages import ledger_page
from hindcast.common.errors import QueryError, RecordError, TopicError
from hindcast.common.settings import read_settings
from hindcast.ingest import ledger, quarantine, requeue
from hindcast.kafka import produce, topic_patterns
from hindcast.kafka.cluster import Cluster, millis
from hindcast.kafka.topic_patterns import MemberPartition
from hindcast.kafka.topics import OffsetRange
from hindcast.ops import journal_rebuild
from hindcast.plan import journal, planner, plans
from hindcast.query.explain import explain_row
from hindcast.runs import run_steps, special_runs
from pipelines import Pipeline, at, pipeline, tuples, until

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.connect

SALES = """
pipeline: sales
start: 2026-01-01
topics:
  sales:
    pattern: sales-.*
    read: table
    key: {sale: string}
    value: {amount: int}
    max_malformed: 1
    max_record_bytes: 60
views:
  large:
    table: sales
    where: amount >= 10
"""
LARGE = {"amount": 51, "note": "x" * 60}
RECORD = SALES.replace("max_malformed: 1", "on_gap: record")


def made(p: Pipeline, **partitions: int) -> None:
    """Topics `sales-<name>` with so many partitions."""
    for name, count in partitions.items():
        produce.create_topics(p.servers, p.kafka(f"sales-{name}"), partitions=count)


def deleted(p: Pipeline, topic: str) -> None:
    name, admin = p.kafka(topic), AdminClient({"bootstrap.servers": p.servers, "log_level": 0})
    admin.delete_topics([name])[name].result(20)
    with Cluster(p.servers) as cluster:
        until(lambda: name not in cluster.list_topics())


def in_transaction(p: Pipeline, topic: str, end: int) -> None:
    """A record and the marker after it, up to the offset `end`."""
    producer = Producer({"bootstrap.servers": p.servers, "log_level": 0, "transactional.id": p.kafka(topic)})
    producer.init_transactions(20)
    producer.begin_transaction()
    producer.produce(p.kafka(topic), b'{"amount": 1}', b"sure", timestamp=millis(at(20)))
    producer.commit_transaction(20)
    with Cluster(p.servers) as cluster:
        until(lambda: cluster.read_offset_ranges(p.kafka(topic))[0].end == end)


def share(p: Pipeline) -> plans.TopicPlan:
    """What the last plan takes."""
    return journal.read_runs(p.warehouse, p.name)[-1].plan.topics["sales"]


def named(p: Pipeline) -> list[tuple[int, str, int]]:
    """The members of the last plan: number, topic without the test's own prefix, partition."""
    return [(n, it.topic.removeprefix(f"{p.prefix}."), it.partition) for n, it in share(p).members.items()]


def believed(p: Pipeline) -> dict[str, int]:
    """The amount of each sale as it is now."""
    return {sale: amount for sale, amount, _, until_ in p.believed("sales") if until_ is None}


@pytest.mark.long
def test_all_topics_of_a_pattern_are_one_table(spark: SparkSession, broker: str, tmp_path: Path) -> None:
    with pipeline(spark, broker, tmp_path, SALES) as p:
        made(p, us=1, eu=2)
        produce.create_topics(broker, p.kafka("presales-eu"), p.kafka("sales"))
        p.send("presales-eu", ("never", {"amount": 99}, 0))
        p.send("sales-eu", *((f"eu{n}", {"amount": n}, n) for n in range(20)))
        p.send("sales-us", ("us0", {"amount": 10}, 0), ("eu3", {"amount": 33}, 30))
        told = p.run("first")
        assert named(p) == [(0, "sales-eu", 0), (1, "sales-eu", 1), (2, "sales-us", 0)]
        assert told["topics"]["sales"]["offsets"] == 22
        assert believed(p) == {f"eu{n}": n for n in range(20)} | {"eu3": 33, "us0": 10}
        assert ("eu3", 33, 30, None) in p.believed("large")
        places = tuples(p.raw("logs/sales"), "topic", "topicPartition", "partition")
        assert set(places) == {(p.kafka(topic), partition, n) for n, topic, partition in named(p)}
        ids = {row["topic"]: row["topicId"] for row in p.raw("logs/sales")}
        with Cluster(broker) as cluster:
            assert ids == {topic: cluster.topic_id(topic) for topic in ids}

        before = p.versions()
        p.run("nothing new")
        assert p.versions() == before

        made(p, asia=1)  # its name comes first, its number last
        p.send("sales-asia", ("asia0", {"amount": 50}, 1), ("asia1", LARGE, 2), ("us0", {"amount": 11}, 3))
        p.send("sales-us", ("us1", {"amount": 12}, 4))
        told = p.run("third")
        assert named(p)[3:] == [(3, "sales-asia", 0)]
        asia = {"partition": 3, "topic": p.kafka("sales-asia"), "topicPartition": 0, "start": 0, "end": 3}
        assert told["topics"]["sales"]["partitions"][3] == {**asia, "fates": {"accepted": 2, "malformed": 1}}
        assert [row for row in p.believed("sales") if row[0] in ("asia0", "us0", "us1")] == [
            ("asia0", 50, 1, None),
            ("us0", 10, 0, 3),
            ("us0", 11, 3, None),
            ("us1", 12, 4, None),
        ]
        before = p.versions()
        p.run("backfill", until=60)
        assert p.versions() == before

        the_place_in_kafka_is_told(p, f"{p.kafka('sales-asia')}-0")
        a_lost_journal_is_made_again(p)
        a_refused_record_is_requeued_by_its_place_in_kafka(p, spark)


def the_place_in_kafka_is_told(p: Pipeline, asia: str) -> None:
    rows = ledger.read_ledger(p.warehouse, p.name).to_pylist()
    assert [(r["member"], r["first"], r["last"], r["malformed"]) for r in rows if r["partition"] == 3] == [
        (asia, 0, 2, 1)
    ]
    (refused,) = quarantine.list_refused(p.warehouse, p.contract, "sales").to_pylist()
    assert (refused["topic"], refused["partition"], refused["offset"]) == (p.kafka("sales-asia"), 0, 1)
    page = ledger_page.build_page(read_settings(), p.contract, ["sales"])["topics"][0]
    assert [(row["topic"], row["number"]) for row in page["rows"]] == [
        (p.kafka(topic), partition) for _, topic, partition in named(p)
    ]
    (row,) = (row for row in p.raw("sales") if row["sale"] == "us1")
    known = journal.read_completed_runs(p.warehouse, p.name)[-1].known_at
    told = explain_row(p.settings, p.contract, "sales", row, known, ["sales"])["text"]
    assert told == f"It comes from the record in {p.kafka('sales-us')}, partition 0, offset 2."


def a_lost_journal_is_made_again(p: Pipeline) -> None:
    before = share(p).members
    shutil.rmtree(Path(p.warehouse) / p.name / "runs")
    journal_rebuild.rebuild_journal(p.warehouse, p.contract)
    assert share(p).members == before
    p.run("after it")
    assert share(p).members == before
    assert sum(share(p).planned_counts.values()) == 0


def a_refused_record_is_requeued_by_its_place_in_kafka(p: Pipeline, spark: SparkSession) -> None:
    p.write(SALES.replace("bytes: 60", "bytes: 600"))
    asia, none = ({"topic": p.kafka(f"sales-{name}"), "partition": 0} for name in ("asia", "us"))
    assert requeue.count_waiting(p.warehouse, p.contract, requeue.build_request(p.contract, **none)) == {}
    with pytest.raises(QueryError, match="--partition needs one topic, but sales is a pattern of topics"):
        requeue.build_request(p.contract, topic="sales", partition=0)
    with pytest.raises(QueryError, match="no topic 'elsewhere'"):
        requeue.build_request(p.contract, topic="elsewhere")
    asked = requeue.build_request(p.contract, **asia, offsets=[1])
    assert requeue.count_waiting(p.warehouse, p.contract, asked) == {"sales": 1}
    told = special_runs.run_requeue(spark, read_settings(), p.name, "requeue", asked).as_json()
    assert told["topics"]["sales"]["requeued"] == {"accepted": 1}
    assert believed(p)["asia1"] == 51
    assert quarantine.list_refused(p.warehouse, p.contract).to_pylist() == []
    (was,) = quarantine.list_refused(p.warehouse, p.contract, everything=True).to_pylist()
    assert (was["topic"], was["offset"], was["now"]) == (p.kafka("sales-asia"), 1, "requeued")


@pytest.mark.long
def test_a_topic_that_is_deleted_stops_the_run_until_the_contract_goes_on_without_it(
    spark: SparkSession, broker: str, tmp_path: Path
) -> None:
    with pipeline(spark, broker, tmp_path, SALES) as p:
        made(p, eu=1, us=1)
        p.send("sales-eu", ("eu0", {"amount": 1}, 0))
        p.send("sales-us", ("us0", {"amount": 2}, 0))
        p.run("first")
        p.send("sales-us", ("us0", {"amount": 3}, 1))
        run_steps.plan_run(read_settings(), p.name, "second")
        deleted(p, "sales-us")  # with a record that was planned
        p.send("sales-eu", ("eu0", {"amount": 4}, 2))
        with pytest.raises(TopicError, match="offsets 1 to 1 are gone from Kafka: their topic was deleted") as refused:
            p.run("second")
        assert refused.value.where == f"topic {p.kafka('sales-us')}, partition 0"
        planner.abandon_run(p.warehouse, journal.read_runs(p.warehouse, p.name)[-1], "by a test")
        with pytest.raises(TopicError, match="its topic was deleted; 1 is the next offset that was to be") as refused:
            p.run("third")
        assert refused.value.where == f"topic {p.kafka('sales-us')}, partition 0"
        assert "topics.sales.on_gap: record" in refused.value.fix
        p.write(RECORD)
        p.run("third")
        assert believed(p) == {"eu0": 4, "us0": 2}
        assert share(p).ranges == {0: (1, 2), 1: (1, 1)}
        made(p, us=1)
        with pytest.raises(TopicError, match="was deleted and recreated since run") as refused:
            p.run("fourth")
        assert refused.value.where == f"topic {p.kafka('sales-us')}"


@pytest.mark.long
def test_what_a_deleted_topic_had_in_a_plan_is_gone(spark: SparkSession, broker: str, tmp_path: Path) -> None:
    with pipeline(spark, broker, tmp_path, RECORD) as p:
        made(p, eu=1, us=2)
        p.send("sales-eu", ("eu0", {"amount": 1}, 0))
        p.send("sales-us", *((f"us{n}", {"amount": n}, 0) for n in range(9)))
        run_steps.plan_run(read_settings(), p.name, "first")
        deleted(p, "sales-us")
        told = p.run("first")
        counts = [part["fates"] for part in told["topics"]["sales"]["partitions"]]
        assert counts[0] == {"accepted": 1}
        assert sum(of["gone"] for of in counts[1:]) == 9
        gone = [row for row in p.raw("logs/sales") if row["fate"] == "gone"]
        assert {(row["topic"], row["reason"]) for row in gone} == {
            (p.kafka("sales-us"), "their topic was deleted before they were replayed")
        }


@pytest.mark.long
def test_offsets_without_a_record_are_judged_by_their_own_topics_compaction(
    spark: SparkSession, broker: str, tmp_path: Path
) -> None:
    with pipeline(spark, broker, tmp_path, RECORD) as p:
        made(p, eu=1)
        produce.create_topics(broker, p.kafka("sales-us"), config={"cleanup.policy": "compact"})
        in_transaction(p, "sales-eu", end=2)
        in_transaction(p, "sales-us", end=2)
        told = p.run("first")
        assert [part["fates"] for part in told["topics"]["sales"]["partitions"]] == [
            {"accepted": 1, "no_record": 1},
            {"accepted": 1, "gone": 1},  # was it a marker, or compacted away: nobody can tell
        ]


@pytest.mark.long
def test_an_error_names_the_topic_and_partition_in_kafka(spark: SparkSession, broker: str, tmp_path: Path) -> None:
    with pipeline(spark, broker, tmp_path, SALES) as p:
        made(p, eu=3, us=1)
        p.send("sales-us", ("us0", b"no", 0), ("us1", b"no", 0))
        with pytest.raises(RecordError, match="2 of the run's records do not decode, and the limit is 1") as refused:
            p.run("first")
        assert refused.value.where == f"topic {p.kafka('sales-us')}, partition 0, offset 0, key us0"


def test_a_pattern_that_matches_nothing(broker: str, tmp_path: Path) -> None:
    with pipeline(None, broker, tmp_path, SALES.replace("sales-.*", "sails-.*")) as p:
        made(p, eu=1)
        with pytest.raises(TopicError, match="the pattern matches no topic") as refused:
            run_steps.plan_run(read_settings(), p.name, "first")
        assert refused.value.where == f"{broker}, pattern {p.kafka('sails-.*')}"
        assert refused.value.fix.startswith(f"did you mean '{p.kafka('sales-eu')}'?")


def test_a_topic_that_two_patterns_match(broker: str, tmp_path: Path) -> None:
    other = "  eu: {pattern: .*-eu, read: stream, key: {sale: string}, value: {amount: int}}\nviews:"
    with pipeline(None, broker, tmp_path, SALES.replace("views:", other)) as p:
        p.write(SALES.replace("views:", other.replace(".*-eu", "sales-eu|ours")))
        made(p, us=1)
        produce.create_topics(broker, p.kafka("sales-eu"))
        with pytest.raises(TopicError, match=r"the patterns of topics\.sales and topics\.eu both match it") as refused:
            run_steps.plan_run(read_settings(), p.name, "first")
        assert refused.value.where == f"sales, topic {p.kafka('sales-eu')}"


SEEN = {0: MemberPartition("sales-eu", 0, "id"), 1: MemberPartition("sales-us", 0, "id")}


def test_places_of_members() -> None:
    assert topic_patterns.describe_partition("sales", {}, 3) == "topic sales, partition 3"
    assert topic_patterns.describe_partition("sales-.*", SEEN, 1) == "topic sales-us, partition 0"
    assert topic_patterns.describe_partitions({}, [1, 2]) == "partition 1, 2"
    assert topic_patterns.describe_partitions(SEEN, [0, 1]) == "partition 0 of sales-eu and partition 0 of sales-us"


@pytest.mark.parametrize(
    ("pattern", "known", "found"),
    [
        ("sales-e.*", SEEN, "its log has the topic sales-us, which the pattern sales-e.* does not match"),
        (None, SEEN, "its log was replayed from a pattern, the contract says one topic: sales"),
        ("sales-.*", {}, "its log was replayed from one topic, the contract says a pattern: sales-.*"),
    ],
)
def test_a_log_is_of_what_the_contract_says(
    broker: str, tmp_path: Path, pattern: str | None, known: topic_patterns.MemberPartitions, found: str
) -> None:
    p = Pipeline(None, broker, tmp_path, SALES)
    topic = p.contract.topics["sales"].model_copy(update={"pattern": pattern})
    contract = p.contract.model_copy(update={"topics": {"sales": topic}})
    with Cluster(broker) as cluster, pytest.raises(TopicError) as refused:
        topic_patterns.find_members(cluster, contract, "sales", known)
    assert (refused.value.found, refused.value.where) == (found, "sales, topics.sales")


def test_one_that_was_made_anew_with_fewer_partitions_is_told_as_made_anew(broker: str, tmp_path: Path) -> None:
    with pipeline(None, broker, tmp_path, SALES) as p, Cluster(broker) as cluster:
        made(p, eu=1)
        known = {n: MemberPartition(p.kafka("sales-eu"), n, "of the old one, which had two") for n in (0, 1)}
        source = topic_patterns.offset_source(cluster, known, run=7)
        assert source.read_offset_ranges("") == {0: OffsetRange(0, 0)}
        with pytest.raises(TopicError, match="was deleted and recreated since run 7") as refused:
            source.topic_id("")
        assert refused.value.where == f"topic {p.kafka('sales-eu')}"


EVENTS = """
pipeline: sales
start: 2026-01-01
topics:
  sales:
    pattern: sales-.*
    read: stream
    from: 2026-01-01T00:00:05
    key: {sale: string}
    value: {amount: int}
views:
  sums:
    stream: sales
    group_by: {all: "'all'"}
    aggregate: {n: count(*), amount: sum(amount)}
"""


@pytest.mark.long
def test_anchors_ends_chunks_and_fates_are_those_of_each_member(
    spark: SparkSession, broker: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HINDCAST_CHUNK", "5")
    with pipeline(spark, broker, tmp_path, EVENTS) as p:
        made(p, eu=1, us=1)
        p.send("sales-eu", *((f"eu{n}", {"amount": 1}, n) for n in range(20)))
        p.send("sales-us", *((f"us{n}", {"amount": 1}, 2 * n) for n in range(10)))
        far, sent = (("far", 2**62), ("us", millis(at(13)))), Producer({"bootstrap.servers": broker})
        for key, moment in far:  # nobody believes the first, and Spark cannot read it
            sent.produce(p.kafka("sales-us"), b'{"amount": 1}', key, timestamp=moment)
        assert sent.flush(20) == 0
        p.run("up to 10", until=10)
        assert share(p).ranges == {0: (5, 10), 1: (3, 5)}
        assert len(share(p).chunks) == 2
        assert [row[1:3] for row in p.believed("sums") if row[-1] is None] == [(7, 7)]
        told = p.run("all")
        assert [part["fates"] for part in told["topics"]["sales"]["partitions"]] == [
            {"accepted": 10},
            {"accepted": 6, "time_skew": 1},
        ]
        assert [row[1:3] for row in p.believed("sums") if row[-1] is None] == [(23, 23)]
        (refused,) = quarantine.list_refused(p.warehouse, p.contract).to_pylist()
        assert (refused["topic"], refused["partition"], refused["offset"]) == (p.kafka("sales-us"), 0, 10)

        in_transaction(p, "sales-us", end=14)
        told = p.run("with a marker")
        assert told["topics"]["sales"]["partitions"][1]["fates"] == {"accepted": 1, "no_record": 1}
        assert tuples([row for row in p.raw("logs/sales") if row["fate"] == "no_record"], "topic", "offset") == [
            (p.kafka("sales-us"), 13)
        ]
