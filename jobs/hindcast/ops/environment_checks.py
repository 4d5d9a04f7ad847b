"""Checks of `hindcast doctor` on what is installed: Python, packages, Java, jars, Spark's properties."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import zipfile
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

from hindcast import setup
from hindcast.common import session
from hindcast.common.settings import Settings, is_checkout, setup_command
from hindcast.ops.check_result import CheckResult, State
from hindcast.setup import java_runtime
from hindcast.setup.jars import list_named_jars


def check_python(_: Settings) -> Iterator[CheckResult]:
    import sys

    version, place = ".".join(map(str, sys.version_info[:3])), session.venv_folder()
    if sys.version_info < (3, 11):  # noqa: UP036  # this checks the version
        yield CheckResult("python", "failed", f"{version} ({place})", f"Python 3.11 or later, then {setup_command()}")
    else:
        yield CheckResult("python", "ok", f"{version} ({place})")


def check_packages(settings: Settings) -> Iterator[CheckResult]:
    """Yield whether the packages that Hindcast needs are installed: in a checkout those of requirements.lock."""
    if not is_checkout():
        yield from _check_requirements()
        return
    lock = settings.root / "requirements.lock"
    if not lock.is_file():
        yield CheckResult("packages", "warning", f"no {lock}: versions are not compared", "set HINDCAST_ROOT")
        return
    pinned = dict(re.findall(r"^([A-Za-z0-9_.-]+)==(\S+)", lock.read_text(encoding="utf-8"), re.MULTILINE))
    direct = re.findall(
        r"^([A-Za-z0-9_.-]+)", (settings.root / "requirements.txt").read_text(encoding="utf-8"), re.MULTILINE
    )
    expected = {name: pinned[name.lower()] for name in direct if name.lower() in pinned}
    installed = {name: _find_version(name) for name in expected}
    for name, version in expected.items():
        if installed[name] is None:
            yield CheckResult("packages", "failed", f"{name} is not installed", setup_command())
        elif installed[name] != version:
            found = f"{name} is {installed[name]}, the lock has {version}"
            yield CheckResult("packages", "warning", found, setup_command())
    matching = sum(installed[name] == version for name, version in expected.items())
    named = ", ".join(f"{name} {installed[name]}" for name in _SHOWN if installed.get(name))
    yield CheckResult("packages", "ok", f"{matching} of {len(expected)} match requirements.lock: {named}")


_SHOWN = ("apache-airflow", "pyspark", "delta-spark", "great-expectations")


def _check_requirements() -> Iterator[CheckResult]:
    """Yield how the installed packages compare with what the package asks for, its extras left out."""
    from packaging.requirements import Requirement

    every = [Requirement(text) for text in metadata.requires("hindcast") or ()]
    needed = [it for it in every if it.marker is None or it.marker.evaluate({"extra": ""})]
    installed = {it.name: _find_version(it.name) for it in needed}
    unfit = [it for it in needed if not it.specifier.contains(installed[it.name] or "0", prereleases=True)]
    for it in unfit:
        found = f"{it.name} is {installed[it.name] or 'not installed'}, and Hindcast needs {it.specifier}"
        yield CheckResult("packages", "failed", found, f"pip install '{it.name}{it.specifier}'")
    named = ", ".join(f"{name} {version}" for name in _SHOWN if (version := _find_version(name)))
    fit = len(needed) - len(unfit)
    yield CheckResult("packages", "ok", f"{fit} of {len(needed)} are as the package needs them; {named or 'no extras'}")


def _find_version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def check_java(_: Settings) -> Iterator[CheckResult]:
    if not is_checkout() and _find_version("pyspark") is None:
        yield CheckResult("java", "ok", _ELSEWHERE)
        return
    home = os.environ.get("JAVA_HOME") or session.spark_environment().get("JAVA_HOME")
    java = f"{home}/bin/java" if home else shutil.which("java")
    fix = f"set JAVA_HOME to a Java {java_runtime.OLDEST} or 21"
    if java is None or not Path(java).is_file():
        fix = f"{setup_command()} installs one; or {fix}" if is_checkout() else f"install one, or {fix}"
        found = f"{java} does not exist" if java else "no Java found: JAVA_HOME is not set, and PATH has none"
        yield CheckResult("java", "failed", found, fix)
        return
    process = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=30, check=False)
    version = re.search(r'version "(\d+)([^"]*)"', process.stderr + process.stdout)
    if process.returncode or version is None:
        output = (process.stderr or process.stdout).strip()
        yield CheckResult(
            "java", "failed", f"{java} does not run: {output}", f"{setup_command()}, or set JAVA_HOME to another one"
        )
    elif int(version[1]) < java_runtime.OLDEST:
        yield CheckResult("java", "failed", f"{version[1]}{version[2]} ({java})", fix)
    else:
        yield CheckResult("java", "ok", f"{version[1]}{version[2]} ({java})")


_ELSEWHERE = "not needed: Spark is elsewhere (the extra `spark` is not installed)"


def check_jars(settings: Settings) -> Iterator[CheckResult]:
    """Yield whether the jars of ivy.xml are there, for Spark and, in a checkout, for a local broker."""
    if not is_checkout() and _find_version("pyspark") is None:
        yield CheckResult("jars", "ok", _ELSEWHERE)
        return
    ivy = (Path(setup.__file__).parent / "ivy.xml").read_text(encoding="utf-8")
    states: dict[str, State] = {"spark": "failed", "broker": "warning"} if is_checkout() else {"spark": "failed"}
    folder = session.parts_folder() / "jars"
    for conf, state in states.items():
        expected = list_named_jars(ivy, conf)
        missing = [Path(name).name for name in expected if not zipfile.is_zipfile(folder / name)]
        what = f"jars ({conf})"
        if missing:
            found = f"{', '.join(missing)}: missing, or not a jar ({folder / conf})"
            yield CheckResult(what, state, found, f"rm -rf {folder} && {setup_command()}")
        else:
            names = ", ".join(Path(name).name for name in expected)
            yield CheckResult(what, "ok", f"{len(list((folder / conf).glob('*.jar')))} jars: {names}")
    yield from _check_spark_defaults(settings)


def _check_spark_defaults(settings: Settings) -> Iterator[CheckResult]:
    """Yield whether the files that spark-submit reads match the settings of a session in this process."""
    for name, small in session.DEFAULTS_FILES.items():
        file = session.conf_folder() / name
        what = file.stem
        jars = (session.parts_folder() / "jars" / "spark").is_dir()
        if not file.is_file():
            yield CheckResult(what, "failed", f"{file} does not exist", setup_command())
        elif jars and file.read_text(encoding="utf-8") != session.format_defaults_file(settings, small=small):
            yield CheckResult(what, "warning", f"{file} was written under other settings", setup_command())
        else:
            yield CheckResult(what, "ok", str(file))
