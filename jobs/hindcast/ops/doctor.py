"""`hindcast doctor`: check what is installed, reachable and writable, and say what to do where it is not.

It runs on machines where things are broken: each check imports what it needs itself, and none ends the others.
"""

from __future__ import annotations

import json
import os
import shutil
import socket
import stat
import tempfile
import urllib.request
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

from hindcast.common import private_files, settings
from hindcast.common.errors import HindcastError, escape_controls, show_briefly
from hindcast.common.json_values import JsonObject, JsonValue
from hindcast.common.settings import Settings, setup_command
from hindcast.ops import environment_checks
from hindcast.ops.check_result import CheckResult, State

if TYPE_CHECKING:
    from hindcast.contract import Contract

MIN_FREE_BYTES, LOW_FREE_BYTES = 64 << 20, 1 << 30
"""Free bytes below which a folder fails the check, and below which it gets a warning."""
CONNECT_TIMEOUT = 3.0
"""Seconds after which a server counts as unreachable."""


def run_checks() -> list[CheckResult]:
    """Return the results of all checks, in the order in which parts need each other."""
    settings, results = _read_settings()
    for what, check in CHECKS.items():
        results += _run_check(what, check, settings)
    return results


def is_healthy(results: Iterable[CheckResult]) -> bool:
    """Return True if no check failed; warnings are for parts that are optional, or not needed now."""
    return all(result.state != "failed" for result in results)


def format_report(results: list[CheckResult]) -> str:
    """Return the results as lines for a terminal, with a count of states at the end."""
    width = max(len(result.what) for result in results)
    lines = []
    for result in results:
        found = result.found.replace("\n", "\n" + " " * (width + 11))
        lines.append(f"{result.state:<8} {result.what:<{width}}  {found}")
        lines += [f"{'':<{width + 11}}what to do: {result.fix}"] if result.fix else []
    counts = {state: sum(result.state == state for result in results) for state in ("ok", "warning", "failed")}
    return escape_controls("\n".join([*lines, ", ".join(f"{n} {state}" for state, n in counts.items())]))


def as_json(results: list[CheckResult]) -> dict[str, JsonValue]:
    """Return the results as data; the key of their list is `lines`."""
    return {"healthy": is_healthy(results), "lines": [result.as_json() for result in results]}


def _run_check(
    what: str, check: Callable[[Settings], Iterator[CheckResult]], settings: Settings
) -> Iterator[CheckResult]:
    """Yield the results of a check; if it raises, one that says what stopped it."""
    try:
        yield from check(settings)
    except HindcastError as error:
        yield _fail(what, error)
    except ImportError as error:
        yield CheckResult(what, "failed", f"cannot be checked: {error}", setup_command())
    except Exception as error:  # noqa: BLE001  # a machine that is broken in a way that nobody thought of
        found = f"cannot be checked: {type(error).__name__}: {error}"
        yield CheckResult(what, "failed", found, "fix that, and check again")


def _fail(what: str, error: HindcastError) -> CheckResult:
    """Return a failed result with what an error says."""
    return CheckResult(what, "failed", f"{error.where}: {error.found}" if error.where else error.found, error.fix)


def _read_settings() -> tuple[Settings, list[CheckResult]]:
    """Return the valid settings, and a result for each invalid one and for what is set; secrets are not shown.

    The target comes last: its file is in the folder that other variables say.
    """
    environment = {name: value for name, value in os.environ.items() if name.startswith("HINDCAST_") and value}
    results, valid = [], dict[str, str]()
    shown = settings.read_settings({}).environment
    for name in sorted(environment, key=lambda name: (name == settings.TARGET_VARIABLE, name)):
        value = environment[name]
        others = valid if name == settings.TARGET_VARIABLE else {}
        try:
            settings.read_settings({**others, name: value})
        except HindcastError as error:
            results.append(_fail("settings", error))
            continue
        valid[name] = value
    lines = [f"{name}={value}" if name in shown else f"{name} (set)" for name, value in valid.items()]
    results.append(CheckResult("settings", "ok", "\n".join(lines) or "no variable is set: all have their defaults"))
    return settings.read_settings(valid), results


def _check_folders(settings: Settings) -> Iterator[CheckResult]:
    """Yield whether each folder can be written, has enough room, and is closed to other users."""
    for what, place in {
        "warehouse": settings.warehouse,
        "reports": str(settings.reports),
        "var": str(settings.var),
    }.items():
        if "://" in place:
            found = f"{place}: writing to an object store is not checked"
            yield CheckResult(what, "warning", found, "hindcast verify PIPELINE reads it")
            continue
        folder = next(path for path in (Path(place), *Path(place).parents) if path.exists())
        variable = f"set HINDCAST_{what.upper()} to a folder of yours"
        try:
            with tempfile.TemporaryFile(dir=folder):
                free = shutil.disk_usage(folder).free
        except OSError as error:
            yield CheckResult(what, "failed", f"{place} cannot be written: {error.strerror}", variable)
            continue
        unwritable = next(_find_unwritable(folder), None) if what == "warehouse" and folder == Path(place) else None
        if unwritable is not None:
            fix = "give this user the right to write there: runs fail without it"
            yield CheckResult(what, "failed", f"{unwritable} cannot be written", fix)
            continue
        is_separate = what == "var" or not folder.is_relative_to(settings.var)
        if is_separate and folder == Path(place) and private_files.is_open_to_others(folder, settings.umask):
            yield _warn_open_folder(what, folder, settings)
        found = f"{place}: {free / (1 << 30):,.1f} GiB free"
        state: State = "failed" if free < MIN_FREE_BYTES else "warning" if free < LOW_FREE_BYTES else "ok"
        yield CheckResult(what, state, found, "" if state == "ok" else f"free some space, or {variable}")


def _find_unwritable(warehouse: Path) -> Iterator[Path]:
    """Yield the folders of tables, and of their logs, that this user cannot write to."""
    for log in (log for depth in ("*/*", "*/*/*", "*/*/*/*") for log in warehouse.glob(f"{depth}/_delta_log")):
        yield from (place for place in (log.parent, log) if not os.access(place, os.W_OK | os.X_OK))


def _warn_open_folder(what: str, folder: Path, settings: Settings) -> CheckResult:
    mode = stat.filemode(folder.stat().st_mode)
    permissions = ",".join(f"{who}=" for who, bits in (("g", 0o070), ("o", 0o007)) if settings.umask & bits)
    fix = (
        f"chmod {permissions} {folder}; if it is shared on purpose, set HINDCAST_UMASK to 027 (our group) or 022 (all)"
    )
    return CheckResult(what, "warning", f"{folder}: other users of this machine can reach it ({mode})", fix)


def _check_contracts(settings: Settings) -> Iterator[CheckResult]:
    from hindcast.contract import list_contract_files, load

    files = list_contract_files(settings.schemas)
    invalid = 0
    for file in files:
        try:
            load(file, choice=settings.choice)
        except HindcastError as error:
            invalid += 1
            yield CheckResult("contracts", "failed", f"{error.where}: {error.found}", error.fix)
    if not files:
        fix = "set HINDCAST_SCHEMAS to the folder that has them"
        yield CheckResult("contracts", "warning", f"{settings.schemas} has no contracts", fix)
    elif invalid < len(files):
        yield CheckResult("contracts", "ok", f"{len(files) - invalid} of {len(files)} in {settings.schemas} load")


def _check_clock(settings: Settings) -> Iterator[CheckResult]:
    """Yield whether the clock is behind the known-at of runs: the next runs are then a microsecond apart."""
    from hindcast.plan import journal

    now = datetime.now(UTC)
    for contract in _load_contracts(settings):
        moments = [run.known_at for run in journal.read_runs(settings.warehouse, contract.pipeline)]
        if moments and max(moments) > now + timedelta(minutes=1):
            found = f"it is {now.isoformat(timespec='seconds')}; {contract.pipeline} has a run known at {max(moments)}"
            yield CheckResult("clock", "warning", found, "set this machine's clock by NTP")
            return
    yield CheckResult("clock", "ok", now.isoformat(timespec="seconds"))


def _check_journals(settings: Settings) -> Iterator[CheckResult]:
    """Yield whether the entries of each pipeline's journal are in order, and its reports can be read."""
    from hindcast.ops import journal_rebuild
    from hindcast.plan import journal

    pipelines = [contract.pipeline for contract in _load_contracts(settings)]
    disordered = dict[str, list[str]]()
    for name in pipelines:
        damage = [text for _, text in journal.find_damage(settings.warehouse, name)]
        runs, _ = journal.read_planned_runs(settings.warehouse, name)
        odd = ", ".join(str(run.number) for run in runs if journal_rebuild.has_malformed_report(run))
        if damage := [*damage, *([f"malformed reports, of run {show_briefly(odd)}"] if odd else [])]:
            disordered[name] = damage
    for name, damage in disordered.items():
        yield CheckResult("journals", "failed", f"{name}: {'; '.join(damage)}", journal.repair_command(name))
    if len(disordered) < len(pipelines):
        yield CheckResult("journals", "ok", f"{len(pipelines) - len(disordered)} of {len(pipelines)} are in order")


def _check_kafka(settings: Settings) -> Iterator[CheckResult]:
    """Yield whether a broker answers, and whether we may describe and read the topics of contracts."""
    fix = "hindcast up starts one; or set HINDCAST_KAFKA to your brokers"
    if not any(_can_connect(server) for server in settings.kafka.split(",")):
        yield CheckResult("kafka", "failed", f"{settings.kafka} accepts no connection", fix)
        return
    from hindcast.kafka.cluster import Cluster

    with Cluster(settings.kafka) as cluster:
        topics = cluster.list_topics()
        yield CheckResult("kafka", "ok", f"{settings.kafka} answers")
        for contract in _load_contracts(settings):
            for name, topic in contract.topics.items():
                kafka = contract.kafka_topic(name)
                matching = topic.select_topics(topics) if topic.pattern else [kafka]
                if not set(matching) & topics.keys():
                    found = f"{contract.pipeline}.{name}: {kafka} does not exist, or we may not describe it"
                    yield CheckResult("topics", "warning", found, "create it, or allow Describe (docs/security.md)")
                    continue
                unreadable = [t for t in matching if not {"READ", "DESCRIBE"} <= cluster.list_allowed_operations(t)]
                if unreadable:
                    found = f"{contract.pipeline}.{name}: we may not read {', '.join(unreadable)}"
                    yield CheckResult("topics", "failed", found, "allow Read and Describe on it (docs/security.md)")
                else:
                    yield CheckResult("topics", "ok", f"{contract.pipeline}.{name}: {kafka} may be read")


def _check_keys(settings: Settings) -> Iterator[CheckResult]:
    """Yield the tables with a key in several partitions: ties then have no order, and corrections can be lost."""
    from hindcast.ingest.scattered_keys import count_scattered_keys
    from hindcast.store import tables

    fix = "let all producers of the topic use one partitioner (docs/howto/late-correction.md)"
    scattered = 0
    for contract in _load_contracts(settings):
        for name in (name for name, topic in contract.topics.items() if topic.read == "table"):
            counts = count_scattered_keys(tables.log_table(settings.warehouse, contract.pipeline, name))
            scattered += counts.keys
            if counts.keys:
                keys = "1 key is" if counts.keys == 1 else f"{counts.keys:,} keys are"
                where = "" if counts.all else f", in the newest {counts.records:,} records"
                line = f"{contract.pipeline}.{name}: {keys} in more than one partition{where}"
                yield CheckResult("keys", "warning", line, fix)
    if not scattered:
        yield CheckResult("keys", "ok", "each key of a table is in one partition")


def _check_registry(settings: Settings) -> Iterator[CheckResult]:
    if not settings.schema_registry:
        yield CheckResult("schema registry", "ok", "not configured")
        return
    from hindcast.formats import registry

    registry.refuse_unreachable(settings)
    yield CheckResult("schema registry", "ok", f"{settings.schema_registry} answers")


def _check_spark_connect(settings: Settings) -> Iterator[CheckResult]:
    address = f"127.0.0.1:{settings.spark_port}"
    if settings.spark == "submit":
        yield CheckResult("spark connect", "ok", "not used: HINDCAST_SPARK=submit")
    elif _can_connect(address):
        yield CheckResult("spark connect", "ok", f"{address} answers")
    else:
        found = f"{address} accepts no connection: Airflow needs it"
        yield CheckResult("spark connect", "warning", found, "hindcast up")


def _check_airflow(settings: Settings) -> Iterator[CheckResult]:
    url = f"http://127.0.0.1:{settings.airflow_port}"
    health = _read_health(f"{url}/api/v2/monitor/health")
    if not health:
        yield CheckResult("airflow", "warning", f"{url} does not answer", "hindcast up")
        return
    unhealthy = [part for part, status in health.items() if status.get("status") not in ("healthy", None)]
    if unhealthy:
        yield CheckResult(
            "airflow", "failed", f"{url}: not healthy: {', '.join(unhealthy)}", f"read the logs in {settings.logs}"
        )
    else:
        yield CheckResult("airflow", "ok", f"{url} is healthy")


def _read_health(url: str) -> Mapping[str, JsonObject]:
    """Return what Airflow reports of its components; nothing while it does not answer."""
    try:
        direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))  # a proxy does not reach this machine
        with direct.open(url, timeout=CONNECT_TIMEOUT) as response:
            health: Mapping[str, JsonObject] = json.load(response)
            return health
    except (OSError, ValueError):
        return {}


CHECKS: dict[str, Callable[[Settings], Iterator[CheckResult]]] = {
    "python": environment_checks.check_python,
    "packages": environment_checks.check_packages,
    "java": environment_checks.check_java,
    "jars": environment_checks.check_jars,
    "places": _check_folders,
    "contracts": _check_contracts,
    "clock": _check_clock,
    "journals": _check_journals,
    "kafka": _check_kafka,
    "keys": _check_keys,
    "schema registry": _check_registry,
    "spark connect": _check_spark_connect,
    "airflow": _check_airflow,
}
"""The checks by their name, in the order in which they run."""


def _load_contracts(settings: Settings) -> Iterator[Contract]:
    from hindcast.contract import list_contract_files, load

    for file in list_contract_files(settings.schemas):
        try:
            yield load(file, choice=settings.choice)
        except HindcastError:
            continue


def _can_connect(server: str) -> bool:
    """Return True if something accepts connections at host:port."""
    host, _, port = server.strip().rpartition(":")
    try:
        with socket.create_connection((host.strip("[]"), int(port)), timeout=CONNECT_TIMEOUT):
            return True
    except (OSError, ValueError):
        return False
