"""What Spark needs in the environment in which the package is installed; a checkout has `make setup`."""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path

from hindcast.common import session
from hindcast.common.errors import PlatformError
from hindcast.common.settings import Settings
from hindcast.setup import java_runtime
from hindcast.setup.commands import SetupError
from hindcast.setup.jars import JarSource, has_all_jars, list_named_jars


def prepare_spark(settings: Settings) -> None:
    """Write into this environment where its Java is, Spark's extra jars, and the files of properties for spark-submit.

    All of it is in a folder of our own (`session.parts_folder`). Jars that are there already, of the version that this
    release needs, are not downloaded again. Raise SettingsError without a place for Spark's own files (in a project's
    folder it is there); PlatformError if pyspark or a Java is missing, jars cannot be retrieved, or the environment
    cannot be written.
    """
    prefix, pyspark = session.parts_folder(), importlib.util.find_spec("pyspark")
    if pyspark is None or pyspark.origin is None or not Path(pyspark.origin).with_name("jars").is_dir():
        raise PlatformError("pyspark is not installed", where=str(prefix), fix="pip install 'hindcast[spark]'")
    if not settings.schemas.is_dir():  # the properties name folders: of a project, in whose folder the command is
        settings.refuse_unknown_place()
    source_folder = Path(__file__).parent
    named = list_named_jars((source_folder / "ivy.xml").read_text(encoding="utf-8"), "spark")
    try:
        prefix.mkdir(parents=True, exist_ok=True)
        java = _write_java_home(prefix)
        jars = prefix / "jars"
        if not has_all_jars(jars) or not all((jars / name).is_file() for name in named):
            print("Spark's extra jars, with the Ivy of pyspark", flush=True)
            source = JarSource(java, Path(pyspark.origin).parent, source_folder)
            source.retrieve_jars(jars, os.environ, "spark")
        session.write_defaults_files(settings)
    except SetupError as error:
        found, _, fix = str(error).partition("\n  what to do: ")
        raise PlatformError(found, fix=fix) from None
    except OSError as error:
        fix = "run it as the user who owns the environment"
        raise PlatformError(f"{error.strerror}", where=str(error.filename or prefix), fix=fix) from None
    print(f"Spark is set up in {prefix}")


def _write_java_home(prefix: Path) -> Path:
    """Write the JAVA_HOME of Spark's JVMs into the environment, and return its `java`."""
    java, passed_over = java_runtime.find(dict(os.environ))
    if java is None:
        others = "".join(f"\n  passed over: {line}" for line in passed_over)
        raise PlatformError(f"no {java_runtime.WANTED} on this machine{others}", fix=java_runtime.INSTALL_FIX)
    home = java_runtime.write_home(java, prefix)
    print(f"Java {java.version} in {java.home}", flush=True)
    return home / "bin" / "java"
