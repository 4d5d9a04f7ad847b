"""A real Kafka broker (KRaft) on this machine: alone, or one of a quorum."""

from __future__ import annotations

import contextlib
import subprocess
import uuid
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from hindcast.common.errors import PlatformError
from hindcast.common.session import LOGGING, spark_environment, venv_folder
from hindcast_local import ports, process
from hindcast_local.ports import HOST

_JVM = ("-Xms64m", "-Xmx512m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xshare:auto")


class Quorum(NamedTuple):
    """A broker's cluster: its id, the addresses of all controllers, node 1 first, and the broker's node number."""

    id: str
    controllers: tuple[str, ...]
    node: int = 1


def start_broker(
    folder: Path,
    port: int,
    log: Path,
    more: Mapping[str, object] | None = None,
    java: Sequence[str] = (),
    quorum: Quorum | None = None,
) -> process.Process:
    """Start a broker with its data in `folder`, and return its process; `wait_for_broker` returns when it answers.

    A new folder is formatted first. `more` overrides broker properties, `java` adds JVM options. Without a `quorum` the
    broker is a cluster by itself.
    """
    quorum = quorum or create_quorum()
    config = _write_config(folder, port, more or {}, quorum)
    if not (folder / "data" / "meta.properties").exists():
        _format_storage(config, quorum)
    command = [*_java_command(), *java, "kafka.Kafka", str(config)]
    return process.start_process("broker", f"{HOST}:{port}", command, log=log, env=spark_environment(), cwd=folder)


def create_quorum(count: int = 1) -> Quorum:
    """Return a new cluster of `count` nodes on this machine, as its first node sees it."""
    return Quorum(uuid.uuid4().hex[:22], tuple(f"{HOST}:{ports.find_free_port()}" for _ in range(count)))


def wait_for_broker(started: process.Process, seconds: float = 60) -> None:
    """Return when the broker answers; PlatformError with the end of its log if it does not."""
    port = int(started.where.rpartition(":")[2])
    ports.wait_until_ready(started, lambda: ports.is_listening(port), seconds)
    ports.wait_until_ready(started, lambda: _is_answering(started.where), seconds)


@contextlib.contextmanager
def run_broker(
    folder: Path, port: int | None = None, more: Mapping[str, object] | None = None, java: Sequence[str] = ()
) -> Iterator[str]:
    """Run a broker (`start_broker`) for the block, and yield its bootstrap servers."""
    port = port or ports.find_free_port()
    started = start_broker(folder, port, folder / "broker.log", more, java)
    try:
        wait_for_broker(started)
        yield started.where
    finally:
        process.stop_processes([started])


def _write_config(folder: Path, port: int, more: Mapping[str, object], quorum: Quorum) -> Path:
    voters = (f"{node}@{where}" for node, where in enumerate(quorum.controllers, 1))
    settings: dict[str, object] = {
        "node.id": quorum.node,
        "process.roles": "broker,controller",
        "listeners": f"PLAINTEXT://{HOST}:{port}",
        "controller.listener.names": "CONTROLLER",
        "controller.quorum.voters": ",".join(voters),
        "log.dirs": folder / "data",
        # A missing topic must be an error, and records of any age, past or future, must be kept unchanged
        "auto.create.topics.enable": "false",
        "log.retention.ms": -1,
        "log.roll.ms": 2**63 - 1,
        "log.message.timestamp.before.max.ms": 2**63 - 1,
        "log.message.timestamp.after.max.ms": 2**63 - 1,
        # One node, few topics, quick start
        "offsets.topic.num.partitions": 1,
        "offsets.topic.replication.factor": 1,
        "transaction.state.log.num.partitions": 1,
        "transaction.state.log.replication.factor": 1,
        "transaction.state.log.min.isr": 1,
        "share.coordinator.state.topic.num.partitions": 1,
        "share.coordinator.state.topic.replication.factor": 1,
        "share.coordinator.state.topic.min.isr": 1,
        "group.initial.rebalance.delay.ms": 0,
        "log.cleaner.dedupe.buffer.size": 2**23,
        **more,
    }
    settings["listeners"] = f"{settings['listeners']},CONTROLLER://{quorum.controllers[quorum.node - 1]}"
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "server.properties"
    path.write_text("".join(f"{name}={value}\n" for name, value in settings.items()), encoding="utf-8")
    return path


def _format_storage(config: Path, quorum: Quorum) -> None:
    command = [*_java_command(), "kafka.tools.StorageTool", "format", "-t", quorum.id, "-c", str(config)]
    done = subprocess.run(command, env=spark_environment(), capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise PlatformError(
            f"the broker's storage cannot be formatted: {(done.stderr or done.stdout).strip()[-500:]}",
            where=str(config.parent),
            fix="check that the disk has space and that this user may write to the folder",
        )


def _java_command() -> list[str]:
    jars = venv_folder() / "jars" / "broker"
    java_home = spark_environment().get("JAVA_HOME")
    if not jars.is_dir() or not java_home:
        raise PlatformError("the broker's jars or a Java for them are missing", where=str(jars), fix="run `make setup`")
    return [f"{java_home}/bin/java", *_JVM, LOGGING, "-cp", f"{jars}/*"]


def _is_answering(servers: str) -> bool:
    from confluent_kafka import KafkaException
    from confluent_kafka.admin import AdminClient

    try:
        return bool(AdminClient({"bootstrap.servers": servers, "log_level": 0}).list_topics(timeout=5).brokers)
    except KafkaException:
        return False
