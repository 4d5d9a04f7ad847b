"""The log store by which Spark's commits in an object store are conditional writes (jobs/java), compiled into .venv.

python3 scripts/object_store.py        what `make object-store` runs, after `make setup`
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

import setup_parts

ROOT = Path(__file__).resolve().parent.parent
RELEASE = "17"


def main() -> int:
    """Exit code 0 when it is there."""
    place = setup_parts.Place(ROOT, dict(os.environ))
    javac = shutil.which("javac")
    if javac is None:
        print("javac is not there: install a JDK (Debian: apt-get install openjdk-17-jdk-headless)", file=sys.stderr)
        return 1
    (spark,) = place.venv.glob("lib/python*/site-packages/pyspark/jars")
    sources = [str(path) for path in (ROOT / "jobs" / "java").rglob("*.java")]
    jar = place.venv / "jars" / "object-store" / "hindcast-log-store.jar"
    with tempfile.TemporaryDirectory() as classes:
        path = os.pathsep.join([f"{spark}/*", f"{place.venv}/jars/spark/*"])
        subprocess.run([javac, "--release", RELEASE, "-nowarn", "-cp", path, "-d", classes, *sources], check=True)
        jar.parent.mkdir(parents=True, exist_ok=True)
        with zipfile.ZipFile(jar, "w") as archive:
            for found in sorted(Path(classes).rglob("*.class")):
                archive.write(found, found.relative_to(classes).as_posix())
    setup_parts.make_conf(place)
    print(jar)
    return 0


if __name__ == "__main__":
    sys.exit(main())
