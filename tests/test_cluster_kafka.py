"""Runs on three brokers of one quorum, with a topic on each of them, and one of them killed meanwhile."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from clusters import CONTRACT, ORDERS, KafkaCluster, commits, everything, finished, kafka_cluster, run, states, story
from hindcast.kafka.cluster import Cluster
from pipelines import Pipeline, pipeline, until

pytestmark = pytest.mark.cluster


@pytest.fixture(scope="module")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaCluster]:
    with kafka_cluster(tmp_path_factory.mktemp("kafka")) as made:
        yield made


@pytest.fixture(scope="module")
def undisturbed(kafka: KafkaCluster, tmp_path_factory: pytest.TempPathFactory) -> Pipeline:
    """A run of the story while all brokers are there."""
    with pipeline(None, kafka.servers, tmp_path_factory.mktemp("undisturbed"), CONTRACT, partitions=4) as made:
        for topic, records in story().items():
            made.send(topic, *records)
        assert finished(made) == 1
    return made


@pytest.mark.long
def test_topics_are_made_with_as_many_replicas_as_the_brokers_give(kafka: KafkaCluster, undisturbed: Pipeline) -> None:
    with Cluster(kafka.servers) as cluster:
        found = cluster._consumer.list_topics(undisturbed.contract.kafka_topic("orders")).topics
    (topic,) = found.values()
    assert [sorted(partition.replicas) for partition in topic.partitions.values()] == [[1, 2, 3]] * 4


@pytest.mark.long
def test_a_run_whose_broker_is_killed_goes_on_with_the_others(
    kafka: KafkaCluster, undisturbed: Pipeline, tmp_path: Path
) -> None:
    p = Pipeline(None, kafka.servers, tmp_path, undisturbed.path.read_text(encoding="utf-8"))
    orders = p.contract.kafka_topic("orders")
    going = run(p)
    until(lambda: commits(p, "logs/orders") > 1, 300)  # made, and its first chunk is in it
    leads = kafka.leaders(orders)
    last = max(leads)  # of this partition no chunk can have brought all
    kafka.brokers[leads[last]].kill()
    assert going.poll() is None
    assert states(p) == ["planned"]
    assert commits(p, "logs/orders") < commits(undisturbed, "logs/orders")
    print(f"tries: {finished(p, going=going)}")  # a step gives up where no controller answers in time
    assert leads[last] not in kafka.leaders(orders).values()
    found = everything(p)
    assert len(found["fates of orders"]) == ORDERS
    assert found == everything(undisturbed)


@pytest.mark.long
def test_records_are_taken_and_replayed_while_a_broker_that_is_named_first_is_gone(
    kafka: KafkaCluster, undisturbed: Pipeline
) -> None:
    gone = [one for one in kafka.servers.split(",") if one in dead(kafka)]
    assert len(gone) == 1
    p = undisturbed
    p.servers = ",".join([*gone, *(one for one in kafka.servers.split(",") if one not in gone)])
    p.send("orders", ("late", {"item": "item 1", "quantity": 1}, 3))
    assert finished(p) == 1
    assert states(p) == ["completed", "completed"]
    with p.here():
        assert [row[:2] for row in p.believed("bills") if row[0] == "late"] == [("late", "item 1")]


def dead(kafka: KafkaCluster) -> set[str]:
    """The addresses of brokers that do not run."""
    from hindcast_local import process

    return {it.process.where for it in kafka.brokers.values() if not process.is_running(it.process)}
