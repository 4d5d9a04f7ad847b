"""`hindcast doctor`: what is installed, reachable and writable, in which versions, and what to do where it is not.

It is for machines where things are broken: each check imports what it needs itself, and none ends the others.
"""

from __future__ import annotations

import os
import re
import shutil
import socket
import stat
import subprocess
import tempfile
import zipfile
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass
from datetime import UTC, datetime, timedelta
from importlib import metadata
from pathlib import Path
from typing import Any, Literal
from xml.etree import ElementTree as ET

from hindcast import session, settings
from hindcast.errors import HindcastError, SettingsError, escape_controls
from hindcast.local import private
from hindcast.settings import Settings

SETUP = "make setup"
JAVA = 17
"""The oldest Java that Spark 4 runs on."""
FULL, LOW = 64 << 20, 1 << 30
"""So many bytes must be free for a table to be made; with fewer than so many a warning is told."""
PATIENCE = 3.0
"""Seconds after which what does not take a connection is told as not reachable."""

State = Literal["ok", "warning", "failed"]


@dataclass(frozen=True)
class Line:
    """One thing that was looked at: its name, how it is, what was found, and what to do unless it is ok."""

    what: str
    state: State
    found: str
    mend: str = ""


def examine() -> list[Line]:
    """Looks at everything, in the order in which parts need each other."""
    now, lines = _settings()
    for what, check in CHECKS.items():
        lines += _guarded(what, check, now)
    return lines


def healthy(lines: Iterable[Line]) -> bool:
    """Whether nothing has failed; warnings are for parts that need not be there, or not now."""
    return all(line.state != "failed" for line in lines)


def text(lines: list[Line]) -> str:
    """The lines for a terminal, with a count at the end."""
    wide = max(len(line.what) for line in lines)
    told = []
    for line in lines:
        found = line.found.replace("\n", "\n" + " " * (wide + 11))
        told.append(f"{line.state:<8} {line.what:<{wide}}  {found}")
        told += [f"{'':<{wide + 11}}what to do: {line.mend}"] if line.mend else []
    counts = {state: sum(line.state == state for line in lines) for state in ("ok", "warning", "failed")}
    return escape_controls("\n".join([*told, ", ".join(f"{n} {state}" for state, n in counts.items())]))


def as_json(lines: list[Line]) -> dict[str, Any]:
    """The same as data."""
    return {"healthy": healthy(lines), "lines": [asdict(line) for line in lines]}


def _guarded(what: str, check: Callable[[Settings], Iterator[Line]], now: Settings) -> Iterator[Line]:
    """The lines of a check; one of what stops it, if it is stopped."""
    try:
        yield from check(now)
    except HindcastError as error:
        yield Line(what, "failed", f"{error.where}: {error.found}" if error.where else error.found, error.mend)
    except ImportError as error:
        yield Line(what, "failed", f"cannot be asked: {error}", SETUP)
    except Exception as error:  # noqa: BLE001  # a machine that is broken in a way that nobody thought of
        yield Line(what, "failed", f"cannot be asked: {type(error).__name__}: {error}", "mend that, and ask again")


def _settings() -> tuple[Settings, list[Line]]:
    """The settings without what makes no sense in them, and which variables are set; secrets are not shown."""
    given = {name: value for name, value in os.environ.items() if name.startswith("HINDCAST_") and value}
    lines, kept = [], dict[str, str]()
    shown = settings.settings({}).environment
    for name, value in sorted(given.items()):
        try:
            settings.settings({name: value})
        except SettingsError as error:
            lines.append(Line("settings", "failed", error.found, error.mend))
            continue
        kept[name] = value
    told = [f"{name}={value}" if name in shown else f"{name} (set)" for name, value in kept.items()]
    lines.append(Line("settings", "ok", "\n".join(told) or "no variable is set: all as by default"))
    return settings.settings(kept), lines


def _python(_: Settings) -> Iterator[Line]:
    import sys

    version, place = ".".join(map(str, sys.version_info[:3])), session.home()
    if sys.version_info < (3, 11):  # noqa: UP036  # that is what is asked
        yield Line("python", "failed", f"{version} ({place})", f"Python 3.11 or later, then {SETUP}")
    else:
        yield Line("python", "ok", f"{version} ({place})")


def _packages(now: Settings) -> Iterator[Line]:
    """What requirements.txt names, in the versions of requirements.lock."""
    lock = now.root / "requirements.lock"
    if not lock.is_file():
        yield Line("packages", "warning", f"{lock} is not there: versions are not compared", "set HINDCAST_ROOT")
        return
    pinned = dict(re.findall(r"^([A-Za-z0-9_.-]+)==(\S+)", lock.read_text(encoding="utf-8"), re.MULTILINE))
    direct = re.findall(
        r"^([A-Za-z0-9_.-]+)", (now.root / "requirements.txt").read_text(encoding="utf-8"), re.MULTILINE
    )
    wanted = {name: pinned[name.lower()] for name in direct if name.lower() in pinned}
    there = {name: _installed(name) for name in wanted}
    for name, version in wanted.items():
        if there[name] is None:
            yield Line("packages", "failed", f"{name} is not installed", SETUP)
        elif there[name] != version:
            yield Line("packages", "warning", f"{name} is {there[name]}, the lock has {version}", SETUP)
    right = sum(there[name] == version for name, version in wanted.items())
    told = ("apache-airflow", "pyspark", "delta-spark", "great-expectations")
    named = ", ".join(f"{name} {there[name]}" for name in told if there.get(name))
    yield Line("packages", "ok", f"{right} of {len(wanted)} are as requirements.lock has them: {named}")


def _installed(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def _java(_: Settings) -> Iterator[Line]:
    home = os.environ.get("JAVA_HOME") or session.environment().get("JAVA_HOME")
    java = f"{home}/bin/java" if home else shutil.which("java")
    if java is None or not Path(java).is_file():
        found = f"{java} is not there" if java else "there is none: no JAVA_HOME, none in PATH"
        yield Line("java", "failed", found, f"{SETUP} brings one; or set JAVA_HOME to a Java {JAVA} or 21")
        return
    asked = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=30, check=False)
    version = re.search(r'version "(\d+)([^"]*)"', asked.stderr + asked.stdout)
    if asked.returncode or version is None:
        told = (asked.stderr or asked.stdout).strip()
        yield Line("java", "failed", f"{java} does not run: {told}", f"{SETUP}, or set JAVA_HOME to another")
    elif int(version[1]) < JAVA:
        yield Line("java", "failed", f"{version[1]}{version[2]} ({java})", f"set JAVA_HOME to a Java {JAVA} or 21")
    else:
        yield Line("java", "ok", f"{version[1]}{version[2]} ({java})")


def _jars(now: Settings) -> Iterator[Line]:
    """The JVM packages that ivy.xml names, for Spark and for a broker of our own."""
    ivy = now.root / "ivy.xml"
    if not ivy.is_file():
        yield Line("jars", "warning", f"{ivy} is not there: versions are not compared", "set HINDCAST_ROOT")
        return
    for conf, state in (("spark", "failed"), ("broker", "warning")):
        folder = session.home() / "jars" / conf
        wanted = [
            f"{it.get('name')}-{it.get('rev')}.jar"
            for it in ET.parse(ivy).getroot().iter("dependency")  # noqa: S314  # our own file
            if (it.get("conf") or "").startswith(f"{conf}->")
        ]
        lacking = [name for name in wanted if not zipfile.is_zipfile(folder / name)]
        what = f"jars ({conf})"
        if lacking:
            found = f"{', '.join(lacking)}: not there, or no jar ({folder})"
            yield Line(what, "failed" if state == "failed" else "warning", found, f"rm -rf {folder.parent} && {SETUP}")
        else:
            yield Line(what, "ok", f"{len(list(folder.glob('*.jar')))} jars: {', '.join(wanted)}")
    yield from _defaults(now)


def _defaults(now: Settings) -> Iterator[Line]:
    """Whether what spark-submit reads is what a session in this process would be made of."""
    for what, small in (("spark-defaults", False), ("spark-small", True)):
        file = session.home() / "spark-conf" / f"{what}.conf"
        jars = (session.home() / "jars" / "spark").is_dir()
        if not file.is_file():
            yield Line(what, "failed", f"{file} is not there", SETUP)
        elif jars and file.read_text(encoding="utf-8") != session.defaults_file(now, small=small):
            yield Line(what, "warning", f"{file} was written under other settings", SETUP)
        else:
            yield Line(what, "ok", str(file))


def _places(now: Settings) -> Iterator[Line]:
    """Whether folders can be written, and how much room there is."""
    for what, place in {"warehouse": now.warehouse, "reports": str(now.reports), "var": str(now.var)}.items():
        if "://" in place:
            yield Line(what, "warning", f"{place}: an object store is not tried", "hindcast verify PIPELINE reads it")
            continue
        folder = next(it for it in (Path(place), *Path(place).parents) if it.exists())
        variable = f"set HINDCAST_{what.upper()} to a folder of yours"
        try:
            with tempfile.TemporaryFile(dir=folder):
                free = shutil.disk_usage(folder).free
        except OSError as error:
            yield Line(what, "failed", f"{place} cannot be written: {error.strerror}", variable)
            continue
        closed = next(_closed(folder), None) if what == "warehouse" and folder == Path(place) else None
        if closed is not None:
            mend = "give this user the right to write there: runs fail at it"
            yield Line(what, "failed", f"{closed} cannot be written", mend)
            continue
        elsewhere = what == "var" or not folder.is_relative_to(now.var)
        if elsewhere and folder == Path(place) and private.is_open(folder, now.umask):
            yield _open_to_others(what, folder, now)
        found = f"{place}: {free / (1 << 30):,.1f} GiB free"
        state: State = "failed" if free < FULL else "warning" if free < LOW else "ok"
        yield Line(what, state, found, "" if state == "ok" else f"make some room, or {variable}")


def _closed(warehouse: Path) -> Iterator[Path]:
    """Yield the folders of tables, and of their logs, into which this user cannot write."""
    for log in (log for depth in ("*/*", "*/*/*", "*/*/*/*") for log in warehouse.glob(f"{depth}/_delta_log")):
        yield from (place for place in (log.parent, log) if not os.access(place, os.W_OK | os.X_OK))


def _open_to_others(what: str, folder: Path, now: Settings) -> Line:
    rights = stat.filemode(folder.stat().st_mode)
    closed = ",".join(f"{who}=" for who, bits in (("g", 0o070), ("o", 0o007)) if now.umask & bits)
    mend = (
        f"chmod {closed} {folder}; if it is shared on purpose set HINDCAST_UMASK to 027 (our group) or 022 (everybody)"
    )
    return Line(what, "warning", f"{folder}: other users of this machine can reach it ({rights})", mend)


def _contracts(now: Settings) -> Iterator[Line]:
    from hindcast.contracts import load, paths

    files = paths(now.schemas)
    wrong = 0
    for file in files:
        try:
            load(file)
        except HindcastError as error:
            wrong += 1
            yield Line("contracts", "failed", f"{error.where}: {error.found}", error.mend)
    if not files:
        yield Line("contracts", "warning", f"{now.schemas} has none", "set HINDCAST_SCHEMAS to the folder with them")
    elif wrong < len(files):
        yield Line("contracts", "ok", f"{len(files) - wrong} of {len(files)} in {now.schemas} load")


def _clock(now: Settings) -> Iterator[Line]:
    """Whether the clock is behind what runs were known at: runs then lie a microsecond apart."""
    from hindcast.planning import journal

    here = datetime.now(UTC)
    for contract in _loadable(now):
        known = [run.known_at for run in journal.runs(now.warehouse, contract.pipeline)]
        if known and max(known) > here + timedelta(minutes=1):
            found = f"it is {here.isoformat(timespec='seconds')}; {contract.pipeline} has a run known at {max(known)}"
            yield Line("clock", "warning", found, "set this machine's clock by NTP")
            return
    yield Line("clock", "ok", here.isoformat(timespec="seconds"))


def _journals(now: Settings) -> Iterator[Line]:
    """Whether the entries of each pipeline's journal of runs are in order."""
    from hindcast.planning import journal

    pipelines = [contract.pipeline for contract in _loadable(now)]
    disordered = {name: damage for name in pipelines if (damage := journal.damage(now.warehouse, name))}
    for name, damage in disordered.items():
        yield Line("journals", "failed", f"{name}: {'; '.join(text for _, text in damage)}", journal.repair(name))
    if len(disordered) < len(pipelines):
        yield Line("journals", "ok", f"{len(pipelines) - len(disordered)} of {len(pipelines)} are in order")


def _kafka(now: Settings) -> Iterator[Line]:
    """Whether a broker answers, and lets us describe and read what contracts name."""
    mend = "hindcast up starts one; or set HINDCAST_KAFKA to your brokers"
    if not any(_connects(server) for server in now.kafka.split(",")):
        yield Line("kafka", "failed", f"{now.kafka} takes no connection", mend)
        return
    from hindcast.kafka.topics import Cluster

    with Cluster(now.kafka) as cluster:
        there = cluster.topics()
        yield Line("kafka", "ok", f"{now.kafka} answers")
        for contract in _loadable(now):
            for name, topic in contract.topics.items():
                kafka = contract.kafka_topic(name)
                matching = [it for it in there if re.fullmatch(kafka, it)] if topic.pattern else [kafka]
                if not set(matching) & there.keys():
                    found = f"{contract.pipeline}.{name}: {kafka} is not there, or we may not describe it"
                    yield Line("topics", "warning", found, "make it, or allow Describe (docs/security.md)")
                    continue
                refused = [it for it in matching if not {"READ", "DESCRIBE"} <= cluster.allowed(it)]
                if refused:
                    found = f"{contract.pipeline}.{name}: we may not read {', '.join(refused)}"
                    yield Line("topics", "failed", found, "allow Read and Describe on it (docs/security.md)")
                else:
                    yield Line("topics", "ok", f"{contract.pipeline}.{name}: {kafka} may be read")


def _keys(now: Settings) -> Iterator[Line]:
    """Whether a table's topic has one key in several partitions: then ties have no order, and corrections can lose."""
    from hindcast.delta import tables
    from hindcast.replay.scattered import count_scattered_keys

    mend = "let all producers of the topic use one partitioner (docs/howto/late-correction.md)"
    found = 0
    for contract in _loadable(now):
        for name in (name for name, topic in contract.topics.items() if topic.read == "table"):
            counts = count_scattered_keys(tables.log(now.warehouse, contract.pipeline, name))
            found += counts.keys
            if counts.keys:
                keys = "1 key is" if counts.keys == 1 else f"{counts.keys:,} keys are"
                where = "" if counts.all else f", in the newest {counts.records:,} records"
                line = f"{contract.pipeline}.{name}: {keys} in more than one partition{where}"
                yield Line("keys", "warning", line, mend)
    if not found:
        yield Line("keys", "ok", "each key of a table is in one partition")


def _registry(now: Settings) -> Iterator[Line]:
    if not now.schema_registry:
        yield Line("schema registry", "ok", "none is set")
        return
    from hindcast.formats import registry

    registry.reach(now)
    yield Line("schema registry", "ok", f"{now.schema_registry} answers")


def _spark(now: Settings) -> Iterator[Line]:
    where = f"127.0.0.1:{now.spark_port}"
    if now.spark == "submit":
        yield Line("spark connect", "ok", "not used: HINDCAST_SPARK=submit")
    elif _connects(where):
        yield Line("spark connect", "ok", f"{where} answers")
    else:
        yield Line("spark connect", "warning", f"{where} takes no connection: Airflow needs it", "hindcast up")


def _airflow(now: Settings) -> Iterator[Line]:
    from hindcast.local import ports

    url = f"http://127.0.0.1:{now.airflow_port}"
    told = ports.answer(f"{url}/api/v2/monitor/health")
    if not told:
        yield Line("airflow", "warning", f"{url} does not answer", "hindcast up")
        return
    ill = [part for part, its in told.items() if its.get("status") not in ("healthy", None)]
    if ill:
        yield Line("airflow", "failed", f"{url}: {', '.join(ill)} not healthy", f"read the logs in {now.logs}")
    else:
        yield Line("airflow", "ok", f"{url} is healthy")


CHECKS: dict[str, Callable[[Settings], Iterator[Line]]] = {
    "python": _python,
    "packages": _packages,
    "java": _java,
    "jars": _jars,
    "places": _places,
    "contracts": _contracts,
    "clock": _clock,
    "journals": _journals,
    "kafka": _kafka,
    "keys": _keys,
    "schema registry": _registry,
    "spark connect": _spark,
    "airflow": _airflow,
}
"""What is looked at, in this order."""


def _loadable(now: Settings) -> Iterator[Any]:
    from hindcast.contracts import load, paths

    for file in paths(now.schemas):
        try:
            yield load(file)
        except HindcastError:
            continue


def _connects(server: str) -> bool:
    """Whether something takes connections at host:port."""
    host, _, port = server.strip().rpartition(":")
    try:
        with socket.create_connection((host.strip("[]"), int(port)), timeout=PATIENCE):
            return True
    except (OSError, ValueError):
        return False
