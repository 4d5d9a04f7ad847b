"""Clusters of processes on this machine, for tests: a Spark master with workers, brokers of one quorum.

    with spark_cluster(folder) as spark, kafka_cluster(folder) as kafka:
        spark.workers[0].kill()         SIGKILL to a process and all that came of it, as if its machine were lost

Everything listens on loopback alone, on free ports, and is stopped at the end of the block.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hindcast.local import ports, process, spark
from hindcast.local.ports import HOST
from hindcast.session import environment, home
from hindcast.settings import settings
from pipelines import Pipeline, until

_SMALL_JVM = "-XX:+UseSerialGC -XX:TieredStopAtLevel=1"


@dataclass(frozen=True)
class Member:
    """A process of a cluster, and all that came of it: a worker's executors, and their Python."""

    process: process.Process

    def kill(self) -> None:
        """SIGKILL to all of them at once."""
        pids = process.family([self.process])
        assert self.process.pid in pids, f"{self.process.name} had ended by itself"
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        until(lambda: not process.family([self.process]))


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
        return ports.answer(f"{self.page}/json/")

    def alive(self) -> int:
        """How many workers the master counts on."""
        return sum(worker["state"] == "ALIVE" for worker in self.state().get("workers", []))


@contextmanager
def spark_cluster(folder: Path, workers: int = 2) -> Iterator[SparkCluster]:
    """A master, workers of one core each, and a Spark Connect server on them, without a core of its own."""
    port, page, connect = ports.free(), ports.free(), ports.free()
    master = f"spark://{HOST}:{port}"
    env = {**os.environ, **environment(), "PYTHONPATH": os.pathsep.join(sys.path), "SPARK_DAEMON_MEMORY": "256m"}
    env["SPARK_DAEMON_JAVA_OPTS"] = _SMALL_JVM
    started: list[process.Process] = []

    def start(name: str, where: str, kind: str, *arguments: str) -> process.Process:
        command = [str(home() / "bin" / "spark-class"), f"org.apache.spark.deploy.{kind}", "--host", HOST, *arguments]
        made = process.start(name, where, command, log=folder / f"{name}.log", env=env, cwd=folder)
        started.append(made)
        return made

    now = settings({"HINDCAST_VAR": str(folder / "var"), "HINDCAST_SPARK_PORT": str(connect)})
    try:
        at = start("master", master, "master.Master", "--port", str(port), "--webui-port", str(page))
        ports.wait(at, lambda: ports.listens(port) and ports.listens(page), 60)
        size = ("--cores", "1", "--memory", "1g", "--webui-port", "0")
        made = [
            start(f"worker-{n}", master, "worker.Worker", *size, "--work-dir", str(folder / f"work-{n}"), master)
            for n in range(workers)
        ]
        more = {"spark.master": master, "spark.executor.memory": "768m", "spark.driver.memory": "1g"}
        server = spark.start(now, more)
        started.append(server)
        spark.wait(server)
        cluster = SparkCluster(
            master, f"http://{HOST}:{page}", [Member(one) for one in made], server.where, now.logs / "spark.log"
        )
        until(lambda: cluster.alive() == workers, 60)
        yield cluster
    finally:
        process.stop(started)


def run(p: Pipeline, connect: str, **environ: str) -> subprocess.Popen[str]:
    """A process that carries out a run of a pipeline by `hindcast run`, over Spark Connect; what it says is its output.

    Of a pipeline whose last run is unfinished, it finishes that one: what a retry of Airflow's does.
    """
    code = "import sys; from hindcast.cli import main; sys.exit(main())"
    env = {**os.environ, **p.environ, "SPARK_REMOTE": connect, "PYTHONPATH": os.pathsep.join(sys.path), **environ}
    return subprocess.Popen(
        [sys.executable, "-c", code, "run", p.name],
        env=env,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        cwd=p.folder,
    )


def ended(process: subprocess.Popen[str], seconds: float = 300) -> tuple[int, str]:
    """How a process ended, and what it said."""
    try:
        told, _ = process.communicate(timeout=seconds)
    finally:
        process.kill()
    return process.returncode, told
