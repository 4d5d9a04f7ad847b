"""Debezium itself, whose records tests replay: its jars and the compiled tests/debezium, in .venv.

python3 scripts/debezium.py        not part of `make setup`; the test that needs it runs it
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import setup_parts
from kafka_streams import compile_java
from setup import Part, bring_up
from setup_parts import Place, SetupError

ROOT = Path(__file__).resolve().parent.parent


def main() -> int:
    """Exit code 0 when it is there."""
    place = Place(ROOT, dict(os.environ))
    try:
        bring_up(place.venv, [*setup_parts.parts(place), *parts(place)])
    except SetupError as error:
        print(f"debezium: {error}", file=sys.stderr)
        return 1
    return 0


def java(place: Place) -> list[str]:
    """The command that runs Debezium; its arguments go behind."""
    quick = ("-Xmx512m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xshare:auto")
    return [str(place.java), *quick, "-cp", f"{_classes(place)}:{_jars(place)}/*", "Engine"]


def parts(place: Place) -> list[Part]:
    """The jars and the classes, in a .venv that is set up."""
    ivy = place.text("ivy.xml") + place.text("ivysettings.xml")
    source = _source(place).read_text(encoding="utf-8")
    return [
        Part(
            "debezium-jars",
            "Debezium, for tests",
            [ivy],
            lambda: setup_parts.jars_are_there(_jars(place).parent),
            lambda: setup_parts.retrieve(place, _jars(place).parent, "debezium"),
        ),
        Part(
            "debezium-classes",
            "tests/debezium, compiled",
            [ivy, source],
            (_classes(place) / "Engine.class").exists,
            lambda: compile_java(place, [_source(place)], _jars(place), _classes(place)),
        ),
    ]


def _source(place: Place) -> Path:
    return place.root / "tests" / "debezium" / "Engine.java"


def _jars(place: Place) -> Path:
    return place.venv / "debezium-jars" / "debezium"


def _classes(place: Place) -> Path:
    return place.venv / "debezium-classes"


if __name__ == "__main__":
    sys.exit(main())
