"""The log store by which Spark's commits in an object store are conditional writes (jobs/java), compiled into .venv.

python3 scripts/object_store.py        what `make object-store` runs, after `make setup`
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

ROOT = Path(__file__).resolve().parent.parent


def main() -> int:
    """Exit code 0 when it is there."""
    place = setup_parts.Place(ROOT, dict(os.environ))
    jar = place.venv / "jars" / "object-store" / "hindcast-log-store.jar"
    try:
        bring_up(place.venv, [compiler(place)])
        with tempfile.TemporaryDirectory() as folder:
            classes = Path(folder) / "classes"
            jars = [*(place.pyspark / "jars").glob("*.jar"), *(place.jars / "spark").glob("*.jar")]
            compiled(place, (ROOT / "jobs" / "java").rglob("*.java"), jars, classes)
            jar.parent.mkdir(parents=True, exist_ok=True)
            with zipfile.ZipFile(jar, "w") as archive:
                for found in sorted(classes.rglob("*.class")):
                    archive.write(found, found.relative_to(classes).as_posix())
        setup_parts.make_archive(place)  # whose class path has the jar now
        setup_parts.make_conf(place)
    except setup_parts.SetupError as error:
        print(f"object-store: {error}", file=sys.stderr)
        return 1
    print(jar)
    return 0


if __name__ == "__main__":
    sys.exit(main())
