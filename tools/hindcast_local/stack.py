"""Broker, Spark Connect server and Airflow together: what `make up` and `make down` do.

Each process is recorded in <var>/run with its pid and birth. `start_stack` starts what does not run; `stop_stack` stops
what is recorded, with all descendants, and nothing else. In between the supervisor restarts parts of Airflow.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from functools import partial
from typing import NamedTuple

from hindcast.common import private_files
from hindcast.common.errors import PlatformError
from hindcast.common.plurals import format_count
from hindcast.common.settings import DEFAULT_POOL, Settings
from hindcast.contract import list_contract_files
from hindcast.kafka import security
from hindcast_local import airflow, broker, lock, ports, process, spark, supervisor
from hindcast_local.process import Process

POOL_SLOTS = 2
"""The slots of a pool that `start_stack` creates, one for each Spark task: three drivers would fill the memory."""

LOCK_TIMEOUT = 60.0
"""How long `start_stack` and `stop_stack` wait for the supervisor, in seconds: it may be stopping children that do not
react.
"""


class StackPart(NamedTuple):
    """One process of the stack: its address, its port if it has one, the variable that sets the port, and its start."""

    where: str
    port: int | None
    variable: str
    start: Callable[[], Process]


def start_stack(settings: Settings, *, brief: bool = False) -> None:
    """Start what does not run, wait until it answers, and print the addresses.

    A `brief` stack is for minutes only: Spark is not warmed, and there is neither a triggerer (no task of ours defers)
    nor a supervisor. PlatformError if a port is taken or a process does not start; what this call started is then
    stopped.
    """
    with private_files.limit_access(settings), _hold_lock(settings):
        if private_files.close_folder(settings.var, settings.umask):
            print(f"{settings.var} was open to other users of this machine and is now closed (HINDCAST_UMASK)")
        running = _find_running(settings)
        parts = _list_parts(settings)
        if brief:
            parts.pop("airflow-triggerer", None)
            parts.pop(supervisor.NAME)
        _refuse_moved_parts(running, parts)
        missing = {name: part for name, part in parts.items() if name not in running}
        for name, part in missing.items():
            if part.port is not None:
                ports.refuse_taken_port(part.port, name, part.variable)
        started: dict[str, Process] = {}
        since = datetime.now(UTC)
        try:
            for name, part in missing.items():
                print(f"starting {name}", flush=True)
                started[name] = part.start()
                process.write_record(lock.records_folder(settings), started[name])
            _wait_for_parts(settings, started, since, warm=not brief)
            if settings.pool != DEFAULT_POOL:
                airflow.api(settings).ensure_pool(settings.pool, POOL_SLOTS)
        except BaseException:
            _stop_parts(settings, list(started.values()))
            raise
        print(_format_addresses(settings))


def stop_stack(settings: Settings) -> None:
    """Stop what `start_stack` started, and print what was stopped."""
    with _hold_lock(settings):
        recorded = process.load_records(lock.records_folder(settings))
        if not recorded:
            print("nothing of ours is running")
            return
        _stop_parts(settings, recorded)


def is_up(settings: Settings) -> bool:
    """Return True if every process of the stack runs."""
    recorded = process.load_records(lock.records_folder(settings))
    return _list_parts(settings).keys() <= {part.name for part in recorded if process.is_running(part)}


def find_shared_spark(settings: Settings) -> str | None:
    """Return the address of the Spark Connect server that `start_stack` started; None if it does not run."""
    recorded = process.load_records(lock.records_folder(settings))
    return next((part.where for part in recorded if part.name == "spark" and process.is_running(part)), None)


def _list_parts(settings: Settings) -> dict[str, StackPart]:
    """Return the parts of the stack in the order of their start: JVMs come up while Airflow's database is created."""
    parts = {}
    if settings.spark == "connect":
        where = f"sc://{ports.HOST}:{settings.spark_port}"
        parts["spark"] = StackPart(
            where, settings.spark_port, "HINDCAST_SPARK_PORT", partial(spark.start_server, settings)
        )
    ours = f"{ports.HOST}:{settings.kafka_port}"
    if settings.kafka == ours:
        security.refuse_security_of_own_broker()
        start = partial(broker.start_broker, settings.var / "kafka", settings.kafka_port, settings.logs / "broker.log")
        parts["broker"] = StackPart(ours, settings.kafka_port, "HINDCAST_KAFKA_PORT", start)
    for name in airflow.PARTS:
        port = settings.airflow_port if name == "airflow-api-server" else None
        parts[name] = StackPart(
            airflow.base_url(settings), port, "HINDCAST_AIRFLOW_PORT", partial(_start_airflow, settings, name)
        )
    parts[supervisor.NAME] = StackPart(
        airflow.base_url(settings), None, "", partial(supervisor.start_supervisor, settings)
    )
    return parts


def _start_airflow(settings: Settings, name: str) -> Process:
    airflow.migrate_database(settings)
    return airflow.start_part(settings, name)


def _wait_for_parts(settings: Settings, started: dict[str, Process], since: datetime, *, warm: bool) -> None:
    """Wait until all parts answer; meanwhile warm Spark if `warm`.

    They come up in parallel, so waiting for one after the other takes no longer than for the last.
    """
    if "broker" in started:
        broker.wait_for_broker(started["broker"])
    if "spark" in started:
        spark.wait_for_server(started["spark"])
        if warm:
            spark.warm_server(settings, started["spark"])
    for name in airflow.PARTS:
        if name in started:
            airflow.wait_for_part(started[name], since)
    if supervisor.NAME in started:
        ports.wait_until_ready(started[supervisor.NAME], lambda: process.is_running(started[supervisor.NAME]), 0)


def _find_running(settings: Settings) -> dict[str, Process]:
    """Return the recorded processes that run; stop the descendants of those that died, and remove their records."""
    recorded = process.load_records(lock.records_folder(settings))
    dead = [part for part in recorded if not process.is_running(part)]
    if dead:
        process.stop_processes(dead)
        for part in dead:
            process.remove_record(lock.records_folder(settings), part)
    return {part.name: part for part in recorded if part not in dead}


def _refuse_moved_parts(running: dict[str, Process], parts: dict[str, StackPart]) -> None:
    for name, recorded in running.items():
        if name in parts and parts[name].where != recorded.where:
            raise PlatformError(
                f"{name} runs at {recorded.where}, but the settings now say {parts[name].where}",
                fix="run `make down` first, or restore the settings",
            )


def _stop_parts(settings: Settings, processes: list[Process]) -> None:
    """Stop the supervisor first, so that nothing is restarted; then Airflow, so that no task lacks a service."""
    groups: list[list[Process]] = [[], [], []]
    for part in processes:
        groups[0 if part.name == supervisor.NAME else 1 if part.name in airflow.PARTS else 2].append(part)
    for group in groups:
        process.stop_processes(group)
        for part in group:
            process.remove_record(lock.records_folder(settings), part)
            print(f"stopped {part.name}", flush=True)


def _format_addresses(settings: Settings) -> str:
    errors = airflow.find_import_errors(settings)
    users = airflow.list_users(settings)
    ours = settings.kafka == f"{ports.HOST}:{settings.kafka_port}"
    lines = [
        (
            "Airflow",
            f"{airflow.base_url(settings)} ({format_count(len(list_contract_files(settings.schemas)), 'pipeline')})",
        ),
        ("login", f"{', '.join(users)}: password{'s' if users[1:] else ''} in {airflow.passwords_path(settings)}"),
        (
            "Kafka",
            settings.kafka + (" without a login: every user of this machine can read and write it" if ours else ""),
        ),
        (
            "Spark",
            f"sc://{ports.HOST}:{settings.spark_port}" if settings.spark == "connect" else "spark-submit for each task",
        ),
        ("tables", settings.warehouse),
        ("logs", str(settings.logs)),
        *(("broken", error) for error in errors),
    ]
    return "\n".join(f"{name:<9}{where}" for name, where in lines)


@contextlib.contextmanager
def _hold_lock(settings: Settings) -> Iterator[None]:
    """Hold the lock for the block, waiting while the supervisor has it; PlatformError if another command has it."""
    end = time.monotonic() + LOCK_TIMEOUT
    while True:
        with lock.try_lock(settings, "up or down") as holder:
            if holder is None:
                yield
                return
        if holder not in (supervisor.NAME, "") or time.monotonic() > end:
            raise PlatformError(
                "another `up` or `down` is running here",
                where=str(settings.var),
                fix="wait until it has ended",
            )
        time.sleep(0.1)
