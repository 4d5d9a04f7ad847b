"""Broker, Spark Connect server and Airflow together: what `make up` and `make down` do.

Each process is recorded in <var>/run with its pid and birth. `up` starts what does not run, `down` stops what is
recorded and everything that came of it, and nothing else. Between them the supervisor starts parts of Airflow again.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from functools import partial
from typing import NamedTuple

from hindcast.contracts import paths
from hindcast.errors import PlatformError
from hindcast.kafka import security
from hindcast.local import airflow, broker, lock, ports, private, process, spark, supervisor
from hindcast.local.process import Process
from hindcast.settings import DEFAULT_POOL, Settings

SLOTS = 2
"""How many Spark tasks at once a pool lets run that `up` makes: three drivers would have the machine's whole memory."""

PATIENCE = 60.0
"""Seconds that `up` and `down` wait for the supervisor: it may have to stop a part's children, who do not listen."""


class Part(NamedTuple):
    """One process of the stack: where it serves, what its port is for and how to choose another, how to start it."""

    where: str
    port: int | None
    variable: str
    start: Callable[[], Process]


def up(now: Settings, *, brief: bool = False) -> None:
    """Start what does not run, wait until it answers, and print where to look.

    `brief`: for minutes only. Spark is not warmed, as its first tasks do that; there is no triggerer, which no task of
    ours defers to, and no supervisor. PlatformError when a port is taken or a process does not start; what this call
    started is then stopped again.
    """
    with private.limit_access(now), _alone(now):
        if private.close(now.var, now.umask):
            print(f"{now.var} was open to other users of this machine; it is closed now (HINDCAST_UMASK)")
        running = _running(now)
        parts = _parts(now)
        if brief:
            parts.pop("airflow-triggerer", None)
            parts.pop(supervisor.NAME)
        _refuse_moved(running, parts)
        missing = {name: part for name, part in parts.items() if name not in running}
        for name, part in missing.items():
            if part.port is not None:
                ports.require_free(part.port, name, part.variable)
        started: dict[str, Process] = {}
        since = datetime.now(UTC)
        try:
            for name, part in missing.items():
                print(f"starting {name}", flush=True)
                started[name] = part.start()
                process.save(lock.records(now), started[name])
            _wait(now, started, since, warm=not brief)
            if now.pool != DEFAULT_POOL:
                airflow.api(now).pool(now.pool, SLOTS)
        except BaseException:
            _stop(now, list(started.values()))
            raise
        print(_where_to_look(now))


def down(now: Settings) -> None:
    """Stop what `up` started, and print what that was."""
    with _alone(now):
        recorded = process.load(lock.records(now))
        if not recorded:
            print("nothing of ours is running")
            return
        _stop(now, recorded)


def is_up(now: Settings) -> bool:
    """Does every process of the stack run?"""
    return _parts(now).keys() <= {one.name for one in process.load(lock.records(now)) if process.is_running(one)}


def shared_spark(now: Settings) -> str | None:
    """The address of the Spark Connect server that `up` started, if it runs."""
    recorded = process.load(lock.records(now))
    return next((one.where for one in recorded if one.name == "spark" and process.is_running(one)), None)


def _parts(now: Settings) -> dict[str, Part]:
    """In the order in which they are started: the JVMs come up while Airflow's database is made."""
    parts = {}
    if now.spark == "connect":
        where = f"sc://{ports.HOST}:{now.spark_port}"
        parts["spark"] = Part(where, now.spark_port, "HINDCAST_SPARK_PORT", partial(spark.start, now))
    ours = f"{ports.HOST}:{now.kafka_port}"
    if now.kafka == ours:
        security.own_broker()
        start = partial(broker.start, now.var / "kafka", now.kafka_port, now.logs / "broker.log")
        parts["broker"] = Part(ours, now.kafka_port, "HINDCAST_KAFKA_PORT", start)
    for name in airflow.PARTS:
        port = now.airflow_port if name == "airflow-api-server" else None
        parts[name] = Part(airflow.url(now), port, "HINDCAST_AIRFLOW_PORT", partial(_start_airflow, now, name))
    parts[supervisor.NAME] = Part(airflow.url(now), None, "", partial(supervisor.start, now))
    return parts


def _start_airflow(now: Settings, name: str) -> Process:
    airflow.migrate(now)
    return airflow.start(now, name)


def _wait(now: Settings, started: dict[str, Process], since: datetime, *, warm: bool) -> None:
    """All of them come up beside each other, so waiting for one after the other takes no longer than for the last.

    Spark is warmed meanwhile if that is wished.
    """
    if "broker" in started:
        broker.wait(started["broker"])
    if "spark" in started:
        spark.wait(started["spark"])
        if warm:
            spark.warm(now, started["spark"])
    for name in airflow.PARTS:
        if name in started:
            airflow.wait(started[name], since)
    if supervisor.NAME in started:
        ports.wait(started[supervisor.NAME], lambda: process.is_running(started[supervisor.NAME]), 0)


def _running(now: Settings) -> dict[str, Process]:
    """What is recorded and runs. What is recorded and died is stopped to its last child, and forgotten."""
    recorded = process.load(lock.records(now))
    dead = [one for one in recorded if not process.is_running(one)]
    if dead:
        process.stop(dead)
        for one in dead:
            process.forget(lock.records(now), one)
    return {one.name: one for one in recorded if one not in dead}


def _refuse_moved(running: dict[str, Process], parts: dict[str, Part]) -> None:
    for name, one in running.items():
        if name in parts and parts[name].where != one.where:
            raise PlatformError(
                f"{name} runs at {one.where}, and the settings now say {parts[name].where}",
                mend="`make down` first, or take the settings back",
            )


def _stop(now: Settings, processes: list[Process]) -> None:
    """The supervisor first, so that nothing comes back; then Airflow, so that no task starts without what it needs."""
    groups: list[list[Process]] = [[], [], []]
    for one in processes:
        groups[0 if one.name == supervisor.NAME else 1 if one.name in airflow.PARTS else 2].append(one)
    for group in groups:
        process.stop(group)
        for one in group:
            process.forget(lock.records(now), one)
            print(f"stopped {one.name}", flush=True)


def _where_to_look(now: Settings) -> str:
    errors = airflow.unread(now)
    users = airflow.names(now)
    ours = now.kafka == f"{ports.HOST}:{now.kafka_port}"
    lines = [
        ("Airflow", f"{airflow.url(now)} ({len(list(paths(now.schemas)))} pipelines)"),
        ("login", f"{', '.join(users)}: password{'s' if users[1:] else ''} in {airflow.passwords_file(now)}"),
        ("Kafka", now.kafka + (" without a login: every user of this machine can read and write it" if ours else "")),
        ("Spark", f"sc://{ports.HOST}:{now.spark_port}" if now.spark == "connect" else "spark-submit for each task"),
        ("tables", now.warehouse),
        ("logs", str(now.logs)),
        *(("broken", error) for error in errors),
    ]
    return "\n".join(f"{name:<9}{where}" for name, where in lines)


@contextlib.contextmanager
def _alone(now: Settings) -> Iterator[None]:
    """One `up` or `down` at a time. For the supervisor, which has the lock for seconds at most, they wait."""
    end = time.monotonic() + PATIENCE
    while True:
        with lock.attempt(now, "up or down") as holder:
            if holder is None:
                yield
                return
        if holder not in (supervisor.NAME, "") or time.monotonic() > end:
            raise PlatformError(
                "another `up` or `down` is at work here", where=str(now.var), mend="wait until it has ended"
            )
        time.sleep(0.1)
