"""A real Kafka broker (KRaft) on this machine: alone, or one of a quorum."""

from __future__ import annotations

import contextlib
import subprocess
import uuid
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from hindcast.errors import PlatformError
from hindcast.local import ports, process
from hindcast.local.ports import HOST
from hindcast.session import environment, home

_JVM = ("-Xms64m", "-Xmx512m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xshare:auto")


class Quorum(NamedTuple):
    """The cluster that a broker is of: its id, the addresses of all controllers, node 1 first, and which node it is."""

    id: str
    controllers: tuple[str, ...]
    node: int = 1


def start(
    folder: Path,
    port: int,
    log: Path,
    more: Mapping[str, object] | None = None,
    java: Sequence[str] = (),
    quorum: Quorum | None = None,
) -> process.Process:
    """Start a broker that keeps its data in `folder`, formatted first where that is new; `wait` until it answers.

    `more` goes over its properties, `java` to its JVM: what tests have of their own. `quorum`: alone if not given.
    """
    quorum = quorum or new_quorum()
    config = _configure(folder, port, more or {}, quorum)
    if not (folder / "data" / "meta.properties").exists():
        _format(config, quorum)
    command = [*_java(), *java, "kafka.Kafka", str(config)]
    return process.start("broker", f"{HOST}:{port}", command, log=log, env=environment(), cwd=folder)


def new_quorum(count: int = 1) -> Quorum:
    """A new cluster of so many nodes on this machine, as its first one has it."""
    return Quorum(uuid.uuid4().hex[:22], tuple(f"{HOST}:{ports.free()}" for _ in range(count)))


def wait(started: process.Process, seconds: float = 60) -> None:
    """Return when the broker answers; PlatformError with the end of its log when it does not."""
    port = int(started.where.rpartition(":")[2])
    ports.wait(started, lambda: ports.listens(port), seconds)
    ports.wait(started, lambda: _answers(started.where), seconds)


@contextlib.contextmanager
def running(
    folder: Path, port: int | None = None, more: Mapping[str, object] | None = None, java: Sequence[str] = ()
) -> Iterator[str]:
    """A broker for as long as the context lasts (`start`): its bootstrap servers."""
    port = port or ports.free()
    started = start(folder, port, folder / "broker.log", more, java)
    try:
        wait(started)
        yield started.where
    finally:
        process.stop([started])


def _configure(folder: Path, port: int, more: Mapping[str, object], quorum: Quorum) -> Path:
    voters = (f"{node}@{where}" for node, where in enumerate(quorum.controllers, 1))
    settings: dict[str, object] = {
        "node.id": quorum.node,
        "process.roles": "broker,controller",
        "listeners": f"PLAINTEXT://{HOST}:{port}",
        "controller.listener.names": "CONTROLLER",
        "controller.quorum.voters": ",".join(voters),
        "log.dirs": folder / "data",
        # A topic that is not there must be an error, and records dated long ago or ahead must stay what they are
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


def _format(config: Path, quorum: Quorum) -> None:
    command = [*_java(), "kafka.tools.StorageTool", "format", "-t", quorum.id, "-c", str(config)]
    done = subprocess.run(command, env=environment(), capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise PlatformError(
            f"the broker's storage cannot be made: {(done.stderr or done.stdout).strip()[-500:]}",
            where=str(config.parent),
            mend="is the disk full, or the folder not ours to write?",
        )


def _java() -> list[str]:
    jars = home() / "jars" / "broker"
    java_home = environment().get("JAVA_HOME")
    if not jars.is_dir() or not java_home:
        raise PlatformError(
            "the broker's jars, or a Java for them, are not there", where=str(jars), mend="`make setup`"
        )
    logging = Path(__file__).parents[1] / "log4j2.properties"
    return [f"{java_home}/bin/java", *_JVM, f"-Dlog4j2.configurationFile={logging}", "-cp", f"{jars}/*"]


def _answers(servers: str) -> bool:
    from confluent_kafka import KafkaException
    from confluent_kafka.admin import AdminClient

    try:
        return bool(AdminClient({"bootstrap.servers": servers, "log_level": 0}).list_topics(timeout=5).brokers)
    except KafkaException:
        return False
