"""Runs on a Spark standalone cluster of processes, and one of its workers killed meanwhile."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from clusters import SparkCluster, ended, run, spark_cluster
from pipelines import Pipeline, pipeline, until

pytestmark = [pytest.mark.cluster, pytest.mark.long]

CONTRACT = """
pipeline: restaurant
start: 2026-01-01
topics:
  menu:
    read: table
    key: {item: string}
    value: {price: "decimal(8,2)"}
  orders:
    read: stream
    key: {customer: string}
    value: {item: string, quantity: int}
    max_malformed: 5
views:
  bills:
    stream: orders
    join: {table: menu, on: item}
    select: {item: orders.item, amount: quantity * price}
  spent:
    stream: bills
    aggregate: {spent: sum(amount)}
"""
TABLES = ("menu", "orders", "bills", "spent")
ORDERS, ITEMS, CHUNK = 20_000, 40, "5000"
TRIES = 3
"""As Airflow has it: a task is tried again twice."""


def story() -> dict[str, list[Any]]:
    """Prices that change, some of them told late, and orders that are not in order; one that is malformed."""
    menu = [(f"item {n % ITEMS}", {"price": 1 + n % 7}, n // ITEMS * (n * 37 % 200)) for n in range(300)]
    orders: list[Any] = [
        (f"customer {n % 400}", {"item": f"item {n * 7 % ITEMS}", "quantity": 1 + n % 3}, (n * 53) % 1000)
        for n in range(ORDERS)
    ]
    orders[ORDERS // 2] = ("customer 7", b"{", 500)
    return {"menu": menu, "orders": orders}


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
        code, said = ended(run(made, cluster.connect, HINDCAST_CHUNK=CHUNK))
        assert code == 0, said
    return made


def everything(p: Pipeline) -> dict[str, Any]:
    """All that a pipeline's tables say, with runs in place of the moments that they were known at."""
    with p.here():
        return {name: p.history(name) for name in TABLES} | {
            f"fates of {topic}": sorted((r["partition"], r["offset"], r["fate"]) for r in p.raw(f"logs/{topic}"))
            for topic in p.contract.topics
        }


def commits(p: Pipeline, table: str) -> int:
    """How many versions a table's Delta log has."""
    return len(list(Path(p.warehouse, p.name, table, "_delta_log").glob("*.json")))


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
    assert undisturbed.states() == [(1, "completed")]


def test_a_run_whose_worker_is_killed_ends_with_the_same_tables(
    cluster: SparkCluster, undisturbed: Pipeline, broker: str, tmp_path: Path
) -> None:
    p = Pipeline(None, broker, tmp_path, undisturbed.path.read_text(encoding="utf-8"))
    going = run(p, cluster.connect, HINDCAST_CHUNK=CHUNK)
    until(lambda: commits(p, "logs/orders") > 1, 120)  # made, and its first chunk is in it
    cluster.workers[0].kill()
    assert going.poll() is None
    assert p.states() == [(1, "planned")]
    tries = 1
    code, said = ended(going)
    while code != 0 and tries < TRIES:
        tries += 1
        code, said = ended(run(p, cluster.connect, HINDCAST_CHUNK=CHUNK))
    print(f"{tries} tries")
    assert code == 0, said
    assert "Lost executor" in cluster.log.read_text(encoding="utf-8")
    until(lambda: cluster.alive() == 1)
    assert p.states() == [(1, "completed")]
    assert everything(p) == everything(undisturbed)
