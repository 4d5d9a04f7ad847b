"""Compiling Java by Eclipse's compiler, which is fetched when it is first asked for: a Java without javac will do."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterable
from pathlib import Path

import setup_parts
from setup_parts import Part, Place, SetupError

RELEASE = 17


def compiler(place: Place) -> Part:
    """The compiler, in a folder of its own: Ivy removes from it what it does not know."""
    folder = place.venv / "compiler"
    return Part(
        "compiler",
        "a Java compiler",
        [place.ivy],
        lambda: setup_parts.has_all_jars(folder),
        lambda: setup_parts.retrieve(place, folder, "compiler"),
    )


def compiled(place: Place, sources: Iterable[Path], jars: Iterable[Path], classes: Path) -> None:
    """The classes of some sources, which use those of `jars`, into a folder that is made anew. The compiler is there.

    SetupError with what it said, if it refuses them.
    """
    shutil.rmtree(classes, ignore_errors=True)
    (jar,) = place.venv.glob("compiler/compiler/ecj-*.jar")
    options = [f"-{RELEASE}", "-proc:none", "-nowarn", "-cp", ":".join(map(str, jars)), "-d", str(classes)]
    command = [str(place.java), "-jar", str(jar), *options, *map(str, sources)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise SetupError(f"the sources do not compile:\n{done.stderr or done.stdout}")
