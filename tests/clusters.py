"""Clusters of processes on this machine, for tests: a Spark master with workers, brokers of one quorum.

    with spark_cluster(folder) as spark, kafka_cluster(folder) as kafka:
        spark.workers[0].kill()         SIGKILL to a process and all that came of it, as if its machine were lost

Everything listens on loopback alone, on free ports, and is stopped at the end of the block.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import cluster as cluster_parts
import pytest

from hindcast.common import spark_connect
from hindcast.common.session import spark_environment, venv_folder
from hindcast.common.settings import read_settings
from hindcast_local import broker, ports, process, spark
from hindcast_local.ports import HOST
from pipelines import Pipeline, until

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


_SMALL_JVM = "-XX:+UseSerialGC -XX:TieredStopAtLevel=1"


@dataclass(frozen=True)
class Member:
    """A process of a cluster, and all that came of it: a worker's executors, and their Python."""

    process: process.Process

    def kill(self) -> None:
        """SIGKILL to all of them at once."""
        pids = process.find_descendants([self.process])
        assert self.process.pid in pids, f"{self.process.name} had ended by itself"
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        until(lambda: not process.find_descendants([self.process]))


@dataclass(frozen=True)
class SparkCluster:
    """A standalone master with workers, and a Spark Connect server whose executors they run."""

    master: str
    page: str
    workers: list[Member]
    connect: str
    log: Path

    def state(self) -> dict[str, Any]:
        """What the master says of workers and applications, as JSON."""
        return ports.read_json(f"{self.page}/json/")

    def alive(self) -> int:
        """How many workers the master counts on."""
        return sum(worker["state"] == "ALIVE" for worker in self.state().get("workers", []))


@contextmanager
def spark_cluster(folder: Path, workers: int = 2) -> Iterator[SparkCluster]:
    """A master, workers of one core each, and a Spark Connect server on them, without a core of its own."""
    port, page, connect = ports.find_free_port(), ports.find_free_port(), ports.find_free_port()
    master = f"spark://{HOST}:{port}"
    env = {**os.environ, **spark_environment(), "PYTHONPATH": os.pathsep.join(sys.path), "SPARK_DAEMON_MEMORY": "256m"}
    env["SPARK_DAEMON_JAVA_OPTS"] = _SMALL_JVM
    started: list[process.Process] = []

    def start(name: str, where: str, kind: str, *arguments: str) -> process.Process:
        command = [
            str(venv_folder() / "bin" / "spark-class"),
            f"org.apache.spark.deploy.{kind}",
            "--host",
            HOST,
            *arguments,
        ]
        made = process.start_process(name, where, command, log=folder / f"{name}.log", env=env, cwd=folder)
        started.append(made)
        return made

    settings = read_settings({"HINDCAST_VAR": str(folder / "var"), "HINDCAST_SPARK_PORT": str(connect)})
    try:
        at = start("master", master, "master.Master", "--port", str(port), "--webui-port", str(page))
        ports.wait_until_ready(at, lambda: ports.is_listening(port) and ports.is_listening(page), 60)
        size = ("--cores", "1", "--memory", "1g", "--webui-port", "0")
        made = [
            start(f"worker-{n}", master, "worker.Worker", *size, "--work-dir", str(folder / f"work-{n}"), master)
            for n in range(workers)
        ]
        more = {"spark.master": master, "spark.executor.memory": "768m", "spark.driver.memory": "1g"}
        server = spark.start_server(settings, more)
        started.append(server)
        spark.wait_for_server(server)
        address = f"{server.where}/;token={spark_connect.read_token(spark_connect.token_path(settings))}"
        cluster = SparkCluster(
            master, f"http://{HOST}:{page}", [Member(one) for one in made], address, settings.logs / "spark.log"
        )
        until(lambda: cluster.alive() == workers, 60)
        yield cluster
    finally:
        process.stop_processes(started)


@dataclass(frozen=True)
class KafkaCluster:
    """Brokers, each also a controller: by its node's number each one, and the bootstrap servers of all."""

    brokers: dict[int, Member]
    servers: str

    def leaders(self, topic: str) -> dict[int, int]:
        """Which node leads each partition of a topic; -1: none does."""
        from confluent_kafka.admin import AdminClient

        found = AdminClient({"bootstrap.servers": self.servers, "log_level": 0}).list_topics(topic, timeout=10)
        return {number: partition.leader for number, partition in found.topics[topic].partitions.items()}


@contextmanager
def kafka_cluster(folder: Path, brokers: int = 3) -> Iterator[KafkaCluster]:
    """Brokers of one quorum: a topic has a replica on each, and a record counts once all but one of them have it."""
    first = broker.create_quorum(brokers)
    more = {
        "default.replication.factor": brokers,
        "min.insync.replicas": brokers - 1,
        "offsets.topic.replication.factor": brokers,
        "transaction.state.log.replication.factor": brokers,
        "transaction.state.log.min.isr": brokers - 1,
        "broker.session.timeout.ms": 4000,
        "broker.heartbeat.interval.ms": 500,
    }
    started: dict[int, process.Process] = {}
    try:
        for node in range(1, brokers + 1):
            own, log = folder / f"broker-{node}", folder / f"broker-{node}.log"
            started[node] = broker.start_broker(
                own, ports.find_free_port(), log, more, quorum=first._replace(node=node)
            )
        for one in started.values():
            broker.wait_for_broker(one)
        members = {node: Member(one) for node, one in started.items()}
        yield KafkaCluster(members, ",".join(one.where for one in started.values()))
    finally:
        process.stop_processes(list(started.values()))


@contextmanager
def object_store(folder: Path, bucket: str) -> Iterator[dict[str, str]]:
    """An S3 server with a bucket, its objects in a folder: the variables by which it is reached
    (common/object_store.py).
    """
    binary = cluster_parts.store(venv_folder())
    if not binary.exists():
        pytest.skip("no S3 server here (make test-cluster builds one)")
    (folder / "objects" / bucket).mkdir(parents=True)
    port, secret = ports.find_free_port(), secrets.token_hex(16)
    command = [str(binary), "--port", f"{HOST}:{port}", "--health", "/health", "posix", str(folder / "objects")]
    env = {**os.environ, "ROOT_ACCESS_KEY": "hindcast", "ROOT_SECRET_KEY": secret}
    url = f"http://{HOST}:{port}"
    started = process.start_process("object-store", url, command, log=folder / "object-store.log", env=env, cwd=folder)
    try:
        ports.wait_until_ready(started, lambda: ports.is_listening(port), 30)
        yield {
            "AWS_ENDPOINT_URL": url,
            "AWS_ALLOW_HTTP": "true",
            "AWS_REGION": "us-east-1",
            "AWS_ACCESS_KEY_ID": "hindcast",
            "AWS_SECRET_ACCESS_KEY": secret,
        }
    finally:
        process.stop_processes([started])


def run(p: Pipeline, connect: str | None = None, **environ: str) -> subprocess.Popen[bytes]:
    """A process that carries out a run of a pipeline by `hindcast run`, in chunks; what it says is in run.log.

    Over Spark Connect, or with a JVM of its own. Of a pipeline whose last run is unfinished it finishes that one, as a
    retry of Airflow's does.
    """
    code = "import sys; from hindcast.cli.main import main; sys.exit(main())"
    env = {**os.environ, **p.environ, "PYTHONPATH": os.pathsep.join(sys.path), "HINDCAST_CHUNK": CHUNK, **environ}
    env |= {"SPARK_REMOTE": connect} if connect else {"SPARK_MASTER": "local[2]", "HINDCAST_SPARK_MEMORY": "1g"}
    with (p.folder / "run.log").open("ab") as log:
        return subprocess.Popen(
            [sys.executable, "-c", code, "run", p.name],
            env=env,
            stdout=log,
            stderr=subprocess.STDOUT,
            cwd=p.folder,
        )


def finished(p: Pipeline, connect: str | None = None, going: subprocess.Popen[bytes] | None = None) -> int:
    """How many times a run had to be tried until it ended well, one that is `going` among them; at most `TRIES`."""
    for tried in range(1, TRIES + 1):
        going = going or run(p, connect)
        try:
            if going.wait(600) == 0:
                return tried
        finally:
            going.kill()
        going = None
    told = (p.folder / "run.log").read_text(encoding="utf-8")
    raise AssertionError(f"a run of {p.name} failed {TRIES} times: {told}")


def everything(p: Pipeline) -> dict[str, Any]:
    """All that a pipeline's tables say, with runs in place of the moments that they were known at."""
    with p.here():
        return {name: p.history(name) for name in TABLES} | {
            f"fates of {topic}": sorted((r["partition"], r["offset"], r["fate"]) for r in p.raw(f"logs/{topic}"))
            for topic in p.contract.topics
        }


def states(p: Pipeline) -> list[str]:
    """What has become of each run. Runs that work in chunks have a number for each of these."""
    return [state for _, state in p.states()]


def commits(p: Pipeline, table: str) -> int:
    """How many versions a table's Delta log has."""
    return len(list(Path(p.warehouse, p.name, table, "_delta_log").glob("*.json")))
