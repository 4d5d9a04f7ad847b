"""The log store by which Spark's commits in an object store are conditional writes (jobs/java), compiled into .venv.

python3 scripts/object_store.py        what `make object-store` runs, after `make setup`

`--without-archive` leaves out the class-data archive, as the Dockerfile does.
"""

from __future__ import annotations

import os
import sys
import tempfile
import zipfile
from pathlib import Path

import setup_parts
from java_compiler import compiled, compiler
from setup import bring_up
from setup_parts import Part, Place, SetupError

ROOT = Path(__file__).resolve().parent.parent


def main() -> int:
    """Exit code 0 when it is there."""
    place = Place(ROOT, dict(os.environ))
    try:
        bring_up(place.venv, [compiler(place), log_store(place, archive="--without-archive" not in sys.argv)])
    except SetupError as error:
        print(f"object-store: {error}", file=sys.stderr)
        return 1
    return 0


def log_store(place: Place, *, archive: bool) -> Part:
    """The jar, and what Spark's class path goes into, which has it from now on: the class-data archive and settings."""
    jar = place.venv / "jars" / "object-store" / "hindcast-log-store.jar"
    sources = sorted((ROOT / "jobs" / "java").rglob("*.java"))

    def make() -> None:
        with tempfile.TemporaryDirectory() as folder:
            classes = Path(folder) / "classes"
            jars = [*(place.pyspark / "jars").glob("*.jar"), *(place.jars / "spark").glob("*.jar")]
            compiled(place, sources, jars, classes)
            jar.parent.mkdir(parents=True, exist_ok=True)
            with zipfile.ZipFile(jar, "w") as written:
                for found in sorted(classes.rglob("*.class")):
                    written.write(found, found.relative_to(classes).as_posix())
        if archive:
            setup_parts.make_archive(place)
        setup_parts.make_conf(place)

    made_from = [place.ivy, *(source.read_text(encoding="utf-8") for source in sources)]
    return Part(
        "object-store", "the log store for S3, and Spark's class-data archive with it", made_from, jar.exists, make
    )


if __name__ == "__main__":
    sys.exit(main())
