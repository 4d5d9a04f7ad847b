"""Runs on a Spark standalone cluster of processes, and one of its workers killed meanwhile."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from clusters import (
    CONTRACT,
    ORDERS,
    SparkCluster,
    commits,
    everything,
    finished,
    run,
    spark_cluster,
    states,
    story,
)
from pipelines import Pipeline, pipeline, until

pytestmark = pytest.mark.cluster


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkCluster]:
    with spark_cluster(tmp_path_factory.mktemp("cluster")) as made:
        yield made


@pytest.fixture(scope="module")
def undisturbed(cluster: SparkCluster, broker: str, tmp_path_factory: pytest.TempPathFactory) -> Pipeline:
    """A run of the story on both workers."""
    with pipeline(None, broker, tmp_path_factory.mktemp("undisturbed"), CONTRACT, partitions=4) as made:
        for topic, records in story().items():
            made.send(topic, *records)
        assert finished(made, cluster.connect) == 1
    return made


@pytest.mark.long
def test_a_run_has_the_executors_of_both_workers_and_every_offset_its_fate(
    cluster: SparkCluster, undisturbed: Pipeline
) -> None:
    state = cluster.state()
    assert [worker["coresused"] for worker in state["workers"]] == [1, 1]
    assert [app["cores"] for app in state["activeapps"]] == [2]
    found = everything(undisturbed)
    assert len(found["fates of orders"]) == ORDERS
    assert [fate for _, _, fate in found["fates of orders"]].count("malformed") == 1
    assert len(found["bills"]) == ORDERS - 1
    assert states(undisturbed) == ["completed"]


@pytest.mark.long
def test_a_run_whose_worker_is_killed_ends_with_the_same_tables(
    cluster: SparkCluster, undisturbed: Pipeline, broker: str, tmp_path: Path
) -> None:
    p = Pipeline(None, broker, tmp_path, undisturbed.path.read_text(encoding="utf-8"))
    going = run(p, cluster.connect)
    until(lambda: commits(p, "logs/orders") > 1, 300)  # made, and its first chunk is in it
    cluster.workers[0].kill()
    assert going.poll() is None
    assert states(p) == ["planned"]
    print(f"tries: {finished(p, cluster.connect, going)}")
    assert "Lost executor" in cluster.log.read_text(encoding="utf-8")
    until(lambda: cluster.alive() == 1)
    assert states(p) == ["completed"]
    assert everything(p) == everything(undisturbed)
