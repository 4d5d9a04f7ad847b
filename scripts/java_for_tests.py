"""Programs in Java that tests and benches run beside Hindcast, and that `make setup` leaves out, in .venv.

Each function returns the command that runs one; its arguments go behind. What it needs is fetched and compiled when it
is first asked for, into a .venv that `make setup` has made: nothing of that is made again.
"""

from __future__ import annotations

import os
import tarfile
from functools import cache
from pathlib import Path

import setup_parts
from java_compiler import compiled, compiler
from setup import bring_up
from setup_parts import Part, Place

ROOT = Path(__file__).resolve().parent.parent
QUICK = ("-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xshare:auto")


@cache
def streams() -> tuple[str, ...]:
    """tests/streams, on Kafka Streams and its test driver."""
    return _compiled("streams", "Kafka Streams", "Main", "-Xmx1g")


@cache
def debezium() -> tuple[str, ...]:
    """tests/debezium, on Debezium's engine for PostgreSQL."""
    return _compiled("debezium", "Debezium", "Engine", "-Xmx512m")


@cache
def registry() -> tuple[str, ...]:
    """Apicurio Registry, which keeps what it is told in memory."""
    place = _place()
    jars = _jars(place, "registry")

    def is_there() -> bool:
        return any(jars.glob("*-runner.jar"))

    def make() -> None:
        setup_parts.retrieve(place, jars.parent, "registry")
        for archive in jars.glob("*.tar.gz"):
            with tarfile.open(archive) as it:
                it.extractall(jars, filter="data")
            archive.unlink()

    bring_up(place.venv, [Part("registry", "Apicurio Registry, for tests", [place.ivy], is_there, make)])
    return (str(place.java), "-Xmx512m", *QUICK, "-jar", str(next(jars.glob("*-runner.jar"))))


@cache
def connector() -> tuple[Path, ...]:
    """The jars of Spark's Kafka connector, which benches copy bytes with."""
    place = _place()
    jars = _jars(place, "connector")

    def make() -> None:
        setup_parts.retrieve(place, jars.parent, "connector")

    parts = [
        Part(
            "connector",
            "Spark's Kafka connector, for benches",
            [place.ivy],
            lambda: setup_parts.has_all_jars(jars.parent),
            make,
        )
    ]
    bring_up(place.venv, parts)
    return tuple(sorted(jars.glob("*.jar")))


def _compiled(name: str, called: str, main: str, memory: str) -> tuple[str, ...]:
    """The command that runs class `main` of tests/<name> with the jars of the configuration <name> of ivy.xml."""
    place = _place()
    jars = _jars(place, name)
    classes = place.venv / "for-tests" / f"{name}-classes"
    sources = sorted((ROOT / "tests" / name).glob("*.java"))
    made_from = [place.ivy, *(path.read_text(encoding="utf-8") for path in sources)]
    parts = [
        compiler(place),
        Part(
            f"{name}-jars",
            f"{called}, for tests",
            [place.ivy],
            lambda: setup_parts.has_all_jars(jars.parent),
            lambda: setup_parts.retrieve(place, jars.parent, name),
        ),
        Part(
            f"{name}-classes",
            f"tests/{name}, compiled",
            made_from,
            (classes / f"{main}.class").exists,
            lambda: compiled(place, sources, jars.glob("*.jar"), classes),
        ),
    ]
    bring_up(place.venv, parts)
    return (str(place.java), memory, *QUICK, "-cp", f"{classes}:{jars}/*", main)


def _place() -> Place:
    return Place(ROOT, dict(os.environ))


def _jars(place: Place, name: str) -> Path:
    """In a folder of their own: Ivy removes from it what it does not know."""
    return place.venv / "for-tests" / f"{name}-jars" / name
