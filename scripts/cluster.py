"""PostgreSQL, for Airflow's database where the cluster is tested: installed where we may, or what to do is said.

python3 scripts/cluster.py        what `make test-cluster` runs first
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

PACKAGE = "postgresql"
"""Debian's package: the server, its client, and a user of its own."""


def main() -> int:
    """Exit code 0 when it is there."""
    if not installed() and os.geteuid() == 0 and shutil.which("apt-get"):
        install = ["apt-get", "install", "-qq", "--yes", "--no-install-recommends", PACKAGE]
        for command in (["apt-get", "update", "-qq"], install):
            subprocess.run(command, env={**os.environ, "DEBIAN_FRONTEND": "noninteractive"}, check=False)
    if not installed():
        print(
            "tests of the cluster need PostgreSQL, the server and psql\n"
            f"  what to do: as root, apt-get install {PACKAGE} (Debian), or your system's package of it",
            file=sys.stderr,
        )
        return 1
    return 0


def installed() -> bool:
    """Whether there is a server where Debian puts it, and psql on the PATH."""
    return any(Path("/usr/lib/postgresql").glob("*/bin/postgres")) and shutil.which("psql") is not None


if __name__ == "__main__":
    sys.exit(main())
