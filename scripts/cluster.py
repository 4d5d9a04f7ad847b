"""What the tests of the cluster need besides: PostgreSQL for Airflow, an S3 server, Compose's library.

    python3 scripts/cluster.py        what `make test-cluster` runs first

Installed where we may; else what to do is said, and the tests that need it are skipped.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import object_store

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = "postgresql"
"""Debian's package: the server, its client, and a user of its own."""

STORE = "github.com/versity/versitygw/cmd/versitygw@v1.8.0"
"""The module of the S3 server, of the version that docker-compose.yaml has."""


def main() -> int:
    """Exit code 0 when all is there."""
    if not postgres() and os.geteuid() == 0 and shutil.which("apt-get"):
        install = ["apt-get", "install", "-qq", "--yes", "--no-install-recommends", PACKAGE]
        for command in (["apt-get", "update", "-qq"], install):
            subprocess.run(command, env={**os.environ, "DEBIAN_FRONTEND": "noninteractive"}, check=False)
    go = shutil.which("go")
    if go and not store().exists():
        print("building the S3 server (two minutes)", flush=True)
        subprocess.run([go, "install", STORE], env={**os.environ, "GOBIN": str(store().parent)}, check=False)
    if go:
        command = [go, "build", "-C", str(ROOT / "tests" / "compose"), "-o", str(composer()), "."]
        subprocess.run(command, check=False)
    missing = []
    if object_store.main() != 0:
        missing.append("the log store for S3, which was not built")
    if not postgres():
        missing.append(f"PostgreSQL and psql: as root, apt-get install {PACKAGE} (Debian)")
    if not store().exists():
        missing.append("an S3 server: install Go, with which it is built")
    if not composer().exists():
        missing.append("Compose's own library: install Go, with which its check is built")
    for line in missing:
        print(f"tests of the cluster need {line}", file=sys.stderr)
    return 1 if missing else 0


def postgres() -> bool:
    """Whether there is a server where Debian puts it, and psql on the PATH."""
    return any(Path("/usr/lib/postgresql").glob("*/bin/postgres")) and shutil.which("psql") is not None


def store(venv: Path = ROOT / ".venv") -> Path:
    """Where the S3 server is, or will be."""
    return venv / "for-tests" / "bin" / "versitygw"


def composer(venv: Path = ROOT / ".venv") -> Path:
    """Where the program of tests/compose is, or will be: it reads a Compose file as Docker Compose does."""
    return venv / "for-tests" / "bin" / "compose-check"


if __name__ == "__main__":
    sys.exit(main())
