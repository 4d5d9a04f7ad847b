"""Kafka Streams itself, which tests compare us with: its jars and the compiled tests/streams, in .venv.

python3 scripts/kafka_streams.py        not part of `make setup`; the tests that need it run it
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import setup_parts
from setup import Part, bring_up
from setup_parts import Place, SetupError

ROOT = Path(__file__).resolve().parent.parent
RELEASE = 17


def main() -> int:
    """Exit code 0 when it is there."""
    try:
        bring_up(ROOT / ".venv", parts(Place(ROOT, dict(os.environ))))
    except SetupError as error:
        print(f"kafka_streams: {error}", file=sys.stderr)
        return 1
    return 0


def java(place: Place) -> list[str]:
    """The command that runs our Java; its arguments go behind."""
    quick = ("-Xmx1g", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xshare:auto")
    return [str(place.java), *quick, "-cp", f"{_classes(place)}:{_jars(place)}/*", "Main"]


def parts(place: Place) -> list[Part]:
    """What setup makes, and then the jars and the classes."""
    ivy = place.text("ivy.xml") + place.text("ivysettings.xml")
    sources = [path.read_text(encoding="utf-8") for path in _sources(place)]
    return [
        *setup_parts.parts(place),
        Part(
            "streams-jars",
            "Kafka Streams, for tests",
            [str(place.root), ivy],
            lambda: setup_parts.jars_are_there(_jars(place).parent),
            lambda: setup_parts.retrieve(place, _jars(place).parent, "streams"),
        ),
        Part(
            "streams-classes",
            "tests/streams, compiled",
            [str(place.root), ivy, *sources],
            (_classes(place) / "Main.class").exists,
            lambda: compile_java(place, _sources(place), _jars(place), _classes(place)),
        ),
    ]


def compile_java(place: Place, sources: list[Path], jars_in: Path, classes: Path) -> None:
    """By Eclipse's compiler, which is one of the jars: a Java without javac will do."""
    shutil.rmtree(classes, ignore_errors=True)
    jars = sorted(map(str, jars_in.glob("*.jar")))
    compiler = next(jar for jar in jars if Path(jar).name.startswith("ecj-"))
    options = [f"-{RELEASE}", "-proc:none", "-nowarn", "-cp", ":".join(jars), "-d", str(classes)]
    command = [str(place.java), "-jar", compiler, *options, *map(str, sources)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise SetupError(f"{sources[0].parent} does not compile:\n{done.stderr or done.stdout}")


def _sources(place: Place) -> list[Path]:
    return sorted((place.root / "tests" / "streams").glob("*.java"))


def _jars(place: Place) -> Path:
    return place.venv / "test-jars" / "streams"


def _classes(place: Place) -> Path:
    return place.venv / "test-classes"


if __name__ == "__main__":
    sys.exit(main())
