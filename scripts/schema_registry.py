"""A real schema registry, which tests read through: Apicurio Registry, in .venv.

python3 scripts/schema_registry.py        not part of `make setup` (140 MiB); the tests that need it run it
"""

from __future__ import annotations

import os
import shutil
import sys
import tarfile
from pathlib import Path

import setup_parts
from setup import Part, bring_up
from setup_parts import Place, SetupError

ROOT = Path(__file__).resolve().parent.parent


def main() -> int:
    """Exit code 0 when it is there."""
    try:
        command()
    except SetupError as error:
        print(f"schema_registry: {error}", file=sys.stderr)
        return 1
    return 0


def command() -> list[str]:
    """The command that runs it, in memory; made if it is not there."""
    place = Place(ROOT, dict(os.environ))
    bring_up(place.venv, parts(place))
    quick = ("-Xmx512m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")
    return [str(place.java), *quick, "-jar", str(next(_folder(place).glob("apicurio-registry-app-*-runner.jar")))]


def parts(place: Place) -> list[Part]:
    """What setup makes, and then the registry."""
    ivy = place.text("ivy.xml") + place.text("ivysettings.xml")
    return [
        *setup_parts.parts(place),
        Part(
            "registry",
            "Apicurio Registry, for tests",
            [str(place.root), ivy],
            lambda: any(_folder(place).glob("*-runner.jar")),
            lambda: _make(place),
        ),
    ]


def _make(place: Place) -> None:
    shutil.rmtree(_folder(place), ignore_errors=True)
    setup_parts.retrieve(place, _folder(place) / "fetched", "registry")
    for archive in (_folder(place) / "fetched" / "registry").glob("*.tar.gz"):
        with tarfile.open(archive) as it:
            it.extractall(_folder(place), filter="data")
        archive.unlink()


def _folder(place: Place) -> Path:
    return place.venv / "test-jars" / "registry"


if __name__ == "__main__":
    sys.exit(main())
